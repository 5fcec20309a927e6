//! Files that are handed over. Files below the workspace root stay in place; others are copied to the record under a
//! new name.

use std::fs;
use std::path::{Path, PathBuf};

use swarm_actors::flow::block::{Code, Refusal, Target};
use swarm_actors::flow::document::FlowRun;
use swarm_actors::flow::improvement::relative;

/// Maximum size of a file that is copied, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// Location of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Below the workspace root, with the path to record.
    Here(String),
    /// In the role's worktree: must be copied from this path.
    Elsewhere(PathBuf),
    Missing,
}

/// Finds the artifact that an agent named: first relative to the workspace root, then relative to its worktree.
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

/// Returns the targets with the names of their artifacts in the flow; artifacts in the worktree are copied.
///
/// # Errors
/// Fails if an artifact cannot be copied.
pub fn settle(flow: &FlowRun, worktree: Option<&Path>, node: &str, targets: &[Target]) -> Result<Vec<Target>, Refusal> {
    // A file for several targets is copied once.
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

/// Copies a file to the record, for example as `record/07-build-to-review.md`, and returns its path relative to the
/// workspace root.
fn copy(flow: &FlowRun, from: &Path, node: &str, to: &str) -> Result<String, Refusal> {
    let failed = |cause: String| {
        let message = format!("Error: {} cannot be handed over: {cause}.", from.display());
        Refusal::new(Code::ArtifactUnavailable, "Referenced artifact unavailable", message)
    };
    let length = fs::metadata(from).map_err(|error| failed(error.to_string()))?.len();
    if length > BYTES_MAX {
        return Err(failed(format!("larger than {BYTES_MAX} bytes")));
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
        // An interrupted turn may have copied it already.
        let same = fs::read(&path).is_ok_and(|known| known == bytes);
        if same {
            return Ok(name);
        }
        if !path.exists() {
            swarm_store::flows::replace(&path, &bytes).map_err(|error| failed(error.to_string()))?;
            return Ok(name);
        }
    }
    Err(failed("no unused name left".to_owned()))
}
