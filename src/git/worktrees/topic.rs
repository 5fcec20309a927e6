//! The topic of a worker: its commits and the uncommitted work in its worktree, as one tree.
//! The tree is written with a scratch index and a scratch object directory, so that the
//! repository contains nothing new afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use swarm_model::merge::queue::Item;
use swarm_model::{BaseRef, Caller, Refusal, RefusalKind, RowWorktree};

use super::generated;
use super::identity;
use super::include;
use super::submodules;
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::{CliError, Fault};
use crate::repository::gc_lock::{self, Hold};
use crate::repository::objects;
use crate::repository::parse;
use crate::repository::recorded;
use crate::trash::gitlinks;
use crate::trash::raw;
use crate::trash::save::{self, Place};
use crate::trash::scratch::Scratch;

/// Maximum number of untracked files; more are probably a mistake.
pub const UNTRACKED_MAX: usize = 200;

/// A worker's work relative to its base.
pub struct Topic {
    cli: Cli,
    repo: PathBuf,
    /// Object store of the uncommitted work; `None` if there is none.
    store: Option<ObjectStore>,
    /// Current tip of the base branch.
    base: String,
    /// Merge base of the topic and its base branch, or the newest commit of the topic that has landed as another one.
    pub fork: String,
    pub tip: String,
    /// Tree of the tip plus uncommitted work.
    pub tree: String,
    /// Paths whose changes are never committed: untracked ones, and submodules with uncommitted work.
    pub left_out: Vec<String>,
}

/// One changed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub path: String,
    /// Status letter of `git diff --name-status`: A, M, D or T.
    pub status: char,
    /// Number of added lines; `None` for a binary file.
    pub added: Option<u64>,
    pub deleted: Option<u64>,
}

/// Format of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Patch,
    Stat,
    Names,
}

/// Reads the topic of a worker. `base` is the base recorded at its start.
///
/// # Errors
/// Returns why the topic could not land as it is, with the remedy.
pub fn topic(caller: &Caller, worktree: &RowWorktree, base: Option<&BaseRef>) -> Result<Topic, Refusal> {
    read_topic(caller, worktree, base, Some(Path::new(&worktree.path))).map_err(refused_topic)
}

/// Reads what the branch of a worker has, whatever is checked out in its worktree.
///
/// # Errors
/// Fails if git cannot tell.
pub fn topic_of_branch(caller: &Caller, worktree: &RowWorktree, base: Option<&BaseRef>) -> Result<Topic, Refusal> {
    read_topic(caller, worktree, base, None).map_err(refused_topic)
}

fn refused_topic(fault: Fault) -> Refusal {
    Refusal { remedy: fault.remedy, ..Refusal::new(RefusalKind::Tool, fault.cause) }
}

fn read_topic(
    caller: &Caller,
    worktree: &RowWorktree,
    base: Option<&BaseRef>,
    tree: Option<&Path>,
) -> Result<Topic, Fault> {
    let cli = Cli::new(caller)?;
    let repo = Path::new(&worktree.base_repo);
    let place = tree.map(|tree| identity::open(&cli, tree, repo)).transpose()?.flatten();
    let tip = match &place {
        Some(place) => {
            recorded::check_place(&cli, repo, place, &worktree.branch)?;
            place.head.clone()
        }
        None => objects::branch_tip(&cli, repo, &worktree.branch)?,
    };
    let tip = tip.ok_or_else(|| Fault::new(format!("branch '{}' has no commit", worktree.branch)))?;
    let base = base_commit(&cli, repo, base)?;
    let fork = cli.read(repo).args(["merge-base", &base, &tip]).line_if_any()?;
    let fork = fork.ok_or_else(|| Fault::new(format!("'{}' and its base have no common commit", worktree.branch)))?;
    let seen = match &place {
        Some(place) => snapshot(&cli, place, Objects::Discard)?,
        None => Snapshot::default(),
    };
    let tree = seen.tree.unwrap_or_else(|| format!("{tip}^{{tree}}"));
    Ok(Topic { cli, repo: repo.to_owned(), store: seen.store, base, fork, tip, tree, left_out: seen.left_out })
}

