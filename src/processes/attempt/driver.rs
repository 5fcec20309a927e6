//! Carries out a dialogue with an agent: writes its lines, passes on its requests, keeps its limits of time, and ends an
//! agent that stays when it has nothing more to do.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::process::ChildStdin;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, pidfd_send_signal};
use swarm_agents::dialogue::{Dialogue, Step};
use swarm_agents::{End, Report};

use super::turn::{Decided, Heard, Teller, see};

/// Maximum number of lines that wait to be written. An agent that reads so slowly has stopped.
const LINES_MAX: usize = 256;
/// Time in which an agent must end after its input was closed.
const CLOSED: Duration = Duration::from_secs(10);
/// Time in which an agent must end after it was told to.
const TOLD: Duration = Duration::from_secs(5);

pub struct Driver {
    /// Child that was not waited for yet.
    agent: Pid,
    machine: Box<dyn Dialogue>,
    begun: Instant,
    /// Lines to be written. `None` once the input is closed.
    input: Option<SyncSender<String>>,
    /// What is done to an agent that stays, and when.
    closing: Option<(Instant, Signal)>,
    /// The agent has ended: nothing is asked for it any more.
    has_ended: bool,
}

impl Driver {
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn new(machine: Box<dyn Dialogue>, agent: Pid, mut stdin: ChildStdin) -> io::Result<Self> {
        let (input, lines) = sync_channel::<String>(LINES_MAX);
        // In a thread, because an agent that is stopped does not read. The thread ends with the agent.
        thread::Builder::new().spawn(move || {
            for line in lines {
                // An agent that has closed its input will end, or be ended.
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        })?;
        let input = Some(input);
        Ok(Self { agent, machine, begun: Instant::now(), input, closing: None, has_ended: false })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn begin(&mut self, teller: &mut dyn Teller) {
        let steps = self.machine.begin(self.now_ms());
        self.carry_out(steps, teller);
    }

    pub fn line(&mut self, line: &str, teller: &mut dyn Teller) {
        let steps = self.machine.line(line, self.now_ms());
        self.carry_out(steps, teller);
    }

    /// Does what is due, and passes on answers that have arrived. `agent` is the process.
    pub fn look(&mut self, agent: BorrowedFd<'_>, teller: &mut dyn Teller) {
        if !self.has_ended {
            for heard in teller.heard() {
                let steps = match heard {
                    Heard::Verdict(call, verdict) => self.machine.answer(&call, &verdict),
                    Heard::Park => self.machine.cancel(self.now_ms()),
                };
                self.carry_out(steps, teller);
            }
        }
        let now_ms = self.now_ms();
        if self.machine.due_ms().is_some_and(|due| due <= now_ms) {
            let steps = self.machine.tick(now_ms);
            self.carry_out(steps, teller);
        }
        if let Some((at, signal)) = self.closing
            && at <= Instant::now()
        {
            // Our own child, which was not waited for yet.
            let _ = pidfd_send_signal(agent, signal);
            self.closing = (signal != Signal::KILL).then(|| (Instant::now() + TOLD, Signal::KILL));
        }
    }

    /// Returns the time after which [`Self::look`] must be called again.
    pub fn pause(&self, teller: &dyn Teller) -> Option<Duration> {
        let now = Instant::now();
        let machine = self.machine.due_ms().and_then(|due| self.begun.checked_add(Duration::from_millis(due)));
        let all = [machine, self.closing.map(|(at, _)| at), teller.held_until()];
        all.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// The agent says nothing more: it has ended, or closed its output.
    pub fn silent(&mut self, has_ended: bool) {
        self.has_ended |= has_ended;
        self.close();
    }

    pub fn end(self, end: End<'_>) -> Report {
        self.machine.end(end)
    }

    fn close(&mut self) {
        if self.input.take().is_some() {
            self.closing = Some((Instant::now() + CLOSED, Signal::TERM));
        }
    }

    /// Carries out steps in order: what is seen before a request is reported before it.
    fn carry_out(&mut self, steps: Vec<Step>, teller: &mut dyn Teller) {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Seen(one) => see(teller, self.agent, one),
                Step::Send(line) => {
                    teller.printed(format!("{{\"sent\":{line}}}\n").as_bytes());
                    self.send(line);
                }
                Step::Close => self.close(),
                Step::Ask(_) if self.has_ended => {}
                Step::Ask(request) => {
                    if let Decided::Now(verdict) = teller.asked(&request) {
                        let more = self.machine.answer(&request.call, &verdict);
                        more.into_iter().rev().for_each(|step| steps.push_front(step));
                    }
                }
            }
        }
    }

    fn send(&mut self, line: String) {
        let Some(input) = &self.input else { return };
        if let Err(TrySendError::Full(_)) = input.try_send(line + "\n") {
            swarm_sys::complain!("swarm: warning: the agent does not read its input, so it is ended");
            self.input = None;
            self.closing = Some((Instant::now(), Signal::TERM));
        }
    }
}
