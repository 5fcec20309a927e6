//! Hosts of runs (`swarm run --on`): carries out attempts on other machines, over one connection per host and run.
//!
//! Order of writes: the commits of an attempt are chosen (`sent.json`), sent, and only then is the attempt started. At its end
//! the work is fetched and pinned, then its files are written, the result last. Each step finds what it did before a crash.

mod deliver;
pub mod drained;
mod evidence;
mod link;
pub mod owed;
mod place;
pub mod sent;
mod taken;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use swarm_git::carry::{self, Move};
use swarm_git::repository::branch_tip;
use swarm_git::worktrees::include;
use swarm_model::run::Abandoned;
use swarm_model::run::plan::{Plan, Work};
use swarm_model::run::progress::Now;
use swarm_model::{Caller, SpawnRequest};
use swarm_ports::{BoxFuture, FarEnd, HostFault, Hosts, Reclaimed};
use swarm_store::runs::far::{
    Committer, FarAnswer, FarAttempt, FarCall, FarCommand, FarFile, FarStart, FarText, FarTree, FarWork,
};
use swarm_store::runs::home::Home;
use swarm_store::runs::order::{self, PROMPT};
use swarm_sys::paths::Paths;
use swarm_sys::variables::{HOSTS, OF_A_WORKER};

use self::deliver::answered;
use self::evidence::Sent;
use self::link::Links;
use self::owed::Owed;
use self::place::{Place, carry_failed, failed_here};

/// Commits that a clone is known to have since the connection was opened. Locked while some are sent, so that jobs of the
/// same base wait for one push.
type Pushed = Arc<tokio::sync::Mutex<BTreeSet<String>>>;
/// A table with an entry for each host, or each clone on a host.
type Table<K, V> = Mutex<BTreeMap<K, V>>;

/// Host, run and job of which orders are delivered.
type Delivery = (String, String, String);

/// Hosts, as the supervisor reaches them. All clones share their connections.
#[derive(Clone)]
pub struct Reach {
    paths: Paths,
    executable: PathBuf,
    links: Arc<Links>,
    pushed: Arc<Table<(String, PathBuf), Pushed>>,
    /// Held while a host is told about a job of a run what it could not be told before.
    delivering: Arc<Table<Delivery, Arc<tokio::sync::Mutex<()>>>>,
}

/// Maximum time for which the end of a run waits for work that comes back over its connections.
const RELEASE_MAX: Duration = Duration::from_secs(10);