/// Returns the current tip of the base branch, or the recorded commit if the branch no longer exists.
fn base_commit(cli: &Cli, repo: &Path, base: Option<&BaseRef>) -> Result<String, Fault> {
    let branch = base.and_then(|base| base.branch.as_deref());
    if let Some(tip) = branch.map(|branch| objects::branch_tip(cli, repo, branch)).transpose()?.flatten() {
        return Ok(tip);
    }
    let name = base.map_or("HEAD", |base| base.commit.as_str());
    objects::commit(cli, repo, name)?.ok_or_else(|| Fault::new(format!("base {name} not found in the repository")))
}

impl Topic {
    /// Leaves out what is on the base as other commits (squash, rebase), of which only the items of the base's queue know.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn without_landed(mut self, items: &[Item]) -> Result<Self, Refusal> {
        let newest = self.newest_landed(items).map_err(|fault| Refusal::new(RefusalKind::Tool, fault.cause))?;
        if let Some(newest) = newest {
            self.fork = newest;
        }
        Ok(self)
    }

    /// Returns the newest commit of the topic that has landed as another one, under whatever name. `None` if the topic has
    /// merged what landed: then the merge base is newer.
    fn newest_landed(&self, items: &[Item]) -> Result<Option<String>, Fault> {
        let mut landed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for item in items {
            let Some(commit) = item.state.commit() else { continue };
            // A resolver may have replaced the tip of the work.
            for tip in [item.work(), &item.tip] {
                landed.entry(tip).or_default().push(commit);
            }
        }
        if landed.is_empty() {
            return Ok(None);
        }
        let range = format!("{}..{}", self.fork, self.tip);
        let listed = self.cli.read(&self.repo).args(["rev-list", "--topo-order", &range]).run()?;
        for id in String::from_utf8_lossy(&listed).lines() {
            for commit in landed.get(id).into_iter().flatten() {
                // The base may have been reset since.
                if self.is_ancestor(commit, &self.base)? {
                    return Ok((!self.is_ancestor(commit, &self.fork)?).then(|| id.to_owned()));
                }
            }
        }
        Ok(None)
    }

    /// Reports whether `other` contains a commit; not if the repository does not have it.
    fn is_ancestor(&self, commit: &str, other: &str) -> Result<bool, Fault> {
        if objects::commit(&self.cli, &self.repo, commit)?.is_none() {
            return Ok(false);
        }
        let words = ["merge-base", "--is-ancestor", commit, other];
        Ok(self.cli.read(&self.repo).args(words).run_for(&[0, 1])?.0 == 0)
    }

    /// Returns the diff from [`Self::fork`], in the given format.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn diff(&self, shape: Shape) -> Result<Vec<u8>, Refusal> {
        let words: &[&str] = match shape {
            Shape::Patch => &["--patch", "--binary"],
            Shape::Stat => &["--stat"],
            Shape::Names => &["--name-only"],
        };
        self.run(words).map_err(|fault| Refusal::new(RefusalKind::Tool, fault.cause))
    }

    /// Returns the changed paths with their line counts.
    ///
    /// # Errors
    /// Fails if git fails.
    pub fn changed(&self) -> Result<Vec<Changed>, Refusal> {
        let run = |word: &str| self.run(&[word, "-z"]).map_err(|fault| Refusal::new(RefusalKind::Tool, fault.cause));
        Ok(changed(&run("--name-status")?, &run("--numstat")?))
    }

    fn run(&self, words: &[&str]) -> Result<Vec<u8>, Fault> {
        let call = self.cli.read(&self.repo);
        let call = self.store.iter().fold(call, |call, store| store.of(call));
        let plain = ["diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color"];
        Ok(call.args(plain).args(words).args([&self.fork, &self.tree]).run()?)
    }
}

