//! What the queues are at, on one line of a terminal that somebody waits before.

use std::io::IsTerminal as _;

use indicatif::ProgressBar;
use swarm_actors::merge::queue::Item;
use swarm_actors::model::QueueView;

use super::show::stage;
use crate::cli::bars::{TICK, style};
use crate::cli::render::escape;

/// The line; none where nobody looks, or a program reads.
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

    /// Whether somebody looks.
    pub fn is_seen(&self) -> bool {
        self.0.is_some()
    }

    /// Says something above the line.
    pub fn above<T>(&self, say: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// Shows what is waited for: items, and workers that are to finish first.
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
    named.extend((workers > 0).then(|| format!("{workers} still at work")));
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use swarm_actors::merge::queue::{Addition, Queue};
    use swarm_actors::model::Target;

    use super::*;

    #[test]
    fn what_is_under_way_is_named_and_the_rest_counted() {
        let mut queue = Queue::default();
        for name in ["a", "b", "c"] {
            let addition = Addition { name: name.into(), tip: "t".into(), ..Addition::default() };
            queue.on(swarm_actors::merge::machine::Event::Pause);
            queue.on(swarm_actors::merge::machine::Event::Added(addition, 0));
        }
        queue.items[0].state = swarm_actors::merge::queue::State::Resolving;
        let target = Target { repository: "/r/.git".into(), branch: "refs/heads/main".into() };
        let view = QueueView { target, queue, stuck: None };
        let shown = |of: usize, workers| text(view.queue.items[..of].iter().map(|item| (&view, item)), workers);
        assert_eq!(shown(3, 1), "resolving a, 2 queued, 1 still at work");
        assert_eq!(shown(1, 0), "resolving a");
    }
}
