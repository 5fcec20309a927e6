//! Hosts of runs (`swarm run --on`): carries out attempts on other machines, over one connection per host and run.
//!
//! Order of writes: the commits of an attempt are chosen (`sent.json`), sent, and only then is the attempt started. At its end
//! the work is fetched and pinned, then its files are written, the result last. Each step finds what it did before a crash.

mod evidence;
mod link;
mod owed;
mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use swarm_git::carry::{self, Move};
use swarm_model::run::plan::Work;
use swarm_model::run::progress::Now;
use swarm_model::{Caller, SpawnRequest};
use swarm_ports::{BoxFuture, FarEnd, HostFault, Hosts};
use swarm_store::runs::far::{Committer, FarAnswer, FarCall, FarResult, FarStart};
use swarm_store::runs::order::{self, PROMPT};
use swarm_sys::paths::Paths;
use swarm_sys::variables::{HOSTS, OF_A_WORKER};

use self::evidence::Sent;
use self::link::{Link, Links};
use self::place::{Place, away_or_refused, refused};

/// Commits that a clone is known to have. Locked while some are sent, so that jobs of the same base wait for one push.
type Pushed = Arc<tokio::sync::Mutex<BTreeSet<String>>>;
/// A table with an entry for each host, or each clone on a host.
type Table<K, V> = Mutex<BTreeMap<K, V>>;

/// Hosts, as the supervisor reaches them.
pub struct Reach {
    paths: Paths,
    executable: PathBuf,
    links: Arc<Links>,
    pushed: Table<(String, PathBuf), Pushed>,
    /// Held while a host is told what it could not be told before.
    delivering: Table<String, Arc<tokio::sync::Mutex<()>>>,
}

impl Reach {
    pub fn new(paths: Paths, executable: PathBuf) -> Self {
        let links = Arc::new(Links::new(executable.clone()));
        Self { paths, executable, links, pushed: Mutex::default(), delivering: Mutex::default() }
    }

    /// Returns where the attempt is, here and on the host.
    async fn place(&self, now: &Now, host: &str, caller: &Caller) -> Result<Place, HostFault> {
        let (paths, executable, host) = (self.paths.clone(), self.executable.clone(), host.to_owned());
        let (now, caller) = (now.clone(), caller.clone());
        off_thread(move || Place::of(&paths, &executable, &now, &host, &caller)).await
    }

    /// Sends a call, after those that the host could not be told before, and returns its answer.
    async fn call(&self, run: &str, host: &str, caller: &Caller, call: FarCall) -> Result<FarAnswer, HostFault> {
        let (links, run, name, by) = (Arc::clone(&self.links), run.to_owned(), host.to_owned(), caller.clone());
        // It may start a process.
        let link = off_thread(move || links.get(&run, &name, &by)).await?;
        link.delivered.get_or_try_init(|| self.deliver(&link, host)).await?;
        match link.ask(&call).await? {
            FarAnswer::Busy(cause) => Err(HostFault::Busy { cause }),
            FarAnswer::Refused(cause) => Err(HostFault::Refused { cause }),
            FarAnswer::Unknown(cause) => Err(HostFault::Away { cause }),
            answer => Ok(answer),
        }
    }

    async fn deliver(&self, link: &Link, host: &str) -> Result<(), HostFault> {
        let lock = entry(&self.delivering, host.to_owned());
        let _held = lock.lock().await;
        let (paths, name) = (self.paths.clone(), host.to_owned());
        for (file, call) in off_thread(move || Ok(owed::of_host(&paths, &name))).await? {
            match link.ask(&call).await? {
                FarAnswer::Busy(_) | FarAnswer::Unknown(_) => {}
                answer => {
                    if let FarAnswer::Refused(cause) = answer {
                        tracing::warn!(host, cause, "a host does not remove what a job has left");
                    }
                    owed::settle(&file);
                }
            }
        }
        Ok(())
    }

