//! Submodules in scratch worktrees, in whose directories a verification or resolver may have written anything.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarm_model::merge::Resolution;
use swarm_model::merge::queue::Rules;
use swarm_ports::Completion;

use super::scratch::{Edits, Leftovers, Scratch};
use super::tests_checkout::Site;
use super::{furnish, leftover, resolve, scratch};
use crate::fixture::text;
use crate::landing::workspace::Workspace;
use crate::repository::markers::{Conflict, Markers};

/// A queue whose base has the submodule `lib`, which has the submodule `in`. The settings ask for submodules. The
/// checkouts of the base contain changes of a person.
struct Modules {
    site: Site,
    workspace: Workspace,
}

impl Modules {
    async fn new() -> Self {
        let site = Site::new();
        let fix = &site.fix;
        let add = |dir: &Path, from: &Path, path: &str| {
            fix.at(dir, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", from.to_str().unwrap(), path]);
        };
        let (inner, outer) = (fix.root.join("inner"), fix.root.join("outer"));
        for (dir, below) in [(&inner, None), (&outer, Some(&inner))] {
            fix.at(&fix.root, &["init", "-q", "-b", "main", dir.to_str().unwrap()]);
            fs::write(dir.join("file"), "one\n").unwrap();
            if let Some(below) = below {
                add(dir, below, "in");
            }
            fix.at(dir, &["add", "-A"]);
            fix.at(dir, &["commit", "-q", "-m", "one"]);
        }
        add(&fix.repo, &outer, "lib");
        fix.git(&["-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive"]);
        fix.commit("submodules", "swarm.toml", "[worktree]\nsubmodules = true\n");
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        for path in ["f", "lib/file", "lib/own", "lib/in/file", "lib/in/own"] {
            fs::write(fix.repo.join(path), "of a person\n").unwrap();
        }
        let workspace = site.workspace();
        Self { site, workspace }
    }

    fn next(&self) -> (Scratch, Edits) {
        let place = scratch::prepare(&self.workspace, "verify", &self.site.tip("main"), Leftovers::Keep).unwrap();
        let edits = furnish::furnish(&self.workspace, &place, &Rules::default(), Leftovers::Keep).unwrap();
        (place, edits)
    }

    /// Asserts that the next verification finds the commits of the submodules, and a person all changes.
    fn is_as_committed(&self, case: &str) {
        let (place, _) = self.next();
        for path in ["lib/file", "lib/in/file"] {
            assert_eq!(fs::read_to_string(place.dir.join(path)).unwrap(), "one\n", "{case}: {path}");
            assert!(!fs::symlink_metadata(place.dir.join(path).parent().unwrap()).unwrap().is_symlink(), "{case}");
        }
        assert!(!place.dir.join("lib/own").exists() && !place.dir.join("lib/in/own").exists(), "{case}");
        for path in ["f", "lib/file", "lib/own", "lib/in/file", "lib/in/own"] {
            let found = fs::read_to_string(self.site.fix.repo.join(path)).ok();
            assert_eq!(found.as_deref(), Some("of a person\n"), "{case}: {path} of the base checkout");
        }
    }
}

#[tokio::test]
async fn a_git_file_that_leads_elsewhere_lets_no_git_work_there() {
    let modules = Modules::new().await;
    let common = modules.site.fix.repo.join(".git");
    let targets = ["", "modules/lib", "modules/lib/modules/in"].map(|path| common.join(path));
    for target in &targets {
        for path in ["lib", "lib/in"] {
            let (place, _) = modules.next();
            fs::write(place.dir.join(path).join(".git"), format!("gitdir: {}\n", target.display())).unwrap();
            fs::write(place.dir.join(path).join("own"), "of a verification\n").unwrap();
            modules.is_as_committed(&format!("{path} leads to {}", target.display()));
        }
    }
    // The submodule's repository, but at the place of another one.
    let (place, _) = modules.next();
    fs::write(place.dir.join("lib/in/.git"), format!("gitdir: {}\n", place.entry.join("modules/lib").display()))
        .unwrap();
    modules.is_as_committed("the inner leads to the outer");
}

#[tokio::test]
async fn whatever_is_in_place_of_a_submodule_is_replaced() {
    let modules = Modules::new().await;
    let of_base = modules.site.fix.repo.join("lib");
    let replace: [(&str, &dyn Fn(PathBuf)); 5] = [
        ("a repository of its own", &|lib| {
            fs::remove_file(lib.join(".git")).unwrap();
            modules.site.fix.at(&lib, &["init", "-q", "."]);
            modules.site.fix.at(&lib, &["commit", "-q", "--allow-empty", "-m", "one"]);
        }),
        ("no repository", &|lib| fs::remove_file(lib.join(".git")).unwrap()),
        ("a link", &|lib| {
            fs::remove_dir_all(&lib).unwrap();
            symlink(&of_base, &lib).unwrap();
        }),
        ("a link below", &|lib| {
            fs::remove_dir_all(lib.join("in")).unwrap();
            symlink(of_base.join("in"), lib.join("in")).unwrap();
        }),
        ("a file", &|lib| {
            fs::remove_dir_all(&lib).unwrap();
            fs::write(&lib, "").unwrap();
        }),
    ];
    for (case, replace) in replace {
        let (place, _) = modules.next();
        replace(place.dir.join("lib"));
        modules.is_as_committed(case);
    }
}

#[tokio::test]
async fn changes_in_submodules_are_changes_and_are_discarded() {
    let modules = Modules::new().await;
    for path in ["lib", "lib/in"] {
        for flag in [None, Some("--assume-unchanged")] {
            let (place, before) = modules.next();
            let dir = place.dir.join(path);
            if let Some(flag) = flag {
                modules.site.fix.at(&dir, &["update-index", flag, "file"]);
            }
            fs::write(dir.join("file"), "of a verification\n").unwrap();
            fs::write(dir.join("own"), "of a verification\n").unwrap();
            let changed = || scratch::changed(&modules.workspace, &place, &modules.site.tip("main"), &before).unwrap();
            assert_eq!(changed(), Some(format!("changed 1 tracked file(s): {path}")), "{flag:?}");
            modules.is_as_committed(path);
            assert_eq!(changed(), None);
        }
    }
}

/// Puts a repository with the filter `body` into a directory, as an agent could.
fn with_filter(site: &Site, dir: &Path, body: &str) {
    fs::create_dir_all(dir).unwrap();
    site.fix.at(dir, &["init", "-q", "."]);
    fs::write(dir.join("file"), "1\n").unwrap();
    site.fix.at(dir, &["add", "-A"]);
    site.fix.at(dir, &["commit", "-q", "-m", "one"]);
    site.fix.at(dir, &["config", "filter.own.clean", body]);
    fs::write(dir.join(".git/info/attributes"), "* filter=own\n").unwrap();
    fs::write(dir.join("file"), "2\n").unwrap();
}

#[tokio::test]
async fn a_resolver_must_choose_the_commit_of_a_submodule() {
    let site = Site::new();
    let link = |commit: &str| format!("mkdir -p x; git update-index --add --cacheinfo 160000,{commit},x");
    let [one, two, three] = ["1", "2", "3"].map(|digit| digit.repeat(40));
    site.branch("first", &link(&one));
    site.fix.git(&["merge", "-q", "first"]);
    site.branch("topic", &link(&two));
    site.branch("other", &link(&three));
    site.fix.git(&["merge", "-q", "other"]);
    let (item, onto, log) = (site.item("topic").await, site.tip("main"), site.fix.root.join("log"));
    fs::write(&log, "").unwrap();
    let workspace = site.workspace();
    let place = scratch::prepare(&workspace, "resolve-0", &onto, Leftovers::Delete).unwrap();
    assert!(!site.fix.attempt(&place.dir, &["merge", "--no-commit", "--no-ff", &item.tip]).0, "a conflict");
    let commit = || resolve::commit_result(&workspace, &place, &item, &onto, &[Conflict::at("x")], &log).unwrap();
    assert_eq!(commit(), Resolution::Failed("the resolver chose no commit for the submodule x".to_owned()));
    site.fix.at(&place.dir, &["update-index", "--cacheinfo", &format!("160000,{two},x")]);
    let Resolution::Done(tip) = commit() else { panic!("it failed") };
    assert!(text(&site.fix.git(&["ls-tree", &tip, "x"])).contains(&two));
}

#[tokio::test]
async fn programs_of_a_repository_in_place_of_a_submodule_are_not_run() {
    let site = Site::new();
    let head = site.tip("main");
    site.branch("topic", &format!("mkdir x; git update-index --add --cacheinfo 160000,{head},x; echo topic > t"));
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), site.tip("topic"));
    let place = scratch::prepare(&workspace, "verify", &commit, Leftovers::Keep).unwrap();
    let ran = site.fix.root.join("ran");
    with_filter(&site, &place.dir.join("x"), &format!("touch {}; cat", ran.display()));
    fs::write(place.dir.join("t"), "of the verification\n").unwrap();
    let changed = scratch::changed(&workspace, &place, &commit, &Edits::default()).unwrap();
    assert_eq!(changed.as_deref(), Some("changed 2 tracked file(s): t, x"));
    scratch::discard(&workspace, &place, &commit);
    scratch::prepare(&workspace, "verify", &commit, Leftovers::Keep).unwrap();
    assert!(!ran.exists());
    // A resolver's result.
    site.branch("other", "echo other > o");
    let item = site.item("other").await;
    let resolving = scratch::prepare(&workspace, "resolve-0", &commit, Leftovers::Delete).unwrap();
    site.fix.at(&resolving.dir, &["merge", "-q", "--no-commit", &item.tip]);
    with_filter(&site, &resolving.dir.join("x"), &format!("touch {}; cat", ran.display()));
    fs::write(resolving.dir.join("t"), "of the resolver\n").unwrap();
    let log = site.fix.root.join("log");
    fs::write(&log, "").unwrap();
    let resolved = resolve::commit_result(&workspace, &resolving, &item, &commit, &[Conflict::at("t")], &log).unwrap();
    assert!(matches!(resolved, Resolution::Done(_)), "{resolved:?}");
    leftover::keep(&workspace, &resolving, &item, None, &log).unwrap();
    assert!(workspace.own.join("left").join(format!("{}-1/x/file", item.id)).exists());
    assert!(!ran.exists());
    assert!(!place.dir.join("x/file").exists(), "nothing of it is left for the next verification");
    with_filter(&site, &place.dir.join("x"), &format!("touch {}; cat", ran.display()));
    assert!(text(&site.fix.at(&place.dir, &["status", "--porcelain"])).contains(" x"));
    assert!(ran.exists(), "git itself runs it");
}

