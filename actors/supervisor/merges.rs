//! Merge queues: starts them, adds items to them and carries out requests about them.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::mpsc::UnboundedSender;

use super::agreed;
use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::openings::{Opened, Started, Why};
use super::state::State;
use crate::merge::{Ask, MergeArguments, MergeError, MergeHandle, MergeReport, Step};
use crate::registry::RegistryHandle;
use crate::worker::WorkerRecord;
use swarm_model::merge::queue::{Addition, Item, ItemId};
use swarm_model::run::Wish;
use swarm_model::{
    Answer, BaseRef, Event as Happening, EventKind, MergeLine, MergeOrder, MergeRequest, Refusal, RefusalKind, RowKey,
    RowWorktree, Target,
};
use swarm_ports::{BoxFuture, Completed, Completion, Kept, Note, Ports, Unfinished, WorktreeError};

/// Maximum duration of a query about the queues, in milliseconds.
const CALL_MS_MAX: u64 = 30_000;

/// Maximum time to look for the worktree of a forgotten worker, or for the rules of a run.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(30);

/// Maximum number of tries to add a worker's finished work to its queue.
const ENTRY_TRIES_MAX: u32 = 6;
/// Pause before the second try. Doubles before each further try.
const ENTRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of branches that are added in one step, so that a long list is answered as it proceeds.
const TOGETHER_MAX: usize = 64;

impl State {
    /// Passes on the queue of this base. Starts it if it is not running.
    pub(super) fn queue(&mut self, target: &Target, reply: RpcReplyPort<Result<MergeHandle, Refusal>>) {
        if let Some(queue) = self.merges.get(target) {
            let _ = reply.send(Ok(queue.clone()));
            return;
        }
        let start = self.start_queue(target);
        self.open(Child::Merge(target.clone()), Why::Asked, start, move |opened| {
            let absent = || Refusal::new(RefusalKind::Internal, "the merge queue did not start");
            let queue = opened.and_then(|started| match started {
                Some(Started::Merge(_, queue)) => Ok(queue),
                _ => Err(absent()),
            });
            let _ = reply.send(queue);
        });
    }

