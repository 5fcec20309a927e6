//! Work of a run that somebody adds to the queue once more.

use std::time::Duration;

use swarm_model::run::plan::Job;
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::run::words::Word;
use swarm_model::{Ended, MergeOrder, MergeRequest};

use crate::fixture::{Rig, caller};
use crate::landing::add;
use crate::run::{HOME, begin, job, stages};

/// Starts a run of `a` and what comes after it, and waits until the work of `a` waits for edits.
async fn waiting() -> Rig {
    let rig = Rig::start().await;
    rig.world.landings.edit(true);
    begin(&rig, vec![job("a"), Job { after: vec!["a".to_owned()], ..job("b") }]).await;
    rig.world.end("p.a", Ended::Code(0));
    pass(&rig).await;
    assert_eq!(stages(&rig.world.runs.run(HOME)), ["waiting", "pending"]);
    rig
}

async fn pass(rig: &Rig) {
    rig.world.pass(Duration::from_secs(30)).await;
}

async fn ask(rig: &Rig, order: MergeOrder) {
    rig.swarm().merge(MergeRequest { caller: caller(), order }).recv().await.expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn a_run_follows_the_item_that_a_person_adds_in_place_of_its_own() {
    for is_interrupted in [false, true] {
        let mut rig = waiting().await;
        let target = rig.swarm().queues().await.expect("complete")[0].target.clone();
        ask(&rig, MergeOrder::Pause { target: target.clone() }).await;
        add(&rig, "p.a").await;
        pass(&rig).await;
        assert_eq!(stages(&rig.world.runs.run(HOME)), ["merging", "pending"], "the run goes on");
        if is_interrupted {
            rig.crash().await;
            rig.up().await;
            pass(&rig).await;
        }
        rig.world.landings.edit(false);
        ask(&rig, MergeOrder::Resume { target }).await;
        pass(&rig).await;
        let told = rig.world.runs.told(HOME);
        let by = told.iter().find_map(|telling| match &telling.word {
            Word::Done { item, .. } => Some(*item),
            _ => None,
        });
        assert_eq!((by, stages(&rig.world.runs.run(HOME))), (Some(Some(1)), vec!["done", "working"]));
        rig.world.end("p.b", Ended::Code(0));
        pass(&rig).await;
        assert_eq!(rig.world.runs.run(HOME).mode, Mode::Over(Verdict::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_person_adds_and_does_not_land_waits_without_another_attempt() {
    let rig = waiting().await;
    rig.world.landings.make_bad(1);
    let names = vec!["p.a".to_owned()];
    let settings = swarm_model::MergeSettings { verify: Some("make".to_owned()), ..Default::default() };
    ask(&rig, MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None })
        .await;
    pass(&rig).await;
    let run = rig.world.runs.run(HOME);
    assert_eq!((stages(&run), run.jobs[0].attempt), (vec!["waiting", "pending"], 1), "{:?}", run.jobs[0]);
    assert!(
        run.jobs[0].error.as_deref().is_some_and(|error| error.starts_with("verification failed: ")),
        "{:?}",
        run.jobs[0]
    );
    // Nothing is left that continues by itself.
    assert_eq!(run.mode, Mode::Over(Verdict::Failed));
}
