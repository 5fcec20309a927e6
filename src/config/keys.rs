//! All keys with their defaults and descriptions. `*` stands for a name that the user chooses.

use super::Owner;
use super::trust::Effect;

/// Key of the configuration.
pub struct Key {
    /// Full name, such as `merge.verify`.
    pub name: &'static str,
    /// Default value; empty if there is none.
    pub default: &'static str,
    pub about: &'static str,
}

const fn key(name: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, default, about }
}

pub const KEYS: &[Key] = &[
    key("agents.*.arguments", "", "further arguments for a built-in agent"),
    key("agents.*.capabilities", "", "capabilities of the agent; all by default"),
    key("agents.*.command", "", "command to execute, as a list of words"),
    key("agents.*.env.*", "", "environment variables for the agent"),
    key("agents.*.events", "", "event format that the command prints: claude, codex, gemini, opencode, aider, acp"),
    key("agents.*.model", "", "model to use"),
    key("approvals.allow", "", "commands and tools that agents may use without asking; only in the user's own file"),
    key("approvals.hold", "4m", "time for which the agent of a run waits for an answer; only in the user's own file"),
    key("approvals.remind", "never", "time between two notifications of an open request; only in the user's own file"),
    key("approvals.rule", "", "rules with allow, deny or ask, and reason; a repository's may only deny and ask"),
    key("approvals.timeout", "never", "time after which the answer to a request is no; only in the user's own file"),
    key("flow.agent", "claude", "agent for roles that name none"),
    key("flow.merge", "false", "add the result of a flow to the merge queue"),
    key("flow.repairs", "3", "maximum number of times a turn is sent back to its agent"),
    key("flow.roles.*.agent", "", "agent that plays the role"),
    key("flow.roles.*.arguments", "", "further arguments for the agent"),
    key("flow.roles.*.command", "", "command to execute, as a list of words"),
    key("flow.roles.*.env.*", "", "environment variables for the role"),
    key("flow.roles.*.mode", "child", "where turns run: child or tmux"),
    key("flow.roles.*.model", "", "model to use"),
    key("flow.roles.*.repairs", "", "maximum number of repairs of a turn; overrides flow.repairs"),
    key("flow.roles.*.timeout", "", "maximum time of one turn; overrides flow.timeout"),
    key("flow.roles.*.unsafe", "false", "allow an agent that cannot ask for permission"),
    key("flow.timeout", "", "maximum time of one turn"),
    key("hosts.*.arguments", "", "further arguments for sbatch, as a list of words"),
    key("hosts.*.ask", "30s", "time between two questions to Slurm about workers that are jobs"),
    key("hosts.*.cap", "8", "maximum number of attempts of a run ('swarm run --on') on the host at the same time"),
    key("hosts.*.command", "", "command that reaches the host instead of ssh, as a list of words"),
    key("hosts.*.cpus", "", "CPUs of an allocation or job"),
    key("hosts.*.dir", "", "directory on the host in which verbs are executed, from the home there"),
    key(
        "hosts.*.engine",
        "",
        "'slurm-pilot': the host is an allocation of Slurm; 'slurm': each worker of 'spawn --on' is a job",
    ),
    key("hosts.*.include", "", "whether ignored files that worktrees get, such as .env, are sent to the host"),
    key("hosts.*.memory", "", "memory of an allocation or job, as sbatch takes it: 32G"),
    key("hosts.*.partition", "", "partition for allocations and jobs; that of the site by default"),
    key("hosts.*.send_env", "", "names of variables of this machine that verbs on the host get, as a list"),
    key(
        "hosts.*.ssh",
        "",
        "destination for ssh; the name of the host by default. With an engine: the login node; this machine by default",
    ),
    key(
        "hosts.*.state",
        "~/.swarm",
        "state directory on the host, from the home there; ~/.swarm/alloc/NAME with an engine",
    ),
    key("hosts.*.swarm", "~/.local/bin/swarm", "path of swarm on the host"),
    key("hosts.*.tags", "", "what the host is or has, such as gpu, for specs and jobs that ask for it"),
    key("hosts.*.time", "", "time limit of an allocation or job: 8h, 08:00:00; that of the partition by default"),
    key("limits.cpu", "", "maximum CPU cores of a worker: 0.5, 2"),
    key("limits.max_output", "", "maximum output of a worker to its logs: 1G"),
    key("limits.memory", "", "maximum memory of all processes of a worker: 2G"),
    key("limits.pids", "", "maximum number of processes and threads of a worker"),
    key("merge.batch", "1", "maximum number of items that are verified together"),
    key("merge.max_retries", "2", "maximum number of resolver runs for one item"),
    key("merge.resolver", "", "command that resolves conflicts"),
    key("merge.strategy", "merge", "how work lands: merge, squash or rebase"),
    key("merge.timeout", "1800", "maximum time of a verification: seconds or a duration"),
    key("merge.verify", "", "command that must succeed before the base moves"),
    key("merge.verify_each", "false", "verify each item of a batch, not only the last"),
    key("notify.command", "", "shell command that gets the event on standard input"),
    key("notify.desktop", "false", "show notifications on the desktop with notify-send"),
    key("notify.events", "", "events to report: finished, failed, stuck, waiting, landed, budget; all by default"),
    key("notify.webhook", "", "http or https URL to which events are posted"),
    key("run.agent", "claude", "agent for specs that name none"),
    key("run.consent", "", "what agents may do without asking: no-access, partial-access or full-access"),
    key("run.fail_fast", "false", "start no further workstream after one has failed"),
    key("run.groups.*", "1", "maximum number of workstreams of this group that run at the same time"),
    key("run.limit", "20", "maximum number of workstreams that run at the same time"),
    key(
        "run.lost",
        "wait",
        "time after which attempts at a host that is out of reach are repeated elsewhere; 'wait': when 'swarm run give-up' says so",
    ),
    key("run.retries", "1", "maximum number of retries of a workstream"),
    key("run.templates", "", "directory of prompt templates"),
    key("run.timeout", "", "maximum time of one attempt"),
    key("spawn.base", "HEAD", "branch or commit from which a worktree starts"),
    key("spawn.env.*", "", "environment variables for the worker"),
    key("spawn.restart", "never", "when to restart the command: never, on-failure or always"),
    key("spawn.session", "", "tmux session for the window; one per state directory by default"),
    key("spawn.stuck_after", "", "time without progress after which a worker counts as stuck"),
    key("spawn.tags", "", "tags, before those of --tag"),
    key("spawn.timeout", "", "maximum run time of the worker"),
    key("spawn.tmux", "false", "run in a tmux window"),
    key("spawn.tmux_socket", "", "tmux server for the window, as in tmux -L"),
    key("spawn.worktree", "false", "create a git worktree for the worker"),
    key("spawn.worktree_dir", "", "directory for worktrees; <repository>-worktrees by default"),
    key("trash.max_age", "", "age at which saves of removed worktrees are deleted: 90d; never by default"),
    key("trash.max_size", "", "maximum disk space of all saves: 5G"),
    key("worktree.include", "", "patterns of ignored files that are copied into a new worktree"),
    key("worktree.link", "", "ignored paths that are linked into a new worktree"),
    key("worktree.ports", "20000-29999", "range of ports from which workers get SWARM_PORT"),
    key("worktree.post_create", "", "command run in a new worktree"),
    key("worktree.pre_remove", "", "command run in a worktree before it is removed"),
    key("worktree.quota", "", "maximum disk space of all worktrees of the repository: 20G"),
    key("worktree.submodules", "false", "check out submodules from those of the base checkout"),
    key("worktree.timeout", "5m", "maximum time of worktree.post_create and worktree.pre_remove"),
];

