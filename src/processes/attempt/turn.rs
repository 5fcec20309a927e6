//! One turn of an agent: its process, its input and its output.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use swarm_model::Ended;
use swarm_model::run::progress::Spent;
use swarm_model::run::words::Word;

use super::driver::Driver;
use swarm_agents::dialogue::Request;
use swarm_agents::{End, Launch, Parser, Report, Seen, Talk, TimeZone};
use swarm_model::asks::Verdict;
use swarm_sys::clock::wall_ms;

/// Maximum length of a line in bytes; the rest of a longer line is dropped.
const LINE_BYTES_MAX: usize = 8 << 20;
/// Requested size of a pipe, in bytes.
const PIPE_BYTES: usize = 1 << 20;
/// Maximum number of consecutive reads of one stream; enough to empty a pipe.
const READS_MAX: u32 = 1024;
/// Number of bytes that are kept of the end of each stream.
const TAIL_BYTES: usize = 16 << 10;

/// What becomes of a request of the agent.
#[derive(Debug, PartialEq)]
pub enum Decided {
    Now(Verdict),
    /// A person is asked; [`Teller::heard`] returns the answer.
    Held,
}

/// News about requests that are held.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// Answer to the request of this call.
    Verdict(String, Verdict),
    /// Nobody has answered in time: the turn is to be cancelled.
    Park,
}

