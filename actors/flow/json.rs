//! JSON in the original runtime's (JavaScript's) semantics.
//!
//! Objects keep their key order, with integer keys first. Numbers are doubles. Parsing and
//! rendering a document yields byte for byte what that runtime would write.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest integer whose double represents no other integer (2^53 - 1).
const INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Members),
}

/// Members of an object in JavaScript's enumeration order: array index keys ascending, then the
/// others in insertion order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Members(Vec<(String, Json)>);

impl Json {
    /// Parses a document.
    ///
    /// # Errors
    /// Returns the parser's message.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub fn object() -> Self {
        Self::Object(Members::default())
    }

    pub fn texts<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::List(texts.into_iter().map(|text| Self::Text(text.into())).collect())
    }

    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn as_object(&self) -> Option<&Members> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    pub fn as_object_mut(&mut self) -> Option<&mut Members> {
        if let Self::Object(members) = self { Some(members) } else { None }
    }

    pub fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub fn as_list_mut(&mut self) -> Option<&mut Vec<Self>> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    /// Reports whether the value is truthy in JavaScript.
    pub fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Number(number) => *number != 0.0 && !number.is_nan(),
            Self::Text(text) => !text.is_empty(),
            Self::List(_) | Self::Object(_) => true,
        }
    }

    /// Returns the text of JavaScript's `String(value)`.
    pub fn to_text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number_text(*number),
            Self::Text(text) => text.clone(),
            Self::List(list) => {
                let item = |item: &Self| if *item == Self::Null { String::new() } else { item.to_text() };
                list.iter().map(item).collect::<Vec<_>>().join(",")
            }
            Self::Object(_) => "[object Object]".to_owned(),
        }
    }

    /// Renders with two spaces of indent and no newline at the end.
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, Some(0));
        out
    }

    /// Renders on one line without spaces.
    pub fn render_compact(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, None);
        out
    }

    fn write(&self, out: &mut String, depth: Option<usize>) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) if !number.is_finite() => out.push_str("null"),
            Self::Number(number) => out.push_str(&number_text(*number)),
            Self::Text(text) => out.push_str(&quoted(text)),
            Self::List(list) => {
                write_all(out, depth, ['[', ']'], list, |out, item, depth| item.write(out, depth));
            }
            Self::Object(members) => {
                write_all(out, depth, ['{', '}'], &members.0, |out, (key, value), depth| {
                    out.push_str(&quoted(key));
                    out.push_str(if depth.is_some() { ": " } else { ":" });
                    value.write(out, depth);
                });
            }
        }
    }
}

fn write_all<T>(
    out: &mut String,
    depth: Option<usize>,
    [open, close]: [char; 2],
    items: &[T],
    write: impl Fn(&mut String, &T, Option<usize>),
) {
    let indent = |out: &mut String, depth: Option<usize>| {
        if let Some(depth) = depth {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str("  "));
        }
    };
    out.push(open);
    let within = depth.map(|depth| depth + 1);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        indent(out, within);
        write(out, item, within);
    }
    if !items.is_empty() {
        indent(out, depth);
    }
    out.push(close);
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string serializes")
}

/// Returns the shortest decimal that parses to the same double, in JavaScript's layout.
pub fn number_text(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if !number.is_finite() {
        return if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let sign = if number < 0.0 { "-" } else { "" };
    let shortest = format!("{:e}", number.abs());
    let (mantissa, exponent) = shortest.split_once('e').expect("was formatted with an exponent");
    let digits = mantissa.replace('.', "");
    let exponent: i32 = exponent.parse().expect("was formatted as an integer");
    let count = i32::try_from(digits.len()).expect("a double has few digits");
    let at = |index: i32| usize::try_from(index).expect("is within the digits");
    let zeros = |count: i32| "0".repeat(at(count));
    let point = exponent + 1;
    if (count..=21).contains(&point) {
        format!("{sign}{digits}{}", zeros(point - count))
    } else if (1..=21).contains(&point) {
        format!("{sign}{}.{}", &digits[..at(point)], &digits[at(point)..])
    } else if (-5..=0).contains(&point) {
        format!("{sign}0.{}{digits}", zeros(-point))
    } else {
        let (first, rest) = digits.split_at(1);
        let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
        format!("{sign}{first}{rest}e{exponent:+}")
    }
}

impl Members {
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sets a member, in its present position or where JavaScript would add it.
    pub fn set(&mut self, key: &str, value: impl Into<Json>) {
        let value = value.into();
        if let Some(known) = self.get_mut(key) {
            *known = value;
            return;
        }
        let at = match index_of(key) {
            Some(index) => self.0.iter().position(|(name, _)| index_of(name).is_none_or(|other| other > index)),
            None => None,
        };
        self.0.insert(at.unwrap_or(self.0.len()), (key.to_owned(), value));
    }

    pub fn remove(&mut self, key: &str) -> Option<Json> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(at).1)
    }

    /// Keeps the members whose key `keep` accepts, called in order. Costs one pass, however many
    /// members are removed.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|(key, _)| keep(key));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of a member. `None` if it is absent or not a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_text()
    }
}

/// Parses a key that is an array index. Such keys come first.
fn index_of(key: &str) -> Option<u32> {
    let index: u32 = key.parse().ok()?;
    (index < u32::MAX && index.to_string() == key).then_some(index)
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl<const N: usize> From<[(&str, Json); N]> for Json {
    fn from(members: [(&str, Json); N]) -> Self {
        let mut object = Members::default();
        members.into_iter().for_each(|(key, value)| object.set(key, value));
        Self::Object(object)
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(list) => Self::List(list.iter().map(Self::from).collect()),
            Value::Object(members) => {
                let mut object = Members::default();
                members.iter().for_each(|(key, value)| object.set(key, Self::from(value)));
                Self::Object(object)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "JavaScript's numbers are doubles")]
    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "JavaScript's numbers are doubles")]
    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut read: Vec<(String, Json)> = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            read.push(entry);
        }
        Ok(Json::Object(in_order(read)))
    }
}

/// Removes duplicates and sorts the keys. The last of equal keys wins, in the position of the
/// first.
fn in_order(read: Vec<(String, Json)>) -> Members {
    let mut at = std::collections::HashMap::with_capacity(read.len());
    let mut members: Vec<(String, Json)> = Vec::with_capacity(read.len());
    for (key, value) in read {
        match at.get(&key) {
            Some(at) => members[*at] = (key, value),
            None => {
                at.insert(key.clone(), members.len());
                members.push((key, value));
            }
        }
    }
    // The sort is stable: keys that are no index keep their order.
    members.sort_by_key(|(key, _)| index_of(key).map_or(u64::MAX, u64::from));
    Members(members)
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            #[expect(clippy::cast_possible_truncation, reason = "an integer that a double represents exactly")]
            Self::Number(number) if number.fract() == 0.0 && number.abs() <= INTEGER_MAX => {
                serializer.serialize_i64(*number as i64)
            }
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => serializer.collect_seq(list),
            Self::Object(members) => serializer.collect_map(members.iter()),
        }
    }
}

/// Trims the white space that JavaScript's `trim` removes.
pub fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c == '\u{feff}' || (c.is_whitespace() && c != '\u{85}'))
}
