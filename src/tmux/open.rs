//! The window of a worker: one tmux process makes it, starts the log and
//! reads the ids back.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use swarm_model::TmuxPane;
use tmux_interface::{DisplayMessage, NewSession, NewWindow, PipePane, SetOption, TmuxCommand};

use super::{Start, Tmux, TmuxError, panes, recover, words};

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    pub session: &'a str,
    /// Name of the window, of `[A-Za-z0-9._-]`.
    pub name: &'a str,
    pub cwd: &'a str,
    /// At least two words: tmux gives a single one to a shell.
    pub argv: &'a [&'a str],
    /// Takes the pane's output. The caller made it, so that its mode is right.
    pub log: &'a Path,
}

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub session: String,
    pub session_id: String,
    pub window_id: String,
    pub pane: TmuxPane,
    pub pane_pid: i32,
}

/// The servers that workers are known to live in: (socket path, server pid).
pub type KnownServers<'a> = &'a dyn Fn() -> Vec<(String, i32)>;

/// Whoever may start a server.
static STARTS: Mutex<()> = Mutex::new(());

/// Most times that sessions or servers may come and go under one request.
const ATTEMPTS_MAX: usize = 5;
/// The size of a session that nobody looks at yet.
const COLUMNS: usize = 200;
const ROWS: usize = 50;
const WINDOW_FORMAT: &str = "#{session_id} #{window_id} #{pane_id} #{pane_pid} #{session_name}";
const PIPED_FORMAT: &str = "#{pane_id} #{pane_pipe}";

impl Tmux {
    /// Makes the window, in a new session where there is none of that name, in a
    /// new server where there is none. A server that lives but lost its socket
    /// is told to make it again, and never doubled.
    ///
    /// # Errors
    /// Nothing was made then, except after a timeout, when nobody knows.
    pub fn open_window(&self, order: &Order<'_>, known: KnownServers<'_>) -> Result<Window, TmuxError> {
        check(order)?;
        for _ in 0..ATTEMPTS_MAX {
            let start = match self.new_window(order) {
                Err(TmuxError::NotFound(_)) => Start::Never,
                Err(TmuxError::NoServer { path }) => match recover::recover(&path, &known())? {
                    recover::Recovered::Yes => continue,
                    recover::Recovered::NothingThere => Start::Allowed,
                },
                other => return other,
            };
            // One at a time: of several tmux that start a server at once on one socket,
            // two may come up, and what is in the one that lost it cannot be reached.
            let turn = (start == Start::Allowed).then(|| STARTS.lock().unwrap_or_else(PoisonError::into_inner));
            let made = self.new_session(order, start);
            drop(turn);
            match made {
                // Somebody else was first, or the server left: look again.
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

    /// The worker is the first window, so the session ends with its last one. A
    /// user's `destroy-unattached` would end it at once, as nobody is attached.
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

    /// Runs the command that makes the window and those that belong to it. tmux
    /// runs one client's sequence without another's between, so the last window
    /// is the new one; should a hook of the user have changed that, the answer
    /// tells, and the log is started again by id.
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

    /// Appends to `log` what a pane writes that nobody keeps yet.
    ///
    /// # Errors
    /// When the pane is not there, or tmux does not answer.
    pub fn keep_output(&self, pane: &str, log: &Path) -> Result<(), TmuxError> {
        let show = DisplayMessage::new().print().target_pane(pane.to_owned()).message(PIPED_FORMAT).build();
        if self.ask([show])?.trim_end() == format!("{pane} 0") {
            self.ask([pipe(pane, log)?])?;
        }
        Ok(())
    }

    /// A failure of the making command, an old tmux included.
    fn judge(&self, stderr: &str) -> TmuxError {
        let error = super::error::classify(stderr);
        if super::error::smells_of_age(&error)
            && let Err(too_old) = self.version()
        {
            return too_old;
        }
        error
    }

    /// Completes what the sequence did not do, or takes the window away again.
    fn settle(&self, order: &Order<'_>, made: Made, text: &str) -> Result<Window, TmuxError> {
        let mut lines = text.lines().skip(1);
        let piped = lines.next() == Some(format!("{} 1", made.pane).as_str());
        let server = lines.next().and_then(panes::parse_server);
        let complete = || {
            if made.session != order.session {
                let why = format!("tmux made it {:?}", made.session);
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
                // The first error is the one to tell; a window without a log
                // would only be left over if this failed too.
                let _ = self.kill_window(&made.window_id);
                Err(error)
            }
        }
    }
}

/// The window at the end of the session of exactly this name.
fn last(order: &Order<'_>) -> String {
    format!("={}:{{end}}", order.session)
}

fn pipe<'a>(target: &str, log: &Path) -> Result<TmuxCommand<'a>, TmuxError> {
    let path = log.to_str().ok_or_else(|| TmuxError::System(format!("the path {log:?} is not UTF-8")))?;
    // Without a flag, `pipe-pane` takes the pane's output. The crate's `stdout`
    // would send `-I`, which types the command's output into the pane.
    Ok(PipePane::new().target_pane(target.to_owned()).shell_command(words::append_to_log(path)).build())
}

/// What must be right before tmux is asked.
fn check(order: &Order<'_>) -> Result<(), TmuxError> {
    words::check_session_name(order.session)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if order.name.is_empty() || !order.name.chars().all(allowed) {
        return Err(TmuxError::WindowName { name: order.name.to_owned() });
    }
    if order.argv.len() < 2 || order.argv.iter().any(|word| word.contains('\0')) {
        return Err(TmuxError::System(format!("{:?} cannot be the command of a window", order.argv)));
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

/// The first line of the answer, when there is one: then a window was made.
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
    fn the_answer_of_the_making_command_is_read() {
        let made = parse_window("$0 @4 %5 99 my work\n%5 1\n").expect("is read");
        assert_eq!((made.session.as_str(), made.pane.as_str(), made.pane_pid), ("my work", "%5", 99));
        for text in ["", "nonsense", "$0 @4 5 99 x", "$0 @4 %5 x y"] {
            assert_eq!(parse_window(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_tmux_would_misread_is_refused_beforehand() {
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
