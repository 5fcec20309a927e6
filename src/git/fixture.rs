//! A real repository in a temporary directory, isolated from the user's git settings.

#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "a test fixture")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use swarm_model::{Caller, WorktreePlan, WorktreeRequest};
use swarm_ports::{Force, Saved, WorktreeError, Worktrees};

use super::Git;
#[cfg(test)]
use crate::repository::cli::Cli;

pub struct Fixture {
    _dir: tempfile::TempDir,
    /// Temporary directory that contains everything else.
    pub root: PathBuf,
    pub repo: PathBuf,
    pub caller: Caller,
}

/// Returns the output of a command as text without trailing white space.
pub fn text(out: &[u8]) -> String {
    String::from_utf8_lossy(out).trim_end().to_owned()
}

impl Fixture {
    /// Creates a repository `repo` with one commit on `main`.
    pub fn new() -> Self {
        let fix = Self::empty();
        fs::write(fix.repo.join(".gitignore"), "ignored\n").unwrap();
        fix.commit("first", "f", "1\n");
        fix
    }

    /// Creates a repository without a commit.
    pub fn empty() -> Self {
        swarm_config::ignore_user_file();
        // In memory if possible: a small git spends most of its time on the disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = dir.path().canonicalize().unwrap();
        let home = root.join("home");
        fs::create_dir(&home).unwrap();
        let path = std::env::var("PATH").unwrap();
        let environment = [
            ("PATH", path.as_str()),
            ("HOME", home.to_str().unwrap()),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_AUTHOR_NAME", "T"),
            ("GIT_AUTHOR_EMAIL", "t@localhost"),
            ("GIT_COMMITTER_NAME", "T"),
            ("GIT_COMMITTER_EMAIL", "t@localhost"),
            ("GIT_CEILING_DIRECTORIES", root.to_str().unwrap()),
        ];
        let repo = root.join("repo");
        let caller = Caller {
            cwd: root.to_str().unwrap().to_owned(),
            environment: environment.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec().into(),
            umask: 0o022,
            ..Caller::default()
        };
        let fix = Self { _dir: dir, root, repo, caller };
        fix.at(&fix.root, &["init", "-q", "-b", "main", "repo"]);
        fix
    }

    #[cfg(test)]
    pub(crate) fn cli(&self) -> Cli {
        Cli::new(&self.caller).unwrap()
    }

    pub fn set(&mut self, key: &str, value: &str) {
        let environment = std::sync::Arc::make_mut(&mut self.caller.environment);
        environment.retain(|(known, _)| known != key);
        environment.push((key.to_owned(), value.to_owned()));
    }

    pub fn script(&self, path: &Path, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // A child writes the final file, so that no fork of another test holds it
        // open for writing while it is executed.
        fs::write(path.with_extension("new"), format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(path.with_extension("new"), fs::Permissions::from_mode(0o755)).unwrap();
        let copied = Command::new("cp").arg("-p").arg(path.with_extension("new")).arg(path).status().unwrap();
        assert!(copied.success());
    }

    /// Returns a caller whose git runs `body` instead of `worktree add`; `$GIT` is the
    /// real git.
    pub fn with_stub(&self, body: &str) -> Caller {
        self.with_stub_of("worktree add", body)
    }

    /// Returns a caller whose git runs `body` for command lines that contain `words`.
    pub fn with_stub_of(&self, words: &str, body: &str) -> Caller {
        let path = std::env::var("PATH").unwrap();
        let real = path.split(':').map(|dir| Path::new(dir).join("git")).find(|git| git.is_file()).unwrap();
        let stub = self.root.join("stub/git");
        let head = format!("GIT={}", real.display());
        self.script(&stub, &format!("{head}\ncase \" $* \" in *' {words} '*)\n{body}\n;; esac\nexec $GIT \"$@\""));
        let mut caller = self.caller.clone();
        let entry =
            std::sync::Arc::make_mut(&mut caller.environment).iter_mut().find(|(key, _)| key == "PATH").unwrap();
        entry.1 = format!("{}:{path}", self.root.join("stub").display());
        caller
    }

    /// Runs git in `dir` and returns whether it succeeded, and its stdout.
    pub fn attempt(&self, dir: &Path, args: &[&str]) -> (bool, Vec<u8>) {
        let mut command = Command::new("git");
        command.arg("-C").arg(dir).args(args).env_clear().envs(self.caller.environment.iter().cloned());
        let out = command.stdin(std::process::Stdio::null()).output().unwrap();
        (out.status.success(), out.stdout)
    }

    /// Starts a git that works in `dir` until it is dropped. It holds no lock.
    #[cfg(test)]
    pub(crate) fn working_in(&self, dir: &Path) -> Working {
        use std::process::Stdio;
        let mut git = Command::new("git");
        git.args(["hash-object", "--stdin"]).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::null());
        Working(git.spawn().unwrap())
    }

