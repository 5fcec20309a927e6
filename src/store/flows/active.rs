//! Flows that a supervisor runs: their registration, the checks before a start, the requests that start the workers of
//! turns, and the request that lands the result.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::names::{FlowRef, RoleId};
use swarm_actors::worker::LOG_LIMIT_BYTES;
use swarm_model::flow::{Begin, Ended, Standing, TAG, Turn, request_of, request_prefix, worker_name};
use swarm_model::run::Wish;
use swarm_model::{
    Caller, Contract, FlowPlace, MergeSettings, RowWorktree, SessionRules, SpawnRequest, TmuxPlace, WorktreeRequest,
};
use swarm_ports::{BoxFuture, Flows, Opened, Survey};

use super::advance::{Stage, is_open};
use super::config::{Config, Load, Mode, Player};
use super::file::Lock;
use super::place::{HOME, STATE, Workspace};
use super::registered::{self, Active, CALLER, read, registration};
use super::store::FLOW;
use super::store::{FlowFiles, StoreError};
use super::turns;
use crate::changes::Watches;
use crate::runs::home::make_all;
use swarm_sys::files::{blocking, replace_durably};
use swarm_sys::paths::Paths;

pub struct DiskFlows {
    paths: Paths,
    executable: PathBuf,
    /// Run locks that this process holds.
    open: Arc<Mutex<BTreeMap<FlowPlace, Lock>>>,
    watches: Arc<Watches>,
}

impl DiskFlows {
    /// Starts watching files; must be called within a runtime.
    pub fn start(paths: Paths, executable: PathBuf) -> Self {
        Self { paths, executable, open: Arc::default(), watches: Watches::start(FLOW) }
    }
}

/// Returns the files of the flow at a place.
///
/// # Errors
/// Fails with a message for users if the root does not exist or a name is invalid.
pub fn files_of(place: &FlowPlace) -> Result<FlowFiles, String> {
    let root = Path::new(&place.root);
    let space = Workspace::find(Some(root), root).map_err(|error| format!("{}: {error}", place.root))?;
    Ok(space.flow(FlowRef::new(&place.project, &place.flow)?))
}

/// Directory, repository and configuration of a flow.
pub struct FlowSite {
    /// Folder of the project, or the root if the project has no folder.
    pub dir: PathBuf,
    /// Repository that contains `dir`.
    pub repo: Option<PathBuf>,
    pub config: Config,
    /// Folders in which `swarm.toml` is looked for; the first one that has it counts.
    pub folders: Vec<PathBuf>,
}

impl FlowSite {
    /// Determines the site of a flow.
    ///
    /// # Errors
    /// Fails with a message for users if the repository or the configuration cannot be read.
    pub fn of(place: &FlowPlace, caller: &Caller) -> Result<Self, String> {
        Self::with(place, caller, swarm_config::load)
    }

    /// Determines the site of a flow with the configuration as its file is written, to find out what to ask about.
    ///
    /// # Errors
    /// Fails as [`FlowSite::of`] does.
    pub fn as_written(place: &FlowPlace, caller: &Caller) -> Result<Self, String> {
        Self::with(place, caller, swarm_config::as_written)
    }

    fn with(place: &FlowPlace, caller: &Caller, load: Load) -> Result<Self, String> {
        let root = Path::new(&place.root);
        let dir = Some(root.join(&place.project)).filter(|dir| dir.is_dir()).unwrap_or_else(|| root.to_owned());
        let at = Caller { cwd: dir.to_string_lossy().into_owned(), ..caller.clone() };
        let repo = match swarm_git::repository::root(&at) {
            Ok(repo) => Some(repo),
            Err(refusal) if swarm_config::root_above(&dir).is_some() => return Err(refusal.cause),
            Err(_) => None,
        };
        let folders = [Some(dir.as_path()), repo.as_deref(), Some(root)];
        let folders: Vec<PathBuf> = folders.into_iter().flatten().map(Path::to_owned).collect();
        let config = Config::read(folders.iter().map(PathBuf::as_path), load)?;
        Ok(Self { dir, repo, config, folders })
    }

