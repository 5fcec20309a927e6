//! Why there is no connection, in one sentence, and what to do about it.

use swarm_model::{Refusal, RefusalKind};

use crate::frames::{Hello, PROTOCOL, PROTOCOL_MIN};
use crate::host::{Host, Way};

/// Maximum length of the words of others that are shown, in characters.
const SHOWN_CHARS_MAX: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing answers there, or the connection was cut.
    Away,
    /// Login, key of the host or configuration: only a person can change that.
    Refused,
    /// The program is missing there, or cannot be executed.
    Missing,
    /// The programs do not understand each other.
    Protocol,
}

/// A connection that there is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub cause: String,
    pub remedy: Option<String>,
}

impl Fault {
    pub(crate) fn away(host: &Host, cause: &str) -> Self {
        Self { kind: FaultKind::Away, cause: format!("cannot reach {}: {cause}", host.name), remedy: None }
    }

    /// Returns the fault of a connection that was there and is not any more.
    pub fn cut(host: &Host) -> Self {
        Self { kind: FaultKind::Away, cause: format!("the connection to {} was cut", host.name), remedy: None }
    }

    /// Returns the fault of a far end that this program does not understand.
    pub(crate) fn protocol(host: &Host, hello: &Hello) -> Self {
        let cause = format!(
            "swarm {} on {} speaks protocol {} to {}, this one {PROTOCOL_MIN} to {PROTOCOL}",
            hello.version, host.name, hello.min, hello.protocol
        );
        Self { kind: FaultKind::Protocol, cause, remedy: Some(format!("run 'swarm hosts install {}'", host.name)) }
    }

    /// Returns why no hello came: `said` is what the command wrote to standard error, `noise` what came instead of the
    /// hello.
    pub(crate) fn silent(host: &Host, code: Option<i32>, said: &str, noise: &str) -> Self {
        let said_short = shown(said);
        let new = |kind, cause: String, remedy: Option<String>| Self { kind, cause, remedy };
        let destination = host.destination().unwrap_or(&host.name);
        let by_hand = |what: &str| Some(format!("run 'ssh {destination}' once by hand{what}"));
        if !matches!(host.way, Way::Command(_)) && host.destination().is_some() && code == Some(255) {
            let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
            if has(&["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"]) {
                let cause = format!("ssh does not accept the host key of {}: {said_short}", host.name);
                return new(FaultKind::Refused, cause, by_hand(", and check the key"));
            }
            if has(&["Permission denied", "Too many authentication failures", "No supported authentication"]) {
                let cause = format!("{} refuses the login: {said_short}", host.name);
                return new(FaultKind::Refused, cause, by_hand("; swarm cannot type a password"));
            }
            if has(&["Bad configuration option", "terminating, ", "Bad owner or permissions"]) {
                return new(FaultKind::Refused, format!("ssh cannot be used: {said_short}"), None);
            }
            let cause = if said_short.is_empty() { "ssh ended without a reason".to_owned() } else { said_short };
            return Self::away(host, &cause);
        }
        if said.contains("unrecognized subcommand") {
            let cause = format!("swarm on {} is too old to be used from here", host.name);
            return new(FaultKind::Missing, cause, Some(format!("run 'swarm hosts install {}'", host.name)));
        }
        let not_there = ["not found", "No such file", "Unknown command", "cannot execute", "Exec format error"];
        if matches!(code, Some(126 | 127)) || not_there.iter().any(|words| said.contains(words)) {
            let cause = format!("cannot execute {} on {}: {said_short}", host.program, host.name);
            let remedy =
                format!("run 'swarm hosts install {0}', or set [hosts.{0}] swarm to its path there", host.name);
            return new(FaultKind::Missing, cause, Some(remedy));
        }
        let noise = shown(noise);
        let cause = match (said_short.is_empty(), noise.is_empty()) {
            (false, _) => said_short,
            (true, false) => format!("it printed '{noise}' and no hello"),
            (true, true) => format!("the command ended with code {} and no hello", code.unwrap_or(-1)),
        };
        new(FaultKind::Away, format!("no swarm answers on {}: {cause}", host.name), None)
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let refusal = Self::new(RefusalKind::Tool, fault.cause);
        match fault.remedy {
            Some(remedy) => refusal.remedy(remedy),
            None => refusal,
        }
    }
}

/// Returns the words of somebody else as one line of limited length: the last lines, which say why.
pub(crate) fn shown(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines[lines.len().saturating_sub(3)..].join("; ");
    match line.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::host::find;

    #[test]
    fn what_ssh_says_is_explained() {
        let host = find("box", &BTreeMap::new()).expect("a destination");
        let kind = |code, said: &str| Fault::silent(&host, Some(code), said, "").kind;
        for (code, said, expected) in [
            (255, "box: Permission denied (publickey).", FaultKind::Refused),
            (255, "Host key verification failed.", FaultKind::Refused),
            (255, "ssh: Could not resolve hostname box: Name or service not known", FaultKind::Away),
            (255, "ssh: connect to host box port 22: Connection refused", FaultKind::Away),
            (255, "kex_exchange_identification: Connection closed by remote host", FaultKind::Away),
            (127, "sh: 1: /home/me/.local/bin/swarm: not found", FaultKind::Missing),
            (126, "bash: /home/me/swarm: Permission denied", FaultKind::Missing),
            (2, "error: unrecognized subcommand '__stdio'", FaultKind::Missing),
            (255, "", FaultKind::Away),
        ] {
            assert_eq!(kind(code, said), expected, "{code} {said}");
        }
        let fault = Fault::silent(&host, Some(0), "", "Welcome\nto box\n");
        assert_eq!(fault.cause, "no swarm answers on box: it printed 'Welcome; to box' and no hello");
        let fault = Fault::silent(&host, Some(127), "fish: Unknown command: ~/.local/bin/swarm", "");
        assert!(fault.remedy.is_some_and(|remedy| remedy.contains("swarm hosts install box")));
        assert_eq!(shown(&"ä".repeat(SHOWN_CHARS_MAX + 1)).chars().count(), SHOWN_CHARS_MAX + 1);
    }
}
