//! What an earlier loop left, while one of the same name begins.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use swarm_model::loops::progress::Earlier;

use super::{LOG, RECORD, STATE};
use swarm_sys::files::replace_durably;

/// `None` where there is nothing.
pub fn read(dir: &Path) -> io::Result<Option<Earlier>> {
    let earlier = Earlier {
        record: found(fs::read_to_string(dir.join(RECORD)))?,
        // One that is damaged is put aside before it is written anew.
        state: found(fs::read(dir.join(STATE)))?.and_then(|bytes| String::from_utf8(bytes).ok()),
        log_length: found(fs::metadata(dir.join(LOG)))?.map_or(0, |meta| meta.len()),
    };
    Ok((earlier != Earlier::default()).then_some(earlier))
}

/// The record comes last: until then the loop that is withdrawn would be withdrawn again.
pub fn restore(dir: &Path, earlier: &Earlier) -> io::Result<()> {
    if let Some(log) = found(OpenOptions::new().write(true).open(dir.join(LOG)))?
        && log.metadata()?.len() > earlier.log_length
    {
        log.set_len(earlier.log_length)?;
        log.sync_data()?;
    }
    for (name, text) in [(STATE, &earlier.state), (RECORD, &earlier.record)] {
        match text {
            // What was not touched needs no room on a disk that may be full.
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
