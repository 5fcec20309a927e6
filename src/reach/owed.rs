//! Calls that a host is owed. Each is a file, which is written before the first try, and removed after the answer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_store::runs::far::{FarAttempt, FarCall};
use swarm_sys::files::{is_absent, list_if_present, make_dirs, remove_if_present, replace_durably};
use swarm_sys::paths::{Paths, digest};

const DIGEST: usize = 16;

/// Content of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owed {
    pub host: String,
    pub call: FarCall,
    /// Work that comes back before the call is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brings: Option<Brings>,
    /// Whether the attempt was ended there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopped: bool,
}

/// Work of an attempt that was given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Brings {
    /// Common directory of the repository here.
    pub common: PathBuf,
    pub base: String,
    /// Commit with which the attempt began. `None` if it is unknown.
    pub begun: Option<String>,
    /// Reference here that keeps the work.
    pub reference: String,
    /// Directory of the attempt here, where the references are recorded. `None` in files of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

/// File in the directory of an attempt with the references to what has come back of it.
const RETURNED: &str = "returned.json";

/// Content of that file.
#[derive(Serialize, Deserialize)]
struct Returned {
    /// Run of the attempt. An earlier run may have left a file of this name.
    run: String,
    references: Vec<String>,
}

/// Records which references keep what an attempt has left; none if it has left nothing.
///
/// # Errors
/// Returns any I/O error.
pub fn record_returned(dir: &Path, run: &str, references: Vec<String>) -> io::Result<()> {
    make_dirs(dir)?;
    replace_durably(dir, RETURNED, &serde_json::to_vec(&Returned { run: run.to_owned(), references })?)
}

/// Returns the references that keep what an attempt has left. `None` if nobody has recorded any: it is not back.
pub fn returned(dir: &Path, run: &str) -> Option<Vec<String>> {
    let known = fs::read(dir.join(RETURNED)).ok().and_then(|text| serde_json::from_slice::<Returned>(&text).ok());
    known.filter(|known| known.run == run).map(|known| known.references)
}

impl Owed {
    pub fn new(host: &str, call: FarCall) -> Self {
        Self { host: host.to_owned(), call, brings: None, is_stopped: false }
    }

    /// Records that an attempt that was given up is back, if that is not recorded with what it has left.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn record_back(&self) -> io::Result<()> {
        match (self.at(), self.brings.as_ref().and_then(|brings| brings.dir.as_ref())) {
            (Some(at), Some(dir)) if returned(dir, &at.run).is_none() => record_returned(dir, &at.run, Vec::new()),
            _ => Ok(()),
        }
    }

    /// Reports whether the state directory with this id is another one than that to which the attempt was sent.
    pub fn is_of_another(&self, id: Option<&str>) -> bool {
        matches!((self.at().and_then(|at| at.host.as_deref()), id), (Some(known), Some(id)) if known != id)
    }

    /// Returns the attempt that is to be ended before anything else.
    pub fn to_stop(&self) -> Option<&FarAttempt> {
        let is_stop = matches!(self.call, FarCall::Stop(_)) || (self.brings.is_some() && !self.is_stopped);
        self.at().filter(|_| is_stop)
    }

    /// Returns the attempt that the call is about. `None` if it is about another thing.
    pub fn at(&self) -> Option<&FarAttempt> {
        match &self.call {
            FarCall::Forget(at) | FarCall::Stop(at) | FarCall::End { at, .. } | FarCall::Withhold { at, .. } => {
                Some(at)
            }
            FarCall::Clone { .. } | FarCall::Hail {} | FarCall::Start(_) => None,
        }
    }
}

fn dir(paths: &Paths, host: &str) -> PathBuf {
    // The name of a host may contain anything.
    paths.owed().join(digest(host.as_bytes(), DIGEST))
}

/// Returns the file of a call.
pub fn file(paths: &Paths, host: &str, key: &str) -> PathBuf {
    dir(paths, host).join(name(key))
}

fn name(key: &str) -> String {
    format!("{}.json", digest(key.as_bytes(), DIGEST))
}

/// Records a call durably. A call with the same `key` is replaced.
///
/// # Errors
/// Returns any I/O error.
pub fn record(paths: &Paths, key: &str, owed: &Owed) -> io::Result<()> {
    let dir = dir(paths, &owed.host);
    make_dirs(&dir)?;
    replace_durably(&dir, &name(key), &serde_json::to_vec(owed)?)
}

