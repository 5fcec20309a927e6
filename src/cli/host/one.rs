//! A verb on one host.

use std::io::{IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use swarm_hosts::frames::{Ask, Bytes, CHUNK_BYTES, Call, LINE_BYTES_MAX, SILENCE_MAX, Tell, line};
use swarm_hosts::{Fault, Host, Input, Next, Pipe};
use swarm_model::{Refusal, RefusalKind};

use super::kind::{Kind, kind_of, wants_input};
use crate::cli::args::Command;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::watch::{Interrupt, Until, wait_any};

/// Maximum number of times that a verb that reads is executed if the connection is cut.
const TRIES_MAX: u32 = 2;
/// Exit code if the host does not answer.
const OUT_OF_REACH: u8 = 255;
/// Exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;

pub fn run(host: &Host, command: &Command, words: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    // Before the connection, whose threads must not get the signal.
    let interrupt = Interrupt::catch()?;
    let input = wants_input(command, words) && !std::io::stdin().is_terminal();
    let reads = kind_of(command) == Kind::Reads;
    let mut has_printed = false;
    for _ in 0..TRIES_MAX {
        let Some(opened) = opened(host, &interrupt)? else { return Ok(INTERRUPTED) };
        let pipe = opened.map_err(|fault| out_of_reach(fault.into()))?;
        ask(&pipe, host, words, input)?;
        if let Some(code) = attend(pipe, host, &interrupt, screen, &mut has_printed)? {
            return Ok(code);
        }
        // If nothing was shown, it can be shown again.
        if has_printed || !reads {
            break;
        }
    }
    Err(cut(host, words, reads))
}

/// Connects, which may take a while; `None` if a person gives up before.
fn opened(host: &Host, interrupt: &Interrupt) -> Result<Option<Result<Pipe, Fault>>, Failure> {
    let (done, is_done) = std::io::pipe().map_err(|error| Failure::system("cannot make a pipe", &error))?;
    let (sender, receiver) = mpsc::channel();
    let asked = host.clone();
    thread::spawn(move || {
        let _ = sender.send(Pipe::open(&asked));
        drop(is_done);
    });
    let ready = wait_any(&[(done.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable)], None)?;
    match receiver.try_recv() {
        Ok(opened) if ready[0] => Ok(Some(opened)),
        _ if ready[1] => Ok(None),
        _ => Err(Failure::new(RefusalKind::Internal, "the connection could not be made")),
    }
}

/// Returns the failure of a connection that was cut.
fn cut(host: &Host, words: &[String], reads: bool) -> Failure {
    let mut refusal = Refusal::from(Fault::cut(host));
    if !reads {
        // The other words may be long, or secret.
        let verb = words.first().map(String::as_str).unwrap_or_default();
        refusal.cause = format!("{}; it is not known whether '{verb}' was executed", refusal.cause);
        refusal.remedy = Some(format!("run 'swarm --host {} ls' to look", host.name));
    }
    out_of_reach(refusal)
}

/// Returns the failure of a host that does not answer. Its exit code is that of ssh: all others are answers of the verb.
fn out_of_reach(refusal: Refusal) -> Failure {
    Failure::Refused { refusal: Box::new(refusal), code: OUT_OF_REACH }
}

/// Asks the far end to execute the verb.
///
/// # Errors
/// Fails if the words are too long.
pub fn ask(pipe: &Pipe, host: &Host, words: &[String], input: bool) -> Result<(), Refusal> {
    let call = Ask::Verb(Call { words: words.to_owned(), dir: host.dir.clone(), state: host.state.clone(), input });
    if line(&call).len() > LINE_BYTES_MAX {
        let cause = format!("the words are longer than {LINE_BYTES_MAX} bytes, too long for another host");
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("put them into a file there"));
    }
    // A connection that was cut is noticed by whoever reads next.
    let _ = pipe.send(&call);
    if input {
        pass_input(pipe.input());
    }
    Ok(())
}

/// Passes standard input on, in a thread: it may never end.
fn pass_input(input: Input) {
    thread::spawn(move || {
        let mut block = vec![0; CHUNK_BYTES];
        let mut stdin = std::io::stdin().lock();
        loop {
            let sent = match stdin.read(&mut block) {
                Ok(0) => return drop(input.send(&Ask::InputEnd)),
                Ok(read) => input.send(&Ask::Input(Bytes::of(&block[..read]))),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
                Err(_) => return drop(input.send(&Ask::InputEnd)),
            };
            if sent.is_err() {
                return;
            }
        }
    });
}

/// Prints what the verb prints, and returns its exit code; `None` if the connection was cut.
fn attend(
    mut pipe: Pipe,
    host: &Host,
    interrupt: &Interrupt,
    screen: &mut Screen,
    has_printed: &mut bool,
) -> Result<Option<u8>, Failure> {
    let mut interrupts = 0;
    loop {
        if interrupt.take().is_some() {
            interrupts += 1;
            // The second one is for this process: the first may not have arrived.
            if interrupts > 1 || pipe.send(&Ask::Signal("INT".to_owned())).is_err() {
                return Ok(Some(INTERRUPTED));
            }
        }
        match pipe.poll() {
            Next::Tell(Tell::Out(bytes)) => {
                *has_printed = true;
                screen.bytes(bytes.as_slice())?;
            }
            Next::Tell(Tell::Err(bytes)) => {
                *has_printed = true;
                screen.flush()?;
                screen.errors(bytes.as_slice());
            }
            Next::Tell(Tell::Exit(code)) => return Ok(Some(code)),
            Next::Tell(Tell::Refused(cause)) => {
                return Err(Failure::new(RefusalKind::Invalid, format!("{}: {cause}", host.name)));
            }
            Next::Tell(Tell::Beat | Tell::Answer { .. }) => {}
            Next::Cut => return Ok(None),
            Next::Nothing => {
                screen.flush()?;
                let sources = [(pipe.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable)];
                let ready = wait_any(&sources, Some(Instant::now() + SILENCE_MAX))?;
                if !ready.contains(&true) {
                    return Ok(None);
                }
            }
        }
    }
}
