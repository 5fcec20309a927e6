//! Values of a repository's file that do not count because nobody was ever asked about their section.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use swarm_sys::quoting::command_line;
use toml::Table;

use super::{Agreed, Project, book_path_in, guarded, joined};

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
    /// Path of the book that was read; empty if there is no place for one.
    book: String,
}

impl Untrusted {
    /// Returns the refusal for somebody with this environment. `swarm trust` writes to the book that it names; if this
    /// process reads another one, the remedy says how it is started again.
    #[must_use]
    pub fn to(self, environment: &[(String, String)]) -> Self {
        let value = |name: &str| {
            let (_, value) = environment.iter().rev().find(|(key, _)| key == name)?;
            Some(PathBuf::from(value)).filter(|value| !value.as_os_str().is_empty())
        };
        match book_path_in(value("XDG_CONFIG_HOME"), value("HOME")) {
            Some(theirs) if !self.book.is_empty() && theirs != Path::new(&self.book) => {
                let remedy = format!(
                    "{}, then 'swarm supervisor restart': the supervisor was started with another configuration \
                     directory than yours, which has {}",
                    self.remedy,
                    theirs.display()
                );
                Self { remedy, ..self }
            }
            _ => self,
        }
    }
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
            book: self.book.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_another_book_is_told_how_the_supervisor_reads_it() {
        let book = "/c/swarm/trust.json".to_owned();
        let untrusted = Untrusted { cause: "c".to_owned(), remedy: "run 'swarm trust /r'".to_owned(), book };
        let seen_by = |environment: &[(&str, &str)]| {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            untrusted.clone().to(&environment.iter().map(pair).collect::<Vec<_>>()).remedy
        };
        for same in [&[("XDG_CONFIG_HOME", "/c")][..], &[], &[("XDG_CONFIG_HOME", "/c"), ("HOME", "/h")]] {
            assert_eq!(seen_by(same), untrusted.remedy, "{same:?}");
        }
        for (other, theirs) in [
            (&[("XDG_CONFIG_HOME", "/d")][..], "/d/swarm/trust.json"),
            (&[("HOME", "/h")], "/h/.config/swarm/trust.json"),
            (&[("XDG_CONFIG_HOME", ""), ("HOME", "/h")], "/h/.config/swarm/trust.json"),
        ] {
            let remedy = seen_by(other);
            assert!(remedy.contains("then 'swarm supervisor restart'") && remedy.ends_with(theirs), "{remedy}");
        }
    }
}
