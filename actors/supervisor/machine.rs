//! Decisions of the root: which children are restarted after a failure, when the supervisor is idle,
//! and what to do about each thing found on disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::message::Exit;
use crate::registry::{Listing, reconcile};
use swarm_model::{FlowPlace, Row, Target};
use swarm_ports::{DirFacts, SpecFacts};

/// Time after which an idle supervisor exits, in milliseconds.
pub const IDLE_MS_MAX: u64 = 30_000;
/// Maximum number of failures of a child within [`FAILURE_WINDOW_MS`]. If a child exceeds it, the
/// supervisor gives up (the restart intensity of Erlang/OTP supervisors).
pub const FAILURES_MAX: usize = 5;
/// Window in which failures of a child are counted, in milliseconds.
pub const FAILURE_WINDOW_MS: u64 = 10_000;

/// Child of the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Child {
    /// Restarted with all workers, because they hold handles to it (rest for one).
    Registry,
    /// Restarted alone: it adopts the worker that is on disk. Named by the worker.
    Worker(String),
    /// Restarted alone: it resumes from its journal.
    Merge(Target),
    /// Restarted alone: it resumes from its files. Named by the directory of its files.
    Run(String),
    /// Restarted alone: the workers report again what lives.
    Heartbeat,
    /// Restarted alone: it resumes from its files. Named by its worker.
    Loop(String),
    /// Restarted alone: its files say which turns are running.
    Flow(FlowPlace),
    /// Restarted alone: all its state is on disk.
    Nudges,
}

impl Child {
    /// Returns the kind of a child that is found on disk by its own files. `None` for others.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Merge(_) => Some(Kind::Merges),
            Self::Run(_) => Some(Kind::Runs),
            Self::Loop(_) => Some(Kind::Loops),
            Self::Flow(_) => Some(Kind::Flows),
            Self::Registry | Self::Worker(_) | Self::Heartbeat | Self::Nudges => None,
        }
    }
}

/// Kind of children that are found on disk by their own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Merges,
    Runs,
    Loops,
    Flows,
}

impl Kind {
    /// Returns the name of one of them.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Merges => "merge queue",
            Self::Runs => "run",
            Self::Loops => "loop",
            Self::Flows => "flow",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    RequestBegan,
    RequestEnded,
    /// A child needs this process, or no longer does.
    Live {
        child: Child,
        live: bool,
    },
    /// Something of this kind on disk cannot be read or resumed yet, or everything was.
    Owed {
        kind: Kind,
        owes: bool,
    },
    /// A child panicked or returned an error, `now_ms` milliseconds after boot.
    ChildFailed {
        child: Child,
        now_ms: u64,
    },
    /// The idle timer with this number fired.
    IdleTimer(u64),
    Stop(Exit),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Fire `IdleTimer(number)` after [`IDLE_MS_MAX`].
    ArmIdle(u64),
    /// Start the successor of a child that failed. For the registry, restart all workers too.
    Restart(Child),
    End(Exit),
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    live: BTreeSet<Child>,
    /// Kinds of which something on disk cannot be read or resumed yet. It may be alive.
    owed: BTreeSet<Kind>,
    requests: usize,
    failures: BTreeMap<Child, VecDeque<u64>>,
    idle_timer: u64,
}

impl Machine {
    /// Returns the number of workers that need this process.
    pub fn live(&self) -> usize {
        self.live.iter().filter(|child| matches!(child, Child::Worker(_))).count()
    }

    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::RequestBegan => {
                self.requests += 1;
                Vec::new()
            }
            Event::RequestEnded => {
                self.requests = self.requests.saturating_sub(1);
                self.arm_when_idle()
            }
            Event::Live { child, live: true } => {
                self.live.insert(child);
                Vec::new()
            }
            Event::Live { child, live: false } => {
                self.live.remove(&child);
                self.arm_when_idle()
            }
            Event::Owed { kind, owes: true } => {
                self.owed.insert(kind);
                Vec::new()
            }
            // The same again does not start the time anew.
            Event::Owed { kind, owes: false } if !self.owed.remove(&kind) => Vec::new(),
            Event::Owed { owes: false, .. } => self.arm_when_idle(),
            Event::ChildFailed { child, now_ms } => self.child_failed(child, now_ms),
            Event::IdleTimer(number) => {
                let still = number == self.idle_timer && self.is_idle();
                if still { vec![Effect::End(Exit::Idle)] } else { Vec::new() }
            }
            Event::Stop(exit) => vec![Effect::End(exit)],
        }
    }

    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && self.owed.is_empty() && self.requests == 0
    }

    /// Arms the idle timer if the supervisor is idle. Earlier timers become void.
    pub fn arm_when_idle(&mut self) -> Vec<Effect> {
        if !self.is_idle() {
            return Vec::new();
        }
        self.idle_timer += 1;
        vec![Effect::ArmIdle(self.idle_timer)]
    }

    fn child_failed(&mut self, child: Child, now_ms: u64) -> Vec<Effect> {
        let recent = self.failures.entry(child.clone()).or_default();
        recent.push_back(now_ms);
        recent.retain(|at| now_ms.saturating_sub(*at) < FAILURE_WINDOW_MS);
        if recent.len() > FAILURES_MAX {
            return vec![Effect::End(Exit::GaveUp)];
        }
        // The successor reports again whether it needs this process.
        if child == Child::Registry {
            self.live.retain(|child| !matches!(child, Child::Registry | Child::Worker(_) | Child::Heartbeat));
        } else {
            self.live.remove(&child);
        }
        let mut effects = vec![Effect::Restart(child)];
        effects.extend(self.arm_when_idle());
        effects
    }
}

