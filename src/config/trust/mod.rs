//! Consent of a person to what a repository's files execute, set or permit.
//!
//! ```text
//! swarm.toml, specs, .mcp.json -> entries, by section -> compared with the book -> changes that need consent
//! ```
//!
//! The book (`~/.config/swarm/trust.json`) holds, for each project, the values that a person agreed to. Entries count only
//! as recorded there, whatever the files say: work that lands, or an agent in the project's folder, cannot extend what
//! was agreed to. A section that the book contains is *settled*: new values in it wait for consent, and what is running
//! goes on as agreed. Verbs settle the sections that they use before they start anything. If a section is not settled and
//! has entries, nobody was ever asked: whatever would execute it is refused ([`Unasked`]). This is work that an earlier
//! version started, a supervisor with another book, and a project after `swarm trust --revoke`.

mod above;
mod book;
mod index;
mod nested;
mod packages;
mod place;
mod unasked;

#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::path::Path;

use swarm_sys::files::list;
use toml::{Table, Value};

use super::{Owner, keys, layer};

pub use self::book::{Agreed, Book, agree, book_path, book_path_in, recorded, revoke, settle, user_book};
pub use self::place::{Project, root_of, shown};
pub use self::unasked::{Unasked, Untrusted};

/// Section of entries about `claude`: files that it loads from a repository.
pub const CLAUDE: &str = "claude";
/// Section of entries about `codex`.
pub const CODEX: &str = "codex";
/// Section of entries about `gemini`.
pub const GEMINI: &str = "gemini";
/// Section of entries about `qwen`.
pub const QWEN: &str = "qwen";
/// Section of entries about `aider`.
pub const AIDER: &str = "aider";
/// Section of entries about `opencode`.
pub const OPENCODE: &str = "opencode";
/// Sections of agents that load files from a repository.
pub const AGENTS: [&str; 6] = [CLAUDE, CODEX, GEMINI, QWEN, AIDER, OPENCODE];
/// Section of entries about specs.
pub const SPECS: &str = "specs";
/// Sections of `swarm.toml` that have entries.
pub const SETTINGS: [&str; 7] = ["agents", "flow", "merge", "run", "spawn", "trash", "worktree"];

/// Files that an agent loads from a repository, with the section of their entries. They define hooks, servers that the
/// agent starts, and variables.
pub const AGENT_FILES: [(&str, &str); 18] = [
    (CLAUDE, ".claude/settings.json"),
    (CLAUDE, ".claude/settings.local.json"),
    (CLAUDE, ".mcp.json"),
    (GEMINI, ".gemini/settings.json"),
    (GEMINI, ".gemini/.env"),
    (GEMINI, ".env"),
    (QWEN, ".qwen/settings.json"),
    // Read in place of settings that cannot be read.
    (QWEN, ".qwen/settings.json.orig"),
    (QWEN, ".qwen/.env"),
    (QWEN, ".lsp.json"),
    (QWEN, ".env"),
    (AIDER, ".aider.conf.yml"),
    (AIDER, ".aider.model.settings.yml"),
    (AIDER, ".env"),
    (OPENCODE, "opencode.json"),
    (OPENCODE, "opencode.jsonc"),
    (OPENCODE, "tui.json"),
    (OPENCODE, "tui.jsonc"),
];

/// Directories of texts that an agent loads from a repository, with the section of their entries. A text may define hooks
/// in its front matter, or allow tools without a question. codex reads its settings, hooks, rules and agents from one
/// directory; further kinds of files are likely to come.
const AGENT_FOLDERS: [(&str, &str); 13] = [
    (CODEX, ".codex"),
    (CODEX, ".agents/skills"),
    (OPENCODE, ".opencode"),
    (CLAUDE, ".claude/agents"),
    (CLAUDE, ".claude/commands"),
    (CLAUDE, ".claude/skills"),
    (GEMINI, ".agents/skills"),
    (GEMINI, ".gemini/agents"),
    (GEMINI, ".gemini/policies"),
    (GEMINI, ".gemini/skills"),
    (QWEN, ".agents/skills"),
    (QWEN, ".qwen/agents"),
    (QWEN, ".qwen/skills"),
];
/// File of variables. Its text is not shown, because it may contain keys.
const VARIABLES: &str = ".env";
/// Ends of the names of those texts, in any case. codex executes what its rules allow outside of its sandbox, and installs
/// the servers that a skill's `agents/openai.yaml` names.
const TEXTS: [&str; 6] = [".md", ".rules", ".toml", ".json", ".yaml", ".yml"];
/// Ends of the names in `.opencode` that opencode loads. It executes the scripts among them as plugins and tools.
const TEXTS_OPENCODE: [&str; 7] = [".md", ".json", ".jsonc", ".js", ".ts", ".mjs", ".cjs"];
/// Folder of the packages of opencode.
const PACKAGES: &str = ".opencode/node_modules";
/// Folders in `.opencode` that are not searched: the packages, which opencode installs itself unless git tracks them, and the
/// plans that it writes.
const NOT_LOADED: [&str; 2] = ["node_modules", "plans"];
/// Maximum depth of such a directory. Symbolic links in it are followed, as by the agent.
const DEPTH_MAX: usize = 8;
/// Maximum number of files and directories in such a directory.
const NAMES_MAX: usize = 10_000;

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Executes something.
    Command,
    /// Sets an environment variable.
    Variable,
    /// Changes what an agent may do.
    Permission,
}

