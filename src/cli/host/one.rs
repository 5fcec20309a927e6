//! A verb on one host.

use std::io::{IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use swarm_hosts::frames::{
    Ask, Bytes, CHUNK_BYTES, Call, GoesOn, LINE_BYTES_MAX, PROTOCOL_MARKS, Repeatable, SILENCE_MAX, Tell, line,
};
use swarm_hosts::{Fault, FaultKind, Host, Input, Next, Pipe};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::clock;

use super::again::{Alarm, Pauses};
use super::held::{Held, Part};
use super::kind::{Kind, kind_of, says_how_far, wants_input};
use super::orders;
use crate::cli::args::Command;
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::watch::{Interrupt, Until, wait_any};

/// Exit code if the host does not answer.
const OUT_OF_REACH: u8 = 255;
/// Exit code after Ctrl-C.
const INTERRUPTED: u8 = 130;
/// Time for which a host is tried that was asked to change something. It keeps the answer for longer.
const AGAIN_MAX: Duration = Duration::from_secs(120);
/// Time for a verb that goes on after a cut to end after Ctrl-C.
const END_MAX: Duration = Duration::from_secs(2);

/// What becomes of a verb whose connection is cut.
enum After {
    /// It is not known whether it was executed.
    Unknown,
    /// It is executed once more if it has printed nothing.
    Once,
    /// It has been executed once more.
    Twice,
    /// It is started again, and continues after the last mark that arrived.
    GoesOn(Held),
    /// It is asked again with the same id, and not executed again.
    Again(Repeatable),
}

/// How a connection has ended.
enum Ended {
    Code(u8),
    Cut,
}

/// A time in which the host tells nothing. A connection that is made and cut before anything came over it does not end it.
struct Outage {
    begun: Instant,
    pauses: Pauses,
    /// Number of connections that were made.
    answers: u32,
}

/// What is done with the output of a verb.
pub type Print<'a> = dyn FnMut(&[u8], &mut Screen) -> Result<(), Failure> + 'a;

/// A verb on a host.
struct Verb<'a> {
    host: &'a Host,
    words: &'a [String],
    input: bool,
    after: After,
    /// What takes its output. `None`: it is printed.
    to: Option<&'a mut Print<'a>>,
    has_printed: bool,
    begun: Instant,
    /// Outage that is not over.
    outage: Option<Outage>,
    /// When it ends by its own time limit.
    limit: Option<Instant>,
    interrupt: Interrupt,
    alarm: Alarm,
}

pub fn run(host: &Host, command: &Command, words: &[String], screen: &mut Screen) -> Result<u8, Failure> {
    let input = wants_input(command, words) && !std::io::stdin().is_terminal();
    let after = match kind_of(command) {
        _ if says_how_far(command) => After::GoesOn(Held::default()),
        // Standard input cannot be sent again.
        _ if input => After::Unknown,
        Kind::Reads => After::Once,
        Kind::Acts => After::Again(Repeatable { id: clock::random_token(), ..Repeatable::default() }),
        Kind::Terminal | Kind::Local(_) => After::Unknown,
    };
    let begun = Instant::now();
    let limit = match command {
        Command::Wait(args) => args.timeout.filter(|limit| !limit.is_zero()),
        _ => None,
    };
    let mut verb = Verb {
        input,
        begun,
        limit: limit.and_then(|limit| begun.checked_add(limit)),
        ..Verb::new(host, words, after)?
    };
    let Some(opened) = opened(host, &verb.interrupt, None)? else { return Ok(INTERRUPTED) };
    let mut pipe = opened.map_err(|fault| out_of_reach(fault.into()))?;
    orders::deliver(host);
    loop {
        if let Ended::Code(code) = verb.attend(pipe, screen)? {
            return Ok(code);
        }
        pipe = match verb.again(screen)? {
            Some(pipe) => pipe,
            None => return Ok(INTERRUPTED),
        };
    }
}

impl<'a> Verb<'a> {
    fn new(host: &'a Host, words: &'a [String], after: After) -> Result<Self, Failure> {
        Ok(Self {
            host,
            words,
            input: false,
            after,
            to: None,
            has_printed: false,
            begun: Instant::now(),
            outage: None,
            limit: None,
            // Before the connection, whose threads must not get the signal.
            interrupt: Interrupt::catch()?,
            alarm: Alarm::new()?,
        })
    }