impl Reach {
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        let links = Arc::new(Links::new(executable.clone()));
        Self { paths, executable, links, pushed: Arc::default(), delivering: Arc::default() }
    }

    /// Returns where the attempt is, here and on the host.
    async fn place(&self, now: &Now, host: &str, caller: &Caller) -> Result<Place, HostFault> {
        let (paths, executable, host) = (self.paths.clone(), self.executable.clone(), host.to_owned());
        let (now, caller) = (now.clone(), caller.clone());
        off_thread(move || Place::of(&paths, &executable, &now, &host, &caller)).await
    }

    /// Sends a call, after those that the host is owed, and returns its answer.
    async fn call(&self, run: &str, host: &str, caller: &Caller, call: FarCall) -> Result<FarAnswer, HostFault> {
        let link = self.connected(run, host, caller).await?;
        answered(link.ask(&call).await?)
    }

    /// Forgets which commits a host has: it may be another machine, or have removed them.
    fn doubt(&self, host: &str) {
        let mut pushed = self.pushed.lock().unwrap_or_else(PoisonError::into_inner);
        pushed.retain(|(name, _), _| name != host);
    }

    /// Sends commits that the clone may not have.
    async fn push(&self, place: &Place, caller: &Caller, commits: Vec<String>) -> Result<(), HostFault> {
        // A new connection begins without knowledge.
        self.connected(&place.at.run, &place.far.host, caller).await?;
        let pushed = entry(&self.pushed, place.key());
        let mut known = pushed.lock().await;
        if commits.iter().all(|commit| known.contains(commit)) {
            return Ok(());
        }
        let format = if commits.iter().any(|commit| commit.len() > 40) { "sha256" } else { "sha1" };
        let call = FarCall::Clone { clone: place.clone_there(), format: format.to_owned() };
        match self.call(&place.at.run, &place.far.host, caller, call).await? {
            FarAnswer::Done => {}
            _ => return Err(odd(&place.far.host)),
        }
        let (common, far, caller, sent) = (place.common.clone(), place.far.clone(), caller.clone(), commits.clone());
        off_thread(move || carry::push(&common, &far, &sent, &caller).map_err(carry_failed)).await?;
        known.extend(commits);
        Ok(())
    }

    async fn brought(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        if drained::is_drained(&self.paths, host) {
            let cause = format!("drained by a person (run 'swarm hosts resume {host}' to end that)");
            return Err(HostFault::Busy { cause });
        }
        let place = self.place(now, host, caller).await?;
        let (chosen_for, asked, at) = (now.clone(), caller.clone(), place.clone());
        let sent = off_thread(move || place::chosen(&chosen_for, &at, &asked)).await?;
        match now.job().branch {
            Some(_) => self.push(&place, caller, vec![sent.base_commit, sent.tip]).await?,
            // Nothing is sent but the command. It belongs to the host as soon as it may have arrived there.
            None => self.hailed(now, host, caller).await?,
        }
        let id = self.connected(&now.plan.id, host, caller).await?.state_there();
        let (paths, run, job, name) = (self.paths.clone(), place.at.run, place.at.job, host.to_owned());
        off_thread(move || {
            let is_out = |owed: &Owed| owed.at().is_some_and(|at| (&at.run, &at.job) == (&run, &job));
            let mut all = owed::of_host(&paths, &name).into_iter().map(|(_, owed)| owed);
            if all.any(|owed| owed.brings.is_some() && is_out(&owed) && !owed.is_of_another(id.as_deref())) {
                return Err(failed_here("the work of an attempt that was given up is not back from there yet"));
            }
            // From here on, no other machine of that name counts: the answer to the start may be lost.
            known(&place.dir, &run, id)
        })
        .await
    }

    async fn started(
        &self,
        now: &Now,
        host: &str,
        request: &SpawnRequest,
        caller: &Caller,
    ) -> Result<Option<u32>, HostFault> {
        let place = self.place(now, host, caller).await?;
        let (of, asked, by, at) = (now.clone(), request.clone(), caller.clone(), place.clone());
        let start = off_thread(move || start_of(&of, &at, &asked, &by)).await?;
        let commits = start.tree.as_ref().map(|tree| vec![tree.base_commit.clone(), tree.tip.clone()]);
        let call = FarCall::Start(Box::new(start));
        let mut answer = self.call(&now.plan.id, host, caller, call.clone()).await?;
        if let (FarAnswer::Gone(cause), Some(commits)) = (&answer, commits) {
            tracing::info!(host, cause, "sending commits to a host once more");
            self.doubt(host);
            self.push(&place, caller, commits).await?;
            answer = self.call(&now.plan.id, host, caller, call).await?;
        }
        let FarAnswer::Started { host: id, load, .. } = answer else {
            return Err(match answer {
                // An earlier request may have started it.
                FarAnswer::Gone(cause) => HostFault::Away { cause },
                _ => odd(host),
            });
        };
        let dir = place.dir;
        // From here on, no other machine of that name counts.
        let run = now.plan.id.clone();
        off_thread(move || known(&dir, &run, id)).await?;
        Ok(load)
    }

    async fn hailed(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        match self.call(&now.plan.id, host, caller, FarCall::Hail {}).await? {
            FarAnswer::Done => Ok(()),
            _ => Err(odd(host)),
        }
    }

    async fn ended(&self, now: &Now, host: &str, caller: &Caller) -> Result<FarEnd, HostFault> {
        let place = self.place(now, host, caller).await?;
        let subject = match &now.job().work {
            Work::Spec(work) => Some(format!("{} ({})", work.title, now.job().id)),
            Work::Command(_) => None,
        };
        let base = now.plan.base.clone().filter(|_| now.job().branch.is_some()).unwrap_or_default();
        let call = FarCall::End { at: place.at.clone(), base, subject };
        let FarAnswer::Ended(left) = self.call(&now.plan.id, host, caller, call).await? else {
            return Err(odd(host));
        };
        let (of, by, at, left) = (now.clone(), caller.clone(), place.clone(), evidence::bounded(*left));
        let taken = off_thread(move || taken::over(&of, &at, left, &by)).await;
        // The attempt has ended, and its host has said so. What fails from here on is in the way of this attempt alone; whether the
        // host still answers is found out by itself.
        let taken = taken.map_err(|fault| failed_here(cause_of(fault)))?;
        for commit in taken.refused {
            self.withheld(&now.plan.id, &place, commit, caller).await?;
        }
        Ok(taken.end)
    }

    /// Lets a host keep a commit that is not fetched.
    async fn withheld(&self, run: &str, place: &Place, commit: String, caller: &Caller) -> Result<(), HostFault> {
        let call = FarCall::Withhold { at: place.at.clone(), commit };
        match self.call(run, &place.far.host, caller, call).await {
            // An older program does not know the call.
            Ok(FarAnswer::Done) | Err(HostFault::Refused { .. }) => Ok(()),
            Ok(_) => Err(odd(&place.far.host)),
            Err(fault) => Err(fault),
        }
    }

    /// Removes what a job has left. It is owed before the host is asked: the supervisor may be killed, or the run over.
    async fn forgotten(&self, now: &Now, host: &str, caller: &Caller) {
        let place = match self.place(now, host, caller).await {
            Ok(place) => place,
            Err(fault) => return tracing::warn!(host, ?fault, "cannot tell a host to remove what a job has left"),
        };
        let (paths, key) = (self.paths.clone(), format!("{}/{}", now.plan.id, now.job().id));
        let owed = Owed::new(host, FarCall::Forget(place.at));
        let record = move || {
            owed::record(&paths, &key, &owed).map_err(|error| failed_here(format!("cannot record it: {error}")))
        };
        if let Err(fault) = off_thread(record).await {
            return tracing::warn!(host, ?fault, "what a job has left on a host stays there");
        }
        if let Err(fault) = self.tell((&now.plan.id, &now.job().id), host, caller).await {
            tracing::info!(host, ?fault, "what a job has left on a host is removed at the next contact");
        }
    }
}

