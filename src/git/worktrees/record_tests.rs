use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use swarm_model::RowWorktree;
use swarm_ports::Force;

use super::*;
use crate::fixture::Fixture;
use crate::landing::workspace::Workspace;
use crate::trash::save::Place;
use crate::worktrees::{copies, owner};

/// A repository, a worktree with its record, and a file of the user that no agent may write.
struct Hostile {
    fix: Fixture,
    tree: PathBuf,
    record: PathBuf,
    precious: PathBuf,
}

impl Hostile {
    fn new() -> Self {
        let fix = Fixture::new();
        let (tree, precious) = (fix.root.join("w"), fix.root.join("precious"));
        fix.git(&["worktree", "add", "-q", "-b", "w", tree.to_str().expect("text")]);
        fs::write(&precious, "precious\n").expect("written");
        Self { tree, record: fix.repo.join(".git/worktrees/w"), precious, fix }
    }

    fn link(&self, name: &str) {
        let link = self.record.join(name);
        let _ = fs::remove_file(&link);
        fs::create_dir_all(link.parent().expect("a parent")).expect("made");
        symlink(&self.precious, link).expect("linked");
    }

    fn check_precious(&self, what: &str) {
        assert_eq!(fs::read_to_string(&self.precious).expect("read"), "precious\n", "{what}");
    }
}

fn pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("made");
}

#[test]
fn files_of_swarm_replace_links_and_do_not_follow_them() {
    let own = Hostile::new();
    let common = own.fix.repo.join(".git");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let row = RowWorktree { path: text(&own.tree), branch: "w".to_owned(), base_repo: text(&own.fix.repo) };
    let here = own.fix.root.join("state");
    for name in ["swarm-made", "swarm-kept", "swarm-ready", "swarm-copied", "swarm-branch", "commondir"] {
        own.link(name);
    }
    owner::record_owner(&common, &own.tree, &here);
    owner::record_branch(&common, &own.tree, "w", &"a".repeat(40)).expect("recorded");
    owner::keep("fix", &row, None).expect("kept");
    own.check_precious("kept");
    let kept = owner::kept("fix", &common, &here).expect("read").expect("one");
    assert_eq!((kept.tree, kept.is_superseded), (row.clone(), false));
    own.link("swarm-kept");
    assert_eq!(owner::kept("fix", &common, &here).expect("read"), None, "what a link leads to is not read");
    owner::keep_restored("fix", &row, &here).expect("kept");
    copies::note_set_up(&common, &own.tree);
    assert_eq!(copies::changed(&own.tree, &own.record), [b""; 0]);
    // A power cut leaves an empty file, and the agent a link to one.
    fs::write(&own.precious, "").expect("emptied");
    admin::complete_torn(&common, std::time::SystemTime::now() + std::time::Duration::from_secs(60))
        .expect("completed");
    assert_eq!(fs::read(&own.precious).expect("read"), b"");
}

#[test]
fn hard_links_are_replaced_and_pipes_are_not_waited_for() {
    let own = Hostile::new();
    let file = own.record.join("swarm-kept");
    fs::hard_link(&own.precious, &file).expect("linked");
    write(&file, b"new").expect("written");
    own.check_precious("a hard link");
    assert_eq!(read_text(&file).expect("read"), "new");
    fs::remove_file(&file).expect("removed");
    pipe(&file);
    read(&file).expect_err("a pipe");
    write(&file, b"new").expect("written");
    assert_eq!(read_text(&file).expect("read"), "new");
    fs::File::options().write(true).open(&file).and_then(|file| file.set_len(BYTES_MAX + 1)).expect("grown");
    read(&file).expect_err("too large");
}

