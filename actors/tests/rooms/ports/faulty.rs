//! Ports that pass every call on, except one that fails before its effect, fails after it, or never returns. A method
//! that is added to a port does not compile until it is added here, and so takes part in the sweep.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use swarm_model::flow::{Begin, Ended as TurnEnded, Standing, Turn};
use swarm_model::loops::progress::{Earlier, Loop, Plan as LoopPlan, Wire};
use swarm_model::merge::queue::{Item, Obstacle, Queue, Rules};
use swarm_model::merge::{Agreed, Build, Landing, Resolution, Verdict};
use swarm_model::nudges::Nudge;
use swarm_model::run::plan::Plan as RunPlan;
use swarm_model::run::progress::{Now, Run, Spent};
use swarm_model::run::{Abandoned, Event as RunEvent, FaultKind, Outcome, Wish};
use swarm_model::{
    BaseRef, Caller, Contract, ExitRecord, Fence, FlowPlace, Lease, MergeSettings, ProcessId, Recovery, Refusal,
    RefusalKind, Resume, Row, RowWorktree, SessionPlan, SpawnRequest, Spec, Target, TmuxPane, Wanted, WorktreePlan,
    WorktreeRequest,
};
use swarm_ports::*;

/// Cause of every injected error.
pub const CAUSE: &str = "injected";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ErrorBefore,
    ErrorAfter,
    Hang,
}

/// Fault at the call of a method with this number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub method: &'static str,
    pub nth: usize,
    pub kind: Kind,
}

/// Calls so far, and the fault that is due.
#[derive(Default)]
pub struct Faults {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    calls: BTreeMap<&'static str, usize>,
    plan: Option<Plan>,
    /// The fault is due at the end of the present call.
    is_due: bool,
    struck: bool,
}

impl Faults {
    pub fn plan(&self, plan: Plan) {
        self.with(|inner| inner.plan = Some(plan));
    }

    /// Ends the injection, and reports whether the fault struck.
    pub fn end(&self) -> bool {
        self.with(|inner| {
            inner.plan = None;
            inner.struck
        })
    }

