//! From a worker's exit to its landing, through the supervisor: it lands once, whatever is
//! interrupted.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::Fault;
use swarm_model::merge::queue::State;
use swarm_model::{
    Answer, Below, Caller, Ended, Environment, EventKind, FineState, MergeOrder, MergeRequest, MergeSettings,
    SpawnRequest,
};

use swarm_ports::{Note, Records as _};

use crate::fixture::{Rig, caller, request, with_tree};

/// Returns a request for a worker that lands when it succeeds.
pub fn landing(name: &str) -> SpawnRequest {
    let mut request = with_tree(name);
    request.contract.merge = true;
    request
}

pub async fn states(rig: &Rig) -> Vec<(String, &'static str)> {
    let queues = rig.swarm().queues().await.expect("complete");
    queues.iter().flat_map(|view| &view.queue.items).map(|item| (item.name.clone(), item.state.word())).collect()
}

async fn add_all(rig: &Rig, names: &[&str]) -> Vec<Answer> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let (base, priority, settings) = (None, 0, MergeSettings::default());
    let order = MergeOrder::Add { names, base, priority, settings, uncommitted: Vec::new(), generation: None };
    let request = MergeRequest { caller: caller(), order };
    let mut answers = rig.swarm().merge(request);
    let mut all = Vec::new();
    while let Some(answer) = answers.recv().await.filter(|answer| !matches!(answer, Answer::Done)) {
        all.push(answer);
    }
    all
}

pub async fn add(rig: &Rig, name: &str) -> Answer {
    add_all(rig, &[name]).await.remove(0)
}

#[tokio::test(start_paused = true)]
async fn work_of_a_run_is_verified_as_its_run_asked() {
    let rig = Rig::start().await;
    for name in ["w", "other", "unknown"] {
        rig.spawn(with_tree(name)).await.expect("starts");
        rig.world.end(name, Ended::Code(0));
    }
    rig.world.pass(Duration::from_secs(1)).await;
    rig.world.runs.verify("w", "make test");
    add_all(&rig, &["w", "other"]).await;
    rig.world.script.at("run.agreed", Fault::Error("damaged"));
    let Answer::Refused(refusal) = add(&rig, "unknown").await else { panic!("it was added without") };
    assert_eq!(refusal.cause, "it is unknown how the run of 'unknown' verifies its work: damaged");
    let queues = rig.swarm().queues().await.expect("complete");
    let items = queues.iter().flat_map(|view| &view.queue.items);
    let asked: Vec<_> = items.map(|item| (item.name.as_str(), item.rules.verify.as_deref())).collect();
    assert_eq!(asked, [("w", Some("make test")), ("other", None)]);
}