    /// Sends commits that the clone may not have.
    async fn push(&self, place: &Place, caller: &Caller, commits: Vec<String>) -> Result<(), HostFault> {
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
        off_thread(move || carry::push(&common, &far, &sent, &caller).map_err(away_or_refused)).await?;
        known.extend(commits);
        Ok(())
    }

    async fn brought(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        if matches!(now.job().work, Work::Command(_)) {
            return Err(refused("commands do not run on hosts yet"));
        }
        let place = self.place(now, host, caller).await?;
        let (chosen_for, asked, at) = (now.clone(), caller.clone(), place.clone());
        let sent = off_thread(move || place::chosen(&chosen_for, &at, &asked)).await?;
        self.push(&place, caller, vec![sent.base_commit, sent.tip]).await
    }

    async fn started(&self, now: &Now, host: &str, request: &SpawnRequest, caller: &Caller) -> Result<(), HostFault> {
        if matches!(now.job().work, Work::Command(_)) {
            return Err(refused("commands do not run on hosts yet"));
        }
        let place = self.place(now, host, caller).await?;
        let (of, asked, by, key) = (now.clone(), request.clone(), caller.clone(), place.key());
        let start = off_thread(move || start_of(&of, &place, &asked, &by)).await?;
        let answer = self.call(&now.plan.id, host, caller, FarCall::Start(Box::new(start))).await;
        if matches!(answer, Err(HostFault::Refused { .. })) {
            // Perhaps somebody removed the clone: the next attempt sends everything again.
            entry(&self.pushed, key).lock().await.clear();
        }
        let FarAnswer::Started { host: id, .. } = answer? else { return Err(odd(host)) };
        // From here on, no other machine of that name counts.
        let (dir, run) = (order_dir(request)?, now.plan.id.clone());
        off_thread(move || known(&dir, &run, id)).await
    }

