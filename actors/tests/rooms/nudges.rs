//! Nudges over fake windows: each beat is typed once and at its time, whatever is interrupted, and
//! a window that hangs delays no other.

use std::time::Duration;

use swarm_actors::supervisor::{Exit, Request};
use swarm_actors::testing::Fault;
use swarm_model::nudges::Status;
use swarm_model::{
    Answer, Caller, Ended, EventKind, Every, KillRequest, NudgeOrder, NudgeRequest, NudgeSettings, RecoverRequest,
    RefusalKind, SpawnRequest, TmuxPlace,
};
use tokio::time::Instant;

use crate::fixture::{Rig, caller, kill, request};

const MINUTE: Duration = Duration::from_secs(60);

fn in_tmux(name: &str) -> SpawnRequest {
    let mut request = request(name);
    let place = TmuxPlace { session: "s".to_owned(), socket: None, socket_path: None };
    request.contract.tmux = Some(place);
    request
}

/// Starts a worker with a window.
async fn worker(rig: &Rig, name: &str) {
    rig.spawn(in_tmux(name)).await.expect("starts");
    rig.world.terminals.show(name, "$ ");
}

fn every(time: Duration) -> NudgeOrder {
    let ms = u64::try_from(time.as_millis()).expect("short");
    started(NudgeSettings { every: Every::Interval { ms }, message: "go on".to_owned(), expire_ms: None, jitter_ms: 0 })
}

fn started(settings: NudgeSettings) -> NudgeOrder {
    NudgeOrder::Start { settings, force: false }
}

async fn ask_as(rig: &Rig, caller: Caller, worker: &str, order: NudgeOrder) -> Result<String, RefusalKind> {
    let request = NudgeRequest { caller, worker: worker.to_owned(), order };
    match rig.swarm().nudge(request).recv().await.expect("an answer") {
        Answer::Nudge(line) => Ok(line.done),
        Answer::Refused(refusal) => Err(refusal.kind),
        answer => panic!("not an answer about nudges: {answer:?}"),
    }
}

async fn ask(rig: &Rig, worker: &str, order: NudgeOrder) -> Result<String, RefusalKind> {
    ask_as(rig, caller(), worker, order).await
}

fn typed(rig: &Rig, worker: &str) -> usize {
    rig.world.terminals.typed(worker).len()
}

fn status(rig: &Rig, worker: &str) -> Status {
    rig.world.nudges.status(worker).expect("it has a nudge")
}

#[tokio::test(start_paused = true)]
async fn beats_are_typed_at_their_times_and_counted() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    let began = Instant::now();
    assert_eq!(ask(&rig, "w", every(MINUTE)).await, Ok("started".to_owned()));
    for beat in 1..=5 {
        rig.world.pass((MINUTE * beat).saturating_sub(began.elapsed() + Duration::from_millis(5))).await;
        assert_eq!(typed(&rig, "w"), beat as usize - 1, "not early");
        rig.world.pass(Duration::from_millis(10)).await;
        assert_eq!(typed(&rig, "w"), beat as usize);
    }
    assert_eq!(rig.world.terminals.typed("w"), ["go on"; 5]);
    assert_eq!(rig.world.nudges.get("w").map(|nudge| nudge.beats), Some(5));
    assert!(rig.world.events.of("w").contains(&EventKind::NudgeSent { beat: 5 }));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn nothing_wakes_between_beats_and_the_supervisor_stays() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE * 240)).await.expect("it starts");
    rig.world.settle().await;
    rig.world.script.forget_calls();
    rig.world.pass(MINUTE * 239).await;
    assert_eq!(rig.world.script.calls(), Vec::<String>::new());
    rig.world.pass(MINUTE * 2).await;
    assert_eq!(typed(&rig, "w"), 1);
    rig.kill("w").await.expect("ends");
    assert_eq!(status(&rig, "w"), Status::Stopped);
    assert_eq!(rig.swarm().ended().await, Exit::Idle, "nothing keeps the supervisor running");
}