    pub(super) fn start_queue(&self, target: &Target) -> BoxFuture<'static, Opened> {
        let (myself, about, target) = (self.myself.clone(), target.clone(), target.clone());
        let arguments = MergeArguments {
            target: target.clone(),
            landings: Arc::clone(&self.ports.landings),
            clock: Arc::clone(&self.ports.clock),
            places: Arc::new(SupervisorClient(self.myself.clone())),
            tell: Arc::new(move |told| drop(myself.cast(SupervisorMessage::Merge(about.clone(), told)))),
        };
        let parent = self.myself.get_cell();
        Box::pin(async move {
            let started = MergeHandle::start(arguments, parent).await;
            let queue = started.map_err(|error| not_started(error, RefusalKind::Registry))?;
            Ok(Some(Started::Merge(target, queue)))
        })
    }

    /// Returns the queue that contains the item with this key.
    pub(super) fn queue_of(&self, key: &str) -> Option<MergeHandle> {
        self.merges.get(self.queued.get(key)?).cloned()
    }

    pub(super) async fn merge_told(&mut self, target: Target, told: MergeReport) -> Result<(), ActorProcessingErr> {
        let item = match told {
            MergeReport::Busy(live) => return self.feed(Event::Live { child: Child::Merge(target), live }).await,
            MergeReport::Begun(step, items) => {
                items.into_iter().for_each(|item| self.merge_begun(&target, &step, item));
                return Ok(());
            }
            MergeReport::Paused(is_paused) => {
                let base = target.base().to_owned();
                let kind = if is_paused { EventKind::MergePaused { base } } else { EventKind::MergeResumed { base } };
                self.emit_of(None, kind);
                return Ok(());
            }
            MergeReport::Settled(item) => item,
        };
        self.run_settled(&item);
        let (state, files) = (item.state.word().to_owned(), item.state.files().to_vec());
        let commit = item.state.commit().map(str::to_owned);
        let cause = item.state.reason().map(str::to_owned);
        let base = target.base().to_owned();
        self.emit_of(Some(item.name), EventKind::MergeSettled { item: item.id, base, state, commit, cause, files });
        Ok(())
    }

    fn merge_begun(&mut self, target: &Target, step: &Step, item: Item) {
        self.run_merging(step, &item);
        self.emit_of(Some(item.name), step.clone().event(item.id, target.base().to_owned()));
    }

    /// Adds the work of a finished worker to its queue, in a separate task.
    pub(super) fn enqueue(&self, key: String, generation: u64, completion: Completion) {
        let desk = self.desk();
        self.beside(async move {
            let name = completion.name.clone();
            let records = Arc::clone(&desk.ports.records);
            let (noted_in, noted_of) = (Arc::clone(&records), name.clone());
            let note = async move { noted_in.note(&noted_of, generation, Note::WorkQueued).await };
            // The next adoption reports the end again, and the worktree may be in use again by then.
            if item_of(&desk.supervisor, &key).await.is_some() {
                return note.await;
            }
            let broken = tokio::time::timeout(LOOK_MAX, records.broken_turn(&name, generation)).await;
            if let Some(cause) = broken.ok().flatten() {
                return desk.leave_broken(&name, generation, cause).await;
            }
            let seen = Seen::Launch(key.clone());
            let mut pause = ENTRY_PAUSE;
            for attempt in 1..=ENTRY_TRIES_MAX {
                let added = match desk.finished(completion.clone()).await {
                    Ok(completion) => desk.add(key.clone(), completion, &seen, 0, false).await,
                    Err(refusal) => Err(refusal),
                };
                let Err(refusal) = added else { return note.await };
                tracing::warn!(worker = %name, cause = %refusal.cause, "cannot queue finished work");
                if refusal.kind == RefusalKind::Running {
                    // The worktree belongs to a later launch, whose end is reported as well.
                    return;
                }
                if attempt == ENTRY_TRIES_MAX || matches!(refusal.kind, RefusalKind::Invalid | RefusalKind::NotFound) {
                    // After the event, because whoever finds the note looks for its cause there.
                    desk.emit_of(name.clone(), Some(generation), EventKind::MergeRefused { cause: refusal.cause });
                    return desk.ports.records.note(&name, generation, Note::WorkRefused).await;
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        });
    }

    /// Queues the work of a run's worker, in a separate task.
    pub(super) fn land(&self, wish: Wish, reply: RpcReplyPort<Result<(), Refusal>>) {
        let desk = self.desk();
        self.beside(async move {
            let Wish { key, worker, place, base, priority, settings, subject, mends, caller } = wish;
            let wanted = Completion { base, settings, subject, ..Completion::new(worker, caller) };
            let landed = match desk.looked_up(wanted).await {
                Ok((mut completion, seen)) => {
                    completion.worker = completion.worker.or(place.map(|place| (place, None)));
                    desk.add(key, completion, &seen, priority, mends).await.map(drop)
                }
                Err(refusal) => Err(refusal),
            };
            let _ = reply.send(landed);
        });
    }

    /// Carries out a request about merge queues, in a separate task.
    pub(super) fn begin_merge(&self, request: MergeRequest, answers: UnboundedSender<Answer>) {
        let desk = self.desk();
        self.beside(async move {
            desk.carry_out(request, &answers).await;
            let _ = answers.send(Answer::Done);
        });
    }

    /// Runs `work` beside this actor, which has already counted it as a request.
    pub(super) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let myself = self.myself.clone();
        tokio::spawn(async move {
            // A panic ends the request but must not leave it counted.
            let _ = tokio::spawn(work).await;
            let _ = myself.cast(SupervisorMessage::RequestEnded);
        });
    }

    pub(super) fn desk(&self) -> Desk {
        Desk { ports: self.ports.clone(), registry: self.registry.clone(), supervisor: self.myself.clone() }
    }
}

/// Returns the item of completed work.
fn addition(key: &str, name: &str, done: &Completed, priority: i32, mends: bool) -> Addition {
    let Completed { tip, rules, waits, fork, caller, left_out, .. } = done.clone();
    let (name, key) = (name.to_owned(), Some(key.to_owned()));
    Addition { name, tip, priority, key, rules, waits, fork, caller, mends, left_out }
}

/// Returns the item with this key, and its queue.
pub(super) async fn item_of(supervisor: &ActorRef<SupervisorMessage>, key: &str) -> Option<(MergeHandle, Item)> {
    let queue = ractor::call_t!(supervisor, SupervisorMessage::QueueOf, CALL_MS_MAX, key.to_owned()).ok()??;
    let item = queue.item(key).await?;
    Some((queue, item))
}

/// Generation of the worker whose work is to land.
pub(super) enum Seen {
    /// The name is a branch.
    Branch,
    /// The worker is forgotten, and its worktree is still there.
    Kept,
    /// Launch token.
    Launch(String),
    Row(RowKey),
}

