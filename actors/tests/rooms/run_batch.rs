//! Runs whose attempts are jobs of a batch system: one that may still work is not started a second time, and each lands once.

use swarm_actors::testing::exit_record;
use swarm_model::run::plan::{Job, Plan, Rules, Seats};
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::{Ended, JobOrder, Over, Reason, RunOrder};

use crate::fixture::Rig;
use crate::run::{HOME, job, plan, stages};
use crate::run_hosts::{order, pass, run};

async fn begin(rig: &Rig, jobs: &[&str]) {
    let jobs = jobs.iter().map(|id| Job { retries: 0, ..job(id) }).collect();
    let order_of = JobOrder { host: "jobs".to_owned(), program: "swarm".to_owned(), ..JobOrder::default() };
    let rules = Rules {
        limit: 2,
        on: vec![Seats { host: "jobs".to_owned(), cap: 2, tags: Vec::new() }],
        clusters: [("jobs".to_owned(), order_of)].into(),
        ..Rules::default()
    };
    let plan = Plan { rules, ..plan(jobs) };
    order(rig, RunOrder::Begin { plan: Box::new(plan), retry_failed: false }).await;
}

async fn stop(rig: &Rig) {
    order(rig, RunOrder::Stop { home: HOME.to_owned() }).await;
}

/// Executes the job of `id`, and ends it with success.
fn work(rig: &Rig, id: &str) {
    let name = format!("p.{id}");
    rig.world.jobs.begin(&name);
    rig.world.jobs.end(&name, exit_record(Ended::Code(0), Reason::Exited));
}

/// Number of starts of workers.
fn started(rig: &Rig) -> usize {
    rig.world.script.calls().iter().filter(|call| call.starts_with("open ")).count()
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_as_may_are_submitted_and_each_lands_once() {
    let mut rig = Rig::start().await;
    begin(&rig, &["a", "b", "c"]).await;
    pass(&rig, 8 * 60 * 60).await;
    let waiting = run(&rig);
    assert_eq!((stages(&waiting), started(&rig)), (vec!["working", "working", "pending"], 2));
    assert!(waiting.jobs[0].submitted && waiting.jobs[0].pid.is_none() && waiting.jobs[0].host.is_none());
    // The supervisor is killed: the next one finds the jobs, in the queue and at work.
    rig.world.jobs.begin("p.b");
    rig.crash().await;
    work(&rig, "a");
    rig.up().await;
    pass(&rig, 30).await;
    assert_eq!((stages(&run(&rig)), started(&rig)), (vec!["done", "working", "working"], 3));
    rig.world.jobs.end("p.b", exit_record(Ended::Code(0), Reason::Exited));
    work(&rig, "c");
    pass(&rig, 30).await;
    assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 3));
    assert_eq!((started(&rig), rig.world.rows()), (3, Vec::new()));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_cancels_its_jobs_and_goes_on_later() {
    let rig = Rig::start().await;
    begin(&rig, &["a", "b"]).await;
    rig.world.jobs.begin("p.a");
    pass(&rig, 60).await;
    stop(&rig).await;
    pass(&rig, 30).await;
    assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["paused", "paused"], Mode::Over(Verdict::Interrupted)));
    begin(&rig, &["a", "b"]).await;
    work(&rig, "a");
    work(&rig, "b");
    pass(&rig, 30).await;
    assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 2));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_person_kills_in_the_queue_is_stopped_and_one_that_is_cancelled_is_repeated() {
    let rig = Rig::start().await;
    begin(&rig, &["a", "b"]).await;
    rig.kill("p.a").await.expect("killed");
    rig.world.jobs.lose("p.b", "CANCELLED by 1000", Over::Proven);
    pass(&rig, 30).await;
    let present = run(&rig);
    assert_eq!(stages(&present), ["failed", "working"]);
    assert_eq!(present.jobs[0].error.as_deref(), Some("stopped by a person"));
    assert_eq!((present.jobs[1].attempt, present.jobs[1].failures), (2, 0), "no retry is used up");
    let why = "its job ended without an exit record: Slurm says CANCELLED by 1000";
    assert_eq!(present.jobs[1].error.as_deref(), Some(why));
    work(&rig, "b");
    pass(&rig, 30).await;
    assert_eq!(rig.world.landings.base().len(), 1);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_lost_with_its_node_has_not_ended_until_that_is_proven() {
    for (is_late, crashes) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::start().await;
        rig.world.jobs.reach(false);
        begin(&rig, &["a"]).await;
        rig.world.jobs.begin("p.a");
        rig.world.jobs.lose("p.a", "NODE_FAIL", Over::Unproven);
        pass(&rig, 24 * 60 * 60).await;
        if crashes {
            rig.crash().await;
            rig.up().await;
            pass(&rig, 60).await;
        }
        assert_eq!((stages(&run(&rig)), run(&rig).jobs[0].attempt, started(&rig)), (vec!["working"], 1, 1));
        let expected = if is_late {
            // The node worked on.
            rig.world.jobs.end("p.a", exit_record(Ended::Code(0), Reason::Exited));
            (1, 0)
        } else {
            rig.world.jobs.reach(true);
            pass(&rig, 60).await;
            work(&rig, "a");
            (2, 1)
        };
        pass(&rig, 60).await;
        let progress = run(&rig).jobs[0].clone();
        assert_eq!((progress.attempt, progress.lost), expected, "late: {is_late}, crash: {crashes}");
        assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 1));
        rig.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_stopped_while_a_job_may_still_work_and_the_next_one_waits_for_its_node() {
    let rig = Rig::start().await;
    rig.world.jobs.reach(false);
    begin(&rig, &["a"]).await;
    rig.world.jobs.begin("p.a");
    rig.world.jobs.lose("p.a", "NODE_FAIL", Over::Unproven);
    for attempt in [1, 2] {
        pass(&rig, 60 * 60).await;
        assert_eq!((stages(&run(&rig)), run(&rig).jobs[0].attempt), (vec!["working"], attempt));
        stop(&rig).await;
        pass(&rig, 30).await;
        assert_eq!((stages(&run(&rig)), run(&rig).mode), (vec!["paused"], Mode::Over(Verdict::Interrupted)));
        begin(&rig, &["a"]).await;
    }
    pass(&rig, 60 * 60).await;
    assert_eq!((started(&rig), run(&rig).jobs[0].failures), (1, 0), "nothing beside a job that may still work");
    rig.world.jobs.reach(true);
    pass(&rig, 60).await;
    work(&rig, "a");
    pass(&rig, 30).await;
    assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 1));
    assert_eq!(started(&rig), 2);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_given_up_is_repeated_at_once() {
    let rig = Rig::start().await;
    rig.world.jobs.reach(false);
    begin(&rig, &["a"]).await;
    rig.world.jobs.begin("p.a");
    rig.world.jobs.lose("p.a", "NODE_FAIL", Over::Unproven);
    pass(&rig, 60).await;
    rig.clean("p.a").await.expect("given up");
    pass(&rig, 60).await;
    assert_eq!((run(&rig).jobs[0].attempt, run(&rig).jobs[0].failures, started(&rig)), (2, 0, 2));
    work(&rig, "a");
    pass(&rig, 30).await;
    assert_eq!((run(&rig).mode, rig.world.landings.base().len()), (Mode::Over(Verdict::Completed), 1));
    rig.check();
}
