//! Disk usage of worktrees.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::admin;
use super::settings;
use crate::repository::fault::Fault;
use swarm_sys::files::list;

/// Unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// Returns the disk usage of a directory tree in bytes. Files with several hard links count once,
/// symbolic links are not followed, and unreadable parts are skipped.
pub fn bytes(dir: &Path) -> u64 {
    let mut seen = HashSet::new();
    let (mut total, mut look) = (0_u64, vec![dir.to_owned()]);
    while let Some(path) = look.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.nlink() > 1 && !meta.is_dir() && !seen.insert((meta.dev(), meta.ino())) {
            continue;
        }
        total = total.saturating_add(meta.blocks().saturating_mul(BLOCK));
        if meta.is_dir() {
            look.extend(list(&path).into_iter().flatten().map(|entry| entry.path()));
        }
    }
    total
}

/// Refuses another worktree if the existing ones exceed the quota.
pub(crate) fn check_quota(base: &Path) -> Result<(), Fault> {
    let Some(quota) = settings::worktree(base)?.quota else { return Ok(()) };
    let common = admin::common_dir(base).map_err(Fault::at(base))?;
    let entries = admin::entries(&common).map_err(Fault::at(&common))?;
    let trees: Vec<PathBuf> = entries.iter().filter_map(|entry| admin::tree_of(entry)).collect();
    let used = trees.iter().map(|tree| bytes(tree)).sum::<u64>();
    if used <= quota.0 {
        return Ok(());
    }
    let cause = format!(
        "{} worktree(s) of {} use {} MiB, more than worktree.quota ({} MiB)",
        trees.len(),
        base.display(),
        used >> 20,
        quota.0 >> 20
    );
    // Another worker's worktree may be about to go.
    Err(Fault { passes: true, ..Fault::new(cause) }.remedy(
        "run 'swarm du' to find the largest, 'swarm clean NAME' to remove a worker's, or 'git worktree remove PATH'",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_quota_may_have_room_later() {
        let fix = crate::fixture::Fixture::new();
        fs::write(fix.repo.join("swarm.toml"), "[worktree]\nquota = '1K'\n").unwrap();
        assert_eq!(check_quota(&fix.repo), Ok(()));
        fix.git(&["worktree", "add", "-q", fix.root.join("w").to_str().unwrap()]);
        assert!(check_quota(&fix.repo).unwrap_err().passes);
    }

    #[test]
    fn hard_links_count_once_and_symbolic_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        fs::write(one.join("file"), vec![1; 1 << 16]).unwrap();
        let alone = bytes(dir.path());
        assert!(alone >= 1 << 16, "{alone}");
        fs::hard_link(one.join("file"), two.join("again")).unwrap();
        std::os::unix::fs::symlink("/", two.join("root")).unwrap();
        let both = bytes(dir.path());
        assert!(both < alone + (1 << 14), "{both}");
        assert_eq!(bytes(Path::new("/nowhere")), 0);
    }
}
