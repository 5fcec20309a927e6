//! `[run]` and `[agents.NAME]` of `swarm.toml` at the repository's root.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

use super::specs::NumberOrText;
use crate::adapters::landing::SWARM_TOML;
use crate::agents::AgentConfig;

/// The agent of specs that name none.
pub const AGENT: &str = "claude";
/// Jobs that are at work at the same time.
pub const LIMIT: usize = 20;
/// Attempts after the first.
pub const RETRIES: u32 = 1;

/// What holds for runs here, where nothing else is typed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    pub agent: Option<String>,
    pub limit: Option<usize>,
    /// The same of jobs of one group, by its name.
    pub groups: BTreeMap<String, usize>,
    pub retries: Option<u32>,
    /// Longest time of one attempt, as `600`, `10m`, `1h30m`.
    pub timeout: Option<NumberOrText>,
    pub fail_fast: Option<bool>,
    /// Folder of prompt templates, relative to the root.
    pub templates: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    pub run: RunConfig,
    pub agents: BTreeMap<String, AgentConfig>,
}

/// # Errors
/// A sentence with the file, the line and what is wrong there.
pub fn read(root: &Path) -> Result<Config, String> {
    let path = root.join(SWARM_TOML);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Config::default()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        format!("{}, line {line}: {}", path.display(), error.message())
    })
}