/// Returns the attempt as its host knows it.
///
/// # Errors
/// Returns a message if the repository or the id of the state directory is unknown.
pub fn attempt_there(paths: &Paths, now: &Now, host: &str, caller: &Caller) -> Result<FarAttempt, String> {
    let place = Place::of(paths, Path::new(""), now, host, &plain(caller));
    place.map(|place| place.at).map_err(cause_of)
}

fn cause_of(fault: HostFault) -> String {
    match fault {
        HostFault::Away { cause }
        | HostFault::Refused { cause }
        | HostFault::Busy { cause }
        | HostFault::Unfit { cause, .. } => cause,
    }
}

/// Returns the fault of an answer that does not fit the call, and so does not say what was done.
fn odd(host: &str) -> HostFault {
    HostFault::Away { cause: format!("swarm on {host} answered something else than it was asked") }
}

fn entry<K: Ord, V: Clone + Default>(table: &Table<K, V>, key: K) -> V {
    table.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
}

/// Runs blocking work off the thread of the runtime.
fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HostFault> + Send + 'static,
) -> impl Future<Output = Result<T, HostFault>> + Send {
    let done = tokio::task::spawn_blocking(work);
    async move { done.await.unwrap_or_else(|error| Err(failed_here(error.to_string()))) }
}

/// Returns a caller whose processes do not count as those of a worker, and reach the host that is named.
fn plain(caller: &Caller) -> Caller {
    let mut caller = caller.clone();
    let is_kept = |name: &str| name != HOSTS && !OF_A_WORKER.contains(&name);
    Arc::make_mut(&mut caller.environment).retain(|(name, _)| is_kept(name));
    caller
}

