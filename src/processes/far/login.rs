//! The environment of a login shell. That of a command that ssh executes is poor: often it has neither the user's PATH nor
//! a language, and a worker would have variables of the connection.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swarm_sys::clock;
use swarm_sys::commands::deadline::{self, Silence};
use swarm_sys::files::{Durability, list, make_dirs, replace_private};
use swarm_sys::procfs;
use swarm_sys::quoting::quoted;
use swarm_sys::variables::HOSTS;

use super::{ENVIRONMENT, at_home};

/// Begins the environment, after what the start files of the shell print.
const MARK: &str = "\u{1}swarm environment\u{1}";
/// Time for a login shell to start.
const LIMIT: Duration = Duration::from_secs(10);
const BYTES_MAX: usize = 4 << 20;
/// Shell that every system has.
const SHELL: &str = "/bin/sh";
/// File in the user's cache directory.
const CACHE: &str = "login.json";

/// Time for which an environment is kept. Start files read others, of which nobody here knows.
const AGE_MAX: Duration = Duration::from_secs(600);
/// Files and directories that login shells read. If one of them changes, the environment is read again.
const GLOBAL: [&str; 13] = [
    "/etc/environment",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/bash.bashrc",
    "/etc/zprofile",
    "/etc/zshenv",
    "/etc/zsh/zprofile",
    "/etc/zsh/zshenv",
    "/etc/zsh/zlogin",
    "/etc/csh.cshrc",
    "/etc/csh.login",
    "/etc/fish/config.fish",
    "/etc/fish/conf.d",
];
const OWN: [&str; 15] = [
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".bash_aliases",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".zlogin",
    ".login",
    ".cshrc",
    ".tcshrc",
    ".config/fish/config.fish",
    ".config/fish/conf.d",
    ".config/fish/fish_variables",
];

pub type Variables = BTreeMap<String, String>;

/// Environment of a login shell, and what it was made from.
#[derive(Serialize, Deserialize)]
struct Cached {
    /// Present environment, state of the files, and boot.
    from: String,
    /// Time since boot, in milliseconds.
    at_ms: u64,
    variables: Variables,
    /// Why this is not the environment of a login shell.
    problem: Option<String>,
}

/// Returns the environment of a login shell of this user, without the variables of the connection. If no login shell can be
/// started, returns the present environment and the reason.
pub fn environment() -> (Variables, Option<String>) {
    let present = without_connection(texts(std::env::vars_os()));
    let Some(home) = present.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from) else {
        return (present, Some("HOME is not set, so there is no environment of a login shell".to_owned()));
    };
    let dir = cache_of(&present, &home);
    let (from, now) = (made_from(&present, &home), clock::boot_ms());
    let cached = fs::read(dir.join(CACHE)).ok().and_then(|text| serde_json::from_slice::<Cached>(&text).ok());
    let is_new = |cached: &Cached| Duration::from_millis(now.saturating_sub(cached.at_ms)) < AGE_MAX;
    if let Some(cached) = cached.filter(|cached| cached.from == from && is_new(cached)) {
        return (cached.variables, cached.problem);
    }
    let shell = present.get("SHELL").filter(|shell| shell.starts_with('/')).cloned();
    let read = match of_shell(shell.as_deref().unwrap_or(SHELL), LIMIT) {
        // Another shell reads other files, but better those than none.
        Err(Silent::Odd(_)) if shell.is_some_and(|shell| shell != SHELL) => of_shell(SHELL, LIMIT),
        read => read,
    };
    let (variables, problem) = match read {
        Ok(variables) => (without_connection(variables), None),
        Err(Silent::Odd(cause) | Silent::Late(cause)) => (
            present,
            Some(format!("no environment of a login shell: {cause}; PATH and keys of your profile are missing")),
        ),
    };
    let cached = Cached { from, at_ms: now, variables, problem };
    let written = serde_json::to_vec(&cached).map_err(std::io::Error::other).and_then(|text| {
        make_dirs(&dir)?;
        replace_private(&dir, CACHE, &text, Durability::None)
    });
    if let Err(error) = written {
        tracing::debug!(dir = %dir.display(), %error, "cannot keep the environment of a login shell");
    }
    (cached.variables, cached.problem)
}

/// Returns swarm's directory in the user's cache; `None` if the home is unknown.
pub fn cache() -> Option<PathBuf> {
    let present = texts(std::env::vars_os());
    let home = present.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)?;
    Some(cache_of(&present, &home))
}

