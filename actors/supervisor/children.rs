//! Children of one kind: their handles by key, and their keys by actor.

use std::collections::BTreeMap;

use ractor::{ActorCell, ActorId, SpawnErr};

use super::machine::Child;
use swarm_model::{Refusal, RefusalKind};

/// The children of one kind.
pub struct Children<Key, Handle> {
    child: fn(Key) -> Child,
    cell: fn(&Handle) -> ActorCell,
    handles: BTreeMap<Key, Handle>,
    keys: BTreeMap<ActorId, Key>,
}

impl<Key: Clone + Ord, Handle: Clone> Children<Key, Handle> {
    pub fn new(child: fn(Key) -> Child, cell: fn(&Handle) -> ActorCell) -> Self {
        Self { child, cell, handles: BTreeMap::new(), keys: BTreeMap::new() }
    }

    pub fn get(&self, key: &Key) -> Option<&Handle> {
        self.handles.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.handles.keys()
    }

    /// Reports whether an actor runs under this key, or is just leaving.
    pub fn has_actor(&self, key: &Key) -> bool {
        self.handles.contains_key(key) || self.keys.values().any(|of| of == key)
    }

    pub fn all(&self) -> impl Iterator<Item = &Handle> {
        self.handles.values()
    }

    /// Adds an actor that was started under this key.
    pub fn insert(&mut self, key: &Key, handle: Handle) -> Child {
        self.keys.insert((self.cell)(&handle).get_id(), key.clone());
        self.handles.insert(key.clone(), handle);
        (self.child)(key.clone())
    }

    /// Forgets the handle of a child that is leaving. Its failure is still noticed.
    pub fn remove(&mut self, key: &Key) {
        self.handles.remove(key);
    }

    /// Removes all of them.
    pub fn take(&mut self) -> Vec<Handle> {
        self.keys.clear();
        std::mem::take(&mut self.handles).into_values().collect()
    }

    /// Forgets an actor that failed, and returns which child it was. The key is free for its
    /// successor; `None` if it has one already.
    pub fn failed(&mut self, actor: ActorId) -> Option<Child> {
        let key = self.keys.remove(&actor)?;
        if self.handles.get(&key).is_some_and(|handle| (self.cell)(handle).get_id() != actor) {
            return None;
        }
        self.handles.remove(&key);
        Some((self.child)(key))
    }

    /// Forgets an actor that has left. Returns whether it was one of these children.
    pub fn left(&mut self, actor: ActorId) -> bool {
        self.keys.remove(&actor).is_some()
    }
}

/// Returns the refusal for an actor that could not be started. `kind` applies if the actor itself
/// refused to start; the cause is then its own message, without the text that the runtime adds.
pub fn not_started(error: SpawnErr, kind: RefusalKind) -> Refusal {
    match error {
        SpawnErr::StartupFailed(cause) => Refusal::new(kind, cause.to_string()),
        error => Refusal::new(RefusalKind::Internal, error.to_string()),
    }
}
