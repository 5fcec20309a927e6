//! Tests of valid and invalid folders of specs.

use super::*;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }
    dir
}

fn refusal(files: &[(&str, &str)]) -> String {
    let dir = folder(files);
    let (cause, _) = read(dir.path()).expect_err("it is refused");
    cause.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn the_heading_is_the_title_and_the_first_paragraph_the_description() {
    let text = "---\nadapter: shell\nrequiredCapabilities: [file_write, bash_execute]\nafter: b\non: [gpu, big]\npriority: 3\ntimeout: 10m\nretries: 2\nverify: make test\nmerge: false\n---\n\
                ```sh\n# no heading\n```\n# Add a door \n\nOf wood,\nnot of glass.\n\n## Goal\n\nmore\n";
    let dir =
        folder(&[("a.md", text), ("b.md", "# B"), ("_context.md", "shared"), ("notes.txt", "no"), ("sub/c.md", "# C")]);
    let folder = read(dir.path()).expect("it is read");
    let ids: Vec<&str> = folder.specs.iter().map(|spec| spec.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let spec = &folder.specs[0];
    assert_eq!((spec.title.as_str(), spec.description.as_str()), ("Add a door", "Of wood, not of glass."));
    let front = &spec.front;
    assert_eq!(front.adapter.as_deref(), Some("shell"));
    assert_eq!(
        (front.after.list(), front.priority, front.retries, front.merge),
        (vec!["b".to_owned()], 3, Some(2), Some(false))
    );
    assert_eq!(front.on.list(), ["gpu", "big"]);
    assert_eq!(front.timeout.as_ref().map(NumberOrText::text).as_deref(), Some("10m"));
    assert_eq!(front.required_capabilities, ["file_write", "bash_execute"]);
    assert!(!spec.body.contains("adapter:"));
    assert_eq!(folder.notes.len(), 1, "{:?}", folder.notes);
}

#[test]
fn invalid_specs_are_refused_with_their_name() {
    assert_eq!(refusal(&[("a.md", "---\nretries: 1\n---\n \n")]), "a.md: the spec is empty");
    let plain = folder(&[("add-a_door.md", "Of wood,\nnot of glass.\n\nmore\n")]);
    let spec = read(plain.path()).expect("its file name is the title").specs.remove(0);
    assert_eq!((spec.title.as_str(), spec.description.as_str()), ("add a door", "Of wood, not of glass."));
    assert_eq!(refusal(&[("a.md", "# A\0")]), "a.md: contains a NUL byte");
    assert_eq!(refusal(&[("a..b.md", "# A")]), "a..b.md: 'arial/a..b' is not a valid branch name");
    assert_eq!(refusal(&[("a b.md", "# A")]), "a b.md: 'arial/a b' is not a valid branch name");
    assert_eq!(refusal(&[("a.md", "# A"), ("A.MD", "# A")]), "A.MD and a.md have the same name 'a'");
    assert_eq!(refusal(&[("@.md", "# A")]), "@.md: the name '@' has no letter or digit");
    let unclosed = "a.md, line 1: the front matter is not closed";
    for text in ["---\nadapter: shell\n# A\n", "---\r\n\r\nadapter: shell\r\n# A\r\n", "---\nretries: 1"] {
        assert_eq!(refusal(&[("a.md", text)]), unclosed);
    }
    let rule = folder(&[("a.md", "---\n\n# A\n\nText: more.\n")]);
    assert_eq!(read(rule.path()).expect("a horizontal rule").specs[0].title, "A");
    assert!(refusal(&[("a.md", "---\npriority: many\n---\n# A")]).starts_with("a.md: invalid front matter: "));
    let long = "x".repeat(200);
    assert!(refusal(&[(&format!("{long}.md"), "# A")]).ends_with("the name is 200 bytes long (limit 120)"));
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.md"), [0xff, 0xfe]).expect("it is written");
    assert!(read(dir.path()).expect_err("it is refused").0.ends_with("a.md: not valid UTF-8"));
    assert!(read(Path::new("/nonexistent-specs")).is_err());
}

#[test]
fn an_alias_bomb_in_the_front_matter_is_refused() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        yaml.push_str(&format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", ")));
    }
    let cause = refusal(&[("a.md", &format!("---\n{yaml}---\n# A"))]);
    assert!(cause.starts_with("a.md: invalid front matter: "), "{cause}");
}

#[test]
fn unknown_keys_are_noted() {
    let dir = folder(&[("a.md", "---\npriorty: 1\n---\n# A")]);
    let notes = read(dir.path()).expect("it is read").notes;
    assert!(notes[0].ends_with("unknown keys in the front matter: priorty"), "{notes:?}");
}
