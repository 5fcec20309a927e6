//! Agents that are talked to while they work, with a scripted agent that speaks the Agent Client Protocol.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::asks::configure;
use crate::common::{Rig, SOON, proc, quick, run, timed, wait_until};
use crate::run::{Site, text};

/// The agent. Its first argument says what it does once it has its task.
const AGENT: &str = r#"
import json, os, signal, sys

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

def note(name, what):
    with open(name + ".new", "w") as file:
        file.write(what)
    os.rename(name + ".new", name)

def update(**what):
    send(method="session/update", params={"sessionId": "s1", "update": what})

def says(words):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": words})

def asks(call="c1", command="make"):
    options = [{"optionId": "for-ever", "kind": "allow_always"}, {"optionId": "this-once", "kind": "allow_once"},
               {"optionId": "never", "kind": "reject_once"}]
    tool = {"toolCallId": call, "kind": "execute", "title": command, "rawInput": {"command": command}}
    send(id=call, method="session/request_permission", params={"sessionId": "s1", "toolCall": tool, "options": options})

def done(reason="end_turn"):
    send(id=task["id"], result={"stopReason": reason, "_meta": {"quota": {"token_count": {"input_tokens": 70, "output_tokens": 7}}}})

print("this is no message", flush=True)
hello = hear()
send(id=99, result={"protocolVersion": 7})
send(id=hello["id"], result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
opened = hear()
if opened["method"] == "session/load":
    says("of an earlier turn")
send(id=opened["id"], result={"sessionId": "s1"})
task = hear()
prompt = task["params"]["prompt"][0]["text"]

def works():
    send(id="r", method="fs/read_text_file", params={})
    refused = hear()["error"]["code"]
    asks()
    outcome = hear()["result"]["outcome"]
    note("a.txt", f"{refused} {outcome['outcome']} {outcome.get('optionId')}\n")
    says("it is")
    says(" done")
    done()
    hear()

def breaks_off():
    if os.environ["SWARM_ATTEMPT"] == "1":
        sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":{"stopReason":"end' % task["id"])
        sys.stdout.flush()
        sys.exit(0)
    works()

def holds():
    asks()
    answer = hear()
    note("heard", json.dumps(answer))
    if answer.get("method") == "session/cancel":
        note("then", json.dumps(hear()))
        done("cancelled")
    else:
        done()
    hear()

def again():
    note("prompt", prompt)
    asks("c2")
    one = hear()
    asks("c3")
    note("heard", json.dumps([one, hear()]))
    done("cancelled")

def reads():
    note("prompt", prompt)
    done()
    hear()

def dies():
    asks()
    sys.exit(3)

def stays():
    signal.signal(signal.SIGTERM, lambda *_: (note("told", "to end"), os._exit(0)))
    done()
    while True:
        signal.pause()

def floods():
    for number in range(100000):
        send(id=number, method="no/such", params={})
    signal.pause()

globals()[sys.argv[1]]()
"#;

fn status(site: &Site) -> Value {
    let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
    status["workstreams"][0].clone()
}

fn site(mode: &str, front: &str) -> Site {
    let site = Site::new();
    let script = site.rig.file("agent.py", AGENT);
    site.write("swarm.toml", &format!("[agents.mine]\ncommand = ['python3', '{script}', '{mode}']\nevents = 'acp'\n"));
    site.write("specs/a.md", &format!("---\n{front}---\n# A\n"));
    site.commit();
    site.plan();
    site
}

#[test]
fn an_agent_is_talked_to_and_its_work_lands() {
    let site = site("works", "");
    let all = site.run(0, &["--agent", "mine"]);
    assert_eq!(site.landed("a.txt"), "-32601 selected this-once");
    let row = status(&site);
    assert_eq!(
        (&row["summary"], &row["input_tokens"], &row["unpriced"]),
        (&json!("it is done"), &json!(70), &json!(true))
    );
    let told: Vec<&str> =
        all.iter().filter(|one| one["event"] == "workstream.activity").map(|one| text(&one["text"])).collect();
    assert_eq!(told, ["execute: make", "it is done"]);
    let logs = "this is no message\nconversation s1\n> execute: make\nit is done\nend of turn: done, 70 tokens in, 7 tokens out\n";
    assert_eq!(site.swarm(&["run", "logs", "a"]).ok(), logs);
    assert!(!is_there(&site.rig.root().join("asks/1.ask.json")), "nobody was asked");
}

#[test]
fn an_agent_that_ends_in_the_middle_of_a_line_is_started_again_with_its_conversation() {
    let site = site("breaks_off", "retries: 1\n");
    let all = site.run(0, &["--agent", "mine"]);
    let failed = all.iter().find(|one| one["event"] == "workstream.retrying").expect("it failed once");
    assert_eq!(failed["error"], "exited with code 0 without completing its turn");
    assert_eq!(status(&site)["summary"], "it is done", "and not what was said in an earlier turn");
    let logs = site.swarm(&["run", "logs", "a"]).ok();
    assert!(logs.contains("\nit is done\n") && !logs.contains("of an earlier turn"), "{logs}");
}

/// A single attempt that no run has started.
struct Attempt<'a> {
    rig: &'a Rig,
    dir: PathBuf,
    tree: PathBuf,
}

