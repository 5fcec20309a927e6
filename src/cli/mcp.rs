//! `swarm mcp`: the fleet as tools for an agent, on standard input and output.

use clap::{Args, ValueEnum};
use swarm_model::{Refusal, RefusalKind};

use super::error::Failure;
use super::screen::Screen;
use crate::mcp::{self, Allowed, End, Limits};
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct McpArgs {
    /// Allow more than looking (may be repeated)
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub allow: Vec<Allow>,
    /// Maximum number of workers above one that an agent starts, each started by the one before
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub depth: u64,
    /// Maximum number of workers that an agent has started and that have not ended
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub children: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allow {
    /// Start, stop and type into workers, and queue their work to land
    Act,
    /// Answer what agents ask of people
    Answer,
}

pub fn run(args: &McpArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if screen.terminal {
        screen.aside("hint: ", "this is for an agent; see 'swarm mcp --help'. Ctrl-D ends it");
    }
    let allowed = Allowed { act: args.allow.contains(&Allow::Act), answer: args.allow.contains(&Allow::Answer) };
    let limits = Limits { depth: args.depth, children: args.children };
    match mcp::serve(allowed, limits, paths.clone()) {
        Ok(()) => Ok(0),
        Err(End::NoProtocol) => {
            let cause = "the client did not begin with a request of the Model Context Protocol";
            Err(Refusal::new(RefusalKind::Invalid, cause).remedy("see 'swarm mcp --help'").into())
        }
        Err(End::System(error)) => Err(Failure::system("cannot serve the client", &error)),
    }
}
