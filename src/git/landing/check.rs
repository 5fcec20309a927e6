//! Checks the merges of `git merge-tree`, which is a lot of code with many settings: a candidate
//! must change only paths of its topic, and a topic path that it does not change must already be
//! on the base. (A trivial merge takes each path from one side by construction.) If the check
//! cannot tell for certain, it trusts git: an item that waits for no reason would wait forever.

use std::collections::{BTreeMap, BTreeSet};

use git2::{IndexEntry, IndexTime, MergeFileOptions, Oid, Repository, Tree};

use super::trees;
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;

/// A merge made by git, to be checked.
pub(crate) struct Check<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) library: Option<&'a Repository>,
    /// Name of the item.
    pub(crate) name: &'a str,
    /// Merge bases; several if the histories cross.
    pub(crate) bases: &'a [String],
    pub(crate) ours: &'a str,
    pub(crate) theirs: &'a str,
}

/// Kind of the paths that are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paths {
    All,
    Deleted,
}

/// Mode and object id of a file.
type Entry = (u32, Oid);

impl Check<'_> {
    /// Checks that `tree` is a merge of both sides.
    ///
    /// # Errors
    /// Fails if `tree` changes a path that the topic does not, or drops a change of the topic.
    pub(crate) fn run(&self, tree: &str) -> Result<(), Fault> {
        let mut topic = BTreeSet::new();
        for base in self.bases {
            topic.extend(self.paths(base, self.theirs, Paths::All)?);
        }
        let landed = self.paths(self.ours, tree, Paths::All)?;
        self.check_foreign_paths(tree, &topic, &landed)?;
        self.check_dropped_changes(&topic.difference(&landed).collect::<Vec<_>>())
    }

    /// Counts the paths deleted on either side; renames of files and directories delete paths.
    fn gone(&self) -> Result<usize, Fault> {
        let mut gone = 0;
        for base in self.bases {
            for side in [self.ours, self.theirs] {
                gone += self.paths(base, side, Paths::Deleted)?.len();
            }
        }
        Ok(gone)
    }

    /// Fails if paths outside of the topic changed and renames cannot explain them. If one side
    /// renamed what the other changed, the change appears under the new name; if it renamed a
    /// directory, a file that the other side added appears in the new one.
    fn check_foreign_paths(
        &self,
        tree: &str,
        topic: &BTreeSet<String>,
        landed: &BTreeSet<String>,
    ) -> Result<(), Fault> {
        let foreign: Vec<&String> = landed.difference(topic).collect();
        let Some(first) = foreign.first() else { return Ok(()) };
        let gone = self.gone()?;
        let moved = if gone > 0 { self.moved(tree, topic, &foreign)? } else { 0 };
        if foreign.len() <= gone + moved {
            return Ok(());
        }
        Err(Fault::new(format!("the merge would change {first}, which {} never touched", self.name)))
    }

    /// Counts how many of these paths are files of the topic under other names.
    fn moved(&self, tree: &str, topic: &BTreeSet<String>, foreign: &[&String]) -> Result<usize, Fault> {
        let Some(repo) = self.library else { return Ok(0) };
        let theirs = entries(&commit_tree(repo, self.theirs)?, &topic.iter().collect::<Vec<_>>());
        let theirs: BTreeSet<Entry> = theirs.into_values().collect();
        let landed = entries(&repo.find_tree(Oid::from_str(tree)?)?, foreign);
        Ok(landed.values().filter(|entry| theirs.contains(entry)).count())
    }

    /// Fails if a change of the topic was dropped. `unchanged` are paths of the topic that stay as
    /// they are on our side. With several merge bases, the expected content is unknown.
    fn check_dropped_changes(&self, unchanged: &[&String]) -> Result<(), Fault> {
        let (Some(repo), [base]) = (self.library, self.bases) else { return Ok(()) };
        if unchanged.is_empty() {
            return Ok(());
        }
        let differ = self.paths(self.ours, self.theirs, Paths::All)?;
        let left: Vec<&String> = unchanged.iter().copied().filter(|path| differ.contains(*path)).collect();
        let of = |commit: &str| Ok::<_, Fault>(entries(&commit_tree(repo, commit)?, &left));
        let (base, ours, theirs) = (of(base)?, of(self.ours)?, of(self.theirs)?);
        for path in left {
            let is_dropped = match (base.get(path), ours.get(path), theirs.get(path)) {
                (Some(base), Some(ours), Some(theirs)) => {
                    drops(repo, path, [*base, *ours, *theirs])? && self.is_merged_as_text(path)?
                }
                // Deleted by the topic alone, and still there.
                (Some(base), Some(ours), None) => base == ours,
                // Added by the topic, and missing; no rename explains it.
                (None, None, Some(_)) => self.gone()? == 0,
                _ => false,
            };
            if is_dropped {
                return Err(Fault::new(format!("the merge would drop the changes of {} to {path}", self.name)));
            }
        }
        Ok(())
    }

    /// Reports whether no attribute or setting selects another merge driver for the path.
    fn is_merged_as_text(&self, path: &str) -> Result<bool, Fault> {
        let normalizes = self.workspace.read().args(["config", "--type=bool", "--get", "merge.renormalize"]);
        let (_, normalizes) = normalizes.run_for(&[0, 1])?;
        let (driven, _) = self.workspace.read().args(["config", "--get", "merge.default"]).run_for(&[0, 1])?;
        // `check-attr` needs a worktree; the queue's directory contains no attributes.
        let call = Workspace::named(self.workspace.read(), &self.workspace.common, &self.workspace.own);
        let call = call.env("GIT_ATTR_SOURCE", self.ours).args(["check-attr", "-z", "merge", "--", path]);
        // The output is path, attribute, value.
        let told = call.run()?;
        let driver = told.split(|byte| *byte == 0).nth(2);
        Ok(driver == Some(b"unspecified") && driven != 0 && !normalizes.starts_with(b"true"))
    }

    /// Returns the paths that differ between two commits or trees.
    fn paths(&self, from: &str, to: &str, which: Paths) -> Result<BTreeSet<String>, Fault> {
        if let Some(repo) = self.library
            && let Ok(paths) = trees::differing(repo, from, to)
        {
            let wanted = paths.into_iter().filter(|path| which == Paths::All || path.after.is_none());
            return Ok(wanted.map(|differing| String::from_utf8_lossy(&differing.path).into_owned()).collect());
        }
        let words: &[&str] = if which == Paths::Deleted { &["--diff-filter=D"] } else { &[] };
        let call =
            self.workspace.read().args(["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff"]);
        let out = call.args(words).args([from, to]).run()?;
        let fields = out.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        Ok(fields.map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }
}

