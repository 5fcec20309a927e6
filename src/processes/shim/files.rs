//! Files of one generation, by names relative to its directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use serde::Deserialize;
use serde::de::IgnoredAny;
use swarm_model::{ExitRecord, Lease, Limits, ProcessId, RestartPolicy, Spec};
use swarm_store::exits::Slot;
use swarm_sys::files::reserve;
use swarm_sys::procfs;

/// Reserved size of an exit record in bytes, larger than any record.
const EXIT_RECORD_BYTES_MAX: u64 = 4096;

/// Maximum number of tries to read the registry.
const READS_MAX: u32 = 20;
/// Pause between two tries to read the registry.
pub const READ_PAUSE: Duration = Duration::from_millis(100);

/// Lease file, whose lock this process holds for life.
pub struct LeaseFile(File);

impl LeaseFile {
    /// Locks `lease`. The lock belongs to the open file description, so that readers can query it without taking it.
    ///
    /// # Errors
    /// Fails if another shim holds it: this generation has already been started.
    pub fn take() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open("lease")?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&swarm_store::records::whole_file_lock()))?;
        Ok(Self(file))
    }

    /// Does the same on a file system that may have no locks: whoever calls this has another proof that it is alone.
    ///
    /// # Errors
    /// Fails if the file cannot be made.
    pub fn take_if_possible() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open("lease")?;
        let _ = fcntl(&file, FcntlArg::F_OFD_SETLK(&swarm_store::records::whole_file_lock()));
        Ok(Self(file))
    }

    pub fn write(&self, lease: &Lease) -> io::Result<()> {
        self.0.write_all_at(&serde_json::to_vec(lease)?, 0)
    }

    /// Adds the processes that this shim could not end. Nobody else writes the file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written.
    pub fn add_survivors(&self, survivors: &[ProcessId]) -> io::Result<()> {
        let mut text = vec![0; usize::try_from(self.0.metadata()?.len()).unwrap_or(0)];
        self.0.read_exact_at(&mut text, 0)?;
        let lease: Lease = serde_json::from_slice(&text)?;
        self.write(&Lease { survivors: survivors.to_vec(), ..lease })
    }

    /// Reports whether the directory was removed.
    pub fn is_removed(&self) -> bool {
        self.0.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }
}

/// Part of the contract that the shim itself needs. The rest, which may be large, is read by the child only.
#[derive(Deserialize)]
pub struct Terms {
    pub token: String,
    pub started: String,
    #[serde(default)]
    logs: Vec<String>,
    contract: ContractTerms,
    exit_slot: Option<u32>,
}

#[derive(Deserialize)]
struct ContractTerms {
    tmux: Option<IgnoredAny>,
    #[serde(default)]
    restart: RestartPolicy,
    timeout_ms: Option<u64>,
    #[serde(default)]
    merge: bool,
    #[serde(default)]
    limits: Limits,
    job: Option<IgnoredAny>,
}

impl Terms {
    pub fn read() -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read("spec.pending")?)?)
    }

    pub fn in_tmux(&self) -> bool {
        self.contract.tmux.is_some()
    }

    /// Reports whether the worker is a job of a batch system.
    pub fn is_job(&self) -> bool {
        self.contract.job.is_some()
    }

    pub fn restart(&self) -> RestartPolicy {
        self.contract.restart
    }

    /// Reports whether a restart or a landing is due after the end of the worker.
    pub fn has_sequel(&self) -> bool {
        self.contract.restart != RestartPolicy::Never || self.contract.merge
    }

    /// Takes the slot for the exit record. `None` if there is none, or if it cannot be used.
    pub fn take_slot(&self, dir: &Path) -> Option<Slot> {
        let name = dir.file_name()?.to_str()?;
        Slot::take(Path::new("../.."), self.exit_slot?, name, &procfs::boot_id()).ok()
    }

    /// Returns the resource limits of the worker.
    pub fn limits(&self) -> Limits {
        self.contract.limits
    }

    /// Returns the present size of the worker's logs, in bytes.
    pub fn logged_bytes(&self) -> u64 {
        let sizes = self.logs.iter().map(|log| fs::metadata(Path::new("../../logs").join(log)));
        sizes.map(|meta| meta.map_or(0, |meta| meta.len())).sum()
    }

    /// Returns the path of the window's log; `None` for a worker without a window.
    pub fn window_log(&self) -> Option<PathBuf> {
        let log = self.logs.first().filter(|_| self.in_tmux())?;
        Some(Path::new("../../logs").join(log))
    }

    /// Returns the maximum run time of the worker, in milliseconds.
    pub fn timeout_ms(&self) -> Option<u64> {
        self.contract.timeout_ms
    }
}

