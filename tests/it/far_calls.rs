//! Calls of a controller to a host: attempts of a run that work there. The test is the controller, and speaks to `swarm
//! __stdio` by lines.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};
use swarm_agents::Agent;
use swarm_hosts::frames::call_lines;
use swarm_model::run::Outcome;
use swarm_model::{Ended, Reason, SessionRules};
use swarm_store::runs::far::{FarAnswer, FarAttempt, FarCall, FarClone, FarResult, FarStart, FarTree, FarWork};
use swarm_store::runs::order::Order;

use crate::common::{Rig, SOON, wait_until};

pub const RUN: &str = "0a1b2c3d";

/// A host, and the repository of the controller, which is on the same machine.
pub struct Site {
    pub rig: Rig,
    repo: PathBuf,
}

impl Site {
    pub fn new() -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        let script = format!(
            "#!/bin/sh\n'{}' __git - \"$1\" \"$2\" \"$3\" | {{ read -r line; [ \"$line\" = 'swarm-git 1' ] && cat; }}\n",
            env!("CARGO_BIN_EXE_swarm")
        );
        let carry = rig.file("carry", &script);
        fs::set_permissions(carry, fs::Permissions::from_mode(0o755)).expect("executable");
        Self { rig, repo }
    }

    pub fn clone(&self) -> FarClone {
        FarClone { controller: "c0ffee00".into(), repository: "0123456789abcdef".into() }
    }

    pub fn dir(&self) -> PathBuf {
        self.rig.root().join("far/c0ffee00/0123456789abcdef")
    }

    pub fn at(&self, job: &str, attempt: u32) -> FarAttempt {
        let (run, job, worker) = (RUN.into(), job.into(), format!("p.{job}"));
        FarAttempt { clone: self.clone(), run, job, attempt, worker, host: None }
    }

    pub fn base(&self) -> String {
        self.rig.git(&self.repo, &["rev-parse", "main"]).trim().to_owned()
    }

    fn url(&self) -> String {
        let clone = self.clone();
        format!("ext::{} %s {} {}", self.rig.path("carry").display(), clone.controller, clone.repository)
    }

    /// Makes the clone, and sends a commit there.
    pub fn send(&self, line: &mut Line, commit: &str) {
        let call = FarCall::Clone { clone: self.clone(), format: "sha1".into() };
        assert_eq!(line.ask(&call), FarAnswer::Done);
        let refspec = format!("{commit}:refs/swarm/in/{commit}");
        self.rig.git(&self.repo, &["-c", "protocol.ext.allow=always", "push", "-q", &self.url(), &refspec]);
    }

    /// Fetches the work of an attempt.
    fn fetch(&self, tip: &str) {
        let name = format!("refs/swarm/done/{tip}");
        let refspec = format!("{name}:{name}");
        self.rig.git(&self.repo, &["-c", "protocol.ext.allow=always", "fetch", "-q", &self.url(), &refspec]);
    }

    pub fn order(&self, job: &str, attempt: u32, script: &str, tip: &str) -> FarStart {
        let agent = Agent::find("shell", &BTreeMap::new()).expect("built in");
        let order = Order {
            run: RUN.into(),
            job: job.into(),
            attempt,
            spec: None,
            root: Some(self.repo.clone()),
            agent,
            events: "/nowhere/events.jsonl".into(),
            log: "/nowhere/log".into(),
            context: "/nowhere/context".into(),
            consent: None,
            rules: Vec::new(),
            session: None,
            deferred: None,
            fresh_id: "f".into(),
            hold_ms: None,
        };
        let tree = FarTree {
            branch: format!("arial/{job}"),
            tip: tip.to_owned(),
            base: "main".into(),
            base_commit: self.base(),
            leaf: job.to_owned(),
            committer: None,
            include: Vec::new(),
        };
        FarStart {
            at: self.at(job, attempt),
            tree: Some(tree),
            work: FarWork::Agent { order: Box::new(order), prompt: script.to_owned() },
            session: SessionRules::default(),
            tags: vec![format!("run:{RUN}")],
            timeout_ms: None,
            log_limit_bytes: 1 << 20,
            messages: Vec::new(),
        }
    }

    /// References of the clone.
    pub fn references(&self) -> Vec<String> {
        let listed = self.rig.git(&self.dir().join("clone"), &["for-each-ref", "--format=%(refname)"]);
        listed.lines().map(str::to_owned).collect()
    }
}