/// Action of a starting supervisor for one thing that it finds on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Adoption {
    /// Worker with a row: start an actor that adopts it.
    Worker(String),
    /// Start that was never committed: roll it back once its lease is free.
    Abort(Box<DirFacts>),
    /// Worker that runs but has no row: insert the row again.
    AdoptBack(Box<Row>),
    /// Worker that has the row of an earlier generation: replace that row.
    Renew { outdated: Arc<Row>, row: Box<Row> },
    /// Records that belong to no row: delete them.
    Remove { name: String, generation: u64, with_logs: bool },
}

/// Returns the actions for everything on disk that this machine wrote. `host` is written to rows that are inserted again.
/// Records whose row may exist and cannot be read are left as they are.
pub fn adoptions(listing: &Listing, dirs: &[DirFacts], host: &str) -> Vec<Adoption> {
    let Listing { rows, unjudged } = listing;
    let mut plan = Vec::new();
    let mut named = BTreeSet::new();
    let outdated = reconcile::outdated(rows, dirs);
    for facts in dirs.iter().filter(|facts| facts.lease.elsewhere.is_none()) {
        let row = rows.iter().find(|row| row.name == facts.name);
        if unjudged.covers(&facts.name) {
            if row.is_some_and(|row| reconcile::belongs(row, facts)) {
                plan.push(Adoption::Worker(facts.name.clone()));
            }
            continue;
        }
        let outdated = outdated.iter().find(|(_, newest)| std::ptr::eq(*newest, facts));
        if let (Some((outdated, _)), Some(mut row)) = (outdated, reconcile::row_now(facts, host)) {
            row.metadata = row.metadata.inherit(&outdated.metadata);
            plan.push(Adoption::Renew { outdated: Arc::clone(outdated), row: Box::new(row) });
            plan.push(Adoption::Worker(facts.name.clone()));
            continue;
        }
        if let Some(row) = row
            && reconcile::belongs(row, facts)
        {
            named.insert(facts.name.clone());
            plan.push(Adoption::Worker(facts.name.clone()));
            continue;
        }
        let has_later_row = || row.and_then(|row| row.swarm()).is_some_and(|meta| meta.generation > facts.generation);
        match &facts.spec {
            // A later start was committed, and may use the same worktree. So was this one then, before it: a power cut
            // took the name of its executed contract.
            SpecFacts::Pending(_) if !facts.lease.held && has_later_row() => {
                plan.push(Adoption::Remove { name: facts.name.clone(), generation: facts.generation, with_logs: false })
            }
            SpecFacts::Pending(_) => plan.push(Adoption::Abort(Box::new(facts.clone()))),
            SpecFacts::Executed(spec)
                if reconcile::has_processes(facts) && row.is_none() && !named.contains(&facts.name) =>
            {
                let pid = facts.lease.content.as_ref().map_or(0, |lease| lease.worker.pid);
                named.insert(facts.name.clone());
                plan.push(Adoption::AdoptBack(Box::new(reconcile::row_of(spec, pid, host))));
                plan.push(Adoption::Worker(facts.name.clone()));
            }
            // Another program replaced the row while our shim still ends the old generation, or without its shim.
            SpecFacts::Executed(_) | SpecFacts::Missing if reconcile::has_processes(facts) => {}
            SpecFacts::Executed(_) | SpecFacts::Missing => plan.push(Adoption::Remove {
                name: facts.name.clone(),
                generation: facts.generation,
                with_logs: row.is_none(),
            }),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::table::Table;
    use swarm_model::{Contract, Lease, ProcessId, Spec, Wanted};
    use swarm_ports::LeaseFacts;

    #[test]
    fn the_supervisor_exits_only_if_nothing_needs_it() {
        let mut machine = Machine::default();
        machine.on(Event::RequestBegan);
        machine.on(Event::Live { child: Child::Worker("a".to_owned()), live: true });
        assert_eq!(machine.on(Event::RequestEnded), Vec::new());
        let armed = machine.on(Event::Live { child: Child::Worker("a".to_owned()), live: false });
        assert_eq!(armed, vec![Effect::ArmIdle(1)]);
        machine.on(Event::RequestBegan);
        assert_eq!(machine.on(Event::IdleTimer(1)), Vec::new());
        assert_eq!(machine.on(Event::RequestEnded), vec![Effect::ArmIdle(2)]);
        assert_eq!(machine.on(Event::IdleTimer(1)), Vec::new(), "an old timer is void");
        assert_eq!(machine.on(Event::IdleTimer(2)), vec![Effect::End(Exit::Idle)]);
    }

    #[test]
    fn the_supervisor_stays_while_something_on_disk_is_not_resumed() {
        let mut machine = Machine::default();
        let owed = |kind, owes| Event::Owed { kind, owes };
        assert_eq!(machine.on(owed(Kind::Runs, false)), Vec::new());
        machine.on(owed(Kind::Runs, true));
        machine.on(owed(Kind::Flows, true));
        assert_eq!((machine.is_idle(), machine.live()), (false, 0));
        assert_eq!(machine.on(owed(Kind::Runs, false)), Vec::new());
        assert_eq!(machine.on(owed(Kind::Flows, false)), vec![Effect::ArmIdle(1)]);
    }

    #[test]
    fn a_child_that_keeps_failing_ends_the_supervisor() {
        let mut machine = Machine::default();
        machine.on(Event::Live { child: Child::Worker("b".to_owned()), live: true });
        let child = Child::Worker("a".to_owned());
        let fail = |now_ms| Event::ChildFailed { child: child.clone(), now_ms };
        for now_ms in 0..5 {
            assert_eq!(machine.on(fail(now_ms)), vec![Effect::Restart(Child::Worker("a".to_owned()))]);
        }
        assert_eq!(machine.on(fail(6)), vec![Effect::End(Exit::GaveUp)]);
        assert_eq!(machine.on(fail(60_000)), vec![Effect::Restart(Child::Worker("a".to_owned()))]);
        let registry = Event::ChildFailed { child: Child::Registry, now_ms: 60_000 };
        assert_eq!(machine.on(registry), vec![Effect::Restart(Child::Registry), Effect::ArmIdle(1)]);
    }

    #[test]
    fn a_failed_worker_actor_counts_only_once_its_successor_reports() {
        let mut machine = Machine::default();
        machine.on(Event::Live { child: Child::Worker("a".to_owned()), live: true });
        let failed = Event::ChildFailed { child: Child::Worker("a".to_owned()), now_ms: 1 };
        assert_eq!(machine.on(failed), vec![Effect::Restart(Child::Worker("a".to_owned())), Effect::ArmIdle(1)]);
        assert_eq!(machine.live(), 0);
    }

    fn facts(name: &str, generation: u64, executed: bool, held: bool) -> DirFacts {
        let spec = Spec {
            name: name.to_owned(),
            generation,
            token: format!("{name}{generation}"),
            request: String::new(),
            started: "t".to_owned(),
            contract: Contract::default(),
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        };
        let process = ProcessId { pid: 77, start_ticks: 1, boot: "b".to_owned() };
        let content = Some(Lease {
            token: spec.token.clone(),
            started: "t".to_owned(),
            worker: process.clone(),
            shim: process,
            pane: None,
            restart: Default::default(),
            limits: None,
            machine: None,
            process_namespace: None,
            survivors: Vec::new(),
        });
        let spec = Box::new(spec);
        DirFacts {
            name: name.to_owned(),
            generation,
            spec: if executed { SpecFacts::Executed(spec) } else { SpecFacts::Pending(spec) },
            lease: LeaseFacts { held, content, this_boot: true, worker_alive: held, ..LeaseFacts::default() },
            exit: None,
            wanted: Wanted::default(),
        }
    }

    fn row(facts: &DirFacts) -> Arc<Row> {
        Arc::new(reconcile::row_of(facts.spec.spec().expect("has one"), 77, "h"))
    }

    /// Returns a file with these rows, and with another row of these names that cannot be read.
    fn listing(rows: &[Arc<Row>], unreadable: &[&str]) -> Listing {
        let bad: Vec<String> = unreadable.iter().map(|name| format!("{{\"name\":{name}}}")).collect();
        let table = Table::parse(&format!("{{\"workers\":[{}]}}", bad.join(","))).expect("parses");
        Listing { rows: Arc::new(rows.to_vec()), unjudged: table.unjudged() }
    }

    #[test]
    fn nothing_is_removed_or_inserted_for_rows_that_cannot_be_read() {
        let dirs = [
            facts("aborted", 1, false, false),
            facts("ended", 1, true, false),
            facts("known", 2, true, true),
            facts("known", 1, true, false),
            facts("running", 1, true, true),
        ];
        let rows = [row(&dirs[2])];
        let planned = |unreadable: &[&str]| adoptions(&listing(&rows, unreadable), &dirs, "h");
        let remove = |name: &str, with_logs| Adoption::Remove { name: name.to_owned(), generation: 1, with_logs };
        let known = Adoption::Worker("known".to_owned());
        let of_others = planned(&["\"aborted\"", "\"ended\"", "\"running\""]);
        assert_eq!(of_others, vec![known.clone(), remove("known", false)]);
        assert_eq!(planned(&["7"]), vec![known], "it may be the row of any of them");
        assert!(planned(&["\"other\""]).contains(&remove("ended", true)));
    }

    #[test]
    fn records_on_disk_are_adopted_aborted_or_removed() {
        let kept = facts("kept", 2, true, true);
        let older = facts("kept", 1, true, false);
        let unexecuted = facts("renewed", 1, false, false);
        let renewed = facts("renewed", 2, true, true);
        let aborted = facts("aborted", 1, false, false);
        let lost_row = facts("lost", 1, true, true);
        let cleaned = facts("cleaned", 1, true, false);
        let rows = [row(&kept), row(&renewed)];
        let dirs = [aborted.clone(), cleaned, older, kept, lost_row.clone(), unexecuted, renewed];
        let remove = |name: &str, with_logs| Adoption::Remove { name: name.to_owned(), generation: 1, with_logs };
        assert_eq!(
            adoptions(&listing(&rows, &[]), &dirs, "h"),
            vec![
                Adoption::Abort(Box::new(aborted)),
                remove("cleaned", true),
                remove("kept", false),
                Adoption::Worker("kept".to_owned()),
                Adoption::AdoptBack(Box::new(row(&lost_row).as_ref().clone())),
                Adoption::Worker("lost".to_owned()),
                remove("renewed", false),
                Adoption::Worker("renewed".to_owned()),
            ]
        );
    }

    #[test]
    fn records_of_processes_that_are_alive_without_their_shim_stay() {
        let (mut lost, mut left, mut replaced) =
            (facts("lost", 1, true, false), facts("left", 1, true, false), facts("replaced", 1, true, false));
        lost.lease.worker_alive = true;
        left.lease.survivors = vec![ProcessId { pid: 78, start_ticks: 1, boot: "b".to_owned() }];
        replaced.lease.worker_alive = true;
        let later = facts("replaced", 2, true, true);
        let rows = [row(&later)];
        let back = |facts: &DirFacts| Adoption::AdoptBack(Box::new(row(facts).as_ref().clone()));
        let worker = |name: &str| Adoption::Worker(name.to_owned());
        assert_eq!(
            adoptions(&listing(&rows, &[]), &[left.clone(), lost.clone(), replaced, later], "h"),
            vec![back(&left), worker("left"), back(&lost), worker("lost"), worker("replaced")]
        );
    }

    #[test]
    fn rows_of_earlier_generations_are_replaced() {
        let [earlier, ended, running] =
            [(1, false), (2, false), (2, true)].map(|(of, held)| facts("a", of, true, held));
        let mut renewed = row(&ended).as_ref().clone();
        renewed.status = swarm_model::WireStatus::Stopped;
        let renew = |row: Row| Adoption::Renew { outdated: super::tests::row(&earlier), row: Box::new(row) };
        let worker = Adoption::Worker("a".to_owned());
        assert_eq!(
            adoptions(&listing(&[row(&earlier)], &[]), std::slice::from_ref(&ended), "h"),
            vec![renew(renewed), worker.clone()]
        );
        let current = row(&running).as_ref().clone();
        assert_eq!(
            adoptions(&listing(&[row(&earlier)], &[]), std::slice::from_ref(&running), "h"),
            vec![renew(current), worker.clone()]
        );
        // A new worker got the number of an earlier one, whose records could not be deleted when it was cleaned.
        let remove = Adoption::Remove { name: "a".to_owned(), generation: 2, with_logs: false };
        assert_eq!(adoptions(&listing(&[row(&earlier)], &[]), &[earlier.clone(), ended], "h"), vec![worker, remove]);
    }

    #[test]
    fn nothing_of_another_machine_is_adopted_or_removed() {
        let mut dirs = [facts("kept", 2, true, true), facts("aborted", 1, false, false), facts("lost", 1, true, true)];
        let rows = [row(&dirs[0])];
        for facts in &mut dirs {
            facts.lease.elsewhere = Some("far".to_owned());
        }
        assert_eq!(adoptions(&listing(&rows, &[]), &dirs, "h"), Vec::new());
    }
}