/// Value in a file of a repository that counts only after a person agreed to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub section: String,
    /// Name of the file, relative to the root.
    pub source: String,
    /// Full name of the key, unique in its section.
    pub key: String,
    /// Recorded value: that of the key, or a digest.
    pub value: Value,
    /// Value to show.
    pub text: String,
    pub effect: Effect,
}

impl Entry {
    /// Returns the entry of a text that is recorded by its digest.
    pub fn of_text(section: &str, source: &str, what: &str, text: &str) -> Self {
        Self {
            section: section.to_owned(),
            source: source.to_owned(),
            key: format!("{source} {what}"),
            value: digest(text.as_bytes()),
            text: text.to_owned(),
            effect: Effect::Command,
        }
    }

    /// Returns the entry of a text that a file does not have. It counts only if one is recorded.
    pub fn of_none(section: &str, source: &str, what: &str) -> Self {
        Self { value: Value::Boolean(false), text: String::new(), ..Self::of_text(section, source, what, "") }
    }

    /// Reports whether this is what [`Entry::of_none`] returns.
    pub fn is_none(&self) -> bool {
        self.value == Value::Boolean(false) && self.section == SPECS
    }
}

/// Returns the value that is recorded for bytes.
pub fn digest(bytes: &[u8]) -> Value {
    Value::String(format!("sha256:{}", swarm_sys::paths::digest(bytes, usize::MAX)))
}

/// Difference between the files and what was agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Agreed,
    New,
    Changed,
    /// Recorded and no longer set. It still applies, unless it is of a spec.
    Removed,
}

/// Returns the entries of the `swarm.toml` in `root`, sorted by key.
///
/// # Errors
/// Fails with the first problem in the file.
pub fn settings(root: &Path) -> Result<Vec<Entry>, String> {
    let read = layer(&root.join(super::FILE), Owner::Repository);
    let Some(layer) = super::first(read)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    guarded(&layer.table, &mut Vec::new(), &mut |path, value| {
        found.push(Entry {
            section: path[0].clone(),
            source: super::FILE.to_owned(),
            key: joined(path),
            value: value.clone(),
            text: serde_json::to_string(value).unwrap_or_default(),
            effect: effect(path).unwrap_or(Effect::Command),
        });
    });
    found.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(found)
}

/// Returns the names of the files and directories that agents of a section load.
pub fn agent_places(section: &str) -> impl Iterator<Item = &'static str> {
    AGENT_FILES.iter().chain(&AGENT_FOLDERS).filter(move |(of, _)| *of == section).map(|(_, name)| *name)
}

/// Returns the entries of the files that agents load from `root`, for these sections.
///
/// # Errors
/// Fails if a file exists and cannot be read.
pub fn agent_files(root: &Path, sections: &[&str]) -> Result<Vec<Entry>, String> {
    let mut found = Vec::new();
    loaded(root, "", sections, &|_| true, &mut found)?;
    let is_nested = |name: &str| name.starts_with(nested::FOLDER);
    if sections.contains(&CLAUDE) {
        for dir in nested::dirs(root)? {
            loaded(root, &format!("{dir}/"), &[CLAUDE], &is_nested, &mut found)?;
        }
    }
    for dir in above::OF_WORKTREES {
        loaded(root, &format!("{dir}/"), sections, &|name| !is_nested(name), &mut found)?;
    }
    Ok(found)
}

