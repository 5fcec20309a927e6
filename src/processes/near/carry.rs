//! `swarm __carry HOST far COMMAND`: git executes it in place of ssh. Connects to the far process that serves a clone, and
//! copies git's bytes in both directions. It ends if nothing moves for some time: a dead network brings no end of file.
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
use swarm_hosts::{Carrier, Fault, FaultKind, Service};
use swarm_sys::clock::boot_ms;

/// Time without a byte in either direction after which the connection counts as cut.
const STILL_MAX: Duration = Duration::from_secs(600);
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
    match super::host(name).and_then(|host| Carrier::open(&host, &service)) {
        Ok(carrier) => carry(carrier, name),
        Err(fault) => failed(&fault),
    }
}

fn refused(cause: &str) -> Fault {
    Fault { kind: FaultKind::Refused, cause: cause.to_owned(), remedy: None }
}

fn failed(fault: &Fault) -> u8 {
    let kind = if fault.kind == FaultKind::Away { AWAY } else { REFUSED };
    let remedy = fault.remedy.as_ref().map_or_else(String::new, |remedy| format!(" ({remedy})"));
    eprintln!("fatal: {kind}{}{remedy}", fault.cause);
    FAILED
}

fn cut(name: &str, cause: &str) -> u8 {
    let cause = format!("the connection to {name} was cut{cause}");
    failed(&Fault { kind: FaultKind::Away, cause, remedy: None })
}

/// Copies bytes until the far process has closed its output.
fn carry(mut carrier: Carrier, name: &str) -> u8 {
    let Some((mut input, mut output)) = carrier.streams.take() else { return FAILED };
    let moved = Arc::new(AtomicU64::new(boot_ms()));
    let out_moved = Arc::clone(&moved);
    thread::spawn({
        let moved = Arc::clone(&moved);
        // The far process ends with its input.
        move || drop(copied(&mut io::stdin().lock(), &mut input, &moved))
    });
    let first = std::mem::take(&mut carrier.first);
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut stdout = io::stdout().lock();
        let begun = stdout.write_all(&first).and_then(|()| stdout.flush());
        let _ = sender.send(begun.and_then(|()| copied(&mut output, &mut stdout, &out_moved)));
    });
    let limit = u64::try_from(STILL_MAX.as_millis()).unwrap_or(u64::MAX);
    loop {
        let still = boot_ms().saturating_sub(moved.load(Ordering::Relaxed));
        let left = limit.saturating_sub(still);
        if left == 0 {
            carrier.end();
            return cut(name, &format!(": nothing came for {} s", STILL_MAX.as_secs()));
        }
        match ended.recv_timeout(Duration::from_millis(left)) {
            Err(RecvTimeoutError::Timeout) => {}
            // git has ended.
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                carrier.end();
                return FAILED;
            }
            Ok(Ok(())) => {
                return match carrier.end() {
                    Some(0) => 0,
                    _ => cut(name, ""),
                };
            }
        }
    }
}

/// Copies until the end of `from`, which an error of it is as well. Fails if `to` takes no more.
fn copied(from: &mut impl Read, to: &mut impl Write, moved: &AtomicU64) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(()),
        };
        to.write_all(&block[..read])?;
        to.flush()?;
        moved.store(boot_ms(), Ordering::Relaxed);
    }
}
