//! Flows without a runner: their files, and the verbs that users run.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Rig, Said};

const WORKFLOW: &str = "\
workflow:
  name: Add rate limiting
  summary: Plan, build, review, close.
  nodes:
    - {id: owner-intake, role: owner, work: [Write plan.md with the limits to enforce.]}
    - {id: build, role: dev, work: [Implement plan.md with tests.]}
    - {id: review, role: reviewer, work: [Read the diff and run the tests.]}
    - {id: owner-close, role: owner, work: [Summarise and close.]}
  edges: [{from: owner-intake, to: build}, {from: build, to: review}, {from: review, to: owner-close}]
";

/// A rig with one flow of the project `demo`.
struct Site {
    rig: Rig,
    id: String,
}

impl Site {
    fn new() -> Self {
        let rig = Rig::new();
        rig.file("cwd/w.yaml", WORKFLOW);
        let id = rig.swarm(&["flow", "new", "demo", "--workflow", "w.yaml", "--task", "limit it"]).ok();
        Self { id: id.trim_end().to_owned(), rig }
    }

    fn dir(&self) -> PathBuf {
        self.rig.cwd().join(".a-society/state/demo").join(&self.id)
    }

    /// `swarm flow VERB FLOW WORDS`.
    fn flow(&self, verb: &str, words: &[&str]) -> Said {
        self.rig.swarm(&[&["flow", verb, &self.id], words].concat())
    }

    #[track_caller]
    fn json(&self, verb: &str, words: &[&str]) -> Value {
        let said = self.flow(verb, &[words, &["--json"]].concat()).ok();
        serde_json::from_str(&said).expect("JSON")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.dir().join("flow.json")).expect("a flow")
    }

    /// Changes the file as another program or a person would.
    fn edit(&self, old: &str, new: &str) {
        let text = self.text();
        assert!(text.contains(old), "{old} is missing: {text}");
        fs::write(self.dir().join("flow.json"), text.replacen(old, new, 1)).expect("written");
    }
}

#[test]
fn a_new_flow_is_listed_and_shown() {
    let site = Site::new();
    let id = &site.id;
    assert!(id.len() == 26 && id.as_bytes()[8] == b'T', "{id}");
    let expected = format!("FLOW{}  STATUS   NAME\ndemo/{id}  running  Add rate limiting\n", " ".repeat(27));
    site.rig.swarm(&["flow", "ls"]).is(0, &expected, "");
    site.rig.swarm(&["flow", "ls", "other"]).is(0, "", "");
    let expected = format!(
        "demo/{id}: Add rate limiting, running\n\
         NODE          ROLE      STATE\n\
         owner-intake  owner     running\n\
         build         dev       idle\n\
         review        reviewer  idle\n\
         owner-close   owner     idle\n\
         not running: swarm flow run {id}\n"
    );
    site.flow("status", &[]).is(0, &expected, "");
    let status = site.json("status", &[]);
    assert_eq!((&status["schema"], &status["task"]), (&"swarm.flow/1".into(), &"limit it".into()));
    assert_eq!((&status["nodes"][0]["state"], &status["stalled"]), (&"running".into(), &Value::Null));
    let graph =
        "owner-intake (owner) -> build\nbuild (dev) -> review\nreview (reviewer) -> owner-close\nowner-close (owner)\n";
    site.flow("graph", &[]).is(0, graph, "");
    let dot = site.flow("graph", &["--dot"]).ok();
    assert!(dot.starts_with("digraph flow {") && dot.contains("\"build\" -> \"review\";"), "{dot}");
    assert_eq!(site.json("graph", &[])["edges"][0]["done"], false);
    let rows: Value = serde_json::from_str(&site.rig.swarm(&["flow", "ls", "--json"]).ok()).expect("JSON");
    assert_eq!((&rows["flows"][0]["flow"], &rows["flows"][0]["openable"]), (&id.as_str().into(), &true.into()));
}

