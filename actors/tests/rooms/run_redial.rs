//! When a run looks again for a host that was out of reach.

use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::Word;
use swarm_ports::HostFault;

use crate::fixture::Rig;
use crate::run::stages;
use crate::run_hosts::{at_work, away, begin, end, finish_all, pass, run, spec, told};

fn calls(rig: &Rig, of: &str) -> usize {
    rig.world.script.calls().iter().filter(|call| call.starts_with(of)).count()
}

fn refused() -> Option<HostFault> {
    Some(HostFault::Refused { cause: "permission denied".to_owned() })
}

/// Longer than the longest pause, so that the next try is somewhere within a minute.
const OUTAGE: u64 = 3_630;

#[tokio::test(start_paused = true)]
async fn an_attempt_is_asked_about_as_soon_as_the_network_has_changed() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    rig.world.hosts.fail("a", away());
    pass(&rig, OUTAGE).await;
    let asked = calls(&rig, "hosts.hail a");
    assert!((50..80).contains(&asked), "it is asked once a minute: {asked}");
    // The first try fails: a route follows an address.
    rig.world.hosts.change_network();
    pass(&rig, 2).await;
    assert_eq!(calls(&rig, "hosts.hail a"), asked + 1);
    rig.world.hosts.fail("a", None);
    pass(&rig, 3).await;
    assert_eq!(told(&rig, |word| matches!(word, Word::HostBack { .. })), 1);
    rig.world.hosts.finish("a", "j.1", end(0));
    pass(&rig, 30).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_placed_as_soon_as_the_network_has_changed() {
    let rig = Rig::start().await;
    ["a", "b"].into_iter().for_each(|host| rig.world.hosts.fail(host, away()));
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, OUTAGE).await;
    assert_eq!(stages(&run(&rig)), ["pending"]);
    let asked = calls(&rig, "hosts.bring");
    rig.world.hosts.fail("b", None);
    rig.world.hosts.change_network();
    pass(&rig, 2).await;
    assert_eq!(at_work(&rig), [("b", "j.1".to_owned())]);
    assert!(calls(&rig, "hosts.bring") <= asked + 2, "each host is tried once");
    finish_all(&rig);
    pass(&rig, 30).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
    rig.check();
}

/// A host that is being started refuses logins for a moment, after it was out of reach.
#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_outage_delays_the_next_try_by_seconds() {
    for is_sent in [true, false] {
        let rig = Rig::start().await;
        let fail = |fault: Option<HostFault>| {
            ["a", "b"].into_iter().for_each(|host| rig.world.hosts.fail(host, fault.clone()))
        };
        if is_sent {
            begin(&rig, vec![spec("j")], 3).await;
        }
        fail(away());
        if !is_sent {
            begin(&rig, vec![spec("j")], 3).await;
        }
        pass(&rig, OUTAGE).await;
        fail(refused());
        let step = if is_sent { "hosts.hail a" } else { "hosts.bring a" };
        let asked = calls(&rig, step);
        for _ in 0..70 {
            if calls(&rig, step) == asked {
                pass(&rig, 1).await;
            }
        }
        assert_eq!(calls(&rig, step), asked + 1, "the next try is refused");
        fail(None);
        pass(&rig, 16).await;
        assert_eq!((is_sent, at_work(&rig)), (is_sent, vec![("a", "j.1".to_owned())]));
        assert!(!run(&rig).closed.contains_key("a"), "sent: {is_sent}");
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_goes_on_refusing_is_asked_at_most_four_times_in_ten_minutes() {
    let rig = Rig::start().await;
    ["a", "b"].into_iter().for_each(|host| rig.world.hosts.fail(host, refused()));
    begin(&rig, vec![spec("j")], 3).await;
    pass(&rig, 600).await;
    // A change of the network changes no refusal.
    rig.world.hosts.change_network();
    pass(&rig, 1).await;
    assert_eq!((calls(&rig, "hosts.bring a"), calls(&rig, "hosts.bring b")), (4, 4));
    rig.check();
}
