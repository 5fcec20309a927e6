//! Gits of a person that are at work in a checkout. While the message of a commit is open, git holds no lock, and it refuses
//! the commit if the base has moved meanwhile. Some commands read the index before they lock it, and would then write back
//! the one that a landing has replaced.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_model::merge::queue::Obstacle;
use swarm_sys::procfs;

use crate::repository::holders;

/// Commands of git that make a commit on the branch that is checked out.
const COMMANDS: [&[u8]; 5] = [b"commit", b"merge", b"cherry-pick", b"revert", b"am"];
/// Commands of git that write no index, or only if it has not changed meanwhile. Others, such as aliases, may.
const WITHOUT_INDEX: [&[u8]; 47] = [
    b"archive",
    b"blame",
    b"branch",
    b"bundle",
    b"cat-file",
    b"clone",
    b"commit-tree",
    b"config",
    b"daemon",
    b"describe",
    b"diff",
    b"diff-tree",
    b"fetch",
    b"for-each-ref",
    b"fsck",
    b"fsmonitor--daemon",
    b"gc",
    b"grep",
    b"hash-object",
    b"index-pack",
    b"log",
    b"ls-files",
    b"ls-remote",
    b"ls-tree",
    b"maintenance",
    b"merge-base",
    b"merge-tree",
    b"pack-objects",
    b"pack-refs",
    b"prune",
    b"push",
    b"receive-pack",
    b"reflog",
    b"remote",
    b"repack",
    b"rev-list",
    b"rev-parse",
    b"shortlog",
    b"show",
    b"show-ref",
    b"status",
    b"symbolic-ref",
    b"tag",
    b"update-ref",
    b"upload-pack",
    b"var",
    b"worktree",
];
/// Time limit for gits that may have read an index before it was replaced.
const INDEX_MAX: Duration = Duration::from_secs(5);
/// Options of git that take the next word.
const WITH_VALUE: [&[u8]; 6] = [b"-C", b"-c", b"--git-dir", b"--work-tree", b"--namespace", b"--config-env"];
/// Files with messages that a person writes.
const MESSAGES: [&str; 2] = ["COMMIT_EDITMSG", "MERGE_MSG"];
pub(super) const PROC: &str = "/proc";
pub(super) const GIT: &str = "git";

/// Returns the directory in `/proc` of a git that makes a commit in the checkout `tree`. The processes are looked at only if
/// a message was written since HEAD has last moved.
pub(super) fn commit_in(tree: &Path, git_dir: &Path) -> Option<PathBuf> {
    let at = |name: &str| fs::symlink_metadata(git_dir.join(name)).and_then(|file| file.modified()).ok();
    let moved = at("logs/HEAD");
    if !MESSAGES.iter().filter_map(|name| at(name)).any(|written| moved.is_none_or(|moved| written >= moved)) {
        return None;
    }
    let tree = tree.canonicalize().ok()?;
    let pid = procfs::all().ok()?.into_iter().find(|pid| commits(*pid, &tree))?;
    Some(Path::new(PROC).join(pid.to_string()))
}

/// Reports whether a process is a git that makes a commit in this directory.
fn commits(pid: i32, tree: &Path) -> bool {
    runs_in(pid, tree, |command| command.is_some_and(|command| COMMANDS.contains(&command)))
}

/// Waits until the gits that work in one of the checkouts `trees` now, and may write its index, have ended. Gives up after
/// a few seconds, and adds those that have not to `lasting`; waits for these again only if they make a commit.
pub(super) fn wait_for_writers<'a>(trees: impl Iterator<Item = &'a Path>, lasting: &mut BTreeSet<i32>) {
    let deadline = Instant::now() + INDEX_MAX;
    let trees = resolved(trees);
    for pid in writers(&trees, lasting) {
        let is_there = || is_writer(pid, &trees);
        if let Some(id) = Pid::from_raw(pid)
            && !holders::ends_or_leaves(id, deadline, is_there)
        {
            tracing::warn!(pid, "a git that may have read the index before the base has moved is still running");
            lasting.insert(pid);
        }
    }
}

/// Reports whether a git that may write the index works in one of the checkouts `trees`, apart from those in `lasting`.
pub(super) fn has_writers<'a>(trees: impl Iterator<Item = &'a Path>, lasting: &BTreeSet<i32>) -> bool {
    !writers(&resolved(trees), lasting).is_empty()
}

fn resolved<'a>(trees: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    trees.filter_map(|tree| tree.canonicalize().ok()).collect()
}

fn writers(trees: &[PathBuf], lasting: &BTreeSet<i32>) -> Vec<i32> {
    let mut found = if trees.is_empty() { Vec::new() } else { procfs::all().unwrap_or_default() };
    let commits = |pid| trees.iter().any(|tree| commits(pid, tree));
    found.retain(|pid| is_writer(*pid, trees) && (!lasting.contains(pid) || commits(*pid)));
    found
}

fn is_writer(pid: i32, trees: &[PathBuf]) -> bool {
    let writes = |command: Option<&[u8]>| command.is_some_and(|command| !WITHOUT_INDEX.contains(&command));
    trees.iter().any(|tree| runs_in(pid, tree, writes))
}

/// Reports whether a process is a git that executes such a command in this directory. git changes to the root of the checkout.
fn runs_in(pid: i32, tree: &Path, is_one: impl Fn(Option<&[u8]>) -> bool) -> bool {
    procfs::dir(pid).is_some_and(|dir| dir == tree)
        && procfs::command(pid).as_deref() == Some(GIT)
        && fs::read(format!("{PROC}/{pid}/cmdline")).is_ok_and(|words| is_one(command(&words)))
}

