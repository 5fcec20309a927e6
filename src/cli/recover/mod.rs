//! `swarm recover`: restarts workers that were interrupted by a reboot or a lost tmux server.
//!
//! Without `--apply` it only lists them. With `--apply` it starts one worker first and then several at a time, and
//! watches each group before the next one follows. If agents come back without being logged in, it stops early.

pub mod args;
mod gone;

use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};
use swarm_actors::registry::store;
use swarm_actors::worker::fate::Fate;
use swarm_model::{Answer, FineState, RecoverRequest, RefusalKind, Resume, Spec, WorkerView};

use self::args::RecoverArgs;
use super::answers::{no_answer, spawned_line, spawned_object};
use super::caller;
use super::error::{Failure, unknown_worker};
use super::json;
use super::render::{escape, table};
use super::screen::Screen;
use super::trust::again;
use super::watch;
use crate::api::client;
use swarm_store::views::{self, Registry};
use swarm_store::{recovery_view, sessions, window_log};
use swarm_sys::paths::Paths;
use swarm_sys::strip_ansi::Plain;

/// Number of consecutive agents that are not logged in after which no more are started.
const REFUSED_MAX: u32 = 2;
/// Maximum number of bytes that are read from the end of a log.
const LOG_BYTES_MAX: u64 = 16 << 10;

/// Worker and the decision about it.
struct Case {
    name: String,
    fate: Fate,
    spec: Option<Spec>,
    how: Resume,
    /// The worker does not run, and no regular end of it was recorded.
    is_down: bool,
}

impl Case {
    fn left_because(&self) -> Option<&str> {
        match &self.fate {
            Fate::Leave(why) => Some(why),
            Fate::Recover(_) => None,
        }
    }
}

/// State of a recovered worker at the end of `--settle`.
enum Became {
    Runs,
    /// Ended; with its last line of output.
    Ended(String),
    /// Agent is not logged in; with its last line of output.
    LoggedOut(String),
}

pub fn run(args: &RecoverArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if let Some(host) = &args.gone {
        gone::declare(host, paths)?;
    }
    if args.apply && store::is_behind_journal(paths.root()) {
        // The supervisor restores what a power cut has taken, before it is looked at.
        client::ensure(paths)?;
    }
    let registry = super::read_for(paths, super::only(&args.names), screen)?;
    let cases = cases(args, &registry, paths)?;
    if !args.apply {
        return show(&cases, args.json, screen);
    }
    // Starting the supervisor is enough to bring back runs, loops and workers with a restart policy.
    client::ensure(paths)?;
    let mut done = Applied { json: args.json, objects: Vec::new(), code: 0, refused: 0 };
    let (due, left): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| matches!(case.fate, Fate::Recover(_)));
    done.objects.extend(left.iter().map(|case| object(case)));
    let mut rest = due.as_slice();
    let mut stage = 1;
    while !rest.is_empty() && done.refused < REFUSED_MAX {
        let (now, later) = rest.split_at(stage.min(rest.len()));
        done.stage(now, args, paths, screen)?;
        rest = later;
        stage = usize::try_from(args.at_once).unwrap_or(usize::MAX);
    }
    if !rest.is_empty() {
        let names: Vec<&str> = rest.iter().map(|case| case.name.as_str()).collect();
        screen.warning(&format!("agents are not logged in; not recovered: {}", names.join(", ")));
        screen.aside("hint: ", "log in, then run 'swarm recover --apply' again");
        done.objects.extend(rest.iter().map(|case| object(case)));
        done.code = 1;
    }
    if args.json {
        json::print_list(screen, "swarm.recover/1", "workers", done.objects)?;
    } else {
        // Explain why a worker is left if it was named, or if it was interrupted.
        for (case, why) in left.iter().filter_map(|case| Some((case, case.left_because()?))) {
            if args.names.contains(&case.name) || case.is_down {
                screen.aside("note: ", &format!("worker '{}' not recovered: {why}", case.name));
            }
        }
        if due.is_empty() {
            screen.line("nothing to recover")?;
        }
    }
    Ok(done.code)
}

