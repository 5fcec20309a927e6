//! Records in a worktree's administrative directory for which state directory it was created.
//! A worktree that merely lies next to ours, or that another state directory created, must not be
//! removed unasked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use swarm_model::{BaseRef, RowWorktree};
use swarm_ports::Kept;

use super::{admin, record};
use crate::repository::{holders, objects};

const MARK: &str = "swarm-made";
/// Name of the worker that was forgotten while this worktree stayed or was restored, its branch, and the checkout that it
/// was made from. For a restored worktree also the state directory: it has no [`MARK`], so that nothing removes it
/// unasked.
const KEPT: &str = "swarm-kept";
/// Name of [`KEPT`] in an earlier worktree of a worker that left another one since.
const EARLIER: &str = "swarm-kept-earlier";
/// Branch from which the work started, empty if it started from a commit, and the commit. Saved with the worktree.
pub(crate) const BASE: &str = "swarm-base";
/// Branch that was made for the work in this worktree, and the commit at which it was made. Saved with the worktree.
pub(crate) const BRANCH: &str = "swarm-branch";
/// Minimum age of a leftover worktree. A start with the user's commands takes at most ten minutes.
const AGE_MIN: Duration = Duration::from_secs(1800);

/// Records the owner of a worktree. A worktree without this record is never removed unasked.
pub(crate) fn record_owner(common: &Path, tree: &Path, state_dir: &Path) {
    if let Ok(Some(entry)) = admin::entry_of(common, tree) {
        let _ = record::write(&entry.join(MARK), state_dir.as_os_str().as_encoded_bytes());
    }
}

/// Reports whether swarm created the worktree of this entry.
pub(crate) fn is_marked(entry: &Path) -> bool {
    entry.join(MARK).exists()
}

/// Returns the state directory for which the worktree of this entry was made. `None` if git's record does not say so.
pub fn maker(entry: &Path) -> Option<PathBuf> {
    Some(PathBuf::from(record::read_text(&entry.join(MARK)).ok()?))
}

/// Returns the state directory that created the worktree, and the age of that record.
fn read_owner(tree: &Path, base_repo: &Path) -> Option<(PathBuf, Duration)> {
    let common = admin::common_dir(base_repo).ok()?;
    let mark = admin::entry_of(&common, tree).ok()??.join(MARK);
    let age = SystemTime::now().duration_since(fs::symlink_metadata(&mark).ok()?.modified().ok()?).ok()?;
    Some((PathBuf::from(record::read_text(&mark).ok()?), age))
}

/// Reports whether a worktree was certainly created for this state directory, by a start that
/// ended long ago, and no process runs in it.
pub fn is_abandoned_by(tree: &Path, base_repo: &Path, state_dir: &Path) -> bool {
    let is_here = |maker: &Path| admin::resolved(maker) == admin::resolved(state_dir);
    let is_ours = |(maker, age): (PathBuf, Duration)| is_here(&maker) && age >= AGE_MIN;
    read_owner(tree, base_repo).is_some_and(is_ours) && !holders::is_any_process_in(tree)
}

/// Records from which branch and commit the work in a worktree started. A branch that goes on keeps the commit from which
/// it started first.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn record_base(common: &Path, tree: &Path, base: &BaseRef) -> io::Result<()> {
    match admin::entry_of(common, tree)? {
        Some(entry) if read_base(&entry).is_none_or(|known| known.branch != base.branch) => write_base(&entry, base),
        Some(_) | None => Ok(()),
    }
}

/// Returns from which branch and commit the work in a worktree started. `None` if that is not recorded.
pub(crate) fn base_of(common: &Path, tree: &Path) -> Option<BaseRef> {
    read_base(&admin::entry_of(common, tree).ok()??)
}

/// Records that the branch of a worktree was made for it, at this commit.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn record_branch(common: &Path, tree: &Path, branch: &str, commit: &str) -> io::Result<()> {
    let Some(entry) = admin::entry_of(common, tree)? else { return Ok(()) };
    let text = format!("{branch}\n{commit}\n");
    if record::read_text(&entry.join(BRANCH)).is_ok_and(|known| known == text) {
        return Ok(());
    }
    record::write(&entry.join(BRANCH), text.as_bytes())
}

/// Returns the commit at which this branch was made for the work in a worktree. `None` if that is not recorded.
pub(crate) fn branch_origin(common: &Path, tree: &Path, branch: &str) -> Option<String> {
    let (made, commit) = read_branch(&admin::entry_of(common, tree).ok()??)?;
    (made == branch).then_some(commit)
}

