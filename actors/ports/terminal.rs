//! The windows of workers: what they show, and what is typed into them.

use super::BoxFuture;
use swarm_model::TmuxPane;

/// How a text is typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Typing {
    /// Clear the input line first (Escape, C-u).
    pub clear: bool,
    /// Press Enter afterwards.
    pub enter: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TerminalError {
    /// There is no such window: the worker is unknown, not in tmux, or has ended.
    #[error("{0}")]
    Gone(String),
    /// There is none now, but its worker was ended by nobody and comes back: it was
    /// interrupted or lost, or its loop begins the next iteration.
    #[error("{0}")]
    Away(String),
    /// tmux failed; another time it may not.
    #[error("{0}")]
    Tool(String),
}

pub trait Terminals: Send + Sync {
    /// What the window of this worker shows, after at most `scrollback` lines of what
    /// scrolled away. Without control sequences.
    fn screen<'a>(&'a self, worker: &'a str, scrollback: usize) -> BoxFuture<'a, Result<String, TerminalError>>;

    /// Types into it; done when tmux has handed everything over.
    fn type_text<'a>(
        &'a self,
        worker: &'a str,
        text: &'a str,
        typing: Typing,
    ) -> BoxFuture<'a, Result<(), TerminalError>>;

    /// From now on what its window writes is appended to the worker's log, as for those
    /// that were started so.
    fn keep_output<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>>;

    /// Whether the tmux server that this pane was in still runs.
    fn has_server<'a>(&'a self, pane: &'a TmuxPane) -> BoxFuture<'a, bool>;

    /// Ctrl-C.
    fn interrupt<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>>;
}
