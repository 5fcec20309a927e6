//! What a user does while a port fails, and what must be reached in the end.

use std::pin::Pin;
use std::time::Duration;

use swarm_actors::supervisor::Request;
use swarm_actors::testing::Fault;
use swarm_model::flow::Turn;
use swarm_model::run::plan::{Job, Plan, Rules};
use swarm_model::run::progress::{Mode, Verdict};
use swarm_model::{
    Caller, CleanRequest, Ended, EventKind, Every, FlowOrder, FlowPlace, FlowRequest, FlowRules, KillRequest,
    LoopOrder, LoopRequest, MergeSettings, NudgeOrder, NudgeRequest, NudgeSettings, RecoverRequest, RestartPolicy,
    RunOrder, RunRequest, Scope, SpawnRequest, TmuxPlace, WatchRules,
};
use swarm_ports::Sight;

use super::remote;
use super::stage::Stage;
use crate::fixture::{caller, clean, foreign_row, request, restarting, with_tree};
use crate::loops::{PROMPT, beginning, plan as loop_plan};

type Act = for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

pub struct Scenario {
    pub name: &'static str,
    /// Requests and ends of workers, during which the fault strikes.
    pub play: Act,
    /// What the user does after the supervisor has died and another one has adopted, without faults.
    pub finish: Act,
}

macro_rules! scenario {
    ($name:ident) => {
        Scenario {
            name: stringify!($name),
            play: |stage| Box::pin($name::play(stage)),
            finish: |stage| Box::pin($name::finish(stage)),
        }
    };
}

pub const SCENARIOS: [Scenario; 13] = [
    scenario!(workers),
    scenario!(closed),
    scenario!(restart),
    scenario!(adoption),
    scenario!(reboot),
    scenario!(foreign),
    scenario!(stuck),
    scenario!(landing),
    scenario!(run),
    scenario!(remote),
    scenario!(flow),
    scenario!(ralph),
    scenario!(nudge),
];

fn in_tmux(name: &str) -> SpawnRequest {
    let mut asked = request(name);
    asked.contract.tmux = Some(TmuxPlace { session: "s".to_owned(), ..TmuxPlace::default() });
    asked
}

/// Start, stop, start again, and removal.
mod workers {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        stage.spawn(with_tree("a")).await;
        stage.spawn(request("b")).await;
        stage.kill("a").await;
        stage.clean("a").await;
        stage.end("b", 3);
        stage.seconds(5).await;
        stage.respawn("b").await;
        // A start that fails is taken back.
        stage.rig.world.script.at("prepare", Fault::Error("no space left on device"));
        stage.spawn(with_tree("c")).await;
        let _ = stage.rig.world.script.forget_faults();
        // A removal of a running worker, and a start in place of an earlier one.
        stage.spawn(with_tree("d")).await;
        stage.replace("d").await;
        let scope = Scope::Names(vec!["d".to_owned()]);
        let Request::Kill(kill) = crate::fixture::kill("d") else { panic!("a kill") };
        stage.forget("d");
        stage.ask("kill", Request::Kill(Box::new(KillRequest { scope, rm_worktree: true, ..*kill }))).await;
        stage.spawn(with_tree("e")).await;
        stage.end("e", 1);
        stage.seconds(1).await;
        stage.replace("e").await;
        stage.end("e", 1);
        stage.seconds(1).await;
        let path = stage.rig.world.worktrees.path("e");
        if stage.rig.world.worktrees.paths().contains(&path) {
            stage.rig.world.worktrees.dirty(&path, 2);
            stage.clean("e").await;
            let is_kept = stage.rig.world.worktrees.paths().contains(&path);
            stage.violated(!is_kept, || "work was destroyed".to_owned());
            // By force, and by a name that may be forgotten.
            stage.forget("e");
            let forced = CleanRequest { force_dirty: true, ..clean("e") };
            stage.ask("clean", Request::Clean(Box::new(forced))).await;
            let trees = &stage.rig.world.worktrees;
            let is_safe = trees.paths().contains(&path) || trees.saved().contains(&path);
            stage.violated(!is_safe, || "work was removed without a save".to_owned());
        }
    }

    pub async fn finish(stage: &mut Stage) {
        stage.spawn(with_tree("f")).await;
    }
}

/// A worker whose shim died is stopped, and one whose window is closed.
mod closed {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        stage.spawn(request("a")).await;
        if stage.is_alive("a") {
            stage.rig.world.kill_shim("a");
        }
        stage.seconds(1).await;
        stage.kill("a").await;
        stage.spawn(in_tmux("w")).await;
        stage.rig.world.terminals.show("w", "$ ");
        if let Some(key) = stage.rig.world.records.newest("w") {
            stage.rig.world.processes.close_window(&key);
        }
        stage.clean("w").await;
    }

    pub async fn finish(_: &mut Stage) {}
}

