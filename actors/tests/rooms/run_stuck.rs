//! Attempts on hosts that answer, with something in the way of taking what they have done.

use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::Word;
use swarm_ports::HostFault;

use crate::fixture::Rig;
use crate::run::stages;
use crate::run_given_up::give_up;
use crate::run_hosts::{at_work, away, begin, end, finish_all, pass, run, spec, told};

fn full() -> HostFault {
    HostFault::Unfit { program: None, cause: "no space left".to_owned() }
}

/// Number of calls about the end of the attempt.
fn asked(rig: &Rig) -> usize {
    rig.world.script.calls().iter().filter(|call| *call == "hosts.end a j.1").count()
}

#[tokio::test(start_paused = true)]
async fn work_that_cannot_be_taken_is_tried_again_after_growing_pauses_and_the_reason_is_known() {
    for fault in [full(), HostFault::Busy { cause: "no space left".to_owned() }] {
        let rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        rig.world.hosts.fail_end("a", "j", Some(fault));
        rig.world.hosts.finish("a", "j.1", end(0));
        pass(&rig, 3600).await;
        assert!((50..100).contains(&asked(&rig)), "{}", asked(&rig));
        let present = run(&rig);
        assert_eq!((stages(&present), present.jobs[0].stuck.as_deref()), (vec!["working"], Some("no space left")));
        assert!(present.closed.is_empty() && present.jobs[0].away_ms.is_none(), "the host answers");
        rig.world.hosts.fail_end("a", "j", None);
        pass(&rig, 90).await;
        assert_eq!((run(&rig).mode, &run(&rig).jobs[0].stuck), (Mode::Over(Verdict::Completed), &None));
        assert_eq!(rig.world.landings.base().len(), 1);
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_work_cannot_be_taken_may_be_given_up() {
    let rig = Rig::start().await;
    begin(&rig, vec![spec("j")], 3).await;
    give_up(&rig, &["j"]).await.expect_err("it works");
    rig.world.hosts.fail_end("a", "j", Some(full()));
    pass(&rig, 5).await;
    give_up(&rig, &["j"]).await.expect("given up");
    assert_eq!(run(&rig).jobs[0].error.as_deref(), Some("attempt 1 was given up: no space left"));
    let told = run(&rig).jobs[0].given_up.clone().expect("told");
    assert!(told.contains("a, from where its work could not be taken (no space left), and was given up"), "{told}");
    pass(&rig, 5).await;
    assert_eq!(at_work(&rig).last(), Some(&("b", "j.2".to_owned())));
    rig.world.hosts.finish("b", "j.2", end(0));
    pass(&rig, 60).await;
    assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 1));
    rig.check();
}

/// Another machine answers under the name of the host, or a connection carries the first answers only.
#[tokio::test(start_paused = true)]
async fn a_host_that_answers_and_fails_at_once_is_not_back_each_time() {
    for fault in [away().expect("a fault"), HostFault::Refused { cause: "another machine".to_owned() }] {
        let rig = Rig::start().await;
        begin(&rig, vec![spec("j")], 3).await;
        rig.world.hosts.fail_end("a", "j", Some(fault));
        pass(&rig, 3600).await;
        assert!(asked(&rig) < 100, "{}", asked(&rig));
        assert!(run(&rig).jobs[0].away_ms.is_some());
        let back = |rig: &Rig| told(rig, |word| matches!(word, Word::HostBack { .. }));
        let lost = told(&rig, |word| matches!(word, Word::HostAway { .. }));
        assert!(lost <= 2 && back(&rig) < lost, "{lost}, {}", back(&rig));
        let before = back(&rig);
        rig.world.hosts.fail_end("a", "j", None);
        pass(&rig, 310).await;
        assert_eq!((back(&rig), run(&rig).jobs[0].away_ms), (before + 1, None), "before it ends");
        finish_all(&rig);
        pass(&rig, 30).await;
        assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed));
        rig.check();
    }
}
