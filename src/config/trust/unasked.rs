//! Values of a repository's file that do not count because nobody was ever asked about their section.

use std::collections::BTreeMap;
use std::path::Path;

use swarm_sys::quoting::command_line;
use toml::Table;

use super::{Agreed, Project, guarded, joined};

/// Maximum number of keys that a refusal names.
const NAMED_MAX: usize = 3;

/// Values that do not count, by section. Empty outside of a repository, and if everything was asked about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unasked {
    /// Path of the project, to show.
    project: String,
    /// Path of the book that does not have them; empty if there is no place for one.
    book: String,
    keys: BTreeMap<String, Vec<String>>,
}

/// Refusal to execute what nobody agreed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untrusted {
    pub cause: String,
    pub remedy: String,
}

impl std::fmt::Display for Untrusted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} ({})", self.cause, self.remedy)
    }
}

impl Unasked {
    pub(crate) fn of(table: &Table, agreed: &Agreed, root: &Path, book: Option<&Path>) -> Self {
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        guarded(table, &mut Vec::new(), &mut |path, _| {
            if !agreed.sections.contains_key(&path[0]) {
                keys.entry(path[0].clone()).or_default().push(joined(path));
            }
        });
        if keys.is_empty() {
            return Self::default();
        }
        let project = Project::of(root).map_or_else(|_| root.display().to_string(), |project| project.named(root));
        let book = book.map_or_else(String::new, |book| book.display().to_string());
        Self { project, book, keys }
    }

    /// Makes sure that somebody was asked about these sections.
    ///
    /// # Errors
    /// Fails if one of them has values about which nobody was ever asked.
    pub fn require(&self, sections: &[&str]) -> Result<(), Untrusted> {
        let missing: Vec<&String> = sections.iter().filter_map(|one| self.keys.get(*one)).flatten().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let named = missing.iter().take(NAMED_MAX).map(|key| key.as_str()).collect::<Vec<_>>().join(", ");
        let more = missing.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let place = match self.book.as_str() {
            "" => "there is no configuration directory".to_owned(),
            book => format!("{named}{more} not in {book}"),
        };
        Err(Untrusted {
            cause: format!("{} of {} is not trusted: {place}", crate::FILE, self.project),
            remedy: format!("run 'swarm trust {}'", command_line([self.project.as_str()])),
        })
    }
}