/// Reports whether keeping our content drops a change of the topic. That is certain if two diff
/// algorithms merge to the same text, this text differs from ours, and ours lacks a line that the
/// topic added or still has a line that it removed. One algorithm alone would not suffice: git's
/// own is a third, and each aligns repeated lines differently.
fn drops(repo: &Repository, path: &str, sides: [Entry; 3]) -> Result<bool, Fault> {
    let [base, ours, theirs] = sides.map(|(mode, id)| index_entry(path, mode, id));
    let merged = |patience| {
        let mut options = MergeFileOptions::new();
        options.patience(patience);
        // Symbolic links and submodules are not text.
        let merged = repo.merge_file_from_index(&base, &ours, &theirs, Some(&mut options)).ok()?;
        merged.is_automergeable().then(|| merged.content().to_vec())
    };
    let (Some(one), Some(other)) = (merged(false), merged(true)) else { return Ok(false) };
    let (base, ours, theirs) = (repo.find_blob(base.id)?, repo.find_blob(ours.id)?, repo.find_blob(theirs.id)?);
    if one != other || one == ours.content() {
        return Ok(false);
    }
    let [base, ours, theirs] = [base.content(), ours.content(), theirs.content()].map(lines);
    Ok(theirs.difference(&base).any(|line| !ours.contains(line))
        || base.difference(&theirs).any(|line| ours.contains(line)))
}

fn lines(content: &[u8]) -> BTreeSet<&[u8]> {
    content.split(|byte| *byte == b'\n').collect()
}

fn commit_tree<'a>(repo: &'a Repository, commit: &str) -> Result<Tree<'a>, Fault> {
    Ok(repo.find_commit(Oid::from_str(commit)?)?.tree()?)
}

/// Returns the entries of a tree at these paths.
fn entries(tree: &Tree<'_>, paths: &[&String]) -> BTreeMap<String, Entry> {
    let found = paths.iter().filter_map(|path| {
        let entry = tree.get_path(path.as_ref()).ok()?;
        Some(((*path).clone(), (u32::try_from(entry.filemode()).ok()?, entry.id())))
    });
    found.collect()
}

fn index_entry(path: &str, mode: u32, id: Oid) -> IndexEntry {
    let never = IndexTime::new(0, 0);
    let (ctime, mtime) = (never, never);
    IndexEntry {
        ctime,
        mtime,
        dev: 0,
        ino: 0,
        mode,
        uid: 0,
        gid: 0,
        file_size: 0,
        id,
        flags: 0,
        flags_extended: 0,
        path: path.into(),
    }
}
