//! `swarm ls`: lists workers.

use std::cmp::Reverse;
use std::path::Path;

use swarm_model::{Doing, FineState, Row, TurnEnd, Wire, WorkerView};

use super::args::{Format, LsArgs, Sort, StatusFilter};
use super::error::Failure;
use super::here;
use super::json;
use super::render::{Clock, broken_word, counted, escape, long_table, plain_table, short_state, status_word};
use super::screen::Screen;
use super::tagged::has_all;
use swarm_store::views::{Detail, Pick, Registry, add_activity, load_where};
use swarm_sys::paths::Paths;

/// Maximum number of names in the note about workers that wait.
const NAMES_SHOWN_MAX: usize = 5;

pub fn run(args: &LsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let detail = match args.sort {
        _ if args.long || args.json || screen.terminal || args.status == StatusFilter::Failed => Detail::Fine,
        Some(Sort::State | Sort::Uptime) => Detail::Fine,
        Some(Sort::Restarts) => Detail::Exit,
        Some(Sort::Name | Sort::Started) | None => Detail::Word,
    };
    screen.colour_as(args.color);
    let mut registry = load_where(paths, detail, Pick::All)?;
    if detail != Detail::Fine && is_table(args) {
        add_activity(paths, &mut registry);
    }
    let chosen = match args.here {
        true => here::workers(registry.workers.iter())?,
        false => registry.workers.iter().collect(),
    };
    show(args, &registry, chosen, &paths.state(), &Clock::system(), screen)
}

/// Prints the workers among `chosen` that the filters select. Unreadable rows are reported after the list and set the exit
/// code to 1.
fn show(
    args: &LsArgs,
    registry: &Registry,
    mut chosen: Vec<&WorkerView>,
    state: &Path,
    clock: &Clock,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    super::warn_all(registry, screen);
    chosen.retain(|view| selected(args, view));
    let total = chosen.len();
    let is_table = is_table(args);
    order(args, is_table && screen.terminal, &mut chosen, clock);
    let all = chosen.clone();
    let chosen: Vec<&WorkerView> =
        chosen.into_iter().skip(args.offset).take(args.limit.unwrap_or(usize::MAX)).collect();
    if args.json {
        let workers: Vec<json::Worker> = chosen.into_iter().map(json::Worker::of).collect();
        json::print(screen, "swarm.workers/1", &json::Workers { total, workers })?;
    } else if args.long {
        let text = long_table(&chosen, clock, screen.colour, screen.columns);
        screen.bytes(text.as_bytes())?;
    } else {
        match args.format {
            _ if args.quiet => chosen.iter().try_for_each(|view| screen.line(&escape(&view.row.name)))?,
            Format::Table => {
                let status = |view: &WorkerView| match args.status {
                    _ if screen.terminal => short_state(view),
                    // The original has no such filter, so that none of its words is expected.
                    StatusFilter::Failed => "failed".into(),
                    _ => status_word(view).into(),
                };
                let text = plain_table(&chosen, clock, status, screen.colour, screen.columns);
                screen.bytes(text.as_bytes())?;
            }
            Format::Json => screen.line(&wire(&chosen))?,
            Format::Names => chosen.iter().try_for_each(|view| screen.line(&escape(&view.row.name)))?,
        }
    }
    if is_table && screen.terminal {
        screen.line(&totals(&all, registry.workers.len()))?;
    }
    screen.flush()?;
    if is_table && !args.long && !screen.terminal {
        // The table is that of the original, which has no word for it.
        waiting(&all).iter().for_each(|note| screen.aside("note: ", note));
    }
    for (row, cause) in &registry.unreadable {
        screen.warning(&format!("cannot read entry {row} of {}: {cause}", state.display()));
    }
    Ok(u8::from(!registry.unreadable.is_empty()))
}

fn is_table(args: &LsArgs) -> bool {
    !args.json && !args.quiet && (args.long || args.format == Format::Table)
}