/// Receiver of an agent's activity.
pub trait Teller {
    /// Decides about a request. Without a person to ask, everything is allowed, once.
    fn asked(&mut self, _request: &Request) -> Decided {
        Decided::Now(Verdict::Allow { input: None })
    }
    /// Returns the news about requests that are held.
    fn heard(&mut self) -> Vec<Heard> {
        Vec::new()
    }
    /// Returns a descriptor that is readable when there is news.
    fn answers(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Returns the time at which there is news in any case.
    fn held_until(&self) -> Option<Instant> {
        None
    }
    /// The id of the conversation is known.
    fn session(&mut self, id: String);
    /// Takes the usage of the turn so far.
    fn spent(&mut self, _spent: Spent) {}
    /// An event occurred.
    fn tell(&mut self, word: Word);
    /// The agent was denied something, or asked, and nobody could be asked.
    fn unheard(&mut self, _cause: &str) {}
    /// The agent starts to use a tool.
    fn tool(&mut self, _what: &str) {}
    /// The agent has written its task list.
    fn todos(&mut self, _items: &serde_json::Value) {}
    /// The agent writes a message.
    fn says(&mut self) {}
    /// The use of a tool with this id has a result, or will never have one.
    fn done(&mut self, _call: &str) {}
    /// Takes the output of the agent in order, and its standard error at the end of the turn. In a dialogue, what was sent
    /// to the agent is between its lines, as objects with the member `sent`.
    fn printed(&mut self, _bytes: &[u8]) {}
    /// Raw output, for agents that print no events.
    fn raw(&mut self, bytes: &[u8]);
    /// A batch of output was processed. Returns the time after which this has to be called again, even if the agent
    /// prints nothing more, because something is held back; `None` if nothing is.
    fn looked(&mut self) -> Option<Duration>;
    /// Reports whether raw output is wanted.
    fn wants_raw(&self) -> bool;
    /// Reports whether activity is still reported to anyone.
    fn listens(&self) -> bool;
}

/// Runs the agent to its end.
///
/// # Errors
/// Fails if the agent cannot be started or its output cannot be read.
pub fn take_turn(launch: &Launch, talk: Talk, teller: &mut dyn Teller) -> io::Result<Report> {
    let mut agent = start(launch, matches!(talk, Talk::Dialogue(_)))?;
    let stdin = agent.stdin.take();
    let ear = match (talk, stdin) {
        (Talk::Dialogue(machine), Some(stdin)) => Ear::Dialogue(Driver::new(machine, Pid::from_child(&agent), stdin)?),
        (Talk::Dialogue(_), None) => return Err(io::Error::other("no standard input")),
        (Talk::Lines(parser), stdin) => {
            let input = launch.input.clone();
            // In a thread, because an agent may print before it has read all its input. The thread ends with the agent.
            thread::Builder::new().spawn(move || {
                if let (Some(mut stdin), Some(input)) = (stdin, input) {
                    // An agent may ignore its input.
                    let _ = stdin.write_all(input.as_bytes());
                }
            })?;
            Ear::Lines(parser)
        }
    };
    let mut turn = Turn { ear, teller, agent: Pid::from_child(&agent), line: Vec::new(), output: Tail::default() };
    let stderr = turn.listen(&mut agent)?;
    let status = agent.wait()?;
    let stderr = stderr.text();
    if !stderr.is_empty() {
        turn.teller.printed(stderr.as_bytes());
        turn.teller.raw(stderr.as_bytes());
    }
    let (output, zone) = (turn.output.text(), TimeZone::system());
    let end = End { ended: ended(status), stderr: &stderr, output: &output, now_ms: wall_ms(), zone: &zone };
    Ok(match turn.ear {
        Ear::Lines(parser) => parser.end(end),
        Ear::Dialogue(driver) => driver.end(end),
    })
}

fn start(launch: &Launch, is_dialogue: bool) -> io::Result<Child> {
    let (program, words) = launch.argv.split_first().ok_or_else(|| io::Error::other("no command"))?;
    let mut command = Command::new(program);
    command.args(words).envs(launch.env.iter().cloned());
    // Some agents work in this directory, not in their current one.
    command.env("PWD", std::env::current_dir()?);
    let stdin = if is_dialogue || launch.input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Who reads what the agent prints.
enum Ear {
    Lines(Box<dyn Parser>),
    Dialogue(Driver),
}

/// Running agent.
struct Turn<'a> {
    ear: Ear,
    teller: &'a mut dyn Teller,
    /// Child that was not waited for yet, so its pid cannot be reused.
    agent: Pid,
    /// Incomplete line.
    line: Vec<u8>,
    output: Tail,
}

impl Turn<'_> {
    /// Reads the agent's output until the agent has ended, and returns the end of standard error. Does not wait for end
    /// of file, because processes that the agent leaves behind may keep its streams open for ever.
    fn listen(&mut self, agent: &mut Child) -> io::Result<Tail> {
        let process = pidfd_open(self.agent, PidfdFlags::empty())?;
        let mut errors = Tail::default();
        let mut streams: [Option<File>; 2] = [
            agent.stdout.take().map(|stream| File::from(OwnedFd::from(stream))),
            agent.stderr.take().map(|stream| File::from(OwnedFd::from(stream))),
        ];
        for stream in streams.iter().flatten() {
            fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
            // A larger pipe saves wake-ups if an agent prints much. Refusals are ignored.
            let _ = rustix::pipe::fcntl_setpipe_size(stream, PIPE_BYTES);
        }
        if let Ear::Dialogue(driver) = &mut self.ear {
            driver.begin(self.teller);
        }
        let mut again = self.look(process.as_fd());
        loop {
            let mut fds = vec![PollFd::new(&process, PollFlags::IN)];
            fds.extend(self.teller.answers().map(|answers| PollFd::from_borrowed_fd(answers, PollFlags::IN)));
            fds.extend(streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)));
            match poll(&mut fds, again.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            // Checked before the streams are read, so that the last output is read as well.
            let ended = !fds[0].revents().is_empty();
            drop(fds);
            let [stdout, stderr] = &mut streams;
            // Bounded, because processes that the agent leaves behind may print for ever.
            let _ = (0..READS_MAX).all(|_| pump(stdout, |bytes| self.take(bytes)));
            let _ = (0..READS_MAX).all(|_| pump(stderr, |bytes| errors.push(bytes)));
            if ended {
                self.end_line();
            }
            if let Ear::Dialogue(driver) = &mut self.ear
                && (ended || stdout.is_none())
            {
                driver.silent(ended);
            }
            again = self.look(process.as_fd());
            if ended {
                return Ok(errors);
            }
        }
    }

    /// Does what is due. Returns the time after which this has to be called again.
    fn look(&mut self, process: BorrowedFd<'_>) -> Option<Timespec> {
        let due = match &mut self.ear {
            Ear::Dialogue(driver) => {
                driver.look(process, self.teller);
                driver.pause(self.teller)
            }
            Ear::Lines(_) => None,
        };
        let pauses = [self.teller.looked(), due];
        pauses.into_iter().flatten().min().and_then(|pause| Timespec::try_from(pause).ok())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.output.push(bytes);
        if matches!(self.ear, Ear::Lines(_)) {
            self.teller.printed(bytes);
        }
        if self.teller.wants_raw() {
            self.teller.raw(bytes);
        }
        let mut rest = bytes;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (part, behind) = rest.split_at(at + 1);
            if self.line.is_empty() {
                self.whole(part);
            } else {
                self.begin_line(part);
                self.end_line();
            }
            rest = behind;
        }
        self.begin_line(rest);
    }

    fn begin_line(&mut self, part: &[u8]) {
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        self.whole(&line);
        line.clear();
        self.line = line;
    }

    fn whole(&mut self, line: &[u8]) {
        match &mut self.ear {
            Ear::Dialogue(_) if line.is_empty() => {}
            // What is left of a longer line is no message.
            Ear::Dialogue(_) if line.len() >= LINE_BYTES_MAX => {}
            Ear::Dialogue(driver) => {
                // Line by line, because what is sent comes between lines.
                self.teller.printed(line);
                if !line.ends_with(b"\n") {
                    self.teller.printed(b"\n");
                }
                driver.line(String::from_utf8_lossy(line).trim_end(), self.teller);
            }
            Ear::Lines(parser) if parser.skips(line, self.teller.listens()) => {}
            Ear::Lines(parser) => {
                for seen in parser.line(String::from_utf8_lossy(line).trim_end()) {
                    see(self.teller, self.agent, seen);
                }
            }
        }
    }
}

