//! Finds the worktrees that have the base checked out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use git2::ErrorClass;
use swarm_model::merge::Landing;

use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::{bare, objects, parse, pipes};
use crate::trash::absent;
use crate::worktrees::{admin, plan, record};
use swarm_sys::quoting::command_line;

/// A worktree and its git directory.
pub(crate) type Holder = (PathBuf, PathBuf);

/// Maximum number of symbolic refs in a row, as in git.
const SYMBOLIC_MAX: u32 = 5;

/// Reason why the base must not be moved now.
#[derive(Debug)]
pub(crate) struct Unready {
    pub(crate) why: String,
    /// File or directory of a git of a person that is at work, until it is gone. `None`: a person must act.
    pub(crate) until: Option<PathBuf>,
}

impl Unready {
    /// Returns a reason that lasts until a person acts.
    fn for_a_person(why: String) -> Self {
        Self { why, until: None }
    }

    /// Returns the result of the landing.
    pub(crate) fn landing(self) -> Landing {
        let file = self.until.as_deref().and_then(Path::to_str).map(str::to_owned);
        match file {
            Some(file) => Landing::Busy { reason: self.why, file },
            None => Landing::Failed(self.why),
        }
    }
}

/// Returns the worktrees that have the base checked out, or the reason why it must not be moved
/// now. Anything unreadable is an error: in a worktree that was overlooked, the landing would
/// look as if the user had reverted it.
///
/// A bisection is no reason: it ends with a checkout of the base, wherever that is then.
pub(crate) fn holders_of_base(workspace: &Workspace) -> Result<Result<Vec<Holder>, Unready>, Fault> {
    let wait = |why: String| Ok(Err(Unready::for_a_person(why)));
    if let Some(why) = taken_for_bare(workspace)? {
        return wait(why);
    }
    let library = workspace.library();
    let mut dirs: Vec<Holder> = Vec::new();
    let main = match &library {
        Some(repo) => repo.workdir().filter(|_| !repo.is_bare()).map(Path::to_owned),
        None => Some(admin::checkout_of(&workspace.common).unwrap_or(&workspace.common).to_owned()),
    };
    if let Some(tree) = main {
        if library.as_ref().is_some_and(|repo| !leads_back(repo, &tree, &workspace.common)) {
            let why = format!("the main worktree of {} is not where git looks for it", workspace.common.display());
            return wait(format!("{why} (run 'git -C {} config core.worktree PATH')", workspace.common.display()));
        }
        dirs.push((tree, workspace.common.clone()));
    }
    for entry in admin::entries(&workspace.common).map_err(Fault::at(&workspace.common))? {
        let Some(tree) = admin::known_tree_of(&entry).map_err(Fault::at(&entry))? else { continue };
        // An agent may write the path of any worktree to its own record.
        let is_main = || dirs.iter().any(|(main, dir)| *dir == workspace.common && admin::resolved(main) == tree);
        if !is_main() && !admin::is_of_another(&workspace.common, &entry, &tree).map_err(Fault::at(&tree))? {
            dirs.push((tree, entry));
        }
    }
    for (tree, git_dir) in &dirs {
        if let Some(until) = rebase_of(git_dir, &workspace.target.branch)? {
            let why = format!("'{}' is being rebased in {}", workspace.target.base(), tree.display());
            let why = format!("{why} (the work lands by itself once you have finished or aborted the rebase)");
            return Ok(Err(Unready { why, until: Some(until) }));
        }
    }
    let Some(repo) = library else { return holders_by_command(workspace) };
    let mut holders = Vec::new();
    for (tree, git_dir) in dirs {
        if head_of(&repo, &git_dir)?.is_none_or(|branch| branch != workspace.target.branch) {
            continue;
        }
        if let Some(why) = absence(workspace, &tree, &git_dir)? {
            return wait(why);
        }
        holders.push((tree, git_dir));
    }
    Ok(Ok(holders))
}

/// Returns the reason to wait if git takes the repository for bare by mistake and its main worktree has the base checked
/// out. What lands would look there as if the user had reverted it. Corrects the configuration if the mistake is there.
fn taken_for_bare(workspace: &Workspace) -> Result<Option<String>, Fault> {
    let common = &workspace.common;
    let Some(tree) = admin::checkout_of(common) else { return Ok(None) };
    let is_bare = match workspace.library() {
        Some(repo) => repo.is_bare(),
        None => workspace.read().args(["rev-parse", "--is-bare-repository"]).line()? == "true",
    };
    if !is_bare || !bare::has_tracked_files(&workspace.cli, common, tree)? {
        return Ok(None);
    }
    let head = workspace.read().args(["symbolic-ref", "-q", "HEAD"]).line_if_any()?;
    if head.as_ref() != Some(&workspace.target.branch) {
        return Ok(None);
    }
    if bare::unset(&workspace.cli, common)? {
        tracing::warn!(repository = %common.display(), "core.bare was true although there is a working tree; it is false now");
        workspace.forget_library();
        return Ok(None);
    }
    let at = tree.to_string_lossy();
    let show = command_line(["git", "-C", &at, "config", "--show-origin", "core.bare"]);
    let why =
        format!("git takes {} for a bare repository, although '{}' is checked out there", at, workspace.target.base());
    Ok(Some(format!("{why} (see '{show}', set it to false, then run 'swarm merge retry')")))
}

