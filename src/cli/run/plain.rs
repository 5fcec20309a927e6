//! View of a run without a terminal: one line of text per event that matters to a person, without colour and without
//! cursor movement. Also the words that the live view shares.

use std::collections::BTreeMap;

use swarm_model::run::words::{Line, Word};
use swarm_store::runs::denied::DENIED;
use swarm_store::runs::home::from_iso;

pub use crate::board::run::asking;
use crate::cli::diff;
use crate::cli::render::escape;
use swarm_sys::quoting::command_line;

/// Workstream whose name is not known any more.
const REMOVED: &str = "a removed workstream";
/// Number of digits of a commit that people see.
const COMMIT_DIGITS: usize = 12;

/// Formatter of the plain lines of one view.
#[derive(Clone, Debug, Default)]
pub struct Plain {
    /// Start of the run in Unix milliseconds, from which elapsed times are counted. `None` before the first line.
    began_ms: Option<u64>,
    /// Request or obstacle for which each workstream was last shown to wait.
    waits: BTreeMap<String, String>,
}

impl Plain {
    /// Creates the formatter of a view that begins within a run. `began_ms` is the start of that run if it is known.
    pub fn new(began_ms: Option<u64>) -> Self {
        Self { began_ms, waits: BTreeMap::new() }
    }

    /// Returns the text for one event, for example `[00:42] auth: landed as 19a7a7d7d382`. `None` if the event is not
    /// shown.
    pub fn show(&mut self, line: &Line) -> Option<String> {
        let at_ms = from_iso(&line.time);
        if matches!(line.word, Word::RunStarted { .. }) {
            self.began_ms = at_ms;
        }
        self.began_ms = self.began_ms.or(at_ms);
        let elapsed_ms = at_ms.unwrap_or_default().saturating_sub(self.began_ms.unwrap_or_default());
        if self.is_known(line) {
            return None;
        }
        text(line).map(|text| format!("[{}] {text}", elapsed(elapsed_ms)))
    }

    /// Reports whether an event only says that the attempt has ended at the request for which it was already shown to wait.
    fn is_known(&mut self, line: &Line) -> bool {
        let Some(workstream) = &line.workstream else { return false };
        match &line.word {
            Word::NeedsInput { cause } => drop(self.waits.insert(workstream.clone(), cause.clone())),
            Word::Asking { ask, .. } => {
                let start = format!("request {ask}: ");
                return self.waits.remove(workstream).is_some_and(|cause| cause.starts_with(&start));
            }
            Word::Started { .. } => drop(self.waits.remove(workstream)),
            _ => {}
        }
        false
    }
}

/// Formats an elapsed time: `00:42`, and from one hour on `1:00:42`.
fn elapsed(ms: u64) -> String {
    let seconds = ms / 1000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes:02}:{seconds:02}") }
}

/// Returns one event as text in one line. `None` for activities other than denials, and for events whose outcome arrives as
/// another event.
pub fn text(line: &Line) -> Option<String> {
    let of_run = match &line.word {
        Word::RunStarted { workstreams, pending, .. } => Some(begun(&line.run, *workstreams, *pending)),
        Word::RunPaused => Some("paused: no new workstreams start".to_owned()),
        Word::RunResumed => Some("resumed".to_owned()),
        Word::HostAway { host, error } => Some(away(host, error)),
        Word::HostBack { host } => Some(back(host)),
        Word::RunStopping => Some("stopping".to_owned()),
        Word::RunCompleted { status, done, failed, pending } => Some(totals(status, *done, *failed, *pending)),
        _ => None,
    };
    let shown = of_run.or_else(|| {
        let subject = subject(line).map_or_else(String::new, |subject| format!("{subject}: "));
        of_workstream(&line.word).map(|text| subject + &text)
    })?;
    Some(escape(&shown).into_owned())
}

/// Returns the workstream that an event is about. `None` if it is about the run. A line about a workstream that has left the
/// plan does not name it, but the reference to its work does.
fn subject(line: &Line) -> Option<&str> {
    let removed = || match &line.word {
        Word::Returned { reference, .. } => reference.as_deref().and_then(job_of).or(Some(REMOVED)),
        Word::Gone { .. } | Word::Kept { .. } => Some(REMOVED),
        _ => None,
    };
    line.workstream.as_deref().or_else(removed)
}

/// Returns the workstream in a reference `refs/swarm/from/HOST/ID.N`.
fn job_of(reference: &str) -> Option<&str> {
    Some(reference.rsplit('/').next()?.rsplit_once('.')?.0)
}

