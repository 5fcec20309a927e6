//! Files that are handed over: below the workspace's root as they are, else copied into
//! the record, under a name that was never used.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_actors::flow::block::{Code, Refusal, Target};
use swarm_actors::flow::document::FlowRun;
use swarm_actors::flow::improvement::relative;

/// A longer one is no text that anybody reads.
const BYTES_MAX: u64 = 16 << 20;

/// Where an artifact is, and what it is called in the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The path that is written down.
    Here(String),
    /// It has to be copied from there.
    Elsewhere(PathBuf),
    Missing,
}

/// Looks for what an agent called `said`: as its flow understands it, then as the agent may
/// have meant it.
pub fn look(flow: &FlowRun, worktree: Option<&Path>, said: &str) -> Found {
    let root = Path::new(flow.workspace_root());
    let resolve = |path: PathBuf| path.canonicalize().ok().filter(|path| path.is_file());
    let within = |path: &Path| path.starts_with(root);
    let above = worktree.and_then(|tree| tree.canonicalize().ok());
    let in_worktree = |path: &Path| above.as_ref().is_some_and(|tree| path.starts_with(tree));
    let here = resolve(root.join(said)).filter(|path| within(path) && !in_worktree(path));
    if here.is_some() {
        let is_absolute = Path::new(said).is_absolute();
        return Found::Here(if is_absolute { relative(flow.workspace_root(), said) } else { said.to_owned() });
    }
    let beside = worktree.and_then(|tree| resolve(tree.join(said)));
    match beside {
        Some(path) if in_worktree(&path) => Found::Elsewhere(path),
        Some(path) if within(&path) => Found::Here(relative(flow.workspace_root(), &path.to_string_lossy())),
        _ => Found::Missing,
    }
}

/// The targets with what they are called in the flow; what lies elsewhere is copied.
///
/// # Errors
/// When it cannot be copied.
pub fn settle(flow: &FlowRun, worktree: Option<&Path>, node: &str, targets: &[Target]) -> Result<Vec<Target>, Refusal> {
    // One file to several is copied once.
    let mut copied: Vec<(PathBuf, String)> = Vec::new();
    let mut settled = Vec::new();
    for target in targets {
        let found = target.artifact.as_deref().map(|said| look(flow, worktree, said));
        let artifact = match found {
            Some(Found::Here(path)) => Some(path),
            Some(Found::Elsewhere(path)) => match copied.iter().find(|(from, _)| *from == path) {
                Some((_, known)) => Some(known.clone()),
                None => {
                    let made = copy(flow, &path, node, &target.node)?;
                    copied.push((path, made.clone()));
                    Some(made)
                }
            },
            Some(Found::Missing) | None => target.artifact.clone(),
        };
        settled.push(Target { node: target.node.clone(), artifact });
    }
    Ok(settled)
}

/// `record/07-build-to-review.md`; its path from the workspace's root.
fn copy(flow: &FlowRun, from: &Path, node: &str, to: &str) -> Result<String, Refusal> {
    let failed = |cause: String| {
        let message = format!("Error: {} cannot be handed over: {cause}.", from.display());
        Refusal::new(Code::ArtifactUnavailable, "Referenced artifact unavailable", message)
    };
    let length = fs::metadata(from).map_err(|error| failed(error.to_string()))?.len();
    if length > BYTES_MAX {
        return Err(failed(format!("it is longer than {BYTES_MAX} bytes")));
    }
    let record = Path::new(flow.record_folder());
    let plain = |name: &str| name.replace(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)), "-");
    let ending = from.extension().map_or_else(String::new, |ending| format!(".{}", ending.to_string_lossy()));
    let bytes = fs::read(from).map_err(|error| failed(error.to_string()))?;
    for number in 1_u32.. {
        let path = record.join(format!("{number:02}-{}-to-{}{ending}", plain(node), plain(to)));
        let name = relative(flow.workspace_root(), &path.to_string_lossy());
        if flow.was_used(&name) {
            continue;
        }
        // Of a turn that was cut off here it may be there already.
        let same = fs::read(&path).is_ok_and(|known| known == bytes);
        if same {
            return Ok(name);
        }
        if !path.exists() {
            swarm_store::flows::replace(&path, &bytes).map_err(|error| failed(error.to_string()))?;
            return Ok(name);
        }
    }
    Err(failed("there are no more names".to_owned()))
}
