//! Prompts for agents, made from templates: built-in ones or the repository's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::home::Home;
use swarm_config::Sections;

/// Template of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    Execution,
    Retry,
    /// For an attempt that follows an interrupted one, not a failed one.
    Continue,
    Conflict,
}

impl Template {
    fn file(self) -> &'static str {
        match self {
            Self::Execution => "execution.md",
            Self::Retry => "retry.md",
            Self::Continue => "continue.md",
            Self::Conflict => "conflict.md",
        }
    }

    fn built_in(self) -> &'static str {
        match self {
            Self::Execution => include_str!("templates/execution.md"),
            Self::Retry => include_str!("templates/retry.md"),
            Self::Continue => include_str!("templates/continue.md"),
            Self::Conflict => include_str!("templates/conflict.md"),
        }
    }

    /// Returns the template from the first of `folders` that has it, otherwise the built-in one.
    ///
    /// # Errors
    /// Fails if a template exists and cannot be read.
    pub fn load(self, folders: &[PathBuf]) -> io::Result<String> {
        for folder in folders {
            match fs::read_to_string(folder.join(self.file())) {
                Ok(text) => return Ok(text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(io::Error::new(
                        error.kind(),
                        format!("{}: {error}", folder.join(self.file()).display()),
                    ));
                }
            }
        }
        Ok(self.built_in().to_owned())
    }
}

/// Returns the folders that may contain templates of the repository, in order of precedence.
pub fn folders(root: &Path, home: &Home, config: &Sections) -> Vec<PathBuf> {
    let own = config.run.templates.as_ref().map(|folder| root.join(folder));
    own.into_iter().chain([home.templates()]).collect()
}

/// Replaces each known `{{key}}` by its value, in one pass: the values themselves are not expanded.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        text.push_str(before);
        match after.split_once("}}") {
            Some((key, behind)) if values.iter().any(|(known, _)| *known == key.trim()) => {
                let value = values.iter().find(|(known, _)| *known == key.trim()).map_or("", |(_, value)| value);
                text.push_str(value);
                rest = behind;
            }
            // Braces around unknown keys stay.
            _ => {
                text.push_str("{{");
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

/// Returns the shared context as a section of a prompt; empty if there is none.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn context(specs: &Path) -> io::Result<String> {
    match fs::read_to_string(specs.join(super::specs::CONTEXT)) {
        Ok(text) => Ok(format!("\n# Context for all tasks\n\n{}\n", text.trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_expanded_and_unknown_keys_stay() {
        let values = [("a", "{{b}}"), ("b", "2")];
        assert_eq!(fill("{{a}} {{ b }} {{c}} {{", &values), "{{b}} 2 {{c}} {{");
    }

    #[test]
    fn a_template_of_the_repository_overrides_the_built_in_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let folders = [dir.path().to_owned()];
        assert!(Template::Retry.load(&folders).expect("ours").contains("{{evidence}}"));
        fs::write(dir.path().join("retry.md"), "mine").expect("it is written");
        assert_eq!(Template::Retry.load(&folders).expect("theirs"), "mine");
    }
}
