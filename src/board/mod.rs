//! The board: what all faces show, read from files and the kernel as `ls` reads them. Looking at it starts no supervisor
//! and writes nothing.
//!
//! `source` reads what has changed and puts it into the board, which gives each row the revision of its last change;
//! `wire` writes rows as JSON. Faces depend on these modules, and these on no face.

mod bounded;
pub mod flow;
pub mod item;
pub mod run;
pub mod screen;
pub mod sgr;
pub mod source;
pub mod wire;
pub mod worker;

/// Rows as JSON objects.
pub type Board = swarm_actors::board::Board<Key, String>;

/// What a row shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Worker,
    /// An item of a merge queue with which something is left to do.
    Item,
    Run,
    /// A workstream of a run.
    Workstream,
    Flow,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Item => "item",
            Self::Run => "run",
            Self::Workstream => "workstream",
            Self::Flow => "flow",
        }
    }
}