/// Returns a start with another worktree.
pub fn with_tree(start: &FarStart, change: impl FnOnce(&mut FarTree)) -> FarStart {
    let mut start = start.clone();
    change(start.tree.as_mut().expect("a worktree"));
    start
}

/// A connection to the host.
pub struct Line {
    child: Child,
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    answers: BTreeMap<u64, FarAnswer>,
    /// Id of the state directory that gave the last answer.
    pub whose: Option<String>,
    last: u64,
}

impl Line {
    pub fn open(rig: &Rig) -> Self {
        let mut command = rig.command(&["__stdio"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let hello = lines.recv_timeout(SOON).expect("a hello");
        assert!(hello.starts_with("swarm-stdio {"), "{hello}");
        Self { child, stdin, lines, answers: BTreeMap::new(), whose: None, last: 0 }
    }

    pub fn write(&mut self, call: &Value) -> u64 {
        self.last += 1;
        for line in call_lines(self.last, call.clone()).expect("not too long") {
            self.stdin.write_all(&line).expect("written");
        }
        self.last
    }

    pub fn begin(&mut self, call: &FarCall) -> u64 {
        self.write(&serde_json::to_value(call).expect("JSON"))
    }

    #[track_caller]
    pub fn answer(&mut self, id: u64) -> FarAnswer {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            let line = self.lines.recv_timeout(SOON).expect("an answer");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            if let Some(told) = line.get("answer") {
                let answer = serde_json::from_value(told["answer"].clone()).expect("an answer");
                self.whose = told["host"].as_str().map(str::to_owned);
                self.answers.insert(told["id"].as_u64().expect("a number"), answer);
            }
        }
    }

    #[track_caller]
    pub fn ask(&mut self, call: &FarCall) -> FarAnswer {
        let id = self.begin(call);
        self.answer(id)
    }

    #[track_caller]
    pub fn start(&mut self, start: &FarStart) -> u64 {
        match self.ask(&FarCall::Start(Box::new(start.clone()))) {
            FarAnswer::Started { generation, .. } => generation,
            other => panic!("not started: {other:?}"),
        }
    }

    #[track_caller]
    pub fn end(&mut self, at: &FarAttempt) -> FarResult {
        let id = self.begin(&end_of(at));
        self.ended(id)
    }

    #[track_caller]
    pub fn ended(&mut self, id: u64) -> FarResult {
        match self.answer(id) {
            FarAnswer::Ended(result) => *result,
            other => panic!("not ended: {other:?}"),
        }
    }

    /// Cuts the connection.
    fn cut(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Ends the input, and with it the process.
    fn close(self) {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        assert!(child.wait().expect("ended").success());
    }
}

fn end_of(at: &FarAttempt) -> FarCall {
    FarCall::End { at: at.clone(), base: "main".into(), subject: Some("Work of a job".into()) }
}

pub fn is_done(result: &FarResult) -> bool {
    let is_success = result.result.as_ref().is_some_and(|left| matches!(left.outcome, Outcome::Success { .. }));
    is_success && result.exit.as_ref().is_some_and(|exit| exit.ended == Ended::Code(0))
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, |entries| entries.count())
}

#[test]
fn an_attempt_works_in_a_clone_and_its_work_is_fetched() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    site.send(&mut line, &base);
    let order = site.order("a", 1, "echo one > one.txt; echo said; echo problem >&2", &base);
    let generation = line.start(&order);
    let end = line.end(&order.at);
    assert!(is_done(&end), "{end:?}");
    assert!(end.log.contains("said"), "{end:?}");
    let tip = end.tip.clone().expect("a commit");
    assert_ne!(tip, base);
    site.fetch(&tip);
    assert_eq!(site.rig.git(&site.repo, &["show", &format!("{tip}:one.txt")]), "one");
    assert_eq!(site.rig.git(&site.repo, &["log", "-1", "--format=%s", &tip]), "Work of a job");
    // Each call finds what the first one did, also over another connection.
    assert_eq!(line.start(&order), generation);
    line.close();
    let mut line = Line::open(&site.rig);
    assert_eq!(line.start(&order), generation);
    assert_eq!(line.end(&order.at), end);

