//! Which allocation holds a state directory. Locks may mean nothing on a network file system, so the holder is whoever has
//! made the file `claim` with link(2), which is atomic there, too. A claim of an allocation that has ended is taken away with
//! rename(2), so that only one of those who wait gets it.
//!
//! | step | write | if everything is killed right after it |
//! |---|---|---|
//! | 1 | `claim.RANDOM`, synced | a file that nobody reads |
//! | 2 | `claim`, by a link | the directory is held; the job has ended then, which Slurm says |
//! | 3 | `claim.RANDOM` is removed | nothing depends on it |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_sys::clock::random_token;
use swarm_sys::files::remove_if_present;

/// File of the holder.
const CLAIM: &str = "claim";
/// Maximum number of times that the claim may change while it is taken.
const TRIES_MAX: usize = 10;

/// Allocation that holds the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Random digits of the submission, which are in the name of the job. Numbers of jobs are used again.
    pub token: String,
    pub job: u64,
    pub node: String,
}

/// Whether the holder of a claim works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of its processes have ended.
    Over,
    /// It holds the directory, for this reason.
    Holds(String),
}

/// Result of taking a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Held,
    /// Another job holds the directory, for this reason.
    Left(String),
}

/// Returns the claim on the directory.
///
/// # Errors
/// Fails if it cannot be read.
pub fn read(dir: &Path) -> io::Result<Option<Claim>> {
    Ok(bytes(&dir.join(CLAIM))?.as_deref().map(parse))
}

fn bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a claim. A damaged one is that of a job which nobody knows.
fn parse(text: &[u8]) -> Claim {
    serde_json::from_slice(text).unwrap_or_default()
}

/// Takes the directory for a job, unless another one holds it. `judge` says whether the holder works. A second execution of
/// the same job finds its own claim, and leaves: the first one may still work on another node.
///
/// # Errors
/// Fails if the claim cannot be read or written.
pub fn take(dir: &Path, mine: &Claim, judge: impl Fn(&Claim) -> Verdict) -> io::Result<Taken> {
    let claim = dir.join(CLAIM);
    for _ in 0..TRIES_MAX {
        if publish(dir, mine)? {
            return Ok(Taken::Held);
        }
        let Some(found) = bytes(&claim)? else { continue };
        let holder = parse(&found);
        if holder.token == mine.token {
            return Ok(Taken::Left(format!("job {} was executed before", mine.job)));
        }
        match judge(&holder) {
            Verdict::Over => take_away(dir, &found)?,
            Verdict::Holds(why) => return Ok(Taken::Left(why)),
        }
    }
    Err(io::Error::other(format!("{} keeps changing", claim.display())))
}

fn temporary(dir: &Path) -> PathBuf {
    dir.join(format!("{CLAIM}.{}", random_token()))
}

/// Makes the claim; returns false if there is one.
fn publish(dir: &Path, mine: &Claim) -> io::Result<bool> {
    let temporary = temporary(dir);
    let published = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(mine)?)?;
        file.sync_all()?;
        let linked = fs::hard_link(&temporary, dir.join(CLAIM));
        // On a network file system a link that was made may be reported as an error, if the answer was lost.
        match (file.metadata()?.nlink(), linked) {
            (2.., _) => Ok(true),
            (_, Err(error)) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            (_, linked) => linked.map(|()| false),
        }
    };
    let published = published();
    let _ = fs::remove_file(&temporary);
    if matches!(published, Ok(true)) {
        File::open(dir)?.sync_all()?;
    }
    published
}

/// Removes the claim, unless it is no longer what was judged.
fn take_away(dir: &Path, judged: &[u8]) -> io::Result<()> {
    let (claim, aside) = (dir.join(CLAIM), temporary(dir));
    match fs::rename(&claim, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        moved => moved?,
    }
    if bytes(&aside)?.as_deref() != Some(judged) {
        // Another job was faster. Its claim goes back.
        match fs::hard_link(&aside, &claim) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    remove_if_present(&aside)
}

/// Gives the directory back, if this allocation holds it.
///
/// # Errors
/// Fails if the claim cannot be read or removed.
pub fn release(dir: &Path, mine: &Claim) -> io::Result<()> {
    match bytes(&dir.join(CLAIM))? {
        Some(found) if parse(&found) == *mine => take_away(dir, &found),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(token: &str, job: u64) -> Claim {
        Claim { token: token.to_owned(), job, node: "n1".to_owned() }
    }

    fn holds(_: &Claim) -> Verdict {
        Verdict::Holds("it works".to_owned())
    }

    #[test]
    fn of_several_jobs_that_start_at_once_one_holds_the_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let start = std::sync::Barrier::new(8);
        let taken: Vec<Taken> = std::thread::scope(|scope| {
            let take = |job: u64| {
                start.wait();
                take(dir.path(), &of(&format!("t{job}"), job), holds).expect("taken")
            };
            let asked: Vec<_> = (0..8).map(|job| scope.spawn(move || take(job))).collect();
            asked.into_iter().map(|asked| asked.join().expect("ended")).collect()
        });
        assert_eq!(taken.iter().filter(|taken| **taken == Taken::Held).count(), 1, "{taken:?}");
        assert_eq!(swarm_sys::files::list(dir.path()).expect("listed").len(), 1, "something is left");
    }

    #[test]
    fn a_second_execution_of_a_job_leaves_whatever_has_become_of_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(take(dir.path(), &of("a", 1), holds).expect("taken"), Taken::Held);
        let again = Claim { node: "n2".to_owned(), ..of("a", 1) };
        let left = Taken::Left("job 1 was executed before".to_owned());
        assert_eq!(take(dir.path(), &again, |_| Verdict::Over).expect("taken"), left);
        release(dir.path(), &again).expect("released");
        assert_eq!(read(dir.path()).expect("read"), Some(of("a", 1)), "only its holder gives it back");
    }

    #[test]
    fn a_claim_of_an_allocation_that_has_ended_is_taken_over() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(take(dir.path(), &of("a", 1), holds).expect("taken"), Taken::Held);
        let works = Taken::Left("it works".to_owned());
        assert_eq!(take(dir.path(), &of("b", 2), holds).expect("taken"), works);
        let judge = |claim: &Claim| if claim.job == 1 { Verdict::Over } else { holds(claim) };
        assert_eq!(take(dir.path(), &of("b", 2), judge).expect("taken"), Taken::Held);
        assert_eq!(take(dir.path(), &of("c", 3), judge).expect("taken"), works);
        release(dir.path(), &of("b", 2)).expect("released");
        assert_eq!(read(dir.path()).expect("read"), None);
        fs::write(dir.path().join(CLAIM), "").expect("damaged");
        let is_unknown = |claim: &Claim| if claim.token.is_empty() { Verdict::Over } else { holds(claim) };
        assert_eq!(take(dir.path(), &of("d", 4), is_unknown).expect("taken"), Taken::Held);
    }

    #[test]
    fn a_claim_that_changed_after_it_was_judged_goes_back() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(take(dir.path(), &of("a", 1), holds).expect("taken"), Taken::Held);
        take_away(dir.path(), b"an older one").expect("judged");
        assert_eq!(read(dir.path()).expect("read"), Some(of("a", 1)));
        assert_eq!(swarm_sys::files::list(dir.path()).expect("listed").len(), 1, "something is left");
    }
}
