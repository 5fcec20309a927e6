//! Tests of the rooms over fakes, in virtual time: a module for each room, one for supervisors that
//! are killed, and one for random sequences of events.

mod adoption;
mod crash;
mod fixture;
mod flows;
mod landing;
mod limits;
mod loop_blocked;
mod loop_edges;
mod loop_theirs;
mod loops;
mod merge;
mod nudges;
mod ports;
mod power;
mod random;
mod recover;
mod registry;
mod removal;
mod respawn;
mod restart;
mod resume;
mod run;
mod run_followed;
mod run_given_up;
mod run_hosts;
mod run_left;
mod run_rules;
mod run_stuck;
mod run_unfit;
mod sessions;
mod store;
mod stuck;
mod supervisor;
mod survivors;
mod worker;
