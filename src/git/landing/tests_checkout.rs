//! Landings in directories that have the base checked out, and the user's files that must not be
//! overwritten.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarm_model::merge::queue::{Addition, Item, Rules};
use swarm_model::merge::{Build, Landing};
use swarm_model::{Caller, Target};
use swarm_ports::{Completed, Completion, Landings as _};

use super::GitLandings;
use super::scratch::Edits;
use super::{furnish, scratch, trees};
use crate::fixture::{Fixture, text};
use crate::landing::workspace::Workspace;
use swarm_sys::paths::Paths;

const MINE: &str = "of a person\n";

/// A repository whose `main` is checked out, and its queue.
pub(crate) struct Site {
    pub(crate) fix: Fixture,
    pub(crate) landings: GitLandings,
    pub(crate) target: Target,
    pub(crate) paths: Paths,
}

impl Site {
    pub(crate) fn new() -> Self {
        let fix = Fixture::new();
        let paths = Paths::new(fix.root.join("state"));
        fs::create_dir(paths.root()).unwrap();
        let landings = GitLandings::new(paths.clone(), PathBuf::from("/nowhere"));
        let repository = fix.repo.join(".git").to_str().unwrap().to_owned();
        Self { fix, landings, target: Target { repository, branch: "refs/heads/main".into() }, paths }
    }

    /// Opens the queue's workspace. Needs a completed item.
    pub(crate) fn workspace(&self) -> Workspace {
        Workspace::open(&self.paths, &self.target, None, Path::new("/nowhere")).unwrap()
    }

    /// Creates a branch from `main` and commits the changes of `script` in a separate worktree.
    pub(crate) fn branch(&self, name: &str, script: &str) {
        let tree = self.fix.root.join(name);
        self.fix.git(&["worktree", "add", "-q", "-b", name, tree.to_str().unwrap(), "main"]);
        let script = format!("{script}; git add -A; git commit -qm {name}");
        let mut shell = Command::new("sh");
        shell.args(["-ec", &script]).current_dir(&tree).env_clear().envs(self.fix.caller.environment.iter().cloned());
        assert!(shell.status().unwrap().success(), "{name}");
        self.fix.git(&["worktree", "remove", "--force", tree.to_str().unwrap()]);
    }

    pub(crate) fn completion(&self, name: &str) -> Completion {
        let caller = Caller { cwd: self.fix.repo.to_str().unwrap().into(), ..self.fix.caller.clone() };
        Completion::new(name, caller)
    }

    /// Completes the branch and returns it as a queue item.
    pub(crate) async fn item(&self, name: &str) -> Item {
        let done = self.landings.complete(self.completion(name)).await.unwrap();
        assert_eq!((&done.target, &done.waits), (&self.target, &None));
        let Completed { tip, rules, caller, .. } = done;
        let addition = Addition { name: name.into(), tip, rules, caller, ..Addition::default() };
        addition.into_item(0, &Rules::default(), 0)
    }

    pub(crate) async fn land(&self, name: &str) -> Landing {
        let item = self.item(name).await;
        let base = self.landings.read_base(&self.target).await.unwrap();
        let built = self.landings.build(&self.target, &item, &base).await;
        let Build::Made(commit) = built else { panic!("{built:?}") };
        self.landings.land(&self.target, &item, &base, &commit).await
    }

    /// Asserts that a landing waits for these paths and changes nothing.
    async fn waits(&self, name: &str, files: &[&str]) {
        let state = || {
            let status = self.fix.git(&["status", "--porcelain", "--ignored", "-uall"]);
            (text(&self.fix.git(&["rev-parse", "main"])), text(&status))
        };
        let before = state();
        let landed = self.land(name).await;
        assert_eq!(landed, Landing::Overlap(files.iter().map(|file| (*file).to_owned()).collect()), "{name}");
        assert_eq!(state(), before, "{name}");
    }

