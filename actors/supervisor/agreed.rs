//! What an agent may not decide: by which rules its work lands. The supervisor compares what a process below a worker asks
//! for with what a person agreed to, whatever that process says itself.

use super::merges::{Desk, LOOK_MAX, Seen};
use super::message::Request;
use crate::run::Begin;
use crate::worker::WorkerRecord;
use swarm_model::merge::Agreed;
use swarm_model::run::plan::{Job, Plan};
use swarm_model::{
    Below, Caller, Contract, Environment, LoopOrder, MergeSettings, Origin, Refusal, RefusalKind, RunWork, Target,
};
use swarm_ports::Completion;

/// Variables that mark the processes of a worker.
const TOKEN: &str = "SWARM_TOKEN";
const NAME: &str = "SWARM_WORKER";

/// Refuses to continue a queue that a person has paused.
pub(super) fn cannot_resume(target: &Target, below: Option<&Below>) -> Refusal {
    let who = below.unwrap_or(&Below::Unknown);
    let cause = format!("{who} cannot resume the queue of {}", target.base());
    Refusal::new(RefusalKind::Invalid, cause).remedy("run the command in a terminal of your own")
}

fn of_a_run(below: &Below, what: &str) -> Refusal {
    Refusal::new(RefusalKind::Invalid, format!("{below} cannot replace {what} of its run"))
        .remedy("run the command in a terminal of your own")
}

/// Refuses what lands work, if it is not known for whom a process asks. Its environment would decide what a verification
/// executes.
fn for_somebody(below: Option<&Below>, what: &str) -> Result<(), Refusal> {
    match below {
        Some(below @ (Below::Command | Below::Unknown)) => {
            let refusal = Refusal::new(RefusalKind::Invalid, format!("{below} cannot {what}"));
            Err(refusal.remedy("run the command in a terminal of your own"))
        }
        Some(Below::Worker(_)) | None => Ok(()),
    }
}

impl Desk {
    /// Returns the caller of a request as the supervisor knows it. A process that has left its worker may still have the
    /// worker's mark. What the supervisor executes for an agent has the environment with which a person started the
    /// worker: by its own, the agent could choose what a verification executes.
    pub(super) async fn vouched(&self, caller: Caller) -> Caller {
        let mut caller = self.marked(caller).await;
        if let Some(Below::Worker(name)) = &caller.below
            && let Ok(record) = WorkerRecord::read(&self.ports, &self.registry, name).await
            && let WorkerRecord::Ours { facts, .. } = record
            && let Some(spec) = facts.spec.spec()
        {
            let contract = &spec.contract;
            let origin = contract.origin.as_ref().map(|origin| &origin.environment);
            caller.environment = origin.unwrap_or(&contract.environment).clone();
        }
        caller
    }

    /// Returns the work of an agent from which a request comes. `None` for a person. `environment` is that of the process.
    ///
    /// # Errors
    /// Fails if the records of the worker above the process cannot be read.
    pub(super) async fn origin(&self, caller: &Caller, environment: &Environment) -> Result<Option<Origin>, Refusal> {
        let caller = self.marked(Caller { environment: environment.clone(), ..caller.clone() }).await;
        let Some(Below::Worker(worker)) = caller.below.clone() else { return Ok(None) };
        let record = WorkerRecord::read(&self.ports, &self.registry, &worker).await?;
        let contract = match &record {
            WorkerRecord::Ours { facts, .. } => facts.spec.spec().map(|spec| spec.contract.clone()),
            WorkerRecord::Foreign { .. } | WorkerRecord::None => None,
        };
        let own = record.row().and_then(|row| row.worktree.as_ref());
        let own = own.map(|tree| RunWork { branch: tree.branch.clone(), repository: tree.base_repo.clone() });
        let (inherited, environment, above) = match contract {
            Some(Contract { origin: Some(origin), .. }) => (origin.work, origin.environment, origin.depth),
            Some(contract) => (None, contract.environment, 0),
            None => (None, environment.clone(), 0),
        };
        let work = match own {
            // A run whose rules cannot be read may be one; they are asked for again when something is to land.
            Some(own) if self.agreed_of(&own, &caller).await.is_ok_and(|agreed| agreed.is_none()) => inherited,
            own => own.or(inherited),
        };
        Ok(Some(Origin { worker, depth: above.saturating_add(1), work, environment }))
    }

