//! Flows through the supervisor: the worker of each turn is started once, whatever is interrupted.

use std::time::Duration;

use swarm_actors::supervisor::Exit;
use swarm_actors::testing::Fault;
use swarm_model::flow::Turn;
use swarm_model::{Answer, Ended, FineState, FlowOrder, FlowPlace, FlowRequest, FlowRules, Refusal};

use crate::fixture::{Rig, caller};

fn place() -> FlowPlace {
    FlowPlace { root: "/ws".to_owned(), project: "demo".to_owned(), flow: "20260527T143000123Z-abcdef".to_owned() }
}

fn turn(role: &str, number: u64) -> Turn {
    Turn { role: role.to_owned(), number, node: Some(format!("{role}-{number}")) }
}

async fn order(rig: &Rig, order: FlowOrder) -> Result<String, Refusal> {
    let request = FlowRequest { caller: caller(), place: place(), order };
    match rig.swarm().flow(request).recv().await.expect("an answer") {
        Answer::Flow(line) => Ok(line.done),
        Answer::Refused(refusal) => Err(refusal),
        answer => panic!("{answer:?}"),
    }
}

async fn run(rig: &Rig, rules: FlowRules) -> String {
    let done = order(rig, FlowOrder::Run(rules)).await.expect("it is run");
    rig.world.settle().await;
    done
}

/// Ends the worker of a role, if it runs.
fn end(rig: &Rig, role: &str, code: i32) {
    rig.world.end(&format!("abcdef-{role}"), Ended::Code(code));
}

async fn pass(rig: &Rig) {
    rig.world.pass(Duration::from_secs(90)).await;
}

/// Returns how often the worker of a role was executed.
fn starts(rig: &Rig, role: &str) -> usize {
    let call = format!("open abcdef-{role}.");
    rig.world.script.calls().iter().filter(|made| made.starts_with(&call)).count()
}

