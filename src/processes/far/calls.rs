//! A connection with calls: each is carried out in a thread of its own, and answered under its number. If the connection
//! is cut, this process ends, and with it whatever waits. What was started goes on, and a repeated call finds it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use serde_json::Value;
use swarm_hosts::frames::{Ask, BEAT, LINE_BYTES_MAX, Parts, Tell, TooLong, line};
use swarm_store::runs::far::{FarAnswer, FarCall};
use swarm_sys::commands::deadline::wait_until;
use swarm_sys::state_id::state_id;

use super::host::Host;
use super::{Heard, SILENCE_MAX, clone, end, say, start, tell};

/// What a connection with calls has so far.
#[derive(Default)]
struct Calls {
    parts: Parts,
    /// `None` before the first call.
    place: Option<Place>,
}

/// Where calls are carried out.
struct Place {
    host: Arc<Result<Host, String>>,
    /// State directory, which is that of all calls.
    state: Option<String>,
}

impl Calls {
    /// Begins with a call once its line has come.
    fn hear(&mut self, ask: Ask) -> io::Result<()> {
        match ask {
            Ask::Part { id, text } => self.parts.add(id, &text),
            Ask::Call { id, call, state } => match self.parts.complete(id, call) {
                Ok(call) => return self.begin(id, call, state),
                Err(TooLong) => return tell_answer(id, &FarAnswer::Refused("the call is too long".to_owned())),
            },
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, id: u64, call: Value, state: Option<String>) -> io::Result<()> {
        // In this thread, and before there are others, because it changes what all threads of this process share.
        let first = || Place { host: Arc::new(Host::new(state.as_deref())), state: state.clone() };
        let place = self.place.get_or_insert_with(first);
        // Only the attempt's own lock tells what an earlier call has started.
        let is_start = call.get("start").is_some();
        let unless_start = move |answer: FarAnswer| match answer {
            FarAnswer::Busy(cause) | FarAnswer::Refused(cause) if is_start => FarAnswer::Unknown(cause),
            answer => answer,
        };
        let is_known = state == place.state;
        let (host, of_whom) = (Arc::clone(&place.host), Arc::clone(&place.host));
        let answer = move || match &*host {
            _ if !is_known => unless_start(FarAnswer::Refused("a connection has one state directory".to_owned())),
            Ok(host) => answer(host, call),
            Err(cause) => unless_start(FarAnswer::Refused(cause.clone())),
        };
        let work = move || {
            let answer = catch_unwind(AssertUnwindSafe(answer));
            let failed = |_| unless_start(FarAnswer::Refused("swarm failed on this host".to_owned()));
            let answer = answer.unwrap_or_else(failed);
            let whose = of_whom.as_ref().as_ref().ok().and_then(|host| state_id(&host.paths).ok());
            // If nobody is there to be told, this process ends.
            let _ = say(&fitted(id, answer, whose));
        };
        if let Err(error) = thread::Builder::new().spawn(work) {
            return tell_answer(id, &unless_start(FarAnswer::Busy(format!("cannot start a thread: {error}"))));
        }
        Ok(())
    }
}

/// Carries out calls until the other end is gone. `first` is a call, or a part of one.
pub fn serve(heard: &mut Heard, first: Ask) -> io::Result<()> {
    let mut calls = Calls::default();
    calls.hear(first)?;
    let (mut last, mut beat) = (Instant::now(), Instant::now() + BEAT);
    loop {
        while let Some(ask) = heard.next() {
            last = Instant::now();
            calls.hear(ask)?;
        }
        if heard.is_over || last.elapsed() >= SILENCE_MAX {
            return Ok(());
        }
        let stdin = io::stdin();
        let is_ready = wait_until(&mut [PollFd::new(&stdin, PollFlags::IN)], beat.min(last + SILENCE_MAX))?;
        if Instant::now() >= beat {
            beat = Instant::now() + BEAT;
            tell(&Tell::Beat)?;
        }
        if is_ready {
            heard.read();
        }
    }
}

/// Carries out a call.
fn answer(host: &Host, call: Value) -> FarAnswer {
    let done = match serde_json::from_value(call) {
        Ok(FarCall::Clone { clone, format }) => clone::make(host, &clone, &format),
        Ok(FarCall::Hail {}) => Ok(FarAnswer::Done),
        Ok(FarCall::Start(asked)) => start::start(host, &asked),
        Ok(FarCall::End { at, base, subject }) => end::end(host, &at, &base, subject),
        Ok(FarCall::Stop(at)) => end::stop(host, &at),
        Ok(FarCall::Withhold { at, commit }) => end::withhold(host, &at, &commit),
        Ok(FarCall::Forget(at)) => end::forget(host, &at),
        Err(_) => Err(FarAnswer::Refused("swarm on this host does not know the call: update it".to_owned())),
    };
    done.unwrap_or_else(|refused| refused)
}

fn tell_answer(id: u64, answer: &FarAnswer) -> io::Result<()> {
    tell(&Tell::Answer { id, answer: serde_json::to_value(answer)?, host: None })
}

/// Returns the line of an answer. Shortens what a run only shows to people until the other end takes the line.
fn fitted(id: u64, mut answer: FarAnswer, host: Option<String>) -> Vec<u8> {
    loop {
        let value = serde_json::to_value(&answer).unwrap_or_default();
        let line = line(&Tell::Answer { id, answer: value, host: host.clone() });
        if line.len() <= LINE_BYTES_MAX {
            return line;
        }
        let is_shorter = match &mut answer {
            FarAnswer::Ended(end) => {
                let texts = [&mut end.stream, &mut end.log, &mut end.stdout, &mut end.stderr];
                let longest = texts.into_iter().max_by_key(|text| text.len()).filter(|text| !text.is_empty());
                match longest {
                    Some(text) => keep_end(text),
                    None => {
                        end.left_out.truncate(end.left_out.len() / 2);
                        end.ignored.truncate(end.ignored.len() / 2);
                    }
                }
                let is_longer = [&end.stderr, &end.stdout, &end.log, &end.stream].iter().any(|text| !text.is_empty());
                is_longer || !end.left_out.is_empty() || !end.ignored.is_empty()
            }
            _ => false,
        };
        if !is_shorter {
            answer = FarAnswer::Refused("the answer is too long".to_owned());
        }
    }
}

/// Removes the first half of a text.
fn keep_end(text: &mut String) {
    let middle = (text.len().div_ceil(2)..=text.len()).find(|at| text.is_char_boundary(*at));
    text.drain(..middle.unwrap_or(text.len()));
}

#[cfg(test)]
mod tests {
    use swarm_store::runs::far::FarResult;

