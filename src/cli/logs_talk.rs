//! The conversation of an agent in a window, for `swarm logs --follow`: read from the file that the agent keeps, which its
//! hooks name.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use swarm_agents::conversation::kept::{Kept, Spoken};
use swarm_model::{Doing, NeedKind};

use super::error::Failure;
use super::follow::Beyond;
use super::logs_window::Lines;
use super::render::escape;
use super::said;
use super::tail::{From, Pending, Place, Tail};
use swarm_store::sessions::{self, Conversation};
use swarm_sys::paths::Paths;

/// How far a conversation was printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Mark {
    known: Option<Conversation>,
    place: Option<Place>,
    /// Incomplete last line.
    pending: String,
    asked: Option<String>,
}

/// Conversation that is followed.
pub struct Talk<'a> {
    paths: &'a Paths,
    beyond: Rc<Beyond>,
    /// Directory that is watched.
    watched: Option<String>,
    known: Option<Conversation>,
    tail: Option<Tail>,
    pending: Pending,
    kept: Kept,
    /// Permission that the agent asks for, and which was printed.
    asked: Option<String>,
}

impl<'a> Talk<'a> {
    /// Begins at the present end of the conversation.
    pub fn start(paths: &'a Paths, beyond: Rc<Beyond>) -> Result<Self, Failure> {
        let (pending, kept) = (Pending::default(), Kept::default());
        let mut talk = Self { paths, beyond, watched: None, known: None, tail: None, pending, kept, asked: None };
        if let Some(dir) = talk.dir()? {
            if let Some(known) = sessions::conversation(&dir) {
                let from = std::fs::metadata(&known.file).map_or(known.from, |meta| meta.len());
                talk.open(Conversation { from, ..known.clone() })?;
                talk.known = Some(known);
            }
            talk.asked = asks(&dir);
        }
        Ok(talk)
    }

    /// Goes on where another one was.
    pub fn go_on(paths: &'a Paths, beyond: Rc<Beyond>, mark: Mark) -> Result<Self, Failure> {
        let Mark { known, place, pending, asked } = mark;
        let kept = Kept::default();
        let mut talk =
            Self { paths, beyond, watched: None, known: None, tail: None, pending: Pending::default(), kept, asked };
        talk.dir()?;
        if let (Some(known), Some(place)) = (&known, place) {
            let mut tail = Tail::new(known.file.clone());
            tail.go_on(&place, &mut |_: &[u8]| Ok(()))?;
            talk.pending.whole(pending.as_bytes());
            talk.tail = Some(tail);
        }
        talk.known = known;
        Ok(talk)
    }

    /// Returns how far it was printed.
    pub fn mark(&self) -> Result<Option<Mark>, Failure> {
        let place = self.tail.as_ref().map(Tail::place).transpose()?;
        let pending = String::from_utf8_lossy(self.pending.rest()).into_owned();
        Ok(Some(Mark { known: self.known.clone(), place, pending, asked: self.asked.clone() }))
    }

    /// Reports whether the agent has a conversation.
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Prints what was said since the last call, and what the agent asks a permission for.
    pub fn look(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let Some(dir) = self.dir()? else { return Ok(()) };
        self.drain(lines)?;
        let now = sessions::conversation(&dir);
        // Records that are removed belong to a worker that was cleaned.
        if now != self.known && dir.is_dir() {
            if let Some(now) = &now {
                self.open(now.clone())?;
            }
            self.known = now;
            self.drain(lines)?;
        }
        let asked = asks(&dir);
        if let Some(what) = asked.as_ref().filter(|what| self.asked.as_ref() != Some(what)) {
            lines(&format!("? {}", escape(what)))?;
        }
        self.asked = asked;
        Ok(())
    }

