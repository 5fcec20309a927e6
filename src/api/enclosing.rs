//! The worker in which a command runs. A supervisor that such a command starts must not become a part of that worker:
//! it would end with the worker, and every worker that it started would end with it.
//!
//! The tree of processes decides, not the environment: a shim is the subreaper of its worker, so it is an ancestor of
//! all its processes for as long as it lives.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use swarm_model::{Lease, ProcessId};
use swarm_store::leases;
use swarm_sys::files::list;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Maximum number of ancestors that are followed. A longer chain means that the tree changes meanwhile.
const ANCESTORS_MAX: usize = 1024;
/// Environment variable with the launch token of the worker.
const TOKEN: &str = "SWARM_TOKEN";

/// Relation of this process to the workers of a state directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Enclosing {
    /// It belongs to no worker.
    None,
    /// It belongs to a worker whose shim is an ancestor.
    Worker { name: String, dir: PathBuf, shim: ProcessId },
    /// It belongs to a worker whose shim cannot be seen from here, because it is in another process namespace.
    Sandbox { name: String },
}

impl Enclosing {
    /// Finds the outermost worker of this state directory that this process belongs to. A worker of another state
    /// directory does not count: what it starts in a state directory of its own, such as that of a test, ends with it.
    pub fn find(paths: &Paths) -> Self {
        match outermost(nix::unistd::getpid().as_raw(), paths) {
            Self::None => sandboxed(paths, &procfs::boot_id()),
            found => found,
        }
    }

    /// Returns the name of the outermost worker of this state directory to which another process belongs. `None` if it
    /// belongs to none.
    pub fn worker_of(pid: i32, paths: &Paths) -> Option<String> {
        outermost(pid, paths).worker().map(str::to_owned)
    }

    /// Returns the name of the worker that this process belongs to.
    pub fn worker(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Worker { name, .. } | Self::Sandbox { name } => Some(name),
        }
    }
}

/// Returns the worker whose shim is the outermost ancestor of a process.
fn outermost(mut pid: i32, paths: &Paths) -> Enclosing {
    let boot = procfs::boot_id();
    let mut found = Enclosing::None;
    for _ in 0..ANCESTORS_MAX {
        match procfs::stat(pid).map(|stat| stat.parent) {
            Some(parent) if parent > 0 => pid = parent,
            _ => break,
        }
        if let Some(worker) = worker_of_shim(pid, paths, &boot) {
            found = worker;
        }
    }
    found
}

/// Returns the worker of this shim; `None` if the process is not a shim of this state directory. The working directory
/// of a shim is the directory of its generation, and the lease there names the shim.
fn worker_of_shim(pid: i32, paths: &Paths, boot: &str) -> Option<Enclosing> {
    let dir = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let lease = read_lease(&dir)?;
    if lease.shim.pid != pid || !is_same(dir.parent()?.parent()?, paths.root()) {
        return None;
    }
    procfs::alive(&lease.shim, boot).ok().flatten()?;
    Some(Enclosing::Worker { name: name_of(&dir), dir, shim: lease.shim })
}

/// Finds the worker whose token this process has, if its shim lives without being visible here.
fn sandboxed(paths: &Paths, boot: &str) -> Enclosing {
    let Ok(token) = std::env::var(TOKEN) else { return Enclosing::None };
    let dirs = list(&paths.workers()).into_iter().flatten();
    for dir in dirs.map(|entry| entry.path()) {
        let Some(lease) = read_lease(&dir).filter(|lease| lease.token == token) else { continue };
        let held = leases::open(&dir.join("lease")).is_ok_and(|file| leases::is_held(&file));
        let visible = procfs::alive(&lease.shim, boot).ok().flatten().is_some();
        if held && !visible {
            return Enclosing::Sandbox { name: name_of(&dir) };
        }
    }
    Enclosing::None
}

fn read_lease(dir: &Path) -> Option<Lease> {
    leases::read(dir).ok().flatten()
}

/// Returns the worker's name from the directory of a generation, `NAME.GENERATION`.
fn name_of(dir: &Path) -> String {
    let leaf = dir.file_name().unwrap_or_default().to_string_lossy();
    leaf.rsplit_once('.').map_or(&*leaf, |(name, _)| name).to_owned()
}

fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ancestor_counts_only_if_a_lease_names_it() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path());
        assert_eq!(Enclosing::find(&paths), Enclosing::None);
        // The parent of this test stands for a shim; its working directory is some other one.
        let dir = paths.worker("x.y", 2);
        std::fs::create_dir_all(&dir).expect("made");
        assert_eq!(worker_of_shim(nix::unistd::getppid().as_raw(), &paths, &procfs::boot_id()), None);
        assert_eq!(name_of(&dir), "x.y");
    }
}
