//! Workers that are jobs of Slurm, whose commands are replaced by scripts: a job is a process.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::{SOON, Said, proc, wait_until};
use crate::slurm::Cluster;

impl Cluster {
    /// Starts a worker as a job.
    fn submit(&self, name: &str, script: &str) -> Said {
        self.swarm(&["spawn", "--on", "jobs", "--name", name, "--", "sh", "-c", script])
    }

    fn status(&self, name: &str) -> Value {
        serde_json::from_str(&self.swarm(&["status", name, "--json"]).out).expect("JSON")
    }

    fn await_state(&self, name: &str, state: &str) {
        wait_until(&format!("{name} is {state}"), SOON, || self.status(name)["state"] == state);
    }

    /// Executes a job, for the first time or again.
    fn begin(&self, job: u32) {
        let mut begin = Command::new(self.0.path("slurm/bin/begin"));
        let dirs = fs::read_dir(self.0.root().join("w")).expect("a directory");
        let dir = dirs.flatten().next().expect("one worker").path();
        assert!(begin.arg(job.to_string()).current_dir(dir).status().expect("executed").success());
    }

    fn job_state(&self, job: u32) -> String {
        fs::read_to_string(self.0.path(&format!("slurm/{job}.state"))).expect("a job")
    }
}

#[test]
fn a_worker_is_a_job_from_the_queue_to_its_record() {
    let cluster = Cluster::new();
    cluster.set("full", "");
    let said = cluster.submit("w", "echo $SLURM_JOB_ID $SBATCH_TIMELIMIT $KEY; exit 7");
    assert!(said.code == Some(0) && said.out.starts_with("spawned w (job: w."), "{said:?}");
    cluster.await_state("w", "queued");
    wait_until("Slurm has said why", SOON, || cluster.swarm(&["ls", "-l"]).out.contains("queued: Resources"));
    let state = fs::read_to_string(cluster.0.state()).expect("a registry");
    let row: Value = serde_json::from_str(&state).expect("JSON");
    let row = &row["workers"][0];
    assert_eq!((&row["pid"], &row["tmux"]), (&Value::Null, &Value::Null));
    assert_eq!((&row["metadata"]["swarm"]["place"]["engine"], &row["status"]), (&"slurm".into(), &"running".into()));
    assert!(
        cluster.swarm(&["explain", "w"]).ok().contains("its job waits in the queue; Slurm says PENDING (Resources)")
    );
    cluster.begin(1);
    assert_eq!(cluster.swarm(&["wait", "w", "--exit-code"]).code, Some(7));
    assert_eq!(cluster.swarm(&["logs", "w"]).ok(), "1\n");
    let status = cluster.status("w");
    assert_eq!((&status["state"], &status["exit"]["code"]), (&"exited".into(), &7.into()));
    // A second execution finds that the command was executed.
    cluster.begin(1);
    wait_until("it has left", SOON, || cluster.job_state(1).starts_with("FAILED"));
    assert_eq!(cluster.swarm(&["logs", "w"]).ok(), "1\n");
    assert_eq!(cluster.swarm(&["respawn", "w"]).code, Some(0));
    cluster.await_state("w", "queued");
}

#[test]
fn a_job_is_stopped_in_the_queue_and_at_work_and_stays_stopped() {
    let cluster = Cluster::new();
    cluster.submit("works", "trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.1; done").ok();
    cluster.await_state("works", "running");
    wait_until("it works", SOON, || cluster.swarm(&["logs", "works"]).out == "begun\n");
    assert_eq!(cluster.swarm(&["kill", "works"]).ok(), "killed works\n");
    let status = cluster.status("works");
    assert_eq!(
        (&status["state"], &status["exit"]["code"], &status["failed"]),
        (&"stopped".into(), &3.into(), &false.into())
    );
    cluster.set("full", "");
    cluster.submit("waits", "echo begun").ok();
    assert_eq!(cluster.swarm(&["kill", "waits"]).ok(), "killed waits\n");
    assert!(cluster.job_state(2).starts_with("CANCELLED"));
    assert_eq!(cluster.status("waits")["state"], "stopped");
    assert_eq!(cluster.swarm(&["logs", "waits"]).out, "");
    cluster.swarm(&["clean", "--all"]).ok();
    assert_eq!(cluster.swarm(&["ls", "-q"]).ok(), "");
}

