//! Lookup of a command, before anything is created for it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use swarm_model::{Contract, Refusal, RefusalKind};

/// Search path of `execvp` if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Number of bytes of a file that are read to find its interpreter.
const HEAD_BYTES: u64 = 256;

/// Working directory of a worker when its command is looked up.
pub enum Place<'a> {
    /// Directory that exists.
    Directory(&'a Path),
    /// Worktree that does not exist yet, so that relative paths cannot be checked.
    LaterWorktree,
}

/// Checks that `command` can be executed, with the lookup rules of the worker: `path` is its `PATH`, and `place` its
/// working directory.
///
/// # Errors
/// Fails if the command is not found (`command not found: X`) or is not an executable file.
pub fn check(command: &str, path: Option<&str>, place: &Place) -> Result<(), Refusal> {
    if command.contains('/') {
        return match (Path::new(command).is_absolute(), place) {
            (true, _) => verdict(command, Found::at(Path::new(command))),
            (false, Place::Directory(cwd)) => verdict(command, Found::at(&cwd.join(command))),
            (false, Place::LaterWorktree) => Ok(()),
        };
    }
    if command.is_empty() {
        return Err(Refusal::new(RefusalKind::Invalid, "the name of the command is empty"));
    }
    let mut best = Found::Nothing;
    for entry in path.unwrap_or(DEFAULT_PATH).split(':') {
        // An empty entry means the current directory.
        let directory = match (Path::new(entry).is_absolute(), place) {
            (true, _) => PathBuf::from(entry),
            (false, Place::Directory(cwd)) => cwd.join(entry),
            (false, Place::LaterWorktree) => return Ok(()),
        };
        match Found::at(&directory.join(command)) {
            Found::Executable => return Ok(()),
            Found::Other => best = Found::Other,
            Found::Nothing => {}
        }
    }
    verdict(command, best)
}

/// Checks that the command of a contract can be executed. `dir` is the working directory; `None` if it does not exist
/// yet.
///
/// # Errors
/// Fails as [`check`] does, and if the directory does not exist.
pub fn check_start(contract: &Contract, dir: Option<&Path>) -> Result<(), Refusal> {
    if let Some(dir) = dir
        && let Err(error) = fs::metadata(dir).and_then(|meta| match meta.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        })
    {
        return Err(Refusal::new(RefusalKind::Invalid, format!("cannot enter {}: {error}", dir.display())));
    }
    let path = path_in(contract);
    let command = contract.argv.first().map_or("", String::as_str);
    check(command, path, &dir.map_or(Place::LaterWorktree, Place::Directory))
}

/// Reports whether a command is a program, and not a wrapper script for one. Agents are binaries, or scripts of a
/// JavaScript runtime.
pub fn is_program(command: &str, contract: &Contract) -> bool {
    let Some(file) = file_of(command, contract).and_then(|path| fs::File::open(path).ok()) else { return false };
    let mut head = Vec::new();
    if file.take(HEAD_BYTES).read_to_end(&mut head).is_err() {
        return false;
    }
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    !line.starts_with("#!") || ["node", "bun", "deno"].iter().any(|runtime| line.contains(runtime))
}

/// Returns the file that a command of a contract executes. `None` if there is none, or if it is relative.
pub fn file_of(command: &str, contract: &Contract) -> Option<PathBuf> {
    let named = Some(PathBuf::from(command)).filter(|path| path.is_absolute() && is_executable(path));
    named.or_else(|| search(command, Some(path_in(contract).unwrap_or(DEFAULT_PATH))))
}

/// Returns the program of this name in the absolute directories of `path`. `None` if there is none, or if the name
/// contains a slash.
pub fn search(command: &str, path: Option<&str>) -> Option<PathBuf> {
    let places =
        path.unwrap_or(DEFAULT_PATH).split(':').filter(|entry| entry.starts_with('/') && !command.contains('/'));
    places.map(|entry| Path::new(entry).join(command)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    matches!(Found::at(path), Found::Executable)
}

/// Returns the `PATH` in which the command of a worker is searched.
fn path_in(contract: &Contract) -> Option<&str> {
    let own = path_of(&contract.env, &contract.private);
    own.or_else(|| path_of(&contract.env, &contract.environment))
}

/// Returns the `PATH` of a worker. `env`, which is from `--env`, overrides the inherited variables.
pub fn path_of<'a>(env: &'a BTreeMap<String, String>, inherited: &'a [(String, String)]) -> Option<&'a str> {
    let inherited = || inherited.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value);
    env.get("PATH").or_else(inherited).map(String::as_str)
}

