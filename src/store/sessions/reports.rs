//! Listens to the reports of agents, which their hooks write among the records of their workers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use swarm_ports::BoxFuture;

use super::activity::{ACTIVITY, recorded};
use crate::changes::Watches;

/// Watches for reports. Started when the first agent is listened to.
#[derive(Default)]
pub struct Reports {
    watches: OnceLock<Arc<Watches>>,
}

/// A folder that is watched until this value is dropped.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use swarm_agents::hooks::{Heard, Word};

    use super::*;
    use crate::sessions::note_without_session;

    fn report(dir: &Path, word: Word) {
        let heard = Heard { word: Some(word), ..Heard::default() };
        note_without_session(dir, heard, Duration::from_secs(2)).expect("noted");
    }

    #[tokio::test]
    async fn only_changes_between_work_rest_and_waiting_are_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let reports = Reports::default();
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
