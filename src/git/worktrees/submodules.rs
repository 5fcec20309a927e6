//! Submodules of worktrees. A new worktree gets the submodules of the base checkout, cloned
//! from the base checkout's own repositories without the network. A worktree that is removed
//! must not hold anything in its submodules that the base checkout's submodules lack.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::admin;
use super::module_view::ModuleView;
use super::remove::{HIDDEN_CHANGES, in_progress};
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::repository::parse;
use crate::trash::raw;
use crate::trash::save::{self, Place};
use swarm_sys::files::list_if_present;
use swarm_sys::quoting::command_line;

/// A submodule as recorded in `.gitmodules`.
struct Module {
    name: String,
    path: String,
}

/// Prepares the place of a submodule, given by the worktree around it and the path in it, before git works there.
type Prepare<'a> = &'a dyn Fn(&Path, &str) -> Result<(), Fault>;

/// Checks out the submodules that the base checkout has, recursively.
pub(crate) fn check_out(cli: &Cli, base: &Path, tree: &Path, prepare: Prepare<'_>) -> Result<(), Fault> {
    let common = admin::common_dir(base).map_err(Fault::at(base))?;
    check_out_from(cli, &common.join("modules"), tree, prepare)
}

fn check_out_from(cli: &Cli, modules: &Path, tree: &Path, prepare: Prepare<'_>) -> Result<(), Fault> {
    for module in listed(cli, tree)? {
        let source = modules.join(&module.name);
        if !source.join("HEAD").exists() {
            // The base checkout does not have it either.
            continue;
        }
        prepare(tree, &module.path)?;
        let address = format!("submodule.{}.url={}", module.name, source.display());
        let failed = |fault: Fault| Fault { cause: format!("submodule {}: {}", module.path, fault.cause), ..fault };
        let update = cli.write(tree).within(tree).for_user().args(["-c", "protocol.file.allow=always", "-c", &address]);
        let update = update.args(["submodule", "--quiet", "update", "--init", "--checkout", "--", &module.path]);
        update.run().map_err(|error| failed(error.into()))?;
        let sub = tree.join(&module.path);
        // Without a repository there, git would find the one above.
        let Some(git_dir) = admin::link_of(&sub).map_err(Fault::at(&sub))? else { continue };
        // Later fetches must use the same remote as the base checkout.
        if let Some(origin) = cli.read(&source).args(["config", "--get", "remote.origin.url"]).line_if_any()? {
            cli.write(&sub).env("GIT_DIR", git_dir).args(["config", "remote.origin.url", &origin]).run()?;
        }
        check_out_from(cli, &source.join("modules"), &sub, prepare)?;
    }
    Ok(())
}

/// Lists the submodules in the commit, except those whose names are not safe as paths.
fn listed(cli: &Cli, tree: &Path) -> Result<Vec<Module>, Fault> {
    if !tree.join(".gitmodules").is_file() {
        return Ok(Vec::new());
    }
    let links = parse::index(&cli.read(tree).args(["ls-files", "-s", "-z"]).run()?);
    let is_link = |path: &str| links.iter().any(|entry| entry.mode == "160000" && entry.path == path.as_bytes());
    let call = cli.read(tree).args(["config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$"]);
    let (_, said) = call.run_for(&[0, 1])?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let read = |entry: &str| {
        let (key, path) = entry.split_once('\n')?;
        let name = key.strip_prefix("submodule.")?.strip_suffix(".path")?;
        let is_plain = !name.split('/').any(|part| part == ".." || part.is_empty());
        (is_plain && is_link(path)).then(|| Module { name: name.to_owned(), path: path.to_owned() })
    };
    Ok(said.split('\0').filter_map(read).collect())
}

