//! Specs that the work of their own workstream changes: an agent ticks the boxes of its checklist, or adds a note.

use std::path::Path;

use swarm_model::Caller;
use swarm_model::run::progress::{Run, Stage};
use swarm_store::repositories::{content_in, lines};
use swarm_store::runs::home::Home;
use swarm_store::runs::specs::Spec;
use swarm_sys::paths::digest;

use super::since::executed;

/// Reports whether this version of a spec was executed, and its workstream is done.
pub fn is_done(run: &Run, home: &Home, spec: &Spec) -> bool {
    let job = run.plan.position(&spec.id).map(|at| &run.jobs[at]);
    job.is_some_and(|job| job.stage == Stage::Done)
        && executed(run, home, &spec.id).is_some_and(|executed| executed == spec.digest)
}

/// Reports whether a spec is as the landed work of its own workstream left it, and was before that the version that was
/// executed. Nobody asks for more than was done then.
pub fn is_landed(run: &Run, home: &Home, spec: &Spec, caller: &Caller) -> bool {
    landed_by(run, home, spec, caller).is_some()
}

/// Returns the commit on the base by which a workstream has changed its own spec to what it is. `None` if it has not.
pub fn landed_by(run: &Run, home: &Home, spec: &Spec, caller: &Caller) -> Option<String> {
    let root = Path::new(&run.plan.root);
    let commit = run.jobs[run.plan.position(&spec.id)?].commit.as_deref()?;
    let file = spec.path.canonicalize().ok()?;
    let path = file.strip_prefix(root.canonicalize().ok()?).ok()?.to_str()?;
    let is = |commit: &str, wanted: &str| {
        content_in(root, commit, path, caller).is_some_and(|content| digest(&content, usize::MAX) == wanted)
    };
    if !is(commit, &spec.digest) {
        return None;
    }
    // Work that was rebased may have further commits above the one that changed the spec.
    let words = ["rev-list", "-1", "--first-parent", commit, "--", &format!(":(top,literal){path}")];
    let changed = lines(root, &words, caller)?.pop()?;
    // An edit of a person that landed in between is in the version before, which was not executed then.
    is(&format!("{changed}^"), &executed(run, home, &spec.id)?).then_some(changed)
}
