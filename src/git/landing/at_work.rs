//! Commits that a person is making in a checkout. While the message is open, git holds no lock, and it refuses the commit if
//! the base has moved meanwhile.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_model::merge::queue::Obstacle;
use swarm_sys::procfs;

/// Commands of git that make a commit on the branch that is checked out.
const COMMANDS: [&[u8]; 5] = [b"commit", b"merge", b"cherry-pick", b"revert", b"am"];
/// Options of git that take the next word.
const WITH_VALUE: [&[u8]; 6] = [b"-C", b"-c", b"--git-dir", b"--work-tree", b"--namespace", b"--config-env"];
/// Files with messages that a person writes.
const MESSAGES: [&str; 2] = ["COMMIT_EDITMSG", "MERGE_MSG"];
const PROC: &str = "/proc";
const GIT: &str = "git";

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

/// Reports whether a process is a git that makes a commit in this directory. git changes to the root of the checkout.
fn commits(pid: i32, tree: &Path) -> bool {
    procfs::command(pid).as_deref() == Some(GIT)
        && procfs::dir(pid).is_some_and(|dir| dir == tree)
        && fs::read(format!("{PROC}/{pid}/cmdline")).is_ok_and(|words| makes_commit(&words))
}

/// Reports whether the words of a git, each with a zero byte at its end, are those of a command that makes a commit.
fn makes_commit(words: &[u8]) -> bool {
    let mut words = words.split(|byte| *byte == 0).skip(1);
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with(b"-") {
            return COMMANDS.contains(&word);
        }
    }
    false
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
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use swarm_model::merge::Landing;

    use super::super::cleared;
    use super::super::tests_checkout::Site;
    use super::*;
    use crate::fixture::text;

    #[test]
    fn only_commands_that_make_a_commit_count() {
        let makes = |line: &str| makes_commit(line.replace(' ', "\0").as_bytes());
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
}
