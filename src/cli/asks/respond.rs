//! `swarm approve`, `swarm deny` and `swarm answer`: a person's answers to requests.

use std::fs;

use swarm_model::asks::judge::Rule;
use swarm_model::asks::rules::{AskRule, Effect, rule_of, suggested};
use swarm_model::asks::{Answerer, Ask, AskAnswer, AskRecord, AskState, AskWish, Question, Verdict, Via};
use swarm_model::{NeedKind, Refusal, RefusalKind};
use swarm_store::asks::{AnswerError, Asks, covered, present, rules};
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;

use super::args::{AnswerArgs, ApproveArgs, DenyArgs};
use super::list::{by, unknown};
use super::which::Which;
use super::{SCHEMA, flows, json_of, refused, unreadable};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{counted, escape};
use crate::cli::screen::Screen;
use crate::cli::trust::gate::refuse_answers_below_a_worker;

/// Maximum number of characters of a request that are repeated after it was answered.
const SHOWN_CHARS_MAX: usize = 160;

pub fn approve(args: &ApproveArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    refuse_answers_below_a_worker(paths)?;
    let covered = |screen: &mut Screen| if args.always { by_rules(args.json, paths, screen) } else { Ok(Vec::new()) };
    each(&args.requests, (args.json, paths), screen, covered, |which, screen| match which {
        Which::Flow { .. } if args.always => {
            let cause = format!("request {which} is one of a flow");
            Err(refused(RefusalKind::Invalid, cause, "add a rule with 'swarm rules add'"))
        }
        Which::Flow { flow, part } => flows::find(paths, flow, part)?.approve(screen).map(|_| None),
        Which::Number(number) => {
            let ask = open_one(*number, paths)?;
            if ask.kind() == NeedKind::Question {
                let remedy = format!("use '{}'", ask.command());
                return Err(refused(RefusalKind::Invalid, format!("request {number} is a question"), remedy));
            }
            // The rule comes first: whoever sees that it cannot be made has not approved anything yet.
            if args.always {
                always(&ask, args, paths, screen)?;
            }
            record(&ask, Verdict::Allow { input: None }, paths)?;
            done(&ask, "approved", "", args.json, screen).map(|()| Some(*number))
        }
    })
}

pub fn deny(args: &DenyArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    refuse_answers_below_a_worker(paths)?;
    each(
        &args.requests,
        (args.json, paths),
        screen,
        |_| Ok(Vec::new()),
        |which, screen| match which {
            Which::Flow { flow, part } => {
                flows::find(paths, flow, part)?.deny(args.reason.as_deref(), screen).map(|_| None)
            }
            Which::Number(number) => {
                let ask = open_one(*number, paths)?;
                record(&ask, Verdict::Deny { reason: args.reason.clone().unwrap_or_default() }, paths)?;
                done(&ask, "denied", "", args.json, screen).map(|()| Some(*number))
            }
        },
    )
}

pub fn answer(args: &AnswerArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    refuse_answers_below_a_worker(paths)?;
    let requests = [args.request.clone()];
    each(
        &requests,
        (args.json, paths),
        screen,
        |_| Ok(Vec::new()),
        |which, screen| match which {
            Which::Flow { flow, part } => flows::find(paths, flow, part)?.answer(&args.answers, screen).map(|_| None),
            Which::Number(number) => {
                let ask = open_one(*number, paths)?;
                let AskWish::Question { questions } = &ask.wish else {
                    let cause = format!("request {number} asks for a permission");
                    let remedy = format!("use 'swarm approve {number}' or 'swarm deny {number}'");
                    return Err(refused(RefusalKind::Invalid, cause, remedy));
                };
                let answers = answers(*number, questions, &args.answers)?;
                let said: Vec<String> = answers.iter().map(|(_, text)| format!("'{}'", escape(text))).collect();
                record(&ask, Verdict::Answer { answers }, paths)?;
                done(&ask, "answered", &format!(" with {}", said.join(", ")), args.json, screen).map(|()| Some(*number))
            }
        },
    )
}

/// Answers each request. One that cannot be answered does not keep the others from it. `more` answers further ones in the
/// end.
fn each(
    requests: &[Which],
    (as_json, paths): (bool, &Paths),
    screen: &mut Screen,
    more: impl FnOnce(&mut Screen) -> Result<Vec<u64>, Failure>,
    mut one: impl FnMut(&Which, &mut Screen) -> Result<Option<u64>, Failure>,
) -> Result<u8, Failure> {
    let mut numbers = Vec::new();
    let mut is_refused = false;
    for (index, which) in requests.iter().enumerate() {
        if requests[..index].contains(which) {
            continue;
        }
        match one(which, screen) {
            Ok(number) => numbers.extend(number),
            Err(failure @ Failure::Output(_)) => return Err(failure),
            Err(failure) => {
                is_refused = true;
                screen.flush()?;
                screen.refusal(&failure.into_refusal());
            }
        }
    }
    numbers.extend(more(screen)?);
    if as_json {
        let asks = Asks::new(paths);
        let found: Result<Vec<_>, _> = numbers.iter().map(|number| asks.find(*number)).collect();
        let found = found.map_err(|error| unreadable(&error))?;
        json::print_list(screen, SCHEMA, "approvals", found.iter().flatten().map(json_of).collect())?;
    }
    Ok(u8::from(is_refused))
}

