//! Reads a folder of specs. Each `*.md` file is one workstream, named after the file. Only a text is required;
//! front matter holds the settings.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use swarm_sys::duration::NumberOrText;
use swarm_sys::files;
use swarm_sys::paths::digest;

/// Maximum size of a spec in bytes; more is not useful as a prompt.
const SPEC_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a description in characters.
const DESCRIPTION_CHARS_MAX: usize = 500;
/// File that is included in every prompt.
pub const CONTEXT: &str = "_context.md";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    pub id: String,
    pub path: PathBuf,
    pub title: String,
    pub description: String,
    /// SHA-256 of the whole file, in hex.
    pub digest: String,
    pub front: FrontMatter,
    /// Text without the front matter.
    pub body: String,
}

/// Settings of a workstream.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontMatter {
    pub adapter: Option<String>,
    pub required_capabilities: Vec<String>,
    pub after: OneOrMany,
    pub priority: i32,
    pub group: Option<String>,
    /// Tags that a host must have.
    pub on: OneOrMany,
    /// Time limit in seconds, or a duration such as `10m`.
    pub timeout: Option<NumberOrText>,
    pub retries: Option<u32>,
    pub verify: Option<String>,
    pub merge: Option<bool>,
    #[serde(flatten)]
    pub others: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl OneOrMany {
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }
}

/// Content of a folder of specs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folder {
    pub specs: Vec<Spec>,
    /// Notes about ignored files and keys.
    pub notes: Vec<String>,
}

/// Reads all specs of a folder, in the order of their file names.
///
/// # Errors
/// Returns the first problem with its file, and a hint if there is one.
pub fn read(dir: &Path) -> Result<Folder, (String, Option<String>)> {
    let named = |error: io::Error| (format!("{}: {error}", dir.display()), None);
    let mut folder = Folder::default();
    let mut files = Vec::new();
    for entry in files::list(dir).map_err(named)? {
        let path = entry.path();
        if is_hidden(&path) {
            continue;
        }
        if path.is_dir() {
            if has_markdown(&path) {
                folder.notes.push(format!("{}: specs in subdirectories are ignored", path.display()));
            }
        } else if is_markdown(&path) {
            files.push(path);
        }
    }
    files.sort();
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in files {
        let spec = read_one(&path)?;
        // Other file systems may not distinguish case in names of branches and directories.
        if let Some(other) = seen.insert(spec.id.to_lowercase(), path.clone()) {
            let cause = format!("{} and {} have the same name '{}'", other.display(), path.display(), spec.id);
            return Err((cause, Some("rename one of them".to_owned())));
        }
        let unknown: Vec<&str> = spec.front.others.keys().map(String::as_str).collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            folder.notes.push(format!("{}: unknown keys in the front matter: {unknown}", path.display()));
        }
        folder.specs.push(spec);
    }
    Ok(folder)
}

/// Returns the names of the specs of a folder, without reading the files.
pub fn names(dir: &Path) -> Vec<String> {
    let paths = files::list(dir).into_iter().flatten().map(|entry| entry.path());
    let specs = paths.filter(|path| !is_hidden(path) && is_markdown(path) && path.is_file());
    specs.filter_map(|path| path.file_stem()?.to_str().map(str::to_owned)).collect()
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['_', '.']))
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("md"))
}

fn has_markdown(dir: &Path) -> bool {
    files::list(dir).is_ok_and(|entries| entries.iter().any(|entry| is_markdown(&entry.path())))
}

