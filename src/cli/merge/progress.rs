//! Progress line of `swarm merge wait` on a terminal.

use std::io::IsTerminal as _;

use indicatif::ProgressBar;
use swarm_model::QueueView;
use swarm_model::merge::queue::Item;

use super::show::stage;
use crate::cli::progress_bar::{TICK, style};
use crate::cli::render::escape;

/// Progress line; `None` if standard error is not a terminal or the output is for programs.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    pub fn new(is_for_programs: bool) -> Self {
        let is_seen = !is_for_programs && std::io::stderr().is_terminal();
        Self(is_seen.then(|| {
            let bar = ProgressBar::new_spinner().with_style(style("{spinner:.blue} {elapsed} {wide_msg}"));
            bar.enable_steady_tick(TICK);
            bar
        }))
    }

    /// Reports whether the line is shown.
    pub fn is_seen(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `say`, whose output appears above the line.
    pub fn above<T>(&self, say: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// Shows the items that are still open, and the number of workers that have not finished yet.
    pub fn show<'a>(&self, items: impl Iterator<Item = (&'a QueueView, &'a Item)>, workers: usize) {
        if let Some(bar) = &self.0 {
            bar.set_message(text(items, workers));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn text<'a>(items: impl Iterator<Item = (&'a QueueView, &'a Item)>, workers: usize) -> String {
    let (mut named, mut queued) = (Vec::new(), 0);
    for (view, item) in items {
        match stage(view, item) {
            "queued" => queued += 1,
            stage => named.push(format!("{stage} {}", escape(&item.name))),
        }
    }
    named.extend((queued > 0).then(|| format!("{queued} queued")));
    named.extend((workers > 0).then(|| format!("{workers} still running")));
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use swarm_model::Target;
    use swarm_model::merge::queue::{Addition, Queue};

    use super::*;

    #[test]
    fn items_in_progress_are_named_and_queued_ones_counted() {
        let mut queue = Queue::default();
        for (id, name) in ["a", "b", "c"].into_iter().enumerate() {
            let addition = Addition { name: name.into(), tip: "t".into(), ..Addition::default() };
            queue.items.push(addition.into_item(id as u64, &queue.rules, 0));
        }
        queue.items[0].state = swarm_model::merge::queue::State::Resolving;
        let target = Target { repository: "/r/.git".into(), branch: "refs/heads/main".into() };
        let view = QueueView { target, queue, stuck: None };
        let shown = |of: usize, workers| text(view.queue.items[..of].iter().map(|item| (&view, item)), workers);
        assert_eq!(shown(3, 1), "resolving a, 2 queued, 1 still running");
        assert_eq!(shown(1, 0), "resolving a");
    }
}