    let again = site.order("a", 2, "cat one.txt > two.txt", &tip);
    let tree = site.dir().join("worktrees").join(RUN).join("a");
    fs::write(tree.join("mark.o"), "").expect("written");
    assert!(line.start(&again) > generation);
    let end = line.end(&again.at);
    let second = end.tip.clone().expect("a commit");
    assert_eq!(site.rig.git(&site.dir().join("clone"), &["show", &format!("{second}:two.txt")]), "one");
    assert!(tree.join("mark.o").exists(), "the worktree was made anew");

    // Work that came from elsewhere meanwhile.
    let third = site.order("a", 3, "test ! -e two.txt && echo three > three.txt", &tip);
    line.start(&third);
    let end = line.end(&third.at);
    assert!(is_done(&end), "{end:?}");
    assert!(site.references().contains(&format!("refs/swarm/done/{second}")), "work is gone");

    assert_eq!(line.ask(&FarCall::Forget(third.at.clone())), FarAnswer::Done);
    assert_eq!(line.ask(&FarCall::Forget(third.at.clone())), FarAnswer::Done);
    assert_eq!(site.rig.names(), [""; 0]);
    let left: Vec<String> = site.references().into_iter().filter(|name| !name.contains("/trash/")).collect();
    assert_eq!(left, ["refs/heads/main"]);
    for dir in ["worktrees", "runs", "locks"] {
        let expected = usize::from(dir == "locks");
        assert_eq!(count(&site.dir().join(dir)), expected, "{dir}");
    }
}

#[test]
fn attempts_go_on_without_a_connection_and_without_a_supervisor() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let pipe = site.rig.path("pipe");
    assert!(site.rig.program("mkfifo").arg(&pipe).status().expect("started").success());
    let long = site.order("long", 1, &format!("echo a > a.txt; cat '{}' > b.txt", pipe.display()), &base);
    let endless = site.order("endless", 1, "exec sleep 600", &base);
    let generation = line.start(&long);
    line.start(&endless);

    // Calls overlap, and a worker is ended by another one.
    let (first, second) = (line.begin(&end_of(&long.at)), line.begin(&end_of(&endless.at)));
    assert_eq!(line.ask(&FarCall::Stop(endless.at.clone())), FarAnswer::Done);
    let end = line.ended(second);
    assert_eq!(end.exit.as_ref().map(|exit| exit.reason), Some(Reason::Stopped), "{end:?}");
    assert_eq!((end.tip.as_deref(), &end.result), (Some(base.as_str()), &None));
    assert_eq!(line.ask(&FarCall::Stop(endless.at.clone())), FarAnswer::Done);
    assert_eq!(line.end(&endless.at), end);
    assert_eq!(line.ask(&FarCall::Stop(site.at("nobody", 1))), FarAnswer::Done);
    assert!(!line.answers.contains_key(&first));
    line.cut();

    site.rig.kill_keepers();
    let mut line = Line::open(&site.rig);
    let id = line.begin(&end_of(&long.at));
    fs::write(&pipe, "b\n").expect("written");
    let end = line.ended(id);
    assert!(is_done(&end), "{end:?}");
    let tip = end.tip.expect("a commit");
    let clone = site.dir().join("clone");
    assert_eq!(site.rig.git(&clone, &["show", &format!("{tip}:b.txt")]), "b");
    assert_eq!(site.rig.keepers().0, None, "an end needs no supervisor");
    assert_eq!(line.start(&long), generation);

    // The other job, which has the same base and no work, still needs what it has.
    assert_eq!(line.ask(&FarCall::Forget(long.at)), FarAnswer::Done);
    assert_eq!(site.rig.names(), ["p.endless"]);
    let kept = ["refs/heads/arial/endless", "refs/heads/main"].map(str::to_owned);
    let sent = [format!("refs/swarm/done/{base}"), format!("refs/swarm/in/{base}")];
    assert_eq!(site.references(), [kept, sent].concat());
    assert_eq!(line.ask(&FarCall::Forget(endless.at)), FarAnswer::Done);
    assert_eq!(site.references(), ["refs/heads/main"]);
}

