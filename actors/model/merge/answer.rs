//! What git and the commands of the user answer to a merge queue.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Build {
    /// The item's tip on top of what was given.
    Made(String),
    /// Everything of it is there already.
    Nothing,
    Conflict(Vec<String>),
    /// It could not be found out; the item waits.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Green,
    Red(String),
    /// The command was ended by a signal that the queue did not send, or could
    /// not be started: that says nothing about the commit.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The base holds it. Commits that landed under another name, as a signature
    /// gives them one: the candidate's and theirs.
    Done(Vec<(String, String)>),
    /// The base is no longer where the chain began.
    Moved,
    /// A person's uncommitted edits are in the way.
    Overlap(Vec<String>),
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A tip that is to take the place of the item's.
    Done(String),
    Failed(String),
}
