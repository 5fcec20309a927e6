//! Existing panes: their ids, and what they show.

use std::path::Path;

use tmux_interface::{CapturePane, DisplayMessage, KillWindow, ListPanes, TmuxCommand};

use super::{Tmux, TmuxError};

/// Pane in a session. The panes of a window that is linked into several sessions appear once in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaneLine {
    pub session: String,
    pub session_id: String,
    pub window: String,
    pub window_id: String,
    pub pane: String,
    pub pane_pid: i32,
    /// Whether the command has ended and `remain-on-exit` keeps the pane.
    pub dead: bool,
    pub server_pid: i32,
    pub socket_path: String,
}

/// Format of a line of `list-panes`. Ids and numbers come first, because they contain no spaces. The name of a
/// session contains no colon, so that of a window may contain any character.
const PANE_FORMAT: &str =
    "#{session_id} #{window_id} #{pane_id} #{pane_pid} #{?pane_dead,1,0} #{session_name}:#{window_name}";
/// Format of the line about the server.
pub const SERVER_FORMAT: &str = "#{pid} #{socket_path}";

impl Tmux {
    /// Returns all panes of the server in its order. Without a server, the list is empty.
    ///
    /// # Errors
    /// Fails if tmux is missing, does not answer, or prints unexpected output.
    pub fn list(&self) -> Result<Vec<PaneLine>, TmuxError> {
        let server = DisplayMessage::new().print().message(SERVER_FORMAT).build();
        let panes = ListPanes::new().all().format(PANE_FORMAT).build();
        match self.ask([server, panes]) {
            Ok(text) => parse_list(&text),
            // A server has no session for a moment when it starts or ends.
            Err(TmuxError::NoServer { .. } | TmuxError::NotFound(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the panes of windows with exactly this name, in the session with exactly that name.
    ///
    /// # Errors
    /// Fails as [`Tmux::list`] does.
    pub fn find_window(&self, session: &str, window: &str) -> Result<Vec<PaneLine>, TmuxError> {
        let mut panes = self.list()?;
        panes.retain(|pane| pane.session == session && pane.window == window);
        Ok(panes)
    }

    /// Returns where a pane is now, preferably in `session`. A person may have moved or linked its window.
    ///
    /// # Errors
    /// Fails as [`Tmux::list`] does, and if the pane does not exist.
    pub fn find_pane(&self, pane: &str, session: &str) -> Result<PaneLine, TmuxError> {
        let mut panes = self.list()?;
        panes.retain(|line| line.pane == pane && self.server_pid.is_none_or(|pid| pid == line.server_pid));
        let best = panes.iter().position(|line| line.session == session).unwrap_or(0);
        let absent = || TmuxError::NotFound(format!("can't find pane: {pane}"));
        panes.into_iter().nth(best).ok_or_else(absent)
    }

    /// Reports whether the pane exists and its command runs.
    ///
    /// # Errors
    /// Fails as [`Tmux::list`] does.
    #[cfg(test)]
    pub fn pane_exists(&self, pane: &str) -> Result<bool, TmuxError> {
        match self.ask([self.identity(pane)]) {
            Ok(text) => Ok(self.is_meant(pane, &text) == Some(Alive::Yes)),
            Err(error) if error.is_absence() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Closes a window, given by its id or the id of a pane in it. A window that does not exist is no error.
    ///
    /// # Errors
    /// Fails as [`Tmux::list`] does.
    pub fn kill_window(&self, id: &str) -> Result<(), TmuxError> {
        if let Some(pid) = self.server_pid
            && self.list()?.first().is_none_or(|line| line.server_pid != pid)
        {
            return Ok(());
        }
        match self.ask([KillWindow::new().target_window(id).build()]) {
            Err(error) if !error.is_absence() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns what the pane shows, preceded by `scrollback` lines of its history. `escapes` keeps colours. tmux
    /// strips spaces at the end of a line.
    ///
    /// # Errors
    /// Fails as [`Tmux::list`] does, and if the pane does not exist.
    pub fn capture(&self, pane: &str, scrollback: usize, escapes: bool) -> Result<String, TmuxError> {
        let mut capture = CapturePane::new().stdout().start_line(format!("-{scrollback}")).target_pane(pane);
        if escapes {
            capture = capture.escape_sequences();
        }
        let said = self.ask([self.identity(pane), capture.build()])?;
        let (identity, shown) = said.split_once('\n').ok_or_else(|| TmuxError::Answer(said.clone()))?;
        match self.is_meant(pane, identity) {
            Some(_) => Ok(shown.to_owned()),
            None => Err(TmuxError::NotFound(format!("can't find pane: {pane}"))),
        }
    }

    /// Returns the command that prints which pane of which server has this id.
    pub(super) fn identity<'a>(&self, pane: &'a str) -> TmuxCommand<'a> {
        DisplayMessage::new().print().target_pane(pane).message("#{pid} #{pane_id} #{?pane_dead,1,0}").build()
    }

    /// Reports whether the command of the pane runs, by the output of [`Tmux::identity`]. `None` if that is about
    /// another pane or server.
    fn is_meant(&self, pane: &str, identity: &str) -> Option<Alive> {
        let mut words = identity.split_whitespace();
        let server: i32 = words.next()?.parse().ok()?;
        let same = words.next()? == pane && self.server_pid.is_none_or(|pid| pid == server);
        let alive = if words.next()? == "0" { Alive::Yes } else { Alive::No };
        same.then_some(alive)
    }

    /// Returns the pid of the server and the path of its socket.
    pub(super) fn server(&self) -> Result<(i32, String), TmuxError> {
        let said = self.ask([DisplayMessage::new().print().message(SERVER_FORMAT).build()])?;
        parse_server(said.lines().next().unwrap_or("")).ok_or(TmuxError::Answer(said))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alive {
    Yes,
    No,
}

/// Parses a line such as `9663 /tmp/tmux-0/default`.
pub fn parse_server(line: &str) -> Option<(i32, String)> {
    let (pid, path) = line.split_once(' ')?;
    (Path::new(path).is_absolute()).then_some((pid.parse().ok()?, path.to_owned()))
}

/// Parses the line of the server, and the lines of its panes.
fn parse_list(text: &str) -> Result<Vec<PaneLine>, TmuxError> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("");
    let server = parse_server(first).ok_or_else(|| TmuxError::Answer(first.to_owned()))?;
    lines.map(|line| parse_pane(line, &server).ok_or_else(|| TmuxError::Answer(line.to_owned()))).collect()
}

fn parse_pane(line: &str, server: &(i32, String)) -> Option<PaneLine> {
    let mut words = line.splitn(6, ' ');
    let mut id = |mark: char| words.next().filter(|word| word.starts_with(mark)).map(str::to_owned);
    let (session_id, window_id, pane) = (id('$')?, id('@')?, id('%')?);
    let pane_pid = words.next()?.parse().ok()?;
    let dead = words.next()? == "1";
    let (session, window) = words.next()?.split_once(':')?;
    Some(PaneLine {
        session: session.to_owned(),
        session_id,
        window: window.to_owned(),
        window_id,
        pane,
        pane_pid,
        dead,
        server_pid: server.0,
        socket_path: server.1.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_with_odd_names_is_parsed() {
        let text = "77 /tmp/a b/sock\n$1 @2 %3 44 0 my work:a:b c\n$1 @4 %5 46 1 my work:\n";
        let panes = parse_list(text).expect("is read");
        let first = PaneLine {
            session: "my work".to_owned(),
            session_id: "$1".to_owned(),
            window: "a:b c".to_owned(),
            window_id: "@2".to_owned(),
            pane: "%3".to_owned(),
            pane_pid: 44,
            dead: false,
            server_pid: 77,
            socket_path: "/tmp/a b/sock".to_owned(),
        };
        assert_eq!(panes[0], first);
        assert!(panes[1].dead && panes[1].window.is_empty());
    }

    #[test]
    fn malformed_lists_are_refused() {
        for text in [
            "",
            "x",
            "77 relative\n",
            "77 /s\n$1 @2 %3 x 0 a:b\n",
            "77 /s\n@2 $1 %3 4 0 a:b\n",
            "77 /s\n$1 @2 %3 4 0 ab\n",
        ] {
            assert!(parse_list(text).is_err(), "{text:?}");
        }
    }
}
