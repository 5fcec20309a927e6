//! `swarm top --json`: what it says is what `ls --json` says, and looking changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::common::{Rig, SOON, proc, run, schema, wait_until};

/// A running `swarm top --json`, and the rows according to its lines so far.
pub struct Top {
    child: Child,
    lines: Receiver<String>,
    board: String,
    rev: u64,
    rows: BTreeMap<String, Value>,
    /// Items of merge queues by their keys.
    items: BTreeMap<String, Value>,
    /// Runs, workstreams and flows by their keys.
    pub runs: BTreeMap<String, Value>,
    pub workstreams: BTreeMap<String, Value>,
    pub flows: BTreeMap<String, Value>,
}

/// Returns the lines that a child prints, as they come.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, lines) = channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

impl Top {
    fn start(rig: &Rig) -> Self {
        Self::start_in(rig, &rig.cwd())
    }

    pub fn start_in(rig: &Rig, dir: &Path) -> Self {
        let mut command = rig.command(&["top", "--json"]);
        let mut child = command.current_dir(dir).stdout(Stdio::piped()).spawn().expect("started");
        let lines = lines_of(&mut child);
        let first = lines.recv_timeout(SOON).expect("a first line");
        let [rows, items, runs, workstreams, flows] = [const { BTreeMap::new() }; 5];
        let mut top = Self { child, lines, board: String::new(), rev: 0, rows, items, runs, workstreams, flows };
        top.take(&first);
        top
    }

    fn take(&mut self, line: &str) {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let (name, board) = if self.board.is_empty() {
            value["board"].as_str().expect("an id").clone_into(&mut self.board);
            ("swarm.board/1", self.board.clone())
        } else {
            ("swarm.board.change/1", self.board.clone())
        };
        assert_eq!(schema::check_lines(line), [name]);
        let rev = value["rev"].as_u64().expect("a number");
        assert!(value["board"] == board && (rev > self.rev || self.rev == 0), "{line}");
        for gone in value["gone"].as_array().into_iter().flatten() {
            let rows = match gone["kind"].as_str().expect("a kind") {
                "worker" => &mut self.rows,
                "item" => &mut self.items,
                "run" => &mut self.runs,
                "workstream" => &mut self.workstreams,
                "flow" => &mut self.flows,
                other => panic!("{other}"),
            };
            rows.remove(gone["name"].as_str().expect("a name")).expect("was there");
        }
        let lists = [
            ("workers", "name", &mut self.rows),
            ("items", "key", &mut self.items),
            ("runs", "key", &mut self.runs),
            ("workstreams", "key", &mut self.workstreams),
            ("flows", "key", &mut self.flows),
        ];
        for (list, name, rows) in lists {
            for row in value[list].as_array().expect("a list") {
                let mut row: Map<String, Value> = row.as_object().expect("an object").clone();
                let of_row = row.remove("rev").and_then(|rev| rev.as_u64()).expect("a number");
                assert!(of_row > self.rev && of_row <= rev, "{line}");
                rows.insert(row[name].as_str().expect("a name").to_owned(), row.into());
            }
        }
        self.rev = rev;
    }

    /// Waits until the rows satisfy a condition.
    pub fn is(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        wait_until(what, SOON, || {
            while let Ok(line) = self.lines.try_recv() {
                self.take(&line);
            }
            condition(self)
        });
    }

    /// Waits until the rows are those of `ls --json`.
    fn agrees(&mut self, rig: &Rig, what: &str) {
        wait_until(what, SOON, || {
            while let Ok(line) = self.lines.try_recv() {
                self.take(&line);
            }
            let listed: Value = serde_json::from_str(&rig.swarm(&["ls", "--json"]).ok()).expect("JSON");
            let listed = listed["workers"].as_array().expect("a list").iter();
            let listed: BTreeMap<String, Value> =
                listed.map(|row| (row["name"].as_str().expect("a name").to_owned(), row.clone())).collect();
            listed == self.rows
        });
    }

    /// Waits until the items are those of `merge ls --json`.
    fn agrees_on_items(&mut self, rig: &Rig, repo: &Path, what: &str) {
        wait_until(what, SOON, || {
            while let Ok(line) = self.lines.try_recv() {
                self.take(&line);
            }
            let listed: Value =
                serde_json::from_str(&rig.swarm_in(repo, &["merge", "ls", "--json"]).ok()).expect("JSON");
            let listed: Vec<Value> = listed["queues"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|queue| queue["items"].as_array().expect("a list").clone())
                .collect();
            let without_key = |mut row: Value| {
                row.as_object_mut().expect("an object").remove("key");
                row
            };
            let known: Vec<Value> = self.items.values().cloned().map(without_key).collect();
            listed == known
        });
    }

