//! tmux: windows by ids, text by paste buffer.
//!
//! A worker's window is made by one tmux process and from then on meant by the
//! ids that this process printed; names are only read, and only exactly. Every
//! call runs one client with a deadline. What never happens here: a second
//! server while the first one lives, a change of anybody's current window, the
//! end of a session that a person made, a shell between tmux and the worker.
//!
//! - `words`: how text passes tmux's parsers unread
//! - `run`: one client process, its limits
//! - `error`: what its stderr means
//! - `open`: the window of a worker, and `recover` for a server without socket
//! - `panes`: what is there; `keys`: what is typed, `proof`: and shown; `attach`: a person looks
//! - `target`: the pane of a worker that the registry shows

mod attach;
mod error;
mod keys;
mod open;
mod panes;
mod proof;
mod recover;
mod target;
mod words;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::process::Command;
use std::time::Duration;

use swarm_model::TmuxPane;
use swarm_sys::commands::deadline;
use tmux_interface::TmuxCommand;

pub use error::TmuxError;
pub use keys::{Key, SendOptions};
pub use open::Order;
#[cfg(any(test, feature = "testing"))]
pub use open::Window;
pub use panes::PaneLine;
pub use target::{Target, has_server, target};

/// Which server is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// The one that the environment says (`TMUX`, `TMUX_TMPDIR`).
    Default,
    /// `tmux -L NAME`
    Name(String),
    /// `tmux -S PATH`
    Path(String),
}

/// Longest time a client may take.
const ANSWER_MS_MAX: u64 = 5_000;
/// Most that a client may write, captures excepted.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// One server, as one caller reaches it.
#[derive(Clone, Debug)]
pub struct Tmux {
    server: Server,
    environment: Vec<(String, String)>,
    limit: Duration,
    /// The process whose ids are meant: a later server on the same socket gives
    /// the same ids to other panes.
    server_pid: Option<i32>,
}

/// Whether a client may start a server where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Never,
    Allowed,
}

impl Tmux {
    /// `environment` is the caller's: tmux reads `TMUX`, `TMUX_TMPDIR` and
    /// `PATH` in it, and a server that is started gets all of it.
    pub fn new(server: Server, environment: &[(String, String)]) -> Self {
        let limit = Duration::from_millis(ANSWER_MS_MAX);
        Self { server, environment: environment.to_vec(), limit, server_pid: None }
    }

    /// The server of a pane that was recorded, and none that took its place.
    pub fn of_pane(pane: &TmuxPane, environment: &[(String, String)]) -> Self {
        let tmux = Self::new(Server::Path(pane.socket_path.clone()), environment);
        Self { server_pid: Some(pane.server_pid), ..tmux }
    }

    /// The same with another deadline for each client.
    #[must_use]
    #[cfg(any(test, feature = "testing"))]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// What `tmux -V` says, when it is new enough or does not say.
    ///
    /// # Errors
    /// When tmux is missing, silent, or older than this adapter can use.
    pub fn version(&self) -> Result<String, TmuxError> {
        let mut command = self.bare();
        let said = self.finish(command.arg("-V"), None)?;
        let text = said.trim().to_owned();
        match error::version(&text) {
            Some(numbers) if numbers < error::VERSION_MIN => Err(TmuxError::TooOld { found: text }),
            Some(_) | None => Ok(text),
        }
    }

    /// `tmux` with the caller's environment and nothing else. LC_ALL stays the
    /// caller's: tmux translates nothing, and a server that this client starts
    /// would hand another locale to every pane. The directory is the root, since
    /// a started server keeps it for life and would pin a worktree.
    fn bare(&self) -> Command {
        let mut command = Command::new("tmux");
        command.env_clear().current_dir("/");
        command.envs(self.environment.iter().filter(|(name, _)| name != "PWD").map(|(name, value)| (name, value)));
        command
    }

    /// The same with the server named, in UTF-8 whatever the locale is.
    fn client(&self, start: Start) -> Result<Command, TmuxError> {
        let mut command = self.bare();
        command.arg("-u");
        if start == Start::Never {
            command.arg("-N");
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

    /// Runs `commands` as one sequence; a command that fails ends it.
    fn ask<'a>(&self, commands: impl IntoIterator<Item = TmuxCommand<'a>>) -> Result<String, TmuxError> {
        self.ask_with(commands, None)
    }

    /// The same with something on the client's stdin.
    fn ask_with<'a>(
        &self,
        commands: impl IntoIterator<Item = TmuxCommand<'a>>,
        input: Option<&[u8]>,
    ) -> Result<String, TmuxError> {
        let mut command = self.client(Start::Never)?;
        command.args(words::sequence(commands));
        self.finish(&mut command, input)
    }

    /// What a client wrote, or what its failure means. An old tmux is told from
    /// other failures by asking its version only then.
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

    /// A variable of the caller, when it is set and not empty.
    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.environment.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Output of tmux as text: what a program wrote into a pane need not be UTF-8.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
