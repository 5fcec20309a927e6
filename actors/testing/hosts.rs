//! Other machines in memory: a worker per attempt, which a test ends. A host that is away answers nothing, and its workers
//! go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};

use super::script::Script;
use swarm_model::run::Abandoned;
use swarm_model::run::plan::Plan;
use swarm_model::run::progress::Now;
use swarm_model::{Caller, Ended, ExitRecord, Hits, Reason, SpawnRequest, Usage};
use swarm_ports::{BoxFuture, FarEnd, HostFault, Hosts, Reclaimed};

pub struct FakeHosts {
    script: Arc<Script>,
    hosts: Mutex<BTreeMap<String, FakeHost>>,
    changed: Notify,
    network: watch::Sender<()>,
    /// Why no branch can be moved.
    blocked: Mutex<Option<String>>,
}

#[derive(Default)]
struct FakeHost {
    fault: Option<HostFault>,
    /// Jobs whose base was sent.
    brought: BTreeSet<String>,
    /// Attempts that were started, as `JOB.N`, each with its end.
    attempts: BTreeMap<String, Option<FarEnd>>,
    /// Attempts that were started on another machine of the same name, which does not answer now.
    elsewhere: BTreeMap<String, Option<FarEnd>>,
    /// Number of workers that were started.
    starts: usize,
    /// Attempts that were given up, as `JOB.N`, which the host has not been told.
    owed: BTreeSet<String>,
    /// Attempts that are to be stopped, as `JOB.N`, which the host has not been told.
    stops: BTreeSet<String>,
    /// Why the work of attempts that were given up does not come back, although the host answers.
    held: Option<String>,
    /// Work of such attempts that came back, as `JOB.N`.
    returned: BTreeSet<String>,
    load: Option<u32>,
    /// Why the starts of some jobs fail.
    unfit: BTreeMap<String, HostFault>,
    /// Why the ends of some jobs cannot be taken.
    stuck: BTreeMap<String, HostFault>,
}

impl FakeHost {
    /// Does what is owed to the host. What another machine has stays owed.
    fn deliver(&mut self) {
        let (elsewhere, attempts) = (&self.elsewhere, &mut self.attempts);
        self.stops.retain(|name| {
            attempts.get_mut(name).map(|end| end.get_or_insert_with(stopped));
            elsewhere.contains_key(name)
        });
        for name in std::mem::take(&mut self.owed) {
            if self.elsewhere.contains_key(&name) || self.held.is_some() {
                self.attempts.get_mut(&name).map(|end| end.get_or_insert_with(stopped));
                self.owed.insert(name);
            } else if self.attempts.remove(&name).is_some() {
                self.returned.insert(name);
            }
        }
    }

    /// Fails if another machine of the same name has the attempt.
    fn has(&self, name: &str) -> Result<(), HostFault> {
        match self.elsewhere.contains_key(name) {
            true => Err(HostFault::Refused { cause: "this is another machine".to_owned() }),
            false => Ok(()),
        }
    }
}

impl FakeHosts {
    pub fn new(script: Arc<Script>) -> Self {
        Self {
            script,
            hosts: Mutex::default(),
            changed: Notify::new(),
            network: watch::Sender::new(()),
            blocked: Mutex::default(),
        }
    }

    /// Makes each call to the host fail, and cuts those that wait; `None` ends that.
    pub fn fail(&self, host: &str, fault: Option<HostFault>) {
        self.with(host, |host| host.fault = fault);
        self.changed.notify_waiters();
    }

    /// Changes the network of this machine.
    pub fn change_network(&self) {
        self.network.send_replace(());
    }

    /// Puts another machine under the name of the host; the next time, the first one returns.
    pub fn replace(&self, host: &str) {
        self.with(host, |host| std::mem::swap(&mut host.attempts, &mut host.elsewhere));
        self.changed.notify_waiters();
    }

    /// Reaches the host, which delivers what it is owed.
    pub fn contact(&self, host: &str) {
        self.with(host, FakeHost::deliver);
        self.changed.notify_waiters();
    }

