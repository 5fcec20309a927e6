//! Usage in the files that agents keep of their own conversations. `codex exec` and `gemini` print tokens at the end of a
//! turn only, so that a turn that is killed would count nothing; their files have them after each answer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use swarm_model::json::Members as _;
use swarm_model::run::progress::Spent;

use super::{Kind, Session};

/// Number of answers that are counted.
const ANSWERS_MAX: usize = 100_000;

/// Counts the tokens in the file of one conversation.
#[derive(Debug)]
pub enum Count {
    /// Total of the conversation, which codex repeats after each answer.
    Codex(Option<Spent>),
    /// Tokens of each answer of gemini, by its id. An answer is written again when its tools have run.
    Gemini(BTreeMap<String, (u64, u64)>),
}

impl Count {
    /// Returns a counter for the file of an agent. `None` for an agent whose usage is not in a file of lines, or which
    /// prints it after each answer.
    pub fn new(kind: Kind, may_ask: bool) -> Option<Self> {
        match kind {
            // In a dialogue it reports them after each answer.
            Kind::Codex if !may_ask => Some(Self::Codex(None)),
            Kind::Gemini => Some(Self::Gemini(BTreeMap::new())),
            _ => None,
        }
    }

    /// Returns the directory of all conversations, and the number of levels of directories in it. `variable` returns
    /// variables of the agent's environment.
    pub fn place(&self, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<(PathBuf, usize)> {
        let home = || variable("HOME");
        Some(match self {
            // sessions/YEAR/MONTH/DAY
            Self::Codex(_) => (variable("CODEX_HOME").or_else(|| Some(home()?.join(".codex")))?.join("sessions"), 3),
            // tmp/PROJECT/chats
            Self::Gemini(_) => (variable("GEMINI_CLI_HOME").or_else(home)?.join(".gemini/tmp"), 2),
        })
    }

    /// Reports whether a file may be that of the conversation with this id, by its name.
    pub fn is_named(&self, file: &str, id: &str) -> bool {
        let id = match self {
            Self::Codex(_) => id,
            Self::Gemini(_) => id.get(..8).unwrap_or(id),
        };
        !id.is_empty() && file.strip_suffix(".jsonl").is_some_and(|name| name.ends_with(&format!("-{id}")))
    }

    /// Counts a line of the file.
    pub fn line(&mut self, line: &[u8]) {
        // Most lines are long, and have no tokens.
        if memchr::memmem::find(line, b"token").is_none() {
            return;
        }
        let Ok(line) = serde_json::from_slice::<Value>(line) else { return };
        match self {
            Self::Codex(total) => {
                let payload = line.member("payload");
                let usage = match (line.text("type"), payload.text("type")) {
                    (Some("token_usage_record"), _) => payload.member("thread_token_usage"),
                    // Older versions have only these.
                    (Some("event_msg"), Some("token_count")) => payload.member("info").member("total_token_usage"),
                    _ => None,
                };
                let tokens = usage.whole("input_tokens").zip(usage.whole("output_tokens"));
                *total = tokens.map(spent).or(*total);
            }
            Self::Gemini(answers) => {
                let tokens = line.member("tokens");
                let tokens = tokens.whole("input").zip(tokens.whole("output"));
                if let (Some("gemini"), Some(id), Some(tokens)) = (line.text("type"), line.text("id"), tokens)
                    && answers.len() < ANSWERS_MAX
                {
                    answers.insert(id.to_owned(), tokens);
                }
            }
        }
    }

    /// Returns the usage of the conversation so far.
    fn total(&self) -> Spent {
        match self {
            Self::Codex(total) => total.unwrap_or_default(),
            Self::Gemini(answers) => spent(
                answers.values().fold((0, 0), |sum, one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1))),
            ),
        }
    }

    /// Returns what was used before the turn; the lines before the turn must have been counted. `before` is what is known
    /// of the conversation.
    pub fn base(&self, before: Option<&Session>) -> Spent {
        match self {
            // A killed turn may have used more than was recorded. What it used is in the next total.
            Self::Codex(_) => before.map(|before| before.spent.plus(before.unreported)).unwrap_or_default(),
            Self::Gemini(_) => self.total(),
        }
    }

    /// Returns the usage since `base`.
    pub fn since(&self, base: Spent) -> Spent {
        let total = self.total();
        Spent {
            input_tokens: total.input_tokens.saturating_sub(base.input_tokens),
            output_tokens: total.output_tokens.saturating_sub(base.output_tokens),
            usd: None,
            unpriced: true,
        }
    }
}

