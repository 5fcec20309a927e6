//! Section `[notify]` of the user's configuration, `~/.config/swarm/config.toml`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use swarm_config::sections::{Group, Notify};
pub use swarm_config::user_path as path;

/// Reads the section; a missing file or section has default values.
///
/// # Errors
/// Fails with a message that names file, line and problem, but does not contain configured values.
pub fn read(path: &Path) -> Result<Notify, String> {
    Ok(swarm_config::of_user(path)?.notify.filled())
}

/// The last valid configuration.
#[derive(Debug, Default)]
pub(super) struct Known {
    last: Mutex<(Notify, Option<String>)>,
}

impl Known {
    /// Reports whether the configuration file exists.
    pub(super) fn is_there(&self) -> bool {
        path().is_some_and(|path| path.symlink_metadata().is_ok())
    }

    /// Reads the present configuration, so that an edit takes effect at once. If the file is invalid, returns the last
    /// valid configuration and logs the error once.
    pub(super) fn now(&self) -> Notify {
        let read = path().map_or_else(|| Ok(Notify::default()), |path| read(&path));
        self.learn(read)
    }

    fn learn(&self, read: Result<Notify, String>) -> Notify {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(notify) => *last = (notify, None),
            Err(cause) if last.1.as_ref() == Some(&cause) => {}
            Err(cause) => {
                tracing::error!(cause, "cannot read [notify]; using the last valid configuration");
                last.1 = Some(cause);
            }
        }
        last.0.clone()
    }
}

/// Reports whether a command line is that of a runner that executes the command for notifications of this user's file.
pub fn executes(words: &[OsString], user_file: Option<PathBuf>) -> bool {
    let is_runner = words.get(1).is_some_and(|verb| verb == "__runner");
    let Some(command) = words.get(6).filter(|_| is_runner) else { return false };
    let own = user_file.and_then(|path| read(&path).ok()).and_then(|notify| notify.command);
    own.is_some_and(|own| command == own.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn parsed(text: &str) -> Result<Notify, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, text).expect("written");
        read(&path).map_err(|cause| cause.replace(dir.path().to_str().expect("text"), ""))
    }

    #[test]
    fn errors_name_their_line_and_blank_values_count_as_unset() {
        let notify = parsed("[notify]\ncommand = \"a\"\nevents = [\"failed\"]\n").expect("read");
        assert_eq!((notify.command.as_deref(), notify.desktop), (Some("a"), false));
        assert!(notify.wants(Group::Failed) && !notify.wants(Group::Landed));
        assert!(parsed("").expect("read").is_empty());
        assert!(parsed("[notify]\ncommand = \" \"\n").expect("read").is_empty());
        assert!(parsed("[notify]\nevents = [\"all\"]\n").expect_err("wrong").starts_with("/config.toml, line 2: "));
        assert!(parsed("[notify]\ncomand = \"x\"\n").expect_err("wrong").contains("line 2: unknown key"));
        assert_eq!(read(Path::new("/nonexistent/config.toml")), Ok(Notify::default()));
    }

    #[test]
    fn only_the_runner_of_the_users_own_command_executes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config.toml");
        fs::write(&file, "[notify]\ncommand = 'notify me'\n").expect("written");
        let runs =
            |words: [&str; 7], file: Option<&Path>| executes(&words.map(OsString::from), file.map(Path::to_owned));
        let words = ["swarm", "__runner", "2", "3", "4", "5", "notify me"];
        assert!(runs(words, Some(&file)) && !runs(words, None));
        assert!(!runs(["swarm", "__runner", "2", "3", "4", "5", "make"], Some(&file)), "a verification");
        assert!(!runs(["swarm", "spawn", "2", "3", "4", "5", "notify me"], Some(&file)));
    }

    #[test]
    fn special_and_oversized_files_are_refused_without_waiting() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(read(&path).expect_err("a pipe").ends_with("not a regular file"));
        fs::remove_file(&path).expect("removed");
        fs::File::create(&path).and_then(|file| file.set_len((1 << 20) + 1)).expect("made");
        assert!(read(&path).expect_err("huge").contains("larger than"));
        fs::write(&path, b"[notify]\ncommand = \"\xff\"\n").expect("written");
        assert!(read(&path).expect_err("no text").contains("UTF-8"));
    }

    #[test]
    fn an_invalid_file_leaves_the_last_valid_configuration_in_effect() {
        let known = Known::default();
        let good = Notify { desktop: true, ..Notify::default() };
        assert!(known.learn(Err("a mistake".to_owned())).is_empty());
        assert_eq!(known.learn(Ok(good.clone())), good);
        assert_eq!(known.learn(Err("a mistake".to_owned())), good);
        assert!(known.learn(Ok(Notify::default())).is_empty());
    }
}