/// Returns the branch that was made for the worktree of this entry, and the commit at which it was made.
pub(crate) fn read_branch(entry: &Path) -> Option<(String, String)> {
    let text = record::read_text(&entry.join(BRANCH)).ok()?;
    let (made, commit) = text.strip_suffix('\n')?.split_once('\n')?;
    (objects::is_branch_name(made) && is_id(commit)).then(|| (made.to_owned(), commit.to_owned()))
}

pub(crate) fn is_id(commit: &str) -> bool {
    commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn write_base(entry: &Path, base: &BaseRef) -> io::Result<()> {
    record::write(
        &entry.join(BASE),
        format!("{}\n{}\n", base.branch.as_deref().unwrap_or_default(), base.commit).as_bytes(),
    )
}

pub(crate) fn read_base(entry: &Path) -> Option<BaseRef> {
    let text = record::read_text(&entry.join(BASE)).ok()?;
    let (branch, commit) = text.strip_suffix('\n')?.split_once('\n')?;
    let branch = Some(branch).filter(|branch| !branch.is_empty()).map(str::to_owned);
    (is_id(commit) && branch.as_deref().is_none_or(objects::is_branch_name))
        .then(|| BaseRef { branch, commit: commit.to_owned() })
}

/// Records that the worktree stays although its worker is forgotten, and from where its work started if that is known.
/// What is not a worktree of the repository is left alone.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn keep(name: &str, tree: &RowWorktree, base: Option<&BaseRef>) -> io::Result<()> {
    let common = admin::common_dir(Path::new(&tree.base_repo))?;
    let Some(entry) = admin::entry_of(&common, Path::new(&tree.path))? else { return Ok(()) };
    if let Some(base) = base {
        write_base(&entry, base)?;
    }
    record::write(&entry.join(KEPT), format!("{name}\n{}\n{}\n", tree.branch, tree.base_repo).as_bytes())?;
    set_back_earlier(&common, &entry)
}

/// Records that the worktree of this worker was restored.
///
/// # Errors
/// Fails if git's record of the worktree cannot be read or written.
pub(crate) fn keep_restored(name: &str, tree: &RowWorktree, state_dir: &Path) -> io::Result<()> {
    let common = admin::common_dir(Path::new(&tree.base_repo))?;
    let Some(entry) = admin::entry_of(&common, Path::new(&tree.path))? else { return Ok(()) };
    let mut text = format!("{name}\n{}\n{}\n", tree.branch, tree.base_repo).into_bytes();
    text.extend_from_slice(state_dir.as_os_str().as_encoded_bytes());
    text.push(b'\n');
    record::write(&entry.join(KEPT), &text)?;
    set_back_earlier(&common, &entry)
}

/// Makes this worktree the only one that the name of its worker means. A kill after the record of this one was written
/// leaves two of them, of which the younger counts.
fn set_back_earlier(common: &Path, entry: &Path) -> io::Result<()> {
    admin::ignore_missing(fs::remove_file(entry.join(EARLIER)))?;
    let Some(own) = Record::read(entry, KEPT) else { return Ok(()) };
    for other in admin::entries(common)? {
        let is_other = admin::resolved(&other) != admin::resolved(entry);
        if is_other && Record::read(&other, KEPT).is_some_and(|record| record.is_of(&own.name, &own.maker)) {
            fs::rename(other.join(KEPT), other.join(EARLIER))?;
        }
    }
    Ok(())
}

/// Content of a file [`KEPT`] or [`EARLIER`].
struct Record {
    name: String,
    /// State directory of the worker.
    maker: PathBuf,
    tree: RowWorktree,
    since: SystemTime,
}

impl Record {
    fn read(entry: &Path, file: &str) -> Option<Self> {
        let file = entry.join(file);
        let text = record::read_text(&file).ok()?;
        let (name, branch, base_repo, maker) = match text.lines().collect::<Vec<_>>()[..] {
            [name, branch, base_repo] => (name, branch, base_repo, record::read_text(&entry.join(MARK)).ok()?),
            [name, branch, base_repo, maker] => (name, branch, base_repo, maker.to_owned()),
            _ => return None,
        };
        let path = admin::tree_of(entry)?.to_str()?.to_owned();
        let tree = RowWorktree { path, branch: branch.to_owned(), base_repo: base_repo.to_owned() };
        let since = fs::symlink_metadata(&file).ok()?.modified().ok()?;
        Some(Self { name: name.to_owned(), maker: PathBuf::from(maker), tree, since })
    }

