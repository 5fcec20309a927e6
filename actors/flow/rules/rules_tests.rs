//! Tests of rules that the recorded walks do not cover.

use serde_json::json;

use super::block::{BLOCK_BYTES_MAX, Code, Signal, Target, Which, extract, interpret, parse};
use super::consent::{deny_stale, is_harmless};
use super::document::{FlowRun, NewFlow};
use super::graph::{Graph, Node};
use super::handoff::{Artifact, Ended, finish};
use super::improvement::{self, Begun, Feedback, ResumePath, RoleEnded, relative};
use super::json::Json;
use super::names::FlowRef;
use super::operator::{self, Denied, To};
use super::plan::{ImprovementMode, Plan};
use super::record::{Record, Rewrite, sync};
use super::schedule::{claim, take_initial};
use super::state::Reason;
use super::status::{Doing, Stall, status};
use super::validate::OwnerRules;

fn graph() -> Graph {
    let node = |id: &str, role: &str| Node { id: id.to_owned(), role: role.to_owned(), ..Node::default() };
    let nodes = vec![node("owner-intake", "owner"), node("build", "dev"), node("close", "owner")];
    let edges = [("owner-intake", "build"), ("build", "close")];
    Graph::new(nodes, edges.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect())
}

fn started() -> FlowRun {
    let id = FlowRef::new("My Project", "f").expect("is a name");
    let new = NewFlow { id: &id, workspace_root: "/ws", record_folder: "/ws/s/record", first_node: "owner-intake" };
    let mut flow = FlowRun::new(&new);
    let initial = take_initial(&mut flow);
    claim(&mut flow, &graph(), &initial, |_| true);
    flow
}

fn to(node: &str, artifact: &str) -> Signal {
    Signal::Targets(vec![Target { node: node.to_owned(), artifact: Some(artifact.to_owned()) }])
}

fn say(flow: &mut FlowRun, node: &str, signal: &Signal) -> Result<Ended, Code> {
    let ended = finish(flow, &graph(), node, signal, |_| Artifact::File, OwnerRules::Strict);
    ended.map_err(|refusal| refusal.code)
}

fn closed() -> FlowRun {
    let mut flow = started();
    for (node, signal) in
        [("owner-intake", to("build", "1.md")), ("build", to("close", "2.md")), ("close", Signal::ForwardPassClosed)]
    {
        say(&mut flow, node, &signal).expect("is right");
        claim(&mut flow, &graph(), &[], |_| true);
    }
    flow
}

#[test]
fn the_first_or_last_of_several_blocks_is_selected() {
    let text = "a\n```handoff\ntype: await-handoff\n```\nb\n```Handoff  \n\n  type: prompt-human\n```\n";
    assert_eq!(extract(text, Which::First), Some("type: await-handoff\n"));
    assert_eq!(extract(text, Which::Last), Some("  type: prompt-human\n"));
    // The last block is not closed: the text was cut off, and an earlier block is not what was
    // meant.
    let cut = "```handoff\ntype: await-handoff\n```\n```handoff\ntype: prompt-human\n";
    assert_eq!((extract(cut, Which::First).is_some(), extract(cut, Which::Last)), (true, None));
    let within = "```handoff\ntype: x\nsee ```handoff\ntype: prompt-human\n```\n";
    assert_eq!(extract(within, Which::Last), Some("type: prompt-human\n"));
}

