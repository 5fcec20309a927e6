//! Landing: finished work reaches the base branch one verified step at a time.
//!
//! One queue for each repository and base branch ([`queue`]), its decisions as a
//! pure function ([`machine`]). What git and people do arrives as events; what is
//! to be done leaves as effects, and the queue is made durable before any of them.

pub mod machine;
pub mod queue;