impl<'a> Attempt<'a> {
    /// Writes the order of an attempt.
    fn new(rig: &'a Rig, mode: &str, number: u32, hold_ms: u64) -> Self {
        let (dir, tree) = (rig.path(&format!("attempt.{number}")), rig.path("tree"));
        for dir in [&dir, &tree] {
            fs::create_dir_all(dir).expect("made");
        }
        for name in ["heard", "then", "told"] {
            let _ = fs::remove_file(tree.join(name));
        }
        let script = rig.file("agent.py", AGENT);
        let config = json!({"command": ["python3", script, mode], "capabilities": null, "events": "acp",
            "arguments": [], "env": {}, "model": null});
        let session = (number > 1).then(|| json!({"id": "s1", "spent": {}}));
        let order = json!({"run": "r", "job": "j", "attempt": number, "root": null,
            "agent": {"name": "mine", "kind": "acp", "config": config},
            "events": dir.join("events"), "log": dir.join("log"), "context": dir.join("context"),
            "session": session, "fresh_id": "f", "consent": "no-access", "hold_ms": hold_ms});
        fs::write(dir.join("order.json"), order.to_string()).expect("written");
        fs::write(dir.join("prompt.md"), "do it").expect("written");
        Self { rig, dir, tree }
    }

    fn start(&self) -> Child {
        let mut command = self.rig.command(&["__attempt", self.dir.to_str().expect("text")]);
        command.current_dir(&self.tree).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("started")
    }

    fn run(&self) {
        let mut attempt = self.start();
        wait_until("the attempt has ended", SOON, || attempt.try_wait().expect("a child").is_some());
    }

    fn outcome(&self) -> Value {
        let result = fs::read(self.dir.join("result.json")).expect("a result");
        serde_json::from_slice::<Value>(&result).expect("JSON")["outcome"].clone()
    }

    fn read(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.tree.join(name)).expect(name)).expect("JSON")
    }

    fn file(&self, number: u64, part: &str) -> PathBuf {
        self.rig.root().join(format!("asks/{number}.{part}.json"))
    }

    /// Gives the agent no conversation to continue.
    fn anew(self) -> Self {
        let path = self.dir.join("order.json");
        let mut order: Value = serde_json::from_slice(&fs::read(&path).expect("an order")).expect("JSON");
        order["session"] = Value::Null;
        fs::write(path, order.to_string()).expect("written");
        self
    }

    /// Answers a request as `swarm approve` does.
    fn allow(&self, number: u64) {
        self.answer(number, &json!({"verdict": "allow"}));
    }

    /// Answers a request as a person does.
    fn answer(&self, number: u64, verdict: &Value) {
        let ask: Value = serde_json::from_slice(&fs::read(self.file(number, "ask")).expect("asked")).expect("JSON");
        let by = json!({"uid": 0, "user": null, "pid": 1, "tty": null, "from": null, "via": "person"});
        let mut answer = json!({"digest": ask["digest"], "by": by, "at_ms": 1});
        for (key, value) in verdict.as_object().expect("an object") {
            answer[key] = value.clone();
        }
        let new = self.rig.root().join("asks/.new");
        fs::write(&new, answer.to_string()).expect("written");
        fs::hard_link(&new, self.file(number, "answer")).expect("the first answer");
        fs::remove_file(&new).expect("removed");
    }
}

