//! `swarm flow emit`: records what an agent wants to happen at the end of its turn. The request is checked against
//! the current flow, so that the agent learns of mistakes at once.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_actors::flow::rules::block::{Refusal, Signal, interpret};
use swarm_actors::flow::rules::handoff::Artifact;
use swarm_actors::flow::rules::improvement;
use swarm_actors::flow::rules::names::FlowRef;
use swarm_actors::flow::rules::plan::Plan;
use swarm_model::RefusalKind;
use swarm_model::flow::Turn;

use super::args::EmitArgs;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::processes::turn::artifact::{self, Found};
use crate::processes::turn::bring::try_out;
use crate::processes::turn::word::QUESTION_BYTES_MAX;
use swarm_store::flows::advance::is_open;
use swarm_store::flows::place::Workspace;
use swarm_store::flows::replace;
use swarm_store::flows::store::{FlowFiles, Open};

/// Turn that this process belongs to, read from its environment.
pub struct Here {
    pub files: FlowFiles,
    pub turn: Turn,
    handoff: PathBuf,
    worktree: Option<PathBuf>,
}

impl Here {
    /// Reads the turn from the `SWARM_*` environment variables.
    ///
    /// # Errors
    /// Fails outside of a turn.
    pub fn find() -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let outside =
            || Failure::new(RefusalKind::Invalid, "not in a turn of a flow (only agents with a role can run this)");
        let flow = variable("SWARM_FLOW").ok_or_else(outside)?;
        let (project, flow) = flow.split_once('/').ok_or_else(outside)?;
        let root = PathBuf::from(variable("SWARM_FLOW_ROOT").ok_or_else(outside)?);
        let number = variable("SWARM_TURN").and_then(|text| text.parse().ok()).ok_or_else(outside)?;
        let space = Workspace::find(Some(&root), &root).map_err(|error| Failure::system(root.display(), &error))?;
        let id = FlowRef::new(project, flow).map_err(|_| outside())?;
        Ok(Self {
            files: space.flow(id),
            turn: Turn { role: variable("SWARM_ROLE").ok_or_else(outside)?, number, node: variable("SWARM_NODE") },
            handoff: PathBuf::from(variable("SWARM_HANDOFF").ok_or_else(outside)?),
            worktree: variable("SWARM_WORKTREE").map(PathBuf::from),
        })
    }

    /// Checks that this turn is still the current one of its role.
    ///
    /// # Errors
    /// Fails if the turn has ended or the role has started another one.
    pub fn check(&self, open: &Open) -> Result<(), Failure> {
        if open.sidecar.is_at(&self.turn) && is_open(&open.flow, &self.turn) {
            return Ok(());
        }
        let who = self.turn.node.as_ref().unwrap_or(&self.turn.role);
        Err(Failure::new(RefusalKind::Invalid, format!("this turn of '{who}' has ended or was replaced")))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.message.strip_prefix("Error: ").unwrap_or(&refusal.message);
        Self::new(RefusalKind::Invalid, message)
    }
}

pub fn run(args: &EmitArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let here = Here::find()?;
    let open = here.files.open()?;
    here.check(&open)?;
    if let Some(cause) = &open.damage {
        screen.warning(&format!("{cause}; until it is corrected, the flow uses its last valid workflow"));
    }
    let block = block(args, &open, &here)?;
    let signal = interpret(&block)?;
    check(&here, &open, &signal)?;
    replace(&here.handoff, format!("{block}\n").as_bytes())
        .map_err(|error| Failure::system(here.handoff.display(), &error))?;
    screen.line("recorded; end your turn now")?;
    Ok(0)
}

fn block(args: &EmitArgs, open: &Open, here: &Here) -> Result<Value, Failure> {
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let named = |path: &Path| named(open, &cwd, path);
    if let Some(question) = &args.ask {
        let question = super::text_of(question)?;
        let invalid = |cause: String| Err(Failure::new(RefusalKind::Invalid, cause));
        return match question.len() {
            _ if question.trim().is_empty() => invalid("the question is empty".to_owned()),
            length if length > QUESTION_BYTES_MAX => {
                invalid(format!("the question is longer than {QUESTION_BYTES_MAX} bytes; put the details into a file"))
            }
            _ => Ok(json!({"type": "prompt-human", "question": question})),
        };
    }
    if args.wait {
        return Ok(json!({"type": "await-handoff"}));
    }
    if args.close {
        return Ok(json!({"type": "forward-pass-closed"}));
    }
    if let Some(path) = &args.findings {
        return Ok(json!({"type": "meta-analysis-complete", "findings_path": named(path)}));
    }
    if let Some(path) = &args.feedback {
        return Ok(json!({"type": "backward-pass-complete", "artifact_path": named(path)}));
    }
    let targets = args.to.iter().enumerate().map(|(at, to)| {
        // A single --artifact goes to every --to.
        let path = args.artifact.get(at).or(args.artifact.last().filter(|_| args.artifact.len() == 1));
        let path = path.ok_or_else(|| {
            Failure::new(RefusalKind::Invalid, "--artifact is required once for each --to, or once for all of them")
        })?;
        check_place(open, here, &cwd.join(path))?;
        Ok(json!({"target_node_id": to, "artifact_path": named(path)}))
    });
    targets.collect::<Result<Vec<Value>, Failure>>().map(Value::Array)
}

/// Checks that an existing path can be handed over. A missing path is accepted here and refused later.
///
/// # Errors
/// Fails if the path is a directory, or lies outside the workspace and the worktree.
fn check_place(open: &Open, here: &Here, path: &Path) -> Result<(), Failure> {
    let Ok(found) = path.canonicalize() else { return Ok(()) };
    let invalid = |what: &str| Err(Failure::new(RefusalKind::Invalid, format!("'{}' {what}", path.display())));
    let within = |base: &Path| base.canonicalize().is_ok_and(|base| found.starts_with(base));
    if found.is_dir() {
        return invalid("is a directory; hand over a file, which may name others");
    }
    let known = within(Path::new(open.flow.workspace_root())) || here.worktree.as_deref().is_some_and(within);
    if known { Ok(()) } else { invalid("is outside the workspace and the worktree; copy it to $SWARM_RECORD first") }
}

/// Returns the name of a file in a flow: its path relative to the root if it is below the root, else its full path.
fn named(open: &Open, cwd: &Path, path: &Path) -> String {
    let root = Path::new(open.flow.workspace_root());
    let from_here = cwd.join(path);
    let found = from_here.canonicalize().or_else(|_| root.join(path).canonicalize()).unwrap_or(from_here);
    let text = found.to_string_lossy();
    if found.starts_with(root) { improvement::relative(open.flow.workspace_root(), &text) } else { text.into_owned() }
}

fn check(here: &Here, open: &Open, signal: &Signal) -> Result<(), Failure> {
    let look = |path: &str| match artifact::look(&open.flow, here.worktree.as_deref(), path) {
        Found::Missing => Artifact::Missing,
        Found::Here(_) | Found::Elsewhere(_) => Artifact::File,
    };
    if let Some(node) = &here.turn.node {
        try_out(open, node, signal, look)?;
        return Ok(());
    }
    let plan = improvement::mode(&open.flow).and_then(|mode| Plan::of(&open.graph, mode).ok());
    let entry = plan.as_ref().and_then(|plan| plan.entry(&here.turn.role));
    let entry = entry.ok_or_else(|| {
        Failure::new(RefusalKind::Invalid, format!("role '{}' has no step in the improvement phase", here.turn.role))
    })?;
    improvement::finish(&mut open.flow.clone(), entry, signal, |path| here.files.look(path))?;
    Ok(())
}
