//! Types of the sections of the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use swarm_model::asks::judge::Consent;
use swarm_model::asks::rules::{AskRule, Effect};
use swarm_model::merge::queue::Strategy;
use swarm_model::{LimitsText, MergeSettings, RestartPolicy};

use super::hosts::HostConfig;
use super::trust::Unasked;
use super::worktree::{TrashSettings, WorktreeSettings};
use swarm_sys::duration::{self, NumberOrText};

/// Maximum number of environment variables; a process with more could not be started.
pub const VARIABLES_MAX: usize = 4096;

/// Text for a time without a limit.
const NEVER: &str = "never";

/// Configuration: all sections of both files, merged.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sections {
    pub agents: BTreeMap<String, AgentConfig>,
    /// Of one file only, because merging would replace the rules of one file by those of the other: see
    /// [`approvals`](super::approvals).
    pub approvals: Approvals,
    pub flow: FlowConfig,
    pub hosts: BTreeMap<String, HostConfig>,
    /// Limits of workers that are started one by one.
    pub limits: LimitsText,
    #[serde(deserialize_with = "merge_settings")]
    pub merge: MergeSettings,
    pub notify: Notify,
    pub run: RunConfig,
    pub spawn: SpawnConfig,
    pub trash: TrashSettings,
    pub worktree: WorktreeSettings,
    /// What does not count because nobody was ever asked about it.
    #[serde(skip)]
    pub unasked: Unasked,
}

/// `[merge]` as it is written: [`MergeSettings`], with a time limit of the form that all sections have.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MergeText {
    verify: Option<String>,
    verify_each: Option<bool>,
    batch: Option<usize>,
    timeout: Option<Seconds>,
    resolver: Option<String>,
    max_retries: Option<u32>,
    strategy: Option<Strategy>,
}

/// Whole seconds.
#[derive(Deserialize)]
#[serde(try_from = "NumberOrText")]
struct Seconds(u64);

impl TryFrom<NumberOrText> for Seconds {
    type Error = String;

    fn try_from(written: NumberOrText) -> Result<Self, String> {
        let text = match written {
            NumberOrText::Number(seconds) => return Ok(Self(seconds)),
            NumberOrText::Text(text) => text,
        };
        match duration::parse_positive(&text)?.as_secs() {
            0 => Err("must be at least 1 second".to_owned()),
            seconds => Ok(Self(seconds)),
        }
    }
}

fn merge_settings<'de, D: Deserializer<'de>>(from: D) -> Result<MergeSettings, D::Error> {
    let MergeText { verify, verify_each, batch, timeout, resolver, max_retries, strategy } =
        MergeText::deserialize(from)?;
    let timeout = timeout.map(|Seconds(seconds)| seconds);
    Ok(MergeSettings { verify, verify_each, batch, timeout, resolver, max_retries, strategy })
}

impl Sections {
    /// Checks what the types alone cannot express.
    ///
    /// # Errors
    /// Returns the first invalid key and the problem.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let zero = [("merge.batch", self.merge.batch == Some(0)), ("merge.timeout", self.merge.timeout == Some(0))];
        if let Some((name, _)) = zero.iter().find(|(_, is_zero)| *is_zero) {
            return Err(((*name).to_owned(), "must be at least 1".to_owned()));
        }
        self.worktree.check()?;
        self.check_runs()?;
        self.approvals.rules().map_err(|cause| ("approvals".to_owned(), cause))?;
        self.approvals.times()?;
        self.check_hosts()?;
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
        if let Some(time) = &self.run.lost {
            lost(&time.text()).map_err(|cause| ("run.lost".to_owned(), cause))?;
        }
        let agents = self.agents.iter().map(|(name, agent)| (format!("agents.{name}.env"), &agent.env));
        let roles = self.flow.roles.iter().map(|(name, role)| (format!("flow.roles.{name}.env"), &role.env));
        for (name, env) in [("spawn.env".to_owned(), &self.spawn.env)].into_iter().chain(agents).chain(roles) {
            check_variables(env).map_err(|cause| (name, cause))?;
        }
        match self.spawn.tags.iter().any(|tag| tag.contains(char::is_control)) {
            true => Err(("spawn.tags".to_owned(), "tags must not contain control characters".to_owned())),
            false => Ok(()),
        }
    }

    /// Checks that jobs can start, and that agents have a command.
    fn check_runs(&self) -> Result<(), (String, String)> {
        let groups = self.run.groups.iter().map(|(name, limit)| (format!("run.groups.{name}"), Some(*limit)));
        let mut limits = [("run.limit".to_owned(), self.run.limit)].into_iter().chain(groups);
        if let Some((name, _)) = limits.find(|(_, limit)| *limit == Some(0)) {
            return Err((name, "must be at least 1".to_owned()));
        }
        let agents = self.agents.iter().map(|(name, agent)| (format!("agents.{name}.command"), &agent.command));
        let roles = self.flow.roles.iter().map(|(name, role)| (format!("flow.roles.{name}.command"), &role.command));
        let is_empty = |command: &Vec<String>| command.first().is_none_or(|program| program.trim().is_empty());
        if let Some((name, _)) = agents.chain(roles).find(|(_, command)| command.as_ref().is_some_and(is_empty)) {
            return Err((name, "is empty".to_owned()));
        }
        let agents = self.agents.iter().map(|(name, agent)| (format!("agents.{name}.model"), &agent.model));
        let roles = self.flow.roles.iter().map(|(name, role)| (format!("flow.roles.{name}.model"), &role.model));
        for (name, model) in agents.chain(roles) {
            model.as_deref().map_or(Ok(()), check_model).map_err(|cause| (name, cause.to_owned()))?;
        }
        let is_odd = |agent: &AgentConfig| agent.events.as_deref().is_some_and(|it| !EVENTS.contains(&it));
        match self.agents.iter().find(|(_, agent)| is_odd(agent)) {
            Some((name, _)) => Err((format!("agents.{name}.events"), format!("must be one of {}", EVENTS.join(", ")))),
            None => Ok(()),
        }
    }
}

