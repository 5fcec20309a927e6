//! `swarm run --on`: work that is done on other hosts lands here. A host is a home of its own, reached by a command.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Rig, SOON, Said, proc, wait_until};
use crate::run::{Site, text};

/// A repository, and hosts.
pub struct Fleet {
    pub site: Site,
    hosts: Vec<(&'static str, Rig)>,
}

impl Fleet {
    pub fn new(names: &[&'static str]) -> Self {
        let fleet = Self { site: Site::new(), hosts: names.iter().map(|name| (*name, Rig::new())).collect() };
        let sections = fleet.hosts.iter().map(|(name, rig)| {
            let reach = fleet.site.rig.path(&format!("reach-{name}"));
            // As ssh: no word of the person's environment arrives there.
            let script = format!(
                "#!/bin/sh\n[ -e '{cut}' ] && exit 255\nexec env -i PATH='{path}' HOME='{home}' TMUX_TMPDIR='{tmux}' LANG=C.UTF-8 TZ=UTC '{marker}' \"$@\"\n",
                cut = fleet.cut(name).display(),
                path = std::env::var("PATH").expect("set"),
                home = rig.home().display(),
                tmux = rig.path("tmux").display(),
                marker = rig.marker(),
            );
            fs::write(&reach, script).expect("written");
            let program = env!("CARGO_BIN_EXE_swarm");
            let state = rig.root();
            format!(
                "[hosts.{name}]\ncommand = ['sh', '{}']\nswarm = '{program}'\nstate = '{}'\ncap = 2\n",
                reach.display(),
                state.display()
            )
        });
        let dir = fleet.site.rig.home().join(".config/swarm");
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("config.toml"), sections.collect::<String>()).expect("written");
        fleet
    }

    /// Appends to the section of the last host in the user's own file, or adds a section.
    pub fn configure(&self, text: &str) {
        let file = self.site.rig.home().join(".config/swarm/config.toml");
        let known = fs::read_to_string(&file).expect("text");
        fs::write(file, known + text).expect("written");
    }

    /// File that keeps commands from reaching the host.
    fn cut(&self, name: &str) -> PathBuf {
        self.site.rig.path(&format!("cut-{name}"))
    }

    pub fn host(&self, name: &str) -> &Rig {
        let found = self.hosts.iter().find(|(known, _)| *known == name);
        &found.expect("a host").1
    }

    /// Cuts the line to a host, and keeps it cut.
    pub fn lose(&self, name: &str) {
        fs::write(self.cut(name), "").expect("written");
        let host = self.host(name);
        let ends = |pid: &i32| proc::words(*pid).get(1).is_some_and(|verb| verb == "__stdio" || verb == "__git");
        host.processes().into_iter().filter(ends).for_each(proc::kill);
    }

    pub fn find(&self, name: &str) {
        fs::remove_file(self.cut(name)).expect("removed");
    }

    pub fn plan(&self) {
        self.site.commit();
        self.site.plan();
    }