impl Seen {
    pub(super) fn is(&self, subject: &WorkerRecord) -> bool {
        match (self, subject) {
            (Self::Branch, _) => true,
            (Self::Launch(token), WorkerRecord::Ours { facts, .. }) => {
                facts.spec.spec().is_some_and(|spec| spec.token == *token)
            }
            (Self::Kept, _) | (Self::Launch(_), WorkerRecord::Foreign { .. } | WorkerRecord::None) => false,
            (Self::Row(key), _) => subject.row().is_some_and(|row| row.key() == *key),
        }
    }
}

/// Refuses an earlier worktree of a worker whose later one is gone: its work may be what somebody has given up.
fn superseded(name: &str, tree: &RowWorktree, base: Option<&BaseRef>) -> Refusal {
    let (path, branch) = (&tree.path, &tree.branch);
    let onto = base.and_then(|base| base.branch.as_ref()).map(|base| format!(" --base {base}"));
    let cause = format!("worker '{name}' not found; {path} is of an earlier worker of that name");
    Refusal::new(RefusalKind::NotFound, cause).remedy(format!(
        "to land what is committed there: swarm merge add refs/heads/{branch}{}",
        onto.unwrap_or_default()
    ))
}

/// What is needed to carry out a request about queues beside the supervisor's actor.
pub(super) struct Desk {
    pub(super) ports: Ports,
    pub(super) registry: RegistryHandle,
    supervisor: ActorRef<SupervisorMessage>,
}

impl Desk {
    async fn carry_out(&self, request: MergeRequest, answers: &UnboundedSender<Answer>) {
        let MergeRequest { caller, order } = request;
        let caller = self.vouched(caller).await;
        let (target, ask, item, done) = match order {
            MergeOrder::Add { names, base, priority, settings, uncommitted, generation } => {
                let wanted = |name: String| {
                    let (base, settings, caller) = (base.clone(), settings.clone(), caller.clone());
                    let takes_all = uncommitted.contains(&name);
                    let unfinished = Some(if takes_all { Unfinished::Everything } else { Unfinished::Committed });
                    Completion { base, settings, attended: true, unfinished, ..Completion::new(name, caller) }
                };
                let wanted = names.into_iter().map(wanted);
                self.add_all(&caller.request, wanted, (priority, generation), answers).await;
                return;
            }
            // Only a person accepts that the base was rewritten.
            MergeOrder::Retry { target, item } if caller.below.is_some() => {
                (target, Ask::Retry { item, caller: None, accepts: false }, Some(item), "queued")
            }
            MergeOrder::Retry { target, item } => {
                let known = self.ports.landings.remember(&target, &caller).await;
                let known =
                    known.inspect_err(|error| tracing::warn!(%error, "cannot store the environment of a retry"));
                (target, Ask::Retry { item, caller: known.ok(), accepts: true }, Some(item), "queued")
            }
            MergeOrder::Drop { target, item } => (target, Ask::Drop(item), Some(item), "dropped"),
            MergeOrder::Pause { target } => (target, Ask::Pause, None, "paused"),
            MergeOrder::Resume { target } if caller.below.is_some() => {
                let refused = agreed::cannot_resume(&target, caller.below.as_ref());
                return drop(answers.send(Answer::Refused(refused)));
            }
            MergeOrder::Resume { target } => (target, Ask::Resume, None, "resumed"),
        };
        let answer = match self.ask(&target, ask).await {
            Ok(_) => {
                let name = self.name_of(&target, item).await;
                Answer::Merge(MergeLine {
                    target,
                    item,
                    name,
                    done: done.to_owned(),
                    reason: None,
                    left_out: Vec::new(),
                })
            }
            Err(refusal) => Answer::Refused(refusal),
        };
        let _ = answers.send(answer);
    }

    /// Adds the work of these names and answers for each, in this order. Consecutive branches are completed together.
    async fn add_all(
        &self,
        request: &str,
        wanted: impl Iterator<Item = Completion>,
        (priority, generation): (i32, Option<u64>),
        answers: &UnboundedSender<Answer>,
    ) {
        let answer = |name: &str, added: Result<MergeLine, Refusal>| {
            let _ = answers.send(added.map_or_else(|refusal| Answer::Refused(refusal.of(name)), Answer::Merge));
        };
        let mut branches = Vec::new();
        for completion in wanted {
            let name = completion.name.clone();
            let key = format!("{request}/{name}");
            let found = match self.found(completion, generation).await {
                Ok((completion, Seen::Branch)) => {
                    branches.push((key, completion));
                    if branches.len() == TOGETHER_MAX {
                        self.add_branches(std::mem::take(&mut branches), priority, &answer).await;
                    }
                    continue;
                }
                found => found,
            };
            self.add_branches(std::mem::take(&mut branches), priority, &answer).await;
            match found {
                Ok((completion, seen)) => answer(&name, self.add(key, completion, &seen, priority, false).await),
                Err(refusal) => answer(&name, Err(refusal)),
            }
        }
        self.add_branches(branches, priority, &answer).await;
    }

