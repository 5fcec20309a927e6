//! `--host HOST[,HOST…]`: a verb is executed by `swarm` on another machine, with the same words, output and exit code.

pub mod args;
mod check;
mod choice;
mod install;
mod kind;
pub mod list;
mod one;
mod several;

use std::ffi::OsString;
use std::process::Command as Program;

use swarm_hosts::Host;
use swarm_model::{Refusal, RefusalKind};

pub use self::choice::take;
use self::kind::{Kind, is_endless, kind_of};
use super::args::Command;
use super::error::Failure;
use super::screen::Screen;

/// Where a command line says that it is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// By `--host`.
    Typed(Vec<String>),
    /// By `$SWARM_HOST`.
    Set(Vec<String>),
}

/// Executes the verb on the hosts that were chosen. Returns `None` if it is executed here.
///
/// # Errors
/// Fails if a host is unknown or cannot be reached, or if the verb is about this machine.
pub fn run(
    chosen: Option<Chosen>,
    command: &Command,
    words: &[OsString],
    screen: &mut Screen,
) -> Result<Option<u8>, Failure> {
    let (names, is_typed) = match chosen {
        Some(Chosen::Typed(names)) => (names, true),
        Some(Chosen::Set(names)) => (names, false),
        None => return Ok(None),
    };
    let kind = kind_of(command);
    match kind {
        Kind::Local(why) if is_typed => {
            return Err(Failure::new(RefusalKind::Invalid, format!("--host cannot be used here: {why}")));
        }
        Kind::Local(_) => return Ok(None),
        Kind::Terminal | Kind::Reads | Kind::Acts => {}
    }
    if names == [swarm_hosts::LOCAL] {
        return Ok(None);
    }
    let hosts = found(&names)?;
    let words = texts(words)?;
    match (hosts.as_slice(), kind) {
        ([host], Kind::Terminal) => attach(host, &words),
        ([host], _) => one::run(host, command, &words, screen).map(Some),
        (_, Kind::Reads) if is_endless(command) => {
            Err(Failure::new(RefusalKind::Invalid, "only one host can be followed"))
        }
        (hosts, Kind::Reads) => several::run(hosts, &words, screen).map(Some),
        (_, _) => {
            let refusal = Refusal::new(RefusalKind::Invalid, "only verbs that read can be executed on several hosts");
            Err(refusal.remedy("name one host").into())
        }
    }
}

/// Returns the hosts with these names.
fn found(names: &[String]) -> Result<Vec<Host>, Refusal> {
    let configured = swarm_config::hosts().map_err(|cause| Refusal::new(RefusalKind::Invalid, cause))?;
    names.iter().map(|name| swarm_hosts::find(name, &configured)).collect()
}

/// Returns the words as texts, which JSON needs.
fn texts(words: &[OsString]) -> Result<Vec<String>, Refusal> {
    let text = |word: &OsString| {
        let cause = || format!("'{}' is not valid UTF-8, which another host needs", word.display());
        word.to_str().map(str::to_owned).ok_or_else(|| Refusal::new(RefusalKind::Invalid, cause()))
    };
    words.iter().map(text).collect()
}

/// Becomes ssh, with this terminal.
fn attach(host: &Host, words: &[String]) -> Result<Option<u8>, Failure> {
    let refuse = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let command = swarm_hosts::attach(host, words).map_err(|word| {
        refuse(format!("'{word}' cannot be passed to {}: its login shell could change it", host.name))
    })?;
    let Some(mut command) = command else {
        return Err(refuse(format!("{} is not reached by ssh, so there is no terminal to attach", host.name)));
    };
    Err(Failure::system("cannot start ssh", &replaced(&mut command)))
}

/// Replaces this process; returns only if that fails.
fn replaced(command: &mut Program) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    // Programs of the other machine may not know this terminal.
    let is_common = |term: &str| {
        ["xterm", "screen", "tmux", "linux", "vt", "rxvt"].iter().any(|common| term.starts_with(common))
            && !term.contains("kitty")
            && !term.contains("ghostty")
    };
    if !std::env::var("TERM").is_ok_and(|term| is_common(&term)) {
        command.env("TERM", "xterm-256color");
    }
    command.exec()
}
