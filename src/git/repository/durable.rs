//! Durability of what git writes, which syncs few of its own files and none of a worktree.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::fault::Fault;
use swarm_sys::files::sync_file_system;

/// Makes everything durable on the file systems of these existing paths, each once.
pub(crate) fn sync_file_systems<'a>(places: impl IntoIterator<Item = &'a Path>) -> Result<(), Fault> {
    let mut synced = Vec::new();
    for place in places {
        let device = fs::metadata(place).map_err(Fault::at(place))?.dev();
        if !synced.contains(&device) {
            sync_file_system(place).map_err(Fault::at(place))?;
            synced.push(device);
        }
    }
    Ok(())
}
