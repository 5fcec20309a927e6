//! `swarm ls`: lists workers.

use std::cmp::Reverse;
use std::path::Path;

use serde::Serialize;
use swarm_model::{FineState, Row, Wire, WorkerView};

use super::args::{Format, LsArgs, Sort, StatusFilter};
use super::error::Failure;
use super::json;
use super::render::{Clock, escape, long_table, plain_table};
use super::screen::Screen;
use super::tagged::has_all;
use swarm_store::views::{Detail, Pick, Registry, load_where};
use swarm_sys::paths::Paths;

pub fn run(args: &LsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let detail = match args.sort {
        _ if args.long || args.json => Detail::Fine,
        Some(Sort::State | Sort::Uptime) => Detail::Fine,
        Some(Sort::Restarts) => Detail::Exit,
        Some(Sort::Name | Sort::Started) | None => Detail::Word,
    };
    screen.colour_as(args.color);
    let registry = load_where(paths, detail, Pick::All)?;
    show(args, &registry, &paths.state(), &Clock::system(), screen)
}

/// Prints the selected workers. Unreadable rows are reported after the list and set the exit code to 1.
fn show(args: &LsArgs, registry: &Registry, state: &Path, clock: &Clock, screen: &mut Screen) -> Result<u8, Failure> {
    super::warn_all(registry, screen);
    let mut chosen: Vec<&WorkerView> = registry.workers.iter().filter(|view| selected(args, view)).collect();
    let total = chosen.len();
    order(args, &mut chosen, clock);
    let chosen: Vec<&WorkerView> =
        chosen.into_iter().skip(args.offset).take(args.limit.unwrap_or(usize::MAX)).collect();
    if args.json {
        let workers: Vec<json::Worker> = chosen.into_iter().map(json::Worker::of).collect();
        json::print(screen, "swarm.workers/1", &List { total, workers })?;
    } else if args.long {
        let text = long_table(&chosen, clock, screen.colour, screen.columns);
        screen.bytes(text.as_bytes())?;
    } else {
        match args.format {
            _ if args.quiet => chosen.iter().try_for_each(|view| screen.line(&escape(&view.row.name)))?,
            Format::Table => screen.bytes(plain_table(&chosen, clock, screen.columns).as_bytes())?,
            Format::Json => screen.line(&wire(&chosen))?,
            Format::Names => chosen.iter().try_for_each(|view| screen.line(&escape(&view.row.name)))?,
        }
    }
    screen.flush()?;
    for (row, cause) in &registry.unreadable {
        screen.warning(&format!("cannot read entry {row} of {}: {cause}", state.display()));
    }
    Ok(u8::from(!registry.unreadable.is_empty()))
}

fn selected(args: &LsArgs, view: &WorkerView) -> bool {
    let status = match args.status {
        StatusFilter::All => true,
        StatusFilter::Running => view.state.is_running(),
        StatusFilter::Stopped => !view.state.is_running(),
    };
    status && has_all(view, &args.tags)
}

/// Result of `--json`.
#[derive(Serialize)]
struct List<'a> {
    /// Number of selected workers before `--limit` and `--offset`.
    total: usize,
    workers: Vec<json::Worker<'a>>,
}

fn order(args: &LsArgs, views: &mut [&WorkerView], clock: &Clock) {
    match args.sort {
        Some(Sort::Name) => views.sort_by(|one, other| one.row.name.cmp(&other.row.name)),
        Some(Sort::Started) => {
            views.sort_by_cached_key(|view| (Reverse(clock.since(&view.row.started)), view.row.started.clone()))
        }
        Some(Sort::State) => views.sort_by_key(|view| rank(view.state)),
        Some(Sort::Uptime) => views.sort_by_cached_key(|view| life(view, clock)),
        Some(Sort::Restarts) => views.sort_by_key(|view| view.restarts),
        None => {}
    }
    if args.reverse {
        views.reverse();
    }
}

/// Returns how long a worker has run, in seconds.
fn life(view: &WorkerView, clock: &Clock) -> Option<u64> {
    match &view.exit {
        Some(exit) => Some(exit.duration_ms / 1000),
        None => clock.since(&view.row.started).filter(|_| view.state.is_running()),
    }
}

/// Returns the sort rank of a state: running, restarting, ended, failed.
fn rank(state: FineState) -> u8 {
    match state {
        FineState::Running => 0,
        FineState::Starting => 1,
        FineState::Stopping => 2,
        FineState::Suspended => 3,
        FineState::Unsupervised => 4,
        FineState::Elsewhere => 5,
        FineState::Backoff => 5,
        FineState::Exited => 6,
        FineState::Stopped => 7,
        FineState::Interrupted => 8,
        FineState::Lost => 9,
        FineState::OutOfMemory => 10,
        FineState::Failed => 11,
    }
}

