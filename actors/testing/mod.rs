//! The ports over memory, and a [`World`] that wires them: what the rooms are
//! tested against, under tokio's paused time.
//!
//! ```text
//!   World ──┬── Script      which call fails, panics or never returns; what was called
//!           ├── Kernel      processes by identity, and which boot this is
//!           ├── FakeRecords the directories below w/
//!           └── FakeLauncher, FakeProcesses, FakeWorktrees, FakeEvents, FakeLogs, FakeClock
//!   FakeLandings             one repository and one merge queue's journal
//!   FakeRuns                 the journals of runs
//!   FakeFlows                flows whose turns are known beforehand
//!   FakeSessions             states of sessions, and how often was beaten
//!   FakeLoops                the records of loops, and their prompts
//!   FakeNudges               files of nudges
//!   FakeTerminals            what windows show and what was typed into them
//! ```
//!
//! Only `state.json` is real, in a directory that the test gives. A world
//! outlives the actors above it, as a machine outlives its supervisor.

mod clock;
mod events;
mod flows;
mod invariants;
mod kernel;
mod landings;
mod launcher;
mod loops;
mod nudges;
mod processes;
mod records;
mod runs;
mod script;
mod sessions;
mod terminals;
mod worktrees;
mod world;

pub use clock::FakeClock;
pub use events::{FakeEvents, FakeLogs};
pub use flows::FakeFlows;
pub use kernel::Kernel;
pub use landings::FakeLandings;
pub use launcher::FakeLauncher;
pub use loops::FakeLoops;
pub use nudges::FakeNudges;
pub use processes::FakeProcesses;
pub use records::{FakeRecords, Key};
pub use runs::FakeRuns;
pub use script::{Fault, Script};
pub use sessions::FakeSessions;
pub use terminals::FakeTerminals;
pub use worktrees::FakeWorktrees;
pub use world::World;
