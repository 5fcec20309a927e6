//! Interface of runs, loops and flows to the workers and merge queues.

use ractor::ActorRef;
use tokio::sync::mpsc;

use super::merges::item_of;
use super::message::{Request, SupervisorMessage};
use crate::merge::{Ask, Asked, Change, Place, Places};
use crate::run::Fleet;
use crate::worker::Workers;
use swarm_model::merge::queue::{Item, State};
use swarm_model::run::Wish;
use swarm_model::{
    Caller, CleanRequest, KillRequest, Refusal, RefusalKind, Reply, Route, Scope, SpawnRequest, Spawned, Target,
    WorkerLine,
};
use swarm_ports::BoxFuture;

/// Maximum time until a run is known, which may be starting, in milliseconds.
const OPEN_MS_MAX: u64 = 30_000;

/// Access to workers and merge queues through the supervisor, which has their handles.
pub struct SupervisorClient(pub ActorRef<SupervisorMessage>);

impl SupervisorClient {
    async fn ask<R: Route>(&self, request: Request) -> Result<R::Answer, Refusal> {
        let (answers, mut receiver) = mpsc::unbounded_channel();
        let _ = self.0.cast(SupervisorMessage::Request(request, answers));
        while let Some(line) = receiver.recv().await {
            match Reply::of::<R>(line) {
                Some(Reply::Answer(answer)) => return Ok(answer),
                Some(Reply::Refused(refusal)) => return Err(refusal),
                Some(Reply::Warning(_)) | None => {}
            }
        }
        Err(Refusal::new(RefusalKind::Stopping, "the supervisor is shutting down"))
    }

    async fn remove(&self, name: &str, caller: &Caller, force_dirty: bool) -> Result<WorkerLine, Refusal> {
        let scope = Scope::Names(vec![name.to_owned()]);
        let request = CleanRequest {
            caller: caller.clone(),
            scope,
            rm_worktree: true,
            force_dirty,
            drop_branch: false,
            started_by: None,
        };
        self.ask::<CleanRequest>(Request::Clean(Box::new(request))).await
    }

    /// Cleans a worker that has ended, and its worktree. Uncommitted work is saved first.
    pub async fn clean_whatever(&self, name: &str, caller: &Caller) -> Result<WorkerLine, Refusal> {
        self.remove(name, caller, true).await
    }
}

impl Workers for SupervisorClient {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Spawned, Refusal>> {
        Box::pin(async move { self.ask::<SpawnRequest>(Request::Spawn(Box::new(request))).await })
    }

    fn kill<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let scope = Scope::Names(vec![name.to_owned()]);
            let request = KillRequest {
                caller: caller.clone(),
                scope,
                rm_worktree: false,
                force_dirty: false,
                started_by: None,
                generation: None,
            };
            self.ask::<KillRequest>(Request::Kill(Box::new(request))).await.map(drop)
        })
    }

    fn clean<'a>(&'a self, name: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { self.remove(name, caller, false).await.map(drop) })
    }
}

impl Fleet for SupervisorClient {
    fn item<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<(Target, Item)>> {
        Box::pin(async move { item_of(&self.0, key).await.map(|(queue, item)| (queue.target().clone(), item)) })
    }

    fn later<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>> {
        Box::pin(async move {
            let (queue, item) = item_of(&self.0, key).await?;
            let view = queue.look().await.ok()?;
            let is_later = |other: &&Item| other.name == item.name && other.id > item.id;
            view.queue.items.iter().filter(is_later).max_by_key(|other| other.id).cloned()
        })
    }

    fn lander<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Option<Item>> {
        Box::pin(async move {
            let (queue, item) = item_of(&self.0, key).await?;
            let view = queue.look().await.ok()?;
            let has_landed = |other: &&Item| {
                let is_same = other.work() == item.work() && !item.tip.is_empty();
                other.id != item.id && is_same && matches!(other.state, State::Landed { .. })
            };
            view.queue.items.iter().find(has_landed).cloned()
        })
    }

    fn retry<'a>(&'a self, key: &'a str, change: Change) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let found = item_of(&self.0, key).await;
            let (queue, item) =
                found.ok_or_else(|| Refusal::new(RefusalKind::NotFound, format!("merge item '{key}' not found")))?;
            let asked = queue.ask(Ask::Again(item.id, change)).await;
            asked.map(drop).map_err(|error| Refusal::new(RefusalKind::Invalid, error.to_string()))
        })
    }

    fn land(&self, wish: Wish) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let asked = ractor::call_t!(self.0, SupervisorMessage::Land, super::LAND_MS_MAX, Box::new(wish));
            asked.unwrap_or_else(|_| Err(Refusal::new(RefusalKind::Stopping, "the supervisor is shutting down")))
        })
    }
}

/// A run that is over, or that nobody can find, has no limit that would hold.
impl Places for SupervisorClient {
    fn ask<'a>(&'a self, item: &'a Item) -> BoxFuture<'a, Option<Asked>> {
        Box::pin(async move {
            let key = item.key.clone().filter(|key| key.starts_with("run/"))?;
            let run = ractor::call_t!(self.0, SupervisorMessage::RunOf, OPEN_MS_MAX, key).ok()??;
            let (place, turn) = run.place().await;
            Some(Asked { place: Box::new(place) as Place, turn })
        })
    }
}
