use super::machine::{Effect, Event, Machine};
use swarm_model::FlowRules;
use swarm_model::flow::{Ended, How, Standing, Turn};

fn turn(role: &str, number: u64) -> Turn {
    Turn { role: role.to_owned(), number, node: Some(format!("{role}-node")) }
}

fn ended(turn: Turn) -> Ended {
    Ended { turn, how: How::Exit(None) }
}

fn standing<const N: usize>(turns: [&Turn; N]) -> Standing {
    Standing { turns: turns.map(Turn::clone).to_vec(), ..Standing::default() }
}

fn advance(ended: Vec<Ended>) -> Vec<Effect> {
    vec![Effect::Advance { ended, claim: true }]
}

#[test]
fn each_turn_is_attended_once_and_a_role_waits_for_its_last_worker() {
    let mut machine = Machine::default();
    assert_eq!(machine.on(Event::Changed), advance(Vec::new()));
    let (first, second) = (turn("dev", 1), turn("dev", 2));
    assert_eq!(machine.on(Event::Advanced(standing([&first]))), vec![Effect::Attend(first.clone())]);
    assert_eq!(machine.on(Event::Changed), advance(Vec::new()));
    assert_eq!(machine.on(Event::Advanced(standing([&first]))), Vec::new(), "already attended");
    // Its own process handed over and is about to end when the next turn is claimed.
    assert_eq!(machine.on(Event::Advanced(standing([&second]))), Vec::new());
    assert!(!machine.rests());
    assert_eq!(machine.on(Event::Ended(ended(first.clone()))), advance(vec![ended(first)]));
    assert_eq!(machine.on(Event::Advanced(standing([&second]))), vec![Effect::Attend(second)]);
}

#[test]
fn the_limit_of_concurrent_turns_holds() {
    let mut machine = Machine::new(FlowRules { max: Some(1), once: false });
    let both = [turn("dev", 1), turn("dev_2", 1)];
    assert_eq!(machine.on(Event::Advanced(standing([&both[0], &both[1]]))), vec![Effect::Attend(both[0].clone())]);
    machine.on(Event::Ended(ended(both[0].clone())));
    assert_eq!(machine.on(Event::Advanced(standing([&both[1]]))), vec![Effect::Attend(both[1].clone())]);
}

#[test]
fn with_once_a_flow_claims_one_round_and_leaves() {
    let mut machine = Machine::new(FlowRules { max: None, once: true });
    assert_eq!(machine.on(Event::Changed), advance(Vec::new()));
    let only = turn("dev", 1);
    machine.on(Event::Advanced(standing([&only])));
    let last = machine.on(Event::Ended(ended(only.clone())));
    assert_eq!(last, vec![Effect::Advance { ended: vec![ended(only)], claim: false }]);
    assert_eq!(machine.on(Event::Advanced(standing([]))), vec![Effect::Rested, Effect::Leave]);
}

#[test]
fn an_ended_turn_is_reported_until_the_files_have_it() {
    let mut machine = Machine::default();
    let only = turn("dev", 1);
    machine.on(Event::Advanced(standing([&only])));
    machine.on(Event::Ended(ended(only.clone())));
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let armed = machine.on(Event::Failed(vec![ended(only.clone())]));
        let [Effect::Arm(pause), Effect::Rested] = armed[..] else { panic!("{armed:?}") };
        pauses.push(pause / 1000);
        assert_eq!(machine.on(Event::Changed), advance(vec![ended(only.clone())]));
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(machine.on(Event::Advanced(standing([]))), vec![Effect::Rested]);
    assert!(machine.rests());
}

#[test]
fn a_stopped_flow_kills_its_turns_and_claims_nothing_more() {
    let mut machine = Machine::default();
    let both = [turn("dev", 1), turn("qa", 4)];
    machine.on(Event::Advanced(standing([&both[0], &both[1]])));
    assert_eq!(machine.on(Event::Stop), both.clone().map(Effect::Kill).to_vec());
    assert_eq!(machine.on(Event::Changed), Vec::new());
    assert_eq!(machine.on(Event::Ended(ended(both[1].clone()))), Vec::new());
    assert_eq!(machine.on(Event::Ended(ended(both[0].clone()))), vec![Effect::Rested, Effect::Leave]);
}

#[test]
fn a_flow_that_is_over_finishes_once_no_turn_runs() {
    let mut machine = Machine::default();
    let only = turn("owner", 3);
    machine.on(Event::Advanced(standing([&only])));
    machine.on(Event::Ended(ended(only)));
    let over = Standing { over: true, ..Standing::default() };
    assert_eq!(machine.on(Event::Advanced(over)), vec![Effect::Finish, Effect::Rested]);
    assert!(machine.is_over());
    assert_eq!(machine.on(Event::Changed), Vec::new());
}

#[test]
fn a_turn_is_stopped_even_if_its_worker_is_still_starting() {
    let mut machine = Machine::default();
    let (dev, qa) = (turn("dev", 1), turn("qa", 1));
    machine.on(Event::Advanced(standing([&dev, &qa])));
    assert_eq!(machine.on(Event::Started(dev.clone())), Vec::new());
    assert_eq!(machine.on(Event::StopTurn(dev.clone())), vec![Effect::Kill(dev.clone())]);
    assert_eq!(
        machine.on(Event::Started(dev.clone())),
        vec![Effect::Kill(dev.clone())],
        "its worker did not exist before"
    );
    machine.on(Event::Ended(ended(dev)));
    let next = turn("dev", 2);
    machine.on(Event::Advanced(standing([&next, &qa])));
    assert_eq!(machine.on(Event::Started(next)), Vec::new(), "the next turn is not doomed");
    machine.on(Event::Stop);
    assert_eq!(machine.on(Event::Started(qa.clone())), vec![Effect::Kill(qa)]);
}

#[test]
fn a_turn_with_a_denied_request_is_killed_once() {
    let mut machine = Machine::default();
    let dev = turn("dev", 1);
    machine.on(Event::Advanced(standing([&dev])));
    let denied = || Event::Advanced(Standing { denied: vec!["dev".to_owned()], ..Standing::default() });
    assert_eq!(machine.on(denied()), vec![Effect::Kill(dev)]);
    assert_eq!(machine.on(denied()), Vec::new());
}
