//! The files of flows.

#![cfg_attr(not(test), expect(dead_code, reason = "the verbs of flows read by it"))]

pub mod yaml;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod tables_tests;
#[cfg(test)]
mod traces_tests;
