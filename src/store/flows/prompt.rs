//! Writes the prompts for the turns of roles. The facts come from the scheduler.

use std::fmt::Write as _;

use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::entry::{Entry, Side};
use swarm_actors::flow::rules::graph::{Graph, Node};
use swarm_actors::flow::rules::improvement::{self, Begun};
use swarm_actors::flow::rules::names::RoleId;
use swarm_actors::flow::rules::plan::{PlanEntry, Step};

use super::file;
use super::sidecar::{LeftOut, Sidecar};
use super::store::FlowFiles;
use swarm_sys::clock::now_iso;
use swarm_sys::quoting::command_line;

/// Maximum number of bytes of an artifact that a prompt quotes; the agent reads the rest itself.
const ARTIFACT_BYTES_MAX: u64 = 64 << 10;

/// Prompts of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Prompt for an agent that resumes its conversation.
    pub prompt: String,
    /// Complete prompt for an agent without memory of the conversation.
    pub whole: String,
    /// Received artifacts with their content.
    pub inbox: String,
    /// Answer of a person.
    pub answer: Option<String>,
}

/// The parts of a flow that prompts depend on.
pub struct Facts<'a> {
    pub files: &'a FlowFiles,
    pub flow: &'a FlowRun,
    pub graph: &'a Graph,
    pub sidecar: &'a Sidecar,
}

