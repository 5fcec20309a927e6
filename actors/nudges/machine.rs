//! Decisions about all nudges: what to do when, and how to react to what was found. A decision
//! takes effect only once it is saved ([`Event::Saved`]).

use std::collections::BTreeMap;

use super::schedule::{self, Dates, Due};
pub use super::steps::{Denied, Effect, Event, Plan, Seen, Then, Typed};
use swarm_model::nudges::{Now, Nudge, Status};
use swarm_model::{EventKind, NudgeOrder};
use swarm_ports::Alarm;

/// Pause after a nudge could not be saved, in milliseconds.
pub const SAVE_PAUSE_MS: u64 = 5_000;
/// Pause after a worker returned, in milliseconds: its agent starts, or gets its prompt.
pub const RETURN_PAUSE_MS: u64 = 10_000;
/// Minimum time to try to reach a window, in milliseconds.
const REACH_MS_MIN: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Looking,
    Typing,
    /// A beat is due, but its worker has to come back first.
    Away,
}

#[derive(Clone, Debug)]
struct Entry {
    nudge: Nudge,
    phase: Phase,
    /// Number of the present task. Reports with other numbers are ignored.
    turn: u64,
    /// No beat before this time, in milliseconds since boot. Set after a failed save or a return.
    not_before_ms: u64,
    /// The worker came back while its window was being read.
    returned: bool,
    /// Time of the beat before the one that is being typed.
    before_ms: Option<u64>,
}

impl Entry {
    fn new(nudge: Nudge, turn: u64) -> Self {
        Self { nudge, phase: Phase::Waiting, turn, not_before_ms: 0, returned: false, before_ms: None }
    }

    fn come_back(&mut self, now: Now) {
        self.phase = Phase::Waiting;
        self.not_before_ms = self.not_before_ms.max(now.boot_ms.saturating_add(RETURN_PAUSE_MS));
    }
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    entries: BTreeMap<String, Entry>,
    turns: u64,
}

impl Machine {
    /// Reports whether any nudge is active.
    pub fn is_live(&self) -> bool {
        self.entries.values().any(|entry| entry.nudge.status == Status::Active)
    }

    pub fn get(&self, worker: &str) -> Option<&Nudge> {
        self.entries.get(worker).map(|entry| &entry.nudge)
    }

    /// Returns the next time to wake up. Running tasks report by themselves.
    pub fn alarm(&self, now: Now, dates: Dates<'_>) -> Alarm {
        let mut alarm = Alarm::default();
        let rests = |phase| matches!(phase, Phase::Waiting | Phase::Away);
        let active = |entry: &&Entry| entry.nudge.status == Status::Active && rests(entry.phase);
        for entry in self.entries.values().filter(active) {
            let ends = entry.nudge.expires.map(|end| u64::try_from(end.boot_ms).unwrap_or(0));
            alarm.boot_ms = earlier(alarm.boot_ms, ends.map(|at| at.max(entry.not_before_ms)));
            if entry.phase == Phase::Away {
                continue;
            }
            match schedule::next(&entry.nudge, dates) {
                Some(Due::Boot(at)) => {
                    alarm.boot_ms = earlier(alarm.boot_ms, Some(at.max(entry.not_before_ms)));
                }
                Some(Due::Wall(_)) if entry.not_before_ms > now.boot_ms => {
                    alarm.boot_ms = earlier(alarm.boot_ms, Some(entry.not_before_ms));
                }
                Some(Due::Wall(at)) => alarm.wall_ms = earlier(alarm.wall_ms, Some(at)),
                None => {}
            }
        }
        alarm
    }

    pub fn on(&mut self, event: Event, now: Now, dates: Dates<'_>) -> Vec<Effect> {
        match event {
            Event::Found(nudge) => self.found(*nudge, now),
            Event::Woken => self.woken(now, dates),
            Event::Doubted(worker) => {
                let rests = |phase| matches!(phase, Phase::Waiting | Phase::Away);
                let waits = |entry: &&Entry| entry.nudge.status == Status::Active && rests(entry.phase);
                let entry = self.entries.get(&worker).filter(waits);
                entry.map(|entry| check(&entry.nudge, entry.turn)).into_iter().collect()
            }
            Event::Returned(worker) => {
                match self.entries.get_mut(&worker) {
                    Some(entry) if entry.phase == Phase::Away => entry.come_back(now),
                    Some(entry) => entry.returned = entry.phase == Phase::Looking,
                    None => {}
                }
                Vec::new()
            }
            Event::Checked { worker, turn, seen } => self.checked(&worker, turn, seen),
            Event::Seen { worker, turn, disk, seen } => self.seen(&worker, turn, disk, seen, now, dates),
            Event::Typed { worker, turn, typed } => self.typed(&worker, turn, typed),
            Event::Saved { nudge, then } => self.saved(*nudge, then),
            Event::Unsaved { worker } => {
                if let Some(entry) = self.entries.get_mut(&worker) {
                    entry.phase = Phase::Waiting;
                    entry.not_before_ms = now.boot_ms.saturating_add(SAVE_PAUSE_MS);
                }
                Vec::new()
            }
            Event::Removed(worker) => self.forget(&worker),
        }
    }

