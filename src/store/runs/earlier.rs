//! Conversations of earlier attempts, and whether a new attempt may go on with them.

use swarm_agents::{Agent, Session};
use swarm_model::run::progress::Now;

use super::home::Home;
use super::order;

/// Reports whether the attempt gets a worktree with nothing of the earlier ones, because the plan names another branch now.
pub(super) fn is_in_new_place(now: &Now) -> bool {
    let (topic, begun) = (now.plan.topic_of(now.job()), &now.progress.begun);
    topic.is_some_and(|topic| begun.as_ref().is_some_and(|begun| *begun != topic))
}

/// Returns the conversation of the latest earlier attempt that has one with the same agent, and the tool use at which it
/// has stopped. There it would go on with the text that its agent was given, so it is none if the spec has changed since.
/// `digest` is that of the spec now.
pub(super) fn conversation(
    home: &Home,
    id: &str,
    (attempt, digest): (u32, &str),
    agent: &Agent,
) -> Option<(Session, Option<String>)> {
    let (dir, order, session) = (1..attempt).rev().find_map(|earlier| {
        let dir = home.attempt(id, earlier);
        let order = order::read_order(&dir).ok()?;
        let same = order.agent.kind == agent.kind && order.agent.name == agent.name;
        let session = order::read_session(&dir).filter(|_| same)?;
        Some((dir, order, session))
    })?;
    let deferred = order::deferred(&dir);
    let has_changed = order.spec.is_some_and(|earlier| earlier != digest);
    (deferred.is_none() || !has_changed).then_some((session, deferred))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    use super::order::Order;
    use super::*;

    #[test]
    fn a_conversation_that_stopped_goes_on_only_with_the_spec_that_it_was_given() {
        let root = tempfile::tempdir().expect("a directory");
        let home = Home::new(root.path());
        let agent = Agent::find("claude", &BTreeMap::default()).expect("an agent");
        let dir = home.attempt("a", 1);
        fs::create_dir_all(&dir).expect("made");
        let order = Order {
            run: "r".to_owned(),
            job: "a".to_owned(),
            attempt: 1,
            spec: Some("old".to_owned()),
            root: None,
            agent: agent.clone(),
            events: PathBuf::new(),
            log: PathBuf::new(),
            context: PathBuf::new(),
            consent: None,
            rules: Vec::new(),
            session: None,
            deferred: None,
            fresh_id: "f".to_owned(),
            hold_ms: None,
        };
        order::write_order(&dir, &serde_json::to_vec(&order).expect("is JSON")).expect("written");
        let found = |digest: &str| conversation(&home, "a", (3, digest), &agent).map(|(_, deferred)| deferred);
        assert_eq!(found("old"), None, "the agent has named none");
        order::write_session(&dir, &Session { id: "s".to_owned(), ..Session::default() }).expect("written");
        assert_eq!((found("old"), found("new")), (Some(None), Some(None)));
        order::defer(&dir, "call").expect("written");
        assert_eq!((found("old"), found("new")), (Some(Some("call".to_owned())), None));
    }
}
