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
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|verb| verb.to_str()) {
        // First, because there is one for every worker and it is to stay small.
        Some("__shim") => shim::main(arguments.next().as_deref()),
        Some("__guard") => guard::main(arguments),
        Some("__supervisor") => daemon::main(arguments),
        _ => cli::main(),
    }
}
