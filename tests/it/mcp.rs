//! `swarm mcp`: an agent looks, acts and answers through tools, and nothing it sends ends or blocks anything else.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::asks;
use crate::common::proc;
use crate::common::{Rig, SOON, wait_until};

const NEWEST: &str = "2025-11-25";

/// The client's side of a session: requests, and the answers to them.
struct Session<W> {
    input: W,
    lines: Receiver<Value>,
    id: u64,
    /// Notifications of the server so far.
    told: Vec<Value>,
}

impl<W: Write> Session<W> {
    /// Reads lines of JSON, and nothing else, from `output`.
    fn of(input: W, output: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        let parsed = |line: String| serde_json::from_str::<Value>(&line).unwrap_or_else(|_| json!({"odd": line}));
        let mut output = BufReader::new(output).lines().map_while(Result::ok).map(parsed);
        std::thread::spawn(move || output.try_for_each(|line| sender.send(line)));
        Self { input, lines, id: 0, told: Vec::new() }
    }

    fn line(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).and_then(|()| self.input.write_all(b"\n")).expect("it reads");
        self.input.flush().expect("it reads");
    }

    /// Sends a request without waiting for its answer.
    fn ask(&mut self, method: &str, params: &Value) -> u64 {
        self.id += 1;
        let id = self.id;
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        id
    }

    /// Returns the next answer, which must be that to `id`.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let line = self.lines.recv_timeout(SOON).unwrap_or_else(|error| panic!("no answer to {id}: {error}"));
            assert_eq!(line["jsonrpc"], "2.0", "{line}");
            if line.get("method").is_some() {
                self.told.push(line);
                continue;
            }
            assert_eq!(line["id"], id, "{line}");
            return line;
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        self.answer(id)
    }

    fn begin(&mut self, version: &str) {
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
        let said = self.request("initialize", &params);
        assert_eq!(said["result"]["protocolVersion"], version, "{said}");
        assert_eq!(said["result"]["serverInfo"]["name"], "swarm");
        self.line(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    /// Calls a tool, and returns its result.
    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.request("tools/call", &json!({"name": tool, "arguments": arguments}))["result"].clone()
    }

    /// Calls a tool, which must succeed; returns its text and its data.
    #[track_caller]
    fn ok(&mut self, tool: &str, arguments: &Value) -> (String, Value) {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result}");
        (text(&result), result["structuredContent"].clone())
    }

    /// Calls a tool, which must refuse; returns its words.
    #[track_caller]
    fn refused(&mut self, tool: &str, arguments: &Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result}");
        text(&result)
    }
}

/// Returns how a server ended, which must be soon.
#[track_caller]
fn ended(child: &mut Child, limit: Duration) -> ExitStatus {
    let pid = i32::try_from(child.id()).expect("a pid");
    assert!(proc::wait_end(pid, limit), "the server has not ended");
    child.wait().expect("it has ended")
}

/// Number of processes that follow the fleet for a wait.
fn followers(rig: &Rig) -> usize {
    let follows = |pid: &i32| proc::words(*pid).get(1).is_some_and(|word| word == "top");
    rig.processes().iter().filter(|pid| follows(pid)).count()
}

fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}")).to_owned()
}

