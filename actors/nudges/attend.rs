//! Work of nudges outside their actor: reading windows and typing into them. Every step has a time
//! limit.

use std::time::Duration;

use ractor::ActorRef;
use tokio::time::{Instant, sleep, timeout};

use super::machine::{Event, Seen, Typed};
use super::message::NudgesMessage;
use swarm_model::dialog::dialog;
use swarm_model::drafts::draft;
use swarm_ports::{Ports, TerminalError, Typing};

/// Timeout of one read of a window.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Timeout of typing.
const TYPE_MAX: Duration = Duration::from_secs(30);
/// Pause before the second read of an unreachable window. Each further pause is twice as long.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two reads.
const AGAIN_MAX: Duration = Duration::from_secs(60);

pub struct EffectRunner {
    pub ports: Ports,
    pub actor: ActorRef<NudgesMessage>,
}

impl EffectRunner {
    pub async fn look(&self, worker: String, turn: u64, message: String, reach_ms: u64) {
        let seen = self.seen(&worker, &message, Duration::from_millis(reach_ms)).await;
        // A person or another program may have changed the nudge since.
        let disk = match self.ports.nudges.read(&worker).await {
            Ok(disk) => disk.map(Box::new),
            Err(error) => {
                tracing::error!(worker, %error, "cannot read the nudge");
                return self.tell(Event::Unsaved { worker });
            }
        };
        self.tell(Event::Seen { worker, turn, disk, seen });
    }

    async fn seen(&self, worker: &str, message: &str, reach: Duration) -> Seen {
        let deadline = Instant::now() + reach.min(Duration::from_hours(24 * 365));
        let mut pause = AGAIN_MIN;
        loop {
            let cause = match self.seen_once(worker, message).await {
                Seen::Unreachable(cause) => cause,
                seen => return seen,
            };
            if Instant::now() + pause >= deadline {
                return Seen::Unreachable(cause);
            }
            tracing::info!(worker, cause, "cannot reach the worker's window; retrying");
            sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    pub async fn check(&self, worker: String, turn: u64, message: String) {
        let seen = Some(self.seen_once(&worker, &message).await);
        self.tell(Event::Checked { worker, turn, seen });
    }

    async fn seen_once(&self, worker: &str, message: &str) -> Seen {
        match timeout(LOOK_MAX, self.ports.terminals.screen(worker, 0)).await {
            Ok(Ok(screen)) => match dialog(&screen) {
                Some(dialog) => Seen::Asks(asks(&dialog.sentence())),
                None if is_pending(&screen, message) || is_draft(&screen, message) => Seen::Pending,
                None => Seen::Free,
            },
            Ok(Err(TerminalError::Gone(cause))) => Seen::Gone(cause),
            Ok(Err(TerminalError::Away(_))) => Seen::Away,
            Ok(Err(TerminalError::Asks(sentence))) => Seen::Asks(asks(&sentence)),
            Ok(Err(TerminalError::Tool(cause))) => Seen::Unreachable(cause),
            Err(_) => Seen::Unreachable("tmux does not answer".to_owned()),
        }
    }

    /// Types the message, once only: a failure does not reveal how much of it arrived.
    pub async fn type_text(&self, worker: String, turn: u64, message: String) {
        let typing = Typing { clear: false, enter: true };
        let typed = match timeout(TYPE_MAX, self.ports.terminals.type_text(&worker, &message, typing)).await {
            Ok(Ok(())) => Typed::Sent,
            Ok(Err(TerminalError::Gone(cause))) => Typed::Gone(cause),
            Ok(Err(TerminalError::Asks(sentence))) if message.is_empty() => Typed::Failed(asks(&sentence)),
            Ok(Err(TerminalError::Asks(sentence))) => Typed::Refused(asks(&sentence)),
            Ok(Err(TerminalError::Tool(cause) | TerminalError::Away(cause))) => Typed::Failed(cause),
            Err(_) => Typed::Failed("tmux does not answer".to_owned()),
        };
        self.tell(Event::Typed { worker, turn, typed });
    }

    fn tell(&self, event: Event) {
        let _ = self.actor.cast(NudgesMessage::Happened(event));
    }
}

/// Returns why nothing is typed into a dialog.
fn asks(sentence: &str) -> String {
    format!("its agent {sentence}")
}

/// Reports whether the last non-blank line still has the message: its reader has not processed the
/// earlier beat.
fn is_pending(screen: &str, message: &str) -> bool {
    let message = message.trim();
    // The last line of a multi-line message is the one that shows last.
    let message = message.lines().next_back().unwrap_or(message);
    let last = screen.lines().map(str::trim_end).rfind(|line| !line.is_empty());
    !message.is_empty() && last.is_some_and(|line| line.contains(message))
}

/// Reports whether the input line of an agent holds the message.
fn is_draft(screen: &str, message: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    draft(screen).is_some_and(|draft| draft == words(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_the_input_line_of_an_agent_is_pending() {
        let screen = "────\n❯ go\n  on\n────\n  ? for shortcuts\n";
        assert!(is_draft(screen, "go on\n") && !is_draft(screen, "go") && !is_draft("", "") && !is_draft("$ go", "go"));
    }

    #[test]
    fn a_message_is_pending_while_the_last_line_holds_it() {
        for (screen, message, pending) in [
            ("$ continue\n\n\n", "continue", true),
            ("out\n> continue  \n", "continue", true),
            ("$ continue\ndone\n$ \n", "continue", false),
            ("", "continue", false),
            ("$ \n", "", false),
            ("> second\n", "first\nsecond", true),
        ] {
            assert_eq!(is_pending(screen, message), pending, "{screen:?} {message:?}");
        }
    }
}
