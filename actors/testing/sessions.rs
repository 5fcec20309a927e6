//! In-memory sessions, by directory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::clock::FakeClock;
use super::kernel::Kernel;
use super::script::Script;
use crate::sessions::recovery::{self, Facts, Known};
use swarm_model::Recovery;
use swarm_model::{Fence, Resume, Session, SessionPlan, SessionStatus, Spec};
use swarm_ports::{Beaten, BoxFuture, Clock as _, Life, LifeEnd, News, Opening, SessionError, Sessions, Sight};

pub struct FakeSessions {
    clock: Arc<FakeClock>,
    kernel: Arc<Kernel>,
    script: Arc<Script>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    states: BTreeMap<String, Session>,
    beats: BTreeMap<String, u64>,
    preserved: Vec<String>,
    sights: BTreeMap<String, Sight>,
    reports: BTreeMap<String, Arc<Notify>>,
    answered: Vec<String>,
}

impl FakeSessions {
    pub fn new(clock: Arc<FakeClock>, kernel: Arc<Kernel>, script: Arc<Script>) -> Self {
        Self { clock, kernel, script, inner: Arc::default() }
    }

    /// Returns the session in this directory.
    pub fn state(&self, dir: &str) -> Option<Session> {
        self.with(|inner| inner.states.get(dir).cloned())
    }

    /// Returns the number of heartbeats for this worker.
    pub fn beats(&self, worker: &str) -> u64 {
        self.with(|inner| inner.beats.get(worker).copied().unwrap_or(0))
    }

    /// Writes the session of this directory as another program would.
    pub fn put(&self, dir: &str, session: Session) {
        self.with(|inner| inner.states.insert(dir.to_owned(), session));
    }

    /// Sets what heartbeats observe of this worker.
    pub fn show(&self, worker: &str, sight: Sight) {
        self.with(|inner| inner.sights.insert(worker.to_owned(), sight));
    }

    /// Sets what is observed of this worker, as a report of its agent, which is heard at once.
    pub fn report(&self, worker: &str, sight: Sight) {
        self.show(worker, sight);
        self.with(|inner| inner.reports.entry(worker.to_owned()).or_default().notify_one());
    }

    /// Returns the workers whose requests were ended because their dialogs were answered.
    pub fn answered(&self) -> Vec<String> {
        self.with(|inner| inner.answered.clone())
    }

    /// Returns the directories that were kept because of their content.
    pub fn preserved(&self) -> Vec<String> {
        self.with(|inner| inner.preserved.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn finish(&self, dir: &str, session_id: &str, status: SessionStatus) {
        self.with(|inner| {
            let ours = |session: &&mut Session| {
                session.session_id().as_deref() == Some(session_id)
                    && !session.status().is_some_and(SessionStatus::is_over)
            };
            if let Some(session) = inner.states.get_mut(dir).filter(ours) {
                session.set_status(status);
            }
        });
    }
}

fn dir_of(life: &Life) -> &str {
    life.plan.as_ref().map_or("", |plan| plan.dir.as_str())
}

impl Sessions for FakeSessions {
    fn interval_ms(&self) -> u64 {
        10_000
    }

    fn attempts_max(&self) -> i64 {
        3
    }

    fn answered<'a>(&'a self, life: &'a Life) -> BoxFuture<'a, ()> {
        self.with(|inner| inner.answered.push(life.worker.clone()));
        Box::pin(std::future::ready(()))
    }

    fn check<'a>(&'a self, plan: &'a SessionPlan) -> BoxFuture<'a, Recovery> {
        let state = self.state(&plan.dir);
        let facts = Facts {
            state: state.as_ref(),
            expected: Some(&plan.identifier),
            beat_ms: None,
            process: Known::Gone,
            attempts_max: 3,
            now_ms: 0,
            stale_ms: 30_000,
        };
        Box::pin(std::future::ready(recovery::decide(&facts)))
    }

    fn resume<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Resume> {
        let argv = [spec.contract.argv.clone(), vec!["again".to_owned()]].concat();
        Box::pin(std::future::ready(Resume { argv: Some(argv), ..Resume::default() }))
    }

    fn hooked<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Option<Vec<String>>> {
        let argv = spec.unhooked();
        let is_hooked = argv.first().is_some_and(|program| program == "claude");
        Box::pin(std::future::ready(is_hooked.then(|| [argv, &["--hooked".to_owned()]].concat())))
    }

    fn open<'a>(&'a self, opening: &'a Opening) -> BoxFuture<'a, Result<Option<String>, SessionError>> {
        Box::pin(async move {
            self.script.before("open_session", &opening.worker).await.map_err(SessionError::System)?;
            let (dir, wanted) = (opening.plan.dir.clone(), opening.plan.identifier.clone());
            let mut session = self.state(&dir).unwrap_or_default();
            if let Some(found) = session.identifier().filter(|found| *found != wanted) {
                return Err(SessionError::mismatch(&opening.plan, found));
            }
            session.set("issueId", &"u");
            session.set("issueIdentifier", &wanted);
            session.set("startedAt", &self.clock.wall_ms());
            session.set_session_id(&opening.session_id);
            session.set_status(SessionStatus::Initializing);
            let before = if opening.again { session.recoveries() } else { 0 };
            session.set_recoveries(before + i64::from(opening.counts));
            self.put(&dir, session);
            self.script.after("open_session").await.map_err(SessionError::System)?;
            Ok(None)
        })
    }

    fn abandon<'a>(&'a self, opening: &'a Opening, _: &'a str) -> BoxFuture<'a, ()> {
        self.finish(&opening.plan.dir, &opening.session_id, SessionStatus::Failed);
        Box::pin(std::future::ready(()))
    }

