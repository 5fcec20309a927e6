use std::fs;

use swarm_model::{Ended, WorkerView};

use super::*;
use crate::cli::sample;

struct State {
    dir: tempfile::TempDir,
    paths: Paths,
}

fn state(files: &[(&str, &str)]) -> State {
    let dir = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(dir.path());
    fs::create_dir(paths.logs()).expect("made");
    for (name, text) in files {
        fs::write(paths.logs().join(name), text).expect("written");
    }
    State { dir, paths }
}

fn logged(state: &State, words: &[&str], workers: Vec<WorkerView>) -> (String, String, u8) {
    assert!(state.dir.path().is_dir());
    let crate::cli::args::Command::Logs(args) = sample::command(&[&["logs"], words].concat()) else {
        panic!("not logs");
    };
    let registry = sample::registry(workers);
    match &args.name {
        Some(name) => {
            sample::said(|screen| show(&args, name, &state.paths, registry, Errors::Apart, screen).map(|()| 0))
        }
        None => sample::said(|screen| logs_many::run(&args, &state.paths, &registry, screen)),
    }
}

fn out(state: &State, words: &[&str], worker: WorkerView) -> String {
    let (out, err, code) = logged(state, words, vec![worker]);
    assert_eq!((err.as_str(), code), ("", 0));
    out
}

#[test]
fn a_process_log_is_shown_whole_and_unchanged() {
    let files = [("x.stdout.log.1", "one\n"), ("x.stdout.log", "\x1b[31mtwo\nthree\n"), ("x.stderr.log", "oops\n")];
    let state = state(&files);
    let x = || sample::process("x");
    let both = |words: &[&str]| {
        let (out, err, code) = logged(&state, words, vec![x()]);
        assert_eq!((err.as_str(), code), ("oops\n", 0), "standard error stays apart");
        out
    };
    assert_eq!(both(&["x"]), "one\n\x1b[31mtwo\nthree\n");
    assert_eq!(both(&["x", "--history", "--lines", "1"]), "one\n\x1b[31mtwo\nthree\n");
    assert_eq!(both(&["x", "--lines", "1"]), "three\n");
    assert_eq!(out(&state, &["x", "--stderr"], x()), "oops\n");
    let streams: Vec<(String, String)> = out(&state, &["x", "--json", "--lines", "1"], x())
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("json"))
        .map(|line| (line["stream"].as_str().expect("text").into(), line["text"].as_str().expect("text").into()))
        .collect();
    assert_eq!(streams, [("stdout".to_owned(), "three".to_owned()), ("stderr".to_owned(), "oops".to_owned())]);
    let (out, err, _) = logged(&state, &["--tag", "ci", "--lines", "1"], vec![x()]);
    assert_eq!((out.as_str(), err.as_str()), ("x | three\nx | oops\n", ""));
}

#[test]
fn a_worker_that_writes_only_to_standard_error_has_a_log() {
    let state = state(&[("x.stderr.log", "oops\n")]);
    let ended = || vec![sample::ended("x", Ended::Code(1))];
    assert_eq!(logged(&state, &["x"], ended()), (String::new(), "oops\n".into(), 0));
    assert_eq!(logged(&state, &["x", "--follow"], ended()), (String::new(), "oops\n".into(), 0));
}

#[test]
fn a_window_is_shown_as_its_screen_was() {
    let repainted = "\x1b[1m●\x1b[1Cthe\x1b[1Canswer\r\n⠋ thinking\r\x1b[2K\x1b[1A\x1b[2K● 42\r\n0123456789abcdef\r\n";
    let state = state(&[
        ("x.tmux.log.1", "earlier\r\n0123456789ab\r\n"),
        ("x.tmux.sizes.1", "0 80 24\n"),
        ("x.tmux.log", repainted),
        ("x.tmux.sizes", "0 14 24\n"),
    ]);
    let x = || sample::window("x");
    assert_eq!(out(&state, &["x"], x()), "earlier\n0123456789ab\n● 42\n0123456789abcd\nef\n");
    assert_eq!(out(&state, &["x", "--lines", "2"], x()), "0123456789abcd\nef\n");
    let (out, _, _) = logged(&state, &["x", "--raw"], vec![x()]);
    assert!(out.ends_with(repainted));
    let at = repainted.find("0123").expect("there");
    fs::write(state.paths.logs().join("x.tmux.sizes"), format!("0 14 24\n{at} 80 24\n")).expect("written");
    assert_eq!(logged(&state, &["x", "--lines", "1"], vec![x()]).0, "0123456789abcdef\n");
}

#[test]
fn a_window_is_shown_as_plain_text() {
    let text: String = (0..1500).map(|line| format!("\x1b[32mline {line}\x1b[0m\r\n")).collect();
    let state = state(&[("x.tmux.log", &text)]);
    let x = || sample::window("x");
    assert_eq!(out(&state, &["x"], x()).lines().count(), 24);
    assert_eq!(out(&state, &["x", "--history"], x()).lines().count(), 1000);
    assert_eq!(out(&state, &["x", "--history", "--lines", "2"], x()), "line 1498\nline 1499\n");
    assert_eq!(out(&state, &["x", "--lines", "1", "--raw"], x()), "\x1b[32mline 1499\x1b[0m\r\n");
}

