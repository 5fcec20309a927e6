//! What swarm needs of the operating system, and nothing of what swarm is: files, locks, processes, control
//! groups, clocks, paths and commands. Depends on the values of `swarm-model` and the ports only.

pub mod alarm;
pub mod cgroups;
pub mod clock;
pub mod commands;
pub mod duration;
pub mod files;
pub mod logind;
pub mod lookup;
pub mod paths;
pub mod processes;
pub mod procfs;
pub mod readable;
pub mod strip_ansi;