#[test]
fn a_workflow_is_checked_with_lines() {
    let site = Site::new();
    let rig = &site.rig;
    rig.swarm(&["flow", "check", "w.yaml"]).is(0, "", "");
    rig.file("cwd/bad.yaml", &WORKFLOW.replace("to: review}", "to: revue}").replace("role: dev", "role: Dev"));
    let said = rig.swarm(&["flow", "check", "bad.yaml"]);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!((said.code, lines.len(), said.err.as_str()), (Some(1), 2, ""), "{said:?}");
    assert!(lines[0].starts_with("bad.yaml:6: workflow.nodes[1].role Invalid role id \"Dev\"."), "{lines:?}");
    assert_eq!(lines[1], "bad.yaml:9: workflow.edges[1].to \"revue\" does not match any node id");
    let said = rig.swarm(&["flow", "check", "bad.yaml", "--json"]);
    let json: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((said.code, &json["ok"], &json["findings"][1]["line"]), (Some(1), &false.into(), &9.into()));
    let made = rig.swarm(&["flow", "new", "demo", "--workflow", "bad.yaml"]);
    assert_eq!((made.code, made.out.as_str(), made.err.lines().count()), (Some(1), "", 3), "{made:?}");
    rig.file("cwd/free.yaml", &WORKFLOW.replace("role: owner", "role: boss"));
    assert_eq!(rig.swarm(&["flow", "check", "free.yaml"]).code, Some(1));
    rig.swarm(&["flow", "check", "free.yaml", "--relaxed"]).is(0, "", "");
    rig.file("cwd/less.yaml", &WORKFLOW.replace("owner-intake", "owner-begin"));
    let said = rig.swarm(&["flow", "check", "less.yaml", "--relaxed", "--flow", &site.id]);
    assert!(said.out.contains("references node \"owner-intake\" from runningNodes"), "{said:?}");
    rig.file("cwd/torn.yaml", "workflow: [");
    let said = rig.swarm(&["flow", "check", "torn.yaml"]);
    assert!(said.code == Some(1) && said.out.starts_with("torn.yaml: "), "{said:?}");
    rig.swarm(&["flow", "check", "none.yaml"]).refused(1, "cannot read none.yaml: file not found");
    assert_eq!(rig.swarm(&["flow", "check"]).code, Some(2));
}

#[test]
fn a_workflow_under_way_that_breaks_a_rule_is_shown_with_a_warning() {
    let site = Site::new();
    let path = site.dir().join("record/workflow.yaml");
    let written = fs::read_to_string(&path).expect("there");
    assert_eq!(site.json("status", &[])["warnings"], Value::Array(Vec::new()));
    for (role, cause) in
        [("role: Dev One", "workflow.nodes[1].role Invalid role id \"Dev One\"."), ("inputs: []", "workflow.nodes[1]")]
    {
        fs::write(&path, written.replace("role: dev", role)).expect("written");
        let (said, json) = (site.flow("status", &[]), site.flow("status", &["--json"]));
        let json_value: Value = serde_json::from_str(&json.out).expect("JSON");
        let warning = json_value["warnings"][0].as_str().expect("a warning");
        let hint = format!("(run 'swarm flow check {}')", path.canonicalize().expect("there").display());
        assert!(warning.starts_with(&format!("invalid workflow: {cause}")) && warning.ends_with(&hint), "{warning}");
        assert_eq!((said.code, json.code), (Some(0), Some(0)));
        let line = format!("swarm: warning: {warning}\n");
        assert_eq!((said.err, json.err), (line.clone(), line));
        assert!(said.out.contains("build"), "{}", said.out);
    }
    // The flow of a person who may relax the rules is checked, and is to be checked, by those.
    let relaxed = WORKFLOW.replace("role: owner", "role: boss");
    site.rig.file("cwd/free.yaml", &relaxed);
    let id = site.rig.swarm(&["flow", "new", "demo", "--workflow", "free.yaml", "--relaxed"]).ok();
    let free = Site { id: id.trim_end().to_owned(), rig: site.rig };
    assert_eq!(free.json("status", &[])["warnings"], Value::Array(Vec::new()));
    fs::write(free.dir().join("record/workflow.yaml"), relaxed.replace("role: dev", "role: Dev")).expect("written");
    let said = free.flow("status", &[]);
    assert!(said.code == Some(0) && said.err.ends_with("record/workflow.yaml --relaxed')\n"), "{said:?}");
}