    fn caller(&self, caller: &Caller) -> Caller {
        Caller { cwd: self.dir.to_string_lossy().into_owned(), ..caller.clone() }
    }
}

/// Excludes the flows of a workspace from git, if it is in a repository.
///
/// # Errors
/// Fails if the repository's list of excluded files cannot be read or written.
pub fn exclude(root: &Path, caller: &Caller) -> io::Result<()> {
    let at = Caller { cwd: root.to_string_lossy().into_owned(), ..caller.clone() };
    let Ok(repo) = swarm_git::repository::root(&at) else { return Ok(()) };
    let below = root.strip_prefix(&repo).unwrap_or(Path::new("")).join(HOME).join(STATE);
    swarm_git::repository::exclude(&repo, &below.to_string_lossy())
}

/// Checks origin, workflow, roles and merge target before a flow is run.
fn check(files: &FlowFiles, site: &FlowSite, caller: &Caller) -> Result<(), String> {
    files.check_origin(caller).map_err(|error| error.to_string())?;
    let open = files.open().map_err(|error| error.to_string())?;
    // The workflow of a flow that has started is not validated: agents may have edited it.
    if open.flow.visited().next().is_none() {
        let fault = files.fault(&open).map_err(|error| error.to_string())?;
        fault.map_or(Ok(()), Err)?;
    }
    check_roles(site, &open.graph)?;
    if open.sidecar.merge || site.config.flow.merge {
        check_merge(site, open.sidecar.base.as_deref(), caller)?;
    }
    Ok(())
}

/// Checks that the result of a flow can land.
///
/// # Errors
/// Fails with a message for users, with a hint if there is one.
pub fn check_merge(site: &FlowSite, base: Option<&str>, caller: &Caller) -> Result<(), String> {
    if site.repo.is_none() {
        return Err(format!("cannot land the result: no git repository at {}", site.dir.display()));
    }
    let found = swarm_git::repository::site(&site.caller(caller), base);
    found.map(drop).map_err(|refusal| match refusal.remedy {
        Some(remedy) => format!("cannot land the result: {} ({remedy})", refusal.cause),
        None => format!("cannot land the result: {}", refusal.cause),
    })
}

