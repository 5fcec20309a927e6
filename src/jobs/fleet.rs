//! Watches all open jobs in one thread, which ends with the last of them. Slurm tells nobody of changes, and neither does a
//! network file system: the directory of mail is listed every few seconds, and Slurm is asked twice a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use swarm_actors::jobs::{ASK_MS, Found, Told, Verdict, Watch};
use swarm_hosts::slurm::jobs::Line;
use swarm_hosts::slurm::single::{Cluster, Sent};
use swarm_model::{Job, Over};
use swarm_store::jobs;
use swarm_sys::clock::{random_token, wall_ms};
use swarm_sys::files::{list_if_present, remove_if_present, rename_if_present};
use swarm_sys::paths::Paths;
use tokio::sync::oneshot;

use super::Key;
use super::seen::{Known, told};

/// Time between two questions, unless the configuration says otherwise.
const ASK: Duration = Duration::from_millis(ASK_MS);
/// Time between two looks for mail.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum time between two questions after failures, each of which doubles it.
const ASK_MAX: Duration = Duration::from_secs(300);
/// Time after which Slurm is asked about a job that is new here, or whose end has a reason that only Slurm knows.
const SOON: Duration = Duration::from_secs(4);

/// Open jobs.
pub struct Fleet {
    paths: Paths,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    watched: BTreeMap<Key, Watched>,
    is_running: bool,
    /// Jobs that a request is ending now.
    stopping: BTreeSet<Key>,
    /// Set to ask Slurm at this time at the latest.
    due: Option<Instant>,
    /// Time between two questions, if it is less than the usual one.
    ask: Option<Duration>,
}

impl Inner {
    fn ask(&self) -> Duration {
        self.ask.unwrap_or(ASK)
    }
}