#[test]
fn blocks_are_bounded_and_read_as_values() {
    let long = format!("```handoff\n{}\n```", "x".repeat(BLOCK_BYTES_MAX));
    let refusal = parse(&long, Which::Last, |_| panic!("is not parsed")).expect_err("is too long");
    assert_eq!(refusal.code, Code::YamlParse);
    let path = |value: serde_json::Value| match interpret(&json!({"target_node_id": "a", "artifact_path": value})) {
        Ok(Signal::Targets(targets)) => targets[0].artifact.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(path(json!(["a", null, ["b"]])), Some("a,,b".to_owned()));
    assert_eq!((path(json!(0)), path(json!("")), path(json!(false)), path(json!(null))), (None, None, None, None));
    assert_eq!((path(json!(1.50)), path(json!(true))), (Some("1.5".to_owned()), Some("true".to_owned())));
    let kind = |value| interpret(&json!({"type": value})).map_err(|refusal| refusal.summary);
    assert_eq!(kind(json!(null)), Err("Unsupported handoff signal type \"null\"".to_owned()));
}

#[test]
fn only_a_running_node_may_signal() {
    let mut flow = started();
    let before = flow.render();
    for signal in [to("close", "x.md"), Signal::PromptHuman, Signal::AwaitHandoff, Signal::ForwardPassClosed] {
        assert_eq!(say(&mut flow, "build", &signal), Err(Code::NotRunning));
        assert_eq!(say(&mut flow, "nobody", &signal), Err(Code::NotRunning));
    }
    let findings = Signal::MetaAnalysisComplete { findings: "f.md".to_owned() };
    assert_eq!(say(&mut flow, "owner-intake", &findings), Err(Code::UnexpectedSignal));
    assert_eq!(flow.render(), before);
}

#[test]
fn targets_are_checked_before_artifacts_and_artifacts_before_reuse() {
    let mut flow = started();
    let gone = |flow: &mut FlowRun, signal: &Signal, at: Artifact| {
        finish(flow, &graph(), "owner-intake", signal, |_| at, OwnerRules::Strict).map_err(|refusal| refusal.code)
    };
    assert_eq!(gone(&mut flow, &to("close", "x"), Artifact::Missing), Err(Code::InvalidTransition));
    assert_eq!(gone(&mut flow, &to("build", "x"), Artifact::NotAFile), Err(Code::ArtifactUnavailable));
    assert_eq!(gone(&mut flow, &to("build", " "), Artifact::File), Err(Code::MissingRequiredField));
    let twice = Signal::Targets(
        ["1.md", "2.md"].map(|path| Target { node: "build".into(), artifact: Some(path.into()) }).to_vec(),
    );
    assert_eq!(gone(&mut flow, &twice, Artifact::File), Err(Code::InvalidTransition));
    say(&mut flow, "owner-intake", &to("build", "1.md")).expect("is right");
    claim(&mut flow, &graph(), &[], |_| true);
    assert_eq!(say(&mut flow, "build", &to("owner-intake", "1.md")), Err(Code::InvalidTransition), "used before");
    say(&mut flow, "build", &to("owner-intake", "2.md")).expect("is right");
    assert!(flow.awaits_handoff("build") && !flow.is_completed("owner-intake=>build"));
}

#[test]
fn an_answer_wakes_a_node_and_leaves_its_queued_handoffs() {
    let mut flow = started();
    say(&mut flow, "owner-intake", &Signal::PromptHuman).expect("may ask");
    flow.queue("build=>owner-intake", "b.md");
    let node = operator::answer(&mut flow, &graph(), To::Anyone, "yes", "t").expect("is awaited");
    assert_eq!(node, "owner-intake");
    let again = operator::answer(&mut flow, &graph(), To::Role("owner"), "yes", "t");
    assert_eq!(again, Err(Denied::AlreadyAnswered("owner-intake".to_owned())));
    let entries = claim(&mut flow, &graph(), &[], |_| true);
    assert_eq!((entries[0].answer.as_deref(), entries[0].taken.len()), (Some("yes"), 0));
    assert!(flow.is_queued("build=>owner-intake") && flow.answered().next().is_none());
}

#[test]
fn refused_answers_have_the_original_messages() {
    let mut flow = started();
    let mut ask =
        |to: To<'_>| operator::answer(&mut flow, &graph(), to, "x", "t").expect_err("nobody asked").to_string();
    assert_eq!(ask(To::Anyone), "The runtime is not currently accepting human input.");
    for (reason, words) in [
        (Reason::Consent, "consent"),
        (Reason::RoleConfiguration, "role configuration"),
        (Reason::HandoffApproval, "handoff approval"),
    ] {
        let mut flow = started();
        flow.suspend("owner-intake", "owner", reason);
        flow.add("awaitingHandoff", "build");
        let denied = operator::answer(&mut flow, &graph(), To::Node("owner-intake"), "x", "t")
            .expect_err("waits for another thing");
        assert_eq!(denied.to_string(), format!("Node 'owner-intake' is awaiting {words}, not a text reply."));
        let denied = operator::answer(&mut flow, &graph(), To::Role("owner"), "x", "t").expect_err("does not ask");
        assert_eq!(denied.to_string(), "Role 'owner' is not accepting human input.");
        assert_eq!(operator::answer(&mut flow, &graph(), To::Anyone, "x", "t"), Ok("build".to_owned()));
    }
    let mut flow = started();
    let denied = operator::approve(&mut flow, &graph(), "owner-intake", |_| Artifact::File).expect_err("none waits");
    assert_eq!(denied.to_string(), "Node 'owner-intake' is not awaiting handoff approval.");
    assert_eq!(operator::abort(&mut flow, &graph(), "build"), Err(Denied::NothingToStop));
}

#[test]
fn a_handoff_can_be_declined_with_a_message() {
    let mut flow = started();
    let mut nodes = graph().nodes().to_vec();
    nodes[0].human_colab = true;
    let graph = Graph::new(nodes, graph().edges().map(|(from, to)| (from.to_owned(), to.to_owned())).collect());
    let signal = to("build", "1.md");
    let ended = finish(&mut flow, &graph, "owner-intake", &signal, |_| Artifact::File, OwnerRules::Strict);
    assert_eq!(ended, Ok(Ended::Staged));
    let staged = operator::staged(&flow, "owner-intake").expect("waits");
    assert_eq!(Signal::Targets(staged), signal);
    let before = flow.render();
    let denied = operator::approve(&mut flow, &graph, "owner-intake", |_| Artifact::Missing);
    assert!(matches!(denied, Err(Denied::Refused(_))) && flow.render() == before, "its file is gone");
    operator::decline(&mut flow, "owner-intake", Some(("not yet", "t"))).expect("waits");
    let entries = claim(&mut flow, &graph, &[], |_| true);
    assert_eq!(entries[0].answer.as_deref(), Some("not yet"));
    assert_eq!(operator::staged(&flow, "owner-intake"), None);
}

#[test]
fn the_status_shows_waits_and_stalls() {
    let doing = |flow: &FlowRun| status(flow, &graph()).nodes.into_iter().map(|node| node.doing).collect::<Vec<_>>();
    let mut flow = started();
    assert_eq!(doing(&flow), [Doing::Running, Doing::Idle, Doing::Idle]);
    say(&mut flow, "owner-intake", &to("build", "1.md")).expect("is right");
    assert_eq!(doing(&flow), [Doing::Done, Doing::Ready, Doing::Idle]);
    assert_eq!((status(&flow, &graph()).next, status(&flow, &graph()).stall), (vec!["build".to_owned()], None));
    claim(&mut flow, &graph(), &[], |_| true);
    say(&mut flow, "build", &Signal::PromptHuman).expect("may ask");
    assert_eq!(doing(&flow)[1], Doing::AwaitingHuman("prompt-human".to_owned()));
    assert_eq!(status(&flow, &graph()).stall, None);
    let mut lost = started();
    take_initial(&mut lost);
    lost.drop("visitedNodeIds", |_| true);
    assert_eq!(status(&lost, &graph()).stall, Some(Stall::Dead));
    lost.add("awaitingHandoff", "build");
    assert_eq!(
        (doing(&lost)[1].clone(), status(&lost, &graph()).stall),
        (Doing::AwaitingHandoff, Some(Stall::Suspended))
    );
    assert_eq!(status(&closed(), &graph()).stall, None);
}

#[test]
fn the_improvement_phase_requires_the_assigned_files() {
    let mut flow = closed();
    assert_eq!(ResumePath::of(&flow), ResumePath::None);
    assert_eq!(improvement::feedback_path(&flow), "a-society/feedback/my-project-flow-f.md");
    improvement::choose(&mut flow, Some(ImprovementMode::GraphBased)).expect("is awaited");
    assert_eq!(improvement::choose(&mut flow, None), Err(Denied::NoChoiceAwaited));
    assert_eq!(ResumePath::of(&flow), ResumePath::Improvement);
    let plan = Plan::of(&graph(), ImprovementMode::GraphBased).expect("there is one");
    let dev = plan.entry("dev").expect("is in it").clone();
    let ends = |path: &str| Signal::MetaAnalysisComplete { findings: path.to_owned() };
    let file = |_: &str| Artifact::File;
    let end = |flow: &mut FlowRun, signal: &Signal, at: Artifact| {
        improvement::finish(flow, &dev, signal, |_| at).map_err(|refusal| refusal.code)
    };
    assert_eq!(end(&mut flow, &ends("s/record/findings/dev-findings.md"), Artifact::File), Err(Code::NotRunning));
    assert_eq!(improvement::begin(&mut flow, "dev"), Begun::First);
    assert_eq!(end(&mut flow, &ends("dev-findings.md"), Artifact::File), Err(Code::AssignedFindingsPath));
    assert_eq!(end(&mut flow, &Signal::AwaitHandoff, Artifact::File), Err(Code::UnexpectedSignal));
    let right = ends("/ws/s/./record/findings/dev-findings.md");
    assert_eq!(end(&mut flow, &right, Artifact::Missing), Err(Code::MissingFindingsArtifact));
    assert_eq!(end(&mut flow, &Signal::PromptHuman, Artifact::File), Ok(RoleEnded::Asked));
    assert!(improvement::runnable(&flow, &plan).is_empty());
    improvement::answer(&mut flow, "dev", "go on", "t").expect("is awaited");
    assert_eq!(improvement::answer(&mut flow, "dev", "x", "t"), Err(Denied::RoleAlreadyAnswered("dev".to_owned())));
    assert_eq!(improvement::begin(&mut flow, "dev"), Begun::Answered("go on".to_owned()));
    assert_eq!(end(&mut flow, &right, Artifact::File), Ok(RoleEnded::Done));
    assert!(!improvement::settle(&mut flow, &plan), "the owner has not looked back");
    let owner = plan.entry("owner").expect("is in it").clone();
    improvement::begin(&mut flow, "owner");
    improvement::finish(&mut flow, &owner, &ends("s/record/findings/owner-findings.md"), file).expect("is right");
    assert!(improvement::settle(&mut flow, &plan) && !improvement::settle(&mut flow, &plan));
    improvement::decide(&mut flow, Feedback::Denied).expect("is awaited");
    assert_eq!((flow.status(), flow.phase_status()), ("completed", Some("completed")));
}

#[test]
fn paths_are_relative_to_the_root() {
    for (path, seen) in [
        ("/ws/a/b.md", "a/b.md"),
        ("/other/b.md", "../other/b.md"),
        ("a/../b.md", "b.md"),
        ("./b.md", "b.md"),
        ("../b.md", "../b.md"),
        ("/ws", ""),
    ] {
        assert_eq!(relative("/ws", path), seen, "{path}");
    }
}

#[test]
fn a_stale_permission_request_is_denied() {
    let mut flow = started();
    assert!(!deny_stale(&mut flow));
    flow.suspend("owner-intake", "owner", Reason::Consent);
    assert!(deny_stale(&mut flow));
    assert_eq!(flow.wait("owner-intake").map(|wait| wait.reason), Some("consent-denied"));
    assert!(!is_harmless("ls\u{2028}x;") && is_harmless("ls -la src"));
}

#[test]
fn the_record_keeps_its_name_and_adopts_an_unreserved_one() {
    let workflow = json!({"workflow": {"name": " W ", "summary": "S"}});
    let draft = json!({"workflow": {"name": "Draft Owner Intake", "summary": ""}});
    let own = json!({"record": {"name": "Mine", "summary": null}});
    let record = |name: Option<&str>, summary: Option<&str>| Record {
        name: name.map(str::to_owned),
        summary: summary.map(str::to_owned),
    };
    assert_eq!(sync(None, Some(&workflow)), (record(Some("W"), Some("S")), Rewrite::Needed));
    assert_eq!(sync(Some(&own), Some(&workflow)), (record(Some("Mine"), Some("S")), Rewrite::Needed));
    assert_eq!(sync(Some(&own), Some(&draft)), (record(Some("Mine"), None), Rewrite::NotNeeded));
    assert_eq!(sync(None, None), (Record::default(), Rewrite::Needed));
    assert_eq!(sync(Some(&json!(null)), None), (Record::default(), Rewrite::NotNeeded));
    let document = Json::from([("record", Json::from([("name", Json::from("Mine")), ("summary", Json::Null)]))]);
    assert_eq!(record(Some("Mine"), None).document(), document);
}

#[test]
fn a_changed_workflow_does_not_lead_around_an_approval() {
    let node = |id: &str, role: &str| Node { id: id.to_owned(), role: role.to_owned(), ..Node::default() };
    let edges = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect()
    };
    let line = [("owner-intake", "build"), ("build", "review"), ("review", "close"), ("build", "close")];
    let mut nodes =
        vec![node("owner-intake", "owner"), node("build", "dev"), node("review", "qa"), node("close", "owner")];
    (nodes[2].human_colab, nodes[3].await_all_inputs) = (true, true);
    let start = Graph::new(nodes.clone(), edges(&line)).start();
    let unchanged = Graph::new(nodes.clone(), edges(&line)).held_to(&start);
    assert_eq!(unchanged.start(), start);
    assert!(line.iter().all(|(from, to)| !unchanged.is_altered(from, to)));

    // Without the reviewer, its edges and the join; with a new node, an edge past the reviewer, and other roles.
    let mut edited =
        vec![node("owner-intake", "owner"), node("build", "owner"), node("new", "owner"), node("close", "dev")];
    edited[1].work = vec!["other".to_owned()];
    let held = Graph::new(
        edited,
        edges(&[
            ("owner-intake", "build"),
            ("build", "new"),
            ("new", "close"),
            ("owner-intake", "close"),
            ("build", "close"),
        ]),
    )
    .held_to(&start);
    assert_eq!(held.node("review"), Some(&nodes[2]));
    assert!(held.is_edge("build", "review") && held.is_edge("review", "close"));
    assert_eq!(held.node("build").map(|node| node.role.as_str()), Some("dev"));
    assert!(held.node("close").is_some_and(|node| node.role == "owner" && node.await_all_inputs));
    for (from, to) in [("owner-intake", "close"), ("close", "owner-intake"), ("build", "new"), ("new", "close")] {
        assert!(held.is_altered(from, to), "{from} {to}");
    }
    // The work of the builder was changed, that of the others was not.
    assert!(held.is_altered("owner-intake", "build"));
    assert!(!held.is_altered("build", "close") && !held.is_altered("build", "review"));

    let mut flow = started();
    let jump = finish(&mut flow, &held, "owner-intake", &to("close", "1.md"), |_| Artifact::File, OwnerRules::Strict);
    assert_eq!(jump, Ok(Ended::Staged));
    let approved = operator::approve(&mut flow, &held, "owner-intake", |_| Artifact::File);
    assert!(matches!(approved, Ok(Ended::Handed(_))), "{approved:?}");
}

