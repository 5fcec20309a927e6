//! `.agent/state.json`: the session of one worker, in the union of two schemas.
//!
//! A Go program stores a struct there, and a TypeScript program an object; they share only nine keys. This document
//! has the keys of both and keeps unknown ones, in this order: Go's, those of TypeScript only, `swarm`, unknown keys
//! as they were. All times are Unix milliseconds and plain integer literals, because Go rejects the whole file
//! otherwise.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use super::session_plan::WORK_TYPES;

/// Maximum size of the file in bytes. A larger file is not a session.
pub const SESSION_BYTES_MAX: u64 = 4 << 20;

/// Keys of the Go program, in its order. The values are strings, except those from `attemptCount` to `pid`, which are
/// integers.
const GO: [&str; 13] = [
    "issueId",
    "issueIdentifier",
    "sessionId",
    "providerName",
    "providerSessionId",
    "workType",
    "currentStep",
    "attemptCount",
    "startedAt",
    "lastUpdatedAt",
    "lastHeartbeat",
    "pid",
    "workerId",
];
/// Keys that only the TypeScript program has, in its order.
const LEGACY: [&str; 9] = [
    "linearSessionId",
    "prompt",
    "status",
    "currentPhase",
    "recoveryAttempts",
    "taskListId",
    "errorMessage",
    "pullRequestUrl",
    "summaryVersion",
];
/// Key of this program's own entry.
const OURS: &str = "swarm";
const INTEGERS: [&str; 7] =
    ["attemptCount", "startedAt", "lastUpdatedAt", "lastHeartbeat", "pid", "recoveryAttempts", "summaryVersion"];

/// Values of `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionStatus {
    Initializing,
    Running,
    Completing,
    Completed,
    Failed,
    Stopped,
}

impl SessionStatus {
    pub const ALL: [Self; 6] =
        [Self::Initializing, Self::Running, Self::Completing, Self::Completed, Self::Failed, Self::Stopped];

    pub fn word(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Running => "running",
            Self::Completing => "completing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }

    /// Reports whether nothing of the session runs any more.
    pub fn is_over(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Stopped => true,
            Self::Initializing | Self::Running | Self::Completing => false,
        }
    }
}

/// Identity of the launch that owns a session. If either field differs, another launch has taken the session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Id of the launch.
    pub session: String,
    /// Start of the session in Unix milliseconds.
    pub started_ms: i64,
}

/// This program's own entry in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOwner {
    pub worker: String,
    pub generation: u64,
    pub host: String,
    /// Machine of the agent. `None` in sessions of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<super::Machine>,
    /// Identity of the agent's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<super::ProcessId>,
    /// How the last launch ended, such as `completed`, `provider-error` or `timeout`. `None` while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
}

/// Session document. Values keep the text that they were written with.
#[derive(Clone, Debug, Default)]
pub struct Session {
    members: Vec<(String, Box<RawValue>)>,
}

/// Returns what is wrong with `value` for the key, by the rules of the programs that read it. `None` if the value is
/// valid or the key is unknown.
pub fn session_fault(key: &str, value: &RawValue) -> Option<String> {
    let text = serde_json::from_str::<Option<String>>(value.get());
    let word = || text.as_ref().ok().and_then(Option::as_deref);
    let known = GO.contains(&key) || LEGACY.contains(&key);
    if INTEGERS.contains(&key) {
        let right = serde_json::from_str::<Option<i64>>(value.get()).is_ok_and(|number| number.is_none_or(|n| n >= 0));
        return (!right).then(|| format!("'{key}' must be a whole number, at least 0"));
    }
    match key {
        "status" if word().and_then(SessionStatus::of).is_none() => {
            Some(format!("'status' must be one of {}", SessionStatus::ALL.map(SessionStatus::word).join(", ")))
        }
        "workType" if word().is_none_or(|word| !WORK_TYPES.iter().any(|(known, _)| *known == word)) => {
            Some(format!("'workType' must be one of {}", WORK_TYPES.map(|(word, _)| word).join(", ")))
        }
        key if known && text.is_err() => Some(format!("'{key}' must be a string")),
        _ => None,
    }
}

impl Session {
    /// Returns a message for each member with an invalid value.
    pub fn faults(&self) -> Vec<String> {
        self.members.iter().filter_map(|(key, value)| session_fault(key, value)).collect()
    }