/// Returns the command among the words of a git, each with a zero byte at its end.
fn command(words: &[u8]) -> Option<&[u8]> {
    command_of(words).map(|(command, _)| command)
}

/// Returns the command among the words of a git, each with a zero byte at its end, and the words after it.
pub(super) fn command_of(words: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let mut words = words.split(|byte| *byte == 0).skip(1).filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with(b"-") {
            return Some((word, words));
        }
    }
    None
}

/// Returns the process that an obstacle is, as [`commit_in`] has named it.
pub(super) fn process(obstacle: &Obstacle) -> Option<i32> {
    let Obstacle::File(file) = obstacle else { return None };
    Path::new(file).strip_prefix(PROC).ok()?.to_str()?.parse().ok()
}

/// Reports whether the git has ended. Another process may have its number since.
pub(super) fn has_ended(pid: i32) -> bool {
    procfs::command(pid).as_deref() != Some(GIT)
}

/// Returns a descriptor that becomes readable when the process ends. `None` if it has ended.
pub(super) fn end_of(pid: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(end) => Ok(Some(end)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::thread;

    use swarm_model::merge::Landing;

    use super::super::checkout::retry_until;
    use super::super::cleared;
    use super::super::tests_checkout::Site;
    use super::*;
    use crate::fixture::text;

    #[test]
    fn only_commands_that_make_a_commit_count() {
        let words = |line: &str| line.replace(' ', "\0");
        let makes = |line: &str| command(words(line).as_bytes()).is_some_and(|command| COMMANDS.contains(&command));
        for line in ["git commit", "git -C /r -c a=b commit --amend", "git --no-pager merge --edit x", "git am"] {
            assert!(makes(line), "{line}");
        }
        for line in ["git", "git log commit", "git -C commit status", "git --git-dir commit log", "git -c commit"] {
            assert!(!makes(line), "{line}");
        }
    }

    #[tokio::test]
    async fn work_waits_while_the_message_of_a_commit_is_open() {
        let site = Site::new();
        site.branch("topic", "echo topic > t");
        let (repo, fifo) = (&site.fix.repo, site.fix.root.join("fifo"));
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("made").success());
        fs::write(repo.join("mine"), "mine\n").expect("written");
        site.fix.git(&["add", "mine"]);
        let mut commit = Command::new("git");
        commit.arg("commit").current_dir(repo).env_clear().envs(site.fix.caller.environment.iter().cloned());
        // The editor takes what it reads from the pipe as the message.
        commit.env("GIT_EDITOR", format!("sh -c 'cat {} > \"$1\"' -", fifo.display()));
        let mut commit = commit.stdout(Stdio::null()).spawn().expect("started");
        let mut message = fs::OpenOptions::new().write(true).open(&fifo).expect("the editor reads");
        let base = text(&site.fix.git(&["rev-parse", "main"]));
        let Landing::Busy { reason, file } = site.land("topic").await else { panic!("it has landed") };
        assert_eq!(file, format!("/proc/{}", commit.id()));
        assert!(reason.contains("is making a commit in"), "{reason}");
        assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), base);
        let obstacle = Obstacle::File(file);
        let workspace = Arc::new(site.workspace());
        assert!(!cleared::is_gone(&workspace, &obstacle).expect("known"));
        let waits = tokio::spawn(async move { cleared::cleared(workspace, &obstacle).await });
        message.write_all(b"of a person\n").expect("written");
        drop(message);
        assert!(commit.wait().expect("ended").success(), "the base has not moved");
        waits.await.expect("no panic").expect("cleared");
        assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
        assert_eq!(text(&site.fix.git(&["log", "-1", "--format=%s", "main^1"])), "of a person");
    }

    /// The commit has read the index when the hook asks which files have changed, and not locked it yet.
    #[tokio::test]
    async fn a_commit_that_has_read_the_index_does_not_write_it_back() {
        let site = Site::new();
        site.branch("topic", "echo topic > t");
        let repo = &site.fix.repo;
        let [begun, ends] = ["begun", "ends"].map(|name| {
            let fifo = site.fix.root.join(name);
            assert!(Command::new("mkfifo").arg(&fifo).status().expect("made").success());
            fifo
        });
        fs::write(repo.join("mine"), "mine\n").expect("written");
        site.fix.git(&["add", "mine"]);
        let hook = site.fix.root.join("hook");
        let script = format!("#!/bin/sh\n: > {}\n: < {}\nprintf '/\\0'\n", begun.display(), ends.display());
        fs::write(&hook, script).expect("written");
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("set");
        let mut commit = Command::new("git");
        commit.arg("-c").arg(format!("core.fsmonitor={}", hook.display())).args(["commit", "-qm", "mine"]);
        commit.current_dir(repo).env_clear().envs(site.fix.caller.environment.iter().cloned());
        let mut commit = commit.stderr(Stdio::null()).spawn().expect("started");
        drop(fs::File::open(&begun).expect("the hook runs"));
        let refs = repo.join(".git/refs/heads");
        let base = fs::read(refs.join("main")).expect("read");
        let moves = thread::spawn(move || {
            let is_moved = || Ok(fs::read(refs.join("main")).is_ok_and(|now| now != base));
            let is_moved = retry_until(&refs, Duration::from_secs(60), is_moved).expect("watched");
            drop(fs::OpenOptions::new().write(true).open(&ends).expect("the hook waits"));
            is_moved
        });
        assert_eq!(site.land("topic").await, Landing::Done(Vec::new()));
        assert!(moves.join().expect("no panic"), "the base has moved");
        assert!(!commit.wait().expect("ended").success(), "the base has moved meanwhile");
        assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "A  mine", "only the person's change is staged");
    }
}
