//! `swarm approvals`: lists requests, and shows one in full.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;

use jiff::Timestamp;
use serde_json::Value;
use swarm_model::RefusalKind;
use swarm_model::asks::rules::suggested;
use swarm_model::asks::{AskAnswer, AskRecord, AskState, AskWish, Verdict, Via, Waits};
use swarm_store::asks::present;
use swarm_store::asks::{ANSWERED_IN_DIALOG, Asks};
use swarm_sys::paths::Paths;

use super::args::ApprovalsArgs;
use super::flows::{self, FlowRequest};
use super::which::Which;
use super::{SCHEMA, json_of, refused, unreadable};
use crate::cli::columns;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{Clock, escape, table};
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};

/// Maximum length of a worker's name in a table on a terminal.
const NAME_CHARS_MAX: usize = 24;

pub fn run(args: &ApprovalsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match &args.request {
        Some(Which::Number(number)) => one(*number, args.json, paths, screen),
        Some(Which::Flow { flow, part }) => {
            let request = flows::find(paths, flow, part)?;
            if args.json {
                return json::print_list(screen, SCHEMA, "approvals", vec![request.json()]).map(|()| 0);
            }
            screen.line(&format!("request {}: {}", escape(&request.id()), escape(&request.reason)))?;
            screen.line(&format!("role:      {}", escape(&request.role)))?;
            whole("", &request.text, screen)?;
            screen.line(&format!("answer:    {}", escape(&request.command()))).map(|()| 0)
        }
        None if args.follow => follow(args, paths, screen),
        None => all(args, paths, screen),
    }
}

/// Returns the command that answers a request. `None` if it is not open.
pub fn command(record: &AskRecord) -> Option<String> {
    (record.state() == AskState::Open).then(|| record.ask.command())
}

/// Returns how an open request is not made again, or why no rule can allow it. `None` if rules are not about it.
fn always(record: &AskRecord) -> Option<String> {
    let ask = &record.ask;
    let is_of_rules = matches!(ask.wish, AskWish::Command { .. } | AskWish::Mcp { .. });
    (is_of_rules && record.state() == AskState::Open).then(|| match suggested(&ask.wish) {
        Ok(patterns) => {
            format!("swarm approve {} --always, which also allows '{}'", ask.number, patterns.join("' and '"))
        }
        Err(cause) => format!("--always is not possible: {cause}"),
    })
}

fn is_chosen(args: &ApprovalsArgs, record: &AskRecord) -> bool {
    let is_of_run = args.run.as_ref().is_none_or(|run| record.ask.who.run.as_ref() == Some(run));
    is_of_run && (args.all || record.state() == AskState::Open)
}

fn all(args: &ApprovalsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let records = if args.all { present::all(paths) } else { present::unfinished(paths) };
    let mut records = records.map_err(|error| unreadable(&error))?;
    records.retain(|record| is_chosen(args, record));
    let asks = Asks::new(paths);
    for (number, cause) in asks.damaged().map_err(|error| unreadable(&error))? {
        screen.warning(&format!("request {number} is damaged, and left out: {cause}"));
        screen.aside("hint: ", &format!("remove {}/{number}.*.json if nobody needs it", asks.dir().display()));
    }
    let of_flows = if args.run.is_none() { flows::open(paths, screen) } else { Vec::new() };
    if args.json {
        let own = records.iter().map(json_of);
        let list: Vec<Value> = own.chain(of_flows.iter().map(FlowRequest::json)).collect();
        return json::print_list(screen, SCHEMA, "approvals", list).map(|()| 0);
    }
    let clock = Clock::system();
    let left = records.iter().any(|record| left(record, &clock).is_some());
    let shown = Shown { left, status: args.all, terminal: screen.terminal };
    let rows = records.iter().map(|record| cells(shown, record, &clock));
    let mut rows: Vec<(u64, Vec<String>)> = rows.collect();
    rows.extend(of_flows.iter().map(|request| {
        let at_ms = request.asked_at.as_ref().and_then(|at| at.parse::<Timestamp>().ok());
        let at_ms = at_ms.and_then(|at| u64::try_from(at.as_millisecond()).ok());
        let age = request.asked_at.as_ref().map_or_else(|| "-".to_owned(), |at| clock.age(at));
        let texts = [request.id(), age, request.role.clone(), request.kind().to_owned()];
        (at_ms.unwrap_or(u64::MAX), row(shown, texts, "-".to_owned(), "open", &request.text))
    }));
    rows.sort_by_key(|(at_ms, _)| *at_ms);
    if rows.is_empty() {
        if screen.terminal {
            screen.line("no request waits for an answer")?;
        }
        return Ok(0);
    }
    let mut header: Vec<String> = ["N", "AGE", "WORKER", "KIND", "WHAT"].map(str::to_owned).to_vec();
    if shown.left {
        header.insert(4, "LEFT".to_owned());
    }
    if shown.status {
        header.insert(header.len() - 1, "STATUS".to_owned());
    }
    let mut rows: Vec<Vec<String>> = std::iter::once(header).chain(rows.into_iter().map(|(_, row)| row)).collect();
    columns::to_width(&mut rows, screen.columns);
    for line in table(&rows, |_, _, _| None).lines() {
        screen.line(line.trim_end())?;
    }
    if screen.terminal {
        screen.line("'swarm approvals N' shows all of it; answer with approve, deny or answer")?;
    }
    Ok(0)
}

