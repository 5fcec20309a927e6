//! Work of workers that an agent started: the rules of the agent's run apply to it, in the environment of a person.

use std::time::Duration;

use swarm_actors::testing::Fault;
use swarm_model::merge::queue::Item;
use swarm_model::run::plan::{Job, Plan};
use swarm_model::{
    Answer, Below, Caller, Ended, Environment, MergeOrder, MergeRequest, MergeSettings, Refusal, RunOrder, RunRequest,
    SpawnRequest,
};

use crate::fixture::{Rig, caller, clean, with_tree};
use crate::landing::landing;
use crate::run::{job, plan};

fn path(value: &str) -> Environment {
    vec![("PATH".to_owned(), value.to_owned())].into()
}

/// Returns the request as an agent in the worker `below` makes it, with a `PATH` of its own.
fn by(below: &str, mut request: SpawnRequest) -> SpawnRequest {
    request.caller.below = Some(Below::Worker(below.to_owned()));
    request.contract.environment = path("/of/the/agent");
    request
}

/// Returns a rig with the worker `lead` of a run, which a person started. The run verifies its work with `make test`.
async fn with_lead() -> Rig {
    let rig = Rig::start().await;
    let mut lead = with_tree("lead");
    lead.contract.environment = path("/of/the/person");
    rig.spawn(lead).await.expect("starts");
    rig.world.runs.verify("lead", "make test");
    rig
}

async fn items(rig: &Rig) -> Vec<Item> {
    let queues = rig.swarm().queues().await.expect("complete");
    queues.iter().flat_map(|view| view.queue.items.clone()).collect()
}