    /// Lets no work of attempts that were given up come back, for this reason; `None` ends that.
    pub fn hold(&self, host: &str, why: Option<&str>) {
        self.with(host, |host| host.held = why.map(str::to_owned));
    }

    /// Lets no branch be moved, for this reason; `None` ends that.
    pub fn blocks_take(&self, why: Option<String>) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Sets the load that a host reports with each start.
    pub fn set_load(&self, host: &str, level: u32) {
        self.with(host, |host| host.load = Some(level));
    }

    /// Makes the starts of a job fail; `None` ends that.
    pub fn fail_start(&self, host: &str, job: &str, fault: Option<HostFault>) {
        self.with(host, |host| match fault {
            Some(fault) => drop(host.unfit.insert(job.to_owned(), fault)),
            None => drop(host.unfit.remove(job)),
        });
    }

    /// Makes the calls about the end of a job fail, and cuts those that wait; `None` ends that.
    pub fn fail_end(&self, host: &str, job: &str, fault: Option<HostFault>) {
        self.with(host, |host| match fault {
            Some(fault) => drop(host.stuck.insert(job.to_owned(), fault)),
            None => drop(host.stuck.remove(job)),
        });
        self.changed.notify_waiters();
    }

    /// Ends an attempt, `JOB.N`.
    pub fn finish(&self, host: &str, attempt: &str, end: FarEnd) {
        self.with(host, |host| *host.attempts.get_mut(attempt).expect("was started") = Some(end));
        self.changed.notify_waiters();
    }

    /// Returns the attempts on a host that have not ended, as `JOB.N`.
    pub fn at_work(&self, host: &str) -> Vec<String> {
        let open = |(name, end): (&String, &Option<FarEnd>)| end.is_none().then(|| name.clone());
        self.with(host, |host| host.attempts.iter().filter_map(open).collect())
    }

    /// Returns the attempts whose work came back from a host after they were given up, as `JOB.N`.
    pub fn returned(&self, host: &str) -> Vec<String> {
        self.with(host, |host| host.returned.iter().cloned().collect())
    }

    /// Returns the number of workers that were started on a host.
    pub fn starts(&self, host: &str) -> usize {
        self.with(host, |host| host.starts)
    }

    fn with<T>(&self, host: &str, work: impl FnOnce(&mut FakeHost) -> T) -> T {
        work(self.hosts.lock().unwrap_or_else(PoisonError::into_inner).entry(host.to_owned()).or_default())
    }

    async fn call<T>(
        &self,
        step: &str,
        host: &str,
        name: String,
        work: impl FnOnce(&mut FakeHost) -> T,
    ) -> Result<T, HostFault> {
        let cut = |cause: String| HostFault::Away { cause };
        self.script.before(step, &format!("{host} {name}")).await.map_err(cut)?;
        let done = self.with(host, |host| match host.fault.clone() {
            None => {
                host.deliver();
                Ok(work(host))
            }
            Some(fault) => Err(fault),
        })?;
        self.script.after(step).await.map_err(cut)?;
        Ok(done)
    }
}

/// Returns the exit record of a worker on a host.
pub fn exit_record(ended: Ended, reason: Reason) -> ExitRecord {
    ExitRecord {
        token: "t".parse().expect("a token"),
        started: String::new(),
        pid: 1,
        ended,
        reason,
        ended_at_ms: 0,
        duration_ms: 0,
        usage: Usage::default(),
        survivors: Vec::new(),
        hits: Hits::default(),
        interrupted: false,
        server_lost: None,
    }
}

fn stopped() -> FarEnd {
    FarEnd { exit: Some(exit_record(Ended::Signal(15), Reason::Stopped)), ..FarEnd::default() }
}

fn name(now: &Now) -> String {
    format!("{}.{}", now.job().id, now.progress.attempt)
}

