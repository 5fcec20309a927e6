//! `swarm run logs`: what the agent of a workstream said and did, or what the command of a job printed.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use swarm_agents::conversation::{Reader, Said};
use swarm_agents::{Kind, Turn};
use swarm_model::run::far_worker_name;
use swarm_model::run::plan::{Seats, Work};
use swarm_model::run::progress::{Now, Run};
use swarm_model::{Refusal, RefusalKind};

use super::args::LogsArgs;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::follow::{Follow, Followed};
use crate::cli::host::one;
use crate::cli::json;
use crate::cli::life::WatchedWorker;
use crate::cli::said;
use crate::cli::screen::Screen;
use crate::cli::tail::{From, Pending, Sink, Tail};
use crate::processes::far::stream;
use crate::reach;
use swarm_store::runs::home::Home;
use swarm_store::runs::kept::output_of;
use swarm_store::runs::{journal, order};
use swarm_store::views;
use swarm_sys::paths::Paths;

pub fn run(args: &LogsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let home = super::home(args.home.as_deref())?;
    let run = journal::replay(&home).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let now = find(args, run)?;
    let earlier = earlier(args, &now, &home);
    let files = match files(args, &now, &home, paths) {
        Ok(files) => Some(files),
        // The newest attempt has only just begun.
        Err(_) if !earlier.is_empty() => None,
        Err(failure) => return Err(failure),
    };
    let has_several = files.is_some() && !earlier.is_empty() || earlier.len() > 1;
    for (attempt, source) in earlier {
        heading(args, attempt, has_several, screen)?;
        print(source, args, attempt, None, paths, screen)?;
    }
    let Some(files) = files else { return Ok(0) };
    heading(args, files.attempt, has_several, screen)?;
    if let Some(host) = there(&now, files.attempt) {
        let [Source { reader, .. }] = <[Source; 1]>::try_from(files.sources)
            .map_err(|_| Failure::new(RefusalKind::Internal, "a conversation is one file"))?;
        let printer = Printer { args, attempt: files.attempt, reader, pending: Pending::default() };
        return on_host(host, &now, printer, paths, screen);
    }
    let last = files.sources.len().saturating_sub(1);
    for (at, source) in files.sources.into_iter().enumerate() {
        let worker = (args.follow && files.is_latest && at == last).then(|| now.worker());
        print(source, args, files.attempt, worker.as_deref(), paths, screen)?;
    }
    Ok(0)
}

/// Returns the conversations before the one of the newest attempt, oldest first. None if one attempt is asked for.
fn earlier(args: &LogsArgs, now: &Now, home: &Home) -> Vec<(u32, Source)> {
    if args.attempt.is_some() || !matches!(now.job().work, Work::Spec(_)) {
        return Vec::new();
    }
    let attempts = 1..now.progress.attempt;
    let sources = attempts.map(|attempt| (attempt, conversation(&home.attempt(&now.job().id, attempt))));
    sources.filter(|(_, source)| source.exists()).collect()
}

/// Separates the conversations of several attempts. Each object of `--json` names its attempt.
fn heading(args: &LogsArgs, attempt: u32, has_several: bool, screen: &mut Screen) -> Result<(), Failure> {
    if has_several && !args.json { screen.line(&format!("=== attempt {attempt}")) } else { Ok(()) }
}

/// Prints a source; if there is such a worker, until it has ended.
fn print(
    source: Source,
    args: &LogsArgs,
    attempt: u32,
    worker: Option<&str>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let Source { file, kept, reader } = source;
    let mut printer = Printer { args, attempt, reader, pending: Pending::default() };
    let mut sink = |bytes: &[u8]| printer.give(bytes, screen);
    let tail = pass(&file, worker, paths, &mut sink)?;
    if let Some(kept) = kept.filter(|_| !tail.has_log()) {
        read_moved(&tail, kept, &mut sink)?;
    }
    printer.end(screen)
}

/// Passes on what a file has; if there is such a worker, until it has ended.
pub fn pass(file: &Path, worker: Option<&str>, paths: &Paths, sink: &mut Sink) -> Result<Tail, Failure> {
    let registry = views::load(paths)?;
    let mut tail = Tail::new(file.to_owned());
    // Watched before it is read, so that nothing is missed.
    let view = worker.and_then(|worker| registry.find(worker));
    let follow = view.map(|view| Follow::new(paths, file).map(|follow| (follow, WatchedWorker::of(view))));
    let follow = follow.transpose()?;
    tail.start(From::Start, sink)?;
    match follow {
        Some((mut follow, life)) => {
            let life = Followed { life, through_tmux: false };
            follow.run(&mut tail, Some(life), Some(views::load(paths)?), sink)?;
        }
        None => while tail.drain(sink)?.more {},
    }
    Ok(tail)
}

