//! Approvals by people that agents cannot get rid of.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::common::Rig;
use crate::flow_run::{Site, line, workflow};

/// Makes a stand-in for codex that writes its arguments to `args` and then executes `script`. Returns its configuration.
fn codex(rig: &Rig, script: &str) -> String {
    let args = rig.path("args");
    let text = format!(
        "#!/bin/sh\ncat > /dev/null\nprintf '%s\\n' \"$@\" > '{}'\necho '{{\"type\":\"thread.started\",\"thread_id\":\"t\"}}'\n\
         {script}\necho '{{\"type\":\"item.completed\",\"item\":{{\"type\":\"agent_message\",\"text\":\"done\"}}}}'\n\
         echo '{{\"type\":\"turn.completed\",\"usage\":{{}}}}'\n",
        args.display()
    );
    let program = rig.file("codex", &text);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    format!("[agents.codex]\ncommand = ['{program}']\nevents = 'codex'\n")
}

/// Directories in which the stand-in may write besides its current one.
fn roots(rig: &Rig) -> Vec<PathBuf> {
    let args = fs::read_to_string(rig.path("args")).expect("it was started");
    let roots = args.lines().find_map(|line| line.strip_prefix("sandbox_workspace_write.writable_roots="));
    serde_json::from_str(roots.expect("a sandbox")).expect("a list")
}

#[test]
fn a_turn_keeps_its_order_from_an_agent_in_a_sandbox() {
    let site = Site::with(&line("exit 1", ""), "[flow]\nagent = 'shell'\n", &["--consent", "partial-access"]);
    // Its first handoff cannot be read.
    let script = "if [ ! -e ../tried ]; then touch ../tried; mkdir -p \"$SWARM_HANDOFF/x\"; else\n\
                  echo x > x.txt; swarm flow emit --to owner-close --artifact x.txt > /dev/null; fi";
    let config = format!("[flow]\nagent = 'shell'\n[flow.roles.dev]\nagent = 'codex'\n{}", codex(&site.rig, script));
    fs::write(site.repo.join("swarm.toml"), config).expect("written");
    site.rig.trust(&site.repo);
    assert_eq!(site.run(), "waiting");
    assert_eq!((site.status().as_str(), site.count("repair.requested")), ("awaiting_improvement_choice", 1));
    let turn = site.dir().join("turns/dev/1").canonicalize().expect("there");
    let roots = roots(&site.rig);
    for file in ["order.json", "prompt.md", "told", "../../../flow.json", "../../../swarm.json"] {
        let file = turn.join(file).canonicalize().expect(file);
        assert!(!roots.iter().any(|root| file.starts_with(root)), "{}: {roots:?}", file.display());
    }
    assert!(roots.iter().any(|root| turn.join("out/handoff.yaml").starts_with(root)), "{roots:?}");
}

#[test]
fn an_agent_in_a_sandbox_that_contains_the_flow_is_not_started() {
    let rig = Rig::new();
    let config = format!("[flow]\nagent = 'codex'\n{}", codex(&rig, "true"));
    rig.file("cwd/swarm.toml", &config);
    rig.trust(&rig.cwd());
    rig.file("cwd/w.yaml", &line("true", ""));
    let words = ["flow", "new", "demo", "--workflow", "w.yaml", "--consent", "partial-access", "--start"];
    let id = rig.swarm(&words).ok().trim_end().to_owned();
    let run = || rig.swarm(&["flow", "run", &id, "--wait"]).ok();
    let said = run();
    assert!(said.contains("could change the flow itself"), "{said}");
    assert!(said.contains("put the workspace into a git repository"), "{said}");
    assert!(!rig.path("args").exists(), "it was not started");
    // In its read-only sandbox, it is.
    rig.swarm(&["flow", "consent", &id, "no-access"]).ok();
    rig.swarm(&["flow", "answer", &id, "now"]).ok();
    run();
    assert!(rig.path("args").exists());
    // Nor does anything speak against a folder of the project, beside the flow.
    fs::remove_file(rig.path("args")).expect("there");
    fs::create_dir(rig.cwd().join("demo")).expect("made");
    rig.swarm(&["flow", "consent", &id, "partial-access"]).ok();
    rig.swarm(&["flow", "answer", &id, "now"]).ok();
    run();
    let args = fs::read_to_string(rig.path("args")).expect("started");
    assert!(args.contains("sandbox_mode=\"workspace-write\""), "{args}");
}

