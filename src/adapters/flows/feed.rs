//! `roles/ROLE/feed.json`: what a person sees of a role's conversation, in the other
//! program's shape, which shows it again when the flow is opened there. That program
//! writes the file as a whole and without a lock; what it has in it stays.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_actors::flow::json::Json;

use super::file;

/// The oldest ones go first.
const ITEMS_MAX: usize = 400;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Of one item.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What an item is, with its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Activation,
    Assistant,
    User,
    Tool,
    Handoff,
    Repair,
}

impl Kind {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Activation => ("activation", "Activation"),
            Self::Assistant => ("assistant", "Assistant"),
            Self::User => ("user", "You"),
            Self::Tool => ("tool", "Tool Call"),
            Self::Handoff => ("handoff", "Handoff"),
            Self::Repair => ("repair", "Repair Requested"),
        }
    }
}

pub fn path(flow: &Path, role: &str) -> PathBuf {
    flow.join("roles").join(role).join("feed.json")
}

/// What is in it; nothing where there is no file, or one that is none.
pub fn read(flow: &Path, role: &str) -> Vec<Value> {
    let text = file::read_text(&path(flow, role), FILE_BYTES_MAX).ok().flatten();
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// The roles that have one, by name.
pub fn roles(flow: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(flow.join("roles")).into_iter().flatten().flatten();
    let mut names: Vec<String> = folders
        .filter(|folder| folder.path().join("feed.json").exists())
        .filter_map(|folder| folder.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Adds items. Text of the same agent in a row is one.
///
/// # Errors
/// What the system says: worth a warning, and no more.
pub fn add(flow: &Path, role: &str, items: &[(Kind, String)]) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let path = path(flow, role);
    let mut all = read(flow, role);
    let mut next = next_number(&all, role);
    for (kind, text) in items {
        let text = cut(text);
        if *kind == Kind::Assistant
            && let Some(last) = all.last_mut().filter(|last| last["type"] == "assistant")
        {
            last["text"] = json!(cut(&format!("{}\n{text}", last["text"].as_str().unwrap_or_default())));
            continue;
        }
        let (kind, label) = kind.words();
        all.push(json!({"id": format!("{role}_{next}"), "type": kind, "label": label, "text": text}));
        next += 1;
    }
    all.drain(..all.len().saturating_sub(ITEMS_MAX));
    if let Some(dir) = path.parent() {
        file::make_dirs(dir)?;
    }
    let text = Json::from(&Value::Array(all)).render();
    file::replace_lightly(&path, text.as_bytes())
}

fn next_number(items: &[Value], role: &str) -> u64 {
    let number = |item: &Value| item["id"].as_str()?.strip_prefix(role)?.strip_prefix('_')?.parse::<u64>().ok();
    items.iter().filter_map(number).max().map_or(0, |last| last + 1)
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_numbered_on_and_a_text_in_a_row_is_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let add = |items: &[(Kind, &str)]| {
            let items: Vec<_> = items.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect();
            add(dir.path(), "dev_2", &items).expect("it can be written");
        };
        add(&[(Kind::Activation, "build (dev_2) is active."), (Kind::Assistant, "one"), (Kind::Assistant, "two")]);
        add(&[(Kind::Assistant, "three"), (Kind::Tool, "Bash: ls")]);
        let items = read(dir.path(), "dev_2");
        let shown: Vec<_> =
            items.iter().map(|item| (item["id"].as_str().unwrap(), item["text"].as_str().unwrap())).collect();
        assert_eq!(
            shown,
            [("dev_2_0", "build (dev_2) is active."), ("dev_2_1", "one\ntwo\nthree"), ("dev_2_2", "Bash: ls")]
        );
        let text = std::fs::read_to_string(path(dir.path(), "dev_2")).unwrap();
        assert!(
            text.starts_with("[\n  {\n    \"id\": \"dev_2_0\",\n    \"type\": \"activation\",") && text.ends_with(']')
        );
        assert_eq!(roles(dir.path()), ["dev_2"]);
    }

    #[test]
    fn what_is_there_stays_and_what_is_none_is_begun_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = path(dir.path(), "dev");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, r#"[{"id": "dev_41", "type": "reasoning", "label": "x", "text": "y", "more": 1}]"#)
            .unwrap();
        add(dir.path(), "dev", &[(Kind::User, "go on".to_owned())]).unwrap();
        let items = read(dir.path(), "dev");
        assert_eq!((items[0]["more"].as_u64(), items[1]["id"].as_str()), (Some(1), Some("dev_42")));
        std::fs::write(&file, "torn").unwrap();
        add(dir.path(), "dev", &vec![(Kind::Tool, "x".to_owned()); ITEMS_MAX + 3]).unwrap();
        let items = read(dir.path(), "dev");
        assert_eq!((items.len(), items[0]["id"].as_str()), (ITEMS_MAX, Some("dev_3")));
    }
}
