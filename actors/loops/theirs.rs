//! The worker of another program, with which a loop was taken over: it is followed in its
//! window like one of ours. Its exit code is nobody's to know.

use super::attend::Attendant;
use super::machine::Event;
use crate::worker::LOG_LIMIT_BYTES;
use swarm_model::ProcessId;

impl Attendant {
    /// One iteration whose worker is there and has its prompt, to its end.
    pub(super) async fn follow(&self, process: &ProcessId) {
        let (iteration, name) = (self.it.iteration, self.it.name());
        // Watched first: it is made private there.
        self.ports.logs.keep(name, &[format!("{name}.tmux.log")], LOG_LIMIT_BYTES, None);
        if let Err(error) = self.ports.terminals.keep_output(name).await {
            tracing::warn!(worker = name, %error, "what its window writes is not told, it is looked at now and then");
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
