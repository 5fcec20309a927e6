use std::fs;
use std::path::Path;

use swarm_agents::Session;
use swarm_git::fixture::{Fixture, block, text};
use swarm_model::Contract;
use swarm_model::run::plan::{CommandWork, Job, Plan, SpecWork};
use swarm_model::run::progress::Progress;
use swarm_store::runs::far::FarResult;

use super::*;

#[path = "order_tests.rs"]
mod orders;
#[path = "several_tests.rs"]
mod several;

/// Takes the place of the program: `__reach` answers calls, and `__carry` connects with the repository `there`. While there
/// is a file `away`, there is no connection.
const PROGRAM: &str = r#"
cd "$(dirname "$0")" || exit 9
case $1 in
__carry)
    [ -e away ] && echo 'fatal: swarm: away: no route' >&2 && exit 255
    echo carried >>calls
    [ -p slow.carry ] && read -r _ <slow.carry
    eval "set -- $4"
    exec git "${1#git-}" there ;;
__reach)
    [ -e away ] && echo '{"fault":{"kind":"away","cause":"no route"}}' && exit 255
    echo "reach $2" >>calls
    echo '{"hello":{}}'
    while read -r line; do
        id=${line#*'"id":'}
        id=${id%%,*}
        kind=${line#*'"call":{"id":'$id',"call":{"'}
        kind=${kind%%'"'*}
        echo "$kind" >>calls
        printf '%s\n' "$line" >"last.$kind"
        [ -e "cut.$kind" ] && exit 0
        answer='"done"'
        [ -e "answer.$kind" ] && read -r answer <"answer.$kind"
        [ -e "once.$kind" ] && read -r answer <"once.$kind" && rm "once.$kind"
        who=; [ -e id ] && who=",\"host\":\"$(cat id)\""
        printf '{"answer":{"id":%s,"answer":%s%s}}\n' "$id" "$answer" "$who"
    done
    echo "end" >>calls ;;
esac"#;

struct World {
    fix: Fixture,
    reach: Reach,
    now: Now,
}

impl World {
    fn new() -> Self {
        let fix = Fixture::new();
        fix.at(&fix.root, &["init", "-q", "-b", "none", "there"]);
        let program = fix.root.join("swarm");
        fix.script(&program, PROGRAM);
        let work = Work::Spec(SpecWork { file: "specs/a.md".into(), title: "A".into(), ..SpecWork::default() });
        let jobs = vec![Job { id: "a".into(), work, branch: Some("arial/a".into()), ..Job::default() }];
        let plan = Plan {
            id: "0a1b2c3d".into(),
            home: fix.repo.join(".arial").display().to_string(),
            slug: "p".into(),
            root: fix.repo.display().to_string(),
            base: Some("main".into()),
            jobs,
            ..Plan::default()
        };
        let progress = Progress { attempt: 1, host: Some("box".into()), ..Progress::default() };
        let now = Now { plan: Arc::new(plan), at: 0, progress, landed: Vec::new() };
        let reach = Reach::new(Paths::new(fix.root.join("state")), program);
        let world = Self { fix, reach, now };
        world.answer("start", r#"{"started":{"generation":1,"load":3}}"#);
        world
    }

    /// A job that needs no repository.
    fn with_command() -> Self {
        let mut world = Self::new();
        let mut plan = (*world.now.plan).clone();
        let env = BTreeMap::from([("X".to_owned(), "1".to_owned())]);
        let work = CommandWork { argv: vec!["make".into()], env, cwd: Some("sub/../lib".into()) };
        plan.jobs[0] = Job { id: "a".into(), work: Work::Command(work), ..Job::default() };
        plan.root = world.fix.root.join("nowhere").display().to_string();
        world.now.plan = Arc::new(plan);
        world
    }

    fn answer(&self, kind: &str, answer: &str) {
        fs::write(self.fix.root.join(format!("answer.{kind}")), format!("{answer}\n")).expect("written");
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.fix.root.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn bring(&self) -> Result<(), HostFault> {
        block(self.reach.bring(&self.now, "box", &self.fix.caller))
    }

    fn start(&self) -> Result<Option<u32>, HostFault> {
        self.start_on("box")
    }

    fn start_on(&self, host: &str) -> Result<Option<u32>, HostFault> {
        let dir = self.dir();
        let contract = Contract {
            argv: vec!["swarm".into(), order::VERB.into(), dir.display().to_string()],
            tags: vec!["run:0a1b2c3d".into()],
            timeout_ms: Some(5),
            ..Contract::default()
        };
        let request = SpawnRequest {
            caller: self.fix.caller.clone(),
            name: "p.a".into(),
            contract,
            worktree: None,
            replaces: None,
            takes_over: None,
        };
        block(self.reach.start(&self.now, host, &request, &self.fix.caller))
    }

    fn hail(&self) -> Result<(), HostFault> {
        block(self.reach.hail(&self.now, "box", &self.fix.caller))
    }

    fn end(&self) -> Result<FarEnd, HostFault> {
        block(self.reach.end(&self.now, "box", &self.fix.caller))
    }

    fn dir(&self) -> PathBuf {
        self.fix.repo.join(".arial/attempts/a.1")
    }

    fn head(&self) -> String {
        text(&self.fix.git(&["rev-parse", "main"]))
    }

    fn is_there(&self, name: &str) -> bool {
        self.fix.attempt(&self.fix.root.join("there"), &["rev-parse", "--verify", "-q", name]).0
    }

    /// Makes a commit on the host, pins it, and lets the host say that the attempt has ended with it.
    fn work(&self, onto: &str) -> String {
        let there = self.fix.root.join("there");
        let tree = text(&self.fix.at(&there, &["rev-parse", &format!("{onto}^{{tree}}")]));
        let tip = text(&self.fix.at(&there, &["commit-tree", "-p", onto, "-m", "work", &tree]));
        self.fix.at(&there, &["update-ref", &format!("refs/swarm/done/{tip}"), &tip]);
        self.ended_with(&tip);
        tip
    }

    fn ended_with(&self, tip: &str) {
        let left = FarResult { tip: Some(tip.to_owned()), log: "said\n".into(), ..FarResult::default() };
        let answer = serde_json::to_string(&FarAnswer::Ended(Box::new(left))).expect("JSON");
        self.answer("end", &answer);
    }

    fn set_away(&self, is_away: bool) {
        let file = self.fix.root.join("away");
        match is_away {
            true => fs::write(file, "").expect("written"),
            false => fs::remove_file(file).expect("removed"),
        }
    }

    fn write_order(&self) {
        let dir = self.dir();
        let order = serde_json::json!({
            "run": "0a1b2c3d", "job": "a", "attempt": 1, "agent": agent(), "events": "e", "log": "l", "context": "c",
            "session": null, "fresh_id": "f",
        });
        order::write_order(&dir, order.to_string().as_bytes()).expect("written");
        fs::write(dir.join(PROMPT), "do it").expect("written");
    }
}

fn agent() -> serde_json::Value {
    let agent = swarm_agents::Agent::find("shell", &BTreeMap::default()).expect("an agent");
    serde_json::to_value(agent).expect("JSON")
}

fn last(root: &Path, kind: &str) -> serde_json::Value {
    let line = fs::read(root.join(format!("last.{kind}"))).expect("was called");
    let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
    value["call"]["call"][kind].clone()
}

#[test]
fn an_attempt_goes_there_and_its_work_comes_back() {
    let mut world = World::new();
    let base = world.head();
    world.bring().expect("sent");
    assert!(world.is_there(&format!("refs/swarm/in/{base}")));
    world.bring().expect("sent before");
    world.write_order();
    assert_eq!(world.start(), Ok(Some(3)));
    let start = last(&world.fix.root, "start");
    let tree = &start["tree"];
    assert_eq!((tree["tip"].as_str(), tree["base_commit"].as_str()), (Some(&*base), Some(&*base)));
    assert_eq!((start["work"]["agent"]["prompt"].as_str(), tree["leaf"].as_str()), (Some("do it"), Some("a")));
    assert_eq!((start["at"]["worker"].as_str(), start["timeout_ms"].as_u64()), (Some("p.a-0a1b2c3d"), Some(5)));
    let tip = world.work(&base);
    assert_eq!(world.end().expect("ended").tip, Some(tip.clone()));
    assert_eq!(world.end().expect("ended before").tip, Some(tip.clone()));
    assert_eq!(last(&world.fix.root, "end")["subject"], "A (a)");
    assert_eq!(fs::read_to_string(world.fix.repo.join(".arial/logs/a.log")).expect("a log"), "said\n");
    world.now.progress.tip = Some(tip.clone());
    block(world.reach.take(&world.now, &world.fix.caller)).expect("moved");
    assert_eq!(text(&world.fix.git(&["rev-parse", "refs/heads/arial/a"])), tip);
    let calls = ["reach box", "clone", "carried", "start", "end", "carried", "end"];
    assert_eq!(world.calls(), calls, "one connection, one push, one fetch");
}

#[test]
fn an_attempt_begins_with_the_commits_at_the_time_when_it_is_sent() {
    let world = World::new();
    let first = world.head();
    world.set_away(true);
    assert_eq!(world.bring(), Err(HostFault::Away { cause: "no route".into() }));
    // Meanwhile something else lands.
    world.fix.commit("second", "f", "2\n");
    world.set_away(false);
    world.bring().expect("sent");
    let base = world.head();
    assert!(world.is_there(&format!("refs/swarm/in/{base}")));
    assert!(!world.is_there(&format!("refs/swarm/in/{first}")));
    world.write_order();
    // Something lands before it is started.
    world.fix.commit("third", "f", "3\n");
    // After a restart of the supervisor.
    let world = World { reach: Reach::new(world.reach.paths.clone(), world.reach.executable.clone()), ..world };
    world.start().expect("started");
    assert_eq!(last(&world.fix.root, "start")["tree"]["base_commit"].as_str(), Some(&*base));
}

#[test]
fn a_clone_that_was_removed_is_made_and_filled_again_at_once_and_once() {
    let world = World::new();
    world.bring().expect("sent");
    world.write_order();
    let once = || fs::write(world.fix.root.join("once.start"), "{\"gone\":\"there is no clone\"}\n").expect("written");
    once();
    world.start().expect("started");
    assert_eq!(world.calls(), ["reach box", "clone", "carried", "start", "clone", "carried", "start"]);
    world.answer("start", r#"{"gone":"there is no clone"}"#);
    assert_eq!(world.start(), Err(HostFault::Away { cause: "there is no clone".into() }));
    assert_eq!(world.calls().len(), 11);
    // What git cannot do here is about this attempt, and not about the host.
    once();
    fs::rename(world.fix.root.join("there"), world.fix.root.join("elsewhere")).expect("renamed");
    assert!(matches!(world.start(), Err(HostFault::Unfit { program: None, .. })));
}

#[test]
fn an_attempt_stays_in_its_clone_if_the_repository_is_moved() {
    let mut world = World::new();
    world.bring().expect("sent");
    world.write_order();
    world.start().expect("started");
    let moved = world.fix.root.join("moved");
    fs::rename(&world.fix.repo, &moved).expect("moved");
    let plan = Arc::make_mut(&mut world.now.plan);
    plan.root = moved.display().to_string();
    plan.home = moved.join(".arial").display().to_string();
    block(world.reach.stop(&world.now, "box", &world.fix.caller)).expect("stopped");
    let repository = |kind: &str| last(&world.fix.root, kind)["at"]["clone"]["repository"].clone();
    assert!(repository("start").is_string());
    assert_eq!(last(&world.fix.root, "stop")["clone"]["repository"], repository("start"));
}

#[test]
fn a_cut_connection_is_opened_again() {
    let world = World::new();
    fs::write(world.fix.root.join("cut.clone"), "").expect("written");
    assert_eq!(world.bring(), Err(HostFault::Away { cause: "the connection to box was cut".into() }));
    fs::remove_file(world.fix.root.join("cut.clone")).expect("removed");
    world.bring().expect("sent");
    for (answer, expected) in [
        (r#"{"busy":"full"}"#, HostFault::Busy { cause: "full".into() }),
        (r#"{"refused":"no"}"#, HostFault::Refused { cause: "no".into() }),
        (r#"{"unknown":"cut"}"#, HostFault::Away { cause: "cut".into() }),
        (r#"{"unfit":{"cause":"x"}}"#, HostFault::Unfit { program: None, cause: "x".into() }),
    ] {
        world.answer("stop", answer);
        assert_eq!(block(world.reach.stop(&world.now, "box", &world.fix.caller)), Err(expected));
    }
    // An answer of a newer program does not say that nothing was done.
    world.answer("stop", r#"{"new_answer":1}"#);
    let stopped = block(world.reach.stop(&world.now, "box", &world.fix.caller));
    let cause = "swarm on box gave an answer that is not known here: run 'swarm hosts install box'";
    assert_eq!(stopped, Err(HostFault::Away { cause: cause.into() }));
}

#[test]
fn what_a_host_was_not_told_comes_first_at_the_next_contact() {
    let world = World::new();
    world.set_away(true);
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    assert_eq!(owed::of_host(&world.reach.paths, "box").len(), 1);
    world.set_away(false);
    world.bring().expect("sent");
    assert_eq!(world.calls(), ["reach box", "forget", "clone", "carried"]);
    assert!(owed::of_host(&world.reach.paths, "box").is_empty());
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    assert!(owed::of_host(&world.reach.paths, "box").is_empty());
}

#[test]
fn the_work_of_an_attempt_that_was_given_up_is_kept_here_before_it_is_forgotten_there() {
    let world = World::new();
    let base = world.head();
    world.bring().expect("sent");
    let tip = world.work(&base);
    world.set_away(true);
    block(world.reach.release(&world.now.plan.id));
    world.reach.admit(&world.now.plan.id);
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
    block(world.reach.forget(&world.now, "box", caller));
    let away = Err(HostFault::Away { cause: "no route".into() });
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), away);
    assert_eq!(owed::of_host(&world.reach.paths, "box").len(), 2);
    world.set_away(false);
    // It cannot be ended yet, so that nothing is forgotten; the host is used all the same.
    world.answer("end", r#"{"busy":"a lock"}"#);
    let known = world.calls().len();
    world.hail().expect("it answers");
    let calls = world.calls().split_off(known);
    // It is ended first. Its work comes back meanwhile.
    assert_eq!(calls[..2], ["reach box", "stop"]);
    assert!(calls.contains(&"hail".to_owned()), "{calls:?}");
    let busy = Err(HostFault::Busy { cause: "a lock".into() });
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), busy);
    world.ended_with(&tip);
    let known = world.calls().len();
    let reference = "refs/swarm/from/box/a.1".to_owned();
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference.clone()])));
    assert_eq!(world.calls()[known..], ["stop", "end", "carried", "forget", "forget"]);
    assert_eq!(text(&world.fix.git(&["rev-parse", &reference])), tip);
    assert_eq!(text(&world.fix.git(&["for-each-ref", "refs/swarm/done", "refs/heads/arial"])), "");
    assert!(owed::of_host(&world.reach.paths, "box").is_empty());
    // After a restart of the supervisor before that was journaled.
    assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(vec![reference])));
}

#[test]
fn all_that_an_attempt_has_left_comes_back_and_a_reference_of_an_older_run_is_not_told() {
    let world = World::new();
    let base = world.head();
    world.bring().expect("sent");
    world.fix.git(&["update-ref", "refs/swarm/from/box/a.1", &base]);
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    let ask = |left: FarResult| {
        world.answer("end", &serde_json::to_string(&FarAnswer::Ended(Box::new(left))).expect("JSON"));
        block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
        block(world.reach.reclaim(plan, &abandoned, caller))
    };
    assert_eq!(ask(FarResult::default()), Ok(Reclaimed::Back(Vec::new())));
    let tip = world.work(&base);
    let also = world.work(&tip);
    let stray =
        text(&world.fix.at(&world.fix.root.join("there"), &["commit-tree", "-m", "s", &format!("{base}^{{tree}}")]));
    world.fix.at(&world.fix.root.join("there"), &["update-ref", &format!("refs/swarm/done/{stray}"), &stray]);
    let left =
        FarResult { tip: Some(tip), also: Some(also.clone()), strays: vec![stray.clone()], ..FarResult::default() };
    let names = ["a.1-2", "a.1-3"].map(|name| format!("refs/swarm/from/box/{name}"));
    assert_eq!(ask(left), Ok(Reclaimed::Back(names.to_vec())));
    assert_eq!(names.map(|name| text(&world.fix.git(&["rev-parse", &name]))), [also, stray]);
}

#[test]
fn an_attempt_that_was_given_up_and_has_done_nothing_leaves_no_reference() {
    let world = World::new();
    world.bring().expect("sent");
    let abandoned = Abandoned::new("a", 1, "box");
    let (plan, caller) = (&*world.now.plan, &world.fix.caller);
    for tip in [Some(world.head()), None] {
        let left = FarResult { tip, ..FarResult::default() };
        world.answer("end", &serde_json::to_string(&FarAnswer::Ended(Box::new(left))).expect("JSON"));
        block(world.reach.owe(plan, &abandoned, caller)).expect("recorded");
        assert_eq!(block(world.reach.reclaim(plan, &abandoned, caller)), Ok(Reclaimed::Back(Vec::new())));
        assert!(owed::of_host(&world.reach.paths, "box").is_empty());
    }
    assert_eq!(text(&world.fix.git(&["for-each-ref", "refs/swarm"])), "");
}

#[test]
fn a_branch_that_somebody_has_deleted_stays_deleted() {
    let mut world = World::new();
    world.bring().expect("sent");
    world.write_order();
    let tip = world.work(&world.head());
    world.end().expect("ended");
    world.now.progress.tip = Some(tip.clone());
    let take = |world: &World| block(world.reach.take(&world.now, &world.fix.caller));
    let branch =
        |world: &World| world.fix.attempt(&world.fix.repo, &["rev-parse", "-q", "--verify", "refs/heads/arial/a"]);
    take(&world).expect("moved");
    world.fix.git(&["branch", "-q", "-D", "arial/a"]);
    take(&world).expect("nothing to do");
    assert!(!branch(&world).0, "it came back");
    // Another attempt has more work.
    let more = world.work(&tip);
    world.end().expect("ended");
    world.now.progress.tip = Some(more.clone());
    take(&world).expect("moved");
    assert_eq!(text(&branch(&world).1), more);
    take(&world).expect("it is there");
}

#[test]
fn commits_are_sent_again_over_a_new_connection() {
    let world = World::new();
    world.bring().expect("sent");
    world.bring().expect("there");
    // Perhaps another machine answers now.
    block(world.reach.release(&world.now.plan.id));
    world.reach.admit(&world.now.plan.id);
    world.bring().expect("sent");
    let calls = world.calls().into_iter().filter(|call| call != "end");
    assert_eq!(calls.collect::<Vec<_>>(), ["reach box", "clone", "carried", "reach box", "clone", "carried"]);
    // A host removes what no job needs.
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    world.bring().expect("sent");
    assert_eq!(world.calls().iter().filter(|call| *call == "carried").count(), 3);
}

#[test]
fn a_hostile_tip_is_no_word_for_git() {
    let world = World::new();
    world.bring().expect("sent");
    for tip in ["--upload-pack=touch x", "refs/heads/main", "../../x", &"a".repeat(40)] {
        world.ended_with(tip);
        let ended = world.end();
        assert!(matches!(ended, Err(HostFault::Refused { .. } | HostFault::Unfit { .. })), "{tip}: {ended:?}");
    }
    assert!(!world.fix.repo.join(".arial/logs/a.log").exists());
    assert_eq!(text(&world.fix.git(&["for-each-ref", "--format=%(refname)"])), "refs/heads/main");
}

#[test]
fn a_command_without_a_worktree_goes_there_without_a_repository_and_its_output_comes_back() {
    let world = World::with_command();
    world.set_away(true);
    assert_eq!(world.bring(), Err(HostFault::Away { cause: "no route".into() }), "nothing was sent");
    world.set_away(false);
    world.bring().expect("it answers");
    world.start().expect("started");
    let start = last(&world.fix.root, "start");
    assert_eq!(start["work"]["command"], serde_json::json!({"argv": ["make"], "env": {"X": "1"}, "dir": "lib"}));
    assert!(start["tree"].is_null() && start["at"]["worker"] == "p.a-0a1b2c3d");
    let log = |kind: &str| fs::read_to_string(world.fix.repo.join(format!(".arial/logs/a.{kind}.log"))).ok();
    // A hostile host cannot make a result of it.
    let ended = |stdout: &str, stderr: &str| {
        let (stdout, stderr) = (stdout.to_owned(), stderr.to_owned());
        let (stream, log) = ("s".to_owned(), "l".to_owned());
        let session = Some(Session { id: "s".to_owned(), ..Session::default() });
        let left = FarResult { stdout, stderr, stream, log, session, ..FarResult::default() };
        world.answer("end", &serde_json::to_string(&FarAnswer::Ended(Box::new(left))).expect("JSON"));
        assert_eq!(world.end().expect("ended"), FarEnd::default());
    };
    ended("out\n", "err\n");
    assert_eq!((log("stdout").as_deref(), log("stderr").as_deref()), (Some("out\n"), Some("err\n")));
    ended("again\n", "");
    assert_eq!((log("stdout").as_deref(), log("stderr")), (Some("again\n"), None));
    assert_eq!(fs::read_dir(world.dir()).expect("a directory").count(), 1, "only what was sent");
    assert_eq!(world.calls(), ["reach box", "hail", "start", "end", "end"]);
}

#[test]
fn connections_end_with_their_run() {
    let world = World::new();
    world.bring().expect("sent");
    block(world.reach.release("another"));
    world.bring().expect("over the same connection");
    block(world.reach.release(&world.now.plan.id));
    // A task that outlives its run opens no other one, and leaves on record what it could not tell.
    assert_eq!(world.hail(), Err(HostFault::Away { cause: "the run is over".into() }));
    block(world.reach.forget(&world.now, "box", &world.fix.caller));
    assert_eq!(owed::of_host(&world.reach.paths, "box").len(), 1);
    // The program writes that after its input has ended.
    while world.calls().last().is_none_or(|last| last != "end") {
        std::thread::yield_now();
    }
    assert_eq!(world.calls().iter().filter(|call| *call == "reach box").count(), 1);
    world.reach.admit(&world.now.plan.id);
    world.hail().expect("it answers");
    assert!(owed::of_host(&world.reach.paths, "box").is_empty());
}
