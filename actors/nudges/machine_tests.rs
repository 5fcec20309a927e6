use super::*;
use proptest::prelude::*;
use swarm_model::nudges::Moment;
use swarm_model::{Every, NudgeSettings};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const WALL: u64 = 1_700_000_000_000;
const BOOT: u64 = 5 * HOUR;

/// The time this many milliseconds after the start.
fn at(ms: u64) -> Now {
    Now { boot_ms: BOOT + ms, wall_ms: WALL + ms }
}

/// Dates of `*/N`, in minutes.
fn dates(expression: &str, after: u64) -> Option<u64> {
    let every: u64 = expression.strip_prefix("*/")?.parse::<u64>().ok()? * MINUTE;
    Some((after / every + 1) * every)
}

fn settings(every: Every) -> NudgeSettings {
    NudgeSettings { every, message: "continue".to_owned(), expire_ms: None, jitter_ms: 0 }
}

fn hourly() -> NudgeSettings {
    settings(Every::Interval { ms: HOUR })
}

fn start(machine: &mut Machine, worker: &str, settings: NudgeSettings, now: Now) {
    let order = NudgeOrder::Start { settings, force: false };
    let Ok(Plan::Save(nudge)) = machine.plan(worker, &order, "r", false, now) else { panic!("not started") };
    machine.on(Event::Saved { nudge, then: Then::Ordered }, now, &dates);
}

fn order(machine: &mut Machine, order: &NudgeOrder, now: Now) -> Result<Plan, Denied> {
    let plan = machine.plan("w", order, "r2", false, now)?;
    if let Plan::Save(nudge) = plan.clone() {
        machine.on(Event::Saved { nudge, then: Then::Ordered }, now, &dates);
    }
    Ok(plan)
}

/// Wakes the machine: each read of a window finds `seen`, and everything is saved and typed.
/// Returns the emitted events and the number of typed messages.
fn wake(machine: &mut Machine, now: Now, seen: &Seen) -> (Vec<EventKind>, usize) {
    let (mut told, mut typed) = (Vec::new(), 0);
    let mut effects: std::collections::VecDeque<_> = machine.on(Event::Woken, now, &dates).into();
    while let Some(effect) = effects.pop_front() {
        let event = match effect {
            Effect::Look { worker, turn, .. } => {
                let disk = machine.get(&worker).cloned().map(Box::new);
                Event::Seen { worker, turn, disk, seen: seen.clone() }
            }
            Effect::Save { nudge, then } => Event::Saved { nudge, then },
            Effect::Type { worker, turn, .. } => {
                typed += 1;
                Event::Typed { worker, turn, typed: Typed::Sent }
            }
            Effect::Tell(_, kind) => {
                told.push(kind);
                continue;
            }
            Effect::Check { .. } | Effect::Abort(_) => continue,
        };
        effects.extend(machine.on(event, now, &dates));
    }
    (told, typed)
}

fn alarm(machine: &Machine, now: Now) -> Alarm {
    machine.alarm(now, &dates)
}

#[test]
fn beats_come_at_multiples_of_the_interval_after_the_start() {
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(7));
    for beat in 1..=3 {
        let due = beat * HOUR + 7;
        assert_eq!(alarm(&machine, at(due - HOUR)), Alarm { boot_ms: Some(BOOT + due), wall_ms: None });
        assert_eq!(wake(&mut machine, at(due - 1), &Seen::Free), (Vec::new(), 0), "never early");
        // Slightly late, which does not delay the next one.
        assert_eq!(wake(&mut machine, at(due + 40), &Seen::Free), (vec![EventKind::NudgeSent { beat }], 1));
        assert_eq!(wake(&mut machine, at(due + 41), &Seen::Free).1, 0, "once");
    }
    let nudge = machine.get("w").expect("known");
    assert_eq!((nudge.beats, nudge.last_beat_ms), (3, Some(WALL + 3 * HOUR + 47)));
}

