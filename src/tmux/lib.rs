//! tmux: windows of workers, identified by ids, and text that is typed into them by paste buffer.
//!
//! One tmux process creates the window of a worker, and prints ids that identify the window from then on. Names are
//! only compared, and only exactly. Every call runs one client with a deadline. This crate never starts a second
//! server while the first one is alive, never changes anybody's current window, never ends a session that a person
//! created, and never puts a shell between tmux and the worker.
//!
//! - `words`: escaping of text for the parsers of tmux
//! - `error`: classification of stderr
//! - `open`: creation of a worker's window; `recover`: a server that lost its socket
//! - `panes`: existing panes and their content
//! - `keys`: typing; `proof`: typing with a check that the window shows the text
//! - `attach`: showing a window on the caller's terminal
//! - `emulator`: the output of a window as its screen showed it
//! - `target`: the pane of a worker of the registry

mod attach;
mod emulator;
mod error;
mod keys;
mod open;
mod panes;
mod proof;
mod recover;
mod submit;
mod target;
mod words;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use swarm_model::TmuxPane;
use swarm_sys::commands::deadline;
use swarm_sys::lookup;
use swarm_sys::variables::OF_A_WORKER;
use tmux_interface::TmuxCommand;

pub use emulator::{Emulator, Shown, Size};
pub use error::TmuxError;
pub use keys::{Clear, KEY_NAMES, Key, NamedKey, SendOptions};
pub use open::Order;
#[cfg(any(test, feature = "testing"))]
pub use open::Window;
pub use panes::PaneLine;
pub use target::{Target, has_server, target};

/// Address of a tmux server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Server that the environment names (`TMUX`, `TMUX_TMPDIR`).
    Default,
    /// Server with this socket name (`tmux -L NAME`).
    Name(String),
    /// Server with this socket path (`tmux -S PATH`).
    Path(String),
}

/// Time limit of a client in milliseconds.
const ANSWER_MS_MAX: u64 = 5_000;
/// Maximum output of a client in bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Connection of one caller to one server.
#[derive(Clone, Debug)]
pub struct Tmux {
    server: Server,
    environment: Vec<(String, String)>,
    /// File creation mask of a server that this connection starts; `None` for that of this process.
    umask: Option<u32>,
    limit: Duration,
    /// Pid of the server that gave out the ids. A later server on the same socket gives the same ids to other panes.
    server_pid: Option<i32>,
}

/// Whether a client may start a server if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Never,
    Allowed,
}

impl Tmux {
    /// Creates a connection. `environment` is the caller's: tmux reads `TMUX`, `TMUX_TMPDIR` and `PATH` in it, and a
    /// new server gets all of it.
    pub fn new(server: Server, environment: &[(String, String)]) -> Self {
        let limit = Duration::from_millis(ANSWER_MS_MAX);
        Self { server, environment: environment.to_vec(), umask: None, limit, server_pid: None }
    }

    /// Creates a connection to the server of a recorded pane. A later server in its place counts as another one.
    pub fn of_pane(pane: &TmuxPane, environment: &[(String, String)]) -> Self {
        let tmux = Self::new(Server::Path(pane.socket_path.clone()), environment);
        Self { server_pid: Some(pane.server_pid), ..tmux }
    }

    /// Returns the connection with the file creation mask of the caller, which a new server passes to all panes.
    #[must_use]
    pub fn with_umask(self, umask: u32) -> Self {
        Self { umask: Some(umask), ..self }
    }

    /// Returns the connection with another time limit of each client.
    #[must_use]
    #[cfg(any(test, feature = "testing"))]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Returns the output of `tmux -V`.
    ///
    /// # Errors
    /// Fails if tmux is missing, does not answer, or is older than the minimum version. A version without numbers
    /// counts as new enough.
    pub fn version(&self) -> Result<String, TmuxError> {
        let mut command = self.bare(None);
        let said = self.finish(command.arg("-V"), None)?;
        let text = said.trim().to_owned();
        match error::version(&text) {
            Some(numbers) if numbers < error::VERSION_MIN => Err(TmuxError::TooOld { found: text }),
            Some(_) | None => Ok(text),
        }
    }

