//! Runs the `git` program; nothing else in swarm does. Every call has a null (or file)
//! stdin, a fixed locale, the caller's environment without the variables that point git
//! at another repository, bounded output and a time limit.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use swarm_model::Caller;

use super::draft::{self, Draft};
use super::exit::wait_for_exit;
pub(crate) use super::fault::CliError;
use super::{explicit, objects, parse, pipes, version};
use crate::worktrees::record_view::RecordView;

/// Maximum number of starts of a read-only git that gets killed by a signal.
const READ_TRIES_MAX: u32 = 3;
/// Time limit for read-only calls.
const READ_MS_MAX: u64 = 60_000;
/// Time limit for calls that check out, delete or save files.
pub(crate) const TREE_MS_MAX: u64 = 600_000;
pub(crate) const STDOUT_BYTES_MAX: usize = 64 << 20;

/// Variables that point git at another repository, change what our arguments mean, or that a hook or a verification
/// leaves in the caller's environment.
pub(crate) const UNSET: [&str; 21] = [
    "SWARM_SCRATCH",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_ATTR_SOURCE",
    "GIT_EXTERNAL_DIFF",
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
];

fn missing(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::NotFound => CliError::Missing,
        _ => CliError::Run(error),
    }
}

/// Options for internal calls: no hooks or file system monitor of the user, no recursion into submodules, whose
/// checkouts are independent, no recorded resolutions, which an agent may have written and which git writes through links,
/// and messages and names in UTF-8, which is how they are read and written here.
const SETTINGS: &str = "core.fsmonitor=false core.hooksPath=/dev/null submodule.recurse=false rerere.enabled=false \
                        i18n.logOutputEncoding=UTF-8 i18n.commitEncoding=UTF-8";

/// Kind of a call. Decides how git is run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Read-only; takes no optional locks.
    Read,
    /// Internal step: runs no hooks of the user.
    Write,
    /// Runs as the user would run it, with hooks.
    User,
}

/// The git program and environment of one caller.
pub(crate) struct Cli {
    program: PathBuf,
    /// Variables of the caller.
    pub(crate) environment: Vec<(String, String)>,
    /// The caller's umask; `None` if it equals the umask of this process.
    umask: Option<u32>,
}

impl Cli {
    pub(crate) fn new(caller: &Caller) -> Result<Self, CliError> {
        let environment: Vec<_> =
            caller.environment.iter().filter(|(key, _)| !UNSET.contains(&key.as_str())).cloned().collect();
        let search =
            environment.iter().find(|(key, _)| key == "PATH").map_or("/usr/local/bin:/usr/bin:/bin", |(_, v)| v);
        let program = search
            .split(':')
            .map(|entry| Path::new(&caller.cwd).join(entry).join("git"))
            .find(|path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
            .ok_or(CliError::Missing)?;
        let umask = Some(caller.umask).filter(|wanted| own_umask() != Some(*wanted));
        Ok(Self { program, environment, umask })
    }

    /// Returns the umask for files that belong to the user.
    pub(crate) fn umask_of_files(&self) -> u32 {
        self.umask.or_else(own_umask).unwrap_or(0o022)
    }

    pub(crate) fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the value of a variable in the caller's environment.
    pub(crate) fn variable(&self, key: &str) -> Option<&str> {
        self.environment.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn read(&self, dir: &Path) -> Call<'_> {
        self.call(Kind::Read, dir, READ_MS_MAX)
    }

    pub(crate) fn write(&self, dir: &Path) -> Call<'_> {
        self.call(Kind::Write, dir, TREE_MS_MAX)
    }

    pub(crate) fn user(&self, dir: &Path) -> Call<'_> {
        self.call(Kind::User, dir, TREE_MS_MAX)
    }

    fn call(&self, kind: Kind, dir: &Path, limit_ms: u64) -> Call<'_> {
        let mut args: Vec<OsString> = vec!["-C".into(), dir.into()];
        if kind != Kind::User {
            args.extend(SETTINGS.split(' ').flat_map(|setting| ["-c", setting]).map(OsString::from));
        }
        let (limit, for_user) = (Duration::from_millis(limit_ms), kind == Kind::User);
        Call {
            cli: self,
            kind,
            args,
            variables: Vec::new(),
            input: None,
            output: None,
            limit,
            for_user,
            is_strict: false,
            tree: None,
            record: None,
            is_in_record: false,
        }
    }
}