#[test]
fn the_exit_code_shows_that_a_flow_cannot_be_opened() {
    let site = Site::new();
    site.rig
        .swarm(&["flow", "status", "nobody"])
        .refused(1, &format!("flow 'nobody' not found in {}", site.rig.cwd().canonicalize().expect("there").display()));
    site.rig.swarm(&["flow", "new", "../x", "--workflow", "w.yaml"]).refused(1, "Invalid project namespace \"../x\".");
    site.edit("\"stateVersion\": \"11\"", "\"stateVersion\": \"12\"");
    let said = site.flow("status", &[]);
    assert!(said.code == Some(4) && said.err.contains("flow state version \"12\""), "{said:?}");
    let listed = site.rig.swarm(&["flow", "ls"]).ok();
    assert!(listed.contains("running (version 12, cannot be opened)"), "{listed}");
    site.edit("\"stateVersion\": \"12\"", "\"stateVersion\": \"11\"");
    fs::rename(site.rig.cwd(), site.rig.path("moved")).expect("moved");
    let said = site.rig.swarm_in(&site.rig.path("moved"), &["flow", "status", &site.id[..10]]);
    assert!(said.code == Some(4) && said.err.contains("Persisted flow workspace root mismatch"), "{said:?}");
    fs::rename(site.rig.path("moved"), site.rig.cwd()).expect("moved back");
    fs::write(site.dir().join("flow.json"), "{").expect("written");
    assert_eq!(site.flow("status", &[]).code, Some(4));
    let said = site.rig.swarm(&["flow", "ls"]);
    assert!(said.code == Some(1) && said.err.contains("skipping flow 'demo/"), "{said:?}");
}

#[test]
fn a_flow_is_selected_by_a_prefix_of_its_id() {
    let site = Site::new();
    let other = site.rig.swarm(&["flow", "new", "next", "--workflow", "w.yaml"]).ok();
    let said = site.rig.swarm(&["flow", "status", &site.id[..4]]);
    assert!(said.code == Some(1) && said.err.contains(&site.id) && said.err.contains(other.trim_end()), "{said:?}");
    let typed = format!("demo/{}", &site.id[..4]);
    let said = site.rig.swarm_in(&site.rig.path("home"), &["flow", "status", &typed, "--root", "../cwd"]).ok();
    assert!(said.starts_with(&format!("demo/{}: ", site.id)), "{said}");
}

impl Site {
    /// Writes what a runner would write if the first node asked.
    fn asks(&self, reason: &str) {
        self.asks_at("owner-intake", reason);
    }

    fn asks_at(&self, node: &str, reason: &str) {
        let wait = format!("\"awaitingHumanNodes\": {{\"{node}\": {{\"role\": \"owner\", \"reason\": \"{reason}\"}}}}");
        self.edit("\"awaitingHumanNodes\": {}", &wait);
        self.edit(&format!("\"runningNodes\": [\n    \"{node}\"\n  ]"), "\"runningNodes\": []");
        self.edit("\"visitedNodeIds\": []", &format!("\"visitedNodeIds\": [\"{node}\"]"));
    }

    fn stages(&self, artifact: &str) {
        self.asks("handoff-approval");
        let staged =
            format!("{{\"owner-intake\": [{{\"target_node_id\": \"build\", \"artifact_path\": \"{artifact}\"}}]}}");
        self.edit("\"pendingHandoffApprovals\": {}", &format!("\"pendingHandoffApprovals\": {staged}"));
    }

    fn events(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir().join("events.jsonl")).unwrap_or_default();
        let kind = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["kind"].as_str().map(str::to_owned);
        text.lines().filter_map(kind).collect()
    }
}

