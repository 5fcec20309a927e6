//! YAML of the files that are generated: blocks, and quotes only where they are needed.

use std::fmt::Write as _;

use swarm_actors::flow::json::Json;

/// The text of a document, with a newline at its end.
pub fn render(value: &Json) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out
}

fn block(out: &mut String, value: &Json, depth: usize) {
    match value {
        Json::Object(members) if !members.is_empty() => {
            for (at, (key, member)) in members.iter().enumerate() {
                // The first key of an entry of a list stands behind its hyphen.
                if at > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                let _ = write!(out, "{}:", scalar(key));
                below(out, member, depth);
            }
        }
        Json::List(items) if !items.is_empty() => {
            for item in items {
                indent(out, depth);
                out.push_str("- ");
                block(out, item, depth + 1);
            }
        }
        Json::Text(text) => {
            let _ = writeln!(out, "{}", scalar(text));
        }
        other => {
            let _ = writeln!(out, "{}", other.render_compact());
        }
    }
}

fn below(out: &mut String, member: &Json, depth: usize) {
    let nested = match member {
        Json::Object(members) => !members.is_empty(),
        Json::List(items) => !items.is_empty(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) => false,
    };
    out.push(if nested { '\n' } else { ' ' });
    block(out, member, depth + 1);
}

fn indent(out: &mut String, depth: usize) {
    (0..depth).for_each(|_| out.push_str("  "));
}

/// Plain where no reader takes it for anything else; what JSON quotes, YAML reads.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || " _-./,()".contains(c);
    let begins = text.chars().next().is_some_and(char::is_alphabetic);
    let word = text.to_ascii_lowercase();
    let taken = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&word.as_str());
    if begins && !taken && !text.ends_with(' ') && text.chars().all(plain) {
        return text.to_owned();
    }
    Json::from(text).render_compact()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flows::yaml;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for value in [
            json!({"record": {"name": "My: title # x", "summary": null}}),
            json!({"record": {"name": "yes", "summary": "two\nlines \"and\" quotes"}}),
            json!({"a": [{"b": "1.5", "c": [1, true, {}]}, [], "- x"], "d": " y "}),
            json!({"workflow": {"nodes": [{"id": "dev_1"}, {"id": "null"}], "edges": []}}),
        ] {
            let text = render(&Json::from(&value));
            assert_eq!(yaml::parse(&text).as_ref(), Ok(&value), "{text}");
        }
    }

    #[test]
    fn plain_words_stay_plain() {
        let value = json!({"record": {"name": "Line", "summary": "Fan out to two builders and join at a review."}});
        let text = "record:\n  name: Line\n  summary: Fan out to two builders and join at a review.\n";
        assert_eq!(render(&Json::from(&value)), text);
    }
}