/// Reads the whole contract.
pub fn read_spec() -> io::Result<Spec> {
    Ok(serde_json::from_slice(&fs::read("spec.pending")?)?)
}

/// Reports whether the registry has a row of this start. The token is random, so finding it anywhere in the file is
/// sufficient. If the file cannot be read, tries again, with a pause between the tries.
///
/// # Errors
/// Fails if the file exists and cannot be read: the row may be there or not.
pub fn is_committed(dir: &Path, token: &str, mut pause: impl FnMut()) -> io::Result<bool> {
    let Some(root) = dir.parent().and_then(Path::parent) else { return Ok(false) };
    let mut tries = 0;
    loop {
        tries += 1;
        match fs::read(root.join("state.json")) {
            Ok(text) => return Ok(text.windows(token.len()).any(|window| window == token.as_bytes())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) if tries == READS_MAX => return Err(error),
            Err(_) => pause(),
        }
    }
}

/// Reserved space for the exit record, allocated at the start so that a full disk cannot lose an exit code.
pub struct ExitFile(File);

impl ExitFile {
    pub fn reserve() -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open("exit.tmp")?;
        reserve::allocate(&file, EXIT_RECORD_BYTES_MAX)?;
        Ok(Self(file))
    }

    /// Writes the record under its final name, durable by the slot or, without one, by itself. A crash before the rename
    /// means an unknown exit, never a wrong one.
    pub fn write(self, record: &ExitRecord, slot: Option<Slot>) -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        let written = name(&self.0, &bytes, "exit.tmp").and_then(|()| {
            let in_slot = slot.is_some_and(|slot| slot.write(record).is_ok());
            if in_slot { Ok(()) } else { sync(&self.0) }
        });
        if written.is_ok() {
            return Ok(());
        }
        // A failed fsync must not be repeated on the same file, so a new file is written.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open("exit.again")?;
        file.write_all(&bytes)?;
        name(&file, &bytes, "exit.again")?;
        sync(&file)?;
        let _ = fs::remove_file("exit.tmp");
        Ok(())
    }
}

/// Gives the record its name. Nobody acknowledges it before the lease is released. All changes up to here share one commit
/// of the file system if the file has its name before it is synced.
fn name(file: &File, bytes: &[u8], temporary: &str) -> io::Result<()> {
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    fs::rename(temporary, "exit.json")
}

fn sync(file: &File) -> io::Result<()> {
    file.sync_all()?;
    File::open(".")?.sync_all()?;
    // A start does not sync the name of the directory.
    File::open("..")?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_cannot_be_read_is_not_one_without_the_row() {
        let root = tempfile::tempdir().expect("a directory");
        let (dir, state) = (root.path().join("w/a.1"), root.path().join("state.json"));
        let never = || panic!("there is nothing to wait for");
        assert!(!is_committed(&dir, "token", never).expect("there are no rows"));
        fs::write(&state, r#"{"workers": []}"#).expect("written");
        assert!(!is_committed(&dir, "token", never).expect("readable"));
        // A directory can be opened, but not read, whoever asks.
        fs::remove_file(&state).expect("removed");
        fs::create_dir(&state).expect("made");
        let mut pauses = 0;
        is_committed(&dir, "token", || pauses += 1).expect_err("the row may be there");
        assert_eq!(pauses, READS_MAX - 1);
        let repair = || {
            let _ = fs::remove_dir(&state);
            fs::write(&state, r#"{"workers": [{"token": "token"}]}"#).expect("written");
        };
        assert!(is_committed(&dir, "token", repair).expect("readable at last"));
    }
}
