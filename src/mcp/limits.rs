//! Limits for agents that start agents: settings of a user are seen by the workers too, so that each of them could start
//! as many again.

use std::collections::BTreeSet;

use serde_json::Value;
use swarm_model::json::Members as _;

use super::show::has_ended;

/// Limits for starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of workers above a worker.
    pub depth: u64,
    /// Maximum number of workers that one client has started and that have not ended.
    pub children: usize,
}

/// On whose behalf a worker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starter {
    /// A client outside of workers, with the names that it has started.
    Client(BTreeSet<String>),
    /// A worker. Its depth is `None` if that is unknown.
    Worker { name: String, depth: Option<u64> },
}

/// Checks that one more worker may be started beside those that `ls --json` lists.
///
/// # Errors
/// Returns a sentence that names the limit.
pub fn check(limits: Limits, starter: &Starter, listed: &Value) -> Result<(), String> {
    let Limits { depth: deepest, children } = limits;
    if let Starter::Worker { name, depth } = starter {
        let Some(depth) = depth else {
            return Err(format!("worker '{name}' starts no others: it is unknown how many workers are above it"));
        };
        if *depth >= deepest {
            return Err(format!(
                "worker '{name}' starts no others: its depth is {depth}, and the limit is --depth {deepest}"
            ));
        }
    }
    let is_child = |worker: &&Value| match starter {
        Starter::Client(names) => worker.text("name").is_some_and(|name| names.contains(name)),
        Starter::Worker { name, .. } => worker.text("parent") == Some(name),
    };
    let live = listed.list("workers").iter().filter(is_child).filter(|worker| !has_ended(worker)).count();
    if live < children {
        return Ok(());
    }
    let who = match starter {
        Starter::Client(_) => "this client".to_owned(),
        Starter::Worker { name, .. } => format!("worker '{name}'"),
    };
    Err(format!(
        "{who} starts no others: {live} that it has started have not ended, and the limit is --children {children}; \
         wait for one, or kill one"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: Limits = Limits { depth: 2, children: 2 };

    fn listed() -> Value {
        let row = |name: &str, parent: Option<&str>, status: &str, state: &str| json!({"name": name, "parent": parent, "status": status, "state": state});
        json!({"workers": [
            row("lead", None, "running", "running"), row("a", Some("lead"), "running", "running"),
            row("b", Some("lead"), "stopped", "backoff"), row("c", Some("lead"), "stopped", "exited"),
            row("d", Some("a"), "running", "running"), row("e", None, "running", "running"),
        ]})
    }

    fn worker(name: &str, depth: Option<u64>) -> Starter {
        Starter::Worker { name: name.to_owned(), depth }
    }

    #[test]
    fn workers_have_a_depth_and_a_number_of_children() {
        let check = |starter: &Starter| check(LIMITS, starter, &listed());
        assert_eq!(check(&worker("a", Some(1))), Ok(()));
        let two = "worker 'd' starts no others: its depth is 2, and the limit is --depth 2".to_owned();
        assert_eq!(check(&worker("d", Some(2))), Err(two));
        let unknown = check(&worker("d", None)).expect_err("unknown");
        assert!(unknown.contains("it is unknown how many"), "{unknown}");
        let many = check(&worker("lead", Some(0))).expect_err("two that have not ended");
        assert!(many.starts_with("worker 'lead' starts no others: 2 that") && many.contains("--children 2"), "{many}");
    }

    #[test]
    fn a_client_outside_of_workers_is_limited_by_what_it_has_started() {
        let client = |names: &[&str]| Starter::Client(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(check(LIMITS, &client(&["a", "c", "gone"]), &listed()), Ok(()));
        let many = check(LIMITS, &client(&["a", "e"]), &listed()).expect_err("two that have not ended");
        assert!(many.starts_with("this client starts no others: 2 that"), "{many}");
    }
}