struct Watched {
    watch: Watch,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Fleet {
    pub fn new(paths: Paths) -> Self {
        Self { paths, inner: Mutex::default(), changed: Condvar::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a job. The receiver gets a value once it is over; an error says nothing.
    pub fn watch(self: &Arc<Self>, key: Key) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let ask = Known::read(&self.paths, &key).ok().flatten().and_then(|known| known.ask());
        let mut inner = self.inner();
        let watched =
            inner.watched.entry(key).or_insert_with(|| Watched { watch: Watch::default(), waiting: Vec::new() });
        watched.waiting.push(sender);
        inner.ask = inner.ask.into_iter().chain(ask).min();
        self.ask_soon(&mut inner);
        if !inner.is_running {
            let fleet = Arc::clone(self);
            let thread = std::thread::Builder::new().name("jobs".to_owned()).spawn(move || fleet.run());
            match thread {
                Ok(_) => inner.is_running = true,
                Err(error) => tracing::error!(%error, "cannot watch jobs"),
            }
        }
        receiver
    }

    /// Reports that a request is ending a job now, or no longer is.
    pub fn set_stopping(&self, key: &Key, is_stopping: bool) {
        let mut inner = self.inner();
        match is_stopping {
            true => drop(inner.stopping.insert(key.clone())),
            false => drop(inner.stopping.remove(key)),
        }
        self.ask_soon(&mut inner);
    }

    fn ask_soon(&self, inner: &mut Inner) {
        let soon = Instant::now() + SOON.min(inner.ask());
        inner.due = Some(inner.due.map_or(soon, |due| due.min(soon)));
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut pause = self.inner().ask();
        loop {
            let mailed = self.take_mail();
            let is_due = self.inner().due.is_none_or(|due| due <= Instant::now());
            if is_due {
                self.inner().due = Some(Instant::now() + jittered(pause));
                let answered = self.look(None);
                pause = if answered { self.inner().ask() } else { (pause * 2).min(ASK_MAX) };
                if !answered {
                    self.inner().due = Some(Instant::now() + jittered(pause));
                }
            } else if !mailed.is_empty() {
                self.look(Some(&mailed));
            }
            let inner = self.inner();
            if inner.watched.is_empty() {
                let mut inner = inner;
                (inner.is_running, inner.due, inner.ask) = (false, None, None);
                return;
            }
            let look = LOOK.min(inner.ask());
            let wait = inner.due.map_or(look, |due| due.saturating_duration_since(Instant::now()).min(look));
            drop(self.changed.wait_timeout(inner, wait.max(Duration::from_millis(100))));
        }
    }

    /// Returns the jobs about which there is mail, and removes it.
    fn take_mail(&self) -> BTreeSet<Key> {
        let listed = list_if_present(&jobs::mail(self.paths.root())).unwrap_or_default();
        let mut mailed = BTreeSet::new();
        for letter in listed {
            if let Some(key) = letter.file_name().to_str().and_then(key_of) {
                mailed.insert(key);
            }
            let _ = remove_if_present(&letter.path());
        }
        mailed
    }

    /// Judges the jobs about which there is mail, or all of them after a question to Slurm. Returns false if Slurm did not
    /// answer.
    fn look(&self, mailed: Option<&BTreeSet<Key>>) -> bool {
        let keys: Vec<Key> = {
            let mut inner = self.inner();
            // Nobody waits for a job whose worker has another generation.
            inner.watched.retain(|_, watched| watched.waiting.iter().any(|waiting| !waiting.is_closed()));
            let is_meant = |key: &&Key| mailed.is_none_or(|mailed| mailed.contains(key));
            inner.watched.keys().filter(is_meant).cloned().collect()
        };
        let known: Vec<(Key, Option<Known>)> = keys
            .into_iter()
            .filter_map(|key| match Known::read(&self.paths, &key) {
                Ok(known) => Some((key, known)),
                Err(error) => {
                    tracing::warn!(worker = key.0, %error, "cannot read the records of a job");
                    None
                }
            })
            .collect();
        let clusters: BTreeSet<&Cluster> =
            known.iter().filter_map(|(_, known)| Some(&known.as_ref()?.cluster)).collect();
        let asked = |cluster: &Cluster| match mailed {
            Some(_) => None,
            None => Some(cluster.ask()),
        };
        let answers: BTreeMap<Cluster, Option<Result<Vec<Line>, String>>> =
            clusters.into_iter().map(|cluster| (cluster.clone(), asked(cluster))).collect();
        let failed = answers.values().flatten().find_map(|answer| answer.as_ref().err());
        if let Some(cause) = failed {
            tracing::warn!(%cause, "Slurm does not answer about jobs; nothing follows from that");
        } else if mailed.is_none()
            && let Err(error) = jobs::note_asked(self.paths.root(), wall_ms())
        {
            tracing::warn!(%error, "cannot note that Slurm has answered");
        }
        let has_answered = failed.is_none();
        for (key, known) in known {
            match known {
                Some(known) => {
                    let answer = answers.get(&known.cluster).and_then(|answer| answer.as_ref()?.as_ref().ok());
                    self.judge(&key, known, answer.map(Vec::as_slice));
                }
                // The worker of the job was cleaned.
                None => self.resolve(&key),
            }
        }
        has_answered
    }

    fn judge(&self, key: &Key, mut known: Known, answer: Option<&[Line]>) {
        if known.job.over.is_some() {
            return self.resolve(key);
        }
        let line = answer.and_then(|answer| known.line(answer));
        if let Some(line) = line
            && let Err(error) = known.note(line)
        {
            tracing::warn!(job = known.job.name, %error, "cannot note what Slurm says about a job");
        }
        let told = answer.map_or(Told::Silent, |_| told(line));
        let found = known.found();
        let verdict = {
            let mut inner = self.inner();
            let Some(watched) = inner.watched.get_mut(key) else { return };
            watched.watch.submissions = known.job.submissions;
            let ask = known.ask().unwrap_or(ASK);
            watched.watch.ask_ms = u64::try_from(ask.as_millis()).unwrap_or(u64::MAX);
            let verdict = watched.watch.judge(told, found, swarm_sys::clock::boot_ms());
            if watched.watch.wants_reason() && verdict == Verdict::Open {
                self.ask_soon(&mut inner);
            }
            verdict
        };
        match verdict {
            Verdict::Open => self.cancel_again(key, &known, told, found),
            Verdict::Submit => submit_again(&mut known),
            Verdict::Recorded => self.resolve(key),
            Verdict::Over(over) => match end(&mut known, found, over) {
                Ok(()) => self.resolve(key),
                Err(error) => tracing::warn!(job = known.job.name, %error, "cannot record the end of a job yet"),
            },
        }
    }

    /// Cancels a job that is to be stopped although no request is ending it now: Slurm did not answer that one.
    fn cancel_again(&self, key: &Key, known: &Known, told: Told, found: Found) {
        let is_stopping = self.inner().stopping.contains(key);
        if found.stopped && !is_stopping && matches!(told, Told::Has(_)) {
            tracing::info!(job = known.job.name, "cancelling a job that is to be stopped");
            if let Err(cause) = known.cluster.cancel(&known.job.name, true) {
                tracing::warn!(job = known.job.name, %cause, "cannot cancel a job yet");
            }
        }
    }

    /// Tells those who wait for a job that a request has ended it.
    pub fn settle(&self, key: &Key) {
        self.resolve(key);
    }

    fn resolve(&self, key: &Key) {
        let watched = self.inner().watched.remove(key);
        for waiting in watched.into_iter().flat_map(|watched| watched.waiting) {
            let _ = waiting.send(());
        }
    }
}

/// Records that a job is over.
pub fn end(known: &mut Known, found: Found, over: Over) -> std::io::Result<()> {
    let failed = || std::fs::read_to_string(known.dir.join(jobs::FAILED)).ok();
    let reason = if found.failed { failed() } else { None };
    known.job = Job { over: Some(over), reason: reason.or_else(|| known.job.reason.clone()), ..known.job.clone() };
    jobs::write(&known.dir, &known.job)
}

/// Submits a job again that was never executed. A claim of its own that nothing came of is put aside first; if the two of them
/// meet all the same, one of them gets the contract.
fn submit_again(known: &mut Known) {
    let aside = known.dir.join(format!("{}.{}", jobs::CLAIM, random_token()));
    if let Err(error) = rename_if_present(&known.dir.join(jobs::CLAIM), &aside) {
        return tracing::warn!(job = known.job.name, %error, "cannot submit a job again");
    }
    tracing::warn!(job = known.job.name, "Slurm does not have a job that was never executed; submitting it again");
    let sent = known.cluster.submit(&known.dir, &known.order, &known.job.name);
    known.job.submissions += 1;
    match sent {
        Sent::Job(number) => known.job.number = Some(number),
        Sent::Refused(cause) | Sent::Unknown(cause) => {
            tracing::warn!(job = known.job.name, %cause, "a submission failed");
            known.job.reason = Some(cause);
        }
    }
    if let Err(error) = jobs::write(&known.dir, &known.job) {
        tracing::warn!(job = known.job.name, %error, "cannot note a submission");
    }
}

/// Returns the job of a letter with this name: `NAME.GENERATION.WHAT`.
fn key_of(letter: &str) -> Option<Key> {
    let (worker, _) = letter.rsplit_once('.')?;
    let (name, generation) = worker.rsplit_once('.')?;
    Some((name.to_owned(), generation.parse().ok()?))
}

/// Returns a time that is up to a tenth longer or shorter, so that many fleets do not ask at once.
fn jittered(time: Duration) -> Duration {
    let digits = random_token();
    let random = u32::from_str_radix(digits.get(..4).unwrap_or_default(), 16).unwrap_or_default() % 201;
    time * (900 + random) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_names_its_job() {
        assert_eq!(key_of("fix.a.12.ended"), Some(("fix.a".to_owned(), 12)));
        for letter in ["fix.ended", "fix.x.ended", "", "12"] {
            assert_eq!(key_of(letter), None, "{letter}");
        }
    }

    #[test]
    fn pauses_differ_by_a_tenth_at_most() {
        let pauses: Vec<Duration> = (0..50).map(|_| jittered(ASK)).collect();
        assert!(pauses.iter().all(|it| (27..=33).contains(&it.as_secs())), "{pauses:?}");
        assert!(pauses.iter().any(|it| *it != pauses[0]), "{pauses:?}");
    }
}
