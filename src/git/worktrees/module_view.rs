//! Repositories of submodules in the record of a worktree. A sandboxed agent may write there, also a configuration that
//! names programs. git therefore enters none of them: it runs with a git directory of swarm's own in the common
//! directory, which leads to the refs, the reflogs and the objects of the submodule, and has a configuration of its own.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{admin, record};
use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::trash::raw;
use crate::trash::save::Place;
use crate::trash::scratch::Scratch;
use swarm_sys::files;

/// What git only reads and does not execute.
const SHARED: [&str; 7] = ["objects", "refs", "packed-refs", "reftable", "shallow", "info", "modules"];
/// Settings that say what the file system can do, how files are written, and in which formats the repository is. git
/// executes none of them.
const KEYS: [&str; 13] = [
    "core.repositoryformatversion",
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.trustctime",
    "core.autocrlf",
    "core.eol",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "index.sparse",
    "extensions.objectformat",
    "extensions.refstorage",
];

/// The repository of a submodule.
pub(super) struct ModuleView {
    /// Git directory of the submodule. No git runs with it.
    pub(super) dir: PathBuf,
    /// Checkout of the submodule. `None` if its configuration names none.
    pub(super) tree: Option<PathBuf>,
    /// The git directory with which git runs instead. It has a copy of the index.
    view: PathBuf,
}

impl ModuleView {
    /// Opens the repository at `dir`.
    ///
    /// # Errors
    /// Fails if there is no regular configuration or HEAD.
    pub(super) fn open(cli: &Cli, dir: &Path) -> Result<Self, Fault> {
        let view = Scratch::new(dir, "module").into_path();
        let config = dir.join("config");
        let text = record::read(&config).map_err(Fault::at(&config))?;
        let at = view.parent().unwrap_or(dir);
        let call = cli.read(at).args(["config", "--file", "-", "--no-includes", "--list", "-z"]);
        let listed = raw::output_with_input(call, dir, &text)
            .map_err(|fault| Fault { cause: format!("{}: {}", config.display(), fault.cause), ..fault })?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let settings: Vec<(&str, &str)> = listed.split('\0').filter_map(|entry| entry.split_once('\n')).collect();
        let named = settings.iter().rev().find(|(key, _)| *key == "core.worktree");
        let tree = named.map(|(_, tree)| admin::resolved(&dir.join(tree)));
        let module = Self { dir: dir.to_owned(), tree, view };
        module.fill(&settings).map_err(Fault::at(dir))?;
        Ok(module)
    }

    fn fill(&self, settings: &[(&str, &str)]) -> io::Result<()> {
        fs::create_dir(&self.view)?;
        let mut text = "[core]\n\tbare = false\n".to_owned();
        for (key, value) in settings.iter().filter(|(key, value)| KEYS.contains(key) && is_plain(value)) {
            if let Some((section, name)) = key.split_once('.') {
                text.push_str(&format!("[{section}]\n\t{name} = {value}\n"));
            }
        }
        fs::write(self.view.join("config"), text)?;
        for name in SHARED.iter().filter(|name| fs::symlink_metadata(self.dir.join(name)).is_ok()) {
            symlink(self.dir.join(name), self.view.join(name))?;
        }
        share_logs(&self.dir.join("logs"), &self.view.join("logs"), 0)?;
        let index = self.dir.join("index");
        if fs::symlink_metadata(&index).is_ok() {
            admin::copy_index(&index, &self.view.join("index"))?;
        }
        // Written last: it makes the directory a git directory.
        fs::write(self.view.join("HEAD"), record::read(&self.dir.join("HEAD"))?)
    }

    /// Returns a reading call in the repository.
    pub(super) fn read<'a>(&self, cli: &'a Cli) -> Call<'a> {
        cli.read(&self.view).env("GIT_DIR", &self.view).without_fetch(&self.view)
    }

    /// Returns the place of the checkout.
    pub(super) fn place(&self, tree: PathBuf) -> Place {
        let (git_dir, common) = (self.view.clone(), self.view.clone());
        Place { git_dir, tree, head: None, branch: None, is_whole: true, common, view: None }
    }
}

impl Drop for ModuleView {
    fn drop(&mut self) {
        let _ = files::remove_tree(&self.view);
    }
}

/// Gives the files in a directory of reflogs a second name in another one: git lists no reflogs behind a link.
fn share_logs(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    const DEPTH_MAX: usize = 64;
    if depth > DEPTH_MAX {
        return Err(io::Error::other("too many nested directories"));
    }
    for file in files::list_if_present(from)? {
        let (kind, path, copy) = (file.file_type()?, file.path(), to.join(file.file_name()));
        fs::create_dir_all(to)?;
        if kind.is_dir() {
            share_logs(&path, &copy, depth + 1)?;
        } else if !kind.is_file() {
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        } else if fs::hard_link(&path, &copy).is_err() {
            fs::write(&copy, record::read(&path)?)?;
        }
    }
    Ok(())
}

/// Reports whether a value is the same in quotes and without them.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
