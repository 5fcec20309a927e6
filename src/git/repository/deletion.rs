//! Deletes references; every deletion of a branch goes through here. `packed-refs` is locked for that, and a kill of this
//! process, or of the git that it started, leaves the lock, which blocks everyone. A mark in the common directory proves whose
//! lock it is:
//!
//! | step | write | if everything is killed right after it |
//! |---|---|---|
//! | 1 | `swarm-deleting-WRITER-N`: this process, and the reference | the next deletion or queue removes the mark |
//! | 2 | the reference and `packed-refs` are locked | the same, and the locks |
//! | 3 | the reference and its locks are deleted | the same as after step 1 |
//! | 4 | the mark is removed | |
//!
//! The locks are removed only if the process of the mark is dead, they are this user's and not older than the mark,
//! nobody has them open, and no git of this user works in the repository. A mark is synced before git starts, so that a
//! power cut leaves it beside the locks: a process of an earlier boot of this machine is dead. A mark that does not say
//! whose it is, or whose process may live on another machine or in another container, is removed after a day, and its
//! locks stay.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use git2::{Oid, Reference, Repository};
use serde::{Deserialize, Serialize};
use swarm_model::{Machine, ProcessId};
use swarm_ports::Saved;
use swarm_sys::{files, machine, procfs};

use super::cli::{Cli, CliError};
use super::fault::Fault;
use super::{holders, plain_ref, writer};
use crate::trash::reflog;
use crate::trash::save::DURABLE;
use crate::worktrees::{admin, branches, record};

const PREFIX: &str = "swarm-deleting-";
/// Age after which a mark proves nothing: no deletion takes that long.
const AGE_MAX: Duration = Duration::from_secs(86_400);

#[derive(Serialize, Deserialize)]
struct Content {
    process: ProcessId,
    /// Namespace of that process's pid.
    namespace: String,
    /// Hashed id of that process's machine. Empty if unknown, as in marks of older versions.
    #[serde(default)]
    machine: String,
    reference: String,
}

/// Proof that locks in the repository belong to a deletion of this process. Dropping it removes the proof.
struct Mark {
    path: PathBuf,
}