    fn write(&self, path: &str) {
        let path = self.fix.repo.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, MINE).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.fix.repo.join(path)).unwrap()
    }

    /// Commits a submodule at `path`, checked out with an untracked file.
    pub(crate) fn submodule(&self, path: &str) {
        let place = self.fix.repo.join(path);
        let place = place.to_str().unwrap();
        self.fix.git(&["init", "-q", "-b", "main", place]);
        self.fix.git(&["-C", place, "commit", "-q", "--allow-empty", "-m", "one"]);
        self.fix.git(&["-c", "advice.addEmbeddedRepo=false", "add", path]);
        self.fix.git(&["commit", "-q", "-m", "a submodule"]);
        self.write(&format!("{path}/own"));
    }
}

#[tokio::test]
async fn a_replacement_of_a_submodule_waits_for_its_checkout() {
    let site = Site::new();
    site.write("d/tracked");
    site.fix.git(&["add", "d"]);
    site.submodule("lib");
    site.submodule("d/deep");
    let new = |place: &str, made: &str| format!("git rm -rq --cached {place}; rm -rf {place}; {made}");
    site.branch("file", &new("lib", "echo x > lib"));
    site.branch("link", &new("lib", "ln -s f lib"));
    site.branch("dir", &new("lib", "mkdir lib; echo x > lib/x"));
    site.branch("above", &new("d", "echo x > d"));
    site.branch("gone", &new("lib", "true"));
    for name in ["file", "link", "dir"] {
        site.waits(name, &["lib/"]).await;
    }
    site.waits("above", &["d/deep/"]).await;
    // The checkout of a submodule that the base merely drops stays.
    assert_eq!(site.land("gone").await, Landing::Done(Vec::new()));
    for path in ["lib", "d/deep"] {
        assert_eq!(site.read(&format!("{path}/own")), MINE);
        assert_eq!(text(&site.fix.git(&["-C", path, "log", "--format=%s"])), "one");
    }
}

#[tokio::test]
async fn a_submodule_moves_even_if_git_recurses_into_submodules() {
    let site = Site::new();
    let lib = site.fix.root.join("lib");
    site.fix.git(&["init", "-q", "-b", "main", lib.to_str().unwrap()]);
    for word in ["one", "two"] {
        site.fix.at(&lib, &["commit", "-q", "--allow-empty", "-m", word]);
    }
    site.fix.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../lib", "lib"]);
    site.fix.git(&["commit", "-q", "-m", "lib"]);
    site.branch(
        "back",
        "git update-index --cacheinfo 160000,$(git -C ../lib rev-parse HEAD~1),lib; rm -rf lib; mkdir lib",
    );
    site.fix.git(&["config", "submodule.recurse", "true"]);
    site.item("back").await;
    let workspace = site.workspace();
    for commit in ["main", "back", "main"] {
        let commit = text(&site.fix.git(&["rev-parse", commit]));
        let scratch = scratch::prepare(&workspace, "verify", &commit, scratch::Leftovers::Keep).unwrap();
        assert_eq!(scratch::changed(&workspace, &scratch, &commit, &Edits::default()).unwrap(), None);
    }
    assert_eq!(site.land("back").await, Landing::Done(Vec::new()));
    let pointer = text(&site.fix.git(&["rev-parse", "main:lib"]));
    assert_eq!(pointer, text(&site.fix.at(&lib, &["rev-parse", "HEAD~1"])));
    assert_eq!(text(&site.fix.git(&["-C", "lib", "log", "-1", "--format=%s"])), "two", "the checkout is the person's");
}

#[tokio::test]
async fn an_empty_submodule_directory_does_not_block() {
    let site = Site::new();
    site.submodule("lib");
    site.branch("file", "git rm -q --cached lib; rm -rf lib; echo x > lib");
    fs::remove_dir_all(site.fix.repo.join("lib")).unwrap();
    fs::create_dir(site.fix.repo.join("lib")).unwrap();
    assert_eq!(site.land("file").await, Landing::Done(Vec::new()));
    assert_eq!((site.read("lib").as_str(), text(&site.fix.git(&["status", "--porcelain"])).as_str()), ("x\n", ""));
}

