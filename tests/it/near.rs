//! Near ends of connections: `swarm __reach` for the calls of a run, and `swarm __carry` for git. The host is a home of its own,
//! reached by a command.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::common::{Rig, Said, run};

const CLONE: (&str, &str) = ("c0ffee00c0ffee00", "0123456789abcdef");

/// This machine, and a host with the name `box`.
struct Pair {
    near: Rig,
    far: Rig,
}

impl Pair {
    fn new() -> Self {
        let pair = Self { near: Rig::new(), far: Rig::new() };
        let script = format!(
            "echo 'Welcome to box'; exec env -i PATH='{}' HOME='{}' TMUX_TMPDIR='{}' '{}' \"$@\"",
            std::env::var("PATH").expect("set"),
            pair.far.home().display(),
            pair.far.path("tmux").display(),
            pair.far.marker(),
        );
        let reach = pair.near.file("reach", &script);
        let (program, state) = (env!("CARGO_BIN_EXE_swarm"), pair.far.root());
        let text = format!(
            "[hosts.box]\ncommand = ['sh', '{reach}']\nswarm = '{program}'\nstate = '{}'\n[hosts.gone]\ncommand = \
             ['false']\nswarm = '{program}'\n",
            state.display()
        );
        let dir = pair.near.home().join(".config/swarm");
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("config.toml"), text).expect("written");
        pair
    }

    fn reach(&self, host: &str) -> Line {
        let mut command = self.near.command(&["__reach", host]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Line { child, input, output: BufReader::new(output) }
    }

    /// Runs git here as `swarm __carry` is used.
    fn git(&self, words: &[&str]) -> Said {
        let mut command = self.near.program("git");
        command.current_dir(self.near.path("repo")).args(words).env("GIT_SSH_VARIANT", "simple");
        command.env("GIT_SSH_COMMAND", format!("'{}' __carry box", env!("CARGO_BIN_EXE_swarm")));
        run(command)
    }
}

struct Line {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Line {
    fn say(&mut self, value: &Value) {
        writeln!(self.input.as_mut().expect("open"), "{value}").expect("written");
    }

    /// Returns the next line; null at the end.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        if line.is_empty() { Value::Null } else { serde_json::from_str(&line).expect("JSON") }
    }

    fn end(mut self) -> Option<i32> {
        self.input = None;
        assert_eq!(self.next(), Value::Null);
        self.child.wait().expect("ended").code()
    }
}

fn clone() -> Value {
    json!({"clone": {"clone": {"controller": CLONE.0, "repository": CLONE.1}, "format": "sha1"}})
}

#[test]
fn calls_are_passed_on_and_the_state_directory_is_that_of_the_configuration() {
    let pair = Pair::new();
    let mut line = pair.reach("box");
    assert!(line.next()["hello"]["version"].is_string());
    for id in [7, 8] {
        line.say(&json!({"call": {"id": id, "call": clone()}}));
        let told = line.next();
        let own = std::fs::read_to_string(pair.far.root().join("id")).expect("an id");
        assert_eq!(told, json!({"answer": {"id": id, "answer": "done", "host": own.trim()}}));
    }
    assert!(pair.far.root().join("far").join(CLONE.0).join(CLONE.1).join("clone/.git").is_dir());
    assert_eq!(line.end(), Some(0));
}

#[test]
fn a_connection_that_there_is_not_is_explained_in_the_first_line() {
    let pair = Pair::new();
    for (host, kind) in [("gone", "away"), ("a:b", "refused"), ("-oProxyCommand=x", "refused")] {
        let mut line = pair.reach(host);
        let first = line.next();
        assert_eq!(first["fault"]["kind"], kind, "{first}");
        assert_eq!(line.end(), Some(255));
    }
}

#[test]
fn git_pushes_and_fetches_and_says_why_it_does_not() {
    let pair = Pair::new();
    let repo = pair.near.repo();
    let url = format!("ssh://far/{}/{}", CLONE.0, CLONE.1);
    let head = pair.near.git(&repo, &["rev-parse", "HEAD"]).trim().to_owned();
    let spec = format!("{head}:refs/swarm/in/{head}");
    let said = pair.git(&["push", "-q", &url, &spec]);
    assert!(said.err.starts_with("fatal: swarm: refused: box refuses the clone: "), "{said:?}");
    let mut line = pair.reach("box");
    line.next();
    line.say(&json!({"call": {"id": 1, "call": clone()}}));
    line.next();
    pair.git(&["push", "-q", &url, &spec]).ok();
    let listed = pair.git(&["ls-remote", &url]).ok();
    assert_eq!(listed, format!("{head}\trefs/swarm/in/{head}\n"));
    pair.git(&["fetch", "-q", &url, &format!("refs/swarm/in/{head}:refs/back")]).ok();
    let said = pair.git(&["ls-remote", "ssh://far/../x"]);
    assert!(said.err.starts_with("fatal: swarm: refused: git asked for something else than a clone"), "{said:?}");
    assert_eq!(line.end(), Some(0));
}