/// Agents whose event formats other commands may print.
pub const EVENTS: [&str; 6] = ["claude", "codex", "gemini", "opencode", "aider", "acp"];

/// Splits a cause such as `memory: '4X' is not a size` into the key, prefixed with the section, and the rest.
fn in_section(section: &str, cause: &str) -> (String, String) {
    let (key, cause) = cause.split_once(": ").unwrap_or(("", cause));
    (format!("{section}.{key}"), cause.to_owned())
}

/// Refuses what an agent would take for an option: one that selects permissions would need consent.
fn check_model(model: &str) -> Result<(), &'static str> {
    match model.trim_start() {
        "" => Err("is empty"),
        name if name.starts_with('-') => Err("must not begin with '-'"),
        _ => Ok(()),
    }
}

fn check_variables(env: &BTreeMap<String, String>) -> Result<(), String> {
    if env.len() > VARIABLES_MAX {
        return Err(format!("more than {VARIABLES_MAX} variables"));
    }
    let is_good =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    match env.iter().all(is_good) {
        true => Ok(()),
        false => {
            Err("names of variables must not be empty or contain '='; names and values must not contain NUL".to_owned())
        }
    }
}

/// `[spawn]`: defaults of workers that flags override.
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

/// `[run]`: defaults of runs that flags override.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    pub agent: Option<String>,
    /// What agents may do without asking.
    pub consent: Option<Consent>,
    pub limit: Option<usize>,
    /// Maximum number of running jobs per group, by name of the group.
    pub groups: BTreeMap<String, usize>,
    pub retries: Option<u32>,
    /// Maximum time of one attempt, as `600`, `10m`, `1h30m`.
    pub timeout: Option<NumberOrText>,
    pub fail_fast: Option<bool>,
    /// Time after which attempts at a host that is out of reach are given up, or `wait`.
    pub lost: Option<NumberOrText>,
    /// Directory of prompt templates, relative to the root.
    pub templates: Option<String>,
}

/// Reads the time after which attempts at a host that is out of reach are given up. `None`: when a person says so.
///
/// # Errors
/// Returns a message if that is not a time.
pub fn lost(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "wait" => Ok(None),
        text => duration::parse_positive(text).map(Some).map_err(|cause| format!("{cause}; or 'wait'")),
    }
}

/// `[flow]`: which agent plays which role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowConfig {
    pub agent: Option<String>,
    pub repairs: Option<u32>,
    pub timeout: Option<NumberOrText>,
    /// The result of a completed flow is added to the merge queue of its base.
    pub merge: bool,
    /// Settings by role (`dev`) or by instance of a role (`dev_2`).
    pub roles: BTreeMap<String, RoleConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleConfig {
    /// Name of an agent: `[agents.NAME]` or a built-in one.
    pub agent: Option<String>,
    /// Command for this role alone, as in `[agents.NAME]`.
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

/// Place in which the turns of a role run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Child,
    Tmux,
}

/// Kinds of events for notifications.
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

/// `[notify]`: ways to notify people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// Command for `sh -c` that gets the event on standard input.
    pub command: Option<String>,
    /// Notify with `notify-send`.
    pub desktop: bool,
    /// URL to which the event is posted.
    pub webhook: Option<String>,
    /// Kinds of events; all by default.
    pub events: Option<Vec<Group>>,
}

impl Notify {
    pub fn is_empty(&self) -> bool {
        self.command.is_none() && !self.desktop && self.webhook.is_none()
    }

    pub fn wants(&self, group: Group) -> bool {
        self.events.as_ref().is_none_or(|events| events.contains(&group))
    }

