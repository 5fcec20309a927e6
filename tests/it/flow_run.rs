//! Running flows: roles played by the embedded `shell` agent and by commands that stand in for agents, each in
//! its own worktree.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, Said, wait_until};

/// A repository with one flow of the project `demo`.
pub struct Site {
    pub rig: Rig,
    pub repo: PathBuf,
    pub id: String,
}

/// A node, its role, more of its keys, and the script that its turns run.
pub type Node<'a> = (&'a str, &'a str, &'a str, &'a str);

pub fn workflow(nodes: &[Node<'_>], edges: &[(&str, &str)]) -> String {
    let mut text = "workflow:\n  name: Work\n  nodes:\n".to_owned();
    for (id, role, more, script) in nodes {
        let _ = write!(text, "    - id: {id}\n      role: {role}\n{more}      work:\n        - |\n          ```sh\n");
        for line in script.lines() {
            let _ = writeln!(text, "          {line}");
        }
        text.push_str("          ```\n");
    }
    text.push_str("  edges:\n");
    for (from, to) in edges {
        let _ = writeln!(text, "    - {{from: {from}, to: {to}}}");
    }
    text
}

const BEGIN: &str = "echo plan > $SWARM_RECORD/plan-$SWARM_TURN.md\n\
                     swarm flow emit --to build --artifact $SWARM_RECORD/plan-$SWARM_TURN.md";

/// Intake, build by `script`, close.
pub fn line(script: &str, more: &str) -> String {
    let nodes = [
        ("owner-intake", "owner", "", BEGIN),
        ("build", "dev", more, script),
        ("owner-close", "owner", "", "swarm flow emit --close"),
    ];
    workflow(&nodes, &[("owner-intake", "build"), ("build", "owner-close")])
}

impl Site {
    pub fn new(workflow: &str) -> Self {
        Self::with(workflow, "[flow]\nagent = 'shell'\n", &["--consent", "full-access"])
    }

    pub fn with(workflow: &str, config: &str, words: &[&str]) -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        fs::write(repo.join("swarm.toml"), config).expect("written");
        rig.git(&repo, &["add", "-A"]);
        rig.git(&repo, &["commit", "-q", "-m", "config"]);
        rig.trust(&repo);
        let file = rig.file("w.yaml", workflow);
        let words = [&["flow", "new", "demo", "--workflow", &file], words].concat();
        let id = rig.swarm_in(&repo, &words).ok().trim_end().to_owned();
        Self { rig, repo, id }
    }

    pub fn flow(&self, verb: &str, words: &[&str]) -> Said {
        self.rig.swarm_in(&self.repo, &[&["flow", verb, &self.id], words].concat())
    }

    #[track_caller]
    pub fn json(&self, verb: &str, words: &[&str]) -> Value {
        let said = self.flow(verb, &[words, &["--json"]].concat()).ok();
        serde_json::from_str(&said).expect("JSON")
    }

    /// Runs the flow until it rests, and returns its status.
    #[track_caller]
    pub fn run(&self) -> String {
        self.json("run", &["--wait"])["done"].as_str().expect("a word").to_owned()
    }

    pub fn dir(&self) -> PathBuf {
        self.repo.join(".a-society/state/demo").join(&self.id)
    }

    pub fn text(&self) -> String {
        fs::read_to_string(self.dir().join("flow.json")).expect("a flow")
    }

    pub fn file(&self) -> Value {
        serde_json::from_str(&self.text()).expect("JSON")
    }

    pub fn status(&self) -> String {
        self.file()["status"].as_str().expect("a status").to_owned()
    }

    /// Reason why a node waits for a person; empty if it does not.
    pub fn reason(&self, node: &str) -> String {
        self.file()["awaitingHumanNodes"][node]["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// Question of a node.
    pub fn words(&self, node: &str) -> String {
        let list = self.json("requests", &[]);
        let list = list["requests"].as_array().expect("a list");
        let one = list.iter().find(|one| one["node"] == node).unwrap_or(&Value::Null);
        one["text"].as_str().unwrap_or_default().to_owned()
    }

    pub fn worker(&self, role: &str) -> String {
        format!("{}-{role}", self.id.rsplit('-').next().expect("six characters"))
    }

    pub fn worktree(&self, role: &str) -> PathBuf {
        self.rig.path("repo-worktrees").join(self.worker(role))
    }

    /// Number of events of this kind.
    pub fn count(&self, kind: &str) -> usize {
        let text = fs::read_to_string(self.dir().join("events.jsonl")).unwrap_or_default();
        text.lines().filter(|line| line.contains(&format!("\"kind\":\"{kind}\""))).count()
    }

    pub fn fine(&self, worker: &str) -> String {
        self.rig.fine(worker)
    }

    /// Waits until a script has made this file below the rig.
    pub fn until(&self, name: &str) {
        let path = self.rig.path(name);
        wait_until(name, SOON, || path.exists());
    }
}

/// The example of `docs/flows.md`: a backward handoff, a question answered from another terminal, an approval, a
/// supervisor killed in the middle, a backward pass, no feedback.
#[test]
fn a_flow_runs_from_intake_to_its_end_with_answers_and_approvals() {
    let review = "if [ $(wc -l < code.txt) = 1 ]; then\n\
                  echo 'not enough' > $SWARM_RECORD/back.md\n\
                  swarm flow emit --to build --artifact $SWARM_RECORD/back.md\n\
                  elif [ -z \"$SWARM_ANSWER\" ]; then swarm flow emit --ask 'Is it good?'\n\
                  else echo \"$SWARM_ANSWER\" > $SWARM_RECORD/good.md\n\
                  swarm flow emit --to owner-close --artifact $SWARM_RECORD/good.md; fi";
    let build = "echo \"turn $SWARM_TURN\" >> code.txt\nswarm flow emit --to review --artifact code.txt";
    let nodes = [
        ("owner-intake", "owner", "", BEGIN),
        ("build", "dev", "", build),
        ("review", "reviewer", "      human-colab: true\n", review),
        ("owner-close", "owner", "", "grep -q 'turn 2' code.txt && swarm flow emit --close"),
    ];
    let edges = [("owner-intake", "build"), ("build", "review"), ("review", "owner-close")];
    let site = Site::with(
        &workflow(&nodes, &edges),
        "[flow]\nagent = 'shell'\nmerge = true\n",
        &["--consent", "full-access", "--task", "limit the rate"],
    );
    assert_eq!(site.run(), "waiting");
    assert_eq!((site.reason("review").as_str(), site.words("review").as_str()), ("prompt-human", "Is it good?"));
    assert_eq!(site.file()["completedHandoffs"].as_array().map(Vec::len), Some(2));
    let (supervisor, _) = site.rig.keepers();
    proc::kill(supervisor.expect("one runs"));
    site.flow("answer", &["yes"]).is(0, "answered: review\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.reason("review"), "handoff-approval");
    site.flow("approve", &["review"]).is(0, "approved: review\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    site.flow("improve", &["graph-based"]).ok();
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_feedback_consent");
    for role in ["reviewer", "dev", "owner"] {
        assert!(site.dir().join(format!("record/findings/{role}-findings.md")).exists(), "{role}");
    }
    site.flow("feedback", &["deny"]).ok();
    assert_eq!((site.run().as_str(), site.status().as_str()), ("over", "completed"));
    let landed = || site.rig.git_says(&site.repo, &["show", "main:code.txt"]).out;
    wait_until("the work lands", SOON, || landed() == "turn 1\nturn 2\n");
    assert_eq!((site.count("handoff.applied"), site.count("human.resumed"), site.count("flow.completed")), (5, 1, 1));
    let feed = site.flow("feed", &["--role", "dev"]).ok();
    assert!(feed.starts_with("dev  Activation: build (dev) is active.\n"), "{feed}");
    assert!(feed.contains("dev  Handoff: build (dev) handed off to review (reviewer).\n"), "{feed}");
    let torn = fs::read_dir(site.dir()).expect("there").flatten();
    assert_eq!(torn.filter(|file| file.file_name().to_string_lossy().contains("tmp-")).count(), 0);
}

#[test]
fn a_refused_handoff_is_sent_back_three_times_and_changes_nothing() {
    let script = "echo x >> ../tries\n\
                  printf '```handoff\\ntarget_node_id: nowhere\\nartifact_path: plan\\n```\\n'\n\
                  cp $SWARM_FLOW_ROOT/.a-society/state/$SWARM_FLOW/flow.json ../seen-$(wc -l < ../tries)";
    let site = Site::new(&line(script, ""));
    assert_eq!(site.run(), "waiting");
    let seen = |number: u32| fs::read_to_string(site.rig.path("repo-worktrees").join(format!("seen-{number}")));
    assert_eq!(seen(1).expect("the first try"), seen(4).expect("the fourth try"), "byte for byte");
    assert!(seen(5).is_err(), "more than three retries");
    assert_eq!(site.reason("build"), "autonomous-abort");
    assert!(site.words("build").contains("'nowhere' not found in workflow"), "{}", site.words("build"));
    assert_eq!((site.count("repair.requested"), site.count("handoff.applied")), (3, 1));
    // A user's answer starts the turn again, with all its tries.
    site.flow("answer", &["once more"]).ok();
    assert_eq!(site.run(), "waiting");
    assert!(seen(8).is_ok() && seen(9).is_err());
}

#[test]
fn emit_reports_mistakes_at_once_and_the_last_handoff_counts() {
    let script = "swarm flow emit --to owner-intake --artifact nothing.md 2> ../first || true\n\
                  swarm flow emit --close 2> ../second || true\n\
                  swarm flow emit --ask 'who?'\n\
                  echo done > done.md\n\
                  swarm flow emit --to owner-close --artifact done.md";
    let site = Site::new(&line(script, ""));
    assert_eq!(site.run(), "waiting");
    let said = |name: &str| fs::read_to_string(site.rig.path("repo-worktrees").join(name)).expect("it was said");
    assert!(said("first").contains("there is no file at that path"), "{}", said("first"));
    assert!(said("second").contains("Only the last owner node"), "{}", said("second"));
    assert_eq!((site.status().as_str(), site.count("repair.requested")), ("awaiting_improvement_choice", 0));
    let history = site.file()["historyHandoff"]["build=>owner-close"][0].as_str().expect("a path").to_owned();
    assert_eq!(fs::read_to_string(site.repo.join(history)).expect("copied into the record"), "done\n");
    // Outside a turn there is no node for which to emit.
    site.rig
        .swarm_in(&site.repo, &["flow", "emit", "--close"])
        .refused(1, "not in a turn of a flow (only agents with a role can run this)");
}

#[test]
fn a_killed_turn_is_repeated() {
    // As if it was killed while it wrote its handoff.
    let script = "echo x >> ../tries\n\
                  torn=$(dirname $SWARM_HANDOFF)/.handoff.yaml.tmp-1-0\n\
                  if [ $(wc -l < ../tries) = 1 ]; then touch $torn; echo $torn > ../begun; exec sleep 600; fi\n\
                  echo done > done.md\n\
                  swarm flow emit --to owner-close --artifact done.md";
    let site = Site::new(&line(script, ""));
    site.flow("run", &[]).ok();
    let begun = || fs::read_to_string(site.rig.path("repo-worktrees/begun")).unwrap_or_default();
    wait_until("the turn begins", SOON, || begun().ends_with('\n'));
    proc::kill(site.rig.pid(&site.worker("dev")));
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    assert_eq!((site.count("turn.again"), site.count("handoff.applied")), (1, 2));
    assert!(!Path::new(begun().trim()).exists(), "the torn file is removed");
    let tries = fs::read_to_string(site.rig.path("repo-worktrees/tries")).expect("counted");
    assert_eq!(tries.lines().count(), 2);
}

#[test]
fn the_handoff_of_a_killed_turn_is_applied_without_repeating_the_agent() {
    let script = "echo x >> ../tries\n\
                  echo done > done.md\n\
                  swarm flow emit --to owner-close --artifact done.md\n\
                  touch ../said; exec sleep 600";
    let site = Site::new(&line(script, ""));
    site.flow("run", &[]).ok();
    site.until("repo-worktrees/said");
    proc::kill(site.rig.pid(&site.worker("dev")));
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    let tries = fs::read_to_string(site.rig.path("repo-worktrees/tries")).expect("counted");
    assert_eq!(tries.lines().count(), 1, "the agent ran again");
}

#[test]
fn a_flow_is_stopped_and_resumed_and_a_single_turn_is_stopped() {
    let script = "echo x >> ../tries; touch ../begun\n\
                  if [ -z \"$SWARM_ANSWER\" ]; then exec sleep 600; fi\n\
                  echo \"$SWARM_ANSWER\" > done.md\n\
                  swarm flow emit --to owner-close --artifact done.md";
    let site = Site::new(&line(script, ""));
    site.flow("stop", &[]).refused(1, &format!("flow 'demo/{}' is not running", site.id));
    site.flow("run", &[]).is(0, &format!("running: demo/{}\n", site.id), "");
    site.until("repo-worktrees/begun");
    site.flow("stop", &[]).is(0, &format!("stopped: demo/{}\n", site.id), "");
    assert_eq!(site.file()["runningNodes"][0], "build");
    fs::remove_file(site.rig.path("repo-worktrees/begun")).expect("there");
    site.flow("resume", &[]).ok();
    site.until("repo-worktrees/begun");
    site.flow("stop", &["review"]).refused(1, "no turn is running at node 'review'");
    site.flow("stop", &["build"]).is(0, &format!("stopping: demo/{}\n", site.id), "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.reason("build"), "autonomous-abort");
    assert_eq!(site.words("build"), "the turn was stopped");
    site.flow("answer", &["go on"]).ok();
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    assert_eq!(site.count("handoff.applied"), 2);
}

#[test]
fn a_flow_continues_after_all_its_processes_were_killed() {
    let script = "echo x >> ../tries\n\
                  if [ $(wc -l < ../tries) = 1 ]; then touch ../begun; exec sleep 600; fi\n\
                  echo done > done.md; swarm flow emit --to owner-close --artifact done.md";
    let site = Site::new(&line(script, ""));
    site.flow("run", &[]).ok();
    site.until("repo-worktrees/begun");
    // First the processes that would restart something meanwhile.
    let (shim, agent) = (site.rig.shim(&site.worker("dev")), site.rig.pid(&site.worker("dev")));
    site.rig.kill_keepers();
    [shim, agent].into_iter().for_each(proc::kill);
    assert_eq!(site.run(), "waiting");
    assert_eq!((site.status().as_str(), site.count("handoff.applied")), ("awaiting_improvement_choice", 2));
}

#[test]
fn agents_that_cannot_ask_do_not_start_without_consent() {
    let site = Site::with(&line("true", ""), "[flow]\nagent = 'shell'\n", &[]);
    assert_eq!(site.run(), "waiting");
    let hint = site.words("owner-intake");
    assert!(hint.contains("swarm flow consent") && hint.ends_with(", then answer"), "{hint}");
    let said = site.flow("status", &[]).ok();
    assert!(said.contains(&format!("owner-intake: {hint} → swarm flow answer")), "{said}");
    assert!(!site.dir().join("record/plan-1.md").exists());
    site.flow("consent", &["partial-access"]).ok();
    site.flow("answer", &["now"]).ok();
    assert_eq!(site.run(), "waiting");
    assert!(site.dir().join("record/plan-2.md").exists());
    assert!(
        site.flow("status", &[])
            .ok()
            .contains("agents that cannot ask for permission and act without limits: owner (shell)")
    );
}

#[test]
fn a_permission_is_asked_for_and_given_from_another_terminal() {
    // As an agent's hook does.
    let script = "ask() { printf '{\"tool_name\": \"Bash\", \"tool_input\": {\"command\": \"%s\"}}' \"$1\" | swarm flow consent-check; }\n\
                  ask pwd > ../free; ask 'swarm flow emit --close' > ../own\n\
                  ask 'make test' > ../once; ask 'make test' > ../again\n\
                  ask 'make test' > ../granted; ask 'rm -r x' > ../denied\n\
                  exec sleep 600";
    let site = Site::with(
        &line(script, ""),
        "[flow]\nagent = 'shell'\n[flow.roles.owner]\nunsafe = true\n[flow.roles.dev]\nunsafe = true\n",
        &[],
    );
    site.flow("run", &[]).ok();
    let request = |number: u64| {
        let open = || site.json("requests", &[])["requests"][0].clone();
        wait_until("the question", SOON, || open()["request"] == number);
        open()
    };
    let said = |name: &str| fs::read_to_string(site.rig.path("repo-worktrees").join(name)).expect("answered");
    let first = request(1);
    assert_eq!((&first["node"], &first["text"]), (&"build".into(), &"make test".into()));
    assert!(said("free").contains("\"allow\"") && said("own").contains("\"allow\""));
    // The request is written first, the wait of its node after it.
    wait_until("its node waits", SOON, || site.reason("build") == "consent");
    site.flow("answer", &["no text"]).refused(1, "The runtime is not currently accepting human input.");
    site.flow("allow", &["7"]).refused(1, "request 7 is not open");
    site.flow("allow", &["1"]).is(0, "allowed: build\n", "");
    request(2);
    let wide = "swarm: the flow now has partial access: agents write files without asking\n";
    site.flow("allow", &["2", "--flow-wide"]).is(0, "allowed: build\n", wide);
    let last = request(3);
    assert_eq!(last["text"], "rm -r x", "a granted command is not asked for again");
    assert!(said("granted").contains("\"allow\""));
    site.flow("deny", &["3"]).ok();
    assert_eq!(site.reason("build"), "consent-denied");
    assert_eq!(site.file()["consentState"]["bash"]["allowedCommands"]["make test"]["command"], "make test");
    // The turn has ended; an answer starts it again.
    assert_eq!(site.run(), "waiting");
    assert_eq!((site.reason("build").as_str(), site.fine(&site.worker("dev")).as_str()), ("consent-denied", "stopped"));
    site.flow("answer", &["otherwise"]).ok();
    request(4);
}

#[test]
fn changes_of_two_roles_are_merged_and_conflicts_are_reported_to_the_joining_role() {
    let begin = "echo plan > $SWARM_RECORD/plan.md\n\
                 swarm flow emit --to one --to two --artifact $SWARM_RECORD/plan.md";
    let side = "echo $SWARM_NODE > both.txt; echo $SWARM_NODE > $SWARM_NODE.txt\n\
                swarm flow emit --to owner-close --artifact $SWARM_NODE.txt";
    let nodes = [
        ("owner-intake", "owner", "", begin),
        ("one", "dev", "", side),
        ("two", "dev_2", "", side),
        ("owner-close", "owner", "      await-all-inputs: true\n", ""),
    ];
    let edges = [("owner-intake", "one"), ("owner-intake", "two"), ("one", "owner-close"), ("two", "owner-close")];
    let text = workflow(&nodes, &edges);
    let agent = "cat > said.txt\nif [ \"$SWARM_NODE\" = owner-intake ]; then\n\
                 echo plan > $SWARM_RECORD/plan.md\n\
                 swarm flow emit --to one --to two --artifact $SWARM_RECORD/plan.md; exit; fi\n\
                 cp said.txt $SWARM_RECORD/../joined\n\
                 echo settled > both.txt\n\
                 swarm flow emit --close";
    let rig_agent = |rig: &Rig| {
        let path = rig.file("owner-agent", &format!("#!/bin/sh\n{agent}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path
    };
    let site = Site::new(&text);
    let path = rig_agent(&site.rig);
    let config = format!("[flow]\nagent = 'shell'\n[flow.roles.owner]\ncommand = ['{path}']\n");
    fs::write(site.repo.join("swarm.toml"), config).expect("written");
    site.rig.trust(&site.repo);
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    let said = fs::read_to_string(site.dir().join("joined")).expect("said");
    assert!(said.contains("conflicts with your worktree; the conflict markers are in both.txt"), "{said}");
    let owner = site.worktree("owner");
    for name in ["one.txt", "both.txt"] {
        assert!(owner.join(name).exists(), "{name}");
    }
    assert_eq!(fs::read_to_string(owner.join("both.txt")).expect("there"), "settled\n");
}

#[test]
fn an_agent_cannot_give_a_role_another_command() {
    let rig = Rig::new();
    rig.file("cwd/swarm.toml", "[flow]\nagent = 'shell'\n");
    rig.trust(&rig.cwd());
    let pwned = rig.path("pwned");
    let hostile = rig.file(
        "hostile",
        &format!("[flow]\nagent = 'shell'\n[flow.roles.owner]\ncommand = ['touch', '{}']\n", pwned.display()),
    );
    let script = format!(
        "cp '{hostile}' swarm.toml; cp '{hostile}' ../swarm.toml; pwd > where.txt\n\
                          swarm flow emit --to owner-close --artifact where.txt"
    );
    rig.file("cwd/w.yaml", &line(&script, ""));
    fs::create_dir(rig.cwd().join("demo")).expect("made");
    let words = ["flow", "new", "demo", "--workflow", "w.yaml", "--consent", "full-access", "--start"];
    let id = rig.swarm(&words).ok().trim_end().to_owned();
    wait_until("the flow rests", SOON, || rig.swarm(&["flow", "status", &id]).out.contains("swarm flow improve"));
    let done = rig.swarm(&["flow", "run", &id]);
    assert!(done.err.contains("is not trusted: it would execute 1 command"), "a new start needs consent: {done:?}");
    assert!(rig.path("cwd/demo/swarm.toml").exists() && !pwned.exists());
}

#[test]
fn roles_without_a_repository_work_in_the_project_folder() {
    let rig = Rig::new();
    rig.file("cwd/swarm.toml", "[flow]\nagent = 'shell'\n");
    rig.trust(&rig.cwd());
    let script = "pwd > where.txt; swarm flow emit --to owner-close --artifact where.txt";
    rig.file("cwd/w.yaml", &line(script, ""));
    fs::create_dir(rig.cwd().join("demo")).expect("made");
    let words = ["flow", "new", "demo", "--workflow", "w.yaml", "--consent", "full-access", "--start"];
    let id = rig.swarm(&words).ok().trim_end().to_owned();
    let done = rig.swarm(&["flow", "run", &id, "--wait", "--json"]).ok();
    assert!(done.contains("\"waiting\""), "{done}");
    let place = rig.cwd().join("demo").canonicalize().expect("there");
    assert_eq!(fs::read_to_string(place.join("where.txt")).expect("there").trim_end(), place.to_str().expect("text"));
    assert!(rig.swarm(&["flow", "status", &id]).ok().contains("swarm flow improve"));
}

#[test]
fn a_flow_that_cannot_run_is_refused_before_anything_starts() {
    let site = Site::with(&line("true", ""), "[flow.roles.dev]\nagent = 'nobody'\n", &[]);
    let said = site.flow("run", &[]);
    assert!(said.code == Some(1) && said.err.contains("role 'dev': agent 'nobody' not found"), "{said:?}");
    fs::write(site.repo.join("swarm.toml"), "[flow]\nagents = 1\n").expect("written");
    let said = site.flow("run", &[]);
    assert!(said.code == Some(1) && said.err.contains("swarm.toml, line 2: unknown key 'flow.agents'"), "{said:?}");
    assert_eq!(site.file()["visitedNodeIds"].as_array().map(Vec::len), Some(0));
    site.rig.swarm_in(&site.repo, &["flow", "new", "demo", "--workflow", "w.yaml", "--base", "nobranch"]);
}

#[test]
fn a_supervisor_of_another_directory_does_not_run_the_same_flow() {
    let site = Site::new(&line("touch ../begun; exec sleep 600", ""));
    site.flow("run", &[]).ok();
    site.until("repo-worktrees/begun");
    let mut command = site.rig.command(&["flow", "run", &site.id]);
    command.current_dir(&site.repo).env("SWARM_DIR", site.rig.path("other"));
    let said = crate::common::run(command);
    assert!(
        said.code == Some(1) && said.err.contains("flow '") && said.err.contains("' is in use by another process"),
        "{said:?}"
    );
    let mut command = site.rig.command(&["supervisor", "stop"]);
    command.env("SWARM_DIR", site.rig.path("other"));
    crate::common::run(command);
    let refused = site.flow("rm", &[]);
    assert!(refused.code == Some(1) && refused.err.contains("is running\n"), "{refused:?}");
    proc::signal(site.rig.pid(&site.worker("dev")), Signal::TERM);
}
