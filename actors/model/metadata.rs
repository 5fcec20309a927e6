//! `metadata` of a row: entries of any program, and this program's own entry `swarm`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::row::SwarmMeta;

/// Length in bytes from which the nesting is checked. A level takes two bytes, and the parser accepts 128 levels.
const CHECKED_FROM_BYTES: usize = 256;

/// Metadata of a row. Kept as text, because each list reads the rows of up to a thousand workers; only the entry
/// `swarm` is parsed.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// One JSON object.
    text: Box<str>,
    swarm: Option<SwarmMeta>,
}

impl Metadata {
    /// Creates metadata that has only the entry `swarm`.
    pub fn of(swarm: SwarmMeta) -> Self {
        Self { text: Self::merged(Map::new(), &swarm), swarm: Some(swarm) }
    }

    /// Returns a copy in which the entry `swarm` is replaced.
    #[must_use]
    pub fn with(&self, swarm: SwarmMeta) -> Self {
        Self { text: Self::merged(self.members(), &swarm), swarm: Some(swarm) }
    }

    /// Returns the entry `swarm`. `None` if it is missing or malformed.
    pub fn swarm(&self) -> Option<&SwarmMeta> {
        self.swarm.as_ref()
    }

    /// Returns all entries.
    pub fn members(&self) -> Map<String, Value> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Returns a copy with the entries of `earlier` that are missing here.
    #[must_use]
    pub fn inherit(&self, earlier: &Self) -> Self {
        let mut members = earlier.members();
        members.extend(self.members());
        match &self.swarm {
            Some(swarm) => Self { text: Self::merged(members, swarm), swarm: Some(swarm.clone()) },
            None => Self::from(members),
        }
    }

    fn merged(mut members: Map<String, Value>, swarm: &SwarmMeta) -> Box<str> {
        members.insert("swarm".to_owned(), serde_json::to_value(swarm).expect("strings and numbers are JSON"));
        Value::Object(members).to_string().into()
    }

    /// Returns `None` if the text is not an object, or is nested too deeply to be written again.
    fn read(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Ours<'a> {
            #[serde(borrow)]
            swarm: Option<&'a RawValue>,
        }
        if !text.starts_with('{') {
            return None;
        }
        // Text that is nested too deeply cannot be written again. Short text never is.
        if text.len() >= CHECKED_FROM_BYTES && serde_json::from_str::<Map<String, Value>>(text).is_err() {
            return None;
        }
        let ours = serde_json::from_str::<Ours<'_>>(text).ok().and_then(|ours| ours.swarm);
        let swarm = ours.and_then(|swarm| serde_json::from_str(swarm.get()).ok());
        Some(Self { text: text.into(), swarm })
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self { text: "{}".into(), swarm: None }
    }
}

impl From<Map<String, Value>> for Metadata {
    fn from(members: Map<String, Value>) -> Self {
        Self::read(&Value::Object(members).to_string()).expect("an object is written as one")
    }
}

/// Compares the content, not the formatting.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text || self.members() == other.members()
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.members().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Self::read(raw.get()).ok_or_else(|| de::Error::custom("metadata is not an object or is nested too deeply"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Metadata, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn our_entry_is_parsed_and_all_others_are_kept() {
        let text = r#"{"z": [1, {"a": null}], "swarm": {"id": "t", "generation": 3, "host": "h"}}"#;
        let metadata = read(text).expect("reads");
        assert_eq!(metadata.swarm().map(|meta| (meta.id.as_str(), meta.generation)), Some(("t", 3)));
        assert_eq!(metadata.members()["z"], serde_json::json!([1, {"a": null}]));
        let again: Value = serde_json::to_value(&metadata).expect("writes");
        assert_eq!(again, serde_json::from_str::<Value>(text).expect("parses"));
    }

    #[test]
    fn a_malformed_entry_counts_as_missing() {
        for text in [r#"{"swarm": 7}"#, r#"{"swarm": null}"#, r#"{"swarm": {"id": 1}}"#, "{}"] {
            assert_eq!(read(text).expect("reads").swarm(), None, "{text}");
        }
        for text in ["7", "null", "[]", r#""{}""#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_new_start_inherits_missing_entries() {
        let meta = |id: &str| SwarmMeta {
            id: id.into(),
            generation: 1,
            host: "h".into(),
            base: None,
            merge: false,
            port: None,
            parent: None,
            place: None,
        };
        let mut earlier = Metadata::of(meta("old")).members();
        earlier.insert("theirs".into(), true.into());
        let new = Metadata::of(meta("new")).inherit(&earlier.into());
        assert_eq!(new.swarm().map(|meta| meta.id.as_str()), Some("new"));
        assert_eq!(new.members()["theirs"], Value::Bool(true));
        assert_eq!(read(&serde_json::to_string(&new).expect("writes")).expect("reads"), new);
    }
}
