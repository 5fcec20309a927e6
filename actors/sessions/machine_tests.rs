use proptest::prelude::*;

use super::*;
use swarm_model::{Ended, ProcessId, Reason, SessionPlan, WatchRules};

pub(super) fn life(worker: &str, generation: u64) -> Arc<Life> {
    Arc::new(Life {
        worker: worker.to_owned(),
        generation,
        session_id: format!("{worker}-{generation}"),
        process: ProcessId { pid: 7, start_ticks: generation, boot: "b".to_owned() },
        plan: Some(SessionPlan {
            dir: format!("/w/{worker}"),
            identifier: worker.to_owned(),
            work_type: "development".to_owned(),
            prompt: "go".to_owned(),
            provider: None,
        }),
        logs: Vec::new(),
        watch: None,
        window: false,
        agent: false,
        rungs: Rungs::default(),
    })
}

fn fence(life: &Life) -> Fence {
    Fence { session: life.session_id.clone(), started_ms: 1 }
}

pub(super) fn running(machine: &mut Machine, life: &Arc<Life>) {
    machine.on(Event::Began(Arc::clone(life)));
    machine.on(Event::Ran(Arc::clone(life), Ok(fence(life))));
    machine.on(Event::Beaten(Arc::clone(life), Beaten::Done, None));
}

fn ended() -> LifeEnd {
    Some((Ended::Code(0), Reason::Exited))
}

#[test]
fn the_first_beat_comes_at_once_and_the_others_with_the_tick() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 1);
    assert_eq!(machine.on(Event::Began(Arc::clone(&a))), vec![Effect::Run(Arc::clone(&a), None), Effect::Arm]);
    let beat = || Effect::Beat(Arc::clone(&a), Some(fence(&a)));
    assert_eq!(machine.on(Event::Ran(Arc::clone(&a), Ok(fence(&a)))), vec![beat()]);
    machine.on(Event::Beaten(Arc::clone(&a), Beaten::Done, None));
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, beat()]);
}

#[test]
fn a_report_of_an_agent_is_looked_at_without_a_tick() {
    let mut machine = Machine::new(10_000);
    let agent = |generation| Arc::new(Life { agent: true, window: true, ..(*life("a", generation)).clone() });
    let (a, other) = (agent(1), agent(2));
    assert!(machine.on(Event::Began(Arc::clone(&a))).contains(&Effect::Listen(Arc::clone(&a))));
    assert_eq!(machine.on(Event::News(Arc::clone(&a), News::Reported)), Vec::new(), "its session is not written yet");
    machine.on(Event::Ran(Arc::clone(&a), Ok(fence(&a))));
    assert_eq!(machine.on(Event::News(Arc::clone(&a), News::Reported)), Vec::new(), "it is being observed");
    let beat = || vec![Effect::Beat(Arc::clone(&a), Some(fence(&a)))];
    let beaten = || Event::Beaten(Arc::clone(&a), Beaten::Done, None);
    assert_eq!(machine.on(beaten()), beat(), "what it reported meanwhile may have been missed");
    assert_eq!(machine.on(beaten()), Vec::new());
    assert_eq!(machine.on(Event::News(Arc::clone(&a), News::Reported)), beat());
    assert_eq!(machine.on(Event::News(other, News::Reported)), Vec::new(), "another start");
    assert!(machine.on(Event::Ended(Arc::clone(&a), ended())).contains(&Effect::Unlisten("a".to_owned())));
    assert_eq!(machine.on(Event::News(a, News::Reported)), Vec::new());
}

#[test]
fn one_timer_serves_all_workers_and_stops_without_any() {
    let mut machine = Machine::new(10_000);
    let (a, b) = (life("a", 1), life("b", 1));
    running(&mut machine, &a);
    assert_eq!(machine.on(Event::Began(Arc::clone(&b))), vec![Effect::Run(Arc::clone(&b), None)]);
    for life in [a, b] {
        assert_eq!(machine.on(Event::Ended(Arc::clone(&life), ended())), vec![Effect::End(life, ended(), 1)]);
    }
    assert_eq!(machine.on(Event::Tick), Vec::new());
}

#[test]
fn a_state_that_could_not_be_written_is_written_with_the_next_tick() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 1);
    machine.on(Event::Began(Arc::clone(&a)));
    let full = SessionError::System("no space".to_owned());
    assert_eq!(machine.on(Event::Ran(Arc::clone(&a), Err(full))), Vec::new());
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, Effect::Run(a, None)]);
}