/// Keys that count from a repository's file only after a person agreed to their values, and what they do.
const GUARDED: [(&str, Effect); 20] = [
    ("agents.*.arguments", Effect::Permission),
    ("agents.*.command", Effect::Command),
    ("agents.*.env.*", Effect::Variable),
    ("agents.*.events", Effect::Permission),
    // Some agents cannot be held back by a consent.
    ("flow.agent", Effect::Permission),
    ("flow.roles.*.agent", Effect::Permission),
    ("flow.roles.*.arguments", Effect::Permission),
    ("flow.roles.*.command", Effect::Command),
    ("flow.roles.*.env.*", Effect::Variable),
    ("flow.roles.*.unsafe", Effect::Permission),
    ("merge.resolver", Effect::Command),
    ("merge.verify", Effect::Command),
    ("run.agent", Effect::Permission),
    ("run.consent", Effect::Permission),
    ("spawn.env.*", Effect::Variable),
    // A worktree puts files of the repository wherever it is, for example where another program looks for plugins.
    ("spawn.worktree_dir", Effect::Permission),
    ("trash.max_age", Effect::Permission),
    ("trash.max_size", Effect::Permission),
    ("worktree.post_create", Effect::Command),
    ("worktree.pre_remove", Effect::Command),
];

/// Returns what the value of a key does, if it counts only after a person agreed to it.
pub fn effect(path: &[&str]) -> Option<Effect> {
    let name = find(path)?.name;
    GUARDED.iter().find(|(guarded, _)| *guarded == name).map(|(_, effect)| *effect)
}

/// Returns the key that matches this path.
pub fn find(path: &[&str]) -> Option<&'static Key> {
    KEYS.iter().find(|key| fits(key, path) == Some(0))
}