#[test]
fn failures_are_reported_in_the_original_words() {
    let state = state(&[]);
    assert_eq!(logged(&state, &["x"], Vec::new()), (String::new(), "swarm: no worker named 'x'\n".into(), 1));
    let near = logged(&state, &["bulider"], vec![sample::process("builder")]).1;
    assert_eq!(near, "swarm: no worker named 'bulider'\nswarm: hint: did you mean 'builder'?\n");
    let none = logged(&state, &["x"], vec![sample::process("x")]);
    assert_eq!(none, (String::new(), "swarm: no logs found for x\n".into(), 1));
    assert!(
        logged(&state, &["x", "--stderr"], vec![sample::window("x")])
            .1
            .contains("contains both standard output and standard error")
    );
}

#[test]
fn following_a_worker_that_ended_shows_its_end_and_returns() {
    let text: String = (0..20).map(|line| format!("line {line}\n")).collect();
    let state = state(&[("x.stdout.log", &text)]);
    let x = || sample::ended("x", Ended::Code(0));
    assert_eq!(out(&state, &["x", "--follow"], x()).lines().count(), 10);
    assert_eq!(out(&state, &["x", "--follow", "--history"], x()), text);
}

#[test]
fn json_has_one_object_per_line_even_for_an_incomplete_line() {
    let state = state(&[("x.stdout.log", "a\n\"b\"")]);
    let expected = "{\"schema\":\"swarm.log/1\",\"name\":\"x\",\"stream\":\"stdout\",\"text\":\"a\"}\n\
                    {\"schema\":\"swarm.log/1\",\"name\":\"x\",\"stream\":\"stdout\",\"text\":\"\\\"b\\\"\"}\n";
    assert_eq!(out(&state, &["x", "--json"], sample::process("x")), expected);
}

/// A worker writes, its log is rotated, it writes again and ends: a follower that started before all that prints every
/// line once and returns. Once the process of the worker has ended, the stub of the registry no longer lists it.
#[test]
fn following_gives_every_line_once_and_ends_with_the_worker() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let state = state(&[("x.stdout.log", "first\n")]);
    let (log, older) = (state.paths.log("x", "stdout"), state.paths.logs().join("x.stdout.log.1"));
    let script = format!(
        "read go; echo second >>{log}; cp {log} {older}; : >{log}; echo third >>{log}; read stop",
        log = log.display(),
        older = older.display()
    );
    let mut child =
        Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    let pid = i32::try_from(child.id()).expect("a pid");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let ticks = stat.rsplit_once(')').expect("brackets").1.split_ascii_whitespace().nth(19).expect("field").to_owned();
    let mut view = sample::process("x");
    let start_ticks = ticks.parse().expect("number");
    view.watch = Some(swarm_model::ProcessId { pid, start_ticks, boot: String::new() });

    let registry = sample::registry(vec![view]);
    let (mut input, mut is_going) = (child.stdin.take(), false);
    let mut bytes = Vec::new();
    let mut tail = Tail::new(log.clone());
    let mut follow = Follow::new(&state.paths, &log).expect("watched");
    let life = Followed { life: WatchedWorker::of(registry.find("x").expect("there")), through_tmux: false };
    follow
        .run(&mut tail, Some(life), Some(registry), &mut |block: &[u8]| {
            bytes.extend_from_slice(block);
            let text = String::from_utf8_lossy(&bytes);
            // The worker continues when its reader has seen the previous line.
            if text.ends_with("first\n") && block.is_empty() && !std::mem::replace(&mut is_going, true) {
                input.as_mut().expect("open").write_all(b"go\n").expect("written");
            }
            if text.contains("third") {
                input = None;
            }
            Ok(())
        })
        .expect("followed");
    child.wait().expect("reaped");
    assert_eq!(String::from_utf8_lossy(&bytes), "first\nsecond\nthird\n");
}

#[test]
fn each_line_of_several_logs_begins_with_the_worker_name() {
    let state = state(&[("one.stdout.log", "a\nb"), ("two.stdout.log", "c\n")]);
    let workers = || vec![sample::process("one"), sample::window("other"), sample::process("two")];
    let (out, err, code) = logged(&state, &["--tag", "ci"], workers());
    assert_eq!((out.as_str(), err.as_str(), code), ("one | a\none | b\ntwo | c\n", "", 0));
    let (out, _, _) = logged(&state, &["--tag", "ci", "--lines", "1", "--json"], workers());
    assert!(
        out.ends_with("{\"schema\":\"swarm.log/1\",\"name\":\"two\",\"stream\":\"stdout\",\"text\":\"c\"}\n"),
        "{out}"
    );
    let silent = [workers(), vec![sample::process("silent")]].concat();
    let (out, err, code) = logged(&state, &["--tag", "ci"], silent);
    assert_eq!((out.lines().count(), code), (3, 1));
    assert_eq!(err, "swarm: warning: no logs found for silent\n");
}
