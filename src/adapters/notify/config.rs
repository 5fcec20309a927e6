//! `[notify]` of the user's own configuration, `~/.config/swarm/config.toml`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

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
/// A sentence with the file, the line and what is wrong there.
pub fn read(path: &Path) -> Result<Notify, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Notify::default()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let whole: Whole = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("{}, line {line}: {}", path.display(), error.message())
    })?;
    let full = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    Ok(Notify { command: full(whole.notify.command), webhook: full(whole.notify.webhook), ..whole.notify })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Notify, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, text).expect("written");
        read(&path).map_err(|cause| cause.replace(dir.path().to_str().expect("text"), ""))
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_other_sections_are_let_be() {
        let notify = read_text("[other]\nx = 1\n[notify]\ncommand = \"a\"\nevents = [\"failed\"]\n").expect("read");
        assert_eq!((notify.command.as_deref(), notify.desktop), (Some("a"), false));
        assert!(notify.wants(Group::Failed) && !notify.wants(Group::Landed));
        assert!(read_text("").expect("read").is_empty());
        assert!(read_text("[notify]\ncommand = \" \"\n").expect("read").is_empty());
        assert!(read_text("[notify]\nevents = [\"all\"]\n").expect_err("wrong").starts_with("/config.toml, line 2: "));
        assert!(read_text("[notify]\ncomand = \"x\"\n").expect_err("wrong").contains("line 2: unknown field `comand`"));
        assert_eq!(read(Path::new("/nonexistent/config.toml")), Ok(Notify::default()));
    }
}