    /// Asks for the verb, prints what it prints, and returns its exit code.
    fn attend(&mut self, mut pipe: Pipe, screen: &mut Screen) -> Result<Ended, Failure> {
        if pipe.hello.protocol < PROTOCOL_MARKS {
            self.is_older();
        }
        if let After::Again(request) = &mut self.after
            && request.boot.is_empty()
        {
            request.boot.clone_from(&pipe.hello.boot);
        }
        ask(&pipe, self.call())?;
        if let After::Again(request) = &mut self.after {
            request.again = true;
        }
        let mut interrupts = 0;
        loop {
            if self.interrupt.take().is_some() {
                interrupts += 1;
                // The second one is for this process: the first may not have arrived.
                let signal = if interrupts > 1 { "HUP" } else { "INT" };
                if pipe.send(&Ask::Signal(signal.to_owned())).is_err() || interrupts > 1 {
                    return Ok(Ended::Code(INTERRUPTED));
                }
            }
            let next = pipe.poll();
            if matches!(next, Next::Tell(_)) {
                self.outage = None;
            }
            match next {
                Next::Tell(Tell::Exit(code)) => return self.end(screen).map(|()| Ended::Code(code)),
                Next::Tell(Tell::Unnoted(_)) => {
                    // It was not executed. If the connection is cut now, that is not known any more.
                    self.after = After::Unknown;
                    ask(&pipe, self.call())?;
                }
                Next::Tell(Tell::Forgotten) => return Err(self.forgotten()),
                Next::Tell(Tell::Lost) => return Err(self.lost(&pipe.hello.boot)),
                Next::Tell(told) => self.told(told, screen)?,
                Next::Cut if interrupts > 0 && matches!(self.after, After::GoesOn(_)) => {
                    return self.end(screen).map(|()| Ended::Code(INTERRUPTED));
                }
                Next::Cut => return Ok(Ended::Cut),
                Next::Nothing => {
                    screen.flush()?;
                    let ends_soon = interrupts > 0 && matches!(self.after, After::GoesOn(_));
                    self.alarm.set(if ends_soon { END_MAX } else { SILENCE_MAX })?;
                    let sources = [pipe.as_fd(), self.interrupt.as_fd(), self.alarm.as_fd()];
                    let ready = wait_any(&sources.map(|source| (source, Until::Readable)), None)?;
                    if ready[0] || ready[1] {
                        continue;
                    }
                    if ends_soon {
                        return self.end(screen).map(|()| Ended::Code(INTERRUPTED));
                    }
                    pipe.is_silent();
                    return Ok(Ended::Cut);
                }
            }
        }
    }

    fn call(&self) -> Call {
        let call = Call { input: self.input, ..call(self.host, self.words) };
        match &self.after {
            After::GoesOn(held) => {
                let spent_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                Call { goes_on: Some(GoesOn { from: held.from().cloned(), spent_ms }), ..call }
            }
            After::Again(request) => Call { request: Some(request.clone()), ..call },
            After::Unknown | After::Once | After::Twice => call,
        }
    }

    /// Does without what an older program there does not know.
    fn is_older(&mut self) {
        self.after = match std::mem::replace(&mut self.after, After::Unknown) {
            After::GoesOn(_) => After::Once,
            After::Again(_) => After::Unknown,
            after => after,
        };
    }

    /// Returns the failure of a request whose end nobody knows on a host that is in this boot.
    fn lost(&self, boot: &str) -> Failure {
        let (name, verb) = (&self.host.name, self.verb());
        let cause = match &self.after {
            After::Again(request) if request.is_of_another_boot(boot) => format!(
                "{name} was restarted, or is another machine now; it is not known whether '{verb}' was executed"
            ),
            _ => format!("'{verb}' was begun on {name}, and its end is not known: its process there was killed"),
        };
        out_of_reach(Refusal::new(RefusalKind::Tool, cause).remedy(format!("run 'swarm --host {name} ls' to look")))
    }

    /// Returns the failure of a request that was asked before, and that the host does not know.
    fn forgotten(&self) -> Failure {
        let (name, verb) = (&self.host.name, self.verb());
        let cause = format!("{name} knows nothing of '{verb}' any more; it is not known whether it was executed");
        out_of_reach(Refusal::new(RefusalKind::Tool, cause).remedy(format!("run 'swarm --host {name} ls' to look")))
    }

