//! In-memory implementations of the ports, and a [`World`] that wires them up. Rooms are tested
//! against them under tokio's paused time.
//!
//! ```text
//!   World ──┬── Script      faults: calls that fail, panic or never return; list of calls
//!           ├── Kernel      processes by identity, and the present boot
//!           ├── FakeRecords the directories below w/
//!           └── FakeLauncher, FakeProcesses, FakeWorktrees, FakeEvents, FakeLogs, FakeClock
//!   FakeLandings             one repository and the journal of its merge queue
//!   FakeRuns                 journals of runs
//!   FakeFlows                flows with planned turns
//!   FakeHosts                other machines, each with planned ends of attempts
//!   FakeSessions             states of sessions, and counts of their beats
//!   FakeLoops                files of loops, and their prompts
//!   FakeNudges               files of nudges
//!   FakeTerminals            contents of windows, and texts typed into them
//! ```
//!
//! Only `state.json` is a real file, in a directory of the test. A world outlives the actors above
//! it, as a machine outlives its supervisor.

mod clock;
mod events;
mod flows;
mod hosts;
mod invariants;
mod jobs;
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
pub use hosts::{FakeHosts, exit_record};
pub use jobs::FakeJobs;
pub use kernel::Kernel;
pub use landings::FakeLandings;
pub use launcher::FakeLauncher;
pub use loops::FakeLoops;
pub use nudges::FakeNudges;
pub use processes::FakeProcesses;
pub use records::{FakeRecords, Key};
pub use runs::{ASKS, FakeRuns};
pub use script::{Fault, Script};
pub use sessions::FakeSessions;
pub use terminals::FakeTerminals;
pub use worktrees::FakeWorktrees;
pub use world::World;
