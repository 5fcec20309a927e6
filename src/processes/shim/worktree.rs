//! What protects a worker from the files in its worktree, which an earlier start of it may have written, and the
//! repository around the worktree from the worker.

use std::path::{Path, PathBuf};

use swarm_agents::consent;
use swarm_config::trust;
use swarm_model::Spec;

/// Variable with the directories above which git does not look for a repository.
const CEILINGS: &str = "GIT_CEILING_DIRECTORIES";

/// Returns the command line of an agent that must not load the files of its worktree, and a warning. `None` if a person
/// agreed to these files, or the command is not an agent.
///
/// # Errors
/// Fails if nobody agreed to the files, and the agent cannot be kept from loading them.
pub fn held_back(spec: &Spec) -> Result<Option<(Vec<String>, String)>, String> {
    let Some(plan) = &spec.worktree else { return Ok(None) };
    let Some(agent) = consent::agent_of(spec.argv()) else { return Ok(None) };
    let Some(section) = agent.loads() else { return Ok(None) };
    let tree = Path::new(&plan.path);
    // The book of whoever asked for the worker. The worker's own variables may name another one.
    let of_caller = |name: &str| {
        let found = spec.contract.environment.iter().find(|(key, value)| key == name && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    };
    let loads_as_agreed = match trust::book_path_in(of_caller("XDG_CONFIG_HOME"), of_caller("HOME")) {
        Some(book) => trust::loads_as_agreed_in(&book, Path::new(&plan.base_repo), tree, section),
        None => trust::loads_nothing(Path::new(&plan.base_repo), tree, section),
    };
    // What cannot be read is not loaded either.
    if loads_as_agreed.unwrap_or(false) {
        return Ok(None);
    }
    let names: Vec<&str> = trust::agent_places(section).collect();
    let (path, names) = (&plan.path, names.join(", "));
    let Some(ours) = consent::own_settings_only(agent, tree) else {
        let what = format!("{section} would load settings in or above {path} that are not those that were trusted");
        return Err(format!("{what} ({names}): run 'swarm trust'"));
    };
    let warning = format!(
        "{section} starts without the settings in and above {path} ({names}): they are not those that were trusted"
    );
    Ok(Some((consent::with_arguments(spec.argv(), ours), warning)))
}

/// Keeps git from finding the repository around a worktree: if the worktree loses its `.git` file, git fails there
/// instead of working on the user's checkout. Directories that the user named stay.
pub fn set_ceiling(tree: &Path, environment: &mut Vec<(String, String)>) {
    let tree = tree.canonicalize().unwrap_or_else(|_| tree.to_owned());
    // A list separates its directories by colons and cannot quote one.
    let Some(above) = tree.parent().and_then(Path::to_str).filter(|above| !above.contains(':')) else { return };
    match environment.iter_mut().find(|(key, _)| key == CEILINGS) {
        Some((_, set)) if set.is_empty() => above.clone_into(set),
        Some((_, set)) if set.split(':').any(|dir| dir == above) => {}
        Some((_, set)) => *set = format!("{set}:{above}"),
        None => environment.push((CEILINGS.to_owned(), above.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_above_a_worktree_is_added_to_the_ceilings_of_the_user() {
        let with = |tree: &str, set: Option<&str>| {
            let set = set.map(|set| (CEILINGS.to_owned(), set.to_owned()));
            let mut environment: Vec<(String, String)> = set.into_iter().collect();
            set_ceiling(Path::new(tree), &mut environment);
            environment.into_iter().map(|(_, value)| value).next()
        };
        assert_eq!(with("/no such/r/w", None).as_deref(), Some("/no such/r"));
        assert_eq!(with("/no such/r/w", Some("")).as_deref(), Some("/no such/r"));
        assert_eq!(with("/no such/r/w", Some("/a:/b")).as_deref(), Some("/a:/b:/no such/r"));
        assert_eq!(with("/no such/r/w", Some("/no such/r")).as_deref(), Some("/no such/r"));
        assert_eq!(with("/no such:r/w", Some("/a")).as_deref(), Some("/a"));
    }
}