    async fn marked(&self, mut caller: Caller) -> Caller {
        let of = |name: &str| {
            let found = caller.environment.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        if caller.below.is_none()
            && let (Some(token), Some(name)) = (of(TOKEN), of(NAME))
            && let Ok(WorkerRecord::Ours { facts, .. }) = WorkerRecord::read(&self.ports, &self.registry, &name).await
            && facts.spec.spec().is_some_and(|spec| spec.token == token)
        {
            caller.below = Some(Below::Worker(name));
        }
        caller
    }

    /// Returns a request whose new worker has the [`Origin`] of the request.
    ///
    /// # Errors
    /// Fails as [`Self::origin`] does.
    pub(super) async fn traced(&self, request: Request) -> Result<Request, Refusal> {
        let Request::Spawn(mut spawn) = request else { return Ok(request) };
        if spawn.contract.merge {
            let named = Caller { environment: spawn.contract.environment.clone(), ..spawn.caller.clone() };
            let below = self.marked(named).await.below;
            for_somebody(below.as_ref(), "start a worker whose work lands")
                .map_err(|refusal| refusal.of(&spawn.name))?;
        }
        let origin = self.origin(&spawn.caller, &spawn.contract.environment).await;
        spawn.contract.origin = origin.map_err(|refusal| refusal.of(&spawn.name))?;
        Ok(Request::Spawn(spawn))
    }

    /// Returns an order whose new loop has the [`Origin`] of the request.
    ///
    /// # Errors
    /// Fails as [`Self::origin`] does.
    pub(super) async fn traced_loop(&self, caller: &Caller, mut order: LoopOrder) -> Result<LoopOrder, Refusal> {
        if let LoopOrder::Begin { plan, .. } = &mut order {
            let origin = self.origin(caller, &plan.contract.environment).await;
            plan.contract.origin = origin.map_err(|refusal| refusal.of(&plan.name))?;
        }
        Ok(order)
    }

    /// Fails if the worker whose work was `seen` has another generation than `meant`.
    async fn check_generation(&self, name: &str, seen: &Seen, meant: u64) -> Result<(), Refusal> {
        let subject = WorkerRecord::read(&self.ports, &self.registry, name).await?;
        let is_meant = subject.row().and_then(|row| row.swarm()).is_some_and(|swarm| swarm.generation == meant);
        if is_meant && seen.is(&subject) { Ok(()) } else { Err(Refusal::started_again(name)) }
    }

    /// Returns work that is to land, with its worker, and the rules by which it does. With a `generation`, the name is that
    /// of a worker of this generation. Work of a run is verified as that run
    /// asked, unless a person has typed something else.
    pub(super) async fn found(
        &self,
        completion: Completion,
        generation: Option<u64>,
    ) -> Result<(Completion, Seen), Refusal> {
        let below = completion.caller.below.clone();
        for_somebody(below.as_ref(), "add work to a merge queue")?;
        let (mut completion, seen) = self.looked_up(completion).await?;
        if let Some(meant) = generation {
            self.check_generation(&completion.name, &seen, meant).await?;
        }
        if below.is_none() && completion.settings.verify.is_some() {
            return Ok((completion, seen));
        }
        let name = completion.name.clone();
        let unknown = |cause: String| {
            let cause = format!("it is unknown how the run of '{name}' verifies its work: {cause}");
            let remedy = match &below {
                Some(_) => "run the command in a terminal of your own".to_owned(),
                None => format!("run 'swarm merge add {name} --verify COMMAND', with '' for none"),
            };
            Refusal::new(RefusalKind::Invalid, cause).remedy(remedy)
        };
        let worker = completion.worker.as_ref();
        let branch = worker.map_or(name.as_str(), |(worktree, _)| &worktree.branch);
        // The record of a worktree that was kept is in the repository, where an agent may have written it.
        let root = worker.filter(|_| !completion.is_kept).map(|(worktree, _)| worktree.base_repo.as_str());
        let mut agreed = self.agreed(branch, root, &completion.caller).await.map_err(unknown)?;
        match &below {
            None => completion.settings.verify = agreed.and_then(|agreed| agreed.settings.verify),
            Some(below) => {
                if agreed.is_none() {
                    agreed = self.own(below, &completion.caller).await.map_err(unknown)?.map(|(_, agreed)| agreed);
                }
                completion.agreed = agreed;
            }
        }
        Ok((completion, seen))
    }

    async fn agreed(&self, branch: &str, root: Option<&str>, caller: &Caller) -> Result<Option<Agreed>, String> {
        let asked = self.ports.runs.agreed(branch, root, caller);
        let silent = || Err(format!("its records could not be read within {} s", LOOK_MAX.as_secs()));
        tokio::time::timeout(LOOK_MAX, asked).await.unwrap_or_else(|_| silent())
    }

    async fn rules_of(&self, root: &str, caller: &Caller) -> Result<MergeSettings, Refusal> {
        let asked = tokio::time::timeout(LOOK_MAX, self.ports.landings.rules_of(root, caller)).await;
        asked.unwrap_or_else(|_| {
            let cause = format!("the rules of {root} could not be read within {} s", LOOK_MAX.as_secs());
            Err(Refusal::new(RefusalKind::Tool, cause).remedy("run the command again later"))
        })
    }

    async fn agreed_of(&self, work: &RunWork, caller: &Caller) -> Result<Option<Agreed>, String> {
        self.agreed(&work.branch, Some(&work.repository), caller).await
    }

    /// Returns the rules of the run to which the caller's own worker belongs, or from whose work that worker was started, and
    /// the checkouts of its repository: otherwise an agent could give its work another name.
    async fn own(&self, below: &Below, caller: &Caller) -> Result<Option<(Vec<String>, Agreed)>, String> {
        let Below::Worker(name) = below else { return Ok(None) };
        let record = WorkerRecord::read(&self.ports, &self.registry, name).await;
        let record = record.map_err(|refusal| refusal.cause)?;
        let tree = record.row().and_then(|row| row.worktree.clone());
        let mut works = Vec::new();
        works.extend(
            tree.iter().map(|tree| RunWork { branch: tree.branch.clone(), repository: tree.base_repo.clone() }),
        );
        if let WorkerRecord::Ours { facts, .. } = &record
            && let Some(origin) = facts.spec.spec().and_then(|spec| spec.contract.origin.clone())
        {
            works.extend(origin.work);
        }
        for work in works {
            if let Some(agreed) = self.agreed_of(&work, caller).await? {
                let roots = std::iter::once(work.repository).chain(tree.map(|tree| tree.path)).collect();
                return Ok(Some((roots, Agreed { is_of_work: false, ..agreed })));
            }
        }
        Ok(None)
    }

    /// Returns work that lands at the end of its worker, with the rules of the run from whose work the worker was started.
    pub(super) async fn finished(&self, mut completion: Completion) -> Result<Completion, Refusal> {
        let Some(below) = completion.caller.below.clone() else { return Ok(completion) };
        completion.caller = self.vouched(completion.caller).await;
        let name = completion.name.clone();
        let unknown = |cause: String| {
            let cause = format!("it is unknown how the run of '{name}' verifies its work: {cause}");
            Refusal::new(RefusalKind::Tool, cause).remedy(format!("run 'swarm merge add {name}'"))
        };
        let (branch, root) = match &completion.worker {
            Some((tree, _)) => (tree.branch.as_str(), Some(tree.base_repo.as_str())),
            None => (name.as_str(), None),
        };
        completion.agreed = match self.agreed(branch, root, &completion.caller).await.map_err(unknown)? {
            None => self.own(&below, &completion.caller).await.map_err(unknown)?.map(|(_, agreed)| agreed),
            agreed => agreed,
        };
        Ok(completion)
    }

    /// Returns a run that may begin. Whoever begins it below a worker cannot replace the rules to which a person agreed,
    /// neither those of the earlier run in its place nor those of the run that the worker belongs to.
    pub(super) async fn vetted(&self, mut begin: Begin) -> Result<Begin, Refusal> {
        let typed = begin.caller.environment.clone();
        begin.caller = self.vouched(begin.caller).await;
        let Some(below) = begin.caller.below.take() else { return Ok(begin) };
        for_somebody(Some(&below), "begin a run")?;
        let mut is_agreed = false;
        let (plan, caller) = (&begin.plan, &begin.caller);
        let unknown = |cause: String| {
            let cause = format!("it is unknown how the earlier run verifies its work: {cause}");
            Refusal::new(RefusalKind::Invalid, cause).remedy("run the command in a terminal of your own")
        };
        let own = self.own(&below, caller).await.map_err(unknown)?;
        let own = own.filter(|(roots, agreed)| roots.contains(&plan.root) && agreed.base == plan.base);
        let file = match plan.jobs.iter().any(|job| job.merge && job.branch.is_some()) {
            true => self.rules_of(&plan.root, caller).await?,
            false => MergeSettings::default(),
        };
        // Its commands are executed in the environment of a person, too.
        is_agreed |= file != MergeSettings::default();
        for job in plan.jobs.iter().filter(|job| job.merge) {
            let Some(branch) = &job.branch else { continue };
            let earlier = self.agreed(branch, Some(&plan.root), caller).await.map_err(unknown)?;
            let other = earlier.as_ref().or(own.as_ref().map(|(_, agreed)| agreed));
            is_agreed |= other.is_some();
            if let Some(what) = other.and_then(|agreed| replaced(plan, job, agreed)) {
                return Err(of_a_run(&below, what).of(&job.id));
            }
            // Settings of a run to which a person agreed take precedence over the file.
            let is_free = |key: &&str| other.is_none_or(|agreed| !agreed.settings.sets(key));
            if let Some(key) = file.replaced(&plan.settings_of(job)).into_iter().find(is_free) {
                let refusal =
                    Refusal::new(RefusalKind::Invalid, format!("{below} cannot replace '{key}' of swarm.toml"));
                return Err(refusal.remedy("run the command in a terminal of your own").of(&job.id));
            }
        }
        if !is_agreed {
            // A run of the agent's own.
            begin.caller.environment = typed;
        }
        Ok(begin)
    }
}

/// Returns what a plan replaces for a job. A run whose plan says nothing about it replaces a rule as well.
fn replaced(plan: &Plan, job: &Job, agreed: &Agreed) -> Option<&'static str> {
    let (new, old) = (plan.settings_of(job), &agreed.settings);
    let all = [
        ("'verify'", new.verify != old.verify && (agreed.is_of_work || old.verify.is_some())),
        ("'resolver'", new.resolver != old.resolver && (agreed.is_of_work || old.resolver.is_some())),
        ("'strategy'", new.strategy != old.strategy && (agreed.is_of_work || old.strategy.is_some())),
        ("the base", plan.base != agreed.base),
        ("'merge'", agreed.is_of_work && !agreed.lands),
    ];
    all.into_iter().find(|(_, is_replaced)| *is_replaced).map(|(what, _)| what)
}
