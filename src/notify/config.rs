//! `[notify]` of the user's own configuration, `~/.config/swarm/config.toml`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub use swarm_config::sections::{Group, Notify};
pub use swarm_config::user_path as path;

/// What it says now; nothing where it is not there.
///
/// # Errors
/// A sentence with the file, the line and what is wrong there, without what was set.
pub fn read(path: &Path) -> Result<Notify, String> {
    Ok(swarm_config::of_user(path)?.notify.filled())
}

/// The configuration as it was last read without a mistake.
#[derive(Debug, Default)]
pub(super) struct Known {
    last: Mutex<(Notify, Option<String>)>,
}

impl Known {
    /// Whether there may be anything to read.
    pub(super) fn is_there(&self) -> bool {
        path().is_some_and(|path| path.symlink_metadata().is_ok())
    }

    /// As the file is now: an edit counts at once. While there is a mistake in it, what
    /// it said before counts, and the mistake is told once.
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
                tracing::error!(cause, "[notify] cannot be read, what it said before counts");
                last.1 = Some(cause);
            }
        }
        last.0.clone()
    }
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
    fn what_is_wrong_is_named_with_its_line_and_what_is_blank_is_not_set() {
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
    fn what_is_no_file_of_a_configuration_s_size_is_refused_and_waited_for_by_nobody() {
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
    fn while_there_is_a_mistake_what_was_read_before_counts() {
        let known = Known::default();
        let good = Notify { desktop: true, ..Notify::default() };
        assert!(known.learn(Err("a mistake".to_owned())).is_empty());
        assert_eq!(known.learn(Ok(good.clone())), good);
        assert_eq!(known.learn(Err("a mistake".to_owned())), good);
        assert!(known.learn(Ok(Notify::default())).is_empty());
    }
}
