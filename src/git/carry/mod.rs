//! Commits between a repository here and a clone of it on another machine. git connects by a program that takes the place of
//! ssh, `swarm __carry`, and by nothing else: no setting of the user or of the repository sends them elsewhere.
//!
//! ```text
//! here                                          there
//! base, begin of the work   -- push -->  refs/swarm/in/COMMIT, refs/swarm/base
//! refs/swarm/done/TIP       <-- fetch --  refs/swarm/done/TIP
//! refs/swarm/from/HOST/ID.N <-- fetch --  refs/swarm/done/TIP, of an attempt that was given up; what one could not commit
//! ```

mod branch;
mod returned;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use swarm_model::Caller;
use swarm_sys::files::list_if_present;
use swarm_sys::quoting::quoted;

pub use branch::{Move, take};
pub use returned::{fetch_left, keep, keep_all};

use crate::landing::complete::pinned;
use crate::landing::site::CompletionRepo;
use crate::repository::cli::{Call, Cli};
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::{CliError, Fault};
use crate::repository::{gc_lock, holders, objects};

/// Begins what the program that connects says about a connection that was cut, or that there is not.
pub const AWAY: &str = "swarm: away: ";
/// Begins what the program that connects says if a person must change something.
pub const REFUSED: &str = "swarm: refused: ";
/// Namespace of the refs there that keep the commits from here.
const IN: &str = "refs/swarm/in";
/// Ref there to the last base that was sent. It stays, so that the next run does not send everything again.
const BASE: &str = "refs/swarm/base";
/// What git's check finds in old histories, and in commits of careless programs. None of it can harm anybody.
const HARMLESS: [&str; 12] = [
    "badDate",
    "badDateOverflow",
    "badEmail",
    "badName",
    "badTimezone",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "multipleAuthors",
    "zeroPaddedDate",
    "zeroPaddedFilemode",
];
/// Time limit of git. The program that connects ends much earlier if nothing moves.
const GIT_MAX: Duration = Duration::from_secs(6 * 3600);

/// A clone on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarRepository {
    /// The program that connects.
    pub program: PathBuf,
    /// Verb of that program.
    pub verb: &'static str,
    pub host: String,
    /// Lowercase hex digits.
    pub controller: String,
    /// Lowercase hex digits.
    pub repository: String,
}

/// Why commits were not sent or fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CarryError {
    /// There is no connection, or it was cut.
    Away(String),
    /// The other machine does not do it, or sent something odd.
    Refused(String),
    /// git here does not take the commits: its check finds in them what may be an attack. They never pass.
    Unsound(String),
    /// git failed, here or there. It may pass.
    Failed(String),
}

impl FarRepository {
    fn url(&self) -> String {
        format!("ssh://far/{}/{}", self.controller, self.repository)
    }

    /// Prepares a git that reaches nothing but this clone.
    fn reach<'a>(&self, cli: &'a Cli, common: &Path) -> Call<'a> {
        let url = self.url();
        let program = quoted(&self.program.to_string_lossy());
        let ssh = format!("{program} {} {}", self.verb, quoted(&self.host));
        // Of several rewritings, git takes the one with the longest beginning, which is the whole of it here.
        let kept = ["insteadOf", "pushInsteadOf"].map(|key| format!("url.{url}.{key}={url}"));
        let settings =
            ["protocol.ssh.allow=always", "push.pushOption=", "fetch.fsckObjects=true", "transfer.fsckObjects=true"];
        let ignored = HARMLESS.map(|id| format!("fetch.fsck.{id}=ignore"));
        let settings =
            settings.into_iter().map(str::to_owned).chain(ignored).chain(kept).flat_map(|it| ["-c".to_owned(), it]);
        cli.write(common)
            .args(settings)
            .env("GIT_SSH_COMMAND", ssh)
            .env("GIT_SSH_VARIANT", "simple")
            .env("GIT_ALLOW_PROTOCOL", "ssh")
            .limit(GIT_MAX)
    }
}

/// Reports whether this is the id of a commit: hex digits of SHA-1 or SHA-256.
pub fn is_commit_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the common directory of the repository around `root`, with all links resolved.
///
/// # Errors
/// Returns a message if there is none.
pub fn common_of(root: &Path, caller: &Caller) -> Result<PathBuf, String> {
    let cli = Cli::new(caller).map_err(|error| error.to_string())?;
    let common = objects::common_dir(&cli, root).map_err(|error| error.to_string())?;
    Path::new(&common).canonicalize().map_err(|error| format!("{common}: {error}"))
}

/// Returns name and mail address of who commits; `None` if git does not know.
pub fn committer(common: &Path, caller: &Caller) -> Option<(String, String)> {
    let said = Cli::new(caller).ok()?.read(common).args(["var", "GIT_COMMITTER_IDENT"]).run().ok()?;
    let said = String::from_utf8(said).ok()?;
    let (name, rest) = said.rsplit_once(" <")?;
    let (email, _) = rest.split_once('>')?;
    Some((name.to_owned(), email.to_owned()))
}

