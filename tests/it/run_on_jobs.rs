//! `swarm run jobs.toml --on`: commands that are executed on other hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{SOON, proc, wait_until};
use crate::run::text;
use crate::run_on::Fleet;

impl Fleet {
    fn stage_of(&self, file: &str, job: &str) -> String {
        let status = self.run(&["status", "--home", file, "--json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let all = status["workstreams"].as_array().expect("a list");
        text(&all.iter().find(|one| one["id"] == job).expect("the job")["stage"]).to_owned()
    }

    fn output(&self, file: &str, job: &str) -> String {
        self.run(&["logs", job, "--home", file]).ok()
    }
}

fn lines(file: &Path) -> usize {
    fs::read_to_string(file).unwrap_or_default().lines().count()
}

#[test]
fn jobs_of_two_hosts_are_executed_once_although_a_supervisor_there_is_killed() {
    let fleet = Fleet::new(&["a", "b"]);
    let (marks, gate) = (fleet.site.rig.path("marks"), fleet.site.rig.path("gate"));
    fs::create_dir(&marks).expect("made");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    let job = |number: usize| {
        let command = format!("echo x >> {}/{number}; {wait}; echo job {number}; pwd; ls -A", marks.display());
        format!("[[job]]\nname = 'j{number}'\ncommand = '{command}'\n")
    };
    let file = fleet.site.rig.file("jobs.toml", &(0..40).map(job).collect::<String>());
    fleet.run(&[&file, "--on", "a,b", "--detach"]).ok();
    // Two at a time on each.
    wait_until("they work", SOON, || fs::read_dir(&marks).expect("a directory").count() == 4);
    fleet.run(&["logs", "j0", "--home", &file]).refused(1, "'j0' works on a, and its output comes with its end");
    let (supervisor, guard) = fleet.host("a").keepers();
    fleet.host("a").kill_keepers();
    assert!([supervisor, guard].into_iter().flatten().all(|pid| proc::wait_end(pid, SOON)));
    fs::write(&gate, "").expect("written");
    wait_until("all are done", SOON, || fleet.stage_of(&file, "j39") == "done");
    wait_until("the run is over", SOON, || {
        (0..40).all(|number| fleet.stage_of(&file, &format!("j{number}")) == "done")
    });
    assert!((0..40).all(|number| lines(&marks.join(number.to_string())) == 1), "each was executed once");
    let said = fleet.output(&file, "j17");
    assert!(said.starts_with("job 17\n/") && said.lines().count() == 2 && said.contains("/far/"), "{said}");
    fleet.nothing_left();
}

#[test]
fn an_exit_code_a_timeout_and_a_retry_count_as_for_commands_here() {
    let fleet = Fleet::new(&["a"]);
    let mark = fleet.site.rig.path("mark");
    let jobs = format!(
        "[[job]]\nname = 'bad'\ncommand = 'echo out; echo wrong >&2; exit 7'\n\
         [[job]]\nname = 'after'\ncommand = 'true'\nafter = 'bad'\n\
         [[job]]\nname = 'slow'\ncommand = 'exec sleep 600'\ntimeout = '1s'\n\
         [[job]]\nname = 'twice'\ncommand = 'echo again >> {mark}; test $(wc -l < {mark}) -ge 2'\nretries = 1\n\
         [[job]]\nname = 'set'\ncommand = ['sh', '-c', 'echo $X $HOME; pwd']\nenv = {{ X = 'x y' }}\ncwd = 'sub/dir'\n",
        mark = mark.display()
    );
    let file = fleet.site.rig.file("jobs.toml", &jobs);
    let said = fleet.run(&[&file, "--on", "a"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let note = "note: the work is done on a (2); jobs without a worktree begin in an empty directory there";
    assert!(said.err.contains(note), "{said:?}");
    let status = fleet.run(&["status", "--home", &file]).ok();
    assert!(status.contains("exited with code 7: wrong") && status.contains("timed out after 1 s"), "{status}");
    assert_eq!(lines(&mark), 2);
    assert_eq!(fleet.output(&file, "bad"), "wrong\nout\n");
    let set = fleet.output(&file, "set");
    let home = fleet.host("a").home().display().to_string();
    assert!(set.starts_with(&format!("x y {home}\n")) && set.trim_end().ends_with("/work/sub/dir"), "{set}");
    let runs = fs::read_dir(fleet.site.rig.root().join("run")).expect("homes").flatten();
    let logged = runs.map(|home| home.path().join("joblog")).find(|log| log.exists()).expect("a joblog");
    let logged = fs::read_to_string(logged).expect("text");
    assert!(logged.lines().any(|line| line.starts_with("1\ta\t") && line.contains("\t7\t0\t")), "{logged}");
    fleet.nothing_left();
}

#[test]
fn work_of_jobs_with_worktrees_lands_here() {
    let fleet = Fleet::new(&["a"]);
    let job = |name: &str, command: &str, more: &str| {
        format!("[[job]]\nname = '{name}'\ncommand = '{command}'\nworktree = true\n{more}\n")
    };
    let jobs = [
        job("make", "echo made >> made.txt", "merge = true"),
        job("use", "cat made.txt > used.txt", "merge = true\nafter = 'make'"),
        job("stay", "echo stays > stays.txt; git add -A; git commit -q -m stays", ""),
        "[[job]]\nname = 'bare'\ncommand = 'ls -A'\n".to_owned(),
    ];
    fleet.site.write("jobs.toml", &jobs.concat());
    fleet.site.commit();
    let said = fleet.run(&["jobs.toml", "--on", "a"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(fleet.site.landed("used.txt"), "made");
    let left = fleet.site.git(&["branch", "--list", "--format=%(refname:short)", "arial/*"]);
    assert!(left.ends_with("/stay") && left.lines().count() == 1, "{left}");
    assert_eq!(fleet.site.git(&["show", &format!("{left}:stays.txt")]), "stays");
    let status = fleet.run(&["status", "--home", "jobs.toml"]).ok();
    assert!(status.contains(&format!("swarm merge add {left}")), "{status}");
    fleet.nothing_left();
    // Another execution begins on the base as it is now.
    let said = fleet.run(&["jobs.toml", "--on", "a"]);
    assert!(said.code == Some(0) && said.err.contains(&format!("starts over on {left}-2")), "{said:?}");
}

#[test]
fn directories_that_only_this_machine_has_are_refused() {
    let fleet = Fleet::new(&["a"]);
    for (cwd, cause) in [
        ("/tmp", "job 'j': cwd is an absolute path, which means nothing on other hosts".to_owned()),
        (
            "..",
            format!(
                "job 'j': cwd leaves {}, which other hosts do not have",
                fleet.site.rig.home().parent().expect("a directory").display()
            ),
        ),
    ] {
        let jobs = format!("[[job]]\nname = 'j'\ncommand = 'true'\ncwd = '{cwd}'\n");
        let file = fleet.site.rig.file("jobs.toml", &jobs);
        fleet.run(&[&file, "--on", "a"]).refused(1, &cause);
        assert_eq!(fleet.run(&[&file, "--on", "local"]).code, Some(0));
    }
    assert_eq!(fleet.host("a").names(), Vec::<String>::new());
}

#[test]
fn a_host_without_a_program_is_not_closed_and_the_next_run_tries_it_again() {
    let fleet = Fleet::new(&["a"]);
    let bin = fleet.site.rig.path("bin");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let lacking = |name: &str| {
        format!("[[job]]\nname = '{name}'\ncommand = ['no-such-program', 'x']\nenv = {{ PATH = '{path}' }}\n")
    };
    let other =
        "[[job]]\nname = 'other'\ncommand = 'echo other'\nafter = 'first'\n[[job]]\nname = 'first'\ncommand = 'true'\n";
    let file = fleet.site.rig.file("jobs.toml", &[&lacking("x"), &lacking("y"), other].concat());
    fleet.run(&[&file, "--on", "a", "--detach"]).ok();
    wait_until("the others are done", SOON, || fleet.stage_of(&file, "other") == "done");
    let status = fleet.run(&["status", "--home", &file]).ok();
    let waits =
        |line: &&str| line.contains(" pending  0 ") && line.ends_with("waits for a host: a has no 'no-such-program'");
    assert_eq!(status.lines().filter(waits).count(), 2, "{status}");
    let status: serde_json::Value =
        serde_json::from_str(&fleet.run(&["status", "--home", &file, "--json"]).ok()).expect("JSON");
    assert_eq!(status["hosts"][0]["state"], "open");
    let waits = &status["workstreams"][0]["waits_for_host"][0];
    assert_eq!((&waits["host"], &waits["reason"]), (&"a".into(), &"unfit".into()));
    assert_eq!(fleet.run(&["stop", "--home", &file]).code, Some(0));
    fs::create_dir(&bin).expect("made");
    let program = bin.join("no-such-program");
    fs::write(&program, "#!/bin/sh\necho did \"$@\"\n").expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let said = fleet.run(&[&file]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(fleet.output(&file, "y"), "did x\n");
    fleet.nothing_left();
}