    /// Returns how often each method was called.
    pub fn calls(&self) -> BTreeMap<&'static str, usize> {
        self.with(|inner| inner.calls.clone())
    }

    /// Counts a call, and returns the fault that strikes before its effect.
    fn strike(&self, method: &'static str) -> Option<Kind> {
        self.with(|inner| {
            let calls = inner.calls.entry(method).or_default();
            let nth = *calls;
            *calls += 1;
            let plan = inner.plan.filter(|plan| plan.method == method && plan.nth == nth)?;
            inner.struck = true;
            inner.plan = None;
            inner.is_due = plan.kind == Kind::ErrorAfter;
            Some(plan.kind)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A port, and the faults of its calls.
struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    faults: Arc<Faults>,
}

/// Returns the ports with these faults. Clock, events and logs have none: their methods neither fail nor wait for
/// anything but time or output.
pub fn ports(ports: Ports, faults: &Arc<Faults>) -> Ports {
    macro_rules! wrap {
        ($($port:ident),*) => { Ports {
            clock: ports.clock.clone(),
            events: ports.events.clone(),
            jobs: ports.jobs.clone(),
            logs: ports.logs.clone(),
            $($port: Arc::new(Faulty { inner: ports.$port.clone(), faults: Arc::clone(faults) }),)*
        } };
    }
    wrap!(flows, hosts, landings, launcher, loops, nudges, processes, records, runs, sessions, terminals, worktrees)
}

/// Name of a method, whether it can fail, and whether it can hang.
pub type Method = (&'static str, bool, bool);

trait Methods {
    const ALL: &'static [Method];
}

/// Returns all methods of all ports that can fail or hang.
pub fn methods() -> Vec<Method> {
    macro_rules! all {
        ($($port:ident),*) => { [$(<Faulty<dyn $port> as Methods>::ALL),*].concat() };
    }
    let all =
        all!(Flows, Hosts, Landings, Launcher, Loops, Nudges, Processes, Records, Runs, Sessions, Terminals, Worktrees);
    all.into_iter().filter(|method| method.1 || method.2).collect()
}

/// Implements a port. `or` gives the answer of a call that fails; a method without it cannot fail. `now` marks methods
/// that are not asynchronous, and so cannot hang; `always` those whose future outlives the port.
macro_rules! port {
    ($port:ident, $name:literal, { $($how:ident $method:ident($($arg:ident: $kind:ty),*) -> $ret:ty $(, or $err:expr)?;)* }) => {
        impl $port for Faulty<dyn $port> {
            $(port!(@$how $name, $method, ($($arg: $kind),*), $ret $(, $err)?);)*
        }

        impl Methods for Faulty<dyn $port> {
            const ALL: &'static [Method] =
                &[$((concat!($name, ".", stringify!($method)), port!(@$how can fail), port!(@$how can hang))),*];
        }
    };
    (@fails can fail) => { true };
    (@now can fail) => { true };
    (@$how:ident can fail) => { false };
    (@now can hang) => { false };
    (@plain can hang) => { false };
    (@$how:ident can hang) => { true };
    (@fails $name:literal, $method:ident, ($($arg:ident: $kind:ty),*), $ret:ty, $err:expr) => {
        fn $method<'a>(&'a self, $($arg: $kind),*) -> BoxFuture<'a, $ret> {
            Box::pin(async move {
                let failed: fn(String) -> $ret = $err;
                let struck = self.faults.strike(concat!($name, ".", stringify!($method)));
                match struck {
                    Some(Kind::ErrorBefore) => return failed(CAUSE.to_owned()),
                    Some(Kind::Hang) => std::future::pending().await,
                    Some(Kind::ErrorAfter) | None => {}
                }
                let done = self.inner.$method($($arg),*).await;
                if struck.is_some() { failed(CAUSE.to_owned()) } else { done }
            })
        }
    };
    (@waits $name:literal, $method:ident, ($($arg:ident: $kind:ty),*), $ret:ty) => {
        fn $method<'a>(&'a self, $($arg: $kind),*) -> BoxFuture<'a, $ret> {
            Box::pin(async move {
                match self.faults.strike(concat!($name, ".", stringify!($method))) {
                    Some(_) => std::future::pending().await,
                    None => self.inner.$method($($arg),*).await,
                }
            })
        }
    };
    (@always $name:literal, $method:ident, ($($arg:ident: $kind:ty),*), $ret:ty) => {
        fn $method(&self, $($arg: $kind),*) -> BoxFuture<'static, $ret> {
            match self.faults.strike(concat!($name, ".", stringify!($method))) {
                Some(_) => Box::pin(std::future::pending()),
                None => self.inner.$method($($arg),*),
            }
        }
    };
    (@now $name:literal, $method:ident, ($($arg:ident: $kind:ty),*), $ret:ty, $err:expr) => {
        fn $method(&self, $($arg: $kind),*) -> $ret {
            let failed: fn(String) -> $ret = $err;
            let struck = self.faults.strike(concat!($name, ".", stringify!($method)));
            if struck == Some(Kind::ErrorBefore) {
                return failed(CAUSE.to_owned());
            }
            let done = self.inner.$method($($arg),*);
            if struck == Some(Kind::ErrorAfter) { failed(CAUSE.to_owned()) } else { done }
        }
    };
    (@plain $name:literal, $method:ident, ($($arg:ident: $kind:ty),*), $ret:ty) => {
        fn $method(&self, $($arg: $kind),*) -> $ret {
            self.inner.$method($($arg),*)
        }
    };
}

fn io<T>(cause: String) -> io::Result<T> {
    Err(io::Error::other(cause))
}

fn text<T>(cause: String) -> Result<T, String> {
    Err(cause)
}

fn tool<T>(cause: String) -> Result<T, Refusal> {
    Err(Refusal::new(RefusalKind::Tool, cause))
}

fn tree<T>(cause: String) -> Result<T, WorktreeError> {
    Err(WorktreeError::Tool(cause))
}

fn process<T>(cause: String) -> Result<T, ProcessError> {
    Err(ProcessError::Tool(cause))
}

fn terminal<T>(cause: String) -> Result<T, TerminalError> {
    Err(TerminalError::Tool(cause))
}

fn session<T>(cause: String) -> Result<T, SessionError> {
    Err(SessionError::System(cause))
}

fn launch<T>(cause: String) -> Result<T, LaunchError> {
    Err(LaunchError::System(cause))
}

