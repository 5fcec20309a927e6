//! Usage of tokens, which agents report in one of three places: with each step, at the end of a turn, or, of its last step
//! alone, in the answer to the prompt. A price is that of the conversation.

use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;

use crate::Seen;
use crate::dialogue::Step;

#[derive(Debug)]
pub struct Usage {
    /// Price of the conversation before this turn, in US dollars.
    before: Option<f64>,
    /// Sum of the steps so far.
    steps: (u64, u64),
    /// Tokens of the turn, as its end reports them.
    turn: Option<(u64, u64)>,
    /// Price of the conversation, in US dollars.
    usd: Option<f64>,
}

impl Usage {
    pub fn new(before: Option<f64>) -> Self {
        Self { before, steps: (0, 0), turn: None, usd: None }
    }

    /// Reads an update.
    pub fn update(&mut self, update: Option<&Value>) -> Vec<Step> {
        let cost = update.member("cost").filter(|cost| cost.text("currency") == Some("USD"));
        let usd = cost.member("amount").and_then(Value::as_f64).filter(|usd| usd.is_finite() && *usd > 0.0);
        // A turn that is cancelled reports less than the one before it.
        self.usd = usd.map(|usd| self.usd.map_or(usd, |known| known.max(usd))).or(self.usd);
        let step = update.member("_meta").member("usage").and_then(tokens);
        if let Some((input, output)) = step {
            self.steps = (self.steps.0.saturating_add(input), self.steps.1.saturating_add(output));
        }
        if step.is_some() { vec![Step::Seen(Seen::Spent(self.spent().0))] } else { Vec::new() }
    }

    /// Reads the answer to the prompt.
    pub fn result(&mut self, result: &Value) -> Vec<Step> {
        let quota = result.member("_meta").member("quota").member("token_count");
        let whole = |key: &str| quota.whole(key);
        let quota = whole("input_tokens").map(|input| (input, whole("output_tokens").unwrap_or(0)));
        self.turn = quota.or_else(|| result.member("usage").and_then(tokens));
        vec![Step::Seen(Seen::Spent(self.spent().0))]
    }

    /// Returns the usage of this turn, and the price of the conversation.
    pub fn spent(&self) -> (Spent, Option<f64>) {
        let is_step = self.steps != (0, 0);
        let (input_tokens, output_tokens) = if is_step { self.steps } else { self.turn.unwrap_or((0, 0)) };
        let now = self.usd.filter(|usd| *usd >= self.before.unwrap_or(0.0));
        let usd = now.map(|usd| usd - self.before.unwrap_or(0.0)).filter(|usd| *usd > 0.0);
        (Spent { input_tokens, output_tokens, usd, unpriced: usd.is_none() }, now)
    }
}

/// Returns the tokens of input and of output. What the total has in addition was read from or written to a cache, or thought.
fn tokens(usage: &Value) -> Option<(u64, u64)> {
    let (input, output) = (usage.whole("inputTokens")?, usage.whole("outputTokens").unwrap_or(0));
    let rest = usage.whole("totalTokens").unwrap_or(0).saturating_sub(input.saturating_add(output));
    let thought = usage.whole("thoughtTokens").unwrap_or(0).min(rest);
    Some((input.saturating_add(rest - thought), output.saturating_add(thought)))
}
