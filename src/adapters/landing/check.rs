//! Nothing lands, and nothing is left out, that a merge should not have: the paths that
//! a candidate changes are paths of its topic, and what it does not change of those is
//! on the base already. For what `git merge-tree` has decided, which is a lot of code
//! with many settings; the trivial merge takes each path from one side by construction.

use std::collections::{BTreeMap, BTreeSet};

use git2::{IndexEntry, IndexTime, MergeFileOptions, Oid, Repository};

use super::desk::Desk;
use crate::adapters::git::fault::Fault;

/// A merge that git made.
pub(super) struct Check<'a> {
    pub(super) desk: &'a Desk,
    pub(super) library: Option<&'a Repository>,
    /// Of whom it is.
    pub(super) name: &'a str,
    /// What both sides began with; several where their histories cross.
    pub(super) bases: &'a [String],
    pub(super) ours: &'a str,
    pub(super) theirs: &'a str,
}

/// Mode and object of a file.
type Entry = (u32, Oid);

impl Check<'_> {
    /// # Errors
    /// What of `tree` has no reason in the topic, or what of the topic is not in it.
    pub(super) fn run(&self, tree: &str) -> Result<(), Fault> {
        let mut topic = BTreeSet::new();
        for base in self.bases {
            topic.extend(self.paths(base, self.theirs, &[])?);
        }
        let landed = self.paths(self.ours, tree, &[])?;
        self.nothing_strange(&topic, &landed)?;
        self.nothing_dropped(&topic, &landed)
    }

    /// Where one side renamed what the other changed, the change is found under the new
    /// name.
    fn nothing_strange(&self, topic: &BTreeSet<String>, landed: &BTreeSet<String>) -> Result<(), Fault> {
        let strange: Vec<&String> = landed.difference(topic).collect();
        let Some(first) = strange.first() else { return Ok(()) };
        // A rename is a path that is gone on one side since the base.
        let mut gone = 0;
        for base in self.bases {
            for side in [self.ours, self.theirs] {
                gone += self.paths(base, side, &["--diff-filter=D"])?.len();
            }
        }
        if strange.len() <= gone {
            return Ok(());
        }
        Err(Fault::new(format!("the merge would change {first}, which {} never touched", self.name)))
    }

    /// A file that both sides changed and that stays as the base has it: its contents,
    /// merged, have to be the base's. Where that cannot be told, because git would merge
    /// it in a way of the user's or from several bases, it is believed.
    fn nothing_dropped(&self, topic: &BTreeSet<String>, landed: &BTreeSet<String>) -> Result<(), Fault> {
        let (Some(repo), [base]) = (self.library, self.bases) else { return Ok(()) };
        let unchanged: BTreeSet<&String> = topic.difference(landed).collect();
        if unchanged.is_empty() {
            return Ok(());
        }
        let differ = self.paths(self.ours, self.theirs, &[])?;
        let left: Vec<&String> = unchanged.into_iter().filter(|path| differ.contains(*path)).collect();
        let [base, ours, theirs] = [&**base, self.ours, self.theirs].map(|commit| entries(repo, commit, &left));
        let (base, ours, theirs) = (base?, ours?, theirs?);
        for path in left {
            // Gone on one side: a conflict, or followed to its new name.
            let (Some(base), Some(ours), Some(theirs)) = (base.get(path), ours.get(path), theirs.get(path)) else {
                continue;
            };
            if self.drops(repo, path, [*base, *ours, *theirs])? && self.is_merged_as_text(path)? {
                return Err(Fault::new(format!("the merge would leave out what {} did to {path}", self.name)));
            }
        }
        Ok(())
    }

    /// Whether the contents, merged, are other ones than ours.
    fn drops(&self, repo: &Repository, path: &str, sides: [Entry; 3]) -> Result<bool, Fault> {
        let [base, ours, theirs] = sides.map(|(mode, id)| index_entry(path, mode, id));
        let mut options = MergeFileOptions::new();
        let merged = repo.merge_file_from_index(&base, &ours, &theirs, Some(&mut options));
        // Links and modules are no texts.
        let Ok(merged) = merged else { return Ok(false) };
        Ok(merged.is_automergeable() && merged.content() != repo.find_blob(ours.id)?.content())
    }

    /// Whether no attribute or setting has it merged in another way.
    fn is_merged_as_text(&self, path: &str) -> Result<bool, Fault> {
        let normalizes = self.desk.read().args(["config", "--type=bool", "--get", "merge.renormalize"]);
        let (_, normalizes) = normalizes.run_for(&[0, 1])?;
        // It wants a directory of files, which no attribute is to come from.
        let call = Desk::named(self.desk.read(), &self.desk.common, &self.desk.own);
        let call = call.env("GIT_ATTR_SOURCE", self.ours).args(["check-attr", "-z", "merge", "--", path]);
        // Path, attribute, value.
        let told = call.run()?;
        let driver = told.split(|byte| *byte == 0).nth(2);
        Ok(driver == Some(b"unspecified") && !normalizes.starts_with(b"true"))
    }

    fn paths(&self, from: &str, to: &str, words: &[&str]) -> Result<BTreeSet<String>, Fault> {
        let call = self.desk.read().args(["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff"]);
        let out = call.args(words).args([from, to]).run()?;
        let fields = out.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        Ok(fields.map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }
}

/// What a commit has under these paths.
fn entries(repo: &Repository, commit: &str, paths: &[&String]) -> Result<BTreeMap<String, Entry>, Fault> {
    let tree = repo.find_commit(Oid::from_str(commit)?)?.tree()?;
    let found = paths.iter().filter_map(|path| {
        let entry = tree.get_path(path.as_ref()).ok()?;
        Some(((*path).clone(), (u32::try_from(entry.filemode()).ok()?, entry.id())))
    });
    Ok(found.collect())
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