    fn told(&mut self, told: Tell, screen: &mut Screen) -> Result<(), Failure> {
        let part = match told {
            Tell::Out(bytes) => Part::Out(bytes),
            Tell::Err(bytes) => Part::Err(bytes),
            Tell::Mark(mark) => {
                let After::GoesOn(held) = &mut self.after else { return Ok(()) };
                return print(held.mark(mark), screen);
            }
            Tell::Refused(cause) => {
                return Err(Failure::new(RefusalKind::Invalid, format!("{}: {cause}", self.host.name)));
            }
            Tell::Note(text) => {
                screen.flush()?;
                screen.errors(text.as_bytes());
                return Ok(());
            }
            Tell::Exit(_) | Tell::Unnoted(_) | Tell::Lost | Tell::Forgotten | Tell::Beat | Tell::Answer { .. } => {
                return Ok(());
            }
        };
        self.has_printed = true;
        if let (Some(to), Part::Out(bytes)) = (&mut self.to, &part) {
            return to(bytes.as_slice(), screen);
        }
        match &mut self.after {
            After::GoesOn(held) => print(held.take(part), screen),
            After::Again(request) => {
                match &part {
                    Part::Out(bytes) => request.out += bytes.as_slice().len() as u64,
                    Part::Err(bytes) => request.err += bytes.as_slice().len() as u64,
                }
                print(vec![part], screen)
            }
            After::Unknown | After::Once | After::Twice => print(vec![part], screen),
        }
    }

    /// Prints what was held back, because the verb does not go on.
    fn end(&mut self, screen: &mut Screen) -> Result<(), Failure> {
        match &mut self.after {
            After::GoesOn(held) => print(held.end(), screen),
            After::Unknown | After::Once | After::Twice | After::Again(_) => Ok(()),
        }
    }

    /// Connects again after a cut; `None` if a person gives up.
    ///
    /// # Errors
    /// Fails if the verb cannot be repeated, or if the host will not answer without a person.
    fn again(&mut self, screen: &mut Screen) -> Result<Option<Pipe>, Failure> {
        let can_go_on = match &mut self.after {
            After::GoesOn(held) => held.cut(),
            // If nothing was shown, it can be shown again.
            After::Once if !self.has_printed => {
                self.after = After::Twice;
                let opened = opened(self.host, &self.interrupt, None)?.transpose();
                return opened.map_err(|fault| out_of_reach(fault.into()));
            }
            After::Again(_) => true,
            After::Unknown | After::Once | After::Twice => false,
        };
        if !can_go_on {
            return Err(self.cut());
        }
        let is_request = matches!(self.after, After::Again(_));
        screen.flush()?;
        let name = &self.host.name;
        let is_known = self.outage.is_some();
        let new = || Outage { begun: Instant::now(), pauses: Pauses::default(), answers: 0 };
        let mut outage = self.outage.take().unwrap_or_else(new);
        let limit = if is_request { Some(outage.begun + AGAIN_MAX) } else { self.limit };
        if !is_known {
            screen.aside("note: ", &format!("{name} is out of reach; '{}' goes on when it answers again", self.verb()));
        } else if outage.answers == 1 {
            screen.aside("note: ", &format!("{name} answers, and then ends the connection; it is tried again"));
        }
        loop {
            if !outage.pauses.wait(&self.interrupt, &self.alarm, limit)? {
                return self.given_up();
            }
            let is_late = |limit: Option<Instant>| limit.is_some_and(|limit| Instant::now() >= limit);
            match opened(self.host, &self.interrupt, limit)? {
                None if is_late(limit) => {}
                None => return self.given_up(),
                Some(Ok(pipe)) => {
                    if outage.answers == 0 {
                        screen.aside("note: ", &format!("{name} answers again"));
                    }
                    outage.answers += 1;
                    self.outage = Some(outage);
                    return Ok(Some(pipe));
                }
                Some(Err(fault)) if fault.kind == FaultKind::Away => {}
                Some(Err(fault)) => return Err(out_of_reach(fault.into())),
            }
            if is_request && is_late(limit) {
                return Err(self.cut());
            }
            if is_late(limit) {
                let cause = format!("{name} is out of reach, and the time to wait is over");
                return Err(out_of_reach(Refusal::new(RefusalKind::Tool, cause)));
            }
        }
    }

    /// Ends at Ctrl-C. Of a request it is said what is not known.
    fn given_up(&self) -> Result<Option<Pipe>, Failure> {
        match self.after {
            After::Again(_) => Err(self.cut()),
            After::Unknown | After::Once | After::Twice | After::GoesOn(_) => Ok(None),
        }
    }

