//! `swarm ask`: a worker asks a person and waits for the answer.

use std::os::fd::AsFd as _;

use nix::sys::signal::Signal;
use swarm_model::RefusalKind;
use swarm_model::asks::{AskAnswer, AskRecord, AskState, AskWish, Asker, Draft, Question, Verdict, Waits};
use swarm_store::asks::Asks;
use swarm_store::asks::present::key_of_process;
use swarm_sys::clock::random_uuid;
use swarm_sys::paths::Paths;

use super::args::AskArgs;
use super::{list, refused, unreadable};
use crate::api::Enclosing;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::watch::{Changes, Interrupt, Until, wait_any};

/// Name that the request gives to the tool.
const TOOL: &str = "swarm ask";
/// Signals that end the wait. The request is over then.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

pub fn run(args: &AskArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let (who, key) = asker(paths)?;
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let asks = Asks::new(paths);
    let failed = |error: &std::io::Error| Failure::system("cannot record the question", error);
    asks.make_dir().map_err(|error| failed(&error))?;
    // Before the question is recorded, so that neither its answer nor a signal is missed.
    let (changes, interrupt) = (Changes::new()?, Interrupt::catch_all(&SIGNALS)?);
    changes.add_dir(asks.dir())?;
    let options = args.options.clone();
    let question = Question { id: args.text.clone(), text: args.text.clone(), options, several: false };
    let draft = Draft {
        key,
        who,
        tool: TOOL.to_owned(),
        wish: AskWish::Question { questions: vec![question] },
        cwd: cwd.to_string_lossy().into_owned(),
        waits: Waits::Held,
    };
    let number = asks.ask(&draft).map_err(|error| failed(&error))?.number;
    screen.aside("", &format!("request {number} waits for an answer: swarm answer {number} TEXT"));
    let signal = loop {
        changes.take()?;
        let record = asks.find(number).map_err(|error| unreadable(&error))?;
        match record.as_ref().map(AskRecord::state) {
            Some(AskState::Open) => {}
            _ => return told(&asks, number, record, screen),
        }
        wait_any(&[(changes.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable)], None)?;
        if let Some(signal) = interrupt.take() {
            break signal;
        }
    };
    let why = format!("the command that asked was ended by {}", signal.as_str());
    asks.end(number, &why).map_err(|error| Failure::system("cannot end the question", &error))?;
    Ok(128 + u8::try_from(signal as i32).unwrap_or(0))
}

/// Returns the worker that this process belongs to, and the key of its question.
fn asker(paths: &Paths) -> Result<(Asker, String), Failure> {
    let enclosing = Enclosing::find(paths);
    let generation = match &enclosing {
        Enclosing::Worker { dir, .. } => {
            dir.extension().and_then(|generation| generation.to_str()).and_then(|generation| generation.parse().ok())
        }
        Enclosing::None | Enclosing::Sandbox { .. } => None,
    };
    let Some(worker) = enclosing.worker().map(str::to_owned) else {
        let cause = "a question is asked by a worker, and this command runs in none";
        return Err(refused(RefusalKind::Invalid, cause, "start the command with 'swarm spawn'"));
    };
    // The process of a sandbox has another number outside of it.
    let key = match &enclosing {
        Enclosing::Sandbox { .. } => random_uuid(),
        _ => key_of_process().map_err(|error| Failure::system("cannot examine this process", &error))?,
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let who = Asker {
        worker,
        generation,
        run: variable("SWARM_RUN"),
        job: variable("SWARM_WORKSTREAM"),
        attempt: variable("SWARM_ATTEMPT").and_then(|attempt| attempt.parse().ok()),
        ..Asker::default()
    };
    Ok((who, key))
}

/// Prints the answer and returns the exit code.
fn told(asks: &Asks, number: u64, record: Option<AskRecord>, screen: &mut Screen) -> Result<u8, Failure> {
    let no = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let Some(record) = record else { return Err(no(format!("request {number} is gone"))) };
    if let Some(over) = record.over {
        return Err(no(format!("nobody can answer request {number} any more: {}", over.why)));
    }
    let Some(answer) = record.answer else { return Err(no(format!("request {number} has no answer"))) };
    let is_ours = asks.take(number, &format!("process {}", std::process::id()));
    if !is_ours.map_err(|error| Failure::system("cannot use the answer", &error))? {
        return Err(no(format!("the answer to request {number} was used already")));
    }
    say(number, &answer, screen)
}

fn say(number: u64, answer: &AskAnswer, screen: &mut Screen) -> Result<u8, Failure> {
    match &answer.verdict {
        Verdict::Answer { answers } => {
            answers.iter().try_for_each(|(_, text)| screen.line(text))?;
            Ok(0)
        }
        Verdict::Deny { .. } => {
            Err(Failure::new(RefusalKind::Invalid, format!("request {number} was {}", list::answered(answer))))
        }
        Verdict::Allow { .. } => Ok(0),
    }
}
