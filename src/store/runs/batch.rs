//! Attempts that are jobs of a batch system: their contracts.

use std::path::Path;

use swarm_model::run::plan::{Job, Plan};
use swarm_model::{Caller, Contract};

/// Returns the program that executes an attempt of this job: the one on the nodes, if the attempt is a job there.
pub fn program(plan: &Plan, job: &Job, caller: &Caller, executable: &Path) -> String {
    let home = caller.environment.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.as_str());
    match plan.rules.order_of(job) {
        Some(order) => order.executable(home),
        None => executable.to_string_lossy().into_owned(),
    }
}

/// Makes the worker of an attempt a job, if the run has clusters. Its time limit becomes that of the job.
pub fn submit(plan: &Plan, job: &Job, contract: &mut Contract) {
    if let Some(order) = plan.rules.order_of(job) {
        let mut order = order.clone();
        order.limit(contract.timeout_ms);
        contract.become_job(order);
    }
}

#[cfg(test)]
mod tests {
    use swarm_model::JobOrder;
    use swarm_model::run::plan::{Rules, Seats};

    use super::*;

    #[test]
    fn an_attempt_is_a_job_with_its_own_time_limit_and_the_program_on_the_nodes() {
        let order = JobOrder {
            host: "jobs".to_owned(),
            program: "~/bin/swarm".to_owned(),
            arguments: vec!["--partition=cpu".to_owned()],
            ask_ms: None,
        };
        let rules = Rules {
            on: vec![Seats { host: "jobs".to_owned(), cap: 4, tags: Vec::new() }],
            clusters: [("jobs".to_owned(), order)].into(),
            ..Rules::default()
        };
        let (plan, job) = (Plan { rules, ..Plan::default() }, Job { timeout_ms: Some(600_000), ..Job::default() });
        let environment = vec![("HOME".to_owned(), "/home/a".to_owned())];
        let caller = Caller { environment: environment.into(), ..Caller::default() };
        assert_eq!(program(&plan, &job, &caller, Path::new("/here/swarm")), "/home/a/bin/swarm");
        assert_eq!(program(&Plan::default(), &job, &caller, Path::new("/here/swarm")), "/here/swarm");
        let mut contract = Contract { timeout_ms: job.timeout_ms, ..Contract::default() };
        submit(&Plan::default(), &job, &mut contract);
        assert_eq!(contract.job, None);
        submit(&plan, &job, &mut contract);
        assert_eq!(contract.job.expect("a job").arguments, ["--partition=cpu", "--time=15"]);
    }
}
