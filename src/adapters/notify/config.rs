//! `[notify]` of the user's own configuration, `~/.config/swarm/config.toml`.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

/// Longer is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What people want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Finished,
    Failed,
    Stuck,
    Waiting,
    Landed,
    Budget,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// Run by `sh -c`, with the event on standard input.
    pub command: Option<String>,
    /// By `notify-send`.
    pub desktop: bool,
    /// Where the event is posted to.
    pub webhook: Option<String>,
    /// All by default.
    pub events: Option<Vec<Group>>,
}

impl Notify {
    pub fn is_empty(&self) -> bool {
        self.command.is_none() && !self.desktop && self.webhook.is_none()
    }

    pub fn wants(&self, group: Group) -> bool {
        self.events.as_ref().is_none_or(|events| events.contains(&group))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Whole {
    notify: Notify,
}

/// Where it lies; none where there is neither `XDG_CONFIG_HOME` nor `HOME`.
pub fn path() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // As the convention has it, a relative one does not count.
    let base = set("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute()).or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(base.join("swarm").join("config.toml"))
}

/// What it says now; nothing where it is not there.
///
/// # Errors
/// A sentence with the file, the line and what is wrong there, without what was set.
pub fn read(path: &Path) -> Result<Notify, String> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Notify::default()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let whole: Whole = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("{}, line {line}: {}", path.display(), without_value(error.message()))
    })?;
    let full = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    Ok(Notify { command: full(whole.notify.command), webhook: full(whole.notify.webhook), ..whole.notify })
}

fn read_text(path: &Path) -> io::Result<String> {
    // A pipe would make the reader wait for somebody who writes.
    let file = fs::OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if meta.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A text that stands where something else belongs may be an address or a command.
fn without_value(message: &str) -> String {
    match (message.find("string \""), message.rfind("\", expected ")) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}string{}", &message[..begin], &message[end + 1..])
        }
        _ => message.to_owned(),
    }
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

    fn parsed(text: &str) -> Result<Notify, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, text).expect("written");
        read(&path).map_err(|cause| cause.replace(dir.path().to_str().expect("text"), ""))
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_other_sections_are_let_be() {
        let notify = parsed("[other]\nx = 1\n[notify]\ncommand = \"a\"\nevents = [\"failed\"]\n").expect("read");
        assert_eq!((notify.command.as_deref(), notify.desktop), (Some("a"), false));
        assert!(notify.wants(Group::Failed) && !notify.wants(Group::Landed));
        assert!(parsed("").expect("read").is_empty());
        assert!(parsed("[notify]\ncommand = \" \"\n").expect("read").is_empty());
        assert!(parsed("[notify]\nevents = [\"all\"]\n").expect_err("wrong").starts_with("/config.toml, line 2: "));
        assert!(parsed("[notify]\ncomand = \"x\"\n").expect_err("wrong").contains("line 2: unknown field `comand`"));
        assert_eq!(read(Path::new("/nonexistent/config.toml")), Ok(Notify::default()));
    }

    #[test]
    fn a_mistake_does_not_show_what_may_be_secret() {
        for text in ["desktop = \"curl -H token\"", "events = \"http://host/token\"", "command = \"token"] {
            let cause = parsed(&format!("[notify]\n{text}\n")).expect_err("wrong");
            assert!(cause.starts_with("/config.toml, line 2: ") && !cause.contains("token"), "{cause}");
        }
        assert_eq!(
            without_value("invalid type: string \"a \", expected b\", expected a boolean"),
            "invalid type: string, expected a boolean"
        );
    }

    #[test]
    fn what_is_no_file_of_a_configuration_s_size_is_refused_and_waited_for_by_nobody() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(read(&path).expect_err("a pipe").ends_with("not a regular file"));
        fs::remove_file(&path).expect("removed");
        fs::File::create(&path).and_then(|file| file.set_len(FILE_BYTES_MAX + 1)).expect("made");
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
