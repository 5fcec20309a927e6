//! Reads what an agent used from the file that it keeps of its conversation, while the agent works.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use swarm_agents::transcript::Count;
use swarm_agents::{Launch, Session};
use swarm_model::run::progress::Spent;
use swarm_sys::files::list;

/// Number of directories that are searched at most, the newest ones by name first.
const DIRS_MAX: usize = 400;
/// Maximum length of a line that is counted, in bytes.
const LINE_BYTES_MAX: usize = 8 << 20;

/// Times after the last output of an agent at which the file is read once more. The agent writes what an answer used when the
/// answer is complete. By then it may already have said that it uses a tool, and it says no more until the tool has run.
const LATER: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(2)];

/// File of one conversation, during one turn.
pub struct Transcript {
    count: Count,
    /// Directory of all conversations, and the number of levels in it.
    place: (PathBuf, usize),
    id: String,
    file: Option<File>,
    /// Incomplete line.
    line: Vec<u8>,
    base: Spent,
    last: Spent,
    /// When the agent has printed something last, and how many of [`LATER`] are over since then.
    heard: Option<(Instant, usize)>,
}

impl Transcript {
    /// Prepares for a turn. Reads what there is of a conversation that is continued. `None` if the place is not known.
    pub fn begin(count: Count, launch: &Launch, before: Option<&Session>) -> Option<Self> {
        let variable = |name: &str| {
            let set = launch.env.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.into());
            set.or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let place = count.place(variable)?;
        let id = before.map(|before| before.id.clone()).unwrap_or_default();
        let none = Spent::default();
        let mut transcript =
            Self { count, place, id, file: None, line: Vec::new(), base: none, last: none, heard: None };
        if before.is_some() {
            transcript.read();
        }
        transcript.base = transcript.count.base(before);
        Some(transcript)
    }

    /// The id of the conversation is known.
    pub fn named(&mut self, id: &str) {
        if self.id != id {
            id.clone_into(&mut self.id);
            self.file = None;
        }
    }

    /// The agent has printed something.
    pub fn heard(&mut self) {
        self.heard = Some((Instant::now(), 0));
    }

    /// Returns the time after which [`Transcript::look`] has to be called, even if the agent prints nothing more.
    pub fn pause(&mut self) -> Option<Duration> {
        let (since, over) = self.heard.as_mut()?;
        let passed = since.elapsed();
        while LATER.get(*over).is_some_and(|later| *later <= passed) {
            *over += 1;
        }
        LATER.get(*over).map(|later| *later - passed)
    }

    /// Reads on. Returns the usage of the turn, if it is more than before.
    pub fn look(&mut self) -> Option<Spent> {
        self.read();
        let spent = self.count.since(self.base);
        let is_new = spent.input_tokens > self.last.input_tokens || spent.output_tokens > self.last.output_tokens;
        is_new.then(|| {
            self.last = spent;
            spent
        })
    }

    /// Returns the usage of the turn so far.
    pub fn spent(&self) -> Spent {
        self.last
    }

    fn read(&mut self) {
        if self.file.is_none() && !self.id.is_empty() {
            let (mut left, (root, levels)) = (DIRS_MAX, &self.place);
            self.file = find(root, *levels, &mut left, &|name| self.count.is_named(name, &self.id)).and_then(open);
        }
        let Some(file) = &mut self.file else { return };
        let mut buffer = [0_u8; 64 << 10];
        while let Ok(length @ 1..) = file.read(&mut buffer) {
            let mut rest = &buffer[..length];
            while let Some(at) = memchr::memchr(b'\n', rest) {
                self.line.extend_from_slice(&rest[..at]);
                self.count.line(&self.line);
                self.line.clear();
                rest = &rest[at + 1..];
            }
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.line.extend_from_slice(&rest[..rest.len().min(room)]);
        }
    }
}

/// Finds a file below `levels` levels of directories.
fn find(dir: &Path, levels: usize, left: &mut usize, is_it: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    *left = left.checked_sub(1)?;
    let mut names: Vec<String> =
        list(dir).ok()?.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    if levels == 0 {
        return names.into_iter().find(|name| is_it(name)).map(|name| dir.join(name));
    }
    names.into_iter().find_map(|name| find(&dir.join(name), levels - 1, left, is_it))
}

/// Opens a regular file.
fn open(path: PathBuf) -> Option<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_agents::Kind;

    use super::*;

    #[test]
    fn a_file_that_appears_and_grows_during_the_turn_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let env = vec![("CODEX_HOME".to_owned(), dir.path().to_string_lossy().into_owned())];
        let launch = Launch { env, ..Launch::default() };
        let count = Count::new(Kind::Codex, false).expect("it has a file");
        let mut transcript = Transcript::begin(count, &launch, None).expect("a place");
        transcript.named("01-ab");
        assert_eq!(transcript.look(), None);
        let days = dir.path().join("sessions/2026/11");
        fs::create_dir_all(days.join("24")).expect("made");
        fs::create_dir_all(days.join("23")).expect("made");
        let line = |input: u64| {
            let usage = format!("{{\"input_tokens\":{input},\"output_tokens\":2}}");
            format!("{{\"type\":\"token_usage_record\",\"payload\":{{\"thread_token_usage\":{usage}}}}}\n")
        };
        let file = days.join("23/rollout-2026-11-23T05-21-07-01-ab.jsonl");
        fs::write(days.join("24/rollout-2026-11-24T05-21-07-02-ab.jsonl"), line(9)).expect("written");
        fs::write(&file, line(1000)).expect("written");
        assert_eq!(transcript.look().map(|spent| spent.input_tokens), Some(1000));
        assert_eq!(transcript.look(), None, "nothing is new");
        let all = line(1000) + &line(2000);
        fs::write(&file, &all[..all.len() - 3]).expect("written");
        assert_eq!(transcript.look(), None, "the line is not complete");
        fs::write(&file, &all).expect("written");
        assert_eq!(transcript.look().map(|spent| spent.input_tokens), Some(2000));
        transcript.heard();
        assert!(transcript.pause().is_some_and(|pause| pause <= LATER[0]), "it is looked at again, without a word");
        transcript.heard = Instant::now().checked_sub(LATER[2]).map(|since| (since, 0));
        assert_eq!(transcript.pause(), None, "but not for ever");
        let known = Session { id: "01-ab".to_owned(), spent: transcript.spent(), ..Session::default() };
        let count = Count::new(Kind::Codex, false).expect("it has a file");
        let mut next = Transcript::begin(count, &launch, Some(&known)).expect("a place");
        assert_eq!(next.look(), None, "an earlier turn counts for nothing");
    }
}
