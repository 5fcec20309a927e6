//! What ssh makes of a destination: machine, port, user, keys and jumps, by all of its configuration. To ask ssh takes as
//! long as the rest of a short command, so the answer is kept while the files that it was made from stay the same.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use swarm_sys::clock;
use swarm_sys::commands::deadline;
use swarm_sys::files::{Durability, replace_private};
use swarm_sys::procfs;

use crate::words::ssh;

/// Time for ssh to read its configuration.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const BYTES_MAX: usize = 1 << 20;
/// Time for which an answer is kept.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Configuration of the system. The user's one is below the home.
const SYSTEM: &str = "/etc/ssh/ssh_config";
const OWN: &str = ".ssh/config";
/// Begins the lines in which ssh names a file that it reads.
const READS: &str = "debug1: Reading configuration data ";
/// Ends the lines in which ssh names files that it would read.
const NO_FILES: &str = " matched no files";

/// Answer of ssh, and what it was made from.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    boot: String,
    /// Time since boot, in milliseconds.
    at_ms: u64,
    /// Files and directories that decide about the answer.
    places: BTreeSet<PathBuf>,
    /// State of each of them.
    states: Vec<State>,
    answer: String,
}

/// State of a file: time of the change, inode and size. `None` if there is none.
type State = Option<(i64, i64, u64, u64)>;

/// Returns what ssh makes of the destination; `None` if it fails. `dir` is a private directory in
/// which answers are kept.
pub(crate) fn resolved(destination: &str, dir: Option<&Path>) -> Option<String> {
    let leaf = format!("{}.resolved", hash(&format!("{destination} {:?} {:?}", variable("HOME"), variable("PATH"))));
    if let Some(answer) = dir.and_then(|dir| kept(&dir.join(&leaf))) {
        return Some(answer);
    }
    let mut asked = ssh(false);
    let said = deadline::run(asked.args(["-v", "-G", "--", destination]), None, ANSWER_MAX, BYTES_MAX).ok()?;
    let answer = String::from_utf8_lossy(&said.stdout).into_owned();
    if !said.success {
        return None;
    }
    if let Some(dir) = dir
        && let Some(places) = places(&String::from_utf8_lossy(&said.stderr), &answer)
    {
        let states = states(&places);
        let (boot, at_ms) = (procfs::boot_id(), clock::boot_ms());
        let kept = Kept { boot, at_ms, places, states, answer: answer.clone() };
        if let Ok(text) = serde_json::to_vec(&kept) {
            let _ = replace_private(dir, &leaf, &text, Durability::None);
        }
    }
    Some(answer)
}

/// Returns eight bytes of a hash in hex digits.
pub(crate) fn hash(text: &str) -> String {
    Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an answer that still holds.
fn kept(path: &Path) -> Option<String> {
    let kept: Kept = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let age = Duration::from_millis(clock::boot_ms().saturating_sub(kept.at_ms));
    let holds = age < AGE_MAX && kept.boot == procfs::boot_id() && states(&kept.places) == kept.states;
    holds.then_some(kept.answer)
}

fn states(places: &BTreeSet<PathBuf>) -> Vec<State> {
    let state = |meta: fs::Metadata| {
        let changed_ns = meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec());
        (meta.mtime(), changed_ns, meta.ino(), meta.size())
    };
    places.iter().map(|place| fs::metadata(place).ok().map(state)).collect()
}

/// Returns the files and directories that decide about an answer, by what ssh says about itself. `None` if something else
/// decides as well: a command, the network, or a variable.
fn places(said: &str, answer: &str) -> Option<BTreeSet<PathBuf>> {
    let is_canonical = |line: &str| {
        let value = line.strip_prefix("canonicalizehostname ");
        value.is_some_and(|value| !matches!(value.trim(), "false" | "no" | "none"))
    };
    if answer.lines().any(is_canonical) {
        return None;
    }
    let homes = variable("HOME").map(PathBuf::from).into_iter().chain(home_in(answer));
    let mut places: BTreeSet<PathBuf> = homes.map(|home| home.join(OWN)).chain([PathBuf::from(SYSTEM)]).collect();
    let given = places.clone();
    for line in said.lines() {
        if let Some(path) = line.strip_prefix(READS).map(Path::new) {
            if !path.is_absolute() || !is_constant(&fs::read_to_string(path).ok()?) {
                return None;
            }
            // Another file may appear beside one that is included.
            places.extend(path.parent().filter(|_| !given.contains(path)).map(Path::to_owned));
            places.insert(path.to_owned());
        } else if let Some(pattern) = line.strip_suffix(NO_FILES).and_then(|line| line.split(": include ").nth(1)) {
            places.insert(Path::new(pattern).parent()?.to_owned());
        }
    }
    Some(places)
}

