//! Work of a loop outside its actor: starting workers, typing prompts and reading windows. Every
//! step can be repeated after a crash and finds what already exists.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ractor::ActorRef;
use regex::Regex;
use tokio::time::Instant;

use super::machine::Event;
use super::message::LoopMessage;
use super::{CALL_MS_MAX, request_of, request_prefix, sight};
use crate::alarm::until;
use crate::worker::{Workers, ended, is_of_system, tried};
use swarm_model::loops::headless;
use swarm_model::loops::progress::{BACKOFF_S_MAX, Loop, Stage, Then};
use swarm_model::loops::words::Code;
use swarm_model::screen::{Screen, judge_dialog, steady_ms};
use swarm_model::{Caller, Contract, Ended, ExitRecord, Reason, Refusal, RefusalKind, SpawnRequest};
use swarm_ports::{Ports, TerminalError, Typing};

/// Maximum wait for an agent to become ready. After it, the prompt is typed anyway.
const READY_MAX: Duration = Duration::from_secs(30);
/// Minimum interval between two reads of a window, however much is written to it.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Lines of scrollback that are searched for the done pattern.
const SCROLLBACK_LINES: usize = 2000;
/// Time after the prompt by which the first iteration's agent must be past its startup screens.
const PREFLIGHT: Duration = Duration::from_secs(10);
/// Maximum wait for typed text to show in the window.
const ECHO_MAX: Duration = Duration::from_millis(500);
/// Maximum delay between a window's last output and its arrival in the log.
const SETTLE: Duration = Duration::from_millis(250);
/// Longest interval between two reads of a window.
const PATIENCE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Maximum retries for a window that tmux fails to show.
const TOOL_TRIES_MAX: u32 = 5;

pub struct EffectRunner {
    pub ports: Ports,
    pub workers: Arc<dyn Workers>,
    pub actor: ActorRef<LoopMessage>,
    /// State of the loop when this work started.
    pub it: Loop,
}

impl EffectRunner {
    pub(super) fn tell(&self, event: Event) {
        let _ = self.actor.cast(LoopMessage::Happened(event));
    }

    fn name(&self) -> &str {
        self.it.name()
    }

    /// Runs one iteration from its present stage to the end of its worker.
    pub async fn attend(&self) {
        let iteration = self.it.iteration;
        if let Some(process) = self.it.follows() {
            return self.follow(process).await;
        }
        let Some((generation, prompt)) = self.start().await else { return };
        let mut end = pin!(ended(&self.ports, self.name(), generation));
        let exit = tokio::select! {
            exit = &mut end => exit,
            () = self.look_after(prompt) => end.await,
        };
        let asked = exit.as_ref().is_some_and(|exit| exit.reason == Reason::Stopped && !exit.interrupted);
        let done = self.has_said_done().await;
        if !done && self.is_lost(generation, exit.as_ref()).await {
            return self.tell(Event::Lost { iteration });
        }
        let code = exit.as_ref().and_then(code);
        if !asked && code != Some(0) {
            self.report_refusal(iteration).await;
        }
        self.tell(Event::Ended { iteration, code, asked, done });
    }

    /// Reports why a headless agent could not start, if that needs a person.
    async fn report_refusal(&self, iteration: u32) {
        if !headless::is_headless(&self.it.plan.contract.argv) {
            return;
        }
        let from = ractor::call_t!(self.actor, LoopMessage::Look, CALL_MS_MAX).map_or(0, |it| it.log_from);
        if let Some(why) = headless::refused(&self.ports.loops.output(self.name(), from).await) {
            self.tell(Event::Blocked { iteration, cause: why.to_owned() });
        }
    }

    /// Reports whether the worker was lost instead of ending by itself: with its machine (no exit record, or interrupted
    /// by the shutdown) or with its tmux server.
    async fn is_lost(&self, generation: u64, exit: Option<&ExitRecord>) -> bool {
        match exit {
            Some(exit) if exit.interrupted => return true,
            Some(exit) if exit.reason != Reason::Closed => return false,
            Some(ExitRecord { server_lost: Some(is_lost), .. }) => return *is_lost,
            // A server that closes its windows may still respond for a moment.
            Some(_) => tokio::time::sleep(SETTLE).await,
            None => {}
        }
        let Ok(Some(facts)) = self.ports.records.observe(self.name(), generation).await else { return false };
        if exit.is_none() {
            return true;
        }
        match facts.lease.content.and_then(|lease| lease.pane) {
            Some(pane) => !self.ports.terminals.has_server(&pane).await,
            None => false,
        }
    }

