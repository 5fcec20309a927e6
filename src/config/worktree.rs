//! `[worktree]` and `[trash]` of the configuration.

use std::fmt;
use std::path::{Component, Path};
use std::time::Duration;

use serde::Deserialize;
use swarm_model::parse_size;

use swarm_sys::duration;

/// Maximum of `worktree.timeout`, because the caller waits for the worktree.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(300);
const PORTS: Ports = Ports { first: 20_000, last: 29_999 };

/// Setup of new worktrees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorktreeSettings {
    /// Patterns, as in `.gitignore`, of ignored files of the base checkout that are copied.
    pub include: Vec<String>,
    /// Ignored files and directories of the base checkout that are linked.
    pub link: Vec<String>,
    pub post_create: Option<String>,
    pub pre_remove: Option<String>,
    /// Maximum time of either command.
    pub timeout: Option<Span>,
    /// Submodules are checked out as well, from those of the base checkout.
    pub submodules: bool,
    pub ports: Option<Ports>,
    /// Maximum disk space of all worktrees of the repository.
    pub quota: Option<Size>,
}

/// Expiry of saves; they never expire by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrashSettings {
    pub max_age: Option<Span>,
    pub max_size: Option<Size>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

/// Range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ports {
    pub first: u16,
    pub last: u16,
}

impl WorktreeSettings {
    pub fn limit(&self) -> Duration {
        self.timeout.map_or(TIMEOUT, |span| span.0)
    }

    pub fn port_range(&self) -> Ports {
        self.ports.unwrap_or(PORTS)
    }

    /// Checks what the types alone cannot express, and returns the first invalid key with the problem.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, cause: String| Err((format!("worktree.{key}"), cause));
        for pattern in &self.include {
            let leaves = pattern.split('/').any(|part| part == "..");
            if leaves || pattern.contains(['\n', '\0']) || pattern.trim().is_empty() {
                return wrong("include", format!("'{}' is not a pattern below the repository", pattern.escape_debug()));
            }
        }
        for path in &self.link {
            if !is_below(path) {
                return wrong("link", format!("'{}' is not a path below the repository", path.escape_debug()));
            }
        }
        for (key, command) in [("post_create", &self.post_create), ("pre_remove", &self.pre_remove)] {
            if command.as_ref().is_some_and(|command| command.trim().is_empty() || command.contains('\0')) {
                return wrong(key, "empty command, or command with NUL".to_owned());
            }
        }
        if self.limit() > TIMEOUT_MAX || self.limit().is_zero() {
            return wrong("timeout", "must be above 0 and at most 10m".to_owned());
        }
        Ok(())
    }
}

/// Reports whether a path consists of plain names only, none of which is `.git`.
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(name) if !name.eq_ignore_ascii_case(".git"));
    parts.peek().is_some() && parts.all(is_name) && !path.contains(['\n', '\0'])
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        duration::parse_positive(&text).map(Self)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_size(&text).map(Self)
    }
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
        });
        let good = read.filter(|ports| ports.first <= ports.last && ports.first >= 1024);
        good.ok_or_else(|| {
            format!("'{text}' is not a range of ports above 1023 (expected a range such as 20000-29999)")
        })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sections;

    fn with(text: &str) -> Result<Sections, String> {
        let read: Sections = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        read.check().map_err(|(key, cause)| format!("{key}: {cause}")).map(|()| read)
    }

    #[test]
    fn all_keys_are_optional() {
        let text = "[merge]\nverify = 'x'\n[worktree]\ninclude = ['.env', '/build/']\nlink = ['node_modules']\n\
                    post_create = 'make'\npre_remove = 'true'\ntimeout = '90s'\nsubmodules = true\n\
                    ports = '3000-3999'\nquota = '1.5G'\n[trash]\nmax_age = '90d'\nmax_size = '5G'\n";
        let file = with(text).expect("it is right");
        assert_eq!(file.worktree.quota, Some(Size((1 << 30) + (1 << 29))));
        assert_eq!(file.worktree.port_range(), Ports { first: 3000, last: 3999 });
        assert_eq!((file.worktree.limit(), file.worktree.submodules), (Duration::from_secs(90), true));
        assert_eq!(file.trash.max_age, Some(Span(Duration::from_secs(90 * 86_400))));
        let none = with("").expect("it is right");
        assert_eq!((none.worktree, none.trash), (WorktreeSettings::default(), TrashSettings::default()));
    }

    #[test]
    fn hostile_and_invalid_values_are_refused() {
        for (text, cause) in [
            ("link = ['/etc']", "worktree.link: '/etc' is not a path below the repository"),
            ("link = ['a/../..']", "worktree.link: 'a/../..' is not a path below the repository"),
            ("link = ['']", "worktree.link: '' is not a path below the repository"),
            ("link = ['.GIT/hooks']", "worktree.link: '.GIT/hooks' is not a path below the repository"),
            ("link = [\"a\\nb\"]", "worktree.link: 'a\\nb' is not a path below the repository"),
            ("include = ['../x']", "worktree.include: '../x' is not a pattern below the repository"),
            ("post_create = ' '", "worktree.post_create: empty command, or command with NUL"),
            ("timeout = '1h'", "worktree.timeout: must be above 0 and at most 10m"),
            ("ports = '80-90'", "'80-90' is not a range of ports above 1023 (expected a range such as 20000-29999)"),
            ("quota = '5X'", "'5X' is not a size (expected 512M, 2G or a number of bytes)"),
        ] {
            assert_eq!(with(&format!("[worktree]\n{text}\n")).err().as_deref(), Some(cause));
        }
        assert!(with("worktree = 3\n").is_err() && with("[trash]\nmax_age = 3\n").is_err());
    }
}
