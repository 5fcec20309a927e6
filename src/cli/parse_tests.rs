use std::time::Duration;

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
fn a_verb_built_alone_takes_what_it_takes_among_the_others() {
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
fn the_top_level_help_is_as_written() {
    let expected = "\
Runs a fleet of coding agents: each in a tmux window or process of its own, with its own git worktree.

Usage: swarm <COMMAND>

Commands:
  spawn       Start a worker
  ls          List workers
  status      Say in one line how a worker is (exit code 0 running, 1 stopped, 2 unknown)
  explain     Say how a worker is and why, with the evidence
  peek        Show what is on the screen of a tmux worker
  send        Type text into a tmux worker
  interrupt   Send Ctrl-C to a tmux worker
  eof         Send Ctrl-D to a tmux worker
  attach      Take the terminal to the window of a tmux worker
  logs        Show what a worker has written
  diff        Show what a worker has done to its repository, committed or not
  du          Show what workers and their saves take on the disk
  merge       Land finished work on its base branch, one verified step at a time
  plan        Make a workstream of each spec in a folder
  run         Carry out what is planned, or a file of jobs: worked on, verified and landed
  ralph       Repeat an agent with fresh context until it is done
  heartbeat   Nudge agents: text that is typed into their windows on a schedule
  flow        Let roles hand work to each other by a workflow, and answer them
  kill        Stop workers; they stay registered
  wait        Wait until workers have ended (exit code 1 when the time is up)
  clean       Forget stopped workers, with their logs and clean worktrees
  respawn     Start a worker again as it was started
  restore     List what was saved of worktrees that were removed, and bring it back
  recover     Show which workers nobody ended, after a reboot or a lost tmux server, and start them again
  init        Tell the agents of this project about swarm (AGENTS.md or CLAUDE.md)
  session     Look at the session of a worker, or change it
  events      Show what happened, oldest first
  doctor      Look for what is wrong, and mend it when you agree (exit code 1 when something is)
  config      Show what is set for this repository and this user, and where
  history     Show the life of a worker: each start, how it ended, and what landed
  notify      Try whether notifications arrive
  supervisor  Look after the process that looks after the workers
  completions Print what makes a shell complete verbs, options and the names of workers
  man         Print the manual page of a verb, or write all of them to a directory

Options:
  -h, --help     Print help
  -V, --version  Print version

Examples:
  swarm spawn --name fix --tmux --worktree -- claude   an agent in its own window and branch
  swarm ls -l                                          who runs, who ended and how
  swarm send fix \"run the tests and fix what fails\"
  swarm wait fix && swarm logs fix

State lies in $SWARM_DIR (default ~/.swarm). `swarm VERB --help` shows more.
";
    // How wide the first column is depends on the longest verb.
    let even = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let [said, expected]: [Vec<String>; 2] =
        [even(&Cli::command().term_width(200).render_help().to_string()), even(expected)];
    assert_eq!(said, expected);
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
fn all_after_the_dashes_belongs_to_the_command() {
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
    assert_eq!(peek.lines, 30);
    let Command::Wait(wait) = command(&["wait", "x", "--timeout", "0"]) else { panic!("not wait") };
    assert_eq!(wait.timeout, Some(Duration::ZERO));
}

#[test]
fn text_to_send_may_begin_with_a_hyphen_but_a_mistyped_option_is_none() {
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
        &["spawn", "--name", "x", "--restart", "sometimes", "--", "a"],
        &["init", "--file", "README.md"],
    ] {
        assert!(refused(words).starts_with("error:"), "{words:?}");
    }
    assert!(refused(&[]).contains("Usage:"));
}