/// Returns the rows as the original prints them, with the current status.
fn wire(views: &[&WorkerView]) -> String {
    let rows: Vec<&Row> = views.iter().map(|view| view.row.as_ref()).collect();
    Wire::render(&rows, 0).expect("a row is always an object with text keys")
}

#[cfg(test)]
mod tests {
    use swarm_model::Ended;

    use super::*;
    use crate::cli::sample;

    fn listed(words: &[&str], registry: &Registry) -> (String, String, u8) {
        let crate::cli::args::Command::Ls(args) = sample::command(&[&["ls"], words].concat()) else {
            panic!("not ls");
        };
        let clock = sample::clock("2026-01-02T00:05:00Z");
        sample::said(|screen| show(&args, registry, Path::new("/s/state.json"), &clock, screen))
    }

    #[test]
    fn nothing_is_printed_without_workers_but_json_has_an_empty_list() {
        let none = sample::registry(Vec::new());
        for words in [&[][..], &["--format", "names"], &["-l"]] {
            assert_eq!(listed(words, &none), (String::new(), String::new(), 0));
        }
        assert_eq!(listed(&["--format", "json"], &none).0, "[]\n");
        assert_eq!(listed(&["--json"], &none).0, "{\"schema\":\"swarm.workers/1\",\"total\":0,\"workers\":[]}\n");
    }

    #[test]
    fn filters_select_by_current_status_and_exact_tag() {
        let all = sample::registry(vec![
            sample::process("up"),
            sample::ended("down", Ended::Code(0)),
            sample::window("untagged"),
        ]);
        assert_eq!(listed(&["--format", "names"], &all).0, "up\ndown\nuntagged\n");
        assert_eq!(listed(&["--format", "names", "--status", "running"], &all).0, "up\nuntagged\n");
        assert_eq!(listed(&["--format", "names", "--status", "stopped"], &all).0, "down\n");
        assert_eq!(listed(&["--format", "names", "--tag", "ci"], &all).0, "up\ndown\n");
        assert_eq!(listed(&["--format", "names", "--tag", "c"], &all).0, "");
    }

    #[test]
    fn a_list_is_sorted_before_limit_and_offset_apply() {
        let mut all =
            sample::registry(vec![sample::ended("b", Ended::Code(0)), sample::window("c"), sample::process("a")]);
        all.workers[0].restarts = 2;
        let names = |words: &[&str]| listed(&[&["-q"], words].concat(), &all).0.replace('\n', " ");
        assert_eq!(names(&[]), "b c a ");
        assert_eq!(names(&["--sort", "name"]), "a b c ");
        assert_eq!(names(&["--sort", "name", "-r"]), "c b a ");
        assert_eq!(names(&["--sort", "state"]), "c a b ");
        assert_eq!(names(&["--sort", "uptime"]), "b c a ");
        assert_eq!(names(&["--sort", "restarts", "--reverse"]), "b a c ");
        assert_eq!(names(&["--sort", "name", "--limit", "1", "--offset", "1"]), "b ");
        assert_eq!(names(&["--offset", "9"]), "");
        assert_eq!(names(&["--tag", "ci", "--tag", "a"]), "b a ");
        assert_eq!(names(&["--tag", "ci", "--tag", "none"]), "");
        assert!(
            listed(&["--json", "--limit", "1"], &all).0.starts_with("{\"schema\":\"swarm.workers/1\",\"total\":3,")
        );
    }

    #[test]
    fn wire_json_has_the_original_keys_in_order_and_the_current_status() {
        let all = sample::registry(vec![sample::ended("down", Ended::Code(0))]);
        let expected = r#"[
  {
    "name": "down",
    "status": "stopped",
    "cmd": [
      "cargo",
      "test"
    ],
    "started": "2026-01-02T00:00:00.000000",
    "cwd": "/r",
    "env": {
      "KEY": "secret"
    },
    "tags": [
      "ci",
      "a"
    ],
    "tmux": null,
    "worktree": null,
    "pid": 4242,
    "metadata": {}
  }
]
"#;
        assert_eq!(listed(&["--format", "json"], &all).0, expected);
    }

    #[test]
    fn unreadable_rows_are_reported_after_the_list() {
        let mut all = sample::registry(vec![sample::process("up")]);
        all.unreadable.push(("odd".into(), "missing field `cmd`".into()));
        all.warnings.push("corrupt state file".into());
        let (out, err, code) = listed(&["--format", "names"], &all);
        assert_eq!((out.as_str(), code), ("up\n", 1));
        let lines = "swarm: warning: corrupt state file\n\
                     swarm: warning: cannot read entry odd of /s/state.json: missing field `cmd`\n";
        assert_eq!(err, lines);
    }
}