/// A worker that failed starts again; one that succeeded, and one that was stopped, do not.
mod restart {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        stage.spawn(restarting("a", RestartPolicy::OnFailure)).await;
        stage.end("a", 1);
        stage.seconds(30).await;
        stage.end("a", 0);
        stage.seconds(30).await;
        stage.spawn(restarting("b", RestartPolicy::Always)).await;
        stage.kill("b").await;
    }

    pub async fn finish(stage: &mut Stage) {
        stage.end("a", 0);
        stage.seconds(60).await;
        let executed = stage.executed("a");
        let lives = stage.is_alive("a");
        stage.violated(lives || executed > 2, || format!("a succeeded, but was executed {executed} times ({lives})"));
    }
}

/// The supervisor dies; one worker goes on, one fails and one succeeds meanwhile.
mod adoption {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        stage.spawn(restarting("a", RestartPolicy::Always)).await;
        stage.spawn(with_tree("b")).await;
        stage.spawn(restarting("c", RestartPolicy::OnFailure)).await;
        // The supervisor dies in the middle of a start.
        stage.rig.world.script.at("open", Fault::Hang);
        let _answers = stage.rig.swarm().request(Request::Spawn(Box::new(request("d"))));
        stage.seconds(1).await;
        let _ = stage.rig.world.script.forget_faults();
        stage.rig.crash().await;
        stage.end("b", 3);
        stage.end("c", 0);
        stage.up().await;
        stage.seconds(30).await;
    }

    pub async fn finish(stage: &mut Stage) {
        let executed = ["a", "b", "c"].map(|name| stage.executed(name));
        stage.violated(executed.iter().any(|count| *count > 1), || format!("executed {executed:?} times"));
    }
}

/// The machine reboots, and what had run is recovered.
mod reboot {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        stage.spawn(request("plain")).await;
        stage.spawn(with_tree("tree")).await;
        stage.spawn(restarting("policy", RestartPolicy::OnFailure)).await;
        stage.rig.crash().await;
        stage.rig.world.kernel.reboot();
        ["plain", "tree", "policy"].iter().for_each(|name| stage.forget(name));
        stage.up().await;
        for name in ["plain", "tree"] {
            let asked = RecoverRequest { caller: caller(), name: name.to_owned() };
            stage.ask("recover", Request::Recover(Box::new(asked))).await;
        }
    }

    pub async fn finish(stage: &mut Stage) {
        let executed = ["plain", "tree", "policy"].map(|name| stage.executed(name));
        stage.violated(executed.iter().any(|count| *count > 2), || format!("executed {executed:?} times"));
    }
}

/// A worker of the original `swarm` is stopped and removed.
mod foreign {
    use super::*;

    pub async fn play(stage: &mut Stage) {
        let process = stage.rig.world.kernel.fork();
        stage.rig.world.write_rows(&[foreign_row("f", Some(i64::from(process.pid)))]);
        stage.seconds(1).await;
        let killed = stage.ask("kill", crate::fixture::kill("f")).await;
        let lives = stage.rig.world.kernel.is_alive(&process);
        stage.violated(killed == Some(true) && lives, || "f was killed and lives".to_owned());
        stage.ask("clean", Request::Clean(Box::new(crate::fixture::clean("f")))).await;
    }

    pub async fn finish(_: &mut Stage) {}
}

/// An agent that hangs after its dialog was answered is nudged, interrupted, started again and given up.
mod stuck {
    use super::*;

    const DIALOG: &str = include_str!("../../../../tests/data/screens/claude/permission-command.txt");
    const WORKS: &str = include_str!("../../../../tests/data/screens/claude/working-tool.txt");

    fn waiting(output: u64) -> Sight {
        Sight { waiting: Some("may it push?".to_owned()), reports: true, output, ..Sight::default() }
    }

    pub async fn play(stage: &mut Stage) {
        let mut asked = SpawnRequest { worktree: with_tree("a").worktree, ..in_tmux("a") };
        asked.contract.watch = Some(WatchRules { after_ms: 600_000, message: "go on".to_owned() });
        stage.rig.world.terminals.show("a", DIALOG);
        stage.rig.world.sessions.show("a", waiting(1));
        stage.spawn(asked).await;
        stage.rig.world.pass(Duration::from_secs(60)).await;
        // A person answers its dialog in the window.
        stage.rig.world.terminals.show("a", WORKS);
        stage.rig.world.sessions.show("a", waiting(2));
        stage.rig.world.pass(Duration::from_secs(60)).await;
        stage.rig.world.terminals.show("a", "> ");
        stage.rig.world.sessions.show("a", Sight::default());
        stage.rig.world.pass(Duration::from_secs(120 * 60)).await;
        stage.forget("a");
    }

