//! `swarm __carry HOST far COMMAND`: git executes it in place of ssh. Connects to the far process that serves a clone, and
//! copies git's bytes in both directions. If nothing moves for some time, git may be working at either end, so the host is
//! asked whether it is still there: a dead network brings no end of file. What a host sends is limited in time, and by
//! the disk space here.
//!
//! Its first words on standard error are what git reports as the cause of the failure.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use swarm_git::carry::{AWAY, REFUSED};
use swarm_hosts::{Carrier, Fault, FaultKind, Host, Pipe, Program, Service};
use swarm_sys::clock::boot_ms;

/// Time without a byte in either direction after which the host is asked whether it is still there.
const STILL_MAX: Duration = Duration::from_secs(120);
/// Time for a fetch, apart from that for its bytes at the lowest rate.
const FETCH_MAX: Duration = Duration::from_secs(3600);
/// Lowest rate of a fetch, in bytes per second.
const RATE_MIN: u64 = 16 << 10;
/// Disk space that a fetch leaves free here: this, or a twentieth of a smaller disk.
const ROOM_BYTES: u64 = 1 << 30;
const ROOM_PART: u64 = 20;
/// Number of received bytes between two looks at the disk.
const ROOM_STEP: u64 = 8 << 20;
const BLOCK_BYTES: usize = 64 << 10;
/// Exit code if there is no connection, as that of ssh.
const FAILED: u8 = 255;

pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    let [name, place, command] = words.as_slice() else {
        return failed(&refused("git gave other words than a host and a command"));
    };
    let Some(service) = Service::of_command(command).filter(|_| place == "far") else {
        return failed(&refused("git asked for something else than a clone"));
    };
    let opened = super::host(name).and_then(|host| Carrier::open(&host, &service).map(|carrier| (host, carrier)));
    match opened {
        Ok((host, carrier)) => carry(carrier, &host, service.program == Program::UploadPack),
        Err(fault) => failed(&fault),
    }
}

fn refused(cause: &str) -> Fault {
    Fault { kind: FaultKind::Refused, cause: cause.to_owned(), remedy: None }
}

fn failed(fault: &Fault) -> u8 {
    let kind = if fault.kind == FaultKind::Away { AWAY } else { REFUSED };
    let remedy = fault.remedy.as_ref().map_or_else(String::new, |remedy| format!(" ({remedy})"));
    swarm_sys::complain!("fatal: {kind}{}{remedy}", fault.cause);
    FAILED
}

fn cut(name: &str, cause: &str) -> u8 {
    let cause = format!("the connection to {name} was cut{cause}");
    failed(&Fault { kind: FaultKind::Away, cause, remedy: None })
}

/// Bytes that were copied.
#[derive(Default)]
struct Moved {
    /// Time of the last ones, in milliseconds since the boot.
    at_ms: AtomicU64,
    received: AtomicU64,
}

/// Why copying from the far process has ended.
enum End {
    Over,
    /// git here takes no more.
    Ended,
    Full,
}

/// Copies bytes until the far process has closed its output.
fn carry(mut carrier: Carrier, host: &Host, is_fetch: bool) -> u8 {
    let Some((mut input, output)) = carrier.streams.take() else { return FAILED };
    let (begun_ms, name) = (boot_ms(), host.name.as_str());
    let moved = Arc::new(Moved { at_ms: AtomicU64::new(begun_ms), ..Moved::default() });
    thread::spawn({
        let moved = Arc::clone(&moved);
        // The far process ends with its input.
        move || drop(copied(&mut io::stdin().lock(), &mut input, |_| moved.at_ms.store(boot_ms(), Ordering::Relaxed)))
    });
    let first = std::mem::take(&mut carrier.first);
    let (sender, ended) = mpsc::channel();
    thread::spawn({
        let moved = Arc::clone(&moved);
        move || drop(sender.send(received(&first, output, &moved, is_fetch)))
    });
    let still_max = millis(STILL_MAX);
    loop {
        let at_ms = moved.at_ms.load(Ordering::Relaxed);
        let left = still_max.saturating_sub(boot_ms().saturating_sub(at_ms));
        if is_fetch && is_late(boot_ms().saturating_sub(begun_ms), moved.received.load(Ordering::Relaxed)) {
            carrier.end();
            return cut(name, ": it sends too slowly");
        }
        if left == 0 {
            // git at one end may be computing.
            if Pipe::open(host).is_err() {
                carrier.end();
                return cut(name, &format!(": nothing came for {} s, and it does not answer", STILL_MAX.as_secs()));
            }
            let _ = moved.at_ms.compare_exchange(at_ms, boot_ms(), Ordering::Relaxed, Ordering::Relaxed);
            continue;
        }
        match ended.recv_timeout(Duration::from_millis(left)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(End::Ended) | Err(RecvTimeoutError::Disconnected) => {
                carrier.end();
                return FAILED;
            }
            Ok(End::Full) => {
                carrier.end();
                return failed(&refused("the disk here has no room for what the host sends"));
            }
            Ok(End::Over) => {
                return match carrier.end() {
                    Some(0) => 0,
                    _ => cut(name, ""),
                };
            }
        }
    }
}