    /// Returns the settings with blank texts removed.
    pub fn filled(self) -> Self {
        let full = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        Self { command: full(self.command), webhook: full(self.webhook), ..self }
    }
}

/// `[approvals]`: what agents are allowed or denied, or a person is asked about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Approvals {
    /// Time for an answer. Then it is no. 'never': no limit.
    pub timeout: Option<NumberOrText>,
    /// Time between two notifications of an open request. 'never': one notification.
    pub remind: Option<NumberOrText>,
    /// Time for which the agent of a run is held.
    pub hold: Option<NumberOrText>,
    /// Patterns of what is allowed.
    pub allow: Vec<String>,
    pub rule: Vec<RuleText>,
}

/// Times of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApprovalTimes {
    /// Time for an answer. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Time between two notifications of an open request. `None`: one notification.
    pub remind: Option<Duration>,
    /// Time for which the agent of a run is held. `None`: the default.
    pub hold: Option<Duration>,
}

/// `[[approvals.rule]]`: one of `allow`, `deny` and `ask` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleText {
    pub allow: Option<String>,
    pub deny: Option<String>,
    pub ask: Option<String>,
    /// What the agent is told.
    pub reason: Option<String>,
}

impl Approvals {
    /// Returns the rules.
    ///
    /// # Errors
    /// Fails with the problem of the first rule that can match nothing.
    pub fn rules(&self) -> Result<Vec<AskRule>, String> {
        let told = |pattern: &str| {
            let pattern = pattern.to_owned();
            move |cause| format!("'{}': {cause}", super::words::plain(&pattern))
        };
        let allowed =
            self.allow.iter().map(|pattern| AskRule::new(Effect::Allow, pattern, None).map_err(told(pattern)));
        let written = self.rule.iter().map(|rule| {
            let set = [(Effect::Allow, &rule.allow), (Effect::Deny, &rule.deny), (Effect::Ask, &rule.ask)];
            let mut set = set.into_iter().filter_map(|(effect, pattern)| Some((effect, pattern.as_deref()?)));
            match (set.next(), set.next()) {
                (Some((effect, pattern)), None) => {
                    AskRule::new(effect, pattern, rule.reason.as_deref()).map_err(told(pattern))
                }
                _ => Err("a rule has one of allow, deny and ask".to_owned()),
            }
        });
        allowed.chain(written).collect()
    }

    /// Returns the times.
    ///
    /// # Errors
    /// Returns the first invalid key and the problem.
    pub fn times(&self) -> Result<ApprovalTimes, (String, String)> {
        let time = |name: &str, written: &Option<NumberOrText>| {
            let text = written.as_ref().map(NumberOrText::text).filter(|text| name == "hold" || text != NEVER);
            let read = text.map(|text| match duration::parse_positive(&text)? {
                time if time < Duration::from_secs(1) => Err("must be at least 1 second".to_owned()),
                time => Ok(time),
            });
            read.transpose().map_err(|cause| (format!("approvals.{name}"), cause))
        };
        let (timeout, remind) = (time("timeout", &self.timeout)?, time("remind", &self.remind)?);
        Ok(ApprovalTimes { timeout, remind, hold: time("hold", &self.hold)? })
    }

    /// Returns the names of the times that are set.
    pub(super) fn timed(&self) -> impl Iterator<Item = &'static str> {
        let times = [("timeout", &self.timeout), ("remind", &self.remind), ("hold", &self.hold)];
        times.into_iter().filter_map(|(name, time)| time.is_some().then_some(name))
    }

    /// Reports whether a rule allows something.
    pub(super) fn allows(&self) -> bool {
        !self.allow.is_empty() || self.rule.iter().any(|rule| rule.allow.is_some())
    }
}

/// `[agents.NAME]`: a custom agent, or further settings of a built-in one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Command to execute. It gets the prompt on standard input and in `$SWARM_PROMPT`.
    pub command: Option<Vec<String>>,
    /// Capabilities of the agent; all by default.
    pub capabilities: Option<Vec<String>>,
    /// Built-in agent whose event format the command prints (one of [`EVENTS`]).
    pub events: Option<String>,
    /// Further arguments, appended to the command line of a built-in agent.
    pub arguments: Vec<String>,
    /// Environment variables for this agent.
    pub env: BTreeMap<String, String>,
    pub model: Option<String>,
}

impl AgentConfig {
    /// Returns the option that chooses the model, if one is set. It is one word, because the model must never count as an
    /// option of its own.
    pub fn model_option(&self) -> Option<String> {
        self.model.as_ref().map(|model| format!("--model={model}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_host_is_waited_for_or_given_up_after_a_time() {
        for (text, seconds) in [("wait", Some(None)), ("2h", Some(Some(7200))), ("0", None), ("never", None)] {
            assert_eq!(lost(text).ok().map(|time| time.map(|time| time.as_secs())), seconds, "{text}");
        }
    }
}
