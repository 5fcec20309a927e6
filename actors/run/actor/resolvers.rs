//! Places of the run for the agents that resolve conflicts of its work. The merge queue starts them; they count towards the
//! limit of the run like its attempts.
//!
//! Who has a place is known in memory only: a supervisor that ends takes its resolvers with it, and the next one starts them
//! again. Their number is journaled, because it decides which attempts start, and every replay must come to the same ones.

use std::collections::{BTreeSet, VecDeque};

use ractor::RpcReplyPort;
use tokio::sync::oneshot;

use super::State;
use crate::run::place::has_room_for_resolver;
use swarm_model::run::Event;
use swarm_model::run::progress::Mode;

/// Message about the place of a resolver, which is known by a number.
#[derive(Debug)]
pub enum ResolverMessage {
    /// A resolver asks for a place. The answer is its turn, if it has to wait.
    Asks(u64, RpcReplyPort<Option<oneshot::Receiver<()>>>),
    /// The resolver has ended, or does not wait any more.
    Left(u64),
}

/// Resolvers of the run's work.
#[derive(Default)]
pub(super) struct Resolvers {
    /// Numbers of the resolvers that have a place.
    running: BTreeSet<u64>,
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl State {
    pub(super) fn resolver(&mut self, message: ResolverMessage) {
        match message {
            ResolverMessage::Asks(number, reply) => {
                let (its_turn, turn) = oneshot::channel();
                self.resolvers.waiting.push_back((number, its_turn));
                self.count_resolvers();
                self.place_resolvers();
                let _ = reply.send(Some(turn).filter(|_| !self.resolvers.running.contains(&number)));
            }
            ResolverMessage::Left(number) => {
                self.resolvers.running.remove(&number);
                self.resolvers.waiting.retain(|(other, _)| *other != number);
                self.count_resolvers();
            }
        }
    }

    /// Records the number of resolvers if it has changed.
    pub(super) fn count_resolvers(&mut self) {
        let count = self.resolvers.running.len() + self.resolvers.waiting.len();
        if count != self.run.resolvers && !matches!(self.run.mode, Mode::Over(_)) {
            self.take(Event::resolvers(count));
        }
    }

    /// Gives free places to the resolvers that wait. That need not be durable first: whoever kills this process ends the
    /// resolvers, too.
    pub(super) fn place_resolvers(&mut self) {
        while has_room_for_resolver(&self.run, self.resolvers.running.len())
            && let Some((number, turn)) = self.resolvers.waiting.pop_front()
        {
            self.resolvers.running.insert(number);
            // A resolver that is gone sends `Left`.
            let _ = turn.send(());
        }
    }
}
