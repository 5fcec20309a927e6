//! `HOST:NAME`: a worker on another machine. Names of workers have no colon.

use std::collections::BTreeMap;
use std::ffi::OsString;

use swarm_config::hosts::HostConfig;
use swarm_model::{Refusal, RefusalKind};

use crate::cli::args::Command;
use crate::cli::merge::args::MergeAction;

/// Finds the host in the names of a verb. Returns it and the words without it; `None` if all names are plain.
///
/// # Errors
/// Refuses names of several hosts, also of this machine and another one.
pub fn host_of(
    command: &Command,
    words: &[OsString],
    configured: &BTreeMap<String, HostConfig>,
) -> Result<Option<(String, Vec<OsString>)>, Refusal> {
    let names = names_of(command);
    let split = |name: &&str| {
        let (host, worker) = name.split_once(':').filter(|(_, worker)| !worker.is_empty())?;
        configured.contains_key(host).then(|| (host.to_owned(), worker.to_owned()))
    };
    let parts: BTreeMap<&str, (String, String)> = names.iter().filter_map(|name| Some((*name, split(name)?))).collect();
    let Some((host, _)) = parts.values().next() else { return Ok(None) };
    if let Some(other) = names.iter().find(|name| parts.get(*name).is_none_or(|(other, _)| other != host)) {
        let cause = format!("'{other}' is on another machine than the workers of {host}");
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("use one command for each host"));
    }
    // Behind the names, an equal word may be a text.
    let mut left = names.len();
    let plain = |word: &OsString| match word.to_str().and_then(|word| parts.get(word)).filter(|_| left > 0) {
        Some((_, worker)) => {
            left -= 1;
            worker.into()
        }
        None => word.clone(),
    };
    let words = words.iter().map(plain).collect();
    Ok(Some((host.clone(), words)))
}

/// Returns the names of workers among the arguments.
fn names_of(command: &Command) -> Vec<&str> {
    let (one, many): (Option<&String>, &[String]) = match command {
        Command::Status(args) => (Some(&args.name), &[]),
        Command::Explain(args) => (Some(&args.name), &[]),
        Command::Diff(args) => (Some(&args.name), &[]),
        Command::History(args) => (Some(&args.name), &[]),
        Command::Keys(args) => (Some(&args.name), &[]),
        Command::Attach(args) => (Some(&args.name), &[]),
        Command::Send(args) => (Some(&args.first), &[]),
        Command::Logs(args) => (args.name.as_ref(), &[]),
        Command::Peek(args) => (args.name.as_ref(), &[]),
        Command::Interrupt(args) => (args.name.as_ref(), &[]),
        Command::Eof(args) => (args.name.as_ref(), &[]),
        Command::Respawn(args) => (args.name.as_ref(), &[]),
        Command::Wait(args) => (None, &args.names),
        Command::Kill(args) => (None, &args.names),
        Command::Clean(args) => (None, &args.names),
        Command::Recover(args) => (None, &args.names),
        Command::Merge(args) => match &args.action {
            MergeAction::Add(args) => (None, &args.names),
            _ => (None, &[]),
        },
        _ => (None, &[]),
    };
    one.into_iter().chain(many).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn read(line: &str) -> Result<Option<(String, String)>, Refusal> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let cli = parse::parse(&words).expect("valid");
        let configured = ["box", "gpu"].map(|name| (name.to_owned(), HostConfig::default())).into();
        let found = host_of(&cli.command, &words[1..], &configured)?;
        Ok(found.map(|(host, words)| (host, words.join(" ".as_ref()).into_string().expect("text"))))
    }

    #[test]
    fn a_name_says_on_which_host_its_worker_is() {
        for (line, host, words) in [
            ("swarm status box:fix", "box", "status fix"),
            ("swarm wait box:a box:b --timeout 5", "box", "wait a b --timeout 5"),
            ("swarm send gpu:fix box:b", "gpu", "send fix box:b"),
            ("swarm send gpu:fix gpu:fix", "gpu", "send fix gpu:fix"),
            ("swarm logs -f box:fix", "box", "logs -f fix"),
            ("swarm merge add box:fix", "box", "merge add fix"),
        ] {
            assert_eq!(read(line), Ok(Some((host.to_owned(), words.to_owned()))), "{line}");
        }
        for line in ["swarm status fix", "swarm status other:fix", "swarm status box:", "swarm ls"] {
            assert_eq!(read(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn names_of_several_hosts_are_refused() {
        for line in ["swarm wait box:a gpu:b", "swarm kill box:a b"] {
            read(line).expect_err(line);
        }
    }
}
