//! `[worktree]` and `[trash]` of `swarm.toml` at the repository's root.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path};
use std::time::Duration;

use serde::Deserialize;

use super::expiry::TrashPolicy;
use super::fault::Fault;
use crate::duration;

const FILE: &str = "swarm.toml";
/// Whoever starts a worker waits for its worktree.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(300);
const PORTS: Ports = Ports { first: 20_000, last: 29_999 };

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    worktree: WorktreeSettings,
    trash: TrashSettings,
}

/// What a new worktree is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct WorktreeSettings {
    /// Ignored files of the base checkout that are copied, by patterns of gitignore.
    pub include: Vec<String>,
    /// Ignored files and directories of the base checkout that are linked to.
    pub link: Vec<String>,
    pub post_create: Option<String>,
    pub pre_remove: Option<String>,
    /// Longest time for either of them.
    pub timeout: Option<Span>,
    /// Submodules are checked out as well, from those of the base checkout.
    pub submodules: bool,
    pub ports: Option<Ports>,
    /// What all worktrees of the repository may take on the disk.
    pub quota: Option<Size>,
}

/// When saves go by themselves; never, unless it is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
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

/// Both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ports {
    pub first: u16,
    pub last: u16,
}

impl WorktreeSettings {
    pub(super) fn limit(&self) -> Duration {
        self.timeout.map_or(TIMEOUT, |span| span.0)
    }

    pub(super) fn port_range(&self) -> Ports {
        self.ports.unwrap_or(PORTS)
    }

    fn check(&self) -> Result<(), String> {
        for pattern in &self.include {
            let leaves = pattern.split('/').any(|part| part == "..");
            if leaves || pattern.contains(['\n', '\0']) || pattern.trim().is_empty() {
                return Err(format!(
                    "worktree.include: '{}' is no pattern below the repository",
                    pattern.escape_debug()
                ));
            }
        }
        for path in &self.link {
            if !is_below(path) {
                return Err(format!("worktree.link: '{}' is no path below the repository", path.escape_debug()));
            }
        }
        for (key, command) in [("post-create", &self.post_create), ("pre-remove", &self.pre_remove)] {
            if command.as_ref().is_some_and(|command| command.trim().is_empty() || command.contains('\0')) {
                return Err(format!("worktree.{key} is no command"));
            }
        }
        if self.limit() > TIMEOUT_MAX || self.limit().is_zero() {
            return Err("worktree.timeout must be above 0 and 10m at most".to_owned());
        }
        Ok(())
    }
}

/// A path of names alone, none of which is git's.
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

/// Reads a size: `500`, `64K`, `1.5G`, in units of 1024.
///
/// # Errors
/// A sentence for whoever typed it.
pub fn size(text: &str) -> Result<u64, String> {
    const UNITS: [char; 4] = ['K', 'M', 'G', 'T'];
    let wrong = || format!("'{text}' is not a size (expected 500M, 20G or 1.5T)");
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let unit = upper.chars().last().and_then(|last| UNITS.iter().position(|unit| *unit == last));
    let number = if unit.is_some() { &upper[..upper.len() - 1] } else { upper };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| wrong())? };
    let factor = 1_u64 << (10 * unit.map_or(0, |at| at + 1));
    let tenths = part.bytes().next().map_or(0, |digit| u64::from(digit - b'0'));
    let bytes = whole.checked_mul(factor).and_then(|bytes| bytes.checked_add(factor / 10 * tenths));
    bytes.ok_or_else(wrong)
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        size(&text).map(Self)
    }
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.trim().parse().ok()?, last: last.trim().parse().ok()? })
        });
        let good = read.filter(|ports| ports.first <= ports.last && ports.first >= 1024);
        good.ok_or_else(|| format!("'{text}' is no range of ports from 1024 on (expected 20000-29999)"))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

/// What is said at the repository's root.
pub(super) fn worktree(root: &Path) -> Result<WorktreeSettings, Fault> {
    Ok(read(root)?.worktree)
}