/// Adds the entries of the files that agents load from one directory: `root`, or `below` it, with a slash at its end.
/// `is_read` tells which files and folders count, by their names in that directory.
fn loaded(
    root: &Path,
    below: &str,
    sections: &[&str],
    is_read: &dyn Fn(&str) -> bool,
    found: &mut Vec<Entry>,
) -> Result<(), String> {
    let mut add = |section: &str, name: String| {
        let path = root.join(&name);
        let text = super::file::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        found.extend(text.map(|text| {
            let mut entry = Entry { key: name.clone(), ..Entry::of_text(section, &name, "", &text) };
            if name.ends_with(VARIABLES) {
                entry.text = format!("(variables, {} bytes, not shown)", text.len());
                entry.effect = Effect::Variable;
            }
            entry
        }));
        Ok::<_, String>(())
    };
    let counts = |(section, name): &&(&str, &str)| sections.contains(section) && is_read(name);
    for (section, name) in AGENT_FILES.iter().filter(counts) {
        add(section, format!("{below}{name}"))?;
    }
    for (section, folder) in AGENT_FOLDERS.iter().filter(counts) {
        let mut names = Vec::new();
        let ends: &[&str] = if *section == OPENCODE { &TEXTS_OPENCODE } else { &TEXTS };
        texts(root, format!("{below}{folder}"), ends, DEPTH_MAX, &mut names)?;
        names.sort();
        names.into_iter().try_for_each(|name| add(section, name))?;
    }
    if counts(&&(OPENCODE, PACKAGES)) {
        found.extend(packages::tracked(root, &format!("{below}{PACKAGES}"))?);
    }
    Ok(())
}

/// Adds the paths of the texts in a directory and below it, relative to `root`: the files whose names end with one of `ends`.
///
/// # Errors
/// Fails if the directory is too large or too deep, contains a name that is not UTF-8, or cannot be read.
fn texts(root: &Path, folder: String, ends: &[&str], depth: usize, names: &mut Vec<String>) -> Result<(), String> {
    let dir = root.join(&folder);
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let listed = match list(&dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        listed => listed.map_err(failed)?,
    };
    if depth == 0 {
        return Err(format!("{}: more than {DEPTH_MAX} levels of directories", dir.display()));
    }
    for (number, file) in listed.into_iter().enumerate() {
        let name = file.file_name();
        let Some(name) = name.to_str().filter(|_| number < NAMES_MAX) else {
            return Err(format!("{}: too many files, or a name that is not UTF-8", dir.display()));
        };
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            let is_skipped = ends == TEXTS_OPENCODE && depth == DEPTH_MAX && NOT_LOADED.contains(&name);
            if !is_skipped {
                texts(root, path, ends, depth - 1, names)?;
            }
        } else if ends.iter().any(|end| name.to_ascii_lowercase().ends_with(end)) {
            names.push(path);
        }
    }
    Ok(())
}

/// Reports whether the files that agents of a section load from `dir`, a worktree or folder of the project of `root`, and
/// from the directories of the project above it, are those that a person agreed to.
///
/// # Errors
/// Fails if the files or the book cannot be read.
pub fn loads_as_agreed(root: &Path, dir: &Path, section: &str) -> Result<bool, String> {
    if super::ignores_user() {
        return Ok(true);
    }
    match book_path() {
        Some(book) => loads_as_agreed_in(&book, root, dir, section),
        None => loads_nothing(root, dir, section),
    }
}

/// Reports whether agents of a section load no files from `dir` and from the directories above it.
///
/// # Errors
/// Fails if the files cannot be read.
pub fn loads_nothing(root: &Path, dir: &Path, section: &str) -> Result<bool, String> {
    Ok(agent_files(dir, &[section])?.is_empty() && above::files(root, dir, section)?.is_empty())
}

/// Like [`loads_as_agreed`], with this book.
///
/// # Errors
/// Fails as [`loads_as_agreed`] does.
pub fn loads_as_agreed_in(book: &Path, root: &Path, dir: &Path, section: &str) -> Result<bool, String> {
    let agreed = recorded(book, root)?;
    let is_agreed = |files: &[Entry]| {
        let all = compare(agreed.as_ref(), &[section], files);
        all.iter().all(|(status, _)| *status == Status::Agreed)
    };
    Ok(is_agreed(&agent_files(dir, &[section])?) && is_agreed(&above::files(root, dir, section)?))
}

