//! Identity of this machine, and which machine's supervisor serves a state directory that several machines share.
//!
//! Locks may mean nothing on a network file system. The fence is therefore a file that `link(2)` creates and `rename(2)`
//! takes away, which are atomic there too. It names a boot, so that a reboot proves that the earlier holder is gone.

use std::cell::OnceCell;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use swarm_model::Machine;

use crate::allocation::Allocation;
use crate::files::replace_durably;
use crate::paths::{Paths, digest};
use crate::{clock, procfs};

/// Files with the id of the installation (machine-id(5)). A container usually has none.
const IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// Length of the hashed id in bytes.
const ID_BYTES: usize = 16;
/// Maximum number of times that the fence may change while it is taken.
const TRIES_MAX: usize = 10;

/// Returns the identity of this machine. Allocations of a batch system that share a state directory are one. The id is hashed, since machine-id(5) must not be published.
pub fn this() -> &'static Machine {
    static THIS: OnceLock<Machine> = OnceLock::new();
    THIS.get_or_init(|| {
        let of_node = || IDS.iter().find_map(|path| id_in(&fs::read_to_string(path).ok()?));
        let of_directory = |allocation: &Allocation| digest(allocation.directory.as_bytes(), ID_BYTES);
        let id = Allocation::of_this().map(of_directory).or_else(of_node);
        Machine { id: id.unwrap_or_default(), boot: procfs::boot_id(), host: clock::host() }
    })
}

/// Returns the hashed id. `None` for an image that has not been started yet (empty, or `uninitialized`).
fn id_in(text: &str) -> Option<String> {
    let id = text.trim();
    let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| digest(format!("swarm {}", id.to_ascii_lowercase()).as_bytes(), ID_BYTES))
}

/// Boots of machines that a person declared gone. Read when a record of another machine is found for the first time.
#[derive(Debug)]
pub struct Gone {
    path: PathBuf,
    boots: OnceCell<Vec<String>>,
}

impl Gone {
    pub fn new(paths: &Paths) -> Self {
        Self { path: paths.supervisor_gone(), boots: OnceCell::new() }
    }

    /// Returns the name of the other machine on which a record was written. `None` if this machine wrote it, if that
    /// boot was declared gone, or if the machine is unknown.
    ///
    /// # Errors
    /// Fails if the list of boots that are gone cannot be read.
    pub fn elsewhere(&self, machine: Option<&Machine>) -> io::Result<Option<String>> {
        let Some(other) = machine.filter(|machine| machine.is_other(this())) else { return Ok(None) };
        if self.boots.get().is_none() {
            let _ = self.boots.set(boots(&self.path)?);
        }
        let gone = self.boots.get().is_some_and(|boots| boots.contains(&other.boot));
        Ok((!gone).then(|| other.host.clone()))
    }
}

fn boots(path: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Declares these boots gone, durably: nothing that was started in them runs any more.
///
/// # Errors
/// Fails if the list cannot be read or written.
pub fn declare_gone(paths: &Paths, machines: &[Machine]) -> io::Result<()> {
    let mut all = boots(&paths.supervisor_gone())?;
    all.extend(machines.iter().map(|machine| machine.boot.clone()));
    all.sort();
    all.dedup();
    let path = paths.supervisor_gone();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    replace_durably(paths.root(), &name, format!("{}\n", all.join("\n")).as_bytes())
}

/// Returns the machine whose supervisor serves the directory, if that is another one.
///
/// # Errors
/// Fails if the fence, or the list of boots that are gone, cannot be read.
pub fn other_holder(paths: &Paths) -> io::Result<Option<Machine>> {
    let holder = holder(paths)?;
    Ok(if Gone::new(paths).elsewhere(holder.as_ref())?.is_some() { holder } else { None })
}

/// Returns the machine that the fence names. `None` without a fence, or if it is damaged.
fn holder(paths: &Paths) -> io::Result<Option<Machine>> {
    Ok(read(&paths.supervisor_machine())?.as_deref().and_then(parse))
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> Option<Machine> {
    serde_json::from_slice(text).ok()
}

/// Makes this machine the one whose supervisor serves the directory. Returns the other machine that already does.
/// `is_over` reports whether nothing of that machine is left to supervise. For the holder of the supervisor's lock.
///
/// # Errors
/// Fails if the fence cannot be read or written.
pub fn hold(paths: &Paths, is_over: impl Fn() -> bool) -> io::Result<Option<Machine>> {
    let fence = paths.supervisor_machine();
    // The next supervisor of this boot overwrites what a killed one left; no other machine uses the name.
    let boot = this().boot.get(..8).unwrap_or_default();
    let mine = paths.root().join(format!("supervisor.machine.{boot}"));
    for _ in 0..TRIES_MAX {
        let found = read(&fence)?;
        let holder = found.as_deref().and_then(parse);
        if holder.as_ref() == Some(this()) {
            return Ok(None);
        }
        if Gone::new(paths).elsewhere(holder.as_ref())?.is_some() && !is_over() {
            return Ok(holder);
        }
        let taken = take_away(&fence, &mine, found.as_deref()).and_then(|()| publish(&mine, &fence));
        if !matches!(taken, Ok(true)) {
            let _ = fs::remove_file(&mine);
        }
        if taken? {
            return fs::File::open(paths.root())?.sync_all().map(|()| None);
        }
    }
    Err(io::Error::other(format!("{} keeps changing", fence.display())))
}

/// Moves the fence to `aside`, unless it is no longer what was `judged`.
fn take_away(fence: &Path, aside: &Path, judged: Option<&[u8]>) -> io::Result<()> {
    if judged.is_none() {
        return Ok(());
    }
    match fs::rename(fence, aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        moved => moved?,
    }
    if read(aside)?.as_deref() == judged {
        return Ok(());
    }
    // Another machine was faster. Its fence goes back, unless there is a newer one.
    move_new(aside, fence).map(|_| ())
}

/// Writes this machine's fence. Returns false if there is one already.
fn publish(mine: &Path, fence: &Path) -> io::Result<bool> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(mine)?;
    file.write_all(&serde_json::to_vec(this())?)?;
    file.sync_all()?;
    move_new(mine, fence)
}

/// Moves a file to a name that is free. Returns false if it is taken; then `from` may be left.
fn move_new(from: &Path, to: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, rustix::fs::RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(true),
        Err(Errno::EXIST) => return Ok(false),
        // NFS, among others.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // A file system without hard links.
        Err(_) if !to.exists() => fs::rename(from, to).map(|()| true),
        Err(error) => Err(error),
    }
}

