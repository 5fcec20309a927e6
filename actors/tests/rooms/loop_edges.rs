//! Loops where something comes at the wrong time: other requests, crashes, lost machines.

use std::time::Duration;

use swarm_actors::loops::progress::Status;
use swarm_actors::model::{LoopOrder, LoopRequest, RefusalKind};
use swarm_actors::ports::Typing;
use swarm_actors::testing::Fault;

use crate::fixture::caller;
use crate::loops::{begin, beginning, end, order, plan, rig, seconds, starts, status};

#[tokio::test(start_paused = true)]
async fn the_worker_of_a_loop_is_not_respawned_beside_it() {
    let rig = rig().await;
    begin(&rig, plan(5)).await;
    for paused in [false, true] {
        if paused {
            order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
        }
        let refusal = rig.respawn("w").await.expect_err("the loop does that");
        assert_eq!(refusal.kind, RefusalKind::Running);
        assert!(refusal.remedy.expect("there is one").contains("swarm ralph stop w"));
        assert_eq!(starts(&rig), 1);
        assert!(rig.world.state("w").expect("there").is_running());
    }
    end(&rig, 0).await;
    assert!(rig.respawn("w").await.is_err(), "paused between two iterations");
    order(&rig, LoopOrder::Stop { name: "w".to_owned() }).await;
    rig.respawn("w").await.expect("nobody else starts it");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn what_is_typed_again_lands_on_an_empty_line() {
    let mut rig = rig().await;
    rig.world.script.at("type_text", Fault::Hang);
    begin(&rig, plan(5)).await;
    assert_eq!(rig.world.terminals.typed("w"), Vec::<String>::new());
    rig.crash().await;
    rig.world.script.forget_faults();
    rig.up().await;
    seconds(&rig, 5).await;
    let typing = |clear, enter| Typing { clear, enter };
    let typed = [("do it".to_owned(), typing(true, false)), (String::new(), typing(false, true))];
    assert_eq!(rig.world.terminals.typed_how("w"), typed);
}

#[tokio::test(start_paused = true)]
async fn nobody_else_types_while_the_prompt_is_being_typed() {
    for no_run in [false, true] {
        let rig = rig().await;
        rig.world.script.at("type_text", Fault::Hang);
        let plan = swarm_actors::loops::progress::Plan { no_run, ..plan(5) };
        drop(rig.swarm().ralph(LoopRequest { caller: caller(), order: beginning(plan) }));
        seconds(&rig, 1).await;
        if no_run {
            order(&rig, LoopOrder::Attend { name: "w".to_owned() }).await;
        } else {
            order(&rig, LoopOrder::Pause { name: "w".to_owned(), reason: "user".to_owned() }).await;
            order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
        }
        rig.world.pass(Duration::from_secs(5)).await;
        assert_eq!(status(&rig).0, Status::Running);
        let tried = rig.world.script.calls().iter().filter(|call| call.starts_with("type_text")).count();
        assert_eq!(tried, 1);
    }
}
