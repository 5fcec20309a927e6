//! Actor around [`machine`](super::machine): receives messages, runs blocking work on other
//! threads, and answers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use super::Listing;
use super::error::{Refused, RegistryError, StoreError};
use super::machine::{Committer, Mutation};
use super::message::RegistryMessage;
use super::reconcile;
use super::store::{self, Rebuild, Store};
use super::table::Table;
use swarm_model::Row;
use swarm_ports::Ports;

/// Time for which a change waits for others with which it can share a commit.
const PATIENCE: Duration = Duration::from_millis(10);

pub struct Registry;

pub struct RegistryArguments {
    pub root: PathBuf,
    pub ports: Ports,
}

type Reply = RpcReplyPort<Result<(), RegistryError>>;

pub struct State {
    root: PathBuf,
    store: Arc<Mutex<Store>>,
    ports: Ports,
    committer: Committer<Reply>,
}

impl Actor for Registry {
    type Msg = RegistryMessage;
    type State = State;
    type Arguments = RegistryArguments;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        arguments: RegistryArguments,
    ) -> Result<State, ActorProcessingErr> {
        let root = arguments.root.clone();
        let mut store = Store::new(root.clone());
        let store = tokio::task::spawn_blocking(move || store.recover().map(|()| store)).await??;
        let store = Arc::new(Mutex::new(store));
        // In the background, because another process may hold the lock. Files that a killed
        // commit left behind waste space but do no harm.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = Store::new(arguments.root).tidy() {
                tracing::warn!(%error, "cannot delete the temporary files of interrupted commits");
            }
        });
        Ok(State { root, store, ports: arguments.ports, committer: Committer::default() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: RegistryMessage,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            RegistryMessage::Mutate(mutation, reply) => {
                if let Some(batch) = state.committer.ask(mutation, reply) {
                    state.commit(&myself, batch);
                }
            }
            RegistryMessage::MutatePatiently(mutation, reply) => {
                if state.committer.ask_patiently(mutation, reply) {
                    myself.send_after(PATIENCE, || RegistryMessage::Due);
                }
            }
            RegistryMessage::Due => {
                if let Some(batch) = state.committer.due() {
                    state.commit(&myself, batch);
                }
            }
            RegistryMessage::Committed(result) => {
                let (replies, next) = state.committer.committed();
                answer(replies, result);
                if let Some(batch) = next {
                    state.commit(&myself, batch);
                }
            }
            RegistryMessage::Broken => return Err("a commit panicked".into()),
            RegistryMessage::ChangedByOthers(reply) => {
                // Unknown while a commit is in progress; the next request finds out.
                let changed = state.store.try_lock().is_ok_and(|mut store| store.take_changed_by_others());
                let _ = reply.send(changed);
                if changed {
                    state.note_changes();
                }
            }
            RegistryMessage::Close(reply) => state.close(reply),
            RegistryMessage::List(reply) => state.list(reply),
            RegistryMessage::Find(name, reply) => {
                let path = state.root.join("state.json");
                state.read(move |store, rebuild| find(store.read(rebuild)?.0, &name, path), reply);
            }
        }
        Ok(())
    }
}

impl State {
    fn close(&self, reply: RpcReplyPort<()>) {
        let (root, store) = (self.root.clone(), Arc::clone(&self.store));
        tokio::task::spawn_blocking(move || {
            let closed = store::lock(&root, store::CLOSE_WAIT_MAX).and_then(|guard| locked(&store).close(&guard));
            if let Err(error) = closed {
                tracing::debug!(%error, "cannot close the registry's journal");
            }
            let _ = reply.send(());
        });
    }

    fn note_changes(&self) {
        let (root, store) = (self.root.clone(), Arc::clone(&self.store));
        tokio::task::spawn_blocking(move || {
            let noted = store::lock(&root, store::LOCK_WAIT_MAX).and_then(|guard| locked(&store).note_changes(&guard));
            if let Err(error) = noted {
                // The next commit notes them.
                tracing::debug!(%error, "cannot note the changes of another program yet");
            }
        });
    }

    fn commit(&self, myself: &ActorRef<RegistryMessage>, batch: Vec<Mutation>) {
        let (root, store, rebuild, myself) =
            (self.root.clone(), Arc::clone(&self.store), self.rebuild(), myself.clone());
        tokio::task::spawn_blocking(move || {
            // A panic must fail the actor; otherwise all later mutations would wait for this commit.
            let result = catch_unwind(AssertUnwindSafe(|| commit(&root, &store, batch, &rebuild)));
            let _ = myself.cast(result.map_or(RegistryMessage::Broken, RegistryMessage::Committed));
        });
    }