    pub async fn finish(stage: &mut Stage) {
        let executed = stage.executed("a");
        stage.violated(executed > 4, || format!("a was executed {executed} times"));
        // The ladder stops a worker and starts it again. If that fails, only a person can start it, and is told.
        let is_told = stage.rig.world.events.of("a").iter().any(|kind| matches!(kind, EventKind::WorkerFailed { .. }));
        let lives = stage.is_alive("a");
        stage.violated(executed > 0 && !lives && !is_told, || "a was ended, and nobody was told".to_owned());
    }
}

/// Work waits for edits and lands; other work conflicts with it, and a resolver helps.
mod landing {
    use super::*;

    fn merging(name: &str) -> SpawnRequest {
        let mut asked = with_tree(name);
        asked.contract.merge = true;
        asked
    }

    async fn add(stage: &mut Stage, name: &str) {
        use swarm_model::{MergeOrder, MergeRequest};
        let settings = MergeSettings {
            verify: Some("make test".to_owned()),
            resolver: Some("resolve".to_owned()),
            ..MergeSettings::default()
        };
        let (names, uncommitted) = (vec![name.to_owned()], Vec::new());
        let order = MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted, generation: None };
        let answers = stage.rig.swarm().merge(MergeRequest { caller: caller(), order });
        stage.done("merge add", answers).await;
    }

    pub async fn play(stage: &mut Stage) {
        stage.rig.world.landings.edit(true);
        stage.spawn(merging("a")).await;
        stage.end("a", 0);
        stage.seconds(5).await;
        stage.rig.world.landings.edit(false);
        stage.seconds(5).await;
        stage.rig.world.landings.make_conflicting(1);
        add(stage, "topic").await;
        stage.seconds(60).await;
    }

    pub async fn finish(stage: &mut Stage) {
        for name in ["a", "topic"] {
            add(stage, name).await;
            stage.seconds(60).await;
        }
        let mut base = stage.rig.world.landings.base();
        let count = base.len();
        base.sort_unstable();
        base.dedup();
        stage.violated(base.len() != count || count < 2, || format!("landed {base:?} ({count})"));
    }
}

/// A run with two jobs.
mod run {
    use super::*;

    const HOME: &str = "/repo/.arial";

    fn request() -> RunRequest {
        let job = |id: &str| Job {
            id: id.to_owned(),
            merge: true,
            branch: Some(format!("arial/{id}")),
            retries: 1,
            ..Job::default()
        };
        let rules = Rules { limit: 2, ..Rules::default() };
        let plan = Plan {
            id: "r1".to_owned(),
            home: HOME.to_owned(),
            slug: "p".to_owned(),
            root: "/repo".to_owned(),
            base: Some("main".to_owned()),
            jobs: vec![job("a"), job("b")],
            rules,
            ..Plan::default()
        };
        RunRequest { caller: caller(), order: RunOrder::Begin { plan: Box::new(plan), retry_failed: true } }
    }

    async fn work(stage: &mut Stage) {
        for _ in 0..3 {
            stage.seconds(30).await;
            for name in ["p.a", "p.b"] {
                if stage.is_alive(name) {
                    stage.rig.world.end(name, Ended::Code(0));
                }
            }
        }
        stage.seconds(30).await;
    }

    pub async fn play(stage: &mut Stage) {
        let asked = request();
        let answers = stage.rig.swarm().run(asked.clone());
        stage.done("run", answers).await;
        stage.seconds(5).await;
        stage.rig.crash().await;
        if !stage.up().await {
            return;
        }
        // Like a command that lost its answer together with its supervisor.
        let again = RunRequest { caller: Caller { repeated: 1, ..asked.caller }, ..asked };
        let answers = stage.rig.swarm().run(again);
        stage.done("run", answers).await;
        work(stage).await;
    }

    pub async fn finish(stage: &mut Stage) {
        work(stage).await;
        let answers = stage.rig.swarm().run(request());
        stage.done("run", answers).await;
        work(stage).await;
        let run = stage.rig.world.runs.run(HOME);
        let base = stage.rig.world.landings.base();
        let is_done = run.mode == Mode::Over(Verdict::Completed) && base.len() == 2;
        stage.violated(!is_done, || format!("{:?}, landed {base:?}", run.mode));
    }
}

/// A flow with two waves of turns.
mod flow {
    use super::*;