impl Facts<'_> {
    /// Returns the prompts for a node. `knows` says whether its role has a conversation, and `about` whether that
    /// conversation is about this node. `before` contains the artifacts received in earlier turns of the same visit.
    pub fn of_node(&self, entry: &Entry, knows: bool, about: bool, before: &str) -> Said {
        let Some(node) = self.graph.node(&entry.node) else { return Said::default() };
        let (head, contract, end) = (self.head(entry), self.contract(node), self.how_to_end(node));
        let (new, state) = (self.inbox(entry), state(entry));
        let inbox = format!("{before}{new}");
        let question = self.sidecar.words.get(&entry.node);
        let whole = match &entry.answer {
            Some(answer) => {
                let asked = question.map(|text| format!("## Your question\n\n{text}\n\n")).unwrap_or_default();
                format!("{head}{contract}{inbox}{asked}## Answer of a person\n\n{answer}\n\n{state}{end}")
            }
            None => format!("{head}{contract}{inbox}{state}{end}"),
        };
        let prompt = match &entry.answer {
            Some(answer) if about && knows => answer.clone(),
            None if !entry.by_handoff() && about && knows => {
                format!(
                    "{head}Your turn was interrupted. Continue where you stopped.\n\n{state}{}",
                    self.short_end(node)
                )
            }
            None if !entry.first_visit && knows && before.is_empty() => {
                format!("{head}{new}{state}{}", self.short_end(node))
            }
            Some(_) | None => whole.clone(),
        };
        Said { prompt, whole, inbox, answer: entry.answer.clone() }
    }

    fn head(&self, entry: &Entry) -> String {
        let name = self.flow.record_name.as_deref().or(self.graph.name.as_deref()).unwrap_or("the flow");
        let how = if entry.interrupted { "resumed" } else { "started" };
        format!("Node {} {how} at {}.\nFlow: {name}. You play the role {}.\n\n", entry.node, now_iso(), entry.role)
    }

    fn contract(&self, node: &Node) -> String {
        let mut text = String::new();
        if let Some(task) = &self.sidecar.task {
            let _ = write!(text, "## Task of the flow\n\n{task}\n\n");
        }
        if !node.work.is_empty() {
            text.push_str("## Work of this node\n\n");
            for work in &node.work {
                let _ = writeln!(text, "- {}", work.trim_end());
            }
            text.push('\n');
        }
        if !node.required_readings.is_empty() {
            let _ = write!(text, "Read first: {}\n\n", node.required_readings.join(", "));
        }
        if node.human_colab {
            text.push_str(
                "A person works with you on this node and must approve the handoff to the next one. \
                 Ask if anything is unclear.\n\n",
            );
        }
        if node.work.iter().any(|work| work.to_lowercase().contains("workflow.yaml")) {
            let file = format!("{}/workflow.yaml", self.flow.record_folder());
            let id = self.flow.id().to_string();
            let check = command_line(["swarm", "flow", "check", &file, "--flow", &id]);
            let _ = write!(text, "The workflow is {file}. After changing it, run: {check}\n\n");
        }
        text
    }

    /// Describes the received artifacts with their content, and the handoffs that were superseded.
    fn inbox(&self, entry: &Entry) -> String {
        let mut text = String::new();
        for taken in &entry.taken {
            let side = match taken.side {
                Side::Predecessor => "from predecessor",
                Side::Successor => "from successor, sent back to you",
            };
            for path in &taken.artifacts {
                let _ = write!(text, "## {path} ({} {side})\n\n{}\n\n", taken.from, self.content(path));
            }
        }
        text.push_str(&self.left_out(entry));
        for sent in &entry.superseded {
            let _ = write!(
                text,
                "Your handoff to {} was not read, because it sent work back to you first ({}). Send it again when it \
                 is correct.\n\n",
                sent.to,
                sent.artifacts.join(", ")
            );
        }
        text
    }

    /// Names what this role and those from which it takes work have not handed over.
    fn left_out(&self, entry: &Entry) -> String {
        let of = |role: &str| self.sidecar.left_out.get(&RoleId::key(role)).map(LeftOut::shown);
        let mut text = String::new();
        if let Some(paths) = of(&entry.role) {
            let _ = write!(
                text,
                "Not committed with your last handoff, because tools generate files of their kind or they are in other \
                 repositories: {paths}. Run 'git add' on those that belong to your work.\n\n"
            );
        }
        for taken in &entry.taken {
            let node = self.graph.node(&taken.from).filter(|node| RoleId::key(&node.role) != RoleId::key(&entry.role));
            if let Some(paths) = node.and_then(|node| of(&node.role)) {
                let _ = write!(
                    text,
                    "{} did not hand over these changes in its worktree, because tools generate files of their kind or \
                     they are in other repositories: {paths}. Send the work back if they belong to it.\n\n",
                    taken.from
                );
            }
        }
        text
    }

    fn content(&self, path: &str) -> String {
        match file::read_text_up_to(&self.files.root().join(path), ARTIFACT_BYTES_MAX) {
            Ok((text, true)) => text.trim_end().to_owned(),
            Ok((text, false)) => format!("{}\n\n(Truncated: read the file.)", text.trim_end()),
            Err(error) => format!("(Cannot read the file: {error})"),
        }
    }

    fn how_to_end(&self, node: &Node) -> String {
        let mut text = format!(
            "## How to end your turn\n\nWrite the artifact that you hand over as a new file below {} ($SWARM_RECORD); a \
             file that was handed over before is refused. Changes to files of the repository are committed for you and \
             passed on, except new files of kinds that tools generate (dist, node_modules, *.log, *.tmp and the like): \
             run 'git add' on those that belong to your work. Then run one of these commands, which report errors at once, and stop:\n\n",
            self.flow.record_folder()
        );
        let ahead: Vec<&str> = self.graph.successors(&node.id).collect();
        let behind: Vec<&str> = self.graph.predecessors(&node.id).collect();
        // Another agent may have chosen the names.
        let emit = |to: &str| command_line(["swarm", "flow", "emit", "--to", to, "--artifact", "FILE"]);
        for to in &ahead {
            let _ = writeln!(text, "    {}", emit(to));
        }
        for to in &behind {
            let _ = writeln!(text, "    {}      (sends work back to it, with reasons)", emit(to));
        }
        text.push_str("    swarm flow emit --ask QUESTION      (a person answers)\n");
        if !behind.is_empty() {
            text.push_str("    swarm flow emit --await      (waits for a handoff that is still to come)\n");
        }
        if ahead.is_empty() {
            text.push_str("    swarm flow emit --close      (everything is done)\n");
        }
        text.push_str(
            "\nOr end your last message with one equivalent fenced block:\n\n```handoff\ntarget_node_id: NODE\n\
             artifact_path: FILE\n```\n\nFor several targets, write a list of such entries. Signals are \
             `type: prompt-human`, `type: await-handoff` and `type: forward-pass-closed`.\n",
        );
        text
    }

    fn short_end(&self, node: &Node) -> String {
        let neighbours = self.graph.successors(&node.id).chain(self.graph.predecessors(&node.id));
        let neighbours: Vec<&str> = neighbours.collect();
        format!(
            "End your turn as before, with swarm flow emit or a handoff block. You may hand over to {}; the artifact \
             must be a new file.\n",
            neighbours.join(", ")
        )
    }

    /// Returns the prompts for a role's step of the improvement phase.
    pub fn of_role(&self, entry: &PlanEntry, begun: &Begun, knows: bool) -> Said {
        let task = self.improvement_task(entry);
        let Begun::Answered(answer) = begun else {
            let again = *begun == Begun::Again && knows;
            let prompt = if again {
                format!("Your step was interrupted. Continue where you stopped.\n\n{task}")
            } else {
                task.clone()
            };
            return Said { prompt, whole: task, ..Said::default() };
        };
        let whole = format!("{task}\n## Answer of a person to your question\n\n{answer}\n");
        let prompt = if knows { answer.clone() } else { whole.clone() };
        Said { prompt, whole, answer: Some(answer.clone()), ..Said::default() }
    }

    fn improvement_task(&self, entry: &PlanEntry) -> String {
        let name = self.flow.record_name.as_deref().or(self.graph.name.as_deref()).unwrap_or("the flow");
        let findings = self.flow.phase().and_then(|phase| phase.get("findingsProduced")?.as_object().cloned());
        let found = |role: &str| findings.as_ref().and_then(|all| all.text(role)).map(str::to_owned);
        let mut text = String::new();
        let (assigned, end) = match entry.step {
            Step::MetaAnalysis => {
                let _ = write!(
                    text,
                    "The work of flow {name} is done. Review your own part of it as {}: what went well, what cost \
                     time, what was unclear in your instructions or inputs, and what should be done differently next \
                     time. Be concrete.\n\n",
                    entry.role
                );
                (improvement::findings_path(self.flow, &entry.role), "--findings")
            }
            Step::Feedback => {
                let _ = write!(
                    text,
                    "All roles have reviewed their part of flow {name}. Combine their findings into one text for the \
                     maintainers of the workflow and the tools: what to change, most valuable changes first.\n\n"
                );
                (improvement::feedback_path(self.flow), "--feedback")
            }
        };
        let roles: Vec<String> = match entry.step {
            Step::MetaAnalysis => entry.reads.clone(),
            Step::Feedback => findings.iter().flat_map(|all| all.keys().map(str::to_owned)).collect(),
        };
        for (role, path) in roles.iter().filter_map(|role| Some((role, found(role)?))) {
            let _ = write!(text, "## {path} (findings of {role})\n\n{}\n\n", self.content(&path));
        }
        let file = self.files.root().join(&assigned);
        let emit = command_line(["swarm", "flow", "emit", end, &assigned]);
        let (kind, key) = match entry.step {
            Step::MetaAnalysis => ("meta-analysis-complete", "findings_path"),
            Step::Feedback => ("backward-pass-complete", "artifact_path"),
        };
        // The script of the `shell` agent finds the file by this line (`LOOK_BACK` in `processes/turn/word.rs`).
        let _ = write!(
            text,
            "Write it to {}, then stop with\n\n    {emit}\n\nor with this block at the \
             end of your last message:\n\n```handoff\ntype: {kind}\n{key}: {assigned}\n```\n",
            file.display()
        );
        text
    }
}

/// Lists the handoffs not yet received, sent, and not yet sent.
fn state(entry: &Entry) -> String {
    let mut text = String::new();
    for (what, nodes) in
        [("Not yet received from", &entry.not_received), ("Sent to", &entry.sent), ("Not yet sent to", &entry.not_sent)]
    {
        if !nodes.is_empty() {
            let _ = writeln!(text, "{what}: {}", nodes.join(", "));
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}
