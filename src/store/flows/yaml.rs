//! YAML of workflows, records and handoff blocks, as values.
//!
//! The other program reads them by the rules of YAML 1.2 with merge keys: `yes` is a text
//! there, a key that comes twice is a mistake, and a text holds one document. What a date
//! is there is a text here. Everything is bounded, because agents write it.

use std::collections::HashMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;
use swarm_actors::flow::json::Json;

/// A longer text is none.
pub const YAML_BYTES_MAX: usize = 4 << 20;
/// Levels of lists and maps in each other.
const DEPTH_MAX: usize = 32;
const NODES_MAX: usize = 200_000;
/// What aliases may stand for in all.
const REPLAYED_MAX: usize = 20_000;

/// A document, and in which line each part of it stands.
#[derive(Debug)]
pub struct Document {
    pub value: Value,
    lines: HashMap<String, u64>,
}

impl Document {
    /// The line of a part such as `workflow.nodes[2].role`, or of what is around it; none
    /// in an empty document.
    pub fn line(&self, path: &str) -> Option<u64> {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            if path.is_empty() {
                return None;
            }
            path = &path[..path.rfind(['.', '[']).unwrap_or(0)];
        }
    }
}

/// # Errors
/// The parser's sentence, with the line.
pub fn parse(text: &str) -> Result<Value, String> {
    read(text).map(|document| document.value)
}

/// The same with lines.
///
/// # Errors
/// The parser's sentence, with the line.
pub fn read(text: &str) -> Result<Document, String> {
    if text.len() > YAML_BYTES_MAX {
        return Err(format!("the document is longer than {YAML_BYTES_MAX} bytes"));
    }
    let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.strip_prefix('\u{feff}').unwrap_or(text).lines().all(is_blank) {
        return Ok(Document { value: Value::Null, lines: HashMap::new() });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED_MAX },
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let node: Spanned<Node> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| first_line(&error.to_string()))?;
    let mut lines = HashMap::new();
    let value = node.value.into_value(String::new(), node.referenced.line(), &mut lines);
    Ok(Document { value, lines })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<Node>, Spanned<Node>)>),
}

impl Node {
    fn into_value(self, path: String, line: u64, lines: &mut HashMap<String, u64>) -> Value {
        let value = match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Number(number) => Value::Number(number),
            Self::Text(text) => Value::String(text),
            Self::List(items) => {
                let item = |(at, item): (usize, Spanned<Self>)| {
                    item.value.into_value(format!("{path}[{at}]"), item.referenced.line(), lines)
                };
                Value::Array(items.into_iter().enumerate().map(item).collect())
            }
            Self::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    let key_line = key.referenced.line();
                    let key = Json::from(&key.value.into_value(String::new(), 0, &mut HashMap::new())).to_text();
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    let value = value.value.into_value(below, key_line, lines);
                    map.insert(key, value);
                }
                Value::Object(map)
            }
        };
        lines.insert(path, line);
        value
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    /// What is no number of JSON is nothing that a workflow may hold.
    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Number::from_f64(number).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_what_the_other_program_takes_them_for() {
        let text =
            "a: yes\nb: true\nc: ~\nd: 5\ne: 1.5\nf: 'x'\ng: 0x10\nh: on\ni:\nj: True\nk: 2026-01-01\nl: no\nm: n\n";
        let value = json!({
            "a": "yes", "b": true, "c": null, "d": 5, "e": 1.5, "f": "x", "g": 16, "h": "on", "i": null, "j": true,
            "k": "2026-01-01", "l": "no", "m": "n",
        });
        assert_eq!(parse(text), Ok(value));
    }

    #[test]
    fn nothing_is_null() {
        for text in ["", "\n\n", "# only a remark\n", "~\n", "---\n", "\u{feff}"] {
            assert_eq!(parse(text), Ok(Value::Null), "{text:?}");
        }
    }

    #[test]
    fn mistakes_are_refused_with_their_line() {
        for (text, line) in [("a: 1\na: 2\n", 2), ("a: [1\n", 1), ("x: 1\n y: 2\n", 2), ("a: *b\n", 1)] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("line"), "{error} for {text:?}, expected line {line}");
        }
        assert!(parse("a: 1\n---\nb: 2\n").is_err(), "two documents");
    }

    #[test]
    fn anchors_and_merges_are_read_and_bounded() {
        let text = "base: &b {role: dev, work: [x]}\nnode: {<<: *b, id: a}\n";
        assert_eq!(
            parse(text).map(|value| value["node"].clone()),
            Ok(json!({"role": "dev", "work": ["x"], "id": "a"}))
        );
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..9 {
            let below = format!("*a{},", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", below.trim_end_matches(',')));
        }
        assert!(parse(&bomb).is_err());
        assert!(parse(&format!("{}x{}", "[".repeat(500), "]".repeat(500))).is_err());
    }

    #[test]
    fn parts_are_found_by_their_line() {
        let text = "workflow:\n  name: W\n  nodes:\n    - id: a\n      role: owner\n    - {id: b,\n       work: [x]}\n  edges: []\n";
        let document = read(text).expect("parses");
        for (path, line) in [
            ("workflow", 1),
            ("workflow.name", 2),
            ("workflow.nodes[0].role", 5),
            ("workflow.nodes[1]", 6),
            ("workflow.nodes[1].work[0]", 7),
            ("workflow.nodes[1].role", 6),
            ("workflow.edges[7].from", 8),
        ] {
            assert_eq!(document.line(path), Some(line), "{path}");
        }
    }
}