#[test]
fn beats_do_not_queue_up_on_a_slow_disk() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 1);
    running(&mut machine, &a);
    assert_eq!(machine.on(Event::Tick).len(), 2);
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm]);
    machine.on(Event::Beaten(Arc::clone(&a), Beaten::Done, Some(Sight::default())));
    assert_eq!(machine.on(Event::Tick).len(), 2);
}

#[test]
fn a_disk_that_does_not_answer_is_asked_once_and_delays_no_other_session() {
    let mut machine = Machine::new(10_000);
    let (hangs, stalls, works) = (life("hangs", 1), life("stalls", 1), life("works", 1));
    machine.on(Event::Began(Arc::clone(&hangs)));
    running(&mut machine, &stalls);
    running(&mut machine, &works);
    let beat = |life: &Arc<Life>| Effect::Beat(Arc::clone(life), Some(fence(life)));
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, beat(&stalls), beat(&works)]);
    for _ in 0..100 {
        machine.on(Event::Beaten(Arc::clone(&works), Beaten::Done, None));
        assert_eq!(machine.on(Event::News(Arc::clone(&stalls), News::Reported)), Vec::new());
        assert_eq!(machine.on(Event::Began(Arc::clone(&hangs))), Vec::new());
        assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, beat(&works)]);
    }
    let full = SessionError::System("no space".to_owned());
    machine.on(Event::Ran(Arc::clone(&hangs), Err(full)));
    assert_eq!(machine.on(Event::Beaten(Arc::clone(&stalls), Beaten::Done, None)), vec![beat(&stalls)]);
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, Effect::Run(hangs, None)]);
}

#[test]
fn a_session_taken_by_another_launch_is_reported_once_and_left_alone() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 2);
    running(&mut machine, &a);
    let found = Fence { session: "theirs".to_owned(), started_ms: 9 };
    let lost = || Event::Beaten(Arc::clone(&a), Beaten::Lost { found: found.clone() }, Some(Sight::default()));
    let told = Effect::TellLost { worker: "a".to_owned(), generation: 2, found: found.clone() };
    assert_eq!(machine.on(lost()), vec![told]);
    assert_eq!(machine.on(lost()), Vec::new());
    assert_eq!(machine.on(Event::Tick), Vec::new());
}

#[test]
fn a_removed_state_is_written_again() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 1);
    running(&mut machine, &a);
    let missing = || Event::Beaten(Arc::clone(&a), Beaten::Missing, Some(Sight::default()));
    assert_eq!(machine.on(missing()), vec![Effect::Run(Arc::clone(&a), Some(fence(&a)))]);
    machine.on(Event::Ended(Arc::clone(&a), ended()));
    assert_eq!(machine.on(missing()), Vec::new());
}

#[test]
fn late_reports_of_a_generation_do_not_affect_the_next() {
    let mut machine = Machine::new(10_000);
    let (old, new) = (life("a", 1), life("a", 2));
    running(&mut machine, &old);
    running(&mut machine, &new);
    let found = fence(&new);
    assert_eq!(machine.on(Event::Beaten(Arc::clone(&old), Beaten::Lost { found }, Some(Sight::default()))), Vec::new());
    assert_eq!(machine.on(Event::Ended(Arc::clone(&old), None)), vec![Effect::End(old, None, 1)]);
    assert!(machine.on(Event::Tick).contains(&Effect::Beat(Arc::clone(&new), Some(fence(&new)))));
}

fn watched(worker: &str, window: bool) -> Arc<Life> {
    let rules = WatchRules { after_ms: 600_000, message: "go on".to_owned() };
    Arc::new(Life { plan: None, watch: Some(rules), window, ..Life::clone(&life(worker, 1)) })
}

/// Returns the effects of this many ticks without output.
fn silence(machine: &mut Machine, life: &Arc<Life>, ticks: u32, screen: &str) -> Vec<Effect> {
    let mut done = Vec::new();
    for _ in 0..ticks {
        machine.on(Event::Tick);
        let mut effects = machine.on(Event::Beaten(Arc::clone(life), Beaten::Done, Some(Sight::default())));
        if let [Effect::Look(life, sight)] = &effects[..] {
            let looked = Event::Looked(Arc::clone(life), sight.clone(), Some(screen.to_owned()));
            effects = machine.on(looked);
        }
        let words = |effect: &Effect| matches!(effect, Effect::Tell(..) | Effect::Note { .. });
        done.extend(effects.into_iter().filter(|effect| !words(effect)));
    }
    done
}

