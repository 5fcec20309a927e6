//! `swarm` supervises fleets of coding agents. This file is the table of
//! contents: which process this one is, and where its code is.

#![cfg_attr(not(test), no_main)]

mod adapters;
mod agents;
mod api;
mod attempt;
mod cli;
mod config;
mod daemon;
mod doctor;
mod duration;
#[cfg(not(test))]
mod entry;
mod forkserver;
mod guard;
mod memory;
mod paths;
mod role;
mod runner;
mod shim;
mod wiring;

use std::ffi::OsString;

/// Runs this process and returns its exit code.
fn start(words: Vec<OsString>) -> u8 {
    let arguments = words.iter().skip(2).cloned();
    // These are executed as /proc/…/exe, and would be called that.
    if words.get(1).is_some_and(|verb| verb.as_encoded_bytes().starts_with(b"__")) {
        let _ = nix::sys::prctl::set_name(c"swarm");
    }
    match words.get(1).and_then(|verb| verb.to_str()) {
        Some("__shim") => {
            close_inherited();
            shim::main(words.get(2))
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
        Some(adapters::runs::order::VERB) => attempt::main(arguments),
        Some(adapters::flows::turns::VERB) => role::main(arguments),
        Some("__complete") => cli::complete(arguments),
        Some("__resolve") => attempt::resolve(arguments),
        Some("__supervisor") => daemon::main(arguments),
        _ => cli::main(&words),
    }
}

#[cfg(test)]
fn main() {
    std::process::exit(start(std::env::args_os().collect()).into());
}

/// What the caller of the first command, or a tmux server, happened to have open
/// is not for processes that outlive them, and not for workers. First of all,
/// while this process has nothing open itself beyond the standard streams.
fn close_inherited() {
    // SAFETY: no descriptor from 3 on has an owner yet.
    #[expect(unsafe_code, reason = "closing by number takes no owned descriptor")]
    let _ = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, 3, u32::MAX, 0) };
}
