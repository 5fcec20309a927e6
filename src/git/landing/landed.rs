//! What the base has of a topic already. Git's history says it only of commits that landed unchanged; the queue's journal
//! knows of the others.

use std::collections::{BTreeMap, BTreeSet};

use git2::{Oid, Repository, Sort};
use swarm_model::merge::queue::{Item, Strategy};

use super::{journal, land};
use crate::landing::workspace::Workspace;
use crate::repository::fault::Fault;
use crate::repository::objects;

/// The topic of an item, on top of a commit.
pub(crate) struct Landed<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) library: Option<&'a Repository>,
    pub(crate) item: &'a Item,
    pub(crate) onto: &'a str,
}

impl Landed<'_> {
    /// Returns [`Self::tip`] for a strategy that lands work as other commits.
    pub(crate) fn before(&self, strategy: Strategy, base: &str) -> Result<Option<String>, Fault> {
        match strategy {
            Strategy::Squash | Strategy::Rebase => self.tip(base),
            Strategy::Merge => Ok(None),
        }
    }

    /// Returns the newest commit of the topic that has landed as another commit, under whatever name. `None` if `base`,
    /// which git takes for the merge base, is newer.
    fn tip(&self, base: &str) -> Result<Option<String>, Fault> {
        let landed = self.others()?;
        if landed.is_empty() {
            return Ok(None);
        }
        for id in self.topic(base)? {
            for commit in landed.get(&id).into_iter().flatten() {
                if is_there(self.workspace, self.library, commit)
                    && land::is_ancestor(self.workspace, commit, self.onto)?
                {
                    return Ok((!land::is_ancestor(self.workspace, commit, base)?).then_some(id));
                }
            }
        }
        Ok(None)
    }

    /// Reports whether the topic as a whole has changes of its own: what it took back does not count, nor do merges of the
    /// base. If the base contains the tip, only the queue knows: it has landed the same tip before.
    pub(crate) fn has_changes(&self, base: &str) -> Result<bool, Fault> {
        let tip = &self.item.tip;
        if base == tip {
            for commit in self.others()?.get(tip).into_iter().flatten() {
                if is_there(self.workspace, self.library, commit)
                    && land::is_ancestor(self.workspace, commit, self.onto)?
                {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let own = self.own_paths(base)?;
        if own.is_empty() {
            return Ok(false);
        }
        let Some(start) = self.start(base)? else { return Ok(true) };
        let words = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff", &start, tip];
        let changed = self.workspace.read().args(words).run()?;
        Ok(paths(&changed).any(|path| own.contains(path)))
    }

    /// Returns the paths that commits of the topic change, apart from its merges.
    fn own_paths(&self, base: &str) -> Result<BTreeSet<Vec<u8>>, Fault> {
        let range = format!("{base}..{}", self.item.tip);
        let call = self.workspace.read().args(["-c", "diff.relative=false", "log", "--no-show-signature", "--format="]);
        let words = ["--no-merges", "-z", "--name-only", "--no-renames", "--no-ext-diff", "--ignore-submodules=none"];
        let listed = call.args(words).arg(&range).run()?;
        Ok(paths(&listed).map(<[u8]>::to_vec).collect())
    }

    /// Returns the commit from which the topic started, before it merged anything. `None` if it has no history in common.
    fn start(&self, base: &str) -> Result<Option<String>, Fault> {
        let range = format!("{base}..{}", self.item.tip);
        let listed =
            self.workspace.read().args(["rev-list", "--first-parent", "--reverse", "--parents", &range]).run()?;
        let listed = String::from_utf8_lossy(&listed);
        let oldest = listed.lines().next().unwrap_or_default();
        Ok(oldest.split(' ').nth(1).map(str::to_owned))
    }

    /// Returns the tips of the other items that have landed, each with the commits on the base, newest first.
    fn others(&self) -> Result<BTreeMap<String, Vec<String>>, Fault> {
        let file = self.workspace.own.join(journal::FILE);
        let journal = journal::read_named(&file).map_err(|error| Fault::new(error.to_string()))?;
        let items = journal.map(|journal| journal.queue.items).unwrap_or_default();
        let mut landed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for item in items.iter().rev().filter(|item| item.id != self.item.id) {
            let Some(commit) = item.state.commit() else { continue };
            // A resolver may have replaced the tip of the work.
            for tip in [item.work(), &item.tip] {
                let commits = landed.entry(tip.to_owned()).or_default();
                if commits.iter().all(|known| known != commit) {
                    commits.push(commit.to_owned());
                }
            }
        }
        Ok(landed)
    }

    /// Returns the commits of the topic, newest first.
    fn topic(&self, base: &str) -> Result<Vec<String>, Fault> {
        let tip = &self.item.tip;
        let walked = self.library.map(|repo| {
            let mut walk = repo.revwalk()?;
            walk.set_sorting(Sort::TOPOLOGICAL)?;
            walk.push(Oid::from_str(tip)?)?;
            walk.hide(Oid::from_str(base)?)?;
            walk.map(|id| Ok::<_, git2::Error>(id?.to_string())).collect::<Result<Vec<_>, _>>()
        });
        if let Some(Ok(ids)) = walked {
            return Ok(ids);
        }
        let listed = self.workspace.read().args(["rev-list", "--topo-order", &format!("{base}..{tip}")]).line()?;
        Ok(listed.lines().map(str::to_owned).collect())
    }
}

/// Returns the paths that git prints, each with NUL at its end.
fn paths(listed: &[u8]) -> impl Iterator<Item = &[u8]> {
    listed.split(|byte| *byte == 0).filter(|path| !path.is_empty())
}

/// Reports whether the repository has a commit.
pub(crate) fn is_there(workspace: &Workspace, library: Option<&Repository>, commit: &str) -> bool {
    let seen = library.is_some_and(|repo| Oid::from_str(commit).is_ok_and(|id| repo.find_commit(id).is_ok()));
    // If the check itself failed, the next step reports the problem.
    seen || !objects::commit(&workspace.cli, &workspace.common, commit).is_ok_and(|found| found.is_none())
}
