//! `swarm` supervises fleets of coding agents. This file is the table of
//! contents: which process this one is, and where its code is.

mod adapters;
mod api;
mod cli;
mod daemon;
mod guard;
mod paths;
mod shim;
mod wiring;

use std::process::ExitCode;

fn main() -> ExitCode {
    ignore_file_size_signal();
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|verb| verb.to_str()) {
        // First, because there is one for every worker and it is to stay small.
        Some("__shim") => {
            close_inherited();
            shim::main(arguments.next().as_deref())
        }
        Some("__guard") => {
            close_inherited();
            guard::main(arguments)
        }
        Some("__supervisor") => daemon::main(arguments),
        _ => cli::main(),
    }
}

/// What the caller of the first command, or a tmux server, happened to have open
/// is not for processes that outlive them, and not for workers. First of all,
/// while this process has nothing open itself beyond the standard streams.
fn close_inherited() {
    // SAFETY: no descriptor from 3 on has an owner yet.
    #[expect(unsafe_code, reason = "closing by number takes no owned descriptor")]
    let _ = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, 3, u32::MAX, 0) };
}

/// A caller's file size limit is to be an error with a name, not a death.
fn ignore_file_size_signal() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: ignoring installs no handler, so nothing runs in signal context.
    #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}
