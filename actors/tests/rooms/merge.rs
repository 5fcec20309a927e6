//! The merge actor: the journal comes first, and nothing is lost or landed twice, whatever is
//! interrupted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use swarm_actors::merge::{Ask, Asked, MergeArguments, MergeError, MergeHandle, MergeReport, Places, Step};
use swarm_actors::testing::{FakeClock, FakeLandings, Fault, Script};
use swarm_model::Target;
use swarm_model::merge::queue::{Addition, Item, Rules, State};
use swarm_ports::BoxFuture;

use crate::fixture::parent;

struct Bench {
    script: Arc<Script>,
    landings: Arc<FakeLandings>,
    told: Arc<Mutex<Vec<MergeReport>>>,
    clock: Arc<FakeClock>,
    queue: MergeHandle,
}

impl Bench {
    async fn start() -> Self {
        let script = Arc::<Script>::default();
        let landings = Arc::new(FakeLandings::new(Arc::clone(&script)));
        let told = Arc::<Mutex<Vec<MergeReport>>>::default();
        let clock = Arc::<FakeClock>::default();
        let queue = open(&landings, &told, &clock).await.expect("starts");
        Self { script, landings, told, clock, queue }
    }

    /// Kills the actor, whatever it is doing, and starts it again.
    async fn crash(&mut self) {
        self.queue.cell().kill_and_wait(None).await.expect("can be killed");
        // Callers that need to know have asked.
        let _ = self.script.forget_faults();
        self.queue = open(&self.landings, &self.told, &self.clock).await.expect("starts again");
    }

    async fn add(&self, name: &str) -> Result<u64, MergeError> {
        let rules = Some(Rules { verify: Some("check".to_owned()), ..Rules::default() });
        let (name, tip) = (name.to_owned(), format!("tip of {name}"));
        let ask = Ask::Add(vec![Addition { name, tip, rules, ..Addition::default() }]);
        self.queue.ask(ask).await.map(|ids| ids[0])
    }

    async fn items(&self) -> Vec<Item> {
        self.queue.look().await.expect("answers").queue.items
    }

    /// Lets everything happen that can, in virtual time.
    async fn settle(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(10), std::future::pending::<()>()).await;
    }

    async fn words(&self) -> Vec<&'static str> {
        self.items().await.iter().map(|item| item.state.word()).collect()
    }

    /// Reports whether the queue last said that it needs its process.
    fn is_busy(&self) -> bool {
        let told = self.told.lock().expect("no panic");
        let busy = |told: &MergeReport| if let MergeReport::Busy(busy) = told { Some(*busy) } else { None };
        told.iter().rev().find_map(busy).unwrap_or_default()
    }

    fn settled(&self) -> Vec<String> {
        let told = self.told.lock().expect("no panic");
        let line = |told: &MergeReport| match told {
            MergeReport::Settled(item) => Some(format!("{} {}", item.name, item.state.word())),
            MergeReport::Busy(_) | MergeReport::Begun(..) | MergeReport::Paused(_) => None,
        };
        told.iter().filter_map(line).collect()
    }

    /// Returns the reported steps, each with its items.
    fn begun(&self) -> Vec<(Step, Vec<String>)> {
        let told = self.told.lock().expect("no panic");
        let line = |told: &MergeReport| match told {
            MergeReport::Begun(step, items) => {
                Some((step.clone(), items.iter().map(|item| item.name.clone()).collect()))
            }
            MergeReport::Busy(_) | MergeReport::Settled(_) | MergeReport::Paused(_) => None,
        };
        told.iter().filter_map(line).collect()
    }
}

/// No item is of a run.
struct Unlimited;

impl Places for Unlimited {
    fn ask<'a>(&'a self, _: &'a Item) -> BoxFuture<'a, Option<Asked>> {
        Box::pin(std::future::ready(None))
    }
}