/// Returns the host on which the attempt works, and where its conversation still is.
fn there(now: &Now, attempt: u32) -> Option<&str> {
    let is_there = now.progress.sent && now.progress.attempt == attempt && matches!(now.job().work, Work::Spec(_));
    now.progress.host.as_deref().filter(|host| is_there && *host != Seats::LOCAL)
}

/// Prints the conversation of an attempt as its host passes it on.
fn on_host(host: &str, now: &Now, mut printer: Printer<'_>, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let configured = swarm_config::hosts().map_err(invalid)?;
    let found = swarm_hosts::find(host, &configured)?;
    let at = reach::attempt_there(paths, now, host, &caller::collect()?.caller).map_err(invalid)?;
    let code = one::pass(&found, &stream::words(&at, printer.args.follow), screen, &mut |bytes, screen| {
        printer.give(bytes, screen)
    })?;
    printer.end(screen)?;
    Ok(code)
}

/// Reads a log that was moved to `kept` after it was looked for. Its rotated part is moved after it, so `tail` may have
/// passed that on.
fn read_moved(tail: &Tail, kept: PathBuf, sink: &mut Sink) -> Result<(), Failure> {
    let mut moved = Tail::new(kept);
    if tail.has_part() {
        moved.begin()?;
    } else {
        moved.start(From::Start, sink)?;
    }
    while moved.drain(sink)?.more {}
    Ok(())
}

/// Returns the workstream or job that is meant.
fn find(args: &LogsArgs, run: Option<Run>) -> Result<Now, Failure> {
    let Some(run) = run else {
        let none = Refusal::new(RefusalKind::NotFound, "there is no run here");
        return Err(none.remedy("run 'swarm run' first, or name another run with --home").into());
    };
    let Some(at) = run.plan.position(&args.id) else {
        let mut refusal = Refusal::new(RefusalKind::NotFound, format!("workstream '{}' not found", args.id));
        let names = run.plan.jobs.iter().map(|job| job.id.as_str());
        refusal.remedy = swarm_model::nearest(&args.id, names).map(|near| format!("did you mean '{near}'?"));
        return Err(refusal.into());
    };
    Ok(run.now(at))
}

struct Source {
    file: PathBuf,
    /// Where the run moves `file` when its worker has ended.
    kept: Option<PathBuf>,
    reader: Reader,
}

impl Source {
    fn exists(&self) -> bool {
        [Some(&self.file), self.kept.as_ref()].into_iter().flatten().any(|file| Tail::new(file.clone()).exists())
    }
}

/// Files to read, one after the other.
struct Files {
    sources: Vec<Source>,
    attempt: u32,
    is_latest: bool,
}

fn files(args: &LogsArgs, now: &Now, home: &Home, paths: &Paths) -> Result<Files, Failure> {
    let (id, latest) = (&now.job().id, now.progress.attempt);
    let attempt = args.attempt.unwrap_or(latest);
    let refuse = |cause: String, remedy: String| Err(Refusal::new(RefusalKind::NotFound, cause).remedy(remedy).into());
    if latest == 0 {
        return refuse(format!("'{id}' has not started yet"), "run 'swarm run status'".to_owned());
    }
    if attempt == 0 || attempt > latest {
        return refuse(format!("'{id}' has no attempt {attempt}"), format!("its latest attempt is {latest}"));
    }
    let sources = match &now.job().work {
        Work::Spec(_) => vec![conversation(&home.attempt(id, attempt))],
        Work::Command(_) if attempt < latest => {
            let cause = format!("the output of attempt {attempt} of '{id}' was not kept");
            return refuse(cause, "only the latest attempt of a command has its output".to_owned());
        }
        Work::Command(_) => ["stderr", "stdout"].map(|kind| output(now, kind, home, paths)).into(),
    };
    if !args.follow && there(now, attempt).is_none() && !sources.iter().any(Source::exists) {
        if let Some(host) = now.progress.host.as_ref().filter(|_| attempt == latest && now.progress.is_out()) {
            let cause = format!("'{id}' works on {host}, and its output comes with its end");
            let worker = far_worker_name(&now.worker(), &now.plan.id);
            return refuse(cause, format!("run 'swarm --host {host} logs {worker}'"));
        }
        let cause = format!("attempt {attempt} of '{id}' has printed nothing");
        return refuse(cause, "run 'swarm run status'".to_owned());
    }
    Ok(Files { sources, attempt, is_latest: attempt == latest })
}

