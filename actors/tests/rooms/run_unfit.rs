//! Hosts that cannot execute some of the jobs of a run.

use swarm_model::run::plan::{Job, SpecWork, Work};
use swarm_model::run::progress::{Mode, Run, Verdict};
use swarm_model::run::words::Word;
use swarm_model::{RunOrder, RunRequest};
use swarm_ports::HostFault;

use crate::fixture::{Rig, caller};
use crate::run::{HOME, job, stages};
use crate::run_hosts::{HOSTS, at_work, begin, finish_all, pass};

fn of_agent(id: &str, agent: &str) -> Job {
    Job { work: Work::Spec(SpecWork { adapter: Some(agent.to_owned()), ..SpecWork::default() }), ..job(id) }
}

fn lacking(program: &str) -> HostFault {
    HostFault::Unfit { program: Some(program.to_owned()), cause: format!("'{program}' is not installed on this host") }
}

fn in_the_way() -> HostFault {
    HostFault::Unfit { program: None, cause: "its branch is in use".to_owned() }
}

fn run(rig: &Rig) -> Run {
    rig.world.runs.run(HOME)
}

fn calls(rig: &Rig, step: &str) -> usize {
    rig.world.script.calls().iter().filter(|call| call.starts_with(step)).count()
}

fn told(rig: &Rig) -> usize {
    let told = rig.world.runs.told(HOME);
    told.iter().filter(|telling| matches!(telling.word, Word::HostUnfit { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_program_gets_the_jobs_that_need_another_one() {
    let rig = Rig::start().await;
    let ids: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    ids.iter().for_each(|id| rig.world.hosts.fail_start("a", id, Some(lacking("codex"))));
    let jobs = ids.iter().map(|id| of_agent(id, "codex")).chain((0..4).map(|at| of_agent(&format!("k{at}"), "claude")));
    begin(&rig, jobs.collect(), 2).await;
    for _ in 0..40 {
        pass(&rig, 5).await;
        assert!(run(&rig).closed.is_empty(), "the host is not closed");
        let at_a = rig.world.hosts.at_work("a");
        assert!(at_a.iter().all(|attempt| attempt.starts_with('k')), "{at_a:?}");
        finish_all(&rig);
    }
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Completed), "{:?}", stages(&run(&rig)));
    assert_eq!(rig.world.hosts.starts("a"), 4, "it had no other work to do");
    assert!(run(&rig).jobs.iter().all(|job| (job.attempt, job.failures) == (1, 0)));
    assert_eq!((told(&rig), calls(&rig, "hosts.start a c")), (1, 2), "as many tries as places");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_job_that_no_host_can_execute_waits_and_is_tried_every_five_minutes() {
    let mut rig = Rig::start().await;
    let fail = |rig: &Rig, fault: Option<HostFault>| {
        HOSTS.into_iter().for_each(|host| rig.world.hosts.fail_start(host, "j", fault.clone()));
    };
    fail(&rig, Some(lacking("codex")));
    begin(&rig, vec![of_agent("j", "codex"), of_agent("k", "claude")], 2).await;
    pass(&rig, 1).await;
    finish_all(&rig);
    pass(&rig, 3600).await;
    let waiting = run(&rig);
    assert_eq!((stages(&waiting), waiting.mode, waiting.jobs[0].attempt), (vec!["pending", "done"], Mode::Running, 0));
    let causes: Vec<_> =
        waiting.jobs[0].unfit.iter().map(|(host, unfit)| (host.as_str(), unfit.cause.as_str())).collect();
    assert_eq!(causes, HOSTS.map(|host| (host, "'codex' is not installed on this host")));
    let tries = calls(&rig, "hosts.start a j");
    assert!((11..=13).contains(&tries), "{tries}");
    // The time of the next try outlives the supervisor.
    rig.crash().await;
    fail(&rig, None);
    rig.up().await;
    pass(&rig, 20).await;
    assert_eq!(at_work(&rig), []);
    pass(&rig, 300).await;
    assert_eq!(at_work(&rig).len(), 1);
    finish_all(&rig);
    pass(&rig, 30).await;
    let over = run(&rig);
    assert_eq!((over.mode, over.jobs[0].attempt), (Mode::Over(Verdict::Completed), 1));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_of_one_job_holds_up_no_other_and_is_tried_soon() {
    let rig = Rig::start().await;
    rig.world.hosts.fail_start("a", "j", Some(in_the_way()));
    rig.world.hosts.fail_start("b", "j", Some(in_the_way()));
    let jobs = ["j", "k", "l", "m", "n"].map(|id| of_agent(id, "codex"));
    begin(&rig, jobs.to_vec(), 1).await;
    for _ in 0..6 {
        pass(&rig, 2).await;
        finish_all(&rig);
    }
    assert_eq!(stages(&run(&rig)), ["pending", "done", "done", "done", "done"]);
    pass(&rig, 3600).await;
    assert!((60..=70).contains(&calls(&rig, "hosts.start a j")), "{}", calls(&rig, "hosts.start a j"));
    assert_eq!(told(&rig), 2, "once for each host");
    rig.world.hosts.fail_start("b", "j", None);
    pass(&rig, 60).await;
    assert_eq!(at_work(&rig), [("b", "j.1".to_owned())]);
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_continued_tries_all_hosts_again() {
    let rig = Rig::start().await;
    HOSTS.into_iter().for_each(|host| rig.world.hosts.fail_start(host, "j", Some(lacking("codex"))));
    begin(&rig, vec![of_agent("j", "codex")], 2).await;
    pass(&rig, 1).await;
    let order = RunOrder::Stop { home: HOME.to_owned() };
    rig.swarm().run(RunRequest { caller: caller(), order }).recv().await.expect("an answer");
    pass(&rig, 1).await;
    assert_eq!(run(&rig).mode, Mode::Over(Verdict::Interrupted));
    HOSTS.into_iter().for_each(|host| rig.world.hosts.fail_start(host, "j", None));
    begin(&rig, vec![of_agent("j", "codex")], 2).await;
    pass(&rig, 1).await;
    assert_eq!(at_work(&rig).len(), 1);
    rig.check();
}
