//! Keeps the files of an earlier loop while a new one of the same name starts, and restores them if the start is
//! withdrawn.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use swarm_model::loops::progress::Earlier;

use super::{LOG, RECORD, STATE};
use swarm_sys::files::replace_durably;

/// Reads the files of the earlier loop; `None` if there are none.
pub fn read(dir: &Path) -> io::Result<Option<Earlier>> {
    let earlier = Earlier {
        record: found(fs::read_to_string(dir.join(RECORD)))?,
        // A file that is not UTF-8 is corrupt, and is quarantined before it is rewritten.
        state: found(fs::read(dir.join(STATE)))?.and_then(|bytes| String::from_utf8(bytes).ok()),
        log_length: found(fs::metadata(dir.join(LOG)))?.map_or(0, |meta| meta.len()),
    };
    Ok((earlier != Earlier::default()).then_some(earlier))
}

/// Restores the files of the earlier loop. The record comes last: after a crash in between, the withdrawal is repeated.
pub fn restore(dir: &Path, earlier: &Earlier) -> io::Result<()> {
    if let Some(log) = found(OpenOptions::new().write(true).open(dir.join(LOG)))?
        && log.metadata()?.len() > earlier.log_length
    {
        log.set_len(earlier.log_length)?;
        log.sync_data()?;
    }
    for (name, text) in [(STATE, &earlier.state), (RECORD, &earlier.record)] {
        match text {
            // An unchanged file is not rewritten: the disk may be full.
            Some(text) if fs::read(dir.join(name)).is_ok_and(|there| there == text.as_bytes()) => {}
            Some(text) => replace_durably(dir, name, text.as_bytes())?,
            None => drop(found(fs::remove_file(dir.join(name)))?),
        }
    }
    Ok(())
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(there) => Ok(Some(there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