    /// Returns the directory of the worker's records, which is watched.
    fn dir(&mut self) -> Result<Option<PathBuf>, Failure> {
        let now = self.beyond.dir.borrow().clone();
        let dir = now.as_ref().map(|dir| self.paths.workers().join(dir));
        if let Some(dir) = dir.as_ref().filter(|_| now != self.watched) {
            self.beyond.changes.add_dir(dir)?;
            self.watched = now;
        }
        Ok(dir)
    }

    /// Continues with a file, which need not exist yet.
    fn open(&mut self, conversation: Conversation) -> Result<(), Failure> {
        let Conversation { file, from } = conversation;
        self.pending = Pending::default();
        self.tail = None;
        if file.exists() && !file.is_file() {
            return Ok(());
        }
        let mut tail = Tail::new(file);
        tail.start(From::Byte(from), &mut |_: &[u8]| Ok(()))?;
        self.tail = Some(tail);
        Ok(())
    }

    fn drain(&mut self, lines: &mut Lines) -> Result<(), Failure> {
        let Some(tail) = &mut self.tail else { return Ok(()) };
        // Before it is read, so that nothing is missed. The file may appear, and be replaced.
        self.beyond.changes.add_file(tail.path())?;
        if let Some(dir) = tail.path().parent() {
            self.beyond.changes.add_dir(dir)?;
        }
        let (pending, kept) = (&mut self.pending, &mut self.kept);
        let mut sink = |bytes: &[u8]| {
            for line in pending.whole(bytes) {
                for spoken in kept.line(&line) {
                    let shown = match &spoken {
                        Spoken::Prompt(text) => said::block("❯ ", "  ", text),
                        Spoken::Said(said) => said::lines(said),
                    };
                    shown.iter().try_for_each(|line| lines(line))?;
                }
            }
            Ok(())
        };
        while tail.drain(&mut sink)?.more {}
        Ok(())
    }
}

/// Returns what the agent asks a permission for.
fn asks(dir: &Path) -> Option<String> {
    let tool = sessions::recorded(dir)?;
    let is_asked = tool.doing() == Doing::Waiting && tool.kind == Some(NeedKind::Permission);
    tool.waiting.filter(|_| is_asked)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use super::*;
    use crate::cli::watch::Changes;

    fn says(file: &Path, text: &str) {
        let line = format!(
            "{{\"type\":\"assistant\",\"message\":{{\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}}]}}}}\n"
        );
        let mut file = OpenOptions::new().create(true).append(true).open(file).expect("open");
        file.write_all(line.as_bytes()).expect("written");
    }

    fn looked(talk: &mut Talk<'_>) -> Vec<String> {
        let mut said = Vec::new();
        let looked = talk.look(&mut |line| {
            said.push(line.to_owned());
            Ok(())
        });
        looked.expect("read");
        said
    }

    #[test]
    fn a_conversation_is_followed_from_its_present_end_into_the_next_one() {
        let state = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(state.path());
        let dir = paths.workers().join("a.1");
        fs::create_dir_all(&dir).expect("made");
        let file = |name: &str| state.path().join(name);
        let beyond = || {
            let changes = Changes::new().expect("watched");
            Rc::new(Beyond { changes, due: Cell::default(), dir: RefCell::new(Some("a.1".to_owned())) })
        };
        let mut early = Talk::start(&paths, beyond()).expect("started");
        assert_eq!(looked(&mut early), Vec::<String>::new());
        assert!(!early.is_known());
        sessions::note_conversation(&dir, &file("one")).expect("noted");
        says(&file("one"), "first");
        assert_eq!(looked(&mut early), ["first"]);
        let mut late = Talk::start(&paths, beyond()).expect("started");
        assert!(early.is_known() && late.is_known());
        says(&file("one"), "second");
        says(&file("two"), "of an earlier life");
        sessions::note_conversation(&dir, &file("two")).expect("noted");
        says(&file("two"), "third");
        for talk in [&mut early, &mut late] {
            assert_eq!(looked(talk), ["second", "third"]);
            assert_eq!(looked(talk), Vec::<String>::new());
        }
    }
}