#[test]
fn a_silent_worker_is_nudged_and_finally_renewed() {
    let mut machine = Machine::new(10_000);
    let a = watched("a", true);
    machine.on(Event::Began(Arc::clone(&a)));
    let nudge = Effect::Type { worker: "a".to_owned(), text: "go on".to_owned() };
    let renew = Effect::Renew { worker: "a".to_owned(), generation: 1 };
    let done = silence(&mut machine, &a, 120, "> ");
    assert_eq!(done, vec![nudge.clone(), nudge, Effect::Interrupt { worker: "a".to_owned() }, renew.clone()]);
    // The next generation continues at the same position of the ladder.
    machine.on(Event::Ended(Arc::clone(&a), ended()));
    let next = Arc::new(Life { generation: 2, ..Life::clone(&a) });
    machine.on(Event::Began(Arc::clone(&next)));
    let done = silence(&mut machine, &next, 40, "> ");
    assert_eq!(done.first(), Some(&Effect::Renew { worker: "a".to_owned(), generation: 2 }), "{done:?}");
}

/// Marks of a window over the given ticks, each with what its agent waits for and its screen.
fn marks(life: &Arc<Life>, ticks: &[(Option<&str>, &str)]) -> Vec<Option<Mark>> {
    let mut machine = Machine::new(30_000);
    machine.on(Event::Began(Arc::clone(life)));
    machine.on(Event::Ran(Arc::clone(life), Ok(fence(life))));
    let mut marks = Vec::new();
    // Long after its start, when its screen is not read without a reason.
    for (output, (waiting, screen)) in [&[(None, ""); 3], ticks].concat().into_iter().enumerate() {
        machine.on(Event::Tick);
        let sight = Sight { waiting: waiting.map(str::to_owned), output: output as u64, ..Sight::default() };
        let mut effects = machine.on(Event::Beaten(Arc::clone(life), Beaten::Done, Some(sight)));
        if let [Effect::Look(life, sight)] = &effects[..] {
            effects = machine.on(Event::Looked(Arc::clone(life), sight.clone(), Some(screen.to_owned())));
        }
        marks.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Mark { mark, .. } => Some(mark),
            _ => None,
        }));
    }
    marks
}

#[test]
fn a_worker_that_reports_a_wait_is_marked_until_it_reports_or_shows_the_end_of_it() {
    let agent = Arc::new(Life { agent: true, window: true, ..Life::clone(&life("a", 1)) });
    let (asked, works) = (Some("may it push?"), "· Cooking…\n  ⏵⏵ auto mode on · esc to interrupt");
    let marked = || Some(Mark::Waits("may it push?".to_owned()));
    assert_eq!(marks(&agent, &[(asked, "Push?"), (asked, "Push?"), (None, "> ")]), [marked(), None]);
    let answered = marks(&agent, &[(asked, "Push?"), (asked, works), (asked, works)]);
    assert_eq!(answered, [marked(), Some(Mark::Works)], "it was answered");
    assert_eq!(marks(&agent, &[(asked, works), (asked, "Push?")]), [marked()], "a visible question counts");
    let script = Arc::new(Life { agent: false, ..Life::clone(&agent) });
    assert_eq!(marks(&script, &[(asked, ""), (None, "")]), [marked(), None]);
    let plan = script.plan.clone().map(|plan| SessionPlan { provider: Some("claude".to_owned()), ..plan });
    let attempt = Arc::new(Life { plan, ..Life::clone(&script) });
    assert_eq!(marks(&attempt, &[(asked, "")]), [], "its run reports the wait");
}

/// Marks of an agent in a window that waits for a permission and whose screens these are, each looked at because it has drawn
/// something.
fn drawn(held: bool, screens: &[&str]) -> Vec<Option<Mark>> {
    let mark = |effect| if let Effect::Mark { mark, .. } = effect { Some(mark) } else { None };
    effects_of(held, screens).into_iter().filter_map(mark).collect()
}