#[tokio::test]
async fn nothing_outside_is_moved_or_read_through_a_link_of_a_resolver() {
    let site = Site::new();
    let head = site.tip("main");
    let link = format!("mkdir -p a/sub b; git update-index --add --cacheinfo 160000,{head},a/sub");
    site.branch("topic", &format!("{link}; echo 1 > b/pipe; echo 1 > b/file; git add b"));
    let item = site.item("topic").await;
    let (workspace, log, outside) = (site.workspace(), site.fix.root.join("log"), site.fix.root.join("project"));
    fs::create_dir(&outside).unwrap();
    with_filter(&site, &outside.join("sub"), "cat");
    nix::unistd::mkfifo(&outside.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(outside.join("file"), "<<<<<<< of a person\n").unwrap();
    fs::write(&log, "").unwrap();
    let place = scratch::prepare(&workspace, "resolve-0", &site.tip("topic"), Leftovers::Delete).unwrap();
    for name in ["a", "b"] {
        fs::remove_dir_all(place.dir.join(name)).unwrap();
        symlink(&outside, place.dir.join(name)).unwrap();
    }
    let conflict = Conflict::at("b/file");
    assert_eq!(conflict.markers(&place.dir), Markers::default());
    let before = Edits::read(&workspace, &place).unwrap();
    fs::write(outside.join("file"), "edited\n").unwrap();
    assert_eq!(Edits::read(&workspace, &place).unwrap(), before);
    leftover::keep(&workspace, &place, &item, None, &log).unwrap();
    assert!(outside.join("sub/.git").exists() && outside.join("pipe").exists());
    assert!(!workspace.own.join("left").exists(), "{}", fs::read_to_string(&log).unwrap());
    // Also those of a caller who names such paths.
    let named = [b"a/sub/".to_vec(), b"b/pipe".to_vec()];
    leftover::move_out(&workspace, &place, &item, &named, &log).unwrap();
    assert!(outside.join("sub/.git").exists() && outside.join("pipe").exists());
}

#[tokio::test]
async fn a_save_runs_nothing_of_a_repository_within_a_submodule() {
    let modules = Modules::new().await;
    let (site, (place, _)) = (&modules.site, modules.next());
    let ran = site.fix.root.join("ran");
    fs::remove_dir_all(place.dir.join("lib/in")).unwrap();
    with_filter(site, &place.dir.join("lib/in"), &format!("touch {}; cat", ran.display()));
    let id = text(&site.fix.at(&place.dir, &["-C", "lib", "rev-parse", ":in"]));
    fs::write(place.dir.join("lib/in/.git/HEAD"), id + "\n").unwrap();
    leftover::state(&modules.workspace, &place).unwrap();
    let log = site.fix.root.join("log");
    fs::write(&log, "").unwrap();
    fs::write(place.dir.join("f"), "edited\n").unwrap();
    leftover::keep(&modules.workspace, &place, &site.item("topic").await, None, &log).unwrap();
    assert!(!ran.exists());
}

#[tokio::test]
async fn a_commit_of_a_submodule_that_nobody_else_has_does_not_land() {
    let modules = Modules::new().await;
    let (site, fix) = (&modules.site, &modules.site.fix);
    for path in ["lib", "lib/in"] {
        fix.at(&fix.repo.join(path), &["reset", "-q", "--hard"]);
    }
    let worker = |name: &str| {
        let (tree, completion) = site.worker(name);
        fix.at(&tree, &["-c", "protocol.file.allow=always", "submodule", "update", "-q", "--init", "--recursive"]);
        (tree, completion)
    };
    let commit = |dir: &Path, text: &str| {
        fs::write(dir.join("file"), text).unwrap();
        fix.at(dir, &["add", "-A"]);
        fix.at(dir, &["commit", "-qm", text]);
    };
    let refused = async |completion: &Completion, path: &str| {
        let done = site.done(completion).await;
        let why = done.waits.unwrap_or_default();
        assert!(done.is_mendable && done.tip.is_empty(), "{why}");
        assert!(why.contains(&format!("of submodule {path} is only in the worktree")), "{why}");
        why
    };
    let lands = async |completion: &Completion| assert_eq!(site.done(completion).await.waits, None);

    let (tree, completion) = worker("a");
    lands(&completion).await;
    commit(&tree.join("lib"), "a\n");
    let why = refused(&completion, "lib").await;
    let run = why.split_once("or run '").and_then(|(_, rest)| rest.split_once("';")).expect("a command").0;
    assert!(Command::new("sh").args(["-c", run]).status().unwrap().success(), "{run}");
    lands(&completion).await;

    // A commit of a remote is known to others, and one in a submodule of a submodule is looked for as well.
    let (tree, completion) = worker("b");
    commit(&tree.join("lib/in"), "b\n");
    commit(&tree.join("lib"), "b\n");
    refused(&completion, "lib").await;
    fix.at(&tree.join("lib"), &["push", "-q", "origin", "HEAD:refs/heads/b"]);
    refused(&completion, "lib/in").await;
    fix.at(&tree.join("lib/in"), &["push", "-q", "origin", "HEAD:refs/heads/b"]);
    lands(&completion).await;
}

#[tokio::test]
async fn programs_that_a_verification_names_in_the_repository_of_a_submodule_are_not_run() {
    let modules = Modules::new().await;
    let ran = modules.site.fix.root.join("ran");
    for path in ["lib", "lib/in"] {
        let (place, before) = modules.next();
        let dir = place.dir.join(path);
        let own = text(&modules.site.fix.at(&dir, &["rev-parse", "--absolute-git-dir"]));
        let touch = format!("touch {}; cat", ran.display());
        for key in ["filter.own.clean", "filter.own.smudge", "core.fsmonitor"] {
            modules.site.fix.at(&dir, &["config", key, &touch]);
        }
        fs::write(Path::new(&own).join("info/attributes"), "* filter=own\n").unwrap();
        fs::write(dir.join("file"), "of a verification\n").unwrap();
        let tip = modules.site.tip("main");
        let changed = scratch::changed(&modules.workspace, &place, &tip, &before).unwrap();
        assert_eq!(changed, Some(format!("changed 1 tracked file(s): {path}")));
        scratch::discard(&modules.workspace, &place, &tip);
        modules.is_as_committed(path);
        assert!(!ran.exists(), "{path}");
    }
}
