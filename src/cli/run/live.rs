//! View of a run on a terminal: each running workstream with its last activity and elapsed time, those at work first, the
//! merge queue, and above them the results of the others.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState};
use swarm_model::run::progress::Spent;
use swarm_model::run::words::{Line, Word};
use swarm_store::runs::home::from_iso;
use swarm_sys::clock::wall_ms;

use super::plain;
use crate::cli::diff;
use crate::cli::progress_bar::{TICK, style};
use crate::cli::render::escape;

/// Maximum number of earlier activities that are shown per workstream if there is room.
const EARLIER_MAX: usize = 3;
/// Number of rows that are not for workstreams: the queue, the summary and the cursor's row.
const ROWS_OTHER: usize = 3;
/// Line of a workstream: with its elapsed time, and with the time until its next attempt.
const HEAD: &str = "{spinner:.blue} {prefix:.bold} {wide_msg} {elapsed:.dim}";
const HEAD_WAITING: &str = "{spinner:.blue} {prefix:.bold} {left} {wide_msg} {elapsed:.dim}";
/// Assumed number of rows of a terminal that does not report its size.
const ROWS: usize = 24;

pub struct Live {
    all: MultiProgress,
    at_work: BTreeMap<String, Work>,
    /// Those of `at_work` that wait, in the order of their lines.
    waits: Vec<String>,
    queue: Queue,
    summary: ProgressBar,
    rows: fn() -> usize,
    /// Interval of the spinners; `None` in tests.
    tick: Option<Duration>,
    /// Directory of the worktrees, which paths of activities are shown relative to.
    trees: String,
    spent: Spent,
    total: usize,
    done: usize,
    failed: usize,
}

/// Running workstream.
struct Work {
    head: ProgressBar,
    /// Whether its agent is at work, and not waiting.
    is_at_work: bool,
    /// Activities, newest first.
    said: VecDeque<String>,
    lines: Vec<ProgressBar>,
}

/// Workstreams of the run in the merge queue, in order of arrival.
struct Queue {
    bar: ProgressBar,
    base: String,
    items: Vec<(String, &'static str)>,
}

impl Live {
    /// Creates the view of a run whose worktrees are in `trees`.
    pub fn new(trees: &Path) -> Self {
        let mut live = Self::on(ProgressDrawTarget::stderr(), || {
            let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
            size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(ROWS)
        });
        // An update that came too soon after another one to be drawn is drawn with the next tick.
        live.summary.enable_steady_tick(TICK);
        live.tick = Some(TICK);
        live.trees = format!("{}/", trees.display());
        live
    }

    fn on(target: ProgressDrawTarget, rows: fn() -> usize) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let line = |template: &str| all.add(ProgressBar::new_spinner().with_style(style(template)));
        let (bar, summary) = (line("{wide_msg}"), line("{wide_msg} {elapsed:.dim}"));
        let queue = Queue { bar, base: String::new(), items: Vec::new() };
        let (at_work, trees, spent, waits) = (BTreeMap::new(), String::new(), Spent::default(), Vec::new());
        Self { all, at_work, waits, queue, summary, rows, tick: None, trees, spent, total: 0, done: 0, failed: 0 }
    }