    /// Adopts the state on disk, which another program may have changed.
    pub fn sync(&mut self, worker: &str, disk: Option<Nudge>) -> Vec<Effect> {
        let Some(disk) = disk else { return self.forget(worker) };
        let turn = self.next_turn();
        let fresh = Entry::new(disk.clone(), turn);
        let entry = self.entries.entry(worker.to_owned()).or_insert(fresh);
        let known = entry.nudge.clone();
        entry.nudge = if disk.whole { disk } else { combined(&known, disk) };
        if entry.nudge.status == known.status || entry.phase == Phase::Waiting {
            return Vec::new();
        }
        entry.phase = Phase::Waiting;
        entry.turn = turn;
        vec![Effect::Abort(worker.to_owned())]
    }

    /// Decides what to do about an order of a person or a script.
    ///
    /// # Errors
    /// Fails if the order does not fit the nudge's state.
    pub fn plan(
        &self,
        worker: &str,
        order: &NudgeOrder,
        request: &str,
        repeated: bool,
        now: Now,
    ) -> Result<Plan, Denied> {
        let known = self.get(worker);
        if repeated && known.is_some_and(|nudge| nudge.request == request) {
            return Ok(Plan::Done);
        }
        let change = |status| match known {
            Some(nudge) => {
                Plan::Save(Box::new(Nudge { status, request: request.to_owned(), whole: true, ..nudge.clone() }))
            }
            None => Plan::Inactive,
        };
        match (order, known.map(|nudge| nudge.status)) {
            (NudgeOrder::Start { force: false, .. }, Some(Status::Active | Status::Paused)) => Err(Denied::Active),
            (NudgeOrder::Start { settings, .. }, _) => Ok(Plan::Save(Box::new(Nudge {
                worker: worker.to_owned(),
                handled: schedule::begin(&settings.every, now),
                every: settings.every.clone(),
                message: settings.message.clone(),
                jitter_ms: settings.jitter_ms,
                status: Status::Active,
                anchor: now.moment(),
                expires: settings.expire_ms.map(|ms| now.after(ms)),
                created_ms: now.wall_ms,
                last_beat_ms: None,
                beats: 0,
                unfinished: false,
                request: request.to_owned(),
                whole: true,
            }))),
            (NudgeOrder::Stop, Some(Status::Active | Status::Paused)) => Ok(change(Status::Stopped)),
            (NudgeOrder::Stop, None | Some(Status::Expired | Status::Stopped)) => Ok(Plan::Inactive),
            (NudgeOrder::Pause | NudgeOrder::Resume, None) => Err(Denied::Unknown),
            (NudgeOrder::Pause, Some(Status::Active)) => Ok(change(Status::Paused)),
            (NudgeOrder::Resume, Some(Status::Paused)) => {
                if known.is_some_and(|nudge| is_over(nudge, now)) {
                    return Err(Denied::Over);
                }
                let Plan::Save(mut nudge) = change(Status::Active) else { return Ok(Plan::Inactive) };
                // Missed beats are dropped: a whole interval passes first, as in the original.
                nudge.anchor = now.moment();
                nudge.handled = schedule::begin(&nudge.every, now);
                Ok(Plan::Save(nudge))
            }
            (NudgeOrder::Pause, Some(status @ (Status::Paused | Status::Expired | Status::Stopped)))
            | (NudgeOrder::Resume, Some(status @ (Status::Active | Status::Expired | Status::Stopped))) => {
                Err(Denied::State(status))
            }
        }
    }

    /// Returns the nudge to save after a person ended the worker, if it must change.
    pub fn killed(&self, worker: &str) -> Option<Box<Nudge>> {
        let nudge = self.get(worker).filter(|nudge| nudge.status.is_open())?;
        Some(Box::new(Nudge { status: Status::Stopped, ..nudge.clone() }))
    }