    /// Returns the generation of this iteration's worker, and the prompt if it is still to be
    /// typed. `None` if there is no worker; the actor was told why.
    async fn start(&self) -> Option<(u64, Option<String>)> {
        let iteration = self.it.iteration;
        if let (Stage::Watching { .. }, Some(generation)) = (&self.it.stage, self.it.stage.generation()) {
            return Some((generation, None));
        }
        let prompt = match self.ports.loops.prompt(&self.it.plan).await {
            Ok(prompt) => prompt,
            // The prompt file is gone and cannot be typed, but the worker runs.
            Err(cause) => match self.it.stage.generation() {
                Some(generation) => {
                    self.tell(Event::NotPrompted { iteration, cause });
                    return Some((generation, None));
                }
                None => {
                    let refusal = Refusal::new(RefusalKind::Invalid, cause.clone());
                    let _ = self.actor.cast(LoopMessage::First(Err(refusal)));
                    self.tell(Event::NoPrompt { iteration, cause });
                    return None;
                }
            },
        };
        if let Some(generation) = self.it.stage.generation() {
            return Some((generation, Some(prompt)));
        }
        match self.spawn(&prompt).await {
            Ok(spawned) => {
                self.tell(Event::Started { iteration, generation: spawned.generation });
                let generation = spawned.generation;
                let _ = self.actor.cast(LoopMessage::First(Ok(spawned)));
                Some((generation, Some(prompt)))
            }
            Err(refusal) => {
                let cause = match &refusal.remedy {
                    Some(remedy) => format!("{} ({remedy})", refusal.cause),
                    None => refusal.cause.clone(),
                };
                let passes = is_of_system(&refusal);
                let _ = self.actor.cast(LoopMessage::First(Err(refusal)));
                self.tell(Event::NotStarted { iteration, cause, passes });
                None
            }
        }
    }

    async fn spawn(&self, prompt: &str) -> Result<swarm_model::Spawned, Refusal> {
        let plan = &self.it.plan;
        let argv = headless::with_prompt(&plan.contract.argv, prompt).unwrap_or_else(|| plan.contract.argv.clone());
        let mut metadata = plan.contract.metadata.clone();
        metadata.insert("ralph".to_owned(), true.into());
        metadata.insert("ralph_iteration".to_owned(), self.it.iteration.into());
        let request = SpawnRequest {
            caller: self.caller(&self.request()),
            name: plan.name.clone(),
            contract: Contract { argv, metadata, ..plan.contract.clone() },
            worktree: plan.worktree.clone(),
            replaces: Some(request_prefix(&plan.id)),
            takes_over: self.it.theirs.as_ref().map(|theirs| theirs.started.clone()),
        };
        // A failed first start is reported at once: its caller waits and can retry.
        if !self.it.has_run {
            return self.workers.spawn(request).await;
        }
        tried(|| self.workers.spawn(request.clone())).await
    }

    /// Returns the request of this worker. The worker that replaces a lost one, or one that could not
    /// work, gets a new request, so that the old row is not taken for its.
    fn request(&self) -> String {
        let request = request_of(&self.it.plan.id, self.it.iteration);
        match self.it.lost + self.it.turned_away {
            0 => request,
            again => format!("{request}/again-{again}"),
        }
    }

    fn caller(&self, request: &str) -> Caller {
        let plan = &self.it.plan;
        let environment = plan.contract.environment.clone();
        Caller { request: request.to_owned(), repeated: 0, environment, ..plan.caller.clone() }
    }

    /// Types the prompt, if there is one to type, then watches the window forever.
    pub(super) async fn look_after(&self, prompt: Option<String>) {
        let iteration = self.it.iteration;
        let given = match prompt {
            Some(prompt) => self.give(&prompt).await,
            None => self.enter_again().await.map(|()| self.it.baseline.clone()),
        };
        match given {
            Ok(baseline) => self.watch(&baseline, Instant::now()).await,
            // The task that waits for the worker reports its end.
            Err(TerminalError::Gone(_) | TerminalError::Away(_)) => {}
            Err(TerminalError::Asks(cause)) => self.tell(Event::Blocked { iteration, cause }),
            Err(TerminalError::Tool(cause)) => self.tell(Event::NotPrompted { iteration, cause }),
        }
    }

