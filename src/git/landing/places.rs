//! Places of submodules that a scratch worktree does not check out. git looks at nothing in them, so that a verification
//! could leave files there for the next one.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use git2::Index;

use super::scratch::Scratch;
use super::{furnish, modules};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::worktrees::{plan, record};
use swarm_sys::files;

/// Mode of a submodule in an index.
const GITLINK: u32 = 0o160_000;

/// Empties the places of submodules that have no repository in the entry of the scratch worktree. The setup may have filled
/// one, so that it is repeated.
pub(super) fn empty(workspace: &Workspace, scratch: &Scratch) -> Result<(), Fault> {
    let mut is_empty = true;
    for path in gitlinks(workspace, scratch)? {
        let Some(dir) = modules::directory(&scratch.dir, Path::new(OsStr::from_bytes(&path))) else { continue };
        if !dir.is_dir() || plan::is_empty_dir(&dir) || modules::own(workspace, scratch, &dir)?.is_some() {
            continue;
        }
        files::remove_tree(&dir).and_then(|()| fs::create_dir(&dir)).map_err(Fault::at(&dir))?;
        is_empty = false;
    }
    let mark = scratch.entry.join(furnish::MARK);
    if is_empty || !mark.exists() {
        return Ok(());
    }
    record::write(&mark, b"").map_err(Fault::at(&mark))
}

fn gitlinks(workspace: &Workspace, scratch: &Scratch) -> Result<Vec<Vec<u8>>, Fault> {
    if let Ok(index) = Index::open(&scratch.entry.join("index")) {
        return Ok(index.iter().filter(|entry| entry.mode == GITLINK).map(|entry| entry.path).collect());
    }
    let listed = parse::index(&scratch.read(workspace).args(["ls-files", "-s", "-z"]).run()?);
    Ok(listed.into_iter().filter(|entry| entry.mode == "160000").map(|entry| entry.path).collect())
}
