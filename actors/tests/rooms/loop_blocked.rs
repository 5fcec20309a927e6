//! Loops whose agent cannot work before a person acts, and loops of headless agents.

use swarm_model::loops::progress::{ExitReason, Status};
use swarm_model::{EventKind, LoopOrder};

use crate::fixture::Rig;
use crate::loops::{PROMPT, begin, end, lines, order, plan, rig, seconds, starts, status};

const TRUST: &str = include_str!("../../../tests/data/screens/claude/trust.txt");
const IDLE: &str = include_str!("../../../tests/data/screens/claude/start.txt");
const LOGGED_OUT: &str = include_str!("../../../tests/data/screens/claude/not-logged-in.txt");

fn blocked(rig: &Rig) -> Option<String> {
    rig.world.loops.loaded("w").expect("there is a loop").blocked
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_asks_for_trust_pauses_the_loop_and_uses_no_iteration() {
    let rig = rig().await;
    rig.world.terminals.show("w", TRUST);
    begin(&rig, plan(3)).await;
    seconds(&rig, 60).await;
    assert_eq!(status(&rig), (Status::Paused, None));
    assert_eq!(blocked(&rig).as_deref(), Some("asks whether to trust this directory"));
    assert_eq!(rig.world.terminals.typed("w"), Vec::<String>::new(), "not even Enter");
    let paused = EventKind::LoopPaused { reason: "the agent asks whether to trust this directory".to_owned() };
    assert!(rig.world.events.of("w").contains(&paused));
    assert!(lines(&rig).contains(&"ERROR iteration 1: the agent asks whether to trust this directory".to_owned()));
    // A person answers in the window; the same iteration goes on in it.
    rig.world.terminals.show("w", IDLE);
    order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
    seconds(&rig, 1).await;
    assert_eq!((blocked(&rig), starts(&rig)), (None, 1));
    assert_eq!(rig.world.terminals.typed("w"), ["do it", ""]);
    assert!(!lines(&rig).iter().any(|line| line.starts_with("START iteration 2")));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_shows_its_prompt_before_it_asks_for_trust_gets_nothing_typed() {
    let rig = rig().await;
    let mut plan = plan(3);
    plan.contract.argv = vec!["gemini".to_owned()];
    rig.world.terminals.show("w", include_str!("../../../tests/data/screens/gemini/start.txt"));
    begin(&rig, plan).await;
    rig.world.terminals.show("w", include_str!("../../../tests/data/screens/gemini/trust.txt"));
    rig.world.logs.write("w");
    seconds(&rig, 10).await;
    assert_eq!(blocked(&rig).as_deref(), Some("asks whether to trust this directory"));
    assert_eq!(rig.world.terminals.typed("w"), Vec::<String>::new());
    rig.world.terminals.show("w", include_str!("../../../tests/data/screens/gemini/idle.txt"));
    order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
    seconds(&rig, 4).await;
    assert_eq!(rig.world.terminals.typed("w"), ["do it", ""]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_at_its_question_of_trust_repeats_the_iteration() {
    let rig = rig().await;
    rig.world.terminals.show("w", TRUST);
    begin(&rig, plan(3)).await;
    end(&rig, 1).await;
    seconds(&rig, 60).await;
    assert_eq!((status(&rig), starts(&rig)), ((Status::Paused, None), 1));
    rig.world.terminals.show("w", IDLE);
    order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
    seconds(&rig, 1).await;
    let it = rig.world.loops.loaded("w").expect("there is a loop");
    assert_eq!((it.iteration, it.total_failures, starts(&rig)), (1, 0, 2));
    assert_eq!(rig.world.terminals.typed("w"), ["do it", ""]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_logged_in_gets_its_prompt_again() {
    let rig = rig().await;
    begin(&rig, plan(3)).await;
    rig.world.terminals.show("w", LOGGED_OUT);
    rig.world.logs.write("w");
    seconds(&rig, 3).await;
    assert_eq!((status(&rig), blocked(&rig).as_deref()), ((Status::Paused, None), Some("is not logged in")));
    rig.world.terminals.show("w", IDLE);
    order(&rig, LoopOrder::Resume { name: "w".to_owned() }).await;
    seconds(&rig, 1).await;
    assert_eq!((status(&rig), blocked(&rig)), ((Status::Running, None), None));
    assert_eq!(rig.world.terminals.typed("w"), ["do it", "", "do it", ""]);
}

#[tokio::test(start_paused = true)]
async fn a_headless_agent_gets_its_prompt_on_the_command_line() {
    let rig = rig().await;
    let mut plan = plan(2);
    plan.contract.argv = ["claude", "-p"].map(str::to_owned).to_vec();
    begin(&rig, plan).await;
    assert_eq!(rig.world.row("w").expect("it runs").cmd, ["claude", "-p", "do it"]);
    rig.world.loops.put_prompt(PROMPT, Some("do more"));
    end(&rig, 0).await;
    assert_eq!(rig.world.row("w").expect("it runs").cmd, ["claude", "-p", "do more"]);
    end(&rig, 0).await;
    assert_eq!(status(&rig), (Status::Stopped, Some(ExitReason::MaxIterations)));
    assert_eq!(rig.world.terminals.typed("w"), Vec::<String>::new());
}