#[tokio::test]
async fn a_directory_with_untracked_files_is_not_replaced_by_a_file() {
    let site = Site::new();
    site.write("d/tracked");
    fs::write(site.fix.repo.join(".gitignore"), "ignored*\n").unwrap();
    site.fix.git(&["add", "."]);
    site.fix.git(&["commit", "-q", "-m", "d"]);
    site.branch("file", "rm -r d; echo x > d");
    for path in ["d/untracked", "d/ignored", "d/ignored-dir/x"] {
        site.write(path);
        site.waits("file", &[path]).await;
        fs::remove_file(site.fix.repo.join(path)).unwrap();
    }
    for path in ["d/nested", "d/ignored-dir/nested"] {
        site.fix.git(&["init", "-q", path]);
        site.waits("file", &[&format!("{path}/")]).await;
        fs::remove_dir_all(site.fix.repo.join(path)).unwrap();
    }
    // An empty directory is nobody's work.
    assert_eq!(site.land("file").await, Landing::Done(Vec::new()));
    assert_eq!(site.read("d"), "x\n");
}

#[tokio::test]
async fn files_in_a_nested_repository_are_not_overwritten() {
    let site = Site::new();
    for (name, path) in [("plain", "n/x"), ("hidden", "ignored/x")] {
        let dir = path.split('/').next().unwrap();
        site.branch(name, &format!("mkdir {dir}; echo x > {path}; git add -f {path}"));
        site.fix.git(&["init", "-q", dir]);
        site.write(path);
        site.waits(name, &[path]).await;
        assert_eq!(site.read(path), MINE);
    }
}

#[tokio::test]
async fn a_tracked_symbolic_link_makes_room_for_a_directory() {
    let site = Site::new();
    site.write("elsewhere/x");
    std::os::unix::fs::symlink("elsewhere", site.fix.repo.join("d")).unwrap();
    site.fix.git(&["add", "."]);
    site.fix.git(&["commit", "-q", "-m", "link"]);
    site.branch("dir", "rm d; mkdir d; echo x > d/x");
    assert_eq!(site.land("dir").await, Landing::Done(Vec::new()));
    assert_eq!((site.read("d/x").as_str(), site.read("elsewhere/x").as_str()), ("x\n", MINE));
}

#[test]
fn library_and_command_see_the_same_differences() {
    let site = Site::new();
    site.write("d/a");
    site.write("file");
    site.fix.git(&["add", "."]);
    site.submodule("lib");
    site.submodule("moved");
    site.branch(
        "other",
        "rm -r d file; echo x > d; mkdir file; echo x > file/x; git rm -q --cached lib; rm -rf lib; ln -s f lib; \
         git update-index --cacheinfo 160000,1111111111111111111111111111111111111111,moved; rm -rf moved",
    );
    let repo = git2::Repository::open(&site.fix.repo).unwrap();
    let id = |name: &str| text(&site.fix.git(&["rev-parse", name]));
    let (one, other) = (id("main"), id("other"));
    let out = site.fix.git(&["diff-tree", "-r", "-z", "--raw", "--no-renames", &one, &other]);
    let mut library = trees::differing(&repo, &one, &other).unwrap();
    let mut command = trees::listed(&out);
    for found in [&mut library, &mut command] {
        found.sort_by(|one, other| one.path.cmp(&other.path));
    }
    assert_eq!(library, command);
    assert!(library.len() > 4, "{library:?}");
}

