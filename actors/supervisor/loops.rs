//! Loops: starts, adopts and resumes them, and carries out requests about them.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};
use tokio::sync::mpsc::UnboundedSender;

use super::children::not_started;
use super::client::SupervisorClient;
use super::machine::{Child, Event};
use super::message::SupervisorMessage;
use super::openings::{Opened, Started, Why};
use super::state::State;
use crate::loops::machine::Event as Happening;
use crate::loops::{Begin, LoopArguments, LoopError, LoopHandle, LoopReport, is_own_request};
use crate::registry::RegistryHandle;
use crate::worker::{WorkerRecord, Workers as _, of_store, of_worktree};
use swarm_model::loops::progress::{Loop, Plan, Status};
use swarm_model::{
    Answer, Caller, LoopLine, LoopOrder, LoopRequest, Refusal, RefusalKind, RespawnRequest, Row, Spawned,
    WorktreeRequest,
};
use swarm_ports::{BoxFuture, Ports};

/// Maximum time to open a loop, in milliseconds. The longest part is a slow disk.
const OPEN_MS_MAX: u64 = 30_000;
/// Maximum time that the actor of an ended loop may take to exit.
const LEAVE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of times that a request is sent to a loop whose actor is just exiting.
const TRIES_MAX: u32 = 5;

/// Where the result of [`SupervisorMessage::OpenLoop`] goes.
type LoopReply = RpcReplyPort<Result<Option<LoopHandle>, Refusal>>;

impl State {
    /// Passes on the loop of this name. Starts or resumes it if it has no actor.
    pub(super) fn open_loop(&mut self, name: &str, begin: Option<Begin>, reply: LoopReply) {
        match (self.loops.get(&name.to_owned()), &begin) {
            (Some(_), Some(Begin::Plan(..))) => drop(reply.send(Err(under_way(name)))),
            // The loop is already running here, for example because another request adopted it.
            (Some(known), Some(Begin::Adopt(_)) | None) => drop(reply.send(Ok(Some(known.clone())))),
            (None, _) => {
                let start = self.start_loop(name, begin);
                self.open(Child::Loop(name.to_owned()), Why::Asked, start, move |opened| {
                    let _ = reply.send(opened.map(|started| match started {
                        Some(Started::Loop(_, it)) => Some(it),
                        _ => None,
                    }));
                });
            }
        }
    }

    pub(super) fn start_loop(&self, name: &str, mut begin: Option<Begin>) -> BoxFuture<'static, Opened> {
        let (myself, ports, name) = (self.myself.clone(), self.ports.clone(), name.to_owned());
        Box::pin(async move {
            if !matches!(begin, Some(Begin::Plan(..))) {
                match ports.loops.load(&name).await {
                    Ok(Some(_)) => begin = None,
                    Ok(None) if begin.is_some() => {}
                    Ok(None) => return Ok(None),
                    Err(cause) => return Err(Refusal::new(RefusalKind::Registry, cause).of(&name)),
                }
            }
            let (parent, about, teller) = (myself.get_cell(), name.clone(), myself.clone());
            let arguments = LoopArguments {
                name: name.clone(),
                begin,
                ports,
                workers: Arc::new(SupervisorClient(myself)),
                tell: Arc::new(move |told| drop(teller.cast(SupervisorMessage::Loop(about.clone(), told)))),
            };
            match LoopHandle::start(arguments, parent).await {
                Ok(opened) => Ok(Some(Started::Loop(name, opened))),
                Err(error) => {
                    let refusal = not_started(error, RefusalKind::Registry);
                    let is_named = refusal.kind == RefusalKind::Registry;
                    Err(if is_named { refusal.of(&name) } else { refusal })
                }
            }
        })
    }

    pub(super) async fn loop_told(&mut self, name: String, told: LoopReport) -> Result<(), ActorProcessingErr> {
        match told {
            LoopReport::Over => {
                // Between two iterations its worker does not count as gone; now it may.
                self.nudges.doubt(name.clone());
                self.loops.remove(&name);
                self.feed(Event::Live { child: Child::Loop(name), live: false }).await
            }
        }
    }

    /// Carries out a request about a loop, in a separate task.
    pub(super) fn begin_loop_request(&mut self, request: LoopRequest, answers: UnboundedSender<Answer>) {
        let (desk, merges) = (self.loop_desk(), self.desk());
        self.beside(async move {
            let LoopRequest { caller, order } = request;
            let done = match merges.traced_loop(&caller, order).await {
                Ok(order) => desk.carry_out(caller, order, &answers).await,
                Err(refusal) => Err(refusal),
            };
            let _ = answers.send(done.unwrap_or_else(Answer::Refused));
            let _ = answers.send(Answer::Done);
        });
    }

    pub(super) fn loop_desk(&self) -> Desk {
        Desk { ports: self.ports.clone(), registry: self.registry.clone(), supervisor: self.myself.clone() }
    }
}