    fn place() -> FlowPlace {
        FlowPlace { root: "/ws".to_owned(), project: "demo".to_owned(), flow: "20260527T143000123Z-abcdef".to_owned() }
    }

    async fn work(stage: &mut Stage) {
        for _ in 0..4 {
            let order = FlowOrder::Run(FlowRules::default());
            let answers = stage.rig.swarm().flow(FlowRequest { caller: caller(), place: place(), order });
            // The flow may be over.
            let _ = tokio::time::timeout(Duration::from_secs(60), {
                let mut answers = answers;
                async move { answers.recv().await }
            })
            .await;
            stage.seconds(90).await;
            for Turn { role, .. } in stage.rig.world.flows.at_work(&place()) {
                let name = format!("abcdef-{role}");
                if stage.is_alive(&name) {
                    stage.rig.world.end(&name, Ended::Code(0));
                }
            }
            stage.seconds(90).await;
        }
    }

    pub async fn play(stage: &mut Stage) {
        let turn = |role: &str| Turn { role: role.to_owned(), number: 1, node: Some(role.to_owned()) };
        stage.rig.world.flows.plan(&place(), vec![vec![turn("owner")], vec![turn("dev"), turn("dev_2")]]);
        work(stage).await;
    }

    pub async fn finish(stage: &mut Stage) {
        work(stage).await;
        let left = stage.rig.world.flows.at_work(&place());
        stage.violated(!left.is_empty(), || format!("turns are left: {left:?}"));
    }
}

/// A loop of two iterations.
mod ralph {
    use swarm_model::loops::progress::Plan;

    use super::*;

    async fn work(stage: &mut Stage) {
        for _ in 0..3 {
            stage.seconds(20).await;
            if stage.is_alive("w") {
                stage.rig.world.end("w", Ended::Code(0));
            }
            stage.seconds(20).await;
        }
    }

    async fn order(stage: &mut Stage, what: &str, order: LoopOrder) {
        let answers = stage.rig.swarm().ralph(LoopRequest { caller: caller(), order });
        stage.done(what, answers).await;
    }

    pub async fn play(stage: &mut Stage) {
        stage.rig.world.loops.put_prompt(PROMPT, Some("do it"));
        stage.rig.world.terminals.show("w", "$ ");
        // A loop whose first start fails leaves nothing.
        stage.rig.world.script.at("reserve", Fault::Error("no space left on device"));
        order(stage, "ralph", beginning(Plan { name: "v".to_owned(), ..loop_plan(2) })).await;
        let _ = stage.rig.world.script.forget_faults();
        order(stage, "ralph", beginning(Plan { done_pattern: Some("DONE".to_owned()), ..loop_plan(2) })).await;
        work(stage).await;
        stage.clean("w").await;
        stage.forget("w");
        order(stage, "ralph clean", LoopOrder::Clean { name: "w".to_owned() }).await;
    }

    pub async fn finish(stage: &mut Stage) {
        work(stage).await;
        let lines = stage.rig.world.loops.lines("w");
        let told = |event: &str| lines.iter().filter(|line| line.starts_with(event)).count();
        stage.violated(told("START") > 2 || told("DONE") > 1, || format!("{lines:?}"));
    }
}

/// A nudge each minute, paused, resumed and stopped.
mod nudge {
    use super::*;

    async fn order(stage: &mut Stage, what: &str, order: NudgeOrder) {
        let request = NudgeRequest { caller: caller(), worker: "w".to_owned(), order };
        let answers = stage.rig.swarm().nudge(request);
        stage.done(what, answers).await;
    }

    pub async fn play(stage: &mut Stage) {
        stage.spawn(in_tmux("w")).await;
        stage.rig.world.terminals.show("w", "$ ");
        let every = Every::Cron { expression: "*/1 * * * *".to_owned() };
        let settings = NudgeSettings { every, message: "go on".to_owned(), expire_ms: None, jitter_ms: 0 };
        order(stage, "nudge", NudgeOrder::Start { settings, force: false }).await;
        stage.seconds(190).await;
        order(stage, "pause", NudgeOrder::Pause).await;
        order(stage, "resume", NudgeOrder::Resume).await;
        stage.seconds(130).await;
        order(stage, "stop", NudgeOrder::Stop).await;
        stage.kill("w").await;
        stage.clean("w").await;
    }

    pub async fn finish(stage: &mut Stage) {
        // One beat each minute, also while a request hangs, and none after the worker has gone.
        let (typed, minutes) = (stage.rig.world.terminals.typed("w").len(), stage.elapsed_minutes());
        stage.violated(typed as u64 > minutes, || format!("typed {typed} times in {minutes} minutes"));
    }
}