/// A git call under construction.
pub(crate) struct Call<'a> {
    cli: &'a Cli,
    kind: Kind,
    args: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    input: Option<File>,
    /// File that gets the output, without a limit; otherwise the output is returned.
    output: Option<File>,
    limit: Duration,
    /// Whether to write files with the user's umask. Internal steps do so in any case: they write objects and references.
    for_user: bool,
    /// Whether git must have looked at everything.
    is_strict: bool,
    /// Worktree whose files git may read.
    tree: Option<PathBuf>,
    /// Record of the worktree, if git gets a view of it.
    record: Option<PathBuf>,
    /// Whether git runs in the record of a worktree itself.
    is_in_record: bool,
}

impl Call<'_> {
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((key.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn input(mut self, file: File) -> Self {
        self.input = Some(file);
        self
    }

    /// Writes the output to an empty file.
    pub(crate) fn output(mut self, file: File) -> Self {
        self.output = Some(file);
        self
    }

    /// Runs git with the caller's umask, for files that belong to the user.
    pub(crate) fn for_user(mut self) -> Self {
        self.for_user = true;
        self
    }

    /// Makes the call fail if git cannot read a directory or look up a file. It leaves both out, says so, and exits with 0,
    /// so that work in them would count as absent.
    pub(crate) fn strict(mut self) -> Self {
        self.is_strict = true;
        self
    }

    /// Makes the call fail soon if a pipe in this worktree holds git up.
    pub(crate) fn within(mut self, tree: &Path) -> Self {
        self.tree = Some(tree.to_owned());
        self
    }

    /// Names the record of the worktree, for a call whose git directory is a view of it.
    pub(crate) fn with_record(mut self, record: &Path) -> Self {
        self.record = Some(record.to_owned());
        self
    }

    /// Keeps git from fetching missing objects, unless the repository with this git directory is a partial clone: git would
    /// also do so for a repository in the worktree, with the configuration of that one.
    pub(crate) fn without_fetch(self, git_dir: &Path) -> Self {
        if objects::may_be_partial(git_dir) { self } else { self.env("GIT_NO_LAZY_FETCH", "1") }
    }

    /// Runs git in the record of a worktree itself, because it writes HEAD or the state of a merge there. Otherwise, if git
    /// reads settings from records, it gets a view of the record, whose settings nobody can change after their check. Only
    /// for records that no sandboxed agent can write.
    pub(crate) fn in_record(mut self) -> Self {
        self.is_in_record = true;
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs git to completion and returns its stdout. Fails unless it exits with 0.
    pub(crate) fn run(self) -> Result<Vec<u8>, CliError> {
        self.run_for(&[0]).map(|(_, out)| out)
    }

    /// Runs git to completion and accepts any of the exit codes in `answers`.
    pub(crate) fn run_for(self, answers: &[i32]) -> Result<(i32, Vec<u8>), CliError> {
        version::check(self.cli)?;
        self.finish(answers)
    }

    /// Runs git like `run_for`, without checking its version first.
    pub(crate) fn finish(self, answers: &[i32]) -> Result<(i32, Vec<u8>), CliError> {
        let limit = self.limit;
        let pipe = || self.pipe();
        let (view, draft) = (self.view()?, self.draft()?);
        let spawn = || self.spawn(view.as_ref(), draft.as_ref());
        let run = || spawn().map_err(missing).and_then(|child| Ok(wait_for_exit(child, limit, &pipe)?));
        let mut ended = run()?;
        for _ in 1..READ_TRIES_MAX {
            // A read-only call that was killed can safely be repeated.
            let is_ours = ended.timed_out || ended.held.is_some();
            if self.kind != Kind::Read || is_ours || ended.status.signal().is_none() {
                break;
            }
            ended = run()?;
        }
        if let Some(held) = ended.held {
            return Err(held.into());
        }
        if ended.timed_out {
            return Err(CliError::Timeout(limit.as_secs()));
        }
        if let Some(signal) = ended.status.signal() {
            return Err(CliError::Signal(signal));
        }
        let code = ended.status.code().unwrap_or(-1);
        draft.map_or(Ok(()), Draft::install).map_err(CliError::Record)?;
        if !answers.contains(&code) {
            let message =
                parse::first_useful_line(&ended.stderr).unwrap_or_else(|| format!("git exited with code {code}"));
            return Err(CliError::Exit { code, message });
        }
        if let Some(unseen) = parse::unseen(&ended.stderr).filter(|_| self.is_strict) {
            return Err(CliError::Unseen(unseen));
        }
        if ended.overflow { Err(CliError::TooMuch) } else { Ok((code, ended.stdout)) }
    }

    /// Starts git in its own process group with piped stdin and returns without waiting,
    /// for an exchange over the pipes. Not for calls in the record of a worktree.
    pub(crate) fn start(self) -> io::Result<Child> {
        self.command(None, None).stdin(Stdio::piped()).spawn()
    }

    /// Runs git and returns its output without the final newline.
    pub(crate) fn line(self) -> Result<String, CliError> {
        let out = self.run()?;
        let text = String::from_utf8_lossy(&out);
        Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    /// Runs git like `line`. Returns `None` for empty output or exit code 1 (not found).
    pub(crate) fn line_if_any(self) -> Result<Option<String>, CliError> {
        match self.line() {
            Ok(line) => Ok(Some(line).filter(|line| !line.is_empty())),
            Err(CliError::Exit { code: 1, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a pipe that git may be waiting for, in the repository or the worktree.
    fn pipe(&self) -> Option<PathBuf> {
        let named = self.variables.iter().find(|(key, _)| key == "GIT_DIR").map(|(_, dir)| Path::new(dir));
        let found = named.unwrap_or(Path::new(&self.args[1]));
        pipes::in_repository_anew(found).or_else(|| self.tree.as_deref().and_then(pipes::find))
    }

    /// Makes the view for a call in the record of a worktree. `None` if it needs none.
    fn view(&self) -> Result<Option<RecordView>, CliError> {
        let record = explicit::git_dir(&self.variables, &self.args).filter(|_| !self.is_in_record);
        let common = record.and_then(explicit::common);
        record
            .zip(common)
            .map_or(Ok(None), |(record, common)| RecordView::open(common, record))
            .map_err(CliError::Record)
    }

    /// Makes the index for a call that changes that of a worktree. `None` if git may write it itself: in a git directory
    /// that is no record, or if the call names another index.
    fn draft(&self) -> Result<Option<Draft>, CliError> {
        let named = explicit::git_dir(&self.variables, &self.args).filter(|dir| explicit::common(dir).is_some());
        let has_index = self.variables.iter().any(|(key, _)| key == "GIT_INDEX_FILE");
        let Some(record) = self.record.as_deref().or(named).filter(|_| !self.is_in_record && !has_index) else {
            return Ok(None);
        };
        match draft::use_of(self.args.iter().map(|arg| arg.as_bytes())).filter(|_| self.kind == Kind::Write) {
            Some(draft::Use::Writes) => Draft::of(record).map(Some),
            Some(draft::Use::MayWrite) => Draft::unlocked(record).map(Some),
            None => Ok(None),
        }
    }

    fn spawn(&self, view: Option<&RecordView>, draft: Option<&Draft>) -> io::Result<Child> {
        let input = self.input.as_ref().map(File::try_clone).transpose()?;
        let mut command = self.command(view, draft);
        if let Some(file) = &self.output {
            // A git that was killed may have written something.
            file.set_len(0)?;
            (&*file).rewind()?;
            command.stdout(file.try_clone()?);
        }
        command.stdin(input.map_or_else(Stdio::null, Stdio::from)).spawn()
    }

    fn command(&self, view: Option<&RecordView>, draft: Option<&Draft>) -> Command {
        // The program is given by path, so that std can use posix_spawn instead of
        // forking a large supervisor. Only a different umask needs the detour through
        // a shell.
        let mut command = match self.cli.umask.filter(|_| self.for_user || self.kind == Kind::Write) {
            None => Command::new(&self.cli.program),
            Some(umask) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "umask \"$0\" && exec \"$@\"", &format!("{umask:04o}")]).arg(&self.cli.program);
                shell
            }
        };
        command
            .args(self.args.iter().map(|arg| explicit::in_view(arg, view.map(RecordView::path))))
            .env_clear()
            .envs(self.cli.environment.iter().map(|(key, value)| (key, value)))
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            // An agent can replace objects: what is verified must be what lands. libgit2 knows no replacements.
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if self.kind == Kind::Read {
            command.env("GIT_OPTIONAL_LOCKS", "0");
        }
        if let Some(common) = explicit::git_dir(&self.variables, &self.args).and_then(explicit::common) {
            command.env("GIT_COMMON_DIR", common);
        }
        command.envs(self.variables.iter().map(|(key, value)| (key, value)));
        if let (Some(view), true) = (view, self.variables.iter().any(|(key, _)| key == "GIT_DIR")) {
            command.env("GIT_DIR", view.path());
        }
        if let Some(draft) = draft {
            command.env("GIT_INDEX_FILE", draft.path());
        }
        command
    }
}

/// Returns the umask of this process from `/proc`; `umask(2)` would change it.
fn own_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
