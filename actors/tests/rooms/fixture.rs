//! A world with a supervisor, and the requests of a user.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use swarm_actors::supervisor::{Request, SupervisorHandle};
use swarm_actors::testing::World;
use swarm_model::{
    Answer, Caller, CleanRequest, Contract, KillRequest, Refusal, RespawnRequest, RestartPolicy, Row, Scope,
    SpawnRequest, Spawned, WireStatus, WorkerLine, WorktreeRequest,
};
use swarm_ports::Ports;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

/// Longer than the time that a new supervisor waits for the lease of an interrupted start.
pub const ADOPTION: Duration = Duration::from_secs(4);

pub struct Rig {
    pub world: World,
    swarm: Option<SupervisorHandle>,
    _home: TempDir,
}

impl Rig {
    /// Creates a machine on which no supervisor runs.
    pub fn down() -> Self {
        let home = tempfile::tempdir().expect("a directory for the test");
        Self { world: World::new(home.path()), swarm: None, _home: home }
    }

    /// As [`Rig::down`], on a disk in memory if there is one: tests of very many machines wait for no disk.
    pub fn in_memory() -> Self {
        let shm = std::path::Path::new("/dev/shm");
        match tempfile::tempdir_in(shm) {
            Ok(home) => Self { world: World::new(home.path()), swarm: None, _home: home },
            Err(_) => Self::down(),
        }
    }

    pub async fn start() -> Self {
        let mut rig = Self::down();
        rig.up().await;
        rig
    }

    /// Starts a supervisor and lets it adopt what it finds.
    pub async fn up(&mut self) {
        let started = SupervisorHandle::start(self.world.root.clone(), self.world.ports()).await;
        self.swarm = Some(started.expect("the supervisor starts"));
        self.world.pass(ADOPTION).await;
    }

    /// Starts a supervisor with other ports than those of the world. `None` if that takes longer than `limit`.
    pub async fn try_up(&mut self, ports: Ports, limit: Duration) -> Option<Result<(), String>> {
        let start = SupervisorHandle::start(self.world.root.clone(), ports);
        let started = tokio::time::timeout(limit, start).await.ok()?;
        Some(started.map(|swarm| self.swarm = Some(swarm)).map_err(|error| error.to_string()))
    }

    pub fn is_up(&self) -> bool {
        self.swarm.is_some()
    }

    /// Kills the supervisor, whatever it is doing.
    pub async fn crash(&mut self) {
        let swarm = self.swarm.take().expect("a supervisor runs");
        swarm.cell().kill_and_wait(None).await.expect("it can be killed");
    }

    pub fn swarm(&self) -> &SupervisorHandle {
        self.swarm.as_ref().expect("a supervisor runs")
    }

    /// Returns the answers to a request up to `Done`.
    pub async fn ask(&self, request: Request) -> Vec<Answer> {
        answers(self.swarm().request(request)).await
    }

    pub async fn ask_one(&self, request: Request) -> Result<Answer, Refusal> {
        let mut answers = self.ask(request).await;
        assert_eq!(answers.len(), 1, "one worker, one answer: {answers:?}");
        match answers.remove(0) {
            Answer::Refused(refusal) => Err(refusal),
            answer => Ok(answer),
        }
    }

    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, Refusal> {
        spawned(self.ask_one(Request::Spawn(Box::new(request))).await)
    }

    /// Sends a request that starts a worker.
    pub async fn start_by(&self, request: Request) -> Result<Spawned, Refusal> {
        spawned(self.ask_one(request).await)
    }

    pub async fn kill(&self, name: &str) -> Result<WorkerLine, Refusal> {
        line(self.ask_one(kill(name)).await)
    }

    pub async fn clean(&self, name: &str) -> Result<WorkerLine, Refusal> {
        line(self.ask_one(Request::Clean(Box::new(clean(name)))).await)
    }

    pub async fn clean_by(&self, request: CleanRequest) -> Result<WorkerLine, Refusal> {
        line(self.ask_one(Request::Clean(Box::new(request))).await)
    }