    fn found(&mut self, mut nudge: Nudge, now: Now) -> Vec<Effect> {
        schedule::settle(&mut nudge, now);
        let (worker, turn) = (nudge.worker.clone(), self.next_turn());
        let is_active = nudge.status == Status::Active;
        self.entries.insert(worker.clone(), Entry::new(nudge.clone(), turn));
        if !is_active {
            return Vec::new();
        }
        // The file must name this process, so that no other program adopts the nudge.
        let check = check(&nudge, turn);
        vec![Effect::Save { nudge: Box::new(nudge), then: Then::Nothing }, check]
    }

    fn woken(&mut self, now: Now, dates: Dates<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (worker, entry) in &mut self.entries {
            let rests = matches!(entry.phase, Phase::Waiting | Phase::Away);
            let waits = rests && entry.not_before_ms <= now.boot_ms;
            if entry.nudge.status != Status::Active || !waits {
                continue;
            }
            if schedule::settle(&mut entry.nudge, now) {
                effects.push(Effect::Save { nudge: Box::new(entry.nudge.clone()), then: Then::Nothing });
            }
            if is_over(&entry.nudge, now) {
                effects.push(expired(&entry.nudge));
            } else if entry.phase == Phase::Away {
                continue;
            } else if let Some(handled) = schedule::due(&entry.nudge, now, dates) {
                self.turns += 1;
                (entry.phase, entry.turn, entry.returned) = (Phase::Looking, self.turns, false);
                let following = schedule::next(&Nudge { handled, ..entry.nudge.clone() }, dates);
                let left_ms = following.map_or(u64::MAX, |due| due.left_ms(now));
                effects.push(Effect::Look {
                    worker: worker.clone(),
                    turn: entry.turn,
                    message: entry.nudge.message.clone(),
                    reach_ms: left_ms.max(REACH_MS_MIN),
                });
            }
        }
        effects
    }

    fn checked(&mut self, worker: &str, turn: u64, seen: Option<Seen>) -> Vec<Effect> {
        let current = |entry: &&mut Entry| entry.turn == turn && entry.nudge.status == Status::Active;
        let Some(entry) = self.entries.get_mut(worker).filter(current) else { return Vec::new() };
        match seen {
            Some(Seen::Gone(cause)) => vec![stopped(&entry.nudge, cause)],
            Some(Seen::Pending) if entry.nudge.unfinished => {
                entry.phase = Phase::Typing;
                vec![Effect::Save { nudge: Box::new(entry.nudge.clone()), then: Then::Finish }]
            }
            Some(Seen::Pending | Seen::Asks(_) | Seen::Free | Seen::Away | Seen::Unreachable(_)) | None => Vec::new(),
        }
    }

    fn seen(
        &mut self,
        worker: &str,
        turn: u64,
        disk: Option<Box<Nudge>>,
        seen: Seen,
        now: Now,
        dates: Dates<'_>,
    ) -> Vec<Effect> {
        if self.entries.get(worker).is_none_or(|entry| entry.turn != turn || entry.phase != Phase::Looking) {
            return Vec::new();
        }
        let mut effects = self.sync(worker, disk.map(|disk| *disk));
        let Some(entry) = self.entries.get_mut(worker) else { return effects };
        entry.phase = Phase::Waiting;
        if entry.nudge.status != Status::Active {
            return effects;
        }
        let nudge = entry.nudge.clone();
        let Some(handled) = schedule::due(&nudge, now, dates) else { return effects };
        effects.push(match seen {
            Seen::Gone(cause) => stopped(&nudge, cause),
            Seen::Free | Seen::Asks(_) | Seen::Pending | Seen::Away | Seen::Unreachable(_) if is_over(&nudge, now) => {
                expired(&nudge)
            }
            Seen::Away => {
                match entry.returned {
                    true => entry.come_back(now),
                    false => entry.phase = Phase::Away,
                }
                return effects;
            }
            // Counted before it is typed: a lost beat is followed by the next one, but a beat that
            // is typed twice cannot be undone.
            Seen::Free => {
                (entry.phase, entry.before_ms) = (Phase::Typing, nudge.last_beat_ms);
                let (beats, last_beat_ms) = (nudge.beats.saturating_add(1), Some(now.wall_ms));
                let nudge = Box::new(Nudge { handled, beats, last_beat_ms, unfinished: true, ..nudge });
                Effect::Save { nudge, then: Then::Type }
            }
            // Only Enter is missing.
            Seen::Pending if nudge.unfinished => {
                entry.phase = Phase::Typing;
                Effect::Save { nudge: Box::new(Nudge { handled, ..nudge }), then: Then::Finish }
            }
            Seen::Pending => Effect::Save { nudge: Box::new(Nudge { handled, ..nudge }), then: Then::Nothing },
            Seen::Asks(cause) | Seen::Unreachable(cause) => {
                Effect::Save { nudge: Box::new(Nudge { handled, ..nudge }), then: Then::Missed(cause) }
            }
        });
        effects
    }