#[test]
fn work_that_nobody_fetched_is_saved_before_an_attempt_begins_elsewhere() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "echo c > c.txt; git add c.txt; git commit -q -m c; echo d > d.txt; touch done; exec sleep 600";
    let first = site.order("a", 1, script, &base);
    line.start(&first);
    let tree = site.dir().join("worktrees").join(RUN).join("a");
    wait_until("it has worked", SOON, || tree.join("done").exists());
    let clone = site.dir().join("clone");
    let tip = site.rig.git(&clone, &["rev-parse", "arial/a"]);
    // The next attempt cannot start while an earlier one still works.
    let second = site.order("a", 2, "test ! -e c.txt && test ! -e d.txt", &base);
    let answer = line.ask(&FarCall::Start(Box::new(second.clone())));
    let FarAnswer::Unfit { program: None, cause } = answer else { panic!("not in the way: {answer:?}") };
    assert!(cause.contains("p.a"), "{cause}");
    assert_eq!(line.ask(&FarCall::Stop(first.at.clone())), FarAnswer::Done);
    line.start(&second);
    let end = line.end(&second.at);
    assert!(is_done(&end), "{end:?}");
    assert!(site.references().contains(&format!("refs/swarm/done/{tip}")));
    let trash = || site.references().into_iter().find(|name| name.starts_with("refs/swarm/trash/"));
    let saved = trash().expect("saved");
    assert_eq!(site.rig.git(&clone, &["show", &format!("{saved}:d.txt")]), "d");
    let FarAnswer::Refused(cause) = line.ask(&FarCall::Start(Box::new(first))) else { panic!("not refused") };
    assert!(cause.starts_with("a later attempt has been started"), "{cause}");
    assert_eq!(line.ask(&FarCall::Forget(second.at)), FarAnswer::Done);
    assert!(trash().is_some(), "what was saved is gone");
}

#[test]
fn what_cannot_be_committed_is_said() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "echo x > file; git commit -q -a -m x; git checkout -q -b other HEAD~1; echo y > file; \
                  git commit -q -a -m y; git checkout -q arial/m; git merge other || true";
    let order = site.order("m", 1, script, &base);
    line.start(&order);
    let end = line.end(&order.at);
    let tip = site.rig.git(&site.dir().join("clone"), &["rev-parse", "arial/m"]);
    assert_eq!((end.tip, end.waits), (Some(tip.clone()), Some("a merge is in progress in its worktree".to_owned())));
    site.fetch(&tip);
    // With both sides of the merge, and the files as they are.
    let also = end.also.expect("a save");
    site.fetch(&also);
    let other = site.rig.git(&site.dir().join("clone"), &["rev-parse", "other"]);
    for commit in [&tip, &other] {
        site.rig.git(&site.repo, &["merge-base", "--is-ancestor", commit.trim(), &also]);
    }
    assert!(site.rig.git(&site.repo, &["show", &format!("{also}:file")]).contains("<<<<<<<"));
    assert_eq!(line.ask(&FarCall::Forget(order.at)), FarAnswer::Done);
    assert!(site.references().iter().any(|name| name.starts_with("refs/swarm/trash/")));
    assert!(!site.references().iter().any(|name| name.starts_with("refs/swarm/done/")));
}