#[test]
fn beats_that_were_missed_come_as_one() {
    for every in [Every::Interval { ms: HOUR }, Every::Cron { expression: "*/60".to_owned() }] {
        let mut machine = Machine::default();
        start(&mut machine, "w", settings(every), at(0));
        let late = at(9 * HOUR + 30 * MINUTE);
        assert_eq!(wake(&mut machine, late, &Seen::Free).1, 1);
        assert_eq!(wake(&mut machine, late, &Seen::Free).1, 0);
        let next = alarm(&machine, late);
        let due = next.boot_ms.map(|at| at - BOOT).or(next.wall_ms.map(|at| at - WALL)).expect("it goes on");
        assert!(due > 9 * HOUR + 30 * MINUTE && due <= 10 * HOUR + 30 * MINUTE, "{due}");
    }
}

#[test]
fn the_content_of_the_window_decides_about_the_beat() {
    let gone = Seen::Gone("it is gone".to_owned());
    let unreachable = Seen::Unreachable("hangs".to_owned());
    for (seen, told, beats, status) in [
        (Seen::Free, vec![EventKind::NudgeSent { beat: 1 }], 1, Status::Active),
        (Seen::Pending, vec![], 0, Status::Active),
        (gone, vec![EventKind::NudgeStopped { cause: "it is gone".to_owned() }], 0, Status::Stopped),
        (unreachable, vec![EventKind::NudgeMissed { cause: "hangs".to_owned() }], 0, Status::Active),
    ] {
        let mut machine = Machine::default();
        start(&mut machine, "w", hourly(), at(0));
        assert_eq!(wake(&mut machine, at(HOUR), &seen).0, told);
        let nudge = machine.get("w").expect("known");
        assert_eq!((nudge.beats, nudge.status), (beats, status), "{seen:?}");
        let next = (status == Status::Active).then_some(BOOT + 2 * HOUR);
        assert_eq!(alarm(&machine, at(HOUR)).boot_ms, next, "{seen:?}");
    }
}

#[test]
fn expiry_precedes_a_beat_that_is_due_at_the_same_time() {
    let mut machine = Machine::default();
    start(&mut machine, "w", NudgeSettings { expire_ms: Some(2 * HOUR), ..hourly() }, at(0));
    assert_eq!(wake(&mut machine, at(HOUR), &Seen::Free).1, 1);
    assert_eq!(alarm(&machine, at(HOUR)).boot_ms, Some(BOOT + 2 * HOUR));
    assert_eq!(wake(&mut machine, at(2 * HOUR), &Seen::Free), (vec![EventKind::NudgeExpired], 0));
    assert!(!machine.is_live());
    assert_eq!(alarm(&machine, at(2 * HOUR)), Alarm::default());
}

#[test]
fn orders_depend_on_the_status() {
    let mut machine = Machine::default();
    for none in [NudgeOrder::Pause, NudgeOrder::Resume] {
        assert_eq!(order(&mut machine, &none, at(0)), Err(Denied::Unknown));
    }
    assert_eq!(order(&mut machine, &NudgeOrder::Stop, at(0)), Ok(Plan::Inactive));
    start(&mut machine, "w", hourly(), at(0));
    let again = |force| NudgeOrder::Start { settings: hourly(), force };
    assert_eq!(order(&mut machine, &again(false), at(1)), Err(Denied::Active));
    assert!(matches!(order(&mut machine, &again(true), at(1)), Ok(Plan::Save(_))));
    assert_eq!(order(&mut machine, &NudgeOrder::Resume, at(2)), Err(Denied::State(Status::Active)));
    assert!(matches!(order(&mut machine, &NudgeOrder::Pause, at(2)), Ok(Plan::Save(_))));
    assert_eq!(order(&mut machine, &NudgeOrder::Pause, at(3)), Err(Denied::State(Status::Paused)));
    assert_eq!((machine.is_live(), alarm(&machine, at(3))), (false, Alarm::default()));
    assert_eq!(wake(&mut machine, at(9 * HOUR), &Seen::Free).1, 0);
    assert!(matches!(order(&mut machine, &NudgeOrder::Resume, at(9 * HOUR + 5)), Ok(Plan::Save(_))));
    assert_eq!(alarm(&machine, at(9 * HOUR + 5)).boot_ms, Some(BOOT + 10 * HOUR + 5), "a whole interval first");
    assert!(matches!(order(&mut machine, &NudgeOrder::Stop, at(10 * HOUR)), Ok(Plan::Save(_))));
    assert_eq!(order(&mut machine, &NudgeOrder::Stop, at(10 * HOUR)), Ok(Plan::Inactive));
    assert!(matches!(order(&mut machine, &again(false), at(11 * HOUR)), Ok(Plan::Save(_))), "it may start again");
}