    /// Types the prompt, and presses Enter once the content of the window before Enter is durable:
    /// everything beyond that is the agent's answer. After a crash, no step that may have happened
    /// is repeated.
    async fn give(&self, prompt: &str) -> Result<String, TerminalError> {
        let (name, iteration) = (self.name(), self.it.iteration);
        if headless::is_headless(&self.it.plan.contract.argv) {
            return self.given().await;
        }
        let was_begun = matches!(self.it.stage, Stage::Typing { .. });
        let is_typed = was_begun && shows(&self.screen(SCROLLBACK_LINES).await?, prompt);
        if !is_typed {
            self.ready().await?;
            self.durable(Event::Typing { iteration }).await?;
            let echoed = self.ports.logs.written(name);
            // The trailing line break is replaced by Enter.
            let prompt = prompt.trim_end_matches(['\n', '\r']);
            // A part of the prompt may already be in the input line.
            let typing = Typing { clear: was_begun, enter: false };
            self.ports.terminals.type_text(name, prompt, typing).await?;
            let _ = tokio::time::timeout(ECHO_MAX, echoed).await;
            if prompt.contains('\n') {
                // Full-screen programs need time to draw it.
                tokio::time::sleep(ECHO_MAX).await;
            }
        }
        let baseline = self.screen(SCROLLBACK_LINES).await?;
        let log_from = self.ports.loops.written(name).await;
        self.durable(Event::Prompted { iteration, baseline: baseline.clone(), log_from }).await?;
        self.enter().await?;
        Ok(baseline)
    }

    /// Records that the agent got its prompt on its command line: all that it writes is its answer.
    async fn given(&self) -> Result<String, TerminalError> {
        let iteration = self.it.iteration;
        self.durable(Event::Typing { iteration }).await?;
        self.durable(Event::Prompted { iteration, baseline: String::new(), log_from: 0 }).await?;
        self.tell(Event::Entered { iteration });
        Ok(String::new())
    }

    async fn enter(&self) -> Result<(), TerminalError> {
        self.ports.terminals.type_text(self.name(), "", Typing { clear: false, enter: true }).await?;
        self.tell(Event::Entered { iteration: self.it.iteration });
        Ok(())
    }

    /// After a crash before the Enter was recorded: presses Enter if the window has not changed
    /// since.
    async fn enter_again(&self) -> Result<(), TerminalError> {
        if self.it.entered || headless::is_headless(&self.it.plan.contract.argv) {
            return Ok(());
        }
        match self.screen(SCROLLBACK_LINES).await?.trim_end() == self.it.baseline.trim_end() {
            true => self.enter().await,
            false => {
                self.tell(Event::Entered { iteration: self.it.iteration });
                Ok(())
            }
        }
    }

    async fn durable(&self, event: Event) -> Result<(), TerminalError> {
        let told = ractor::call_t!(self.actor, LoopMessage::Ask, CALL_MS_MAX, event);
        let failed = || TerminalError::Tool("cannot write the loop's files".to_owned());
        if matches!(told, Ok(Ok(()))) { Ok(()) } else { Err(failed()) }
    }