#[test]
fn calls_that_cannot_be_carried_out_are_refused_and_start_nothing() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    let refused = |line: &mut Line, call: &Value, cause: &str| {
        let id = line.write(call);
        assert_eq!(line.answer(id), FarAnswer::Refused(cause.to_owned()), "{call}");
    };
    refused(&mut line, &json!({"dance": 1}), "swarm on this host does not know the call: update it");
    let order = site.order("a", 1, "true", &base);
    let start = |order: &FarStart| serde_json::to_value(FarCall::Start(Box::new(order.clone()))).expect("JSON");
    let clone = site.dir().join("clone");
    let gone = line.ask(&FarCall::Start(Box::new(order.clone())));
    assert_eq!(gone, FarAnswer::Gone(format!("there is no clone {}", clone.display())));
    assert_eq!(line.end(&order.at), FarResult::default(), "never started");
    site.send(&mut line, &base);
    let mut changed = order.clone();
    changed.at.clone.controller = "../../..".into();
    refused(&mut line, &start(&changed), "invalid controller '../../..'");
    let changed = with_tree(&order, |tree| tree.leaf = "../x".into());
    refused(&mut line, &start(&changed), "invalid name of a worktree: the name begins with '-' or '.'");
    let changed = with_tree(&order, |tree| tree.tip = "main".into());
    refused(&mut line, &start(&changed), "'main' is not the id of a commit");
    let mut changed = order.clone();
    let FarWork::Agent { order: agents, .. } = &mut changed.work else { panic!("an agent") };
    agents.agent.kind = swarm_agents::Kind::Command;
    agents.agent.config.command = Some(vec!["no-such-agent".into()]);
    let (program, cause) = (Some("no-such-agent".into()), "'no-such-agent' is not installed on this host".into());
    let unfit = line.ask(&FarCall::Start(Box::new(changed)));
    assert_eq!(unfit, FarAnswer::Unfit { program, cause }, "it may start others");
    let config = site.rig.home().join(".gitconfig");
    let known = fs::read(&config).expect("read");
    fs::write(&config, "[user]\n\tuseConfigOnly = true\n").expect("written");
    refused(
        &mut line,
        &start(&order),
        "git on this host does not know who commits (run 'git config --global user.name NAME' and 'git config --global \
         user.email MAIL' there)",
    );
    let committer = swarm_store::runs::far::Committer { name: "-n".into(), email: "x@example.com".into() };
    let odd = with_tree(&order, |tree| tree.committer = Some(committer));
    refused(
        &mut line,
        &start(&odd),
        "git on this host does not know who commits (run 'git config --global user.name \
         NAME' and 'git config --global user.email MAIL' there)",
    );
    fs::write(&config, known).expect("written");
    let unknown = "1".repeat(40);
    let id = line.begin(&FarCall::Start(Box::new(with_tree(&order, |tree| tree.tip = unknown))));
    assert!(matches!(line.answer(id), FarAnswer::Gone(_)));
    let call = FarCall::Clone { clone: site.clone(), format: "sha256".into() };
    let id = line.begin(&call);
    let FarAnswer::Refused(cause) = line.answer(id) else { panic!("not refused") };
    assert!(cause.ends_with("has object format sha1, not sha256"), "{cause}");
    let beside = json!({"id": 99, "call": start(&order), "state": "elsewhere"});
    writeln!(line.stdin, "{}", json!({"call": beside})).expect("written");
    assert_eq!(line.answer(99), FarAnswer::Unknown("a connection has one state directory".into()));
    assert!(!site.rig.state().exists() || site.rig.names().is_empty());

    let git = |words: &[&str]| site.rig.swarm(&[&["__git"], words].concat());
    git(&["-", "daemon", "c0ffee00", "0123456789abcdef"]).is(1, "swarm-git refused: unknown service 'daemon'\n", "");
    git(&["-", "upload-pack", "c0ffee00", "../../.."]).is(1, "swarm-git refused: invalid repository '../../..'\n", "");
    git(&["-", "upload-pack"]).is(1, "swarm-git refused: wrong number of arguments\n", "");
    let cause =
        format!("swarm-git refused: there is no clone {}/far/c0ffee00/ffffffff/clone\n", site.rig.root().display());
    git(&["-", "upload-pack", "c0ffee00", "ffffffff"]).is(1, &cause, "");
}

#[test]
fn connections_that_make_the_same_clone_make_one() {
    let site = Site::new();
    let call = FarCall::Clone { clone: site.clone(), format: "sha1".into() };
    let mut lines: Vec<Line> = (0..3).map(|_| Line::open(&site.rig)).collect();
    let ids: Vec<u64> = lines.iter_mut().map(|line| line.begin(&call)).collect();
    for (line, id) in lines.iter_mut().zip(ids) {
        assert_eq!(line.answer(id), FarAnswer::Done);
    }
    let clone = site.dir().join("clone");
    assert_eq!(site.rig.git(&clone, &["config", "core.hooksPath"]), "/dev/null");
    assert_eq!(site.rig.git(&clone, &["config", "gc.auto"]), "0");
    assert_eq!(count(&site.dir()), 2, "the clone and its lock");
}
