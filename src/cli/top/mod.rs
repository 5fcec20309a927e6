//! `swarm top`: the fleet on a screen, as lines, or as JSON. Looking reads files and the kernel only, starts no supervisor
//! and writes nothing; acts are the verbs that exist, run as children.
//!
//! All decisions are in [`swarm_actors::top`]. `shell` waits for keys, changes and ends, and carries out what the machine
//! wants; `draw` renders it, `reader` reads the text of the detail, `terminal` has the terminal.

mod args;
mod attach;
mod children;
mod draw;
mod follow;
mod input;
mod reader;
mod rows;
mod shell;
mod shown;
mod terminal;
mod trees;

use std::io::IsTerminal as _;

use swarm_model::{Refusal, RefusalKind};

pub use args::TopArgs;
pub use args::notes;

use super::error::Failure;
use super::screen::Screen;
use super::watch::allow_many_descriptors;
use crate::verbs;
use swarm_sys::paths::Paths;

pub fn run(args: &TopArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    verbs::keep_descriptor_limit();
    if args.is_followed() {
        allow_many_descriptors();
        return if args.json { follow::json(paths, screen) } else { follow::lines(paths, screen) };
    }
    if !std::io::stdin().is_terminal() || !screen.terminal {
        let refusal = Refusal::new(RefusalKind::Invalid, "'swarm top' needs a terminal for its input and its output");
        return Err(refusal
            .remedy("run 'swarm top --lines', 'swarm top --json' for a program, or 'swarm ls -l'")
            .into());
    }
    allow_many_descriptors();
    shell::run(args, paths)
}