#[test]
fn a_repeated_request_is_executed_once() {
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(0));
    let order = NudgeOrder::Start { settings: hourly(), force: false };
    assert_eq!(machine.plan("w", &order, "r", true, at(5)), Ok(Plan::Done));
    assert_eq!(machine.plan("w", &order, "other", true, at(5)), Err(Denied::Active));
}

#[test]
fn an_expired_nudge_does_not_resume() {
    let mut machine = Machine::default();
    start(&mut machine, "w", NudgeSettings { expire_ms: Some(HOUR), ..hourly() }, at(0));
    assert!(order(&mut machine, &NudgeOrder::Pause, at(1)).is_ok());
    assert_eq!(order(&mut machine, &NudgeOrder::Resume, at(2 * HOUR)), Err(Denied::Over));
}

#[test]
fn late_reports_change_nothing() {
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(0));
    let effects = machine.on(Event::Woken, at(HOUR), &dates);
    let [Effect::Look { turn, .. }] = effects[..] else { panic!("{effects:?}") };
    assert!(order(&mut machine, &NudgeOrder::Pause, at(HOUR)).is_ok());
    let disk = machine.get("w").cloned().map(Box::new);
    let seen = Event::Seen { worker: "w".to_owned(), turn, disk, seen: Seen::Free };
    assert_eq!(machine.on(seen, at(HOUR + 1), &dates), Vec::new());
    let typed = Event::Typed { worker: "w".to_owned(), turn, typed: Typed::Sent };
    assert_eq!(machine.on(typed, at(HOUR + 1), &dates), Vec::new());
}

#[test]
fn a_beat_that_cannot_be_saved_is_not_typed() {
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(0));
    let effects = machine.on(Event::Woken, at(HOUR), &dates);
    let [Effect::Look { turn, .. }] = effects[..] else { panic!("{effects:?}") };
    let disk = machine.get("w").cloned().map(Box::new);
    let seen = Event::Seen { worker: "w".to_owned(), turn, disk, seen: Seen::Free };
    let effects = machine.on(seen, at(HOUR), &dates);
    assert!(matches!(&effects[..], [Effect::Save { then: Then::Type, .. }]), "{effects:?}");
    assert_eq!(machine.on(Event::Unsaved { worker: "w".to_owned() }, at(HOUR), &dates), Vec::new());
    assert_eq!(alarm(&machine, at(HOUR)).boot_ms, Some(BOOT + HOUR + SAVE_PAUSE_MS), "retried");
    assert_eq!(wake(&mut machine, at(HOUR + 1), &Seen::Free).1, 0);
    assert_eq!(wake(&mut machine, at(HOUR + SAVE_PAUSE_MS), &Seen::Free), (vec![EventKind::NudgeSent { beat: 1 }], 1));
}

