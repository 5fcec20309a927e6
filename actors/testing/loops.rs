//! In-memory files of loops.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use swarm_model::loops::progress::{Earlier, Loop, Plan, Wire};
use swarm_model::loops::words::Word;
use swarm_ports::{BoxFuture, Filed, Found, Loops, Survey};

pub struct FakeLoops {
    script: Arc<Script>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Each loop as text, as a disk would hold it.
    saved: BTreeMap<String, String>,
    wires: BTreeMap<String, Wire>,
    logs: BTreeMap<String, Vec<Word>>,
    prompts: BTreeMap<String, String>,
    output: BTreeMap<String, String>,
    no_wires: bool,
    found: BTreeMap<String, Found>,
}

impl FakeLoops {
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, inner: Mutex::default() }
    }

    /// Returns the saved loop.
    pub fn loaded(&self, name: &str) -> Option<Loop> {
        self.with(|inner| inner.saved.get(name).map(|text| serde_json::from_str(text).expect("it was written so")))
    }

    /// Returns the lines of the loop's log.
    pub fn lines(&self, name: &str) -> Vec<String> {
        let line = |word: &Word| format!("{} {word}", word.event());
        self.with(|inner| inner.logs.get(name).map(|log| log.iter().map(line).collect()).unwrap_or_default())
    }

    /// Changes `state.json` as another program would.
    pub fn write_wire(&self, name: &str, wire: Wire) {
        self.with(|inner| inner.wires.insert(name.to_owned(), wire));
    }

    /// Adds a loop that another program started.
    pub fn put_found(&self, found: Found) {
        self.with(|inner| {
            let name = found.it.name().to_owned();
            inner.wires.insert(name.clone(), found.it.wire());
            inner.found.insert(name, found);
        });
    }

    /// Makes writes of `state.json` fail, or succeed again.
    pub fn refuse_wires(&self, refuse: bool) {
        self.with(|inner| inner.no_wires = refuse);
    }

    /// Sets the content of a prompt file. `None` removes it.
    pub fn put_prompt(&self, file: &str, prompt: Option<&str>) {
        self.with(|inner| match prompt {
            Some(prompt) => drop(inner.prompts.insert(file.to_owned(), prompt.to_owned())),
            None => drop(inner.prompts.remove(file)),
        });
    }

    /// Sets the output that the worker's log has from the present iteration.
    pub fn put_output(&self, worker: &str, text: &str) {
        self.with(|inner| inner.output.insert(worker.to_owned(), text.to_owned()));
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Loops for FakeLoops {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<String>>> {
        Box::pin(async move {
            let names: Vec<String> = self.with(|inner| inner.saved.keys().cloned().collect());
            let wire = |name: &String| self.with(|inner| inner.wires.get(name).copied());
            let is_changed = |name: &String, it: &Loop| wire(name).is_some_and(|wire| it.is_anothers(wire));
            let is_active = |name: &String, it: &Loop| it.is_active() || (it.may_go_on() && is_changed(name, it));
            let is_listed = |name: &String| self.loaded(name).is_some_and(|it| is_active(name, &it));
            let active = names.into_iter().filter(is_listed).collect();
            self.script.survey("loop.active", active, String::clone).await
        })
    }

    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Loop>, String>> {
        Box::pin(async move {
            self.script.before("loop.load", name).await?;
            Ok(self.loaded(name))
        })
    }

    fn found<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Found>, String>> {
        Box::pin(async move {
            self.script.before("loop.found", name).await?;
            Ok(self.with(|inner| inner.found.get(name).cloned()).filter(|_| self.loaded(name).is_none()))
        })
    }

    fn save<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<Filed>> {
        Box::pin(async move {
            self.script.before("loop.save", it.name()).await.map_err(io::Error::other)?;
            let text = serde_json::to_string(it)?;
            self.with(|inner| inner.saved.insert(it.name().to_owned(), text));
            self.script.before("loop.log", it.name()).await.map_err(io::Error::other)?;
            self.with(|inner| {
                let log = inner.logs.entry(it.name().to_owned()).or_default();
                let at = usize::try_from(it.lines_at).expect("small");
                let there = log.len().saturating_sub(at);
                log.extend(it.lines.iter().skip(there).map(|(_, word)| word.clone()));
            });
            self.script.before("loop.wire", it.name()).await.map_err(io::Error::other)?;
            if self.with(|inner| inner.no_wires) {
                return Ok(Filed::Behind);
            }
            let others = self.with(|inner| {
                let there = inner.wires.get(it.name()).copied().filter(|wire| it.is_anothers(*wire));
                if there.is_none() {
                    inner.wires.insert(it.name().to_owned(), it.wire());
                }
                there
            });
            self.script.after("loop.save").await.map_err(io::Error::other)?;
            Ok(others.map_or(Filed::Current, Filed::Others))
        })
    }

    fn note<'a>(&'a self, _: &'a Loop) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn wire<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Wire>> {
        Box::pin(std::future::ready(self.with(|inner| inner.wires.get(name).copied())))
    }

    fn log_length<'a>(&'a self, name: &'a str) -> BoxFuture<'a, u64> {
        let length = self.with(|inner| inner.logs.get(name).map_or(0, Vec::len));
        Box::pin(std::future::ready(length as u64))
    }

    fn earlier<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Option<Earlier>>> {
        let earlier = self.with(|inner| Earlier {
            record: inner.saved.get(name).cloned(),
            state: inner.wires.get(name).map(|wire| serde_json::to_string(wire).expect("plain data")),
            log_length: inner.logs.get(name).map_or(0, Vec::len) as u64,
        });
        Box::pin(std::future::ready(Ok((earlier != Earlier::default()).then_some(earlier))))
    }

    fn withdraw<'a>(&'a self, it: &'a Loop) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let Some(earlier) = &it.earlier else { return self.forget(it.name()).await.map(drop) };
            self.script.before("loop.withdraw", it.name()).await.map_err(io::Error::other)?;
            self.with(|inner| {
                let name = it.name();
                let length = usize::try_from(earlier.log_length).expect("small");
                inner.logs.entry(name.to_owned()).or_default().truncate(length);
                inner.wires.remove(name);
                let wire = earlier.state.as_ref().map(|text| serde_json::from_str(text).expect("it was written so"));
                inner.wires.extend(wire.map(|wire| (name.to_owned(), wire)));
                inner.saved.remove(name);
                inner.saved.extend(earlier.record.clone().map(|record| (name.to_owned(), record)));
            });
            Ok(())
        })
    }

    fn forget<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<bool>> {
        Box::pin(async move {
            self.script.before("loop.forget", name).await.map_err(io::Error::other)?;
            Ok(self.with(|inner| {
                inner.wires.remove(name);
                inner.logs.remove(name);
                let was_theirs = inner.found.remove(name).is_some();
                inner.saved.remove(name).is_some() || was_theirs
            }))
        })
    }

    fn prompt<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            self.script.before("loop.prompt", &plan.name).await?;
            let prompt = self.with(|inner| inner.prompts.get(&plan.prompt_file).cloned());
            prompt.ok_or_else(|| format!("prompt file not found: {}", plan.prompt_file))
        })
    }

    fn written<'a>(&'a self, _: &'a str) -> BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn output<'a>(&'a self, worker: &'a str, _: u64) -> BoxFuture<'a, String> {
        let output = self.with(|inner| inner.output.get(worker).cloned().unwrap_or_default());
        Box::pin(std::future::ready(output))
    }
}