fn of_workstream(word: &Word) -> Option<String> {
    Some(match word {
        Word::Started { attempt, host, .. } => started(*attempt, host.as_deref()),
        Word::Completed { summary: Some(summary), .. } => format!("finished: {}", swarm_agents::short(summary)),
        Word::Completed { .. } => "finished".to_owned(),
        Word::Failed { error, .. } => format!("failed: {error}"),
        Word::Retrying { attempt, error, in_ms } => format!("attempt {attempt} failed, {}: {error}", retrying(*in_ms)),
        Word::Abandoned { attempt, host } => abandoned(*attempt, host),
        Word::Returned { attempt, host, reference } => returned(*attempt, host, reference.as_deref()),
        Word::Gone { attempt, host } => gone(*attempt, host),
        Word::Asking { ask, kind, what, .. } => asking(*ask, *kind, what),
        Word::Answered { ask, .. } => format!("request {ask} was answered"),
        Word::Paused { .. } => STOPPED.to_owned(),
        Word::Done { commit, on_base, item, verified_by } => {
            done(commit.as_deref(), *on_base) + &by(*item, verified_by.as_deref())
        }
        Word::SpecChanged { file, .. } => changed(file),
        Word::Behind { after, base, worktree, .. } => behind(after, base, worktree.as_deref()),
        Word::JournalDamaged { file, line, error } => damaged(file, *line, error),
        Word::HostUnfit { host, error } => unfit(host, error),
        Word::NeedsInput { cause } => format!("waiting: {cause}"),
        Word::Context { delivered, text } => context(*delivered, text),
        Word::Ignored { files, host } => ignored(files, host.as_deref()),
        Word::Kept { host, references, .. } => {
            format!("commits beside its work on {host} are kept as {}", references.join(" and "))
        }
        Word::MergeStarted { base, left_out } => queued(base, left_out),
        Word::MergeVerifying { commit } => format!("verifying {}", short_commit(commit)),
        Word::MergeResolving { files } => format!("resolving conflicts in {}", files.join(", ")),
        Word::MergeConflict { files, branch } => conflict(files, branch),
        Word::MergeWaiting { error } => to_land(error),
        Word::MergeContinues { base } => still_lands(base),
        // The other activities follow each other too quickly for lines that stay.
        Word::Activity { text } if text.starts_with(DENIED) => text.clone(),
        // A rejection is followed by 'retrying' or 'failed' with the reason, a completed merge by 'done'.
        Word::MergeCompleted { .. } | Word::MergeRejected { .. } | Word::Activity { .. } => return None,
        Word::RunStarted { .. }
        | Word::HostAway { .. }
        | Word::HostBack { .. }
        | Word::RunPaused
        | Word::RunResumed
        | Word::RunStopping
        | Word::RunCompleted { .. } => return None,
    })
}

/// Text for an attempt that has started, here or on a host.
fn started(attempt: u32, host: Option<&str>) -> String {
    let on = host.map(|host| format!(" on {host}")).unwrap_or_default();
    if attempt > 1 { format!("started attempt {attempt}{on}") } else { format!("started{on}") }
}

/// Text for a workstream at work, here or on a host.
pub fn running(attempt: u32, host: Option<&str>) -> String {
    let on = host.map(|host| format!(" on {host}")).unwrap_or_default();
    if attempt > 1 { format!("attempt {attempt}{on}") } else { format!("running{on}") }
}

/// Text for a host on which nothing can be started.
fn away(host: &str, error: &str) -> String {
    format!("nothing can be started on {host}: {error}")
}

/// Text for a host that cannot execute a workstream.
pub fn unfit(host: &str, error: &str) -> String {
    format!("cannot be started on {host}: {error}")
}

/// Text for a host that answers again.
fn back(host: &str) -> String {
    format!("{host} answers again")
}

/// Text for an attempt that was given up.
pub fn abandoned(attempt: u32, host: &str) -> String {
    format!("attempt {attempt} on {host} was given up")
}

/// Text for an attempt that was given up, and whose work is back.
fn returned(attempt: u32, host: &str, reference: Option<&str>) -> String {
    match reference {
        Some(reference) => format!("what attempt {attempt} has done on {host} is kept as {reference}"),
        None => format!("attempt {attempt} has left nothing on {host}"),
    }
}

/// Text for an attempt that was given up, and that the machine under the name of its host never had.
fn gone(attempt: u32, host: &str) -> String {
    format!("attempt {attempt} is gone with {host}: another machine is there now, which never had it")
}

