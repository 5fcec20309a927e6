//! Prompts for agents, made from templates: built-in ones or the repository's own.

use std::io;
use std::path::{Path, PathBuf};

use super::home::Home;
use crate::flows::read_text;
use swarm_agents::{Agent, Turn};
use swarm_config::Sections;
use swarm_model::asks::judge::Consent;

/// Maximum size of a template, or of the shared context, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

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
            if let Some(text) = text_of(&folder.join(self.file()))? {
                return Ok(text);
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

/// Returns the sentence that tells an agent whether a person can be asked.
pub fn questions(agent: &Agent, consent: Option<Consent>) -> &'static str {
    let turn = Turn { prompt: "", session: None, fresh_id: "", cwd: "", consent };
    match turn.may_ask() && agent.asks(&turn) {
        true => {
            "A person can answer what you ask, maybe only after hours: ask if you cannot decide something yourself, and \
             report your decisions at the end."
        }
        false => "Nobody can answer questions: decide yourself, and report your decisions at the end.",
    }
}

/// Returns the shared context as a section of a prompt; empty if there is none.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn context(specs: &Path) -> io::Result<String> {
    let text = text_of(&specs.join(super::specs::CONTEXT))?;
    Ok(text.map(|text| format!("\n# Context for all tasks\n\n{}\n", text.trim())).unwrap_or_default())
}

/// Returns the text of a file of the repository; `None` if it does not exist. A repository may contain a link to a device or
/// to a named pipe, which would be read for ever.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    read_text(path, TEXT_BYTES_MAX).map_err(named)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn values_are_not_expanded_and_unknown_keys_stay() {
        let values = [("a", "{{b}}"), ("b", "2")];
        assert_eq!(fill("{{a}} {{ b }} {{c}} {{", &values), "{{b}} 2 {{c}} {{");
    }

    #[test]
    fn an_agent_is_told_whether_a_person_can_be_asked() {
        let told = |name: &str, consent| questions(&Agent::find(name, &Default::default()).expect("known"), consent);
        assert!(told("claude", Some(Consent::PartialAccess)).starts_with("A person can answer"));
        for (name, consent) in
            [("claude", None), ("claude", Some(Consent::FullAccess)), ("gemini", Some(Consent::NoAccess))]
        {
            assert!(told(name, consent).starts_with("Nobody can answer questions"), "{name}");
        }
    }

    #[test]
    fn a_template_of_the_repository_overrides_the_built_in_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let folders = [dir.path().to_owned()];
        assert!(Template::Retry.load(&folders).expect("ours").contains("{{evidence}}"));
        fs::write(dir.path().join("retry.md"), "mine").expect("it is written");
        assert_eq!(Template::Retry.load(&folders).expect("theirs"), "mine");
    }

    #[test]
    fn a_link_to_a_device_or_a_pipe_or_a_large_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pipe, large) = (dir.path().join("pipe"), dir.path().join("large"));
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("made");
        fs::write(&large, vec![b'x'; 1 + (1 << 20)]).expect("it is written");
        let expected = ["not a regular file", "not a regular file", "not a regular file", "larger than 1048576 bytes"];
        let targets = ["/dev/zero".as_ref(), "/dev/ptmx".as_ref(), pipe.as_path(), large.as_path()];
        for (target, cause) in targets.into_iter().zip(expected) {
            let (context, template) = (dir.path().join("_context.md"), dir.path().join("execution.md"));
            symlink(target, &context).expect("made");
            symlink(target, &template).expect("made");
            let failed = super::context(dir.path()).expect_err("refused");
            assert_eq!(failed.to_string(), format!("{}: {cause}", context.display()));
            let failed = Template::Execution.load(&[dir.path().to_owned()]).expect_err("refused");
            assert_eq!(failed.to_string(), format!("{}: {cause}", template.display()));
            fs::remove_file(context).expect("removed");
            fs::remove_file(template).expect("removed");
        }
        symlink("_shared.md", dir.path().join("_context.md")).expect("made");
        fs::write(dir.path().join("_shared.md"), "of all").expect("it is written");
        assert!(super::context(dir.path()).expect("read").contains("of all"), "a link to a text is one");
    }
}
