use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::CommandFactory as _;

use super::*;
use crate::cli::args::Cli;
use crate::cli::host::choice::has_text;
use crate::cli::parse;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

fn command(line: &str) -> Command {
    parse::parse(&words(line)).unwrap_or_else(|error| panic!("{line}: {error}")).command
}

/// Adds the paths of all verbs at or below this one that can be executed.
fn leaves(path: &str, verb: &clap::Command, all: &mut BTreeSet<String>) {
    if !verb.is_subcommand_required_set() {
        all.insert(path.to_owned());
    }
    for below in verb.get_subcommands() {
        leaves(&format!("{path} {}", below.get_name()), below, all);
    }
}

fn all_leaves() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for verb in Cli::command().get_subcommands() {
        leaves(verb.get_name(), verb, &mut all);
    }
    all
}

/// Returns the path of the verb of a command line.
fn path(line: &str) -> String {
    let (mut verb, mut path) = (Cli::command(), Vec::new());
    for word in line.split(' ').skip(1) {
        let Some(below) = verb.find_subcommand(word).cloned() else { break };
        path.push(below.get_name().to_owned());
        verb = below;
    }
    path.join(" ")
}

const READS: [&str; 48] = [
    "ls",
    "top --json",
    "status w",
    "explain w",
    "wait w",
    "logs w",
    "history w",
    "diff w",
    "peek w",
    "approvals",
    "agents",
    "config",
    "events",
    "du",
    "doctor",
    "recover",
    "trust --show",
    "trust --list",
    "restore",
    "restore w --show",
    "restore w --diff",
    "restore --expire --dry-run",
    "run status",
    "run attach",
    "run logs a",
    "ralph template",
    "ralph status w",
    "ralph list",
    "ralph logs w",
    "merge ls",
    "merge status 1",
    "merge log",
    "merge wait",
    "heartbeat list",
    "heartbeat status w",
    "session show",
    "session check",
    "rules",
    "rules test x",
    "flow check w.yaml",
    "flow ls",
    "flow status f",
    "flow graph f",
    "flow requests f",
    "flow events f",
    "flow feed f",
    "supervisor status",
    "restore --all-repos",
];

const ACTS: [&str; 62] = [
    "plan --specs s",
    "run",
    "run init",
    "run stop",
    "run pause",
    "run resume",
    "run give-up a",
    "run cleanup",
    "run context a text",
    "ralph spawn --name w --prompt-file p -- x",
    "ralph run w",
    "ralph init",
    "ralph pause w",
    "ralph resume w",
    "ralph clean w",
    "ralph stop w",
    "spawn --name w -- x",
    "kill w",
    "respawn w",
    "clean w",
    "recover --apply",
    "recover --gone box",
    "merge add w",
    "merge retry 1",
    "merge drop 1",
    "merge pause",
    "merge resume",
    "restore w",
    "restore --expire",
    "send w text",
    "keys w Enter",
    "interrupt w",
    "eof w",
    "heartbeat start w --interval 1h",
    "heartbeat stop w",
    "heartbeat pause w",
    "heartbeat resume w",
    "session update a=b",
    "session write",
    "session note --idle",
    "session hook",
    "approve 1",
    "deny 1",
    "answer 1 yes",
    "rules add --allow x",
    "rules rm 1",
    "ask --wait why",
    "flow new p --workflow w.yaml",
    "flow run f",
    "flow resume f",
    "flow stop f",
    "flow emit --await",
    "flow allow f 1",
    "flow deny f 1",
    "flow consent-check",
    "flow answer f yes",
    "flow approve f n",
    "flow decline f n",
    "flow improve f none",
    "flow feedback f deny",
    "flow consent f no-access",
    "flow rm f",
];

const ACTS_MORE: [&str; 7] =
    ["init", "trust", "doctor --repair", "notify test", "supervisor start", "supervisor stop", "supervisor restart"];

