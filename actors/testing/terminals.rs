//! Windows as texts: the test sets their contents, and typed texts are recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use swarm_model::TmuxPane;
use swarm_model::dialog::dialog;
use swarm_model::drafts::{draft, sentence};
use swarm_ports::{BoxFuture, TerminalError, Terminals, Typing};

pub struct FakeTerminals {
    script: Arc<Script>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    screens: BTreeMap<String, String>,
    away: BTreeSet<String>,
    typed: Vec<(String, String, Typing)>,
    server_gone: bool,
}

impl FakeTerminals {
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, inner: Mutex::default() }
    }

    /// Gives the worker a window with this content.
    pub fn show(&self, worker: &str, screen: &str) {
        self.with(|inner| {
            inner.away.remove(worker);
            inner.screens.insert(worker.to_owned(), screen.to_owned())
        });
    }

    /// Closes the worker's window.
    pub fn close(&self, worker: &str) {
        self.with(|inner| {
            inner.away.remove(worker);
            inner.screens.remove(worker)
        });
    }

    /// Closes the worker's window; the worker will come back.
    pub fn away(&self, worker: &str) {
        self.close(worker);
        self.with(|inner| inner.away.insert(worker.to_owned()));
    }

    /// Ends the tmux server with all windows.
    pub fn lose_server(&self) {
        self.with(|inner| {
            inner.screens.clear();
            inner.server_gone = true;
        });
    }

    /// Returns the texts typed into the worker's window, in order. An interrupt is `^C`.
    pub fn typed(&self, worker: &str) -> Vec<String> {
        self.with(|inner| {
            inner.typed.iter().filter(|(name, ..)| name == worker).map(|(_, text, _)| text.clone()).collect()
        })
    }

    /// Returns the typed texts together with how they were typed.
    pub fn typed_how(&self, worker: &str) -> Vec<(String, Typing)> {
        self.with(|inner| {
            let of_worker = inner.typed.iter().filter(|(name, ..)| name == worker);
            of_worker.map(|(_, text, typing)| (text.clone(), *typing)).collect()
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn type_into(&self, worker: &str, text: &str, typing: Typing) -> Result<(), TerminalError> {
        self.with(|inner| {
            let screen = inner.screens.get(worker).ok_or_else(|| inner.missing(worker))?;
            if let Some(dialog) = dialog(screen) {
                return Err(TerminalError::Asks(dialog.sentence()));
            }
            if let Some(draft) = draft(screen).filter(|_| !typing.clear && !text.is_empty() && text != "^C") {
                return Err(TerminalError::Asks(sentence(&draft)));
            }
            inner.typed.push((worker.to_owned(), text.to_owned(), typing));
            Ok(())
        })
    }
}

impl Inner {
    fn missing(&self, worker: &str) -> TerminalError {
        let cause = format!("worker '{worker}' has no window");
        if self.away.contains(worker) { TerminalError::Away(cause) } else { TerminalError::Gone(cause) }
    }
}

impl Terminals for FakeTerminals {
    fn screen<'a>(&'a self, worker: &'a str, _: usize) -> BoxFuture<'a, Result<String, TerminalError>> {
        Box::pin(async move {
            self.script.before("screen", worker).await.map_err(TerminalError::Tool)?;
            self.with(|inner| inner.screens.get(worker).cloned().ok_or_else(|| inner.missing(worker)))
        })
    }

    fn draft<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<Option<String>, TerminalError>> {
        let found = self
            .with(|inner| inner.screens.get(worker).map(|screen| draft(screen)).ok_or_else(|| inner.missing(worker)));
        Box::pin(std::future::ready(found))
    }

    fn type_text<'a>(
        &'a self,
        worker: &'a str,
        text: &'a str,
        typing: Typing,
    ) -> BoxFuture<'a, Result<(), TerminalError>> {
        Box::pin(async move {
            self.script.before("type_text", worker).await.map_err(TerminalError::Tool)?;
            self.type_into(worker, text, typing)
        })
    }

    fn keep_output<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>> {
        Box::pin(async move { self.script.before("keep_output", worker).await.map_err(TerminalError::Tool) })
    }

    fn has_server<'a>(&'a self, _: &'a TmuxPane) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(self.with(|inner| !inner.server_gone)))
    }

    fn interrupt<'a>(&'a self, worker: &'a str) -> BoxFuture<'a, Result<(), TerminalError>> {
        Box::pin(async move {
            self.script.before("interrupt", worker).await.map_err(TerminalError::Tool)?;
            self.type_into(worker, "^C", Typing::default())
        })
    }
}
