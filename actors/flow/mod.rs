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
//! Here are the rules alone: values in, values out. No file, clock or process is known
//! here, and no YAML: documents come as values. Another program keeps the same files and
//! goes on with the same flows, so what a rule makes of a state is that program's, to the
//! field; where it breaks off or waits for ever, ours refuses or says so.
//!
//! - [`document`], [`state`]: `flow.json`, and the state in it
//! - [`graph`], [`validate`], [`live`]: the workflow, what is wrong with it, and whether
//!   it still fits
//! - [`schedule`], `board`, [`entry`]: who works next, and what they are told
//! - [`block`], [`handoff`]: what an agent says, and what that does
//! - [`operator`], [`consent`]: what people say
//! - [`improvement`], [`plan`]: looking back
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
