//! What the rooms above workers and queues ask of them.

use ractor::ActorRef;
use tokio::sync::mpsc;

use super::merges::item_of;
use super::message::{Request, SupervisorMessage};
use crate::run::Fleet;
use crate::worker::Workers;
use swarm_model::merge::queue::Item;
use swarm_model::run::Wish;
use swarm_model::{
    Answer, Caller, CleanRequest, KillRequest, Refusal, RefusalKind, Scope, SpawnRequest, Spawned, WorkerLine,
};
use swarm_ports::BoxFuture;

/// The way of the rooms above to those below, by the supervisor, which has their handles.
pub struct Below(pub ActorRef<SupervisorMessage>);

impl Below {
    async fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        let (answers, mut receiver) = mpsc::unbounded_channel();
        let _ = self.0.cast(SupervisorMessage::Request(request, answers));
        loop {
            match receiver.recv().await {
                Some(Answer::Accepted | Answer::Warning(_)) => {}
                Some(Answer::Refused(refusal)) => return Err(refusal),
                Some(Answer::Done) | None => {
                    return Err(Refusal::new(RefusalKind::Stopping, "the supervisor is ending"));
                }
                Some(answer) => return Ok(answer),
            }
        }
    }
}

impl Below {
    /// Forgets a worker that has ended, and its worktree: what work it holds is saved first.
    pub async fn clean_whatever(&self, name: &str, caller: &Caller) -> Result<WorkerLine, Refusal> {
        let scope = Scope::Names(vec![name.to_owned()]);
        let request = CleanRequest { caller: caller.clone(), scope, rm_worktree: true, force_dirty: true };
        match self.ask(Request::Clean(Box::new(request))).await? {
            Answer::Worker(line) => Ok(line),
            answer => Err(Refusal::new(RefusalKind::Internal, format!("a removal was answered by {answer:?}"))),
        }
    }
}

impl Workers for Below {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Spawned, Refusal>> {
        Box::pin(async move {
            match self.ask(Request::Spawn(Box::new(request))).await? {
                Answer::Spawned(spawned) => Ok(spawned),
                answer => Err(Refusal::new(RefusalKind::Internal, format!("a start was answered by {answer:?}"))),
            }
        })
    }

    fn kill<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let scope = Scope::Names(vec![name.to_owned()]);
            let request = KillRequest { caller: caller.clone(), scope, rm_worktree: false, force_dirty: false };
            self.ask(Request::Kill(Box::new(request))).await.map(drop)
        })
    }

    fn clean<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let scope = Scope::Names(vec![name.to_owned()]);
            let request = CleanRequest { caller: caller.clone(), scope, rm_worktree: true, force_dirty: false };
            self.ask(Request::Clean(Box::new(request))).await.map(drop)
        })
    }
}

impl Fleet for Below {
    fn item<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>> {
        Box::pin(async move { item_of(&self.0, key).await.map(|(_, item)| item) })
    }

    fn retry<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let found = item_of(&self.0, key).await;
            let (queue, item) = found.ok_or_else(|| Refusal::new(RefusalKind::NotFound, "its queue is gone"))?;
            let asked = queue.ask(crate::merge::Ask::Retry(item.id)).await;
            asked.map(drop).map_err(|error| Refusal::new(RefusalKind::Invalid, error.to_string()))
        })
    }

    fn land(&self, wish: Wish) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let asked = ractor::call_t!(self.0, SupervisorMessage::Land, super::LAND_MS_MAX, Box::new(wish));
            asked.unwrap_or_else(|_| Err(Refusal::new(RefusalKind::Stopping, "the supervisor is ending")))
        })
    }
}