/// Returns which workers wait for a person, and the command that shows for what. `None` if none does.
fn waiting(views: &[&WorkerView]) -> Option<String> {
    let waits = |view: &&&WorkerView| view.ask.is_some() || view.doing() == Some(Doing::Waiting);
    let waiting: Vec<&WorkerView> = views.iter().filter(waits).copied().collect();
    let mut names: Vec<_> = waiting.iter().take(NAMES_SHOWN_MAX).map(|view| escape(&view.row.name)).collect();
    if waiting.len() > names.len() {
        names.push("…".into());
    }
    let verb = if waiting.iter().all(|view| view.ask.is_some()) { "approvals" } else { "ls -l" };
    let wait = if waiting.len() == 1 { "waits" } else { "wait" };
    let count = counted(waiting.len() as u64, "worker");
    (!waiting.is_empty()).then(|| format!("{count} {wait} for you ({}): run 'swarm {verb}'", names.join(", ")))
}

fn selected(args: &LsArgs, view: &WorkerView) -> bool {
    let status = match args.status {
        StatusFilter::All => true,
        StatusFilter::Running => view.state.is_running(),
        StatusFilter::Stopped => !view.state.is_running(),
        StatusFilter::Failed => view.has_failed() || view.broken_turn() == Some(TurnEnd::Failed),
    };
    status && has_all(&view.row, &args.tags)
}

/// Returns the line below a list on a terminal, such as `3 workers: 2 running, 1 failed`.
fn totals(views: &[&WorkerView], registered: usize) -> String {
    if views.is_empty() {
        return match registered {
            0 => "no workers; start one with 'swarm spawn --name NAME -- COMMAND'".into(),
            count => format!("none of {} matches", counted(count as u64, "worker")),
        };
    }
    const WORDS: [&str; 10] = [
        "running",
        "idle",
        "waiting",
        "stuck",
        "turn interrupted",
        "turn failed",
        "restarting",
        "exited",
        "stopped",
        "failed",
    ];
    let word = |view: &WorkerView| match view.shown_state() {
        _ if view.has_failed() => "failed",
        _ if view.ask.is_some() => "waiting",
        FineState::Backoff => "restarting",
        FineState::Stopped => "stopped",
        _ if !view.state.is_running() => "exited",
        _ if view.doing() == Some(Doing::Waiting) => "waiting",
        _ if view.stuck.is_some() => "stuck",
        _ if view.doing() == Some(Doing::Idle) => view.broken_turn().map_or("idle", broken_word),
        _ => "running",
    };
    let count = |wanted: &&str| views.iter().filter(|view| word(view) == *wanted).count();
    let parts = WORDS.iter().map(|word| (count(word), word)).filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, word)| format!("{count} {word}")).collect();
    format!("{}: {}", counted(views.len() as u64, "worker"), parts.join(", "))
}