    pub fn at(&self, dir: &Path, args: &[&str]) -> Vec<u8> {
        let (is_good, out) = self.attempt(dir, args);
        assert!(is_good, "git {args:?} failed");
        out
    }

    pub fn git(&self, args: &[&str]) -> Vec<u8> {
        self.at(&self.repo, args)
    }

    pub fn commit(&self, message: &str, file: &str, content: &str) {
        fs::write(self.repo.join(file), content).unwrap();
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", message]);
    }

    pub fn asked(&self) -> WorktreeRequest {
        WorktreeRequest { cwd: "repo".to_owned(), ..WorktreeRequest::default() }
    }

    pub fn plan(&self, name: &str) -> WorktreePlan {
        self.plan_of(name, &self.asked()).unwrap()
    }

    pub fn plan_of(&self, name: &str, asked: &WorktreeRequest) -> Result<WorktreePlan, WorktreeError> {
        block(Git::new().plan(name, asked, &self.caller))
    }

    /// Returns cause and remedy of a plan that must be refused.
    pub fn refusal(&self, name: &str, asked: &WorktreeRequest) -> (String, Option<String>) {
        match self.plan_of(name, asked) {
            Err(WorktreeError::Create { cause, remedy, .. }) => (cause, remedy),
            other => panic!("not refused: {other:?}"),
        }
    }

    pub fn make(&self, plan: &WorktreePlan) -> Result<(), WorktreeError> {
        block(Git::new().make(plan, &self.caller))
    }

    pub fn undo(&self, plan: &WorktreePlan) -> Result<(), WorktreeError> {
        block(Git::new().undo(plan, &self.caller))
    }

    /// Creates a worktree with that name.
    pub fn made(&self, name: &str) -> (WorktreePlan, PathBuf) {
        let plan = self.plan(name);
        self.make(&plan).unwrap();
        let path = PathBuf::from(&plan.path);
        (plan, path)
    }

    pub fn check(&self, path: &Path, force: Force) -> Result<(), WorktreeError> {
        block(Git::new().check(path.to_str().unwrap(), self.repo.to_str().unwrap(), force, &self.caller))
    }

    pub fn remove(&self, path: &Path, force: Force) -> Result<Option<Saved>, WorktreeError> {
        let repo = self.repo.to_str().unwrap();
        block(Git::new().remove("w", path.to_str().unwrap(), repo, force, &self.caller))
    }

    pub fn has(&self, reference: &str) -> bool {
        self.attempt(&self.repo, &["show-ref", "--verify", "-q", reference]).0
    }

    pub fn trash(&self) -> Vec<String> {
        text(&self.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/trash"]))
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Asserts that nothing of a worktree is left: no directory, administrative files or branch.
    pub fn assert_no_trace(&self, plan: &WorktreePlan) {
        assert!(!Path::new(&plan.path).exists(), "the directory is still there");
        assert!(!self.has(&format!("refs/heads/{}", plan.branch)), "the branch is still there");
        assert!(!self.repo.join(".git/worktrees").exists(), "the record is still there");
    }
}

/// A git that waits for its input.
#[cfg(test)]
pub(crate) struct Working(std::process::Child);

#[cfg(test)]
impl Drop for Working {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

pub fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