    /// Returns the command `tmux` with the caller's environment and nothing else. LC_ALL remains the caller's: tmux
    /// translates nothing, and a server that this client starts would pass another locale to every pane. A server is
    /// nobody's worker either, even if the caller is one.
    ///
    /// The program is named by its path, and the working directory stays as it is: for anything else, the standard
    /// library forks this process instead of spawning the program, which takes longer the more memory there is.
    fn bare(&self, umask: Option<u32>) -> Command {
        let mut command = match umask {
            None => {
                let found = lookup::search("tmux", self.variable("PATH"));
                let mut tmux = Command::new(found.as_deref().unwrap_or(Path::new("tmux")));
                tmux.arg0("tmux");
                tmux
            }
            Some(umask) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "umask \"$0\" && exec \"$@\"", &format!("{umask:04o}"), "tmux"]);
                shell
            }
        };
        command.env_clear();
        let is_inherited = |name: &str| name != "PWD" && !OF_A_WORKER.contains(&name);
        let inherited = self.environment.iter().filter(|(name, _)| is_inherited(name));
        command.envs(inherited.map(|(name, value)| (name, value)));
        command
    }

    /// Returns the command of a client for this server, in UTF-8 regardless of the locale.
    fn client(&self, start: Start) -> Result<Command, TmuxError> {
        let mut command = self.bare(self.umask.filter(|_| start == Start::Allowed));
        command.arg("-u");
        match start {
            Start::Never => {
                command.arg("-N");
            }
            // A new server keeps its directory for life and would pin a worktree.
            Start::Allowed => {
                command.current_dir("/");
            }
        }
        command.args(self.server_words()?);
        Ok(command)
    }

    fn server_words(&self) -> Result<Vec<&str>, TmuxError> {
        match &self.server {
            Server::Default => Ok(Vec::new()),
            Server::Name(name) => words::check_socket_name(name).map(|()| vec!["-L", name.as_str()]),
            Server::Path(path) => words::check_socket_path(path).map(|()| vec!["-S", path.as_str()]),
        }
    }

    /// Runs `commands` as one sequence, which ends at the first command that fails. Returns the output.
    fn ask<'a>(&self, commands: impl IntoIterator<Item = TmuxCommand<'a>>) -> Result<String, TmuxError> {
        self.ask_with(commands, None)
    }

    /// Runs `commands` like [`Tmux::ask`], with `input` on the client's stdin.
    fn ask_with<'a>(
        &self,
        commands: impl IntoIterator<Item = TmuxCommand<'a>>,
        input: Option<&[u8]>,
    ) -> Result<String, TmuxError> {
        let mut command = self.client(Start::Never)?;
        command.args(words::sequence(commands));
        self.finish(&mut command, input)
    }

    /// Runs a client, and returns its output. Asks for the version only after a failure that may come from an old
    /// tmux.
    fn finish(&self, command: &mut Command, input: Option<&[u8]>) -> Result<String, TmuxError> {
        let said = self.said(command, input)?;
        if said.success {
            return Ok(text(said.stdout));
        }
        let error = error::classify(&text(said.stderr));
        if error::smells_of_age(&error) && command.get_args().next().is_some_and(|first| first != "-V") {
            self.version()?;
        }
        Err(error)
    }

    fn said(&self, command: &mut Command, input: Option<&[u8]>) -> Result<deadline::Said, TmuxError> {
        deadline::run(command, input, self.limit, OUTPUT_BYTES_MAX).map_err(|silence| match silence {
            deadline::Silence::Spawn(error) if error.kind() == std::io::ErrorKind::NotFound => TmuxError::Missing,
            deadline::Silence::Spawn(error) | deadline::Silence::System(error) => TmuxError::System(error.to_string()),
            deadline::Silence::Timeout => TmuxError::Timeout {
                limit_ms: u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX),
                server: self.describe(),
            },
            deadline::Silence::TooMuch => TmuxError::TooMuch { limit_bytes: OUTPUT_BYTES_MAX },
        })
    }

    fn describe(&self) -> String {
        match &self.server {
            Server::Default => "the default socket".to_owned(),
            Server::Name(name) => format!("socket {name}"),
            Server::Path(path) => format!("socket {path}"),
        }
    }

    /// Returns a variable of the caller. `None` if it is not set or is empty.
    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.environment.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Returns the output of tmux as text. Programs may write text into a pane that is not UTF-8.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