#[test]
fn an_unfinished_text_gets_only_its_enter() {
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(0));
    assert_eq!(wake(&mut machine, at(HOUR), &Seen::Free).1, 1);
    let sent = machine.get("w").cloned().expect("known");
    assert!(!sent.unfinished);
    // The process was killed between the text and its Enter.
    for (unfinished, enters) in [(true, 1), (false, 0)] {
        let mut machine = Machine::default();
        let found = Event::Found(Box::new(Nudge { unfinished, ..sent.clone() }));
        let effects = machine.on(found, at(HOUR + 9), &dates);
        let Some(Effect::Check { turn, .. }) = effects.last().cloned() else { panic!("{effects:?}") };
        let checked = Event::Checked { worker: "w".to_owned(), turn, seen: Some(Seen::Pending) };
        let mut effects = machine.on(checked, at(HOUR + 10), &dates);
        let mut typed = Vec::new();
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Save { nudge, then } => {
                    effects.extend(machine.on(Event::Saved { nudge, then }, at(HOUR + 11), &dates));
                }
                Effect::Type { worker, turn, message } => {
                    typed.push(message);
                    let typed = Event::Typed { worker, turn, typed: Typed::Sent };
                    effects.extend(machine.on(typed, at(HOUR + 12), &dates));
                }
                Effect::Tell(..) | Effect::Abort(_) | Effect::Check { .. } | Effect::Look { .. } => {}
            }
        }
        assert_eq!((typed, machine.get("w").map(|nudge| nudge.beats)), (vec![String::new(); enters], Some(1)));
        assert_eq!(alarm(&machine, at(HOUR + 13)).boot_ms, Some(BOOT + 2 * HOUR));
    }
}

#[test]
fn changes_by_another_program_apply_and_keep_our_fields() {
    let mut machine = Machine::default();
    start(&mut machine, "w", settings(Every::Cron { expression: "*/60".to_owned() }), at(0));
    let ours = machine.get("w").cloned().expect("known");
    let theirs = Nudge {
        every: Every::Interval { ms: HOUR },
        status: Status::Paused,
        message: "go on".to_owned(),
        handled: 0,
        request: String::new(),
        whole: false,
        ..ours.clone()
    };
    machine.sync("w", Some(theirs));
    let both = machine.get("w").expect("known");
    assert_eq!((both.status, both.message.as_str(), &both.every), (Status::Paused, "go on", &ours.every));
    assert_eq!(machine.sync("w", None), vec![Effect::Abort("w".to_owned())], "its file is gone");
    assert_eq!(machine.get("w"), None);
}

#[test]
fn setting_the_wall_clock_is_harmless() {
    // Intervals do not depend on the wall clock.
    let mut machine = Machine::default();
    start(&mut machine, "w", hourly(), at(0));
    for jump in [-(26 * 3_600_000_i64), 26 * 3_600_000] {
        let now = Now { wall_ms: at(HOUR).wall_ms.saturating_add_signed(jump), ..at(HOUR - 1) };
        assert_eq!(wake(&mut machine, now, &Seen::Free).1, 0);
        assert_eq!(alarm(&machine, now).boot_ms, Some(BOOT + HOUR));
    }
    // Dates occur once if it is set back a little, and again if it was wrong before.
    for (back, beats) in [(HOUR, 0), (24 * HOUR, 1)] {
        let mut machine = Machine::default();
        start(&mut machine, "w", settings(Every::Cron { expression: "*/60".to_owned() }), at(0));
        let first = alarm(&machine, at(0)).wall_ms.expect("a date") - WALL;
        assert_eq!(wake(&mut machine, at(first), &Seen::Free).1, 1);
        let set_back = Now { wall_ms: at(first).wall_ms - back + 10 * MINUTE, ..at(first) };
        assert_eq!(wake(&mut machine, set_back, &Seen::Free).1, 0);
        let date = Now { wall_ms: set_back.wall_ms - 10 * MINUTE + HOUR, ..set_back };
        assert_eq!(wake(&mut machine, date, &Seen::Free).1, beats, "{back}");
    }
}

