//! The sections as they are read. What follows from them is where they are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use swarm_model::{LimitsText, MergeSettings, RestartPolicy};

use super::worktree::{TrashSettings, WorktreeSettings};
use crate::agents::AgentConfig;
use crate::duration::{self, NumberOrText};

/// A process with more would not begin.
pub const VARIABLES_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sections {
    pub agents: BTreeMap<String, AgentConfig>,
    pub flow: FlowConfig,
    /// Of workers that are started one by one.
    pub limits: LimitsText,
    pub merge: MergeSettings,
    pub notify: Notify,
    pub run: RunConfig,
    pub spawn: SpawnConfig,
    pub trash: TrashSettings,
    pub worktree: WorktreeSettings,
}

impl Sections {
    /// What the types alone do not say.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let zero = [("merge.batch", self.merge.batch == Some(0)), ("merge.timeout", self.merge.timeout == Some(0))];
        if let Some((name, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(((*name).to_owned(), "it is 0, and must be 1 at least".to_owned()));
        }
        self.worktree.check()?;
        self.limits.parse().map_err(|cause| in_section("limits", &cause))?;
        let roles = self.flow.roles.iter().map(|(name, role)| (format!("flow.roles.{name}.timeout"), &role.timeout));
        let times = [
            ("run.timeout".to_owned(), &self.run.timeout),
            ("flow.timeout".to_owned(), &self.flow.timeout),
            ("spawn.timeout".to_owned(), &self.spawn.timeout),
            ("spawn.stuck_after".to_owned(), &self.spawn.stuck_after),
        ];
        for (name, time) in times.into_iter().chain(roles) {
            if let Some(time) = time {
                duration::parse_positive(&time.text()).map_err(|cause| (name, cause))?;
            }
        }
        let agents = self.agents.iter().map(|(name, agent)| (format!("agents.{name}.env"), &agent.env));
        let roles = self.flow.roles.iter().map(|(name, role)| (format!("flow.roles.{name}.env"), &role.env));
        for (name, env) in [("spawn.env".to_owned(), &self.spawn.env)].into_iter().chain(agents).chain(roles) {
            check_variables(env).map_err(|cause| (name, cause))?;
        }
        match self.spawn.tags.iter().any(|tag| tag.contains(char::is_control)) {
            true => Err(("spawn.tags".to_owned(), "a tag has no control characters".to_owned())),
            false => Ok(()),
        }
    }
}

/// `memory: '4X' is not a size`, with the section's name before it.
fn in_section(section: &str, cause: &str) -> (String, String) {
    let (key, cause) = cause.split_once(": ").unwrap_or(("", cause));
    (format!("{section}.{key}"), cause.to_owned())
}

fn check_variables(env: &BTreeMap<String, String>) -> Result<(), String> {
    if env.len() > VARIABLES_MAX {
        return Err(format!("there are more than {VARIABLES_MAX} variables"));
    }
    let is_good =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    match env.iter().all(is_good) {
        true => Ok(()),
        false => Err("a variable has a name without '=', and no NUL in its value".to_owned()),
    }
}

/// `[spawn]`: what holds for workers where nothing else is typed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpawnConfig {
    pub base: Option<String>,
    pub env: BTreeMap<String, String>,
    pub restart: Option<RestartPolicy>,
    pub session: Option<String>,
    pub stuck_after: Option<NumberOrText>,
    pub tags: Vec<String>,
    pub timeout: Option<NumberOrText>,
    pub tmux: bool,
    pub tmux_socket: Option<String>,
    pub worktree: bool,
    pub worktree_dir: Option<String>,
}

/// `[run]`: what holds for runs here, where nothing else is typed.
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

/// `[flow]`: which agent plays which role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowConfig {
    pub agent: Option<String>,
    pub repairs: Option<u32>,
    pub timeout: Option<NumberOrText>,
    /// What the flow came to goes into the merge queue of its base when it is over.
    pub merge: bool,
    /// By role, `dev`, or by one instance of it, `dev_2`.
    pub roles: BTreeMap<String, RoleConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleConfig {
    /// Of `[agents.NAME]`, or a built-in one.
    pub agent: Option<String>,
    /// What is executed for this role alone, as in `[agents.NAME]`.
    pub command: Option<Vec<String>>,
    pub arguments: Vec<String>,
    pub model: Option<String>,
    pub env: BTreeMap<String, String>,
    pub mode: Mode,
    pub timeout: Option<NumberOrText>,
    pub repairs: Option<u32>,
    #[serde(rename = "unsafe")]
    pub is_unsafe: bool,
}

/// Where a role's turns take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Child,
    Tmux,
}

/// What people want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Finished,
    Failed,
    Stuck,
    Waiting,
    Landed,
    Budget,
}

/// `[notify]`: how people are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// Run by `sh -c`, with the event on standard input.
    pub command: Option<String>,
    /// By `notify-send`.
    pub desktop: bool,
    /// Where the event is posted to.
    pub webhook: Option<String>,
    /// All by default.
    pub events: Option<Vec<Group>>,
}

impl Notify {
    pub fn is_empty(&self) -> bool {
        self.command.is_none() && !self.desktop && self.webhook.is_none()
    }

    pub fn wants(&self, group: Group) -> bool {
        self.events.as_ref().is_none_or(|events| events.contains(&group))
    }

    /// What is blank is not set.
    pub fn filled(self) -> Self {
        let full = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        Self { command: full(self.command), webhook: full(self.webhook), ..self }
    }
}