fn effects_of(held: bool, screens: &[&str]) -> Vec<Effect> {
    let agent = Arc::new(Life { agent: true, window: true, ..Life::clone(&life("a", 1)) });
    let mut machine = Machine::new(30_000);
    machine.on(Event::Began(Arc::clone(&agent)));
    machine.on(Event::Ran(Arc::clone(&agent), Ok(fence(&agent))));
    machine.on(Event::Beaten(Arc::clone(&agent), Beaten::Done, None));
    let mut all = Vec::new();
    for (output, screen) in screens.iter().enumerate() {
        let news = if output == 0 { News::Reported } else { News::Drawn };
        let beat = machine.on(Event::News(Arc::clone(&agent), news));
        assert!(matches!(&beat[..], [Effect::Beat(..)]), "{beat:?}");
        let waiting = Some("may it push?".to_owned());
        let sight = Sight { waiting, reports: true, held, output: output as u64, ..Sight::default() };
        let mut effects = machine.on(Event::Beaten(Arc::clone(&agent), Beaten::Done, Some(sight)));
        if let [Effect::Look(life, sight)] = &effects[..] {
            effects = machine.on(Event::Looked(Arc::clone(life), sight.clone(), Some((*screen).to_owned())));
        }
        all.extend(effects);
    }
    all
}

#[test]
fn a_dialog_that_a_person_answers_in_the_window_is_over_as_soon_as_it_is_gone() {
    let dialog = include_str!("../../tests/data/screens/codex/permission.txt");
    let works = include_str!("../../tests/data/screens/codex/working.txt");
    let idle = include_str!("../../tests/data/screens/codex/idle.txt");
    let waits = || Some(Mark::Waits("may it push?".to_owned()));
    assert_eq!(drawn(false, &[dialog, dialog, works]), [waits(), Some(Mark::Works)]);
    assert_eq!(drawn(false, &[dialog, idle]), [waits(), Some(Mark::Idle(DISMISSED.to_owned()))]);
    assert_eq!(drawn(false, &[idle, idle]), [waits()], "its dialog is still to come");
    assert_eq!(drawn(true, &[idle, works, works]), [waits()], "its hook waits, and it shows no dialog");
    let ended = |held, screens: &[&str]| {
        effects_of(held, screens).iter().filter(|it| matches!(it, Effect::Answered(_))).count()
    };
    let [asks, tool] = [
        include_str!("../../tests/data/screens/claude/permission-command.txt"),
        include_str!("../../tests/data/screens/claude/working-tool.txt"),
    ];
    assert_eq!(ended(false, &[tool, asks, asks, tool, tool]), 1, "the request is over as soon as the tool runs");
    assert_eq!(ended(false, &[tool, tool]), 0, "its dialog is still to come");
    assert_eq!(ended(true, &[asks, tool]), 0, "its hook answers");
}

#[test]
fn a_worker_that_cannot_be_observed_makes_no_progress() {
    let watch = Some(WatchRules { after_ms: 60_000, message: "go on".to_owned() });
    let life = Arc::new(Life { watch, ..Life::clone(&life("a", 1)) });
    let step_after = |is_observed: fn(u64) -> bool| {
        let mut machine = Machine::new(30_000);
        machine.on(Event::Began(Arc::clone(&life)));
        machine.on(Event::Ran(Arc::clone(&life), Ok(fence(&life))));
        (1..100).find(|tick| {
            machine.on(Event::Tick);
            let sight = is_observed(*tick).then(|| Sight { output: 7, ..Sight::default() });
            let effects = machine.on(Event::Beaten(Arc::clone(&life), Beaten::Done, sight));
            effects.iter().any(|effect| matches!(effect, Effect::Mark { mark: Some(Mark::Stuck(_)), .. }))
        })
    };
    let always = step_after(|_| true).expect("it makes no progress");
    assert!(step_after(|tick| tick % 2 == 0).is_some_and(|tick| tick <= always + 1), "a failed look counted as output");
    assert_eq!(step_after(|_| false), None, "a worker that was never seen is not judged");
}

#[test]
fn writing_an_end_is_retried_a_limited_number_of_times() {
    let mut machine = Machine::new(10_000);
    let a = life("a", 1);
    running(&mut machine, &a);
    let mut tried = machine.on(Event::Ended(Arc::clone(&a), ended()));
    machine.on(Event::Tick);
    let mut times = 0;
    while let Some(Effect::End(life, end, tries)) = tried.pop() {
        times += 1;
        machine.on(Event::Unended(life, end, tries));
        tried = machine.on(Event::Tick);
    }
    assert_eq!(times, END_TRIES_MAX);
    assert_eq!(machine.on(Event::Tick), Vec::new(), "the timer must stop");
}