/// Returns why the submodules of a worktree must stay, or `None` if the base checkout has
/// everything that is in them.
pub(crate) fn reason_to_keep(cli: &Cli, common: &Path, record: &Path, tree: &Path) -> Result<Option<String>, Fault> {
    let modules = record.join("modules");
    for (name, module) in repositories(&modules, &PathBuf::new(), 0).map_err(Fault::at(&modules))? {
        let shown = name.display();
        let own = match ModuleView::open(cli, &module) {
            Ok(own) => own,
            Err(fault) => return Ok(Some(format!("submodule {shown} cannot be checked: {}", fault.cause))),
        };
        let Some(place) = own.tree.clone() else {
            return Ok(Some(format!("submodule {shown} has no work tree that can be checked")));
        };
        if !place.starts_with(admin::resolved(tree)) {
            return Ok(Some(format!("submodule {shown} is checked out elsewhere")));
        }
        // The `.git` file of the submodule can be written by an agent. Submodules within it are listed, too.
        if let Some(work) = work_in(cli, &own, place)? {
            return Ok(Some(format!("submodule {shown} has {work}")));
        }
        let tips = own.read(cli).args(["rev-list", "--no-walk", "--all", "--reflog", "HEAD"]).run()?;
        let base = common.join("modules").join(&name);
        if !base.join("HEAD").exists() || !holds(cli, &base, &tips)? {
            return Ok(Some(format!("submodule {shown} has commits that the base checkout lacks")));
        }
    }
    Ok(None)
}

/// Returns the paths of the submodules in a worktree in which something is in no commit, or which cannot be checked.
pub(crate) fn uncommitted(cli: &Cli, own: &Place) -> Result<Vec<PathBuf>, Fault> {
    let modules = own.git_dir.join("modules");
    let root = admin::resolved(&own.tree);
    let mut found = Vec::new();
    for (_, module) in repositories(&modules, &PathBuf::new(), 0).map_err(Fault::at(&modules))? {
        let module = ModuleView::open(cli, &module)?;
        let Some(tree) = module.tree.clone() else { continue };
        let Ok(path) = tree.strip_prefix(&root).map(Path::to_owned) else { continue };
        // What a damaged repository holds does not land either.
        if !work_in(cli, &module, tree).is_ok_and(|work| work.is_none()) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Refuses a tree or commit of a worktree that names commits of submodules which only this worktree has: whoever gets the
/// base could not check it out. `branch` is proposed as their branch in the base checkout.
pub(crate) fn check_shared(cli: &Cli, own: &Place, commit: &str, branch: &str) -> Result<(), Fault> {
    let modules = own.git_dir.join("modules");
    let base_modules = own.common().join("modules");
    let mut places = Vec::new();
    for (name, module) in repositories(&modules, &PathBuf::new(), 0).map_err(Fault::at(&modules))? {
        let module = ModuleView::open(cli, &module)?;
        if let Some(tree) = module.tree.clone() {
            places.push((tree, name, module));
        }
    }
    // Those that contain others come first.
    places.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let root = admin::resolved(&own.tree);
    let mut seen: Vec<(PathBuf, Option<&ModuleView>, String)> = vec![(root.clone(), None, commit.to_owned())];
    for (tree, name, module) in &places {
        let above = seen.iter().rev().find_map(|(root, above, at)| Some((tree.strip_prefix(root).ok()?, above, at)));
        let Some((path, above, at)) = above else { continue };
        let read = || match above {
            Some(above) => above.read(cli),
            None => cli.read(&own.git_dir).env("GIT_DIR", &own.git_dir),
        };
        let call = read().env("GIT_LITERAL_PATHSPECS", "1");
        let listed = call.args(["ls-tree", "-z", "--full-tree", at, "--"]).arg(path).run()?;
        let Some(commit) = link_in(&listed, path).filter(|commit| has(&|| module.read(cli), commit)) else { continue };
        let base = base_modules.join(name);
        let is_in_base =
            base.join("HEAD").exists() && has(&|| cli.read(&base).env("GIT_DIR", &base).without_fetch(&base), &commit);
        if !is_in_base && !is_pushed(cli, module, &commit)? {
            let path = tree.strip_prefix(&root).unwrap_or(tree);
            let base = worktree_of(cli, &base).ok().flatten();
            return Err(unshared(&commit, path, tree, base.as_deref(), branch));
        }
        seen.push((tree.clone(), Some(module), commit));
    }
    Ok(())
}

/// Returns the fault of a submodule's commit that only the worktree has. `base` is its place in the base checkout.
fn unshared(commit: &str, path: &Path, tree: &Path, base: Option<&Path>, branch: &str) -> Fault {
    let short = &commit[..12.min(commit.len())];
    let cause = format!(
        "commit {short} of submodule {} is only in the worktree: neither a remote nor the base checkout has it",
        path.display()
    );
    let mut remedy = format!("push it from {}", tree.display());
    if let Some(base) = base {
        let (base, tree) = (base.to_string_lossy(), tree.to_string_lossy());
        let words = ["git", "-C", &base, "fetch", &tree, &format!("{commit}:refs/heads/{branch}")];
        remedy.push_str(&format!(", or run '{}'", command_line(words)));
    }
    remedy.push_str("; then add the work again");
    Fault { is_mendable: true, ..Fault::new(cause) }.remedy(remedy)
}

/// Returns the commit of the submodule at `path` that `git ls-tree -z` lists.
fn link_in(listed: &[u8], path: &Path) -> Option<String> {
    let (facts, found) = listed.strip_suffix(b"\0")?.split_at(listed.iter().position(|byte| *byte == b'\t')?);
    let commit = std::str::from_utf8(facts).ok()?.strip_prefix("160000 commit ")?;
    (found[1..] == *path.as_os_str().as_bytes()).then(|| commit.to_owned())
}

/// Reports whether a repository has the commit. `read` returns a reading call in it.
fn has<'a>(read: &impl Fn() -> Call<'a>, commit: &str) -> bool {
    read().args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).run().is_ok()
}