/// Copies what the far process says to git.
fn received(first: &[u8], mut output: impl Read, moved: &Moved, is_fetch: bool) -> End {
    let (mut stdout, mut is_full, mut looked) = (io::stdout().lock(), false, 0);
    let mut count = |bytes: usize| {
        moved.at_ms.store(boot_ms(), Ordering::Relaxed);
        let received = moved.received.fetch_add(bytes as u64, Ordering::Relaxed);
        if is_fetch && received >= looked {
            looked = received + ROOM_STEP;
            // git runs this in the repository.
            let disk = rustix::fs::statvfs(".");
            is_full = disk.is_ok_and(|disk| has_no_room(disk.f_bavail, disk.f_blocks, disk.f_frsize));
        }
        !is_full
    };
    let begun = stdout.write_all(first).and_then(|()| stdout.flush());
    let done = begun.and_then(|()| copied_while(&mut output, &mut stdout, &mut count));
    match done {
        _ if is_full => End::Full,
        Ok(()) => End::Over,
        Err(_) => End::Ended,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Reports whether a fetch has taken longer than it may for what it has brought.
fn is_late(elapsed_ms: u64, received: u64) -> bool {
    elapsed_ms > millis(FETCH_MAX).saturating_add(received.saturating_mul(1000) / RATE_MIN)
}

fn has_no_room(free: u64, blocks: u64, block_bytes: u64) -> bool {
    let (free, all) = (free.saturating_mul(block_bytes), blocks.saturating_mul(block_bytes));
    free < ROOM_BYTES.min(all / ROOM_PART)
}

/// Copies until the end of `from`, and calls `count` with the number of bytes of each block.
fn copied(from: &mut impl Read, to: &mut impl Write, count: impl Fn(usize)) -> io::Result<()> {
    copied_while(from, to, &mut |bytes| {
        count(bytes);
        true
    })
}

/// Copies until the end of `from`, which an error of it is as well, or until `goes_on`, which is called with the number of
/// bytes of each block, says no. Fails if `to` takes no more.
fn copied_while(from: &mut impl Read, to: &mut impl Write, goes_on: &mut impl FnMut(usize) -> bool) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(()),
        };
        if !goes_on(read) {
            return Ok(());
        }
        to.write_all(&block[..read])?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_sends_next_to_nothing_is_cut_and_one_that_sends_much_is_not() {
        let hour = millis(FETCH_MAX);
        assert!(!is_late(hour, 0) && is_late(hour + 1, 0));
        // A byte in two minutes.
        assert!(is_late(hour + 1000, 30));
        // Ten gigabytes in five hours.
        assert!(!is_late(5 * hour, 10 << 30));
    }

    #[test]
    fn a_fetch_leaves_room_on_the_disk() {
        let blocks = |bytes: u64| bytes / 4096;
        let is_full = |free: u64, all: u64| has_no_room(blocks(free), blocks(all), 4096);
        assert!(is_full(ROOM_BYTES - 4096, 1 << 40) && !is_full(ROOM_BYTES, 1 << 40));
        assert!(is_full((50 << 20) - 4096, 1000 << 20) && !is_full(50 << 20, 1000 << 20));
    }

    #[test]
    fn nothing_more_is_copied_after_a_no() {
        let (mut to, mut left) = (Vec::new(), 1);
        let text = vec![7; 2 * BLOCK_BYTES];
        let mut goes_on = |_| std::mem::replace(&mut left, 0) > 0;
        copied_while(&mut text.as_slice(), &mut to, &mut goes_on).expect("copied");
        assert_eq!(to.len(), BLOCK_BYTES);
    }
}