#[tokio::test(start_paused = true)]
async fn only_workers_with_a_window_can_be_nudged() {
    let rig = Rig::start().await;
    rig.spawn(request("process")).await.expect("starts");
    assert_eq!(ask(&rig, "nobody", every(MINUTE)).await, Err(RefusalKind::NotFound));
    assert_eq!(ask(&rig, "process", every(MINUTE)).await, Err(RefusalKind::Invalid));
    worker(&rig, "w").await;
    let cron = |expression: &str| Every::Cron { expression: expression.to_owned() };
    let settings = NudgeSettings { every: cron("what"), message: "x".to_owned(), expire_ms: None, jitter_ms: 0 };
    assert_eq!(ask(&rig, "w", started(settings.clone())).await, Err(RefusalKind::Invalid));
    assert_eq!(rig.world.nudges.get("w"), None);
    ask(&rig, "w", started(NudgeSettings { every: cron("*/5 * * * *"), ..settings })).await.expect("it starts");
    rig.world.pass(MINUTE * 11).await;
    assert_eq!(typed(&rig, "w"), 2);
    assert_eq!(ask(&rig, "w", every(MINUTE)).await, Err(RefusalKind::Exists));
}

#[tokio::test(start_paused = true)]
async fn orders_apply_at_once_and_repeated_requests_get_the_same_answer() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    assert_eq!(ask(&rig, "w", NudgeOrder::Stop).await, Ok("inactive".to_owned()));
    let first = caller();
    let again = Caller { repeated: 1, ..first.clone() };
    for who in [first, again.clone(), again] {
        assert_eq!(ask_as(&rig, who, "w", every(MINUTE)).await, Ok("started".to_owned()));
    }
    assert_eq!(ask(&rig, "w", NudgeOrder::Pause).await, Ok("paused".to_owned()));
    rig.world.pass(MINUTE * 3).await;
    assert_eq!(typed(&rig, "w"), 0);
    assert_eq!(ask(&rig, "w", NudgeOrder::Resume).await, Ok("resumed".to_owned()));
    rig.world.pass(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(typed(&rig, "w"), 1);
    let stop = caller();
    let again = Caller { repeated: 1, ..stop.clone() };
    for who in [stop, again] {
        assert_eq!(ask_as(&rig, who, "w", NudgeOrder::Stop).await, Ok("stopped".to_owned()));
    }
    rig.world.pass(MINUTE * 3).await;
    assert_eq!((typed(&rig, "w"), status(&rig, "w")), (1, Status::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_beat_waits_while_the_previous_one_is_pending() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.world.terminals.show("w", "out\n> go on\n\n");
    rig.world.pass(MINUTE * 2 + Duration::from_secs(1)).await;
    assert_eq!((typed(&rig, "w"), rig.world.nudges.get("w").expect("kept").beats), (0, 0));
    rig.world.terminals.show("w", "out\n> ");
    rig.world.pass(MINUTE).await;
    assert_eq!(typed(&rig, "w"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_nudge_ends_with_its_worker_or_at_its_expiry() {
    let rig = Rig::start().await;
    for name in ["ends", "cleaned", "expires"] {
        worker(&rig, name).await;
    }
    ask(&rig, "ends", every(MINUTE)).await.expect("it starts");
    ask(&rig, "cleaned", every(MINUTE)).await.expect("it starts");
    let NudgeOrder::Start { settings, .. } = every(MINUTE) else { panic!("a start") };
    ask(&rig, "expires", started(NudgeSettings { expire_ms: Some(150_000), ..settings })).await.expect("it starts");
    rig.world.terminals.close("ends");
    rig.world.end("ends", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(status(&rig, "ends"), Status::Stopped, "at once, not at the next beat");
    rig.kill("cleaned").await.expect("ends");
    rig.clean("cleaned").await.expect("goes");
    assert_eq!(rig.world.nudges.get("cleaned"), None);
    rig.world.pass(MINUTE * 5).await;
    assert_eq!((status(&rig, "expires"), typed(&rig, "expires")), (Status::Expired, 2));
    assert!(rig.world.events.of("expires").contains(&EventKind::NudgeExpired));
    assert!(matches!(rig.world.events.of("ends").last(), Some(EventKind::NudgeStopped { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_window_that_hangs_delays_no_other() {
    let rig = Rig::start().await;
    for name in ["a", "b"] {
        worker(&rig, name).await;
        ask(&rig, name, every(MINUTE)).await.expect("it starts");
    }
    rig.world.script.at("screen", Fault::Hang);
    rig.world.script.at("type_text", Fault::Hang);
    rig.world.pass(MINUTE + Duration::from_secs(1)).await;
    assert_eq!((typed(&rig, "a"), typed(&rig, "b")), (0, 0), "one read and one typing hang");
    rig.world.pass(MINUTE * 2).await;
    assert_eq!((typed(&rig, "a"), typed(&rig, "b")), (3, 2), "reading is retried, typing is not");
    assert!(rig.world.events.of("b").iter().any(|kind| matches!(kind, EventKind::NudgeMissed { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_text_that_nobody_has_submitted_is_left_alone() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    let shows = |text: &str| rig.world.terminals.show("w", &format!("────\n❯ {text}\n────\n"));
    shows("delete all");
    rig.world.pass(MINUTE * 3).await;
    assert_eq!(typed(&rig, "w"), 0);
    let beats = || rig.world.nudges.get("w").map(|nudge| (nudge.beats, nudge.last_beat_ms.is_some(), nudge.unfinished));
    assert_eq!(beats(), Some((0, false, false)));
    let missed = |kind: &EventKind| matches!(kind, EventKind::NudgeMissed { cause } if cause.contains("(delete all)"));
    assert!(rig.world.events.of("w").iter().any(missed), "{:?}", rig.world.events.of("w"));
    shows("");
    rig.world.pass(MINUTE).await;
    assert_eq!((typed(&rig, "w"), beats().map(|beats| beats.0)), (1, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_window_is_retried_until_the_next_beat() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    for _ in 0..3 {
        rig.world.script.at("screen", Fault::Error("no server"));
    }
    rig.world.pass(MINUTE + Duration::from_secs(8)).await;
    assert_eq!(typed(&rig, "w"), 1, "1, 2 and 4 seconds later");
    for _ in 0..100 {
        rig.world.script.at("screen", Fault::Error("no server"));
    }
    rig.world.pass(MINUTE * 3).await;
    assert_eq!(typed(&rig, "w"), 1);
    let missed = |kind: &EventKind| matches!(kind, EventKind::NudgeMissed { cause } if cause == "no server");
    assert!(rig.world.events.of("w").iter().any(missed));
    assert!(!rig.world.script.forget_faults(), "there were more faults than attempts");
    rig.world.pass(MINUTE * 2).await;
    assert_eq!(typed(&rig, "w"), 4, "the pending beat, and the two after it");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_delays_a_beat() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    rig.world.script.at("nudge.save", Fault::Error("no space left on device"));
    assert_eq!(ask(&rig, "w", every(MINUTE)).await, Err(RefusalKind::Registry));
    assert_eq!(rig.world.nudges.get("w"), None);
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.world.script.at("nudge.save", Fault::Error("no space left on device"));
    rig.world.pass(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(typed(&rig, "w"), 0);
    rig.world.pass(Duration::from_secs(5)).await;
    assert_eq!(typed(&rig, "w"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_killed_supervisor_repeats_no_beat_and_forgets_none() {
    let steps = ["screen", "nudge.read", "nudge.save", "nudge.save.after", "type_text"];
    for step in steps {
        let mut rig = Rig::start().await;
        worker(&rig, "w").await;
        ask(&rig, "w", every(MINUTE)).await.expect("it starts");
        rig.world.settle().await;
        rig.world.script.at(step, Fault::Hang);
        rig.world.pass(MINUTE + Duration::from_secs(1)).await;
        rig.crash().await;
        assert!(rig.world.script.forget_faults(), "{step} was never reached");
        rig.up().await;
        let after_crash = typed(&rig, "w");
        let counted = rig.world.nudges.get("w").expect("kept").beats;
        assert!(after_crash <= 1 && counted == 1, "{step}: {after_crash} {counted}");
        // A beat that was counted before the crash may be lost; everything else is made up for.
        let lost = matches!(step, "nudge.save.after" | "type_text");
        assert_eq!(after_crash, usize::from(!lost), "{step}");
        rig.world.pass(MINUTE).await;
        assert_eq!(typed(&rig, "w"), after_crash + 1, "{step}: the next one follows");
    }
}

#[tokio::test(start_paused = true)]
async fn beats_missed_without_a_supervisor_come_as_one() {
    let mut rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.crash().await;
    rig.world.pass(MINUTE * 30).await;
    rig.up().await;
    assert_eq!(typed(&rig, "w"), 1);
    rig.world.pass(MINUTE).await;
    assert_eq!(typed(&rig, "w"), 2);
    // A nudge whose worker ended in between stops at once.
    rig.crash().await;
    rig.world.terminals.close("w");
    rig.up().await;
    assert_eq!(status(&rig, "w"), Status::Stopped);
}

#[tokio::test(start_paused = true)]
async fn nudges_that_cannot_be_read_are_read_again_and_keep_the_supervisor() {
    for step in ["nudge.load", "nudge.load.one"] {
        let mut rig = Rig::start().await;
        worker(&rig, "w").await;
        ask(&rig, "w", every(MINUTE)).await.expect("it starts");
        rig.crash().await;
        // Nothing else needs a supervisor.
        rig.world.end("w", Ended::Code(0));
        for _ in 0..20 {
            rig.world.script.at(step, Fault::Error("an I/O error"));
        }
        rig.up().await;
        let stays = tokio::time::timeout(Duration::from_secs(90), rig.swarm().ended()).await;
        assert!(stays.is_err(), "{step}: {stays:?}");
        assert_eq!((typed(&rig, "w"), rig.world.script.unmet().len()), (0, 1), "{step}: a try each 5 s");
        rig.world.pass(Duration::from_secs(15)).await;
        assert_eq!(typed(&rig, "w"), 1, "{step}: missed beats come as one");
        rig.world.script.forget_calls();
        rig.world.pass(MINUTE * 2).await;
        assert_eq!((typed(&rig, "w"), rig.world.script.count("nudge.load all")), (3, 0), "{step}");
        rig.world.terminals.close("w");
        assert_eq!(rig.swarm().ended().await, Exit::Idle, "{step}");
        assert_eq!(status(&rig, "w"), Status::Stopped);
    }
}

#[tokio::test(start_paused = true)]
async fn a_nudge_that_is_removed_before_it_can_be_read_keeps_nothing() {
    let mut rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.crash().await;
    rig.world.end("w", Ended::Code(0));
    rig.world.script.at("nudge.load.one", Fault::Error("an I/O error"));
    rig.up().await;
    rig.world.nudges.take_away("w");
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
    assert_eq!(typed(&rig, "w"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_nudge_waits_silently_for_a_worker_that_comes_back() {
    let mut rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.crash().await;
    rig.world.kernel.reboot();
    rig.world.terminals.away("w");
    rig.up().await;
    rig.world.pass(MINUTE * 2).await;
    rig.world.script.forget_calls();
    rig.world.pass(MINUTE * 30).await;
    assert_eq!(rig.world.script.calls(), Vec::<String>::new());
    assert_eq!((status(&rig, "w"), typed(&rig, "w")), (Status::Active, 0));
    rig.world.terminals.show("w", "$ ");
    let recover = RecoverRequest { caller: caller(), name: "w".to_owned() };
    rig.start_by(Request::Recover(Box::new(recover))).await.expect("comes back");
    rig.world.pass(Duration::from_secs(9)).await;
    assert_eq!(typed(&rig, "w"), 0, "its agent starts first");
    rig.world.pass(Duration::from_secs(2)).await;
    assert_eq!(typed(&rig, "w"), 1, "missed beats come as one");
    rig.world.pass(MINUTE).await;
    assert_eq!(typed(&rig, "w"), 2);
    rig.kill("w").await.expect("ends");
    assert_eq!(status(&rig, "w"), Status::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_nudge_ends_even_while_its_worker_is_away() {
    let rig = Rig::start().await;
    for name in ["expires", "killed"] {
        worker(&rig, name).await;
        rig.world.terminals.away(name);
    }
    let NudgeOrder::Start { settings, .. } = every(MINUTE) else { panic!("a start") };
    ask(&rig, "expires", started(NudgeSettings { expire_ms: Some(150_000), ..settings })).await.expect("it starts");
    ask(&rig, "killed", every(MINUTE)).await.expect("it starts");
    rig.world.pass(MINUTE * 2).await;
    assert_eq!((status(&rig, "expires"), status(&rig, "killed")), (Status::Active, Status::Active));
    rig.world.pass(MINUTE).await;
    assert_eq!(status(&rig, "expires"), Status::Expired);
    rig.world.terminals.close("killed");
    rig.world.end("killed", Ended::Code(0));
    rig.world.settle().await;
    assert_eq!(status(&rig, "killed"), Status::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_worker_between_two_iterations_is_not_gone() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.world.terminals.away("w");
    let of_loop = Caller { request: "loop/l/1/end".to_owned(), ..caller() };
    let Request::Kill(kill) = kill("w") else { panic!("a kill") };
    rig.ask_one(Request::Kill(Box::new(KillRequest { caller: of_loop, ..*kill }))).await.expect("ends");
    rig.world.settle().await;
    assert_eq!(status(&rig, "w"), Status::Active);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_panics_resumes_from_disk() {
    let rig = Rig::start().await;
    worker(&rig, "w").await;
    ask(&rig, "w", every(MINUTE)).await.expect("it starts");
    rig.world.script.at("nudge.save", Fault::Panic);
    rig.world.pass(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(typed(&rig, "w"), 1);
    // A panic of a task does not affect others.
    rig.world.script.at("screen", Fault::Panic);
    rig.world.pass(MINUTE + Duration::from_secs(10)).await;
    assert_eq!(typed(&rig, "w"), 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_wall_clock_moves_dates_and_nothing_else() {
    let rig = Rig::start().await;
    for name in ["interval", "cron"] {
        worker(&rig, name).await;
    }
    ask(&rig, "interval", every(MINUTE * 10)).await.expect("it starts");
    let every = Every::Cron { expression: "*/10 * * * *".to_owned() };
    let settings = NudgeSettings { every, message: "go on".to_owned(), expire_ms: None, jitter_ms: 0 };
    ask(&rig, "cron", started(settings)).await.expect("it starts");
    rig.world.clock.jump_wall_ms(3_600_000);
    rig.world.settle().await;
    assert_eq!((typed(&rig, "interval"), typed(&rig, "cron")), (0, 1), "its dates have passed and cause one beat");
    rig.world.clock.jump_wall_ms(-3_600_000);
    rig.world.pass(MINUTE * 10 + Duration::from_secs(1)).await;
    assert_eq!((typed(&rig, "interval"), typed(&rig, "cron")), (1, 1), "no date occurs twice");
}

#[tokio::test(start_paused = true)]
async fn a_change_by_another_program_applies_before_the_next_beat() {
    let rig = Rig::start().await;
    for name in ["paused", "removed"] {
        worker(&rig, name).await;
        ask(&rig, name, every(MINUTE)).await.expect("it starts");
    }
    let mut nudge = rig.world.nudges.get("paused").expect("there");
    nudge.status = Status::Paused;
    rig.world.nudges.put(nudge);
    swarm_ports::Nudges::remove(&*rig.world.nudges, "removed").await.expect("removed");
    rig.world.pass(MINUTE * 3).await;
    assert_eq!((typed(&rig, "paused"), typed(&rig, "removed")), (0, 0));
    assert_eq!((status(&rig, "paused"), rig.world.nudges.get("removed")), (Status::Paused, None));
}

#[tokio::test(start_paused = true)]
async fn many_nudges_beat_side_by_side() {
    let rig = Rig::start().await;
    let names: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    for name in &names {
        worker(&rig, name).await;
    }
    for name in &names {
        ask(&rig, name, every(MINUTE)).await.expect("it starts");
    }
    rig.world.script.at("screen", Fault::Hang);
    rig.world.pass(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(names.iter().filter(|name| typed(&rig, name) == 1).count(), 99, "all but the hanging one");
}