    fn run<'a>(&'a self, life: &'a Life, _: Option<Fence>) -> BoxFuture<'a, Result<Fence, SessionError>> {
        Box::pin(async move {
            self.script.before("run_session", &life.worker).await.map_err(SessionError::System)?;
            let mut session = self.state(dir_of(life)).unwrap_or_default();
            if session.session_id().as_ref() != Some(&life.session_id) {
                return Err(SessionError::Taken { path: dir_of(life).to_owned(), found: session.fence() });
            }
            if !session.status().is_some_and(SessionStatus::is_over) {
                session.set_status(SessionStatus::Running);
                self.put(dir_of(life), session.clone());
            }
            Ok(session.fence())
        })
    }

    fn end<'a>(&'a self, life: &'a Life, end: LifeEnd) -> BoxFuture<'a, Result<(), SessionError>> {
        let status = match end {
            Some((ended, swarm_model::Reason::Exited)) if ended.is_success() => SessionStatus::Completed,
            Some((_, swarm_model::Reason::Stopped)) => SessionStatus::Stopped,
            _ => SessionStatus::Failed,
        };
        Box::pin(async move {
            self.script.before("end_session", &life.worker).await.map_err(SessionError::System)?;
            self.finish(dir_of(life), &life.session_id, status);
            Ok(())
        })
    }

    fn news(&self, life: &Life) -> BoxFuture<'static, News> {
        let report = self.with(|inner| Arc::clone(inner.reports.entry(life.worker.clone()).or_default()));
        Box::pin(async move {
            report.notified().await;
            News::Reported
        })
    }

    fn beat(&self, life: Arc<Life>, fence: Option<Fence>) -> BoxFuture<'static, (Beaten, Option<Sight>)> {
        let sight = self.with(|inner| Some(inner.sights.get(&life.worker).cloned().unwrap_or_default()));
        let found = self.state(dir_of(&life)).map(|session| session.fence());
        Box::pin(std::future::ready(match (found, fence) {
            (Some(found), Some(fence)) if found != fence => (Beaten::Lost { found }, sight),
            (_, fence) => {
                if fence.is_some() && self.kernel.is_alive(&life.process) {
                    self.with(|inner| *inner.beats.entry(life.worker.clone()).or_default() += 1);
                }
                (Beaten::Done, sight)
            }
        }))
    }

    fn preserve<'a>(&'a self, dir: &'a str, _: &'a str, _: &'a str) -> BoxFuture<'a, ()> {
        self.with(|inner| inner.preserved.push(dir.to_owned()));
        Box::pin(std::future::ready(()))
    }
}
