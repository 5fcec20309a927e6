//! Orders that a host did not get are delivered first at the next contact, also if another machine answers meanwhile.

use super::*;

/// The state directory that answers from now on.
fn answers_as(world: &World, id: &str) {
    block(world.reach.release(&world.now.plan.id));
    world.reach.admit(&world.now.plan.id);
    fs::write(world.fix.root.join("id"), id).expect("written");
}

fn stop(world: &World) -> Result<(), HostFault> {
    block(world.reach.stop(&world.now, "box", &world.fix.caller))
}

/// Calls after the first ones. Without the ends of connections, which come late.
fn since(world: &World, known: usize) -> Vec<String> {
    world.calls().into_iter().skip(known).filter(|call| call != "end").collect()
}

fn owed(world: &World) -> usize {
    owed::of_host(&world.reach.paths, "box").len()
}

fn is_back(world: &World) -> bool {
    world.fix.attempt(&world.fix.repo, &["rev-parse", "--verify", "-q", "refs/swarm/from/box/a.1"]).0
}

/// The run of another job, over connections of its own.
fn other_run(world: &World) -> Now {
    let mut now = world.now.clone();
    let plan = Arc::make_mut(&mut now.plan);
    plan.id = "ffffffff".into();
    plan.jobs[0].id = "z".into();
    now
}

#[test]
fn a_stop_that_a_host_did_not_get_comes_first_at_the_next_contact_of_any_run() {
    let world = World::new();
    world.bring().expect("sent");
    block(world.reach.release(&world.now.plan.id));
    world.reach.admit(&world.now.plan.id);
    world.set_away(true);
    for _ in 0..2 {
        assert_eq!(stop(&world), Err(HostFault::Away { cause: "no route".into() }));
    }
    assert_eq!(owed(&world), 1);
    world.set_away(false);
    let known = world.calls().len();
    block(world.reach.hail(&other_run(&world), "box", &world.fix.caller)).expect("it answers");
    assert_eq!(since(&world, known), ["reach box", "stop", "hail"]);
    assert_eq!(last(&world.fix.root, "stop")["job"], "a");
    assert_eq!(owed(&world), 0);
    stop(&world).expect("delivered at once");
    assert_eq!(owed(&world), 0);
}

#[test]
fn a_run_that_goes_on_withdraws_its_stops_and_no_others() {
    let world = World::with_command();
    world.set_away(true);
    stop(&world).expect_err("away");
    block(world.reach.stop(&other_run(&world), "box", &world.fix.caller)).expect_err("away");
    assert_eq!(owed(&world), 2);
    block(world.reach.go_on(&world.now.plan.id));
    assert_eq!(owed(&world), 1);
    world.set_away(false);
    world.hail().expect("it answers");
    assert_eq!(last(&world.fix.root, "stop")["run"], "ffffffff");
}

#[test]
fn a_stop_that_cannot_be_carried_out_yet_stays_owed_and_is_in_the_way_of_nothing() {
    let world = World::with_command();
    world.answer("stop", r#"{"busy":"a lock"}"#);
    assert_eq!(stop(&world), Err(HostFault::Busy { cause: "a lock".into() }));
    answers_as(&world, "a0");
    world.hail().expect("it is used all the same");
    assert_eq!(owed(&world), 1);
}

#[test]
fn a_transfer_that_fails_leaves_the_host_usable_and_names_what_is_in_the_way() {
    let world = World::new();
    let base = world.head();
    world.bring().expect("sent");
    world.work(&base);
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
    // Connections for git fail, while that of the run goes on.
    world.hail().expect("it answers");
    world.set_away(true);
    let reclaimed = block(world.reach.reclaim(plan, &abandoned, caller));
    assert_eq!(reclaimed, Err(HostFault::Busy { cause: "no route".into() }));
    world.hail().expect("it answers");
    world.set_away(false);
    let reference = "refs/swarm/from/box/a.1".to_owned();
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference])));
}