    pub fn show(&mut self, line: &Line) {
        let id = line.workstream.as_deref().unwrap_or_default();
        match &line.word {
            Word::RunStarted { workstreams, pending, failed } => {
                self.total = *workstreams;
                self.failed = *failed;
                self.done = workstreams.saturating_sub(pending + failed);
                self.summary.reset_elapsed();
                self.summary = self.summary.clone().with_elapsed(age(line));
                self.say(&plain::begun(&line.run, *workstreams, *pending));
            }
            Word::Started { attempt, host, .. } => {
                self.forget(id);
                self.set(id, &plain::running(*attempt, host.as_deref()), true);
                self.since(id, age(line));
            }
            Word::Activity { text } => self.set(id, &self.relative(text), true),
            Word::NeedsInput { cause } => self.set(id, &format!("waiting: {cause}"), false),
            Word::Completed { spent, .. } => {
                self.spent = self.spent.plus(*spent);
                self.set(id, "finished, waiting to land", false);
            }
            Word::Retrying { error, in_ms, .. } => {
                self.queue.remove(id);
                let left = Duration::from_millis(*in_ms).saturating_sub(age(line));
                if left.is_zero() {
                    self.set(id, &format!("retrying: {error}"), false);
                } else {
                    self.set(id, error, false);
                    self.count_down(id, left);
                }
            }
            Word::Asking { ask, kind, what, .. } => self.set(id, &plain::asking(*ask, *kind, what), false),
            Word::Answered { ask, .. } => self.set(id, &format!("request {ask} was answered"), false),
            Word::Done { commit, on_base, item, verified_by } => {
                self.done += 1;
                let by = plain::by(*item, verified_by.as_deref());
                self.end(id, "✓", &(plain::done(commit.as_deref(), *on_base) + &by));
            }
            Word::Failed { error, .. } => {
                self.failed += 1;
                self.end(id, "✗", error);
            }
            Word::Paused { .. } => self.end(id, "‖", plain::STOPPED),
            Word::Abandoned { attempt, host } => self.set(id, &plain::abandoned(*attempt, host), false),
            Word::Context { .. }
            | Word::Returned { .. }
            | Word::Gone { .. }
            | Word::Ignored { .. }
            | Word::Kept { .. }
            | Word::SpecChanged { .. }
            | Word::Behind { .. }
            | Word::HostAway { .. }
            | Word::HostUnfit { .. }
            | Word::HostBack { .. } => self.say(&plain::text(line).unwrap_or_default()),
            Word::JournalDamaged { file, line, error } => {
                self.say(&escape(&plain::damaged(file, *line, error)));
            }
            Word::RunPaused => self.say("paused: no new workstreams start"),
            Word::RunResumed => self.say("resumed"),
            Word::RunStopping => self.say("stopping"),
            Word::RunCompleted { status, done, failed, pending } => self.over(status, *done, *failed, *pending),
            Word::MergeContinues { base } => self.say(&escape(&format!("{id}: {}", plain::still_lands(base)))),
            Word::MergeStarted { .. }
            | Word::MergeVerifying { .. }
            | Word::MergeResolving { .. }
            | Word::MergeCompleted { .. }
            | Word::MergeRejected { .. }
            | Word::MergeConflict { .. }
            | Word::MergeWaiting { .. } => self.merging(id, &line.word),
        }
        self.fit();
        self.queue.draw();
        let queued = match self.queue.items.len() {
            0 => String::new(),
            items => format!(", {items} in the merge queue"),
        };
        let (done, total, failed, at_work) = (self.done, self.total, self.failed, self.at_work.len());
        let cost = self.spent.usd.map(|usd| format!(", {usd:.2} USD")).unwrap_or_default();
        self.summary.set_message(format!("{done} of {total} done, {failed} failed, {at_work} running{queued}{cost}"));
    }

    fn merging(&mut self, id: &str, word: &Word) {
        match word {
            Word::MergeStarted { base, left_out } => {
                self.queue.base.clone_from(base);
                if !left_out.is_empty() {
                    self.say(&escape(&format!("{id}: {}", diff::left_out(left_out))));
                }
                self.enter(id, "queued");
            }
            Word::MergeVerifying { .. } => self.enter(id, "verifying"),
            Word::MergeResolving { .. } => self.queue.set(id, "resolving conflicts"),
            Word::MergeWaiting { error } => self.end(id, "…", &plain::to_land(error)),
            Word::MergeConflict { files, branch } => {
                self.say(&escape(&format!("{id} {}", plain::conflict(files, branch))));
            }
            // Their outcome arrives as another event.
            _ => {}
        }
    }

    /// Moves a workstream to the queue: its agent no longer runs.
    fn enter(&mut self, id: &str, state: &'static str) {
        self.forget(id);
        self.queue.set(id, state);
    }