/// Refuses to respawn the worker of a loop that is active or paused, because the loop starts the worker itself. A respawn
/// beside the loop would end the loop or be mistaken for another program's worker.
pub async fn may_respawn(ports: &Ports, respawn: &RespawnRequest) -> Result<(), Refusal> {
    if is_own_request(&respawn.caller.request) {
        return Ok(());
    }
    let name = &respawn.name;
    let unreadable = |cause| {
        let cause = format!("cannot find out whether worker '{name}' belongs to a ralph loop: {cause}");
        Refusal::new(RefusalKind::Registry, cause).of(name)
    };
    let Some(it) = ports.loops.load(name).await.map_err(unreadable)? else { return Ok(()) };
    if !it.is_active() && it.status != Status::Paused {
        return Ok(());
    }
    let state = it.status.word();
    let cause = format!("worker '{name}' belongs to a ralph loop that is {state} and starts it itself");
    let refusal = Refusal::new(RefusalKind::Running, cause).of(name);
    let remedy = format!("run 'swarm ralph stop {name}' to end the loop before you respawn the worker");
    Err(refusal.remedy(remedy))
}

/// What is needed to carry out a request about loops beside the supervisor's actor.
pub(super) struct Desk {
    pub(super) ports: Ports,
    pub(super) registry: RegistryHandle,
    supervisor: ActorRef<SupervisorMessage>,
}

impl Desk {
    async fn carry_out(
        &self,
        caller: Caller,
        order: LoopOrder,
        answers: &UnboundedSender<Answer>,
    ) -> Result<Answer, Refusal> {
        match order {
            LoopOrder::Begin { plan, replace, clean_state } => {
                self.begin(caller, *plan, replace, clean_state, answers).await.map(Answer::Spawned)
            }
            LoopOrder::Pause { name, reason } => {
                let it = self.locate(&name).await?;
                match it.status {
                    Status::Running => self.ask_of(it, &caller, Happening::Pause { reason }, "paused").await,
                    Status::Paused => Ok(unchanged(&name, "is already paused", answers)),
                    Status::Stopped | Status::Failed => Ok(unchanged(&name, "is not running a loop", answers)),
                }
            }
            LoopOrder::Resume { name } => {
                let it = self.locate(&name).await?;
                match it.status {
                    Status::Paused => self.ask_of(it, &caller, Happening::Resume, "resumed").await,
                    Status::Stopped if it.is_disconnected() => {
                        self.ask_of(it, &caller, Happening::Resume, "resumed").await
                    }
                    Status::Running if !it.is_active() => self.ask_of(it, &caller, Happening::Attend, "resumed").await,
                    Status::Running | Status::Stopped | Status::Failed => {
                        Ok(unchanged(&name, "is not paused", answers))
                    }
                }
            }
            LoopOrder::Attend { name } => {
                let it = self.locate(&name).await?;
                let about =
                    |what: String| Refusal::new(RefusalKind::Invalid, format!("ralph loop for '{name}' {what}"));
                match it.status {
                    Status::Running => self.ask_of(it, &caller, Happening::Attend, "attended").await,
                    Status::Paused => Err(about(format!("is paused (use 'swarm ralph resume {name}' first)"))),
                    Status::Stopped | Status::Failed => Err(about(format!("has status '{}'", it.status.word()))),
                }
            }
            LoopOrder::Stop { name } => {
                self.locate(&name).await?;
                self.killed(&name).await?;
                Ok(line(&name, "stopped"))
            }
            LoopOrder::Clean { name } => {
                self.is_let_go(&name).await?;
                self.killed(&name).await?;
                match self.forget(&name).await? {
                    true => Ok(line(&name, "cleaned")),
                    false => Err(no_state(&name)),
                }
            }
        }
    }

    async fn begin(
        &self,
        caller: Caller,
        plan: Plan,
        replace: bool,
        clean_state: bool,
        answers: &UnboundedSender<Answer>,
    ) -> Result<Spawned, Refusal> {
        let name = plan.name.clone();
        if caller.repeated > 0
            && let Some(it) = self.load(&name).await?
            && it.plan.id == plan.id
        {
            // A repeated request whose first answer was lost.
            return self.begun(&it).await;
        }
        self.is_let_go(&name).await?;
        let present = self.registry.find(&name).await.map_err(|error| of_store(&error))?;
        if replace {
            self.check_tree(&plan, present.as_deref(), &caller).await?;
        }
        let is_replaced = present.is_some();
        if is_replaced {
            if !replace {
                let remedy = "use --replace to end and replace it, or use another name";
                return Err(Refusal::exists(&name).remedy(remedy));
            }
            let notes = self.make_way(&plan, &caller).await?;
            let _ = answers.send(Answer::Loop(LoopLine { name: name.clone(), done: "replaced".to_owned(), notes }));
        } else if replace {
            self.killed(&name).await?;
            self.forget(&name).await?;
        }
        if clean_state {
            self.killed(&name).await?;
            if self.forget(&name).await? {
                let _ = answers.send(line(&name, "cleared"));
            }
        }
        if self.load(&name).await?.is_some_and(|it| it.is_active()) {
            return Err(under_way(&name));
        }
        self.started(plan).await.map_err(|refusal| match is_replaced {
            true => Refusal { cause: format!("the replaced worker was ended; {}", refusal.cause), ..refusal },
            false => refusal,
        })
    }