    fn is_of(&self, name: &str, state_dir: &Path) -> bool {
        self.name == name && admin::resolved(&self.maker) == admin::resolved(state_dir)
    }
}

/// Returns the worktree of a repository that stayed when this worker of the state directory was forgotten, or that was
/// restored since: the one of which that was recorded last.
///
/// # Errors
/// Fails if the worktrees of the repository cannot be listed.
pub(crate) fn kept(name: &str, common: &Path, state_dir: &Path) -> io::Result<Option<Kept>> {
    let mut found = Vec::new();
    for entry in admin::entries(common)? {
        for (file, is_superseded) in [(KEPT, false), (EARLIER, true)] {
            let record = Record::read(&entry, file).filter(|record| record.is_of(name, state_dir));
            found.extend(record.map(|record| (record, is_superseded, read_base(&entry))));
        }
    }
    let last = found.into_iter().max_by_key(|(record, is_superseded, _)| (!is_superseded, record.since));
    Ok(last.map(|(record, is_superseded, base)| Kept { tree: record.tree, base, is_superseded }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    /// Creates a worktree on a branch of its name.
    fn made(fix: &Fixture, name: &str) -> RowWorktree {
        let path = fix.root.join(name);
        fix.git(&["worktree", "add", "-q", "-b", name, path.to_str().unwrap()]);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        RowWorktree { path: text(&path), branch: name.to_owned(), base_repo: text(&fix.repo) }
    }

    #[test]
    fn a_restored_worktree_is_that_of_its_worker_in_its_state_directory_only_and_has_no_owner() {
        let fix = Fixture::new();
        let tree = made(&fix, "w");
        let (common, here) = (fix.repo.join(".git"), fix.root.join("state"));
        let kept = |name: &str, state_dir: &Path| kept(name, &common, state_dir).unwrap().map(|kept| kept.tree);
        assert_eq!(kept("fix", &here), None);
        keep_restored("fix", &tree, &here).unwrap();
        assert_eq!((kept("fix", &here), kept("w", &here)), (Some(tree.clone()), None));
        assert_eq!(kept("fix", &fix.root.join("other")), None);
        assert!(read_owner(Path::new(&tree.path), &fix.repo).is_none(), "nothing removes it unasked");
    }

    #[test]
    fn a_name_means_the_worktree_that_its_worker_left_last_and_no_earlier_one_takes_its_place() {
        let fix = Fixture::new();
        let (common, here) = (fix.repo.join(".git"), fix.root.join("state"));
        let trees = ["b", "c", "a"].map(|name| made(&fix, name));
        let kept = || kept("fix", &common, &here).unwrap().map(|kept| (kept.tree.branch, kept.is_superseded));
        for tree in &trees {
            record_owner(&common, Path::new(&tree.path), &here);
            keep("fix", tree, None).unwrap();
            assert_eq!(kept(), Some((tree.branch.clone(), false)));
        }
        keep_restored("fix", &trees[1], &here).unwrap();
        assert_eq!(kept(), Some(("c".to_owned(), false)));
        fix.git(&["worktree", "remove", &trees[1].path]);
        assert_eq!(kept(), Some(("a".to_owned(), true)), "the younger of those that it left before");
        keep("other", &trees[0], None).unwrap();
        assert_eq!(kept(), Some(("a".to_owned(), true)));
    }

    #[test]
    fn a_branch_that_goes_on_keeps_the_commit_from_which_it_started() {
        let fix = Fixture::new();
        let (common, tree) = (fix.repo.join(".git"), made(&fix, "w"));
        let path = Path::new(&tree.path);
        let base =
            |branch: Option<&str>, digit: &str| BaseRef { branch: branch.map(str::to_owned), commit: digit.repeat(40) };
        assert_eq!(base_of(&common, path), None);
        for (recorded, expected) in [
            (base(Some("main"), "a"), base(Some("main"), "a")),
            (base(Some("main"), "b"), base(Some("main"), "a")),
            (base(Some("release"), "b"), base(Some("release"), "b")),
            (base(None, "c"), base(None, "c")),
        ] {
            record_base(&common, path, &recorded).unwrap();
            assert_eq!(base_of(&common, path), Some(expected));
        }
        let file = admin::entry_of(&common, path).unwrap().unwrap().join(BASE);
        for damaged in ["", "main\n", "main\nx\n", &format!("a..b\n{}\n", "a".repeat(40))] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(base_of(&common, path), None, "{damaged:?}");
        }
    }
}
