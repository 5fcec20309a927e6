//! Sizes of a window, recorded beside its log: `NAME.tmux.sizes` has a line `POSITION COLUMNS ROWS` for each. A size
//! holds for the bytes of the log from that position on; positions are those of `log_parts`.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use swarm_tmux::Size;

use crate::log_parts;

/// Extension of the file; that of a log is `log`.
pub const EXTENSION: &str = "sizes";
/// Length of the file beyond which only its last sizes are kept.
const BYTES_MAX: u64 = 64 << 10;
/// Number of sizes that are kept then.
const KEPT: usize = 1000;
/// Largest number of columns or rows that is believed: a larger screen takes memory for nothing.
const SIDE_MAX: u16 = 2000;

/// Returns the path of the file that belongs to a log or, for its older part (`.1`), that belonged to it.
pub fn beside(log: &Path) -> PathBuf {
    log.with_extension(EXTENSION)
}

/// Records that the window of this log has had `size` since now, unless that is the last recorded size.
///
/// # Errors
/// Fails if the log cannot be read, or the file not written.
pub fn record(log: &Path, size: Size) -> io::Result<()> {
    let path = beside(log);
    let now = position(log)?;
    let known = read(&path)?;
    if known.last().is_some_and(|(at, last)| *last == size && *at <= now) {
        return Ok(());
    }
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > BYTES_MAX) {
        let kept = &known[known.len().saturating_sub(KEPT)..];
        let lines: String = kept.iter().map(|(at, size)| line(*at, *size)).collect();
        let mut aside: OsString = path.clone().into();
        aside.push(".tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(lines.as_bytes())?;
        fs::rename(&aside, &path)?;
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    file.write_all(line(now, size).as_bytes())
}

fn line(position: u64, size: Size) -> String {
    format!("{position} {} {}\n", size.columns, size.rows)
}

/// Returns the position of the next byte of a log.
fn position(log: &Path) -> io::Result<u64> {
    let file = match File::open(log) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    log_parts::lock_for_reading(&file);
    let base = File::open(log_parts::older(log)).ok().and_then(|part| log_parts::part_of(&part));
    let length = file.metadata().map(|meta| meta.len());
    log_parts::unlock(&file);
    Ok(base.map_or(0, |part| part.next).saturating_add(length?))
}

/// Returns the recorded sizes by position. A missing file has none; lines that cannot be read are skipped. After a
/// smaller position the log began anew, so what was recorded before it does not count.
///
/// # Errors
/// Returns any other I/O error.
pub fn read(path: &Path) -> io::Result<Vec<(u64, Size)>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut sizes: Vec<(u64, Size)> = Vec::new();
    for (at, size) in String::from_utf8_lossy(&text).lines().filter_map(parse) {
        if sizes.last().is_some_and(|(last, _)| *last > at) {
            sizes.clear();
        }
        sizes.push((at, size));
    }
    Ok(sizes)
}

fn parse(line: &str) -> Option<(u64, Size)> {
    let mut words = line.split(' ');
    let position = words.next()?.parse().ok()?;
    let mut side = || words.next()?.parse().ok().filter(|side| (1..=SIDE_MAX).contains(side));
    Some((position, Size { columns: side()?, rows: side()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(columns: u16) -> Size {
        Size { columns, rows: 50 }
    }

    #[test]
    fn sizes_are_recorded_once_with_the_position_in_the_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("a.b.tmux.log");
        record(&log, size(80)).expect("recorded");
        record(&log, size(80)).expect("recorded");
        fs::write(&log, "0123456789").expect("written");
        record(&log, size(120)).expect("recorded");
        log_parts::rotate(&log, 4, std::time::Duration::ZERO).expect("rotated");
        fs::write(&log, "01").expect("written");
        record(&log, size(80)).expect("recorded");
        let path = dir.path().join("a.b.tmux.sizes");
        let part = log_parts::part_of(&File::open(log_parts::older(&log)).expect("there"));
        let last = part.map_or(2, |part| part.next + 2);
        let expected = vec![(0, size(80)), (10, size(120)), (last, size(80))];
        assert_eq!(read(&path).expect("read"), if part.is_some() { expected } else { vec![(2, size(80))] });
    }

    #[test]
    fn a_file_of_sizes_has_a_limit_and_bad_lines_are_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("x.tmux.log");
        let path = beside(&log);
        let many: String = (0..9000_u64).map(|at| line(at % 2, size(80 + (at % 2) as u16))).collect();
        fs::write(&path, many).expect("written");
        assert_eq!(read(&path).expect("read").len(), 2, "only the last beginning counts");
        record(&log, size(99)).expect("recorded");
        assert!(fs::metadata(&path).expect("there").len() < 100);
        fs::write(&path, "1 80 24\nnonsense\n2 0 5\n3 70000 1\n4 9999 1\n7 90 2\n8 9").expect("written");
        assert_eq!(
            read(&path).expect("read"),
            [(1, Size { columns: 80, rows: 24 }), (7, Size { columns: 90, rows: 2 })]
        );
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert!(read(&path).is_err(), "a read error is no absence");
    }
}
