//! An item of a merge queue as programs read it: the shape of `merge ls --json` and of the board. It is documented in
//! docs/json.md; keys are added, never changed.

use serde_json::{Value, json};
use swarm_model::QueueView;
use swarm_model::merge::queue::{Item, Phase, State};

/// Returns the state of an item; an active item has the phase of its queue.
pub fn stage(view: &QueueView, item: &Item) -> &'static str {
    match (&item.state, &view.queue.phase) {
        (State::Active, Phase::Building { .. }) => "building",
        (State::Active, Phase::Verifying { .. }) => "verifying",
        (State::Active, Phase::Landing { .. }) => "landing",
        (state, _) => state.word(),
    }
}

pub fn item_object(view: &QueueView, item: &Item) -> Value {
    json!({
        "item": item.id,
        "name": item.name,
        "repository": view.target.repository,
        "base": view.target.base(),
        "state": stage(view, item),
        "reason": item.reason(),
        "files": item.state.files(),
        "commit": item.state.commit(),
        "tip": Some(&item.tip).filter(|tip| !tip.is_empty()),
        "priority": item.priority,
        "queued_ms": item.added_ms,
        "settled_ms": item.settled_ms.filter(|_| item.state.is_settled()),
        "verified_by": item.verified_by,
        "flaky": item.flaky,
        "resolver_tries": item.resolved,
        "replaced": item.replaced,
        "left_out": item.left_out,
    })
}

/// Returns the name of an item among those of all queues.
pub fn key_of(view: &QueueView, item: &Item) -> String {
    format!("{}:{}/{}", view.target.repository, view.target.base(), item.id)
}