/// Approves the open requests that the rules allow now, and returns their numbers. One that somebody else answers at the same
/// time is left alone.
pub fn by_rules(as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<Vec<u64>, Failure> {
    let by = Answerer { via: Via::Rule, ..person() };
    let mut numbers = Vec::new();
    for ask in covered::allowed(paths).map_err(|error| unreadable(&error))? {
        let (verdict, by, digest) = (Verdict::Allow { input: None }, by.clone(), ask.digest.clone());
        match Asks::new(paths).answer(ask.number, &AskAnswer { verdict, digest, by, at_ms: wall_ms() }) {
            Ok(()) => {
                done(&ask, "approved", " by a rule", as_json, screen)?;
                numbers.push(ask.number);
            }
            Err(error @ AnswerError::Io { .. }) => screen.warning(&error.to_string()),
            Err(_) => {}
        }
    }
    Ok(numbers)
}

/// Returns a request that can be answered.
fn open_one(number: u64, paths: &Paths) -> Result<Ask, Failure> {
    let record = present::one(paths, number).map_err(|error| unreadable(&error))?.ok_or_else(|| unknown(number))?;
    let AskRecord { ask, answer, over, .. } = &record;
    match (record.state(), answer, over) {
        (AskState::Open, _, _) => Ok(ask.clone()),
        (_, Some(first), _) => Err(Failure::from(Refusal::new(
            RefusalKind::Invalid,
            format!("request {number} was already {}", super::list::answered(first)),
        ))),
        (_, None, Some(over)) => {
            Err(Failure::new(RefusalKind::Invalid, format!("request {number} is over: {}", over.why)))
        }
        (state, None, None) => Err(Failure::new(RefusalKind::Invalid, format!("request {number} is {}", state.word()))),
    }
}

/// Records the answer to the request that was read.
fn record(ask: &Ask, verdict: Verdict, paths: &Paths) -> Result<(), Failure> {
    let answer = AskAnswer { verdict, digest: ask.digest.clone(), by: person(), at_ms: wall_ms() };
    Asks::new(paths).answer(ask.number, &answer).map_err(|error| match error {
        AnswerError::Answered { number, first } => {
            Failure::new(RefusalKind::Invalid, format!("request {number} was already answered {}", by(&first)))
        }
        AnswerError::NotFound(number) => unknown(number),
        AnswerError::Changed(number) => refused(
            RefusalKind::Invalid,
            format!("request {number} is not the one that was shown"),
            format!("run 'swarm approvals {number}'"),
        ),
        AnswerError::Over { .. } => Failure::new(RefusalKind::Invalid, error.to_string()),
        AnswerError::Io { .. } => Failure::new(RefusalKind::Internal, error.to_string()),
    })
}

/// Returns the person who runs this program, as far as it can be told.
fn person() -> Answerer {
    let uid = nix::unistd::getuid();
    let is_tty = |path: &std::path::PathBuf| path.starts_with("/dev/pts") || path.starts_with("/dev/tty");
    let tty = (0..3).find_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok().filter(is_tty));
    let from = std::env::var("SSH_CONNECTION").ok();
    let from = from.and_then(|from| from.split_whitespace().next().map(str::to_owned));
    Answerer {
        uid: uid.as_raw(),
        user: swarm_sys::logind::user(),
        pid: nix::unistd::getpid().as_raw(),
        tty: tty.map(|tty| tty.display().to_string()),
        from,
        via: Via::Person,
    }
}

fn done(ask: &Ask, word: &str, how: &str, as_json: bool, screen: &mut Screen) -> Result<(), Failure> {
    if as_json {
        return Ok(());
    }
    let text = ask.text();
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    screen.line(&format!("{word} {} ({}){how}: {}", ask.number, escape(&ask.who.worker), escape(&shown)))
}

