//! Tells of new requests and answers as events, denies what nobody answers in time, reminds of what is open, and removes old
//! requests. Any process may write them; inotify reports their files, and one timer waits for the next deadline, so that
//! nothing polls.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::inotify::{AddWatchFlags, Inotify};
use swarm_model::asks::{Ask, AskAnswer, Via};
use swarm_model::{Event, EventKind};
use swarm_ports::Alarm;
use swarm_sys::alarm::ring;
use swarm_sys::clock::wall_ms;
use swarm_sys::files::list_if_present;
use swarm_sys::readable::Readable;
use swarm_sys::watching::LOOK_PAUSE;

use super::Asks;
use super::deadlines::Deadlines;

/// Time by which the stamps of files may be behind the clock, in milliseconds.
const COARSE_MS: u64 = 1_000;

/// Minimum time between two removals of old requests, in milliseconds.
const TIDY_PAUSE_MS: u64 = 24 * 60 * 60 * 1000;

/// Tells of every request and answer that is recorded from now on, and of those recorded after `since_ms`, in Unix
/// milliseconds. Without `since_ms`, tells of all. Must be called within a runtime.
pub async fn tell(asks: Asks, since_ms: Option<u64>, mut emit: impl FnMut(Event)) {
    if let Err(error) = Watch::start(asks, since_ms).run(&mut emit).await {
        tracing::warn!(%error, "the requests of agents are no longer watched");
    }
}

/// Returns the time between two reminders in milliseconds, as the user has set it now.
fn remind_ms() -> Option<u64> {
    let times = swarm_config::approval_times();
    let times = times.inspect_err(|cause| tracing::warn!(cause, "cannot read [approvals]: nobody is reminded"));
    u64::try_from(times.unwrap_or_default().remind?.as_millis()).ok()
}

struct Watch {
    asks: Asks,
    /// `None` if the kernel refuses to watch: the requests are looked at every few seconds.
    inotify: Option<Inotify>,
    since_ms: u64,
    deadlines: Deadlines,
    /// Files that were reported already.
    told: BTreeSet<(u64, Part)>,
    /// Time at which old requests were removed last. `None` if they were not yet.
    tidied_ms: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Ask,
    Answer,
}

impl Watch {
    fn start(asks: Asks, since_ms: Option<u64>) -> Self {
        let warn = |error| {
            tracing::warn!(%error, "cannot watch the requests of agents, and looks at them every few seconds instead");
        };
        let (inotify, deadlines) = (asks.watch().map_err(warn).ok(), Deadlines::new(asks.clone()));
        Self {
            asks,
            deadlines,
            inotify,
            since_ms: since_ms.map_or(0, |since| since + 1),
            told: BTreeSet::new(),
            tidied_ms: None,
        }
    }

    async fn run(mut self, emit: &mut impl FnMut(Event)) -> io::Result<()> {
        let fd = self.inotify.as_ref().map(|inotify| inotify.as_fd().try_clone_to_owned()).transpose()?;
        let readable = fd.map(Readable::new).transpose()?;
        let heard = async || match &readable {
            Some(readable) => readable.wait().await,
            None => {
                tokio::time::sleep(LOOK_PAUSE).await;
                Ok(())
            }
        };
        self.scan(emit)?;
        loop {
            self.tidy();
            let due_ms = self.deadlines.pass(wall_ms(), remind_ms, emit)?;
            tokio::select! {
                heard = heard() => heard?,
                () = ring(Alarm { wall_ms: due_ms, boot_ms: None }) => continue,
            }
            if self.inotify.is_none() {
                self.scan(emit)?;
            }
            while let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) {
                if events.is_empty() {
                    break;
                }
                if events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)) {
                    self.scan(emit)?;
                }
                let names = events.iter().filter_map(|event| event.name.as_ref()?.to_str());
                let mut found: Vec<(u64, Part)> = names.filter_map(part_of).collect();
                found.sort_unstable();
                found.into_iter().for_each(|(number, part)| self.tell(number, part, emit));
            }
        }
    }

    /// Removes old requests, in a thread of its own, unless that was done a short time ago.
    fn tidy(&mut self) {
        let now_ms = wall_ms();
        if self.tidied_ms.is_some_and(|last| now_ms.saturating_sub(last) < TIDY_PAUSE_MS) {
            return;
        }
        self.tidied_ms = Some(now_ms);
        let asks = self.asks.clone();
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = asks.remove_past(now_ms) {
                tracing::warn!(%error, "cannot remove old requests");
            }
        }));
    }

    /// Tells of the files that were written since then.
    fn scan(&mut self, emit: &mut impl FnMut(Event)) -> io::Result<()> {
        let since = UNIX_EPOCH + Duration::from_millis(self.since_ms.saturating_sub(COARSE_MS));
        let mut found = Vec::new();
        for entry in list_if_present(self.asks.dir())? {
            let is_new = entry.metadata().and_then(|meta| meta.modified()).is_ok_and(|at| at >= since);
            found.extend(entry.file_name().to_str().and_then(part_of).filter(|_| is_new));
        }
        found.sort_unstable();
        found.into_iter().for_each(|(number, part)| self.tell(number, part, emit));
        Ok(())
    }

    fn tell(&mut self, number: u64, part: Part, emit: &mut impl FnMut(Event)) {
        if self.told.contains(&(number, part)) {
            return;
        }
        match self.event(number, part) {
            Ok(event) => {
                self.told.insert((number, part));
                event.into_iter().for_each(emit);
            }
            Err(error) => tracing::warn!(number, %error, "cannot read a request of an agent"),
        }
    }

    /// Returns the event. `None` if it is of an earlier time.
    fn event(&self, number: u64, part: Part) -> io::Result<Option<Event>> {
        let Some(ask) = self.asks.read::<Ask>(number, "ask")? else { return Ok(None) };
        let (at_ms, kind) = match part {
            Part::Ask => {
                let (kind, tool) = (ask.kind(), ask.tool);
                (ask.asked_at_ms, EventKind::ApprovalRequested { ask: number, kind, tool })
            }
            Part::Answer => {
                let Some(answer) = self.asks.read::<AskAnswer>(number, "answer")? else { return Ok(None) };
                let verdict = answer.verdict.word().to_owned();
                let is_person = matches!(answer.by.via, Via::Person | Via::Terminal);
                let by = answer.by.user.filter(|_| is_person);
                (answer.at_ms, EventKind::ApprovalAnswered { ask: number, verdict, by })
            }
        };
        let (worker, generation) = (Some(ask.who.worker), ask.who.generation);
        Ok((at_ms >= self.since_ms).then_some(Event { at_ms, worker, generation, request: None, kind }))
    }
}