/// Edits the `work` of a node of the recorded workflow, whose script is `echo old`.
const EDIT: &str = "sed -i 's/echo old/echo new/' \"$SWARM_RECORD/workflow.yaml\"";

#[test]
fn a_changed_script_is_executed_only_with_approval() {
    for gate in ["", "      human-colab: true\n"] {
        let begin =
            format!("{EDIT}\necho x > $SWARM_RECORD/x.md; swarm flow emit --to test --artifact $SWARM_RECORD/x.md");
        let test = "echo old >> ../ran; cp ../ran $SWARM_RECORD/ran-$SWARM_TURN.md\n\
                    swarm flow emit --to owner-close --artifact $SWARM_RECORD/ran-$SWARM_TURN.md";
        let nodes = [
            ("owner-intake", "owner", "", begin.as_str()),
            ("test", "ci", "", test),
            ("owner-close", "owner", gate, "swarm flow emit --close"),
        ];
        let site = Site::new(&workflow(&nodes, &[("owner-intake", "test"), ("test", "owner-close")]));
        assert_eq!(site.run(), "waiting");
        if !gate.is_empty() {
            // A gated workflow asks before the handoff as well.
            site.flow("approve", &["owner-intake"]).ok();
            assert_eq!(site.run(), "waiting");
        }
        let ran = || fs::read_to_string(site.rig.path("repo-worktrees/ran")).unwrap_or_default();
        assert_eq!((site.reason("test").as_str(), ran().as_str()), ("autonomous-abort", ""));
        let said = site.flow("requests", &[]).ok();
        let changed = "what this node executes was changed after the flow started, and needs your approval";
        assert!(said.contains(&format!("{changed}\n  echo new >> ../ran; cp")), "{said}");
        assert!(said.ends_with(&format!("→ swarm flow approve {} test\n", site.id)), "{said}");
        // An answer is no approval.
        site.flow("answer", &["go on"]).ok();
        assert_eq!((site.run().as_str(), ran().as_str()), ("waiting", ""));
        site.flow("decline", &["test"]).ok();
        assert!(
            site.flow("status", &[])
                .ok()
                .contains("test: what this node would execute was declined → swarm flow answer")
        );
        site.flow("answer", &["try again"]).ok();
        assert_eq!((site.run().as_str(), ran().as_str()), ("waiting", ""));
        let name = format!("{}/test", site.id);
        let listed = site.rig.swarm(&["approvals"]).ok();
        assert!(listed.contains(&name) && listed.contains("permission"), "{listed}");
        site.rig.swarm(&["approve", &name]).ok();
        assert_eq!(site.run(), "waiting");
        assert_eq!((site.status().as_str(), ran().as_str()), ("awaiting_improvement_choice", "new\n"));
    }
}

#[test]
fn work_that_a_node_gets_from_the_project_cannot_be_changed_unseen() {
    let site = Site::new(&line("rm -f ../never", ""));
    let folder = site.repo.join("demo/a-docs/workflow");
    fs::create_dir_all(&folder).expect("made");
    let shared = |word: &str| {
        let node = format!("{{id: test, role: ci, work: [\"~~~sh\\necho {word} > ../ran\\n~~~\"]}}");
        fs::write(folder.join("main.yaml"), format!("workflow: {{nodes: [{node}]}}\n")).expect("written");
    };
    shared("old");
    let script = "echo x > $SWARM_RECORD/x.md; swarm flow emit --to test --artifact $SWARM_RECORD/x.md";
    let edit = format!("until [ -e ../edited ]; do sleep 0.01; done; {script}");
    let nodes = [("owner-intake", "owner", "", edit.as_str()), ("owner-close", "owner", "", "swarm flow emit --close")];
    let text = workflow(&nodes, &[("owner-intake", "test"), ("test", "owner-close")]);
    let text = text.replace("    - id: owner-close", "    - {id: test, role: ci}\n    - id: owner-close");
    fs::write(site.dir().join("record/workflow.yaml"), text).expect("written");
    site.flow("run", &[]).ok();
    shared("new");
    fs::create_dir_all(site.rig.path("repo-worktrees")).expect("made");
    fs::write(site.rig.path("repo-worktrees/edited"), "").expect("written");
    assert_eq!(site.run(), "waiting");
    assert!(site.words("test").contains("\necho new > ../ran"), "{}", site.words("test"));
    assert!(!site.rig.path("repo-worktrees/ran").exists());
}