/// Checks the settings of all roles of a workflow.
///
/// # Errors
/// Fails with all problems in one message.
pub fn check_roles(site: &FlowSite, graph: &Graph) -> Result<(), String> {
    site.config.check_asked()?;
    let mut wrong: Vec<String> = Vec::new();
    for node in graph.nodes() {
        if let Err(cause) = site.config.player(&RoleId::key(&node.role))
            && !wrong.contains(&cause)
        {
            wrong.push(cause);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Prepares a flow that is run for the first time: records which nodes need approval and the base branch, and excludes
/// the flow's files from git.
fn settle(files: &FlowFiles, site: &FlowSite, caller: &Caller) -> Result<(), String> {
    keep_gates(files)?;
    let Some(repo) = &site.repo else { return Ok(()) };
    if files.root().starts_with(repo) {
        exclude(files.root(), caller).map_err(|error| error.to_string())?;
    }
    let base = files.sidecar().map_err(|error| error.to_string())?.base;
    if base.is_none()
        && let Ok(found) = swarm_git::repository::site(&site.caller(caller), None)
    {
        let kept = files.update(|open| {
            open.sidecar.base = Some(found.base.clone());
            Ok::<_, StoreError>(())
        });
        kept.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Records the workflow, and the nodes that need approval, when the flow is run for the first time. A flow that another
/// program started is held to what its workflow requires now.
fn keep_gates(files: &FlowFiles) -> Result<(), String> {
    let kept = files.update(|open| {
        if open.sidecar.gates.is_none() {
            let gates = open.graph.nodes().iter().filter(|node| node.human_colab).map(|node| node.id.clone());
            open.sidecar.gates = Some(gates.collect());
        }
        if open.sidecar.start.is_none() {
            open.sidecar.start = Some(open.graph.start());
        }
        Ok::<_, StoreError>(())
    });
    kept.map_err(|error| error.to_string())
}

fn open(
    paths: &Paths,
    locks: &Mutex<BTreeMap<FlowPlace, Lock>>,
    place: &FlowPlace,
    begin: Option<&Begin>,
) -> Result<Opened, String> {
    let text = |error: io::Error| format!("{}: {error}", place.flow);
    let files = files_of(place)?;
    let registered = read(paths, place).map_err(text)?;
    let is_held = || locks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(place);
    let forget = || drop(locks.lock().unwrap_or_else(PoisonError::into_inner).remove(place));
    if !is_held() {
        let lock = files.run_lock().map_err(|error| error.to_string())?;
        let lock = lock.ok_or_else(|| format!("flow '{place}' is in use by another process"))?;
        if let Some(begin) = begin {
            let site = FlowSite::of(place, &begin.caller)?;
            check(&files, &site, &begin.caller)?;
            settle(&files, &site, &begin.caller)?;
        }
        locks.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone(), lock);
    }
    let Some(begin) = begin else {
        let active = registered.ok_or_else(|| format!("flow '{place}' is not running")).inspect_err(|_| forget())?;
        return Ok(Opened { caller: active.caller, rules: active.rules });
    };
    let dir = registration(paths, place);
    let active = Active { place: place.clone(), caller: begin.caller.clone(), rules: begin.rules.clone() };
    let written = make_all(&dir).and_then(|()| replace_durably(&dir, CALLER, &serde_json::to_vec(&active)?));
    written.map_err(text).inspect_err(|_| forget())?;
    Ok(Opened { caller: active.caller, rules: active.rules })
}

fn prepare(
    place: &FlowPlace,
    turn: &Turn,
    caller: &Caller,
    executable: &Path,
    session: &str,
) -> Result<SpawnRequest, String> {
    let files = files_of(place)?;
    let site = FlowSite::of(place, caller)?;
    site.config.check_asked()?;
    let player = site.config.player(&turn.role)?;
    let name = worker_name(place, &turn.role);
    let dir = turns::dir(files.dir(), turn).to_string_lossy().into_owned();
    let sidecar = files.sidecar().map_err(|error| error.to_string())?;
    let cwd = site.dir.to_string_lossy().into_owned();
    let about = turn.node.clone().unwrap_or_else(|| "improvement phase".to_owned());
    let contract = Contract {
        argv: vec![executable.to_string_lossy().into_owned(), turns::VERB.to_owned(), dir],
        cwd: cwd.clone(),
        environment: caller.environment.clone(),
        tags: vec![format!("{TAG}{}", place.flow), format!("role:{}", turn.role)],
        umask: caller.umask,
        rlimits: caller.rlimits.clone(),
        nice: caller.nice,
        attributes: caller.attributes.clone(),
        tmux: tmux(&player, session),
        timeout_ms: player.timeout_ms,
        log_limit_bytes: LOG_LIMIT_BYTES,
        session: SessionRules {
            prompt: Some(format!("{about} ({place})")),
            provider: Some(player.agent.name.clone()),
            ..SessionRules::default()
        },
        ..Contract::default()
    };
    let worktree = site.repo.as_ref().map(|_| WorktreeRequest {
        cwd: cwd.clone(),
        branch: Some(branch(place, &turn.role)),
        dir: None,
        base: sidecar.base,
        leaf: None,
        resume: true,
        ..WorktreeRequest::default()
    });
    Ok(SpawnRequest {
        caller: Caller { request: request_of(place, turn), cwd, ..caller.clone() },
        name,
        contract,
        worktree,
        replaces: Some(request_prefix(place, &turn.role)),
        takes_over: None,
    })
}

fn tmux(player: &Player, session: &str) -> Option<TmuxPlace> {
    let place = TmuxPlace { session: session.to_owned(), socket: None, socket_path: None };
    (player.mode == Mode::Tmux).then_some(place)
}

/// Returns the branch that a role works on.
pub fn branch(place: &FlowPlace, role: &str) -> String {
    format!("swarm/{}/{role}", place.flow)
}

/// Returns the worktree of a role, also if its worker was cleaned. Its work is on the branch then, and perhaps also in the
/// worktree, if that stayed.
fn workplace(place: &FlowPlace, role: &str, repo: &Path) -> RowWorktree {
    let branch = branch(place, role);
    let listed = swarm_git::repository::worktrees_of(repo).unwrap_or_default();
    let own = listed.into_iter().find(|tree| tree.branch.as_ref() == Some(&branch)).map(|tree| tree.path);
    let usual = || swarm_git::repository::default_dir(repo).join(worker_name(place, role));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    RowWorktree { path: text(&own.unwrap_or_else(usual)), branch, base_repo: text(repo) }
}

/// Records why the result of a flow is in no merge queue, or that it is.
fn keep_refusal(place: &FlowPlace, cause: Option<&str>) -> Result<(), String> {
    let files = files_of(place)?;
    let known = files.sidecar().map_err(|error| error.to_string())?.not_queued;
    if known.as_deref() == cause {
        return Ok(());
    }
    let kept = files.update(|open| {
        open.sidecar.not_queued = cause.map(str::to_owned);
        Ok::<_, StoreError>(())
    });
    kept.map_err(|error| error.to_string())
}

/// Returns the request that lands the result of a flow. The branch of the role that plays the final node contains all
/// work handed over to it. `None` if the result is not to land.
fn wish(place: &FlowPlace, caller: &Caller) -> Result<Option<Wish>, String> {
    let files = files_of(place)?;
    let open = match files.open() {
        // The flow was removed while it ran.
        Err(StoreError::NotFound { .. }) => return Ok(None),
        open => open.map_err(|error| error.to_string())?,
    };
    let site = FlowSite::of(place, caller)?;
    if site.repo.is_none() || !(open.sidecar.merge || site.config.flow.merge) {
        return Ok(None);
    }
    let last = open.graph.nodes().iter().find(|node| open.graph.successors(&node.id).next().is_none());
    let Some(last) = last else { return Ok(None) };
    let name = open.flow.record_name.clone().unwrap_or_else(|| place.flow.clone());
    let role = RoleId::key(&last.role);
    Ok(Some(Wish {
        key: format!("flow/{place}/merge"),
        worker: worker_name(place, &role),
        place: site.repo.as_deref().map(|repo| workplace(place, &role, repo)),
        base: open.sidecar.base,
        priority: 0,
        settings: MergeSettings::default(),
        subject: Some(name),
        mends: false,
        caller: site.caller(caller),
    }))
}

/// Returns the maximum number of repairs for each role of the ended turns. Reads the configuration, which may take
/// time, and is therefore called before the flow's lock is taken.
fn repairs(paths: &Paths, place: &FlowPlace, ended: &[Ended]) -> BTreeMap<String, u32> {
    if ended.is_empty() {
        return BTreeMap::new();
    }
    let caller = read(paths, place).ok().flatten().map(|active| active.caller).unwrap_or_default();
    let site = FlowSite::of(place, &caller);
    let of = |role: &str| site.as_ref().ok()?.config.player(role).ok().map(|player| player.repairs);
    ended.iter().map(|ended| (ended.turn.role.clone(), of(&ended.turn.role).unwrap_or_default())).collect()
}

/// Releases all turns of a flow that is not run any more. Unfinished nodes stay in the flow and are started again
/// later.
fn leave(place: &FlowPlace) -> Result<(), String> {
    let left = files_of(place)?.update(|open| {
        // The agents that asked are gone, and ask again later.
        open.sidecar.requests.clear();
        for turn in open.sidecar.turns().collect::<Vec<_>>() {
            super::advance::withdraw_request(open, &turn);
            if !is_open(&open.flow, &turn) {
                super::advance::release(open, &turn);
            }
            open.sidecar.role(&turn.role).at_work = None;
        }
        Ok::<_, StoreError>(())
    });
    left.map_err(|error| error.to_string())
}

fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> BoxFuture<'static, Result<T, String>> {
    Box::pin(async move {
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("internal error: {error}")))
    })
}

impl Flows for DiskFlows {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<FlowPlace>>> {
        let paths = self.paths.clone();
        blocking(move || registered::active(&paths))
    }

    fn open<'a>(&'a self, place: &'a FlowPlace, begin: Option<&'a Begin>) -> BoxFuture<'a, Result<Opened, String>> {
        let (paths, locks, place, begin) = (self.paths.clone(), Arc::clone(&self.open), place.clone(), begin.cloned());
        off_thread(move || open(&paths, &locks, &place, begin.as_ref()))
    }

    fn advance<'a>(
        &'a self,
        place: &'a FlowPlace,
        ended: &'a [Ended],
        claim: bool,
    ) -> BoxFuture<'a, Result<Standing, String>> {
        let (paths, place, ended) = (self.paths.clone(), place.clone(), ended.to_vec());
        off_thread(move || {
            let files = files_of(&place)?;
            let repairs = repairs(&paths, &place, &ended);
            let stage = Stage { files: &files, place: &place, repairs: &repairs };
            match stage.advance(&ended, claim) {
                // The flow was removed while it ran.
                Err(StoreError::NotFound { .. }) => Ok(Standing { over: true, ..Standing::default() }),
                advanced => advanced.map_err(|error| error.to_string()),
            }
        })
    }

    fn changed<'a>(&'a self, place: &'a FlowPlace) -> BoxFuture<'static, ()> {
        match files_of(place) {
            Ok(files) => self.watches.changed(files.dir()),
            Err(_) => Box::pin(std::future::pending()),
        }
    }

    fn prepare<'a>(
        &'a self,
        place: &'a FlowPlace,
        turn: &'a Turn,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<SpawnRequest, String>> {
        let (place, turn, caller, executable) = (place.clone(), turn.clone(), caller.clone(), self.executable.clone());
        let session = self.paths.session();
        off_thread(move || prepare(&place, &turn, &caller, &executable, &session))
    }

    fn wish<'a>(&'a self, place: &'a FlowPlace, caller: &'a Caller) -> BoxFuture<'a, Result<Option<Wish>, String>> {
        let (place, caller) = (place.clone(), caller.clone());
        off_thread(move || wish(&place, &caller))
    }

    fn keep_refusal<'a>(&'a self, place: &'a FlowPlace, cause: Option<&'a str>) -> BoxFuture<'a, ()> {
        let (about, why) = (place.clone(), cause.map(str::to_owned));
        let kept = off_thread(move || keep_refusal(&about, why.as_deref()));
        Box::pin(async move {
            if let Err(error) = kept.await {
                tracing::error!(flow = %place, error, "cannot record whether the result of a flow is queued");
            }
        })
    }

    fn close<'a>(&'a self, place: &'a FlowPlace, unfinished: bool) -> BoxFuture<'a, ()> {
        let (paths, about) = (self.paths.clone(), place.clone());
        Box::pin(async move {
            let closed = off_thread(move || {
                let left = if unfinished { leave(&about) } else { Ok(()) };
                // Removed even if that failed: a stopped flow must not continue by itself.
                let dir = registration(&paths, &about);
                let removed = fs::remove_file(dir.join(CALLER))
                    // Nor after a power cut.
                    .and_then(|()| fs::File::open(&dir)?.sync_all())
                    .and_then(|()| fs::remove_dir_all(&dir));
                left.and(removed.map_err(|error| format!("{}: {error}", dir.display())))
            });
            if let Err(error) = closed.await {
                tracing::error!(flow = %place, error, "cannot remove the registration of a stopped flow");
            }
            if let Ok(files) = files_of(place) {
                self.watches.forget(files.dir());
            }
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(place);
        })
    }
}