#[test]
fn an_answer_is_queued_once() {
    let site = Site::new();
    site.flow("answer", &["go"]).refused(1, "The runtime is not currently accepting human input.");
    site.asks("prompt-human");
    site.flow("answer", &["go", "--node", "build"]).refused(1, "Node 'build' is not accepting human input.");
    site.flow("answer", &["  "]).refused(1, "the answer is empty");
    site.flow("answer", &["use tokens", "--role", "owner"]).is(0, "answered: owner-intake\n", "");
    let before = site.text();
    assert!(before.contains("\"text\": \"use tokens\""), "{before}");
    site.flow("answer", &["again"]).refused(1, "Node 'owner-intake' already has queued human input.");
    assert_eq!(site.text(), before);
    let node = &site.json("status", &[])["nodes"][0];
    assert_eq!((&node["reason"], &node["answered"]), (&"prompt-human".into(), &true.into()));
    assert_eq!(site.json("status", &[])["next"][0], "owner-intake");
    assert_eq!(site.events(), ["human.answered"]);
    assert_eq!(site.flow("answer", &[]).code, Some(2));
}

#[test]
fn one_of_several_concurrent_answers_is_accepted() {
    let site = Site::new();
    site.asks("prompt-human");
    let start = |at: usize| {
        let text = format!("answer {at}");
        site.rig.command(&["flow", "answer", &site.id, &text]).stderr(Stdio::null()).spawn().expect("starts")
    };
    let all: Vec<_> = (0..8).map(start).collect();
    let codes = all.into_iter().map(|mut child| child.wait().expect("ends").code());
    assert_eq!(codes.filter(|code| *code == Some(0)).count(), 1);
    assert_eq!(site.text().matches("\"text\": \"answer ").count(), 1);
}

#[test]
fn a_staged_handoff_is_approved_or_declined() {
    let site = Site::new();
    site.flow("approve", &["build"]).refused(1, "Node 'build' is not awaiting handoff approval.");
    site.stages("plan.md");
    site.flow("answer", &["x"]).refused(1, "The runtime is not currently accepting human input.");
    let said = site.flow("approve", &["owner-intake"]);
    assert!(said.code == Some(1) && said.err.contains("there is no file at that path"), "{said:?}");
    site.rig.file("cwd/plan.md", "limits\n");
    site.flow("approve", &["owner-intake"]).is(0, "approved: owner-intake\n", "");
    assert_eq!(site.json("status", &[])["next"][0], "build");
    assert_eq!(site.json("graph", &[])["edges"][0]["done"], true);
    assert_eq!(site.events(), ["handoff.applied"]);
    let other = Site::new();
    other.stages("plan.md");
    other.flow("decline", &["owner-intake", "--message", "shorter"]).is(0, "declined: owner-intake\n", "");
    let text = other.text();
    assert!(text.contains("\"pendingHandoffApprovals\": {}") && text.contains("\"text\": \"shorter\""), "{text}");
}

#[test]
fn the_end_of_a_flow_is_chosen() {
    let site = Site::new();
    site.flow("improve", &["none"])
        .refused(1, "The runtime is not currently waiting for an improvement mode selection.");
    site.flow("feedback", &["deny"])
        .refused(1, "The runtime is not currently waiting for a feedback consent decision.");
    let phase = "\"improvementPhase\": {\"status\": \"awaiting_choice\", \"completedRoles\": [], \"runningRoles\": [], \"findingsProduced\": {}, \"feedbackConsent\": \"pending\"},\n  \"status\": \"awaiting_improvement_choice\"";
    site.edit("\"status\": \"running\"", phase);
    site.flow("improve", &["sideways"]).code.filter(|code| *code == 2).expect("usage");
    assert!(site.flow("status", &[]).ok().contains("flow: the forward pass is complete → swarm flow improve "));
    site.flow("improve", &["graph-based"]).is(0, "improvement: graph-based\n", "");
    let plan = fs::read_to_string(site.dir().join("record/improvement.yaml")).expect("a plan");
    assert!(plan.contains("    - id: reviewer\n      role: reviewer\n      step_type: meta-analysis\n"), "{plan}");
    assert_eq!(site.json("status", &[])["improvement"]["mode"], "graph-based");
    site.flow("answer", &["x", "--role", "dev"])
        .refused(1, "Role \"dev\" is not currently awaiting human input in the improvement phase.");
    let text = site.text().replace("\"status\": \"running\"", "\"status\": \"awaiting_feedback_consent\"");
    fs::write(site.dir().join("flow.json"), text).expect("written");
    site.flow("feedback", &["deny"]).is(0, "feedback: denied\n", "");
    assert_eq!(site.json("status", &[])["status"], "completed");
    assert_eq!(site.events(), ["improvement.chosen", "feedback.decided", "flow.completed"]);
}