    /// Parses a session.
    ///
    /// # Errors
    /// Returns the parser's message if the text is not a JSON object.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Renders the complete document as it is stored: indented by two spaces, without a newline at the end.
    pub fn render(&self) -> String {
        let mut session = self.clone();
        session.settle();
        let known = GO.iter().chain(&LEGACY).chain([&OURS]);
        let mut ordered: Vec<&(String, Box<RawValue>)> =
            known.filter_map(|name| session.members.iter().find(|(key, _)| key == name)).collect();
        ordered.extend(session.members.iter().filter(|(key, _)| !is_known(key)));
        if ordered.is_empty() {
            return "{}".to_owned();
        }
        let lines: Vec<String> = ordered
            .into_iter()
            .map(|(key, value)| {
                let key = serde_json::to_string(key).expect("text is JSON");
                format!("  {key}: {}", value.get())
            })
            .collect();
        format!("{{\n{}\n}}", lines.join(",\n"))
    }

    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_ref())
    }

    pub fn set(&mut self, key: &str, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).expect("values of sessions are JSON");
        // Indent by one level, as a member of the outermost object.
        let raw = RawValue::from_string(text.replace('\n', "\n  ")).expect("was written as JSON");
        self.set_raw(key, raw);
    }

    pub fn set_raw(&mut self, key: &str, value: Box<RawValue>) {
        match self.members.iter_mut().find(|(name, _)| name == key) {
            Some(member) => member.1 = value,
            None => self.members.push((key.to_owned(), value)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.members.retain(|(name, _)| name != key);
    }

    /// Returns the string of a member. `None` if it is absent, null or not a string.
    pub fn text(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    /// Returns the integer of a member, also if it was written as `1.0` or `"1"`. `None` if it is absent or not a
    /// number.
    pub fn integer(&self, key: &str) -> Option<i64> {
        integer(self.get(key)?)
    }

    /// Returns the identifier of the issue or worker. `None` if it is absent or empty.
    pub fn identifier(&self) -> Option<String> {
        self.text("issueIdentifier").filter(|text| !text.is_empty())
    }

    pub fn issue_id(&self) -> Option<String> {
        self.text("issueId").filter(|text| !text.is_empty())
    }

    pub fn status(&self) -> Option<SessionStatus> {
        SessionStatus::of(&self.text("status")?)
    }

    /// Returns the id of the launch, which the two programs store under different keys. `None` if both are absent or
    /// empty.
    pub fn session_id(&self) -> Option<String> {
        let named = |key| self.text(key).filter(|text| !text.is_empty());
        named("sessionId").or_else(|| named("linearSessionId"))
    }

    pub fn fence(&self) -> Fence {
        let started_ms = self.integer("startedAt").unwrap_or_default();
        Fence { session: self.session_id().unwrap_or_default(), started_ms }
    }

    /// Returns how many times the session was resumed. Go counts attempts, which is one more.
    pub fn recoveries(&self) -> i64 {
        let counted = self.integer("attemptCount").map(|count| count.saturating_sub(1));
        self.integer("recoveryAttempts").or(counted).unwrap_or_default().max(0)
    }

    pub fn owner(&self) -> Option<SessionOwner> {
        serde_json::from_str(self.get(OURS)?.get()).ok()
    }

    pub fn set_owner(&mut self, owner: &SessionOwner) {
        self.set(OURS, owner);
    }

    pub fn set_status(&mut self, status: SessionStatus) {
        self.set("status", &status);
    }

    /// Sets the number of times that the session was resumed, and Go's count of attempts, which is one more.
    pub fn set_recoveries(&mut self, recoveries: i64) {
        self.set("recoveryAttempts", &recoveries);
        self.set("attemptCount", &recoveries.saturating_add(1));
    }

    pub fn set_session_id(&mut self, id: &str) {
        self.set("sessionId", &id);
        self.set("linearSessionId", &id);
    }

    /// Completes the document for both programs: keys of Go in their proper case (Go ignores case), integers as
    /// integer literals, strings as strings, and defaults for all keys that the TypeScript program always writes.
    pub fn settle(&mut self) {
        for name in GO {
            if let Some(at) = self.members.iter().position(|(key, _)| key != name && key.eq_ignore_ascii_case(name)) {
                let (_, value) = self.members.remove(at);
                if self.get(name).is_none() {
                    self.set_raw(name, value);
                }
            }
        }
        for name in INTEGERS {
            let Some(value) = self.get(name).filter(|value| !is_integer(value.get()) && value.get() != "null") else {
                continue;
            };
            match integer(value) {
                Some(number) => self.set(name, &number),
                None => self.remove(name),
            }
        }
        for name in GO.into_iter().filter(|name| !INTEGERS.contains(name)) {
            let Some(value) = self.get(name).map(RawValue::get) else { continue };
            if value != "null" && !value.starts_with('"') {
                let text = value.to_owned();
                self.set(name, &text);
            }
        }
        self.fill();
    }

    fn fill(&mut self) {
        let absent = |session: &Self, key: &str| session.get(key).is_none();
        for key in ["issueId", "issueIdentifier"] {
            if self.get(key).is_none_or(|value| value.get() == "null") {
                self.set(key, &"");
            }
        }
        match (self.session_id(), absent(self, "linearSessionId")) {
            (Some(id), _) if self.text("sessionId").is_none() => self.set("sessionId", &id),
            (id, true) => self.set("linearSessionId", &id),
            _ => {}
        }
        let recoveries = self.recoveries();
        if self.integer("attemptCount").is_none() || self.integer("recoveryAttempts").is_none() {
            self.set_recoveries(recoveries);
        }
        for key in ["startedAt", "lastUpdatedAt"] {
            if self.integer(key).is_none() {
                self.set(key, &0);
            }
        }
        for (key, value) in [("workType", "development"), ("prompt", ""), ("status", "initializing")] {
            if self.text(key).is_none() {
                self.set(key, &value);
            }
        }
        for key in ["providerSessionId", "currentPhase", "pid", "workerId"] {
            if absent(self, key) {
                self.set(key, &());
            }
        }
    }
}

fn is_known(key: &str) -> bool {
    GO.contains(&key) || LEGACY.contains(&key) || key == OURS
}

/// Reports whether the text is a plain integer literal that Go accepts as an int64.
fn is_integer(text: &str) -> bool {
    text.parse::<i64>().is_ok() && !text.starts_with('+')
}

fn integer(value: &RawValue) -> Option<i64> {
    let text = value.get().trim_matches('"');
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        let whole = number.is_finite() && number.abs() < 9e15;
        // Truncate: a fraction of a millisecond does not count.
        #[expect(clippy::cast_possible_truncation, reason = "a double represents integers of this size exactly")]
        whole.then_some(number as i64)
    })
}