impl Hosts for FakeHosts {
    fn bring<'a>(&'a self, now: &'a Now, host: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(self.call("hosts.bring", host, name(now), |host| {
            host.brought.insert(now.job().id.clone());
        }))
    }

    fn start<'a>(
        &'a self,
        now: &'a Now,
        host: &'a str,
        _: &'a SpawnRequest,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<Option<u32>, HostFault>> {
        Box::pin(async move {
            let started = self.call("hosts.start", host, name(now), |host| {
                assert!(host.brought.contains(&now.job().id), "the base is not there");
                host.has(&name(now))?;
                if let Some(fault) = host.unfit.get(&now.job().id) {
                    return Err(fault.clone());
                }
                host.attempts.entry(name(now)).or_insert_with(|| {
                    host.starts += 1;
                    None
                });
                Ok(host.load)
            });
            started.await?
        })
    }

    fn network_changed(&self) -> BoxFuture<'static, ()> {
        let mut network = self.network.subscribe();
        Box::pin(async move {
            if network.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn hail<'a>(&'a self, now: &'a Now, host: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(self.call("hosts.hail", host, name(now), |_| ()))
    }

    fn end<'a>(&'a self, now: &'a Now, host: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<FarEnd, HostFault>> {
        Box::pin(async move {
            loop {
                let changed = self.changed.notified();
                let end = self.call("hosts.end", host, name(now), |host| match host.stuck.get(&now.job().id) {
                    Some(fault) => Err(fault.clone()),
                    None => host.has(&name(now)).map(|()| host.attempts.get(&name(now)).cloned().flatten()),
                });
                if let Some(end) = end.await?? {
                    return Ok(end);
                }
                changed.await;
            }
        })
    }

    fn stop<'a>(&'a self, now: &'a Now, host: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<(), HostFault>> {
        Box::pin(async move {
            self.with(host, |host| host.stops.insert(name(now)));
            self.call("hosts.stop", host, name(now), |host| host.has(&name(now))).await??;
            self.changed.notify_waiters();
            Ok(())
        })
    }

    fn forget<'a>(&'a self, now: &'a Now, host: &'a str, _: &'a Caller) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let prefix = format!("{}.", now.job().id);
            let forget = |host: &mut FakeHost| host.attempts.retain(|name, _| !name.starts_with(&prefix));
            let _ = self.call("hosts.forget", host, name(now), forget).await;
        })
    }

    fn owe<'a>(&'a self, _: &'a Plan, abandoned: &'a Abandoned, _: &'a Caller) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let name = format!("{}.{}", abandoned.job, abandoned.attempt);
            self.script.before("hosts.owe", &name).await?;
            self.with(&abandoned.host, |host| host.owed.insert(name));
            self.script.after("hosts.owe").await
        })
    }

    fn reclaim<'a>(
        &'a self,
        _: &'a Plan,
        abandoned: &'a Abandoned,
        _: &'a Caller,
    ) -> BoxFuture<'a, Result<Reclaimed, HostFault>> {
        Box::pin(async move {
            let name = format!("{}.{}", abandoned.job, abandoned.attempt);
            let judged = |host: &mut FakeHost| match (&host.held, host.elsewhere.contains_key(&name)) {
                (_, true) => Ok(Reclaimed::Gone),
                (Some(cause), _) if host.owed.contains(&name) => Err(HostFault::Busy { cause: cause.clone() }),
                _ => {
                    let has_work = host.returned.contains(&name);
                    Ok(Reclaimed::Back(has_work.then(|| abandoned.reference()).into_iter().collect()))
                }
            };
            let judged = self.call("hosts.reclaim", &abandoned.host, name.clone(), judged).await?;
            self.changed.notify_waiters();
            judged
        })
    }

    fn take<'a>(&'a self, now: &'a Now, _: &'a Caller) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            self.script.before("hosts.take", now.job().id.as_str()).await?;
            self.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
        })
    }

    fn go_on<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.script.note(format!("hosts.go_on {run}"));
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.values_mut().for_each(|host| host.stops.clear());
        })
    }

    fn admit(&self, run: &str) {
        self.script.note(format!("hosts.admit {run}"));
    }

    fn release<'a>(&'a self, run: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.script.note(format!("hosts.release {run}")) })
    }
}