#[test]
fn a_workflow_that_an_agent_broke_does_not_hold_up_its_flow() {
    let script = "echo 'a: [' > $SWARM_RECORD/workflow.yaml; echo x > x.txt\n\
                  swarm flow emit --to owner-close --artifact x.txt 2> ../told";
    let site = Site::new(&line(script, ""));
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
    let warning = "workflow.yaml: ";
    let told = fs::read_to_string(site.rig.path("repo-worktrees/told")).expect("told");
    assert!(told.contains(warning) && told.contains("the flow uses its last valid workflow"), "{told}");
    let said = site.flow("status", &[]);
    assert!(said.code == Some(0) && said.err.contains("the flow goes on with its last valid workflow"), "{said:?}");
    site.flow("improve", &["none"]).ok();
    assert_eq!(site.flow("resume", &["--wait"]).code, Some(0));
    assert_eq!(site.status(), "completed");
}

#[test]
fn an_agent_cannot_remove_the_approval_that_its_workflow_required() {
    let script = "sed -i '/human-colab/d' $SWARM_RECORD/workflow.yaml; echo x > x.txt\n\
                  swarm flow emit --to owner-close --artifact x.txt";
    let site = Site::new(&line(script, "      human-colab: true\n"));
    assert_eq!(site.run(), "waiting");
    let workflow = fs::read_to_string(site.dir().join("record/workflow.yaml")).expect("there");
    assert!(!workflow.contains("human-colab"), "{workflow}");
    assert_eq!(site.reason("build"), "handoff-approval");
    site.flow("approve", &["build"]).is(0, "approved: build\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
}

#[test]
fn an_agent_cannot_lead_its_workflow_around_an_approval() {
    // The first agent adds an edge that leads past the node whose handoff needs approval.
    let script = "cp \"$SWARM_RECORD/workflow.yaml\" $SWARM_RECORD/before.yaml\n\
                  echo '    - {from: owner-intake, to: owner-close}' >> $SWARM_RECORD/workflow.yaml\n\
                  echo x > $SWARM_RECORD/x.md; swarm flow emit --to owner-close --artifact $SWARM_RECORD/x.md";
    let nodes = [
        ("owner-intake", "owner", "", script),
        ("build", "dev", "      human-colab: true\n", "exit 1"),
        ("owner-close", "owner", "", "swarm flow emit --close"),
    ];
    let site = Site::new(&workflow(&nodes, &[("owner-intake", "build"), ("build", "owner-close")]));
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.reason("owner-intake"), "handoff-approval");
    let said = site.flow("status", &[]).ok();
    assert!(said.contains("to owner-close: the workflow was changed here after the flow started"), "{said}");
}

#[test]
fn no_worker_can_decide_for_the_person() {
    let script = "echo x > x.txt; swarm flow emit --to owner-close --artifact x.txt";
    let site = Site::new(&line(script, "      human-colab: true\n"));
    assert_eq!(site.run(), "waiting");
    let before = site.text();
    let verbs = [
        "approve FLOW build",
        "decline FLOW build",
        "answer FLOW yes",
        "allow FLOW 1",
        "deny FLOW 1",
        "consent FLOW no-access",
        "improve FLOW none",
        "feedback FLOW grant",
    ];
    let bin = env!("CARGO_BIN_EXE_swarm");
    let each = verbs.map(|verb| format!("'{bin}' flow {}; ", verb.replace("FLOW", &site.id))).concat();
    // Neither without the marks of the worker nor with directories of its own.
    let approve = format!("'{bin}' flow approve {} build", site.id);
    let script = format!(
        "cd '{}' || exit; {each} env -u SWARM_TOKEN -u SWARM_WORKER setsid {approve}; \
         HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent SWARM_DIR=$PWD/../other {approve}; '{bin}' flow status {}; exit 0",
        site.repo.display(),
        site.id
    );
    site.rig.spawn_sh("agent", &[], &script);
    site.rig.wait("agent");
    let said = site.rig.log("agent", "stderr");
    let cause = format!("swarm: error: worker 'agent' cannot decide for a person in flow 'demo/{}'", site.id);
    let refused = said.lines().filter(|line| *line == cause).count();
    assert_eq!(refused, verbs.len() + 2, "{said}");
    assert!(site.rig.log("agent", "stdout").contains("handoff-approval"), "a worker may look");
    assert_eq!(site.text(), before);
    site.flow("approve", &["build"]).is(0, "approved: build\n", "");
}