    /// Asks for something that is there already.
    async fn hailed(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        let place = self.place(now, host, caller).await?;
        let sent = evidence::sent(&place.dir, &now.plan.id);
        let format = if sent.is_some_and(|sent| sent.tip.len() > 40) { "sha256" } else { "sha1" };
        let call = FarCall::Clone { clone: place.clone_there(), format: format.to_owned() };
        match self.call(&now.plan.id, host, caller, call).await? {
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
        let base = now.plan.base.clone().unwrap_or_default();
        let call = FarCall::End { at: place.at.clone(), base, subject };
        let FarAnswer::Ended(left) = self.call(&now.plan.id, host, caller, call).await? else {
            return Err(odd(host));
        };
        let (now, caller) = (now.clone(), caller.clone());
        off_thread(move || taken_over(&now, &place, *left, &caller)).await
    }

    async fn stopped(&self, now: &Now, host: &str, caller: &Caller) -> Result<(), HostFault> {
        let place = self.place(now, host, caller).await?;
        match self.call(&now.plan.id, host, caller, FarCall::Stop(place.at)).await? {
            FarAnswer::Done => Ok(()),
            _ => Err(odd(host)),
        }
    }

    async fn forgotten(&self, now: &Now, host: &str, caller: &Caller) {
        let place = match self.place(now, host, caller).await {
            Ok(place) => place,
            Err(fault) => return tracing::warn!(host, ?fault, "cannot tell a host to remove what a job has left"),
        };
        let call = FarCall::Forget(place.at);
        let Err(fault) = self.call(&now.plan.id, host, caller, call.clone()).await else { return };
        tracing::info!(host, ?fault, "what a job has left on a host is removed at the next contact");
        let (paths, name) = (self.paths.clone(), host.to_owned());
        let key = format!("{}/{}", now.plan.id, now.job().id);
        let record = move || {
            owed::record(&paths, &name, &key, call).map_err(|error| refused(format!("cannot record it: {error}")))
        };
        if let Err(fault) = off_thread(record).await {
            tracing::warn!(host, ?fault, "what a job has left on a host stays there");
        }
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
    async move { done.await.unwrap_or_else(|error| Err(refused(error.to_string()))) }
}

/// Returns a caller whose processes do not count as those of a worker, and reach the host that is named.
fn plain(caller: &Caller) -> Caller {
    let mut caller = caller.clone();
    let is_kept = |name: &str| name != HOSTS && !OF_A_WORKER.contains(&name);
    Arc::make_mut(&mut caller.environment).retain(|(name, _)| is_kept(name));
    caller
}

fn order_dir(request: &SpawnRequest) -> Result<PathBuf, HostFault> {
    let dir = order::attempt_of(&request.contract.argv);
    dir.map(ToOwned::to_owned).ok_or_else(|| refused("the attempt has no order"))
}

/// Records which state directory has started the attempt.
fn known(dir: &std::path::Path, run: &str, id: Option<String>) -> Result<(), HostFault> {
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
    let unreadable = |error: std::io::Error| refused(format!("cannot read the order of the attempt: {error}"));
    let dir = &order_dir(request)?;
    let order = order::read_order(dir).map_err(unreadable)?;
    let prompt = std::fs::read_to_string(dir.join(PROMPT)).map_err(unreadable)?;
    let sent = evidence::sent(&place.dir, &now.plan.id);
    let Sent { tip, base_commit, .. } = sent.ok_or_else(|| refused("the commits of the attempt were not sent"))?;
    let (Some(branch), Some(base)) = (now.job().branch.clone(), now.plan.base.clone()) else {
        return Err(refused("the job has no branch"));
    };
    let committer = carry::committer(&place.common, caller).map(|(name, email)| Committer { name, email });
    Ok(FarStart {
        at: place.at.clone(),
        branch,
        tip,
        base,
        base_commit,
        leaf: now.job().leaf().to_owned(),
        committer,
        order,
        prompt,
        session: request.contract.session.clone(),
        tags: request.contract.tags.clone(),
        timeout_ms: request.contract.timeout_ms,
        log_limit_bytes: request.contract.log_limit_bytes,
    })
}

/// Fetches the work of an attempt that has ended, then writes its files.
fn taken_over(now: &Now, place: &Place, left: FarResult, caller: &Caller) -> Result<FarEnd, HostFault> {
    if let Some(tip) = &left.tip {
        carry::fetch(&place.common, &place.far, tip, caller).map_err(away_or_refused)?;
    }
    let written = evidence::write(now, &place.far.host, &left);
    written.map_err(|error| refused(format!("cannot write the files of the attempt: {error}")))?;
    Ok(FarEnd { exit: left.exit, tip: left.tip, left_out: left.left_out, waits: left.waits })
}

/// Moves the branch of the job to its work.
fn moved(now: &Now, caller: &Caller) -> Result<(), String> {
    let (Some(tip), Some(branch)) = (&now.progress.tip, &now.job().branch) else { return Ok(()) };
    let common = carry::common_of(std::path::Path::new(&now.plan.root), caller)?;
    let host = now.progress.host.as_deref().unwrap_or("another host");
    let why = format!("swarm: work of attempt {} on {host}", now.progress.attempt);
    carry::take(&common, Move { branch, tip, why: &why }, caller)
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
    ) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(async move { self.started(now, host, request, &plain(caller)).await })
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

    fn take<'a>(&'a self, now: &'a Now, caller: &'a Caller) -> BoxFuture<'a, Result<(), String>> {
        let (now, caller) = (now.clone(), plain(caller));
        Box::pin(async move {
            let moved = tokio::task::spawn_blocking(move || moved(&now, &caller));
            moved.await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn release<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()> {
        let (links, run) = (Arc::clone(&self.links), run.to_owned());
        Box::pin(async move {
            let _ = tokio::task::spawn_blocking(move || links.release(&run)).await;
        })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
