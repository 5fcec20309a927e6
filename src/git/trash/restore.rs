//! Brings back what a removal has saved. The worktree is made in a hidden directory beside
//! its place, filled, looked at (what would be saved of it now is what was saved), and
//! only then moved to its place. Whatever is killed leaves the save, and a hidden
//! directory that the next restore removes.
//!
//! | step | killed right after it |
//! |---|---|
//! | 1 `git worktree add`, locked, in the hidden directory | directory and record are removed by the next restore |
//! | 2 files, index, modes, flags; the look at them | the same |
//! | 3 the branch, when it is gone | it is found at its commit, and taken |
//! | 4 the record says which save it is from, and its new place | the same as 1 |
//! | 5 the directory is moved there | unlocked by the next restore, which says that it is back |

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::expiry;
use super::raw::{self, Raw};
use super::saved::{self, Save};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;
use crate::repository::lock::{self, LOCK_WAIT_MS_MAX};
use crate::repository::{objects, parse};
use crate::trash::metadata::{self, Particulars};
use crate::trash::save::{self, PARTICULARS, Place};
use crate::worktrees::{admin, copies, make, plan};

/// Begins the name of the hidden directory.
const HIDDEN: &str = ".swarm-restore-";
/// Why git is to leave the record alone meanwhile.
const REASON: &str = "swarm is restoring it";
/// Lies in git's record, with the reference that the worktree came from.
const RESTORED: &str = "swarm-restored";

/// How it is to come back.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Another place than the one it had.
    pub to: Option<PathBuf>,
    /// A new branch for it.
    pub branch: Option<String>,
    /// The save goes when all of it is back.
    pub drops: bool,
}

/// A worktree that is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Back {
    pub path: PathBuf,
    /// The branch that is checked out; none when HEAD is detached.
    pub branch: Option<String>,
    /// What is not as it was, in sentences.
    pub notes: Vec<String>,
    pub dropped: bool,
}

/// Which branch it is to be on.
struct Stand {
    branch: Option<String>,
    /// It has to be made.
    makes: bool,
    notes: Vec<String>,
}

pub(crate) fn restore(cli: &Cli, common: &Path, save: &Save, wish: &Wish) -> Result<Back, Fault> {
    let mut back = bring_back(cli, common, save, wish)?;
    // What is ignored was not saved: as the base checkout has it. Outside of the lock, as it may
    // be much.
    if let Err(fault) = supply(cli, common, &back.path) {
        back.notes.push(format!("copies and links of [worktree] were not brought: {}", fault.cause));
    }
    Ok(back)
}

fn bring_back(cli: &Cli, common: &Path, save: &Save, wish: &Wish) -> Result<Back, Fault> {
    let _turn = lock::acquire(common, Duration::from_millis(LOCK_WAIT_MS_MAX))?;
    clear_dead(common)?;
    let target = target(save, wish)?;
    if let Some(entry) = admin::link_of(&target).ok().flatten()
        && fs::read_to_string(entry.join(RESTORED)).is_ok_and(|from| from.trim_end() == save.reference)
    {
        let head = objects::head_ref(cli, &target)?;
        let note = "it was back already".to_owned();
        return finish(cli, common, save, wish, Back { path: target, branch: head, notes: vec![note], dropped: false });
    }
    refuse_taken(common, &target)?;
    let stand = stand(cli, common, save, wish)?;
    let leaf = target.file_name().unwrap_or_default().to_owned();
    let nest = target.with_file_name(format!("{HIDDEN}{}", save.stamp));
    let hidden = nest.join(leaf);
    let parents = make::make_parents(&hidden)?;
    let mut notes = stand.notes.clone();
    if let Some(doing) = &save.doing {
        notes.extend(unfinished(doing));
    }
    if let Err(fault) = build(cli, common, save, &hidden, &stand).and_then(|()| place(common, save, &hidden, &target)) {
        let cleared = clear(common, &hidden);
        if let Some(branch) = stand.branch.as_deref().filter(|_| stand.makes)
            && let Some(head) = &save.head
        {
            let _ = cli.write(common).args(["update-ref", "-d", branch, head]).run();
        }
        parents.iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
        return Err(match cleared {
            Ok(()) => fault,
            Err(more) => Fault { cause: format!("{}; {}", fault.cause, more.cause), ..fault },
        });
    }
    let _ = fs::remove_dir(&nest);
    finish(cli, common, save, wish, Back { path: target, branch: stand.branch, notes, dropped: false })
}