/// Releases the directory for supervisors of other machines, if this machine holds it.
pub fn release(paths: &Paths) {
    if holder(paths).is_ok_and(|holder| holder.is_some_and(|holder| holder.boot == this().boot)) {
        let _ = fs::remove_file(paths.supervisor_machine());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other() -> Machine {
        Machine { id: "another".to_owned(), boot: "other-boot".to_owned(), host: "far".to_owned() }
    }

    /// Returns a state directory whose fence names `machine`.
    fn held_by(machine: &Machine) -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        fs::write(paths.supervisor_machine(), serde_json::to_vec(machine).expect("JSON")).expect("written");
        (dir, paths)
    }

    #[test]
    fn only_a_valid_id_counts_and_it_is_hashed() {
        let id = "3d1219c7c4c5404aaa1f6d2a48adfda4";
        let hashed = id_in(&format!("{id}\n")).expect("valid");
        assert_eq!(hashed.len(), 2 * ID_BYTES);
        assert_ne!(hashed, id);
        assert_eq!(id_in("uninitialized\n"), None);
        assert_eq!(id_in(""), None);
    }

    #[test]
    fn the_fence_admits_one_machine_until_it_is_released() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert_eq!(hold(&paths, || false).expect("held"), None);
        assert_eq!(hold(&paths, || false).expect("held"), None, "the next supervisor of the same boot");
        assert_eq!(other_holder(&paths).expect("read"), None);
        release(&paths);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing is left");
    }

    #[test]
    fn a_fence_of_another_machine_holds_until_its_boot_is_declared_gone() {
        if this().id.is_empty() {
            // Without an id this machine can tell no other.
            assert!(!other().is_other(this()));
            return;
        }
        let (_dir, paths) = held_by(&other());
        assert_eq!(hold(&paths, || false).expect("read"), Some(other()));
        release(&paths);
        assert_eq!(other_holder(&paths).expect("read"), Some(other()), "only the holder releases it");
        declare_gone(&paths, &[other()]).expect("declared");
        assert_eq!(other_holder(&paths).expect("read"), None);
        assert_eq!(hold(&paths, || false).expect("held"), None);
        assert_eq!(holder(&paths).expect("read").as_ref(), Some(this()));
        let next_boot = Machine { boot: "next-boot".to_owned(), ..other() };
        assert_eq!(Gone::new(&paths).elsewhere(Some(&next_boot)).expect("read").as_deref(), Some("far"));
    }

    #[test]
    fn a_fence_that_changed_after_it_was_judged_goes_back() {
        let (dir, paths) = held_by(&other());
        let (fence, aside) = (paths.supervisor_machine(), dir.path().join("aside"));
        take_away(&fence, &aside, Some(b"an older one")).expect("moved");
        assert_eq!(holder(&paths).expect("read"), Some(other()));
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "nothing is left");
        assert!(!publish(&aside, &fence).expect("written"), "the fence of another machine is not replaced");
        assert_eq!(holder(&paths).expect("read"), Some(other()));
    }

    #[test]
    fn a_fence_of_a_machine_with_nothing_left_is_taken_over() {
        let (_dir, paths) = held_by(&other());
        assert_eq!(hold(&paths, || true).expect("held"), None);
        let (_dir, paths) = held_by(&Machine { boot: "earlier".to_owned(), ..this().clone() });
        assert_eq!(hold(&paths, || false).expect("held"), None, "this machine was rebooted");
        let (_dir, paths) = held_by(this());
        fs::write(paths.supervisor_machine(), "").expect("damaged");
        assert_eq!(hold(&paths, || false).expect("held"), None);
        assert_eq!(holder(&paths).expect("read").as_ref(), Some(this()));
    }
}
