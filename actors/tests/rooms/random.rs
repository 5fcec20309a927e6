//! Random sequences of requests, failures, and deaths of shims and supervisors. The world's
//! invariants hold after each step.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::{Ended, RestartPolicy};

use crate::fixture::{ADOPTION, Rig, clean, kill, request, respawn, with_tree};

const NAMES: [&str; 2] = ["a", "b"];
/// Steps at which a supervisor dies or a call fails.
const STEPS: [&str; 9] = [
    "reserve",
    "reserve.after",
    "make",
    "make.after",
    "write_wanted",
    "prepare",
    "prepare.after",
    "open",
    "open.after",
];

#[derive(Clone, Copy, Debug)]
enum Verb {
    Spawn(RestartPolicy, bool),
    Kill,
    Clean,
    Respawn,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(Verb, usize),
    /// A step of the request fails.
    AskAmiss(Verb, usize, usize),
    /// The supervisor dies at a step of the request, and another one starts.
    AskCutOff(Verb, usize, usize),
    /// The worker's actor panics at a step of the request.
    AskPanic(Verb, usize, usize),
    /// Two concurrent requests.
    AskBoth(Verb, Verb, usize),
    End(usize, i32),
    KillShim(usize),
    Restart,
    /// The machine reboots.
    Reboot,
    Wait(u64),
}

