//! Commits that only the administrative files of a worktree name. A branch that is left, a detached HEAD or an operation
//! that was stopped leaves them in the reflog of the worktree's HEAD, which git deletes with the worktree.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};

use super::save::Place;
use crate::landing::complete::DONE;
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::worktrees::{admin, record};
use swarm_sys::files;

/// Files that name the commits which an operation still has to apply, or has applied.
const LISTS: [&str; 3] = ["rebase-merge/git-rebase-todo", "rebase-merge/done", "sequencer/todo"];
/// Steps of a rebase that copy a commit. The original is in the reflog of its branch.
const COPIES: [&str; 4] = ["rebase (pick)", "rebase (squash)", "rebase (fixup)", "rebase (reword)"];
/// Refs that belong to one worktree.
const OWN_REFS: [&str; 3] = ["refs/bisect", "refs/worktree", "refs/rewritten"];
const ID_DIGITS: [usize; 2] = [40, 64];

/// Returns the commits that nothing but the worktree's entry keeps: no ref, and no reflog of a ref. None of them is an
/// ancestor of another, or of HEAD.
pub(crate) fn commits(cli: &Cli, place: &Place) -> Result<Vec<String>, Fault> {
    if !place.is_whole {
        return Ok(Vec::new());
    }
    let mut named = named(cli, place)?;
    // Most commits were made on the branch, which has them in its own reflog. Then no git has to run.
    let branch = place.branch.as_ref().map(|branch| place.common().join("logs").join(branch));
    let known = branch.map(|log| text(&log)).transpose()?.unwrap_or_default();
    let known: HashSet<&str> = known.split_whitespace().chain(place.head.as_deref()).collect();
    named.retain(|id| !known.contains(id.as_str()));
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let excluded = format!("--exclude={DONE}/*");
    let held = [excluded.as_str(), "--all", "--reflog"].into_iter().chain(place.head.as_deref());
    tips(cli, &place.common(), named.iter().map(String::as_str), held)
}

/// Returns those of `named` that cannot be reached from what `held` tells git, without the ancestors of others.
pub(super) fn tips<'a>(
    cli: &Cli,
    common: &Path,
    named: impl Iterator<Item = &'a str>,
    held: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>, Fault> {
    let asked: String = named.map(|id| format!("{id}\n")).collect();
    let mut git_dir = std::ffi::OsString::from("--git-dir=");
    git_dir.push(common);
    // Of the common directory, so that the reflog of a worktree's HEAD does not count.
    let call = cli.read(common).arg(git_dir).args(["rev-list", "--parents", "--ignore-missing", "--stdin"]);
    let call = call.args(["--not", "--single-worktree"]).args(held);
    // Without a name, so that a kill leaves nothing.
    let input = memfd_create("swarm-list", MemfdFlags::CLOEXEC).map_err(io::Error::from).and_then(|file| {
        let mut file = File::from(file);
        file.write_all(asked.as_bytes())?;
        file.rewind()?;
        Ok(file)
    });
    let listed = call.input(input.map_err(Fault::at(common))?).run()?;
    let listed = String::from_utf8_lossy(&listed);
    let parents: HashSet<&str> = listed.lines().flat_map(|line| line.split(' ').skip(1)).collect();
    let tips = listed.lines().filter_map(|line| line.split(' ').next()).filter(|id| !parents.contains(id));
    Ok(tips.map(str::to_owned).collect())
}

/// Returns the ids in the entry of a worktree.
fn named(cli: &Cli, place: &Place) -> Result<BTreeSet<String>, Fault> {
    let mut found = BTreeSet::new();
    let mut add = |text: &str| found.extend(text.split_whitespace().filter(|word| is_id(word)).map(str::to_owned));
    for line in text(&place.git_dir.join("logs/HEAD"))?.lines() {
        let (ids, message) = line.split_once('\t').unwrap_or((line, ""));
        if !COPIES.iter().any(|copy| message.starts_with(copy)) {
            add(ids);
        }
    }
    for list in LISTS {
        add(&text(&place.git_dir.join(list))?);
    }
    let refs = place.git_dir.join("refs");
    own_refs(&refs, &mut add).map_err(Fault::at(&refs))?;
    if place.git_dir.join("reftable").is_dir() {
        let read = || place.call(cli.read(&place.tree));
        let log = ["log", "--walk-reflogs", "--no-show-signature", "--format=%H", "HEAD", "--"];
        add(&String::from_utf8_lossy(&read().args(log).run_for(&[0, 128])?.1));
        add(&read().args(["for-each-ref", "--format=%(objectname)"]).args(OWN_REFS).line()?);
    }
    Ok(found)
}

fn own_refs(dir: &Path, add: &mut impl FnMut(&str)) -> io::Result<()> {
    for file in files::list_if_present(dir)? {
        match file.file_type()? {
            kind if kind.is_dir() => own_refs(&file.path(), add)?,
            kind if kind.is_file() => add(&String::from_utf8_lossy(&record::read(&file.path())?)),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn is_id(word: &str) -> bool {
    ID_DIGITS.contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte != b'0')
}

/// Returns the content of a file, which is empty if there is none.
fn text(file: &Path) -> Result<String, Fault> {
    let content = admin::ignore_missing(record::read(file)).map_err(Fault::at(file))?;
    Ok(String::from_utf8_lossy(&content.unwrap_or_default()).into_owned())
}
