//! Tests of agents that report no end of their turn, and of texts that nobody has submitted.

use std::sync::Arc;

use super::tests::{life, running, ticked};
use super::*;

const CLAUDE_IDLE: &str = include_str!("../../tests/data/screens/claude/idle.txt");
const CLAUDE_WORKS: &str = include_str!("../../tests/data/screens/claude/working.txt");
const CLAUDE_DRAFT: &str = include_str!("../../tests/data/screens/claude/draft.txt");

fn at_work(output: u64, quiet_ms: u64) -> Sight {
    Sight { output, quiet_ms, reports: true, ..Sight::default() }
}

fn marks(effects: Option<Vec<Effect>>) -> Vec<Option<Mark>> {
    let effects = effects.unwrap_or_default().into_iter();
    effects.filter_map(|effect| if let Effect::Mark { mark, .. } = effect { Some(mark) } else { None }).collect()
}

#[test]
fn an_interrupted_turn_whose_end_is_not_reported_is_seen_on_the_screen() {
    let mut machine = Machine::new(10_000);
    let a = Arc::new(Life { agent: true, window: true, ..(*life("a", 1)).clone() });
    running(&mut machine, &a);
    for output in 1..10 {
        let read = ticked(&mut machine, &a, at_work(output, 3_000), CLAUDE_IDLE);
        assert_eq!(marks(read), [], "it may be about to draw");
    }
    assert_eq!(marks(ticked(&mut machine, &a, at_work(10, 9_000), CLAUDE_WORKS)), [], "it works");
    let interrupted = Mark::Idle("its turn was interrupted".to_owned());
    assert_eq!(marks(ticked(&mut machine, &a, at_work(11, 9_000), CLAUDE_DRAFT)), [Some(interrupted)]);
    assert_eq!(ticked(&mut machine, &a, at_work(11, 19_000), CLAUDE_DRAFT), None, "nothing is read again");
    for output in 12..30 {
        let read = ticked(&mut machine, &a, at_work(output, 100), CLAUDE_IDLE);
        assert_eq!(marks(read), [], "somebody types");
    }
    // The agent begins its next task, and reports that.
    let beat = machine.on(Event::News(Arc::clone(&a), News::Reported));
    assert!(matches!(&beat[..], [Effect::Beat(..)]), "{beat:?}");
    let mut effects = machine.on(Event::Beaten(Arc::clone(&a), Beaten::Done, Some(at_work(30, 0))));
    if let [Effect::Look(life, sight)] = &effects[..] {
        effects = machine.on(Event::Looked(Arc::clone(life), sight.clone(), Some(CLAUDE_IDLE.to_owned())));
    }
    assert_eq!(marks(Some(effects)), [None], "a screen that has just changed does not count");
}

#[test]
fn no_step_is_taken_while_a_text_stands_in_the_input_line() {
    for draft in [Some("delete all"), None] {
        let mut machine = Machine::new(10_000);
        let rules = swarm_model::WatchRules { after_ms: 600_000, message: "go on".to_owned() };
        let watch = Some(rules);
        let a = Arc::new(Life { agent: true, window: true, watch, ..(*life("a", 1)).clone() });
        running(&mut machine, &a);
        let (mut steps, mut waits) = (0, Vec::new());
        for tick in 1..600_u64 {
            machine.on(Event::Tick);
            let sight = Sight { output: 1, quiet_ms: tick * 10_000, reports: true, ..Sight::default() };
            let mut effects = machine.on(Event::Beaten(Arc::clone(&a), Beaten::Done, Some(sight)));
            if let [Effect::Look(life, sight)] = &effects[..] {
                if let Some(draft) = draft {
                    machine.on(Event::Drafted(Arc::clone(life), draft.to_owned()));
                }
                effects = machine.on(Event::Looked(Arc::clone(life), sight.clone(), Some(CLAUDE_WORKS.to_owned())));
            }
            let is_step = |effect: &&Effect| {
                matches!(effect, Effect::Type { .. } | Effect::Interrupt { .. } | Effect::Renew { .. })
            };
            steps += effects.iter().filter(is_step).count();
            waits.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::Tell(_, EventKind::WorkerWaiting { text, .. }) => Some(text),
                _ => None,
            }));
        }
        match draft {
            Some(_) => {
                assert_eq!((steps, &waits[..]), (0, &[sentence("delete all")][..]));
            }
            None => assert!(steps > 0 && waits.is_empty(), "{steps} {waits:?}"),
        }
    }
}
