//! What is said to agents: templates, built in or from the repository's own folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::home::Home;
use swarm_config::Sections;

/// A template that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    Execution,
    Retry,
    /// After an attempt that was cut off, and did not fail.
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

    /// The text of it: the first that is in one of `folders`, else ours.
    ///
    /// # Errors
    /// When one is there and cannot be read.
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

/// Where a repository may have templates of its own.
pub fn folders(root: &Path, home: &Home, config: &Sections) -> Vec<PathBuf> {
    let own = config.run.templates.as_ref().map(|folder| root.join(folder));
    own.into_iter().chain([home.templates()]).collect()
}

/// Puts values in place of `{{key}}`. One pass: what a value holds is not looked at.
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
            // Somebody else's braces stay.
            _ => {
                text.push_str("{{");
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

/// The shared context as it goes into a prompt: nothing where there is none.
///
/// # Errors
/// When it is there and cannot be read.
pub fn context(specs: &Path) -> io::Result<String> {
    match fs::read_to_string(specs.join(super::specs::CONTEXT)) {
        Ok(text) => Ok(format!("\n# What holds for all tasks here\n\n{}\n", text.trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_once_and_foreign_braces_stay() {
        let values = [("a", "{{b}}"), ("b", "2")];
        assert_eq!(fill("{{a}} {{ b }} {{c}} {{", &values), "{{b}} 2 {{c}} {{");
    }

    #[test]
    fn a_template_of_the_repository_wins_over_ours() {
        let dir = tempfile::tempdir().expect("a directory");
        let folders = [dir.path().to_owned()];
        assert!(Template::Retry.load(&folders).expect("ours").contains("{{evidence}}"));
        fs::write(dir.path().join("retry.md"), "mine").expect("it is written");
        assert_eq!(Template::Retry.load(&folders).expect("theirs"), "mine");
    }
}
