//! Workers of an adopted loop that another program started. They are followed in their windows like
//! our own, but their exit codes are unknown.

use super::attend::EffectRunner;
use super::machine::Event;
use crate::worker::LOG_LIMIT_BYTES;
use swarm_model::ProcessId;

impl EffectRunner {
    /// Follows one iteration whose worker already runs and has its prompt, to the worker's end.
    pub(super) async fn follow(&self, process: &ProcessId) {
        let (iteration, name) = (self.it.iteration, self.it.name());
        // Watched before output is piped to it, since this creates the log with private
        // permissions.
        self.ports.logs.keep(name, &[format!("{name}.tmux.log")], LOG_LIMIT_BYTES, None);
        if let Err(error) = self.ports.terminals.keep_output(name).await {
            tracing::warn!(worker = name, %error, "cannot capture the output of the window; checking its screen periodically");
        }
        let mut gone = self.ports.processes.gone(process.clone());
        tokio::select! {
            _ = &mut gone => {}
            () = self.look_after(None) => drop(gone.await),
        }
        let done = self.has_said_done().await;
        self.ports.logs.release(name);
        self.tell(Event::Ended { iteration, code: None, asked: false, done });
    }
}