/// Returns the reason to wait if a linked worktree is not where its entry says.
fn absence(workspace: &Workspace, tree: &Path, entry: &Path) -> Result<Option<String>, Fault> {
    if is_missing(tree, entry, &workspace.common)? {
        return Ok(Some(missing(workspace, tree, entry)));
    }
    if entry == workspace.common {
        return Ok(None);
    }
    let link = admin::link_of(tree).map_err(Fault::at(tree))?;
    if link.is_some_and(|link| admin::resolved(&link) == admin::resolved(entry)) {
        // An agent may have checked the base out in its own worktree.
        let hostile = record::check(&workspace.common, entry).err();
        return Ok(hostile.map(|fault| {
            let todo = fault.remedy.map_or_else(String::new, |remedy| format!("{remedy}, then "));
            format!("{} ({todo}run 'swarm merge retry')", fault.cause)
        }));
    }
    let dot_git = tree.join(".git");
    let is_lost = admin::ignore_missing(fs::symlink_metadata(&dot_git)).map_err(Fault::at(&dot_git))?.is_none();
    let repo = admin::checkout_of(&workspace.common).unwrap_or(&workspace.common).to_string_lossy();
    let base = workspace.target.base();
    let repair = ["git", "-C", &repo, "worktree", "repair"];
    Ok(Some(match is_lost {
        true => format!(
            "'{base}' is checked out in the worktree {}, which has lost its .git file (run '{}', then run 'swarm merge \
             retry')",
            tree.display(),
            command_line(repair)
        ),
        // Files of somebody else: another repository has taken its place, or this one is a copy.
        false => format!(
            "'{base}' is checked out in the worktree {} according to {}, but {} leads elsewhere (run '{}' if the worktree \
             was moved to PATH, or '{}' if it is gone; then run 'swarm merge retry')",
            tree.display(),
            entry.display(),
            dot_git.display(),
            command_line(repair.into_iter().chain(["PATH"])),
            command_line(["rm", "-r", &entry.to_string_lossy()])
        ),
    }))
}

/// Reports whether a linked worktree is not at its path: it was moved and goes on working at another one, or its disk is
/// not mounted. What lands meanwhile would look there as if the user had reverted it.
fn is_missing(tree: &Path, git_dir: &Path, common: &Path) -> Result<bool, Fault> {
    let is_there = tree.try_exists().map_err(Fault::at(tree))?;
    Ok(git_dir != common && (!is_there || plan::is_empty_dir(tree)))
}

fn missing(workspace: &Workspace, tree: &Path, entry: &Path) -> String {
    let common = &workspace.common;
    let repo = admin::checkout_of(common).unwrap_or(common).to_string_lossy();
    let repair = command_line(["git", "-C", &repo, "worktree", "repair", "PATH"]);
    let if_moved = format!("bring it back, or run '{repair}' if it was moved to PATH");
    format!(
        "'{}' is checked out in the worktree {}, which is missing ({}; then run 'swarm merge retry')",
        workspace.target.base(),
        tree.display(),
        absent::remedy(common, entry, tree, &if_moved)
    )
}

/// Returns the directory of a rebase in a worktree that moves the branch at its end: the branch is rebased itself, or
/// belongs to the refs that `git rebase --update-refs` moves as well. git removes the directory when the rebase is over.
fn rebase_of(git_dir: &Path, branch: &str) -> Result<Option<PathBuf>, Fault> {
    for kind in ["rebase-merge", "rebase-apply"] {
        let dir = git_dir.join(kind);
        if read(&dir.join("head-name"))?.is_some_and(|said| said.trim_end() == branch) {
            return Ok(Some(dir));
        }
    }
    let dir = git_dir.join("rebase-merge");
    let moves = read(&dir.join("update-refs"))?.is_some_and(|said| said.lines().any(|line| line == branch));
    Ok(moves.then_some(dir))
}

/// Returns the branch that a commit in the worktree with this git directory would move. `None` if HEAD is detached.
fn head_of(repo: &git2::Repository, git_dir: &Path) -> Result<Option<String>, Fault> {
    let file = git_dir.join("HEAD");
    // With `core.preferSymlinkRefs`, HEAD is a symbolic link to the file of the branch.
    let linked = match fs::read_link(&file) {
        Ok(to) => to.to_str().map(str::to_owned),
        // It is a file.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
        linked => admin::ignore_missing(linked).map_err(Fault::at(&file))?.and(None),
    };
    let said = match linked.filter(|to| to.starts_with("refs/")) {
        Some(to) => Some(to),
        None => read(&file)?.and_then(|said| said.strip_prefix("ref:").map(|name| name.trim().to_owned())),
    };
    let Some(mut name) = said else { return Ok(None) };
    // A branch may be a symbolic ref to another one.
    for _ in 0..SYMBOLIC_MAX {
        let found = match objects::find_reference(repo, &name) {
            Ok(found) => found,
            Err(error) if error.class() == ErrorClass::Os => {
                let cause = format!("cannot read {name} of {}: {}", git_dir.display(), error.message());
                return Err(Fault { is_tool_failure: true, transient: true, ..Fault::new(cause) });
            }
            // There is no such branch yet, or its file is torn: no commit can move another branch through it.
            Err(_) => break,
        };
        match found.symbolic_target()? {
            Some(to) => name = to.to_owned(),
            None => break,
        }
    }
    Ok(Some(name))
}