/// Records which state directory has started the attempt.
fn known(dir: &Path, run: &str, id: Option<String>) -> Result<(), HostFault> {
    match evidence::sent(dir, run).filter(|sent| sent.host.is_none()) {
        Some(sent) if id.is_some() => {
            let recorded = evidence::record_sent(dir, &Sent { host: id, ..sent });
            recorded
                .map_err(|error| HostFault::Away { cause: format!("cannot record the host of the attempt: {error}") })
        }
        _ => Ok(()),
    }
}

/// Returns the attempt as the host starts it.
fn start_of(now: &Now, place: &Place, request: &SpawnRequest, caller: &Caller) -> Result<FarStart, HostFault> {
    let tree = match &now.job().branch {
        Some(branch) => Some(tree_of(now, branch, place, caller)?),
        None => None,
    };
    let work = match &now.job().work {
        Work::Spec(_) => {
            let unreadable =
                |error: std::io::Error| failed_here(format!("cannot read the order of the attempt: {error}"));
            let dir =
                order::attempt_of(&request.contract.argv).ok_or_else(|| failed_here("the attempt has no order"))?;
            let order = Box::new(order::read_order(dir).map_err(unreadable)?);
            let prompt = std::fs::read_to_string(dir.join(PROMPT)).map_err(unreadable)?;
            FarWork::Agent { order, prompt }
        }
        Work::Command(work) => {
            let dir = if tree.is_some() { Some(String::new()) } else { now.plan.directory_of(work) };
            let dir = dir.ok_or_else(|| failed_here("the directory of the job is not below that of the run"))?;
            FarWork::Command(FarCommand { argv: work.argv.clone(), env: work.env.clone(), dir })
        }
    };
    Ok(FarStart {
        at: place.at.clone(),
        tree,
        work,
        session: request.contract.session.clone(),
        tags: request.contract.tags.clone(),
        messages: messages_for(now),
        timeout_ms: request.contract.timeout_ms,
        log_limit_bytes: request.contract.log_limit_bytes,
    })
}

/// Returns the messages for the agent that it has not got.
fn messages_for(now: &Now) -> Vec<FarText> {
    let said = order::said(&Home::new(&now.plan.home).context(&now.job().id)).into_iter();
    let named = |(file, text): (PathBuf, String)| {
        let name = file.file_stem()?.to_str()?.to_owned();
        name.bytes().all(|byte| byte.is_ascii_digit()).then_some(FarText { name, text })
    };
    said.filter_map(named).collect()
}

fn tree_of(now: &Now, branch: &str, place: &Place, caller: &Caller) -> Result<FarTree, HostFault> {
    let sent = evidence::sent(&place.dir, &now.plan.id).filter(|sent| !sent.tip.is_empty());
    let Sent { tip, base_commit, .. } = sent.ok_or_else(|| failed_here("the commits of the attempt were not sent"))?;
    let sends_files = now.plan.rules.include.contains(&place.far.host);
    let include = if sends_files { files_of(Path::new(&now.plan.root), caller)? } else { Vec::new() };
    let committer = carry::committer(&place.common, caller).map(|(name, email)| Committer { name, email });
    Ok(FarTree {
        branch: branch.to_owned(),
        tip,
        base: now.plan.base.clone().ok_or_else(|| failed_here("the run has no base branch"))?,
        base_commit,
        leaf: now.job().leaf().to_owned(),
        committer,
        include,
    })
}

/// Returns the ignored files that the worktree gets, as one here would get them now.
fn files_of(root: &Path, caller: &Caller) -> Result<Vec<FarFile>, HostFault> {
    let files = include::read(root, caller).map_err(failed_here)?;
    Ok(files.into_iter().map(|file| FarFile::new(file.path, file.mode, file.content)).collect())
}

