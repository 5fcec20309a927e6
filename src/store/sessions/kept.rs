//! Where an agent keeps its conversation, as its hook told: a file among the records of its worker.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_sys::files::{Durability, replace_private};

const CONVERSATION: &str = "conversation.json";

/// File of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub file: PathBuf,
    /// Length of the file when it was first named: what follows was said in this life of the worker.
    pub from: u64,
}

/// Reads where the agent of the worker whose records are in `dir` keeps its conversation; `None` if that is unknown.
pub fn conversation(dir: &Path) -> Option<Conversation> {
    serde_json::from_slice(&std::fs::read(dir.join(CONVERSATION)).ok()?).ok()
}

/// Records where an agent keeps its conversation, unless that is known.
///
/// # Errors
/// Returns any I/O error.
pub fn note_conversation(dir: &Path, file: &Path) -> io::Result<()> {
    if conversation(dir).is_some_and(|known| known.file == file) {
        return Ok(());
    }
    let from = std::fs::metadata(file).map_or(0, |meta| meta.len());
    let known = Conversation { file: file.to_owned(), from };
    replace_private(dir, CONVERSATION, &serde_json::to_vec(&known)?, Durability::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_is_not_part_of_this_life() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(conversation(dir.path()), None);
        let file = dir.path().join("c.jsonl");
        let noted = || {
            note_conversation(dir.path(), &file).expect("noted");
            conversation(dir.path()).expect("known").from
        };
        assert_eq!(noted(), 0, "it does not exist yet");
        std::fs::write(&file, "{}\n").expect("written");
        assert_eq!(noted(), 0, "it is known");
        note_conversation(dir.path(), Path::new("/other")).expect("noted");
        assert_eq!(noted(), 3, "it was continued");
    }
}
