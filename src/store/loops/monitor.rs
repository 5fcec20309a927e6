//! Finds the monitor process of the original `swarm` that runs a loop. The recorded pid alone proves nothing: it may
//! have been recycled, or belong to a loop in another state directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Returns the pid of the process that runs the loop of this name; `noted` is the pid in the loop's file.
///
/// # Errors
/// Fails if the processes cannot be listed, which does not mean that nobody runs the loop.
pub fn find(paths: &Paths, name: &str, noted: Option<i64>) -> io::Result<Option<i32>> {
    let noted = noted.and_then(|pid| i32::try_from(pid).ok());
    let is_monitor = |pid: &i32| {
        procfs::stat(*pid).is_some_and(|stat| stat.is_alive())
            && is_monitor_command(&arguments(*pid), name, noted == Some(*pid))
            && state_dir(*pid).is_none_or(|dir| dir == paths.root())
    };
    Ok(procfs::all()?.into_iter().find(is_monitor))
}

/// Reports whether a command line is `PYTHON SCRIPT ralph run NAME` or `… ralph spawn …`. The process with the noted
/// pid may also be another program than a Python script.
fn is_monitor_command(words: &[String], name: &str, is_noted: bool) -> bool {
    let Some(at) = words.iter().position(|word| word == "ralph") else { return false };
    let is_script = at >= 2 && words[0].rsplit('/').next().is_some_and(|program| program.starts_with("py"));
    let verb = words.get(at + 1).map(String::as_str);
    let is_named = |word: &String| word == name || word.strip_prefix("--name=") == Some(name);
    (is_noted || is_script) && matches!(verb, Some("run" | "spawn")) && words[at + 2..].iter().any(is_named)
}

fn arguments(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.collect()
}

/// Returns the state directory that a process uses; `None` if it cannot be determined.
fn state_dir(pid: i32) -> Option<PathBuf> {
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
    fn a_monitor_is_known_by_its_command_line() {
        let is_monitor = |line: &str, is_noted| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            is_monitor_command(&words, "dev", is_noted)
        };
        for line in
            ["python3 /opt/swarm.py ralph run dev", "/usr/bin/python3.12 /bin/swarm ralph spawn --name=dev -- x"]
        {
            assert!(is_monitor(line, false) && is_monitor(line, true), "{line}");
        }
        // Commands of this program, which only follow a loop.
        for line in ["swarm ralph run dev", "/x/frozen-swarm ralph run dev"] {
            assert!(!is_monitor(line, false) && is_monitor(line, true), "{line}");
        }
        for line in
            ["python3 /opt/swarm.py ralph run other", "python3 swarm.py ralph status dev", "sleep 600", "ralph", ""]
        {
            assert!(!is_monitor(line, false) && !is_monitor(line, true), "{line}");
        }
    }
}