#[test]
fn only_unchanged_work_of_the_same_role_is_that_of_the_start() {
    let work = |text: &str| vec![text.to_owned()];
    let mut nodes = vec![Node { id: "test".to_owned(), role: "ci_1".to_owned(), ..Node::default() }];
    nodes[0].work = work("make");
    // The first node of an id counts.
    nodes.push(Node { work: work("rm"), ..nodes[0].clone() });
    let start = Graph::new(nodes, Vec::new()).start();
    assert!(start.has("test", &super::names::RoleId::key("ci_1"), &work("make")));
    assert!(!start.has("test", "ci_1", &work("rm")) && !start.has("test", "dev", &work("make")));
    assert!(!start.has("other", "ci_1", &work("make")) && !start.has("test", "ci_1", &[]));
}

#[test]
fn a_node_whose_turn_ended_without_a_result_starts_again_without_an_answer() {
    let mut flow = started();
    assert!(operator::resume(&mut flow, "owner-intake").is_err(), "it runs");
    operator::abort(&mut flow, &graph(), "owner-intake").expect("ended");
    operator::resume(&mut flow, "owner-intake").expect("waits");
    assert!(flow.is_running("owner-intake") && flow.waits().next().is_none());
    operator::abort(&mut flow, &graph(), "owner-intake").expect("ended");
    operator::answer(&mut flow, &graph(), To::Anyone, "go", "2026-01-01T00:00:00.000Z").expect("queued");
    operator::resume(&mut flow, "owner-intake").expect("waits");
    let initial = take_initial(&mut flow);
    let entries = claim(&mut flow, &graph(), &initial, |_| true);
    assert_eq!(entries[0].answer.as_deref(), Some("go"), "the answer is not lost");
}