fn away<T>(cause: String) -> Result<T, HostFault> {
    Err(HostFault::Away { cause })
}

fn outcome<T>(cause: String) -> Result<T, Outcome> {
    Err(Outcome::Failure { cause, evidence: None, fault: FaultKind::Task })
}

port!(Flows, "flows", {
    fails active() -> io::Result<Survey<FlowPlace>>, or io;
    fails open(place: &'a FlowPlace, begin: Option<&'a Begin>) -> Result<Opened, String>, or text;
    fails advance(place: &'a FlowPlace, ended: &'a [TurnEnded], claim: bool) -> Result<Standing, String>, or text;
    always changed(place: &FlowPlace) -> ();
    fails prepare(place: &'a FlowPlace, turn: &'a Turn, caller: &'a Caller) -> Result<SpawnRequest, String>, or text;
    fails wish(place: &'a FlowPlace, caller: &'a Caller) -> Result<Option<Wish>, String>, or text;
    waits keep_refusal(place: &'a FlowPlace, cause: Option<&'a str>) -> ();
    waits close(place: &'a FlowPlace, unfinished: bool) -> ();
});

port!(Hosts, "hosts", {
    fails bring(now: &'a Now, host: &'a str, caller: &'a Caller) -> Result<(), HostFault>, or away;
    fails start(now: &'a Now, host: &'a str, request: &'a SpawnRequest, caller: &'a Caller) -> Result<Option<u32>, HostFault>, or away;
    fails hail(now: &'a Now, host: &'a str, caller: &'a Caller) -> Result<(), HostFault>, or away;
    fails end(now: &'a Now, host: &'a str, caller: &'a Caller) -> Result<FarEnd, HostFault>, or away;
    fails stop(now: &'a Now, host: &'a str, caller: &'a Caller) -> Result<(), HostFault>, or away;
    waits forget(now: &'a Now, host: &'a str, caller: &'a Caller) -> ();
    fails owe(plan: &'a RunPlan, abandoned: &'a Abandoned, caller: &'a Caller) -> Result<(), String>, or text;
    fails reclaim(plan: &'a RunPlan, abandoned: &'a Abandoned, caller: &'a Caller) -> Result<Reclaimed, HostFault>, or away;
    fails take(now: &'a Now, caller: &'a Caller) -> Result<(), String>, or text;
    plain network_changed() -> BoxFuture<'static, ()>;
    plain admit(run: &str) -> ();
    waits go_on(run: &'a str) -> ();
    waits release(run: &'a str) -> ();
});

port!(Landings, "landings", {
    fails targets() -> io::Result<Survey<Target>>, or io;
    fails set_damaged_aside() -> io::Result<Vec<DamagedJournal>>, or io;
    fails complete(completion: Completion) -> Result<Completed, Refusal>, or tool;
    fails rules_of(root: &'a str, caller: &'a Caller) -> Result<MergeSettings, Refusal>, or tool;
    fails remember(target: &'a Target, caller: &'a Caller) -> io::Result<String>, or io;
    fails load(target: &'a Target) -> io::Result<Option<Queue>>, or io;
    fails save(target: &'a Target, queue: &'a Queue) -> io::Result<()>, or io;
    fails read_base(target: &'a Target) -> Result<String, String>, or text;
    fails build(target: &'a Target, item: &'a Item, onto: &'a str) -> Build, or Build::Failed;
    fails verify(target: &'a Target, item: &'a Item, commit: &'a str, kind: Verification) -> Verdict, or Verdict::Unknown;
    fails land(target: &'a Target, item: &'a Item, from: &'a str, to: &'a str) -> Landing, or Landing::Failed;
    fails resolve(target: &'a Target, item: &'a Item, onto: &'a str, files: &'a [String]) -> Resolution, or Resolution::Failed;
    fails cleared(target: &'a Target, obstacle: &'a Obstacle) -> Result<(), String>, or text;
    waits tidy(target: &'a Target, items: &'a [Item]) -> ();
});

port!(Launcher, "launcher", {
    fails check(contract: &'a Contract, dir: Option<&'a str>) -> Result<(), Refusal>, or tool;
    fails reserve(spec: &'a Spec) -> Result<(), LaunchError>, or launch;
    fails prepare(spec: &'a Spec, caller: &'a Caller) -> Result<Prepared, LaunchError>, or launch;
    fails open(prepared: Prepared) -> Result<Vec<String>, LaunchError>, or launch;
    waits withdraw(prepared: Prepared) -> ();
});

port!(Loops, "loops", {
    fails active() -> io::Result<Survey<String>>, or io;
    fails load(name: &'a str) -> Result<Option<Loop>, String>, or text;
    fails found(name: &'a str) -> Result<Option<Found>, String>, or text;
    fails save(it: &'a Loop) -> io::Result<Filed>, or io;
    waits note(it: &'a Loop) -> ();
    waits wire(name: &'a str) -> Option<Wire>;
    waits log_length(name: &'a str) -> u64;
    fails earlier(name: &'a str) -> io::Result<Option<Earlier>>, or io;
    fails withdraw(it: &'a Loop) -> io::Result<()>, or io;
    fails forget(name: &'a str) -> io::Result<bool>, or io;
    fails prompt(plan: &'a LoopPlan) -> Result<String, String>, or text;
    waits written(worker: &'a str) -> u64;
    waits output(worker: &'a str, from: u64) -> String;
});

port!(Nudges, "nudges", {
    fails load() -> io::Result<Survey<Nudge>>, or io;
    fails read(worker: &'a str) -> io::Result<Option<Nudge>>, or io;
    fails save(nudge: &'a Nudge) -> io::Result<()>, or io;
    fails remove(worker: &'a str) -> io::Result<()>, or io;
    now date_after(expression: &str, wall_ms: u64) -> Result<u64, String>, or text;
});

port!(Processes, "processes", {
    always gone(process: ProcessId) -> Gone;
    plain is_alive(process: &ProcessId) -> bool;
    plain has_hung_up(process: &ProcessId) -> bool;
    now stop_by_shim(lease: &Lease, order: StopOrder) -> Result<(), ProcessError>, or process;
    fails stop_unsupervised(lease: &'a Lease) -> Result<(), ProcessError>, or process;
    fails stop_foreign(row: &'a Row) -> Result<(), ProcessError>, or process;
    fails foreign(row: &'a Row) -> Result<Option<ProcessId>, ProcessError>, or process;
    fails end_survivors(survivors: &'a [ProcessId]) -> Result<(), ProcessError>, or process;
});

port!(Records, "records", {
    now scan_now() -> io::Result<Scan>, or io;
    fails scan() -> io::Result<Scan>, or io;
    fails observe(name: &'a str, generation: u64) -> io::Result<Option<DirFacts>>, or io;
    now next_free(name: &str, above: u64) -> io::Result<u64>, or io;
    waits exit_slot(name: &'a str, generation: u64) -> Option<u32>;
    fails tidy() -> io::Result<()>, or io;
    fails remove_leftovers(name: &'a str, keep: Option<u64>, committed: Option<u64>) -> io::Result<()>, or io;
    waits lease_is_let_go(name: &'a str, generation: u64) -> bool;
    fails write_wanted(name: &'a str, generation: u64, wanted: &'a Wanted) -> io::Result<()>, or io;
    waits is_noted(name: &'a str, generation: u64, note: Note) -> bool;
    waits note(name: &'a str, generation: u64, note: Note) -> ();
    waits broken_turn(name: &'a str, generation: u64) -> Option<String>;
    waits mark(name: &'a str, generation: u64, mark: Option<&'a Mark>) -> ();
    fails remove(name: &'a str, generation: u64) -> io::Result<()>, or io;
    fails remove_logs(name: &'a str) -> io::Result<()>, or io;
    fails rotate_logs(name: &'a str) -> io::Result<()>, or io;
});

port!(Runs, "runs", {
    fails active() -> io::Result<Survey<String>>, or io;
    fails open(home: &'a str) -> Result<Option<Run>, String>, or text;
    fails begin(run: &'a Run, caller: &'a Caller) -> io::Result<()>, or io;
    fails began_by(home: &'a str, request: &'a str) -> io::Result<bool>, or io;
    fails resume(home: &'a str) -> Result<Journaled, String>, or text;
    fails append(run: &'a Run, events: &'a [(u64, RunEvent)]) -> io::Result<()>, or io;
    waits tell(plan: &'a RunPlan, words: Vec<Telling>) -> ();
    fails prepare(now: &'a Now, caller: &'a Caller) -> Result<SpawnRequest, Outcome>, or outcome;
    waits has_landed(now: &'a Now, caller: &'a Caller) -> bool;
    waits is_own(now: &'a Now, target: &'a Target, item: &'a Item, caller: &'a Caller) -> bool;
    waits changed_rules(now: &'a Now, item: &'a Item, caller: &'a Caller) -> Option<Rules>;
    fails agreed(branch: &'a str, root: Option<&'a str>, caller: &'a Caller) -> Result<Option<Agreed>, String>, or text;
    waits place(now: &'a Now, caller: &'a Caller) -> Option<RowWorktree>;
    waits outcome(now: &'a Now, exit: Option<&'a ExitRecord>) -> (Outcome, Spent);
    waits resolutions(now: &'a Now) -> Spent;
    waits settled(ask: u64) -> Settled;
    waits keep(now: &'a Now) -> ();
    waits has_work(now: &'a Now, caller: &'a Caller) -> bool;
    waits tidy(now: &'a Now, caller: &'a Caller) -> Option<Saved>;
    waits close(home: &'a str) -> ();
    waits forget(run: &'a Run) -> ();
});

port!(Sessions, "sessions", {
    plain interval_ms() -> u64;
    plain attempts_max() -> i64;
    waits answered(life: &'a Life) -> ();
    waits check(plan: &'a SessionPlan) -> Recovery;
    waits resume(spec: &'a Spec) -> Resume;
    waits hooked(spec: &'a Spec) -> Option<Vec<String>>;
    fails open(opening: &'a Opening) -> Result<Option<String>, SessionError>, or session;
    waits abandon(opening: &'a Opening, cause: &'a str) -> ();
    fails run(life: &'a Life, known: Option<Fence>) -> Result<Fence, SessionError>, or session;
    fails end(life: &'a Life, end: LifeEnd) -> Result<(), SessionError>, or session;
    always beat(life: Arc<Life>, fence: Option<Fence>) -> (Beaten, Option<Sight>);
    plain news(life: &Life) -> BoxFuture<'static, News>;
    waits preserve(dir: &'a str, reason: &'a str, details: &'a str) -> ();
});

port!(Terminals, "terminals", {
    fails screen(worker: &'a str, scrollback: usize) -> Result<String, TerminalError>, or terminal;
    fails draft(worker: &'a str) -> Result<Option<String>, TerminalError>, or terminal;
    fails type_text(worker: &'a str, text: &'a str, typing: Typing) -> Result<(), TerminalError>, or terminal;
    fails keep_output(worker: &'a str) -> Result<(), TerminalError>, or terminal;
    waits has_server(pane: &'a TmuxPane) -> bool;
    fails interrupt(worker: &'a str) -> Result<(), TerminalError>, or terminal;
});

port!(Worktrees, "worktrees", {
    fails plan(name: &'a str, asked: &'a WorktreeRequest, caller: &'a Caller) -> Result<WorktreePlan, WorktreeError>, or tree;
    fails make(plan: &'a WorktreePlan, caller: &'a Caller) -> Result<(), WorktreeError>, or tree;
    fails undo(plan: &'a WorktreePlan, caller: &'a Caller) -> Result<(), WorktreeError>, or tree;
    fails port(plan: &'a WorktreePlan, taken: &'a [u16]) -> Result<Option<u16>, WorktreeError>, or tree;
    fails expire(base_repo: &'a str, now_ms: u64, caller: &'a Caller) -> Result<Vec<Expired>, WorktreeError>, or tree;
    fails check(path: &'a str, base_repo: &'a str, force: Force, caller: &'a Caller) -> Result<(), WorktreeError>, or tree;
    fails remove(name: &'a str, path: &'a str, base_repo: &'a str, force: Force, caller: &'a Caller) -> Result<Option<Saved>, WorktreeError>, or tree;
    fails drop_branch(plan: &'a WorktreePlan, caller: &'a Caller) -> Result<DroppedBranch, WorktreeError>, or tree;
    fails keep(name: &'a str, kept: &'a RowWorktree, base: Option<&'a BaseRef>) -> Result<(), WorktreeError>, or tree;
    fails kept(name: &'a str, caller: &'a Caller) -> Result<Option<Kept>, WorktreeError>, or tree;
});