/// Reads one spec.
///
/// # Errors
/// Returns the first problem, and a hint if there is one.
pub fn read_one(path: &Path) -> Result<Spec, (String, Option<String>)> {
    let shown = path.display();
    let plain = |cause: String| (format!("{shown}: {cause}"), None);
    let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
    check_id(&id).map_err(|cause| (format!("{shown}: {cause}"), Some("rename the file".to_owned())))?;
    let meta = fs::metadata(path).map_err(|error| plain(error.to_string()))?;
    if !meta.is_file() {
        return Err(plain("not a regular file".to_owned()));
    }
    if meta.len() > SPEC_BYTES_MAX {
        let remedy = "shorten the spec; name files instead of quoting them".to_owned();
        return Err((format!("{shown}: {} bytes long (limit {SPEC_BYTES_MAX})", meta.len()), Some(remedy)));
    }
    let bytes = fs::read(path).map_err(|error| plain(error.to_string()))?;
    let digest = digest(&bytes, usize::MAX);
    let text = String::from_utf8(bytes).map_err(|_| plain("not valid UTF-8".to_owned()))?;
    if text.contains('\0') {
        return Err(plain("contains a NUL byte".to_owned()));
    }
    let (front, body) = split(&text);
    if front.is_none() && is_unclosed(body) {
        let remedy = "end the settings with a line ---".to_owned();
        return Err((format!("{shown}, line 1: the front matter is not closed"), Some(remedy)));
    }
    let front = match front {
        Some(yaml) => parse_front(yaml).map_err(|cause| plain(format!("invalid front matter: {cause}")))?,
        None => FrontMatter::default(),
    };
    if body.trim().is_empty() {
        return Err((format!("{shown}: the spec is empty"), Some("describe what to do".to_owned())));
    }
    let title = title(body).unwrap_or_else(|| id.replace(['-', '_'], " "));
    let description = description(body);
    Ok(Spec { id, path: path.to_owned(), title, description, digest, front, body: body.to_owned() })
}

/// Checks that an id can be part of the names of a branch, a directory and a log file.
///
/// # Errors
/// Returns what is wrong with it.
pub fn check_id(id: &str) -> Result<(), String> {
    const ID_BYTES_MAX: usize = 120;
    if id.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if id.len() > ID_BYTES_MAX {
        return Err(format!("the name is {} bytes long (limit {ID_BYTES_MAX})", id.len()));
    }
    if !id.chars().any(char::is_alphanumeric) {
        return Err(format!("the name '{id}' has no letter or digit"));
    }
    let odd = id.chars().any(|c| c.is_control() || matches!(c, '/' | '\\'));
    if odd || !swarm_git::repository::is_branch_name(&format!("arial/{id}")) {
        return Err(format!("'arial/{id}' is not a valid branch name"));
    }
    Ok(())
}

/// Splits a text into the front matter, which is enclosed in two lines `---`, and the rest.
fn split(text: &str) -> (Option<&str>, &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(rest) = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")) else { return (None, text) };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return (Some(&rest[..at]), &rest[at + line.len()..]);
        }
        at += line.len();
    }
    (None, text)
}

/// Reports whether a text starts with settings that no line `---` ends. A text may also start with a horizontal rule.
fn is_unclosed(text: &str) -> bool {
    let mut lines = text.lines();
    let is_open = lines.next().is_some_and(|line| line == "---");
    let first = lines.find(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_key = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    is_open && first.split_once(':').is_some_and(|(key, _)| is_key(key))
}

/// Parses front matter. The parser limits depth, aliases and size, which defeats alias bombs.
fn parse_front(yaml: &str) -> Result<FrontMatter, String> {
    if yaml.trim().is_empty() {
        return Ok(FrontMatter::default());
    }
    // The newline stands for the first `---`, so that line numbers match the file.
    serde_saphyr::from_str(&format!("\n{yaml}")).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}

fn title(body: &str) -> Option<String> {
    let heading = text_lines(body).find_map(|line| line.strip_prefix("# "))?.trim().trim_end_matches('#').trim();
    Some(heading.to_owned()).filter(|title| !title.is_empty())
}

/// Returns the first paragraph after the heading, or of the text without one, as one line.
fn description(body: &str) -> String {
    let before =
        if title(body).is_some() { text_lines(body).take_while(|line| !line.starts_with("# ")).count() + 1 } else { 0 };
    let after = text_lines(body).skip(before);
    let paragraph = after.skip_while(|line| line.trim().is_empty() || line.starts_with('#'));
    let words: Vec<&str> =
        paragraph.take_while(|line| !line.trim().is_empty() && !line.starts_with('#')).map(str::trim).collect();
    words.join(" ").chars().take(DESCRIPTION_CHARS_MAX).collect()
}

/// Returns the lines outside fenced code blocks.
fn text_lines(body: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    body.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        fenced ^= fence;
        !fenced && !fence
    })
}

#[cfg(test)]
#[path = "specs_tests.rs"]
mod tests;
