//! `roles/ROLE/feed.json`: the conversation of a role as shown to people, in the format of the original program, which
//! displays it when it opens the flow. The original rewrites the whole file without a lock; its items are preserved.

use std::io;
use std::path::{Path, PathBuf};

use swarm_actors::flow::rules::json::Json;
use swarm_sys::files::list;

use super::file;
use super::turns::folder;

/// Maximum number of items; the oldest ones are dropped.
const ITEMS_MAX: usize = 400;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of an item's text, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Kind of an item.
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
    /// Returns the type and the label of the item.
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
    flow.join("roles").join(folder(role)).join("feed.json")
}

/// Reads the items; empty if there is no readable file.
pub fn read(flow: &Path, role: &str) -> Vec<Json> {
    load(flow, role).unwrap_or_default()
}

fn load(flow: &Path, role: &str) -> io::Result<Vec<Json>> {
    let Some(text) = file::read_text(&path(flow, role), FILE_BYTES_MAX)? else { return Ok(Vec::new()) };
    match Json::parse(&text).map_err(io::Error::other)? {
        Json::List(items) => Ok(items),
        _ => Err(io::Error::other("not a list")),
    }
}

/// Returns a text field of an item; empty if it is missing.
pub fn text<'a>(item: &'a Json, key: &str) -> &'a str {
    item.as_object().and_then(|item| item.text(key)).unwrap_or_default()
}

/// Returns the names of the roles that have a feed, sorted.
pub fn roles(flow: &Path) -> Vec<String> {
    let folders = list(&flow.join("roles")).into_iter().flatten();
    let mut names: Vec<String> = folders
        .filter(|folder| folder.path().join("feed.json").exists())
        .filter_map(|folder| folder.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// Appends items. Consecutive texts of the agent are merged into one item.
///
/// # Errors
/// Returns any I/O error, which callers should only log.
pub fn add(flow: &Path, role: &str, items: &[(Kind, String)]) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let path = path(flow, role);
    // An unreadable file may just be rewritten by the original program, so it is not replaced.
    let mut all = load(flow, role)?;
    let mut next = next_number(&all, role);
    for (kind, text) in items {
        let text = cut(text);
        if *kind == Kind::Assistant
            && let Some(last) = all.last_mut().filter(|last| self::text(last, "type") == "assistant")
        {
            let whole = format!("{}\n{text}", self::text(last, "text"));
            if let Some(last) = last.as_object_mut() {
                last.set("text", cut(&whole));
            }
            continue;
        }
        let (kind, label) = kind.words();
        let id = format!("{role}_{next}");
        let item = [("id", id.as_str()), ("type", kind), ("label", label), ("text", text)];
        all.push(Json::from(item.map(|(key, text)| (key, Json::from(text)))));
        next += 1;
    }
    all.drain(..all.len().saturating_sub(ITEMS_MAX));
    if let Some(dir) = path.parent() {
        swarm_sys::files::make_dirs(dir)?;
    }
    let text = Json::List(all).render();
    file::replace_lightly(&path, text.as_bytes())
}

fn next_number(items: &[Json], role: &str) -> u64 {
    let number = |item: &Json| text(item, "id").strip_prefix(role)?.strip_prefix('_')?.parse::<u64>().ok();
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
    fn items_are_numbered_and_consecutive_texts_are_merged() {
        let dir = tempfile::tempdir().expect("a directory");
        let add = |items: &[(Kind, &str)]| {
            let items: Vec<_> = items.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect();
            add(dir.path(), "dev_2", &items).expect("it can be written");
        };
        add(&[(Kind::Activation, "build (dev_2) is active."), (Kind::Assistant, "one"), (Kind::Assistant, "two")]);
        add(&[(Kind::Assistant, "three"), (Kind::Tool, "Bash: ls")]);
        let items = read(dir.path(), "dev_2");
        let shown: Vec<_> = items.iter().map(|item| (text(item, "id"), text(item, "text"))).collect();
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
    fn existing_items_are_preserved_and_the_oldest_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = path(dir.path(), "dev");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, r#"[{"id": "dev_41", "type": "reasoning", "label": "x", "text": "y", "more": 1}]"#)
            .unwrap();
        add(dir.path(), "dev", &[(Kind::User, "go on".to_owned())]).unwrap();
        let items = read(dir.path(), "dev");
        assert!(items[0].as_object().is_some_and(|item| item.has("more")));
        assert_eq!(text(&items[1], "id"), "dev_42");
        std::fs::write(&file, "torn").unwrap();
        assert!(add(dir.path(), "dev", &[(Kind::User, "x".to_owned())]).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "torn", "the file may just be rewritten");
        std::fs::remove_file(&file).unwrap();
        add(dir.path(), "dev", &vec![(Kind::Tool, "x".to_owned()); ITEMS_MAX + 3]).unwrap();
        let items = read(dir.path(), "dev");
        assert_eq!((items.len(), text(&items[0], "id")), (ITEMS_MAX, "dev_3"));
    }
}