/// What a table of requests contains.
#[derive(Clone, Copy)]
struct Shown {
    /// The time that is left for an answer.
    left: bool,
    status: bool,
    terminal: bool,
}

/// Returns the time that is left for an answer. `None` if there is no limit.
fn left(record: &AskRecord, clock: &Clock) -> Option<String> {
    let at_ms = record.ask.expires_at_ms.filter(|_| record.state() == AskState::Open)?;
    clock.until_ms(at_ms).map(crate::cli::render::words)
}

/// Returns the time of a request and its row in the table.
fn cells(shown: Shown, record: &AskRecord, clock: &Clock) -> (u64, Vec<String>) {
    let ask = &record.ask;
    let age = clock.since_ms(ask.asked_at_ms).map_or_else(|| "-".to_owned(), crate::cli::render::words);
    let kind = ask.kind().word().to_owned();
    let texts = [ask.number.to_string(), age, ask.who.worker.clone(), kind];
    let left = left(record, clock).unwrap_or_else(|| "-".to_owned());
    (ask.asked_at_ms, row(shown, texts, left, &status(record), &record.ask.choices()))
}

/// Returns what became of a request, and who decided it.
fn status(record: &AskRecord) -> String {
    let Some(answer) = &record.answer else {
        let word = match &record.over {
            Some(over) if over.why == ANSWERED_IN_DIALOG => "answered in its window",
            Some(_) => "dismissed",
            None => record.state().word(),
        };
        return word.to_owned();
    };
    let verdict = match &answer.verdict {
        Verdict::Allow { .. } => "approved",
        Verdict::Deny { .. } => "denied",
        Verdict::Answer { .. } => "answered",
    };
    match answer.by.via {
        Via::Rule => format!("{verdict} by a rule"),
        Via::Timeout => format!("{verdict}: no answer in time"),
        Via::Person | Via::Terminal => {
            let user = answer.by.user.clone().unwrap_or_else(|| format!("user {}", answer.by.uid));
            format!("{verdict} by {user}")
        }
    }
}

fn row(shown: Shown, texts: [String; 4], left: String, state: &str, what: &str) -> Vec<String> {
    let mut row = texts.map(|text| escape(&text).into_owned()).to_vec();
    let chars = row[2].chars().count();
    if shown.terminal && chars > NAME_CHARS_MAX {
        row[2] = format!("…{}", row[2].chars().skip(chars - NAME_CHARS_MAX + 1).collect::<String>());
    }
    if shown.left {
        row.push(left);
    }
    if shown.status {
        row.push(escape(state).into_owned());
    }
    row.push(escape(what).into_owned());
    row
}

fn one(number: u64, as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let record = present::one(paths, number).map_err(|error| unreadable(&error))?.ok_or_else(|| unknown(number))?;
    if as_json {
        return json::print_list(screen, SCHEMA, "approvals", vec![json_of(&record)]).map(|()| 0);
    }
    tell(&record, screen)?;
    Ok(0)
}

