//! The pane of a worker, as the registry shows the worker.

use swarm_model::{TmuxPane, WorkerView};

use swarm_sys::procfs;

use super::{PaneLine, Server, Tmux, TmuxError};

/// A pane and the server it is in.
#[derive(Clone, Debug)]
pub struct Target {
    pub tmux: Tmux,
    /// `%7`
    pub pane: String,
    /// The session in which it was made, for a window that is in several.
    pub session: String,
}

impl Target {
    /// Where it is now.
    ///
    /// # Errors
    /// When it is gone, or tmux does not answer.
    pub fn find(&self) -> Result<PaneLine, TmuxError> {
        self.tmux.find_pane(&self.pane, &self.session)
    }
}

/// Whether the server that this pane was in still runs, also where its socket is gone.
pub fn has_server(pane: &TmuxPane) -> bool {
    let environment: Vec<(String, String)> = std::env::vars().collect();
    let answers = match Tmux::of_pane(pane, &environment).list() {
        Ok(panes) => panes.iter().any(|line| line.server_pid == pane.server_pid),
        // One that does not answer is there.
        Err(_) => true,
    };
    answers || procfs::command(pane.server_pid).is_some_and(|name| name.starts_with("tmux"))
}

/// Finds the pane: by the ids that were recorded for workers of ours, by exact
/// names for those of the other program. None for a worker without tmux.
///
/// # Errors
/// When the window is not there, or tmux does not answer.
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