/// What is said of something that had begun.
fn unfinished(doing: &str) -> Option<String> {
    // What these have noted comes back with the worktree.
    let is_resumed = ["a merge", "a cherry-pick", "a revert"].contains(&doing);
    let text = format!("{doing} was in progress, which is not resumed; the commits that it named are kept by the save");
    (!is_resumed).then_some(text)
}

/// Nothing is dropped before all of it is on the disk.
fn finish(cli: &Cli, common: &Path, save: &Save, wish: &Wish, mut back: Back) -> Result<Back, Fault> {
    if wish.drops {
        for place in [back.path.as_path(), common] {
            let dir = fs::File::open(place).map_err(Fault::at(place))?;
            rustix::fs::syncfs(&dir).map_err(|error| Fault::at(place)(error.into()))?;
        }
        expiry::forget(cli, common, save)?;
        back.dropped = true;
    }
    back.branch = back.branch.map(|full| full.strip_prefix("refs/heads/").unwrap_or(&full).to_owned());
    Ok(back)
}

fn supply(cli: &Cli, common: &Path, tree: &Path) -> Result<(), Fault> {
    let Some(base) = admin::checkout_of(common) else { return Ok(()) };
    let settings = crate::worktrees::settings::worktree(base)?;
    let Some(record) = admin::link_of(tree).map_err(Fault::at(tree))? else { return Ok(()) };
    copies::bring(cli, base, tree, &record, &settings)?;
    copies::link(cli, base, tree, &settings)
}

/// Where it goes, without symbolic links above it.
fn target(save: &Save, wish: &Wish) -> Result<PathBuf, Fault> {
    let Some(path) = wish.to.as_deref().or(save.path.as_deref()).filter(|path| path.is_absolute()) else {
        return Err(Fault::new("it is not known where it was").remedy("name a place with --to"));
    };
    match (path.parent(), path.file_name()) {
        (Some(above), Some(leaf)) => Ok(admin::resolved(above).join(leaf)),
        _ => Err(Fault::new(format!("{} is no place for a worktree", path.display()))),
    }
}

