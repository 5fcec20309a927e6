//! `swarm __stdio`: the far end of a connection from another machine. Says hello, executes one verb with the environment of
//! a login shell, passes its streams on, and ends with its input. Without a line for a minute it ends as well: a dead
//! network brings no end of file. A run carries out attempts here by calls ([`calls`]).

mod aside;
mod branches;
mod calls;
mod clone;
mod end;
mod forked;
mod host;
mod keep;
mod login;
mod place;
mod repeat;
mod requests;
pub mod say;
mod start;
pub mod stream;
mod verb;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use swarm_hosts::frames::{Ask, CHUNK_BYTES, Hello, Lines, Tell, hello_line, line};
use swarm_sys::commands::deadline::wait_until;

use repeat::Begun;

pub use clone::git;
pub use keep::main as keep;
pub use login::{assume, print as print_environment};
pub use place::ENDED;

/// Verb that prints the environment of a login shell.
pub const ENVIRONMENT: &str = "__env";
/// Verb that executes the verb of a request, and keeps its answer.
pub const KEEP: &str = "__keep";
/// Verb that executes another one, whose output and marks go to the other machine.
pub const MARKED: &str = "__marked";

/// Time without a line from the other end after which it counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub fn main() -> u8 {
    let hello = Hello::of_this(env!("CARGO_PKG_VERSION"));
    match say(&hello_line(&hello)).and_then(|()| serve()) {
        Ok(()) => 0,
        // Nobody is there to be told.
        Err(_) => 1,
    }
}

/// Attaches the terminal of this process: `swarm __attach STATE WORD…`, with `-` for the default state directory. Becomes the
/// verb, with the environment of a login shell.
pub fn attach(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let state = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |cause: String| {
        swarm_sys::complain!("swarm: error: {cause}");
        1
    };
    let executable = match std::env::current_exe() {
        Ok(executable) => executable,
        Err(error) => return failed(format!("cannot find the program: {error}")),
    };
    let (environment, problem) = login::environment();
    if let Some(problem) = problem {
        swarm_sys::complain!("swarm: warning: {problem}");
    }
    let mut command = Command::new(executable);
    command.args(arguments).env_clear().envs(environment);
    if let Some(term) = std::env::var_os("TERM") {
        command.env("TERM", term);
    }
    if state != "-" {
        match at_home(&state) {
            Ok(state) => drop(command.env("SWARM_DIR", state)),
            Err(cause) => return failed(cause),
        }
    }
    failed(format!("cannot start swarm: {}", command.exec()))
}

fn say(line: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line)?;
    out.flush()
}

fn tell(tell: &Tell) -> io::Result<()> {
    say(&line(tell))
}

/// Lines received from the other end.
#[derive(Default)]
struct Heard {
    lines: Lines,
    is_over: bool,
}

impl Heard {
    /// Reads what is there.
    fn read(&mut self) {
        let mut block = vec![0; CHUNK_BYTES];
        match io::stdin().lock().read(&mut block) {
            Ok(0) => self.is_over = true,
            Ok(read) => self.lines.add(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Returns the next line that is complete and known.
    fn next(&mut self) -> Option<Ask> {
        loop {
            match self.lines.complete() {
                Ok(Some(line)) => match serde_json::from_slice(&line) {
                    Ok(ask) => return Some(ask),
                    Err(_) => continue,
                },
                Ok(None) => return None,
                Err(_) => {
                    self.is_over = true;
                    return None;
                }
            }
        }
    }
}

/// Waits for a verb or a call, and executes it.
fn serve() -> io::Result<()> {
    let mut heard = Heard::default();
    let deadline = Instant::now() + SILENCE_MAX;
    loop {
        match heard.next() {
            Some(Ask::Verb(call)) => {
                let begun = match &call.request {
                    Some(request) => repeat::begin(request, || verb::order(&call)),
                    None => return verb::execute(&call, &mut heard),
                };
                match (begun, &call.request) {
                    (Ok(Begun::Noted(noted)), Some(from)) => return repeat::attend(&noted, from, &mut heard),
                    (Ok(Begun::Lost), _) => return tell(&Tell::Lost),
                    (Ok(Begun::Forgotten), _) => return tell(&Tell::Forgotten),
                    (Ok(Begun::Unnoted(cause)), _) => tell(&Tell::Unnoted(cause))?,
                    (Ok(Begun::Noted(_)), None) => unreachable!("only a request is noted"),
                    (Err(cause), _) => return tell(&Tell::Refused(cause)),
                }
            }
            Some(first @ (Ask::Call { .. } | Ask::Part { .. })) => return calls::serve(&mut heard, first),
            Some(_) => continue,
            None if heard.is_over => return Ok(()),
            None => {}
        }
        let stdin = io::stdin();
        if !wait_until(&mut [PollFd::new(&stdin, PollFlags::IN)], deadline)? {
            return Ok(());
        }
        heard.read();
    }
}

/// Returns the path below the home, unless it is absolute.
pub fn at_home(path: &str) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).ok_or("HOME is not set there")?;
    Ok(Path::new(&home).join(path.strip_prefix("~/").unwrap_or(if path == "~" { "" } else { path })))
}