    fn row(&self, name: &str) -> &Value {
        self.rows.get(name).unwrap_or(&Value::Null)
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_board_says_what_the_list_says() {
    let rig = Rig::new();
    let mut top = Top::start(&rig);
    assert!(top.rows.is_empty() && !rig.root().exists(), "looking writes nothing");
    rig.spawn("a", &["--env", "KEY=secret"], &["sleep", "600"]);
    top.agrees(&rig, "a spawn");
    assert_eq!((&top.row("a")["state"], &top.row("a")["env"]), (&json!("running"), &json!({"KEY": "***"})));
    rig.spawn_sh("b", &["--tag", "t"], "exit 3");
    rig.wait("b");
    top.agrees(&rig, "an end");
    assert_eq!(top.row("b")["exit"]["code"], 3);
    rig.swarm(&["kill", "a"]).ok();
    top.agrees(&rig, "a stop");
    assert_eq!(top.row("a")["state"], "stopped");
    rig.swarm(&["clean", "a"]).ok();
    top.agrees(&rig, "a clean");
    assert_eq!(top.rows.keys().collect::<Vec<_>>(), ["b"]);
    rig.swarm(&["respawn", "b"]).ok();
    rig.wait("b");
    top.agrees(&rig, "a second start");
    // A reader that comes later gets the same.
    Top::start(&rig).agrees(&rig, "a late reader");
}

/// The board rests on rows and records. What becomes of the recorded events changes nothing.
#[test]
fn the_board_says_what_the_list_says_whatever_becomes_of_the_events() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let mut top = Top::start(&rig);
    let events = rig.root().join("events.jsonl");
    let torn = || {
        let mut all = fs::read(&events).expect("there");
        all.truncate(all.len() - 7);
        fs::write(&events, all).expect("torn");
    };
    let rotated = || fs::rename(&events, rig.root().join("events.jsonl.1")).expect("rotated");
    let emptied = || fs::write(&events, "").expect("emptied");
    let filled = || fs::write(&events, "{\"event\":\"odd\"}\n".repeat(8 << 16)).expect("filled");
    let steps: [(&str, &dyn Fn()); 4] =
        [("torn", &torn), ("rotated", &rotated), ("emptied", &emptied), ("filled", &filled)];
    for (step, happens) in steps {
        happens();
        rig.swarm(&["kill", "a"]).ok();
        top.agrees(&rig, step);
        assert_eq!(top.row("a")["state"], "stopped", "{step}");
        rig.swarm(&["respawn", "a"]).ok();
        top.agrees(&rig, step);
        assert_eq!(top.row("a")["state"], "running", "{step}");
    }
    Top::start(&rig).agrees(&rig, "a late reader");
}

#[test]
fn a_question_shows_and_goes_with_its_answer() {
    let rig = Rig::new();
    let mut top = Top::start(&rig);
    rig.spawn_sh("a", &[], &format!("'{}' ask 'Which colour?' --wait; exec sleep 600", env!("CARGO_BIN_EXE_swarm")));
    let asks = || rig.view("a")["needs"]["kind"] == "question";
    wait_until("it asks", SOON, asks);
    top.agrees(&rig, "a question");
    assert_eq!(top.row("a")["needs"]["text"], "Which colour?");
    rig.swarm(&["answer", "1", "green"]).ok();
    wait_until("it goes on", SOON, || rig.view("a")["needs"].is_null());
    top.agrees(&rig, "an answer");
}

#[test]
fn items_of_merge_queues_show_until_they_have_landed() {
    let rig = Rig::new();
    let repo = rig.repo();
    let mut top = Top::start(&rig);
    let work = "echo two > new; git add new; git commit -qm two";
    rig.swarm_in(&repo, &["spawn", "--name", "fix", "--worktree", "--", "sh", "-c", work]).ok();
    rig.wait("fix");
    rig.swarm_in(&repo, &["merge", "add", "fix", "--verify", "test ! -e new"]).ok();
    rig.swarm_in(&repo, &["merge", "wait", "fix"]);
    top.agrees_on_items(&rig, &repo, "a rejected item");
    let item = top.items.values().next().expect("an item");
    assert_eq!((&item["name"], &item["state"]), (&json!("fix"), &json!("rejected")));
    rig.swarm_in(&repo, &["merge", "add", "fix", "--verify", "true"]).ok();
    rig.swarm_in(&repo, &["merge", "wait", "fix"]).ok();
    top.agrees_on_items(&rig, &repo, "a landed item");
    assert!(top.items.is_empty(), "{:?}", top.items);
}

#[test]
fn lines_tell_each_change_once() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let mut child = rig.command(&["top", "--lines"]).stdout(Stdio::piped()).spawn().expect("started");
    let lines = lines_of(&mut child);
    let next = || lines.recv_timeout(SOON).expect("a line");
    assert_eq!((next().as_str(), next().as_str()), ("1 worker  1 at work", "a: running, sleep 600"));
    rig.swarm(&["kill", "a"]).ok();
    let told: Vec<String> = std::iter::repeat_with(next).take_while(|line| line != "a: stopped, sleep 600").collect();
    assert!(told.iter().all(|line| line.starts_with("a: ")), "{told:?}");
    rig.swarm(&["clean", "a"]).ok();
    assert_eq!(next(), "a: gone");
    child.kill().expect("ended");
    child.wait().expect("reaped");
}

#[test]
fn looking_needs_no_supervisor_and_starts_none() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    rig.spawn("b", &[], &["sleep", "600"]);
    rig.swarm(&["supervisor", "stop"]).ok();
    let mut top = Top::start(&rig);
    proc::kill(rig.pid("a"));
    wait_until("its end is recorded", SOON, || !rig.view("a")["exit"].is_null());
    top.agrees(&rig, "an end that no supervisor tells");
    assert_eq!(top.row("a")["exit"]["signal"], "SIGKILL");
    assert_eq!(rig.keepers(), (None, None));
    let pid = i32::try_from(top.child.id()).expect("a pid");
    proc::signal(pid, Signal::INT);
    assert!(proc::wait_end(pid, SOON) && top.child.wait().expect("ended").success());
}

#[test]
fn without_a_terminal_it_names_what_there_is_instead() {
    let rig = Rig::new();
    let said = run(rig.command(&["top"])).refused(1, "'swarm top' needs a terminal for its input and its output");
    assert!(
        said.err.contains("run 'swarm top --lines', 'swarm top --json' for a program, or 'swarm ls -l'"),
        "{said:?}"
    );
}