    /// Adds branches, each given with the key of its item, in one change of each queue.
    async fn add_branches(
        &self,
        branches: Vec<(String, Completion)>,
        priority: i32,
        answer: &impl Fn(&str, Result<MergeLine, Refusal>),
    ) {
        let (keys, completions): (Vec<String>, Vec<Completion>) = branches.into_iter().unzip();
        let names: Vec<String> = completions.iter().map(|completion| completion.name.clone()).collect();
        let completed = self.ports.landings.complete_all(completions).await;
        let mut work = keys.into_iter().zip(names).zip(completed).peekable();
        while let Some(((key, name), completed)) = work.next() {
            let done = match completed {
                Ok(done) => done,
                Err(refusal) => {
                    answer(&name, Err(refusal));
                    continue;
                }
            };
            let target = done.target.clone();
            let mut together = vec![(key, name, done)];
            while let Some(((key, name), Ok(done))) =
                work.next_if(|(_, next)| next.as_ref().is_ok_and(|done| done.target == target))
            {
                together.push((key, name, done));
            }
            let addition = |(key, name, done): &(String, String, Completed)| addition(key, name, done, priority, false);
            match self.ask(&target, Ask::Add(together.iter().map(addition).collect())).await {
                Ok(ids) => together.into_iter().zip(ids).for_each(|((key, name, done), id)| {
                    let line = self.added(key, &name, done, id, Vec::new());
                    answer(&name, Ok(line));
                }),
                Err(refusal) => together.iter().for_each(|(_, name, _)| answer(name, Err(refusal.clone()))),
            }
        }
    }

    /// Adds the worktree and base of the worker of that name. A name without a row is that of a forgotten worker, if a
    /// person asks for it and its worktree is still there or was restored, or else a branch, which is returned unchanged.
    pub(super) async fn looked_up(&self, mut completion: Completion) -> Result<(Completion, Seen), Refusal> {
        let name = completion.name.as_str();
        let subject = WorkerRecord::read(&self.ports, &self.registry, name).await?;
        let Some(row) = subject.row() else {
            if !completion.attended {
                return Ok((completion, Seen::Branch));
            }
            let looked = self.ports.worktrees.kept(name, &completion.caller);
            let kept = tokio::time::timeout(LOOK_MAX, looked).await.unwrap_or_else(|_| {
                Err(WorktreeError::Tool(format!("the repository did not answer within {} s", LOOK_MAX.as_secs())))
            });
            let kept = kept.map_err(|error| Refusal::new(RefusalKind::Worktree, error.to_string()))?;
            let Some(Kept { tree, base, is_superseded }) = kept else { return Ok((completion, Seen::Branch)) };
            if is_superseded {
                return Err(superseded(name, &tree, base.as_ref()));
            }
            (completion.worker, completion.is_kept, completion.unfinished) = (Some((tree, base)), true, None);
            return Ok((completion, Seen::Kept));
        };
        if !subject.is_at_work() {
            completion.unfinished = None;
        } else if completion.unfinished.is_none() {
            let refusal = Refusal::new(RefusalKind::Running, format!("worker '{name}' is still running"));
            return Err(refusal.remedy(format!("run 'swarm kill {name}', then add it again")));
        }
        let Some(worktree) = &row.worktree else {
            let cause = format!("worker '{name}' has no worktree, so there is nothing to merge");
            return Err(Refusal::new(RefusalKind::Invalid, cause));
        };
        completion.worker = Some((worktree.clone(), row.swarm().and_then(|meta| meta.base.clone())));
        Ok((completion, Seen::Row(row.key())))
    }

