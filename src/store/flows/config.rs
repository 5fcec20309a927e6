//! Section `[flow]` of `swarm.toml`: assigns agents to roles.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use swarm_agents::Agent;
use swarm_config::defaults;
use swarm_config::sections::AgentConfig;
pub use swarm_config::sections::Mode;
use swarm_config::sections::{FlowConfig, RoleConfig};
use swarm_config::trust::{Unasked, has_lasting_agents};
use swarm_sys::duration;

/// Reads the configuration that applies in a folder.
pub type Load = fn(Option<&Path>) -> Result<swarm_config::Sections, String>;

/// Configuration for flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub flow: FlowConfig,
    agents: BTreeMap<String, AgentConfig>,
    unasked: Unasked,
}

/// Agent and settings for a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    pub agent: Agent,
    pub mode: Mode,
    pub timeout_ms: Option<u64>,
    pub repairs: u32,
    /// The role may be played by a program without access control, even if the consent mode permits nothing.
    pub is_unsafe: bool,
}

impl Config {
    /// Reads the configuration from the first of these folders to whose agents a person agreed, or else from the first one
    /// that contains the file; it overrides the user's own. A file that an agent writes therefore takes nobody's place.
    ///
    /// # Errors
    /// Fails with a message that names file, line and problem.
    pub fn read<'a>(folders: impl IntoIterator<Item = &'a Path>, load: Load) -> Result<Self, String> {
        let sections = load(Self::folder(folders)?)?;
        Ok(Self { flow: sections.flow, agents: sections.agents, unasked: sections.unasked })
    }

    fn folder<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Option<&'a Path>, String> {
        let mut first = None;
        for folder in folders {
            if has_lasting_agents(folder)? {
                return Ok(Some(folder));
            }
            first = first.or_else(|| folder.join(swarm_config::FILE).symlink_metadata().is_ok().then_some(folder));
        }
        Ok(first)
    }

    /// Makes sure that somebody was asked about the agents of the roles.
    ///
    /// # Errors
    /// Fails with a message for users if nobody was.
    pub fn check_asked(&self) -> Result<(), String> {
        self.unasked.require(&["agents", "flow"]).map_err(|untrusted| untrusted.to_string())
    }

    /// Returns the agent and the settings for a role. Settings for the instance override those for the base role.
    ///
    /// # Errors
    /// Fails with a message for users if the settings are invalid.
    pub fn player(&self, role: &str) -> Result<Player, String> {
        let base = role.split('_').next().unwrap_or(role);
        let none = RoleConfig::default();
        let of = self.flow.roles.get(role).or_else(|| self.flow.roles.get(base)).unwrap_or(&none);
        let name = of.agent.as_deref().or(self.flow.agent.as_deref()).unwrap_or(defaults::AGENT);
        let mut agent = match &of.command {
            // Without an agent name, the command is an agent of its own, named after the role.
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
            repairs: of.repairs.or(self.flow.repairs).unwrap_or(defaults::FLOW_REPAIRS),
            is_unsafe: of.is_unsafe,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        let sections: swarm_config::Sections = toml::from_str(text).expect("it can be read");
        Config { flow: sections.flow, agents: sections.agents, unasked: Unasked::default() }
    }

    #[test]
    fn settings_of_an_instance_override_those_of_its_role_and_of_all_roles() {
        let config = config(
            "[flow]\nagent = 'codex'\ntimeout = '1h'\n[flow.roles.dev]\nagent = 'claude'\nmodel = 'opus'\n\
             repairs = 1\n[flow.roles.dev_2]\ncommand = ['make', 'it']\ntimeout = 5\nunsafe = true\nmode = 'tmux'\n",
        );
        let of = |role| config.player(role).expect("the role has an agent");
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
    fn invalid_settings_are_refused() {
        assert!(config("[flow.roles.dev]\nagent = 'nobody'").player("dev").is_err_and(|cause| cause.contains("'dev'")));
        assert!(config("[flow]\ntimeout = 'soon'").player("dev").is_err_and(|cause| cause.contains("soon")));
        assert!(toml::from_str::<swarm_config::Sections>("[flow]\nroled = 1").is_err());
        assert!(toml::from_str::<swarm_config::Sections>("[flow.roles.dev]\nmode = 'window'").is_err());
    }
}
