//! The registry's actor: conflicts between requests, and shared commits.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use swarm_actors::registry::{Mutation, Refused, RegistryError, RegistryHandle};
use swarm_actors::supervisor::Request;
use swarm_model::{Answer, Row, Scope, WireStatus};
use tokio::task::JoinSet;

use crate::fixture::{Rig, foreign_row, kill, parent, request};

async fn registry(rig: &Rig) -> RegistryHandle {
    let started = RegistryHandle::start(rig.world.root.clone(), rig.world.ports(), parent().await).await;
    started.expect("the registry starts")
}

fn insert(row: &Row) -> Mutation {
    Mutation::Insert(Box::new(row.clone()))
}

#[tokio::test(start_paused = true)]
async fn waiting_mutations_share_the_next_commit() {
    let rig = Arc::new(Rig::down());
    let registry = registry(&rig).await;
    let lock = File::create(rig.world.root.join("state.lock")).expect("makes the lock file");
    fs2::FileExt::lock_exclusive(&lock).expect("takes the lock");
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let (rig, registry) = (Arc::clone(&rig), registry.clone());
        tasks.spawn(async move {
            registry.mutate(insert(&foreign_row(&format!("w{number}"), None))).await.expect("commits");
            rig.world.rows().len()
        });
    }
    // Every mutation is in the mailbox before the first commit can finish.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(lock);
    let mut seen = tasks.join_all().await;
    seen.sort_unstable();
    assert!(seen[0] >= 1, "answered before it was on disk");
    assert_eq!(seen[1..], [100; 99], "the first commit had one, the second all others");
}

/// Returns how many descriptors of this process refer to a file.
fn descriptors_of(path: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("readable").flatten();
    descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)).count()
}

#[tokio::test(start_paused = true)]
async fn a_kill_does_not_wait_for_a_commit_that_waits_for_the_lock() {
    let rig = Rig::start().await;
    for name in ["a", "b", "c"] {
        rig.spawn(request(name)).await.expect("starts");
    }
    let path = rig.world.root.join("state.lock");
    let lock = File::create(&path).expect("opens the lock file");
    fs2::FileExt::lock_exclusive(&lock).expect("takes the lock");
    let first = rig.swarm().request(kill("a"));
    // The clock stands still while a thread waits for the lock, so it is moved by hand.
    while descriptors_of(&path) < 2 {
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let Request::Kill(mut all) = kill("a") else { unreachable!("a kill") };
    all.scope = Scope::All;
    let second = rig.swarm().request(Request::Kill(all));
    for _ in 0..1000 {
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert_eq!(rig.world.kernel.living(), 0, "a kill waits for the lock");
    // The rows are written as soon as the lock is free, and nobody was told otherwise.
    drop(lock);
    for mut answers in [first, second] {
        while let Some(answer) = answers.recv().await.filter(|answer| *answer != Answer::Done) {
            assert!(matches!(&answer, Answer::Worker(line) if line.done == "killed"), "{answer:?}");
        }
    }
    assert!(rig.world.rows().iter().all(|row| row.status == WireStatus::Stopped));
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_refused_because_its_commit_took_too_long_leaves_no_row() {
    let rig = Rig::start().await;
    let path = rig.world.root.join("state.lock");
    let lock = File::create(&path).expect("opens the lock file");
    fs2::FileExt::lock_exclusive(&lock).expect("takes the lock");
    let mut answers = rig.swarm().request(Request::Spawn(Box::new(request("w"))));
    while descriptors_of(&path) < 2 {
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    // The request is given up while its commit waits for the lock.
    for _ in 0..31 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    drop(lock);
    let Some(Answer::Refused(_)) = answers.recv().await else { panic!("refused") };
    rig.world.settle().await;
    assert_eq!((rig.world.rows(), rig.world.kernel.living()), (Vec::new(), 0));
    rig.spawn(request("w")).await.expect("nothing has the name");
    rig.check();
}

#[tokio::test(start_paused = true)]
async fn one_of_many_requests_gets_the_name() {
    let rig = Rig::down();
    let registry = registry(&rig).await;
    let mut tasks = JoinSet::new();
    for pid in 0..40 {
        let registry = registry.clone();
        tasks.spawn(async move { (pid, registry.mutate(insert(&foreign_row("a", Some(pid)))).await) });
    }
    let (won, lost): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().partition(|(_, answer)| answer.is_ok());
    assert_eq!(won.len(), 1);
    assert_eq!(rig.world.row("a").and_then(|row| row.pid), Some(won[0].0));
    let taken = Err(RegistryError::Refused(Refused::Exists("a".to_owned())));
    assert!(lost.iter().all(|(_, answer)| *answer == taken), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_by_another_program_is_seen_at_once() {
    let rig = Rig::down();
    let registry = registry(&rig).await;
    registry.mutate(insert(&foreign_row("ours", None))).await.expect("commits");
    rig.world.write_rows(&[foreign_row("theirs", None)]);
    assert_eq!(registry.find("ours").await.expect("reads"), None);
    assert_eq!(registry.rows().await.expect("reads").len(), 1);
    let again = registry.mutate(insert(&foreign_row("theirs", Some(9)))).await;
    assert_eq!(again, Err(RegistryError::Refused(Refused::Exists("theirs".to_owned()))));
}