fn is_there(path: &Path) -> bool {
    path.exists()
}

#[test]
fn an_answer_reaches_an_agent_that_is_held_at_once() {
    quick("the answer", Duration::from_millis(150), || {
        let rig = Rig::new();
        let attempt = Attempt::new(&rig, "holds", 1, 60_000);
        let mut running = attempt.start();
        wait_until("it asks", SOON, || is_there(&attempt.file(1, "ask")));
        let ask: Value = serde_json::from_slice(&fs::read(attempt.file(1, "ask")).expect("asked")).expect("JSON");
        assert!(ask["key"].as_str().is_some_and(|key| key.starts_with("run/r/j/1/c1/")), "{ask}");
        assert_eq!((&ask["waits"], &ask["wish"]["command"]), (&json!("held"), &json!("make")));
        wait_until("it waits", SOON, || is_there(&attempt.dir.join("waiting")));
        assert!(!is_there(&attempt.tree.join("heard")), "nobody has answered");
        let took = timed(|| {
            attempt.allow(1);
            wait_until("it hears", SOON, || is_there(&attempt.tree.join("heard")));
        });
        assert!(is_there(&attempt.file(1, "taken")), "the answer is taken before it is heard");
        wait_until("it ends", SOON, || running.try_wait().expect("a child").is_some());
        assert_eq!(attempt.read("heard")["result"]["outcome"], json!({"outcome": "selected", "optionId": "this-once"}));
        assert!(attempt.outcome()["success"].is_object() && is_there(&attempt.file(1, "over")));
        took
    });
}

#[test]
fn after_the_hold_the_turn_is_cancelled_and_the_next_one_uses_the_answer_once() {
    let rig = Rig::new();
    let first = Attempt::new(&rig, "holds", 1, 1);
    first.run();
    assert_eq!(first.read("heard")["method"], "session/cancel");
    assert_eq!(first.read("then")["result"]["outcome"], json!({"outcome": "cancelled"}));
    assert_eq!(first.outcome()["parked"], json!({"ask": 1, "what": "make", "kind": "permission"}));
    assert!(!is_there(&first.file(1, "over")), "the request stays open");
    first.allow(1);
    let next = Attempt::new(&rig, "again", 2, 1);
    next.run();
    let prompt = fs::read_to_string(next.tree.join("prompt")).expect("a prompt");
    assert!(
        prompt.starts_with("do it\n\nA person has answered") && prompt.ends_with("- allowed, once: make"),
        "{prompt}"
    );
    let heard = next.read("heard");
    assert_eq!(heard[0]["result"]["outcome"]["optionId"], "this-once");
    assert_eq!(heard[1]["method"], "session/cancel", "the second use of the tool is asked for");
    assert_eq!(next.outcome()["parked"]["ask"], 2);
}

#[test]
fn a_new_conversation_is_told_what_people_answered_in_earlier_ones() {
    let rig = Rig::new();
    let first = Attempt::new(&rig, "holds", 1, 60_000);
    let mut running = first.start();
    wait_until("it asks", SOON, || is_there(&first.file(1, "ask")));
    first.answer(1, &json!({"verdict": "deny", "reason": "use nextest"}));
    wait_until("it ends", SOON, || running.try_wait().expect("a child").is_some());
    let told = |attempt: Attempt<'_>| {
        attempt.run();
        assert!(attempt.outcome()["success"].is_object());
        fs::read_to_string(attempt.tree.join("prompt")).expect("a prompt")
    };
    let anew = told(Attempt::new(&rig, "reads", 2, 1).anew());
    assert!(
        anew.starts_with("do it\n\nEarlier attempts at this task have asked a person")
            && anew.ends_with("\n\nWanted:\n> execute: make\nDenied:\n> use nextest"),
        "{anew}"
    );
    let written = fs::read_to_string(rig.path("attempt.2/prompt.md")).expect("a prompt");
    assert_eq!(written, anew, "the file that an agent may read has the same prompt");
    assert_eq!(told(Attempt::new(&rig, "reads", 3, 1)), "do it", "the conversation knows it");
}

