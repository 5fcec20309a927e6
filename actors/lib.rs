//! The middle of `swarm`: what a worker is, what is kept of it, and the actors
//! that decide. It knows no terminal, no git, no tmux, no socket and no
//! process: those are behind the traits in [`ports`], which the binary fills.
//!
//! ```text
//!   model      the vocabulary (names, rows, records, requests, events)
//!   ports      what the rooms ask of the world
//!   supervisor the root actor: owns the rooms, restarts them, ends the process
//!   registry   the only writer of state.json
//!   worker     one actor per worker: start, watch, restart, stop, remove
//!   merge      the queue in which finished work reaches its base branch
//!   heartbeat  the session of each worker: its beats, and whether it is still ours
//!   loops      one agent, again and again with a fresh context
//!   flow       the rules of flows: roles that hand work to each other, with people in the loop
//!   flows      flows at work: turns of roles, each a worker's
//!   run        specs or jobs become finished work: order, attempts, dependencies
//!   nudges     text that is typed into windows on a schedule
//! ```
//!
//! Rooms ask only downwards (supervisor → run, loops, flows → merge, worker → registry) and cast upwards.

pub mod flow;
pub mod flows;
pub mod heartbeat;
pub mod loops;
pub mod merge;
pub mod nudges;
pub mod registry;
pub mod run;
pub mod supervisor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod worker;
