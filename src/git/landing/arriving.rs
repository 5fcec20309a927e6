//! Gits that are about to check the base out in one of the repository's directories. They resolved the base when they
//! started, and would check out the earlier commit: what lands meanwhile would look as if the user had reverted it, and the
//! new directory of `git worktree add` would even move the base back.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_sys::procfs;

use super::at_work::{GIT, PROC, command_of};
use super::checked_out::Unready;
use super::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::worktrees::admin;

/// Commands of git that check a branch out which they name.
const COMMANDS: [&str; 3] = ["checkout", "switch", "worktree"];
/// Options with which these commands check out no branch that exists.
const ELSEWHERE: [&str; 10] =
    ["--", "-b", "-B", "-c", "-C", "-d", "--create", "--detach", "--force-create", "--orphan"];

/// Returns the reason to wait if a git is about to check the base out.
pub(super) fn git(workspace: &Workspace) -> Result<Option<Unready>, Fault> {
    let base = workspace.target.base();
    let all = procfs::all().map_err(Fault::at(Path::new(PROC)))?;
    let goes = |pid: &i32| {
        procfs::command(*pid).as_deref() == Some(GIT)
            && fs::read(format!("{PROC}/{pid}/cmdline")).is_ok_and(|words| checks_out(&words, base))
    };
    let mut places = None;
    for pid in all.into_iter().filter(goes) {
        let Some(dir) = procfs::dir(pid) else { continue };
        let places = match &places {
            Some(places) => places,
            None => places.insert(directories(&workspace.common)?),
        };
        if places.iter().any(|place| dir.starts_with(place)) {
            let why = format!("git (process {pid}) is about to check out '{base}' in {}", dir.display());
            let why = format!("{why} (the work lands by itself once that git has ended)");
            return Ok(Some(Unready { why, until: Some(Path::new(PROC).join(pid.to_string())) }));
        }
    }
    Ok(None)
}

/// Returns the directories in which a git works with the repository.
fn directories(common: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut found = vec![admin::resolved(admin::checkout_of(common).unwrap_or(common))];
    for entry in admin::entries(common).map_err(Fault::at(common))? {
        found.extend(admin::known_tree_of(&entry).map_err(Fault::at(&entry))?.map(|tree| admin::resolved(&tree)));
    }
    Ok(found)
}