#[test]
fn work_that_comes_back_for_long_holds_up_no_other_call() {
    let world = World::new();
    world.bring().expect("sent");
    world.work(&world.head());
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
    let slow = world.fix.root.join("slow.carry");
    let made = std::process::Command::new("mkfifo").arg(&slow).status().expect("mkfifo");
    assert!(made.success());
    block(async {
        let fetching = async {
            let back = world.reach.reclaim(plan, &abandoned, caller).await;
            assert!(matches!(back, Ok(Reclaimed::Back(_))), "{back:?}");
        };
        let others = async {
            while !world.calls().contains(&"end".to_owned()) {
                tokio::task::yield_now().await;
            }
            let other = other_run(&world);
            world.reach.hail(&other, "box", caller).await.expect("it answers");
            world.reach.stop(&other, "box", caller).await.expect("delivered");
            world.reach.hail(&world.now, "box", caller).await.expect("it answers");
            assert!(!is_back(&world), "it is still being fetched");
            fs::write(&slow, "").expect("let go");
        };
        tokio::join!(fetching, others);
    });
    assert!(is_back(&world));
}

#[test]
fn an_attempt_that_another_machine_never_had_is_gone_until_its_own_machine_returns() {
    let mut world = World::new();
    fs::write(world.fix.root.join("id"), "a0").expect("written");
    let base = world.head();
    // The answer to its start was lost.
    world.bring().expect("sent");
    let tip = world.work(&base);
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (Arc::clone(&world.now.plan), world.fix.caller.clone());
    let (plan, caller) = (&*plan, &caller);
    block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
    answers_as(&world, "b0");
    world.answer("stop", r#"{"refused":"this is another machine"}"#);
    for _ in 0..2 {
        assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Gone));
    }
    assert_eq!(last(&world.fix.root, "stop")["host"], "a0");
    let is_asked = |kind: &str| world.fix.root.join(format!("last.{kind}")).exists();
    assert!(!is_asked("end") && !is_asked("forget"));
    assert_eq!(owed(&world), 1, "it may return");
    // The next attempt works on the new machine meanwhile.
    world.now.progress.attempt = 2;
    world.bring().expect("sent");
    world.now.progress.attempt = 1;
    // The first machine returns.
    answers_as(&world, "a0");
    world.answer("stop", r#""done""#);
    let known = world.calls().len();
    world.hail().expect("it answers");
    assert_eq!(since(&world, known)[..2], ["reach box", "stop"], "it is ended before anything else");
    let reference = "refs/swarm/from/box/a.1".to_owned();
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference.clone()])));
    assert_eq!((text(&world.fix.git(&["rev-parse", &reference])), owed(&world)), (tip, 0));
}

#[test]
fn a_run_that_goes_on_gets_work_from_a_host_that_a_person_has_forgotten() {
    let world = World::new();
    let base = world.head();
    world.bring().expect("sent");
    world.work(&base);
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
    owed::of_host(&world.reach.paths, "box").iter().for_each(|(file, _)| owed::settle(file));
    let reference = "refs/swarm/from/box/a.1".to_owned();
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference.clone()])));
    assert!(is_back(&world) && owed(&world) == 0);
    // The record says that the work is back, so the host is not asked again.
    let known = world.calls().len();
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference])));
    assert!(since(&world, known).is_empty());
}

#[test]
fn nothing_begins_on_a_machine_whose_earlier_attempt_is_not_back() {
    let mut world = World::new();
    fs::write(world.fix.root.join("id"), "a0").expect("written");
    world.bring().expect("sent");
    let abandoned = Abandoned::new("a", 1, "box");
    block(world.reach.owe(&world.now.plan, &abandoned, &world.fix.caller)).expect("recorded");
    world.answer("end", r#"{"busy":"a lock"}"#);
    world.now.progress.attempt = 2;
    let cause = "the work of an attempt that was given up is not back from there yet".to_owned();
    assert_eq!(world.bring(), Err(HostFault::Unfit { program: None, cause }));
}

#[test]
fn what_is_no_id_of_a_state_directory_is_not_recorded_as_one() {
    let world = World::new();
    for (id, is_one) in [("../../x", false), ("A0", false), ("", false), ("a0", true)] {
        answers_as(&world, id);
        world.bring().expect("sent");
        let sent = evidence::sent(&world.dir(), "0a1b2c3d").expect("sent");
        assert_eq!(sent.host.as_deref(), Some(id).filter(|_| is_one), "{id:?}");
    }
}