#[test]
fn full_access_settles_open_questions() {
    let site = Site::new();
    site.asks("consent");
    site.flow("consent", &["partial-access"]).is(0, "consent: partial-access\n", "");
    assert_eq!(site.json("status", &[])["nodes"][0]["reason"], "consent");
    let json = site.json("consent", &["full-access"]);
    assert_eq!((&json["schema"], &json["done"]), (&"swarm.flow.changed/1".into(), &"consent: full-access".into()));
    let status = site.json("status", &[]);
    assert_eq!((&status["consent"], &status["nodes"][0]["state"]), (&"full-access".into(), &"running".into()));
}

#[test]
fn a_killed_writer_leaves_a_complete_flow_file() {
    let site = Site::new();
    let script = "while :; do \"$0\" flow consent \"$1\" full-access; \"$0\" flow consent \"$1\" no-access; done";
    for _ in 0..5 {
        let mut command = site.rig.program("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_swarm"), &site.id]).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        for _ in 0..3 {
            lines.next().expect("a line").expect("is text");
        }
        let group = i32::try_from(child.id()).expect("a pid");
        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::SIGKILL).expect("killed");
        child.wait().expect("ended");
        assert_eq!(site.json("status", &[])["status"], "running");
        site.flow("consent", &["partial-access"]).ok();
    }
}

#[test]
fn events_are_listed_and_a_flow_is_removed_only_if_no_process_runs_it() {
    let site = Site::new();
    site.asks("prompt-human");
    site.flow("answer", &["go"]).ok();
    let told = site.flow("events", &[]).ok();
    assert!(told.trim_end().ends_with("Z human.answered nodeId=owner-intake"), "{told}");
    let line: Value = serde_json::from_str(&site.flow("events", &["--json"]).ok()).expect("JSON");
    assert_eq!((&line["schema"], &line["nodeId"]), (&"swarm.flow.event/1".into(), &"owner-intake".into()));
    let runner = fs::File::create(site.dir().join("swarm.runner")).expect("made");
    runner.lock().expect("locked");
    site.flow("rm", &[]).refused(1, &format!("flow 'demo/{}' is running", site.id));
    drop(runner);
    site.flow("rm", &[]).is(0, &format!("removed: demo/{}\n", site.id), "");
    assert!(!site.dir().exists());
    site.rig.swarm(&["flow", "ls"]).is(0, "", "");
    assert_eq!(site.flow("rm", &[]).code, Some(1));
}

#[test]
fn suggested_commands_quote_names_that_agents_chose() {
    let rig = Rig::new();
    let evil = "b;touch PWNED;";
    let text = WORKFLOW.replace("role: owner", "role: boss").replace("owner-intake", &format!("'{evil}'"));
    rig.file("cwd/w.yaml", &text);
    let id = rig.swarm(&["flow", "new", "demo", "--workflow", "w.yaml", "--relaxed"]);
    let site = Site { id: id.ok().trim_end().to_owned(), rig };
    site.asks_at(evil, "prompt-human");
    let command = format!("swarm flow answer {} --node '{evil}' TEXT", site.id);
    let said = site.flow("requests", &[]).ok();
    assert!(said.ends_with(&format!("→ {command}\n")), "{said}");
    assert_eq!(site.json("requests", &[])["requests"][0]["command"], command);
    assert!(site.flow("status", &[]).ok().contains(&command));
    site.edit("prompt-human", "handoff-approval");
    let staged = format!("{{\"{evil}\": [{{\"target_node_id\": \"build\", \"artifact_path\": \"x\"}}]}}");
    site.edit("\"pendingHandoffApprovals\": {}", &format!("\"pendingHandoffApprovals\": {staged}"));
    let said = site.flow("requests", &[]).ok();
    assert!(said.ends_with(&format!("→ swarm flow approve {} '{evil}'\n", site.id)), "{said}");
}
