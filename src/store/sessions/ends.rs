//! Ends of turns that no hook reports: they are in the file in which the agent keeps its conversation.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use swarm_agents::turn_end;
use swarm_model::Doing;
use swarm_ports::Life;

use super::activity::{activity, note_end, recorded};
use super::kept::conversation;

/// Number of bytes at the end of the file that are searched.
const TAIL_BYTES: u64 = 64 << 10;
/// Maximum wait for the lock of the activity.
const LOCK_MAX: Duration = Duration::from_secs(2);

/// Version of a file.
pub type Stamp = (u64, u64, i64, i64);

/// A launch whose turns are watched.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Directory of the worker's records.
    pub records: PathBuf,
    /// Directory of its session, if it has one.
    base: Option<PathBuf>,
    launch: String,
}

impl Turns {
    pub fn new(records: PathBuf, life: &Life) -> Self {
        let base = life.plan.as_ref().map(|plan| PathBuf::from(&plan.dir));
        Self { records, base, launch: life.session_id.clone() }
    }

    /// Reports whether the agent has named the file of its conversation.
    pub fn is_known(&self) -> bool {
        conversation(&self.records).is_some()
    }

    /// Returns the file of the conversation, and its version. `None` if it is unknown or does not exist yet.
    pub fn file(&self) -> Option<(PathBuf, Stamp)> {
        let file = conversation(&self.records)?.file;
        let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((file, (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())))
    }

    /// Records how the present turn ended, if the file says that it was interrupted or failed.
    pub fn look(&self, file: &Path) {
        let told = self.base.as_deref().and_then(activity).or_else(|| recorded(&self.records));
        let Some(seen) = told.filter(|seen| seen.doing() != Doing::Idle) else { return };
        let end = tail(file).ok().and_then(|tail| turn_end(&tail, seen.turn_ms));
        let Some(end) = end else { return };
        let of = (self.base.as_deref(), self.launch.as_str());
        if let Err(error) = note_end(of, &self.records, &seen, end, LOCK_MAX) {
            tracing::debug!(records = %self.records.display(), %error, "cannot record the end of a turn");
        }
    }
}

fn tail(path: &Path) -> io::Result<Vec<u8>> {
    // An agent names the file: it may be a named pipe by now.
    let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