/// Text for work in the merge queue, with the new files that do not land.
pub fn queued(base: &str, left_out: &[String]) -> String {
    let out = if left_out.is_empty() { String::new() } else { format!("; {}", diff::left_out(left_out)) };
    format!("queued to land on {base}{out}")
}

/// Text for a workstream that was stopped together with its run.
pub const STOPPED: &str = "stopped; the next run continues it";

/// Returns the first line of a run.
pub fn begun(run: &str, workstreams: usize, pending: usize) -> String {
    format!("run {run}: {pending} of {workstreams} workstreams pending")
}

/// Returns the last line of a run: its status and totals.
pub fn totals(status: &str, done: usize, failed: usize, pending: usize) -> String {
    let rest = if pending > 0 { format!(", {pending} pending ('swarm run' continues)") } else { String::new() };
    format!("{status}: {done} done, {failed} failed{rest}")
}

/// Returns `retrying`, with the pause before the next attempt if there is one.
pub fn retrying(in_ms: u64) -> String {
    match in_ms.div_ceil(1000) {
        0 => "retrying".to_owned(),
        seconds @ 1..60 => format!("retrying in {seconds}s"),
        seconds @ 60..3600 => format!("retrying in {}m {}s", seconds / 60, seconds % 60),
        seconds => format!("retrying in {}h {}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Returns the result of a workstream that is done, with the commit of its work on the base if it had to land.
pub fn done(commit: Option<&str>, on_base: bool) -> String {
    match commit {
        Some(commit) => format!("landed as {}", short_commit(commit)),
        None if on_base => "done: already on the base".to_owned(),
        None => "done".to_owned(),
    }
}

/// Returns which item landed the work, if the run did not add it, and what verified it.
pub fn by(item: Option<u64>, verified_by: Option<&str>) -> String {
    match (item, verified_by) {
        (None, _) => String::new(),
        (Some(item), Some(command)) => {
            format!(" by 'swarm merge add' (item {item}), not by the run, verified by '{command}'")
        }
        (Some(item), None) => format!(" by 'swarm merge add' (item {item}), not by the run, not verified"),
    }
}

/// Returns what happened to a text from `swarm run context`.
fn context(delivered: bool, text: &str) -> String {
    let how = if delivered { "context delivered" } else { "context not delivered" };
    format!("{how}: {text}")
}

/// Returns which ignored files go with the worktree.
fn ignored(files: &[String], host: Option<&str>) -> String {
    let place = host.map(|host| format!(" on {host}")).unwrap_or_default();
    format!("ignored files do not land and go with the worktree{place}: {}", diff::named(files))
}

/// Describes a line of the run's journal that cannot be read.
pub fn damaged(file: &str, line: usize, error: &str) -> String {
    format!("damaged journal: {file}, line {line}: {error}")
}

fn changed(file: &str) -> String {
    format!("{file} has changed; using the new version")
}

/// Returns which work the branch of a workstream did not have, and how a person brings it up to date.
fn behind(after: &[String], base: &str, worktree: Option<&str>) -> String {
    let ids = after.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    let Some(tree) = worktree else {
        return format!("starts again from {base} as it is now, with the work of {ids}");
    };
    let merge = command_line(["git", "-C", tree, "merge", base]);
    format!("continues its earlier work without that of {ids}, which has landed since; to bring it up to date: {merge}")
}

pub fn conflict(files: &[String], branch: &str) -> String {
    format!("conflicts with the base in {}; work kept on {branch}", files.join(", "))
}

/// Text for work in the merge queue whose run is over.
pub fn still_lands(base: &str) -> String {
    format!("lands although the run has ended, unless you run 'swarm merge pause --base {base}'")
}

pub fn to_land(error: &str) -> String {
    format!("waiting to land: {error}")
}

fn short_commit(commit: &str) -> &str {
    commit.get(..COMMIT_DIGITS).unwrap_or(commit)
}

#[cfg(test)]
mod tests {
    use swarm_model::run::progress::Spent;

    use super::*;

    #[test]
    fn what_is_heard_of_a_workstream_that_has_left_the_plan_names_it_if_its_reference_does() {
        let shown = |word| {
            text(&Line { time: String::new(), run: "r".into(), number: Some(0), workstream: None, word })
                .expect("shown")
        };
        let returned = |reference: Option<&str>| {
            let (host, reference) = ("box".to_owned(), reference.map(str::to_owned));
            shown(Word::Returned { attempt: 1, host, reference })
        };
        let reference = "refs/swarm/from/box/a.b.1-2";
        assert_eq!(returned(Some(reference)), format!("a.b: what attempt 1 has done on box is kept as {reference}"));
        assert_eq!(returned(None), "a removed workstream: attempt 1 has left nothing on box");
        let damaged = Word::JournalDamaged { file: "f".into(), line: 1, error: "x".into() };
        assert_eq!(shown(damaged), "damaged journal: f, line 1: x");
    }

    fn said(word: Word) -> Option<String> {
        let workstream = Some("auth".to_owned());
        text(&Line { time: String::new(), run: "r1".to_owned(), number: None, workstream, word })
    }

    #[test]
    fn every_event_is_one_plain_line_or_none() {
        let text = str::to_owned;
        let files = || vec![text("a.rs"), text("b.rs")];
        let commit = || text("0123456789abcdef");
        let completed = |summary: Option<&str>| Word::Completed {
            attempt: 1,
            summary: summary.map(str::to_owned),
            spent: Spent::default(),
        };
        let over = |failed, pending| Word::RunCompleted { status: text("failed"), done: 1, failed, pending };
        let retrying = |in_ms| Word::Retrying { attempt: 1, error: text("red"), in_ms };
        let started = |attempt| Word::Started { attempt, worker: text("repo.auth"), host: None };
        for (word, line) in [
            (Word::RunStarted { workstreams: 4, pending: 3, failed: 1 }, Some("run r1: 3 of 4 workstreams pending")),
            (Word::RunPaused, Some("paused: no new workstreams start")),
            (Word::RunResumed, Some("resumed")),
            (Word::RunStopping, Some("stopping")),
            (over(2, 3), Some("failed: 1 done, 2 failed, 3 pending ('swarm run' continues)")),
            (over(2, 0), Some("failed: 1 done, 2 failed")),
            (started(1), Some("auth: started")),
            (started(2), Some("auth: started attempt 2")),
            (completed(Some("did it\nand more")), Some("auth: finished: did it")),
            (completed(None), Some("auth: finished")),
            (Word::Failed { attempt: 2, error: text("code 3\nbad") }, Some("auth: failed: code 3\\nbad")),
            (retrying(0), Some("auth: attempt 1 failed, retrying: red")),
            (retrying(1500), Some("auth: attempt 1 failed, retrying in 2s: red")),
            (retrying(90_000), Some("auth: attempt 1 failed, retrying in 1m 30s: red")),
            (retrying(5_400_000), Some("auth: attempt 1 failed, retrying in 1h 30m: red")),
            (Word::Abandoned { attempt: 1, host: text("box") }, Some("auth: attempt 1 on box was given up")),
            (
                Word::Returned { attempt: 1, host: text("box"), reference: Some(text("refs/swarm/from/box/auth.1")) },
                Some("auth: what attempt 1 has done on box is kept as refs/swarm/from/box/auth.1"),
            ),
            (
                Word::Returned { attempt: 1, host: text("box"), reference: None },
                Some("auth: attempt 1 has left nothing on box"),
            ),
            (
                Word::Gone { attempt: 1, host: text("box") },
                Some("auth: attempt 1 is gone with box: another machine is there now, which never had it"),
            ),
            (Word::Paused { attempt: 1 }, Some("auth: stopped; the next run continues it")),
            (
                Word::Done { commit: Some(commit()), on_base: false, item: None, verified_by: None },
                Some("auth: landed as 0123456789ab"),
            ),
            (Word::Done { commit: None, on_base: false, item: None, verified_by: None }, Some("auth: done")),
            (
                Word::Done { commit: None, on_base: true, item: None, verified_by: None },
                Some("auth: done: already on the base"),
            ),
            (
                Word::Done {
                    commit: Some(commit()),
                    on_base: false,
                    item: Some(3),
                    verified_by: Some("true".to_owned()),
                },
                Some("auth: landed as 0123456789ab by 'swarm merge add' (item 3), not by the run, verified by 'true'"),
            ),
            (
                Word::SpecChanged { attempt: 2, file: text("specs/auth.md") },
                Some("auth: specs/auth.md has changed; using the new version"),
            ),
            (
                Word::Behind { attempt: 2, after: vec![text("a"), text("b")], base: text("main"), worktree: None },
                Some("auth: starts again from main as it is now, with the work of 'a', 'b'"),
            ),
            (
                Word::Behind { attempt: 2, after: vec![text("a")], base: text("main"), worktree: Some(text("/w x")) },
                Some(
                    "auth: continues its earlier work without that of 'a', which has landed since; to bring it up to date: \
                     git -C '/w x' merge main",
                ),
            ),
            (Word::Activity { text: text("Bash: make") }, None),
            (
                Word::Activity { text: text("denied: Bash: git push: branches are landed") },
                Some("auth: denied: Bash: git push: branches are landed"),
            ),
            (Word::NeedsInput { cause: text("Which? (a | b)\x1b[2J") }, Some("auth: waiting: Which? (a | b)\\x1b[2J")),
            (Word::Context { delivered: true, text: text("hi") }, Some("auth: context delivered: hi")),
            (Word::Context { delivered: false, text: text("hi") }, Some("auth: context not delivered: hi")),
            (
                Word::Ignored { files: vec![text("a.csv")], host: None },
                Some("auth: ignored files do not land and go with the worktree: a.csv"),
            ),
            (
                Word::Ignored { files: vec![text("a.csv")], host: Some(text("box")) },
                Some("auth: ignored files do not land and go with the worktree on box: a.csv"),
            ),
            (
                Word::Kept { attempt: 1, host: text("box"), references: vec![text("refs/x"), text("refs/y")] },
                Some("auth: commits beside its work on box are kept as refs/x and refs/y"),
            ),
            (Word::MergeStarted { base: text("main"), left_out: Vec::new() }, Some("auth: queued to land on main")),
            (
                Word::MergeStarted { base: text("main"), left_out: vec![text("dist/a"), text("b.log")] },
                Some("auth: queued to land on main; 2 uncommitted path(s) will not land: dist/a, b.log"),
            ),
            (Word::MergeVerifying { commit: commit() }, Some("auth: verifying 0123456789ab")),
            (Word::MergeResolving { files: files() }, Some("auth: resolving conflicts in a.rs, b.rs")),
            (Word::MergeCompleted { commit: commit() }, None),
            (
                Word::MergeConflict { files: files(), branch: text("arial/auth") },
                Some("auth: conflicts with the base in a.rs, b.rs; work kept on arial/auth"),
            ),
            (Word::MergeRejected { error: text("red") }, None),
            (Word::MergeWaiting { error: text("edits") }, Some("auth: waiting to land: edits")),
            (
                Word::MergeContinues { base: text("main") },
                Some("auth: lands although the run has ended, unless you run 'swarm merge pause --base main'"),
            ),
        ] {
            assert_eq!(said(word.clone()).as_deref(), line, "{word:?}");
        }
    }

    #[test]
    fn each_question_is_shown_once() {
        let mut plain = Plain::default();
        let mut shows = |word| {
            let (time, workstream) = ("2030-01-31T12:00:00Z".to_owned(), Some("a".to_owned()));
            plain.show(&Line { time, run: "r".to_owned(), number: None, workstream, word }).is_some()
        };
        let needs = |ask: u64| Word::NeedsInput { cause: format!("request {ask}: make (answer with …)") };
        let (kind, what) = (swarm_model::NeedKind::Permission, "make".to_owned());
        let asks = |ask: u64| Word::Asking { attempt: 1, ask, kind, what: what.clone() };
        assert!(shows(needs(1)) && !shows(asks(1)), "its attempt has ended meanwhile");
        assert!(shows(asks(1)), "a run that is continued says it once more");
        assert!(shows(needs(1)) && shows(asks(11)), "another one");
        assert!(shows(asks(3)), "an attempt that was killed has not said it");
    }

    #[test]
    fn elapsed_times_count_from_the_start_of_the_run() {
        let at = |time: &str, word| Line {
            time: time.to_owned(),
            run: "r1".to_owned(),
            number: None,
            workstream: None,
            word,
        };
        let begun = || Word::RunStarted { workstreams: 1, pending: 1, failed: 0 };
        let mut plain = Plain::default();
        for (line, text) in [
            (at("2030-01-31T12:00:00.900Z", Word::RunPaused), "[00:00] paused: no new workstreams start"),
            (at("2030-01-31T12:00:10.000Z", begun()), "[00:00] run r1: 1 of 1 workstreams pending"),
            (at("2030-01-31T12:00:52.900Z", Word::RunResumed), "[00:42] resumed"),
            (at("2030-01-31T13:00:52.000Z", Word::RunResumed), "[1:00:42] resumed"),
            (at("2030-01-31T11:00:00.000Z", Word::RunResumed), "[00:00] resumed"),
            (at("no time", Word::RunResumed), "[00:00] resumed"),
        ] {
            assert_eq!(plain.show(&line).as_deref(), Some(text));
        }
        let mut within = Plain::new(from_iso("2030-01-31T12:00:00Z"));
        assert_eq!(within.show(&at("2030-01-31T12:01:05Z", Word::RunResumed)).as_deref(), Some("[01:05] resumed"));
    }
}
