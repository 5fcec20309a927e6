//! Applies an agent's signal to the flow: commits the worktree first, then changes the flow's file once.

use serde_json::{Value, json};
use swarm_actors::flow::rules::block::{Code, Refusal, Signal};
use swarm_actors::flow::rules::consent::{self, Answer, Request, Wish};
use swarm_actors::flow::rules::handoff::{self, Ended};
use swarm_actors::flow::rules::improvement::{self, RoleEnded};
use swarm_actors::flow::rules::names::edge_key;
use swarm_actors::flow::rules::operator;
use swarm_actors::flow::rules::plan::Plan;
use swarm_actors::flow::rules::state::Reason;
use swarm_actors::flow::rules::validate::OwnerRules;

use super::{Fail, Role, artifact, word};
use swarm_git::worktrees::role::{self, Committed, RoleTree};
use swarm_store::flows::feed::Kind;
use swarm_store::flows::sidecar::LeftOut;
use swarm_store::flows::store::{Open, StoreError};
use swarm_store::flows::turns;
use swarm_sys::files::sync_file_system;

pub enum Brought {
    Done,
    Refused(Refusal),
}

/// Reason why a signal was not applied.
enum Not {
    Refused(Refusal),
    Fail(Fail),
}

impl From<StoreError> for Not {
    fn from(error: StoreError) -> Self {
        Self::Fail(Fail::Store(error))
    }
}

