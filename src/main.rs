//! `swarm` supervises fleets of coding agents. This file is the table of
//! contents: which process this one is, and where its code is.

mod api;
mod board;
mod cli;
mod doctor;
mod jobs;
mod mcp;
mod notify;
mod processes;
mod reach;
mod verbs;
mod web;
mod wiring;

use std::ffi::OsString;
use std::process::ExitCode;

use nix::sys::signal::{SigHandler, Signal, signal};
use swarm_store::flows::turns;
use swarm_store::runs::order;
use swarm_sys::commands::runner;

use crate::processes::{attempt, far, forkserver, guard, near, pilot, shim, supervisor, turn};

fn main() -> ExitCode {
    ignore_file_size_signal();
    start(&std::env::args_os().collect::<Vec<_>>()).into()
}

/// Runs the process that the first argument names, and returns its exit code.
fn start(words: &[OsString]) -> u8 {
    let arguments = words.iter().skip(2).cloned();
    // An internal process is executed through /proc/…/exe, which would be its name in `ps` and `pgrep`.
    if words.get(1).is_some_and(|verb| verb.as_encoded_bytes().starts_with(b"__")) {
        let _ = nix::sys::prctl::set_name(c"swarm");
    }
    match words.get(1).and_then(|verb| verb.to_str()) {
        Some("__shim") => {
            close_inherited();
            match words.get(2).is_some_and(|word| word == "--alone") {
                true => shim::alone::main(words.get(3).map(OsString::as_os_str)),
                false => shim::main(words.get(2)),
            }
        }
        Some("__forkserver") => {
            close_inherited();
            forkserver::main()
        }
        Some("__guard") => {
            close_inherited();
            guard::main(arguments)
        }
        Some("__runner") => {
            close_inherited();
            runner::main(arguments)
        }
        Some(order::VERB) => attempt::main(arguments),
        Some(attempt::GATE) => attempt::gate(arguments),
        Some(turns::VERB) => turn::main(arguments),
        Some("__complete") => cli::complete(arguments),
        Some("__resolve") => attempt::resolve(arguments),
        Some(near::CARRY) => near::carry(arguments),
        Some(near::REACH) => {
            close_inherited();
            near::reach(arguments)
        }
        Some("__stdio") => far::main(),
        Some(far::KEEP) => {
            close_inherited();
            far::keep(arguments)
        }
        Some(far::MARKED) => cli::marked(arguments),
        Some(pilot::VERB) => pilot::main(arguments),
        Some("__attach") => far::attach(arguments),
        Some("__git") => far::git(arguments),
        Some(far::stream::VERB) => far::stream::main(arguments),
        Some(far::say::VERB) => far::say::main(arguments),
        Some(far::ENVIRONMENT) => far::print_environment(),
        Some("__supervisor") => supervisor::main(arguments),
        _ => cli::main(words),
    }
}

/// Makes a write beyond the caller's file size limit fail with an error, as a write to a closed pipe does already.
fn ignore_file_size_signal() {
    // SAFETY: ignoring installs no handler, so nothing runs in signal context.
    #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Closes every inherited descriptor except the standard streams. Processes that outlive their caller, and the
/// workers below them, must not keep the caller's files open. Called before this process opens anything itself.
fn close_inherited() {
    // SAFETY: no descriptor from 3 on has an owner yet.
    #[expect(unsafe_code, reason = "closing by number takes no owned descriptor")]
    let _ = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, 3, u32::MAX, 0) };
}
