//! A queue on disk: `merge/ID/queue.json` in the state directory, where ID is a digest of
//! repository and base. The file is replaced durably as a whole. The supervisor reads it at
//! start, and commands read it if no supervisor is running.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use swarm_model::merge::queue::Queue;
use swarm_model::{Caller, QueueView, Target};

use swarm_sys::files;
use swarm_sys::files::reserve;
use swarm_sys::files::{make_dir, replace_durably};
use swarm_sys::paths::{Paths, digest};

const FILE: &str = "queue.json";
const CALLER: &str = "caller.json";
/// Format version, raised if an older program could not read the format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Journal {
    version: u32,
    target: Target,
    queue: Queue,
}

/// Returns the queue's directory.
pub(crate) fn place(paths: &Paths, target: &Target) -> PathBuf {
    paths.merges().join(digest(format!("{}\0{}", target.repository, target.branch).as_bytes(), 8))
}

fn ensure(paths: &Paths, target: &Target) -> io::Result<PathBuf> {
    let place = place(paths, target);
    for dir in [paths.merges(), place.clone()] {
        match make_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(place)
}

pub(crate) fn save(paths: &Paths, target: &Target, queue: &Queue) -> io::Result<()> {
    let journal = Journal { version: VERSION, target: target.clone(), queue: queue.clone() };
    let (place, text) = (ensure(paths, target)?, serde_json::to_vec(&journal)?);
    let write = || replace_durably(&place, FILE, &text);
    let written = match write() {
        Err(error) if reserve::is_full(&error) && reserve::give_up(&place) => write(),
        written => written,
    };
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", place.join(FILE).display()));
    written.map_err(named)?;
    // Reserve space for the next write, which may be larger; the old file exists until then.
    let _ = reserve::keep(&place, 2 * text.len() as u64);
    Ok(())
}

pub(crate) fn load(paths: &Paths, target: &Target) -> io::Result<Option<Queue>> {
    Ok(read(&place(paths, target).join(FILE))?.map(|journal| journal.queue))
}

fn read(path: &std::path::Path) -> io::Result<Option<Journal>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let named = |cause: String| io::Error::other(format!("{}: {cause}", path.display()));
    let journal: Journal = serde_json::from_slice(&text).map_err(|error| named(error.to_string()))?;
    if journal.version > VERSION {
        return Err(named(format!("unsupported version {} (this program supports {VERSION})", journal.version)));
    }
    Ok(Some(journal))
}

fn all(paths: &Paths) -> io::Result<Vec<Journal>> {
    let entries = files::list_if_present(&paths.merges())?;
    let mut journals = Vec::new();
    for entry in entries {
        match read(&entry.path().join(FILE)) {
            Ok(journal) => journals.extend(journal),
            Err(error) => tracing::error!(%error, "cannot read a merge queue"),
        }
    }
    journals.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(journals)
}

/// Returns the targets of all queues. Called when a supervisor starts, so the temporary files of
/// an earlier one are stale and are deleted.
pub(crate) fn targets(paths: &Paths) -> io::Result<Vec<Target>> {
    for place in fs::read_dir(paths.merges()).into_iter().flatten().flatten() {
        for file in fs::read_dir(place.path()).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().contains(".tmp.") {
                let _ = fs::remove_file(file.path());
            }
        }
    }
    Ok(all(paths)?.into_iter().map(|journal| journal.target).collect())
}

/// Returns all queues as they were last journaled.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn views(paths: &Paths) -> io::Result<Vec<QueueView>> {
    Ok(all(paths)?
        .into_iter()
        .map(|journal| QueueView { target: journal.target, queue: journal.queue, stuck: None })
        .collect())
}

/// Records the caller that last added to this queue, as whom git runs. Only the owner can read
/// the file, as with a worker's contract.
pub(crate) fn remember(paths: &Paths, target: &Target, caller: &Caller) -> io::Result<()> {
    let place = ensure(paths, target)?;
    let caller = Caller { request: String::new(), repeated: 0, ..caller.clone() };
    let text = serde_json::to_vec(&caller)?;
    match fs::read(place.join(CALLER)) {
        Ok(known) if known == text => Ok(()),
        _ => replace_durably(&place, CALLER, &text),
    }
}

pub(crate) fn caller(paths: &Paths, target: &Target) -> io::Result<Caller> {
    Ok(serde_json::from_slice(&fs::read(place(paths, target).join(CALLER))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_read_as_it_was_written_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let target = Target { repository: "/r/.git".into(), branch: "refs/heads/main".into() };
        assert!(load(&paths, &target).unwrap().is_none() && targets(&paths).unwrap().is_empty());
        let queue = Queue { paused: true, next: 7, ..Queue::default() };
        save(&paths, &target, &queue).unwrap();
        assert_eq!(load(&paths, &target).unwrap(), Some(queue));
        assert_eq!(targets(&paths).unwrap(), vec![target.clone()]);
        let file = place(&paths, &target).join(FILE);
        let newer = fs::read_to_string(&file).unwrap().replace("\"version\":1", "\"version\":2");
        fs::write(&file, newer).unwrap();
        let error = load(&paths, &target).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
