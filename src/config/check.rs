//! Names that there are not, all of them at once, each with its line.

use swarm_model::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Owner, USER_FILE, keys};

/// A file with more is not what it is taken for.
const PROBLEMS_MAX: usize = 20;

#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub line: usize,
    pub cause: String,
}

/// The line of a byte, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// # Errors
/// When it is no TOML.
pub fn problems(text: &str, owner: Owner) -> Result<Vec<Problem>, toml::de::Error> {
    let table = DeTable::parse(text)?;
    let mut found = Vec::new();
    for (name, _) in table.get_ref() {
        if owner == Owner::Repository && keys::belongs_to(name.get_ref()) == Some(Owner::User) {
            let cause = format!("'{}' belongs into the user's own file, ~/.config/{USER_FILE}", name.get_ref());
            found.push(Problem { line: line_of(text, name.span().start), cause });
        }
    }
    walk(text, table.get_ref(), &mut Vec::new(), &mut found);
    found.sort_by_key(|problem| problem.line);
    Ok(found)
}

/// Where a key stands, by its whole name.
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

/// The name of the key whose value is there.
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
            // Its type is looked at by whoever reads it.
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
    let (last, above) = path.split_last().expect("a name was found there");
    let known = keys::below(above);
    let hint = match nearest(last, known.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => format!("there are {}", known.join(", ")),
    };
    format!("there is no key '{}' ({hint})", path.join(".").escape_debug())
}