    /// Shows what a workstream does. Those at work are above those that wait.
    fn set(&mut self, id: &str, text: &str, is_at_work: bool) {
        if self.at_work.get(id).is_none_or(|work| work.is_at_work != is_at_work) {
            self.place(id, is_at_work);
        }
        let Some(work) = self.at_work.get_mut(id) else { return };
        work.head.set_style(style(HEAD));
        let text = escape(text).into_owned();
        work.head.set_message(text.clone());
        work.said.push_front(text);
        work.said.truncate(EARLIER_MAX + 1);
    }

    /// Puts the lines of a workstream behind those of the others at work, or of all others.
    fn place(&mut self, id: &str, is_at_work: bool) {
        self.waits.retain(|waiting| waiting != id);
        let first_waiting = self.waits.first().and_then(|waiting| self.at_work.get(waiting));
        let next = match first_waiting.filter(|_| is_at_work) {
            Some(waiting) => waiting.head.clone(),
            None => self.queue.bar.clone(),
        };
        if !is_at_work {
            self.waits.push(id.to_owned());
        }
        let (all, tick) = (&self.all, self.tick);
        match self.at_work.get_mut(id) {
            Some(work) => {
                work.is_at_work = is_at_work;
                work.lines.drain(..).for_each(|line| line.finish_and_clear());
                all.remove(&work.head);
                work.head = all.insert_before(&next, work.head.clone());
            }
            None => {
                let head = all.insert_before(&next, ProgressBar::new_spinner());
                head.set_prefix(escape(id).into_owned());
                tick.into_iter().for_each(|tick| head.enable_steady_tick(tick));
                let (said, lines) = (VecDeque::new(), Vec::new());
                self.at_work.insert(id.to_owned(), Work { head, is_at_work, said, lines });
            }
        }
    }

    /// Sets the time for which an attempt has run.
    fn since(&mut self, id: &str, age: Duration) {
        if let Some(work) = self.at_work.get_mut(id) {
            work.head = work.head.clone().with_elapsed(age);
        }
    }

    /// Shows the time until the next attempt, which every frame computes anew.
    fn count_down(&self, id: &str, left: Duration) {
        let Some(work) = self.at_work.get(id) else { return };
        let until = Instant::now() + left;
        let key = move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
            let left = until.saturating_duration_since(Instant::now());
            let _ = write!(text, "{}:", plain::retrying(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
        };
        work.head.set_style(style(HEAD_WAITING).with_key("left", key));
        work.head.tick();
    }

    /// Returns a text with paths of a worktree relative to it.
    fn relative(&self, text: &str) -> String {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(&self.trees).filter(|_| !self.trees.is_empty()) {
            out.push_str(&rest[..at]);
            let below = &rest[at + self.trees.len()..];
            let Some(slash) = below.find('/').filter(|slash| !below[..*slash].contains(char::is_whitespace)) else {
                out.push_str(&rest[at..at + self.trees.len()]);
                rest = below;
                continue;
            };
            rest = &below[slash + 1..];
        }
        out + rest
    }

    /// Shows as many earlier activities as the terminal has room for.
    fn fit(&mut self) {
        let rows = (self.rows)().saturating_sub(ROWS_OTHER);
        let each = rows.checked_div(self.at_work.len()).unwrap_or(0).saturating_sub(1).min(EARLIER_MAX);
        for work in self.at_work.values_mut() {
            let earlier: Vec<&String> = work.said.iter().skip(1).take(each).collect();
            while work.lines.len() < earlier.len() {
                let line = ProgressBar::new_spinner().with_style(style("    {wide_msg:.dim}"));
                work.lines.push(self.all.insert_after(work.lines.last().unwrap_or(&work.head), line));
            }
            work.lines.drain(earlier.len()..).for_each(|line| line.finish_and_clear());
            for (line, text) in work.lines.iter().zip(earlier) {
                line.set_message(text.clone());
            }
        }
    }

    fn forget(&mut self, id: &str) {
        self.waits.retain(|waiting| waiting != id);
        if let Some(work) = self.at_work.remove(id) {
            work.end();
        }
    }

    fn end(&mut self, id: &str, sign: &str, text: &str) {
        self.forget(id);
        self.queue.remove(id);
        self.say(&format!("{sign} {} {}", escape(id), escape(text)));
    }

    fn say(&self, text: &str) {
        let _ = self.all.println(text);
    }

    fn over(&mut self, status: &str, done: usize, failed: usize, pending: usize) {
        std::mem::take(&mut self.at_work).into_values().for_each(Work::end);
        self.waits.clear();
        self.queue.items.clear();
        self.queue.bar.finish_and_clear();
        self.summary.finish_and_clear();
        self.say(&plain::totals(status, done, failed, pending));
    }
}

/// A view that ends before the run leaves no stale lines.
impl Drop for Live {
    fn drop(&mut self) {
        std::mem::take(&mut self.at_work).into_values().for_each(Work::end);
        self.queue.bar.finish_and_clear();
        self.summary.finish_and_clear();
    }
}

/// Returns how long ago an event was written.
fn age(line: &Line) -> Duration {
    let at_ms = from_iso(&line.time).unwrap_or_else(wall_ms);
    Duration::from_millis(wall_ms().saturating_sub(at_ms))
}

impl Work {
    fn end(self) {
        self.lines.iter().chain([&self.head]).for_each(ProgressBar::finish_and_clear);
    }
}

impl Queue {
    fn set(&mut self, id: &str, state: &'static str) {
        match self.items.iter_mut().find(|(known, _)| known == id) {
            Some((_, known)) => *known = state,
            None => self.items.push((id.to_owned(), state)),
        }
    }

