//! Folders of specs, good and bad.

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
    let text = "---\nadapter: shell\nrequiredCapabilities: [file_write, bash_execute]\nafter: b\npriority: 3\ntimeout: 10m\nretries: 2\nverify: make test\nmerge: false\n---\n\
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
    assert_eq!(front.timeout.as_ref().map(NumberOrText::text).as_deref(), Some("10m"));
    assert_eq!(front.required_capabilities, ["file_write", "bash_execute"]);
    assert!(!spec.body.contains("adapter:"));
    assert_eq!(folder.notes.len(), 1, "{:?}", folder.notes);
}

#[test]
fn what_is_no_spec_is_refused_by_its_name() {
    assert_eq!(refusal(&[("a.md", "no heading")]), "a.md: it has no heading");
    assert_eq!(refusal(&[("a.md", "# A\0")]), "a.md: it has a NUL in it, so it is no text");
    assert_eq!(refusal(&[("a..b.md", "# A")]), "a..b.md: 'arial/a..b' is no valid branch name");
    assert_eq!(refusal(&[("a b.md", "# A")]), "a b.md: 'arial/a b' is no valid branch name");
    assert_eq!(refusal(&[("a.md", "# A"), ("A.MD", "# A")]), "A.MD and a.md are both named 'a'");
    assert!(refusal(&[("a.md", "---\npriority: many\n---\n# A")]).starts_with("a.md: its front matter: "));
    let long = "x".repeat(200);
    assert!(refusal(&[(&format!("{long}.md"), "# A")]).ends_with("its name has 200 bytes, 120 are allowed"));
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a.md"), [0xff, 0xfe]).expect("it is written");
    assert!(read(dir.path()).expect_err("it is refused").0.ends_with("a.md: it is no UTF-8 text"));
    assert!(read(Path::new("/nonexistent-specs")).is_err());
}

#[test]
fn a_bomb_in_the_front_matter_does_not_go_off() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        yaml.push_str(&format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", ")));
    }
    let cause = refusal(&[("a.md", &format!("---\n{yaml}---\n# A"))]);
    assert!(cause.starts_with("a.md: its front matter: "), "{cause}");
}

#[test]
fn keys_that_mean_nothing_are_noted() {
    let dir = folder(&[("a.md", "---\npriorty: 1\n---\n# A")]);
    let notes = read(dir.path()).expect("it is read").notes;
    assert!(notes[0].ends_with("keys that mean nothing here: priorty"), "{notes:?}");
}
