//! The core of `swarm`: the actors that supervise workers, runs, loops, flows and merge queues.
//!
//! This crate knows no terminal, git, tmux, socket or process. They are behind the traits of [`swarm_ports`], which
//! the binary implements. The values that actors exchange (names, rows, records, requests, events) are in
//! [`swarm_model`].
//!
//! ```text
//!   supervisor the root actor: owns all other actors, restarts them, ends the process
//!   registry   the only writer of state.json
//!   worker     one actor per worker: start, watch, restart, stop, remove
//!   merge      one actor per merge queue: lands finished work on the base branch
//!   sessions   sessions of workers: beats, ownership, and workers that are stuck
//!   loops      one actor per loop: restarts an agent with a fresh context until its task is done
//!   flow       one actor per running flow: starts a worker for each turn of a role; `flow::rules` has the rules
//!   run        one actor per run: turns specs or jobs into landed work (order, attempts, dependencies)
//!   nudges     text that is typed into windows on a schedule
//!   jobs       no actor: what has become of workers that are jobs of a batch system
//!   board      no actor: which rows have changed since a reader looked
//!   top        no actor: the screen of `swarm top`, without a terminal
//! ```
//!
//! Requests go down only (supervisor → run, loops, flows → merge, worker → registry); reports go up as casts.

mod alarm;
pub mod board;
pub mod flow;
pub mod jobs;
pub mod loops;
pub mod merge;
pub mod nudges;
pub mod registry;
pub mod run;
pub mod sessions;
pub mod supervisor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod top;
mod unread;
pub mod worker;