impl Mark {
    /// Removes what an earlier deletion left, and marks the deletion of `reference`.
    fn new(common: &Path, reference: &str) -> io::Result<Self> {
        clear_abandoned(common);
        let boot = procfs::known_boot_id()?;
        let own = i32::try_from(std::process::id()).ok().and_then(|pid| procfs::identity(pid, &boot));
        let process = own.ok_or_else(|| io::Error::other("cannot read the state of this process"))?;
        let (machine, reference) = (machine::this().id.clone(), reference.to_owned());
        let content = Content { process, namespace: namespace()?, machine, reference };
        let path = common.join(format!("{PREFIX}{}", writer::own_next()));
        // Whatever is there, a link for example, is not written into.
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let mark = Self { path };
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_data()?;
        fs::File::open(common)?.sync_all()?;
        Ok(mark)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// Deletes a reference durably, only if it has the value `expected` if one is given. What only the reflog of a branch has
/// is saved first, and the save is returned.
pub(crate) fn delete(
    cli: &Cli,
    common: &Path,
    reference: &str,
    expected: Option<&str>,
) -> Result<Option<Saved>, Fault> {
    record::check_reference(common, reference)?;
    let is_branch = reference.starts_with("refs/heads/");
    let saved = if is_branch { reflog::save(cli, common, reference, expected)? } else { None };
    let mark = Mark::new(common, reference).map_err(Fault::at(common))?;
    if plain_ref::delete(common, reference, expected)? {
        drop(mark);
        branches::forget(common, reference);
        return Ok(saved);
    }
    let call = cli.write(common).args(DURABLE).args(["update-ref", "-d", reference]);
    let done = expected.into_iter().fold(call, |call, value| call.arg(value)).run();
    if done.as_ref().is_err_and(CliError::was_cut_off) {
        // That git is dead, although this process is not.
        clear(common, &mark.path, reference);
    }
    drop(mark);
    if done.is_ok() {
        branches::forget(common, reference);
    }
    Ok(done.map(|_| saved)?)
}

/// Deletes a branch that `onto` contains with libgit2, only if it still has the value that was read. Fails if a link
/// leads elsewhere, which libgit2 would follow, or if its reflog may have other commits: [`delete`] saves them first.
pub(crate) fn delete_landed(
    repo: &Repository,
    full: &str,
    mut branch: Reference<'_>,
    onto: Oid,
) -> Result<(), git2::Error> {
    record::check_reference(repo.commondir(), full).map_err(|fault| git2::Error::from_str(&fault.cause))?;
    if reflog::has_more(repo, full, branch.peel_to_commit()?.id(), onto)? {
        return Err(git2::Error::from_str("its reflog may have commits that must be saved first"));
    }
    let _mark = Mark::new(repo.commondir(), full).map_err(|error| git2::Error::from_str(&error.to_string()))?;
    let id = branch.target().map(|id| id.to_string());
    let deleted = plain_ref::delete(repo.commondir(), full, id.as_deref());
    if !deleted.map_err(|fault| git2::Error::from_str(&fault.cause))? {
        branch.delete()?;
    }
    branches::forget(repo.commondir(), full);
    Ok(())
}

/// Removes the locks of deletions whose processes are dead. Locks that may belong to somebody stay, with the mark.
pub(crate) fn clear_abandoned(common: &Path) {
    clear_abandoned_on(machine::this(), common);
}

fn clear_abandoned_on(here: &Machine, common: &Path) {
    for file in files::list_if_present(common).unwrap_or_default() {
        if !file.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = file.path();
        let is_done = match abandoned(here, &path) {
            Some(reference) => clear(common, &path, &reference),
            None => is_expired(&path),
        };
        if is_done {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the reference of a mark whose process is proven dead. Processes of another machine or of another namespace of
/// this boot may be alive.
fn abandoned(here: &Machine, mark: &Path) -> Option<String> {
    let content: Content = serde_json::from_slice(&record::read(mark).ok()?).ok()?;
    let boot = procfs::known_boot_id().ok()?;
    let is_dead = if content.process.boot == boot {
        namespace().ok()? == content.namespace && procfs::alive(&content.process, &boot).ok()?.is_none()
    } else {
        !content.machine.is_empty() && content.machine == here.id
    };
    is_dead.then_some(content.reference)
}

/// Reports whether a mark is too old to prove anything, unless its process lives.
fn is_expired(mark: &Path) -> bool {
    let lives = || {
        let content: Content = serde_json::from_slice(&record::read(mark).ok()?).ok()?;
        let boot = procfs::known_boot_id().ok()?;
        let is_here = content.process.boot == boot && namespace().ok()? == content.namespace;
        Some(is_here && procfs::alive(&content.process, &boot).ok()?.is_some())
    };
    let made = fs::symlink_metadata(mark).and_then(|meta| meta.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > AGE_MAX)) && lives() != Some(true)
}

/// Removes the locks that belong to a mark. Returns whether none is left.
fn clear(common: &Path, mark: &Path, reference: &str) -> bool {
    let packed = plain_ref::packed_lock(common);
    let locks = [packed.clone(), common.join(format!("{reference}.lock"))];
    if !locks.iter().any(|lock| lock.exists()) {
        return true;
    }
    let Ok(since) = fs::metadata(mark).and_then(|meta| meta.modified()) else { return false };
    let Ok(mut dirs) = admin::dirs(common) else { return false };
    // Another repository may use the same file.
    let elsewhere = packed.parent().filter(|dir| *dir != common);
    let of_it = elsewhere.map(|dir| admin::dirs(dir).unwrap_or_default());
    dirs.extend(elsewhere.map(Path::to_owned).into_iter().chain(of_it.into_iter().flatten()));
    let is_old = |lock: &&PathBuf| fs::metadata(lock).and_then(|meta| meta.modified()).is_ok_and(|at| at < since);
    let Some(left) = holders::clear_locks_of_killed(&dirs, &locks, Some(since)) else { return false };
    // An older lock belongs to somebody else, and so says nothing about this mark.
    left.iter().all(|lock| is_old(&lock))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::fixture::Fixture;

    const REFERENCE: &str = "refs/heads/topic";

    /// Writes the mark of a process that has ended, and locks as git leaves them. Returns these three files.
    fn left_behind(common: &Path) -> [PathBuf; 3] {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let boot = procfs::known_boot_id().unwrap();
        let process = procfs::identity(i32::try_from(child.id()).unwrap(), &boot).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (namespace, machine) = (namespace().unwrap(), machine::this().id.clone());
        write_mark(common, &Content { process, namespace, machine, reference: REFERENCE.to_owned() })
    }

    /// Writes a mark, and locks as git leaves them.
    fn write_mark(common: &Path, content: &Content) -> [PathBuf; 3] {
        let mark = common.join(format!("{PREFIX}1-0"));
        fs::write(&mark, serde_json::to_vec(&content).unwrap()).unwrap();
        let locks = [common.join("packed-refs.lock"), common.join(format!("{REFERENCE}.lock"))];
        locks.iter().for_each(|lock| fs::write(lock, "").unwrap());
        let [packed, own] = locks;
        [mark, packed, own]
    }

    #[test]
    fn locks_of_a_dead_deletion_are_removed_before_the_next_one() {
        let fix = Fixture::new();
        for name in ["topic", "other"] {
            fix.git(&["branch", name]);
        }
        fix.git(&["pack-refs", "--all"]);
        let common = fix.repo.join(".git");
        let files = left_behind(&common);
        assert!(!fix.attempt(&fix.repo, &["branch", "-D", "other"]).0, "the locks block everyone");
        delete(&fix.cli(), &common, REFERENCE, None).unwrap();
        assert!(!files.iter().any(|file| file.exists()) && !fix.has(REFERENCE));
        fix.git(&["branch", "-D", "other"]);
        let names = files::list_if_present(&common).unwrap();
        assert!(!names.iter().any(|file| file.file_name().to_string_lossy().starts_with(PREFIX)), "no mark stays");
    }

    #[test]
    fn locks_that_may_belong_to_somebody_stay() {
        let fix = Fixture::new();
        let common = fix.repo.join(".git");
        let all = |files: &[PathBuf; 3]| files.iter().all(|file| file.exists());
        // A git works in the repository.
        let files = left_behind(&common);
        let mut git = Command::new("git");
        git.args(["cat-file", "--batch"]).current_dir(&fix.repo).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut git = git.spawn().unwrap();
        clear_abandoned(&common);
        git.kill().unwrap();
        git.wait().unwrap();
        assert!(all(&files));
        // The process of the mark is alive.
        let mine = Mark::new(&common, "refs/heads/mine");
        assert!(mine.is_ok() && !files.iter().any(|file| file.exists()), "nobody works there any more");
        let lock = common.join("packed-refs.lock");
        fs::write(&lock, "").unwrap();
        clear_abandoned(&common);
        assert!(lock.exists());
        drop(mine);
        clear_abandoned(&common);
        assert!(lock.exists(), "no mark says whose it is");
        // The lock is older than the mark.
        let [mark, packed, own] = left_behind(&common);
        let earlier = SystemTime::now() - Duration::from_secs(60);
        fs::File::options().write(true).open(&packed).unwrap().set_modified(earlier).unwrap();
        clear_abandoned(&common);
        assert!(packed.exists() && !own.exists() && !mark.exists());
    }
    fn age(file: &Path, age: Duration) {
        let then = SystemTime::now() - age;
        fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
    }

    fn of_another_boot(machine: &str) -> Content {
        let process = ProcessId { pid: 1, start_ticks: 1, boot: "another boot".to_owned() };
        Content {
            process,
            namespace: namespace().unwrap(),
            machine: machine.to_owned(),
            reference: REFERENCE.to_owned(),
        }
    }

    #[test]
    fn a_mark_of_an_earlier_boot_of_this_machine_is_removed_with_its_locks() {
        let fix = Fixture::new();
        let common = fix.repo.join(".git");
        let here = Machine { id: "this machine".to_owned(), ..machine::this().clone() };
        for (machine, is_cleared) in [("this machine", true), ("another machine", false), ("", false)] {
            let files = write_mark(&common, &of_another_boot(machine));
            clear_abandoned_on(&here, &common);
            assert!(files.iter().all(|file| file.exists() != is_cleared), "{machine:?}");
        }
    }

    #[test]
    fn a_mark_that_proves_nothing_is_removed_after_a_day_without_its_locks() {
        let fix = Fixture::new();
        let common = fix.repo.join(".git");
        for (text, machine) in [(None, "another machine"), (None, ""), (Some(""), ""), (Some("{\"process\""), "")] {
            let files = write_mark(&common, &of_another_boot(machine));
            let [mark, packed, own] = &files;
            if let Some(text) = text {
                fs::write(mark, text).unwrap();
            }
            clear_abandoned(&common);
            assert!(files.iter().all(|file| file.exists()), "{text:?} {machine:?}");
            age(mark, AGE_MAX + Duration::from_secs(60));
            clear_abandoned(&common);
            assert!(!mark.exists() && packed.exists() && own.exists(), "{text:?} {machine:?}");
        }
        // The process of an old mark lives.
        let mark = Mark::new(&common, REFERENCE).unwrap();
        age(&mark.path, AGE_MAX * 2);
        clear_abandoned(&common);
        assert!(mark.path.exists());
    }
}
