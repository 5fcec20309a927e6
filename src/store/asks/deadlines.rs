//! Times of open requests: what nobody answers in time is denied, and people are reminded of the others.

use std::collections::BTreeMap;
use std::io;

use swarm_model::asks::{Answerer, Ask, AskAnswer, Verdict, Via};
use swarm_model::{Event, EventKind};

use super::{AnswerError, Asks};

/// What an agent is told if nobody answers in time.
const LATE: &str = "nobody answered in time";
/// Pause before the next try to record an answer, in milliseconds.
const AGAIN_MS: u64 = 60_000;

/// Open requests, with the times at which people were reminded of them.
pub(super) struct Deadlines {
    asks: Asks,
    /// Time of the last reminder of a request, or of the one before if this was not there to send it.
    reminded: BTreeMap<u64, u64>,
}

impl Deadlines {
    pub fn new(asks: Asks) -> Self {
        Self { asks, reminded: BTreeMap::new() }
    }

    /// Denies what has expired, and reminds of what is due. Returns the time at which this is to be called again. `every_ms`
    /// is the time between two reminders. A request that cannot be read has no times.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn pass(
        &mut self,
        now_ms: u64,
        every_ms: impl FnOnce() -> Option<u64>,
        emit: &mut impl FnMut(Event),
    ) -> io::Result<Option<u64>> {
        let numbers = self.asks.numbers_without(|part| part != "ask")?;
        self.reminded.retain(|number, _| numbers.contains(number));
        let every_ms = if numbers.is_empty() { None } else { every_ms() };
        let mut next = None;
        for number in numbers {
            let Ok(Some(ask)) = self.asks.read::<Ask>(number, "ask") else { continue };
            let at_ms = match ask.expires_at_ms {
                Some(at_ms) if at_ms <= now_ms => self.deny(&ask, now_ms),
                expires_ms => [expires_ms, every_ms.map(|every_ms| self.remind(&ask, now_ms, every_ms, emit))]
                    .into_iter()
                    .flatten()
                    .min(),
            };
            next = [next, at_ms].into_iter().flatten().min();
        }
        Ok(next)
    }

    /// Denies a request. Returns the time of the next try, if there has to be one.
    fn deny(&self, ask: &Ask, now_ms: u64) -> Option<u64> {
        let by = Answerer {
            uid: nix::unistd::getuid().as_raw(),
            user: None,
            pid: nix::unistd::getpid().as_raw(),
            tty: None,
            from: None,
            via: Via::Timeout,
        };
        let verdict = Verdict::Deny { reason: LATE.to_owned() };
        let answer = AskAnswer { verdict, digest: ask.digest.clone(), by, at_ms: now_ms };
        match self.asks.answer(ask.number, &answer) {
            Ok(()) | Err(AnswerError::Answered { .. } | AnswerError::Over { .. } | AnswerError::NotFound(_)) => None,
            Err(error @ (AnswerError::Changed(_) | AnswerError::Io { .. })) => {
                tracing::warn!(number = ask.number, %error, "cannot deny a request that nobody answered in time");
                Some(now_ms + AGAIN_MS)
            }
        }
    }

    /// Reminds of a request if that is due. Returns the time of the next reminder.
    fn remind(&mut self, ask: &Ask, now_ms: u64, every_ms: u64, emit: &mut impl FnMut(Event)) -> u64 {
        let since = |from_ms: u64| now_ms.saturating_sub(from_ms) / every_ms * every_ms;
        let last = self.reminded.entry(ask.number).or_insert_with(|| ask.asked_at_ms + since(ask.asked_at_ms));
        let passed_ms = since(*last);
        if passed_ms > 0 {
            *last += passed_ms;
            let kind = EventKind::ApprovalReminded { ask: ask.number, kind: ask.kind(), tool: ask.tool.clone() };
            let (worker, generation) = (Some(ask.who.worker.clone()), ask.who.generation);
            emit(Event { at_ms: now_ms, worker, generation, request: None, kind });
        }
        *last + every_ms
    }
}

