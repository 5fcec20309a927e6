use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::cli::sample;

fn init(dir: &Path, words: &[&str]) -> (String, String, u8) {
    let crate::cli::args::Command::Init(args) = sample::command(&[&["init"], words].concat()) else {
        panic!("not init");
    };
    sample::said(|screen| init_in(dir, &args, screen))
}

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

fn text(dir: &tempfile::TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).expect("there")
}

fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).expect("listed");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("read").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

#[test]
fn the_guide_has_one_heading_of_its_level() {
    assert!(GUIDE.starts_with(HEADING) && GUIDE.ends_with('\n') && !GUIDE.contains("\n## "));
}

#[test]
fn an_existing_file_is_chosen() {
    let empty = project(&[]);
    assert_eq!(init(empty.path(), &[]), ("Created AGENTS.md\n".into(), String::new(), 0));
    assert_eq!(text(&empty, "AGENTS.md"), GUIDE);
    let claude = project(&[("CLAUDE.md", "# P")]);
    assert_eq!(init(claude.path(), &[]).0, "Added swarm instructions to CLAUDE.md\n");
    assert_eq!(names(&claude), ["CLAUDE.md"]);
    let both = project(&[("CLAUDE.md", "# C\n"), ("AGENTS.md", "# A\n")]);
    assert_eq!(init(both.path(), &[]).0, "Added swarm instructions to AGENTS.md\n");
    assert_eq!(text(&both, "CLAUDE.md"), "# C\n");
    assert_eq!(init(both.path(), &["--file", "CLAUDE.md"]).0, "Added swarm instructions to CLAUDE.md\n");
}

#[test]
fn one_blank_line_separates_and_a_second_run_changes_nothing() {
    for old in ["# P\nText", "# P\nText\n", "# P\nText\n\n\n\n"] {
        let dir = project(&[("AGENTS.md", old)]);
        init(dir.path(), &[]);
        let once = text(&dir, "AGENTS.md");
        assert_eq!(once, format!("# P\nText\n\n{GUIDE}"));
        let again = "swarm: AGENTS.md already contains swarm instructions\n";
        assert_eq!(init(dir.path(), &[]), (again.into(), String::new(), 0));
        assert_eq!(text(&dir, "AGENTS.md"), once);
    }
    let blank = project(&[("AGENTS.md", "")]);
    init(blank.path(), &[]);
    assert_eq!(text(&blank, "AGENTS.md"), GUIDE);
}

#[test]
fn a_section_in_the_other_file_counts() {
    let dir = project(&[("AGENTS.md", "# A\n"), ("CLAUDE.md", "## Process Management (swarm)\nold\n")]);
    assert_eq!(init(dir.path(), &[]).0, "swarm: CLAUDE.md already contains swarm instructions\n");
    assert_eq!(init(dir.path(), &["--force"]).0, "Updated swarm instructions in CLAUDE.md\n");
    assert_eq!((text(&dir, "AGENTS.md").as_str(), text(&dir, "CLAUDE.md").as_str()), ("# A\n", GUIDE));
}

#[test]
fn force_replaces_the_section_and_nothing_else() {
    let old = "# P\n\n## Process Management (swarm)\nold\n### old too\n\n## Next\nkept\n";
    let dir = project(&[("AGENTS.md", old)]);
    assert_eq!(init(dir.path(), &["--force"]).0, "Updated swarm instructions in AGENTS.md\n");
    let new = text(&dir, "AGENTS.md");
    assert_eq!(new, format!("# P\n\n{GUIDE}\n## Next\nkept\n"));
    init(dir.path(), &["--force"]);
    assert_eq!(text(&dir, "AGENTS.md"), new);
}

