//! The API under `/v1`: HTTP and JSON over a Unix socket, for the command, for
//! scripts with `curl --unix-socket`, and for pages.

pub mod client;
