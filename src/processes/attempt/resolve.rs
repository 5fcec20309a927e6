//! `swarm __resolve HOME`: asks the agent of a workstream to resolve the conflicts of its work with the base. The merge
//! queue runs it in the worktree with the started merge, which is described in the environment.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_agents::dialogue::Request;
use swarm_model::asks::judge::Ruling;
use swarm_model::asks::{Asker, Verdict};
use swarm_model::merge::RESOLVER_LATER;
use swarm_model::run::plan::{Job, Work};
use swarm_model::run::words::Word;
use swarm_model::run::worker_name;
use swarm_model::run::{FaultKind, Outcome};

use super::diary::Diary;
use super::gate::{Gate, NOBODY};
use super::judging::Judge;
use super::log::Log;
use super::turn::{Decided, Teller, take_turn};
use swarm_agents::{Agent, Turn};
use swarm_config::defaults;
use swarm_store::runs::home::Home;
use swarm_store::runs::prompt::{Template, fill, folders};
use swarm_store::runs::{journal, order, prepare, specs};
use swarm_sys::clock::random_uuid;
use swarm_sys::paths::Paths;

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let Some(home) = arguments.next().map(PathBuf::from) else { return 2 };
    match resolve(&home) {
        Ok(Outcome::Success { .. }) => 0,
        Ok(Outcome::Failure { cause, fault, .. }) => {
            swarm_sys::complain!("the agent could not resolve the conflicts: {cause}");
            // Another time it can: the queue pauses the item, and this was no try.
            let is_later = matches!(fault, FaultKind::Limit { .. } | FaultKind::Passing);
            if is_later { u8::try_from(RESOLVER_LATER).unwrap_or(1) } else { 1 }
        }
        Ok(Outcome::Stopped | Outcome::Parked { .. }) => 1,
        Err(error) => {
            swarm_sys::complain!("swarm: error: {error}");
            1
        }
    }
}

fn resolve(home: &Path) -> io::Result<Outcome> {
    let home = Home::new(home);
    let run = journal::replay(&home).map_err(io::Error::other)?;
    let run = run.ok_or_else(|| io::Error::other(format!("no run in {}", home.path().display())))?;
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let name = variable("SWARM_MERGE_NAME");
    // Work that was done on a host is queued by its branch.
    let is_it = |job: &Job| worker_name(&run.plan.slug, &job.id) == name || job.branch.as_deref() == Some(&name);
    let found = run.plan.jobs.iter().position(is_it);
    let found = found.map(|at| (&run.plan.jobs[at], run.jobs[at].attempt));
    let Some((job, attempt, Work::Spec(work))) = found.map(|(job, attempt)| (job, attempt, &job.work)) else {
        return Err(io::Error::other(format!("workstream of '{name}' not found in this run")));
    };
    let root = Path::new(&run.plan.root);
    let config = swarm_config::load(Some(root)).map_err(io::Error::other)?;
    config.unasked.require(&["agents"]).map_err(|untrusted| io::Error::other(untrusted.to_string()))?;
    let mut agent =
        Agent::find(work.adapter.as_deref().unwrap_or(defaults::AGENT), &config.agents).map_err(io::Error::other)?;
    if !agent.converses() {
        return Err(io::Error::other(format!("agent '{}' cannot resolve conflicts", agent.name)));
    }
    let here = std::env::current_dir()?;
    let (paths, consent, tree) = (Paths::from_env()?, run.plan.rules.consent, here.to_string_lossy().into_owned());
    let who = Asker { run: Some(run.plan.id.clone()), job: Some(job.id.clone()), ..Asker::default() };
    let record = Some(home.attempt(&job.id, attempt));
    let (root_dir, cwd) = (paths.root().to_owned(), tree.clone());
    let rules = run.plan.rules.asks.clone();
    let (who_asks, record_in, own) = (who.clone(), record.clone(), rules.clone());
    let gate = Gate { root: root_dir, cwd, consent, who: who_asks, dir: None, record: record_in, rules: own };
    prepare::restrict(&mut agent, consent, Some(root), &here, &gate.command()?);
    prepare::hold_back(&mut agent, root, &here).map_err(io::Error::other)?;
    prepare::hide_own_files(&agent, root);
    let spec = specs::read_one(&root.join(&work.file)).map_err(|(cause, _)| io::Error::other(cause))?;
    let folders = folders(root, &home, &config);
    let base = variable("SWARM_MERGE_BASE");
    let prompt = fill(
        &Template::Conflict.load(&folders)?,
        &[
            ("files", variable("SWARM_MERGE_FILES").trim()),
            ("theirs", variable("SWARM_MERGE_ONTO_LOG").trim()),
            ("title", &work.title),
            ("name", &job.id),
            ("base", run.plan.base.as_deref().unwrap_or(&base)),
            ("spec", spec.body.trim()),
        ],
    );
    let id = random_uuid();
    let here = std::env::current_dir()?;
    let here = here.to_string_lossy();
    let turn = Turn { prompt: &prompt, session: None, fresh_id: &id, cwd: &here, consent };
    let mut launch = agent.launch(&turn);
    launch.env.push(("SWARM_WORKSTREAM".to_owned(), job.id.clone()));
    let diary = Diary::new(Log::open(&home.log(&job.id))?, home.events(), &run.plan.id, &job.id);
    let mut judge = Judge::new(paths, who, tree, consent);
    (judge.record, judge.rules) = (record, rules);
    let mut teller = Conflict { diary, raw: !agent.resumes(), judge };
    let dir = home.attempt(&job.id, attempt);
    let report = take_turn(&launch, agent.talk(&turn), &mut teller)?;
    if let Err(error) = order::write_resolution(&dir, &id, &report.spent) {
        swarm_sys::complain!("swarm: warning: cannot record the cost: {error}");
    }
    Ok(report.outcome)
}

struct Conflict {
    diary: Diary,
    raw: bool,
    judge: Judge,
}

impl Teller for Conflict {
    /// Nobody is asked: the merge queue would have to wait for the answer.
    fn asked(&mut self, request: &Request) -> Decided {
        let reason = match self.judge.ruling(&request.wish) {
            Ruling::Allow => return Decided::Now(Verdict::Allow { input: None }),
            Ruling::Deny { reason } => reason,
            Ruling::Ask => NOBODY.to_owned(),
        };
        self.judge.denied(&request.call, &request.tool, &request.wish, &reason);
        Decided::Now(Verdict::Deny { reason })
    }

    fn session(&mut self, _: String) {}

    fn tell(&mut self, word: Word) {
        if let Word::Activity { text } = &word
            && !self.raw
        {
            self.diary.note(text);
        }
        self.diary.tell(word);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.diary.raw(bytes);
    }

    fn looked(&mut self) -> Option<Duration> {
        self.diary.write();
        None
    }

    fn wants_raw(&self) -> bool {
        self.raw
    }

    fn listens(&self) -> bool {
        true
    }
}