/// Compares entries with what was agreed to, for these sections. Sorted by section and key.
pub fn compare(agreed: Option<&Agreed>, sections: &[&str], entries: &[Entry]) -> Vec<(Status, Entry)> {
    let known = |section: &str, key: &str| agreed?.sections.get(section)?.get(key);
    let status = |entry: &Entry| match known(&entry.section, &entry.key) {
        None => Status::New,
        Some(_) if entry.is_none() => Status::Removed,
        Some(value) if *value == entry.value => Status::Agreed,
        Some(_) => Status::Changed,
    };
    let counts = |entry: &&Entry| !entry.is_none() || known(&entry.section, &entry.key).is_some();
    let ours = entries.iter().filter(|entry| sections.contains(&entry.section.as_str())).filter(counts);
    let mut all: Vec<(Status, Entry)> = ours.map(|entry| (status(entry), entry.clone())).collect();
    for (section, values) in agreed.iter().flat_map(|agreed| &agreed.sections) {
        let is_set = |key: &str| entries.iter().any(|entry| entry.section == *section && entry.key == *key);
        for (key, value) in values.iter().filter(|(key, _)| stays(key) && !is_set(key)) {
            if sections.contains(&section.as_str()) {
                let (key, text) = (key.clone(), serde_json::to_string(value).unwrap_or_default());
                let (section, source, value) = (section.clone(), super::FILE.to_owned(), value.clone());
                let effect = effect(&split(&key)).unwrap_or(Effect::Command);
                all.push((Status::Removed, Entry { section, source, key, value, text, effect }));
            }
        }
    }
    all.sort_by(|(_, one), (_, other)| (&one.section, &one.key).cmp(&(&other.section, &other.key)));
    all
}

/// Reports whether a recorded value still applies after it was removed from the file, until a person agrees: without it,
/// work would land unverified, or an agent would leave its sandbox or get more rights.
fn stays(key: &str) -> bool {
    key == "merge.verify" || ["agents.", "flow.", "run."].iter().any(|section| key.starts_with(section))
}

/// Reports whether the project of `root` has recorded agents and roles, which still apply if its `swarm.toml` is removed.
///
/// # Errors
/// Fails if the book or the project cannot be read.
pub fn has_lasting_agents(root: &Path) -> Result<bool, String> {
    let Some(book) = user_book() else { return Ok(false) };
    let agreed = recorded(&book, root)?;
    let has = |agreed: Agreed| {
        ["agents", "flow"].iter().any(|one| agreed.sections.get(*one).is_some_and(|of| !of.is_empty()))
    };
    Ok(agreed.is_some_and(has))
}

/// Returns the table of a `swarm.toml` with its entries as they were agreed to.
pub(super) fn limited(mut table: Table, agreed: &Agreed) -> Table {
    let mut set: Vec<(String, Vec<String>)> = Vec::new();
    guarded(&table, &mut Vec::new(), &mut |path, _| set.push((joined(path), path.to_vec())));
    for (_, path) in &set {
        put(&mut table, path, None);
    }
    for (_, values) in agreed.sections.iter().filter(|(section, _)| SETTINGS.contains(&section.as_str())) {
        for (key, value) in values.iter().filter(|(key, _)| stays(key) || set.iter().any(|(other, _)| other == *key)) {
            put(&mut table, &split(key), Some(value.clone()));
        }
    }
    table
}

/// Calls `found` with each entry of a table, and with its path.
fn guarded(table: &Table, path: &mut Vec<String>, found: &mut impl FnMut(&[String], &Value)) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            _ if effect(path).is_some() => found(path, value),
            Value::Table(below) => guarded(below, path, found),
            _ => {}
        }
        path.pop();
    }
}

fn effect(path: &[String]) -> Option<Effect> {
    keys::effect(&path.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Sets or removes the value of a key.
fn put(table: &mut Table, path: &[String], value: Option<Value>) {
    let Some((last, above)) = path.split_last() else { return };
    let mut at = table;
    for name in above {
        let below = at.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(below) = below else { return };
        at = below;
    }
    match value {
        Some(value) => drop(at.insert(last.clone(), value)),
        None => drop(at.remove(last)),
    }
}

/// Returns the full name of a key. Names that contain more than letters, digits, `_` and `-` are quoted, as in TOML.
fn joined(path: &[String]) -> String {
    let is_plain = |name: &String| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let quoted = |name: &String| serde_json::to_string(name).unwrap_or_default();
    path.iter().map(|name| if is_plain(name) { name.clone() } else { quoted(name) }).collect::<Vec<_>>().join(".")
}

/// Returns the names of a key that [`joined`] returned.
fn split(key: &str) -> Vec<String> {
    let (mut names, mut rest) = (Vec::new(), key);
    while !rest.is_empty() {
        let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let (name, used) = match rest.starts_with('"').then(|| quoted.next()).flatten() {
            Some(Ok(name)) => (name, quoted.byte_offset()),
            _ => {
                let end = rest.find('.').unwrap_or(rest.len());
                (rest[..end].to_owned(), end)
            }
        };
        names.push(name);
        rest = rest[used..].strip_prefix('.').unwrap_or_default();
    }
    names
}
