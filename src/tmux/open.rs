//! Creation of a worker's window: one tmux process creates the window, starts the log, and prints the ids.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use swarm_model::TmuxPane;
use tmux_interface::{DisplayMessage, NewSession, NewWindow, PipePane, SetOption, TmuxCommand};

use super::{Start, Tmux, TmuxError, panes, recover, words};

/// Window to create.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub session: &'a str,
    /// Name of the window, in `[A-Za-z0-9._-]`.
    pub name: &'a str,
    pub cwd: &'a str,
    /// Command, at least two words, because tmux passes a single word to a shell.
    pub argv: &'a [&'a str],
    /// File to which the pane's output is appended. The caller creates it, so that its mode is right.
    pub log: &'a Path,
}

/// Window that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub session: String,
    pub session_id: String,
    pub window_id: String,
    pub pane: TmuxPane,
    pub pane_pid: i32,
}

/// Returns the servers of known workers: (socket path, server pid). Fails if it cannot find out all of them.
pub type KnownServers<'a> = &'a dyn Fn() -> std::io::Result<Vec<(String, i32)>>;

/// Lock of the starts of servers in this process.
static STARTS: Mutex<()> = Mutex::new(());

/// Maximum number of attempts if sessions or servers start and end meanwhile.
const ATTEMPTS_MAX: usize = 5;
/// Size of a session without an attached client.
const COLUMNS: usize = 200;
const ROWS: usize = 50;
const WINDOW_FORMAT: &str = "#{session_id} #{window_id} #{pane_id} #{pane_pid} #{session_name}";
const PIPED_FORMAT: &str = "#{pane_id} #{pane_pipe}";

/// Returns the known servers. A second server must not be started if one of them may be alive.
fn known_servers(known: KnownServers<'_>) -> Result<Vec<(String, i32)>, TmuxError> {
    known().map_err(|error| TmuxError::System(format!("the servers of other workers are unknown: {error}")))
}

impl Tmux {
    /// Creates the window, and if necessary the session and the server. A server that is alive but lost its socket is
    /// asked to create the socket again; a second server is never started beside it.
    ///
    /// # Errors
    /// Fails if tmux refuses or does not answer. No window was created then, except perhaps after a timeout.
    pub fn open_window(&self, order: &Order<'_>, known: KnownServers<'_>) -> Result<Window, TmuxError> {
        check(order)?;
        for _ in 0..ATTEMPTS_MAX {
            let start = match self.new_window(order) {
                Err(TmuxError::NotFound(_)) => Start::Never,
                Err(TmuxError::NoServer { path }) => match recover::recover(&path, &known_servers(known)?)? {
                    recover::Recovered::Yes => continue,
                    recover::Recovered::NothingThere => Start::Allowed,
                },
                other => return other,
            };
            // Only one client starts a server at a time. If several start one on the same socket, two servers may
            // come up, and the windows of the server that loses the socket cannot be reached.
            let turn = (start == Start::Allowed).then(|| STARTS.lock().unwrap_or_else(PoisonError::into_inner));
            let made = self.new_session(order, start);
            drop(turn);
            match made {
                // Another process was first, or the server ended: try again.
                Err(TmuxError::Duplicate(_) | TmuxError::NoServer { .. }) => {}
                other => return other,
            }
        }
        Err(TmuxError::Unsteady(order.session.to_owned()))
    }

    fn new_window(&self, order: &Order<'_>) -> Result<Window, TmuxError> {
        let mut make = NewWindow::new()
            .detached()
            .after()
            .print()
            .format(WINDOW_FORMAT)
            .window_name(order.name)
            .start_directory(words::literal_format(order.cwd))
            .target_window(last(order))
            .build();
        for word in order.argv {
            make.push_param(*word);
        }
        self.make(order, make, Vec::new(), Start::Never)
    }

    /// Creates the session with the worker as its first window, so that the session ends with its last worker. Turns
    /// off
    /// `destroy-unattached`, which a user may have set, because it would end the session at once.
    fn new_session(&self, order: &Order<'_>, start: Start) -> Result<Window, TmuxError> {
        let mut make = NewSession::new()
            .detached()
            .print()
            .format(WINDOW_FORMAT)
            .session_name(words::literal_format(order.session))
            .window_name(order.name)
            .start_directory(words::literal_format(order.cwd))
            .width(COLUMNS)
            .height(ROWS)
            .build();
        for word in order.argv {
            make.push_param(*word);
        }
        let session = format!("={}:", order.session);
        let stay = SetOption::new().target_pane(session).option("destroy-unattached").value("off").build();
        self.make(order, make, vec![stay], start)
    }

