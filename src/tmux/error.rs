//! Errors of tmux, and the classification of its stderr.

use swarm_model::dialog::Dialog;
use swarm_model::drafts;
use swarm_model::{Refusal, RefusalKind};

/// Oldest supported version of tmux. Older ones lack `-N` and `copy-mode -q`.
pub const VERSION_MIN: (u32, u32) = (3, 2);

/// Reason why an operation of tmux failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TmuxError {
    #[error("tmux is not installed or not in PATH")]
    Missing,
    #[error("tmux is too old: {found} (minimum {}.{})", VERSION_MIN.0, VERSION_MIN.1)]
    TooOld { found: String },
    #[error("tmux does not answer within {} s ({server})", limit_ms.div_ceil(1000))]
    Timeout { limit_ms: u64, server: String },
    #[error("tmux wrote more than {limit_bytes} bytes")]
    TooMuch { limit_bytes: usize },
    /// No server listens. `path` is the socket that tmux named; it may be empty.
    #[error("no tmux server is running on {path}")]
    NoServer { path: String },
    /// A server is alive, but its socket is gone, and the server did not create it again.
    #[error("the tmux server (pid {pid}) is running, but its socket {path} cannot be reached")]
    Unreachable { pid: i32, path: String },
    /// The session, window or pane does not exist (any more).
    #[error("{0}")]
    NotFound(String),
    #[error("duplicate session: {0}")]
    Duplicate(String),
    #[error("pane {pane} has ended; the text was not delivered")]
    NotDelivered { pane: String },
    #[error("pane {pane} did not show the text within {} s, so Enter was not pressed", limit_ms.div_ceil(1000))]
    NotShown { pane: String, limit_ms: u64 },
    #[error("pane {pane} shows the text in its input line, and has ignored Enter for {} s", limit_ms.div_ceil(1000))]
    NotSubmitted { pane: String, limit_ms: u64 },
    /// The pane shows a dialog of an agent, which takes keys and would take text for an answer.
    #[error("its agent {}; text would answer that", .0.sentence())]
    Asks(Box<Dialog>),
    /// The input line of an agent holds a text that nobody has submitted. The next Enter submits it.
    #[error("its agent {}", drafts::sentence(.0))]
    Drafted(String),
    /// A dialog showed no effect of a key, so no other key was pressed after it.
    #[error("the dialog in the window shows no effect of the key {key}; no other key was pressed after it")]
    KeyIgnored { key: String },
    #[error("invalid tmux session name '{name}': {why}")]
    Session { name: String, why: String },
    #[error("invalid tmux window name '{name}'")]
    WindowName { name: String },
    #[error("invalid tmux socket name '{name}': {why}")]
    SocketName { name: String, why: &'static str },
    #[error("the tmux socket path {path} has {bytes} bytes (maximum {limit})")]
    SocketPath { path: String, bytes: usize, limit: usize },
    #[error("tmux session '{0}' or its server ended repeatedly while the window was being created")]
    Unsteady(String),
    #[error("unexpected output of tmux: {0:?}")]
    Answer(String),
    /// Any other error, in tmux's words.
    #[error("{0}")]
    Other(String),
    #[error("cannot run tmux: {0}")]
    System(String),
}

impl TmuxError {
    /// Returns a hint for people. `None` if there is no known remedy.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Missing => Some("install tmux, or spawn without --tmux".to_owned()),
            Self::TooOld { .. } => Some("install a newer tmux, or spawn without --tmux".to_owned()),
            Self::Timeout { .. } => Some("check whether the tmux server is stopped or overloaded".to_owned()),
            Self::Unreachable { pid, .. } => {
                Some(format!("make the directory of the socket writable, then run 'kill -USR1 {pid}'"))
            }
            Self::NotShown { .. } => {
                Some("run 'swarm peek' to see the window, or use --no-proof to send without this check".to_owned())
            }
            Self::Asks(_) => Some("run 'swarm attach NAME' and answer, or use 'swarm keys NAME KEY…'".to_owned()),
            Self::Drafted(_) => {
                Some("submit it with 'swarm keys NAME Enter', or clear it with 'swarm keys NAME C-u'".to_owned())
            }
            Self::NotSubmitted { .. } => {
                Some("look at it with 'swarm peek', then press Enter with 'swarm keys NAME Enter'".to_owned())
            }
            Self::KeyIgnored { .. } => Some("look at it with 'swarm peek', then press the key again".to_owned()),
            Self::Session { .. } => Some("choose another --session".to_owned()),
            Self::SocketName { .. } => Some("choose another --tmux-socket".to_owned()),
            Self::SocketPath { .. } => Some("set TMUX_TMPDIR to a shorter directory".to_owned()),
            Self::TooMuch { .. }
            | Self::NoServer { .. }
            | Self::NotFound(_)
            | Self::Duplicate(_)
            | Self::NotDelivered { .. }
            | Self::WindowName { .. }
            | Self::Unsteady(_)
            | Self::Answer(_)
            | Self::Other(_)
            | Self::System(_) => None,
        }
    }

    /// Reports whether the error means that the server, session, window or pane does not exist.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoServer { .. } | Self::NotFound(_) | Self::NotDelivered { .. })
    }
}