/// Moves the branch of the job to its work. A branch that was moved before, and that somebody has deleted since, stays so.
fn moved(now: &Now, caller: &Caller) -> Result<(), String> {
    let (Some(tip), Some(branch)) = (&now.progress.tip, &now.job().branch) else { return Ok(()) };
    let root = Path::new(&now.plan.root);
    let dir = Home::new(&now.plan.home).attempt(&now.job().id, now.progress.attempt);
    let sent = evidence::sent(&dir, &now.plan.id);
    let was_taken = sent.as_ref().is_some_and(|sent| sent.taken.as_ref() == Some(tip));
    if was_taken && branch_tip(root, branch, caller)?.is_none() {
        return Ok(());
    }
    let common = carry::common_of(root, caller)?;
    let host = now.progress.host.as_deref().unwrap_or("another host");
    let why = format!("swarm: work of attempt {} on {host}", now.progress.attempt);
    carry::take(&common, Move { branch, tip, why: &why }, caller)?;
    match sent.filter(|_| !was_taken) {
        Some(sent) => evidence::record_sent(&dir, &Sent { taken: Some(tip.clone()), ..sent })
            .map_err(|error| format!("cannot record that branch '{branch}' was moved: {error}")),
        None => Ok(()),
    }
}

impl Hosts for Reach {
    fn bring<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(async move { self.brought(now, host, &plain(caller)).await })
    }

    fn start<'a>(
        &'a self,
        now: &'a Now,
        host: &'a str,
        request: &'a SpawnRequest,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<u32>, HostFault>> {
        Box::pin(async move { self.started(now, host, request, &plain(caller)).await })
    }

    fn network_changed(&self) -> BoxFuture<'static, ()> {
        swarm_sys::network::changed()
    }

    fn hail<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(async move { self.hailed(now, host, &plain(caller)).await })
    }

    fn end<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<FarEnd, HostFault>> {
        Box::pin(async move { self.ended(now, host, &plain(caller)).await })
    }

    fn stop<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(async move { self.stopped(now, host, &plain(caller)).await })
    }

    fn forget<'a>(&'a self, now: &'a Now, host: &'a str, caller: &'a Caller) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.forgotten(now, host, &plain(caller)).await })
    }

    fn owe<'a>(
        &'a self,
        plan: &'a Plan,
        abandoned: &'a Abandoned,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let recorded = self.given_up(plan, abandoned, &plain(caller)).await;
            recorded.map_err(|fault| match fault {
                HostFault::Away { cause }
                | HostFault::Refused { cause }
                | HostFault::Busy { cause }
                | HostFault::Unfit { cause, .. } => cause,
            })
        })
    }

    fn reclaim<'a>(
        &'a self,
        plan: &'a Plan,
        abandoned: &'a Abandoned,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<Reclaimed, HostFault>> {
        Box::pin(async move { self.reclaimed(plan, abandoned, &plain(caller)).await })
    }

    fn take<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<(), String>> {
        let (now, caller) = (now.clone(), plain(caller));
        Box::pin(async move {
            let moved = tokio::task::spawn_blocking(move || moved(&now, &caller));
            moved.await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn go_on<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()> {
        let (paths, of) = (self.paths.clone(), run.to_owned());
        Box::pin(async move {
            let withdrawn =
                off_thread(move || owed::withdraw_stops(&paths, &of).map_err(|error| failed_here(error.to_string())));
            if let Err(fault) = withdrawn.await {
                tracing::warn!(run, ?fault, "cannot withdraw stops of the run");
            }
        })
    }

    fn admit(&self, run: &str) {
        self.links.admit(run);
    }

    fn release<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()> {
        let (links, run) = (Arc::clone(&self.links), run.to_owned());
        Box::pin(async move {
            let done = async {
                for task in links.tasks(&run) {
                    let _ = task.await;
                }
            };
            // Work that is not here by then is fetched later: by this process, or at the next contact.
            let _ = tokio::time::timeout(RELEASE_MAX, done).await;
            let _ = tokio::task::spawn_blocking(move || links.release(&run)).await;
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