/// Records that an attempt was ended there. If that is all that is owed, nothing is any more.
pub fn stopped(file: &Path, owed: &Owed) {
    if owed.brings.is_none() {
        return settle(file);
    }
    let recorded = || {
        let dir = file.parent().filter(|_| !is_absent(file))?;
        let text = serde_json::to_vec(&Owed { is_stopped: true, ..owed.clone() }).ok()?;
        replace_durably(dir, file.file_name()?.to_str()?, &text).ok()
    };
    // If this fails, the host is asked again, which changes nothing.
    let _ = recorded();
}

/// Withdraws the stops of a run that were not delivered.
///
/// # Errors
/// Returns any I/O error.
pub fn withdraw_stops(paths: &Paths, run: &str) -> io::Result<()> {
    for host in list_if_present(&paths.owed())? {
        for (file, owed) in read_all(&host.path()) {
            if matches!(&owed.call, FarCall::Stop(at) if at.run == run) {
                remove_if_present(&file)?;
            }
        }
    }
    Ok(())
}

/// Returns the calls for a host, each with its file; first stops, then those with work that comes back. Files that cannot
/// be read are left alone.
pub fn of_host(paths: &Paths, host: &str) -> Vec<(PathBuf, Owed)> {
    let mut all = read_all(&dir(paths, host));
    all.retain(|(_, owed)| owed.host == host);
    let rank = |owed: &Owed| match owed.call {
        FarCall::Stop(_) => 0,
        _ if owed.brings.is_some() => 1,
        _ => 2,
    };
    all.sort_by(|(one, left), (other, right)| (rank(left), one).cmp(&(rank(right), other)));
    all
}

fn read_all(dir: &Path) -> Vec<(PathBuf, Owed)> {
    let files = list_if_present(dir).unwrap_or_default().into_iter().map(|file| file.path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "json"));
    files
        .filter_map(|file| Some((serde_json::from_slice(&fs::read(&file).ok()?).ok()?, file)))
        .map(|(owed, file)| (file, owed))
        .collect()
}

/// Removes the file of a call that was answered.
pub fn settle(file: &Path) {
    if let Err(error) = remove_if_present(file) {
        tracing::warn!(file = %file.display(), %error, "cannot remove a call that a host has answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_store::runs::far::FarClone;

    fn forget(host: &str, job: &str) -> Owed {
        let clone = FarClone { controller: "c0".into(), repository: "d0".into() };
        let (run, job, worker) = ("r".into(), job.into(), "w".into());
        let at = FarAttempt { clone, run, job, attempt: 1, worker, host: None };
        Owed::new(host, FarCall::Forget(at))
    }

    #[test]
    fn calls_are_kept_for_their_host_until_they_are_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert!(of_host(&paths, "me@box").is_empty());
        for (host, job) in [("me@box", "a"), ("me@box", "b"), ("me@box", "a"), ("../box", "c")] {
            record(&paths, &format!("r/{job}"), &forget(host, job)).expect("recorded");
        }
        let owed = |host: &str| of_host(&paths, host).into_iter().map(|(_, owed)| owed).collect::<Vec<_>>();
        let mut of_box = owed("me@box");
        of_box.sort_by_key(|owed| format!("{owed:?}"));
        assert_eq!(of_box, [forget("me@box", "a"), forget("me@box", "b")]);
        assert_eq!(owed("../box"), [forget("../box", "c")]);
        for (file, _) in of_host(&paths, "me@box") {
            assert!(file.starts_with(paths.owed()));
            fs::write(file.with_file_name("torn.json"), "{").expect("written");
            settle(&file);
        }
        assert!(owed("me@box").is_empty());
    }

    #[test]
    fn work_comes_back_before_anything_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let reference = "refs/swarm/from/box/j.1".to_owned();
        let brings = Brings { common: "/r/.git".into(), base: "main".to_owned(), begun: None, reference, dir: None };
        for number in 0..8 {
            let brings = Some(brings.clone()).filter(|_| number % 3 == 0);
            let owed = Owed { brings, ..forget("box", "j") };
            record(&paths, &number.to_string(), &owed).expect("recorded");
        }
        let has_work: Vec<bool> = of_host(&paths, "box").iter().map(|(_, owed)| owed.brings.is_some()).collect();
        assert_eq!(has_work, [true, true, true, false, false, false, false, false]);
    }
}
