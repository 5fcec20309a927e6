//! The environment of a login shell. That of a command that ssh executes is poor: often it has neither the user's PATH nor
//! a language, and a worker would have variables of the connection.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swarm_sys::commands::deadline;
use swarm_sys::files::{Durability, make_dirs, replace_private};
use swarm_sys::procfs;
use swarm_sys::quoting::quoted;
use swarm_sys::variables::HOSTS;

use super::ENVIRONMENT;

/// Begins the environment, after what the start files of the shell print.
const MARK: &str = "\u{1}swarm environment\u{1}";
/// Time for a login shell to start.
const LIMIT: Duration = Duration::from_secs(10);
const BYTES_MAX: usize = 4 << 20;
/// File in the user's cache directory.
const CACHE: &str = "login.json";

/// Files that login shells read. If one of them changes, the environment is read again.
const GLOBAL: [&str; 6] = [
    "/etc/environment",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/zsh/zprofile",
    "/etc/zsh/zshenv",
    "/etc/fish/config.fish",
];
const OWN: [&str; 10] = [
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".login",
    ".cshrc",
    ".config/fish/config.fish",
];

type Variables = BTreeMap<String, String>;

/// Environment of a login shell, and what it was made from.
#[derive(Serialize, Deserialize)]
struct Cached {
    /// Present environment, state of the files, and boot.
    from: String,
    variables: Variables,
}

/// Returns the environment of a login shell of this user, without the variables of the connection. The present
/// environment counts if no login shell can be started.
pub fn environment() -> Variables {
    let present = without_connection(std::env::vars().collect());
    let Some(home) = present.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from) else { return present };
    let dir = match present.get("XDG_CACHE_HOME") {
        Some(dir) if Path::new(dir).is_absolute() => Path::new(dir).join("swarm"),
        Some(_) | None => home.join(".cache/swarm"),
    };
    let from = made_from(&present, &home);
    let cached = fs::read(dir.join(CACHE)).ok().and_then(|text| serde_json::from_slice::<Cached>(&text).ok());
    if let Some(cached) = cached.filter(|cached| cached.from == from) {
        return cached.variables;
    }
    let shell = present.get("SHELL").cloned().unwrap_or_default();
    let Some(variables) = [shell.as_str(), "/bin/sh"].into_iter().find_map(of_shell) else { return present };
    let cached = Cached { from, variables: without_connection(variables) };
    let written = serde_json::to_vec(&cached).map_err(std::io::Error::other).and_then(|text| {
        make_dirs(&dir)?;
        replace_private(&dir, CACHE, &text, Durability::None)
    });
    if let Err(error) = written {
        tracing::debug!(dir = %dir.display(), %error, "cannot keep the environment of a login shell");
    }
    cached.variables
}

/// Prints the environment of this process: `swarm __env`.
pub fn print() -> u8 {
    let mut text = MARK.to_owned();
    text.extend(std::env::vars().map(|(name, value)| format!("{name}={value}\0")));
    text.push_str(MARK);
    u8::from(std::io::stdout().write_all(text.as_bytes()).is_err())
}

/// Returns the environment that this shell has after a login.
fn of_shell(shell: &str) -> Option<Variables> {
    let executable = std::env::current_exe().ok()?;
    let script = format!("exec {} {ENVIRONMENT}", quoted(executable.to_str()?));
    let mut command = Command::new(Some(shell).filter(|shell| shell.starts_with('/'))?);
    let said = deadline::run(command.args(["-l", "-c", &script]), None, LIMIT, BYTES_MAX).ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    variables_in(&text)
}

fn variables_in(text: &str) -> Option<Variables> {
    let (_, text) = text.split_once(MARK)?;
    let (text, _) = text.split_once(MARK)?;
    Some(text.split_terminator('\0').filter_map(|line| line.split_once('=')).map(own).collect())
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn without_connection(mut variables: Variables) -> Variables {
    variables.retain(|name, _| !name.starts_with("SSH_") && ![HOSTS, "_", "SHLVL", "OLDPWD"].contains(&&**name));
    variables
}

fn made_from(present: &Variables, home: &Path) -> String {
    let files = GLOBAL.iter().map(PathBuf::from).chain(OWN.iter().map(|leaf| home.join(leaf)));
    let states: Vec<_> =
        files.map(|file| fs::metadata(file).ok().map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.ino()))).collect();
    format!("{present:?} {states:?} {}", procfs::boot_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_between_the_marks() {
        let text = format!("Welcome\n{MARK}PATH=/bin:/usr/bin\0TEXT=a=b\nc\0{MARK}bye\n");
        let variables = variables_in(&text).expect("both marks");
        assert_eq!(variables["TEXT"], "a=b\nc");
        assert_eq!(variables.len(), 2);
        assert!(variables_in("Welcome\n").is_none() && variables_in(&format!("{MARK}PATH=/bin\0")).is_none());
    }

    #[test]
    fn variables_of_the_connection_are_left_out() {
        let all = [("SSH_CLIENT", "1"), ("SWARM_HOST", "box"), ("PATH", "/bin")].map(own);
        assert_eq!(without_connection(all.into()).into_keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn a_changed_start_file_is_noticed() {
        let home = tempfile::tempdir().expect("a directory");
        let before = made_from(&Variables::new(), home.path());
        assert_eq!(before, made_from(&Variables::new(), home.path()));
        fs::write(home.path().join(".profile"), "export A=1").expect("written");
        assert_ne!(before, made_from(&Variables::new(), home.path()));
    }
}