const LOCAL: [&str; 15] = [
    "web --allow act",
    "mcp --allow act",
    "hosts",
    "hosts ls",
    "hosts check",
    "hosts install box",
    "hosts start box",
    "hosts stop box",
    "hosts drain box",
    "hosts resume box",
    "hosts forget box",
    "supervisor install",
    "supervisor uninstall",
    "completions bash",
    "man",
];

const TERMINAL: [&str; 2] = ["attach w", "top"];

#[test]
fn every_verb_is_classified() {
    let mut known = BTreeSet::new();
    let mut is_kind = |lines: &[&str], expected: fn(Kind) -> bool| {
        for line in lines {
            let line = format!("swarm {line}");
            assert!(expected(kind_of(&command(&line))), "{line}");
            known.insert(path(&line));
        }
    };
    is_kind(&READS, |kind| kind == Kind::Reads);
    is_kind(&ACTS, |kind| kind == Kind::Acts);
    is_kind(&ACTS_MORE, |kind| kind == Kind::Acts);
    is_kind(&TERMINAL, |kind| kind == Kind::Terminal);
    is_kind(&LOCAL, |kind| matches!(kind, Kind::Local(_)));
    let all = all_leaves();
    let missing: Vec<&String> = all.difference(&known).collect();
    assert!(missing.is_empty(), "add these verbs to a list of this file: {missing:?}");
}

#[test]
fn what_only_reads_and_goes_on_is_followed_on_one_host() {
    for line in [
        "logs w -f",
        "events -f",
        "top --json",
        "approvals -f",
        "run attach",
        "run logs a -f",
        "flow events f --follow",
        "flow feed f --follow",
    ] {
        let command = command(&format!("swarm {line}"));
        assert!(is_endless(&command) && kind_of(&command) == Kind::Reads, "{line}");
    }
    for line in ["logs w", "events", "approvals", "run logs a", "flow feed f", "ls"] {
        assert!(!is_endless(&command(&format!("swarm {line}"))), "{line}");
    }
    // A new option to follow must be thought of.
    let follows = |path: &String| {
        let mut verb = Cli::command();
        for word in path.split(' ') {
            verb = verb.find_subcommand(word).expect("a verb").clone();
        }
        verb.get_arguments().any(|arg| arg.get_long() == Some("follow"))
    };
    let following: Vec<String> = all_leaves().into_iter().filter(follows).collect();
    assert_eq!(following, ["approvals", "events", "flow events", "flow feed", "logs", "run logs"]);
}

/// Reports whether an argument in this place may be a text or a command of a person.
fn takes_text(verb: &clap::Command) -> bool {
    verb.get_positionals().any(|arg| {
        let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
        let is_named = name.is_some_and(|name| ["TEXT", "ANSWER", "COMMAND", "COMMAND_LINE"].contains(&&*name));
        is_named || arg.get_id() == "text" || arg.is_trailing_var_arg_set() || arg.is_allow_hyphen_values_set()
    })
}

#[test]
fn no_host_is_looked_for_in_texts() {
    let mut verbs = vec![(String::new(), Cli::command())];
    while let Some((path, verb)) = verbs.pop() {
        assert!(!takes_text(&verb) || has_text(&path), "add '{path}' to the list of choice.rs");
        for arg in verb.get_opts().filter(|arg| arg.is_allow_hyphen_values_set()) {
            assert!(arg.get_long().is_some() && arg.get_short().is_none(), "{path}: {arg:?}");
        }
        verbs.extend(
            verb.get_subcommands()
                .map(|below| (format!("{path} {}", below.get_name()).trim_start().to_owned(), below.clone())),
        );
    }
}

#[test]
fn only_verbs_that_read_standard_input_get_it() {
    for (line, expected) in [
        ("swarm run context a -", true),
        ("swarm flow answer f -", true),
        ("swarm session write", true),
        ("swarm send fix -", true),
        ("swarm send --all -", true),
        ("swarm send fix text", false),
        ("swarm session show", false),
        ("swarm run context a text", false),
        ("swarm flow answer f yes", false),
        ("swarm ls", false),
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(wants_input(&command(line), &words[1..]), expected, "{line}");
    }
}