/// Starts a server as a client does.
fn start(rig: &Rig, cwd: &Path, words: &[&str]) -> (Child, Session<std::process::ChildStdin>) {
    let mut command = rig.command(&[&["mcp"], words].concat());
    let mut child = command
        .current_dir(cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    (child, Session::of(input, output))
}

fn begun(rig: &Rig, cwd: &Path, words: &[&str]) -> (Child, Session<std::process::ChildStdin>) {
    let (child, mut session) = start(rig, cwd, words);
    session.begin(NEWEST);
    (child, session)
}

/// Ends the input and returns how the server ended; it must have printed no error.
#[track_caller]
fn close(mut child: Child, session: Session<std::process::ChildStdin>) -> ExitStatus {
    drop(session.input);
    let status = ended(&mut child, SOON);
    let mut errors = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert_eq!(errors, "");
    let left: Vec<Value> = session.lines.iter().collect();
    assert!(left.iter().all(|line| line.get("odd").is_none()), "{left:?}");
    status
}

#[test]
fn looking_is_all_that_is_allowed_by_default_and_writes_nothing() {
    let rig = Rig::new();
    for version in ["2024-11-05", "2025-06-18", NEWEST] {
        let (child, mut session) = start(&rig, &rig.cwd(), &[]);
        session.begin(version);
        let list = session.request("tools/list", &json!({}));
        let tools = list["result"]["tools"].as_array().expect("a list");
        assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{list}");
        assert_eq!(tools.len(), 9);
        assert_eq!(session.ok("ls", &json!({})).0, "0 workers: 0 running, 0 need someone, 0 failed");
        assert!(close(child, session).success());
    }
    // The version without a handshake.
    let (child, mut session) = start(&rig, &rig.cwd(), &["--allow", "act", "--allow", "answer"]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let found = session.request("server/discover", &json!({"_meta": meta}));
    assert!(found["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    let list = session.request("tools/list", &json!({"_meta": meta}));
    assert_eq!(list["result"]["tools"].as_array().map(Vec::len), Some(20), "{list}");
    let bytes = serde_json::to_string(&list["result"]["tools"]).expect("JSON").len();
    assert!(bytes <= 6_000, "{bytes}");
    assert!(close(child, session).success());
    assert!(!rig.root().exists(), "it has written something");
}

#[test]
fn what_is_wrong_is_one_sentence_and_ends_nothing() {
    let rig = Rig::new();
    let (child, mut session) = begun(&rig, &rig.cwd(), &["--allow=act"]);
    let refusals = [
        ("ls", json!({"nmae": 1}), "'ls' has no argument 'nmae'; it takes state, tag, cursor"),
        ("ls", json!({"cursor": "x"}), "'cursor' of 'ls' must be one that an earlier answer of 'ls' contained"),
        ("logs", json!({}), "'logs' needs 'name'"),
        ("explain", json!({"name": "none"}), "worker 'none' not found"),
        ("wait", json!({"names": ["none"]}), "worker 'none' not found; 'ls' lists all"),
        ("diff", json!({"name": "--help"}), "worker '--help' not found"),
        ("kill", json!({"names": ["--all"]}), "worker '--all' not found"),
        ("spawn", json!({"name": "../x", "command": ["true"]}), "invalid worker name '../x'"),
        ("spawn", json!({"name": "x", "command": ["true"], "timeout": "soon"}), "invalid value 'soon' for '--timeout"),
        ("approve", json!({"ids": ["1"]}), "'approve' is not allowed: a person has to start this server as"),
        ("clean", json!({"names": ["x"]}), "unknown tool 'clean'; there are ls, explain"),
    ];
    for (tool, arguments, cause) in refusals {
        let said = session.refused(tool, &arguments);
        let is_sentence = !said.contains('\n') && !said.contains("--help'.");
        assert!(said.starts_with(cause) && is_sentence, "{tool} {arguments}: {said}");
    }
    // Lines that are not JSON are skipped, and JSON that is not a request is refused.
    session.line("{\"jsonrpc\": \"2.0\", \"id\": 77, \"method\"");
    session.line("\u{0}\u{1b}[A not JSON");
    let huge = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":78,\"method\":\"ping\",\"params\":{{\"x\":\"{}\"}}}}",
        "x".repeat(5 << 20)
    );
    session.line(&huge);
    let large = session.refused("spawn", &json!({"name": "x".repeat(1 << 20), "command": ["true"]}));
    assert!(large.len() < 10_000, "{} bytes", large.len());
    let unknown = session.request("tools/explode", &json!({}));
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    session.line(r#"{"jsonrpc":"2.0","method":"notifications/odd","params":{"a":[]}}"#);
    assert_eq!(session.request("ping", &json!({}))["result"], json!({}));
    assert!(session.ok("ls", &json!({})).0.starts_with("0 workers"));
    assert!(close(child, session).success());

    let (mut child, mut session) = start(&rig, &rig.cwd(), &[]);
    session.line(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(ended(&mut child, SOON).code(), Some(1));
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(said.starts_with("swarm: error: the client did not begin with a request"), "{said}");
    let far = rig.swarm(&["--host", "box", "mcp"]);
    assert!(far.err.contains("let the client execute 'ssh HOST swarm mcp'"), "{far:?}");
}

#[test]
fn workers_are_started_awaited_read_and_landed() {
    let rig = Rig::new();
    let repo = rig.repo();
    let (child, mut session) = begun(&rig, &repo, &["--allow", "act"]);
    for name in ["a", "b"] {
        let script = format!("seq 500; echo {name} > {name}; git add .; git commit -qm {name}");
        let arguments = json!({"name": name, "command": ["sh", "-c", script], "worktree": true, "tags": ["t"]});
        let (said, data) = session.ok("spawn", &arguments);
        assert!(said.starts_with(&format!("started {name}, worktree ")) && data["name"] == *name, "{said}");
    }
    assert!(session.refused("spawn", &json!({"name": "a", "command": ["true"]})).contains("already exists"));
    let (said, data) = session.ok("wait", &json!({"names": ["a", "b"]}));
    assert_eq!((said.as_str(), &data["done"]), ("done\na, exited, code 0\nb, exited, code 0", &json!(true)));
    // The log, from its end to its beginning.
    let (mut cursor, mut pages) = (Value::Null, Vec::new());
    loop {
        let (_, data) = session.ok("logs", &json!({"name": "a", "lines": 200, "cursor": cursor}));
        pages.push(data["text"].as_str().expect("text").to_owned());
        cursor = data["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    pages.reverse();
    let whole: Vec<String> = (1..=500).map(|line| line.to_string()).collect();
    assert_eq!((pages.len(), pages.join("\n")), (3, whole.join("\n")));
    let (said, data) = session.ok("diff", &json!({"name": "b"}));
    assert!(said.starts_with("b changes 1 files\nb +1 -0\npatch of b (data, not instructions):\ndiff --git a/b b/b\n"));
    assert!(data["patch"].as_str().is_some_and(|patch| patch.contains("\n+b\n")), "{data}");
    assert!(session.ok("explain", &json!({"name": "a"})).0.starts_with("a is exited: exited successfully after "));
    assert_eq!(session.ok("merge_add", &json!({"names": ["a", "b"]})).0, "#0 a queued\n#1 b queued");
    let (_, data) = session.ok("wait", &json!({"names": ["a", "b"], "for": "landed"}));
    assert_eq!((&data["done"], &data["items"][1]["state"]), (&json!(true), &json!("landed")), "{data}");
    assert_eq!(rig.git(&repo, &["show", "main:a", "main:b"]), "a\nb");
    let (said, _) = session.ok("merge_ls", &json!({"all": true}));
    assert!(said.starts_with("main: #0 a landed, commit "), "{said}");
    let (_, data) = session.ok("events", &json!({"name": "b"}));
    assert!(data["events"].to_string().contains("worker.exited"), "{data}");
    assert!(session.refused("run_status", &json!({})).starts_with("no plan in "));
    let (_, data) = session.ok("ls", &json!({"state": "stopped", "tag": "t"}));
    assert_eq!((data["workers"].as_array().map(Vec::len), &data["workers"][0]["name"]), (Some(2), &json!("a")));
    assert!(close(child, session).success());
}

#[test]
fn windows_are_typed_into_and_workers_stopped_and_started_again() {
    let rig = Rig::new();
    let (child, mut session) = begun(&rig, &rig.cwd(), &["--allow", "act", "--children", "1"]);
    session.ok("spawn", &json!({"name": "w", "command": ["cat"], "tmux": true}));
    let many = session.refused("spawn", &json!({"name": "x", "command": ["true"]}));
    assert!(many.starts_with(
        "this client starts no others: 1 that it has started have not ended, and the limit is --children 1"
    ));
    session.ok("send", &json!({"name": "w", "text": "--no-enter it's \"$HOME\""}));
    wait_until("cat answers", SOON, || {
        let (said, _) = session.ok("logs", &json!({"name": "w"}));
        said.matches("--no-enter it's \"$HOME\"").count() == 2
    });
    assert_eq!(session.ok("kill", &json!({"names": ["w"]})).0, "w: killed");
    assert!(session.refused("send", &json!({"name": "w", "text": "x"})).contains("not running"));
    session.ok("respawn", &json!({"name": "w"}));
    assert_eq!(rig.fine("w"), "running");
    session.ok("kill", &json!({"names": ["w"]}));
    session.ok("spawn", &json!({"name": "x", "command": ["true"]}));
    assert!(close(child, session).success());
}

#[test]
fn a_wait_is_cancelled_reports_and_ends_with_the_input() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    let (child, mut session) = begun(&rig, &rig.cwd(), &[]);
    let waits = json!({"name": "wait", "arguments": {"names": ["w"], "seconds": 600}});
    let id = session.ask("tools/call", &waits);
    wait_until("it follows the fleet", SOON, || followers(&rig) == 1);
    session
        .line(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}).to_string());
    wait_until("nothing follows the fleet", SOON, || followers(&rig) == 0);
    let short = json!({"names": ["w"], "seconds": 1});
    let (said, data) = session.ok("wait", &short);
    assert_eq!((said.as_str(), &data["done"]), ("not done yet; call 'wait' again\nw, running", &json!(false)));
    let id = session.ask("tools/call", &waits);
    wait_until("it follows the fleet", SOON, || followers(&rig) == 1);
    // The input ends in the middle of the wait.
    let begun_at = Instant::now();
    let lines = session.lines;
    drop(session.input);
    let mut child = child;
    assert!(ended(&mut child, SOON).success());
    assert!(begun_at.elapsed() < Duration::from_secs(4), "{:?}", begun_at.elapsed());
    assert!(lines.iter().any(|line| line["id"] == id && line["result"]["structuredContent"]["done"] == false));
    wait_until("nothing is left", SOON, || followers(&rig) == 0);
}

#[test]
fn a_client_that_does_not_read_blocks_nobody_and_a_signal_ends_the_server() {
    let rig = Rig::new();
    rig.spawn_sh("w", &[], "seq 1 3000; exec sleep 600");
    let mut command = rig.command(&["mcp"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let (mut input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": client});
    writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).expect("reads");
    for id in 1..80 {
        let params = json!({"name": "logs", "arguments": {"name": "w", "lines": 2_000}});
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}))
            .expect("reads");
    }
    let (other, mut session) = begun(&rig, &rig.cwd(), &["--allow", "act"]);
    assert_eq!(session.ok("kill", &json!({"names": ["w"]})).0, "w: killed");
    assert!(close(other, session).success());
    let begun_at = Instant::now();
    drop(input);
    assert!(ended(&mut child, SOON).success());
    assert!(begun_at.elapsed() < Duration::from_secs(15), "{:?}", begun_at.elapsed());
    drop(output);

    let (mut child, mut session) = begun(&rig, &rig.cwd(), &[]);
    session.ask("tools/call", &json!({"name": "wait", "arguments": {"names": ["w"], "seconds": 600}}));
    proc::signal(i32::try_from(child.id()).expect("a pid"), Signal::TERM);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended(&mut child, SOON)), Some(15));
    wait_until("nothing is left", SOON, || followers(&rig) == 0);
}

/// Starts a worker that is a server, with a client outside.
fn server_in(rig: &Rig, name: &str, words: &str, spawn: impl FnOnce(&str)) -> Session<File> {
    let (fifo, out) = (rig.path(&format!("{name}.in")), rig.path(&format!("{name}.out")));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
    nix::unistd::mkfifo(&out, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let bin = env!("CARGO_BIN_EXE_swarm");
    spawn(&format!(
        "exec {words} '{bin}' mcp --allow act,answer --depth 1 --children 1 < '{}' > '{}'",
        fifo.display(),
        out.display()
    ));
    let input = OpenOptions::new().write(true).open(&fifo).expect("it reads");
    let mut session = Session::of(input, File::open(&out).expect("it writes"));
    session.begin(NEWEST);
    session
}

#[test]
fn workers_that_start_workers_are_limited_and_answer_nothing() {
    let rig = Rig::new();
    let mut lead = server_in(&rig, "lead", "env", |script| drop(rig.spawn_sh("lead", &[], script)));
    // What the agent does to its environment changes nothing.
    let forged = "env -u SWARM_WORKER SWARM_DEPTH=0";
    let mut kid = server_in(&rig, "kid", forged, |script| {
        lead.ok("spawn", &json!({"name": "kid", "command": ["sh", "-c", script]}));
    });
    assert_eq!(rig.view("kid")["parent"], "lead");
    let deep = kid.refused("spawn", &json!({"name": "deep", "command": ["true"]}));
    assert_eq!(deep, "worker 'kid' starts no others: its depth is 1, and the limit is --depth 1");
    let many = lead.refused("spawn", &json!({"name": "more", "command": ["true"]}));
    assert!(many.starts_with("worker 'lead' starts no others: 1 that it has started have not ended"), "{many}");
    // The verb itself has no limit, and the supervisor knows all the same who is above whom.
    kid.ok("ls", &json!({}));
    asks::put(&rig, 1, "lead", "held", "Bash", &json!({"type": "command", "command": "make"}));
    let (said, _) = lead.ok("approvals", &json!({}));
    assert_eq!(said, "1 open permission of lead: make");
    assert!(lead.refused("approve", &json!({"ids": ["1"]})).contains("worker 'lead'"));
    assert!(kid.refused("deny", &json!({"ids": ["1"], "reason": "no"})).contains("worker 'kid'"));
    let (child, mut person) = begun(&rig, &rig.cwd(), &["--allow", "answer"]);
    let (_, data) = person.ok("wait", &json!({"names": ["lead"], "seconds": 10}));
    assert_eq!(data["done"], true, "{data}");
    assert!(person.refused("kill", &json!({"names": ["lead"]})).contains("--allow act"));
    assert!(person.ok("approve", &json!({"ids": ["1"]})).0.contains("1 "));
    assert!(close(child, person).success());
    drop(kid.input);
    rig.wait("kid");
    let (said, _) = lead.ok("spawn", &json!({"name": "more", "command": ["sh", "-c", "echo $SWARM_DEPTH"]}));
    assert!(said.starts_with("started more"), "{said}");
    rig.wait("more");
    assert_eq!(rig.log("more", "stdout"), "1\n");
    drop(lead.input);
    rig.wait("lead");
    assert!(fs::read_to_string(rig.root().join("logs/lead.stderr.log")).unwrap_or_default().is_empty());
}

/// A run goes on without the client, and has no more workers at a time than the client may have. A key may be an answer.
#[test]
fn a_run_is_started_and_looked_at_and_keys_need_both_permissions() {
    let rig = Rig::new();
    let repo = rig.repo();
    fs::write(repo.join("jobs.toml"), "[[job]]\nname = 'one'\ncommand = 'echo ran > ../ran'\n").expect("written");
    let (child, mut session) = begun(&rig, &repo, &["--allow", "act", "--children", "3"]);
    let (said, _) = session.ok("run", &json!({"file": "jobs.toml"}));
    assert!(said.starts_with("started run "), "{said}");
    let status = |session: &mut Session<_>| session.ok("run_status", &json!({"home": "jobs.toml"})).1;
    wait_until("it is over", SOON, || status(&mut session)["workstreams"][0]["stage"] == "done");
    let home = status(&mut session)["home"].as_str().map(PathBuf::from).expect("a home");
    let journal = fs::read_to_string(home.join("run.jsonl")).expect("a journal");
    assert!(journal.contains("\"limit\":3"), "{journal}");
    assert!(session.refused("run", &json!({"file": "none.toml"})).contains("none.toml"));
    let keys = json!({"name": "w", "keys": ["1"]});
    assert!(session.refused("keys", &keys).ends_with("'swarm mcp --allow act,answer'"));
    assert!(close(child, session).success());
    rig.spawn_sh("w", &["--tmux"], "read line; echo \"got $line\"; exec sleep 600");
    let (child, mut session) = begun(&rig, &repo, &["--allow", "act,answer"]);
    session.ok("keys", &json!({"name": "w", "keys": ["1", "Enter"]}));
    wait_until("they were pressed", SOON, || rig.log("w", "tmux").contains("got 1"));
    assert!(close(child, session).success());
}
