//! Agents that stop at the use of a tool, with a scripted `claude` that calls its hook as the real one does.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{SOON, wait_until};
use crate::run::Site;

/// The agent. Its first argument says what becomes of it where it stops. It keeps its conversation beside itself.
const AGENT: &str = r#"
import json, os, signal, subprocess, sys

mode, words = sys.argv[1], sys.argv[2:]
here = os.path.dirname(os.path.abspath(__file__))
marker = os.path.join(here, "marker")
prompt = sys.stdin.read()
hook = json.loads(words[words.index("--settings") + 1])["hooks"]["PreToolUse"][0]["hooks"][0]["command"]

def say(**message):
    print(json.dumps(message), flush=True)

def init():
    version = "2.1.50" if mode == "old" else "2.1.328"
    say(type="system", subtype="init", session_id="s1", claude_code_version=version)
    if mode == "old":
        signal.pause()

def note(name, text):
    with open(os.path.join(here, name), "a") as file:
        file.write(text)

def result(**more):
    say(type="result", subtype="success", is_error=False, result="it is done", total_cost_usd=0.5,
        usage={"input_tokens": 7, "output_tokens": 3}, **more)

def stops(call, command):
    result(stop_reason="tool_deferred",
           deferred_tool_use={"id": call, "name": "Bash", "input": {"command": command}})
    sys.exit(0)

def uses(call, command):
    if mode == "other":
        stops(call, command)
    said = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": call}
    asked = subprocess.run(["sh", "-c", hook], input=json.dumps(said), capture_output=True, text=True)
    answer = json.loads(asked.stdout)["hookSpecificOutput"]
    decision = answer["permissionDecision"]
    note("decisions", f"{call} {decision} {answer.get('permissionDecisionReason', '')}\n")
    if decision == "defer":
        if mode != "forgets":
            with open(marker, "w") as file:
                json.dump([call, command], file)
        if mode == "dies" and os.environ["SWARM_ATTEMPT"] == "1":
            while not os.path.exists("../../attempts/a.1/session.json"):
                pass
            os.kill(os.getppid(), signal.SIGKILL)
            sys.exit(0)
        stops(call, command)
    if decision == "allow":
        subprocess.run(["sh", "-c", command])
        if mode == "breaks":
            os.kill(os.getppid(), signal.SIGKILL)
            sys.exit(0)
    if decision == "deny":
        subprocess.run(["sh", "-c", "echo otherwise > other.txt"])
    if os.path.exists(marker):
        os.unlink(marker)
    say(type="user", message={"content": [{"type": "tool_result", "tool_use_id": call}]})

stopped = json.load(open(marker)) if os.path.exists(marker) else None
if "--resume" in words and not prompt and not stopped:
    print("Error: No deferred tool marker found in the resumed session.", file=sys.stderr)
    sys.exit(1)
if "--resume" in words and stopped:
    uses(*stopped)
    init()
else:
    init()
    if mode == "loosens":
        text = open("swarm.toml").read()
        open("swarm.toml", "w").write(text.split("[[approvals.rule]]")[0])
        note("started", ".")
        open("attempt.txt", "w").write(os.environ["SWARM_ATTEMPT"])
        if os.environ["SWARM_ATTEMPT"] == "1":
            open(os.path.join(here, "go")).read()
    uses("t" + os.environ["SWARM_ATTEMPT"], "echo ran >> ran.txt")
note("prompts", prompt)
result()
"#;

struct Parked {
    site: Site,
}

impl Parked {
    fn new(mode: &str) -> Self {
        let site = Site::new();
        let script = site.rig.file("agent.py", AGENT);
        let words = format!("[agents.mine]\ncommand = ['python3', '{script}', '{mode}']\nevents = 'claude'\n");
        site.write("swarm.toml", &words);
        site.write("specs/a.md", "---\nretries: 1\n---\n# A\n");
        site.commit();
        site.plan();
        Self { site }
    }

