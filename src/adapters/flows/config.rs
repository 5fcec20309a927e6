//! `[flow]` of `swarm.toml`: which agent plays which role.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::adapters::landing::SWARM_TOML;
use crate::adapters::runs::specs::NumberOrText;
use crate::agents::{Agent, AgentConfig};
use crate::duration;

/// The agent of roles of which nothing is said.
const AGENT: &str = "claude";
/// How often a turn may be sent back to its agent.
const REPAIRS: u32 = 3;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    pub flow: FlowConfig,
    agents: BTreeMap<String, AgentConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowConfig {
    agent: Option<String>,
    repairs: Option<u32>,
    timeout: Option<NumberOrText>,
    /// What the flow came to goes into the merge queue of its base when it is over.
    pub merge: bool,
    /// By role, `dev`, or by one instance of it, `dev_2`.
    roles: BTreeMap<String, RoleConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RoleConfig {
    /// Of `[agents.NAME]`, or a built-in one.
    agent: Option<String>,
    /// What is executed for this role alone, as in `[agents.NAME]`.
    command: Option<Vec<String>>,
    arguments: Vec<String>,
    model: Option<String>,
    env: BTreeMap<String, String>,
    mode: Mode,
    timeout: Option<NumberOrText>,
    repairs: Option<u32>,
    #[serde(rename = "unsafe")]
    is_unsafe: bool,
}

/// Where a role's turns take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Child,
    Tmux,
}

/// Who plays a role, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    pub agent: Agent,
    pub mode: Mode,
    pub timeout_ms: Option<u64>,
    pub repairs: u32,
    /// It may be played by a program that nothing holds back, also where nothing is
    /// allowed without asking.
    pub is_unsafe: bool,
}

impl Config {
    /// From the first of these folders that has the file.
    ///
    /// # Errors
    /// A sentence with the file, the line and what is wrong there.
    pub fn read<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Self, String> {
        for folder in folders {
            let path = folder.join(SWARM_TOML);
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    continue;
                }
                Err(error) => return Err(format!("{}: {error}", path.display())),
            };
            return toml::from_str(&text).map_err(|error| {
                let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
                format!("{}, line {line}: {}", path.display(), error.message())
            });
        }
        Ok(Self::default())
    }

    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn player(&self, role: &str) -> Result<Player, String> {
        let base = role.split('_').next().unwrap_or(role);
        let none = RoleConfig::default();
        let of = self.flow.roles.get(role).or_else(|| self.flow.roles.get(base)).unwrap_or(&none);
        let name = of.agent.as_deref().or(self.flow.agent.as_deref()).unwrap_or(AGENT);
        let mut agent = match &of.command {
            // Without an agent's name it is one of its own.
            Some(command) => {
                let name = of.agent.as_deref().unwrap_or(base);
                let known = self.agents.get(name).cloned().unwrap_or_default();
                let own = AgentConfig { command: Some(command.clone()), ..known };
                Agent::find(name, &BTreeMap::from([(name.to_owned(), own)]))
            }
            None => Agent::find(name, &self.agents),
        }
        .map_err(|cause| format!("role '{role}': {cause}"))?;
        agent.config.arguments.extend(of.arguments.iter().cloned());
        agent.config.env.extend(of.env.clone());
        if let Some(model) = &of.model {
            agent.config.model = Some(model.clone());
        }
        let timeout = of.timeout.as_ref().or(self.flow.timeout.as_ref());
        let timeout = timeout.map(|timeout| duration::parse_positive(&timeout.text())).transpose();
        let timeout = timeout.map_err(|cause| format!("role '{role}': timeout: {cause}"))?;
        Ok(Player {
            agent,
            mode: of.mode,
            timeout_ms: timeout.as_ref().map(Duration::as_millis).and_then(|ms| u64::try_from(ms).ok()),
            repairs: of.repairs.or(self.flow.repairs).unwrap_or(REPAIRS),
            is_unsafe: of.is_unsafe,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).expect("it can be read")
    }

    #[test]
    fn a_role_is_played_by_what_is_said_of_its_instance_then_of_itself_then_of_all() {
        let config = config(
            "[flow]\nagent = 'codex'\ntimeout = '1h'\n[flow.roles.dev]\nagent = 'claude'\nmodel = 'opus'\n\
             repairs = 1\n[flow.roles.dev_2]\ncommand = ['make', 'it']\ntimeout = 5\nunsafe = true\nmode = 'tmux'\n",
        );
        let of = |role| config.player(role).expect("somebody plays it");
        assert_eq!(
            (of("qa").agent.name.as_str(), of("qa").timeout_ms, of("qa").repairs),
            ("codex", Some(3_600_000), 3)
        );
        assert_eq!((of("dev").agent.name.as_str(), of("dev").repairs), ("claude", 1));
        assert_eq!(of("dev_3").agent.config.model.as_deref(), Some("opus"));
        let second = of("dev_2");
        assert_eq!(second.agent.config.command, Some(vec!["make".to_owned(), "it".to_owned()]));
        assert_eq!((second.mode, second.is_unsafe, second.timeout_ms), (Mode::Tmux, true, Some(5_000)));
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert!(config("[flow.roles.dev]\nagent = 'nobody'").player("dev").is_err_and(|cause| cause.contains("'dev'")));
        assert!(config("[flow]\ntimeout = 'soon'").player("dev").is_err_and(|cause| cause.contains("soon")));
        assert!(toml::from_str::<Config>("[flow]\nroled = 1").is_err());
        assert!(toml::from_str::<Config>("[flow.roles.dev]\nmode = 'window'").is_err());
    }
}