/// Returns the items, each with the command that verifies it.
async fn verifications(rig: &Rig) -> Vec<(String, Option<String>)> {
    let queues = rig.swarm().queues().await.expect("complete");
    let items = queues.iter().flat_map(|view| &view.queue.items);
    items.map(|item| (item.name.clone(), item.rules.verify.clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_a_run_cannot_choose_how_work_is_verified() {
    let rig = Rig::start().await;
    for name in ["w", "other"] {
        rig.spawn(with_tree(name)).await.expect("starts");
        rig.world.end(name, Ended::Code(0));
    }
    rig.world.pass(Duration::from_secs(1)).await;
    rig.world.runs.verify("w", "make test");
    let added = |name: &str, verify: Option<&str>, below: &str| {
        let settings = MergeSettings { verify: verify.map(str::to_owned), ..MergeSettings::default() };
        let names = vec![name.to_owned()];
        let order =
            MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None };
        let below = Some(Below::Worker(below.to_owned()));
        MergeRequest { caller: Caller { below, ..caller() }, order }
    };
    // The fake repository refuses what the completion says to be agreed.
    for (name, below) in [("w", "w"), ("w", "other"), ("other", "w"), ("branch", "w")] {
        let answer = rig.swarm().merge(added(name, Some("true"), below)).recv().await;
        let Some(Answer::Refused(refusal)) = answer else { panic!("'{name}' was added below '{below}': {answer:?}") };
        assert_eq!(refusal.cause, format!("worker '{below}' cannot replace 'verify'"));
    }
    for (name, below) in [("w", "other"), ("branch", "w")] {
        rig.swarm().merge(added(name, None, below)).recv().await.expect("an answer");
    }
    rig.swarm().merge(added("other", Some("true"), "other")).recv().await.expect("an answer");
    let of = |name: &str, verify: &str| (name.to_owned(), Some(verify.to_owned()));
    assert_eq!(verifications(&rig).await, [of("w", "make test"), of("branch", "make test"), of("other", "true")]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_neither_resumes_a_queue_nor_accepts_a_rewritten_base() {
    let rig = Rig::start().await;
    rig.world.landings.edit(true);
    add(&rig, "a").await;
    rig.world.pass(Duration::from_secs(1)).await;
    let target = rig.swarm().queues().await.expect("complete")[0].target.clone();
    let ask = |order, below| MergeRequest { caller: Caller { below, ..caller() }, order };
    let pause = MergeOrder::Pause { target: target.clone() };
    rig.swarm().merge(ask(pause, None)).recv().await.expect("an answer");
    let resume = MergeOrder::Resume { target: target.clone() };
    let answer = rig.swarm().merge(ask(resume.clone(), Some(Below::Command))).recv().await;
    let Some(Answer::Refused(refusal)) = answer else { panic!("it was resumed: {answer:?}") };
    assert_eq!(refusal.cause, "a command that the supervisor executes cannot resume the queue of main");
    let retry = MergeOrder::Retry { target, item: 0 };
    let answer = rig.swarm().merge(ask(retry, Some(Below::Unknown))).recv().await;
    assert!(matches!(answer, Some(Answer::Merge(_))), "{answer:?}");
    assert!(matches!(rig.swarm().merge(ask(resume, None)).recv().await, Some(Answer::Merge(_))));
}

#[tokio::test(start_paused = true)]
async fn a_process_with_the_mark_of_a_worker_is_below_it() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("w")).await.expect("starts");
    rig.world.runs.verify("w", "make test");
    let facts = rig.world.records.newest("w").and_then(|key| rig.world.records.facts(&key)).expect("records");
    let token = facts.spec.spec().expect("a spec").token.clone();
    for (token, is_refused) in [(token.as_str(), true), ("another", false)] {
        let marks = [("SWARM_WORKER", "w"), ("SWARM_TOKEN", token)];
        let environment = marks.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec().into();
        let settings = MergeSettings { verify: Some("true".to_owned()), ..MergeSettings::default() };
        let names = vec!["branch".to_owned()];
        let order =
            MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None };
        let request = MergeRequest { caller: Caller { environment, ..caller() }, order };
        let answer = rig.swarm().merge(request).recv().await;
        assert_eq!(matches!(answer, Some(Answer::Refused(_))), is_refused, "{answer:?}");
    }
}

/// Returns an environment with this `PATH`.
fn path(value: &str) -> Environment {
    vec![("PATH".to_owned(), value.to_owned())].into()
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_adds_has_the_environment_with_which_its_worker_was_started() {
    let rig = Rig::start().await;
    let mut worker = with_tree("w");
    worker.contract.environment = path("/of/the/person");
    rig.spawn(worker).await.expect("starts");
    for (name, below) in [("agent", Some(Below::Worker("w".to_owned()))), ("person", None)] {
        let (names, settings) = (vec![name.to_owned()], MergeSettings::default());
        let order =
            MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None };
        let caller = Caller { below, environment: path("/typed"), ..caller() };
        rig.swarm().merge(MergeRequest { caller, order }).recv().await.expect("an answer");
    }
    let queues = rig.swarm().queues().await.expect("complete");
    let items = queues[0].queue.items.iter();
    let callers: Vec<_> = items.map(|item| (item.name.as_str(), item.caller.as_deref())).collect();
    assert_eq!(callers, [("agent", Some("/of/the/person")), ("person", Some("/typed"))]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_noted_beside_the_worker() {
    let rig = Rig::start().await;
    for name in ["good", "bad"] {
        rig.spawn(landing(name)).await.expect("starts");
    }
    rig.world.end("good", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    (0..6).for_each(|_| rig.world.script.at("complete", Fault::Error("no space left")));
    rig.world.end("bad", Ended::Code(0));
    rig.world.pass(Duration::from_secs(60)).await;
    let mut notes = Vec::new();
    for name in ["good", "bad"] {
        for note in [Note::WorkQueued, Note::WorkRefused] {
            let (_, generation) = rig.world.records.newest(name).expect("records");
            notes.push(rig.world.records.is_noted(name, generation, note).await);
        }
    }
    assert_eq!(notes, [true, false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn work_of_a_turn_that_failed_does_not_land_by_itself() {
    let rig = Rig::start().await;
    for name in ["broken", "mended"] {
        rig.spawn(landing(name)).await.expect("starts");
        rig.world.records.break_turn(name, Some("its last turn failed: API Error"));
    }
    rig.world.records.break_turn("mended", None);
    for name in ["broken", "mended"] {
        rig.world.end(name, Ended::Code(0));
    }
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!(states(&rig).await, [("mended".to_owned(), "landed")]);
    let (_, generation) = rig.world.records.newest("broken").expect("records");
    assert!(rig.world.records.is_noted("broken", generation, Note::WorkRefused).await);
    let told = rig.world.events.all().into_iter().filter_map(|event| match event.kind {
        EventKind::MergeRefused { cause } => Some((event.worker.unwrap_or_default(), cause)),
        _ => None,
    });
    let cause = "its last turn failed: API Error; its work may be incomplete".to_owned();
    assert_eq!(told.collect::<Vec<_>>(), [("broken".to_owned(), cause)]);
}

#[tokio::test(start_paused = true)]
async fn each_name_is_answered_in_its_place_and_branches_are_added_together() {
    let rig = Rig::start().await;
    // Without a worktree, it has nothing to land.
    rig.spawn(request("busy")).await.expect("starts");
    rig.spawn(with_tree("ended")).await.expect("starts");
    rig.world.end("ended", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    let answers = add_all(&rig, &["a", "b", "busy", "c", "ended", "d", "e"]).await;
    let word = |answer: &Answer| match answer {
        Answer::Merge(line) => (line.name.clone(), line.item),
        Answer::Refused(refusal) => (refusal.name.clone().unwrap_or_default(), None),
        other => panic!("{other:?}"),
    };
    let of = |name: &str, item| (name.to_owned(), item);
    let expected = [
        of("a", Some(0)),
        of("b", Some(1)),
        of("busy", None),
        of("c", Some(2)),
        of("ended", Some(3)),
        of("d", Some(4)),
        of("e", Some(5)),
    ];
    assert_eq!(answers.iter().map(word).collect::<Vec<_>>(), expected);
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.world.landings.base(), [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn branches_whose_queue_cannot_be_written_are_each_refused() {
    let rig = Rig::start().await;
    rig.world.script.at("save", Fault::Error("no space left"));
    let answers = add_all(&rig, &["a", "b"]).await;
    let refused =
        |answer: &Answer| matches!(answer, Answer::Refused(refusal) if refusal.cause.contains("no space left"));
    assert!(answers.len() == 2 && answers.iter().all(refused), "{answers:?}");
    assert!(rig.world.script.unmet().is_empty());
    assert_eq!(states(&rig).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_worker_lands_only_if_it_exited_with_success() {
    let rig = Rig::start().await;
    for name in ["good", "bad", "killed"] {
        rig.spawn(landing(name)).await.expect("starts");
    }
    rig.spawn(with_tree("other")).await.expect("starts");
    rig.world.end("bad", Ended::Code(1));
    rig.world.end("other", Ended::Code(0));
    rig.kill("killed").await.expect("is ended");
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, []);
    rig.world.end("good", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, [("good".to_owned(), "landed")]);
    assert_eq!(rig.world.landings.base(), [0]);
    let told = rig.world.events.of("good");
    assert!(
        told.iter().any(|kind| matches!(kind, EventKind::MergeSettled { state, .. } if state == "landed")),
        "{told:?}"
    );
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_worker_lands_once_whatever_is_interrupted() {
    for step in ["complete", "save", "save.after", "read_base", "build", "land", "land.after"] {
        for nth in 0.. {
            let mut rig = Rig::start().await;
            rig.spawn(landing("a")).await.expect("starts");
            (0..nth).for_each(|_| rig.world.script.at(step, Fault::Run(Box::new(|| {}))));
            rig.world.script.at(step, Fault::Hang);
            rig.world.end("a", Ended::Code(0));
            rig.world.pass(Duration::from_secs(1)).await;
            rig.crash().await;
            let reached = rig.world.script.forget_faults();
            rig.up().await;
            assert_eq!(states(&rig).await, [("a".to_owned(), "landed")], "{step} {nth}");
            assert_eq!(rig.world.landings.base(), [0], "{step} {nth}");
            if !reached {
                assert!(nth > 0, "{step} was never reached");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn adoption_leaves_the_worktree_of_a_landed_worker_alone() {
    let mut rig = Rig::start().await;
    rig.spawn(landing("a")).await.expect("starts");
    rig.world.end("a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, [("a".to_owned(), "landed")]);
    rig.crash().await;
    // A second call would never return.
    rig.world.script.at("complete", Fault::Hang);
    rig.up().await;
    assert!(!rig.world.script.forget_faults(), "the worktree may be in use by now");
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
}

#[tokio::test(start_paused = true)]
async fn the_supervisor_stays_during_a_landing() {
    let rig = Rig::start().await;
    rig.world.script.at("build", Fault::Hang);
    assert!(matches!(add(&rig, "a").await, Answer::Merge(line) if line.done == "queued"));
    let ended = tokio::time::timeout(Duration::from_secs(3600), rig.swarm().ended()).await;
    assert!(ended.is_err(), "it left during a landing");
    assert_eq!(states(&rig).await, [("a".to_owned(), "active")]);
}

#[tokio::test(start_paused = true)]
async fn the_supervisor_leaves_when_all_have_landed() {
    let rig = Rig::start().await;
    add(&rig, "a").await;
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
    assert_eq!(rig.world.landings.base(), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_panics_is_restarted_alone() {
    let rig = Rig::start().await;
    rig.spawn(request("w")).await.expect("starts");
    add(&rig, "a").await;
    rig.world.pass(Duration::from_secs(1)).await;
    rig.world.script.at("save", Fault::Panic);
    assert!(matches!(add(&rig, "b").await, Answer::Refused(_)));
    rig.world.settle().await;
    assert!(matches!(add(&rig, "b").await, Answer::Merge(_)));
    rig.world.pass(Duration::from_secs(1)).await;
    let queues = rig.swarm().queues().await.expect("complete");
    assert!(queues[0].queue.items.iter().all(|item| matches!(item.state, State::Landed { .. })), "{queues:?}");
    assert_eq!((rig.world.state("w"), rig.swarm().live().await), (Some(FineState::Running), 1));
}

#[tokio::test(start_paused = true)]
async fn work_of_an_earlier_generation_does_not_land_from_a_worktree_in_use() {
    let rig = Rig::start().await;
    rig.spawn(landing("a")).await.expect("starts");
    rig.world.script.at("complete", Fault::Error("a lock is in the way"));
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(rig.world.script.count("complete a"), 1);
    rig.respawn("a").await.expect("starts again before the second try");
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!((states(&rig).await, rig.world.script.count("complete a")), (Vec::new(), 1));
    rig.world.end("a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, [("a".to_owned(), "landed")]);
    assert_eq!(rig.world.landings.base(), [0]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn work_that_a_later_generation_has_touched_during_its_completion_is_refused() {
    let rig = Rig::start().await;
    let tree = rig.spawn(with_tree("a")).await.expect("starts").worktree;
    assert!(tree.is_some());
    rig.world.end("a", Ended::Code(0));
    rig.world.settle().await;
    // The registry of a moment later: another launch of the same name, in the same worktree.
    let mut later = rig.world.row("a").expect("has a row");
    later.started = "2031-01-01T00:00:00Z".to_owned();
    let (theirs, state) = (rig.world.root.join("theirs"), rig.world.root.join("state.json"));
    let rows = serde_json::json!({ "workers": [later] }).to_string();
    let replace = move || std::fs::write(&theirs, rows).and_then(|()| std::fs::rename(&theirs, state));
    rig.world.script.at("complete", Fault::Run(Box::new(|| replace().expect("replaced"))));
    let Answer::Refused(refusal) = add(&rig, "a").await else { panic!("it was taken") };
    assert_eq!(refusal.cause, "worker 'a' was started again before its work was queued");
    assert_eq!(states(&rig).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_running_worker_lands_if_it_has_a_worktree() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("a")).await.expect("starts");
    let Answer::Merge(line) = add(&rig, "a").await else { panic!("it was refused") };
    assert_eq!((line.name.as_str(), line.item), ("a", Some(0)));
    rig.spawn(request("plain")).await.expect("starts");
    rig.world.end("plain", Ended::Code(0));
    rig.world.settle().await;
    let Answer::Refused(refusal) = add(&rig, "plain").await else { panic!("it was taken") };
    assert_eq!(refusal.cause, "worker 'plain' has no worktree, so there is nothing to merge");
}

#[tokio::test(start_paused = true)]
async fn finished_work_is_queued_once_even_if_its_item_is_forgotten() {
    let mut rig = Rig::start().await;
    rig.spawn(landing("a")).await.expect("starts");
    rig.world.end("a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    assert_eq!(states(&rig).await, [("a".to_owned(), "landed")]);
    rig.crash().await;
    rig.world.landings.forget_items();
    rig.up().await;
    rig.world.pass(Duration::from_secs(60)).await;
    assert_eq!((states(&rig).await, rig.world.landings.base()), (Vec::new(), vec![0]));
}