    async fn screen(&self, scrollback: usize) -> Result<String, TerminalError> {
        let mut tries = 0;
        loop {
            match self.ports.terminals.screen(self.name(), scrollback).await {
                Err(TerminalError::Tool(_)) if tries < TOOL_TRIES_MAX => {
                    tries += 1;
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
                shown => return shown,
            }
        }
    }

    /// Waits until the agent is ready for input, for at most `READY_MAX`. Fails if it shows a dialog.
    async fn ready(&self) -> Result<(), TerminalError> {
        let deadline = Instant::now() + READY_MAX;
        let steady = Duration::from_millis(steady_ms(&self.it.plan.contract.argv));
        // When the prompt that is shown was seen first.
        let mut shown_at = None;
        loop {
            let written = self.ports.logs.written(self.name());
            let screen = self.screen(0).await?;
            let looked = Instant::now();
            match judge_dialog(&screen) {
                (_, Some(dialog)) => return Err(TerminalError::Asks(dialog.sentence())),
                (Screen::Ready, None) if looked >= *shown_at.get_or_insert(looked) + steady => return Ok(()),
                (Screen::Ready, None) => {}
                (Screen::Asks | Screen::Other, None) => shown_at = None,
            }
            if looked >= deadline {
                return Ok(());
            }
            let next = shown_at.map_or(deadline, |at| deadline.min(at + steady));
            tokio::select! {
                () = written => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Reads the window after output, and when the inactivity timeout is up.
    async fn watch(&self, baseline: &str, typed: Instant) {
        let plan = &self.it.plan;
        let pattern = self.pattern();
        let scrollback = if plan.check_done_continuous { SCROLLBACK_LINES } else { 0 };
        // Even without a timeout the timer needs an end.
        let patience = match plan.inactivity_timeout_s {
            0 => PATIENCE_MAX,
            seconds => Duration::from_secs(seconds).min(PATIENCE_MAX),
        };
        let mut preflight = (self.it.iteration == 1 && !self.it.preflown).then_some(typed + PREFLIGHT);
        let (mut hash, mut changed) = (None, Instant::now());
        loop {
            let written = self.ports.logs.written(self.name());
            let shown = match self.screen(scrollback).await {
                Ok(shown) => shown,
                Err(TerminalError::Gone(_) | TerminalError::Away(_)) => return,
                Err(TerminalError::Tool(cause) | TerminalError::Asks(cause)) => {
                    tracing::warn!(worker = self.name(), cause, "cannot read the worker's window");
                    tokio::time::sleep(READY_MAX).await;
                    continue;
                }
            };
            let looked = Instant::now();
            let mut sight = sight::look(&shown, baseline, pattern.as_ref());
            if hash.replace(sight.hash) != Some(sight.hash) {
                changed = looked;
            }
            sight.quiet_ms = u64::try_from(looked.duration_since(changed).as_millis()).unwrap_or(u64::MAX);
            sight.preflight = preflight.is_some_and(|at| at <= looked);
            preflight = preflight.filter(|_| !sight.preflight);
            self.tell(Event::Seen { iteration: self.it.iteration, sight });
            let quiet = changed + patience;
            let next = if quiet > looked { quiet } else { looked + patience };
            let next = preflight.map_or(next, |at| at.min(next));
            tokio::select! {
                () = written => tokio::time::sleep_until(next.min(looked + LOOK_PAUSE)).await,
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// The pattern was validated when the loop started.
    fn pattern(&self) -> Option<Regex> {
        self.it.plan.done_pattern.as_ref().and_then(|text| sight::pattern(text).ok())
    }

    /// Reports whether the worker's output since its prompt matches the done pattern. Uses the log,
    /// since the window is gone.
    pub(super) async fn has_said_done(&self) -> bool {
        let Some(pattern) = self.pattern() else { return false };
        tokio::time::sleep(SETTLE).await;
        let Ok(it) = ractor::call_t!(self.actor, LoopMessage::Look, CALL_MS_MAX) else { return false };
        // Only a worker that was watched got its prompt, and only its output is an answer.
        let is_prompted = matches!(it.stage, Stage::Watching { .. } | Stage::Ending { then: Then::Next });
        if it.iteration != self.it.iteration || !is_prompted {
            return false;
        }
        if headless::draws(&it.plan.contract.argv) {
            return it.shown_done;
        }
        let output = self.ports.loops.output(self.name(), it.log_from).await;
        sight::says_done(&output, &it.baseline, &pattern)
    }

    /// Ends the worker. `drop` also cleans it, with its worktree if that has no work in it.
    pub async fn end(&self, drop: bool) {
        let caller = self.caller(&format!("{}/end", request_of(&self.it.plan.id, self.it.iteration)));
        let name = self.name();
        match tried(|| self.workers.kill(name, &caller)).await {
            Err(refusal) if refusal.kind != RefusalKind::NotFound => {
                tracing::error!(worker = name, cause = %refusal.cause, "cannot end the worker");
            }
            Ok(()) | Err(_) => {}
        }
        if drop && let Err(refusal) = tried(|| self.workers.clean(name, &caller)).await {
            tracing::warn!(worker = name, cause = %refusal.cause, "cannot clean the worker");
        }
        let done = self.has_said_done().await;
        self.tell(Event::Gone { iteration: self.it.iteration, done });
    }

    pub async fn nudge(&self, text: &str) {
        let typing = Typing { clear: false, enter: true };
        if let Err(error) = self.ports.terminals.type_text(self.name(), text, typing).await {
            tracing::warn!(worker = self.name(), %error, "cannot type the context nudge");
        }
    }

    pub async fn wait_until(&self, at_ms: u64) {
        // Bounded, in case the clock was set meanwhile.
        let clock = self.ports.clock.as_ref();
        until(clock, at_ms.min(clock.wall_ms().saturating_add(BACKOFF_S_MAX * 1000))).await;
        self.tell(Event::Due { iteration: self.it.iteration });
    }
}

/// Returns the exit code as a shell shows it.
fn code(exit: &ExitRecord) -> Code {
    Some(match exit.ended {
        Ended::Code(code) => code,
        Ended::Signal(signal) => 128 + signal,
    })
}

/// Reports whether the screen shows the prompt, judged by its last line.
fn shows(screen: &str, prompt: &str) -> bool {
    let last = prompt.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.is_none_or(|last| screen.contains(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_found_by_its_last_line() {
        let shown = "$ do this\n$ and that\n";
        assert!(shows(shown, "do this\nand that\n\n"));
        assert!(!shows(shown, "do that"));
        assert!(shows(shown, " \n"));
    }
}
