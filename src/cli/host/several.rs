//! A verb that reads, on several hosts at the same time. A host that cannot be reached is named and delays no other.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use serde_json::value::RawValue;
use swarm_hosts::frames::Tell;
use swarm_hosts::{Fault, Host, Next, Pipe};
use swarm_model::{Refusal, RefusalKind};

use super::kind::is_patient;
use super::one::{ask, call};
use super::orders;
use crate::cli::args::Command;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;

/// Maximum output of one host in bytes. It is kept until the host has answered.
const BYTES_MAX: usize = 256 << 20;

/// Time for the whole answer of a host.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// Time for a verb that waits for workers, which limits its own time.
const ENDLESS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Output and exit code of a verb on a host.
#[derive(Default)]
pub struct Answer {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub code: u8,
}

pub fn run(hosts: &[Host], command: &Command, words: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let limit = if is_patient(command) { ENDLESS } else { ANSWER_MAX };
    thread::scope(|scope| {
        let asked: Vec<_> = hosts.iter().map(|host| (host, scope.spawn(move || answer(host, words, limit)))).collect();
        let (mut worst, mut is_first) = (0, true);
        for (host, asked) in asked {
            match asked.join().unwrap_or_else(|_| Err(panicked())) {
                Ok(answer) => {
                    worst = worst.max(answer.code);
                    show(host, &answer, is_first, screen)?;
                    is_first &= answer.out.is_empty();
                    screen.flush()?;
                    screen.errors(&of_host(host, &answer.err));
                }
                Err(refusal) => {
                    worst = worst.max(1);
                    screen.refusal(&refusal);
                }
            }
        }
        Ok(worst)
    })
}

fn panicked() -> Refusal {
    Refusal::new(RefusalKind::Internal, "a host could not be asked")
}

fn answer(host: &Host, words: &[String], limit: Duration) -> Result<Answer, Refusal> {
    let mut pipe = Pipe::open(host)?;
    orders::deliver(host);
    answer_of(&mut pipe, host, words, limit)
}

/// Executes the verb through a connection, and returns what it printed.
///
/// # Errors
/// Returns why the host did not execute the verb, or not within `limit`.
pub fn answer_of(pipe: &mut Pipe, host: &Host, words: &[String], limit: Duration) -> Result<Answer, Refusal> {
    ask(pipe, call(host, words))?;
    let (mut answer, deadline) = (Answer::default(), Instant::now() + limit);
    loop {
        match pipe.wait(deadline) {
            Next::Tell(Tell::Out(bytes)) => answer.out.extend_from_slice(bytes.as_slice()),
            Next::Tell(Tell::Err(bytes)) => answer.err.extend_from_slice(bytes.as_slice()),
            Next::Tell(Tell::Exit(code)) => return Ok(Answer { code, ..answer }),
            Next::Tell(Tell::Refused(cause)) => {
                return Err(Refusal::new(RefusalKind::Invalid, format!("{}: {cause}", host.name)));
            }
            Next::Tell(Tell::Note(text)) => answer.err.extend_from_slice(text.as_bytes()),
            Next::Tell(
                Tell::Beat | Tell::Mark(_) | Tell::Unnoted(_) | Tell::Lost | Tell::Forgotten | Tell::Answer { .. },
            ) => {}
            Next::Nothing => {
                let cause = format!("{} did not answer within {} seconds", host.name, limit.as_secs());
                return Err(Refusal::new(RefusalKind::Tool, cause));
            }
            Next::Cut => return Err(Fault::cut(host).into()),
        }
        if answer.out.len() + answer.err.len() > BYTES_MAX {
            let cause = format!("{} printed more than {} MiB", host.name, BYTES_MAX >> 20);
            return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("ask this host alone"));
        }
    }
}

/// Prints JSON with the name of the host in each object, and text below the name of the host.
fn show(host: &Host, answer: &Answer, is_first: bool, screen: &mut Screen) -> Result<(), Failure> {
    if answer.out.is_empty() {
        return Ok(());
    }
    let lines: Option<Vec<Box<RawValue>>> =
        serde_json::Deserializer::from_slice(&answer.out).into_iter().map(Result::ok).collect();
    match lines.and_then(|lines| lines.iter().map(|line| named(line, &host.name)).collect::<Option<Vec<String>>>()) {
        Some(lines) => lines.iter().try_for_each(|line| screen.line(line)),
        None => {
            let gap = if is_first { "" } else { "\n" };
            screen.line(&format!("{gap}{}:", host.name))?;
            screen.bytes(&answer.out)?;
            if answer.out.ends_with(b"\n") { Ok(()) } else { screen.line("") }
        }
    }
}

/// Returns what a host has printed to standard error, with its name in each error and warning.
fn of_host(host: &Host, err: &[u8]) -> Vec<u8> {
    let named = |line: &[u8]| {
        let prefix = [&b"swarm: error: "[..], b"swarm: warning: "].into_iter().find(|prefix| line.starts_with(prefix));
        let (prefix, rest) = line.split_at(prefix.map_or(0, <[u8]>::len));
        let name = if prefix.is_empty() { String::new() } else { format!("{}: ", host.name) };
        [prefix, name.as_bytes(), rest].concat()
    };
    err.split_inclusive(|byte| *byte == b'\n').flat_map(named).collect()
}

/// Returns an object, or a list of objects, with the name of the host in each object, as its last key; `None` for other
/// values.
fn named(value: &RawValue, name: &str) -> Option<String> {
    let text = value.get();
    if text.starts_with('[') {
        let list: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
        let list: Option<Vec<String>> = list.iter().map(|value| named(value, name)).collect();
        return Some(format!("[{}]", list?.join(",")));
    }
    let inside = text.strip_prefix('{')?.strip_suffix('}')?.trim_end();
    let comma = if inside.trim().is_empty() { "" } else { "," };
    Some(format!("{{{inside}{comma}\"host\":{}}}", Value::from(name)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shown(out: &str, is_first: bool) -> String {
        let host = swarm_hosts::find("box", &BTreeMap::new()).expect("a destination");
        let answer = Answer { out: out.into(), ..Answer::default() };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        show(&host, &answer, is_first, &mut Screen::new(&mut out, &mut err)).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn errors_name_their_host() {
        let host = swarm_hosts::find("box", &BTreeMap::new()).expect("a destination");
        for (text, expected) in [
            ("", ""),
            ("swarm: error: x\nnote: y\n", "swarm: error: box: x\nnote: y\n"),
            ("y\nswarm: warning: x", "y\nswarm: warning: box: x"),
        ] {
            assert_eq!(String::from_utf8(of_host(&host, text.as_bytes())).expect("text"), expected);
        }
    }

    #[test]
    fn each_host_is_named() {
        assert_eq!(shown("NAME\nx\n", true), "box:\nNAME\nx\n");
        assert_eq!(shown("no newline", false), "\nbox:\nno newline\n");
        assert_eq!(shown("", false), "");
        assert_eq!(shown("{\"a\":1}\n{\"b\":2}\n", false), "{\"a\":1,\"host\":\"box\"}\n{\"b\":2,\"host\":\"box\"}\n");
        assert_eq!(shown("[{\"a\":1}]\n", true), "[{\"a\":1,\"host\":\"box\"}]\n");
        assert_eq!(shown("{}\n", false), "{\"host\":\"box\"}\n");
        assert_eq!(shown("7\n", true), "box:\n7\n");
    }
}
