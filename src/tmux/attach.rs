//! Attaching: the command that shows a window on the caller's terminal.

use std::path::Path;
use std::process::Command;

use tmux_interface::{AttachSession, SelectWindow, SwitchClient};

use super::{PaneLine, Tmux, TmuxError, words};

impl Tmux {
    /// Returns the command to execute in place of this process. Inside a pane of the same server the command moves
    /// that client to the window, because tmux does not nest.
    ///
    /// # Errors
    /// Fails if the name of the server is invalid.
    pub fn attach_command(&self, pane: &PaneLine) -> Result<Command, TmuxError> {
        let window = format!("{}:{}", pane.session_id, pane.window_id);
        let select = SelectWindow::new().target_window(window).build();
        let show = if self.is_inside(&pane.socket_path) {
            SwitchClient::new().target_session(&pane.session_id).build()
        } else {
            AttachSession::new().target_session(&pane.session_id).build()
        };
        let mut command = Command::new("tmux");
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.arg("-N").args(self.server_words()?).args(words::sequence([select, show]));
        Ok(command)
    }

    /// Reports whether the caller's terminal is a pane of the server with this socket.
    fn is_inside(&self, socket_path: &str) -> bool {
        let Some(own) = self.variable("TMUX").and_then(socket_of) else { return false };
        let real = |path: &str| Path::new(path).canonicalize().ok();
        own == socket_path || (real(own).is_some() && real(own) == real(socket_path))
    }
}

/// Returns the socket path in `TMUX`, which is `path,server pid,session`. The path may contain commas.
fn socket_of(tmux: &str) -> Option<&str> {
    let (rest, _session) = tmux.rsplit_once(',')?;
    let (path, _pid) = rest.rsplit_once(',')?;
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::*;

    fn words_of(variable: Option<&str>) -> Vec<String> {
        let environment: Vec<_> = variable.map(|tmux| ("TMUX".to_owned(), tmux.to_owned())).into_iter().collect();
        let pane = PaneLine {
            session: "work".to_owned(),
            session_id: "$1".to_owned(),
            window: "w".to_owned(),
            window_id: "@3".to_owned(),
            pane: "%7".to_owned(),
            pane_pid: 2,
            dead: false,
            server_pid: 3,
            socket_path: "/s/a,b".to_owned(),
        };
        let tmux = Tmux::new(Server::Path(pane.socket_path.clone()), &environment);
        let command = tmux.attach_command(&pane).expect("is made");
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn outside_tmux_or_in_another_server_a_client_is_attached() {
        let attach = ["-N", "-S", "/s/a,b", "select-window", "-t", "$1:@3", ";", "attach-session", "-t", "$1"];
        assert_eq!(words_of(None), attach);
        assert_eq!(words_of(Some("/other,7,0")), attach);
        assert_eq!(words_of(Some("")), attach);
    }

    #[test]
    fn inside_the_same_server_the_client_is_moved() {
        let words = words_of(Some("/s/a,b,3,0"));
        assert_eq!(words[words.len() - 3..], ["switch-client", "-t", "$1"]);
    }
}