#[tokio::test]
async fn changes_that_git_was_told_to_ignore_are_named_with_a_remedy() {
    for flag in ["--assume-unchanged", "--skip-worktree"] {
        let site = Site::new();
        let file = site.fix.repo.join("f");
        site.branch("topic", "echo topic > f");
        site.fix.git(&["update-index", flag, "f"]);
        fs::write(&file, "local\n").unwrap();
        let landed = site.land("topic").await;
        let marks = "changed files that are marked assume-unchanged or skip-worktree";
        let cause = format!("{} has {marks}: f (run 'git -C ", site.fix.repo.display());
        assert!(matches!(&landed, Landing::Failed(why) if why.starts_with(&cause)), "{flag}: {landed:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "local\n", "{flag}");
    }
    // A deletion is a change as well. A file that is to be skipped is absent on purpose.
    let site = Site::new();
    site.branch("topic", "echo topic > f");
    site.fix.git(&["update-index", "--assume-unchanged", "f"]);
    fs::remove_file(site.fix.repo.join("f")).unwrap();
    let landed = site.land("topic").await;
    assert!(matches!(&landed, Landing::Failed(why) if why.contains("skip-worktree: f (run 'git -C ")), "{landed:?}");
    assert!(!site.fix.repo.join("f").exists());
    site.fix.git(&["update-index", "--no-assume-unchanged", "f"]);
    site.fix.git(&["checkout", "-q", "--", "f"]);
    assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
}

#[tokio::test]
async fn an_incomplete_candidate_does_not_land_and_is_built_again() {
    let site = Site::new();
    site.branch("topic", "echo topic > topic");
    site.fix.commit("meanwhile", "meanwhile", "x\n");
    let item = site.item("topic").await;
    let base = site.landings.read_base(&site.target).await.unwrap();
    let build = async || match site.landings.build(&site.target, &item, &base).await {
        Build::Made(commit) => commit,
        other => panic!("{other:?}"),
    };
    let collect = || site.fix.git(&["gc", "-q", "--prune=now"]);
    let commit = build().await;
    let tree = text(&site.fix.git(&["rev-parse", &format!("{commit}^{{tree}}")]));
    fs::remove_file(site.fix.repo.join(".git/objects").join(&tree[..2]).join(&tree[2..])).unwrap();
    let landed = site.landings.land(&site.target, &item, &base, &commit).await;
    assert!(matches!(&landed, Landing::Failed(why) if why.contains("are missing in the repository")), "{landed:?}");
    assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), base);
    // The objects are in a pack that disappears after the repository was opened.
    build().await;
    collect();
    build().await;
    let kept = text(&site.fix.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/cand"]));
    site.fix.git(&["update-ref", "-d", &kept]);
    collect();
    let commit = build().await;
    assert_eq!(site.landings.land(&site.target, &item, &base, &commit).await, Landing::Done(Vec::new()));
    site.fix.git(&["fsck", "--full"]);
}

#[tokio::test]
async fn what_the_setup_changed_is_no_change_of_the_verification() {
    let site = Site::new();
    site.branch("topic", "echo topic > topic; echo more > more");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), text(&site.fix.git(&["rev-parse", "topic"])));
    let scratch = scratch::prepare(&workspace, "verify", &commit, scratch::Leftovers::Keep).unwrap();
    let write = |name: &str, text: &str| fs::write(scratch.dir.join(name), text).unwrap();
    write("topic", "of the setup\n");
    let before = Edits::read(&workspace, &scratch).unwrap();
    let changed = || scratch::changed(&workspace, &scratch, &commit, &before).unwrap();
    assert_eq!(changed(), None);
    write("more", "of the verification\n");
    assert_eq!(changed().as_deref(), Some("changed 1 tracked file(s): more"));
    write("more", "more\n");
    write("topic", "of the verification\n");
    assert_eq!(changed().as_deref(), Some("changed 1 tracked file(s): topic"));
    write("topic", "topic\n");
    assert_eq!(changed(), None, "it is as in the commit");
    // The patch would exceed the limit on the output of git.
    write("more", &"of the verification\n".repeat(4 << 20));
    assert_eq!(changed().as_deref(), Some("changed 1 tracked file(s): more"));
}