    /// Starts the run and waits until its agent asks.
    fn begin(mode: &str) -> Self {
        let parked = Self::new(mode);
        parked.site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "no-access"]).ok();
        wait_until("the run waits", SOON, || parked.status()["stage"] == "asking");
        assert!(!parked.site.repo.join(".arial/worktrees/a/ran.txt").exists(), "nobody has allowed it");
        parked
    }

    fn status(&self) -> Value {
        let status: Value = serde_json::from_str(&self.site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
        status["workstreams"][0].clone()
    }

    /// Allows what is asked, and waits until the work has landed.
    fn allow(&self) {
        self.site.rig.swarm(&["approve", "1"]).ok();
        self.has_landed();
    }

    fn has_landed(&self) {
        wait_until("the work has landed", SOON, || self.status()["stage"] == "done");
        assert_eq!(self.site.landed("ran.txt"), "ran", "it was executed once");
        assert!(self.file("1.over").exists() && !self.file("2.ask").exists(), "asked and answered once");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.site.rig.root().join(format!("asks/{name}.json"))
    }

    /// What the agent has noted.
    fn noted(&self, name: &str) -> String {
        fs::read_to_string(self.site.rig.path(name)).unwrap_or_default()
    }
}

#[test]
fn an_agent_that_stops_to_ask_leaves_no_process_and_continues_with_the_answer() {
    let parked = Parked::begin("works");
    wait_until("no process waits", SOON, || parked.site.row("a")["pid"].is_null());
    assert_eq!(
        parked.status()["waiting"],
        "asks: echo ran >> ran.txt (answer with 'swarm approve 1' or 'swarm deny 1')"
    );
    // A supervisor that starts later hears the answer as well.
    parked.site.rig.kill_keepers();
    parked.site.rig.swarm(&["approve", "1"]).ok();
    parked.site.swarm(&["run", "attach"]).ok();
    parked.has_landed();
    assert_eq!(parked.noted("decisions"), "t1 defer \nt1 allow \n");
    assert_eq!(parked.noted("prompts"), "", "it was told nothing");
    let row = parked.status();
    assert_eq!((&row["attempt"], &row["failures"]), (&2.into(), &0.into()));
}

#[test]
fn a_wait_goes_on_while_the_agent_asks_and_ends_with_the_attempt_after_the_answer() {
    let parked = Parked::begin("works");
    let rig = &parked.site.rig;
    let [worker] = &rig.names()[..] else { panic!("{:?}", rig.names()) };
    wait_until("no process waits", SOON, || parked.site.row("a")["pid"].is_null());
    let asks = format!(
        "swarm: note: worker '{worker}' asks a person: Bash: echo ran >> ran.txt; answer with 'swarm approve 1'\n"
    );
    let late = rig.swarm(&["wait", worker, "--exit-code", "--timeout", "1"]);
    late.is(124, &format!("{worker}: still running (timeout)\n"), &asks);
    let said = rig.path("said");
    let mut wait = rig.command(&["wait", worker, "--exit-code", "--timeout", "60"]);
    let wait = wait.stderr(fs::File::create(&said).expect("a file")).stdout(std::process::Stdio::piped());
    let wait = wait.spawn().expect("started");
    wait_until("it says what it waits for", SOON, || fs::read_to_string(&said).expect("there") == asks);
    parked.allow();
    let ended = wait.wait_with_output().expect("ended");
    assert_eq!((ended.status.code(), ended.stdout), (Some(0), format!("{worker}: exited\n").into_bytes()));
    assert_eq!(fs::read_to_string(&said).expect("there"), asks, "said once");
}

#[test]
fn a_request_is_over_once_its_workstream_is_planned_anew_or_no_longer() {
    let parked = Parked::new("works");
    let site = &parked.site;
    site.write("specs/b.md", "# B\n");
    site.plan();
    site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "no-access"]).ok();
    wait_until("both ask", SOON, || parked.file("2.ask").exists() && site.row("a")["pid"].is_null());
    site.swarm(&["run", "stop"]).ok();
    let worker = |number: u32| {
        let ask: Value =
            serde_json::from_slice(&fs::read(parked.file(&format!("{number}.ask"))).expect("there")).expect("JSON");
        ask["who"]["job"].as_str().expect("a job").to_owned()
    };
    let (of_a, of_b) = if worker(1) == "a" { (1, 2) } else { (2, 1) };
    site.write("specs/a.md", "# A, but otherwise\n");
    fs::remove_file(site.repo.join("specs/b.md")).expect("removed");
    let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
    let whys = [(of_a, "workstream 'a' was planned anew"), (of_b, "workstream 'b' is no longer planned")];
    for (number, why) in whys {
        assert!(said.err.contains(&format!("swarm: note: request {number} is over: {why}\n")), "{said:?}");
        for verb in ["approve", "deny"] {
            let refused = site.rig.swarm(&[verb, &number.to_string()]);
            refused.is(1, "", &format!("swarm: error: request {number} is over: {why}\n"));
        }
    }
    assert_eq!(site.rig.swarm(&["approvals"]).ok(), "");
}

