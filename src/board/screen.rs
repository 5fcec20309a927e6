//! The window of a worker, as it is now.

use swarm_store::views::load_one;
use swarm_store::windows;
use swarm_sys::paths::Paths;

use super::sgr;

/// Captures the window of a worker. Waits for tmux for some seconds at most.
///
/// # Errors
/// Returns a sentence if the worker has no window, or tmux does not answer. With a generation, it must be that one.
pub fn capture(paths: &Paths, name: &str, generation: Option<u64>) -> Result<String, String> {
    let view = load_one(paths, name).map_err(|refusal| refusal.cause)?.ok_or("the worker is gone")?;
    let present = view.row.swarm().map(|swarm| swarm.generation);
    if generation.is_some() && generation != present {
        return Err("it was started again".to_owned());
    }
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let target = windows::target(&view, &environment).map_err(|error| error.to_string())?;
    let target = target.ok_or("it has none")?;
    target.tmux.capture(&target.pane, 0, true).map_err(|error| error.to_string())
}

/// Returns the lines of a window without the empty ones at its end.
pub fn lines(shown: &str) -> Vec<sgr::Line> {
    let mut lines = sgr::lines(shown);
    let is_blank = |line: &sgr::Line| line.iter().all(|run| run.text.trim().is_empty() && run.style.back.is_none());
    while lines.last().is_some_and(is_blank) {
        lines.pop();
    }
    lines
}