#[test]
fn after_a_reboot_the_next_beat_is_at_most_an_interval_away() {
    let nudge = |boot_ms| {
        let mut machine = Machine::default();
        start(&mut machine, "w", hourly(), at(0));
        let nudge = machine.get("w").cloned().expect("known");
        Nudge { anchor: Moment { boot_ms, wall_ms: WALL }, handled: 2, ..nudge }
    };
    let booted = Now { boot_ms: MINUTE, wall_ms: WALL };
    let minutes = |count: u64| i64::try_from(count * MINUTE).expect("small");
    for (anchor, due) in [
        // Two intervals and fifty minutes ago: ten minutes are left.
        (-minutes(169), 11 * MINUTE),
        // Long ago: missed, and due at once.
        (-minutes(900), 0),
        // The clock was set back in between.
        (minutes(900), MINUTE + HOUR),
    ] {
        let mut machine = Machine::default();
        machine.on(Event::Found(Box::new(nudge(anchor))), booted, &dates);
        assert_eq!(alarm(&machine, booted).boot_ms, Some(due), "{anchor}");
    }
}

proptest! {
    /// Invariants under any delays of alarms and jumps of the wall clock: never early, never two
    /// beats for one due time, and jitter within its bounds.
    #[test]
    fn no_beat_is_early_or_doubled(
        is_cron in any::<bool>(),
        minutes in 1_u64..90,
        jitter in 0_u64..50_000,
        steps in proptest::collection::vec((0_u64..4 * HOUR, -HOUR.cast_signed()..HOUR.cast_signed()), 1..60),
    ) {
        let every = match is_cron {
            true => Every::Cron { expression: format!("*/{minutes}") },
            false => Every::Interval { ms: minutes * MINUTE },
        };
        let mut machine = Machine::default();
        start(&mut machine, "w", NudgeSettings { jitter_ms: jitter, ..settings(every) }, at(0));
        let (mut now, mut last_slot, mut furthest) = (at(0), 0, WALL);
        for (passed, jump) in steps {
            now = Now { boot_ms: now.boot_ms + passed, wall_ms: now.wall_ms + passed };
            // Not further back than the tolerated distance.
            now.wall_ms = now.wall_ms.saturating_add_signed(jump).max(furthest.saturating_sub(2 * HOUR));
            furthest = furthest.max(now.wall_ms);
            let before = machine.get("w").expect("known").handled;
            let (_, typed) = wake(&mut machine, now, &Seen::Free);
            prop_assert!(typed <= 1);
            let handled = machine.get("w").expect("known").handled;
            prop_assert!(handled >= before);
            let passed = if is_cron { now.wall_ms } else { now.boot_ms - BOOT };
            let slot = if is_cron { handled / (minutes * MINUTE) } else { handled };
            if typed == 1 {
                prop_assert!(slot > last_slot, "the same due time twice");
                prop_assert!(slot * minutes * MINUTE <= passed, "early");
                last_slot = slot;
            }
            // Nothing stays due for longer than the jitter.
            let due = passed.saturating_sub(jitter.min(minutes * MINUTE - 1)) / (minutes * MINUTE);
            prop_assert!(is_cron || handled >= due, "{handled} {due}");
            prop_assert_eq!(wake(&mut machine, now, &Seen::Free).1, 0);
        }
    }

    #[test]
    fn a_beat_is_late_by_its_jitter_at_most(jitter in 0_u64..HOUR, beat in 1_u64..200) {
        let mut machine = Machine::default();
        start(&mut machine, "w", NudgeSettings { jitter_ms: jitter, ..hourly() }, at(0));
        let nudge = Nudge { handled: beat - 1, ..machine.get("w").cloned().expect("known") };
        let Some(Due::Boot(due)) = schedule::next(&nudge, &dates) else { panic!("no next beat") };
        let late = due - BOOT - beat * HOUR;
        prop_assert!(late <= jitter);
        prop_assert_eq!(schedule::next(&nudge, &dates), Some(Due::Boot(due)), "deterministic");
    }
}
