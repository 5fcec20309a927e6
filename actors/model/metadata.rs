//! `metadata` of a row: whatever programs keep there, and our own entry in it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::row::SwarmMeta;

/// A level of nesting takes two bytes, and the parser takes 128 levels.
const CHECKED_FROM_BYTES: usize = 256;

/// Kept as text, because a registry of a thousand workers is read for every
/// list; only our own entry is looked into.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// One JSON object.
    text: Box<str>,
    swarm: Option<SwarmMeta>,
}

impl Metadata {
    /// Metadata with nothing in it but our entry.
    pub fn of(swarm: SwarmMeta) -> Self {
        Self { text: Self::merged(Map::new(), &swarm), swarm: Some(swarm) }
    }

    /// The same with this entry for ours.
    #[must_use]
    pub fn with(&self, swarm: SwarmMeta) -> Self {
        Self { text: Self::merged(self.members(), &swarm), swarm: Some(swarm) }
    }

    /// Our entry, when there is one that can be read.
    pub fn swarm(&self) -> Option<&SwarmMeta> {
        self.swarm.as_ref()
    }

    /// Everything, for programs that do not know the keys.
    pub fn members(&self) -> Map<String, Value> {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// The same with other programs' entries of `earlier` that are missing here.
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

    /// `None` when the text is no object.
    fn read(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Ours<'a> {
            #[serde(borrow)]
            swarm: Option<&'a RawValue>,
        }
        if !text.starts_with('{') {
            return None;
        }
        // What cannot be written again, because it is nested too deeply, is not
        // taken. Nothing short is.
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

/// By content: how it is written does not matter.
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
        Self::read(raw.get()).ok_or_else(|| de::Error::custom("metadata is no object, or nested too deeply"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Metadata, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn ours_is_read_and_theirs_is_kept() {
        let text = r#"{"z": [1, {"a": null}], "swarm": {"id": "t", "generation": 3, "host": "h"}}"#;
        let metadata = read(text).expect("reads");
        assert_eq!(metadata.swarm().map(|meta| (meta.id.as_str(), meta.generation)), Some(("t", 3)));
        assert_eq!(metadata.members()["z"], serde_json::json!([1, {"a": null}]));
        let again: Value = serde_json::to_value(&metadata).expect("writes");
        assert_eq!(again, serde_json::from_str::<Value>(text).expect("parses"));
    }

    #[test]
    fn an_entry_that_is_not_ours_is_no_entry() {
        for text in [r#"{"swarm": 7}"#, r#"{"swarm": null}"#, r#"{"swarm": {"id": 1}}"#, "{}"] {
            assert_eq!(read(text).expect("reads").swarm(), None, "{text}");
        }
        for text in ["7", "null", "[]", r#""{}""#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_new_life_inherits_what_it_does_not_say_itself() {
        let meta = |id: &str| SwarmMeta {
            id: id.into(),
            generation: 1,
            host: "h".into(),
            base: None,
            merge: false,
            port: None,
        };
        let mut earlier = Metadata::of(meta("old")).members();
        earlier.insert("theirs".into(), true.into());
        let new = Metadata::of(meta("new")).inherit(&earlier.into());
        assert_eq!(new.swarm().map(|meta| meta.id.as_str()), Some("new"));
        assert_eq!(new.members()["theirs"], Value::Bool(true));
        assert_eq!(read(&serde_json::to_string(&new).expect("writes")).expect("reads"), new);
    }
}
