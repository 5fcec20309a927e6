//! Whether the program that began a loop still looks after it. A pid alone tells nothing:
//! it may be another process by now, or that of a loop elsewhere.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// The process that looks after the loop of this name; `noted` is the pid in its file.
pub fn keeper(paths: &Paths, name: &str, noted: Option<i64>) -> Option<i32> {
    let noted = noted.and_then(|pid| i32::try_from(pid).ok());
    let is_keeper = |pid: &i32| {
        procfs::stat(*pid).is_some_and(|stat| stat.is_alive())
            && says(&words(*pid), name, noted == Some(*pid))
            && root(*pid).is_none_or(|root| root == paths.root())
    };
    procfs::all().unwrap_or_default().into_iter().find(is_keeper)
}

/// Whether this command line is `PYTHON SCRIPT ralph run NAME`, or the same as `spawn`. The
/// process of the noted pid may have been started in another way.
fn says(words: &[String], name: &str, is_noted: bool) -> bool {
    let Some(at) = words.iter().position(|word| word == "ralph") else { return false };
    let is_script = at >= 2 && words[0].rsplit('/').next().is_some_and(|program| program.starts_with("py"));
    let verb = words.get(at + 1).map(String::as_str);
    let is_named = |word: &String| word == name || word.strip_prefix("--name=") == Some(name);
    (is_noted || is_script) && matches!(verb, Some("run" | "spawn")) && words[at + 2..].iter().any(is_named)
}

fn words(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.collect()
}

/// The state directory of a process; `None` where that cannot be told.
fn root(pid: i32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok().filter(|text| !text.is_empty())?;
    let value = |key: &[u8]| {
        let mut pairs = environment.split(|byte| *byte == 0);
        let value = pairs.find_map(|pair| pair.strip_prefix(key)?.strip_prefix(b"=")).filter(|value| !value.is_empty());
        value.map(|value| Path::new(OsStr::from_bytes(value)).to_owned())
    };
    let root = value(b"SWARM_DIR").or_else(|| Some(value(b"HOME")?.join(".swarm")))?;
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let root = cwd.join(root);
    Some(root.canonicalize().unwrap_or(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_known_by_its_words() {
        let says = |line: &str, is_noted| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            says(&words, "dev", is_noted)
        };
        for line in
            ["python3 /opt/swarm.py ralph run dev", "/usr/bin/python3.12 /bin/swarm ralph spawn --name=dev -- x"]
        {
            assert!(says(line, false) && says(line, true), "{line}");
        }
        // Our own, which only look on.
        for line in ["swarm ralph run dev", "/x/frozen-swarm ralph run dev"] {
            assert!(!says(line, false) && says(line, true), "{line}");
        }
        for line in
            ["python3 /opt/swarm.py ralph run other", "python3 swarm.py ralph status dev", "sleep 600", "ralph", ""]
        {
            assert!(!says(line, false) && !says(line, true), "{line}");
        }
    }
}
