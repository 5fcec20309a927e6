//! Work that a run has left: whatever lands it, the verification is that which was asked for.

use std::fs;

use crate::common::{SOON, wait_until};
use crate::run::Site;

/// A site, and the command that verifies: it fails for work that is bad, and notes that it was there.
fn site() -> (Site, String) {
    let site = Site::new();
    let command = format!("echo x >> {}; ! grep bad a.txt", site.rig.path("verified").display());
    (site, command)
}

impl Site {
    /// Number of verifications.
    fn verified(&self) -> usize {
        fs::read_to_string(self.rig.path("verified")).unwrap_or_default().lines().count()
    }

    /// Returns the name that the status of a run advises to add.
    fn advised(&self, flags: &[&str]) -> String {
        let shown = self.swarm(&[&["run", "status"], flags].concat()).ok();
        let advice = shown.split("'swarm merge add ").nth(1).and_then(|rest| rest.split('\'').next());
        advice.unwrap_or_else(|| panic!("no advice: {shown}")).to_owned()
    }

    #[track_caller]
    fn is_rejected(&self, name: &str) {
        assert_eq!(self.swarm(&["merge", "add", name]).code, Some(0));
        let said = self.swarm(&["merge", "wait", name, "--timeout", "25"]);
        assert_eq!((said.out, said.code), (format!("{name}: rejected (main)\n"), Some(1)));
        assert!(!self.repo.join("a.txt").exists());
    }
}

#[test]
fn a_person_who_adds_the_work_of_a_run_keeps_its_verification() {
    let (site, command) = site();
    site.spec("a", &format!("verify: \"{command}\"\n"), "echo bad > a.txt");
    site.commit();
    site.plan();
    site.run(0, &["--no-merge"]);
    let name = site.advised(&[]);
    site.is_rejected(&name);
    // The branch alone, too.
    site.is_rejected("refs/heads/arial/a");
    let other = site.rig.path("other");
    site.git(&["worktree", "add", "-q", "-b", "side", other.to_str().expect("text")]);
    let words = ["merge", "add", "refs/heads/arial/a", "--base", "main", "--json"];
    assert_eq!(site.rig.swarm_in(&other, &words).code, Some(0));
    let said = site.swarm(&["merge", "wait", "refs/heads/arial/a", "--timeout", "25"]);
    assert_eq!(said.code, Some(1), "from another worktree: {said:?}");
    // A person may want another one, or none.
    assert_eq!(site.swarm(&["merge", "add", &name, "--verify", ""]).code, Some(0));
    site.swarm(&["merge", "wait", &name, "--timeout", "25"]).is(0, &format!("{name}: landed (main)\n"), "");
}

#[test]
fn the_verification_of_a_job_file_counts_for_what_it_has_left() {
    let (site, command) = site();
    let job = "[[job]]\nname = 'w'\nworktree = true\ncommand = 'echo bad > a.txt'\n";
    site.write("jobs.toml", &format!("verify = '''{command}'''\n{job}"));
    site.run(0, &["jobs.toml"]);
    let name = site.advised(&["--home", "jobs.toml"]);
    site.is_rejected(&name);
}

#[test]
fn flags_of_a_run_hold_for_the_landing_of_what_it_has_left() {
    let (site, command) = site();
    site.spec("a", "", "echo good > a.txt");
    site.commit();
    site.plan();
    site.run(0, &["--no-merge", "--verify", &command]);
    let said = site.swarm(&["run", "--merge"]);
    assert!(said.code == Some(0) && said.err.contains("continuing with earlier flags: --verify "), "{said:?}");
    assert!(site.repo.join("a.txt").exists() && site.verified() == 1, "{said:?}");
    // Nothing of it is left: the flags are those of a completed run.
    let said = site.swarm(&["run", "--merge"]);
    assert!(said.err.contains("not using the flags of the completed run: --verify "), "{said:?}");
}