/// Compares the rendered documents.
impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        self.render() == other.render()
    }
}

impl Serialize for Session {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.members.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Session;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Session, A::Error> {
                let mut session = Session::default();
                // The last of two equal keys wins, as in both programs.
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    session.set_raw(&key, value);
                }
                Ok(session)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Session, E> {
                Err(E::custom("null is not a session"))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn keys(text: &str) -> Vec<String> {
        let session = Session::parse(text).expect("parses");
        session.members.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn a_new_document_is_complete_and_in_order() {
        let mut session = Session::default();
        session.set("mine", &1);
        session.set_status(SessionStatus::Running);
        session.set("issueIdentifier", &"a");
        let text = session.render();
        assert!(text.starts_with("{\n  \"issueId\": \"\",\n  \"issueIdentifier\": \"a\",\n"), "{text}");
        assert!(!text.ends_with('\n'));
        let all = keys(&text);
        for needed in ["linearSessionId", "providerSessionId", "workType", "prompt", "status", "currentPhase", "pid"] {
            assert!(all.iter().any(|key| key == needed), "{needed} in {text}");
        }
        assert_eq!(all.last().map(String::as_str), Some("mine"));
        assert_eq!(Session::parse(&text).expect("parses").render(), text);
    }

    #[test]
    fn integers_are_rendered_as_plain_literals() {
        let session = Session::parse(r#"{"startedAt": 1e12, "attemptCount": 2.0, "pid": "7", "lastHeartbeat": {}}"#);
        let text = session.expect("parses").render();
        let value: Value = serde_json::from_str(&text).expect("parses");
        assert_eq!(value["startedAt"].to_string(), "1000000000000");
        assert_eq!(
            (value["attemptCount"].to_string(), value["recoveryAttempts"].to_string()),
            ("2".into(), "1".into())
        );
        assert_eq!(value["pid"].to_string(), "7");
        assert_eq!(value.get("lastHeartbeat"), None);
    }

    #[test]
    fn keys_that_go_would_match_get_their_proper_case() {
        let text = Session::parse(r#"{"STARTEDAT": 5, "sessionid": 9, "Workerid": "w"}"#).expect("parses").render();
        let value: Value = serde_json::from_str(&text).expect("parses");
        assert_eq!(
            (&value["startedAt"], &value["sessionId"], &value["workerId"]),
            (&5.into(), &"9".into(), &"w".into())
        );
        assert_eq!(value.get("STARTEDAT"), None);
    }

    #[test]
    fn unknown_members_keep_their_text_and_their_order() {
        let theirs = "{\n  \"zeta\": {\n    \"b\": 1.50,\n    \"a\": [1e400]\n  },\n  \"alpha\": \"<&>\"\n}";
        let text = Session::parse(theirs).expect("parses").render();
        assert!(text.ends_with(&theirs[2..]), "{text}");
    }

    #[test]
    fn missing_recoveries_are_derived_from_the_count_of_attempts() {
        let of = |text: &str| Session::parse(text).expect("parses").recoveries();
        assert_eq!(of(r#"{"attemptCount": 3}"#), 2);
        assert_eq!(of(r#"{"attemptCount": 0}"#), 0);
        assert_eq!(of(r#"{"recoveryAttempts": 1, "attemptCount": 9}"#), 1);
        assert_eq!(of("{}"), 0);
    }

    #[test]
    fn only_an_object_is_a_session() {
        for text in ["", "null", "[]", "7", "{", "{\"a\": }", "\"x\""] {
            assert!(Session::parse(text).is_err(), "{text}");
        }
    }
}