    fn typed(&mut self, worker: &str, turn: u64, typed: Typed) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(worker) else { return Vec::new() };
        if entry.turn != turn || entry.phase != Phase::Typing {
            return Vec::new();
        }
        entry.phase = Phase::Waiting;
        let tell = |kind| vec![Effect::Tell(worker.to_owned(), kind)];
        match typed {
            Typed::Sent => {
                let nudge = Box::new(Nudge { unfinished: false, ..entry.nudge.clone() });
                let mut effects = tell(EventKind::NudgeSent { beat: entry.nudge.beats });
                effects.push(Effect::Save { nudge, then: Then::Nothing });
                effects
            }
            // No beat, so it is not counted.
            Typed::Refused(cause) => {
                let (beats, last_beat_ms) = (entry.nudge.beats.saturating_sub(1), entry.before_ms);
                let nudge = Box::new(Nudge { beats, last_beat_ms, unfinished: false, ..entry.nudge.clone() });
                vec![Effect::Save { nudge, then: Then::Missed(cause) }]
            }
            Typed::Failed(cause) => tell(EventKind::NudgeMissed { cause }),
            Typed::Gone(cause) => vec![stopped(&entry.nudge, cause)],
        }
    }

    fn saved(&mut self, nudge: Nudge, then: Then) -> Vec<Effect> {
        let (worker, turn) = (nudge.worker.clone(), self.next_turn());
        let message = nudge.message.clone();
        let fresh = || Entry::new(nudge.clone(), turn);
        let entry = self.entries.entry(worker.clone()).or_insert_with(fresh);
        entry.nudge = nudge;
        entry.not_before_ms = 0;
        match then {
            Then::Nothing => Vec::new(),
            Then::Type => vec![Effect::Type { worker, turn: entry.turn, message }],
            Then::Finish => vec![Effect::Type { worker, turn: entry.turn, message: String::new() }],
            Then::Missed(cause) => vec![Effect::Tell(worker, EventKind::NudgeMissed { cause })],
            Then::Stopped(cause) => end(entry, turn, EventKind::NudgeStopped { cause }),
            Then::Expired => end(entry, turn, EventKind::NudgeExpired),
            Then::Ordered => {
                (entry.phase, entry.turn) = (Phase::Waiting, turn);
                vec![Effect::Abort(worker)]
            }
        }
    }

    fn forget(&mut self, worker: &str) -> Vec<Effect> {
        match self.entries.remove(worker) {
            Some(_) => vec![Effect::Abort(worker.to_owned())],
            None => Vec::new(),
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn end(entry: &mut Entry, turn: u64, kind: EventKind) -> Vec<Effect> {
    (entry.phase, entry.turn) = (Phase::Waiting, turn);
    let worker = entry.nudge.worker.clone();
    vec![Effect::Abort(worker.clone()), Effect::Tell(worker, kind)]
}

fn check(nudge: &Nudge, turn: u64) -> Effect {
    Effect::Check { worker: nudge.worker.clone(), turn, message: nudge.message.clone() }
}

fn is_over(nudge: &Nudge, now: Now) -> bool {
    nudge.expires.is_some_and(|end| end.boot_ms <= now.boot())
}

fn stopped(nudge: &Nudge, cause: String) -> Effect {
    let nudge = Box::new(Nudge { status: Status::Stopped, ..nudge.clone() });
    Effect::Save { nudge, then: Then::Stopped(cause) }
}

fn expired(nudge: &Nudge) -> Effect {
    let nudge = Box::new(Nudge { status: Status::Expired, ..nudge.clone() });
    Effect::Save { nudge, then: Then::Expired }
}

/// Merges a file that another program wrote with the fields that only our files have.
fn combined(known: &Nudge, disk: Nudge) -> Nudge {
    if known.created_ms != disk.created_ms {
        return disk;
    }
    Nudge {
        every: known.every.clone(),
        jitter_ms: known.jitter_ms,
        anchor: known.anchor,
        expires: known.expires,
        handled: known.handled,
        unfinished: known.unfinished,
        request: known.request.clone(),
        whole: true,
        ..disk
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