fn cache_of(present: &Variables, home: &Path) -> PathBuf {
    match present.get("XDG_CACHE_HOME") {
        Some(dir) if Path::new(dir).is_absolute() => Path::new(dir).join("swarm"),
        Some(_) | None => home.join(".cache/swarm"),
    }
}

/// Takes on the environment of a login shell, with this state directory. Must be called while this process has one thread.
///
/// # Errors
/// Fails if the home is unknown.
pub fn assume(state: Option<&str>) -> Result<(), String> {
    let state = state.map(at_home).transpose()?;
    let (mut variables, problem) = environment();
    if let Some(problem) = problem {
        swarm_sys::complain!("swarm: warning: {problem}");
    }
    if let Some(state) = state {
        variables.insert("SWARM_DIR".to_owned(), state.to_string_lossy().into_owned());
    }
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_str().is_none_or(|name| !variables.contains_key(name)))
    {
        // SAFETY: no other thread reads the environment.
        #[expect(unsafe_code, reason = "threads may not change the environment")]
        unsafe {
            std::env::remove_var(name);
        }
    }
    for (name, value) in variables {
        // SAFETY: no other thread reads the environment.
        #[expect(unsafe_code, reason = "threads may not change the environment")]
        unsafe {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

/// Prints the environment of this process: `swarm __env`.
pub fn print() -> u8 {
    let mut text = MARK.to_owned();
    text.extend(texts(std::env::vars_os()).iter().map(|(name, value)| format!("{name}={value}\0")));
    text.push_str(MARK);
    u8::from(std::io::stdout().write_all(text.as_bytes()).is_err())
}

/// Returns the variables that are texts. Others cannot be in a contract.
fn texts(variables: impl Iterator<Item = (OsString, OsString)>) -> Variables {
    variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// Why a shell has no environment.
enum Silent {
    Late(String),
    Odd(String),
}

/// Returns the environment that this shell has after a login.
fn of_shell(shell: &str, limit: Duration) -> Result<Variables, Silent> {
    let executable = std::env::current_exe().map_err(|error| Silent::Odd(error.to_string()))?;
    let script = format!("exec {} {ENVIRONMENT}", quoted(&executable.to_string_lossy()));
    let mut command = Command::new(shell);
    let name = Path::new(shell).file_name().unwrap_or_default().to_string_lossy();
    match name.as_ref() {
        // They take '-l' only alone, but this name means a login, too.
        "csh" | "tcsh" => command.arg0(format!("-{name}")).args(["-c", &script]),
        _ => command.args(["-l", "-c", &script]),
    };
    let said = deadline::run(&mut command, None, limit, BYTES_MAX).map_err(|silence| match silence {
        Silence::Timeout => Silent::Late(format!("{shell} did not end within {} s", limit.as_secs())),
        Silence::TooMuch => Silent::Odd(format!("{shell} printed too much")),
        Silence::Spawn(error) | Silence::System(error) => Silent::Odd(format!("{shell}: {error}")),
    })?;
    variables_in(&String::from_utf8_lossy(&said.stdout)).ok_or_else(|| Silent::Odd(format!("{shell} printed none")))
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
    // What is in a directory may be changed in place.
    let below = |path: PathBuf| {
        let entries = list(&path).unwrap_or_default().into_iter().map(|entry| entry.path());
        std::iter::once(path).chain(entries).collect::<Vec<_>>()
    };
    let states: Vec<_> = files
        .flat_map(below)
        .map(|file| fs::metadata(file).ok().map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.ino())))
        .collect();
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
    fn a_shell_that_waits_for_ever_is_given_up() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a directory");
        let shell = dir.path().join("shell");
        for waits in ["exec sleep 1000", "sleep 1000; true", "read answer; exec sleep 1000"] {
            fs::write(&shell, format!("#!/bin/sh\n{waits}\n")).expect("written");
            fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).expect("executable");
            match of_shell(&shell.to_string_lossy(), Duration::from_secs(1)) {
                Err(Silent::Late(cause)) => assert!(cause.ends_with("did not end within 1 s"), "{cause}"),
                Err(Silent::Odd(cause)) => panic!("{waits}: {cause}"),
                Ok(variables) => panic!("{waits}: {variables:?}"),
            }
        }
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
