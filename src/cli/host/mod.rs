//! `--host HOST[,HOST…]`: a verb is executed by `swarm` on another machine, with the same words, output and exit code.

mod again;
mod allocation;
pub mod args;
mod check;
mod choice;
mod held;
mod install;
mod job;
mod kind;
mod leave;
pub mod list;
mod moved;
mod named;
pub mod one;
mod orders;
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
pub struct Chosen {
    names: Vec<String>,
    /// Set if `--host` names them, not `$SWARM_HOST`.
    is_typed: bool,
    /// Directory there.
    dir: Option<String>,
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
    // A name with a host says more than the environment.
    if !chosen.as_ref().is_some_and(|chosen| chosen.is_typed)
        && let Some(code) = by_name(command, words, screen)?
    {
        return Ok(Some(code));
    }
    let Some(Chosen { names, is_typed, dir }) = chosen else { return Ok(None) };
    let kind = kind_of(command);
    match kind {
        Kind::Local(why) if is_typed => {
            return Err(Failure::new(RefusalKind::Invalid, format!("--host cannot be used here: {why}")));
        }
        Kind::Local(_) => return Ok(None),
        Kind::Terminal | Kind::Reads | Kind::Acts => {}
    }
    if names == [swarm_hosts::LOCAL] {
        return match dir {
            Some(_) => Err(Failure::new(RefusalKind::Invalid, "-C is for another host; use 'cd' on this machine")),
            None => Ok(None),
        };
    }
    if names.iter().any(|name| name == swarm_hosts::LOCAL) {
        return Err(Failure::new(RefusalKind::Invalid, "'local' cannot be combined with other hosts"));
    }
    let mut hosts = found(&names)?;
    if let Some(dir) = dir {
        hosts.iter_mut().for_each(|host| host.enter(&dir));
    }
    let words = texts(words)?;
    match (hosts.as_slice(), kind) {
        ([host], Kind::Terminal) => attach(host, &words),
        ([host], _) => one::run(host, command, &words, screen).map(Some),
        (_, Kind::Reads) if is_endless(command) => {
            Err(Failure::new(RefusalKind::Invalid, "only one host can be followed"))
        }
        (hosts, Kind::Reads) => several::run(hosts, command, &words, screen).map(Some),
        (_, _) => {
            let refusal = Refusal::new(RefusalKind::Invalid, "only verbs that read can be executed on several hosts");
            Err(refusal.remedy("name one host").into())
        }
    }
}

/// Executes the verb on the host that is in the names of its workers, if there is one.
fn by_name(command: &Command, words: &[OsString], screen: &mut Screen) -> Result<Option<u8>, Failure> {
    if !words.iter().any(|word| word.as_encoded_bytes().contains(&b':')) {
        return Ok(None);
    }
    // If the configuration is invalid, the verb says so.
    let configured = swarm_config::hosts().unwrap_or_default();
    let Some((name, words)) = named::host_of(command, words, &configured)? else { return Ok(None) };
    let host = swarm_hosts::find(&name, &configured)?;
    let words = texts(&words)?;
    match kind_of(command) {
        Kind::Terminal => attach(&host, &words),
        _ => one::run(&host, command, &words, screen).map(Some),
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

/// Becomes ssh, or srun, with this terminal.
fn attach(host: &Host, words: &[String]) -> Result<Option<u8>, Failure> {
    let refuse = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let host = &host.reached().map_err(Refusal::from)?;
    let command = swarm_hosts::attach(host, words).map_err(|word| {
        refuse(format!("'{word}' cannot be passed to {}: its login shell could change it", host.name))
    })?;
    let Some(mut command) = command else {
        return Err(refuse(format!("{} is not reached by ssh, so there is no terminal to attach", host.name)));
    };
    let program = command.get_program().to_string_lossy().into_owned();
    Err(Failure::system(format!("cannot start {program}"), &replaced(&mut command)))
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