    /// Runs the command that creates the window, and those that belong to it. tmux runs the sequence of one client
    /// without interruption, so the last window is the new one. If a hook of the user has changed that, the output
    /// shows it, and the log is started again by the id.
    fn make<'a>(
        &self,
        order: &Order<'a>,
        make: TmuxCommand<'a>,
        more: Vec<TmuxCommand<'a>>,
        start: Start,
    ) -> Result<Window, TmuxError> {
        let mut commands = vec![make];
        commands.extend(more);
        commands.push(pipe(&last(order), order.log)?);
        commands.push(SetOption::new().window().target_pane(last(order)).option("allow-rename").value("off").build());
        commands.push(DisplayMessage::new().print().target_pane(last(order)).message(PIPED_FORMAT).build());
        commands.push(DisplayMessage::new().print().message(panes::SERVER_FORMAT).build());
        let mut client = self.client(start)?;
        client.args(words::sequence(commands));
        let said = self.said(&mut client, None)?;
        let text = super::text(said.stdout);
        let made = match parse_window(&text) {
            Some(made) => made,
            None if said.success => return Err(TmuxError::Answer(text)),
            None => return Err(self.judge(&super::text(said.stderr))),
        };
        self.settle(order, made, &text)
    }

    /// Appends the output of a pane to `log` from now on, unless it is piped already.
    ///
    /// # Errors
    /// Fails if the pane does not exist, or tmux does not answer.
    pub fn keep_output(&self, pane: &str, log: &Path) -> Result<(), TmuxError> {
        let show = DisplayMessage::new().print().target_pane(pane.to_owned()).message(PIPED_FORMAT).build();
        if self.ask([show])?.trim_end() == format!("{pane} 0") {
            self.ask([pipe(pane, log)?])?;
        }
        Ok(())
    }

    /// Returns the error of the creating command, which may be that tmux is too old.
    fn judge(&self, stderr: &str) -> TmuxError {
        let error = super::error::classify(stderr);
        if super::error::smells_of_age(&error)
            && let Err(too_old) = self.version()
        {
            return too_old;
        }
        error
    }

    /// Completes what the sequence did not do. If that fails, closes the window.
    fn settle(&self, order: &Order<'_>, made: Made, text: &str) -> Result<Window, TmuxError> {
        let mut lines = text.lines().skip(1);
        let piped = lines.next() == Some(format!("{} 1", made.pane).as_str());
        let server = lines.next().and_then(panes::parse_server);
        let complete = || {
            if made.session != order.session {
                let why = format!("tmux changed it to {:?}", made.session);
                return Err(TmuxError::Session { name: order.session.to_owned(), why });
            }
            if !piped {
                self.ask([pipe(&made.pane, order.log)?])?;
            }
            server.map_or_else(|| self.server(), Ok)
        };
        match complete() {
            Ok((server_pid, socket_path)) => Ok(Window {
                session: made.session,
                session_id: made.session_id,
                window_id: made.window_id,
                pane: TmuxPane { pane: made.pane, socket_path, server_pid },
                pane_pid: made.pane_pid,
            }),
            Err(error) => {
                // The first error is the one to report. A window without a log remains only if this fails too.
                let _ = self.kill_window(&made.window_id);
                Err(error)
            }
        }
    }
}

/// Returns the target of the last window in the session of exactly this name.
fn last(order: &Order<'_>) -> String {
    format!("={}:{{end}}", order.session)
}

fn pipe<'a>(target: &str, log: &Path) -> Result<TmuxCommand<'a>, TmuxError> {
    let path = log.to_str().ok_or_else(|| TmuxError::System(format!("the path {log:?} is not valid UTF-8")))?;
    // Without a flag, `pipe-pane` pipes the output of the pane. The method `stdout` of `PipePane` would send `-I`,
    // which types the output of the command into the pane.
    Ok(PipePane::new().target_pane(target.to_owned()).shell_command(words::append_to_log(path)).build())
}

/// Checks the order before tmux gets it.
fn check(order: &Order<'_>) -> Result<(), TmuxError> {
    words::check_session_name(order.session)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if order.name.is_empty() || !order.name.chars().all(allowed) {
        return Err(TmuxError::WindowName { name: order.name.to_owned() });
    }
    if order.argv.len() < 2 || order.argv.iter().any(|word| word.contains('\0')) {
        return Err(TmuxError::System(format!("invalid command of a window: {:?}", order.argv)));
    }
    if !order.log.is_absolute() {
        return Err(TmuxError::System(format!("the path {:?} is not absolute", order.log)));
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Made {
    session: String,
    session_id: String,
    window_id: String,
    pane: String,
    pane_pid: i32,
}

/// Parses the first line of the output. `None` if no window was created.
fn parse_window(text: &str) -> Option<Made> {
    let mut words = text.lines().next()?.splitn(5, ' ');
    let mut id = |mark: char| words.next().filter(|word| word.starts_with(mark)).map(str::to_owned);
    let (session_id, window_id, pane) = (id('$')?, id('@')?, id('%')?);
    let pane_pid = words.next()?.parse().ok()?;
    Some(Made { session: words.next()?.to_owned(), session_id, window_id, pane, pane_pid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_creating_command_is_parsed() {
        let made = parse_window("$0 @4 %5 99 my work\n%5 1\n").expect("is read");
        assert_eq!((made.session.as_str(), made.pane.as_str(), made.pane_pid), ("my work", "%5", 99));
        for text in ["", "nonsense", "$0 @4 5 99 x", "$0 @4 %5 x y"] {
            assert_eq!(parse_window(text), None, "{text:?}");
        }
    }

    #[test]
    fn orders_that_tmux_would_misread_are_refused() {
        let good = Order { session: "s", name: "w", cwd: "/", argv: &["a", "b"], log: Path::new("/l") };
        assert!(check(&good).is_ok());
        for bad in [
            Order { session: "a.b", ..good },
            Order { name: "#(x)", ..good },
            Order { name: "", ..good },
            Order { argv: &["a"], ..good },
            Order { log: Path::new("l"), ..good },
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
    }
}