    use super::*;

    fn sent(answer: FarAnswer) -> FarAnswer {
        let line = fitted(7, answer, None);
        assert!(line.len() <= LINE_BYTES_MAX);
        let Ok(Tell::Answer { id: 7, answer, host: None }) = serde_json::from_slice(&line) else { panic!("no answer") };
        serde_json::from_value(answer).expect("an answer")
    }

    #[test]
    fn an_answer_that_is_too_long_keeps_the_ends_of_its_texts() {
        let end = FarResult {
            stderr: "e".to_owned(),
            log: format!("{}ö", "\u{1}".repeat(400_000)),
            stream: format!("{}end", "ä".repeat(700_000)),
            left_out: vec!["a".to_owned()],
            ..FarResult::default()
        };
        let FarAnswer::Ended(came) = sent(FarAnswer::Ended(Box::new(end.clone()))) else { panic!("not ended") };
        assert_eq!((came.stderr.as_str(), &came.left_out), ("e", &end.left_out));
        assert!(came.log.ends_with('ö') && came.stream.ends_with("äend"));
        let short = FarResult { log: "l".to_owned(), ..FarResult::default() };
        assert_eq!(sent(FarAnswer::Ended(Box::new(short.clone()))), FarAnswer::Ended(Box::new(short)));
        let endless = FarAnswer::Refused("x".repeat(LINE_BYTES_MAX));
        assert_eq!(sent(endless), FarAnswer::Refused("the answer is too long".into()));
    }
}