#[test]
fn no_git_runs_with_a_record_that_leads_elsewhere() {
    for name in ["index", "HEAD", "logs/HEAD", "info/sparse-checkout", "MERGE_MSG", "commondir", "swarm-removing"] {
        let own = Hostile::new();
        own.link(name);
        fs::write(own.tree.join("new"), "work\n").expect("written");
        own.fix.check(&own.tree, Force::No).expect_err(name);
        own.fix.remove(&own.tree, Force::SaveFirst).expect_err(name);
        own.check_precious(name);
        assert!(own.tree.join("new").exists(), "{name}");
    }
    let own = Hostile::new();
    fs::remove_dir_all(own.record.join("logs")).expect("removed");
    own.link("logs");
    own.fix.check(&own.tree, Force::No).expect_err("logs");
    let own = Hostile::new();
    own.fix.at(&own.fix.root, &["init", "-q", "elsewhere"]);
    fs::write(own.record.join("commondir"), "../../../../elsewhere/.git\n").expect("written");
    let refused = own.fix.check(&own.tree, Force::No).expect_err("another repository");
    assert!(format!("{refused:?}").contains("leads to another repository"), "{refused:?}");
    let own = Hostile::new();
    pipe(&own.record.join("MERGE_HEAD"));
    own.fix.check(&own.tree, Force::No).expect_err("a pipe");
    let own = Hostile::new();
    own.link("annex");
    own.fix.check(&own.tree, Force::No).expect("git-annex makes this link");
}

