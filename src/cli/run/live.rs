//! A run on a terminal: a line for each workstream that is at work, and above them
//! what has become of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use swarm_actors::run::words::{Line, Word};

use crate::cli::render::escape;

/// How often a line shows that it lives.
const TICK: Duration = Duration::from_millis(120);

pub struct Live {
    all: MultiProgress,
    bars: BTreeMap<String, ProgressBar>,
    summary: ProgressBar,
    total: usize,
    done: usize,
    failed: usize,
}

impl Live {
    pub fn new() -> Self {
        let all = MultiProgress::new();
        let summary = all.add(ProgressBar::new_spinner());
        summary.set_style(ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self { all, bars: BTreeMap::new(), summary, total: 0, done: 0, failed: 0 }
    }

    pub fn show(&mut self, line: &Line) {
        let id = line.workstream.as_deref().unwrap_or_default();
        match &line.word {
            Word::RunStarted { workstreams, pending } => {
                self.total = *workstreams;
                self.done = workstreams.saturating_sub(*pending);
                self.say(&format!("run {}: {pending} of {workstreams} workstreams to do", line.run));
            }
            Word::Started { attempt, .. } => {
                let text = if *attempt > 1 { format!("attempt {attempt}") } else { "at work".to_owned() };
                self.set(id, &text);
            }
            Word::Activity { text } => self.set(id, text),
            Word::NeedsInput { cause } => self.set(id, &format!("waiting: {cause}")),
            Word::Completed { .. } => self.set(id, "finished, to be landed"),
            Word::MergeStarted { base } => self.set(id, &format!("in the merge queue of {base}")),
            Word::MergeWaiting { error } => self.end(id, "…", &format!("waits to land: {error}")),
            Word::Done { commit } => {
                self.done += 1;
                let landed =
                    commit.as_deref().map(|commit| format!("landed as {}", commit.get(..12).unwrap_or(commit)));
                self.end(id, "✓", &landed.unwrap_or_else(|| "done".to_owned()));
            }
            Word::Failed { error, .. } => {
                self.failed += 1;
                self.end(id, "✗", error);
            }
            Word::Retrying { error, in_ms, .. } => {
                let when = if *in_ms > 0 { format!(" in {} s", in_ms.div_ceil(1000)) } else { String::new() };
                self.set(id, &format!("tries again{when}: {error}"));
            }
            Word::Paused { .. } => self.end(id, "‖", "stopped; the next run goes on with it"),
            Word::MergeConflict { files, branch } => {
                self.say(&format!(
                    "{} conflicts with the base in {}; its work is on {branch}",
                    escape(id),
                    escape(&files.join(", "))
                ));
            }
            Word::Context { delivered, text } => {
                let how = if *delivered { "was told" } else { "could not be told any more" };
                self.say(&format!("{} {how}: {}", escape(id), escape(text)));
            }
            Word::RunPaused => self.say("paused: nothing new is begun"),
            Word::RunResumed => self.say("resumed"),
            Word::RunStopping => self.say("stopping"),
            Word::MergeCompleted { .. } | Word::MergeRejected { .. } => {}
            Word::RunCompleted { status, done, failed, pending } => self.over(status, *done, *failed, *pending),
        }
        self.summary.set_message(format!(
            "{} of {} done, {} failed, {} at work",
            self.done,
            self.total,
            self.failed,
            self.bars.len()
        ));
    }

    fn set(&mut self, id: &str, text: &str) {
        let bar = self.bars.entry(id.to_owned()).or_insert_with(|| {
            let bar = self.all.insert_before(&self.summary, ProgressBar::new_spinner());
            let style = ProgressStyle::with_template("{spinner:.blue} {prefix:.bold} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_prefix(escape(id).into_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        bar.set_message(escape(text).into_owned());
    }

    fn end(&mut self, id: &str, sign: &str, text: &str) {
        if let Some(bar) = self.bars.remove(id) {
            bar.finish_and_clear();
        }
        self.say(&format!("{sign} {} {}", escape(id), escape(text)));
    }

    fn say(&self, text: &str) {
        let _ = self.all.println(text);
    }

    fn over(&mut self, status: &str, done: usize, failed: usize, pending: usize) {
        for bar in std::mem::take(&mut self.bars).into_values() {
            bar.finish_and_clear();
        }
        self.summary.finish_and_clear();
        let rest = if pending > 0 { format!(", {pending} to do: swarm run") } else { String::new() };
        self.say(&format!("{status}: {done} done, {failed} failed{rest}"));
    }
}