/// Returns the number and the part that a file is about. `None` for other files.
fn part_of(name: &str) -> Option<(u64, Part)> {
    let (number, part) = super::named(name)?;
    match part.as_str() {
        "ask" => Some((number, Part::Ask)),
        "answer" => Some((number, Part::Answer)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::asks::{Answerer, AskWish, Asker, Draft, Verdict, Waits};
    use swarm_sys::paths::Paths;
    use tokio::sync::mpsc;

    fn draft(key: &str) -> Draft {
        Draft {
            key: key.to_owned(),
            who: Asker { worker: "fix".to_owned(), ..Asker::default() },
            tool: "Bash".to_owned(),
            wish: AskWish::Command { command: "secret".to_owned() },
            cwd: "/".to_owned(),
            waits: Waits::Held,
        }
    }

    fn answer(ask: &Ask, at_ms: u64) -> AskAnswer {
        let by = Answerer { uid: 1, user: Some("me".to_owned()), pid: 1, tty: None, from: None, via: Via::Person };
        AskAnswer { verdict: Verdict::Allow { input: None }, digest: ask.digest.clone(), by, at_ms }
    }

    #[tokio::test]
    async fn each_request_and_answer_is_told_once_without_its_command() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        let old = asks.ask(&draft("old")).expect("asked");
        // What was asked before the last event of the log was told by another supervisor.
        let since = old.asked_at_ms;
        asks.answer(old.number, &answer(&old, since + 1)).expect("answered");
        let (sender, mut told) = mpsc::unbounded_channel();
        let task = tokio::spawn(tell(asks.clone(), Some(since), move |event| sender.send(event).expect("heard")));
        let mut next = async || {
            let event = tokio::time::timeout(Duration::from_secs(20), told.recv()).await;
            let event = event.expect("in time").expect("an event");
            let text = serde_json::to_string(&event).expect("JSON");
            assert!(!text.contains("secret"), "{text}");
            assert_eq!(event.worker.as_deref(), Some("fix"));
            match event.kind {
                EventKind::ApprovalRequested { ask, tool, .. } => format!("{ask} asks {tool}"),
                EventKind::ApprovalAnswered { ask, verdict, by } => format!("{ask} {verdict} {by:?}"),
                _ => panic!("{text}"),
            }
        };
        assert_eq!(next().await, "1 allow Some(\"me\")");
        let new = asks.ask(&draft("new")).expect("asked");
        assert_eq!(next().await, "2 asks Bash");
        asks.answer(new.number, &answer(&new, new.asked_at_ms)).expect("answered");
        assert_eq!(next().await, "2 allow Some(\"me\")");
        let third = asks.ask(&draft("third")).expect("asked");
        assert_eq!((next().await, third.number), ("3 asks Bash".to_owned(), 3), "nothing was told twice");
        task.abort();
    }
}