/// Reports an event of the agent, a child that was not waited for yet.
pub fn see(teller: &mut dyn Teller, agent: Pid, seen: Seen) {
    match seen {
        Seen::Session(id) => teller.session(id),
        Seen::Spent(spent) => teller.spent(spent),
        Seen::Todos(items) => teller.todos(&items),
        Seen::Tool(text) => {
            teller.tool(&text);
            teller.tell(Word::Activity { text });
        }
        Seen::Text(text) => {
            teller.says();
            teller.tell(Word::Activity { text });
        }
        Seen::Delay(text) => teller.tell(Word::Activity { text }),
        Seen::Done(call) => teller.done(&call),
        Seen::Doomed => drop(kill_process(agent, Signal::TERM)),
        Seen::Denied(what) => {
            let cause = format!("nobody could be asked to allow {what}");
            teller.unheard(&cause);
            teller.tell(Word::NeedsInput { cause });
        }
        Seen::Asked(what) => {
            let cause = format!("nobody could be asked to answer: {what}");
            teller.unheard(&cause);
            teller.tell(Word::NeedsInput { cause });
        }
    }
}

/// Reads once. Returns false if there is no more data, for now or for ever.
fn pump(stream: &mut Option<File>, mut sink: impl FnMut(&[u8])) -> bool {
    let Some(open) = stream else { return false };
    let mut buffer = [0_u8; 256 << 10];
    match open.read(&mut buffer) {
        Ok(count) if count > 0 => {
            sink(&buffer[..count]);
            true
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        Ok(_) | Err(_) => {
            *stream = None;
            false
        }
    }
}

/// Last bytes of a stream.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
        self.0.extend_from_slice(bytes);
        if self.0.len() > 4 * TAIL_BYTES {
            self.0.drain(..self.0.len() - TAIL_BYTES);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0[self.0.len().saturating_sub(TAIL_BYTES)..]).into_owned()
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Code(-1),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct Heard(Vec<u8>);

    impl Teller for Heard {
        fn session(&mut self, _: String) {}
        fn tell(&mut self, _: Word) {}
        fn raw(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
        fn looked(&mut self) -> Option<Duration> {
            None
        }
        fn wants_raw(&self) -> bool {
            true
        }
        fn listens(&self) -> bool {
            true
        }
    }

    #[test]
    fn an_agent_finds_its_directory_in_pwd() {
        let agent = swarm_agents::Agent::find("shell", &BTreeMap::new()).expect("built in");
        let argv = ["/usr/bin/env"].map(str::to_owned).to_vec();
        let launch = Launch { argv, env: vec![("PWD".to_owned(), "/elsewhere".to_owned())], input: None };
        let mut heard = Heard::default();
        take_turn(&launch, Talk::Lines(agent.parser(None)), &mut heard).expect("run");
        let here = std::env::current_dir().expect("there");
        let all = String::from_utf8(heard.0).expect("text");
        assert!(all.lines().any(|line| line == format!("PWD={}", here.display())), "{all}");
    }
}
