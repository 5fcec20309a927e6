//! Attempts that were given up, and whose host has another machine under its name now; stops that a host did not get.

use swarm_actors::testing::Fault;
use swarm_model::RunOrder;
use swarm_model::run::plan::Job;
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::Word;
use swarm_ports::FarEnd;

use crate::fixture::Rig;
use crate::run::{HOME, stages};
use crate::run_given_up::give_up;
use crate::run_hosts::{at_work, away, begin, end, finish_all, order, pass, run, spec, told};

fn gone(rig: &Rig) -> usize {
    told(rig, |word| matches!(word, Word::Gone { attempt: 1, .. }))
}

/// Gives up the only attempt, which works on `a`. No other host answers.
async fn given_up() -> Rig {
    let rig = Rig::start().await;
    rig.world.hosts.fail("b", away());
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    pass(&rig, 3600).await;
    give_up(&rig, &["j"]).await.expect("given up");
    rig
}

async fn complete(rig: &Rig) {
    finish_all(rig);
    pass(rig, 60).await;
    assert_eq!((run(rig).mode, run(rig).jobs[0].failures), (Mode::Over(Verdict::Completed), 0));
    assert_eq!(rig.world.landings.base().len(), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_an_attempt_that_the_present_machine_never_had() {
    let rig = given_up().await;
    rig.world.hosts.replace("a");
    rig.world.hosts.fail("a", None);
    pass(&rig, 130).await;
    assert_eq!((at_work(&rig), gone(&rig)), (vec![("a", "j.2".to_owned())], 1));
    assert!(run(&rig).abandoned[0].is_gone && !run(&rig).abandoned[0].is_back);
    pass(&rig, 8 * 3600).await;
    assert_eq!(gone(&rig), 1, "it is told once");
    let asked = rig.world.script.calls().iter().filter(|call| call.starts_with("hosts.reclaim")).count();
    assert!(asked < 300, "{asked}");
    complete(&rig).await;
}

/// The machine that has the attempt returns while the next one works on another machine.
#[tokio::test(start_paused = true)]
async fn a_machine_that_returns_ends_the_attempt_and_its_work_comes_back() {
    let rig = given_up().await;
    rig.world.hosts.replace("a");
    rig.world.hosts.fail("a", None);
    rig.world.hosts.fail("b", None);
    pass(&rig, 130).await;
    let (host, second) = at_work(&rig).remove(0);
    assert_eq!(second, "j.2");
    if host == "a" {
        rig.world.hosts.finish("a", "j.2", end(0));
        pass(&rig, 1).await;
    }
    rig.world.hosts.replace("a");
    assert_eq!(rig.world.hosts.at_work("a"), ["j.1"]);
    begin_another(&rig).await;
    assert!(!rig.world.hosts.at_work("a").contains(&"j.1".to_owned()), "it is ended at the first contact");
    assert_eq!(rig.world.hosts.returned("a"), ["j.1"]);
    assert_eq!(rig.world.landings.base().len(), 1);
}

/// Another run, which reaches the hosts.
async fn begin_another(rig: &Rig) {
    finish_all(rig);
    pass(rig, 600).await;
    begin(rig, vec![spec("k")], 3).await;
    pass(rig, 5).await;
}

#[tokio::test(start_paused = true)]
async fn that_it_is_gone_is_known_wherever_the_supervisor_is_killed() {
    for step in ["hosts.reclaim", "hosts.reclaim.after", "run.append", "run.append.after"] {
        let mut rig = given_up().await;
        rig.world.hosts.replace("a");
        rig.world.script.at(step, Fault::Hang);
        rig.world.hosts.fail("a", None);
        pass(&rig, 130).await;
        assert!(rig.world.script.forget_faults(), "{step}");
        rig.crash().await;
        rig.up().await;
        pass(&rig, 130).await;
        assert_eq!((at_work(&rig), gone(&rig)), (vec![("a", "j.2".to_owned())], 1), "{step}");
        complete(&rig).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_of_work_that_comes_back_is_known() {
    let rig = given_up().await;
    rig.world.hosts.hold("a", Some("a lock"));
    rig.world.hosts.fail("a", None);
    pass(&rig, 600).await;
    assert_eq!(run(&rig).abandoned[0].waits.as_deref(), Some("a lock"));
    assert_eq!((at_work(&rig), stages(&run(&rig))), (Vec::new(), vec!["pending"]), "it is ended, and not back");
    assert!(!run(&rig).closed.contains_key("a"), "the host answers");
    rig.world.hosts.hold("a", None);
    pass(&rig, 130).await;
    assert_eq!((run(&rig).abandoned[0].is_back, run(&rig).abandoned[0].waits.clone()), (true, None));
    complete(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_the_host_did_not_get_is_delivered_first_at_the_next_contact() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 15).await;
    assert_eq!((run(&rig).mode, at_work(&rig).len()), (Mode::Over(Verdict::Interrupted), 1));
    rig.world.hosts.fail("a", None);
    // Whoever reaches the host next: here, a verb or another run.
    rig.world.hosts.contact("a");
    assert_eq!(at_work(&rig), [], "it is ended there");
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 5).await;
    let progress = run(&rig).jobs[0].clone();
    assert_eq!((at_work(&rig).len(), progress.attempt, progress.failures), (1, 2, 0), "it is no failure");
    complete(&rig).await;
}

/// The person wants it to go on after all.
#[tokio::test(start_paused = true)]
async fn a_run_that_goes_on_before_its_stop_is_delivered_keeps_its_attempt() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    order(&rig, RunOrder::Stop { home: HOME.to_owned() }).await;
    pass(&rig, 15).await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", None);
    pass(&rig, 130).await;
    assert_eq!(at_work(&rig), [("a", "j.1".to_owned())]);
    complete(&rig).await;
    assert_eq!(rig.world.hosts.starts("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_beside_work_that_is_not_committed_names_both() {
    let rig = Rig::start().await;
    begin(&rig, vec![Job { retries: 0, ..spec("j") }], 3).await;
    let waits = Some("an unfinished merge".to_owned());
    rig.world.hosts.finish("a", "j.1", FarEnd { waits, ..end(3) });
    pass(&rig, 1).await;
    let error = run(&rig).jobs[0].error.clone().unwrap_or_default();
    assert!(error.ends_with("; also, an unfinished merge") && error.len() > 30, "{error}");
}
