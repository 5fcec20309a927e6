//! Access to workers' windows by worker name. The window is looked up for each operation, because the worker may have
//! got another window, or another owner, since the last one.

use swarm_model::drafts;
use swarm_model::{FineState, TmuxPane};
use swarm_ports::{BoxFuture, TerminalError, Terminals, Typing};

use super::views;
use crate::recovery_view;
use swarm_sys::paths::Paths;
use swarm_tmux::{self, Clear, SendOptions, Target, TmuxError};

pub struct TmuxTerminals {
    paths: Paths,
}

impl TmuxTerminals {
    pub fn new(paths: Paths) -> Self {
        Self { paths }
    }

    fn at<T: Send + 'static>(
        &self,
        worker: &str,
        step: impl FnOnce(&Target) -> Result<T, TmuxError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, TerminalError>> {
        let (paths, worker) = (self.paths.clone(), worker.to_owned());
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || {
                let target = target(&paths, &worker)?;
                step(&target).map_err(terminal_error).map_err(|error| match error {
                    // The window disappears before the exit record is written.
                    TerminalError::Gone(cause) if is_away(&paths, &worker) => TerminalError::Away(cause),
                    error => error,
                })
            });
            done.await.unwrap_or_else(|error| Err(TerminalError::Tool(error.to_string())))
        })
    }
}

fn target(paths: &Paths, worker: &str) -> Result<Target, TerminalError> {
    let view = views::load_one(paths, worker).map_err(|refusal| TerminalError::Tool(refusal.cause))?;
    let gone = |what: &str| {
        let cause = format!("worker '{worker}' {what}");
        match recovery_view::comes_back(paths, worker, view.as_ref()) {
            true => TerminalError::Away(cause),
            false => TerminalError::Gone(cause),
        }
    };
    let Some(view) = &view else { return Err(gone("not found")) };
    if view.state == FineState::Backoff {
        return Err(TerminalError::Tool(format!("worker '{worker}' is about to be restarted")));
    }
    if let Some(host) = &view.elsewhere {
        return Err(TerminalError::Tool(format!("worker '{worker}' is on machine '{host}'")));
    }
    if !view.state.is_running() {
        return Err(gone("is not running"));
    }
    let environment: Vec<(String, String)> = std::env::vars().collect();
    let target = swarm_tmux::target(view, &environment).map_err(terminal_error)?;
    target.ok_or_else(|| TerminalError::Gone(format!("worker '{worker}' is not a tmux worker")))
}

/// Reports whether a worker without a window comes back, or its whole tmux server is gone.
fn is_away(paths: &Paths, worker: &str) -> bool {
    let Ok(view) = views::load_one(paths, worker) else { return true };
    let has_server = view.as_ref().and_then(|view| view.pane.as_ref()).is_none_or(swarm_tmux::has_server);
    match &view {
        Some(view) if view.state.is_running() => !has_server,
        view => recovery_view::comes_back(paths, worker, view.as_ref()),
    }
}

fn terminal_error(error: TmuxError) -> TerminalError {
    match error {
        error if error.is_absence() => TerminalError::Gone(error.to_string()),
        TmuxError::Asks(dialog) => TerminalError::Asks(dialog.sentence()),
        TmuxError::Drafted(draft) => TerminalError::Asks(drafts::sentence(&draft)),
        TmuxError::NotDelivered { .. } => TerminalError::Gone(error.to_string()),
        error => TerminalError::Tool(error.to_string()),
    }
}

impl Terminals for TmuxTerminals {
    fn screen<'a>(&'a self, worker: &'a str, scrollback: usize) -> BoxFuture<'a, Result<String, TerminalError>> {
        self.at(worker, move |target| target.tmux.capture(&target.pane, scrollback, false))
    }

    fn draft<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<Option<String>, TerminalError>> {
        self.at(worker, |target| target.tmux.draft(&target.pane))
    }

    fn type_text<'a>(
        &'a self,
        worker: &'a str,
        text: &'a str,
        typing: Typing,
    ) -> BoxFuture<'a, Result<(), TerminalError>> {
        let clear = match typing.clear {
            true => Clear::Whole,
            // Enter alone submits what is already there.
            false if text.is_empty() => Clear::Nothing,
            false => Clear::Refuse,
        };
        let (text, options) = (text.to_owned(), SendOptions { clear, enter: typing.enter });
        self.at(worker, move |target| target.tmux.send_text(&target.pane, &text, options))
    }

    fn keep_output<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>> {
        let log = self.paths.log(worker, "tmux");
        self.at(worker, move |target| target.tmux.keep_output(&target.pane, &log))
    }

    fn has_server<'a>(&'a self, pane: &'a TmuxPane) -> BoxFuture<'a, bool> {
        let pane = pane.clone();
        Box::pin(
            async move { tokio::task::spawn_blocking(move || swarm_tmux::has_server(&pane)).await.unwrap_or(true) },
        )
    }

    fn interrupt<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>> {
        self.at(worker, |target| target.tmux.interrupt(&target.pane))
    }
}