#[test]
fn the_ladder_continues_where_an_earlier_supervisor_left_it() {
    let mut machine = Machine::new(10_000);
    let rungs = Rungs { nudges: 2, interrupted: true, restarts: 2, given_up: false };
    let a = Arc::new(Life { rungs, ..Life::clone(&watched("a", true)) });
    machine.on(Event::Began(Arc::clone(&a)));
    assert_eq!(silence(&mut machine, &a, 17, "> "), Vec::new(), "its last step is judged first");
    let done = silence(&mut machine, &a, 3, "> ");
    assert_eq!(done, vec![Effect::Renew { worker: "a".to_owned(), generation: 1 }]);
    let given_up = Rungs { given_up: true, ..rungs };
    let b = Arc::new(Life { rungs: given_up, ..Life::clone(&watched("b", true)) });
    assert_eq!(machine.on(Event::Began(Arc::clone(&b))), Vec::new(), "its mark stays");
    assert_eq!(silence(&mut machine, &b, 600, "> "), Vec::new());
}

#[test]
fn a_worker_ended_by_the_interrupt_is_renewed() {
    let mut machine = Machine::new(10_000);
    let a = watched("a", true);
    machine.on(Event::Began(Arc::clone(&a)));
    silence(&mut machine, &a, 97, "> ");
    let end = Some((Ended::Signal(2), Reason::Exited));
    let done = machine.on(Event::Ended(Arc::clone(&a), end));
    assert!(done.contains(&Effect::Renew { worker: "a".to_owned(), generation: 1 }), "{done:?}");
    // No renewal if the worker ends for another reason or later.
    let next = Arc::new(Life { generation: 2, ..Life::clone(&a) });
    machine.on(Event::Began(Arc::clone(&next)));
    assert_eq!(machine.on(Event::Ended(next, end)), Vec::new());
}

#[test]
fn nothing_is_typed_into_a_question_and_it_is_marked() {
    let mut machine = Machine::new(10_000);
    let a = watched("a", true);
    machine.on(Event::Began(Arc::clone(&a)));
    let done = silence(&mut machine, &a, 600, "Select login method:\n ❯ 1. Claude\n   2. Console");
    let mark = Some(Mark::Waits("asks how to log in".to_owned()));
    assert_eq!(done, vec![Effect::Mark { worker: "a".to_owned(), generation: 1, mark }]);
}

#[test]
fn a_life_that_is_only_watched_has_no_session_to_write() {
    let mut machine = Machine::new(10_000);
    let a = watched("a", false);
    let unmarked = Effect::Mark { worker: "a".to_owned(), generation: 1, mark: None };
    assert_eq!(machine.on(Event::Began(Arc::clone(&a))), vec![unmarked, Effect::Arm]);
    assert_eq!(machine.on(Event::Tick), vec![Effect::Arm, Effect::Beat(Arc::clone(&a), None)]);
    assert_eq!(machine.on(Event::Ended(a, ended())), Vec::new());
}

fn any_event() -> impl Strategy<Value = Event> {
    (0..3_usize, 1..4_u64, 0..8_u8).prop_map(|(worker, generation, kind)| {
        let life = life(["a", "b", "c"][worker], generation);
        let fence = fence(&life);
        match kind {
            0 => Event::Began(life),
            1 => Event::Ended(life, ended()),
            2 => Event::Ran(life, Ok(fence)),
            3 => Event::Ran(life, Err(SessionError::System("full".to_owned()))),
            5 => Event::Unended(life, None, 1),
            6 => Event::News(life, News::Reported),
            4 => Event::Beaten(life, Beaten::Lost { found: Fence::default() }, Some(Sight::default())),
            _ => Event::Tick,
        }
    })
}

proptest! {
    /// For any events: there is at most one timer, there is one while anything is tracked, and no beat
    /// is written for a generation that has ended.
    #[test]
    fn timers_and_beats_exist_only_for_living_workers(events in proptest::collection::vec(any_event(), 0..60)) {
        let mut machine = Machine::new(10_000);
        let mut armed = false;
        let mut ended: Vec<(String, u64)> = Vec::new();
        for event in events {
            match &event {
                Event::Tick => {
                    if !armed { continue; }
                    armed = false;
                }
                Event::Began(life) => ended.retain(|one| *one != (life.worker.clone(), life.generation)),
                Event::Ended(life, _) => ended.push((life.worker.clone(), life.generation)),
                Event::Unended(..) | Event::Ran(..) | Event::Beaten(..) | Event::Looked(..) | Event::News(..) | Event::Drafted(..) => {}
            }
            for effect in machine.on(event) {
                match effect {
                    Effect::Arm => {
                        prop_assert!(!armed, "a second timer");
                        armed = true;
                    }
                    Effect::Beat(life, _) => {
                        let key = (life.worker.clone(), life.generation);
                        prop_assert!(!ended.contains(&key), "a beat after the end: {key:?}");
                    }
                    _ => {}
                }
            }
            prop_assert!(armed || (machine.lives.is_empty() && machine.unended.is_empty()), "no timer: {:?}", machine.lives.keys());
        }
    }
}