fn verb() -> impl Strategy<Value = Verb> {
    let policy = prop_oneof![Just(RestartPolicy::Never), Just(RestartPolicy::OnFailure), Just(RestartPolicy::Always)];
    prop_oneof![
        3 => (policy, any::<bool>()).prop_map(|(policy, tree)| Verb::Spawn(policy, tree)),
        1 => Just(Verb::Kill),
        1 => Just(Verb::Clean),
        1 => Just(Verb::Respawn),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (name, at) = (0..NAMES.len(), 0..STEPS.len());
    prop_oneof![
        6 => (verb(), name.clone()).prop_map(|(verb, name)| Step::Ask(verb, name)),
        2 => (verb(), name.clone(), at.clone()).prop_map(|(verb, name, at)| Step::AskAmiss(verb, name, at)),
        2 => (verb(), name.clone(), at.clone()).prop_map(|(verb, name, at)| Step::AskPanic(verb, name, at)),
        2 => (verb(), verb(), name.clone()).prop_map(|(one, other, name)| Step::AskBoth(one, other, name)),
        3 => (verb(), name.clone(), at).prop_map(|(verb, name, at)| Step::AskCutOff(verb, name, at)),
        2 => (name.clone(), 0..2).prop_map(|(name, code)| Step::End(name, code)),
        1 => name.prop_map(Step::KillShim),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
        1 => (1_u64..120).prop_map(Step::Wait),
    ]
}

fn request_of(verb: Verb, name: &str) -> Request {
    match verb {
        Verb::Spawn(policy, tree) => {
            let mut asked = if tree { with_tree(name) } else { request(name) };
            asked.contract.restart = policy;
            Request::Spawn(Box::new(asked))
        }
        Verb::Kill => kill(name),
        Verb::Clean => Request::Clean(Box::new(clean(name))),
        Verb::Respawn => Request::Respawn(Box::new(respawn(name))),
    }
}

/// Names whose last successful order was to stop.
#[derive(Default)]
struct Orders(BTreeMap<usize, bool>);

impl Orders {
    fn given(&mut self, verb: Verb, name: usize, obeyed: bool) {
        match (verb, obeyed) {
            (Verb::Kill | Verb::Clean, true) => drop(self.0.insert(name, true)),
            (Verb::Spawn(..) | Verb::Respawn, true) => drop(self.0.remove(&name)),
            (_, false) => {}
        }
    }

    /// Records a request that got no answer.
    fn unknown(&mut self, name: usize) {
        self.0.remove(&name);
    }

    fn check(&self, rig: &Rig) -> Result<(), String> {
        for name in self.0.keys().map(|name| NAMES[*name]) {
            if rig.world.records.all().iter().any(|facts| facts.name == name && facts.lease.worker_alive) {
                return Err(format!("{name} runs although it was stopped"));
            }
        }
        Ok(())
    }
}

async fn take(rig: &mut Rig, step: Step, orders: &mut Orders) {
    match step {
        Step::Ask(verb, name) | Step::AskAmiss(verb, name, _) => {
            if let Step::AskAmiss(_, _, at) = step {
                rig.world.script.at(STEPS[at], Fault::Error("not today"));
            }
            let answers = rig.ask(request_of(verb, NAMES[name])).await;
            let refused = |answer: &_| matches!(answer, swarm_model::Answer::Refused(_));
            orders.given(verb, name, !answers.iter().any(refused));
        }
        Step::AskCutOff(verb, name, at) => {
            rig.world.script.at(STEPS[at], Fault::Hang);
            let _answers = rig.swarm().request(request_of(verb, NAMES[name]));
            rig.world.pass(Duration::from_millis(200)).await;
            orders.unknown(name);
            // A random step may not reach its fault.
            let _ = rig.world.script.forget_faults();
            rig.crash().await;
            rig.up().await;
        }
        Step::AskPanic(verb, name, at) => {
            rig.world.script.at(STEPS[at], Fault::Panic);
            rig.ask(request_of(verb, NAMES[name])).await;
            orders.unknown(name);
            // The new actor may wait for the leases of several interrupted starts, one after the other.
            rig.world.pass(ADOPTION * 4).await;
        }
        Step::AskBoth(one, other, name) => {
            let (one, other) = (request_of(one, NAMES[name]), request_of(other, NAMES[name]));
            tokio::join!(rig.ask(one), rig.ask(other));
            orders.unknown(name);
        }
        Step::End(name, code) => {
            if let Some(key) = rig.world.records.newest(NAMES[name]) {
                rig.world.processes.end(&key, Ended::Code(code));
            }
        }
        Step::KillShim(name) => {
            if let Some(key) = rig.world.records.newest(NAMES[name]) {
                rig.world.processes.kill_shim(&key);
            }
        }
        Step::Restart => {
            rig.crash().await;
            rig.up().await;
        }
        Step::Reboot => {
            rig.crash().await;
            rig.world.kernel.reboot();
            rig.up().await;
        }
        Step::Wait(seconds) => rig.world.pass(Duration::from_secs(seconds)).await,
    }
    let _ = rig.world.script.forget_faults();
    rig.world.settle().await;
}

async fn run(steps: &[Step]) -> Result<(), String> {
    let mut rig = Rig::start().await;
    let mut orders = Orders::default();
    for (number, step) in steps.iter().enumerate() {
        take(&mut rig, *step, &mut orders).await;
        let checked = rig.world.check().and_then(|()| orders.check(&rig));
        checked.map_err(|broken| format!("after step {number}, {step:?}: {broken}"))?;
    }
    // A last supervisor finds nothing to repair.
    rig.crash().await;
    rig.up().await;
    rig.world.pass(ADOPTION).await;
    rig.world.check().and_then(|()| orders.check(&rig))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_any_sequence(steps in proptest::collection::vec(step(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let done = runtime.expect("a runtime").block_on(run(&steps));
        prop_assert_eq!(done, Ok(()));
    }
}

#[test]
fn a_start_cut_off_by_a_panic_after_earlier_ones_is_aborted() {
    use RestartPolicy::{Always, Never};
    let steps = [
        Step::Ask(Verb::Spawn(Always, false), 0),
        Step::End(0, 0),
        Step::AskCutOff(Verb::Spawn(Never, false), 0, 0),
        Step::End(0, 0),
        Step::AskPanic(Verb::Spawn(Never, false), 0, 0),
        Step::End(0, 0),
        Step::AskPanic(Verb::Spawn(Never, false), 0, 6),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    assert_eq!(runtime.expect("a runtime").block_on(run(&steps)), Ok(()));
}
