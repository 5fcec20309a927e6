//! Output of a worker: rotation of its logs, and its output limit.

use super::actor::State;
use super::message::WorkerMessage;
use swarm_ports::{OutputLimit, StopOrder};

impl State {
    /// Starts rotating the worker's logs, and counting its output if that is limited.
    pub(super) fn keep_logs(&mut self) {
        let Some(life) = &self.life else { return };
        let limit = life.lease.limits.as_ref().filter(|held| held.output.is_some()).and_then(|held| {
            let (generation, before_bytes) = (life.generation, held.logged_before_bytes);
            held.asked.max_output_bytes.map(|max_bytes| OutputLimit { generation, max_bytes, before_bytes })
        });
        let logs = self.ports().logs.clone();
        logs.keep(self.name(), &life.logs, life.log_limit_bytes, limit);
        let Some(OutputLimit { generation, .. }) = limit else { return };
        let (spent, myself) = (logs.spent(self.name()), self.myself.clone());
        self.task(async move {
            spent.await;
            let _ = myself.cast(WorkerMessage::OutputSpent { generation });
        });
    }

    /// Ends a worker that has exceeded its output limit. The shim ends it and records why; without a
    /// shim, this process ends it.
    pub(super) async fn output_spent(&mut self, generation: u64) {
        let Some(life) = self.life.as_ref().filter(|life| life.generation == generation) else { return };
        if !self.machine.phase().has_process() {
            return;
        }
        let (lease, processes) = (life.lease.clone(), self.ports().processes.clone());
        let ended = match processes.is_alive(&lease.shim) {
            true => processes.stop_by_shim(&lease, StopOrder::Output),
            false => processes.stop_unsupervised(&lease).await,
        };
        if let Err(error) = ended {
            tracing::error!(worker = self.name(), %error, "cannot end a worker that exceeded its output limit");
        }
    }
}
