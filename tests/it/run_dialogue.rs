//! Agents that are talked to while they work, with a scripted agent that speaks the Agent Client Protocol.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{Rig, SOON, wait_until};
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
    assert!(!is_there(&site.rig.root().join("asks")), "nobody was asked");
}

#[test]
fn an_agent_that_ends_in_the_middle_of_a_line_is_started_again_with_its_conversation() {
    let site = site("breaks_off", "retries: 1\n");
    let all = site.run(0, &["--agent", "mine"]);
    let failed = all.iter().find(|one| one["event"] == "workstream.retrying").expect("it failed once");
    assert_eq!(failed["error"], "exited with code 0 without completing its turn");
    assert_eq!(status(&site)["summary"], "it is done", "and not what was said in an earlier turn");
}

/// One attempt, without a run around it.
struct Attempt<'a> {
    rig: &'a Rig,
    dir: PathBuf,
    tree: PathBuf,
}

impl<'a> Attempt<'a> {
    /// Writes the order of an attempt.
    fn new(rig: &'a Rig, mode: &str, number: u32) -> Self {
        let (dir, tree) = (rig.path(&format!("attempt.{number}")), rig.path("tree"));
        for dir in [&dir, &tree] {
            fs::create_dir_all(dir).expect("made");
        }
        let script = rig.file("agent.py", AGENT);
        let config = json!({"command": ["python3", script, mode], "capabilities": null, "events": "acp",
            "arguments": [], "env": {}, "model": null});
        let session = (number > 1).then(|| json!({"id": "s1", "spent": {}}));
        let order = json!({"run": "r", "job": "j", "attempt": number, "root": null,
            "agent": {"name": "mine", "kind": "acp", "config": config},
            "events": dir.join("events"), "log": dir.join("log"), "context": dir.join("context"),
            "session": session, "fresh_id": "f"});
        fs::write(dir.join("order.json"), order.to_string()).expect("written");
        fs::write(dir.join("prompt.md"), "do it").expect("written");
        Self { rig, dir, tree }
    }

    fn run(&self) {
        let mut command = self.rig.command(&["__attempt", self.dir.to_str().expect("text")]);
        command.current_dir(&self.tree).stdin(Stdio::null()).stdout(Stdio::null());
        let mut attempt = command.spawn().expect("started");
        wait_until("the attempt has ended", SOON, || attempt.try_wait().expect("a child").is_some());
    }

    fn outcome(&self) -> Value {
        let result = fs::read(self.dir.join("result.json")).expect("a result");
        serde_json::from_slice::<Value>(&result).expect("JSON")["outcome"].clone()
    }
}

fn is_there(path: &Path) -> bool {
    path.exists()
}

#[test]
fn an_agent_that_stays_or_does_not_listen_is_ended() {
    let rig = Rig::new();
    let stays = Attempt::new(&rig, "stays", 1);
    stays.run();
    assert!(stays.outcome()["success"].is_object() && is_there(&stays.tree.join("told")));
    let floods = Attempt::new(&rig, "floods", 2);
    floods.run();
    assert_eq!(floods.outcome()["failure"]["cause"], "killed by signal 15 without completing its turn");
}