    /// Starts a loop and returns its first worker.
    async fn started(&self, plan: Plan) -> Result<Spawned, Refusal> {
        let name = plan.name.clone();
        // Dropped if the loop is not open in time, so that it is not begun after this request was refused.
        let asker = Arc::new(());
        let opened = self.open(&name, Some(Begin::Plan(Box::new(plan), Arc::downgrade(&asker)))).await?;
        let opened = opened.ok_or_else(|| Refusal::new(RefusalKind::Internal, "the loop did not start"))?;
        opened.begun().await.map_err(|refusal| refusal.of(&name))
    }

    /// Refuses a plan whose worktree cannot be made, before the worker that it replaces is ended. The worktree of that
    /// worker goes, and its branch stays: the plan must be possible either in its place or in a free one.
    async fn check_tree(&self, plan: &Plan, present: Option<&Row>, caller: &Caller) -> Result<(), Refusal> {
        let Some(asked) = &plan.worktree else { return Ok(()) };
        let rows = self.registry.rows().await.map_err(|error| of_store(&error))?;
        let trees = rows.iter().filter_map(|row| row.worktree.as_ref());
        let trees = trees.map(|tree| (tree.path.clone(), tree.base_repo.clone())).collect();
        let leaf = asked.leaf.as_ref().unwrap_or(&plan.name);
        let branch = asked.branch.as_ref().unwrap_or(leaf).clone();
        let asked = WorktreeRequest { branch: Some(branch), trees, ..asked.clone() };
        let caller = Caller { environment: plan.contract.environment.clone(), ..caller.clone() };
        let worktrees = &self.ports.worktrees;
        let place = present.and_then(|row| row.worktree.as_ref()?.path.rsplit_once('/'));
        if let Some((above, leaf)) = place {
            let there = WorktreeRequest { dir: Some(above.to_owned()), ..asked.clone() };
            if worktrees.plan(leaf, &there, &caller).await.is_ok() {
                return Ok(());
            }
        }
        let free = format!("{leaf}-{}", self.ports.clock.token());
        match worktrees.plan(&free, &asked, &caller).await.map_err(|error| of_worktree(&error).of(&plan.name)) {
            // A quota, for example: the worktree that goes makes room.
            Err(refusal) if !refusal.passes => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Returns the worker that the same request started before.
    async fn begun(&self, it: &Loop) -> Result<Spawned, Refusal> {
        let name = it.name();
        if let Some(cause) = &it.refused {
            // Opening the loop deletes what it left.
            if let Some(opened) = self.open(name, None).await? {
                let _ = opened.cell().wait(Some(LEAVE_MAX)).await;
            }
            return Err(Refusal::new(RefusalKind::Start, cause.clone()).of(name));
        }
        if !it.has_run
            && let Some(opened) = self.open(name, None).await?
        {
            return opened.begun().await.map_err(|refusal| refusal.of(name));
        }
        let subject = WorkerRecord::read(&self.ports, &self.registry, name).await?;
        let WorkerRecord::Ours { row, facts } = subject else {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("ralph loop for '{name}' started, but its worker is gone"),
            )
            .of(name));
        };
        let lease = facts.lease.content;
        let pane = lease.as_ref().and_then(|lease| lease.pane.clone());
        Ok(Spawned {
            name: row.name.clone(),
            generation: facts.generation,
            pid: lease.as_ref().map_or(0, |lease| lease.worker.pid),
            window: row.tmux.as_ref().map(|tmux| format!("{}:{}", tmux.session, tmux.window)),
            socket_path: pane.as_ref().map(|pane| pane.socket_path.clone()),
            pane: pane.map(|pane| pane.pane),
            worktree: row.worktree.as_ref().map(|worktree| worktree.path.clone()),
            job: None,
            notes: Vec::new(),
            warnings: lease.and_then(|lease| lease.limits).map(|held| held.warnings()).unwrap_or_default(),
        })
    }

