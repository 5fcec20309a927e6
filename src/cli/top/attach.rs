//! The terminal belongs to the window of a worker for a while.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::process::{Signal as ToSend, pidfd_send_signal};
use swarm_actors::top::Event;

use super::super::watch::{Interrupt, Until, wait_any};
use super::children::pidfd;
use super::shell::{End, last_words};
use crate::verbs::with_limit_of_caller;

/// A client that ends sooner was not attached: tmux has moved the client in which this program is.
const MOVED_MAX: Duration = Duration::from_secs(1);

/// Runs `swarm attach NAME` until it ends. Returns what is to be told, and the signal that ends this program, if one came.
///
/// # Errors
/// Fails if it cannot be started.
pub fn run(name: &str, signals: &Interrupt) -> io::Result<(Vec<Event>, Option<End>)> {
    let words = vec!["attach".to_owned(), "--".to_owned(), name.to_owned()];
    let began = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    with_limit_of_caller(&mut command);
    let mut child = match command.args(&words).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Ok((vec![Event::Told(format!("cannot attach: {error}"))], None)),
    };
    let (end, errors) = (pidfd(&child)?, child.stderr.take());
    let mut leaves_by = None;
    let status = loop {
        let sources = [(end.as_fd(), Until::Readable), (signals.as_fd(), Until::Readable)];
        wait_any(&sources, None).map_err(|failure| io::Error::other(failure.cause()))?;
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // Signals of the keyboard are meant for the window, and the size is read again afterwards.
        for signal in signals.take_all() {
            if matches!(signal, Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT) {
                leaves_by = Some(End::Signal(signal));
                let _ = pidfd_send_signal(&end, ToSend::TERM);
            }
        }
    };
    let mut output = Vec::new();
    if let Some(mut errors) = errors {
        // A program that the client left running may still have it.
        let _ = rustix::io::ioctl_fionbio(&errors, true);
        let _ = errors.read_to_end(&mut output);
    }
    let mut events = Vec::new();
    let words = vec!["attach".to_owned(), name.to_owned()];
    if !status.success() {
        events.push(Event::Done { words, code: status.code(), said: last_words(&output, false) });
    } else if std::env::var_os("TMUX").is_some() && began.elapsed() < MOVED_MAX {
        let text = "the window is in this tmux client now; prefix and L come back";
        events.push(Event::Told(text.to_owned()));
    }
    Ok((events, leaves_by))
}