/// Sends commits to the clone, where refs keep them. The first one is the base.
///
/// # Errors
/// Returns why they may not be there.
pub fn push(common: &Path, far: &FarRepository, commits: &[String], caller: &Caller) -> Result<(), CarryError> {
    check(commits)?;
    let cli = Cli::new(caller).map_err(failed)?;
    let words = ["push", "--quiet", "--no-verify", "--no-signed", "--no-follow-tags", "--recurse-submodules=no"];
    let mut specs: Vec<String> = commits.iter().map(|commit| format!("{commit}:{IN}/{commit}")).collect();
    specs.sort();
    specs.dedup();
    // Work of another run may be older.
    specs.extend(commits.first().map(|base| format!("+{base}:{BASE}")));
    far.reach(&cli, common).args(words).args(["--", &far.url()]).args(specs).run().map(drop).map_err(explained)
}

/// Fetches finished work from the clone and pins it here, durably. Does nothing if that was done before.
///
/// # Errors
/// Returns why it may not be here.
pub fn fetch(common: &Path, far: &FarRepository, tip: &str, caller: &Caller) -> Result<(), CarryError> {
    check(std::slice::from_ref(&tip.to_owned()))?;
    let cli = Cli::new(caller).map_err(failed)?;
    let refuse = |fault: Fault| CarryError::Failed(fault.cause);
    let is_commit = |name: &str| objects::commit(&cli, common, name).map(|commit| commit.as_deref() == Some(tip));
    if !is_commit(&pinned(tip)).map_err(failed)? {
        let _hold = gc_lock::hold(common, gc_lock::LANDING_WAIT).map_err(refuse)?;
        get(&cli, common, far, tip)?;
        CompletionRepo::open(&cli, common).pin(tip).map_err(refuse)?;
    }
    sync_file_systems([common]).map_err(refuse)
}

/// Fetches a commit with all that it contains, durably. The caller holds the lock that keeps it from being pruned.
fn get(cli: &Cli, common: &Path, far: &FarRepository, tip: &str) -> Result<(), CarryError> {
    let words = [
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-prune",
        "--no-write-fetch-head",
        "--no-write-commit-graph",
        "--no-auto-maintenance",
        "--recurse-submodules=no",
        "--refmap=",
        "--",
    ];
    let since = SystemTime::now();
    // By its id: a ref there that names it may contain something else.
    let fetched = far.reach(cli, common).args(words).args([&far.url(), tip]).run();
    fetched.inspect_err(|_| sweep(common, since)).map_err(explained)?;
    if objects::commit(cli, common, tip).map_err(failed)?.as_deref() != Some(tip) {
        return Err(CarryError::Refused(format!("{} sent something else than the commit {tip}", far.host)));
    }
    sync_file_systems([common]).map_err(|fault| CarryError::Refused(fault.cause))
}

/// Removes parts of packs that a fetch has left which was cut: git keeps them for weeks, and tries may be many.
fn sweep(common: &Path, since: SystemTime) {
    let files = list_if_present(&common.join("objects/pack")).unwrap_or_default().into_iter();
    let parts = files.filter(|file| file.file_name().to_string_lossy().starts_with("tmp_"));
    holders::clear_stale_locks(&parts.map(|file| file.path()).collect::<Vec<_>>(), Some(since));
}

fn check(commits: &[String]) -> Result<(), CarryError> {
    match commits.iter().find(|commit| !is_commit_id(commit)) {
        Some(odd) => Err(CarryError::Refused(format!("'{}' is not the id of a commit", odd.escape_debug()))),
        None => Ok(()),
    }
}

/// Reports whether git's check of what is fetched says this: it names the object, and then the fault.
fn is_unsound(message: &str) -> bool {
    let named = message.strip_prefix("object ").and_then(|rest| rest.split_once(": "));
    named.is_some_and(|(id, _)| is_commit_id(id))
}

fn failed(error: CliError) -> CarryError {
    CarryError::Failed(error.to_string())
}

/// Tells a cut connection from what a person must look at.
fn explained(error: CliError) -> CarryError {
    match error {
        CliError::Exit { message, .. } => match (message.strip_prefix(AWAY), message.strip_prefix(REFUSED)) {
            (Some(cause), _) => CarryError::Away(cause.to_owned()),
            (_, Some(cause)) => CarryError::Refused(cause.to_owned()),
            _ if is_unsound(&message) => CarryError::Unsound(message),
            _ => CarryError::Failed(format!("git: {message}")),
        },
        error @ (CliError::Signal(_) | CliError::Timeout(_)) => CarryError::Away(error.to_string()),
        error => failed(error),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
