//! What a new supervisor cannot read or open at once is resumed once it can, and nothing waits for it meanwhile.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::Fault;
use swarm_model::flow::Turn;
use swarm_model::loops::progress::Status;
use swarm_model::run::plan::{Job, Plan};
use swarm_model::run::progress::Mode;
use swarm_model::{
    Answer, Caller, Ended, FlowOrder, FlowPlace, FlowRequest, FlowRules, LoopOrder, LoopRequest, MergeOrder,
    MergeRequest, MergeSettings, RefusalKind, RunOrder, RunRequest,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use crate::fixture::{Rig, caller, request};
use crate::loops;

const HOME: &str = "/repo/.arial";

fn place(flow: &str) -> FlowPlace {
    FlowPlace { root: "/ws".to_owned(), project: "demo".to_owned(), flow: format!("20260527T143000123Z-{flow}") }
}

fn flow(rig: &Rig, place: FlowPlace) -> UnboundedReceiver<Answer> {
    let order = FlowOrder::Run(FlowRules::default());
    rig.swarm().flow(FlowRequest { caller: caller(), place, order })
}

fn run(rig: &Rig) -> UnboundedReceiver<Answer> {
    let (id, home, root) = ("r1".to_owned(), HOME.to_owned(), "/repo".to_owned());
    let jobs = vec![Job { id: "a".to_owned(), ..Job::default() }];
    let plan = Box::new(Plan { id, home, root, slug: "p".to_owned(), jobs, ..Plan::default() });
    rig.swarm().run(RunRequest { caller: caller(), order: RunOrder::Begin { plan, retry_failed: false } })
}

fn merge(rig: &Rig) -> UnboundedReceiver<Answer> {
    let (names, base, priority, settings) = (vec!["branch".to_owned()], None, 0, MergeSettings::default());
    let order = MergeOrder::Add { names, base, priority, settings, uncommitted: Vec::new(), generation: None };
    rig.swarm().merge(MergeRequest { caller: caller(), order })
}

/// Something that a supervisor runs.
#[derive(Clone, Copy, Debug)]
enum What {
    Flow,
    Run,
    Loop,
    Queue,
}

impl What {
    /// Returns the steps that read the list, one of it, and what is in it.
    fn steps(self) -> [&'static str; 3] {
        match self {
            Self::Flow => ["flow.active", "flow.active.one", "flow.open"],
            Self::Run => ["run.active", "run.active.one", "run.resume"],
            Self::Loop => ["loop.active", "loop.active.one", "loop.load"],
            Self::Queue => ["targets", "targets.one", "load"],
        }
    }

    /// Starts it, and ends the supervisor before it is done. Nothing but this needs the next supervisor.
    async fn interrupted(self) -> Rig {
        let mut rig = loops::rig().await;
        match self {
            Self::Flow => {
                let turn = Turn { role: "dev".to_owned(), number: 1, node: Some("dev-1".to_owned()) };
                rig.world.flows.plan(&place("abcdef"), vec![vec![turn]]);
                drop(flow(&rig, place("abcdef")));
            }
            Self::Run => drop(run(&rig)),
            Self::Loop => drop(loops::begin(&rig, loops::plan(1)).await),
            Self::Queue => {
                rig.world.script.at("build", Fault::Hang);
                drop(merge(&rig));
            }
        }
        rig.world.pass(Duration::from_secs(60)).await;
        rig.crash().await;
        match self {
            Self::Flow => rig.world.end("abcdef-dev", Ended::Code(0)),
            Self::Run => rig.world.end("p.a", Ended::Code(0)),
            Self::Loop => rig.world.end("w", Ended::Code(0)),
            Self::Queue => {}
        }
        rig
    }

    fn is_done(self, rig: &Rig) -> bool {
        match self {
            Self::Flow => !rig.world.flows.is_active(&place("abcdef")),
            Self::Run => matches!(rig.world.runs.run(HOME).mode, Mode::Over(_)),
            Self::Loop => rig.world.loops.loaded("w").is_some_and(|it| it.status != Status::Running),
            Self::Queue => rig.world.landings.base() == [0],
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_or_opened_is_tried_again_and_keeps_the_supervisor() {
    for what in [What::Flow, What::Run, What::Loop, What::Queue] {
        for step in what.steps() {
            let mut rig = what.interrupted().await;
            for _ in 0..20 {
                rig.world.script.at(step, Fault::Error("an I/O error"));
            }
            rig.up().await;
            let ended = tokio::time::timeout(Duration::from_secs(90), rig.swarm().ended()).await;
            assert!(ended.is_err(), "{what:?} {step}: {ended:?}");
            assert_eq!((what.is_done(&rig), rig.world.script.unmet().len()), (false, 1), "{what:?} {step}: each 5 s");
            rig.world.pass(Duration::from_secs(15)).await;
            assert!(what.is_done(&rig), "{what:?} {step}");
            rig.world.script.forget_calls();
            assert_eq!(rig.swarm().ended().await, Exit::Idle, "{what:?} {step}");
            let list = format!("{} all", what.steps()[0]);
            assert_eq!(rig.world.script.count(&list), 0, "{what:?} {step}: nothing is read any more");
            rig.check();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_removed_before_it_can_be_read_keeps_nothing() {
    for step in ["flow.active.one", "flow.open"] {
        let mut rig = What::Flow.interrupted().await;
        rig.world.script.at(step, Fault::Error("an I/O error"));
        rig.world.script.forget_calls();
        rig.up().await;
        rig.world.flows.take_away(&place("abcdef"));
        let ended = tokio::time::timeout(Duration::from_secs(40), rig.swarm().ended()).await;
        assert_eq!(ended.ok(), Some(Exit::Idle), "{step}");
        let opened = rig.world.script.count(&format!("flow.open {}", place("abcdef").flow));
        assert_eq!(opened, usize::from(step == "flow.open"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_reopened_after_a_panic_is_tried_again() {
    let rig = loops::rig().await;
    loops::begin(&rig, loops::plan(1)).await;
    rig.world.script.at("loop.save", Fault::Panic);
    rig.world.script.at("loop.load", Fault::Error("an I/O error"));
    rig.world.end("w", Ended::Code(0));
    rig.world.pass(Duration::from_secs(4)).await;
    assert!(!What::Loop.is_done(&rig) && rig.world.script.unmet().is_empty());
    rig.world.pass(Duration::from_secs(3)).await;
    assert!(What::Loop.is_done(&rig));
    rig.check();
}

/// Returns the words of the answer to a request. Fails if there is none yet.
fn said(answers: &mut UnboundedReceiver<Answer>) -> Option<String> {
    match answers.try_recv().ok()? {
        Answer::Flow(line) => Some(line.done),
        Answer::Run(line) => Some(line.done),
        Answer::Refused(refusal) => Some(refusal.cause),
        answer => panic!("{answer:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_is_slow_to_open_delays_only_requests_about_itself() {
    for fails in [false, true] {
        let rig = Rig::start().await;
        let (open, until) = oneshot::channel();
        rig.world.script.at("flow.open", Fault::Wait(until));
        let turn = Turn { role: "dev".to_owned(), number: 1, node: Some("dev-1".to_owned()) };
        rig.world.flows.plan(&place("abcdef"), vec![vec![turn]]);
        let mut first = flow(&rig, place("abcdef"));
        rig.world.settle().await;
        let (mut second, mut other) = (flow(&rig, place("abcdef")), flow(&rig, place("bbbbbb")));
        rig.spawn(request("w")).await.expect("starts");
        rig.kill("w").await.expect("ends");
        rig.world.settle().await;
        assert_eq!(said(&mut other).as_deref(), Some("running"));
        assert_eq!((said(&mut first), said(&mut second)), (None, None));
        if fails {
            rig.world.script.at("flow.open.after", Fault::Error("it is in use by another process"));
        }
        let _ = open.send(());
        rig.world.settle().await;
        let refused = "it is in use by another process";
        assert_eq!(said(&mut first).as_deref(), Some(if fails { refused } else { "running" }));
        assert_eq!(said(&mut second).as_deref(), Some("running"));
        let opened = rig.world.script.count(&format!("flow.open {}", place("abcdef").flow));
        assert_eq!(opened, if fails { 2 } else { 1 }, "the second one joins the first");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_keeps_the_supervisor_and_answers_the_others() {
    for (step, what) in [("run.open", What::Run), ("loop.save", What::Loop), ("load", What::Queue)] {
        let rig = loops::rig().await;
        rig.world.script.at(step, Fault::Hang);
        let answers = match what {
            What::Run => run(&rig),
            What::Queue => merge(&rig),
            What::Loop | What::Flow => {
                let order = loops::beginning(loops::plan(1));
                rig.swarm().ralph(swarm_model::LoopRequest { caller: caller(), order })
            }
        };
        rig.world.settle().await;
        rig.spawn(request("other")).await.expect("starts");
        rig.kill("other").await.expect("ends");
        let ended = tokio::time::timeout(Duration::from_secs(3600), rig.swarm().ended()).await;
        assert!(ended.is_err(), "{step}: {ended:?}");
        drop(answers);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_loop_cannot_be_read_is_not_respawned() {
    let rig = loops::rig().await;
    loops::begin(&rig, loops::plan(3)).await;
    rig.world.script.at("loop.load", Fault::Error("an I/O error"));
    let refusal = rig.respawn("w").await.expect_err("it may belong to a loop");
    let cause = "cannot find out whether worker 'w' belongs to a ralph loop: an I/O error";
    assert_eq!((refusal.kind, refusal.cause.as_str()), (RefusalKind::Registry, cause));
    assert_eq!(rig.respawn("w").await.expect_err("it does").kind, RefusalKind::Running);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_whose_run_cannot_be_read_starts_nothing() {
    let rig = Rig::start().await;
    let request = |repeated| {
        let who = Caller { request: "the same".to_owned(), repeated, ..caller() };
        let jobs = vec![Job { id: "a".to_owned(), ..Job::default() }];
        let (id, home, root) = ("r1".to_owned(), HOME.to_owned(), "/repo".to_owned());
        let plan = Box::new(Plan { id, home, root, slug: "p".to_owned(), jobs, ..Plan::default() });
        RunRequest { caller: who, order: RunOrder::Begin { plan, retry_failed: true } }
    };
    let mut first = rig.swarm().run(request(0));
    rig.world.settle().await;
    assert_eq!(said(&mut first).as_deref(), Some("started"));
    for code in [1, 0] {
        rig.world.script.at("run.began_by", Fault::Error("an I/O error"));
        let mut again = rig.swarm().run(request(1));
        rig.world.settle().await;
        let cause = "cannot find out whether the run in /repo/.arial was started: an I/O error";
        assert_eq!(said(&mut again).as_deref(), Some(cause), "in progress, then over");
        if code == 1 {
            rig.world.end("p.a", Ended::Code(code));
            rig.world.pass(Duration::from_secs(60)).await;
        }
    }
    let starts = rig.world.script.calls().iter().filter(|call| call.starts_with("open p.a.")).count();
    assert_eq!((starts, What::Run.is_done(&rig)), (1, true));
}

#[tokio::test(start_paused = true)]
async fn no_loop_is_started_over_one_that_cannot_be_read() {
    let rig = loops::rig().await;
    for nth in 0..2 {
        if nth == 1 {
            rig.world.script.at("loop.load", Fault::Run(Box::new(|| {})));
        }
        rig.world.script.at("loop.load", Fault::Error("an I/O error"));
        let answers = loops::begin(&rig, loops::plan(1)).await;
        let [Answer::Refused(refusal)] = answers.as_slice() else { panic!("{nth}: {answers:?}") };
        assert_eq!((refusal.kind, refusal.cause.as_str()), (RefusalKind::Registry, "an I/O error"));
    }
    assert!(matches!(loops::begin(&rig, loops::plan(1)).await[..], [Answer::Spawned(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_resumption_that_hangs_delays_only_requests_about_itself() {
    for what in [What::Flow, What::Run, What::Loop, What::Queue] {
        let mut rig = what.interrupted().await;
        let (go_on, until) = oneshot::channel();
        rig.world.script.at(what.steps()[2], Fault::Wait(until));
        let up = rig.try_up(rig.world.ports(), Duration::from_secs(60)).await;
        assert_eq!(up, Some(Ok(())), "{what:?}");
        rig.spawn(request("other")).await.expect("starts");
        rig.kill("other").await.expect("ends");
        let incomplete = (rig.swarm().queues().await.is_none(), rig.swarm().runs().await.is_none());
        assert_eq!(incomplete, (matches!(what, What::Queue), matches!(what, What::Run)));
        rig.world.pass(Duration::from_secs(60)).await;
        assert!(!what.is_done(&rig) && rig.world.script.unmet().is_empty(), "{what:?}");
        let _ = go_on.send(());
        rig.world.pass(Duration::from_secs(60)).await;
        assert!(what.is_done(&rig), "{what:?}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_cannot_be_begun_in_time_is_not_begun_later() {
    let rig = loops::rig().await;
    let (go_on, until) = oneshot::channel();
    rig.world.script.at("loop.save", Fault::Wait(until));
    let order = loops::beginning(loops::plan(1));
    let mut answers = rig.swarm().ralph(LoopRequest { caller: caller(), order });
    rig.world.pass(Duration::from_secs(40)).await;
    assert_eq!(said(&mut answers).as_deref(), Some("cannot read or write the loop of 'w' within 30 s"));
    let _ = go_on.send(());
    rig.world.pass(Duration::from_secs(60)).await;
    let has_started = rig.world.script.calls().iter().any(|call| call.starts_with("open w."));
    assert_eq!((rig.world.loops.loaded("w").is_none(), has_started), (true, false));
    assert!(matches!(loops::begin(&rig, loops::plan(1)).await[..], [Answer::Spawned(_)]));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_is_gone_begins_nothing_after_a_slow_start() {
    let rig = Rig::start().await;
    let (go_on, until) = oneshot::channel();
    rig.world.script.at("flow.open", Fault::Wait(until));
    rig.world.script.at("flow.open.after", Fault::Error("an I/O error"));
    let mut first = flow(&rig, place("abcdef"));
    rig.world.settle().await;
    drop(flow(&rig, place("abcdef")));
    rig.world.settle().await;
    let _ = go_on.send(());
    rig.world.settle().await;
    assert_eq!(said(&mut first).as_deref(), Some("an I/O error"));
    assert_eq!(rig.world.script.count(&format!("flow.open {}", place("abcdef").flow)), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_reopened_while_others_are_read_is_tried_again() {
    let mut rig = loops::rig().await;
    loops::begin(&rig, loops::plan(1)).await;
    rig.crash().await;
    rig.world.script.at("loop.active", Fault::Error("an I/O error"));
    rig.up().await;
    let order = LoopOrder::Attend { name: "w".to_owned() };
    drop(rig.swarm().ralph(LoopRequest { caller: caller(), order }));
    let (go_on, until) = oneshot::channel();
    rig.world.script.at("loop.active", Fault::Wait(until));
    rig.world.pass(Duration::from_secs(6)).await;
    assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "the loops are being read");
    rig.world.script.at("loop.save", Fault::Panic);
    rig.world.script.at("loop.load", Fault::Error("an I/O error"));
    rig.world.end("w", Ended::Code(0));
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!((rig.world.script.unmet().len(), What::Loop.is_done(&rig)), (0, false));
    let _ = go_on.send(());
    rig.world.pass(Duration::from_secs(15)).await;
    assert!(What::Loop.is_done(&rig));
    rig.check();
}

/// A flow whose role works, without a supervisor.
async fn working_flow() -> Rig {
    let mut rig = Rig::start().await;
    let turn = Turn { role: "dev".to_owned(), number: 1, node: Some("dev-1".to_owned()) };
    rig.world.flows.plan(&place("abcdef"), vec![vec![turn]]);
    drop(flow(&rig, place("abcdef")));
    rig.world.settle().await;
    rig.crash().await;
    rig
}

#[tokio::test(start_paused = true)]
async fn what_was_opened_on_request_while_it_was_read_is_not_opened_again() {
    let mut rig = working_flow().await;
    rig.world.script.at("flow.active", Fault::Error("an I/O error"));
    rig.up().await;
    let (go_on, until) = oneshot::channel();
    rig.world.script.at("flow.active.one", Fault::Wait(until));
    rig.world.script.forget_calls();
    rig.world.pass(Duration::from_secs(6)).await;
    let mut answers = flow(&rig, place("abcdef"));
    rig.world.settle().await;
    assert_eq!(said(&mut answers).as_deref(), Some("running"));
    let _ = go_on.send(());
    rig.world.pass(Duration::from_secs(20)).await;
    assert_eq!(rig.world.script.count(&format!("flow.open {}", place("abcdef").flow)), 1);
    rig.world.end("abcdef-dev", Ended::Code(0));
    rig.world.pass(Duration::from_secs(5)).await;
    assert!(What::Flow.is_done(&rig));
    rig.check();
}

/// A run whose worker works, and a supervisor that cannot read the runs.
async fn unread_run(step: &str, times: usize) -> Rig {
    let mut rig = Rig::start().await;
    drop(run(&rig));
    rig.world.pass(Duration::from_secs(60)).await;
    rig.crash().await;
    (0..times).for_each(|_| rig.world.script.at(step, Fault::Error("an I/O error")));
    rig.up().await;
    rig
}

#[tokio::test(start_paused = true)]
async fn a_request_about_a_run_that_could_not_be_read_reads_it_again() {
    for step in ["run.active", "run.active.one", "run.resume"] {
        let rig = unread_run(step, 1).await;
        let mut begun = run(&rig);
        rig.world.settle().await;
        assert_eq!(said(&mut begun).as_deref(), Some("a run is in progress in /repo/.arial"), "{step}");
        let rig = unread_run(step, 1).await;
        let order = RunOrder::Stop { home: HOME.to_owned() };
        let mut stopped = rig.swarm().run(RunRequest { caller: caller(), order });
        rig.world.settle().await;
        assert_eq!(said(&mut stopped).as_deref(), Some("stopping"), "{step}");
        rig.world.end("p.a", Ended::Code(0));
        rig.world.pass(Duration::from_secs(60)).await;
        assert!(What::Run.is_done(&rig), "{step}");
        let starts = rig.world.script.calls().iter().filter(|call| call.starts_with("open p.a.")).count();
        assert_eq!(starts, 1, "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_about_a_run_that_cannot_be_read_is_refused() {
    for begins in [true, false] {
        let rig = unread_run("run.active.one", 2).await;
        let mut answers = if begins {
            run(&rig)
        } else {
            rig.swarm().run(RunRequest { caller: caller(), order: RunOrder::Hold { home: HOME.to_owned() } })
        };
        rig.world.settle().await;
        let cause = "cannot find out whether the run /repo/.arial is active: /repo/.arial: an I/O error";
        assert_eq!(said(&mut answers).as_deref(), Some(cause), "{begins}");
        rig.world.pass(Duration::from_secs(10)).await;
        rig.world.end("p.a", Ended::Code(0));
        rig.world.pass(Duration::from_secs(60)).await;
        assert!(What::Run.is_done(&rig), "{begins}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flow_that_could_not_be_read_can_be_stopped() {
    let mut rig = working_flow().await;
    rig.world.script.at("flow.active.one", Fault::Error("an I/O error"));
    rig.up().await;
    let stop = |place| FlowRequest { caller: caller(), place, order: FlowOrder::Stop { node: None } };
    let mut other = rig.swarm().flow(stop(place("bbbbbb")));
    let mut stopped = rig.swarm().flow(stop(place("abcdef")));
    rig.world.pass(Duration::from_secs(2)).await;
    assert!(said(&mut other).is_some_and(|cause| cause.ends_with("is not running")));
    assert_eq!(said(&mut stopped).as_deref(), Some("stopped"));
    assert_eq!(rig.world.kernel.living(), 0);
}