/// Reports whether the directory belongs to this repository according to its `.git`, or to `core.worktree` unless its
/// `.git` file leads elsewhere, as in a copy of the repository. With `git init --separate-git-dir`, it may belong to it according to neither.
fn leads_back(repo: &git2::Repository, tree: &Path, common: &Path) -> bool {
    // Compared with the common directory only; no git follows it.
    let link = admin::link_of(tree).ok().flatten();
    let is_linked = link.is_some();
    let dot_git = link.unwrap_or_else(|| tree.join(".git"));
    let same = dot_git.canonicalize().is_ok_and(|dot_git| common.canonicalize().is_ok_and(|common| common == dot_git));
    same || !is_linked && repo.config().is_ok_and(|config| config.get_path("core.worktree").is_ok())
}

fn read(path: &Path) -> Result<Option<String>, Fault> {
    let said = admin::ignore_missing(record::read_linked(path)).map_err(|error| {
        let fault = Fault::at(path)(error);
        if pipes::is_pipe_at(path) { fault.remedy("delete it, then run 'swarm merge retry'".to_owned()) } else { fault }
    })?;
    Ok(said.map(|said| String::from_utf8_lossy(&said).into_owned()))
}

fn holders_by_command(workspace: &Workspace) -> Result<Result<Vec<Holder>, Unready>, Fault> {
    let listed = workspace.read().args(["worktree", "list", "--porcelain", "-z"]).run()?;
    let listed_main = admin::checkout_of(&workspace.common).map(admin::resolved);
    let mut holders: Vec<Holder> = Vec::new();
    for worktree in
        parse::worktrees(&listed).into_iter().filter(|tree| tree.branch.as_ref() == Some(&workspace.target.branch))
    {
        let tree = PathBuf::from(&worktree.path);
        // By record: the `.git` file of a linked worktree can be an agent's.
        let entries = admin::entries_of(&workspace.common, &tree).map_err(Fault::at(&tree))?;
        let is_main = listed_main.as_ref() == Some(&admin::resolved(&tree));
        let entry = admin::entry_of(&workspace.common, &tree).map_err(Fault::at(&tree))?.filter(|_| !is_main);
        let git_dir = entry.unwrap_or_else(|| workspace.common.clone());
        // The branch may be that of another record that names this worktree.
        if (entries.len() > 1 || is_main) && !entries.is_empty() {
            let call = workspace.cli.read(&git_dir).env("GIT_DIR", &git_dir).env("GIT_IMPLICIT_WORK_TREE", "false");
            let head = call.args(["symbolic-ref", "-q", "HEAD"]).line_if_any()?;
            if head.as_ref() != Some(&workspace.target.branch) {
                continue;
            }
        }
        if holders.iter().any(|(_, known)| *known == git_dir) {
            continue;
        }
        if let Some(why) = absence(workspace, &tree, &git_dir)? {
            return Ok(Err(Unready::for_a_person(why)));
        }
        if tree.try_exists().map_err(Fault::at(&tree))? {
            holders.push((tree, git_dir));
        }
    }
    Ok(Ok(holders))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::tests_checkout::Site;
    use super::*;

    #[tokio::test]
    async fn a_branch_that_cannot_be_read_is_not_one_that_is_absent() {
        let site = Site::new();
        site.branch("topic", "echo topic > t");
        site.item("topic").await;
        let tree = site.fix.root.join("w");
        site.fix.git(&["worktree", "add", "-q", tree.to_str().unwrap(), "-b", "w"]);
        let workspace = site.workspace();
        let held = || holders_of_base(&workspace).map(|held| held.unwrap().len());
        let branch = workspace.common.join("refs/heads/w");
        assert_eq!(held(), Ok(1), "the main worktree");
        let value = fs::read(&branch).unwrap();
        fs::write(&branch, "ref: refs/heads/main\n").unwrap();
        assert_eq!(held(), Ok(2), "a symbolic branch");
        fs::write(&branch, "").unwrap();
        assert_eq!(held(), Ok(1), "a torn file");
        fs::remove_file(&branch).unwrap();
        assert_eq!(held(), Ok(1), "no branch yet");
        // Opening it fails with ELOOP.
        symlink("w", &branch).unwrap();
        let Err(fault) = holders_of_base(&workspace) else { panic!("it was read") };
        assert!(fault.cause.starts_with("cannot read refs/heads/w of ") && fault.transient, "{fault:?}");
        fs::remove_file(&branch).unwrap();
        fs::write(&branch, value).unwrap();
        assert_eq!(held(), Ok(1));
    }
}