    /// Ends and cleans the worker of that name and its loop. Uncommitted work in its worktree is saved
    /// first; the returned notes say so.
    async fn make_way(&self, plan: &Plan, caller: &Caller) -> Result<Vec<(String, String)>, Refusal> {
        let name = &plan.name;
        let request = format!("{}replace", crate::loops::request_prefix(&plan.id));
        let caller = Caller { request, environment: plan.contract.environment.clone(), ..caller.clone() };
        let workers = SupervisorClient(self.supervisor.clone());
        self.killed(name).await?;
        workers.kill(name, &caller).await?;
        let cleaned = workers.clean_whatever(name, &caller).await?;
        self.forget(name).await?;
        Ok(cleaned.notes)
    }

    pub(super) async fn open(&self, name: &str, begin: Option<Begin>) -> Result<Option<LoopHandle>, Refusal> {
        let name = name.to_owned();
        let late = format!("cannot read or write the loop of '{name}' within {} s", OPEN_MS_MAX / 1000);
        match ractor::call_t!(self.supervisor, SupervisorMessage::OpenLoop, OPEN_MS_MAX, name.clone(), begin) {
            Ok(opened) => opened,
            Err(ractor::RactorErr::Timeout) => {
                let refusal = Refusal::new(RefusalKind::Registry, late).of(&name);
                Err(refusal.remedy("check the disk of the state directory, then try again"))
            }
            Err(_) => Err(Refusal::new(RefusalKind::Stopping, "the supervisor is shutting down")),
        }
    }

    pub(super) async fn ask(&self, name: &str, event: Happening, done: &str) -> Result<Answer, Refusal> {
        for _ in 0..TRIES_MAX {
            let Some(opened) = self.open(name, None).await? else { return Err(no_state(name)) };
            match opened.ask(event.clone()).await {
                Ok(()) => return Ok(line(name, done)),
                // The actor was just exiting.
                Err(LoopError::Closed) => drop(opened.cell().wait(Some(LEAVE_MAX)).await),
                Err(error) => return Err(Refusal::new(RefusalKind::Registry, error.to_string()).of(name)),
            }
        }
        Err(Refusal::new(RefusalKind::Stopping, "the loop ended before it could answer").of(name))
    }

    pub(super) async fn load(&self, name: &str) -> Result<Option<Loop>, Refusal> {
        let unreadable = |cause| Refusal::new(RefusalKind::Registry, cause).of(name);
        self.ports.loops.load(name).await.map_err(unreadable)
    }

    /// Reports whether a loop runs. One that cannot be read may run.
    pub(super) async fn may_run(&self, name: &str) -> bool {
        self.load(name).await.map_or(true, |it| it.is_some_and(|it| it.status == Status::Running))
    }

    /// Ends the loop of this worker, if there is one that is active or could resume.
    pub(super) async fn killed(&self, name: &str) -> Result<(), Refusal> {
        match self.locate(name).await {
            Ok(it) if it.may_go_on() || it.is_active() => self.end(it).await,
            Ok(_) => Ok(()),
            Err(refusal) if refusal.kind == RefusalKind::NotFound => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Deletes the records of an ended loop, once its actor no longer writes to them. Returns whether
    /// there were any.
    pub(super) async fn forget(&self, name: &str) -> Result<bool, Refusal> {
        if let Some(opened) = self.open(name, None).await? {
            // A loop that is over has nothing to do, and its actor exits once it receives a request.
            let _ = opened.ask(Happening::Killed).await;
            if opened.cell().wait(Some(LEAVE_MAX)).await.is_err() {
                return Err(
                    Refusal::new(RefusalKind::Running, format!("ralph loop for '{name}' did not end in time")).of(name)
                );
            }
        }
        let failed = |error: std::io::Error| {
            Refusal::new(RefusalKind::Registry, format!("cannot remove ralph state for '{name}': {error}")).of(name)
        };
        self.ports.loops.forget(name).await.map_err(failed)
    }
}

fn line(name: &str, done: &str) -> Answer {
    Answer::Loop(LoopLine { name: name.to_owned(), done: done.to_owned(), notes: Vec::new() })
}

fn unchanged(name: &str, why: &str, answers: &UnboundedSender<Answer>) -> Answer {
    let _ = answers.send(Answer::Warning(format!("worker '{name}' {why}")));
    line(name, "unchanged")
}

fn no_state(name: &str) -> Refusal {
    Refusal::new(RefusalKind::NotFound, format!("no ralph state found for worker '{name}'")).of(name)
}

fn under_way(name: &str) -> Refusal {
    let refusal = Refusal::new(RefusalKind::Exists, format!("ralph loop for '{name}' is still running")).of(name);
    refusal.remedy(format!("run 'swarm ralph stop {name}' to end it"))
}