/// Returns the file of an attempt's conversation, and what understands it.
fn conversation(dir: &Path) -> Source {
    let reader = match order::read_order(dir) {
        Ok(order) => {
            let turn = Turn { consent: order.consent, ..Turn::default() };
            Reader::new(order.agent.kind, turn.may_ask())
        }
        // Shown as text.
        Err(_) => Reader::new(Kind::Command, false),
    };
    Source { file: dir.join(order::STREAM), kept: None, reader }
}

/// Returns the output of a command: while it runs that of its worker, later the file in the run's home.
fn output(now: &Now, kind: &str, home: &Home, paths: &Paths) -> Source {
    let kept = output_of(home, &now.job().id, kind);
    let live = paths.log(&now.worker(), kind);
    let reader = Reader::new(Kind::Command, false);
    // A worker here with the name of one on a host is somebody else's.
    if now.progress.host.is_none() && Tail::new(live.clone()).exists() {
        Source { file: live, kept: Some(kept), reader }
    } else {
        Source { file: kept, kept: None, reader }
    }
}

struct Printer<'a> {
    args: &'a LogsArgs,
    attempt: u32,
    reader: Reader,
    pending: Pending,
}

impl Printer<'_> {
    /// Prints complete lines; no bytes mean that no more are there for now.
    fn give(&mut self, bytes: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        for line in self.pending.whole(bytes) {
            self.line(&line, screen)?;
        }
        if bytes.is_empty() { screen.flush() } else { Ok(()) }
    }

    /// Prints an incomplete last line.
    fn end(mut self, screen: &mut Screen) -> Result<(), Failure> {
        for line in self.pending.whole(b"\n") {
            if line != b"\n" {
                self.line(&line, screen)?;
            }
        }
        if let Some(said) = self.reader.end() {
            self.said(&said, screen)?;
        }
        screen.flush()
    }

    fn line(&mut self, line: &[u8], screen: &mut Screen) -> Result<(), Failure> {
        let line = String::from_utf8_lossy(line);
        for said in self.reader.line(line.trim_end_matches(['\n', '\r'])) {
            self.said(&said, screen)?;
        }
        Ok(())
    }

    fn said(&self, said: &Said, screen: &mut Screen) -> Result<(), Failure> {
        if !self.args.json {
            return said::lines(said).iter().try_for_each(|line| screen.line(line));
        }
        json::print(screen, "swarm.run.log/1", &Value::Object(self.object(said)))
    }

    fn object(&self, said: &Said) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("id".to_owned(), json!(self.args.id));
        object.insert("attempt".to_owned(), json!(self.attempt));
        if let Ok(Value::Object(fields)) = serde_json::to_value(said) {
            object.extend(fields);
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Reads a log below `dir` whose files `moved` were moved before the read, and the others after it.
    fn shown(moved: &[&str]) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let (live, kept) = (dir.path().join("live"), dir.path().join("kept"));
        let rename = |end: &str| fs::rename(format!("{}{end}", live.display()), format!("{}{end}", kept.display()));
        fs::write(&live, "new\n").expect("written");
        fs::write(dir.path().join("live.1"), "old\n").expect("written");
        moved.iter().for_each(|end| rename(end).expect("moved"));
        let mut bytes = Vec::new();
        let mut sink = |block: &[u8]| {
            bytes.extend_from_slice(block);
            Ok(())
        };
        let mut tail = Tail::new(live.clone());
        tail.start(From::Start, &mut sink).expect("readable");
        tail.drain(&mut sink).expect("readable");
        ["", ".1"].iter().filter(|end| !moved.contains(end)).for_each(|end| rename(end).expect("moved"));
        if !tail.has_log() {
            read_moved(&tail, kept, &mut sink).expect("readable");
        }
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_log_that_is_moved_meanwhile_is_shown_once() {
        for moved in [&[] as &[&str], &[""], &["", ".1"]] {
            assert_eq!(shown(moved), "old\nnew\n", "{moved:?}");
        }
    }
}
