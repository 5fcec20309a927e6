//! Commits that agents make in a clone on a branch that is not theirs, above all on the base: a start sets it, so that
//! nothing else would name them.

use std::path::{Path, PathBuf};

use swarm_model::{Caller, RowWorktree};

use super::{Failure, SENT, cli, common, pin, set_branch, users};
use crate::landing::complete::DONE;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Entry};
use crate::repository::{deletion, objects};
use crate::worktrees::{admin, identity, record};

/// Namespace of the refs that keep such commits until they are fetched; each is named after its commit.
const STRAY: &str = "refs/swarm/stray";
/// Branches of worktrees whose own branch, or that of another job, was taken from them.
const ASIDE: &str = "refs/heads/swarm-aside";
/// Message in the reflog of a branch that a start has set.
pub(super) const SET: &str = "swarm: sent";

/// Keeps the tip of a branch that is about to be set to `next`, unless `next` contains it or it came from a controller.
///
/// # Errors
/// Fails if git fails.
pub fn keep_stray(clone: &Path, branch: &str, next: &str, caller: &Caller) -> Result<(), Failure> {
    let cli = cli(caller)?;
    let Some(tip) = stray_tip(&cli, clone, branch)?.filter(|tip| tip != next) else { return Ok(()) };
    let held = [next, "--glob=refs/swarm/bas[e]"].map(str::to_owned);
    let held = held.into_iter().chain([SENT, DONE, STRAY].map(|names| format!("--glob={names}")));
    if contains(&cli, clone, held, &tip)? {
        return Ok(());
    }
    keep_as_stray(&cli, clone, &tip)
}

fn keep_as_stray(cli: &Cli, clone: &Path, commit: &str) -> Result<(), Failure> {
    let entry = Entry { why: "swarm: a commit on a branch of the controller", makes: false };
    let name = format!("{STRAY}/{commit}");
    Ok(plain_ref::write(cli, &common(clone), (&name, commit), Before::Any, entry)?)
}

/// Pins the commits that a worktree has made on `base` and that neither of the `known` ones contains, and returns them.
///
/// # Errors
/// Fails if git fails.
pub fn strays(
    tree: &RowWorktree,
    base: &str,
    known: impl Iterator<Item = String>,
    caller: &Caller,
) -> Result<Vec<String>, Failure> {
    let (clone, cli) = (Path::new(&tree.base_repo), cli(caller)?);
    let kept = cli.read(clone).args(["for-each-ref", "--format=%(objectname)", STRAY]).run()?;
    let kept = String::from_utf8_lossy(&kept).into_owned();
    let open: Vec<String> = kept.lines().map(str::to_owned).chain(stray_tip(&cli, clone, base)?).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    // Whatever was committed in the worktree was checked out in it.
    let Some(entry) = admin::entry_of(&common(clone), Path::new(&tree.path)).map_err(Fault::at(clone))? else {
        return Ok(Vec::new());
    };
    let log = admin::ignore_missing(record::read(&entry.join("logs/HEAD"))).map_err(Fault::at(&entry))?;
    let log = String::from_utf8_lossy(&log.unwrap_or_default()).into_owned();
    let mut made: Vec<String> = open.into_iter().filter(|commit| log.contains(commit.as_str())).collect();
    made.sort();
    made.dedup();
    let known: Vec<String> = known.collect();
    let mut found = Vec::new();
    for commit in &made {
        let others = made.iter().filter(|other| *other != commit);
        if !contains(&cli, clone, known.iter().chain(others).cloned(), commit)? {
            pin(clone, commit, caller)?;
            found.push(commit.clone());
        }
    }
    Ok(found)
}

/// Sets a branch back to the commit that was sent, if all that was committed on it is contained in `fetched`, and nobody has
/// it checked out. Removes kept commits, and branches of worktrees that are gone, likewise. The caller must hold a lock, so that nobody else sets branches or makes worktrees.
///
/// # Errors
/// Fails if git fails.
pub fn set_back(
    clone: &Path,
    (branch, commit): (&str, &str),
    fetched: &[String],
    caller: &Caller,
) -> Result<(), Failure> {
    let cli = cli(caller)?;
    if fetched.is_empty() {
        return Ok(());
    }
    drop_fetched(&cli, clone, fetched, caller)?;
    let Some(tip) = stray_tip(&cli, clone, branch)?.filter(|tip| tip != commit) else { return Ok(()) };
    let is_fetched = contains(&cli, clone, fetched.iter().cloned(), &tip)?;
    if is_fetched && users(clone, branch, caller)?.is_empty() {
        set_branch(clone, branch, commit, caller)?;
    }
    Ok(())
}

/// Gives a worktree of a clone a branch of its own instead of the one that it has checked out, so that this one can be set. Its
/// files and its commit stay as they are. A detached HEAD would count as work on the branch of its job.
///
/// # Errors
/// Fails if the worktree is not as its record says, or if git fails.
pub fn move_aside(clone: &Path, tree: &Path, caller: &Caller) -> Result<(), Failure> {
    let cli = cli(caller)?;
    let Some(place) = identity::open(&cli, tree, clone)? else { return Ok(()) };
    let (Some(head), Some(_)) = (&place.head, &place.branch) else { return Ok(()) };
    let leaf = tree.file_name().unwrap_or_default().to_string_lossy();
    let branch = format!("{ASIDE}/{leaf}-{}", head.get(..12).unwrap_or(head));
    let earlier = objects::branch_tip(&cli, clone, branch.trim_start_matches("refs/heads/"))?;
    if let Some(earlier) = earlier.as_ref().filter(|earlier| *earlier != head) {
        keep_as_stray(&cli, clone, earlier)?;
    }
    let entry = Entry { why: "swarm: aside", makes: true };
    plain_ref::write(&cli, &place.common, (&branch, head), Before::Any, entry)?;
    let why = "swarm: the branch is that of another workstream";
    Ok(plain_ref::attach(&cli, [&place.common, &place.git_dir], (&branch, head), why)?)
}

