//! Calls that a host could not be told because it was out of reach. Each is a file, which is removed after the answer.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use swarm_store::runs::far::FarCall;
use swarm_sys::files::{list_if_present, make_dirs, remove_if_present, replace_durably};
use swarm_sys::paths::{Paths, digest};

const DIGEST: usize = 16;

/// Content of a file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Owed {
    host: String,
    call: FarCall,
}

fn dir(paths: &Paths, host: &str) -> PathBuf {
    // The name of a host may contain anything.
    paths.owed().join(digest(host.as_bytes(), DIGEST))
}

/// Records a call durably. A call with the same `key` is replaced.
///
/// # Errors
/// Returns any I/O error.
pub fn record(paths: &Paths, host: &str, key: &str, call: FarCall) -> io::Result<()> {
    let dir = dir(paths, host);
    make_dirs(&dir)?;
    let owed = Owed { host: host.to_owned(), call };
    replace_durably(&dir, &format!("{}.json", digest(key.as_bytes(), DIGEST)), &serde_json::to_vec(&owed)?)
}

/// Returns the calls for a host, each with its file. Files that cannot be read are left alone.
pub fn of_host(paths: &Paths, host: &str) -> Vec<(PathBuf, FarCall)> {
    let files = list_if_present(&dir(paths, host)).unwrap_or_default().into_iter().map(|file| file.path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    let read = |file: PathBuf| {
        let owed: Owed = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
        (owed.host == host).then_some((file, owed.call))
    };
    files.into_iter().filter_map(read).collect()
}

/// Removes the file of a call that was answered.
pub fn settle(file: &std::path::Path) {
    if let Err(error) = remove_if_present(file) {
        tracing::warn!(file = %file.display(), %error, "cannot remove a call that a host has answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_store::runs::far::{FarAttempt, FarClone};

    fn forget(job: &str) -> FarCall {
        let clone = FarClone { controller: "c0".into(), repository: "d0".into() };
        FarCall::Forget(FarAttempt {
            clone,
            run: "r".into(),
            job: job.into(),
            attempt: 1,
            worker: "w".into(),
            host: None,
        })
    }

    #[test]
    fn calls_are_kept_for_their_host_until_they_are_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert!(of_host(&paths, "me@box").is_empty());
        for (host, job) in [("me@box", "a"), ("me@box", "b"), ("me@box", "a"), ("../box", "c")] {
            record(&paths, host, &format!("r/{job}"), forget(job)).expect("recorded");
        }
        let calls = |host: &str| of_host(&paths, host).into_iter().map(|(_, call)| call).collect::<Vec<_>>();
        let mut of_box = calls("me@box");
        of_box.sort_by_key(|call| format!("{call:?}"));
        assert_eq!(of_box, [forget("a"), forget("b")]);
        assert_eq!(calls("../box"), [forget("c")]);
        for (file, _) in of_host(&paths, "me@box") {
            assert!(file.starts_with(paths.owed()));
            fs::write(file.with_file_name("torn.json"), "{").expect("written");
            settle(&file);
        }
        assert!(calls("me@box").is_empty());
    }
}