#[test]
fn what_a_person_denied_is_not_executed() {
    let parked = Parked::begin("works");
    parked.site.rig.swarm(&["deny", "1", "--reason", "not that"]).ok();
    wait_until("the work has landed", SOON, || parked.status()["stage"] == "done");
    assert_eq!(parked.site.landed("other.txt"), "otherwise");
    assert_eq!(parked.noted("decisions"), "t1 defer \nt1 deny not that\n");
    assert!(!parked.site.repo.join("ran.txt").exists());
    let row = parked.status();
    let last = &row["last_denied"];
    assert_eq!((&row["denied"], &last["reason"]), (&1.into(), &"not that".into()));
    assert_eq!(last["what"], "echo ran >> ran.txt");
    let shown = parked.site.swarm(&["run", "status"]).ok();
    assert!(shown.contains("(1 denied, last: echo ran >> ran.txt: not that)"), "{shown}");
}

#[test]
fn a_rule_that_a_landing_removes_still_denies_in_later_attempts() {
    let parked = Parked::new("loosens");
    let site = &parked.site;
    let plain = fs::read_to_string(site.repo.join("swarm.toml")).expect("read");
    site.write("swarm.toml", &format!("{plain}[[approvals.rule]]\ndeny = 'echo ran'\nreason = 'never'\n"));
    site.commit();
    let pipe = site.rig.path("go");
    assert!(site.rig.program("mkfifo").arg(&pipe).status().expect("run").success());
    // The first attempt is rejected.
    let verify = "! grep -qs 1 attempt.txt";
    site.swarm(&["run", "--detach", "--agent", "mine", "--consent", "no-access", "--verify", verify]).ok();
    wait_until("the agent works", SOON, || !parked.noted("started").is_empty());
    // Work of somebody else takes the rule away.
    let script = format!("cp {} swarm.toml", site.rig.file("plain", &plain));
    site.swarm(&["spawn", "--name", "looser", "--worktree", "--", "sh", "-c", &script]).ok();
    site.rig.wait("looser");
    site.swarm(&["merge", "add", "looser"]).ok();
    site.swarm(&["merge", "wait", "looser", "--timeout", "25"]).ok();
    assert_eq!(fs::read_to_string(site.repo.join("swarm.toml")).expect("read"), plain);
    fs::write(&pipe, "").expect("the agent reads it");
    wait_until("the work has landed", SOON, || parked.status()["stage"] == "done");
    assert_eq!(parked.noted("decisions"), "t1 deny never\nt2 deny never\n");
    assert_eq!((&parked.status()["attempt"], &parked.status()["denied"]), (&2.into(), &2.into()));
}

#[test]
fn an_agent_that_forgot_where_it_stopped_is_told_the_answer() {
    let parked = Parked::begin("forgets");
    parked.allow();
    assert_eq!(parked.noted("decisions"), "t1 defer \nt2 allow \n");
    let prompt = parked.noted("prompts");
    assert!(prompt.contains("A person has answered") && prompt.contains("- allowed, once: echo ran"), "{prompt}");
}

#[test]
fn an_attempt_that_is_killed_before_the_request_is_recorded_asks_later() {
    let parked = Parked::begin("dies");
    assert_eq!(parked.noted("decisions"), "t1 defer \nt1 defer \n");
    parked.allow();
    assert_eq!(parked.noted("prompts"), "", "it continued where it had stopped");
}

#[test]
fn what_was_allowed_is_not_executed_again_if_its_attempt_was_killed() {
    let parked = Parked::begin("breaks");
    parked.allow();
    let decisions = parked.noted("decisions");
    let expected = "t1 defer \nt1 allow \nt1 deny it was allowed once and may have run: look before you try again\n";
    assert_eq!(decisions, expected);
}

#[test]
fn an_agent_that_another_hook_stops_or_that_cannot_ask_fails_with_the_reason() {
    for (mode, cause) in [
        ("other", "stopped at Bash: echo ran >> ran.txt: a hook in claude's settings deferred it"),
        ("old", "claude 2.1.50 cannot stop to ask, which consent 'no-access' needs (update claude to 2.1.89"),
    ] {
        let parked = Parked::new(mode);
        parked.site.run(1, &["--agent", "mine", "--consent", "no-access"]);
        let error = parked.site.row("a")["lastError"].as_str().expect("an error").to_owned();
        assert!(error.starts_with(cause), "{mode}: {error}");
        assert!(!parked.file("1.ask").exists(), "{mode}");
    }
}
