//! Sets and deletes references that are files, and appends to their logs, as git does, but without following a link. A
//! sandboxed agent may write to `refs` and `logs`, and git would open what it finds there at that moment.

mod packed;
mod spot;

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::cli::{Cli, CliError};
use super::fault::Fault;
use super::objects;
use crate::trash::save::DURABLE;
use crate::worktrees::record;
use spot::{Found, Lock, Spot};

/// Maximum wait for a lock of another git.
const LOCK_WAIT: Duration = Duration::from_secs(5);
pub(crate) const HEAD: &str = "HEAD";
/// Beginning of the value of a symbolic reference.
const SYMBOLIC: &str = "ref:";
/// Maximum length of a chain of symbolic references, as in git.
const SYMBOLIC_MAX: u32 = 5;
/// Content of HEAD in a repository in which references are no files.
const NO_FILES: &str = "ref: refs/heads/.invalid";

/// A new value of a reference, given by its full name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update<'a> {
    pub(crate) name: &'a str,
    pub(crate) to: &'a str,
    pub(crate) before: Before<'a>,
    /// Whether the value survives a power cut.
    pub(crate) is_durable: bool,
}

/// Required old value of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before<'a> {
    Any,
    Absent,
    Is(&'a str),
}

/// Entry in the log of a reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) why: &'a str,
    /// Whether a log is made if there is none.
    pub(crate) makes: bool,
}

/// A lock with a new value. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Prepared {
    lock: Lock,
    /// Whether the reference has the value already.
    is_same: bool,
    is_durable: bool,
    before: Option<String>,
}

/// Sets a reference. `log` is called under its lock with the old value, before the new one counts. Returns `false` without
/// a change if references are no files in this repository, or are behind links as a whole.
///
/// # Errors
/// Fails if something leads to another place, if the reference has another value (transient, so that the caller reads it
/// again), if another reference is in the way, or if its lock stays taken.
pub(crate) fn set(common: &Path, update: &Update<'_>, log: impl FnOnce(Option<&str>)) -> Result<bool, Fault> {
    if !are_files(common) {
        return Ok(false);
    }
    let prepared = prepare(common, update)?;
    if !prepared.is_same {
        log(prepared.before.as_deref());
    }
    prepared.commit().map(|()| true)
}

/// Sets a reference durably, with an entry in its log, as `git update-ref --no-deref` does. With `entry.makes`, the log is
/// made if there is none.
///
/// # Errors
/// Fails as [`set`] does, or if git fails in a repository in which references are no files.
pub(crate) fn write(
    cli: &Cli,
    common: &Path,
    (name, to): (&str, &str),
    before: Before<'_>,
    entry: Entry<'_>,
) -> Result<(), Fault> {
    if objects::commit(cli, common, to)?.as_deref() != Some(to) {
        return Err(Fault::new(format!("{to} is no commit of {}", common.display())));
    }
    let is_logged = are_files(common) && (entry.makes || log_of(common, name).is_some_and(|log| log.is_file()));
    let who = is_logged.then(|| writer(cli, common));
    let log = |old: Option<&str>| {
        let none = "0".repeat(to.len());
        if let Some(who) = &who {
            append_to(common, name, &format!("{} {to} {who}\t{}\n", old.unwrap_or(&none), entry.why), entry.makes);
        }
    };
    if set(common, &Update { name, to, before, is_durable: true }, log)? {
        return Ok(());
    }
    let old = match before {
        Before::Any => None,
        Before::Absent => Some("0".repeat(to.len())),
        Before::Is(old) => Some(old.to_owned()),
    };
    let call = cli.write(common).args(DURABLE).args(["-c", "core.filesRefLockTimeout=5000"]);
    let call = call.args(["update-ref", "--no-deref", "-m", entry.why]).args(entry.makes.then_some("--create-reflog"));
    call.args(["--end-of-options", name, to]).args(old).run().map(drop).map_err(refused)
}

/// Returns the fault of a failed `git update-ref`. It is transient if the reference has another value than expected.
pub(crate) fn refused(error: CliError) -> Fault {
    let fault = Fault::from(error);
    Fault { transient: fault.transient || fault.cause.contains(" but expected "), ..fault }
}

/// Makes the HEAD of the record of a worktree a symbolic reference to a branch, with an entry in its log. `at` is the commit
/// of both.
///
/// # Errors
/// Fails as [`set`] does, or if git fails in a repository in which references are no files.
pub(crate) fn attach(
    cli: &Cli,
    [common, record]: [&Path; 2],
    (branch, at): (&str, &str),
    why: &str,
) -> Result<(), Fault> {
    if !are_files(common) {
        let call = cli.write(record).in_record().env("GIT_DIR", record).env("GIT_IMPLICIT_WORK_TREE", "false");
        return Ok(call.args(DURABLE).args(["symbolic-ref", "-m", why, "HEAD", branch]).run().map(drop)?);
    }
    let line = format!("{at} {at} {}\t{why}\n", writer(cli, common));
    let to = format!("ref: {branch}");
    let head = prepare(record, &Update { name: HEAD, to: &to, before: Before::Any, is_durable: true })?;
    append(record, HEAD, &line);
    head.commit()
}

