//! Attempts of a job on several hosts, and what is in the way of one.

use super::*;

#[test]
fn each_host_is_asked_to_forget_what_its_own_state_directory_has() {
    let mut world = World::with_command();
    // The answer to the last start was lost.
    for (attempt, host, id) in [(1, "box", "a0"), (2, "gpu", "b0"), (3, "box", "a0"), (4, "new", "null")] {
        world.now.progress.attempt = attempt;
        let id = if id == "null" { id.to_owned() } else { format!("{id:?}") };
        world.answer("start", &format!(r#"{{"started":{{"generation":1,"host":{id}}}}}"#));
        block(world.reach.bring(&world.now, host, &world.fix.caller)).expect("it answers");
        world.start_on(host).expect("started");
    }
    for (host, id) in [("box", Some("a0")), ("gpu", Some("b0")), ("new", None), ("other", None)] {
        block(world.reach.forget(&world.now, host, &world.fix.caller));
        let at = last(&world.fix.root, "forget");
        assert_eq!((at["host"].as_str(), at["attempt"].as_u64()), (id, Some(4)), "{host}");
    }
}

#[test]
fn what_another_machine_does_not_have_stays_owed() {
    let world = World::with_command();
    world.answer("forget", r#"{"unknown":"this is another machine"}"#);
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    assert_eq!(owed::of_host(&world.reach.paths, "box").len(), 1);
    world.answer("forget", r#""done""#);
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    assert!(owed::of_host(&world.reach.paths, "box").is_empty());
}

#[test]
fn all_reasons_for_which_work_is_not_here_are_named() {
    let world = World::new();
    world.bring().expect("sent");
    let tip = world.work(&world.head());
    let (also, waits) = (Some("1".repeat(40)), Some("an unfinished merge".to_owned()));
    let left = FarResult { tip: Some(tip), also, waits, ..FarResult::default() };
    world.answer("end", &serde_json::to_string(&FarAnswer::Ended(Box::new(left))).expect("JSON"));
    let waits = world.end().expect("ended").waits.unwrap_or_default();
    assert!(waits.starts_with("an unfinished merge; also, what is there cannot be fetched: "), "{waits}");
}

#[test]
fn a_transfer_that_fails_says_nothing_about_the_host() {
    let world = World::new();
    world.bring().expect("sent");
    let tip = world.work(&world.head());
    world.hail().expect("it answers");
    // Connections for git fail, while that of the run goes on.
    world.set_away(true);
    assert_eq!(world.end(), Err(HostFault::Unfit { program: None, cause: "no route".into() }));
    world.hail().expect("it answers");
    world.set_away(false);
    assert_eq!(world.end().expect("ended").tip, Some(tip));
}
