//! Job files with worktrees: on which branch a job works, when it starts over, and what happens to what it left.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{SOON, wait_until};
use crate::run::{Site, events, text, told};

/// Returns a job with a worktree; `more` are its other keys.
fn job(name: &str, command: &str, more: &str) -> String {
    format!("[[job]]\nname = '{name}'\ncommand = '{command}'\nworktree = true\n{more}\n")
}

const LANDS: &str = "merge = true";

impl Site {
    /// Writes a job file and commits it.
    fn jobs(&self, file: &str, jobs: &[String]) {
        self.write(file, &jobs.concat());
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", "jobs"]);
    }

    /// Branch of a job, as the status of its run names it.
    fn branch_of(&self, file: &str, id: &str) -> String {
        let status = self.swarm(&["run", "status", "--home", file, "--json"]).ok();
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let jobs = status["workstreams"].as_array().expect("jobs");
        text(&jobs.iter().find(|job| job["id"] == id).expect("the job")["branch"]).to_owned()
    }

    fn branches(&self) -> Vec<String> {
        self.git(&["branch", "--list", "--format=%(refname:short)", "arial/*"]).lines().map(str::to_owned).collect()
    }

    /// The only home of a job file.
    fn home_of_jobs(&self) -> PathBuf {
        let homes = fs::read_dir(self.rig.root().join("run")).expect("homes").flatten().map(|entry| entry.path());
        homes.filter(|home| home.is_dir()).find(|home| home.join("run.jsonl").exists()).expect("a home")
    }
}

#[test]
fn a_job_file_that_is_run_again_works_on_the_base_as_it_is_now() {
    let site = Site::new();
    site.jobs("jobs.toml", &[job("c", "cp version copy", LANDS), job("d", "cat version", "")]);
    for version in ["1", "2"] {
        site.write("version", &format!("{version}\n"));
        site.commit();
        let said = site.swarm(&["run", "jobs.toml"]);
        assert!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
        assert_eq!(site.landed("copy"), version);
        assert_eq!(site.swarm(&["run", "logs", "d", "--home", "jobs.toml"]).ok(), format!("{version}\n"));
        assert_eq!(site.branches(), [""; 0], "the base has all that they have");
    }
}

#[test]
fn a_changed_command_lands_nothing_that_the_old_one_left() {
    let site = Site::new();
    site.jobs("jobs.toml", &[job("t", "echo old > junk; exit 1", LANDS)]);
    site.run(1, &["jobs.toml"]);
    let first = site.branch_of("jobs.toml", "t");
    let junk = site.home_of_jobs().join("worktrees/t/junk");
    site.jobs("jobs.toml", &[job("t", "test ! -e junk && echo new > good", LANDS)]);
    // A retry does not go on either: the command is another one.
    let said = site.swarm(&["run", "jobs.toml", "--retry-failed"]);
    let tree = junk.parent().expect("a worktree").display();
    let note = format!(
        "swarm: note: job 't' starts over on {first}-2; what earlier attempts left stays on {first} (in {tree})\n"
    );
    assert_eq!((said.code, said.err.as_str()), (Some(0), note.as_str()), "{said:?}");
    assert_eq!(site.git(&["show", "--format=", "--name-only", "HEAD^2"]), "good");
    assert_eq!(fs::read_to_string(&junk).expect("kept"), "old\n");
    assert_eq!(site.branches(), [first.as_str()], "what landed is gone");
    let said = site.swarm(&["run", "cleanup", "--home", "jobs.toml"]);
    assert!(said.out.is_empty() && said.err.contains(&format!("kept {tree}")) && junk.exists(), "{said:?}");
    // Once a person has dealt with it, the job has its own name again.
    fs::remove_file(&junk).expect("removed");
    site.jobs("jobs.toml", &[job("t", "echo newer > good", LANDS)]);
    let said = site.swarm(&["run", "jobs.toml"]);
    assert!(said.code == Some(0) && said.err.is_empty(), "{said:?}");
    assert_eq!((site.branch_of("jobs.toml", "t"), site.landed("good").as_str()), (first, "newer"));
}

#[test]
fn work_that_a_run_has_left_stays_and_new_work_lands() {
    let site = Site::new();
    let command = "echo $(cat made) >> out; git add out; git commit -qm out; echo more > more";
    site.write("made", "1\n");
    site.jobs("jobs.toml", &[job("t", command, LANDS)]);
    site.run(0, &["jobs.toml", "--no-merge"]);
    let first = site.branch_of("jobs.toml", "t");
    site.write("made", "2\n");
    site.commit();
    let said = site.swarm(&["run", "jobs.toml"]);
    assert!(said.code == Some(0) && said.err.contains(&format!("starts over on {first}-2")), "{said:?}");
    assert_eq!((site.landed("out").as_str(), site.landed("more").as_str()), ("2", "more"));
    assert_eq!((site.git(&["show", &format!("{first}:out")]).as_str(), site.branches()), ("1", vec![first]));
}