const GEMINI_IDLE: &str = include_str!("../../tests/data/screens/gemini/idle.txt");
const GEMINI_WORKS: &str = include_str!("../../tests/data/screens/gemini/working.txt");

/// What the machine does after a tick at which the agent was seen so, with this screen if it is read.
pub(super) fn ticked(machine: &mut Machine, life: &Arc<Life>, sight: Sight, screen: &str) -> Option<Vec<Effect>> {
    machine.on(Event::Tick);
    let effects = machine.on(Event::Beaten(Arc::clone(life), Beaten::Done, Some(sight)));
    let Some(Effect::Look(_, sight)) = effects.first() else {
        assert_eq!(effects, Vec::new());
        return None;
    };
    Some(machine.on(Event::Looked(Arc::clone(life), sight.clone(), Some(screen.to_owned()))))
}

#[test]
fn an_agent_that_reports_nothing_is_idle_if_its_screen_stands_still_and_says_so() {
    let mut machine = Machine::new(10_000);
    let a = Arc::new(Life { agent: true, window: true, ..(*life("a", 1)).clone() });
    running(&mut machine, &a);
    let at = |output, quiet_ms| Sight { output, quiet_ms, ..Sight::default() };
    let marks = |effects: Option<Vec<Effect>>| -> Vec<Option<Mark>> {
        let effects = effects.expect("the screen is read").into_iter();
        effects.filter_map(|effect| if let Effect::Mark { mark, .. } = effect { Some(mark) } else { None }).collect()
    };
    // In its first minute any change is looked at.
    assert_eq!(marks(ticked(&mut machine, &a, at(1, 100), GEMINI_IDLE)), [], "it may be about to work");
    let idle = Mark::Idle("its turn is over".to_owned());
    assert_eq!(marks(ticked(&mut machine, &a, at(1, 9_000), GEMINI_IDLE)), [Some(idle.clone())]);
    assert_eq!(ticked(&mut machine, &a, at(1, 19_000), GEMINI_IDLE), None, "nothing is read while nothing is written");
    // Its input line changes while somebody types.
    assert_eq!(marks(ticked(&mut machine, &a, at(2, 100), GEMINI_IDLE)), []);
    assert_eq!(marks(ticked(&mut machine, &a, at(3, 100), GEMINI_WORKS)), [Some(Mark::Works)]);
    for output in 4..20 {
        let read = ticked(&mut machine, &a, at(output, 100), GEMINI_IDLE).unwrap_or_default();
        assert_eq!(read, Vec::new(), "a screen that changes shows no end of a turn");
    }
    assert_eq!(marks(ticked(&mut machine, &a, at(20, 60_000), GEMINI_WORKS)), [], "quiet, but at work");
    assert_eq!(marks(ticked(&mut machine, &a, at(21, 2_000), GEMINI_IDLE)), [Some(idle)]);
}

#[test]
fn a_dialog_beside_a_spinner_is_seen_within_half_a_minute() {
    let mut machine = Machine::new(10_000);
    let a = Arc::new(Life { agent: true, window: true, ..(*life("a", 1)).clone() });
    running(&mut machine, &a);
    let asks = include_str!("../../tests/data/screens/qwen/permission.txt");
    let at = |output| Sight { output, quiet_ms: 100, ..Sight::default() };
    // Its first minute is over.
    for output in 1..10 {
        ticked(&mut machine, &a, at(output), GEMINI_WORKS);
    }
    let seen: Vec<Effect> =
        (10..13).filter_map(|output| ticked(&mut machine, &a, at(output), asks)).flatten().collect();
    let marks = seen.iter().filter(|effect| matches!(effect, Effect::Mark { mark: Some(Mark::Waits(_)), .. }));
    assert_eq!(marks.count(), 1, "{seen:?}");
}

#[test]
fn the_screen_of_an_agent_that_reports_does_not_say_that_it_is_idle() {
    let mut machine = Machine::new(10_000);
    let a = Arc::new(Life { agent: true, window: true, ..(*life("a", 1)).clone() });
    running(&mut machine, &a);
    let sight = Sight { output: 1, quiet_ms: 9_000, reports: true, ..Sight::default() };
    assert_eq!(ticked(&mut machine, &a, sight, GEMINI_IDLE), Some(Vec::new()));
}