/// Deletes a reference and its log, only if it has the value `expected` if one is given. A symbolic reference is deleted
/// itself. Returns `false` without a change if references are no files in this repository, are behind links as a whole, or
/// are packed in a file behind a link that leads nowhere.
///
/// # Errors
/// As [`set`].
pub(crate) fn delete(common: &Path, name: &str, expected: Option<&str>) -> Result<bool, Fault> {
    if !are_files(common) {
        return Ok(false);
    }
    let file = common.join(name);
    let Some(of_packed) = packed::lock_path(common).map_err(Fault::at(common))? else { return Ok(false) };
    let lock = lock(common, name)?;
    // Held until the end: another git could pack the present value meanwhile, which would then count.
    let packs = packed::Lock::take(of_packed.clone()).map_err(Fault::at(&of_packed))?;
    let Some(packs) = packs else { return Err(held(&of_packed)) };
    let loose = match lock.of_spot().read().map_err(|error| at(&file, error))? {
        Found::Value(value, _) => Some(value),
        Found::Nothing | Found::Directory => None,
    };
    let packed = packed::find(common, name).map_err(Fault::at(common))?.value;
    let now = loose.as_ref().or(packed.as_ref());
    if let Some(expected) = expected.filter(|expected| now.is_none_or(|now| now != *expected)) {
        let now = now.map_or("nothing", String::as_str);
        return Err(Fault::new(format!("cannot delete {name}: it is at {now} but expected at {expected}")));
    }
    // First, because the packed value would count without the file.
    if packed.is_some() {
        packs.remove(common, name).map_err(Fault::at(common))?;
    }
    if loose.is_some() {
        lock.of_spot().remove().and_then(|()| lock.of_spot().sync()).map_err(|error| at(&file, error))?;
    }
    if let Some(log) = log_of(common, name)
        && let Err(error) = log.remove()
    {
        tracing::warn!(%error, name, "cannot remove the reflog");
    }
    drop((packs, lock));
    spot::remove_parents(common, name, 2);
    spot::remove_parents(common, &format!("logs/{name}"), 3);
    Ok(true)
}

/// Locks a reference and writes its new value to the lock.
///
/// # Errors
/// As [`set`].
pub(crate) fn prepare(common: &Path, update: &Update<'_>) -> Result<Prepared, Fault> {
    let file = common.join(update.name);
    let lock = lock(common, update.name)?;
    let (now, like) = match lock.of_spot().read().map_err(|error| at(&file, error))? {
        Found::Value(value, like) => (Some(value), Some(like)),
        nothing => {
            if matches!(nothing, Found::Directory) && lock.of_spot().remove_directories().is_err() {
                let cause = format!("{} cannot be a reference, because others are below it", update.name);
                return Err(Fault::new(cause).remedy("rename or delete them"));
            }
            (absent(common, update)?, like_head(common))
        }
    };
    let is_expected = match update.before {
        Before::Any => true,
        Before::Absent => now.is_none(),
        Before::Is(old) => now.as_deref() == Some(old),
    };
    if !is_expected {
        return Err(unexpected(update));
    }
    let is_same = now.as_deref() == Some(update.to);
    if !is_same {
        lock.write(update.to, like, update.is_durable).map_err(Fault::at(&file))?;
    }
    Ok(Prepared { lock, is_same, is_durable: update.is_durable, before: now })
}

impl Prepared {
    /// Reports whether nobody has removed the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_ours()
    }

    /// Makes the value count.
    pub(crate) fn commit(self) -> Result<(), Fault> {
        let path = self.lock.of_spot().path().to_owned();
        if self.is_same {
            // Nothing was written.
            return Ok(());
        }
        self.lock.commit(self.is_durable).map_err(|error| at(&path, error))
    }
}

/// Returns the value of a reference that is no file.
fn absent(common: &Path, update: &Update<'_>) -> Result<Option<String>, Fault> {
    let packed = packed::find(common, update.name).map_err(Fault::at(common))?;
    match packed.conflict.filter(|_| packed.value.is_none()) {
        Some(other) => Err(in_the_way(update.name, &other)),
        None => Ok(packed.value),
    }
}

/// Returns the name of the reference to which a symbolic one leads, and `name` if it is none.
///
/// # Errors
/// Fails if something leads to another place, if the chain is too long, or if it leaves `refs`.
pub(crate) fn resolved(common: &Path, name: &str) -> Result<String, Fault> {
    let mut found = name.to_owned();
    for _ in 0..=SYMBOLIC_MAX {
        let file = common.join(&found);
        let spot = Spot::open(common, &found, false).map_err(|error| at(&file, error))?;
        let value = spot.map_or(Ok(Found::Nothing), |spot| spot.read()).map_err(|error| at(&file, error))?;
        let next = match &value {
            Found::Value(value, _) => value.strip_prefix(SYMBOLIC).map(str::trim),
            Found::Nothing | Found::Directory => None,
        };
        match next {
            None => return Ok(found),
            Some(next) if next.starts_with("refs/") && git2::Reference::is_valid_name(next) => found = next.to_owned(),
            Some(_) => break,
        }
    }
    Err(Fault::new(format!("{name} is a symbolic reference that leads to no branch")).remedy("delete it"))
}

