use std::time::Duration;

use clap::Parser as _;

use super::*;
use crate::cli::args::Format;
use crate::cli::sample::command;

fn spawn(words: &[&str]) -> SpawnArgs {
    match command(&[&["spawn"], words].concat()) {
        Command::Spawn(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn refused(words: &[&str]) -> String {
    let words: Vec<OsString> = std::iter::once("swarm").chain(words.iter().copied()).map(Into::into).collect();
    let error = parse(&words).expect_err("parsed");
    assert!(error.use_stderr(), "{error}");
    error.to_string()
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn a_verb_built_alone_has_the_same_arguments_as_among_the_others() {
    let all = Cli::command();
    assert_eq!(all.get_subcommands().count(), VERBS.len());
    for (name, arguments) in VERBS {
        let among = all.find_subcommand(name).unwrap_or_else(|| panic!("no verb {name}"));
        let ids =
            |verb: &clap::Command| -> Vec<String> { verb.get_arguments().map(|arg| format!("{arg:?}")).collect() };
        assert_eq!(ids(among), ids(&arguments(clap::Command::new(name))), "{name}");
    }
    for words in
        [&["swarm", "spawn", "--na", "a", "--tag", "x", "--", "sh", "-c", "--x"][..], &["swarm", "kill", "--all"]]
    {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let (alone, among) = (parse_alone(&words).expect("parses"), Cli::try_parse_from(&words).expect("parses"));
        assert_eq!(format!("{alone:?}"), format!("{among:?}"));
    }
}

#[test]
fn empty_values_are_refused_in_one_sentence() {
    for flag in ["--tag", "--cwd", "--branch", "--worktree-dir", "--base"] {
        for verb in [&["spawn"][..], &["ralph", "spawn", "--prompt-file", "p"]] {
            let said = refused(&[verb, &["--name", "x", flag, "", "--", "true"]].concat());
            let begin = format!("error: a value is required for '{flag} <");
            assert!(said.starts_with(&begin) && said.contains("but none was supplied"), "{said}");
        }
    }
}

#[test]
fn the_top_level_help_is_as_written() {
    let expected = "\
Supervise a fleet of coding agents, each in its own tmux window or process and git worktree

Usage: swarm [OPTIONS] <COMMAND>

Runs:
  plan         Make a plan with one workstream for each spec in a directory
  run          Run the plan or a file of jobs: work, verify, land
  ralph        Repeat an agent with a fresh context until it is done

Workers:
  spawn        Start a worker
  ls           List workers
  top          Watch the fleet on a screen, what needs you first, and act on it
  status       Show whether a worker runs (exit code 0: yes, 1: no, 2: unknown)
  explain      Explain the state of a worker, with the evidence
  wait         Wait until workers have ended (exit code 1: timed out)
  logs         Show the output of a worker
  history      Show every start of a worker, how it ended, and what landed
  kill         Stop workers; they stay registered
  respawn      Start a worker again with its original settings
  clean        Remove stopped workers, with their logs and clean worktrees
  recover      List or restart interrupted workers (reboot, lost tmux)

Landing:
  diff         Show the changes of a worker, committed or not
  merge        Land finished work on its base branch through a merge queue
  restore      List and restore saves of removed worktrees

Agents and sessions:
  peek         Show the screen of a tmux worker
  send         Type text into a tmux worker
  keys         Press keys in a tmux worker, to answer its dialogs
  interrupt    Send Ctrl-C to a tmux worker
  eof          Send Ctrl-D to a tmux worker
  attach       Attach this terminal to the window of a tmux worker
  heartbeat    Nudge agents on a schedule by typing text into their windows
  session      Show or update the session of a worker

Requests of agents:
  approvals    List what agents ask of you, or show one request in full
  approve      Allow what agents ask for
  deny         Refuse what agents ask for
  answer       Answer a question of an agent
  rules        List or change the rules that answer in advance
  ask          For workers: ask a person and wait for the answer

Flows:
  flow         Let roles hand work to each other along a workflow

System:
  init         Add instructions for agents to AGENTS.md or CLAUDE.md
  agents       Show the agents, their programs and what each of them offers
  config       Show the configuration, and where each value is set
  trust        Agree to what a repository's files execute or set
  doctor       Find problems and offer repairs (exit code 1: problems remain)
  events       Show recorded events, oldest first
  du           Show the disk usage of workers and saved worktrees
  hosts        List, check and set up other machines, for --host
  mcp          Serve the fleet to an agent as tools (Model Context Protocol)
  web          Serve the fleet as a page to a browser on this machine
  notify       Test the delivery of notifications
  supervisor   Control the supervisor, the process that manages the workers
  completions  Print a completion script for a shell
  man          Print the manual page of a verb, or write all pages to files

Options:
      --host <HOST[,HOST]>  Machines on which the verb is executed; see 'swarm hosts' [env: SWARM_HOST]
  -h, --help                Print help
  -V, --version             Print version

Examples:
  swarm plan --specs ./specs -y && swarm run           one agent per spec: work, verify, land
  swarm spawn --name fix --tmux --worktree -- claude   one agent in its own window and branch
  swarm ls -l                                          states and exit codes of all workers
  swarm send fix \"run the tests and fix what fails\"
  swarm wait fix && swarm logs fix

State directory: $SWARM_DIR (default ~/.swarm). See also 'swarm VERB --help'.
";
    assert_eq!(groups::command().term_width(200).render_help().to_string(), expected);
}

#[test]
fn words_of_other_programs_mean_the_verb() {
    let said = |words: &[&str]| format!("{:?}", command(words));
    for (words, meant) in [
        (&["list", "-l"][..], &["ls", "-l"][..]),
        (&["ps"], &["ls"]),
        (&["stop", "fix"], &["kill", "fix"]),
        (&["rm", "fix", "--force-dirty"], &["clean", "fix", "--force-dirty"]),
        (&["ls", "-l", "--json"], &["ls", "--json", "-l"]),
        (&["logs", "fix", "-n", "5"], &["logs", "fix", "--lines", "5"]),
        (&["run", "--jobs", "3"], &["run", "-j", "3"]),
    ] {
        assert_eq!(said(words), said(meant), "{words:?}");
    }
    let shown = |words: &[&str]| {
        let words: Vec<OsString> = std::iter::once("swarm").chain(words.iter().copied()).map(Into::into).collect();
        let error = parse(&words).expect_err("help");
        assert!(!error.use_stderr(), "{error}");
        error.to_string()
    };
    assert_eq!(shown(&["help"]), shown(&["--help"]));
    assert_eq!(shown(&["help", "merge", "add"]), shown(&["merge", "add", "--help"]));
    assert_eq!(shown(&["help", "list"]), shown(&["ls", "--help"]));
    for words in [&["version"][..], &["version", "--help"], &["version", "--json"], &["help", "version"]] {
        assert_eq!(shown(words), shown(&["--version"]), "{words:?}");
    }
}

#[test]
fn every_verb_has_examples() {
    for verb in Cli::command().get_subcommands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(
            help.contains("Example") && help.contains(&format!("swarm {}", verb.get_name())),
            "{}",
            verb.get_name()
        );
    }
}

#[test]
fn examples_of_loops_fit_into_80_columns() {
    let cli = Cli::command();
    let ralph = cli.find_subcommand("ralph").expect("a verb");
    for verb in std::iter::once(ralph).chain(ralph.get_subcommands()) {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  swarm ralph spawn") || line.starts_with("    --")) {
            assert!(line.chars().count() <= 80, "{}: {line}", verb.get_name());
        }
    }
}

#[test]
fn everything_after_the_dashes_belongs_to_the_command() {
    let args = spawn(&["--name", "x", "--", "cargo", "test", "--name", "y", "--", "-z"]);
    assert_eq!((args.name.as_str(), args.command.join(" ").as_str()), ("x", "cargo test --name y -- -z"));
    assert_eq!(spawn(&["--name", "x", "--", "--", "a"]).command, ["--", "a"]);
    assert!(spawn(&["--name", "x", "--"]).command.is_empty());
    assert!(spawn(&["--name", "x"]).command.is_empty());
}

#[test]
fn without_dashes_the_command_begins_at_the_first_word() {
    let args = spawn(&["--name", "x", "echo", "--tmux", "-n", "--", "a"]);
    assert!(!args.tmux);
    assert_eq!(args.command, ["echo", "--tmux", "-n", "--", "a"]);
}

#[test]
fn long_options_may_be_shortened_while_they_are_unique() {
    let args = spawn(&["--na", "x", "--ready-w", "--br=b", "--tmux-s", "sock", "--tmux", "--", "a"]);
    assert!(args.place.ready_wait && args.tmux);
    assert_eq!(
        (args.name.as_str(), args.place.branch.as_deref(), args.place.tmux_socket.as_deref()),
        ("x", Some("b"), Some("sock"))
    );
    assert!(refused(&["spawn", "--name", "x", "--ready", "--", "a"]).starts_with("error:"));
    assert!(refused(&["spawn", "--name", "x", "--nonsense", "--", "a"]).starts_with("error:"));
}

#[test]
fn options_and_positionals_mix_and_the_last_of_two_wins() {
    let Command::Kill(kill) = command(&["kill", "--rm-worktree", "x", "--force-dirty"]) else { panic!("not kill") };
    assert!(kill.rm_worktree && kill.force_dirty && kill.names == ["x"]);
    let Command::Ls(ls) = command(&["ls", "--tag", "a", "--tag", "b", "--format", "json", "--format", "names"]) else {
        panic!("not ls")
    };
    assert_eq!((ls.tags.join(","), ls.format), ("a,b".into(), Format::Names));
    let Command::Clean(clean) = command(&["clean", "x", "--no-rm-worktree", "--rm-worktree"]) else {
        panic!("not clean")
    };
    assert!(clean.rm_worktree && !clean.no_rm_worktree);
    let args = spawn(&["--tag", "a", "--name", "x", "--tag", "b", "--env", "A=1", "--env", "B=2", "--", "a"]);
    assert_eq!((args.place.tags.join(","), args.place.env.join(",")), ("a,b".into(), "A=1,B=2".into()));
}

#[test]
fn defaults_are_the_original_ones() {
    let args = spawn(&["--name", "x", "--", "a"]);
    assert_eq!((args.place.ready_timeout, args.restart, args.timeout), (120, None, None));
    let Command::Peek(peek) = command(&["peek", "x"]) else { panic!("not peek") };
    assert_eq!(peek.lines, None);
    let Command::Wait(wait) = command(&["wait", "x", "--timeout", "0"]) else { panic!("not wait") };
    assert_eq!(wait.timeout, Some(Duration::ZERO));
}

#[test]
fn text_to_send_may_begin_with_a_hyphen_but_a_mistyped_option_is_refused() {
    let text = |words: &[&str]| match command(&[&["send"], words].concat()) {
        Command::Send(send) => (send.name().map(str::to_owned), send.text().to_owned(), send.no_enter),
        other => panic!("{other:?}"),
    };
    assert_eq!(text(&["x", "- fix it"]), (Some("x".into()), "- fix it".into(), false));
    assert_eq!(text(&["x", "--no-enter please"]), (Some("x".into()), "--no-enter please".into(), false));
    assert_eq!(text(&["x", "--no-enter", "hello"]), (Some("x".into()), "hello".into(), true));
    assert_eq!(text(&["x", "hello", "--no-e"]), (Some("x".into()), "hello".into(), true));
    assert_eq!(text(&["x", "-1"]), (Some("x".into()), "-1".into(), false));
    assert_eq!(text(&["--all", "go"]), (None, "go".into(), false));
    assert_eq!(text(&["x", "--", "--help"]), (Some("x".into()), "--help".into(), false));
    assert!(refused(&["send", "x", "--no-entre"]).contains("put '--' before it"));
    assert!(refused(&["send", "x", "-z"]).starts_with("error:"));
}

#[test]
fn mistakes_are_usage_errors() {
    for words in [
        &["frobnicate"][..],
        &["spawn", "--", "a"],
        &["ls", "--format", "xml"],
        &["status"],
        &["wait", "x", "--timeout", "soon"],
        &["flow", "deny", "f", "1", "--flow-wide"],
        &["spawn", "--name", "x", "--restart", "sometimes", "--", "a"],
        &["init", "--file", "README.md"],
    ] {
        assert!(refused(words).starts_with("error:"), "{words:?}");
    }
    assert!(refused(&[]).contains("Usage:"));
}

#[test]
fn hosts_rm_names_what_forgets_a_host() {
    for word in ["rm", "remove"] {
        let words = ["swarm", "hosts", word, "box"].map(OsString::from);
        let error = parse(&words).expect_err("no verb").to_string();
        assert!(error.contains(&format!("'{word}': 'swarm hosts forget HOST' forgets")), "{error}");
    }
    let words = ["swarm", "hosts", "remov"].map(OsString::from);
    assert!(!parse(&words).expect_err("no verb").to_string().contains("hosts forget HOST"));
}
