//! Unknown keys of a configuration file, each with its line.

use std::ops::Range;

use swarm_model::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Owner, USER_FILE, keys};

/// Maximum number of problems that are reported for a file.
pub const PROBLEMS_MAX: usize = 20;

/// Problem in a configuration file.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub line: usize,
    pub cause: String,
}

/// Returns the line of a byte offset, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Returns all unknown or misplaced keys, sorted by line.
///
/// # Errors
/// Fails if the text is not valid TOML.
pub fn problems(text: &str, owner: Owner) -> Result<Vec<Problem>, toml::de::Error> {
    let table = DeTable::parse(text)?;
    let mut found = Vec::new();
    for (name, _) in table.get_ref() {
        if owner == Owner::Repository && keys::belongs_to(name.get_ref()) == Some(Owner::User) {
            let cause = format!("'{}' is allowed only in the user's own file, ~/.config/{USER_FILE}", name.get_ref());
            found.push(Problem { line: line_of(text, name.span().start), cause });
        }
    }
    walk(text, table.get_ref(), &mut Vec::new(), &mut found);
    found.sort_by_key(|problem| problem.line);
    Ok(found)
}

/// Returns the byte offset of a key, given by its full name.
pub fn place_of(text: &str, key: &str) -> Option<usize> {
    let (table, mut place) = (DeTable::parse(text).ok()?, None);
    let mut at = Some(table.get_ref());
    for part in key.split('.') {
        let (name, value) = at?.iter().find(|(name, _)| name.get_ref() == part)?;
        place = Some(name.span().start);
        at = value.get_ref().as_table();
    }
    place
}

/// Returns the place of the key, from the beginning of its line, and of its value that is at this byte offset.
pub fn entry_at(text: &str, offset: usize) -> Option<Range<usize>> {
    fn within(table: &DeTable<'_>, offset: usize) -> Option<Range<usize>> {
        table.iter().find_map(|(name, value)| match value.get_ref().as_table() {
            Some(below) => within(below, offset),
            None => value.span().contains(&offset).then(|| name.span().start..value.span().end),
        })
    }
    let entry = within(DeTable::parse(text).ok()?.get_ref(), offset)?;
    let line = text[..entry.start].rfind('\n').map_or(0, |end| end + 1);
    Some(line..entry.end)
}

/// Returns the full name of the key whose value is at this byte offset.
pub fn key_at(text: &str, offset: usize) -> Option<String> {
    fn within(table: &DeTable<'_>, offset: usize) -> Option<String> {
        table.iter().find_map(|(name, value)| match value.get_ref().as_table() {
            Some(below) => within(below, offset).map(|rest| format!("{}.{rest}", name.get_ref())),
            None => value.span().contains(&offset).then(|| name.get_ref().to_string()),
        })
    }
    within(DeTable::parse(text).ok()?.get_ref(), offset)
}

fn walk<'a>(text: &str, table: &'a DeTable<'_>, path: &mut Vec<&'a str>, found: &mut Vec<Problem>) {
    for (name, value) in table {
        if found.len() >= PROBLEMS_MAX {
            return;
        }
        let here: &'a str = name.get_ref();
        path.push(here);
        if keys::find(path).is_some() {
            // The type is checked by serde later.
        } else if !keys::is_section(path) {
            let cause = unknown(path);
            found.push(Problem { line: line_of(text, name.span().start), cause });
        } else if let Some(table) = table_in(value) {
            walk(text, table, path, found);
        } else {
            let cause = format!("'{}' is a section: write [{0}]", path.join("."));
            found.push(Problem { line: line_of(text, name.span().start), cause });
        }
        path.pop();
    }
}

fn table_in<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    value.get_ref().as_table()
}

fn unknown(path: &[&str]) -> String {
    let (last, above) = path.split_last().expect("the path has a name");
    let known = keys::below(above);
    let hint = match nearest(last, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("valid keys: {}", known.join(", ")),
    };
    format!("unknown key '{}' ({hint})", path.join(".").escape_debug())
}