#[test]
fn references_and_their_logs_lead_nowhere_else() {
    let own = Hostile::new();
    let common = own.fix.repo.join(".git");
    let link = |name: &str| {
        let link = common.join(name);
        fs::create_dir_all(link.parent().expect("a parent")).expect("made");
        symlink(&own.precious, &link).expect("linked");
        link
    };
    let plan = own.fix.plan("new");
    for name in ["logs/refs/heads/new", "refs/heads/new"] {
        let link = link(name);
        own.fix.make(&plan).expect_err(name);
        own.check_precious(name);
        fs::remove_file(link).expect("removed");
    }
    // A save has a name that nobody knows before, but the directory of all saves has not.
    let elsewhere = own.fix.root.join("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    fs::create_dir_all(common.join("refs/swarm")).expect("made");
    symlink(&elsewhere, common.join("refs/swarm/trash")).expect("linked");
    fs::write(own.tree.join("new"), "work\n").expect("written");
    own.fix.remove(&own.tree, Force::SaveFirst).expect_err("a link");
    assert!(own.tree.join("new").exists() && fs::read_dir(&elsewhere).expect("listed").next().is_none());
    // `git-new-workdir` links all of them, and the configuration.
    check_reference(&common, "refs/swarm/trash/x").expect_err("a link");
    let work = own.fix.root.join("new-workdir");
    fs::create_dir_all(work.join("logs")).expect("made");
    for name in ["config", "refs", "logs/refs"] {
        symlink(common.join(name), work.join(name)).expect("linked");
    }
    check_reference(&work, "refs/heads/main").expect("not of an agent");
}

/// Changes the record after it was checked, as a running agent can, and lets git look at the worktree.
fn runs_what_is_configured_after_the_check(changes: impl Fn(&Hostile, &str)) -> bool {
    let own = Hostile::new();
    let common = own.fix.repo.join(".git");
    let cli = own.fix.cli();
    let place = Place::of(&cli, &common, &own.record, &own.tree, "").expect("checked");
    let touched = own.fix.root.join("touched");
    changes(&own, &format!("[filter \"x\"]\n\tclean = touch {}; cat\n", touched.display()));
    fs::write(own.tree.join(".gitattributes"), "* filter=x\n").expect("written");
    fs::write(own.tree.join("f"), "2\n").expect("written");
    let diff = || ["diff", "--no-ext-diff", "HEAD", "--", "f"];
    let seen = place.call(cli.read(&own.tree)).args(diff()).run().expect("seen");
    assert!(String::from_utf8_lossy(&seen).contains("+2"), "git saw the worktree");
    let named = Workspace::named(cli.read(&own.tree), &place.git_dir, &own.tree).args(diff()).run();
    // Calls of the merge queue name the record itself.
    assert!(named.is_ok(), "{:?}", named.err().map(|error| error.to_string()));
    touched.exists()
}

#[test]
fn a_common_directory_that_is_named_after_the_check_configures_nothing() {
    let swaps = |own: &Hostile, config: &str| {
        let elsewhere = own.fix.root.join("elsewhere");
        own.fix.at(&own.fix.root, &["clone", "-q", "--bare", "repo", "elsewhere"]);
        own.fix.at(&elsewhere, &["update-ref", "refs/heads/w", "HEAD"]);
        let kept = fs::read_to_string(elsewhere.join("config")).expect("read");
        fs::write(elsewhere.join("config"), kept + config).expect("written");
        fs::write(own.record.join("commondir"), format!("{}\n", elsewhere.display())).expect("written");
    };
    assert!(!runs_what_is_configured_after_the_check(swaps));
}

#[test]
fn settings_that_a_record_gets_after_the_check_configure_nothing() {
    let own = Hostile::new();
    own.fix.git(&["config", "extensions.worktreeConfig", "true"]);
    let (common, cli) = (own.fix.repo.join(".git"), own.fix.cli());
    fs::write(own.record.join("config.worktree"), "[user]\n\tname = Own\n").expect("written");
    let place = Place::of(&cli, &common, &own.record, &own.tree, "").expect("checked");
    let touched = own.fix.root.join("touched");
    let text = format!("[filter \"x\"]\n\tclean = touch {}; cat\n", touched.display());
    fs::write(own.record.join("config.worktree"), text).expect("written");
    fs::write(own.tree.join(".gitattributes"), "* filter=x\n").expect("written");
    fs::write(own.tree.join("f"), "2\n").expect("written");
    let call = || place.call(cli.read(&own.tree));
    let seen = call().args(["diff", "--no-ext-diff", "HEAD", "--", "f"]).run().expect("seen");
    assert!(String::from_utf8_lossy(&seen).contains("+2"), "git saw the worktree");
    assert!(!touched.exists());
    assert_eq!(call().args(["config", "user.name"]).line().expect("read"), "Own", "checked settings count");
    assert_eq!(call().args(["symbolic-ref", "HEAD"]).line().expect("read"), "refs/heads/w");
    // git replaces the index of the record.
    place.call(cli.write(&own.tree)).args(["-c", "filter.x.clean=", "add", "f"]).run().expect("added");
    fs::write(own.record.join("config.worktree"), "").expect("written");
    let staged = own.fix.at(&own.tree, &["diff", "--cached", "--name-only"]);
    assert_eq!(String::from_utf8_lossy(&staged), "f\n");
    drop(place);
    let left = files::list(&common).expect("listed");
    assert!(!left.iter().any(|file| file.file_name().to_string_lossy().starts_with("swarm-record-")));
}

#[test]
fn a_call_that_names_a_record_reads_no_settings_that_execute_something() {
    let own = Hostile::new();
    own.fix.git(&["config", "extensions.worktreeConfig", "true"]);
    let (common, cli) = (own.fix.repo.join(".git"), own.fix.cli());
    let touched = own.fix.root.join("touched");
    fs::write(own.tree.join(".gitattributes"), "* filter=x\n").expect("written");
    fs::write(own.tree.join("f"), "2\n").expect("written");
    let named = || cli.read(&own.tree).env("GIT_DIR", &own.record).env("GIT_WORK_TREE", &own.tree);
    let option = || {
        let words = [("--git-dir=", &own.record), ("--work-tree=", &own.tree)];
        cli.read(&own.tree).args(words.map(|(option, path)| format!("{option}{}", path.display())))
    };
    fs::write(own.record.join("config.worktree"), "[user]\n\tname = Own\n").expect("written");
    for call in [&named as &dyn Fn() -> _, &option] {
        let diff = call().args(["diff", "--no-ext-diff", "HEAD", "--", "f"]).run().expect("seen");
        assert!(String::from_utf8_lossy(&diff).contains("+2"), "git saw the worktree");
        assert_eq!(call().args(["config", "user.name"]).line().expect("read"), "Own");
        let git_dir = call().args(["rev-parse", "--absolute-git-dir"]).line().expect("read");
        assert_ne!(git_dir, own.record.display().to_string(), "nobody else can write there");
    }
    let text = format!("[filter \"x\"]\n\tclean = touch {}; cat\n", touched.display());
    fs::write(own.record.join("config.worktree"), text).expect("written");
    for call in [&named as &dyn Fn() -> _, &option] {
        let refused = Fault::from(call().args(["diff", "HEAD", "--", "f"]).run().expect_err("refused"));
        assert!(refused.cause.contains("has a setting that the main worktree does not have"), "{refused:?}");
        assert!(refused.remedy.is_some_and(|remedy| remedy.starts_with("delete it")));
    }
    assert!(!touched.exists());
    let left = files::list(&common).expect("listed");
    assert!(!left.iter().any(|file| file.file_name().to_string_lossy().starts_with("swarm-record-")));
}