#[test]
fn a_request_of_an_agent_that_died_stays_open_and_is_not_asked_twice() {
    let rig = Rig::new();
    let first = Attempt::new(&rig, "dies", 1, 60_000);
    first.run();
    assert_eq!(first.outcome()["failure"]["cause"], "exited with code 3 without completing its turn");
    let next = Attempt::new(&rig, "holds", 2, 60_000);
    let mut running = next.start();
    wait_until("it waits", SOON, || is_there(&next.dir.join("waiting")));
    assert!(is_there(&next.file(1, "ask")) && !is_there(&next.file(2, "ask")));
    next.allow(1);
    wait_until("it ends", SOON, || running.try_wait().expect("a child").is_some());
    assert!(next.outcome()["success"].is_object());
}

#[test]
fn an_agent_that_stays_or_does_not_listen_is_ended() {
    let rig = Rig::new();
    let stays = Attempt::new(&rig, "stays", 1, 1);
    stays.run();
    assert!(stays.outcome()["success"].is_object() && is_there(&stays.tree.join("told")));
    let floods = Attempt::new(&rig, "floods", 1, 1);
    floods.run();
    assert_eq!(floods.outcome()["failure"]["cause"], "killed by signal 15 without completing its turn");
}

#[test]
fn a_run_asks_a_person_and_continues_with_the_answer() {
    let site = site("works", "");
    site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "no-access"]).ok();
    wait_until("it asks", SOON, || site.rig.swarm(&["approvals"]).out.contains("make"));
    let follower = std::thread::spawn({
        let mut command = site.rig.command(&["run", "logs", "a", "--follow"]);
        command.current_dir(&site.repo);
        move || run(command)
    });
    let shown = || site.swarm(&["run", "logs", "a"]).out;
    wait_until("the question is in the log", SOON, || shown().ends_with("> execute: make\n? execute: make\n"));
    site.rig.swarm(&["approve", "1"]).ok();
    let followed = follower.join().expect("joined").out;
    assert!(
        followed.ends_with("? execute: make\nit is done\nend of turn: done, 70 tokens in, 7 tokens out\n"),
        "{followed}"
    );
    site.swarm(&["run", "attach"]).ok();
    assert_eq!(site.landed("a.txt"), "-32601 selected this-once");
    assert_eq!(status(&site)["attempt"], 1);
    assert!(is_there(&site.rig.root().join("asks/1.over.json")));
}

#[test]
fn a_person_sets_how_long_an_agent_is_held() {
    let site = site("holds", "retries: 0\n");
    configure(&site.rig, "[approvals]\nhold = '1s'\n");
    site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "no-access"]).ok();
    wait_until("no process waits", SOON, || status(&site)["stage"] == "asking");
    assert!(is_there(&site.rig.root().join("asks/1.ask.json")));
    assert!(!is_there(&site.rig.root().join("asks/1.over.json")), "the request stays open");
}

#[test]
fn a_workstream_whose_agent_was_killed_while_it_asked_waits_for_the_answer() {
    let site = site("works", "retries: 0\n");
    site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "partial-access"]).ok();
    wait_until("it asks", SOON, || is_there(&site.rig.root().join("asks/1.ask.json")));
    let pid = site.rig.rows()[0]["pid"].as_i64().expect("a pid");
    proc::kill(i32::try_from(pid).expect("a pid"));
    wait_until("the run waits", SOON, || status(&site)["stage"] == "asking");
    let row = status(&site);
    assert_eq!(row["waiting"], "asks: make (answer with 'swarm approve 1' or 'swarm deny 1')");
    // A supervisor that starts later waits as well.
    site.rig.kill_keepers();
    site.rig.swarm(&["approve", "1"]).ok();
    site.swarm(&["run", "attach"]).ok();
    assert_eq!(site.landed("a.txt"), "-32601 selected this-once");
    assert_eq!(status(&site)["attempt"], 2);
    assert!(!is_there(&site.rig.root().join("asks/2.ask.json")), "the answer was used");
}