#[tokio::test(start_paused = true)]
async fn waves_of_turns_follow_one_another_to_the_end() {
    let rig = Rig::start().await;
    let waves = vec![vec![turn("owner", 1)], vec![turn("dev", 1), turn("dev_2", 1)], vec![turn("owner", 2)]];
    rig.world.flows.plan(&place(), waves);
    assert_eq!(run(&rig, FlowRules::default()).await, "running");
    assert_eq!(run(&rig, FlowRules::default()).await, "running", "a second run changes nothing");
    end(&rig, "owner", 0);
    pass(&rig).await;
    assert_eq!(rig.world.flows.at_work(&place()).len(), 2);
    end(&rig, "dev_2", 0);
    end(&rig, "dev", 0);
    pass(&rig).await;
    end(&rig, "owner", 0);
    pass(&rig).await;
    assert!(!rig.world.flows.is_active(&place()), "it is over, so no supervisor resumes it");
    assert_eq!((starts(&rig, "owner"), starts(&rig, "dev")), (2, 1));
    rig.check();
    assert_eq!(rig.swarm().ended().await, Exit::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_answered_once_no_turn_runs() {
    let rig = Rig::start().await;
    assert!(
        order(&rig, FlowOrder::Rest)
            .await
            .is_err_and(|refusal| refusal.cause.starts_with("flow '") && refusal.cause.ends_with("' is not running"))
    );
    rig.world.flows.plan(&place(), vec![vec![turn("owner", 1)]]);
    run(&rig, FlowRules::default()).await;
    let (rests, ()) = tokio::join!(order(&rig, FlowOrder::Rest), async {
        pass(&rig).await;
        end(&rig, "owner", 0);
    });
    assert_eq!(rests.expect("an answer"), "over");
}

#[tokio::test(start_paused = true)]
async fn a_turn_whose_worker_failed_is_repeated() {
    let rig = Rig::start().await;
    rig.world.flows.plan(&place(), vec![vec![turn("dev", 1)]]);
    run(&rig, FlowRules::default()).await;
    end(&rig, "dev", 1);
    pass(&rig).await;
    assert_eq!(rig.world.flows.at_work(&place()), [Turn { number: 2, ..turn("dev", 1) }]);
    assert_eq!(starts(&rig, "dev"), 2);
    end(&rig, "dev", 0);
    pass(&rig).await;
    assert!(!rig.world.flows.is_active(&place()));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_queued_is_recorded_until_another_run_queues_it() {
    let rig = Rig::start().await;
    // The worker whose work it is was forgotten.
    rig.world.flows.land(&place());
    for (fault, cause) in [(Some("the disk is full"), Some("the disk is full")), (None, None)] {
        if let Some(fault) = fault {
            rig.world.script.at("flow.wish", Fault::Error(fault));
        }
        rig.world.flows.plan(&place(), vec![vec![turn("dev", 1)]]);
        run(&rig, FlowRules::default()).await;
        end(&rig, "dev", 0);
        pass(&rig).await;
        assert!(!rig.world.flows.is_active(&place()));
        assert_eq!(rig.world.flows.refusal(&place()).as_deref(), cause);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_flow_keeps_its_turns() {
    let rig = Rig::start().await;
    rig.world.flows.plan(&place(), vec![vec![turn("owner", 1), turn("dev", 1)]]);
    run(&rig, FlowRules::default()).await;
    assert_eq!(order(&rig, FlowOrder::Stop { node: None }).await.expect("stopped"), "stopped");
    pass(&rig).await;
    assert!(!rig.world.flows.is_active(&place()));
    assert_eq!(rig.world.flows.at_work(&place()).len(), 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_concurrent_turns_holds() {
    let rig = Rig::start().await;
    rig.world.flows.plan(&place(), vec![vec![turn("dev", 1), turn("dev_2", 1)]]);
    run(&rig, FlowRules { max: Some(1), once: false }).await;
    assert_eq!((starts(&rig, "dev"), starts(&rig, "dev_2")), (1, 0));
    end(&rig, "dev", 0);
    pass(&rig).await;
    assert_eq!(starts(&rig, "dev_2"), 1);
}

/// At each step the supervisor is killed, the room panics, or the disk refuses once: every turn
/// ends, and none is executed twice.
#[tokio::test(start_paused = true)]
async fn each_turn_is_started_once_whatever_is_interrupted() {
    let steps =
        ["flow.open", "flow.advance", "flow.advance.after", "flow.prepare", "reserve", "prepare", "open", "flow.close"];
    for step in steps {
        for fault in ["killed", "panics", "refused"] {
            // These steps cannot fail.
            if fault == "refused" && ["flow.open", "flow.close", "open"].contains(&step) {
                continue;
            }
            let mut rig = Rig::start().await;
            rig.world.flows.plan(&place(), vec![vec![turn("owner", 1)], vec![turn("dev", 1), turn("dev_2", 1)]]);
            rig.world.script.at(
                step,
                match fault {
                    "killed" => Fault::Hang,
                    "panics" => Fault::Panic,
                    _ => Fault::Error("the disk is full"),
                },
            );
            let request = FlowRequest { caller: caller(), place: place(), order: FlowOrder::Run(FlowRules::default()) };
            let _answers = rig.swarm().flow(request.clone());
            for round in 0..6 {
                pass(&rig).await;
                if fault == "killed" && round == 1 {
                    rig.crash().await;
                    rig.up().await;
                }
                // A caller without an answer repeats its request.
                let _answers = rig.swarm().flow(request.clone());
                pass(&rig).await;
                for Turn { role, .. } in rig.world.flows.at_work(&place()) {
                    let name = format!("abcdef-{role}");
                    if rig.world.state(&name) == Some(FineState::Running) {
                        end(&rig, &role, 0);
                    }
                }
            }
            pass(&rig).await;
            assert_eq!(rig.world.script.unmet(), Vec::<String>::new(), "{step} {fault}");
            assert_eq!(rig.world.flows.at_work(&place()), [], "{step} {fault}");
            rig.check();
        }
    }
}