enum Found {
    Executable,
    /// A directory, or a file without permission to execute it.
    Other,
    Nothing,
}

impl Found {
    fn at(path: &Path) -> Self {
        match fs::metadata(path) {
            Err(_) => Self::Nothing,
            Ok(meta) if meta.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok() => {
                Self::Executable
            }
            Ok(_) => Self::Other,
        }
    }
}

fn verdict(command: &str, found: Found) -> Result<(), Refusal> {
    match found {
        Found::Executable => Ok(()),
        Found::Other => {
            Err(Refusal::new(RefusalKind::Invalid, format!("command is not an executable file: {command}")))
        }
        Found::Nothing => {
            let refusal = Refusal::new(RefusalKind::Invalid, format!("command not found: {command}"));
            let shell = command.contains(char::is_whitespace);
            let hint = "to run a command line in a shell, use: -- sh -c '…'";
            Err(if shell { refusal.remedy(hint) } else { refusal })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("bin/folder")).expect("made");
        for (name, mode) in [("bin/tool", 0o755), ("bin/data", 0o644)] {
            fs::write(dir.path().join(name), "").expect("written");
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).expect("set");
        }
        dir
    }

    fn cause(result: Result<(), Refusal>) -> String {
        result.expect_err("was found").cause
    }

    #[test]
    fn commands_are_looked_up_with_the_rules_of_the_worker() {
        let dir = tree();
        let here = Place::Directory(dir.path());
        let bin = dir.path().join("bin");
        let bin = bin.to_str().expect("text");
        assert!(check("tool", Some(bin), &here).is_ok());
        assert!(check("tool", Some("/nowhere:bin"), &here).is_ok());
        assert!(check("./bin/tool", None, &here).is_ok());
        assert!(check("tool", Some(":/nowhere"), &Place::Directory(Path::new(bin))).is_ok());
        assert!(check("sh", None, &here).is_ok());
        assert_eq!(cause(check("toool", Some(bin), &here)), "command not found: toool");
        assert_eq!(cause(check("/nowhere/tool", None, &here)), "command not found: /nowhere/tool");
        assert_eq!(cause(check("data", Some(bin), &here)), "command is not an executable file: data");
        assert_eq!(cause(check("./bin/folder", None, &here)), "command is not an executable file: ./bin/folder");
        assert!(check("", None, &here).is_err());
        let line = check("cargo test", Some(bin), &here).expect_err("no such program");
        assert!(line.remedy.expect("a hint").contains("sh -c"));
    }

    #[test]
    fn a_wrapper_script_is_distinguished_from_the_program() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().to_str().expect("text").to_owned();
        let contract = Contract { env: BTreeMap::from([("PATH".to_owned(), path.clone())]), ..Contract::default() };
        for (name, text, is) in [
            ("shell", "#!/bin/sh\nexec node x", false),
            ("python", "#!/usr/bin/env python3\n", false),
            ("script", "#!/usr/bin/env -S node --x\n", true),
            ("binary", "\u{7f}ELF", true),
        ] {
            let file = dir.path().join(name);
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("set");
            assert_eq!(is_program(name, &contract), is, "{name}");
            assert_eq!(is_program(&format!("{path}/{name}"), &contract), is, "{name}");
        }
        assert!(!is_program("nowhere", &contract) && !is_program("./binary", &contract));
    }

    #[test]
    fn relative_paths_in_a_later_worktree_are_not_checked() {
        assert!(check("./run", None, &Place::LaterWorktree).is_ok());
        assert!(check("run", Some("/nowhere:bin"), &Place::LaterWorktree).is_ok());
        assert_eq!(cause(check("run", Some("/nowhere"), &Place::LaterWorktree)), "command not found: run");
    }

    #[test]
    fn a_given_path_overrides_the_inherited_one() {
        let inherited = [("PATH".to_owned(), "/a".to_owned())];
        assert_eq!(path_of(&BTreeMap::new(), &inherited), Some("/a"));
        assert_eq!(path_of(&[("PATH".to_owned(), "/b".to_owned())].into(), &inherited), Some("/b"));
        assert_eq!(path_of(&BTreeMap::new(), &[]), None);
    }
}
