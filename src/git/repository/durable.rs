//! Durability of what git writes, which syncs few of its own files and none of a worktree.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::fault::Fault;
use swarm_sys::clock::boot_ms;
use swarm_sys::files::{self, sync_file_system};

/// Number of zeros at the end of a loose object that is not whole. A whole one ends in a checksum.
const ZEROS: usize = 16;

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

/// Returns the time of the last boot by today's clock.
pub(crate) fn boot_time() -> SystemTime {
    SystemTime::now() - Duration::from_millis(boot_ms())
}

/// Removes loose objects of a repository, and files in `refs`, to which a power cut left no content. git takes such an
/// object for present and never writes it again, and fails on such a ref. Keeps everything modified since `boot`.
/// Returns the files that were removed; files that cannot be read stay.
pub(crate) fn clear_torn(common: &Path, refs: &Path, boot: SystemTime) -> Vec<PathBuf> {
    let is_object_dir = |dir: &PathBuf| {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let within = |dir: &Path| files::list_if_present(dir).unwrap_or_default().into_iter().map(|file| file.path());
    let objects = within(&common.join("objects")).filter(is_object_dir).flat_map(|dir| within(&dir));
    let torn = objects.chain(within(&common.join(refs)));
    let torn = torn.filter(|file| is_torn(file, boot).unwrap_or(false) && fs::remove_file(file).is_ok());
    torn.inspect(|file| tracing::warn!(file = %file.display(), "removed a file that a power cut had emptied")).collect()
}

fn is_torn(path: &Path, boot: SystemTime) -> io::Result<bool> {
    let seen = fs::symlink_metadata(path)?;
    if !seen.is_file() || seen.modified()? >= boot {
        return Ok(false);
    }
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(seen.len().saturating_sub(ZEROS as u64)))?;
    let mut end = Vec::new();
    file.take(ZEROS as u64).read_to_end(&mut end)?;
    Ok(end.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn only_files_without_content_from_before_the_boot_are_removed() {
        let fix = Fixture::new();
        let common = fix.repo.join(".git");
        let long_ago = SystemTime::now() - Duration::from_secs(7200);
        let make = |name: &str, content: &[u8], at: SystemTime| {
            let path = common.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
            path
        };
        let refs = Path::new("refs/swarm/cand");
        let half = [vec![0x78; 100], vec![0; 100]].concat();
        let mut torn = vec![
            make("objects/ab/empty", b"", long_ago),
            make("objects/ab/half", &half, long_ago),
            make("refs/swarm/cand/a", b"", long_ago),
            make("refs/swarm/cand/b", &[0; 41], long_ago),
        ];
        let kept = [
            make("objects/ab/young", b"", SystemTime::now()),
            make("objects/ab/whole", &[vec![0; 100], vec![7]].concat(), long_ago),
            make("objects/pack/empty", b"", long_ago),
            make("refs/swarm/cand/c", &[b'a'; 40], long_ago),
        ];
        let mut removed = clear_torn(&common, refs, SystemTime::now() - Duration::from_secs(3600));
        removed.sort();
        torn.sort();
        assert_eq!(removed, torn);
        assert!(kept.iter().all(|file| file.exists()));
    }
}