#[test]
fn a_dry_run_changes_nothing() {
    let empty = project(&[]);
    let told = init(empty.path(), &["--dry-run", "--with-sandbox"]).0;
    assert!(
        told.starts_with("Would create AGENTS.md with swarm agent instructions\nWould create sandbox.sh\n"),
        "{told}"
    );
    assert!(names(&empty).is_empty());
    let there = project(&[("AGENTS.md", "# A\n")]);
    assert_eq!(init(there.path(), &["--dry-run"]).0, "Would append swarm instructions to AGENTS.md\n");
    assert_eq!(text(&there, "AGENTS.md"), "# A\n");
}

#[test]
fn sandbox_files_are_created_once() {
    let dir = project(&[("PROMPT.md", "mine"), ("AGENTS.md", GUIDE)]);
    let told = init(dir.path(), &["--with-sandbox"]).0;
    assert!(told.starts_with("swarm: AGENTS.md already contains swarm instructions\nCreated sandbox.sh\n"), "{told}");
    assert!(told.ends_with("swarm: PROMPT.md already exists, skipping\n"), "{told}");
    assert_eq!(text(&dir, "PROMPT.md"), "mine");
    for template in &SANDBOX {
        let mode = fs::metadata(dir.path().join(template.name)).expect("there").permissions().mode();
        assert_eq!(mode & 0o100 != 0, template.executable, "{}", template.name);
    }
    assert_eq!(names(&dir).len(), 7, "nothing else is left behind");
}

#[test]
fn sandbox_files_contain_what_their_users_need() {
    let has = |name: &str, words: &[&str]| {
        let template = SANDBOX.iter().find(|template| template.name == name).expect("there");
        for word in words {
            assert!(template.text.contains(word), "{name} lacks {word}");
        }
    };
    has("sandbox.sh", &["exec docker run", "--memory", "--network", "docker build"]);
    has("PROMPT.md", &["/done", "ONE task", "commit and push", "IMPLEMENTATION_PLAN.md", "CLAUDE.md"]);
}

#[test]
fn links_stay_links_and_files_keep_their_mode() {
    let dir = project(&[("real.md", "# R\n")]);
    let (real, link) = (dir.path().join("real.md"), dir.path().join("AGENTS.md"));
    fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("set");
    std::os::unix::fs::symlink("real.md", &link).expect("linked");
    init(dir.path(), &[]);
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(text(&dir, "real.md"), format!("# R\n\n{GUIDE}"));
    assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_link_within_the_repository_is_followed() {
    let dir = project(&[("AGENTS.md", "# R\n")]);
    let sub = dir.path().join("sub");
    for made in [&sub, &dir.path().join(".git")] {
        fs::create_dir(made).expect("made");
    }
    fs::write(dir.path().join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
    std::os::unix::fs::symlink("../AGENTS.md", sub.join("AGENTS.md")).expect("linked");
    init(&sub, &[]);
    assert_eq!(text(&dir, "AGENTS.md"), format!("# R\n\n{GUIDE}"));
}

#[test]
fn a_link_out_of_the_project_is_refused() {
    let dir = project(&[]);
    let outside = tempfile::tempdir().expect("made");
    for (name, is_there) in [("profile", true), ("new", false)] {
        let target = outside.path().join(name);
        if is_there {
            fs::write(&target, "mine\n").expect("written");
        }
        std::os::unix::fs::symlink(&target, dir.path().join("AGENTS.md")).expect("linked");
        let (_, err, code) = init(dir.path(), &[]);
        assert!(err.contains("AGENTS.md: it is a symbolic link to ") && code == 1, "{err}");
        assert_eq!(fs::read_to_string(&target).ok().as_deref(), is_there.then_some("mine\n"));
        fs::remove_file(dir.path().join("AGENTS.md")).expect("removed");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_left_alone() {
    let dir = project(&[]);
    fs::write(dir.path().join("AGENTS.md"), [0xff, 0xfe]).expect("written");
    let (_, err, code) = init(dir.path(), &[]);
    assert!(err.contains("AGENTS.md is not valid UTF-8\nswarm: hint: "), "{err}");
    assert_eq!(code, 1);
}
