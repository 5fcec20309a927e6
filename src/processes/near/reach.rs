//! `swarm __reach HOST`: opens a connection to the far end, sends the lines of its standard input there, and prints the lines
//! of the far end. Its first line is the hello, or why there is no connection. It ends with its input, and with the connection.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};
use swarm_hosts::frames::{Ask, Lines, SILENCE_MAX, Tell, line};
use swarm_hosts::{Fault, FaultKind, Host, Input, Next, Pipe};
use swarm_sys::commands::deadline::wait_until;

const BLOCK_BYTES: usize = 64 << 10;
/// Time for a connection, which has shorter limits of its own for each of its steps.
const OPEN_MAX: Duration = Duration::from_secs(120);
/// Exit code if there is no connection any more.
const CUT: u8 = 255;

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let name = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let host = match super::host(&name) {
        Ok(host) => host,
        Err(fault) => return failed(&fault),
    };
    let (Ok((is_over, over)), Ok((is_open, open))) = (io::pipe(), io::pipe()) else { return CUT };
    let (sender, asks) = mpsc::channel();
    thread::spawn(move || read_asks(&sender, over));
    let pipe = match opened(&host, open, &is_open, &is_over) {
        None => return 0,
        Some(Err(fault)) => return failed(&fault),
        Some(Ok(pipe)) => pipe,
    };
    if say(&json!({"hello": pipe.hello})).is_err() {
        return CUT;
    }
    let (input, state) = (pipe.input(), host.state.clone());
    thread::spawn(move || pass(&asks, &input, state.as_deref()));
    attend(pipe, &is_over)
}

fn say(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&line(value))?;
    out.flush()
}

fn failed(fault: &Fault) -> u8 {
    let kind = match fault.kind {
        FaultKind::Away => "away",
        FaultKind::Refused => "refused",
        FaultKind::Missing => "missing",
        FaultKind::Protocol => "protocol",
    };
    let _ = say(&json!({"fault": {"kind": kind, "cause": fault.cause, "remedy": fault.remedy}}));
    CUT
}

/// Reads the lines of standard input. Drops `over` at their end.
fn read_asks(sender: &Sender<Ask>, over: PipeWriter) {
    let (mut lines, mut block) = (Lines::default(), vec![0; BLOCK_BYTES]);
    let mut stdin = io::stdin().lock();
    loop {
        match stdin.read(&mut block) {
            Ok(0) => break,
            Ok(read) => lines.add(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        while let Ok(Some(line)) = lines.complete() {
            let Ok(ask) = serde_json::from_slice(&line) else { continue };
            let _ = sender.send(ask);
        }
    }
    drop(over);
}

/// Sends lines to the far end, and tells it which state directory is meant. In a thread, because a connection that is about
/// to be cut takes none.
fn pass(asks: &Receiver<Ask>, input: &Input, state: Option<&str>) {
    for ask in asks {
        let ask = match ask {
            Ask::Call { id, call, .. } => Ask::Call { id, call, state: state.map(str::to_owned) },
            ask => ask,
        };
        if input.send(&ask).is_err() {
            return;
        }
    }
}

/// Connects; `None` if nobody wants the connection any more.
fn opened(host: &Host, open: PipeWriter, is_open: &PipeReader, is_over: &PipeReader) -> Option<Result<Pipe, Fault>> {
    let (sender, receiver) = mpsc::channel();
    let asked = host.clone();
    thread::spawn(move || {
        let _ = sender.send(Pipe::open(&asked));
        drop(open);
    });
    let mut waits = [PollFd::new(is_open, PollFlags::IN), PollFd::new(is_over, PollFlags::IN)];
    wait_until(&mut waits, Instant::now() + OPEN_MAX).ok()?;
    receiver.try_recv().ok()
}

/// Prints what the far end says until the connection is cut or nobody wants it any more.
fn attend(mut pipe: Pipe, is_over: &PipeReader) -> u8 {
    loop {
        match pipe.poll() {
            Next::Tell(Tell::Beat) => {}
            Next::Tell(tell) => {
                if io::stdout().lock().write_all(&line(&tell)).is_err() {
                    return CUT;
                }
            }
            Next::Cut => return CUT,
            Next::Nothing => {
                let mut waits =
                    [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN), PollFd::new(is_over, PollFlags::IN)];
                if !wait_until(&mut waits, Instant::now() + SILENCE_MAX).unwrap_or(false) {
                    return CUT;
                }
                if !waits[1].revents().is_empty() {
                    return 0;
                }
            }
        }
    }
}
