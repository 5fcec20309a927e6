//! A queue on disk: `merge/ID/queue.json` in the state directory, where ID is a digest of
//! repository and base. The file is replaced durably as a whole. The supervisor reads it at
//! start, and commands read it if no supervisor is running.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use swarm_model::merge::queue::Queue;
use swarm_model::{Caller, QueueView, Target};
use swarm_ports::{Survey, Unread};

use swarm_sys::files;
use swarm_sys::files::reserve;
use swarm_sys::files::{make_dir, replace_durably};
use swarm_sys::paths::{Paths, digest};

pub(super) const FILE: &str = "queue.json";
/// Caller that added last.
pub(super) const CALLER: &str = "caller.json";
/// Directory of the callers of items, each in a file named after its key.
const CALLERS: &str = "callers";
/// Minimum age of a caller that is forgotten.
const CALLER_AGE_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Format version, raised if an older program could not read the format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    target: Target,
    pub(super) queue: Queue,
}

/// Returns the queue's directory.
pub(crate) fn place(paths: &Paths, target: &Target) -> PathBuf {
    paths.merges().join(id(target))
}

/// Returns the name of the queue's directory.
pub(super) fn id(target: &Target) -> String {
    digest(format!("{}\0{}", target.repository, target.branch).as_bytes(), 8)
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

/// Returns the time at which a queue was last written; `None` if it never was.
pub(super) fn last_written(place: &Path) -> Option<SystemTime> {
    fs::metadata(place.join(FILE)).and_then(|seen| seen.modified()).ok()
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
    Ok(read_named(&place(paths, target).join(FILE))?.map(|journal| journal.queue))
}

/// Reason why a journal cannot be read.
pub(super) enum Unreadable {
    /// The content is no journal of any version, so that reading it again does not help.
    Damaged(String),
    /// The system failed, or the journal belongs to a newer version.
    Other(io::Error),
}

pub(super) fn read(path: &Path) -> Result<Option<Journal>, Unreadable> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unreadable::Other(error)),
    };
    // A newer version may differ in everything else.
    if let Ok(Versioned { version }) = serde_json::from_slice(&text)
        && version > VERSION
    {
        let cause = format!("unsupported version {version} (this program supports {VERSION})");
        return Err(Unreadable::Other(io::Error::other(cause)));
    }
    let error = match serde_json::from_slice(&text) {
        Ok(journal) => return Ok(Some(journal)),
        Err(error) => error.to_string(),
    };
    // A whole journal with a word that this program does not know was written by another version.
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&text) {
        Ok(members) if ["version", "target", "queue"].iter().all(|name| members.contains_key(*name)) => {
            Err(Unreadable::Other(io::Error::other(error)))
        }
        _ => Err(Unreadable::Damaged(error)),
    }
}

pub(super) fn read_named(path: &Path) -> io::Result<Option<Journal>> {
    read(path).map_err(|unreadable| match unreadable {
        Unreadable::Damaged(cause) => io::Error::other(format!("{}: {cause}", path.display())),
        Unreadable::Other(error) if error.raw_os_error().is_some() => error,
        Unreadable::Other(error) => io::Error::other(format!("{}: {error}", path.display())),
    })
}

fn all(paths: &Paths) -> io::Result<Survey<Journal>> {
    let mut survey = Survey::default();
    for entry in files::list_if_present(&paths.merges())? {
        let path = entry.path().join(FILE);
        match read_named(&path) {
            Ok(journal) => survey.found.extend(journal),
            Err(error) => survey.miss(path.display(), error),
        }
    }
    survey.found.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(survey)
}