    pub async fn respawn(&self, name: &str) -> Result<Spawned, Refusal> {
        self.respawn_by(respawn(name)).await
    }

    pub async fn respawn_by(&self, request: RespawnRequest) -> Result<Spawned, Refusal> {
        spawned(self.ask_one(Request::Respawn(Box::new(request))).await)
    }

    pub fn check(&self) {
        self.world.check().expect("the invariants hold");
    }
}

async fn answers(mut receiver: UnboundedReceiver<Answer>) -> Vec<Answer> {
    let mut all = Vec::new();
    while let Some(answer) = receiver.recv().await {
        if answer == Answer::Done {
            return all;
        }
        all.push(answer);
    }
    panic!("the answers end without Done: {all:?}");
}

fn spawned(answer: Result<Answer, Refusal>) -> Result<Spawned, Refusal> {
    answer.map(|answer| match answer {
        Answer::Spawned(spawned) => spawned,
        other => panic!("not a start: {other:?}"),
    })
}

fn line(answer: Result<Answer, Refusal>) -> Result<WorkerLine, Refusal> {
    answer.map(|answer| match answer {
        Answer::Worker(line) => line,
        other => panic!("not a line about a worker: {other:?}"),
    })
}

/// Returns a caller with a unique request id.
pub fn caller() -> Caller {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Caller {
        request: format!("request-{}", LAST.fetch_add(1, Ordering::SeqCst)),
        cwd: "/repo".to_owned(),
        ..Caller::default()
    }
}

pub fn request(name: &str) -> SpawnRequest {
    let contract = Contract {
        argv: vec!["work".to_owned()],
        cwd: "/repo".to_owned(),
        log_limit_bytes: 1 << 20,
        ..Contract::default()
    };
    SpawnRequest { caller: caller(), name: name.to_owned(), contract, worktree: None, replaces: None, takes_over: None }
}

pub fn with_tree(name: &str) -> SpawnRequest {
    let worktree = Some(WorktreeRequest { cwd: "/repo".to_owned(), ..WorktreeRequest::default() });
    SpawnRequest { worktree, ..request(name) }
}

pub fn restarting(name: &str, policy: RestartPolicy) -> SpawnRequest {
    let mut request = request(name);
    request.contract.restart = policy;
    request
}

pub fn kill(name: &str) -> Request {
    let scope = Scope::Names(vec![name.to_owned()]);
    Request::Kill(Box::new(KillRequest {
        caller: caller(),
        scope,
        rm_worktree: false,
        force_dirty: false,
        started_by: None,
        generation: None,
    }))
}

/// Returns a clean request like the original's: the worktree is removed if it has no work in it.
pub fn clean(name: &str) -> CleanRequest {
    let scope = Scope::Names(vec![name.to_owned()]);
    CleanRequest { caller: caller(), scope, rm_worktree: true, force_dirty: false, drop_branch: true, started_by: None }
}

pub fn respawn(name: &str) -> RespawnRequest {
    RespawnRequest { caller: caller(), name: name.to_owned(), clean_first: false, force_dirty: false, generation: None }
}

/// Returns a row as the original `swarm` writes it.
pub fn foreign_row(name: &str, pid: Option<i64>) -> Row {
    Row {
        name: name.to_owned(),
        status: WireStatus::Running,
        cmd: vec!["theirs".to_owned()],
        started: "2025-01-01T00:00:00.000001".to_owned(),
        cwd: "/repo".to_owned(),
        env: std::collections::BTreeMap::new(),
        tags: Vec::new(),
        tmux: None,
        worktree: None,
        pid,
        metadata: swarm_model::Metadata::default(),
    }
}

/// An actor that only has children and ignores their ends.
struct Parent;

impl Actor for Parent {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

pub async fn parent() -> ActorCell {
    let (actor, _) = Parent::spawn(None, Parent, ()).await.expect("it starts");
    actor.get_cell()
}