    /// Returns the failure of a connection that was cut.
    fn cut(&self) -> Failure {
        let mut refusal = Refusal::from(Fault::cut(self.host));
        let verb = self.verb();
        if matches!(self.after, After::Unknown | After::Again(_)) {
            let input = if self.input { ", and its standard input cannot be sent again" } else { "" };
            refusal.cause = format!("{}; it is not known whether '{verb}' was executed{input}", refusal.cause);
            refusal.remedy = Some(format!("run 'swarm --host {} ls' to look", self.host.name));
        } else if self.has_printed && self.to.is_none() {
            refusal.cause = format!("{}; '{verb}' cannot go on where it was", refusal.cause);
            refusal.remedy = Some("run it again; it begins anew".to_owned());
        }
        out_of_reach(refusal)
    }

    /// Returns the first word. The others may be long, or secret.
    fn verb(&self) -> &str {
        self.words.first().map(String::as_str).unwrap_or_default()
    }
}

fn print(parts: Vec<Part>, screen: &mut Screen) -> Result<(), Failure> {
    for part in parts {
        match part {
            Part::Out(bytes) => screen.bytes(bytes.as_slice())?,
            Part::Err(bytes) => {
                screen.flush()?;
                screen.errors(bytes.as_slice());
            }
        }
    }
    Ok(())
}

/// Executes words of this program on a host, in the home there, and passes what they print to `to`.
///
/// # Errors
/// Fails if the host does not answer, if the connection is cut, or if `to` fails.
pub fn pass(host: &Host, words: &[String], screen: &mut Screen, to: &mut Print<'_>) -> Result<u8, Failure> {
    let mut at_home = host.clone();
    at_home.dir = None;
    let mut verb = Verb {
        to: Some(to),
        // What was passed on is not passed on again.
        ..Verb::new(&at_home, words, After::Twice)?
    };
    let Some(opened) = opened(host, &verb.interrupt, None)? else { return Ok(INTERRUPTED) };
    let pipe = opened.map_err(|fault| out_of_reach(fault.into()))?;
    match verb.attend(pipe, screen)? {
        Ended::Code(code) => Ok(code),
        Ended::Cut => Err(verb.cut()),
    }
}

/// Connects, which may take a while; `None` if a person gives up before, or `limit` has passed.
fn opened(host: &Host, interrupt: &Interrupt, limit: Option<Instant>) -> Result<Option<Result<Pipe, Fault>>, Failure> {
    let (done, is_done) = std::io::pipe().map_err(|error| Failure::system("cannot make a pipe", &error))?;
    let (sender, receiver) = mpsc::channel();
    let asked = host.clone();
    thread::spawn(move || {
        let _ = sender.send(Pipe::open(&asked));
        drop(is_done);
    });
    let ready = wait_any(&[(done.as_fd(), Until::Readable), (interrupt.as_fd(), Until::Readable)], limit)?;
    match receiver.try_recv() {
        Ok(opened) if ready[0] => Ok(Some(opened)),
        _ if ready[0] => Err(Failure::new(RefusalKind::Internal, "the connection could not be made")),
        _ => Ok(None),
    }
}

/// Returns the failure of a host that does not answer. Its exit code is that of ssh: all others are answers of the verb.
fn out_of_reach(refusal: Refusal) -> Failure {
    Failure::Refused { refusal: Box::new(refusal), code: OUT_OF_REACH }
}

/// Returns the call of a verb on a host.
pub fn call(host: &Host, words: &[String]) -> Call {
    let (dir, state, env) = (host.dir.clone(), host.state.clone(), host.sent());
    Call { words: words.to_owned(), dir, state, env, ..Call::default() }
}

/// Asks the far end to execute a verb.
///
/// # Errors
/// Fails if the words are too long.
pub fn ask(pipe: &Pipe, call: Call) -> Result<(), Refusal> {
    let input = call.input;
    let call = Ask::Verb(call);
    if line(&call).len() > LINE_BYTES_MAX {
        let cause = format!("the words are longer than {LINE_BYTES_MAX} bytes, too long for another host");
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("put them into a file there"));
    }
    // A connection that was cut is noticed by whoever reads next.
    let _ = pipe.send(&call);
    if input {
        pass_input(pipe.input());
    }
    Ok(())
}

/// Passes standard input on, in a thread: it may never end.
fn pass_input(input: Input) {
    thread::spawn(move || {
        let mut block = vec![0; CHUNK_BYTES];
        let mut stdin = std::io::stdin().lock();
        loop {
            let sent = match stdin.read(&mut block) {
                Ok(0) => return drop(input.send(&Ask::InputEnd)),
                Ok(read) => input.send(&Ask::Input(Bytes::of(&block[..read]))),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
                Err(_) => return drop(input.send(&Ask::InputEnd)),
            };
            if sent.is_err() {
                return;
            }
        }
    });
}