    pub fn run(&self, words: &[&str]) -> Said {
        self.site.swarm(&[&["run"], words].concat())
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "--json"]).out).expect("JSON")
    }

    pub fn stage(&self, job: &str) -> String {
        let status = self.status();
        let all = status["workstreams"].as_array().expect("a list");
        text(&all.iter().find(|one| one["id"] == job).expect("the job")["stage"]).to_owned()
    }

    /// Reports whether the run has ended, and the next one may begin.
    pub fn is_over(&self) -> bool {
        let told = fs::read_to_string(self.site.repo.join(".arial/events.jsonl")).expect("read");
        told.lines().last().is_some_and(|last| last.contains(r#""event":"run.completed""#))
    }

    /// Checks that nothing of the run is left on any host.
    pub fn nothing_left(&self) {
        for (name, host) in &self.hosts {
            wait_until("the workers are forgotten", SOON, || host.names().is_empty());
            let clones = fs::read_dir(host.root().join("far")).into_iter().flatten().flatten();
            for clone in clones.flat_map(|controller| fs::read_dir(controller.path()).expect("read").flatten()) {
                let clone = clone.path().join("clone");
                wait_until("there are no files of attempts", SOON, || {
                    fs::read_dir(clone.with_file_name("runs")).map_or(0, |runs| runs.count()) == 0
                });
                // Jobs without a worktree need none.
                if !clone.exists() {
                    continue;
                }
                // The run does not wait until the host has removed the branch.
                wait_until(&format!("{name} has no branch of the run"), SOON, || {
                    host.git(&clone, &["for-each-ref", "refs/heads/arial"]).is_empty()
                });
                let trees = host.git(&clone, &["worktree", "list", "--porcelain"]);
                assert_eq!(trees.matches("worktree ").count(), 1, "{name}: {trees}");
            }
        }
    }
}

#[test]
fn work_of_two_hosts_lands_here_and_nothing_of_it_stays_there() {
    let fleet = Fleet::new(&["a", "b"]);
    for id in ["one", "two", "three", "four"] {
        fleet.site.spec(id, "", &format!("pwd; echo {id} > {id}.txt"));
    }
    fleet.site.spec("last", "after: [one, two]\n", "cat one.txt two.txt > last.txt");
    fleet.plan();
    // Nobody has told git there who commits.
    fs::write(fleet.host("b").home().join(".gitconfig"), "[user]\n\tuseConfigOnly = true\n").expect("written");
    let said = fleet.run(&["--on", "a,b", "--verify", "! test -e last.txt || test -s last.txt"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let started = |host: &str| said.out.lines().filter(|line| line.ends_with(&format!(": started on {host}"))).count();
    assert!(started("a") >= 2 && started("b") >= 2 && started("a") + started("b") == 5, "{said:?}");
    for id in ["one", "two", "three", "four", "last"] {
        assert!(fleet.site.repo.join(format!("{id}.txt")).exists(), "{id}");
    }
    assert_eq!(fs::read_to_string(fleet.site.repo.join("last.txt")).expect("read"), "one\ntwo\n");
    assert_eq!(fleet.site.git(&["for-each-ref", "refs/heads/arial", "refs/swarm/done"]), "");
    assert_eq!(fleet.site.rig.names(), Vec::<String>::new());
    let status = fleet.status();
    assert_eq!(status["hosts"][0]["name"], "a");
    assert_eq!((status["hosts"][0]["cap"].as_u64(), text(&status["hosts"][0]["state"])), (Some(2), "open"));
    let shown = fleet.run(&["logs", "one"]).ok();
    assert!(shown.contains("/far/"), "it was executed there: {shown}");
    fleet.nothing_left();
}

#[test]
fn work_of_a_host_that_is_out_of_reach_lands_once_when_it_answers_again() {
    let fleet = Fleet::new(&["a"]);
    let (on, go) = (fleet.site.rig.path("on"), fleet.site.rig.path("go"));
    let script =
        format!("echo x >> {}; until [ -e {} ]; do sleep 0.05; done; echo w > w.txt", on.display(), go.display());
    fleet.site.spec("w", "", &script);
    fleet.plan();
    fleet.run(&["--on", "a", "--detach"]).ok();
    wait_until("it works there", SOON, || on.exists());
    fleet.lose("a");
    wait_until("that is known", SOON, || fleet.run(&["status"]).out.contains("on a, which is out of reach"));
    fs::write(&go, "").expect("written");
    let host = fleet.host("a");
    let name = host.names().remove(0);
    wait_until("it ends there", SOON, || host.fine(&name) == "exited");
    for keepers in [&fleet.site.rig, host] {
        let (supervisor, guard) = keepers.keepers();
        keepers.kill_keepers();
        assert!([supervisor, guard].into_iter().flatten().all(|pid| proc::wait_end(pid, SOON)));
    }
    fleet.find("a");
    fleet.site.rig.swarm(&["supervisor", "start"]).ok();
    wait_until("the run is over", SOON, || fleet.is_over());
    assert_eq!(fleet.stage("w"), "done");
    assert_eq!(fs::read_to_string(&on).expect("read"), "x\n", "it was executed once");
    assert_eq!(fleet.site.git(&["log", "--format=%s", "--merges", "main"]).lines().count(), 1);
    fleet.nothing_left();
}

#[test]
fn a_failed_attempt_is_repeated_with_its_work_and_the_last_failure_leaves_the_work_here() {
    let fleet = Fleet::new(&["a"]);
    fleet.site.spec("w", "retries: 1\n", "echo again >> w.txt; test $(wc -l < w.txt) -ge 2");
    fleet.site.spec("v", "retries: 0\n", "echo v > v.txt; false");
    fleet.plan();
    let said = fleet.run(&["--on", "a"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((fleet.stage("w"), fleet.stage("v")), ("done".to_owned(), "failed".to_owned()));
    assert_eq!(fs::read_to_string(fleet.site.repo.join("w.txt")).expect("read"), "again\nagain\n");
    assert_eq!(fleet.site.git(&["show", "arial/v:v.txt"]), "v");
    fleet.nothing_left();
}

#[test]
fn the_conversation_of_an_attempt_is_shown_while_it_works() {
    let fleet = Fleet::new(&["a"]);
    let go = fleet.site.rig.path("go");
    let script = format!("echo first; until [ -e {} ]; do sleep 0.05; done; echo second; echo w > w.txt", go.display());
    fleet.site.spec("w", "", &script);
    fleet.plan();
    fleet.run(&["--on", "a", "--detach"]).ok();
    wait_until("it has begun", SOON, || fleet.run(&["logs", "w"]).out.contains("first"));
    let mut command = fleet.site.rig.command(&["run", "logs", "w", "--follow"]);
    let mut child = command.current_dir(&fleet.site.repo).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("first")), "it has ended");
    fs::write(&go, "").expect("written");
    assert!(lines.any(|line| line.contains("second")), "it has ended");
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    wait_until("the run is over", SOON, || fleet.is_over());
    assert!(fleet.run(&["logs", "w"]).ok().contains("second"), "it is here now");
    fleet.nothing_left();
}

#[test]
fn commits_on_another_branch_come_here_and_are_named() {
    let fleet = Fleet::new(&["a"]);
    fleet.site.spec(
        "w",
        "retries: 0\n",
        "git switch -q -c own; echo w > w.txt; git add w.txt; git commit -q -m w; echo x > x.txt",
    );
    fleet.plan();
    let said = fleet.run(&["--on", "a"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let error = fleet.status()["workstreams"][0]["error"].clone();
    let cause = "its worktree has branch 'own' checked out instead of 'arial/w' (what is there is kept as refs/swarm/from/a/w.1)";
    assert_eq!(text(&error), cause);
    assert_eq!(fleet.site.git(&["show", "refs/swarm/from/a/w.1:x.txt"]), "x");
    assert_eq!(fleet.site.git(&["log", "-1", "--format=%s", "refs/swarm/from/a/w.1^1"]), "w");
    fleet.nothing_left();
}

#[test]
fn what_an_attempt_has_left_beside_its_work_is_kept_or_named() {
    let fleet = Fleet::new(&["a"]);
    fs::write(fleet.site.repo.join(".gitignore"), "*.data\n").expect("written");
    let on_main = "git switch -q main; echo m > m.txt; git add m.txt; git commit -q -m m";
    fleet.site.spec("w", "", &format!("{on_main}; git switch -q arial/w; echo w > w.txt; echo w > w.data"));
    // The first attempt of `v` leaves the base checked out, which must not keep the second one from starting.
    let last = fleet.site.rig.path("last");
    let script = format!("test -e {last} && echo v > v.data && exit 1; touch {last}; {on_main}", last = last.display());
    fleet.site.spec("v", "retries: 1\nafter: [w]\n", &script);
    fleet.plan();
    let said = fleet.run(&["--on", "a"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!((fleet.stage("w"), fleet.stage("v")), ("done".to_owned(), "failed".to_owned()));
    assert!(!fleet.site.repo.join("m.txt").exists(), "it landed");
    for id in ["w", "v"] {
        assert_eq!(fleet.site.git(&["show", &format!("refs/swarm/from/a/{id}.1:m.txt")]), "m");
        let kept = format!("{id}: commits beside its work on a are kept as refs/swarm/from/a/{id}.1\n");
        let ignored = format!("{id}: ignored files do not land and go with the worktree on a: {id}.data\n");
        assert!(said.out.contains(&kept) && said.out.contains(&ignored), "{said:?}");
    }
    fleet.nothing_left();
}

#[test]
fn work_that_git_refuses_as_an_attack_fails_and_stays_there() {
    let fleet = Fleet::new(&["a"]);
    let script = "printf '[submodule \"x\"]\\n\\tpath = x\\n\\turl = -evil\\n' > .gitmodules";
    fleet.site.spec("w", "retries: 0\n", script);
    fleet.site.spec("v", "", "echo v > v.txt");
    fleet.plan();
    let said = fleet.run(&["--on", "a"]);
    assert_eq!((said.code, fleet.stage("v").as_str()), (Some(1), "done"), "{said:?}");
    let status = fleet.status();
    let job = status["workstreams"].as_array().expect("a list").iter().find(|job| job["id"] == "w").expect("it");
    let error = text(&job["error"]);
    assert!(error.starts_with("git refuses its work as a possible attack: object "), "{error}");
    let reference = error.split(' ').find(|word| word.starts_with("refs/swarm/refused/")).expect("it is named");
    let place = error.split(' ').find(|word| word.starts_with("far/")).expect("it is named");
    let clone = fleet.host("a").root().join(place);
    wait_until("it is kept there", SOON, || {
        fleet.host("a").git(&clone, &["for-each-ref", "--format=%(refname)", "refs/swarm/refused"]) == reference
    });
    fleet.nothing_left();
}

#[test]
fn a_run_that_was_stopped_goes_on_at_its_host() {
    let fleet = Fleet::new(&["a"]);
    let go = fleet.site.rig.path("go");
    let script = format!("echo begun >> w.txt; until [ -e {} ]; do sleep 0.05; done", go.display());
    fleet.site.spec("w", "", &script);
    fleet.plan();
    fleet.run(&["--on", "a", "--detach"]).ok();
    wait_until("it works there", SOON, || !fleet.host("a").names().is_empty());
    assert_eq!(fleet.run(&["stop"]).code, Some(0));
    assert_eq!(fleet.stage("w"), "paused");
    let name = fleet.host("a").names().remove(0);
    assert_eq!(fleet.host("a").fine(&name), "stopped");
    fs::write(&go, "").expect("written");
    let said = fleet.run(&[]);
    assert!(said.code == Some(0) && said.err.contains("--on a"), "{said:?}");
    assert!(fleet.site.repo.join("w.txt").exists());
    fleet.nothing_left();
}

#[test]
fn what_cannot_be_done_on_hosts_is_refused_before_anything_starts() {
    let fleet = Fleet::new(&["a"]);
    fleet.site.spec("w", "", "echo w > w.txt");
    fleet.plan();
    let said = fleet.run(&["--on", "a", "--consent", "no-access"]);
    said.refused(1, "agents on other hosts cannot ask a person here");
    fleet.run(&["--on", "a:b"]).refused(1, "invalid host 'a:b': it contains ':'");
    fs::write(fleet.cut("a"), "").expect("written");
    let said = fleet.run(&["--on", "a"]);
    assert!(said.code == Some(1) && said.err.contains("no swarm answers on a"), "{said:?}");
    fleet.find("a");
    fs::write(fleet.site.repo.join(".worktreeinclude"), ".env\n").expect("written");
    fs::write(fleet.site.repo.join(".env"), "x\n").expect("written");
    fs::write(fleet.site.repo.join(".git/info/exclude"), ".env\n").expect("written");
    let said = fleet.run(&["--on", "a"]);
    said.refused(1, "nobody has said whether ignored files that worktrees get go to a: .env");
    assert_eq!(fleet.stage_before(), "pending");
    assert_eq!(fleet.host("a").names(), Vec::<String>::new());
}

#[test]
fn a_spec_works_only_where_its_tags_are() {
    let fleet = Fleet::new(&["a", "b"]);
    fleet.site.spec("train", "on: [gpu]\n", "echo t > t.txt");
    fleet.site.spec("other", "", "echo o > o.txt");
    fleet.site.commit();
    let planned = fleet.site.swarm(&["plan", "--specs", "specs", "-y"]).ok();
    assert!(planned.contains("some need a host with tags (swarm run --on HOST): 'gpu': train\n"), "{planned}");
    fleet.run(&["--on", "a,b"]).refused(1, "'train' asks for a host with 'gpu': a lacks 'gpu', b lacks 'gpu'");
    fleet.configure("tags = ['gpu']\n");
    let here = "'train' asks for a host with 'gpu': this machine lacks 'gpu'";
    assert!(fleet.run(&[]).refused(1, here).err.contains("add it: --on b"));
    assert!(fleet.run(&["--dry-run", "--on", "a,b"]).out.contains("train (on gpu)  Spec train"));
    let said = fleet.run(&["--on", "a,b"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("train: started on b") && said.out.contains("other: started on a"), "{said:?}");
    let status = fleet.status();
    assert_eq!(
        (&status["hosts"][1]["tags"][0], status["workstreams"][1]["on"][0].as_str()),
        (&"gpu".into(), Some("gpu"))
    );
    fleet.nothing_left();
    // This machine may have tags, too.
    fleet.site.spec("here", "on: ssd\n", "echo h > h.txt");
    fleet.plan();
    fleet.configure("[hosts.local]\ntags = ['ssd']\n");
    let said = fleet.run(&[]);
    assert!(said.code == Some(0) && fleet.site.repo.join("h.txt").exists(), "{said:?}");
    let hosts: Value = serde_json::from_str(&fleet.site.swarm(&["hosts", "--json"]).out).expect("JSON");
    assert_eq!(hosts["hosts"].as_array().expect("a list").len(), 2, "this machine is no other one");
}

#[test]
fn ignored_files_go_to_the_hosts_for_which_a_person_says_so() {
    let fleet = Fleet::new(&["a", "b"]);
    for id in ["v", "w"] {
        // Each host works on one of them.
        let (here, other) = (fleet.site.rig.path(id), fleet.site.rig.path(if id == "v" { "w" } else { "v" }));
        let waits = format!("touch {}; until [ -e {} ]; do sleep 0.05; done", here.display(), other.display());
        fleet.site.spec(id, "", &format!("{waits}; cat .env > {id}.txt || echo none > {id}.txt"));
    }
    fleet.plan();
    let repo = &fleet.site.repo;
    fs::write(repo.join(".git/info/exclude"), ".env\n").expect("written");
    fs::write(repo.join(".worktreeinclude"), ".env\n").expect("written");
    fs::write(repo.join(".env"), "SECRET=1\n").expect("written");
    let config = fleet.site.rig.home().join(".config/swarm/config.toml");
    let text = fs::read_to_string(&config).expect("read");
    let text = text.replace("[hosts.a]\n", "[hosts.a]\ninclude = true\n");
    fs::write(&config, text.replace("[hosts.b]\n", "[hosts.b]\ninclude = false\n")).expect("written");
    let said = fleet.run(&["--on", "a,b"]);
    let note = "note: ignored files that worktrees get do not go to b: .env\n";
    assert!(said.code == Some(0) && said.err.contains(note), "{said:?}");
    let mut read = ["v", "w"].map(|id| fs::read_to_string(repo.join(format!("{id}.txt"))).expect("read"));
    read.sort();
    assert_eq!(read, ["SECRET=1\n", "none\n"]);
    fleet.nothing_left();
}

impl Fleet {
    /// Returns the status of the only workstream of a run that has not begun.
    fn stage_before(&self) -> String {
        text(&self.status()["workstreams"][0]["status"]).to_owned()
    }
}