/// When saves are to go by themselves.
pub(super) fn trash(root: &Path) -> Result<TrashPolicy, Fault> {
    let trash = read(root)?.trash;
    Ok(TrashPolicy { max_age: trash.max_age.map(|span| span.0), max_bytes: trash.max_size.map(|size| size.0) })
}

fn read(root: &Path) -> Result<File, Fault> {
    let path = root.join(FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(File::default()),
        Err(error) => return Err(Fault::new(format!("{}: {error}", path.display()))),
    };
    let mend = |cause: String| Fault::new(cause).remedy("mend the file, then try again");
    let file: File = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        mend(format!("{}, line {line}: {}", path.display(), error.message()))
    })?;
    file.worktree.check().map_err(|cause| mend(format!("{}: {cause}", path.display())))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<File, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), text).unwrap();
        read(dir.path()).map_err(|fault| fault.cause.replace(dir.path().to_str().unwrap(), ""))
    }

    #[test]
    fn everything_can_be_said_and_nothing_need_be() {
        let text = "[merge]\nverify = 'x'\n[worktree]\ninclude = ['.env', '/build/']\nlink = ['node_modules']\n\
                    post-create = 'make'\npre-remove = 'true'\ntimeout = '90s'\nsubmodules = true\n\
                    ports = '3000-3999'\nquota = '1.5G'\n[trash]\nmax-age = '90d'\nmax-size = '5G'\n";
        let file = with(text).unwrap_or_default();
        assert_eq!(file.worktree.quota, Some(Size((1 << 30) + (1 << 30) / 10 * 5)));
        assert_eq!(file.worktree.port_range(), Ports { first: 3000, last: 3999 });
        assert_eq!((file.worktree.limit(), file.worktree.submodules), (Duration::from_secs(90), true));
        assert_eq!(file.trash.max_age, Some(Span(Duration::from_secs(90 * 86_400))));
        let none = with("").unwrap_or_default();
        assert_eq!((none.worktree, none.trash), (WorktreeSettings::default(), TrashSettings::default()));
        assert_eq!(read(Path::new("/nowhere")).map(|file| file.worktree), Ok(WorktreeSettings::default()));
    }

    #[test]
    fn what_is_hostile_or_wrong_is_refused_in_one_sentence() {
        for (text, cause) in [
            ("link = ['/etc']", "/swarm.toml: worktree.link: '/etc' is no path below the repository"),
            ("link = ['a/../..']", "/swarm.toml: worktree.link: 'a/../..' is no path below the repository"),
            ("link = ['']", "/swarm.toml: worktree.link: '' is no path below the repository"),
            ("link = ['.GIT/hooks']", "/swarm.toml: worktree.link: '.GIT/hooks' is no path below the repository"),
            ("link = [\"a\\nb\"]", "/swarm.toml: worktree.link: 'a\\nb' is no path below the repository"),
            ("include = ['../x']", "/swarm.toml: worktree.include: '../x' is no pattern below the repository"),
            ("post-create = ' '", "/swarm.toml: worktree.post-create is no command"),
            ("timeout = '1h'", "/swarm.toml: worktree.timeout must be above 0 and 10m at most"),
            (
                "ports = '80-90'",
                "/swarm.toml, line 2: '80-90' is no range of ports from 1024 on (expected 20000-29999)",
            ),
            ("quota = '5X'", "/swarm.toml, line 2: '5X' is not a size (expected 500M, 20G or 1.5T)"),
        ] {
            assert_eq!(with(&format!("[worktree]\n{text}\n")).err().as_deref(), Some(cause));
        }
        let unknown = with("[worktree]\nlinks = []\n").err().unwrap_or_default();
        assert!(unknown.starts_with("/swarm.toml, line 2: unknown field `links`"), "{unknown}");
        assert!(
            with("[worktree\n").is_err() && with("worktree = 3\n").is_err() && with("[trash]\nmax-age = 3\n").is_err()
        );
    }

    #[test]
    fn sizes_are_read_in_all_their_forms() {
        for (text, bytes) in
            [("0", 0), ("500", 500), ("64k", 65_536), ("2M", 2 << 20), ("1GB", 1 << 30), ("3TiB", 3 << 40)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.2.3x", "1e9", "99999999999999999999", "99999999T", "1 G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