    /// Answers with all rows. Rows that were rebuilt because the file is missing are written first, because commands
    /// read the file themselves.
    fn list(&self, reply: RpcReplyPort<Result<Listing, StoreError>>) {
        let (root, store, rebuild) = (self.root.clone(), Arc::clone(&self.store), self.rebuild());
        let read = self.store.try_lock().ok().map(|mut store| list(&mut store, &rebuild));
        match read {
            Some(Ok((listing, false))) => return drop(reply.send(Ok(listing))),
            Some(Err(error)) => return drop(reply.send(Err(error))),
            Some(Ok((_, true))) | None => {}
        }
        tokio::task::spawn_blocking(move || {
            let mut read = list(&mut locked(&store), &rebuild);
            if matches!(read, Ok((_, true))) {
                if let Err(error) = commit(&root, &store, Vec::new(), &rebuild) {
                    tracing::warn!(%error, "cannot write the rebuilt state.json yet");
                }
                read = list(&mut locked(&store), &rebuild);
            }
            let _ = reply.send(read.map(|(listing, _)| listing));
        });
    }

    fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store, Rebuild<'_>) -> Result<T, StoreError> + Send + 'static,
        reply: RpcReplyPort<Result<T, StoreError>>,
    ) {
        let (store, rebuild) = (Arc::clone(&self.store), self.rebuild());
        // If no commit is in progress, this usually only compares the file's metadata.
        if let Ok(mut store) = self.store.try_lock() {
            let _ = reply.send(work(&mut store, &rebuild));
            return;
        }
        tokio::task::spawn_blocking(move || {
            let _ = reply.send(work(&mut locked(&store), &rebuild));
        });
    }

    /// Returns a function that rebuilds the rows of a damaged or missing file from the records
    /// below `w/`.
    fn rebuild(&self) -> impl Fn() -> io::Result<Vec<Row>> + Send + 'static {
        let ports = self.ports.clone();
        move || {
            let rows = reconcile::rebuild(&ports.records.scan_now()?.complete()?, &ports.clock.host());
            if !rows.is_empty() {
                tracing::warn!(rows = rows.len(), "state.json is damaged or missing; using the workers' records");
            }
            Ok(rows)
        }
    }
}

/// Commits while it holds the lock of the file. The lock is acquired before the store is: another program may hold it
/// for long, and requests that only read do not wait for that.
fn commit(
    root: &Path,
    store: &Mutex<Store>,
    batch: Vec<Mutation>,
    rebuild: Rebuild<'_>,
) -> Result<Vec<Result<(), Refused>>, StoreError> {
    let guard = store::lock(root, store::LOCK_WAIT_MAX)?;
    locked(store).commit_under(&guard, batch, rebuild)
}

/// Returns the row of a name, or `None` if there is none. A row that cannot be read is not taken for none.
fn find(table: &Table, name: &str, path: PathBuf) -> Result<Option<Arc<Row>>, StoreError> {
    match (table.find(name), table.damage(name)) {
        (Some(row), _) => Ok(Some(Arc::clone(row))),
        (None, Some(error)) => Err(StoreError::Row { name: name.to_owned(), path, cause: error.to_string() }),
        (None, None) => Ok(None),
    }
}

/// Returns all rows, and whether they were rebuilt because the file is missing.
fn list(store: &mut Store, rebuild: Rebuild<'_>) -> Result<(Listing, bool), StoreError> {
    let damaged = store.read(rebuild)?.1.is_some();
    let missing = damaged && store.is_missing();
    let (table, _) = store.read(rebuild)?;
    let rows = Arc::new(table.entries.iter().filter_map(|entry| entry.row.clone().ok()).collect());
    Ok((Listing { rows, unjudged: table.unjudged() }, missing))
}

fn answer(replies: Vec<Reply>, result: Result<Vec<Result<(), Refused>>, StoreError>) {
    match result {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                let _ = reply.send(answer.map_err(RegistryError::from));
            }
        }
        Err(error) => {
            for reply in replies {
                let _ = reply.send(Err(error.clone().into()));
            }
        }
    }
}

/// Locks the store even if the mutex is poisoned. A thread that panics under the lock leaves the
/// cache in the state before or after a whole step, so the store stays usable.
fn locked(store: &Mutex<Store>) -> std::sync::MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}
