//! Rules with which people answer requests in advance: from the user's own file, from `swarm.toml` of the repository,
//! and from `$SWARM_DIR/rules.jsonl`, which `swarm approve --always` and `swarm rules` write.
//!
//! A change holds `rules.lock` and replaces the file durably. Readers need no lock. A rule that was removed keeps its
//! line, so that its number names no other rule later.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use swarm_config::trust::{Project, root_of};
use swarm_model::asks::AskWish;
use swarm_model::asks::judge::Rule;
use swarm_model::asks::rules::{AskRule, Effect, rule_of};
use swarm_sys::clock::wall_ms;
use swarm_sys::files::{absent_ok, list_if_present, lock, make_dirs, remove_if_present, replace_durably};
use swarm_sys::owner;
use swarm_sys::paths::Paths;

const FILE: &str = "rules.jsonl";
const LOCK: &str = "rules.lock";
/// Maximum wait for the lock, which is held for one write.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Rule that a person made with a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeRule {
    pub number: u64,
    #[serde(flatten)]
    pub rule: AskRule,
    /// Project in which the rule applies: git's common directory, or a folder. `None` if it applies everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub at_ms: u64,
    /// Time at which a person removed the rule, in Unix milliseconds. `None` if it applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_at_ms: Option<u64>,
}

/// Returns what the rules say about a wish of an agent in `cwd`, which is its worktree or the directory that it was
/// started in, rather than the one that it has moved to.
///
/// # Errors
/// Fails with the file and the problem if rules cannot be read. The wish must then be denied, because a rule that denies
/// it may be among them.
pub fn rule_for(paths: &Paths, cwd: &Path, wish: &AskWish) -> Result<Rule, String> {
    Ok(rule_of(&all_for(paths, cwd)?, wish))
}

/// Returns what the rules say about a wish, as [`rule_for`], with those that a run has recorded at its beginning. The
/// recorded ones can only restrict.
///
/// # Errors
/// As [`rule_for`].
pub fn rule_with(paths: &Paths, cwd: &Path, recorded: &[AskRule], wish: &AskWish) -> Result<Rule, String> {
    let mut rules = all_for(paths, cwd)?;
    rules.extend(recorded.iter().filter(|rule| rule.effect != Effect::Allow).cloned());
    Ok(rule_of(&rules, wish))
}

/// Returns all rules that apply in a directory.
///
/// # Errors
/// As [`rule_for`].
pub fn all_for(paths: &Paths, cwd: &Path) -> Result<Vec<AskRule>, String> {
    let root = root_of(cwd);
    let project = project_of(cwd)?;
    let mut rules = swarm_config::approvals(Some(root))?;
    // An agent may change the file in its own worktree; that of the main worktree counts as well.
    let main = Path::new(project.shown());
    if main != root && main.is_dir() {
        rules.extend(swarm_config::approvals(Some(main))?);
    }
    let applies = |made: &MadeRule| made.project.as_ref().is_none_or(|of| *of == project.key);
    rules.extend(made(paths)?.into_iter().filter(applies).map(|made| made.rule));
    Ok(rules)
}

/// Returns the project that a directory belongs to.
///
/// # Errors
/// Fails with the directory and the problem if it cannot be examined.
pub fn project_of(dir: &Path) -> Result<Project, String> {
    Project::of(root_of(dir)).map_err(|error| format!("{}: {error}", dir.display()))
}

/// Returns the rules that people made with verbs and did not remove, by number.
///
/// # Errors
/// Fails if the file cannot be read or is damaged.
pub fn made(paths: &Paths) -> Result<Vec<MadeRule>, String> {
    Ok(read(&file_of(paths))?.into_iter().filter(|made| made.removed_at_ms.is_none()).collect())
}

/// Records rules durably and returns their numbers. A rule that is there already is not recorded again.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn add(paths: &Paths, rules: &[AskRule], project: Option<&str>) -> Result<Vec<u64>, String> {
    change(paths, |known| {
        let mut numbers = Vec::new();
        for rule in rules {
            let is_same = |made: &&MadeRule| {
                made.removed_at_ms.is_none() && made.rule == *rule && made.project.as_deref() == project
            };
            if let Some(same) = known.iter().find(is_same) {
                numbers.push(same.number);
                continue;
            }
            let number = known.iter().map(|made| made.number).max().unwrap_or(0) + 1;
            let (rule, project) = (rule.clone(), project.map(str::to_owned));
            known.push(MadeRule { number, rule, project, at_ms: wall_ms(), removed_at_ms: None });
            numbers.push(number);
        }
        numbers
    })
}

/// Removes a rule durably and returns it. `None` if there is none with this number.
///
/// # Errors
/// Fails if the file cannot be read or written.
pub fn remove(paths: &Paths, number: u64) -> Result<Option<MadeRule>, String> {
    change(paths, |known| {
        let made = known.iter_mut().find(|made| made.number == number && made.removed_at_ms.is_none())?;
        made.removed_at_ms = Some(wall_ms());
        Some(made.clone())
    })
}

fn file_of(paths: &Paths) -> PathBuf {
    paths.root().join(FILE)
}

fn read(path: &Path) -> Result<Vec<MadeRule>, String> {
    let shown = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| io::Read::read_to_string(&mut file, &mut text).map(drop));
    absent_ok(read).map_err(|error| format!("{shown}: {error}"))?;
    let parsed = text.lines().enumerate().map(|(index, line)| {
        let remedy = "move the file aside and add the rules again with 'swarm rules add'";
        serde_json::from_str(line).map_err(|_| format!("{shown}: line {} is damaged; {remedy}", index + 1))
    });
    parsed.collect()
}

/// Removes what a change that was killed has left. Nobody else writes while the lock is held.
fn remove_torn(dir: &Path) -> io::Result<()> {
    let start = format!("{FILE}.tmp.");
    let names = list_if_present(dir)?.into_iter().map(|entry| entry.file_name());
    let mut torn = names.filter(|name| name.to_str().is_some_and(|name| name.starts_with(&start)));
    torn.try_for_each(|name| remove_if_present(&dir.join(name)))
}

/// Changes the rules under their lock.
fn change<T>(paths: &Paths, edit: impl FnOnce(&mut Vec<MadeRule>) -> T) -> Result<T, String> {
    let (path, dir) = (file_of(paths), paths.root());
    let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
    make_dirs(dir).map_err(failed)?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK));
    let file = file.map_err(failed)?;
    owner::give(&file, dir).map_err(failed)?;
    let held = lock::lock_within(file, LOCK_WAIT_MAX).map_err(failed)?;
    let _held = held.ok_or_else(|| format!("{} is locked by {}", path.display(), lock::holder(&dir.join(LOCK))))?;
    remove_torn(dir).map_err(failed)?;
    let mut rules = read(&path)?;
    let done = edit(&mut rules);
    let mut text = Vec::new();
    for rule in &rules {
        serde_json::to_writer(&mut text, rule).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
    }
    replace_durably(dir, FILE, &text).map_err(failed)?;
    File::open(&path).and_then(|file| owner::give(&file, dir)).map_err(failed)?;
    Ok(done)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
