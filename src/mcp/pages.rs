//! Pages of long outputs: the last lines first for logs and events, the first bytes first for patches.

use std::fmt::Write as _;

use serde_json::{Value, json};
use swarm_model::json::Members as _;
use swarm_sys::strip_ansi::Plain;

use super::show::{Answer, NOTE, TEXT_MAX, cut, number, quoted, shorten};

/// Maximum length in bytes of one line of a log.
const LINE_MAX: usize = 1_000;
/// Number of events of one answer.
pub const EVENTS: usize = 30;

/// How many of the last lines of each stream earlier answers had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    out: usize,
    err: usize,
}

impl Seen {
    /// Parses the cursor of `logs`.
    ///
    /// # Errors
    /// Fails if it is none.
    pub fn parse(cursor: Option<&str>) -> Result<Self, String> {
        let Some(cursor) = cursor else { return Ok(Self::default()) };
        let (out, err) = cursor.split_once('.').unwrap_or((cursor, "0"));
        Ok(Self { out: number(Some(out), "logs")?, err: number(Some(err), "logs")? })
    }

    /// Returns the number of lines to ask for, so that one more than `lines` new ones are among them.
    pub fn to_ask(self, lines: usize) -> usize {
        self.out.max(self.err).saturating_add(lines).saturating_add(1)
    }
}

/// Returns the lines of `logs --json` that come before those that earlier answers had.
pub fn log(name: &str, said: &str, lines: usize, seen: Seen) -> Answer {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    for line in said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let stream = if line.text("stream") == Some("stderr") { &mut err } else { &mut out };
        stream.push(plain(line.text("text").unwrap_or_default()));
    }
    let limit = if err.is_empty() { TEXT_MAX } else { TEXT_MAX / 2 };
    let (out, errors) = (page(&out, lines, seen.out, limit), page(&err, lines, seen.err, limit));
    let next = Seen { out: seen.out + out.shown, err: seen.err + errors.shown };
    let cursor = (out.more || errors.more).then(|| format!("{}.{}", next.out, next.err));
    let mut data = json!({"name": name, "note": NOTE, "text": out.text});
    if let Some(members) = data.as_object_mut() {
        if errors.shown > 0 {
            members.insert("stderr".to_owned(), json!(errors.text));
        }
        if let Some(cursor) = &cursor {
            members.insert("cursor".to_owned(), json!(cursor));
        }
    }
    let mut text = quoted(name, "output", &out.text).trim_start().to_owned();
    if errors.shown > 0 {
        text += &quoted(name, "standard error", &errors.text);
    }
    if let Some(cursor) = cursor {
        let _ = write!(text, "\n(older: cursor \"{cursor}\")");
    }
    Answer { text, data }
}

/// Lines of one stream.
struct Page {
    text: String,
    shown: usize,
    more: bool,
}

/// Returns the last lines before the last `seen` ones, at most `lines`, and at most `limit` bytes.
fn page(all: &[String], lines: usize, seen: usize, limit: usize) -> Page {
    let end = all.len().saturating_sub(seen);
    let (mut start, mut bytes) = (end, 0);
    while start > 0 && end - start < lines {
        bytes += all[start - 1].len() + 1;
        if bytes > limit && start < end {
            break;
        }
        start -= 1;
    }
    Page { text: all[start..end].join("\n"), shown: end - start, more: start > 0 }
}

/// Returns a line without control sequences.
fn plain(line: &str) -> String {
    let mut out = Vec::new();
    Plain::new().feed(line.as_bytes(), &mut out);
    let text = String::from_utf8_lossy(&out);
    cut(&text.chars().filter(|c| *c == '\t' || !c.is_control()).collect::<String>(), LINE_MAX)
}

/// Returns the last events before the last `seen` ones, from the lines of `events --json`.
pub fn events(said: &str, seen: usize) -> Answer {
    let all: Vec<String> = said.lines().map(str::to_owned).collect();
    let shown = page(&all, EVENTS, seen, TEXT_MAX);
    let cursor = shown.more.then(|| (seen + shown.shown).to_string());
    let mut events: Value = shown.text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    shorten(&mut events);
    let mut text = if shown.shown == 0 { "none".to_owned() } else { shown.text };
    let mut data = json!({"events": events});
    if let (Some(members), Some(cursor)) = (data.as_object_mut(), cursor) {
        let _ = write!(text, "\n(older: cursor \"{cursor}\")");
        members.insert("cursor".to_owned(), json!(cursor));
    }
    Answer { text, data }
}