#[tokio::test]
async fn files_that_a_verification_hid_from_git_are_changes_and_are_checked_out_again() {
    let site = Site::new();
    site.branch("topic", "echo topic > topic; echo more > more");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), text(&site.fix.git(&["rev-parse", "topic"])));
    let prepare = || scratch::prepare(&workspace, "verify", &commit, scratch::Leftovers::Keep).unwrap();
    for (flag, is_split) in [("--skip-worktree", false), ("--assume-unchanged", false), ("--skip-worktree", true)] {
        let scratch = prepare();
        let hide = || {
            if is_split {
                // libgit2 cannot read such an index.
                site.fix.at(&scratch.dir, &["update-index", "--split-index"]);
            }
            site.fix.at(&scratch.dir, &["update-index", flag, "topic"]);
            fs::write(scratch.dir.join("topic"), "local\n").unwrap();
        };
        hide();
        let changed = scratch::changed(&workspace, &scratch, &commit, &Edits::default()).unwrap();
        assert_eq!(changed.as_deref(), Some("changed 1 tracked file(s): topic"), "{flag}");
        for reset in [|_: &_, _: &_, _: &_| (), scratch::discard] {
            hide();
            reset(&workspace, &scratch, &commit);
            prepare();
            assert_eq!(fs::read_to_string(scratch.dir.join("topic")).unwrap(), "topic\n", "{flag}");
        }
    }
}

#[tokio::test]
async fn leftovers_of_a_verification_are_deleted_except_ignored_files() {
    let site = Site::new();
    site.branch("topic", "echo topic > topic");
    site.item("topic").await;
    let (workspace, commit) = (site.workspace(), text(&site.fix.git(&["rev-parse", "topic"])));
    let scratch = scratch::prepare(&workspace, "verify", &commit, scratch::Leftovers::Keep).unwrap();
    for (path, stays) in [("topic", true), ("left/over", false), ("ignored", true)] {
        let path = scratch.dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, MINE).unwrap();
        scratch::discard(&workspace, &scratch, &commit);
        // Enough space is left, so ignored files stay.
        scratch::free_space(&workspace, "verify");
        assert_eq!(path.exists(), stays, "{}", path.display());
    }
    assert_eq!(fs::read_to_string(scratch.dir.join("topic")).unwrap(), "topic\n");
}

#[tokio::test]
async fn a_copied_file_that_changed_is_copied_again_for_the_next_verification() {
    let site = Site::new();
    fs::write(site.fix.repo.join(".worktreeinclude"), "ignored\n").unwrap();
    site.branch("topic", "echo topic > t");
    site.item("topic").await;
    let workspace = site.workspace();
    let next = || {
        let keep = scratch::Leftovers::Keep;
        let scratch = scratch::prepare(&workspace, "verify", &site.tip("main"), keep).unwrap();
        furnish::furnish(&workspace, &scratch, &Rules::default(), keep).unwrap();
        fs::read_to_string(scratch.dir.join("ignored")).ok()
    };
    let file = site.fix.repo.join("ignored");
    fs::write(&file, "1\n").unwrap();
    assert_eq!(next().as_deref(), Some("1\n"));
    // What a verification made of it stays, for those of the same settings.
    let copy = workspace.own.join("verify/ignored");
    fs::write(&copy, "of a verification\n").unwrap();
    assert_eq!(next().as_deref(), Some("of a verification\n"));
    fs::write(&file, "number 2\n").unwrap();
    assert_eq!(next().as_deref(), Some("number 2\n"));
    // A setup that was killed, or cut off by a power failure, leaves no mark, and perhaps half of a file.
    fs::remove_file(site.fix.repo.join(".git/worktrees/verify/swarm-set-up")).unwrap();
    fs::write(&copy, "num").unwrap();
    assert_eq!(next().as_deref(), Some("number 2\n"));
    fs::remove_file(&file).unwrap();
    assert_eq!(next(), None);
    // A verification may have put a link in place of a directory.
    let (tree, elsewhere) = (workspace.own.join("verify"), site.fix.root.join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("own"), "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, tree.join("link")).unwrap();
    crate::worktrees::copies::remove(&tree, &[b"link/own".to_vec()]).unwrap();
    assert!(elsewhere.join("own").exists());
}