/// Sorts the workers. Without `--sort`, `by_state` puts failures last, where a person sees them.
fn order(args: &LsArgs, by_state: bool, views: &mut [&WorkerView], clock: &Clock) {
    match args.sort.or(by_state.then_some(Sort::State)) {
        Some(Sort::Name) => views.sort_by(|one, other| one.row.name.cmp(&other.row.name)),
        Some(Sort::Started) => {
            views.sort_by_cached_key(|view| (Reverse(clock.since(&view.row.started)), view.row.started.clone()))
        }
        Some(Sort::State) => views.sort_by_key(|view| rank(view)),
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

/// Returns the sort rank of a worker: running, restarting, ended, failed.
fn rank(view: &WorkerView) -> u8 {
    match view.state {
        FineState::Exited if view.has_failed() => 11,
        FineState::Running => 0,
        FineState::Starting | FineState::Queued => 1,
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
        FineState::Failed => 12,
    }
}

/// Returns the rows as the original prints them, with the current status.
fn wire(views: &[&WorkerView]) -> String {
    let rows: Vec<&Row> = views.iter().map(|view| view.row.as_ref()).collect();
    Wire::render(&rows, 0).expect("a row is always an object with text keys")
}

#[cfg(test)]
mod tests {
    use swarm_model::{Activity, Ended, NeedKind, Needs};

    use super::*;
    use crate::cli::sample;

    fn listed(words: &[&str], registry: &Registry) -> (String, String, u8) {
        let crate::cli::args::Command::Ls(args) = sample::command(&[&["ls"], words].concat()) else {
            panic!("not ls");
        };
        let clock = sample::clock("2026-01-02T00:05:00Z");
        sample::said(|screen| {
            let all = registry.workers.iter().collect();
            show(&args, registry, all, Path::new("/s/state.json"), &clock, screen)
        })
    }

    #[test]
    fn an_agent_whose_last_turn_failed_is_listed_with_the_failures() {
        let idle = |name: &str, turn: Option<TurnEnd>| {
            let what = turn.map_or("its turn is over".to_owned(), |turn| turn.told("API Error: 429"));
            let activity = Activity { doing: Doing::Idle, what: Some(what), since_ms: 0, kind: None, turn };
            WorkerView { activity: Some(activity), ..sample::window(name) }
        };
        let views =
            vec![idle("broke", Some(TurnEnd::Failed)), idle("done", None), idle("left", Some(TurnEnd::Interrupted))];
        let all = sample::registry(views);
        assert_eq!(listed(&["--status", "failed", "-q"], &all).0, "broke\n");
        let long = listed(&["-l"], &all).0;
        let starts = |words: &[&str]| {
            long.lines().any(|line| line.split_whitespace().take(words.len()).eq(words.iter().copied()))
        };
        assert!(starts(&["broke", "turn", "failed:", "API", "Error:", "429"]), "{long}");
        assert!(starts(&["done", "idle"]) && starts(&["left", "turn", "interrupted:"]), "{long}");
        let json: serde_json::Value = serde_json::from_str(&listed(&["--json"], &all).0).expect("JSON");
        let turns: Vec<&serde_json::Value> = (0..3).map(|at| &json["workers"][at]["activity"]["turn"]).collect();
        assert_eq!(turns, [&"failed".into(), &serde_json::Value::Null, &"interrupted".into()]);
        let counts = totals(&all.workers.iter().collect::<Vec<_>>(), 3);
        assert_eq!(counts, "3 workers: 1 idle, 1 turn interrupted, 1 turn failed");
    }

    #[test]
    fn an_agent_that_ended_to_ask_a_person_waits_and_has_not_failed() {
        let needs = Needs { kind: NeedKind::Permission, text: "Bash: make".to_owned(), since_ms: 0, answer: None };
        let parked = WorkerView { ask: Some(needs), ..sample::ended("asks", Ended::Code(1)) };
        let all = sample::registry(vec![parked, sample::ended("bad", Ended::Code(1))]);
        assert_eq!(listed(&["--status", "failed", "-q"], &all).0, "bad\n");
        let long = listed(&["-l"], &all).0;
        assert!(long.lines().any(|line| line.starts_with("asks  waiting: Bash: make")), "{long}");
        let exit = |name: &str| {
            let at = long.find("EXIT").expect("a head");
            long.lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.get(at..at + 4))
                .expect("a line")
                .trim()
        };
        assert_eq!((exit("asks"), exit("bad")), ("-", "1"), "{long}");
        let json: serde_json::Value = serde_json::from_str(&listed(&["--json"], &all).0).expect("JSON");
        assert_eq!((&json["workers"][0]["failed"], &json["workers"][1]["failed"]), (&false.into(), &true.into()));
        assert_eq!(totals(&all.workers.iter().collect::<Vec<_>>(), 2), "2 workers: 1 waiting, 1 failed");
    }

    #[test]
    fn a_pipe_gets_the_table_of_the_original_and_a_note_about_those_that_wait() {
        let needs = Needs { kind: NeedKind::Permission, text: "Bash: make".to_owned(), since_ms: 0, answer: None };
        let asks = |name: &str| WorkerView { ask: Some(needs.clone()), ..sample::process(name) };
        let dialog = Activity { doing: Doing::Waiting, what: None, since_ms: 0, kind: None, turn: None };
        let shows = WorkerView { activity: Some(dialog), ..sample::window("shows") };
        let parked = WorkerView { ask: Some(needs.clone()), ..sample::ended("parked", Ended::Code(1)) };
        let err = |words: &[&str], views: Vec<WorkerView>| listed(words, &sample::registry(views)).1;
        let note = "swarm: note: 1 worker waits for you (a): run 'swarm approvals'\n";
        assert_eq!(err(&[], vec![asks("a"), sample::process("b")]), note);
        let note = "swarm: note: 3 workers wait for you (a, parked, shows): run 'swarm ls -l'\n";
        assert_eq!(err(&[], vec![asks("a"), parked.clone(), shows.clone()]), note);
        let many: Vec<WorkerView> = ["a", "b", "c", "d", "e", "f"].map(asks).to_vec();
        assert!(err(&[], many).contains("6 workers wait for you (a, b, c, d, e, …): run 'swarm approvals'"));
        let out = listed(&[], &sample::registry(vec![asks("a"), parked.clone()])).0;
        let states: Vec<_> = out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(states, ["STATUS", "running", "stopped"], "the words of the original");
        for words in [&["-q"][..], &["-l"], &["--json"], &["--format", "names"], &["--format", "json"]] {
            assert_eq!(err(words, vec![asks("a")]), "", "{words:?}");
        }
        assert_eq!(err(&[], vec![sample::process("b")]), "");
        assert_eq!(err(&["--status", "stopped"], vec![asks("a")]), "", "it is not among those that are listed");
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
    fn a_terminal_shows_failures_last_and_totals_within_its_width() {
        let failed = ["bad", "worse"].map(|name| sample::ended(name, Ended::Code(3)));
        let [bad, worse] = failed;
        let mut all = sample::registry(vec![bad, sample::ended("fine", Ended::Code(0)), worse, sample::window("up")]);
        for view in &mut all.workers {
            let row = std::sync::Arc::make_mut(&mut view.row);
            row.worktree = sample::window("a-name-of-some-length").row.worktree.clone();
            row.tags = vec!["a-tag-of-some-length".into(), "and-another-one".into()];
        }
        let crate::cli::args::Command::Ls(args) = sample::command(&["ls"]) else { panic!("not ls") };
        let clock = sample::clock("2026-01-02T00:05:00Z");
        let listed = |registry: &Registry, args: &LsArgs| {
            let said = sample::said(|screen| {
                (screen.terminal, screen.columns) = (true, Some(60));
                let all = registry.workers.iter().collect();
                show(args, registry, all, Path::new("/s/state.json"), &clock, screen)
            });
            said.0
        };
        let text = listed(&all, &args);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let names: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names, ["NAME", "up", "fine", "bad", "worse", "4"]);
        assert!(text.ends_with("\n4 workers: 1 running, 1 exited, 2 failed\n"), "{text}");
        assert!(text.lines().nth(3).is_some_and(|line| line.starts_with("bad    failed (exit code 3)")), "{text}");
        let none = sample::registry(Vec::new());
        assert_eq!(listed(&none, &args), "no workers; start one with 'swarm spawn --name NAME -- COMMAND'\n");
        let one = sample::registry(vec![sample::process("up")]);
        let args = LsArgs { status: StatusFilter::Failed, ..args };
        assert_eq!(listed(&one, &args), "none of 1 worker matches\n");
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
        let ends = sample::registry(vec![
            sample::ended("three", Ended::Code(3)),
            sample::ended("none", Ended::Code(0)),
            sample::ended("killed", Ended::Signal(9)),
            sample::process("up"),
        ]);
        assert_eq!(listed(&["-q", "--status", "failed"], &ends).0, "three\nkilled\n");
        let table = listed(&["--status", "failed"], &ends).0;
        let words: Vec<_> = table.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(words, ["STATUS", "failed", "failed"], "{table}");
        let wire = listed(&["--status", "failed", "--format", "json"], &ends).0;
        assert_eq!((wire.matches("\"stopped\"").count(), wire.contains("failed")), (2, false), "{wire}");
        assert_eq!(listed(&["-q", "--sort", "state"], &ends).0, "up\nnone\nthree\nkilled\n");
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