impl From<TmuxError> for Refusal {
    fn from(error: TmuxError) -> Self {
        let refusal = Self::new(RefusalKind::Tool, error.to_string());
        match error.remedy() {
            Some(remedy) => refusal.remedy(remedy),
            None => refusal,
        }
    }
}

/// Returns the error that the stderr of a failed tmux means.
pub fn classify(stderr: &str) -> TmuxError {
    let text = stderr.trim();
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("").trim();
    if let Some(path) = line.strip_prefix("no server running on ") {
        return TmuxError::NoServer { path: path.to_owned() };
    }
    if let Some(rest) = line.strip_prefix("error connecting to ") {
        return refused_connection(rest, line);
    }
    if line.starts_with("server exited") || line.starts_with("lost server") {
        return TmuxError::NoServer { path: String::new() };
    }
    if line.starts_with("can't find ") || line.starts_with("no current ") {
        return TmuxError::NotFound(line.to_owned());
    }
    if let Some(session) = line.strip_prefix("duplicate session: ") {
        return TmuxError::Duplicate(session.to_owned());
    }
    let text = if text.is_empty() { "tmux failed without a message" } else { text };
    TmuxError::Other(text.chars().take(1_000).collect())
}

/// Classifies a refused connection. A missing socket means that there is no server; other causes, such as permissions
/// or a path that is too long, remain errors.
fn refused_connection(rest: &str, line: &str) -> TmuxError {
    let Some((path, cause)) = rest.rsplit_once(" (") else { return TmuxError::Other(line.to_owned()) };
    match cause.trim_end_matches(')') {
        "No such file or directory" | "Connection refused" => TmuxError::NoServer { path: path.to_owned() },
        "File name too long" => super::words::path_too_long(path),
        _ => TmuxError::Other(line.to_owned()),
    }
}

/// Reports whether tmux refused an option or a command that older versions lack.
pub fn smells_of_age(error: &TmuxError) -> bool {
    let TmuxError::Other(text) = error else { return false };
    let signs =
        ["unknown option", "invalid option", "illegal option", "unknown command", "usage:", "unrecognized option"];
    signs.iter().any(|sign| text.contains(sign))
}

/// Returns the version in the output of `tmux -V` (`tmux 3.3a`, `tmux next-3.5`). `None` for a build without version
/// numbers, which counts as new enough.
pub fn version(text: &str) -> Option<(u32, u32)> {
    let digits = text.find(|c: char| c.is_ascii_digit())?;
    if text.contains("openbsd") {
        return None;
    }
    let (major, rest) = text[digits..].split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_is_classified_by_its_first_line() {
        let none = |path: &str| TmuxError::NoServer { path: path.to_owned() };
        for (stderr, error) in [
            ("no server running on /tmp/tmux-0/default\n", none("/tmp/tmux-0/default")),
            ("error connecting to /a (b)/x (No such file or directory)\n", none("/a (b)/x")),
            ("server exited unexpectedly\n", none("")),
            ("can't find session: x\n", TmuxError::NotFound("can't find session: x".to_owned())),
            ("\ncan't find pane: %7\nmore\n", TmuxError::NotFound("can't find pane: %7".to_owned())),
            ("duplicate session: a b\n", TmuxError::Duplicate("a b".to_owned())),
            (
                "error connecting to /x (Permission denied)\n",
                TmuxError::Other("error connecting to /x (Permission denied)".to_owned()),
            ),
            (
                "error connecting to /long/x (File name too long)\n",
                TmuxError::SocketPath { path: "/long/x".to_owned(), bytes: 7, limit: 107 },
            ),
            ("", TmuxError::Other("tmux failed without a message".to_owned())),
        ] {
            assert_eq!(classify(stderr), error, "{stderr:?}");
        }
    }

    #[test]
    fn versions_are_read_as_tmux_prints_them() {
        for (text, numbers) in [
            ("tmux 3.3a\n", Some((3, 3))),
            ("tmux 1.8", Some((1, 8))),
            ("tmux next-3.5", Some((3, 5))),
            ("tmux openbsd-7.4", None),
            ("tmux master", None),
        ] {
            assert_eq!(version(text), numbers, "{text}");
        }
        assert!(smells_of_age(&classify("tmux: unknown option -- N\nusage: tmux [-2CDlNuvV]")));
        assert!(!smells_of_age(&classify("can't find pane: %7")));
    }
}