#[test]
fn a_submission_without_an_answer_is_one_execution_and_a_refused_one_is_none() {
    let cluster = Cluster::new();
    cluster.set("refuse", "");
    let said = cluster.submit("w", "true");
    assert!(said.code == Some(1) && said.err.contains("Slurm refuses the job: sbatch: error"), "{said:?}");
    assert_eq!(cluster.swarm(&["ls", "-q"]).ok(), "");
    cluster.unset("refuse");
    // The answer comes too late, and the job is there.
    cluster.set("late", "");
    cluster.submit("w", "echo once").ok();
    assert_eq!(cluster.swarm(&["wait", "w", "--exit-code"]).code, Some(0));
    assert_eq!(cluster.swarm(&["logs", "w"]).ok(), "once\n");
    for (words, cause) in [
        (&["--on", "jobs", "--tmux"][..], "--tmux does not apply to a worker that is a job"),
        (&["--on", "jobs", "--restart", "always"], "--restart does not apply"),
        (&["--on", "cluster"], "host 'cluster' makes no jobs"),
        (&["--on", "nowhere"], "host 'nowhere' is not configured"),
    ] {
        let said = cluster.swarm(&[&["spawn", "--name", "x"], words, &["--", "true"]].concat());
        assert!(said.code == Some(1) && said.err.contains(cause), "{said:?}");
    }
    let said = cluster.swarm(&["--host", "jobs", "ls"]);
    assert!(said.err.contains("jobs is no machine") && said.err.contains("slurm-pilot"), "{said:?}");
    assert!(cluster.swarm(&["attach", "w"]).code != Some(0));
}

#[test]
fn silence_is_no_end_and_a_lost_node_is_no_proof() {
    let cluster = Cluster::new();
    cluster.submit("w", "echo begun; exec sleep 600").ok();
    cluster.await_state("w", "running");
    let supervisor = |words: &[&str]| cluster.swarm(&[&["supervisor"], words].concat());
    supervisor(&["stop"]);
    cluster.set("down", "");
    assert_eq!(cluster.status("w")["state"], "running");
    let said = cluster.swarm(&["kill", "w"]);
    assert!(said.code == Some(1) && said.err.contains("cannot cancel job w."), "{said:?}");
    assert_eq!(cluster.status("w")["state"], "running");
    // It is cancelled as soon as Slurm answers.
    cluster.unset("down");
    cluster.await_state("w", "stopped");
    cluster.swarm(&["respawn", "w"]).ok();
    cluster.await_state("w", "running");
    fail_workers(&cluster, 2);
    cluster.await_state("w", "lost");
    let status = cluster.status("w");
    assert_eq!((&status["job"]["unproven"], &status["exit"]["outcome"]), (&true.into(), &"unknown".into()), "{status}");
    let recover = ["recover", "w", "--apply", "--settle", "1"];
    for words in [&["respawn", "w"][..], &recover] {
        let said = cluster.swarm(words);
        assert!(said.code == Some(1) && said.err.contains("node n1, which Slurm does not reach"), "{said:?}");
    }
    cluster.unset("node");
    assert_eq!(cluster.swarm(&recover).code, Some(0));
    cluster.await_state("w", "running");
    // Each of the three jobs was executed once.
    assert_eq!(cluster.swarm(&["logs", "w"]).ok(), "begun\nbegun\nbegun\n");
    assert!(cluster.job_state(3).starts_with("RUNNING") && !cluster.0.path("slurm/4.state").exists());
}

/// Kills the shim and the command of a job, as if its node had failed.
fn fail_workers(cluster: &Cluster, job: u32) {
    cluster.set(&format!("{job}.failed"), "");
    let pid = fs::read_to_string(cluster.0.path(&format!("slurm/{job}.pid"))).expect("a job");
    let is_command = |pid: &i32| proc::words(*pid) == ["sleep", "600"];
    let commands: Vec<i32> = cluster.0.processes().into_iter().filter(is_command).collect();
    proc::kill(pid.trim().parse().expect("a number"));
    commands.into_iter().for_each(proc::kill);
    cluster.set(&format!("{job}.state"), "NODE_FAIL|NodeFail|n1|1|2\n");
    cluster.set("node", "down*\n");
}