fn lock(common: &Path, name: &str) -> Result<Lock, Fault> {
    if !git2::Reference::is_valid_name(name) {
        return Err(Fault::new(format!("'{name}' is not a valid name of a reference")));
    }
    let file = common.join(name);
    let taken = Lock::take(common, name, LOCK_WAIT).map_err(|error| {
        let is_below_file = error.raw_os_error() == Some(Errno::NOTDIR.raw_os_error());
        if is_below_file { in_the_way(name, &occupant(common, name)) } else { at(&file, error) }
    })?;
    taken.ok_or_else(|| held(&common.join(format!("{name}.lock"))))
}

/// Returns the reference of which `name` would be a directory's entry.
fn occupant(common: &Path, name: &str) -> String {
    let above = Path::new(name).ancestors().skip(1);
    let file =
        above.map(Path::to_owned).find(|above| fs::symlink_metadata(common.join(above)).is_ok_and(|it| !it.is_dir()));
    file.unwrap_or_else(|| PathBuf::from(name)).to_string_lossy().into_owned()
}

/// Appends a line to the log `logs/NAME` in the git directory `root`, if there is one. Failures are only logged: the value
/// of the reference counts.
pub(crate) fn append(root: &Path, name: &str, line: &str) {
    append_to(root, name, line, false);
}

fn append_to(root: &Path, name: &str, line: &str, makes: bool) {
    let appended = || -> io::Result<()> {
        let Some(spot) = Spot::open(root, &format!("logs/{name}"), makes)? else { return Ok(()) };
        if makes {
            // As with the reference itself; nothing is there usually.
            let _ = spot.remove_directories();
        }
        let is_new = makes && !spot.is_file();
        let Some(mut log) = spot.append(makes)? else { return Ok(()) };
        if let Some(like) = like_head(root).filter(|_| is_new) {
            let _ = log.set_permissions(like);
        }
        log.write_all(line.as_bytes())
    };
    if let Err(error) = appended() {
        tracing::warn!(%error, name, "cannot append to the reflog");
    }
}

fn log_of(common: &Path, name: &str) -> Option<Spot> {
    Spot::open(common, &format!("logs/{name}"), false).ok().flatten()
}

/// Returns who makes an entry in a log. As with git, that need not be known.
fn writer(cli: &Cli, common: &Path) -> String {
    let known = cli.read(common).args(["var", "GIT_COMMITTER_IDENT"]).line();
    known.unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("swarm <swarm@localhost> {} +0000", now.as_secs())
    })
}

/// Reports whether the references of a repository are files, and not behind links as a whole (`git-new-workdir`).
pub(crate) fn are_files(common: &Path) -> bool {
    let is_linked = fs::symlink_metadata(common.join("config")).is_ok_and(|meta| meta.is_symlink());
    // An agent may make a directory `reftable`, and cannot write HEAD.
    let has_none = || record::read_text(&common.join("HEAD")).is_ok_and(|head| head.trim_end() == NO_FILES);
    !is_linked && !has_none()
}

/// Returns the lock of packed references, which is not in the common directory if they are behind a link.
pub(crate) fn packed_lock(common: &Path) -> PathBuf {
    packed::lock_path(common).ok().flatten().unwrap_or_else(|| common.join("packed-refs.lock"))
}

fn like_head(common: &Path) -> Option<Permissions> {
    fs::metadata(common.join("HEAD")).ok().map(|meta| meta.permissions())
}

fn unexpected(update: &Update<'_>) -> Fault {
    if update.before == Before::Absent {
        return Fault::new(format!("reference {} already exists", update.name));
    }
    let cause = format!("{} has been changed by another process", update.name);
    Fault { transient: true, is_tool_failure: true, ..Fault::new(cause) }
}

fn held(lock: &Path) -> Fault {
    let cause = format!("{} has been locked by another git process for {} s", lock.display(), LOCK_WAIT.as_secs());
    Fault { is_tool_failure: true, passes: true, ..Fault::new(cause) }
}

fn in_the_way(name: &str, other: &str) -> Fault {
    Fault::new(format!("{name} cannot be a reference next to {other}")).remedy("rename or delete one of them")
}

fn at(file: &Path, error: impl Into<io::Error>) -> Fault {
    let error = error.into();
    if error.raw_os_error() != Some(Errno::LOOP.raw_os_error()) {
        return Fault::at(file)(error);
    }
    let cause = format!("{} is a symbolic link, or behind one, which git does not make there", file.display());
    Fault::new(cause).remedy("delete it".to_owned())
}

#[cfg(test)]
mod tests;