/// Place in a patch: the commit that it leads to, and a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    tip: String,
    from: usize,
}

impl Place {
    /// Parses the cursor of `diff`.
    ///
    /// # Errors
    /// Fails if it is none.
    pub fn parse(cursor: &str) -> Result<Self, String> {
        let (tip, from) = cursor.split_once('.').unwrap_or((cursor, "x"));
        Ok(Self { tip: tip.to_owned(), from: number(Some(from), "diff")? })
    }
}

/// Returns the part of a patch at `place`; of one file if `path` is given.
///
/// # Errors
/// Fails if there is no such file, or if the work has changed since the first page.
pub fn patch(stat: &Value, patch: &str, path: Option<&str>, place: Option<&Place>) -> Result<Answer, String> {
    let (name, tip) = (stat.text("name").unwrap_or_default(), stat.text("tip").unwrap_or_default());
    if place.is_some_and(|place| !tip.starts_with(&place.tip) || place.tip.is_empty()) {
        return Err(format!("the work of '{name}' has changed since the first page; ask again without a cursor"));
    }
    let files = stat.list("files");
    let chosen = match path {
        Some(path) => {
            if !files.iter().any(|file| file.text("path") == Some(path)) {
                return Err(format!("'{name}' has no change of '{path}'"));
            }
            sections(patch).into_iter().find(|part| is_of(part, path)).unwrap_or_default()
        }
        None => patch,
    };
    let start = place.map_or(0, |place| place.from).min(chosen.len());
    let start = chosen.floor_char_boundary(start);
    let mut end = chosen.floor_char_boundary(start.saturating_add(TEXT_MAX).min(chosen.len()));
    if end < chosen.len() {
        // Whole lines, unless one line is longer than a page.
        end = chosen[start..end].rfind('\n').map_or(end, |at| start + at + 1);
    }
    let cursor = (end < chosen.len()).then(|| format!("{}.{end}", tip.get(..12).unwrap_or(tip)));
    let part = &chosen[start..end];
    let mut text = String::new();
    let mut data = json!({"name": name, "tip": tip, "note": NOTE, "patch": part});
    if let Some(members) = data.as_object_mut() {
        if start == 0 && path.is_none() {
            let mut listed = json!(files);
            shorten(&mut listed);
            members.insert("files".to_owned(), listed);
            members.insert("branch".to_owned(), json!(stat.text("branch")));
            members.insert("left_out".to_owned(), json!(stat.list("left_out")));
            text = summary(name, files);
        }
        if let Some(cursor) = &cursor {
            members.insert("cursor".to_owned(), json!(cursor));
        }
    }
    text += &quoted(name, "patch", part);
    if let Some(cursor) = cursor {
        let _ = write!(text, "\n({} of {} bytes; more: cursor \"{cursor}\")", end, chosen.len());
    }
    Ok(Answer { text: text.trim_start().to_owned(), data })
}

fn summary(name: &str, files: &[Value]) -> String {
    let mut text = format!("{name} changes {} files", files.len());
    for file in files.iter().take(100) {
        let count = |key: &str| file.whole(key).map_or_else(|| "-".to_owned(), |count| count.to_string());
        let _ = write!(text, "\n{} +{} -{}", file.text("path").unwrap_or_default(), count("added"), count("deleted"));
    }
    cut(&text, TEXT_MAX / 2)
}

/// Divides a patch into those of its files.
fn sections(patch: &str) -> Vec<&str> {
    let starts = patch.match_indices("diff --git ").map(|(at, _)| at);
    let mut starts: Vec<usize> = starts.filter(|at| *at == 0 || patch.as_bytes()[at - 1] == b'\n').collect();
    starts.push(patch.len());
    starts.windows(2).map(|pair| &patch[pair[0]..pair[1]]).collect()
}

/// Reports whether a section of a patch is of this file.
fn is_of(section: &str, path: &str) -> bool {
    let first = section.lines().next().unwrap_or_default();
    first == format!("diff --git a/{path} b/{path}") || first.ends_with(&format!(" b/{path}"))
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