pub fn unknown(number: u64) -> Failure {
    refused(
        RefusalKind::NotFound,
        format!("request {number} not found"),
        "run 'swarm approvals --all' to list requests",
    )
}

/// Prints a request in full.
fn tell(record: &AskRecord, screen: &mut Screen) -> Result<(), Failure> {
    let (ask, clock) = (&record.ask, Clock::system());
    let age = clock
        .since_ms(ask.asked_at_ms)
        .map_or_else(String::new, |since| format!(", asked {} ago", crate::cli::render::words(since)));
    let state = record.state().word();
    screen.line(&format!("request {}: {}, {state}{age}", ask.number, ask.kind().word()))?;
    let agent = ask.who.agent.as_ref().map_or_else(String::new, |agent| format!(" ({agent})"));
    screen.line(&format!("worker:    {}{}", escape(&ask.who.worker), escape(&agent)))?;
    screen.line(&format!("directory: {}", escape(&ask.cwd)))?;
    let waits = match ask.waits {
        Waits::Parked => "no process waits; the agent is started again after the answer",
        Waits::Held => "the agent waits",
        Waits::Shown => "the agent waits, and shows its own dialog in its window",
    };
    screen.line(&format!("waits:     {waits}"))?;
    if let Some(at_ms) = ask.expires_at_ms.filter(|_| record.state() == AskState::Open) {
        screen.line(&format!("expires:   {}; then the answer is no", clock.local(at_ms)))?;
    }
    match &ask.wish {
        AskWish::Question { questions } => {
            for (index, question) in questions.iter().enumerate() {
                whole(&format!("question {}", index + 1), &question.text, screen)?;
                for (index, option) in question.options.iter().enumerate() {
                    screen.line(&format!("    {}. {}", index + 1, escape(option)))?;
                }
                if question.several {
                    screen.line("    (several may be chosen: 1,2)")?;
                }
            }
        }
        _ => {
            screen.line(&format!("tool:      {}", escape(&ask.tool)))?;
            whole("wants", &ask.text(), screen)?;
        }
    }
    if let Some(answer) = &record.answer {
        screen.line(&format!("answered:  {}", escape(&answered(answer))))?;
    }
    if let Some(over) = &record.over {
        screen.line(&format!("over:      {}", escape(&over.why)))?;
    }
    let Some(command) = command(record) else { return Ok(()) };
    screen.line(&format!("answer:    {command}, or swarm deny {} --reason TEXT", ask.number))?;
    always(record).iter().try_for_each(|always| screen.line(&format!("rule:      {}", escape(always))))
}

/// Prints a text completely, below its name. Each line is indented, so that none looks like one of ours.
fn whole(name: &str, text: &str, screen: &mut Screen) -> Result<(), Failure> {
    if !name.is_empty() {
        screen.line(&format!("{name}:"))?;
    }
    // Only a line feed begins a line; a carriage return is shown.
    text.split('\n').try_for_each(|line| screen.line(&format!("    {}", escape(line))))
}

/// Returns the answer, and who gave it.
pub fn answered(answer: &AskAnswer) -> String {
    let verdict = match &answer.verdict {
        Verdict::Allow { input: None } => "approved".to_owned(),
        Verdict::Allow { input: Some(input) } => format!("approved with another input: {input}"),
        Verdict::Deny { .. } if answer.by.via == Via::Timeout => "denied".to_owned(),
        Verdict::Deny { reason } if reason.is_empty() => "denied".to_owned(),
        Verdict::Deny { reason } => format!("denied ({reason})"),
        Verdict::Answer { answers } => {
            let texts: Vec<String> = answers.iter().map(|(_, text)| format!("'{text}'")).collect();
            format!("answered {}", texts.join(", "))
        }
    };
    format!("{verdict} {}", by(answer))
}