fn cases(args: &RecoverArgs, registry: &Registry, paths: &Paths) -> Result<Vec<Case>, Failure> {
    let names = match args.tagged.is_given() {
        true => args.tagged.names(registry)?,
        false => super::each_once(&args.names),
    };
    if let Some(unknown) = names.iter().find(|name| registry.find(name).is_none()) {
        return Err(unknown_worker(unknown, registry));
    }
    let meant = |worker: &&WorkerView| names.is_empty() || names.contains(&worker.row.name);
    let running = views::stored_as_running(paths);
    let case = |worker: &WorkerView| {
        let (fate, spec) = recovery_view::of(paths, worker, running.contains(&worker.row.name));
        let how = match (&fate, &spec) {
            (Fate::Recover(_), Some(spec)) => sessions::how(paths, spec),
            _ => Resume::default(),
        };
        let is_down = matches!(worker.state, FineState::Interrupted | FineState::Lost);
        Case { name: worker.row.name.clone(), fate, spec, how, is_down }
    };
    Ok(registry.workers.iter().filter(meant).map(case).collect())
}

fn show(cases: &[Case], as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    if as_json {
        json::print_list(screen, "swarm.recover/1", "workers", cases.iter().map(object).collect())?;
        return Ok(0);
    }
    if cases.is_empty() {
        return Ok(0);
    }
    let rows = cases.iter().map(|case| {
        let (verb, why) = match &case.fate {
            Fate::Recover(lost) => ("start", format!("{}{}", lost.words(), goes_on(case))),
            Fate::Leave(why) => ("leave", why.clone()),
        };
        vec![escape(&case.name).into_owned(), verb.to_owned(), escape(&why).into_owned()]
    });
    let head = ["NAME", "ACTION", "REASON"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    let due = cases.iter().filter(|case| matches!(case.fate, Fate::Recover(_))).count();
    if due > 0 {
        screen.flush()?;
        screen.aside("hint: ", &format!("run 'swarm recover --apply' to start {due} of them"));
    }
    Ok(0)
}

fn goes_on(case: &Case) -> String {
    match (&case.how.conversation, &case.how.argv) {
        (Some(id), _) => format!("; resumes conversation {id}"),
        (None, Some(_)) => "; gets a summary of the work so far".to_owned(),
        (None, None) => String::new(),
    }
}

fn object(case: &Case) -> Map<String, Value> {
    let (decision, why) = match &case.fate {
        Fate::Recover(lost) => ("start", lost.words()),
        Fate::Leave(why) => ("leave", why.as_str()),
    };
    let command = case.how.argv.as_ref().or(case.spec.as_ref().map(|spec| &spec.contract.argv));
    json::object([
        ("name", json!(case.name)),
        ("decision", json!(decision)),
        ("why", json!(why)),
        ("command", json!(command)),
        ("conversation", json!(case.how.conversation)),
    ])
}

/// Results of the workers that were handled so far.
struct Applied {
    json: bool,
    objects: Vec<Map<String, Value>>,
    /// Exit code.
    code: u8,
    /// Number of consecutive agents that were not logged in.
    refused: u32,
}

impl Applied {
    /// Starts these workers and watches them until `--settle` has passed.
    fn stage(
        &mut self,
        cases: &[&Case],
        args: &RecoverArgs,
        paths: &Paths,
        screen: &mut Screen,
    ) -> Result<(), Failure> {
        let mut started = Vec::new();
        for case in cases {
            let mut object = object(case);
            let before = lengths(&case.name, paths);
            match case.spec.as_ref().map_or(Ok(()), |spec| again::require_once(spec, screen)) {
                Ok(()) => {}
                Err(Failure::Refused { refusal, .. }) => {
                    screen.refusal(&refusal);
                    self.code = 1;
                    object.insert("error".to_owned(), json!(refusal.cause));
                    self.objects.push(object);
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            match recover(&case.name, paths, screen)? {
                Answer::Spawned(spawned) => {
                    object.insert("started".to_owned(), Value::Object(spawned_object(&spawned)));
                    started.push((case, object, spawned, before));
                }
                Answer::Refused(refusal) => {
                    if refusal.kind == RefusalKind::Running {
                        // Another process has started it already, which is what was wanted.
                        screen.aside("note: ", &refusal.cause);
                    } else {
                        screen.refusal(&refusal);
                        self.code = 1;
                    }
                    object.insert("error".to_owned(), json!(refusal.cause));
                    self.objects.push(object);
                }
                _ => return Err(no_answer()),
            }
        }
        let deadline = Instant::now() + args.settle;
        for (case, mut object, spawned, before) in started {
            let became = became(&case.name, &before, deadline, paths)?;
            let (word, said) = match &became {
                Became::Runs => ("running", None),
                Became::Ended(said) => ("ended", Some(said)),
                Became::LoggedOut(said) => ("logged-out", Some(said)),
            };
            object.insert("became".to_owned(), json!(word));
            self.objects.push(object);
            if !self.json {
                screen.line(&spawned_line("recovered", &spawned))?;
                screen.flush()?;
            }
            if let Some(said) = said {
                self.code = 1;
                screen.warning(&format!("worker '{}' did not recover: {said}", case.name));
            }
            self.refused = if matches!(became, Became::LoggedOut(_)) { self.refused + 1 } else { 0 };
        }
        Ok(())
    }
}

fn recover(name: &str, paths: &Paths, screen: &mut Screen) -> Result<Answer, Failure> {
    let request = RecoverRequest { caller: caller::collect()?.caller, name: name.to_owned() };
    let mut last = None;
    client::post_raw(paths, &request, &mut |answer| match answer {
        Answer::Warning(text) => screen.warning(&text),
        Answer::Spawned(_) | Answer::Refused(_) => last = Some(answer),
        Answer::Worker(_)
        | Answer::Merge(_)
        | Answer::Run(_)
        | Answer::Loop(_)
        | Answer::Flow(_)
        | Answer::Nudge(_)
        | Answer::Accepted
        | Answer::Done => {}
    })?;
    last.ok_or_else(no_answer)
}

/// Waits until the worker ends or the deadline passes, and returns its state.
fn became(name: &str, before: &[u64], deadline: Instant, paths: &Paths) -> Result<Became, Failure> {
    let view = views::load_one(paths, name)?;
    if let Some(process) = view.as_ref().and_then(|view| view.watch.as_ref()) {
        watch::ends_before(process, deadline)?;
    }
    let Some(view) = views::load_one(paths, name)? else { return Ok(Became::Ended("removed".to_owned())) };
    let said = last_words(name, before, paths);
    let logged_out = swarm_agents::is_logged_out(&said);
    if view.state.is_running() {
        return Ok(if logged_out { Became::LoggedOut(last_line(&said)) } else { Became::Runs });
    }
    let finished = view.state == FineState::Exited && view.exit.as_ref().is_some_and(|exit| exit.ended.is_success());
    match (finished, logged_out) {
        (true, _) => Ok(Became::Runs),
        (false, true) => Ok(Became::LoggedOut(last_line(&said))),
        (false, false) => Ok(Became::Ended(last_line(&said))),
    }
}

const LOGS: [&str; 3] = ["stderr", "stdout", "tmux"];

/// Returns the current sizes of the worker's logs in bytes; everything before them belongs to an earlier start.
fn lengths(name: &str, paths: &Paths) -> Vec<u64> {
    LOGS.iter().map(|kind| std::fs::metadata(paths.log(name, kind)).map_or(0, |meta| meta.len())).collect()
}

fn last_words(name: &str, before: &[u64], paths: &Paths) -> String {
    let texts = LOGS.iter().zip(before).filter_map(|(kind, from)| {
        let log = paths.log(name, kind);
        match *kind {
            "tmux" => window_log::lines_since(&log, *from).ok().map(|lines| lines.join("\n")),
            _ => tail(&log, *from).map(|bytes| plain_text(&bytes)),
        }
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn plain_text(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    Plain::new().feed(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn tail(path: &Path, from: u64) -> Option<Vec<u8>> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX).max(from.min(length)))).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn last_line(text: &str) -> String {
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map_or_else(|| "no output".to_owned(), swarm_agents::short)
}
