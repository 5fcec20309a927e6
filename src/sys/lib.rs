//! Operating system services for swarm: files, locks, processes, control groups, clocks, paths and commands. Depends
//! only on the values of `swarm-model` and on the ports.

pub mod alarm;
pub mod allocation;
pub mod attributes;
mod boot_clock;
pub mod cgroups;
pub mod clock;
pub mod commands;
pub mod duration;
pub mod files;
pub mod logind;
pub mod lookup;
pub mod machine;
pub mod network;
pub mod owner;
pub mod paths;
pub mod pool;
pub mod processes;
pub mod procfs;
pub mod quoting;
pub mod readable;
pub mod restraints;
pub mod sockets;
pub mod state_id;
pub mod streams;
pub mod strip_ansi;
pub mod variables;
pub mod watching;