/// Returns who answered, with what is known about it.
pub fn by(answer: &AskAnswer) -> String {
    let by = &answer.by;
    match by.via {
        Via::Rule => return "by a rule".to_owned(),
        Via::Timeout => return "because nobody answered in time".to_owned(),
        Via::Person | Via::Terminal => {}
    }
    let user = by.user.clone().unwrap_or_else(|| format!("user {}", by.uid));
    let tty = by.tty.as_ref().map_or_else(String::new, |tty| format!(" on {tty}"));
    let from = by.from.as_ref().map_or_else(String::new, |from| format!(" from {from}"));
    let dialog = if by.via == Via::Terminal { " in the agent's own dialog" } else { "" };
    format!("by {user}{tty}{from}{dialog}")
}

/// Prints requests as they appear, and how they are answered or end.
fn follow(args: &ApprovalsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let (asks, changes, interrupt) = (Asks::new(paths), Changes::new()?, Interrupt::catch()?);
    asks.make_dir().map_err(|error| Failure::system(format!("cannot create {}", asks.dir().display()), &error))?;
    changes.add_dir(asks.dir())?;
    let mut known: BTreeMap<u64, AskState> = BTreeMap::new();
    loop {
        changes.take()?;
        for record in now(args, &asks, &known, paths).map_err(|error| unreadable(&error))? {
            let (number, state) = (record.ask.number, record.state());
            let before = known.insert(number, state);
            let is_of_run = args.run.as_ref().is_none_or(|run| record.ask.who.run.as_ref() == Some(run));
            let is_news = if before.is_none() { args.all || state == AskState::Open } else { before != Some(state) };
            if !is_of_run || !is_news {
                continue;
            }
            if args.json {
                json::print_list(screen, SCHEMA, "approvals", vec![json_of(&record)])?;
            } else {
                screen.line(&sentence(&record))?;
            }
        }
        screen.flush()?;
        let woken = wait_any(&[(changes.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable)], None)?;
        if woken[1] {
            return Ok(0);
        }
    }
}

/// Returns the requests that may have changed: those that are not over, and those that were not when they were shown.
/// With `--all`, all of them.
fn now(
    args: &ApprovalsArgs,
    asks: &Asks,
    known: &BTreeMap<u64, AskState>,
    paths: &Paths,
) -> io::Result<Vec<AskRecord>> {
    if args.all {
        return present::all(paths);
    }
    let mut records = present::unfinished(paths)?;
    let is_there = |number: u64| records.iter().any(|record| record.ask.number == number);
    let ended = known.iter().filter(|(number, state)| **state != AskState::Over && !is_there(**number));
    let ended: io::Result<Vec<_>> = ended.filter_map(|(number, _)| asks.find(*number).transpose()).collect();
    records.extend(ended?);
    records.sort_by_key(|record| record.ask.number);
    Ok(records)
}