#[test]
fn a_verification_that_is_corrected_counts_for_the_commits_that_wait() {
    let site = Site::new();
    site.write("swarm.toml", "[merge]\nverify = 'mkae test'\n");
    let started = site.rig.path("started");
    for (id, front) in [("a", ""), ("b", "verify: \"mkae tset\"\n"), ("c", ""), ("d", "after: [a]\n")] {
        site.spec(id, front, &format!("echo {id} >> {}; echo {id} > {id}.txt", started.display()));
    }
    site.commit();
    site.plan();
    let waits = |expected: &[(&str, &str)]| {
        assert_eq!(site.swarm(&["run", "--detach"]).code, Some(0));
        let shown = || site.swarm(&["run", "status"]).out;
        let is_shown = |(id, why): &(&str, &str)| {
            let what = format!("does not pass: '{why}'");
            shown().lines().any(|line| line.trim_start().starts_with(id) && line.contains(&what))
        };
        wait_until("the work waits", SOON, || expected.iter().all(is_shown));
        assert!(shown().contains("run 'swarm run stop', then 'swarm run --verify COMMAND'"), "{}", shown());
        assert_eq!(site.swarm(&["run", "stop"]).code, Some(0));
    };
    waits(&[("a", "mkae test"), ("b", "mkae tset"), ("c", "mkae test")]);
    let status = site.swarm(&["merge", "status", "b"]).out;
    assert!(status.contains("or swarm merge add ") && status.contains(".b --verify COMMAND"), "{status}");
    // A person looks at the work: nothing in the worktrees lands, and no agent starts again.
    let tree = |id: &str| site.repo.join(".arial/worktrees").join(id);
    site.rig.git(&tree("a"), &["checkout", "-q", "--detach", "main"]);
    site.rig.git(&tree("b"), &["checkout", "-q", "-b", "review"]);
    fs::write(tree("c").join("notes.txt"), "of a review").expect("written");
    // In the configuration and in the front matter, and then by a flag.
    site.write("swarm.toml", "[merge]\nverify = 'mkae it'\n");
    let script = format!("echo b >> {}; echo b > b.txt", started.display());
    site.spec("b", "verify: \"test ! -e b.review\"\n", &script);
    waits(&[("a", "mkae it"), ("c", "mkae it")]);
    wait_until("b has landed", SOON, || site.repo.join("b.txt").exists());
    let said = site.swarm(&["run", "--verify", "test ! -e notes.txt"]);
    assert!(said.out.contains("completed: 4 done"), "{said:?}");
    assert_eq!(["a", "b", "c", "d"].map(|id| site.landed(&format!("{id}.txt"))), ["a", "b", "c", "d"]);
    let started = fs::read_to_string(started).expect("read");
    let mut started: Vec<&str> = started.lines().collect();
    started.sort_unstable();
    assert_eq!(started, ["a", "b", "c", "d"]);
}

#[test]
fn an_agent_lands_its_work_by_no_other_verification_than_that_of_its_run() {
    let site = Site::new();
    let bin = env!("CARGO_BIN_EXE_swarm");
    let log = site.rig.path("said");
    // By its own name, by that of its branch, by another branch with the same commit, onto another base, and as a run.
    let script = format!(
        "echo bad > a.txt; git add a.txt; git commit -qm a; git branch other
         for name in $SWARM_WORKER refs/heads/arial/a refs/heads/other; do
             for verify in true ''; do
                 env -u SWARM_TOKEN '{bin}' merge add $name --base main --verify \"$verify\" 2>&1 || true
             done
         done >> '{log}'
         '{bin}' merge add $SWARM_WORKER --base side >> '{log}' 2>&1 || true
         cd '{repo}'; '{bin}' run --verify true >> '{log}' 2>&1 || true
         exit 0",
        log = log.display(),
        repo = site.repo.display()
    );
    site.git(&["branch", "side"]);
    site.spec("a", "retries: 0\n", &script);
    site.commit();
    site.plan();
    let said = site.swarm(&["run", "--verify", "! test -e a.txt"]);
    assert!(said.code == Some(1) && said.out.contains("a: failed: verification failed"), "{said:?}");
    let answers = fs::read_to_string(&log).expect("written");
    assert_eq!(answers.matches("cannot replace 'verify' of its run").count(), 6, "{answers}");
    assert!(answers.contains("cannot replace the base of its run"), "{answers}");
    assert!(!site.repo.join("a.txt").exists(), "{answers}");
}

#[test]
fn work_of_a_run_that_somebody_else_landed_is_reported_with_its_verification() {
    let site = Site::new();
    let go = site.rig.path("go");
    let script = format!(
        "echo a > a.txt; git add a.txt; git commit -qm a; until test -e '{}'; do sleep 0.05; done",
        go.display()
    );
    site.spec("a", "", &script);
    site.commit();
    site.plan();
    assert_eq!(site.swarm(&["run", "--detach", "--verify", "false"]).code, Some(0));
    let log = ["log", "--format=%s", "arial/a", "--"];
    let has_committed = || site.rig.git_says(&site.repo, &log).out.starts_with("a\n");
    wait_until("it has committed", SOON, has_committed);
    let add = ["merge", "add", "refs/heads/arial/a", "--base", "main", "--verify", "true"];
    assert_eq!(site.swarm(&add).code, Some(0));
    assert_eq!(site.swarm(&["merge", "wait", "refs/heads/arial/a"]).code, Some(0));
    fs::write(go, "").expect("written");
    let said = site.swarm(&["run", "attach"]);
    let by = " by 'swarm merge add' (item 0), not by the run, verified by 'true'";
    assert!(said.out.contains("a: landed as ") && said.out.contains(by), "{said:?}");
}