/// Returns the user's home as ssh knows it, from an answer.
fn home_in(answer: &str) -> Option<PathBuf> {
    let files = answer.lines().find_map(|line| line.strip_prefix("userknownhostsfile "))?;
    let path = Path::new(files.split_whitespace().next()?);
    path.parent().filter(|dir| dir.ends_with(".ssh"))?.parent().map(Path::to_owned)
}

/// Reports whether the text of a file alone decides what it means.
fn is_constant(text: &str) -> bool {
    let is_fixed = |line: &str| {
        let line = line.trim_start().to_ascii_lowercase();
        let is_of = |word: &str| line.starts_with(word);
        // A directory that matches a pattern may appear anywhere.
        let has_loose_dir = || {
            line.split_whitespace()
                .any(|path| path.rsplit_once('/').is_some_and(|(dir, _)| dir.contains(['*', '?', '['])))
        };
        !(line.contains("${")
            || (is_of("match") && ["exec", "localnetwork", "version"].iter().any(|word| line.contains(word)))
            || (is_of("include") && has_loose_dir()))
    };
    text.lines().all(is_fixed)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_ssh_reads_and_could_read_decide() {
        let dir = tempfile::tempdir().expect("a directory");
        let (own, more) = (dir.path().join("c"), dir.path().join("d/x.conf"));
        fs::create_dir(dir.path().join("d")).expect("made");
        fs::write(&own, "Include d/*.conf\nHost box\n HostName x\n").expect("written");
        fs::write(&more, "Host y\n").expect("written");
        let said = format!(
            "OpenSSH_9.2p1\ndebug1: Reading configuration data {}\ndebug1: Reading configuration data {}\n\
             debug1: {} line 2: include /none/at/*.all matched no files\n",
            own.display(),
            more.display(),
            own.display()
        );
        let answer =
            "canonicalizehostname false\nuserknownhostsfile /home/me/.ssh/known_hosts /home/me/.ssh/known_hosts2\n";
        let found = places(&said, answer).expect("nothing else decides");
        for place in [&*own, &*more, more.parent().unwrap(), Path::new("/none/at"), Path::new("/home/me/.ssh/config")] {
            assert!(found.contains(place), "{}: {found:?}", place.display());
        }
        let before = states(&found);
        assert_eq!(before, states(&found));
        fs::write(dir.path().join("d/z.conf"), "").expect("written");
        assert_ne!(before, states(&found));
        assert_eq!(places(&said, "canonicalizehostname always\n"), None);
        fs::write(&more, "Match exec \"on-lan\"\n Port 7\n").expect("written");
        assert_eq!(places(&said, answer), None);
        assert_eq!(places("debug1: Reading configuration data c\n", answer), None);
    }

    #[test]
    fn what_else_decides_is_seen_in_the_text() {
        for text in ["Host a\n  Port 7\nMatch user x\n", "Include ~/.ssh/conf.d/*\n", ""] {
            assert!(is_constant(text), "{text}");
        }
        for text in [
            "  MATCH host a exec \"true\"\n",
            "match localnetwork 10.0.0.0/8\n",
            "Include ~/.ssh/*/config\n",
            "IdentityFile ${KEYS}/a\n",
        ] {
            assert!(!is_constant(text), "{text}");
        }
    }

    #[test]
    fn an_answer_holds_until_a_file_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config");
        fs::write(&file, "Host a\n").expect("written");
        let places = BTreeSet::from([file.clone()]);
        let keep = |boot: &str, at_ms| {
            let (boot, answer) = (boot.to_owned(), "port 7\n".to_owned());
            let kept = Kept { boot, at_ms, states: states(&places), places: places.clone(), answer };
            fs::write(dir.path().join("x"), serde_json::to_vec(&kept).expect("a text")).expect("written");
        };
        let found = || kept(&dir.path().join("x"));
        assert_eq!(found(), None);
        keep(&procfs::boot_id(), clock::boot_ms());
        assert_eq!(found().as_deref(), Some("port 7\n"));
        fs::write(&file, "Host a\n Port 8\n").expect("written");
        assert_eq!(found(), None);
        keep("another", clock::boot_ms());
        assert_eq!(found(), None);
        keep(&procfs::boot_id(), clock::boot_ms().saturating_sub(700_000));
        assert_eq!(found(), None);
    }
}
