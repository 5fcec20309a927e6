//! A second git directory for a worktree, in which nothing is converted: no line endings, no
//! filters, no encodings. With it, files are stored in and extracted from objects byte for byte,
//! regardless of attributes and settings, and without running the programs that those name.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::repository::cli::{Call, Cli};
use crate::repository::fault::Fault;
use crate::repository::parse::Entry;
use crate::trash::save::{DURABLE, PLAIN, Place};
use crate::trash::scratch::Scratch;
use crate::worktrees::{admin, record, topic};

/// Attributes that override every attributes file in the tree and of the user.
const ATTRIBUTES: &str = "* -text -eol -filter -ident -working-tree-encoding\n";
/// Length of a SHA-1 id; SHA-256 ids are longer.
const SHA1_DIGITS: usize = 40;

pub(crate) struct Raw {
    dir: PathBuf,
    objects: PathBuf,
    tree: PathBuf,
}

impl Raw {
    /// Creates the git directory. `id` is any object id of the repository and tells its object format.
    pub(crate) fn new(place: &Place, id: &str) -> Result<Self, Fault> {
        let common = place.common();
        let dir = Scratch::new(&place.git_dir, "raw").into_path();
        let raw = Self { objects: common.join("objects"), tree: place.tree.clone(), dir };
        raw.fill(&common, id).map_err(Fault::at(&raw.dir))?;
        Ok(raw)
    }

    fn fill(&self, common: &Path, id: &str) -> io::Result<()> {
        fs::create_dir(&self.dir)?;
        fs::create_dir(self.dir.join("refs"))?;
        fs::create_dir(self.dir.join("info"))?;
        fs::write(self.dir.join("info/attributes"), ATTRIBUTES)?;
        if let Some(exclude) = admin::ignore_missing(record::read_linked(&common.join("info/exclude")))? {
            fs::write(self.dir.join("info/exclude"), exclude)?;
        }
        // The repository's own config says what the file system supports and which files are ignored.
        let known = common.join("config");
        let known = known.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
        let format = match id.len() > SHA1_DIGITS {
            true => "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = sha256\n",
            false => "[core]\n\trepositoryFormatVersion = 0\n",
        };
        let own = "[core]\n\tbare = false\n\tautocrlf = false\n\tsparseCheckout = false\n\tsplitIndex = false\n[index]\n\tsparse = false\n";
        fs::write(self.dir.join("config"), format!("{format}[include]\n\tpath = \"{known}\"\n{own}"))?;
        // Written last: `HEAD` makes the directory a git directory.
        fs::write(self.dir.join("HEAD"), "ref: refs/heads/none\n")
    }

    /// Points a git call at this git directory, its index and the worktree.
    pub(crate) fn call<'a>(&self, call: Call<'a>) -> Call<'a> {
        let mut git_dir = std::ffi::OsString::from("--git-dir=");
        git_dir.push(&self.dir);
        let mut tree = std::ffi::OsString::from("--work-tree=");
        tree.push(&self.tree);
        call.args([git_dir, tree]).within(&self.tree).args(DURABLE).env("GIT_OBJECT_DIRECTORY", &self.objects)
    }

    pub(crate) fn write<'a>(&self, cli: &'a Cli) -> Call<'a> {
        self.call(cli.write(&self.tree))
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    /// Fills the index with these entries and without file times, so that git compares the
    /// content of each file.
    pub(crate) fn fill_index(&self, cli: &Cli, entries: &[Entry]) -> Result<(), Fault> {
        let mut lines = Vec::new();
        for entry in entries {
            lines.extend_from_slice(format!("{} {} {}\t", entry.mode, entry.id, entry.stage).as_bytes());
            lines.extend_from_slice(&entry.path);
            lines.push(0);
        }
        let call = self.write(cli).args(["update-index", "-z", "--index-info"]);
        feed(call, &self.dir, &lines)
    }

    /// Removes all stages of these entries from the index.
    pub(crate) fn forget<'a>(&self, cli: &Cli, entries: impl Iterator<Item = &'a Entry>) -> Result<(), Fault> {
        let mut lines = Vec::new();
        for entry in entries {
            lines.extend_from_slice(format!("0 {} 0\t", "0".repeat(entry.id.len())).as_bytes());
            lines.extend_from_slice(&entry.path);
            lines.push(0);
        }
        if lines.is_empty() {
            return Ok(());
        }
        feed(self.write(cli).args(["update-index", "-z", "--index-info"]), &self.dir, &lines)
    }

    /// Adds all changes, and new files that are not `withheld`. Unlike `git add -A`, this never runs git in a repository within the worktree, whose
    /// configuration an agent could have written; not even in one within a submodule.
    pub(super) fn add_all(&self, cli: &Cli, entries: &[Entry], withheld: &HashSet<Vec<u8>>) -> Result<(), Fault> {
        // git refuses to add a directory in place of a conflict, and a conflict below something that is no directory.
        let is_bare = |entry: &&Entry| {
            let dir = admin::without_links(&self.tree, Path::new(OsStr::from_bytes(&entry.path)));
            let is_dir = |dir: &PathBuf| fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir());
            let is_other = |dir: PathBuf| is_dir(&dir) && fs::symlink_metadata(dir.join(".git")).is_err();
            entry.stage != 0 && dir.is_none_or(is_other)
        };
        self.forget(cli, entries.iter().filter(is_bare))?;
        topic::add_tracked(&|| self.write(cli).args(PLAIN), &self.dir)?;
        let others = self.write(cli).args(["ls-files", "-z", "--others", "--exclude-standard"]).run()?;
        let is_work = |path: &&[u8]| !path.is_empty() && !withheld.contains(*path);
        let new = others.split(|byte| *byte == 0).filter(is_work).collect::<Vec<_>>().join(&0);
        if new.is_empty() {
            return Ok(());
        }
        let add = ["add", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"];
        feed(self.write(cli).args(PLAIN).env("GIT_LITERAL_PATHSPECS", "1").args(add), &self.dir, &new)
    }

    /// Marks paths as skip-worktree, because they are not checked out.
    pub(crate) fn skip(&self, cli: &Cli, paths: &[Vec<u8>]) -> Result<(), Fault> {
        mark(self.write(cli), &self.dir, "--skip-worktree", paths)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Sets an index flag for these paths.
pub(crate) fn mark(call: Call<'_>, scratch: &Path, flag: &str, paths: &[Vec<u8>]) -> Result<(), Fault> {
    if paths.is_empty() {
        return Ok(());
    }
    feed(call.args(["update-index", flag, "-z", "--stdin"]), scratch, &paths.join(&0))
}

/// Runs a call with `bytes` as stdin.
pub(crate) fn feed(call: Call<'_>, scratch: &Path, bytes: &[u8]) -> Result<(), Fault> {
    output_with_input(call, scratch, bytes).map(drop)
}

/// Runs a call with `bytes` as stdin and returns its stdout.
pub(crate) fn output_with_input(call: Call<'_>, scratch: &Path, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    output_with_input_for(call, scratch, bytes, &[0])
}

/// Runs a call with `bytes` as stdin, accepts any of the exit codes in `answers`, and returns its stdout.
pub(crate) fn output_with_input_for(
    call: Call<'_>,
    scratch: &Path,
    bytes: &[u8],
    answers: &[i32],
) -> Result<Vec<u8>, Fault> {
    let mut list = Scratch::new(scratch, "list");
    let mut file = list.create()?;
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(Fault::at(list.path()))?;
    Ok(call.input(file).run_for(answers)?.1)
}