#[test]
fn what_was_left_lands_on_demand_without_another_execution() {
    let site = Site::new();
    let command = "echo x > out; git add out; git commit -qm out";
    site.jobs("jobs.toml", &[job("t", command, LANDS), job("u", "cat jobs.toml", "")]);
    site.run(0, &["jobs.toml", "--no-merge"]);
    assert!(site.swarm(&["run", "status", "--home", "jobs.toml"]).ok().contains("swarm run FILE --merge"));
    let all = site.run(0, &["jobs.toml", "--merge"]);
    let said = told(&all, "t");
    assert!(!said.iter().any(|word| word == "workstream.started"), "{said:?}");
    assert_eq!((site.landed("out").as_str(), told(&all, "u")), ("x", Vec::<String>::new()));
}

#[test]
fn what_a_file_leaves_on_its_branch_lands_only_when_the_file_or_a_person_says_so() {
    let site = Site::new();
    let commits = |name: &str| format!("echo {name} > {name}; git add {name}; git commit -qm {name}");
    let jobs = |more: &str, failing: &str| {
        let failing = job("f", &format!("{}; {failing}", commits("f")), LANDS);
        site.jobs("jobs.toml", &[job("w", &commits("w"), more), job("m", &commits("m"), LANDS), failing]);
    };
    jobs("", "exit 1");
    site.run(1, &["jobs.toml", "--no-merge"]);
    let name = site.branch_of("jobs.toml", "w").replace("arial/", "").replace('/', ".");
    let only = format!("not landed; run 'swarm merge add {name}'\n");
    let status = || site.swarm(&["run", "status", "--home", "jobs.toml"]).ok();
    assert!(status().contains(&only), "{}", status());
    // What may land does, and the other is named.
    let said = site.swarm(&["run", "jobs.toml", "--merge"]);
    let note = format!(
        "swarm: note: the work of 'w' stays on its branch (merge = true is not set); run 'swarm merge add {name}' to land it\n"
    );
    assert!(said.code == Some(1) && said.err.contains(&note), "{said:?}");
    assert_eq!(site.git(&["ls-tree", "--name-only", "main", "m", "w"]), "m");
    jobs("", "exit 0");
    let said = site.swarm(&["run", "jobs.toml", "--merge"]);
    assert!(said.code == Some(0) && said.err.contains(&note) && status().contains(&only), "{said:?}");
    // All is done, and nothing of it lands: it is not executed once more either.
    let cause = "--merge lands nothing of jobs.toml: the work of 'w' stays on its branch (merge = true is not set)";
    site.swarm(&["run", "jobs.toml", "--merge"]).refused(1, cause);
    jobs(LANDS, "exit 0");
    let all = site.run(0, &["jobs.toml", "--merge"]);
    assert_eq!((site.landed("w").as_str(), told(&all, "w").first().map(String::as_str)), ("w", Some("merge.started")));
}

