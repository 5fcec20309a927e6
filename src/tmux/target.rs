//! Pane of a worker of the registry.

use swarm_model::{TmuxPane, WorkerView};

use swarm_sys::procfs;

use super::{PaneLine, Server, Tmux, TmuxError};

/// Pane of a worker, and its server.
#[derive(Clone, Debug)]
pub struct Target {
    pub tmux: Tmux,
    /// Pane id, such as `%7`.
    pub pane: String,
    /// Session in which the pane was created, for a window that is linked into several.
    pub session: String,
}

impl Target {
    /// Returns where the pane is now.
    ///
    /// # Errors
    /// Fails if the pane does not exist, or tmux does not answer.
    pub fn find(&self) -> Result<PaneLine, TmuxError> {
        self.tmux.find_pane(&self.pane, &self.session)
    }
}

/// Reports whether the server of this pane still runs, even if its socket is gone. If tmux cannot be asked, only the kernel
/// knows.
pub fn has_server(pane: &TmuxPane) -> bool {
    let environment: Vec<(String, String)> = std::env::vars().collect();
    is_server_of(&Tmux::of_pane(pane, &environment), pane)
}

/// Reports whether `tmux` reaches the server of this pane, or its process exists.
pub(crate) fn is_server_of(tmux: &Tmux, pane: &TmuxPane) -> bool {
    let answers = match tmux.list() {
        Ok(panes) => panes.iter().any(|line| line.server_pid == pane.server_pid),
        // A server that does not answer exists.
        Err(TmuxError::Timeout { .. }) => true,
        // The client is missing, or was killed.
        Err(_) => false,
    };
    answers || procfs::command(pane.server_pid).is_some_and(|name| name.starts_with("tmux"))
}

/// Finds the pane of a worker: by the recorded ids, or by exact names for a worker of the original `swarm`. `None`
/// for a worker without tmux.
///
/// # Errors
/// Fails if the window does not exist, or tmux does not answer.
pub fn target(worker: &WorkerView, environment: &[(String, String)]) -> Result<Option<Target>, TmuxError> {
    let row = worker.row.tmux.as_ref();
    let session = row.map(|row| row.session.clone()).unwrap_or_default();
    if let Some(pane) = &worker.pane {
        return Ok(Some(Target { tmux: Tmux::of_pane(pane, environment), pane: pane.pane.clone(), session }));
    }
    let Some(row) = row else { return Ok(None) };
    let server = row.socket.clone().map_or(Server::Default, Server::Name);
    let tmux = Tmux::new(server, environment);
    match tmux.find_window(&row.session, &row.window)?.into_iter().next() {
        Some(line) => Ok(Some(Target { tmux, pane: line.pane, session })),
        None => Err(TmuxError::NotFound(format!("can't find window: {}:{}", row.session, row.window))),
    }
}
