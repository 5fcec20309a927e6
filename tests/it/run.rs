//! Runs: a folder of specs becomes landed work, with the embedded `shell` agent and with commands that stand in
//! for agents.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, Said, wait_until};
use crate::crash::both;

/// A repository with a folder of specs.
pub struct Site {
    pub rig: Rig,
    pub repo: PathBuf,
}

impl Site {
    pub fn new() -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        fs::create_dir(repo.join("specs")).expect("made");
        Self { rig, repo }
    }

    /// Writes a spec whose program is this script.
    pub fn spec(&self, id: &str, front: &str, script: &str) {
        let text =
            format!("---\nadapter: shell\n{front}---\n# Spec {id}\n\nWhat {id} is for.\n\n```sh\n{script}\n```\n");
        self.write(&format!("specs/{id}.md"), &text);
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.repo.join(name), text).expect("written");
        if self.repo.join(".arial/state.json").exists() {
            self.rig.trust(&self.repo);
        }
    }

    pub fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "specs"]);
    }

    pub fn git(&self, words: &[&str]) -> String {
        self.rig.git(&self.repo, words)
    }

    /// Runs a verb in the repository. The warning that nothing verifies the work, with its hint, is not about most tests.
    pub fn swarm(&self, words: &[&str]) -> Said {
        let mut said = self.swarm_says_all(words);
        let is_of_it =
            |line: &&str| line.contains("nothing verifies the work") || line.contains("add --verify 'COMMAND'");
        said.err = said.err.split_inclusive('\n').filter(|line| !is_of_it(line)).collect();
        said
    }

    pub fn swarm_says_all(&self, words: &[&str]) -> Said {
        if words[0] == "run" && words.get(1).is_none_or(|word| word.starts_with("--") || word.contains(".toml")) {
            self.rig.trust(&self.repo);
        }
        self.rig.swarm_in(&self.repo, words)
    }

    /// Defines the custom agent `mine`; `more` are its other keys in swarm.toml.
    pub fn agent(&self, script: &str, more: &str) {
        let path = self.rig.file("agent", &format!("#!/bin/sh\n{script}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        self.write("swarm.toml", &format!("[agents.mine]\ncommand = ['{path}']\n{more}"));
    }

    /// Starts a run, and leaves it alone.
    #[track_caller]
    pub fn begin(&self, flags: &[&str]) {
        self.git(&["add", "specs"]);
        self.git(&["commit", "-q", "-m", "specs"]);
        self.plan();
        self.swarm(&[&["run", "--detach"], flags].concat()).ok();
    }

    /// Starts a run, waits until its workstream `a` is at work, and leaves the run alone.
    #[track_caller]
    pub fn under_way(&self, flags: &[&str]) {
        self.begin(flags);
        wait_until("the agent works", SOON, || self.row("a")["pid"].is_number());
    }

    #[track_caller]
    pub fn plan(&self) {
        self.swarm(&["plan", "--specs", "specs", "-y"]).ok();
        self.rig.trust(&self.repo);
    }

    /// Runs to the end and returns the events.
    #[track_caller]
    pub fn run(&self, code: i32, flags: &[&str]) -> Vec<Value> {
        let said = self.swarm(&[&["run", "--json"], flags].concat());
        assert_eq!(said.code, Some(code), "{said:?}");
        events(&said.out)
    }

    /// Contents of `.arial/state.json`.
    pub fn state(&self) -> Value {
        let text = fs::read(self.repo.join(".arial/state.json")).expect("it is planned");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Status of each row.
    pub fn statuses(&self) -> Vec<String> {
        let state = self.state();
        let rows = state["workstreams"].as_array().expect("rows");
        rows.iter().map(|row| format!("{} {}", text(&row["id"]), text(&row["status"]))).collect()
    }

    pub fn row(&self, id: &str) -> Value {
        let state = self.state();
        let rows = state["workstreams"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["id"] == id).expect("a row")
    }

    /// Content of a file on the base branch.
    pub fn landed(&self, name: &str) -> String {
        self.git(&["show", &format!("main:{name}")])
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}"))
}

pub fn events(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the events of one workstream, in order.
pub fn told(events: &[Value], id: &str) -> Vec<String> {
    let of = events.iter().filter(|event| event["workstream"] == id);
    of.map(|event| text(&event["event"]).to_owned()).filter(|event| event != "workstream.activity").collect()
}

#[test]
fn specs_become_landed_work_and_failures_have_a_reason() {
    let site = Site::new();
    site.spec("one", "", "echo 1 > one.txt; echo did one");
    site.spec("two", "priority: 5\n", "echo 2 > two.txt");
    site.spec("bad", "retries: 0\n", "echo it is broken >&2; exit 3");
    site.spec("sum", "after: [one, two]\n", "cat one.txt two.txt > sum.txt");
    site.write("mine", "a person's\n");
    site.commit();
    site.write("mine", "edited by a person\n");
    site.plan();
    let events = site.run(1, &["--verify", "test -e file"]);
    assert_eq!(site.statuses(), ["bad failed", "one done", "sum done", "two done"]);
    assert_eq!(site.landed("sum.txt"), "1\n2");
    assert_eq!(site.row("bad")["lastError"], "exited with code 3: it is broken");
    assert_eq!(site.row("one")["summary"], "did one");
    assert_eq!((text(&site.state()["status"]), site.state()["version"].as_u64()), ("failed", Some(2)));
    let begin = ["workstream.started", "workstream.completed", "merge.started", "merge.verifying"];
    assert_eq!(told(&events, "sum"), [&begin[..], &["merge.completed", "workstream.done"]].concat());
    assert_eq!(told(&events, "bad"), ["workstream.started", "workstream.failed"]);
    let last = events.last().expect("events");
    assert_eq!(
        (text(&last["event"]), text(&last["status"]), last["done"].as_u64()),
        ("run.completed", "failed", Some(3))
    );
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(site.git(&["log", "--no-merges", "--format=%s", "-1", "main", "--", "sum.txt"]), "Spec sum (sum)");
    // The user's edit is untouched, and git shows nothing of the run.
    assert_eq!(site.git(&["status", "--short"]), " M mine");
    assert_eq!(site.git(&["branch", "--format=%(refname:short)"]), "arial/bad\nmain");
    assert_eq!(site.rig.names(), ["repo.bad"]);
    assert!(site.repo.join(".arial/worktrees/bad").is_dir() && !site.repo.join(".arial/worktrees/one").exists());
}

#[test]
fn without_a_terminal_events_are_plain_lines() {
    let site = Site::new();
    site.spec("good", "", "echo g > g.txt; echo wrote g.txt");
    site.spec("bad", "retries: 1\n", "echo broken >&2; exit 3");
    site.commit();
    site.plan();
    let said = site.swarm(&["run", "--verify", "test -e g.txt"]);
    let hint = "swarm: hint: run 'swarm run --retry-failed' to retry what failed\n";
    assert_eq!((said.code, said.err.as_str()), (Some(1), hint), "{said:?}");
    let lines: Vec<&str> = said.out.lines().map(without_time).collect();
    let of = |id: &str| -> Vec<&str> { lines.iter().filter_map(|line| line.strip_prefix(id)).collect() };
    let landed = format!("landed as {}", &site.git(&["rev-parse", "main"])[..12]);
    let good = of("good: ");
    let [begin @ .., verifying, last] = good.as_slice() else { panic!("{good:?}") };
    assert_eq!(begin, ["started", "finished: wrote g.txt", "queued to land on main"]);
    assert!(verifying.strip_prefix("verifying ").is_some_and(|commit| commit.len() == 12), "{verifying}");
    assert_eq!(*last, landed);
    let cause = "exited with code 3: broken";
    let (again, failed) = (format!("attempt 1 failed, retrying: {cause}"), format!("failed: {cause}"));
    assert_eq!(of("bad: "), ["started", &again, "started attempt 2", &failed]);
    assert!(lines[0].starts_with("run ") && lines[0].ends_with(": 2 of 2 workstreams pending"), "{lines:?}");
    assert_eq!((lines.len(), lines.last()), (11, Some(&"failed: 1 done, 1 failed")), "{lines:?}");
    // Another viewer gets the same lines with the same times; one who has seen the others gets only the last.
    let again = site.swarm(&["run", "attach"]);
    assert_eq!((again.code, again.out), (Some(1), said.out.clone()));
    let json = site.swarm(&["run", "attach", "--json"]).out;
    let seen = (events(&json).len() - 1).to_string();
    let rest = site.swarm(&["run", "attach", "--since", &seen]);
    assert_eq!((rest.code, rest.out.trim_end()), (Some(1), said.out.lines().last().expect("lines")));
    for flag in ["--headless", "--no-tui"] {
        assert_eq!(site.swarm(&["run", "attach", flag]).out, json, "{flag}");
    }
}

/// A plain line without its `[MM:SS]`.
fn without_time(line: &str) -> &str {
    let parts = line.strip_prefix('[').and_then(|line| line.split_once("] "));
    let is_time = |time: &str| time.len() == 5 && time.split(':').all(|part| part.parse::<u8>().is_ok());
    match parts {
        Some((time, text)) if is_time(time) && !text.contains(char::is_control) => text,
        _ => panic!("not a plain line: {line:?}"),
    }
}

#[test]
fn a_rejected_attempt_is_retried_with_the_reason() {
    let site = Site::new();
    // A command that reads its prompt and does better once the prompt says what was wrong.
    let agent = "#!/bin/sh\ncat > prompt\ngrep -q 'An earlier attempt at this task failed' prompt && { echo good > health; cat .agent/verification.log > seen; } || echo bad > health\nrm prompt\necho wrote health\n";
    let path = site.rig.file("agent", agent);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    site.write("swarm.toml", &format!("[run]\nagent = 'mine'\n[agents.mine]\ncommand = ['{path}']\n"));
    site.write("specs/fix.md", "# Fix it\n\nMake it healthy.\n");
    site.write("specs/_context.md", "Everything here is about health.\n");
    site.commit();
    site.plan();
    let events = site.run(
        0,
        &[
            "--verify",
            "echo health is checked; test \"$(cat health)\" = good || { echo but it is $(cat health); exit 1; }",
        ],
    );
    assert_eq!(site.landed("health"), "good");
    assert_eq!(site.row("fix")["retryCount"], 1);
    // After a failed verification, the base alone is verified twice, and then the same commit once more.
    let verifying = ["merge.verifying"; 4];
    let looks = [&["merge.started"][..], &verifying, &["merge.rejected", "workstream.retrying"]].concat();
    assert_eq!(told(&events, "fix")[2..9], looks);
    let prompt =
        |n: u32| fs::read_to_string(site.repo.join(format!(".arial/attempts/fix.{n}/prompt.md"))).expect("kept");
    assert!(prompt(1).contains("Make it healthy.") && prompt(1).contains("Everything here is about health."));
    assert!(
        prompt(2).contains("exited with code 1: but it is bad; its output is in .agent/verification.log"),
        "{}",
        prompt(2)
    );
    assert!(prompt(2).contains("\n```text\nhealth is checked\nbut it is bad\n```\n"), "{}", prompt(2));
    // The agent could read all of it, and git has ignored the copy.
    assert_eq!(site.landed("seen"), "health is checked\nbut it is bad");
    assert_eq!(site.git(&["ls-files", ".agent"]), "");
    let rejected = events.iter().find(|event| event["event"] == "merge.rejected").expect("it is told");
    assert!(rejected["error"].as_str().expect("text").contains(": but it is bad; "), "{rejected}");
}

#[test]
fn a_conflict_goes_to_the_agent_and_an_unresolved_one_keeps_the_branch() {
    let site = Site::new();
    // The agent learns the other side's intention from the commit that the user makes meanwhile.
    let agent = "#!/bin/sh\nprompt=$(cat)\ncase $SWARM_WORKSTREAM$SWARM_MERGE_NAME in\n\
                 able*repo*) echo \"$prompt\" | grep -q '^[0-9a-f]* first$' && printf 'one\\nboth\\n' > file;;\nunable*repo*) exit 1;;\n\
                 *) while [ ! -e ../../../go ]; do :; done; printf 'one\\n%s\\n' $SWARM_WORKSTREAM > file;;\nesac\n";
    let path = site.rig.file("agent", agent);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    site.write("swarm.toml", &format!("[merge]\nmax_retries = 1\n[agents.mine]\ncommand = ['{path}']\n"));
    site.write("specs/able.md", "# Able\n");
    site.write("specs/unable.md", "# Unable\n");
    site.commit();
    site.plan();
    let home = site.swarm(&["run", "--agent", "mine", "--detach"]).ok();
    assert!(home.starts_with("started run "), "{home}");
    let at_work = |id: &str| site.repo.join(format!(".arial/worktrees/{id}/file")).exists();
    wait_until("both agents work", SOON, || at_work("able") && at_work("unable"));
    site.write("file", "one\nfirst\n");
    site.git(&["commit", "-q", "-a", "-m", "first"]);
    site.write("go", "");
    let said = site.swarm(&["run", "attach", "--headless"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert_eq!(site.statuses(), ["able done", "unable failed"]);
    assert_eq!(site.landed("file"), "one\nboth");
    let all = events(&said.out);
    let conflict = all.iter().find(|event| event["event"] == "merge.conflict").expect("it is told");
    assert!(told(&all, "able").contains(&"merge.resolving".to_owned()), "{:?}", told(&all, "able"));
    assert_eq!((text(&conflict["branch"]), conflict["files"].as_array().expect("a list").len()), ("arial/unable", 1));
    assert_eq!(site.row("unable")["lastError"], "conflicts with the base: file");
}

#[test]
fn a_stop_keeps_work_in_progress_and_the_next_run_continues_it() {
    let site = Site::new();
    site.spec("quick", "", "echo q > quick.txt");
    site.spec("slow", "", "test -e half || { echo half > half; cat > /dev/null < ../../../pipe; }; echo s > slow.txt");
    site.commit();
    let made = site.rig.program("mkfifo").arg(site.repo.join("pipe")).status().expect("mkfifo");
    assert!(made.success());
    site.plan();
    let mut command = site.rig.command(&["run"]);
    let mut client = command.current_dir(&site.repo).stdout(std::process::Stdio::null()).spawn().expect("started");
    let half = site.repo.join(".arial/worktrees/slow/half");
    wait_until("the slow spec is half done", SOON, || half.exists() && site.row("quick")["status"] == "done");
    // Ctrl-C.
    let pid = i32::try_from(client.id()).expect("a pid");
    proc::signal(pid, Signal::INT);
    assert!(proc::wait_end(pid, SOON), "the command did not end");
    assert_eq!(client.wait().expect("waited").code(), Some(130));
    assert_eq!(site.statuses(), ["quick done", "slow pending"]);
    let status = site.swarm(&["run", "status", "--json"]).ok();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((text(&status["status"]), text(&status["workstreams"][1]["stage"])), ("interrupted", "paused"));
    assert!(half.exists(), "the worktree was removed");
    let events = site.run(0, &[]);
    assert_eq!(site.statuses(), ["quick done", "slow done"]);
    assert_eq!(told(&events, "quick"), [""; 0], "finished work was repeated");
    assert_eq!((site.landed("half"), site.landed("slow.txt")), ("half".into(), "s".into()));
}

#[test]
fn a_run_survives_the_loss_of_its_terminal_and_of_its_keepers() {
    let site = Site::new();
    for at in 0..6 {
        site.spec(&format!("s{at}"), "", &format!("cat ../../../pipe{at} > s{at}.txt"));
        let made = site.rig.program("mkfifo").arg(site.repo.join(format!("pipe{at}"))).status().expect("mkfifo");
        assert!(made.success());
    }
    site.git(&["add", "specs"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    let mut command = site.rig.command(&["run", "--headless", "-j", "3"]);
    let mut client = command.current_dir(&site.repo).stdout(std::process::Stdio::null()).spawn().expect("started");
    for at in 0..6 {
        wait_until("the agent works", SOON, || site.row(&format!("s{at}"))["pid"].is_number());
        match at {
            0 => client.kill().expect("killed"),
            1 | 3 => {
                let (supervisor, guard) = both(&site.rig);
                proc::kill(supervisor);
                if at == 3 {
                    proc::kill(guard);
                    // Any command restarts them.
                    site.swarm(&["run", "status"]).ok();
                    site.swarm(&["supervisor", "restart"]);
                }
            }
            _ => {}
        }
        fs::write(site.repo.join(format!("pipe{at}")), format!("{at}\n")).expect("it reads");
    }
    client.wait().expect("waited");
    let said = site.swarm(&["run", "attach", "--headless", "--since", "0"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let all = events(&said.out);
    for at in 0..6 {
        let id = format!("s{at}");
        assert_eq!(site.landed(&format!("{id}.txt")), at.to_string());
        let started = told(&all, &id).iter().filter(|event| *event == "workstream.started").count();
        assert_eq!(started, 1, "{id} was not started exactly once");
    }
    let merges = site.git(&["log", "--merges", "--format=%s", "main"]);
    assert_eq!(merges.lines().count(), 6, "{merges}");
}

#[test]
fn planning_again_keeps_the_rows_of_unchanged_specs() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.spec("b", "", "echo b > b.txt");
    site.commit();
    site.plan();
    site.run(0, &[]);
    site.spec("b", "", "echo b2 > b.txt");
    site.spec("c", "", "echo c > c.txt");
    site.plan();
    assert_eq!(site.statuses(), ["a done", "b pending", "c pending"]);
    let events = site.run(0, &[]);
    assert_eq!(told(&events, "a"), [""; 0]);
    assert_eq!((site.landed("b.txt"), site.landed("c.txt")), ("b2".into(), "c".into()));
}

#[test]
fn a_jobs_file_runs_in_its_order_and_leaves_a_joblog() {
    let rig = Rig::new();
    let text = "limit = 2\n[[job]]\nname = 'make'\ncommand = 'echo made > made; echo out'\n\
                [[job]]\nname = 'use'\ncommand = ['cp', 'made', 'used']\nafter = 'make'\n\
                [[job]]\nname = 'flaky'\ncommand = 'test -e tried || { touch tried; exit 4; }'\nretries = 1\nenv = { A = 'b' }\n";
    let file = rig.file("jobs.toml", text);
    let plan = rig.swarm(&["run", &file, "--dry-run"]).ok();
    assert_eq!(
        plan,
        "3 jobs, at most 2 at a time\nmake  echo made > made; echo out\n  use  cp made used\nflaky  test -e tried || { touch tried; exit 4; }\n"
    );
    let said = rig.swarm(&["run", &file]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(fs::read_to_string(rig.path("used")).expect("made"), "made\n");
    let runs: Vec<PathBuf> =
        fs::read_dir(rig.root().join("run")).expect("runs").flatten().map(|entry| entry.path()).collect();
    let [home] = runs.as_slice() else { panic!("one home: {runs:?}") };
    let joblog = fs::read_to_string(home.join("joblog")).expect("a joblog");
    let lines: Vec<Vec<&str>> = joblog.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines[0], ["Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"]);
    let exits: Vec<(&str, &str)> = lines[1..].iter().map(|line| (line[0], line[6])).collect();
    assert_eq!(exits.len(), 4, "{joblog}");
    assert!(exits.contains(&("3", "4")) && exits.contains(&("3", "0")) && exits.contains(&("2", "0")), "{joblog}");
    assert_eq!(fs::read_to_string(home.join("logs/make.stdout.log")).expect("kept"), "out\n");
    rig.swarm(&["run", "jobs"]).refused(2, "'jobs' is not a job file or subcommand of 'swarm run'");
}