    fn remove(&mut self, id: &str) {
        self.items.retain(|(known, _)| known != id);
    }

    fn draw(&self) {
        let text: Vec<String> = self.items.iter().map(|(id, state)| format!("{} {state}", escape(id))).collect();
        if text.is_empty() {
            return self.bar.set_message(String::new());
        }
        let of = if self.base.is_empty() { String::new() } else { format!(" of {}", escape(&self.base)) };
        self.bar.set_message(format!("merge queue{of}: {}", text.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    struct Terminal {
        live: Live,
        term: InMemoryTerm,
    }

    impl Terminal {
        fn new(rows: fn() -> usize) -> Self {
            let term = InMemoryTerm::new(u16::try_from(rows()).expect("a small one"), 60);
            let mut all = Self { live: Live::on(ProgressDrawTarget::term_like(Box::new(term.clone())), rows), term };
            all.tell(None, Word::RunStarted { workstreams: 4, pending: 4, failed: 0 });
            all
        }

        fn tell(&mut self, id: Option<&str>, word: Word) {
            let workstream = id.map(str::to_owned);
            self.live.show(&Line { time: String::new(), run: "r1".into(), number: None, workstream, word });
        }

        fn does(&mut self, id: &str, text: &str) {
            self.tell(Some(id), Word::Activity { text: text.to_owned() });
        }

        /// Returns the current lines without spinners.
        fn lines(&self) -> Vec<String> {
            // Drawing is rate-limited; this draws the last update.
            self.live.all.suspend(|| {});
            let spinner = |c: char| !c.is_ascii() && !"✓✗‖…".contains(c);
            let text = self.term.contents();
            let plain = |line: &str| line.trim_start_matches(spinner).trim().to_owned();
            text.lines().map(|line| without_elapsed(&plain(line))).collect()
        }
    }

    /// Removes the elapsed time at the end of a line, which is apart from the text.
    fn without_elapsed(line: &str) -> String {
        let is_elapsed = |word: &str| {
            let digits = word.trim_end_matches(['s', 'm', 'h']);
            digits.len() < word.len() && !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
        };
        match line.rsplit_once("  ") {
            Some((text, last)) if is_elapsed(last.trim()) => text.trim().to_owned(),
            _ => line.to_owned(),
        }
    }

    #[test]
    fn those_at_work_come_first_and_a_wait_counts_down() {
        let mut shown = Terminal::new(|| 24);
        shown.live.trees = "/home/me/p/.arial/worktrees/".to_owned();
        shown.does("auth", "edit");
        shown.does("billing", "Edit: /home/me/p/.arial/worktrees/billing/src/b.rs");
        shown.tell(Some("billing"), Word::NeedsInput { cause: "may it?".to_owned() });
        shown.does("docs", "Read: /etc/hosts /home/me/p/.arial/worktrees/docs/a.md");
        let spent = Spent { usd: Some(1.5), ..Spent::default() };
        shown.tell(Some("auth"), Word::Completed { attempt: 1, summary: None, spent });
        let first: Vec<String> = shown.lines().into_iter().filter(|line| !line.starts_with("E")).collect();
        assert_eq!(
            first[..4],
            [
                "run r1: 4 of 4 workstreams pending",
                "docs Read: /etc/hosts a.md",
                "billing waiting: may it?",
                "auth finished, waiting to land"
            ]
        );
        assert!(first.contains(&"0 of 4 done, 0 failed, 3 running, 1.50 USD".to_owned()), "{first:?}");
        shown.tell(Some("docs"), Word::Retrying { attempt: 1, error: "red".to_owned(), in_ms: 7_200_000 });
        let lines = shown.lines();
        let wait = lines.iter().find(|line| line.starts_with("docs ")).expect("a line");
        assert!(wait.starts_with("docs retrying in ") && wait.ends_with(": red"), "{wait}");
        assert!(wait.contains("1h 59m") || wait.contains("2h 0m"), "{wait}");
    }

    #[test]
    fn a_view_that_ends_early_leaves_no_lines() {
        let mut shown = Terminal::new(|| 24);
        shown.does("auth", "edit");
        shown.does("auth", "run");
        let Terminal { live, term } = shown;
        drop(live);
        assert_eq!(term.contents(), "run r1: 4 of 4 workstreams pending");
    }

    #[test]
    fn last_activities_are_shown_as_far_as_there_is_room() {
        let mut tall = Terminal::new(|| 24);
        ["read a.rs", "edit a.rs", "run the tests"].iter().for_each(|text| tall.does("auth", text));
        tall.does("billing", "read b.rs");
        assert_eq!(
            tall.lines(),
            [
                "run r1: 4 of 4 workstreams pending",
                "auth run the tests",
                "edit a.rs",
                "read a.rs",
                "billing read b.rs",
                "",
                "0 of 4 done, 0 failed, 2 running",
            ]
        );
        let mut low = Terminal::new(|| 6);
        for id in ["auth", "billing"] {
            ["read", "edit"].iter().for_each(|text| low.does(id, text));
        }
        let lines = low.lines();
        assert!(lines.iter().all(|line| line != "read") && lines.contains(&"auth edit".to_owned()), "{lines:?}");
    }

    #[test]
    fn the_queue_shows_the_state_of_its_items() {
        let mut shown = Terminal::new(|| 24);
        let merging = || Word::MergeStarted { base: "main".to_owned(), left_out: Vec::new() };
        for id in ["auth", "billing"] {
            shown.does(id, "edit");
            shown.tell(Some(id), merging());
        }
        shown.tell(Some("auth"), Word::MergeVerifying { commit: "c".to_owned() });
        let lines = shown.lines();
        assert_eq!(lines[1], "merge queue of main: auth verifying, billing queued");
        assert_eq!(lines[2], "0 of 4 done, 0 failed, 0 running, 2 in the merge queue");
        shown.tell(
            Some("auth"),
            Word::Done { commit: Some("0123456789abcdef".to_owned()), on_base: false, item: None, verified_by: None },
        );
        shown.tell(Some("billing"), Word::Retrying { attempt: 1, error: "red".to_owned(), in_ms: 0 });
        assert_eq!(
            shown.lines()[1..],
            ["✓ auth landed as 0123456789ab", "billing retrying: red", "", "1 of 4 done, 0 failed, 1 running",]
        );
        shown.tell(None, Word::RunCompleted { status: "failed".to_owned(), done: 1, failed: 1, pending: 2 });
        assert_eq!(
            shown.lines().last().map(String::as_str),
            Some("failed: 1 done, 1 failed, 2 pending ('swarm run' continues)")
        );
    }
}
