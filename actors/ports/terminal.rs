//! Windows of workers: what they show, and what is typed into them.

use super::BoxFuture;
use swarm_model::TmuxPane;

/// How to type a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Typing {
    /// Clear the input line first (Escape, C-u).
    pub clear: bool,
    /// Press Enter afterwards.
    pub enter: bool,
}

/// Reason why a window cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TerminalError {
    /// The worker has no window: it is unknown, not in tmux, or has ended.
    #[error("{0}")]
    Gone(String),
    /// The worker has no window now, but nobody ended it and it may return: it was interrupted or lost, or its loop
    /// is between two iterations.
    #[error("{0}")]
    Away(String),
    /// The window shows a dialog of its agent, which text would answer, or its input line holds a text that a person has not
    /// submitted. Nothing was typed, or no Enter after the text.
    #[error("{0}")]
    Asks(String),
    /// tmux failed. A later try may succeed.
    #[error("{0}")]
    Tool(String),
}

/// Windows of workers.
pub trait Terminals: Send + Sync {
    /// Returns what the window of this worker shows, preceded by at most `scrollback` lines of its history. Without
    /// control sequences.
    fn screen<'a>(&'a self, worker: &'a str, scrollback: usize) -> BoxFuture<'a, Result<String, TerminalError>>;

    /// Returns the text that the input line of an agent holds and nobody has submitted.
    fn draft<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<Option<String>, TerminalError>>;

    /// Types a text into the window. Unless the input line is cleared first, a text is refused with
    /// [`TerminalError::Asks`] if that line of an agent holds another one, which Enter would submit as well. Resolves once tmux
    /// has passed everything on.
    fn type_text<'a>(
        &'a self,
        worker: &'a str,
        text: &'a str,
        typing: Typing,
    ) -> BoxFuture<'a, Result<(), TerminalError>>;

    /// From now on appends the output of the window to the worker's log, as for workers that swarm started.
    fn keep_output<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>>;

    /// Reports whether the tmux server of this pane still runs.
    fn has_server<'a>(&'a self, pane: &'a TmuxPane) -> BoxFuture<'a, bool>;

    /// Sends Ctrl-C to the window.
    fn interrupt<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>>;
}
