//! The built binary, end to end: real git, real tmux on a private socket, real
//! signals. One test binary; a module for each topic.

mod common;

mod coexist;
mod completions;
mod config;
mod crash;
mod damage;
mod docs;
mod doctor;
mod escaped;
mod explain;
mod fleets;
mod flow;
mod flow_odds;
mod flow_run;
mod furnished;
mod hooks;
mod house;
mod landing;
mod landing_odds;
mod landing_story;
mod life;
mod limits;
mod names;
mod notify;
mod nudges;
mod odds;
mod ralph;
mod ralph_theirs;
mod ralph_words;
mod recover;
mod restore;
mod run;
mod run_again;
mod run_odds;
mod run_others;
mod schemas;
mod secrets;
mod sessions;
mod tmux;
mod tree;
mod trust;
mod units;
mod words;
mod worktrees;