    /// Refuses work in a worktree that a later generation of the worker uses, or used after it was looked up. Returns the
    /// processes that nobody could end: they do not hold the work back.
    async fn check_seen(&self, completion: &Completion, seen: &Seen) -> Result<Vec<i32>, Refusal> {
        let Some((worktree, _)) = &completion.worker else { return Ok(Vec::new()) };
        let name = completion.name.as_str();
        let subject = WorkerRecord::read(&self.ports, &self.registry, name).await?;
        let Some(row) = subject.row() else { return Ok(Vec::new()) };
        let uses_it = row.worktree.as_ref().is_some_and(|now| now.path == worktree.path);
        if !uses_it || (seen.is(&subject) && (completion.unfinished.is_some() || !subject.is_at_work())) {
            return Ok(subject.left());
        }
        let cause = format!("worker '{name}' was started again before its work was queued");
        Err(Refusal::new(RefusalKind::Running, cause).remedy(format!("run 'swarm wait {name}', then add it again")))
    }

    /// Completes the work and adds it to its queue. With `mends`, refuses work that its worker can fix.
    async fn add(
        &self,
        key: String,
        mut completion: Completion,
        seen: &Seen,
        priority: i32,
        mends: bool,
    ) -> Result<MergeLine, Refusal> {
        let name = completion.name.clone();
        completion.survivors = self.check_seen(&completion, seen).await?;
        let done = self.ports.landings.complete(completion.clone()).await?;
        // The tip may contain a part of what a later generation is writing.
        self.check_seen(&completion, seen).await?;
        if let Some(why) = done.waits.as_ref().filter(|_| mends && done.is_mendable) {
            return Err(Refusal::new(RefusalKind::Worktree, why.clone()));
        }
        let ids = self.ask(&done.target, Ask::Add(vec![addition(&key, &name, &done, priority, mends)])).await?;
        Ok(self.added(key, &name, done, ids.first().copied().unwrap_or_default(), completion.survivors))
    }

    /// Reports an item that was added.
    fn added(&self, key: String, name: &str, done: Completed, item: ItemId, survivors: Vec<i32>) -> MergeLine {
        let Completed { target, waits, left_out, .. } = done;
        let _ = self.supervisor.cast(SupervisorMessage::Queued(key, target.clone()));
        let base = target.base().to_owned();
        let queued = EventKind::MergeQueued { item, base, left_out: left_out.clone(), survivors };
        self.emit(name.to_owned(), queued);
        let word = if waits.is_some() { "waiting" } else { "queued" };
        let (item, name) = (Some(item), name.to_owned());
        MergeLine { target, item, name, done: word.to_owned(), reason: waits, left_out }
    }

    async fn ask(&self, target: &Target, ask: Ask) -> Result<Vec<ItemId>, Refusal> {
        let about = target.clone();
        let queue = ractor::call_t!(self.supervisor, SupervisorMessage::Queue, CALL_MS_MAX, about);
        let queue = queue.map_err(|_| Refusal::new(RefusalKind::Stopping, "the supervisor is shutting down"))??;
        queue.ask(ask).await.map_err(|error| {
            let kind = match error {
                MergeError::Unknown(_) => RefusalKind::NotFound,
                MergeError::State(..) | MergeError::NoTip(..) => RefusalKind::Invalid,
                MergeError::Journal(_) | MergeError::Unreadable(_) => RefusalKind::Registry,
                MergeError::Closed => RefusalKind::Stopping,
            };
            Refusal { remedy: error.remedy(), ..Refusal::new(kind, error.to_string()) }
        })
    }

    /// Leaves the work of an agent whose last turn ended as `cause` says to a person: it may be incomplete.
    async fn leave_broken(&self, name: &str, generation: u64, cause: String) {
        let records = &self.ports.records;
        // Each later supervisor finds it again.
        if records.is_noted(name, generation, Note::WorkRefused).await {
            return;
        }
        let cause = format!("{cause}; its work may be incomplete");
        self.emit_of(name.to_owned(), Some(generation), EventKind::MergeRefused { cause });
        records.note(name, generation, Note::WorkRefused).await;
    }

    async fn name_of(&self, target: &Target, item: Option<ItemId>) -> String {
        let Some(item) = item else { return String::new() };
        let queue = ractor::call_t!(self.supervisor, SupervisorMessage::Queue, CALL_MS_MAX, target.clone());
        let Ok(Ok(queue)) = queue else { return String::new() };
        let found = queue.look().await.ok().and_then(|view| view.queue.item(item).map(|item| item.name.clone()));
        found.unwrap_or_default()
    }

    fn emit(&self, name: String, kind: EventKind) {
        self.emit_of(name, None, kind);
    }

    fn emit_of(&self, name: String, generation: Option<u64>, kind: EventKind) {
        let at_ms = self.ports.clock.wall_ms();
        self.ports.events.emit(Happening { at_ms, worker: Some(name), generation, request: None, kind });
    }
}