/// Ends the worker with success, and returns the item of its work.
async fn landed(rig: &Rig, name: &str) -> Item {
    rig.world.end(name, Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    let item = items(rig).await.into_iter().find(|item| item.name == name);
    item.unwrap_or_else(|| panic!("{name} is not in the queue"))
}

fn is_by_the_rules(item: &Item) -> bool {
    item.rules.verify.as_deref() == Some("make test") && item.caller.as_deref() == Some("/of/the/person")
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_of_a_run_starts_lands_as_its_run_asked() {
    let rig = with_lead().await;
    rig.spawn(by("lead", landing("first"))).await.expect("starts");
    rig.spawn(by("first", landing("second"))).await.expect("starts");
    rig.spawn(landing("other")).await.expect("starts");
    let other = landed(&rig, "other").await;
    assert_eq!((other.rules.verify, other.caller.as_deref()), (None, Some("")), "a person started it");
    assert!(is_by_the_rules(&landed(&rig, "first").await));
    // Nobody above the last one is registered any more.
    rig.world.end("lead", Ended::Code(0));
    rig.world.pass(Duration::from_secs(1)).await;
    for name in ["lead", "first"] {
        rig.clean_by(clean(name)).await.expect("cleaned");
    }
    assert!(is_by_the_rules(&landed(&rig, "second").await));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_an_agent_of_a_run_starts_cannot_choose_how_work_is_verified() {
    let rig = with_lead().await;
    rig.spawn(by("lead", with_tree("helper"))).await.expect("starts");
    let add = async |name: &str, verify: Option<&str>| {
        let settings = MergeSettings { verify: verify.map(str::to_owned), ..MergeSettings::default() };
        let names = vec![name.to_owned()];
        let order =
            MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None };
        let below = Some(Below::Worker("helper".to_owned()));
        let caller = Caller { below, environment: path("/of/the/agent"), ..caller() };
        rig.swarm().merge(MergeRequest { caller, order }).recv().await.expect("an answer")
    };
    let Answer::Refused(Refusal { cause, .. }) = add("helper", Some("true")).await else { panic!("it was added") };
    assert_eq!(cause, "worker 'helper' cannot replace 'verify'");
    let added = add("branch", None).await;
    assert!(matches!(added, Answer::Merge(_)), "{added:?}");
    assert!(is_by_the_rules(&items(&rig).await[0]));
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_outside_of_runs_starts_lands_in_the_environment_of_a_person() {
    let rig = Rig::start().await;
    let mut lead = with_tree("lead");
    lead.contract.environment = path("/of/the/person");
    rig.spawn(lead).await.expect("starts");
    rig.spawn(by("lead", landing("helper"))).await.expect("starts");
    let item = landed(&rig, "helper").await;
    assert_eq!((item.rules.verify, item.caller.as_deref()), (None, Some("/of/the/person")));
}

#[tokio::test(start_paused = true)]
async fn an_agent_cannot_begin_a_run_that_replaces_the_rules_of_an_earlier_run_or_of_its_own() {
    let rig = with_lead().await;
    rig.world.runs.verify("arial/earlier", "make test");
    let ask = async |id: &str, verify: Option<&str>, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(vec![Job { verify: verify.map(str::to_owned), ..job(id) }]);
        change(&mut plan);
        let caller = Caller { below: Some(Below::Worker("lead".to_owned())), ..caller() };
        let order = RunOrder::Begin { plan: Box::new(plan), retry_failed: false };
        match rig.swarm().run(RunRequest { caller, order }).recv().await.expect("an answer") {
            Answer::Refused(refusal) => refusal.cause,
            answer => panic!("{id} was begun: {answer:?}"),
        }
    };
    let of = |what: &str| format!("worker 'lead' cannot replace {what} of its run");
    let same = |_: &mut Plan| {};
    assert_eq!(ask("earlier", Some("true"), &same).await, of("'verify'"));
    assert_eq!(ask("earlier", None, &same).await, of("'verify'"), "swarm.toml decides then");
    let other_base = |plan: &mut Plan| plan.base = Some("release".to_owned());
    assert_eq!(ask("earlier", Some("make test"), &other_base).await, of("the base"));
    assert_eq!(ask("new", Some("true"), &same).await, of("'verify'"), "the run to which it belongs");
    rig.world.script.at("run.agreed", Fault::Error("damaged"));
    let unknown = "it is unknown how the earlier run verifies its work: damaged";
    assert_eq!(ask("earlier", Some("make test"), &same).await, unknown);
    let plan = plan(vec![Job { verify: Some("make test".to_owned()), ..job("earlier") }]);
    let caller = Caller { below: Some(Below::Worker("lead".to_owned())), ..caller() };
    let order = RunOrder::Begin { plan: Box::new(plan), retry_failed: false };
    let begun = rig.swarm().run(RunRequest { caller, order }).recv().await;
    assert!(matches!(begun, Some(Answer::Run(_))), "{begun:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_run_of_an_agent_cannot_replace_the_rules_of_the_configuration() {
    let rig = Rig::start().await;
    let mut lead = with_tree("lead");
    lead.contract.environment = path("/of/the/person");
    rig.spawn(lead).await.expect("starts");
    let rules = MergeSettings { verify: Some("make test".to_owned()), ..MergeSettings::default() };
    rig.world.landings.configure(rules);
    let ask = async |id: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan(vec![Job { verify: None, ..job(id) }]);
        change(&mut plan);
        let below = Some(Below::Worker("lead".to_owned()));
        let caller = Caller { below, environment: path("/of/the/agent"), ..caller() };
        let order = RunOrder::Begin { plan: Box::new(plan), retry_failed: false };
        rig.swarm().run(RunRequest { caller, order }).recv().await.expect("an answer")
    };
    let refused = async |id: &str, change: &dyn Fn(&mut Plan)| match ask(id, change).await {
        Answer::Refused(refusal) => refusal.cause,
        answer => panic!("{id} was begun: {answer:?}"),
    };
    let cause = "worker 'lead' cannot replace 'verify' of swarm.toml";
    assert_eq!(refused("one", &|plan: &mut Plan| plan.jobs[0].verify = Some("true".to_owned())).await, cause);
    assert_eq!(refused("one", &|plan: &mut Plan| plan.rules.merge.verify = Some(String::new())).await, cause);
    rig.world.script.at("rules_of", Fault::Error("damaged"));
    assert_eq!(refused("one", &|_: &mut Plan| {}).await, "damaged");
    let same = ask("one", &|plan: &mut Plan| plan.jobs[0].verify = Some("make test".to_owned())).await;
    assert!(matches!(same, Answer::Run(_)), "{same:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_lands_for_a_process_of_which_nobody_knows_whose_it_is() {
    let rig = Rig::start().await;
    rig.spawn(with_tree("work")).await.expect("starts");
    for (below, who) in [
        (Below::Command, "a command that the supervisor executes"),
        (Below::Unknown, "a process that the supervisor cannot examine"),
    ] {
        let caller = Caller { below: Some(below.clone()), environment: path("/of/the/agent"), ..caller() };
        let (names, settings) = (vec!["branch".to_owned()], MergeSettings::default());
        let order =
            MergeOrder::Add { names, base: None, priority: 0, settings, uncommitted: Vec::new(), generation: None };
        let request = MergeRequest { caller: caller.clone(), order };
        let Some(Answer::Refused(refusal)) = rig.swarm().merge(request).recv().await else { panic!("{who} added") };
        assert_eq!(refusal.cause, format!("{who} cannot add work to a merge queue"));
        let order = RunOrder::Begin { plan: Box::new(plan(vec![job("one")])), retry_failed: false };
        let answer = rig.swarm().run(RunRequest { caller: caller.clone(), order }).recv().await;
        let Some(Answer::Refused(refusal)) = answer else { panic!("{who} began a run") };
        assert_eq!(refusal.cause, format!("{who} cannot begin a run"));
        let mut spawn = landing("started");
        spawn.caller.below = Some(below);
        let refusal = rig.spawn(spawn).await.expect_err("its work would land");
        assert_eq!(refusal.cause, format!("{who} cannot start a worker whose work lands"));
    }
    assert!(items(&rig).await.is_empty());
}
