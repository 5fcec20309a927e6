//! A run of two jobs on another host. One is given up, and the other stopped with its run and continued.

use swarm_model::run::plan::{Job, Plan, Rules, Seats, SpecWork, Work};
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::{RunOrder, RunRequest};
use swarm_ports::HostFault;

use super::stage::Stage;
use crate::fixture::caller;
use crate::run::{HOME, job, plan};
use crate::run_hosts::end;

const HOST: &str = "box";

fn request() -> RunRequest {
    let spec = |id: &str| Job { work: Work::Spec(SpecWork::default()), ..job(id) };
    let on = vec![Seats { host: HOST.to_owned(), cap: 2, tags: Vec::new() }];
    let plan = Plan { rules: Rules { limit: 2, on, ..Rules::default() }, ..plan(vec![spec("a"), spec("b")]) };
    RunRequest { caller: caller(), order: RunOrder::Begin { plan: Box::new(plan), retry_failed: true } }
}

async fn work(stage: &mut Stage) {
    for _ in 0..4 {
        stage.seconds(90).await;
        let hosts = stage.rig.world.hosts.clone();
        hosts.at_work(HOST).iter().for_each(|attempt| hosts.finish(HOST, attempt, end(0)));
    }
    stage.seconds(90).await;
}

pub async fn play(stage: &mut Stage) {
    let answers = stage.rig.swarm().run(request());
    stage.done("run", answers).await;
    stage.seconds(5).await;
    stage.rig.world.hosts.fail(HOST, Some(HostFault::Away { cause: "no route".to_owned() }));
    stage.seconds(1).await;
    let order = RunOrder::GiveUp { home: HOME.to_owned(), jobs: vec!["a".to_owned()] };
    let answers = stage.rig.swarm().run(RunRequest { caller: caller(), order });
    stage.done("run give-up", answers).await;
    stage.rig.world.hosts.fail(HOST, None);
    stage.seconds(5).await;
    let answers =
        stage.rig.swarm().run(RunRequest { caller: caller(), order: RunOrder::Stop { home: HOME.to_owned() } });
    stage.done("run stop", answers).await;
    stage.seconds(60).await;
    let answers = stage.rig.swarm().run(request());
    stage.done("run", answers).await;
    work(stage).await;
}

pub async fn finish(stage: &mut Stage) {
    // Begins it again, unless it is under way.
    for _ in 0..2 {
        let answers = stage.rig.swarm().run(request());
        stage.done("run", answers).await;
        work(stage).await;
    }
    let (mode, landed) = (stage.rig.world.runs.run(HOME).mode, stage.rig.world.landings.base().len());
    stage.violated(mode != Mode::Over(Verdict::Completed) || landed != 2, || format!("{mode:?}, landed: {landed}"));
    let left = stage.rig.world.hosts.at_work(HOST);
    stage.violated(!left.is_empty(), || format!("still at work: {left:?}"));
}