/// Returns the number of names by which the key is longer than the path; `None` if the path is not a prefix of it.
fn fits(key: &Key, path: &[&str]) -> Option<usize> {
    let mut names = key.name.split('.');
    path.iter().all(|part| names.next().is_some_and(|name| name == "*" || name == *part)).then(|| names.count())
}

/// Reports whether there are keys below this path.
pub fn is_section(path: &[&str]) -> bool {
    KEYS.iter().any(|key| fits(key, path).is_some_and(|missing| missing > 0))
}

/// Returns the names that are allowed directly below this path; empty if names are free.
pub fn below(path: &[&str]) -> Vec<&'static str> {
    let next = |key: &'static Key| fits(key, path).and_then(|_| key.name.split('.').nth(path.len()));
    let mut names: Vec<&str> = KEYS.iter().filter_map(next).filter(|name| *name != "*").collect();
    names.dedup();
    names
}

/// Reports whether the value is never shown, because commands and variables may contain tokens.
pub fn is_secret(path: &[&str]) -> bool {
    matches!(path, ["notify", "command" | "webhook"])
        || (path.len() > 2 && path[path.len() - 2] == "env")
        || path.starts_with(&["spawn", "env"])
}

/// Returns the only file in which this section is allowed, if it is restricted. `[notify]` runs commands for a person, and
/// `[hosts]` says to which machines their work is sent, so a repository cannot set them.
pub(super) fn belongs_to(section: &str) -> Option<Owner> {
    ["hosts", "notify"].contains(&section).then_some(Owner::User)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::merge::queue::Rules;

    #[test]
    fn paths_are_keys_sections_or_neither() {
        assert!(find(&["merge", "verify"]).is_some() && find(&["agents", "x", "env", "A"]).is_some());
        assert!(find(&["merge"]).is_none() && find(&["merge", "verify", "x"]).is_none());
        assert!(is_section(&["agents", "x"]) && is_section(&["flow", "roles"]) && !is_section(&["merge", "verify"]));
        assert_eq!(below(&["flow", "roles", "dev"]).len(), 8 + 1);
        assert!(below(&["agents"]).is_empty());
        assert!(is_secret(&["agents", "x", "env", "A"]) && is_secret(&["spawn", "env", "A"]));
        assert!(!is_secret(&["spawn", "tags"]));
        assert!(KEYS.is_sorted_by_key(|key| key.name));
        assert!(GUARDED.iter().all(|(name, _)| KEYS.iter().any(|key| key.name == *name)));
        assert_eq!(effect(&["spawn", "env", "A"]), Some(Effect::Variable));
        assert_eq!(effect(&["flow", "roles", "ci", "agent"]), Some(Effect::Permission));
        assert_eq!(effect(&["run", "limit"]), None);
    }

    #[test]
    fn defaults_are_those_of_the_program() {
        let rules = Rules::default();
        let default = |name: &str| find(&name.split('.').collect::<Vec<_>>()).expect("a key").default.to_owned();
        assert_eq!(default("merge.batch"), rules.batch.to_string());
        assert_eq!(default("merge.timeout"), (rules.timeout_ms / 1000).to_string());
        assert_eq!(default("merge.max_retries"), rules.resolver_tries.to_string());
        assert_eq!(
            default("merge.strategy"),
            serde_json::to_value(rules.strategy).expect("a word").as_str().expect("text")
        );
        use crate::defaults::{AGENT, FLOW_REPAIRS, RUN_LIMIT, RUN_RETRIES};
        assert_eq!(default("run.agent"), AGENT);
        assert_eq!(default("run.limit"), RUN_LIMIT.to_string());
        assert_eq!(default("run.retries"), RUN_RETRIES.to_string());
        assert_eq!(default("flow.agent"), AGENT);
        assert_eq!(default("flow.repairs"), FLOW_REPAIRS.to_string());
    }

    /// Compares the list with the types: for an unknown name, serde's message lists all names that it knows.
    #[test]
    fn the_list_is_complete() {
        for section in [
            "merge",
            "run",
            "flow",
            "flow.roles.x",
            "agents.x",
            "approvals",
            "notify",
            "spawn",
            "limits",
            "trash",
            "worktree",
        ] {
            let error = toml::from_str::<crate::Sections>(&format!("[{section}]\nqqq = 1\n")).expect_err("unknown");
            let known: Vec<&str> = error.message().split('`').skip(3).step_by(2).collect();
            let mut known: Vec<&str> = known.into_iter().filter(|name| *name != "roles" || section != "x").collect();
            known.sort_unstable();
            let path: Vec<&str> = section.split('.').collect();
            assert_eq!(known, below(&path), "{section}");
        }
    }
}
