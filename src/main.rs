//! `swarm` supervises fleets of coding agents. This file is the table of
//! contents: which process this one is, and where its code is.

mod adapters;
mod api;
mod cli;
mod paths;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
