//! A flow: a graph of roles that hand work to each other, with people in the loop.
//!
//! ```text
//!             forward pass                       improvement phase
//!  new ─▶ running ──last owner closes──▶ awaiting_improvement_choice
//!           │  ▲                              │ none        │ a mode
//!    turns, │  │ answers, approvals,          ▼             ▼
//!    waits  └──┘ handoffs                 completed ◀── running ──▶ awaiting_feedback_consent
//!                                              ▲                          │
//!                                              └────── denied, or written ┘
//! ```
//!
//! This module has only the rules, as pure functions: no files, clocks, processes or YAML; documents
//! are passed as values. The original runtime (A-Society) reads and continues the same flows, so each
//! rule produces that runtime's state, field by field. Where the original crashes or hangs forever,
//! these rules refuse or report it.
//!
//! - [`document`], [`state`]: `flow.json`, and the state in it
//! - [`graph`], [`validate`], [`live`]: the workflow, its validation by itself and against a flow
//! - [`schedule`], `board`, [`entry`]: which nodes run next, and what their turns receive
//! - [`block`], [`handoff`]: the signals of agents, and their effects
//! - [`operator`], [`consent`]: commands and answers of people
//! - [`improvement`], [`plan`]: the improvement phase
//! - [`record`], [`status`], [`names`], [`json`]

pub mod block;
mod board;
pub mod consent;
pub mod document;
pub mod entry;
pub mod graph;
pub mod handoff;
pub mod improvement;
pub mod json;
pub mod live;
pub mod names;
pub mod operator;
pub mod plan;
pub mod record;
pub mod schedule;
pub mod state;
pub mod status;
pub mod validate;

#[cfg(test)]
mod document_tests;
#[cfg(test)]
mod rules_tests;
#[cfg(test)]
mod walk_tests;
#[cfg(test)]
mod workflow_tests;