/// Reports whether a branch of a remote contains the commit, as far as the submodule knows.
fn is_pushed(cli: &Cli, module: &ModuleView, commit: &str) -> Result<bool, Fault> {
    let call = module.read(cli);
    Ok(call.args(["rev-list", "--max-count=1", commit, "--not", "--remotes", "--tags"]).run()?.is_empty())
}

/// Returns what of a submodule's checkout is in no commit, or `None` if there is nothing. An unfinished operation of git
/// counts, because only its files may name the commits that it works on.
fn work_in(cli: &Cli, module: &ModuleView, tree: PathBuf) -> Result<Option<String>, Fault> {
    if let Some(doing) = in_progress(&module.dir) {
        return Ok(Some(format!("{doing} in progress")));
    }
    if !tree.exists() {
        return Ok(None);
    }
    let own = &module.place(tree);
    if !save::status(cli, own, "all")?.is_empty() {
        return Ok(Some("uncommitted changes".to_owned()));
    }
    let hidden = save::hidden_changes(cli, own)?;
    Ok((hidden > 0).then(|| format!("{hidden} {HIDDEN_CHANGES}")))
}

/// Reports whether all these commits are reachable from the refs of the repository `base`.
fn holds(cli: &Cli, base: &Path, tips: &[u8]) -> Result<bool, Fault> {
    let mut asked = tips.to_vec();
    asked.extend_from_slice(b"--not\n--all\nHEAD\n");
    let call = cli.read(base).args(["rev-list", "--max-count=1", "--stdin"]);
    // git fails if it does not know a commit at all.
    Ok(raw::output_with_input_for(call, base, &asked, &[0]).is_ok_and(|missing| missing.is_empty()))
}

/// Returns the checkout of a repository that no agent may write.
fn worktree_of(cli: &Cli, module: &Path) -> Result<Option<PathBuf>, Fault> {
    let place = cli.read(module).args(["config", "--get", "core.worktree"]).line_if_any()?;
    Ok(place.map(|place| admin::resolved(&module.join(place))))
}

/// Lists the repositories below `modules` with their names, which may contain slashes.
fn repositories(modules: &Path, above: &Path, depth: usize) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    const DEPTH_MAX: usize = 16;
    let mut found = Vec::new();
    for entry in list_if_present(modules)?.into_iter().filter(|_| depth < DEPTH_MAX) {
        let (path, name) = (entry.path(), above.join(entry.file_name()));
        // What a link leads to is not in the record.
        if !entry.file_type()?.is_dir() {
            continue;
        }
        if path.join("HEAD").exists() {
            found.extend(repositories(&path.join("modules"), &name.join("modules"), depth + 1)?);
            found.push((name, path));
        } else {
            found.extend(repositories(&path, &name, depth + 1)?);
        }
    }
    Ok(found)
}