/// Returns the answers for the questions, each with the id of its question.
fn answers(number: u64, questions: &[Question], given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    if questions.len() != given.len() {
        let (asked, count) = (questions.len(), given.len());
        let (asked, count) = (counted(asked as u64, "question"), counted(count as u64, "answer"));
        let cause = format!("request {number} asks {asked}, but got {count}");
        return Err(refused(RefusalKind::Invalid, cause, "give one answer for each question, in their order"));
    }
    let pairs = questions.iter().zip(given).map(|(question, text)| {
        let text = if question.several { text.split(',').map(str::trim).collect() } else { vec![text.trim()] };
        let labels: Result<Vec<&str>, Failure> = text.into_iter().map(|text| label(number, question, text)).collect();
        let labels: Vec<&str> = labels?.into_iter().filter(|it| !it.is_empty()).collect();
        match labels.is_empty() {
            true => Err(Failure::new(RefusalKind::Invalid, "the answer is empty")),
            false => Ok((question.id.clone(), labels.join(", "))),
        }
    });
    pairs.collect()
}

/// Returns the label of the option that a text names: by itself or by its number. Any other text is an answer of its own.
///
/// # Errors
/// Fails if the question has options, and the text is the number of none of them: it is more likely a mistake.
fn label<'a>(request: u64, question: &'a Question, text: &'a str) -> Result<&'a str, Failure> {
    let options = &question.options;
    let named = |is: fn(&str, &str) -> bool| options.iter().find(|option| is(option, text));
    if let Some(same) = named(|option, text| option == text).or_else(|| named(str::eq_ignore_ascii_case)) {
        return Ok(same);
    }
    match text.parse::<usize>() {
        Ok(number) if !options.is_empty() => {
            let option = number.checked_sub(1).and_then(|index| options.get(index));
            option.map(String::as_str).ok_or_else(|| {
                let all = options.iter().zip(1..).map(|(option, number)| format!("{number} ({option})"));
                let all = all.collect::<Vec<_>>().join(", ");
                let cause = format!("request {request} has no option {number}; its options are {all}");
                refused(RefusalKind::Invalid, cause, "give one of these, or an answer that is not only a number")
            })
        }
        _ => Ok(text),
    }
}

/// Adds the rule with which this is not asked again, and shows it.
fn always(ask: &Ask, args: &ApproveArgs, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    let invalid = |cause: String| {
        let remedy = "approve it without --always, or name another rule with --as PATTERN";
        refused(RefusalKind::Invalid, format!("cannot make a rule of request {}: {cause}", ask.number), remedy)
    };
    let patterns = match &args.pattern {
        Some(pattern) => vec![pattern.clone()],
        None => suggested(&ask.wish).map_err(invalid)?,
    };
    let made: Result<Vec<AskRule>, String> =
        patterns.iter().map(|pattern| AskRule::new(Effect::Allow, pattern, None)).collect();
    let made = made.map_err(invalid)?;
    let cwd = std::path::Path::new(&ask.cwd);
    let known = rules::all_for(paths, cwd).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let both: Vec<AskRule> = known.into_iter().chain(made.iter().cloned()).collect();
    match rule_of(&both, &ask.wish) {
        Rule::Allow => {}
        Rule::Deny { reason } => return Err(invalid(format!("another rule denies it: {reason}"))),
        Rule::Ask => return Err(invalid("another rule says that a person is asked".to_owned())),
        Rule::None => return Err(invalid(format!("'{}' does not allow it", patterns.join("', '")))),
    }
    super::rules::add(paths, &made, Some(cwd).filter(|_| !args.everywhere), args.json, screen).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_label_a_number_or_a_text() {
        let question = |options: &[&str], several| Question {
            id: "q".to_owned(),
            text: "?".to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            several,
        };
        let of = |question: Question, text: &str| {
            answers(7, &[question], &[text.to_owned()]).map(|mut pairs| pairs.remove(0).1).map_err(|it| it.cause())
        };
        let databases = || question(&["postgres", "sqlite"], false);
        assert_eq!(of(databases(), "2"), Ok("sqlite".to_owned()));
        assert_eq!(of(databases(), "Postgres"), Ok("postgres".to_owned()));
        assert_eq!(of(question(&["Yes", "yes"], false), "yes"), Ok("yes".to_owned()), "the same case comes first");
        for text in ["mysql", "1,2", "version 3"] {
            assert_eq!(of(databases(), text), Ok(text.to_owned()), "a text of its own");
        }
        for text in ["3", "0"] {
            let cause = format!("request 7 has no option {text}; its options are 1 (postgres), 2 (sqlite)");
            assert_eq!(of(databases(), text), Err(cause));
        }
        assert_eq!(of(question(&["2", "1"], false), "1"), Ok("1".to_owned()), "a label comes before a number");
        assert_eq!(of(question(&["a", "b", "c"], true), "3, a"), Ok("c, a".to_owned()));
        assert_eq!(of(question(&[], false), "1"), Ok("1".to_owned()));
        assert_eq!(of(question(&[], false), " "), Err("the answer is empty".to_owned()));
        let cause = answers(7, &[databases(), databases()], &["1".to_owned()]).expect_err("too few").cause();
        assert_eq!(cause, "request 7 asks 2 questions, but got 1 answer");
    }
}