/// Deletes the refs of [`keep_stray`] and the branches of [`move_aside`], if all that was committed there is contained in
/// `fetched`, and nobody has them checked out.
fn drop_fetched(cli: &Cli, clone: &Path, fetched: &[String], caller: &Caller) -> Result<(), Failure> {
    let listed = cli.read(clone).args(["for-each-ref", "--format=%(objectname) %(refname)", ASIDE, STRAY]).run()?;
    for (tip, full) in String::from_utf8_lossy(&listed).lines().filter_map(|line| line.split_once(' ')) {
        let branch = full.trim_start_matches("refs/heads/");
        if contains(cli, clone, fetched.iter().cloned(), tip)? && users(clone, branch, caller)?.is_empty() {
            deletion::delete(cli, &common(clone), full, Some(tip))?;
        }
    }
    Ok(())
}

/// Returns the tip of a branch, unless a start has set it to that commit.
fn stray_tip(cli: &Cli, clone: &Path, branch: &str) -> Result<Option<String>, Failure> {
    let Some(tip) = objects::branch_tip(cli, clone, branch)? else { return Ok(None) };
    let full = format!("refs/heads/{branch}");
    let log = ["log", "--walk-reflogs", "-1", "--no-show-signature", "--format=%H %gs", &full, "--"];
    let (_, last) = cli.read(clone).args(log).run_for(&[0, 128])?;
    let was_set = String::from_utf8_lossy(&last).trim() == format!("{tip} {SET}");
    Ok(Some(tip).filter(|_| !was_set))
}

/// Reports whether one of the commits, or of the refs that a pattern names, contains a commit.
fn contains(cli: &Cli, clone: &Path, held: impl Iterator<Item = String>, commit: &str) -> Result<bool, Failure> {
    let words = ["rev-list", "--ignore-missing", "--max-count=1", commit, "--not"].map(str::to_owned);
    Ok(cli.read(clone).args(words.into_iter().chain(held)).run()?.is_empty())
}

/// Returns the worktrees of a clone that have a branch checked out, except for `own`.
///
/// # Errors
/// Fails if git cannot tell.
pub fn other_users(clone: &Path, branch: &str, own: &Path, caller: &Caller) -> Result<Vec<PathBuf>, Failure> {
    Ok(users(clone, branch, caller)?.into_iter().filter(|user| user != own).collect())
}

#[cfg(test)]
mod tests {
    use super::super::make_clone;
    use super::*;
    use crate::fixture::{Fixture, text};

    #[test]
    fn commits_on_a_branch_that_is_set_are_kept_until_they_are_fetched() {
        let fix = Fixture::new();
        let (caller, dir) = (fix.caller.clone(), fix.root.join("clone"));
        make_clone(&dir, "sha1", &caller).expect("made");
        let git = |words: &[&str]| text(&fix.at(&dir, words)).trim().to_owned();
        let empty = git(&["write-tree"]);
        let [one, two] = ["one", "two"].map(|name| git(&["commit-tree", "-m", name, &empty]));
        set_branch(&dir, "main", &one, &caller).expect("set");
        set_branch(&dir, "arial/m", &one, &caller).expect("set");
        let strays_there = || git(&["for-each-ref", "--format=%(objectname)", STRAY]);
        keep_stray(&dir, "main", &two, &caller).expect("kept");
        assert_eq!(strays_there(), "", "it came from the controller");

        let path = fix.root.join("tree");
        git(&["worktree", "add", "-q", &path.display().to_string(), "arial/m"]);
        let here = |words: &[&str]| text(&fix.at(&path, words)).trim().to_owned();
        here(&["switch", "-q", "main"]);
        here(&["commit", "-q", "--allow-empty", "-m", "astray"]);
        let astray = here(&["rev-parse", "HEAD"]);
        for _ in 0..2 {
            move_aside(&dir, &path, &caller).expect("moved");
        }
        let aside = format!("swarm-aside/tree-{}", &astray[..12]);
        assert_eq!(here(&["rev-parse", "HEAD", "--abbrev-ref", "HEAD"]), format!("{astray}\n{aside}"));
        keep_stray(&dir, "main", &two, &caller).expect("kept");
        set_branch(&dir, "main", &two, &caller).expect("set");
        assert_eq!(strays_there(), astray);
        here(&["switch", "-q", "arial/m"]);

        let tree = |path: &Path| RowWorktree {
            path: path.display().to_string(),
            branch: "arial/m".into(),
            base_repo: dir.display().to_string(),
        };
        let known = || [one.clone()].into_iter();
        assert_eq!(strays(&tree(&path), "main", known(), &caller), Ok(vec![astray.clone()]));
        let contained = known().chain([astray.clone()]);
        assert_eq!(strays(&tree(&path), "main", contained, &caller), Ok(Vec::new()));
        let other = fix.root.join("other");
        git(&["worktree", "add", "-q", "-b", "arial/n", &other.display().to_string(), &one]);
        assert_eq!(strays(&tree(&other), "main", known(), &caller), Ok(Vec::new()), "it is another one's");

        git(&["update-ref", "refs/heads/main", &astray]);
        set_back(&dir, ("main", &one), &[two], &caller).expect("left");
        assert_eq!(git(&["rev-parse", "main"]), astray);
        set_back(&dir, ("main", &one), std::slice::from_ref(&astray), &caller).expect("set");
        assert_eq!(git(&["rev-parse", "main"]), one);
        assert_eq!(git(&["for-each-ref", ASIDE]), "");
        assert_eq!(strays_there(), "");
    }
}