#[cfg(test)]
mod tests {
    use swarm_model::asks::AskState;
    use swarm_sys::paths::Paths;

    use super::super::tests::{answer, draft};
    use super::*;

    /// Asks something at this time, which expires at that one.
    fn ask(asks: &Asks, key: &str, asked_at_ms: u64, expires_at_ms: Option<u64>) -> Ask {
        let asked = asks.ask(&draft(key, "make")).expect("asked");
        let ask = Ask { asked_at_ms, expires_at_ms, ..asked };
        std::fs::write(asks.path(ask.number, "ask"), serde_json::to_vec(&ask).expect("JSON")).expect("written");
        ask
    }

    #[test]
    fn what_nobody_answers_in_time_is_denied_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let mut deadlines = Deadlines::new(asks.clone());
        let mut pass = |now_ms| deadlines.pass(now_ms, || None, &mut |_| panic!("nobody is reminded")).expect("read");
        assert_eq!(pass(0), None, "nothing was asked");
        ask(&asks, "first", 1_000, Some(5_000));
        ask(&asks, "later", 1_000, Some(9_000));
        ask(&asks, "never", 1_000, None);
        let answered = ask(&asks, "answered", 1_000, Some(2_000));
        asks.answer(answered.number, &answer(&answered, 1)).expect("answered");
        std::fs::write(asks.path(7, "ask"), "{").expect("damaged");
        assert_eq!(pass(4_999), Some(5_000));
        assert_eq!(asks.find(1).expect("read").expect("there").state(), AskState::Open);
        assert_eq!(pass(5_000), Some(9_000));
        let record = asks.find(1).expect("read").expect("there").answer.expect("answered");
        assert_eq!(record.verdict, Verdict::Deny { reason: LATE.to_owned() });
        assert_eq!(record.by.via, Via::Timeout);
        let first = asks.find(answered.number).expect("read").expect("there").answer.expect("answered");
        assert_eq!(first.by.via, Via::Person, "a person was first");
        assert_eq!(pass(20_000), None);
        assert_eq!(asks.find(3).expect("read").expect("there").state(), AskState::Open);
    }

    #[test]
    fn people_are_reminded_at_intervals_and_after_a_restart_of_what_comes_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let first = ask(&asks, "first", 1_000, Some(10_500));
        ask(&asks, "second", 2_500, None);
        let mut told = Vec::new();
        let mut pass = |deadlines: &mut Deadlines, now_ms, every_ms| {
            told.clear();
            let mut tell = |event: Event| match event.kind {
                EventKind::ApprovalReminded { ask, .. } => told.push(ask),
                kind => panic!("{kind:?}"),
            };
            let next = deadlines.pass(now_ms, || every_ms, &mut tell).expect("read");
            (told.clone(), next)
        };
        let mut deadlines = Deadlines::new(asks.clone());
        assert_eq!(pass(&mut deadlines, 3_000, Some(4_000)), (vec![], Some(5_000)));
        assert_eq!(pass(&mut deadlines, 5_000, Some(4_000)), (vec![1], Some(6_500)));
        assert_eq!(pass(&mut deadlines, 5_000, Some(4_000)), (vec![], Some(6_500)), "each reminder once");
        // The machine slept.
        assert_eq!(pass(&mut deadlines, 9_500, Some(4_000)), (vec![1, 2], Some(10_500)));
        let mut restarted = Deadlines::new(asks.clone());
        assert_eq!(pass(&mut restarted, 10_000, Some(4_000)), (vec![], Some(10_500)));
        assert_eq!(pass(&mut restarted, 10_400, None), (vec![], Some(10_500)), "no longer wanted");
        asks.answer(1, &answer(&first, 1)).expect("answered");
        assert_eq!(pass(&mut restarted, 15_000, Some(4_000)), (vec![2], Some(18_500)));
    }
}
