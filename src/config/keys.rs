//! Every key there is, its default, and what it is for. `*` stands for a name that people
//! choose.

use super::Owner;

pub struct Key {
    pub name: &'static str,
    /// What holds where nothing is said; empty where that is nothing at all.
    pub default: &'static str,
    pub about: &'static str,
}

const fn key(name: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, default, about }
}

pub const KEYS: &[Key] = &[
    key("agents.*.arguments", "", "words for a built-in agent, after ours"),
    key("agents.*.capabilities", "", "what it can do; everything where nothing is said"),
    key("agents.*.command", "", "what is executed, as a list of words"),
    key("agents.*.env.*", "", "variables for it alone"),
    key("agents.*.events", "", "which built-in agent's events it prints: claude, codex"),
    key("agents.*.model", "", "the model it is asked for"),
    key("flow.agent", "claude", "who plays a role of which nothing is said"),
    key("flow.merge", "false", "the end of a flow enters the merge queue"),
    key("flow.repairs", "3", "how often a turn is sent back to its agent"),
    key("flow.roles.*.agent", "", "who plays it"),
    key("flow.roles.*.arguments", "", "more words for it"),
    key("flow.roles.*.command", "", "what is executed, as a list of words"),
    key("flow.roles.*.env.*", "", "variables for it alone"),
    key("flow.roles.*.mode", "child", "child or tmux"),
    key("flow.roles.*.model", "", "the model it is asked for"),
    key("flow.roles.*.repairs", "", "as flow.repairs"),
    key("flow.roles.*.timeout", "", "as flow.timeout"),
    key("flow.roles.*.unsafe", "false", "may be played by what nothing holds back"),
    key("flow.timeout", "", "longest time of one turn"),
    key("limits.cpu", "", "processors of a worker: 0.5, 2"),
    key("limits.max_output", "", "what a worker may write to its logs: 1G"),
    key("limits.memory", "", "memory of all processes of a worker: 2G"),
    key("limits.pids", "", "processes and threads of a worker"),
    key("merge.batch", "1", "how many are verified together at most"),
    key("merge.max_retries", "2", "how often the resolver is asked"),
    key("merge.resolver", "", "command that resolves conflicts"),
    key("merge.strategy", "merge", "merge, squash or rebase"),
    key("merge.timeout", "1800", "longest time of a verification, in seconds"),
    key("merge.verify", "", "command that must succeed before the base moves"),
    key("merge.verify_each", "false", "verify each by itself, never a batch"),
    key("notify.command", "", "run by sh -c with the event on standard input"),
    key("notify.desktop", "false", "tell by notify-send"),
    key("notify.events", "", "finished, failed, stuck, waiting, landed, budget; all by default"),
    key("notify.webhook", "", "where the event is posted to"),
    key("run.agent", "claude", "the agent of specs that name none"),
    key("run.fail_fast", "false", "begin nothing more once one has failed"),
    key("run.groups.*", "1", "how many of this group are at work at the same time"),
    key("run.limit", "20", "how many are at work at the same time"),
    key("run.retries", "1", "attempts after the first"),
    key("run.templates", "", "folder of prompt templates"),
    key("run.timeout", "", "longest time of one attempt"),
    key("spawn.base", "HEAD", "branch or commit from which a worktree starts"),
    key("spawn.env.*", "", "variables for the worker"),
    key("spawn.restart", "never", "never, on-failure or always"),
    key("spawn.session", "", "tmux session for the window; one per state directory by default"),
    key("spawn.stuck_after", "", "silence after which it is looked after"),
    key("spawn.tags", "", "tags, before those that are typed"),
    key("spawn.timeout", "", "longest life of the worker"),
    key("spawn.tmux", "false", "run in a tmux window"),
    key("spawn.tmux_socket", "", "tmux server for the window, as in tmux -L"),
    key("spawn.worktree", "false", "a git worktree of its own"),
    key("spawn.worktree_dir", "", "directory for worktrees; <repository>-worktrees by default"),
    key("trash.max_age", "", "age at which saves of removed worktrees go: 90d; never by default"),
    key("trash.max_size", "", "what they may take all together: 5G"),
    key("worktree.include", "", "ignored files that a new worktree gets copies of, by patterns"),
    key("worktree.link", "", "ignored paths that a new worktree gets links to"),
    key("worktree.ports", "20000-29999", "where SWARM_PORT is taken from"),
    key("worktree.post_create", "", "command run in a new worktree"),
    key("worktree.pre_remove", "", "command run in one that is to go"),
    key("worktree.quota", "", "what all worktrees of the repository may take: 20G"),
    key("worktree.submodules", "false", "check out submodules, from those of the base checkout"),
    key("worktree.timeout", "5m", "longest time of either command"),
];

/// The key that this path is one of.
pub fn find(path: &[&str]) -> Option<&'static Key> {
    KEYS.iter().find(|key| fits(key, path) == Some(0))
}

/// How many names are missing behind this path; none when it leads elsewhere.
fn fits(key: &Key, path: &[&str]) -> Option<usize> {
    let mut names = key.name.split('.');
    path.iter().all(|part| names.next().is_some_and(|name| name == "*" || name == *part)).then(|| names.count())
}

/// Whether keys lie below this path.
pub fn is_section(path: &[&str]) -> bool {
    KEYS.iter().any(|key| fits(key, path).is_some_and(|missing| missing > 0))
}

/// What may stand right below this path; empty where names are free.
pub fn below(path: &[&str]) -> Vec<&'static str> {
    let next = |key: &'static Key| fits(key, path).and_then(|_| key.name.split('.').nth(path.len()));
    let mut names: Vec<&str> = KEYS.iter().filter_map(next).filter(|name| *name != "*").collect();
    names.dedup();
    names
}

/// Whether its value is shown to nobody: a command may have a token in it, a variable too.
pub fn is_secret(path: &[&str]) -> bool {
    matches!(path, ["notify", "command" | "webhook"])
        || (path.len() > 2 && path[path.len() - 2] == "env")
        || path.starts_with(&["spawn", "env"])
}

/// Where this section may stand besides; what is run for a person is set by that person.
pub(super) fn belongs_to(section: &str) -> Option<Owner> {
    (section == "notify").then_some(Owner::User)
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
        use crate::adapters::{flows, runs};
        assert_eq!(default("run.agent"), runs::config::AGENT);
        assert_eq!(default("run.limit"), runs::config::LIMIT.to_string());
        assert_eq!(default("run.retries"), runs::config::RETRIES.to_string());
        assert_eq!(default("flow.agent"), flows::config::AGENT);
        assert_eq!(default("flow.repairs"), flows::config::REPAIRS.to_string());
    }

    /// What the program reads and what this list has are the same: a name that serde does
    /// not know makes it list those that it knows.
    #[test]
    fn the_list_is_complete() {
        for section in
            ["merge", "run", "flow", "flow.roles.x", "agents.x", "notify", "spawn", "limits", "trash", "worktree"]
        {
            let error =
                toml::from_str::<super::super::Sections>(&format!("[{section}]\nqqq = 1\n")).expect_err("unknown");
            let known: Vec<&str> = error.message().split('`').skip(3).step_by(2).collect();
            let mut known: Vec<&str> = known.into_iter().filter(|name| *name != "roles" || section != "x").collect();
            known.sort_unstable();
            let path: Vec<&str> = section.split('.').collect();
            assert_eq!(known, below(&path), "{section}");
        }
    }
}
