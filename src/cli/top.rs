//! `swarm top`: the fleet as it is, and each of its changes.

use std::os::fd::AsFd as _;

use swarm_model::{Refusal, RefusalKind};

use super::args::TopArgs;
use super::error::Failure;
use super::screen::Screen;
use super::watch::{Interrupt, Until, allow_many_descriptors, wait_any};
use crate::board::source::Source;
use crate::board::{Board, wire};
use swarm_sys::clock::random_token;
use swarm_sys::paths::Paths;

pub fn run(args: &TopArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if !args.json {
        let refusal = Refusal::new(RefusalKind::Invalid, "'swarm top' prints for programs only, with --json");
        return Err(refusal.remedy("run 'swarm ls -l' for a table").into());
    }
    allow_many_descriptors();
    // Before the first line, which tells that Ctrl-C ends it.
    let interrupt = Interrupt::catch()?;
    let mut source = Source::new(paths).map_err(|error| Failure::system("cannot watch for changes", &error))?;
    let (mut board, id, mut told) = (Board::default(), random_token(), Vec::new());
    warn(source.look(&mut board)?, &mut told, screen);
    screen.line(&wire::whole(&id, &board))?;
    screen.flush()?;
    let mut rev = board.rev();
    loop {
        let stdout = std::io::stdout();
        let sources =
            [(source.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable), (stdout.as_fd(), Until::HungUp)];
        let ready = wait_any(&sources, source.due())?;
        if ready[1] {
            return Ok(0);
        }
        if ready[2] {
            return Err(Failure::Output(std::io::ErrorKind::BrokenPipe.into()));
        }
        match source.look(&mut board) {
            Ok(warnings) => warn(warnings, &mut told, screen),
            // What was read stays on the board, and the next look tries again.
            Err(refusal) => warn(vec![refusal.cause], &mut told, screen),
        }
        if board.rev() != rev {
            screen.line(&wire::change(&id, &board, rev))?;
            screen.flush()?;
            rev = board.rev();
        }
    }
}

/// Prints warnings that are new.
fn warn(warnings: Vec<String>, told: &mut Vec<String>, screen: &mut Screen) {
    for warning in warnings {
        if !told.contains(&warning) {
            screen.warning(&warning);
            told.push(warning);
        }
    }
}