#[test]
fn jobs_of_the_same_name_in_two_files_work_at_the_same_time() {
    let site = Site::new();
    let command = |name: &str| {
        format!(
            "echo {name} > {name}; echo on > {}; until [ -e {} ]; do sleep 0.05; done",
            site.rig.path(name).display(),
            site.rig.path("go").display()
        )
    };
    for name in ["one", "two"] {
        site.jobs(&format!("{name}.toml"), &[job("test", &command(name), LANDS)]);
        site.swarm(&["run", &format!("{name}.toml"), "--detach"]).ok();
    }
    wait_until("both are at work", SOON, || ["one", "two"].iter().all(|name| site.rig.path(name).exists()));
    site.rig.file("go", "");
    for name in ["one", "two"] {
        let said = site.swarm(&["run", "attach", "--home", &format!("{name}.toml"), "--json"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(told(&events(&said.out), "test").last().map(String::as_str), Some("workstream.done"));
        assert_eq!(site.landed(name), name);
    }
    assert_eq!(site.branches(), [""; 0]);
}

/// Gives the branch of the job `t` the name that older programs chose.
fn renamed(site: &Site) -> String {
    let own = site.branch_of("jobs.toml", "t");
    site.git(&["branch", "-m", &own, "arial/t"]);
    let journal = site.home_of_jobs().join("run.jsonl");
    let records = fs::read_to_string(&journal).expect("a journal");
    fs::write(&journal, records.replace(&own, "arial/t")).expect("written");
    own
}

#[test]
fn a_job_goes_on_on_the_branch_that_an_older_program_began() {
    let site = Site::new();
    let command = "echo x >> out; git add out; git commit -qm out; test -e mended";
    site.jobs("jobs.toml", &[job("t", command, LANDS)]);
    site.run(1, &["jobs.toml"]);
    let own = renamed(&site);
    fs::write(site.home_of_jobs().join("worktrees/t/mended"), "").expect("written");
    site.run(0, &["jobs.toml", "--retry-failed"]);
    assert_eq!((site.landed("out").as_str(), site.branches()), ("x\nx", Vec::new()), "its work goes on");
    assert_eq!(site.branch_of("jobs.toml", "t"), "arial/t");
    // It starts over on a branch of its own.
    site.run(0, &["jobs.toml"]);
    assert_eq!((site.landed("out").as_str(), site.branch_of("jobs.toml", "t")), ("x\nx\nx", own));
}

#[test]
fn what_an_older_program_left_is_removed_or_named() {
    let site = Site::new();
    site.write("version", "1\n");
    site.jobs("jobs.toml", &[job("t", "cat version", "")]);
    site.run(0, &["jobs.toml", "--no-merge"]);
    let own = renamed(&site);
    site.write("version", "2\n");
    site.commit();
    site.run(0, &["jobs.toml", "--no-merge"]);
    assert_eq!(site.swarm(&["run", "logs", "t", "--home", "jobs.toml"]).ok(), "2\n");
    assert_eq!(site.branches(), [own.as_str()], "nothing was on the other one");
    fs::write(site.home_of_jobs().join("worktrees/t/mine"), "").expect("written");
    renamed(&site);
    let said = site.swarm(&["run", "jobs.toml"]);
    let note = format!("job 't' starts over on {own}-2; what earlier attempts left stays on arial/t (in ");
    assert!(said.code == Some(0) && said.err.contains(&note), "{said:?}");
    assert_eq!(site.branches(), ["arial/t"]);
}

#[test]
fn jobs_without_a_worktree_run_beside_the_file() {
    let site = Site::new();
    fs::create_dir_all(site.repo.join("sub/deep")).expect("made");
    let plain = |name: &str, more: &str| format!("[[job]]\nname = '{name}'\ncommand = 'pwd'\n{more}\n");
    site.jobs("sub/jobs.toml", &[job("w", "true", ""), plain("v", ""), plain("d", "cwd = 'deep'")]);
    site.swarm(&["run", "sub/jobs.toml"]).ok();
    for (name, dir) in [("v", "sub"), ("d", "sub/deep")] {
        let said = site.swarm(&["run", "logs", name, "--home", "sub/jobs.toml"]).ok();
        assert_eq!(PathBuf::from(said.trim()), site.repo.join(dir).canonicalize().expect("there"));
    }
}

#[test]
fn a_file_that_continues_keeps_its_base() {
    let site = Site::new();
    let command = "echo m > m.txt; git add m.txt; git commit -qm m; test -e mended || test ! -e own";
    let jobs = |base: &str| site.write("jobs.toml", &format!("{base}{}", job("m", command, LANDS)));
    jobs("");
    site.git(&["add", "-A"]);
    site.git(&["commit", "-qm", "jobs"]);
    site.git(&["branch", "release"]);
    site.write("own", "of main\n");
    site.commit();
    site.run(1, &["jobs.toml"]);
    let branch = site.branch_of("jobs.toml", "m");
    site.git(&["switch", "-q", "release"]);
    // Another base is refused as long as work of the first exists.
    jobs("base = 'release'\n");
    let cause = format!(
        "jobs.toml names the base 'release', but job 'm' was started for 'main' and its branch {branch} still exists"
    );
    site.swarm(&["run", "jobs.toml", "--retry-failed"]).refused(1, &cause);
    jobs("");
    fs::write(site.home_of_jobs().join("worktrees/m/mended"), "").expect("written");
    let said = site.swarm(&["run", "jobs.toml", "--retry-failed"]);
    let note = "swarm: note: the run continues for main, although release is checked out\n";
    assert!(said.code == Some(0) && said.err.contains(note), "{said:?}");
    assert_eq!(site.git(&["show", "main:m.txt"]), "m");
    assert_eq!(site.git(&["log", "-1", "--format=%s", "release"]), "jobs");
    // A run that begins anew has the base that is checked out.
    jobs("");
    let said = site.swarm(&["run", "jobs.toml"]);
    assert!(!said.err.contains("continues for") && said.out.contains("m: queued to land on release"), "{said:?}");
}

#[test]
fn a_job_that_continues_has_what_it_comes_after() {
    let site = Site::new();
    let (on, go) = (site.rig.path("on"), site.rig.path("go"));
    let uses = format!("touch {}; [ -e {} ] || exec tail -f /dev/null; cp schema seen", on.display(), go.display());
    let jobs = |schema: &str| {
        let first = job("x", &format!("echo {schema} > schema"), LANDS);
        site.jobs("jobs.toml", &[first, job("y", &uses, "after = [\"x\"]\nmerge = true")]);
    };
    jobs("old");
    site.swarm(&["run", "jobs.toml", "--detach"]).ok();
    wait_until("the second job works", SOON, || on.exists());
    site.swarm(&["run", "stop", "--home", "jobs.toml"]).ok();
    jobs("new");
    fs::write(&go, "").expect("written");
    let said = site.swarm(&["run", "jobs.toml"]);
    assert!(said.out.contains("y: starts again from main as it is now, with the work of 'x'\n"), "{said:?}");
    assert_eq!((said.code, site.landed("seen")), (Some(0), "new".to_owned()), "{said:?}");
}