impl Role<'_> {
    /// Applies the signal in the handoff file, or else in the agent's last message.
    pub(super) fn bring(&self, message: &str) -> Result<Brought, Fail> {
        let found = word::find(&turns::handoff(self.dir), message);
        let done = found.map_err(Not::Refused).and_then(|word| self.apply(&word.signal, &word.question));
        match done {
            Ok(()) => Ok(Brought::Done),
            Err(Not::Refused(refusal)) => Ok(Brought::Refused(refusal)),
            Err(Not::Fail(fail)) => Err(fail),
        }
    }

    fn apply(&self, signal: &Signal, question: &str) -> Result<(), Not> {
        let open = self.files.open()?;
        self.check(&open).map_err(Not::Fail)?;
        let signal = match (signal, &self.order.turn.node) {
            (Signal::Targets(targets), Some(node)) => {
                // Tried before anything is copied or committed, so that a refused signal leaves nothing behind.
                try_out(&open, node, signal, |path| self.look(&open, path)).map_err(Not::Refused)?;
                let settled = artifact::settle(&open.flow, self.worktree.as_deref(), node, targets);
                Signal::Targets(settled.map_err(Not::Refused)?)
            }
            _ => signal.clone(),
        };
        let kept = self.keep(&signal).map_err(Not::Refused)?;
        self.make_durable().map_err(Not::Fail)?;
        let handed = self.files.update(|open| {
            self.check(open).map_err(Not::Fail)?;
            let commit = kept.as_ref().map(|kept| kept.commit.as_str());
            if let Some(kept) = &kept {
                self.tell_left_out(open, &kept.left_out);
            }
            match &self.order.turn.node {
                Some(node) => self.end_node(open, node, &signal, question, commit),
                None => self.end_role(open, &signal, question).map(|()| None),
            }
        })?;
        self.note(&handed.map(|to| (Kind::Handoff, to)).into_iter().collect::<Vec<_>>());
        Ok(())
    }

    /// Makes the commit and the artifacts of the turn durable, before the flow says that they were handed over.
    fn make_durable(&self) -> Result<(), Fail> {
        let mut places = std::iter::once(self.files.dir()).chain(self.worktree.as_deref());
        Ok(places.try_for_each(sync_file_system)?)
    }

    fn look(&self, open: &Open, path: &str) -> handoff::Artifact {
        match artifact::look(&open.flow, self.worktree.as_deref(), path) {
            artifact::Found::Missing => handoff::Artifact::Missing,
            artifact::Found::Here(_) | artifact::Found::Elsewhere(_) => handoff::Artifact::File,
        }
    }

    /// Records what is in the role's worktree and not handed over.
    fn tell_left_out(&self, open: &mut Open, paths: &[String]) {
        let (role, node) = (&self.order.turn.role, &self.order.turn.node);
        let before = open.sidecar.left_out.remove(role);
        let Some(left_out) = LeftOut::of(paths.to_vec()) else { return };
        if before.as_ref() != Some(&left_out) {
            let members = [
                ("nodeId", json!(node)),
                ("role", json!(role)),
                ("paths", json!(left_out.paths)),
                ("count", json!(left_out.count)),
            ];
            open.tell("work.left_out", members);
        }
        open.sidecar.left_out.insert(role.clone(), left_out);
    }

    /// Commits the role's worktree, and returns the commit that is handed over. `None` without a worktree, or if the
    /// role only asks or waits.
    fn keep(&self, signal: &Signal) -> Result<Option<Committed>, Refusal> {
        let goes_on = matches!(signal, Signal::PromptHuman | Signal::AwaitHandoff);
        let Some(worktree) = self.worktree.as_ref().filter(|_| !goes_on) else { return Ok(None) };
        let what = self.order.turn.node.as_deref().unwrap_or("improvement");
        let subject = format!("{what}: turn {} of {}", self.order.turn.number, self.order.turn.role);
        let branch = self.branch();
        let base_repo = self.repo.as_deref().unwrap_or(&self.project);
        let tree = RoleTree { dir: worktree, base_repo, branch: &branch };
        let kept = role::commit_work(tree, &subject, &self.caller);
        kept.map(Some).map_err(|refusal| {
            let remedy = refusal.remedy.map(|remedy| format!(" ({remedy})")).unwrap_or_default();
            let message = format!("Error: {}{remedy}. Fix this, then signal again what comes next.", refusal.cause);
            Refusal::new(Code::InvalidTransition, "Changes cannot be committed", message)
        })
    }

    /// Ends the node's turn, and returns a description of the handoff, if any.
    fn end_node(
        &self,
        open: &mut Open,
        node: &str,
        signal: &Signal,
        question: &str,
        commit: Option<&str>,
    ) -> Result<Option<String>, Not> {
        self.forget_questions(open, node);
        let rules = if open.sidecar.relaxed { OwnerRules::Relaxed } else { OwnerRules::Strict };
        let look = |path: &str| self.files.look(path);
        let ended = handoff::finish(&mut open.flow, &open.graph, node, signal, look, rules).map_err(Not::Refused)?;
        let role = &self.order.turn.role;
        match &ended {
            Ended::Handed(targets) => {
                for (to, _) in targets {
                    if let Some(commit) = commit {
                        open.sidecar.commits.insert(edge_key(node, to), commit.to_owned());
                    }
                }
                open.sidecar.role(role).about = None;
                let to: Vec<String> = targets.iter().map(|(node, role)| format!("{node} ({role})")).collect();
                let targets: Vec<Value> =
                    targets.iter().map(|(node, role)| json!({"nodeId": node, "role": role})).collect();
                let members = [("fromNodeId", json!(node)), ("fromRole", json!(role)), ("targets", json!(targets))];
                open.tell("handoff.applied", members);
                return Ok(Some(format!("{node} ({role}) handed off to {}.", to.join(", "))));
            }
            Ended::Staged => {
                for target in operator::staged(&open.flow, node).unwrap_or_default() {
                    if let Some(commit) = commit {
                        open.sidecar.commits.insert(edge_key(node, &target.node), commit.to_owned());
                    }
                }
                self.asks(open, node, Reason::HandoffApproval, question);
            }
            Ended::Asked => self.asks(open, node, Reason::PromptHuman, question),
            Ended::Suspended => open.tell("handoff.awaited", [("nodeId", json!(node)), ("role", json!(role))]),
            Ended::Closed => {
                open.sidecar.role(role).about = None;
                open.tell("flow.forward_pass_closed", [("nodeId", json!(node))]);
            }
        }
        Ok(None)
    }

    /// Withdraws the role's open permission requests, because its agent has ended.
    fn forget_questions(&self, open: &mut Open, node: &str) {
        let role = &self.order.turn.role;
        open.sidecar.requests.retain(|_, asked| asked.role != *role);
        if open.flow.wait(node).is_some_and(|wait| wait.reason == Reason::Consent.word()) {
            let wish = Wish::Command { command: String::new() };
            let request = Request { node: node.to_owned(), role: role.clone(), wish };
            consent::settle(&mut open.flow, &request, Answer::AllowOnce);
        }
    }

    fn asks(&self, open: &mut Open, who: &str, reason: Reason, text: &str) {
        open.sidecar.words.insert(who.to_owned(), text.to_owned());
        let turn = &self.order.turn;
        let members = [
            ("nodeId", json!(turn.node)),
            ("role", json!(turn.role)),
            ("reason", json!(reason.word())),
            ("text", json!(text)),
        ];
        open.tell("human.awaiting_input", members);
    }

    fn end_role(&self, open: &mut Open, signal: &Signal, question: &str) -> Result<(), Not> {
        let role = &self.order.turn.role;
        let plan = improvement::mode(&open.flow).and_then(|mode| Plan::of(&open.graph, mode).ok());
        let plan = plan.ok_or(Not::Fail(Fail::Gone))?;
        let entry = plan.entry(role).ok_or(Not::Fail(Fail::Gone))?;
        let ended = improvement::finish(&mut open.flow, entry, signal, |path| self.files.look(path));
        match ended.map_err(Not::Refused)? {
            RoleEnded::Asked => self.asks(open, role, Reason::PromptHuman, question),
            RoleEnded::Done => {
                open.tell("improvement.role_done", [("role", json!(role))]);
                improvement::settle(&mut open.flow, &plan);
                if open.flow.status() == "completed" {
                    open.tell("flow.completed", []);
                }
            }
        }
        Ok(())
    }
}

/// Applies a signal to a copy of the flow.
///
/// # Errors
/// Returns the refusal that the signal would get.
pub fn try_out(
    open: &Open,
    node: &str,
    signal: &Signal,
    look: impl Fn(&str) -> handoff::Artifact,
) -> Result<Ended, Refusal> {
    let rules = if open.sidecar.relaxed { OwnerRules::Relaxed } else { OwnerRules::Strict };
    let mut flow = open.flow.clone();
    if let Some(wait) = open.flow.wait(node).filter(|wait| wait.reason == Reason::Consent.word()) {
        let wish = Wish::Command { command: String::new() };
        let request = Request { node: node.to_owned(), role: wait.role.to_owned(), wish };
        consent::settle(&mut flow, &request, Answer::AllowOnce);
    }
    handoff::finish(&mut flow, &open.graph, node, signal, look, rules)
}
