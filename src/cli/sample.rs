//! Sample workers and registries for the tests of this folder.

use std::sync::Arc;

use swarm_model::{
    Ended, ExitRecord, FineState, Hits, Reason, RestartPolicy, Row, RowTmux, RowWorktree, Usage, WireStatus, WorkerView,
};

use super::error::Failure;
use super::render::Clock;
use super::screen::Screen;
use swarm_store::views::Registry;

pub fn clock(now: &str) -> Clock {
    Clock { now: now.parse().expect("a time"), zone: jiff::tz::TimeZone::UTC }
}

pub fn registry(workers: Vec<WorkerView>) -> Registry {
    Registry { workers, ..Registry::default() }
}

/// Returns a running process worker.
pub fn process(name: &str) -> WorkerView {
    let row = Row {
        name: name.into(),
        status: WireStatus::Running,
        cmd: vec!["cargo".into(), "test".into()],
        started: "2026-01-02T00:00:00.000000".into(),
        cwd: "/r".into(),
        env: [("KEY".to_owned(), "secret".to_owned())].into(),
        tags: vec!["ci".into(), "a".into()],
        tmux: None,
        worktree: None,
        pid: Some(4242),
        metadata: swarm_model::Metadata::default(),
    };
    WorkerView {
        row: row.into(),
        state: FineState::Running,
        pid: Some(4242),
        watch: None,
        pane: None,
        exit: None,
        restart: RestartPolicy::Never,
        restarts: 0,
        next_start_ms: None,
        activity: None,
        ask: None,
        stuck: None,
        limits: None,
        elsewhere: None,
        job: None,
        survivors: Vec::new(),
        given_up: None,
        retry_ms: None,
        dir: Some(format!("{name}.1")),
    }
}

/// Returns a running tmux worker with a worktree.
pub fn window(name: &str) -> WorkerView {
    let mut view = process(name);
    let row = Arc::make_mut(&mut view.row);
    row.pid = None;
    row.tags.clear();
    row.tmux = Some(RowTmux { session: "swarm-00c0ffee".into(), window: name.into(), socket: None });
    row.worktree = Some(RowWorktree { path: format!("/r/w/{name}"), branch: name.into(), base_repo: "/r/repo".into() });
    view
}

/// Returns a process worker that ended at 00:03:20.
pub fn ended(name: &str, ended: Ended) -> WorkerView {
    let exit = ExitRecord {
        token: "t".into(),
        started: "2026-01-02T00:00:00.000000".into(),
        pid: 4242,
        ended,
        reason: Reason::Exited,
        ended_at_ms: 1_767_312_200_000,
        duration_ms: 200_000,
        usage: Usage::default(),
        survivors: Vec::new(),
        hits: Hits::default(),
        interrupted: false,
        server_lost: None,
    };
    let mut view = WorkerView { state: FineState::Exited, pid: None, exit: Some(exit), ..process(name) };
    Arc::make_mut(&mut view.row).status = WireStatus::Stopped;
    view
}

/// Runs a verb; returns its standard output, its standard error and its exit code.
pub fn said(verb: impl FnOnce(&mut Screen) -> Result<u8, Failure>) -> (String, String, u8) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let result = verb(&mut Screen::new(&mut out, &mut err));
    let code = result.unwrap_or_else(|failure| failure.report(&mut err));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(out), text(err), code)
}

/// Parses `swarm WORDS`.
pub fn command(words: &[&str]) -> super::args::Command {
    let words: Vec<std::ffi::OsString> =
        std::iter::once("swarm").chain(words.iter().copied()).map(Into::into).collect();
    super::parse::parse(&words).unwrap_or_else(|error| panic!("{error}")).command
}