/// Deletes the temporary files of earlier supervisors. Called when a supervisor starts, which is the only writer.
pub(crate) fn remove_torn(paths: &Paths) {
    for place in files::list(&paths.merges()).into_iter().flatten() {
        for dir in [place.path(), place.path().join(CALLERS)] {
            let files = files::list(&dir).into_iter().flatten();
            for file in files.filter(|file| file.file_name().to_string_lossy().contains(".tmp.")) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// Returns the targets of all queues.
pub(crate) fn targets(paths: &Paths) -> io::Result<Survey<Target>> {
    Ok(all(paths)?.map(|journal| journal.target))
}

/// Returns all queues as they were last journaled.
///
/// # Errors
/// Fails if the directory cannot be read.
pub fn views(paths: &Paths) -> io::Result<Vec<QueueView>> {
    let Survey { found, unread } = all(paths)?;
    for Unread { place, cause } in unread {
        tracing::error!(place, cause, "cannot read a merge queue");
    }
    let view = |journal: Journal| QueueView { target: journal.target, queue: journal.queue, stuck: None };
    Ok(found.into_iter().map(view).collect())
}

/// Stores the caller that adds to this queue, as whom git and the commands run. Returns its key. Only the owner can
/// read the files, as with a worker's contract.
pub(crate) fn remember(paths: &Paths, target: &Target, caller: &Caller) -> io::Result<String> {
    let place = ensure(paths, target)?;
    let plain = plain(target, caller);
    let text = serde_json::to_vec(&plain)?;
    let key = digest(&serde_json::to_vec(&without_terminal(plain))?, 16);
    let callers = place.join(CALLERS);
    match make_dir(&callers) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for (dir, file) in [(&callers, key.as_str()), (&place, CALLER)] {
        match fs::read(dir.join(file)) {
            // A new time keeps it from being forgotten before its item is in the queue.
            Ok(known) if known == text => {
                fs::File::options().write(true).open(dir.join(file))?.set_modified(SystemTime::now())?;
            }
            _ => replace_durably(dir, file, &text)?,
        }
    }
    Ok(key)
}

/// Returns a caller without what differs from one command in a shell to the next, so that items that are added one by
/// one can still be verified together.
fn plain(target: &Target, caller: &Caller) -> Caller {
    let mut environment = caller.environment.to_vec();
    environment.retain(|(key, _)| !["_", "SHLVL", "PWD", "OLDPWD"].contains(&key.as_str()));
    environment.sort();
    let is_relative = |entry: &str| !entry.starts_with('/');
    let needs_cwd = environment.iter().any(|(key, value)| key == "PATH" && value.split(':').any(is_relative));
    let cwd = if needs_cwd { caller.cwd.clone() } else { target.repository.clone() };
    Caller { request: String::new(), repeated: 0, cwd, environment: environment.into(), ..caller.clone() }
}

/// Returns the caller without what only says in which terminal or login session it works. Callers that differ in nothing
/// else are one caller, whose latest terminal and session count.
fn without_terminal(caller: Caller) -> Caller {
    const NAMES: [&str; 6] = ["COLORTERM", "GPG_TTY", "STY", "WINDOW", "WINDOWID", "SSH_AUTH_SOCK"];
    const BEGINNINGS: [&str; 5] = ["TMUX", "TERM", "SSH_", "XDG_SESSION_", "SESSION_MANAGER"];
    let is_terminal = |name: &str| NAMES.contains(&name) || BEGINNINGS.iter().any(|start| name.starts_with(start));
    let mut environment = caller.environment.to_vec();
    environment.retain(|(name, _)| !is_terminal(name));
    Caller { environment: environment.into(), ..caller }
}

/// Returns the caller with this key, or the one that added last if there is none.
pub(crate) fn caller(paths: &Paths, target: &Target, key: Option<&str>) -> io::Result<Caller> {
    let place = place(paths, target);
    let own = key
        .filter(|key| key.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        .map(|key| fs::read(place.join(CALLERS).join(key)));
    let text = match own {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Some(Ok(text)) => text,
        _ => fs::read(place.join(CALLER))?,
    };
    Ok(serde_json::from_slice(&text)?)
}

/// Deletes the callers that no item needs any more. A caller may be stored a moment before its item is.
pub(crate) fn forget_callers(paths: &Paths, target: &Target, queue: &Queue) -> io::Result<()> {
    let needed = |name: &str| queue.items.iter().any(|item| !item.is_past() && item.caller.as_deref() == Some(name));
    for file in files::list_if_present(&place(paths, target).join(CALLERS))? {
        let is_old = file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > CALLER_AGE_MIN);
        if is_old && !needed(&file.file_name().to_string_lossy()) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_read_as_it_was_written_and_a_newer_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let target = Target { repository: "/r/.git".into(), branch: "refs/heads/main".into() };
        assert!(load(&paths, &target).unwrap().is_none() && targets(&paths).unwrap() == Survey::default());
        let queue = Queue { paused: true, next: 7, ..Queue::default() };
        save(&paths, &target, &queue).unwrap();
        assert_eq!(load(&paths, &target).unwrap(), Some(queue));
        assert_eq!(targets(&paths).unwrap(), Survey { found: vec![target.clone()], unread: Vec::new() });
        // A directory can be opened, but not read, whoever asks.
        let unread = paths.merges().join("unread").join(FILE);
        fs::create_dir_all(&unread).unwrap();
        let survey = targets(&paths).unwrap();
        let places: Vec<String> = survey.unread.into_iter().map(|one| one.place).collect();
        assert_eq!((survey.found, places), (vec![target.clone()], vec![unread.to_string_lossy().into_owned()]));
        let file = place(&paths, &target).join(FILE);
        let newer = fs::read_to_string(&file).unwrap().replace("\"version\":1", "\"version\":2");
        fs::write(&file, newer).unwrap();
        let error = load(&paths, &target).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }
    #[test]
    fn each_caller_is_kept_as_long_as_an_item_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let target = Target { repository: "/r/.git".into(), branch: "refs/heads/main".into() };
        let with = |pairs: &[(&str, &str)]| {
            let environment: Vec<_> =
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Caller { cwd: "/somewhere".into(), environment: environment.into(), ..Caller::default() }
        };
        let remember = |pairs: &[(&str, &str)]| remember(&paths, &target, &with(pairs)).unwrap();
        let one = remember(&[("PATH", "/bin"), ("FOO", "one"), ("SHLVL", "1"), ("_", "/bin/swarm")]);
        let same = remember(&[("FOO", "one"), ("PATH", "/bin"), ("SHLVL", "2"), ("OLDPWD", "/")]);
        let two = remember(&[("PATH", "bin"), ("FOO", "two")]);
        assert!(one == same && one != two);
        let there = [("TMUX_PANE", "%2"), ("TERM", "xterm"), ("SSH_AUTH_SOCK", "/b"), ("XDG_SESSION_ID", "2")];
        let elsewhere = remember(&[&[("PATH", "/bin"), ("FOO", "one")], there.as_slice()].concat());
        assert_eq!(one, elsewhere, "another terminal is not another caller");
        remember(&[("PATH", "bin"), ("FOO", "two")]);
        let read = |key: Option<&str>| caller(&paths, &target, key).unwrap();
        assert!(read(Some(&one)).environment.contains(&("FOO".into(), "one".into())));
        // A signer may need it.
        assert!(read(Some(&one)).environment.contains(&("SSH_AUTH_SOCK".into(), "/b".into())), "the latest counts");
        assert_eq!((read(Some(&two)).cwd.as_str(), read(Some(&one)).cwd.as_str()), ("/somewhere", "/r/.git"));
        assert_eq!(read(None), read(Some(&two)), "the last one, for items of an older version");
        assert_eq!(read(Some("unknown")), read(None));
        let addition = swarm_model::merge::queue::Addition { caller: Some(one.clone()), ..Default::default() };
        let mut queue = Queue { items: vec![addition.into_item(0, &Default::default(), 0)], ..Queue::default() };
        let kept = || [&one, &two].map(|key| place(&paths, &target).join(CALLERS).join(key).exists());
        forget_callers(&paths, &target, &queue).unwrap();
        assert_eq!(kept(), [true, true], "they are young");
        let unfinished = place(&paths, &target).join(CALLERS).join(format!("{one}.tmp.1"));
        fs::write(&unfinished, "").unwrap();
        remove_torn(&paths);
        assert!(!unfinished.exists() && kept() == [true, true]);
        for key in [&one, &two] {
            let file = fs::File::options().write(true).open(place(&paths, &target).join(CALLERS).join(key)).unwrap();
            file.set_modified(SystemTime::now() - 2 * CALLER_AGE_MIN).unwrap();
        }
        forget_callers(&paths, &target, &queue).unwrap();
        assert_eq!(kept(), [true, false]);
        queue.items[0].state = swarm_model::merge::queue::State::Noop;
        forget_callers(&paths, &target, &queue).unwrap();
        assert_eq!(kept(), [false, false]);
    }
}
