//! `swarm status`: one line about a worker, and an exit code for scripts.

use swarm_model::WorkerView;

use super::args::StatusArgs;
use super::error::{Failure, unknown_worker};
use super::json;
use super::render::{Clock, escape, long_state, place, status_word, window};
use super::screen::Screen;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

pub fn run(args: &StatusArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    show(args, &registry, &Clock::system(), screen)
}

fn show(args: &StatusArgs, registry: &Registry, clock: &Clock, screen: &mut Screen) -> Result<u8, Failure> {
    let view = registry.find(&args.name).ok_or_else(|| unknown_worker(&args.name, registry).unknown_is_two())?;
    if args.json {
        json::print(screen, "swarm.worker/1", &json::Worker::of(view))?;
    } else {
        screen.line(&sentence(view, clock))?;
    }
    Ok(u8::from(!view.state.is_running()))
}

/// Returns `NAME: running (pid 7, worktree /w, uptime 5m)`. For a worker on another machine, the first field is
/// `elsewhere: HOST`. Without window and pid, the first field is empty, as in the
/// original.
fn sentence(view: &WorkerView, clock: &Clock) -> String {
    let place = match (&view.row.tmux, view.row.pid) {
        _ if view.elsewhere.is_some() => long_state(view),
        _ if view.job.is_some() => format!("{}, {}", long_state(view), place(view)),
        (Some(tmux), _) => format!("tmux window {}", window(tmux)),
        (None, Some(pid)) => format!("pid {pid}"),
        (None, None) => String::new(),
    };
    let tree = view.row.worktree.as_ref().map(|tree| format!(", worktree {}", escape(&tree.path)));
    let (name, tree, age) = (escape(&view.row.name), tree.unwrap_or_default(), clock.age(&view.row.started));
    format!("{name}: {} ({place}{tree}, uptime {age})", status_word(view))
}

#[cfg(test)]
mod tests {
    use swarm_model::Ended;

    use super::*;
    use crate::cli::sample;

    fn asked(name: &str, registry: &Registry) -> (String, String, u8) {
        let args = StatusArgs { name: name.into(), json: false };
        let clock = sample::clock("2026-01-02T00:05:00Z");
        sample::said(|screen| show(&args, registry, &clock, screen))
    }

    #[test]
    fn the_line_and_the_exit_code_agree() {
        let mut bare = sample::ended("bare", Ended::Code(0));
        std::sync::Arc::make_mut(&mut bare.row).pid = None;
        let registry =
            sample::registry(vec![sample::process("p"), sample::window("w"), sample::ended("e", Ended::Code(3)), bare]);
        assert_eq!(asked("p", &registry), ("p: running (pid 4242, uptime 5m)\n".into(), String::new(), 0));
        let line = "w: running (tmux window swarm-00c0ffee:w, worktree /r/w/w, uptime 5m)\n";
        assert_eq!(asked("w", &registry).0, line);
        assert_eq!(asked("e", &registry), ("e: stopped (pid 4242, uptime 5m)\n".into(), String::new(), 1));
        assert_eq!(asked("bare", &registry).0, "bare: stopped (, uptime 5m)\n");
    }

    #[test]
    fn an_unknown_name_has_exit_code_two() {
        let registry = sample::registry(Vec::new());
        assert_eq!(asked("x", &registry), (String::new(), "swarm: error: worker 'x' not found\n".into(), 2));
    }
}