fn sentence(record: &AskRecord) -> String {
    let (number, worker) = (record.ask.number, &record.ask.who.worker);
    let text = match (record.state(), &record.answer, &record.over) {
        (AskState::Open, _, _) => format!("{worker} asks: {}", record.ask.what()),
        (AskState::Over, _, Some(over)) => format!("over: {}", over.why),
        (_, Some(answer), _) => answered(answer),
        (state, None, _) => state.word().to_owned(),
    };
    format!("{number}  {}", escape(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::asks::{Answerer, Asker, Draft, Question};

    #[test]
    fn a_list_says_what_was_answered_and_by_whom() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let asks = Asks::new(&paths);
        let deny = || Verdict::Deny { reason: String::new() };
        let cases = [
            (Some((Verdict::Allow { input: None }, Via::Person)), "approved by ada"),
            (Some((deny(), Via::Terminal)), "denied by ada"),
            (Some((deny(), Via::Timeout)), "denied: no answer in time"),
            (Some((Verdict::Answer { answers: Vec::new() }, Via::Rule)), "answered by a rule"),
            (None, "dismissed"),
            (None, "answered in its window"),
        ];
        for (number, (answer, status)) in cases.into_iter().enumerate() {
            let draft = Draft {
                key: format!("k{number}"),
                who: Asker { worker: "fix".to_owned(), ..Asker::default() },
                tool: "Bash".to_owned(),
                wish: AskWish::Command { command: "make".to_owned() },
                cwd: "/".to_owned(),
                waits: Waits::Parked,
            };
            let ask = asks.ask(&draft).expect("asked");
            if let Some((verdict, via)) = answer {
                let by = Answerer { uid: 1, user: Some("ada".to_owned()), pid: 1, tty: None, from: None, via };
                let answer = AskAnswer { verdict, digest: ask.digest.clone(), by, at_ms: 1 };
                asks.answer(ask.number, &answer).expect("answered");
            }
            let why = if status.ends_with("window") { ANSWERED_IN_DIALOG } else { "it is over" };
            asks.end(ask.number, why).expect("ended");
            let record = asks.find(ask.number).expect("read").expect("there");
            let shown = Shown { left: false, status: true, terminal: false };
            assert_eq!(cells(shown, &record, &Clock::system()).1[4], status);
        }
    }

    #[test]
    fn a_request_is_shown_with_the_commands_that_answer_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, shown) = (Paths::new(dir.path()), |paths: &Paths, request: Option<u64>| {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let request = request.map(Which::Number);
            let args = ApprovalsArgs { request, run: None, all: false, follow: false, json: false };
            run(&args, paths, &mut Screen::new(&mut out, &mut err)).expect("shown");
            String::from_utf8(out).expect("text")
        });
        assert_eq!(shown(&paths, None), "", "nothing waits");
        let question = |text: &str, options: &[&str]| Question {
            text: text.to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            ..Question::default()
        };
        let command = |line: &str| AskWish::Command { command: line.to_owned() };
        let questions = vec![question("Which database?", &["postgres", "sqlite"]), question("Which port?", &[])];
        let wishes = [
            (AskWish::Question { questions }, "swarm answer 1 TEXT TEXT", None),
            (
                command("cargo test && git diff"),
                "swarm approve 2",
                Some("swarm approve 2 --always, which also allows 'cargo test' and 'git diff'"),
            ),
            (
                command("make > out.txt"),
                "swarm approve 3",
                Some("--always is not possible: no rule can allow a command with a redirection"),
            ),
            (AskWish::Write { path: "a".to_owned(), change: String::new() }, "swarm approve 4", None),
        ];
        for (number, (wish, command, rule)) in wishes.into_iter().enumerate() {
            let (who, cwd, waits) = (Asker::default(), "/".to_owned(), Waits::Parked);
            let who = Asker { run: Some("r".to_owned()), ..who };
            let draft = Draft { key: format!("run/{number}"), who, tool: "Bash".to_owned(), wish, cwd, waits };
            let number = Asks::new(&paths).ask(&draft).expect("asked").number;
            let text = shown(&paths, Some(number));
            let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let answer = format!("{command}, or swarm deny {number} --reason TEXT");
            assert_eq!((line("answer:"), line("rule:")), (Some(&*answer), rule), "{text}");
        }
        let list = shown(&paths, None);
        assert!(list.contains("Which database? (postgres | sqlite)\\nWhich port?\n"), "{list}");
    }

    #[test]
    fn a_list_fits_a_terminal_of_80_columns_and_is_whole_in_a_pipe() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, command) = (Paths::new(dir.path()), format!("cargo test {}", "--package long ".repeat(20)));
        let who = Asker {
            worker: "run/5fb07ef2/documentation-of-everything/1".to_owned(),
            run: Some("5fb07ef2".to_owned()),
            ..Asker::default()
        };
        let draft = Draft {
            key: "k".to_owned(),
            who,
            tool: "Bash".to_owned(),
            wish: AskWish::Command { command: command.clone() },
            cwd: "/".to_owned(),
            waits: Waits::Parked,
        };
        Asks::new(&paths).ask(&draft).expect("asked");
        let show = |columns: Option<u16>| {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut screen = Screen::new(&mut out, &mut err);
            (screen.terminal, screen.columns) = (columns.is_some(), columns);
            let args = ApprovalsArgs { request: None, run: None, all: true, follow: false, json: false };
            run(&args, &paths, &mut screen).expect("listed");
            String::from_utf8(out).expect("text")
        };
        let narrow = show(Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("…ntation-of-everything/1") && narrow.contains("Bash: cargo"), "{narrow}");
        assert!(show(None).trim_end().ends_with(command.trim_end()));
    }
}
