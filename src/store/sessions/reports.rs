//! Listens to the reports of agents, which their hooks write among the records of their workers, and to the windows of
//! those that wait: no agent reports that somebody has answered it in its window.

use std::convert::Infallible;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use swarm_model::Doing;
use swarm_ports::{BoxFuture, Life, News};
use swarm_sys::paths::Paths;

use super::activity::{ACTIVITY, recorded};
use super::ends::Turns;
use crate::changes::Watches;
use swarm_sys::pool::Pool;

/// Minimum time between two looks at the window of an agent that waits. What it draws within this time is one change.
const DRAWN_PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks for the file of a conversation that the agent has named and not yet created.
const CREATED_PAUSE: Duration = Duration::from_secs(2);
/// Number of these looks.
const CREATED_TRIES: u32 = 30;

/// Watches for reports, and for output in windows and conversations. Each is started when it is needed first.
pub struct Reports {
    watches: OnceLock<Arc<Watches>>,
    written: OnceLock<Arc<Watches>>,
    /// Threads that read conversations, which are on the disks of their agents.
    disks: Arc<Pool>,
}

/// A folder or file that is watched until this value is dropped.
struct Watched {
    watches: Arc<Watches>,
    dir: PathBuf,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watches.forget(&self.dir);
    }
}

impl Reports {
    pub fn new(disks: Arc<Pool>) -> Self {
        Self { watches: OnceLock::new(), written: OnceLock::new(), disks }
    }

    /// Resolves at the next news of an agent. While it works or waits, also records the end of a turn that it does not
    /// report itself. Must be called within a runtime.
    pub fn news(&self, paths: &Paths, life: &Life) -> BoxFuture<'static, News> {
        let dir = paths.worker(&life.worker, life.generation);
        let reports = self.changed(dir.clone());
        let doing = recorded(&dir).map(|tool| tool.doing()).filter(|doing| *doing != Doing::Idle);
        let Some(doing) = doing.filter(|_| life.window) else {
            return Box::pin(async move {
                reports.await;
                News::Reported
            });
        };
        let watches = Arc::clone(self.written.get_or_init(Watches::start_on_writes));
        let log = life.logs.first().filter(|_| doing == Doing::Waiting).map(|log| paths.logs().join(log));
        // Watched from now on, so that no output is missed.
        let drawn = log.map(|log| drawn(Arc::clone(&watches), log));
        let ends = ends(watches, Arc::clone(&self.disks), Turns::new(dir, life));
        Box::pin(async move {
            let drawn = async {
                match drawn {
                    Some(drawn) => drawn.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = reports => News::Reported,
                () = drawn => News::Drawn,
                never = ends => match never {},
            }
        })
    }

    /// Resolves when the agent of the worker whose records are in `dir` is idle, waits, or works again. Must be called
    /// within a runtime.
    pub fn changed(&self, dir: PathBuf) -> BoxFuture<'static, ()> {
        let watches = Arc::clone(self.watches.get_or_init(|| Watches::start(ACTIVITY)));
        let doing = |dir: &Path| recorded(dir).map(|tool| tool.doing());
        // The first watch begins before the file is read, so that no change is missed.
        let first = watches.changed(&dir);
        let before = doing(&dir);
        Box::pin(async move {
            let watched = Watched { watches, dir };
            first.await;
            while doing(&watched.dir) == before {
                watched.watches.changed(&watched.dir).await;
            }
        })
    }
}

/// Resolves when something is written to the log of a window, but not before [`DRAWN_PAUSE`] is over.
fn drawn(watches: Arc<Watches>, log: PathBuf) -> impl Future<Output = ()> {
    let stamp = |log: &Path| log.metadata().ok().map(|meta: Metadata| (meta.ino(), meta.len(), meta.mtime_nsec()));
    let before = stamp(&log);
    async move {
        tokio::time::sleep(DRAWN_PAUSE).await;
        // Watched before it is looked at, so that no change is missed.
        let next = watches.changed(&log);
        let watched = Watched { watches, dir: log };
        if stamp(&watched.dir) == before {
            next.await;
        }
    }
}