async fn open(
    landings: &Arc<FakeLandings>,
    told: &Arc<Mutex<Vec<MergeReport>>>,
    clock: &Arc<FakeClock>,
) -> Result<MergeHandle, ractor::SpawnErr> {
    let told = Arc::clone(told);
    let arguments = MergeArguments {
        target: Target { repository: "/r/.git".to_owned(), branch: "refs/heads/main".to_owned() },
        landings: Arc::<FakeLandings>::clone(landings),
        clock: Arc::<FakeClock>::clone(clock),
        places: Arc::new(Unlimited),
        tell: Arc::new(move |one| told.lock().expect("no panic").push(one)),
    };
    MergeHandle::start(arguments, parent().await).await
}

#[tokio::test(start_paused = true)]
async fn items_that_are_added_together_are_journaled_and_built_together() {
    let bench = Bench::start().await;
    let addition = |name: &str| {
        let (tip, key) = (format!("tip of {name}"), Some(name.to_owned()));
        Addition { name: name.to_owned(), tip, key, ..Addition::default() }
    };
    let add = |names: &[&str]| bench.queue.ask(Ask::Add(names.iter().map(|name| addition(name)).collect()));
    assert_eq!(add(&["a", "b", "c"]).await, Ok(vec![0, 1, 2]));
    bench.settle().await;
    assert_eq!(bench.landings.base(), [0, 1, 2]);
    // When they were added, before they landed, and when they had landed.
    assert_eq!((bench.script.count("save queue"), bench.script.count("read_base base")), (3, 1));
    assert_eq!(add(&["b", "d", "a", "e"]).await, Ok(vec![1, 3, 0, 4]), "those with a known key are there already");
    bench.settle().await;
    assert_eq!(bench.landings.base(), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn work_lands_in_the_order_in_which_it_was_finished() {
    let bench = Bench::start().await;
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(bench.add(name).await, Ok(u64::try_from(number).expect("small")));
    }
    bench.settle().await;
    assert_eq!(bench.landings.base(), [0, 1, 2]);
    assert_eq!(bench.settled(), ["a landed", "b landed", "c landed"]);
    let told = bench.told.lock().expect("no panic");
    assert_eq!((told.first(), told.last()), (Some(&MergeReport::Busy(true)), Some(&MergeReport::Busy(false))));
    drop(told);
    let position = |call| bench.script.position(call).expect("was called");
    assert!(position("save queue") < position("read_base base") && position("verify a") < position("land 0"));
}

#[tokio::test(start_paused = true)]
async fn each_step_is_reported_with_its_items() {
    let bench = Bench::start().await;
    bench.landings.make_bad(1);
    bench.landings.make_conflicting(2);
    bench.queue.ask(Ask::Pause).await.expect("pauses");
    let batch = Rules {
        verify: Some("check".to_owned()),
        resolver: Some("resolve".to_owned()),
        resolver_tries: 1,
        batch: 2,
        ..Rules::default()
    };
    for name in ["a", "b", "c"] {
        let (name, tip, rules) = (name.to_owned(), format!("tip of {name}"), Some(batch.clone()));
        bench.queue.ask(Ask::Add(vec![Addition { name, tip, rules, ..Addition::default() }])).await.expect("is taken");
    }
    bench.queue.ask(Ask::Resume).await.expect("goes on");
    bench.settle().await;
    let verifying = |commit: &str| Step::Verifying { commit: commit.to_owned() };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let is_long = |step: &Step| matches!(step, Step::Verifying { .. } | Step::Resolving { .. });
    let begun: Vec<_> = bench.begun().into_iter().filter(|(step, _)| is_long(step)).collect();
    // Both together, then the base, then one half, then the bad one for the second time.
    assert_eq!(
        begun[..4],
        [
            (verifying("0+1"), names(&["a", "b"])),
            (verifying(""), names(&["a", "b"])),
            (verifying("0"), names(&["a"])),
            (verifying("0+1"), names(&["a", "b"])),
        ]
    );
    let resolving = Step::Resolving { files: vec!["f".to_owned()] };
    assert_eq!(begun[4..], [(resolving, names(&["c"])), (verifying("0+2"), names(&["c"]))]);
}

#[tokio::test(start_paused = true)]
async fn what_happens_in_a_queue_is_reported_as_it_begins() {
    let bench = Bench::start().await;
    bench.queue.ask(Ask::Pause).await.expect("pauses");
    bench.queue.ask(Ask::Pause).await.expect("is paused");
    bench.add("a").await.expect("is taken");
    bench.queue.ask(Ask::Resume).await.expect("goes on");
    bench.settle().await;
    let told = bench.told.lock().expect("no panic").clone();
    let word = |told: &MergeReport| match told {
        MergeReport::Busy(_) => None,
        MergeReport::Paused(is_paused) => Some(if *is_paused { "paused" } else { "resumed" }),
        MergeReport::Begun(Step::Building, _) => Some("building"),
        MergeReport::Begun(Step::Landing { .. }, _) => Some("landing"),
        MergeReport::Begun(Step::Verifying { .. }, _) => Some("verifying"),
        MergeReport::Begun(Step::Resolving { .. }, _) => Some("resolving"),
        MergeReport::Settled(_) => Some("settled"),
    };
    let words: Vec<&str> = told.iter().filter_map(word).collect();
    assert_eq!(words, ["paused", "resumed", "building", "verifying", "landing", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_item_and_a_conflict_block_nothing_else() {
    let bench = Bench::start().await;
    bench.landings.make_bad(0);
    bench.landings.make_conflicting(1);
    for name in ["bad", "conflict", "good"] {
        bench.add(name).await.expect("is taken");
    }
    bench.settle().await;
    assert_eq!(bench.words().await, ["rejected", "conflict", "landed"]);
    assert_eq!(bench.landings.base(), [2]);
    assert_eq!(bench.items().await[0].state, State::Rejected { reason: "exit code 1".to_owned() });
}

#[tokio::test(start_paused = true)]
async fn each_item_lands_once_whatever_step_is_killed() {
    for step in ["read_base", "build", "verify", "land", "land.after", "save", "save.after"] {
        for nth in 0.. {
            let mut bench = Bench::start().await;
            bench.queue.ask(Ask::Pause).await.expect("pauses");
            bench.landings.make_bad(1);
            for name in ["a", "b", "c"] {
                bench.add(name).await.expect("is taken");
            }
            // The earlier calls of this step pass, the last one never returns.
            (0..nth).for_each(|_| bench.script.at(step, Fault::Run(Box::new(|| {}))));
            bench.script.at(step, Fault::Hang);
            let queue = bench.queue.clone();
            let resumed = tokio::spawn(async move { queue.ask(Ask::Resume).await });
            bench.settle().await;
            resumed.abort();
            let reached = bench.script.unmet().is_empty();
            bench.crash().await;
            // The request itself may have been interrupted.
            bench.queue.ask(Ask::Resume).await.expect("goes on");
            bench.settle().await;
            assert_eq!(bench.landings.base(), [0, 2], "{step} {nth}");
            assert_eq!(bench.words().await, ["landed", "rejected", "landed"], "{step} {nth}");
            if !reached {
                assert!(nth >= 2, "{step} was reached {nth} times only");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_journaled_did_not_happen() {
    let bench = Bench::start().await;
    bench.script.at("save", Fault::Error("no space left"));
    let refused = bench.add("a").await;
    assert_eq!(refused, Err(MergeError::Journal("no space left".to_owned())));
    bench.settle().await;
    assert_eq!((bench.items().await.len(), bench.landings.base().len()), (0, 0));
    assert_eq!(bench.script.position("read_base base"), None);

    // A result of git waits for the disk and is not lost.
    let script = Arc::clone(&bench.script);
    let full = move || (0..3).for_each(|_| script.at("save", Fault::Error("no space left")));
    bench.script.at("build", Fault::Run(Box::new(full)));
    bench.add("a").await.expect("is taken");
    bench.settle().await;
    assert_eq!(bench.landings.base(), [0]);
    assert_eq!(bench.script.unmet(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_queue_reports_why_it_cannot_write_its_journal() {
    let bench = Bench::start().await;
    let stuck = async || bench.queue.look().await.expect("answers").stuck;
    bench.queue.ask(Ask::Pause).await.expect("pauses");
    bench.add("a").await.expect("is taken");
    (0..3).for_each(|_| bench.script.at("save", Fault::Error("no space left")));
    bench.queue.ask(Ask::Resume).await.expect_err("it is not durable");
    assert_eq!(stuck().await.as_deref(), Some("no space left"));
    bench.settle().await;
    assert_eq!((stuck().await, bench.script.unmet().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_moved_base_is_built_upon_again() {
    let bench = Bench::start().await;
    let landings = Arc::clone(&bench.landings);
    bench.script.at("land", Fault::Run(Box::new(move || landings.commit(100))));
    bench.add("a").await.expect("is taken");
    bench.settle().await;
    assert_eq!(bench.landings.base(), [100, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_lands_nothing_until_it_is_resumed() {
    let mut bench = Bench::start().await;
    bench.queue.ask(Ask::Pause).await.expect("pauses");
    bench.add("a").await.expect("is taken");
    bench.settle().await;
    bench.crash().await;
    bench.settle().await;
    assert_eq!((bench.words().await, bench.landings.base()), (vec!["queued"], Vec::new()));
    bench.queue.ask(Ask::Resume).await.expect("goes on");
    bench.settle().await;
    assert_eq!(bench.landings.base(), [0]);
}

#[tokio::test(start_paused = true)]
async fn an_impossible_request_is_refused_and_changes_nothing() {
    let bench = Bench::start().await;
    bench.landings.make_bad(1);
    for name in ["a", "b"] {
        bench.add(name).await.expect("is taken");
    }
    bench.settle().await;
    let before = bench.items().await;
    assert_eq!(bench.queue.ask(Ask::Drop(7)).await, Err(MergeError::Unknown(7)));
    assert_eq!(bench.queue.ask(Ask::Drop(0)).await, Err(MergeError::State(0, "landed", "dropped")));
    assert_eq!(
        bench.queue.ask(Ask::Retry { item: 0, caller: None, accepts: true }).await,
        Err(MergeError::State(0, "landed", "retried"))
    );
    assert_eq!(bench.items().await, before);
    bench.queue.ask(Ask::Drop(1)).await.expect("a rejected one may go");
    assert_eq!(bench.words().await, ["landed", "dropped"]);
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_starts_nothing() {
    let bench = Bench::start().await;
    bench.script.at("load", Fault::Error("torn"));
    let error = open(&bench.landings, &bench.told, &bench.clock).await.expect_err("does not start");
    assert!(error.to_string().contains("cannot read the journal of the merge queue: torn"), "{error}");
    assert_eq!(bench.script.position("save queue"), None);
}

#[tokio::test(start_paused = true)]
async fn an_item_continues_by_itself_when_the_edits_are_gone() {
    for is_down in [false, true] {
        let mut bench = Bench::start().await;
        bench.landings.edit(true);
        bench.add("a").await.expect("is taken");
        bench.settle().await;
        assert_eq!(bench.words().await, ["waiting"]);
        assert!(bench.is_busy(), "it must not leave");
        if is_down {
            bench.queue.cell().kill_and_wait(None).await.expect("can be killed");
        }
        bench.landings.edit(false);
        if is_down {
            bench.crash().await;
        }
        bench.settle().await;
        assert_eq!((bench.words().await, bench.landings.base()), (vec!["landed"], vec![0]));
        assert!(!bench.is_busy());
    }
}

#[tokio::test(start_paused = true)]
async fn an_obstacle_is_watched_again_after_an_error() {
    let bench = Bench::start().await;
    bench.landings.edit(true);
    (0..3).for_each(|_| bench.script.at("cleared", Fault::Error("no watches left")));
    bench.add("a").await.expect("is taken");
    bench.settle().await;
    assert_eq!((bench.words().await, bench.script.unmet().len()), (vec!["waiting"], 0));
    bench.landings.edit(false);
    bench.settle().await;
    assert_eq!(bench.words().await, ["landed"]);
}

#[tokio::test(start_paused = true)]
async fn each_of_many_obstacles_is_watched() {
    const COUNT: u64 = 40;
    let bench = Bench::start().await;
    (0..COUNT).for_each(|item| bench.landings.edit_of(item, true));
    for item in 0..COUNT {
        bench.add(&format!("w{item}")).await.expect("is taken");
    }
    bench.settle().await;
    assert_eq!(bench.words().await, ["waiting"; COUNT as usize]);
    for item in [COUNT - 1, 0, COUNT / 2] {
        bench.landings.edit_of(item, false);
        // Three turns cover all of them.
        for _ in 0..20 {
            bench.settle().await;
        }
        assert_eq!(bench.landings.base().last(), Some(&item));
    }
    assert_eq!(bench.landings.base().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_ends_while_the_journal_is_written_is_noticed() {
    let bench = Bench::start().await;
    let overtake = |item: u64, slow: bool| {
        let (landings, script, clock) =
            (Arc::clone(&bench.landings), Arc::clone(&bench.script), Arc::clone(&bench.clock));
        Fault::Run(Box::new(move || {
            landings.commit(item);
            if slow {
                script.at("save", Fault::Run(Box::new(move || clock.jump_wall_ms(60_000))));
            }
        }))
    };
    // The second candidate that is overtaken is followed by a pause.
    bench.script.at("land", overtake(100, false));
    bench.script.at("land", overtake(101, true));
    bench.add("a").await.expect("is taken");
    bench.settle().await;
    assert_eq!((bench.words().await, bench.landings.base()), (vec!["landed"], vec![100, 101, 0]));
    assert_eq!(bench.script.unmet(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn items_continue_by_themselves_when_a_failing_base_moves() {
    let bench = Bench::start().await;
    bench.landings.commit(100);
    bench.landings.make_bad(100);
    for name in ["a", "b"] {
        bench.add(name).await.expect("is taken");
    }
    bench.settle().await;
    assert_eq!(bench.words().await, ["waiting"; 2]);
    assert_eq!(bench.settled(), ["a waiting", "b waiting"]);
    // The base is verified twice for all, in a fresh directory.
    assert_eq!(bench.script.count("fresh 100"), 2);
    bench.landings.make_good(100);
    bench.landings.commit(101);
    bench.settle().await;
    assert_eq!(bench.landings.base(), [100, 101, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_resolver_that_meets_a_limit_is_started_again_later() {
    let mut bench = Bench::start().await;
    bench.landings.make_conflicting(0);
    (0..3).for_each(|_| bench.script.at("resolve", Fault::Error("limit")));
    let rules = Rules { resolver: Some("resolve".to_owned()), resolver_tries: 1, ..Rules::default() };
    let (name, tip, rules) = ("a".to_owned(), "tip of a".to_owned(), Some(rules));
    bench.queue.ask(Ask::Add(vec![Addition { name, tip, rules, ..Addition::default() }])).await.expect("is taken");
    bench.settle().await;
    assert_eq!(bench.words().await, ["queued"]);
    assert!(bench.is_busy(), "it must not leave");
    // The time of the next try is journaled.
    bench.queue.cell().kill_and_wait(None).await.expect("can be killed");
    bench.queue = open(&bench.landings, &bench.told, &bench.clock).await.expect("starts again");
    let _ = tokio::time::timeout(Duration::from_secs(6 * 60), std::future::pending::<()>()).await;
    assert_eq!(bench.script.count("resolve a"), 3, "after one, two and four minutes");
    let _ = tokio::time::timeout(Duration::from_secs(2 * 60), std::future::pending::<()>()).await;
    assert_eq!((bench.words().await, bench.items().await[0].resolved), (vec!["landed"], 1));
}