/// Nothing is written over, not even what git only believes to be there.
fn refuse_taken(common: &Path, target: &Path) -> Result<(), Fault> {
    match fs::symlink_metadata(target) {
        Ok(_) if plan::is_empty_dir(target) => {}
        Ok(_) => {
            return Err(Fault::new(format!("{} exists already", target.display()))
                .remedy("move it away, or name another place with --to"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Fault::at(target)(error)),
    }
    if let Some(entry) = admin::entry_of(common, target).map_err(Fault::at(target))? {
        plan::check_abandoned(&entry, target)?;
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    Ok(())
}

/// The branch as it was, a new one that was asked for, or none.
fn stand(cli: &Cli, common: &Path, save: &Save, wish: &Wish) -> Result<Stand, Fault> {
    let detached = |note: Option<String>| Stand { branch: None, makes: false, notes: note.into_iter().collect() };
    if let Some(new) = &wish.branch {
        if !objects::is_branch_name(new) {
            return Err(Fault::new(format!("'{new}' is not a valid branch name")));
        }
        if objects::branch_tip(cli, common, new)?.is_some() {
            return Err(Fault::new(format!("a branch named '{new}' already exists")).remedy("name another one"));
        }
        return Ok(Stand { branch: Some(format!("refs/heads/{new}")), makes: save.head.is_some(), notes: Vec::new() });
    }
    let Some(full) = &save.branch else { return Ok(detached(None)) };
    let short = full.strip_prefix("refs/heads/").unwrap_or(full);
    let tip = objects::branch_tip(cli, common, short)?;
    let listed = parse::worktrees(&cli.read(common).args(["worktree", "list", "--porcelain", "-z"]).run()?);
    let holder = listed.iter().find(|one| one.branch.as_ref() == Some(full));
    if let Some(holder) = holder {
        let note = format!("branch '{short}' is checked out at {}, so HEAD is detached", holder.path);
        return Ok(detached(Some(note)));
    }
    let is_same = tip.is_none() || tip == save.head;
    if !is_same {
        let tip = tip.unwrap_or_default();
        let note = format!("branch '{short}' is at {} by now, so HEAD is detached", plan::short(&tip));
        return Ok(detached(Some(note)));
    }
    Ok(Stand { branch: Some(full.clone()), makes: tip.is_none() && save.head.is_some(), notes: Vec::new() })
}

/// Steps 1 to 3.
fn build(cli: &Cli, common: &Path, save: &Save, hidden: &Path, stand: &Stand) -> Result<(), Fault> {
    let start = save.head.as_ref().unwrap_or(&save.commit);
    let add =
        cli.write(common).for_user().args(["-c", "worktree.useRelativePaths=false", "worktree", "add", "--quiet"]);
    let add = add.args(["--no-checkout", "--detach", "--lock", "--reason", REASON, "--"]).arg(hidden);
    add.arg(start).run()?;
    let entry = admin::link_of(hidden).map_err(Fault::at(hidden))?;
    let entry = entry.ok_or_else(|| Fault::new(format!("git made no worktree at {}", hidden.display())))?;
    let mut place =
        Place { git_dir: entry, tree: hidden.to_owned(), head: save.head.clone(), branch: None, is_whole: true };
    fill(cli, common, save, &place)?;
    if let (Some(branch), Some(head), true) = (&stand.branch, &save.head, stand.makes) {
        let none = "0".repeat(head.len());
        let made = cli.write(common).args(["update-ref", "-m", "swarm: restored", branch, head, &none]).run();
        made.map_err(|error| Fault::from(error).remedy("name another branch with --branch"))?;
    }
    if let Some(branch) = &stand.branch {
        place.branch = Some(branch.clone());
        place.call(cli.write(hidden)).args(["symbolic-ref", "HEAD", branch]).run()?;
    }
    Ok(())
}

/// Step 2.
fn fill(cli: &Cli, common: &Path, save: &Save, place: &Place) -> Result<(), Fault> {
    let Some(index) = &save.index else { return Err(Fault::new(format!("{} holds no index", save.reference))) };
    let particulars = match &save.particulars {
        Some(commit) => {
            let blob = format!("{commit}:{PARTICULARS}");
            Particulars::decode(&cli.read(common).args(["cat-file", "blob", &blob]).run()?)
        }
        None => Particulars::default(),
    };
    let record = || Fault::at(&place.git_dir);
    metadata::put_state(&place.git_dir, &particulars.state).map_err(record())?;
    copies::put_changed(&place.git_dir, &particulars.copied).map_err(record())?;
    let is_merged = !saved::is_unmerged(cli, common, index)?;
    put_files(cli, save, place, &particulars)?;
    put_index(cli, place, index, is_merged, &particulars)?;
    let (now, _) = save::take(cli, place)?;
    let tree =
        |commit: &str| cli.read(common).args(["rev-parse", "--verify", "-q", &format!("{commit}^{{tree}}")]).line();
    let differs = |what: &str| Fault::new(format!("{what} did not come back as saved in {}", save.reference));
    if now.index != tree(index)? || now.is_merged != is_merged {
        return Err(differs("the index"));
    }
    let Some(kept) = &save.particulars else { return Ok(()) };
    if now.tree != save.tree {
        let args = ["diff-tree", "-r", "--name-only", "--no-renames", &save.tree, &now.tree];
        let paths = cli.read(common).args(args).line()?;
        return Err(differs(paths.lines().next().unwrap_or("a file")));
    }
    if now.particulars != tree(kept)? {
        let blob = format!("{}:{PARTICULARS}", now.particulars);
        let found = cli.read(common).args(["cat-file", "blob", &blob]).run()?;
        return Err(differs(&metadata::difference(&particulars.encode(), &found)));
    }
    Ok(())
}

/// The files as they were. Those of an earlier program were saved as git converts them,
/// and are converted back.
fn put_files(cli: &Cli, save: &Save, place: &Place, particulars: &Particulars) -> Result<(), Fault> {
    let raw = Raw::new(place, &save.tree)?;
    raw.write(cli).args(["read-tree", &save.tree]).run()?;
    let entries = parse::index(&raw.write(cli).args(["ls-files", "-s", "-z"]).run()?);
    // A file may have taken the place of a directory of those.
    let known: HashSet<&[u8]> = entries.iter().map(|entry| entry.path.as_slice()).collect();
    let absent = particulars.absent.iter().filter(|path| known.contains(path.as_slice()));
    raw.skip(cli, &absent.cloned().collect::<Vec<_>>())?;
    let call = match save.particulars {
        Some(_) => raw.write(cli),
        None => place.call(cli.write(&place.tree)).env("GIT_INDEX_FILE", raw.index()),
    };
    call.args(["checkout-index", "--all", "--force", "--quiet"]).run()?;
    particulars.apply(&place.tree, &entries).map_err(Fault::at(&place.tree))
}

fn put_index(cli: &Cli, place: &Place, index: &str, is_merged: bool, particulars: &Particulars) -> Result<(), Fault> {
    let write = || place.call(cli.write(&place.tree));
    if is_merged {
        write().args(["read-tree", index]).run()?;
    } else {
        write().args(["read-tree", "--empty"]).run()?;
        let listed = write().args(["ls-tree", "-r", "-z", "--full-tree", index]).run()?;
        raw::feed(write().args(["update-index", "-z", "--index-info"]), &place.git_dir, &staged(&listed))?;
    }
    announce(cli, place, &particulars.intended)?;
    // What the files' times say is new to git; that it asks a filter which is not there is no matter.
    let _ = write().args(["update-index", "-q", "--refresh"]).run();
    raw::mark(write(), &place.git_dir, "--assume-unchanged", &particulars.assumed)?;
    raw::mark(write(), &place.git_dir, "--skip-worktree", &particulars.skipped)
}

/// The lines for an index from a tree that has its stages as directories.
fn staged(listed: &[u8]) -> Vec<u8> {
    let mut lines = Vec::new();
    for entry in parse::tree(listed) {
        let Some((stage, path)) = entry.path.strip_prefix(b"stage").and_then(|rest| rest.split_first()) else {
            continue;
        };
        let Some(path) = path.strip_prefix(b"/") else { continue };
        lines.extend_from_slice(format!("{} {} {}\t", entry.mode, entry.id, char::from(*stage)).as_bytes());
        lines.extend_from_slice(path);
        lines.push(0);
    }
    lines
}

/// git announces only what it sees, so it is shown empty files of those names.
fn announce(cli: &Cli, place: &Place, intended: &[(String, Vec<u8>)]) -> Result<(), Fault> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    if intended.is_empty() {
        return Ok(());
    }
    let stage = save::Scratch::new(&place.git_dir, "announced").into_path();
    let show = || -> io::Result<()> {
        for (mode, path) in intended {
            let file = stage.join(OsStr::from_bytes(path));
            fs::create_dir_all(file.parent().unwrap_or(&stage))?;
            if mode == "120000" {
                symlink("x", &file)?;
                continue;
            }
            fs::write(&file, b"")?;
            let mode = if mode == "100755" { 0o755 } else { 0o644 };
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    let shown = Place { tree: stage.clone(), ..place.clone() };
    let announced = show().map_err(Fault::at(&stage)).and_then(|()| {
        let call = shown.call(cli.write(&stage)).env("GIT_LITERAL_PATHSPECS", "1");
        let call = call.args(["add", "-N", "-f", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"]);
        let paths: Vec<&[u8]> = intended.iter().map(|(_, path)| path.as_slice()).collect();
        // A tree of stages has them as files without content.
        let gone = shown.call(cli.write(&stage)).args(["update-index", "--force-remove", "-z", "--stdin"]);
        raw::feed(gone, &place.git_dir, &paths.join(&0))?;
        raw::feed(call, &place.git_dir, &paths.join(&0))
    });
    let _ = fs::remove_dir_all(&stage);
    announced
}

/// Steps 4 and 5.
fn place(common: &Path, save: &Save, hidden: &Path, target: &Path) -> Result<(), Fault> {
    let entry = admin::entry_of(common, hidden).map_err(Fault::at(hidden))?;
    let entry = entry.ok_or_else(|| Fault::new(format!("git's record of {} is gone", hidden.display())))?;
    let from = entry.join(RESTORED);
    fs::write(&from, format!("{}\n", save.reference)).map_err(Fault::at(&from))?;
    let gitdir = entry.join("gitdir");
    fs::write(&gitdir, format!("{}\n", target.join(".git").display())).map_err(Fault::at(&gitdir))?;
    // Goes only when it is empty.
    let _ = fs::remove_dir(target);
    if let Err(error) = renameat_with(CWD, hidden, CWD, target, RenameFlags::NOREPLACE) {
        fs::write(&gitdir, format!("{}\n", hidden.join(".git").display())).map_err(Fault::at(&gitdir))?;
        return Err(Fault::at(target)(error.into()));
    }
    let _ = fs::remove_file(entry.join("locked"));
    Ok(())
}

/// Removes a hidden directory with git's record of it.
fn clear(common: &Path, hidden: &Path) -> Result<(), Fault> {
    if let Some(entry) = admin::entry_of(common, hidden).map_err(Fault::at(hidden))? {
        admin::remove_tree(hidden).map_err(Fault::at(hidden))?;
        admin::remove(&entry).map_err(Fault::at(&entry))?;
    }
    if let Some(nest) = hidden.parent() {
        let _ = fs::remove_dir_all(nest);
    }
    Ok(())
}

/// Takes back restores that were killed; the lock says that nobody is at one.
fn clear_dead(common: &Path) -> Result<(), Fault> {
    for entry in admin::entries(common).map_err(Fault::at(common))? {
        if admin::locked(&entry).as_deref() != Some(REASON) {
            continue;
        }
        let Some(tree) = admin::tree_of(&entry) else { continue };
        let is_hidden = |path: &Path| {
            let above = path.parent().and_then(Path::file_name);
            above.is_some_and(|name| name.to_string_lossy().starts_with(HIDDEN))
        };
        if is_hidden(&tree) {
            clear(common, &tree)?;
        } else if admin::link_of(&tree)
            .ok()
            .flatten()
            .is_some_and(|link| admin::resolved(&link) == admin::resolved(&entry))
        {
            let _ = fs::remove_file(entry.join("locked"));
        } else {
            // Its new place was written down, and it had not been moved there yet.
            let (above, leaf) = (tree.parent().unwrap_or(common), tree.file_name().unwrap_or_default());
            for nest in fs::read_dir(above).into_iter().flatten().flatten() {
                let hidden = nest.path().join(leaf);
                let link = admin::link_of(&hidden).ok().flatten();
                if is_hidden(&hidden) && link.is_some_and(|link| admin::resolved(&link) == admin::resolved(&entry)) {
                    let _ = fs::remove_dir_all(nest.path());
                }
            }
            admin::remove(&entry).map_err(Fault::at(&entry))?;
        }
    }
    Ok(())
}
