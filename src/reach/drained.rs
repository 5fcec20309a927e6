//! Hosts that a person has drained: no run sends an attempt there. What works there goes on.

use std::io;
use std::path::{Path, PathBuf};

use swarm_sys::files::{is_absent, make_dirs, remove_if_present, replace_durably};
use swarm_sys::paths::{Paths, digest};

const DIGEST: usize = 16;

fn dir(paths: &Paths) -> PathBuf {
    paths.root().join("drained")
}

fn name(host: &str) -> String {
    // The name of a host may contain anything.
    digest(host.as_bytes(), DIGEST)
}

pub fn is_drained(paths: &Paths, host: &str) -> bool {
    !is_absent(&dir(paths).join(name(host)))
}

/// Drains a host, or ends that.
///
/// # Errors
/// Returns any I/O error.
pub fn set(paths: &Paths, host: &str, drained: bool) -> io::Result<()> {
    let dir: &Path = &dir(paths);
    if drained {
        make_dirs(dir)?;
        return replace_durably(dir, &name(host), host.as_bytes());
    }
    remove_if_present(&dir.join(name(host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_drained_until_that_is_ended() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path());
        set(&paths, "../a", false).expect("it is not");
        for _ in 0..2 {
            set(&paths, "../a", true).expect("drained");
            assert!(is_drained(&paths, "../a") && !is_drained(&paths, "a"));
        }
        set(&paths, "../a", false).expect("ended");
        assert!(!is_drained(&paths, "../a"));
    }
}