/// Reports whether the words of a git, each with a zero byte at its end, may be those of a command that checks out the
/// branch `base`. The directory of a worktree may name it, too.
fn checks_out(words: &[u8], base: &str) -> bool {
    let Some((command, rest)) = command_of(words) else { return false };
    let command = String::from_utf8_lossy(command);
    let rest: Vec<_> = rest.map(String::from_utf8_lossy).collect();
    if command == "bisect" {
        return rest.iter().any(|word| word == "reset");
    }
    let names =
        |word: &str| word == base || word.ends_with(&format!("/{base}")) || word == "-" || word.starts_with("@{-");
    if command == "rebase" {
        // The first word is what the branch is rebased onto; the last of several is a branch to check out first.
        let plain: Vec<_> = rest.iter().filter(|word| !word.starts_with("--")).collect();
        return plain.len() > 1 && plain.last().is_some_and(|word| names(word));
    }
    COMMANDS.contains(&&*command)
        && rest.iter().any(|word| names(word))
        && !rest.iter().any(|word| ELSEWHERE.contains(&&**word))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::Duration;

    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
    use swarm_model::merge::Landing;

    use super::super::checkout::retry_until;
    use super::super::tests_checkout::Site;
    use super::*;
    use crate::fixture::text;

    #[test]
    fn only_commands_that_check_the_base_out_count() {
        let checks = |line: &str| checks_out(line.replace(' ', "\0").as_bytes(), "main");
        for line in [
            "git switch main",
            "git -C /r -c a=b checkout -q main",
            "git checkout -",
            "git switch @{-1}",
            "git worktree add ../wt main",
            "git worktree add ../main",
            "git rebase topic main",
            "git bisect reset",
        ] {
            assert!(checks(line), "{line}");
        }
        for line in [
            "git",
            "git switch other",
            "git switch -c topic main",
            "git checkout -b topic main",
            "git checkout main -- file",
            "git worktree add -b w /t main",
            "git worktree add --detach ../wt main",
            "git rebase main",
            "git rebase --autostash origin/main",
            "git rebase main topic",
            "git push origin main",
            "git log main",
            "git bisect good",
        ] {
            assert!(!checks(line), "{line}");
        }
    }

    /// A git whose checkout of the file `slow` waits until [`Slow::end`].
    struct Slow {
        git: Child,
        ends: PathBuf,
    }

    impl Slow {
        fn start(site: &Site, args: &[&str]) -> Self {
            let [begun, ends] = ["begun", "ends"].map(|name| {
                let fifo = site.fix.root.join(name);
                assert!(Command::new("mkfifo").arg(&fifo).status().expect("made").success());
                fifo
            });
            let smudge = format!("filter.slow.smudge=: > {}; : < {}; cat", begun.display(), ends.display());
            let mut git = Command::new("git");
            git.args(["-c", &smudge]).args(args).current_dir(&site.fix.repo);
            git.env_clear().envs(site.fix.caller.environment.iter().cloned());
            let git = git.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
            drop(fs::File::open(begun).expect("the filter runs"));
            Self { git, ends }
        }

        fn end(mut self) {
            drop(fs::OpenOptions::new().write(true).open(&self.ends).expect("the filter waits"));
            assert!(self.git.wait().expect("ended").success());
        }
    }

    /// A site whose repository has a branch `side` checked out, and in it another content of the file `slow`.
    fn site() -> Site {
        let site = Site::new();
        site.fix.git(&["config", "filter.slow.clean", "cat"]);
        site.fix.commit("attributes", ".gitattributes", "slow filter=slow");
        site.fix.commit("slow", "slow", "1\n");
        site.branch("topic", "echo topic > t");
        site.fix.git(&["switch", "-qc", "side"]);
        site.fix.commit("other", "slow", "2\n");
        site
    }

    #[tokio::test]
    async fn work_waits_while_the_base_is_being_checked_out() {
        for args in [&["switch", "-q", "main"][..], &["worktree", "add", "-q", "../wt", "main"]] {
            let site = site();
            let before = site.tip("main");
            let slow = Slow::start(&site, args);
            let landed = site.land_on_main("topic").await;
            let Landing::Busy { reason, file } = &landed else { panic!("{args:?}: {landed:?}") };
            assert!(reason.contains("is about to check out 'main' in"), "{reason}");
            assert_eq!(*file, format!("/proc/{}", slow.git.id()));
            assert_eq!(site.tip("main"), before);
            slow.end();
            assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()));
            let tree = if args[0] == "switch" { site.fix.repo.clone() } else { site.fix.root.join("wt") };
            assert_eq!(text(&site.fix.at(&tree, &["status", "--porcelain"])), "");
            assert_eq!(fs::read_to_string(tree.join("t")).expect("landed"), "topic\n");
        }
    }

    #[tokio::test]
    async fn a_directory_that_leaves_the_base_while_its_index_is_locked_is_left_alone() {
        let site = site();
        site.fix.git(&["switch", "-q", "main"]);
        site.item("topic").await;
        let slow = Slow::start(&site, &["switch", "-q", "side"]);
        let own = site.workspace().own;
        let ends = thread::spawn(move || {
            let is_planned = || Ok(own.join("landing.json").exists());
            assert!(retry_until(&own, Duration::from_secs(60), is_planned).expect("watched"));
            slow.end();
        });
        assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()));
        ends.join().expect("it has ended");
        assert_eq!(text(&site.fix.git(&["branch", "--show-current"])), "side");
        assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "");
        assert!(!site.fix.repo.join("t").exists());
        assert_eq!(text(&site.fix.git(&["show", "main:t"])), "topic");
    }

    /// The merge has written the index when the hook runs, and not moved the branch yet.
    #[tokio::test]
    async fn a_merge_that_has_written_the_index_moves_its_branch_first() {
        let site = site();
        site.fix.git(&["switch", "-q", "main"]);
        site.branch("up", "echo up > u");
        site.item("topic").await;
        let git_dir = site.fix.repo.join(".git");
        let [begun, ends] = ["begun", "ends"].map(|name| {
            let fifo = site.fix.root.join(name);
            assert!(Command::new("mkfifo").arg(&fifo).status().expect("made").success());
            fifo
        });
        let hook = git_dir.join("hooks/post-index-change");
        fs::create_dir_all(git_dir.join("hooks")).expect("made");
        let script = format!("#!/bin/sh\n[ \"$1\" = 1 ] || exit 0\n: > {}\n: < {}\n", begun.display(), ends.display());
        fs::write(&hook, script).expect("written");
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("set");
        let mut merge = Command::new("git");
        merge.args(["merge", "-q", "--ff-only", "up"]).current_dir(&site.fix.repo);
        merge.env_clear().envs(site.fix.caller.environment.iter().cloned());
        let mut merge = merge.spawn().expect("started");
        drop(fs::File::open(&begun).expect("the hook runs"));
        let changes = Inotify::init(InitFlags::IN_CLOEXEC).expect("watched");
        changes.add_watch(&git_dir, AddWatchFlags::IN_DELETE).expect("watched");
        let is_over = thread::spawn(move || {
            // The landing has locked the index, and leaves it to the merge again.
            let is_left =
                || changes.read_events().expect("read").iter().any(|event| event.name == Some("index.lock".into()));
            while !is_left() {}
            drop(fs::OpenOptions::new().write(true).open(&ends).expect("the hook waits"));
        });
        assert_eq!(site.land_on_main("topic").await, Landing::Moved);
        is_over.join().expect("it has ended");
        assert!(merge.wait().expect("ended").success());
        assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()));
        assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "");
    }
}