/// Looks for the end of a turn whenever something is written to the file of the conversation, at most once in
/// [`DRAWN_PAUSE`].
async fn ends(watches: Arc<Watches>, disks: Arc<Pool>, turns: Turns) -> Infallible {
    let (mut looked, mut tries) = (None, 0);
    if !turns.is_known() {
        // A hook names the file before it reports anything else.
        std::future::pending::<()>().await;
    }
    loop {
        let (about, known) = (turns.clone(), Arc::clone(&watches));
        // Watched before it is looked at, so that no change is missed.
        let found = disks.run(move || {
            let (file, _) = about.file()?;
            let change = known.changed(&file);
            about.file().filter(|(now, _)| *now == file).map(|(_, stamp)| (file, stamp, change))
        });
        let Some((file, stamp, change)) = found.await.flatten() else {
            tries += 1;
            match tries {
                CREATED_TRIES.. => std::future::pending().await,
                _ => tokio::time::sleep(CREATED_PAUSE).await,
            }
            continue;
        };
        let watched = Watched { watches: Arc::clone(&watches), dir: file };
        if looked.replace(stamp) != Some(stamp) {
            let (about, file) = (turns.clone(), watched.dir.clone());
            let _ = disks.run(move || about.look(&file)).await;
        }
        tokio::time::sleep(DRAWN_PAUSE).await;
        change.await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use swarm_agents::hooks::{Heard, Word};
    use swarm_model::{NeedKind, TurnEnd};

    use super::*;
    use crate::sessions::note_without_session;

    fn life() -> Life {
        Life {
            worker: "a".to_owned(),
            generation: 1,
            session_id: "a-1".to_owned(),
            process: swarm_model::ProcessId { pid: 1, start_ticks: 1, boot: "b".to_owned() },
            plan: None,
            logs: vec!["a.log".to_owned()],
            watch: None,
            window: true,
            agent: true,
            rungs: swarm_model::Rungs::default(),
        }
    }

    fn reports() -> Reports {
        Reports::new(Pool::new(2))
    }

    fn report(dir: &Path, word: Word) {
        let heard = Heard { word: Some(word), ..Heard::default() };
        note_without_session(dir, heard, Duration::from_secs(2)).expect("noted");
    }

    #[tokio::test(start_paused = true)]
    async fn the_window_of_an_agent_that_waits_is_news_when_it_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let life = life();
        let records = paths.worker(&life.worker, life.generation);
        fs::create_dir_all(&records).expect("made");
        fs::create_dir_all(paths.logs()).expect("made");
        let log = paths.logs().join("a.log");
        fs::write(&log, "dialog").expect("written");
        let reports = reports();
        report(&records, Word::Waits(NeedKind::Permission, "may it push?".to_owned()));
        for text in ["drawn at once", "drawn again"] {
            let news = reports.news(&paths, &life);
            fs::write(&log, text).expect("written");
            assert_eq!(news.await, News::Drawn);
        }
        let news = reports.news(&paths, &life);
        report(&records, Word::Working);
        assert_eq!(news.await, News::Reported);
        let mut works = reports.news(&paths, &life);
        fs::write(&log, "drawn while it works").expect("written");
        assert!(tokio::time::timeout(DRAWN_PAUSE * 9, &mut works).await.is_err(), "that is no news");
        report(&records, Word::Idle("its turn is over".to_owned()));
        assert_eq!(works.await, News::Reported);
    }

    #[tokio::test]
    async fn the_end_of_a_turn_that_no_hook_reports_is_read_from_the_conversation() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let life = life();
        let records = paths.worker(&life.worker, life.generation);
        fs::create_dir_all(&records).expect("made");
        let file = dir.path().join("rollout.jsonl");
        let aborted = |at: &str| {
            format!(
                "{{\"timestamp\":\"{at}\",\"type\":\"event_msg\",\"payload\":{{\"type\":\"turn_aborted\",\"reason\":\"interrupted\"}}}}\n"
            )
        };
        fs::write(&file, aborted("2020-01-01T00:00:00Z")).expect("written");
        crate::sessions::note_conversation(&records, &file).expect("noted");
        report(&records, Word::Tool("Bash: make".to_owned()));
        let reports = reports();
        let mut news = reports.news(&paths, &life);
        let early = tokio::time::timeout(DRAWN_PAUSE / 2, &mut news).await;
        assert!(early.is_err(), "that turn is over for long");
        fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| io::Write::write_all(&mut file, aborted("2100-01-01T00:00:00Z").as_bytes()))
            .expect("written");
        assert_eq!(news.await, News::Reported);
        let now = recorded(&records).expect("there");
        assert_eq!((now.doing(), now.turn), (Doing::Idle, Some(TurnEnd::Interrupted)));
        report(&records, Word::Idle("Claude is waiting for your input".to_owned()));
        assert_eq!(recorded(&records).expect("there").turn, Some(TurnEnd::Interrupted), "it only reminds of it");
        report(&records, Word::Working);
        assert_eq!(recorded(&records).expect("there").turn, None);
    }

    #[tokio::test]
    async fn only_changes_between_work_rest_and_waiting_are_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let reports = reports();
        let heard = tokio::spawn(reports.changed(dir.path().to_owned()));
        report(dir.path(), Word::Working);
        heard.await.expect("the first report is heard");
        let heard = tokio::spawn(reports.changed(dir.path().to_owned()));
        report(dir.path(), Word::Tool("make".to_owned()));
        report(dir.path(), Word::Done("make".to_owned()));
        report(dir.path(), Word::Idle("its turn is over".to_owned()));
        heard.await.expect("the end of the turn is heard");
        let mut same = Box::pin(reports.changed(dir.path().to_owned()));
        report(dir.path(), Word::Idle("its turn is over".to_owned()));
        let pending = tokio::time::timeout(Duration::from_millis(50), &mut same).await;
        assert!(pending.is_err(), "it was idle before");
        report(dir.path(), Word::Working);
        same.await;
    }
}