/// Uncommitted work of a worktree.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// Tree of the tip plus uncommitted work; `None` if there is none.
    pub(crate) tree: Option<String>,
    /// Paths whose changes are not in the tree: untracked ones, and submodules with uncommitted work.
    pub(crate) left_out: Vec<String>,
    /// Index from which the tree was written.
    pub(crate) index: Option<Scratch>,
    store: Option<ObjectStore>,
    /// Keeps `git gc` away while no ref holds the new objects.
    pub(crate) hold: Option<Hold>,
}

/// Whether the new objects of a snapshot stay in the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    Keep,
    Discard,
}

/// Takes a snapshot of the uncommitted work in a worktree. Changes neither its index nor its files.
pub(crate) fn snapshot(cli: &Cli, place: &Place, objects: Objects) -> Result<Snapshot, Fault> {
    let (git_dir, tree) = (&place.git_dir, &place.tree);
    let changes = save::status_without_submodules(cli, place)?;
    let mut left_out = foreign(cli, place)?;
    if changes.is_empty() && save::hidden_changes(cli, place)? == 0 {
        return Ok(Snapshot { left_out, ..Snapshot::default() });
    }
    let untracked = changes.iter().filter(|change| change.staged == b'?').map(|change| &change.path);
    let (copy, properties) = save::index_copy(cli, place)?;
    let tracked = || save::step(cli, place, &copy).args(["ls-files", "-z"]).run();
    let (out, kept) = generated::split(untracked, tracked)?;
    let common = place.common();
    let withheld = include::withheld(&common);
    let (sent, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|path| withheld.contains(*path));
    left_out.extend(out.into_iter().chain(sent).map(|path| String::from_utf8_lossy(path).into_owned()));
    if kept.len() > UNTRACKED_MAX {
        let cause = format!("{} untracked files in {}, more than {UNTRACKED_MAX}", kept.len(), tree.display());
        let remedy = "commit the files that matter and add the others to .gitignore";
        return Err(Fault { is_mendable: true, ..Fault::new(cause) }.remedy(remedy));
    }
    let (store, hold) = match objects {
        Objects::Keep => (None, Some(gc_lock::hold(&common, gc_lock::LANDING_WAIT)?)),
        Objects::Discard => (Some(ObjectStore::make(git_dir, &common)?), None),
    };
    let step = || store.iter().fold(save::step(cli, place, &copy), |call, store| store.of(call));
    let unmerged = match &properties {
        Some(properties) => properties.unmerged.clone(),
        None => {
            let entries = parse::index(&step().args(["ls-files", "-s", "-z"]).run()?);
            entries.into_iter().find(|entry| entry.stage != 0).map(|entry| entry.path)
        }
    };
    if let Some(path) = unmerged {
        let path = String::from_utf8_lossy(&path).into_owned();
        let cause = format!("{path} has an unresolved conflict");
        return Err(Fault { is_mendable: true, ..Fault::new(cause) }.remedy("resolve it in the worktree"));
    }
    let is_only_new = changes.iter().all(|change| change.staged == b'?')
        && properties.is_some_and(|properties| !properties.has_hidden);
    if !is_only_new {
        add_tracked(&step, git_dir)?;
    }
    if !kept.is_empty() {
        let mut list_file = Scratch::new(git_dir, "list");
        let mut list = list_file.create()?;
        let text = kept.iter().map(|path| path.as_slice()).collect::<Vec<_>>().join(&0);
        list.write_all(&text).and_then(|()| list.rewind()).map_err(Fault::at(git_dir))?;
        let add = ["add", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"];
        step().env("GIT_LITERAL_PATHSPECS", "1").args(add).input(list).run().map_err(refused)?;
    }
    let made = step().arg("write-tree").line()?;
    Ok(Snapshot { tree: Some(made), left_out, index: Some(copy), store, hold })
}

/// Returns the places of submodules and other repositories whose work a tree of the worktree cannot hold, each with a slash
/// at its end.
pub(crate) fn foreign(cli: &Cli, place: &Place) -> Result<Vec<String>, Fault> {
    // A tree cannot hold both a submodule and what is in its place.
    let found = gitlinks::foreign(cli, place)?.into_iter();
    let mut paths: Vec<String> = found.map(|found| format!("{}/", String::from_utf8_lossy(&found.link))).collect();
    // A tree holds only the commit of a submodule.
    for path in submodules::uncommitted(cli, place)? {
        let path = format!("{}/", path.display());
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Returns the fault of files that git did not add. It takes no file whose name is another spelling of `.git` on some
/// system; the worker can rename it.
fn refused(error: CliError) -> Fault {
    let is_name = matches!(&error, CliError::Exit { message, .. } if message.starts_with("invalid path "));
    let fault = Fault::from(error);
    if is_name { Fault { is_mendable: true, ..fault }.remedy("rename or delete it") } else { fault }
}

/// Adds the changes of tracked files to the index of the calls. Unlike `git add -u`, this never runs git in a
/// repository within the worktree, whose configuration an agent could have written.
pub(crate) fn add_tracked<'a>(step: &impl Fn() -> Call<'a>, git_dir: &Path) -> Result<(), Fault> {
    let list = ["diff-files", "-z", "--name-status", "--no-renames", "--ignore-submodules=dirty"];
    let listed = step().args(list).strict().run()?;
    let fields: Vec<&[u8]> = listed.split(|byte| *byte == 0).filter(|field| !field.is_empty()).collect();
    let (gone, changed): (Vec<_>, Vec<_>) = fields.chunks_exact(2).partition(|pair| pair[0] == b"D");
    for (flags, pairs) in
        [(["--force-remove"].as_slice(), gone), (["--add", "--remove", "--replace"].as_slice(), changed)]
    {
        if !pairs.is_empty() {
            let paths = pairs.iter().map(|pair| pair[1]).collect::<Vec<_>>().join(&0);
            raw::feed(step().arg("update-index").args(flags).args(["-z", "--stdin"]), git_dir, &paths)?;
        }
    }
    Ok(())
}

/// Temporary object directory for new objects; existing objects are read from the repository.
/// Dropping it deletes the new objects.
struct ObjectStore {
    path: PathBuf,
    repository: OsString,
}

impl ObjectStore {
    fn make(git_dir: &Path, common: &Path) -> Result<Self, Fault> {
        let path = Scratch::new(git_dir, "objects").into_path();
        fs::create_dir(&path).map_err(Fault::at(&path))?;
        Ok(Self { path, repository: common.join("objects").into() })
    }

    fn of<'a>(&self, call: Call<'a>) -> Call<'a> {
        call.env("GIT_OBJECT_DIRECTORY", &self.path).env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &self.repository)
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Joins the outputs of `--name-status -z` and `--numstat -z` by path.
fn changed(status: &[u8], numbers: &[u8]) -> Vec<Changed> {
    let fields = |bytes: &[u8]| -> Vec<String> {
        let fields = bytes.split(|byte| *byte == 0).filter(|field| !field.is_empty());
        fields.map(|field| String::from_utf8_lossy(field).into_owned()).collect()
    };
    let (status, numbers) = (fields(status), fields(numbers));
    let count = |path: &str| {
        numbers.iter().find_map(|line| {
            let mut words = line.splitn(3, '\t');
            let (added, deleted) = (words.next()?, words.next()?);
            (words.next()? == path).then(|| (added.parse().ok(), deleted.parse().ok()))
        })
    };
    let pairs = status.chunks_exact(2).filter_map(|pair| Some((pair[0].chars().next()?, &pair[1])));
    pairs
        .map(|(status, path)| {
            let (added, deleted) = count(path).unwrap_or_default();
            Changed { path: path.clone(), status, added, deleted }
        })
        .collect()
}

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
