//! What stays of a job that is done: its worker, or nothing.

use std::time::Duration;

use swarm_model::run::plan::{CommandWork, Flags, Job, Plan, SpecWork, Work};
use swarm_model::{Ended, RunOrder, RunRequest};

use crate::fixture::{Rig, caller};

const HOME: &str = "/runs/f-1";

/// Runs one job to its end. Returns whether its worker is kept, and whether its branch was tidied.
async fn done(job: Job, flags: Flags, has_work: bool) -> (bool, bool) {
    let rig = Rig::start().await;
    let (id, home, slug) = ("r1".to_owned(), HOME.to_owned(), "p".to_owned());
    let base = Some("main".to_owned());
    let plan = Plan { id, home, slug, root: "/repo".to_owned(), base, jobs: vec![job], flags, ..Plan::default() };
    if has_work {
        rig.world.runs.leave_work(HOME, "a");
    }
    let order = RunOrder::Begin { plan: Box::new(plan), retry_failed: false };
    rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer");
    rig.world.settle().await;
    rig.world.end("p.a", Ended::Code(0));
    rig.world.pass(Duration::from_secs(30)).await;
    (!rig.world.rows().is_empty(), rig.world.script.calls().iter().any(|line| line == "run.tidy a"))
}

#[tokio::test(start_paused = true)]
async fn only_the_worker_of_a_command_that_left_work_is_kept() {
    let command = || Work::Command(CommandWork::default());
    let job = |work: Work, merge: bool| {
        let branch = Some("arial/f-1/a".to_owned());
        Job { id: "a".to_owned(), work, merge, branch, ..Job::default() }
    };
    let no_merge = Flags { no_merge: true, ..Flags::default() };
    for (work, merge, flags, has_work, expected) in [
        (command(), true, Flags::default(), false, (false, true)),
        (command(), false, Flags::default(), false, (false, true)),
        (command(), false, Flags::default(), true, (true, false)),
        (command(), false, no_merge, false, (true, false)),
        (Work::Spec(SpecWork::default()), false, Flags::default(), false, (true, false)),
    ] {
        let case = format!("{work:?} {merge} {flags:?} {has_work}");
        assert_eq!(done(job(work, merge), flags, has_work).await, expected, "{case}");
    }
    let plain = Job { branch: None, ..job(command(), false) };
    assert_eq!(done(plain, Flags::default(), true).await, (false, false));
}