fn spent((input_tokens, output_tokens): (u64, u64)) -> Spent {
    Spent { input_tokens, output_tokens, usd: None, unpriced: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODEX: [&str; 4] = [
        r#"{"timestamp":"2026-11-24T05:21:08.021Z","type":"session_meta","payload":{"id":"01a20c00","cwd":"/w"}}"#,
        r#"{"timestamp":"2026-11-24T05:21:08.247Z","ordinal":10,"type":"token_usage_record","payload":{"thread_id":"01a20c00","response_id":"resp_1","usage":{"input_tokens":1000,"cached_input_tokens":0,"output_tokens":200,"total_tokens":1200},"thread_token_usage":{"input_tokens":1000,"cached_input_tokens":0,"output_tokens":200,"reasoning_output_tokens":0,"total_tokens":1200}}}"#,
        r#"{"timestamp":"2026-11-24T05:21:08.558Z","ordinal":12,"type":"response_item","payload":{"type":"function_call_output","output":"Original token count: 1\n"}}"#,
        r#"{"timestamp":"2026-11-24T05:21:08.709Z","ordinal":18,"type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":2000,"cached_input_tokens":0,"output_tokens":400,"total_tokens":2400},"last_token_usage":{"input_tokens":1000,"output_tokens":200},"model_context_window":258400},"rate_limits":{"limit_id":"codex"}}}"#,
    ];
    const GEMINI: [&str; 5] = [
        r#"{"id":"0a7e","timestamp":"2026-11-24T05:21:17.195Z","type":"user","content":[{"text":"count tokens"}]}"#,
        r#"{"$set":{"lastUpdated":"2026-11-24T05:21:17.774Z"}}"#,
        r#"{"id":"6082","type":"gemini","content":"","thoughts":[],"tokens":{"input":1000,"output":200,"cached":0,"thoughts":0,"tool":0,"total":1200},"model":"m"}"#,
        r#"{"id":"6082","type":"gemini","content":"","thoughts":[],"tokens":{"input":1000,"output":200,"cached":0,"thoughts":0,"tool":0,"total":1200},"model":"m","toolCalls":[]}"#,
        r#"{"id":"c203","type":"gemini","content":"","thoughts":[],"tokens":{"input":1000,"output":200,"cached":0,"thoughts":0,"tool":0,"total":1200},"model":"m"}"#,
    ];

    fn tokens(spent: Spent) -> (u64, u64) {
        (spent.input_tokens, spent.output_tokens)
    }

    #[test]
    fn each_answer_in_the_file_counts_once() {
        for (kind, lines) in [(Kind::Codex, &CODEX[..]), (Kind::Gemini, &GEMINI[..])] {
            let mut count = Count::new(kind, false).expect("it has a file");
            let base = count.base(None);
            for line in lines {
                count.line(line.as_bytes());
            }
            assert_eq!(tokens(count.since(base)), (2000, 400), "{kind:?}");
            count.line(b"{\"type\":\"gemini\",\"tokens\":");
            assert_eq!(tokens(count.since(base)), (2000, 400), "{kind:?}: a line that is being written");
        }
        assert!(Count::new(Kind::Codex, true).is_none() && Count::new(Kind::Claude, false).is_none());
    }

    #[test]
    fn what_an_earlier_turn_used_counts_for_nothing() {
        let mut count = Count::new(Kind::Gemini, false).expect("it has a file");
        GEMINI[..4].iter().for_each(|line| count.line(line.as_bytes()));
        let base = count.base(None);
        count.line(GEMINI[4].as_bytes());
        assert_eq!(tokens(count.since(base)), (1000, 200));
        let mut count = Count::new(Kind::Codex, false).expect("it has a file");
        CODEX.iter().for_each(|line| count.line(line.as_bytes()));
        let (spent, unreported) = (spent((700, 100)), spent((500, 100)));
        let base = count.base(Some(&Session { id: "01a20c00".to_owned(), spent, unreported }));
        assert_eq!(tokens(count.since(base)), (800, 200), "what a killed turn did not record counts now");
    }

    #[test]
    fn files_are_found_by_their_names_below_the_directory_of_the_account() {
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/h"));
        let account = |name: &str| name.ends_with("_HOME").then(|| PathBuf::from("/a"));
        let codex = Count::new(Kind::Codex, false).expect("it has a file");
        assert_eq!(codex.place(home), Some((PathBuf::from("/h/.codex/sessions"), 3)));
        assert_eq!(codex.place(account), Some((PathBuf::from("/a/sessions"), 3)));
        assert!(codex.is_named("rollout-2026-11-24T05-21-07-01a2-7710.jsonl", "01a2-7710"));
        assert!(!codex.is_named("rollout-2026-11-24T05-21-07-01a2-7710.jsonl", "02a2-7710"));
        let gemini = Count::new(Kind::Gemini, false).expect("it has a file");
        assert_eq!(gemini.place(home), Some((PathBuf::from("/h/.gemini/tmp"), 2)));
        assert_eq!(gemini.place(account), Some((PathBuf::from("/a/.gemini/tmp"), 2)));
        assert!(gemini.is_named("session-2026-11-24T05-21-11111111.jsonl", "11111111-1111-4111-8111-111111111111"));
        assert!(!gemini.is_named("session-2026-11-24T05-21-11111111.jsonl", ""));
    }
}
