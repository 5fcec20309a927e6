//! Follows the board without a screen: as JSON for programs, or as one line of text for each change, which a screen reader
//! reads once.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use swarm_actors::top::{Class, Id, Kind as RowKind, Row, Sort};

use super::super::error::Failure;
use super::super::render::{Clock, escape};
use super::super::screen::Screen;
use super::super::watch::{Interrupt, Until, wait_any};
use super::shown::Shown;
use crate::board::source::Source;
use crate::board::{Board, wire};
use swarm_sys::clock::random_token;
use swarm_sys::paths::Paths;

/// Prints everything, then each change, as lines of JSON.
pub fn json(paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let id = random_token();
    follow(paths, screen, |board, rev, screen| {
        let line = if rev.is_none() { wire::whole(&id, board) } else { wire::change(&id, board, rev.unwrap_or(0)) };
        screen.line(&line)
    })
}

/// Prints a line for each worker, then one for each change that a person would see.
pub fn lines(paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let (mut told, mut shown) = (BTreeMap::<Id, (String, String)>::new(), Shown::default());
    follow(paths, screen, |board, rev, screen| {
        let (mut rows, gone) = shown.take(&board.since(rev.unwrap_or(0)), &Clock::system());
        rows.sort_by(|one, other| Sort::Need.compare(one, other));
        if rev.is_none() {
            screen.line(&super::draw::counts(&rows))?;
        }
        // A request is in the line of its worker.
        for row in rows.iter().filter(|row| row.id.kind != RowKind::Request) {
            let (name, line) = (name_of(row), line_of(row));
            if told.insert(row.id.clone(), (name, line.clone())).is_none_or(|(_, earlier)| earlier != line) {
                screen.line(&line)?;
            }
        }
        for id in gone {
            // Work that has landed is no item any more.
            if let Some((name, _)) = told.remove(&id) {
                screen.line(&format!("{name}: gone"))?;
            }
        }
        Ok(())
    })
}

/// Returns what a row is about, with its kind unless it is a worker.
fn name_of(row: &Row) -> String {
    let of = row.branch.as_ref().filter(|branch| branch.depth > 0).map(|branch| format!("{}/", escape(&branch.name)));
    let what = match row.id.kind {
        RowKind::Worker | RowKind::Request => "",
        RowKind::Item => "merge item ",
        RowKind::Run => "run ",
        RowKind::Workstream => "workstream ",
        RowKind::Flow => "flow ",
        RowKind::Node | RowKind::Gate => "node ",
    };
    format!("{what}{}{}", of.unwrap_or_default(), row.label)
}

fn line_of(row: &Row) -> String {
    let needs = if row.class == Class::NeedsYou { "needs you: " } else { "" };
    let at = if row.at.is_empty() { String::new() } else { format!(", {}", row.at) };
    format!("{needs}{}: {}{at}", name_of(row), row.state)
}

/// Calls `print` with the board and the revision that was printed last, first with none, then after each change.
fn follow(
    paths: &Paths,
    screen: &mut Screen,
    mut print: impl FnMut(&Board, Option<u64>, &mut Screen) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    // Before the first line, which tells that Ctrl-C ends it.
    let interrupt = Interrupt::catch()?;
    let mut source = Source::new(paths).map_err(|error| Failure::system("cannot watch for changes", &error))?;
    let (mut board, mut told) = (Board::default(), Vec::new());
    warn(source.look(&mut board)?, &mut told, screen);
    print(&board, None, screen)?;
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
            // The board keeps the rows that were read. The next look reads the others again.
            Err(refusal) => warn(vec![refusal.cause], &mut told, screen),
        }
        if board.rev() != rev {
            print(&board, Some(rev), screen)?;
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
