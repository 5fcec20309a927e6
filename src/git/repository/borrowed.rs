//! Objects of a repository that lie where they are removed: in an alternate below a worktree, for example.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::fault::Fault;
use crate::worktrees::{admin, record};
use swarm_sys::files::{list, list_if_present};
use swarm_sys::quoting::command_line;

const MODULES: &str = "modules";
/// Number of alternates of alternates that git follows.
const DEPTH_MAX: u32 = 5;
/// Maximum depth of directories in which repositories of submodules are looked for. Their names may have slashes.
const MODULES_DEPTH_MAX: u32 = 32;

/// Objects outside of the repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Borrowed {
    /// The repository, or that of a submodule in it.
    of: PathBuf,
    /// File that names the directory, or link to it.
    by: PathBuf,
    /// Directory or file with the objects. `None` if `by` cannot be read, so that it may name any.
    dir: Option<PathBuf>,
}

impl Borrowed {
    /// Returns why nothing that needs these objects lands, and nothing around them is removed.
    pub(crate) fn fault(&self, common: &Path) -> Fault {
        let by = self.by.display();
        let whose = if self.of == common { "the repository".to_owned() } else { self.of.display().to_string() };
        let Some(dir) = &self.dir else {
            let cause = format!("objects of {whose} may be in any directory, because {by} cannot be read");
            return Fault::new(cause).remedy(format!("mend or delete {by}, and try again"));
        };
        let cause = format!("objects of {whose} are in {}, which does not last (by {by})", dir.display());
        let repack = command_line(["git", "-C", &self.of.to_string_lossy(), "repack", "-a", "-d"]);
        Fault::new(cause).remedy(format!("run '{repack}', remove what names them from {by}, and try again"))
    }
}

/// Returns the first directory with objects of a repository, or of a submodule in it, that lies below one of these places. Nearly all repositories
/// have none, and then nobody asks for the places.
pub(crate) fn below(common: &Path, places: impl FnOnce() -> Vec<PathBuf>) -> Option<Borrowed> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    let mut repositories = vec![common.to_owned()];
    modules(&common.join(MODULES), MODULES_DEPTH_MAX, &mut repositories);
    for of in repositories {
        let mut named = Vec::new();
        collect(&of.join("objects"), DEPTH_MAX, &mut seen, &mut named);
        all.extend(named.into_iter().map(|(by, dir)| Borrowed { of: of.clone(), by, dir }));
    }
    if all.is_empty() {
        return None;
    }
    let own = common.canonicalize().ok()?;
    let places = places().into_iter().filter_map(|place| place.canonicalize().ok());
    // Of a repository that is itself there, all lies there.
    let places: Vec<PathBuf> = places.filter(|place| !own.starts_with(place)).collect();
    let is_there = |dir: &PathBuf| places.iter().any(|place| dir.starts_with(place));
    all.into_iter().find(|found| found.dir.as_ref().is_none_or(is_there))
}

/// Returns the worktrees of a repository with their records, and what a run keeps in the main one.
pub(crate) fn places(common: &Path) -> Vec<PathBuf> {
    let entries = admin::entries(common).unwrap_or_default();
    let trees: Vec<PathBuf> = entries.iter().filter_map(|entry| admin::tree_of(entry)).collect();
    let of_run = admin::checkout_of(common).map(|root| root.join(".arial"));
    trees.into_iter().chain(entries).chain(of_run).collect()
}

/// Adds the repositories of submodules in `dir`, and of those in them.
fn modules(dir: &Path, depth: u32, all: &mut Vec<PathBuf>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let dirs = list_if_present(dir).unwrap_or_default().into_iter();
    for dir in dirs.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()) {
        if dir.join("HEAD").exists() && dir.join("objects").exists() {
            modules(&dir.join(MODULES), depth, all);
            all.push(dir);
        } else {
            modules(&dir, depth, all);
        }
    }
}

/// Collects what a directory with objects names, by links and as alternates: as [`Borrowed`] has it.
fn collect(objects: &Path, depth: u32, seen: &mut BTreeSet<PathBuf>, all: &mut Vec<(PathBuf, Option<PathBuf>)>) {
    if !objects.canonicalize().is_ok_and(|real| seen.insert(real)) {
        return;
    }
    for link in links(objects) {
        all.extend(link.canonicalize().ok().map(|dir| (link, Some(dir))));
    }
    let by = objects.join("info/alternates");
    // As git does, by way of a link as well.
    let text = match by.canonicalize().and_then(|real| record::read(&real)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(_) => return all.push((by, None)),
    };
    if depth == 0 {
        return;
    }
    let named = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    for dir in named.map(|line| objects.join(OsString::from_vec(unquoted(line)))) {
        all.extend(dir.canonicalize().ok().map(|real| (by.clone(), Some(real))));
        collect(&dir, depth - 1, seen, all);
    }
}

/// Returns the symbolic links among the places where git looks for objects: the directory itself, those in it, and what is
/// directly in these.
fn links(objects: &Path) -> Vec<PathBuf> {
    let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    let mut found: Vec<PathBuf> = Some(objects.to_owned()).filter(|path| is_link(path)).into_iter().collect();
    for dir in list(objects).unwrap_or_default() {
        match dir.file_type() {
            Ok(kind) if kind.is_dir() => {
                let inside = list(&dir.path()).unwrap_or_default().into_iter();
                let inside = inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
                found.extend(inside.map(|entry| entry.path()));
            }
            Ok(kind) if kind.is_symlink() => found.push(dir.path()),
            _ => {}
        }
    }
    found
}

/// Returns a line of `alternates` as git reads it: a path in quotes, with escapes as in C, or the path as it is.
fn unquoted(line: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    let Some(mut rest) = line.strip_prefix(b"\"") else { return line.to_vec() };
    loop {
        let byte;
        (byte, rest) = match rest {
            [b'"', ..] => return path,
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after)
            }
            [b'\\', escaped, after @ ..] => match escape(*escaped) {
                Some(byte) => (byte, after),
                None => return line.to_vec(),
            },
            [byte, after @ ..] if *byte != b'\\' => (*byte, after),
            _ => return line.to_vec(),
        };
        path.push(byte);
    }
}

fn escape(letter: u8) -> Option<u8> {
    Some(match letter {
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 11,
        b'\\' | b'"' => letter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_in_quotes_is_read_as_git_does() {
        for (line, path) in [
            (r"/plain", "/plain"),
            (r#""/a b""#, "/a b"),
            (r#""/a\tb\"c\\d\101""#, "/a\tb\"c\\dA"),
            (r#""/open"#, r#""/open"#),
            (r#""/odd\q""#, r#""/odd\q""#),
        ] {
            assert_eq!(String::from_utf8(unquoted(line.as_bytes())).as_deref(), Ok(path));
        }
    }

    #[test]
    fn alternates_and_links_that_lead_into_a_place_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let common = root.join("repo/.git");
        let place = root.join("trees/a");
        for made in ["repo/.git/objects/info", "trees/a/objs/info", "other/objects/info", "trees/ab"] {
            fs::create_dir_all(root.join(made)).expect("made");
        }
        let places = [place.clone(), root.join("gone")];
        let seen = || below(&common, || places.to_vec()).and_then(|found| found.dir);
        let alternates = common.join("objects/info/alternates");
        for (text, expected) in [
            (String::new(), None),
            (format!("{}\n", root.join("other/objects").display()), None),
            (format!("{}\n", root.join("trees/ab").display()), None),
            ("# a comment\n../../../trees/a/objs\n".to_owned(), Some(place.join("objs"))),
            (format!("/nowhere\n{}\n", place.join("objs").display()), Some(place.join("objs"))),
        ] {
            fs::write(&alternates, &text).expect("written");
            assert_eq!(seen(), expected, "{text}");
        }
        // By way of another repository.
        fs::write(&alternates, format!("{}\n", root.join("other/objects").display())).expect("written");
        let further = root.join("other/objects/info/alternates");
        fs::write(&further, format!("{}\n", place.join("objs").display())).expect("written");
        assert_eq!(seen(), Some(place.join("objs")));
        fs::write(&alternates, "").expect("written");
        for name in ["pack", "ab"] {
            let link = common.join("objects").join(name);
            symlink(place.join("objs"), &link).expect("linked");
            assert_eq!(seen(), Some(place.join("objs")), "{name}");
            fs::remove_file(link).expect("removed");
        }
        let file = place.join("objs/file");
        fs::write(&file, "").expect("written");
        for name in ["pack/pack-1.pack", "02/24c1"] {
            let link = common.join("objects").join(name);
            fs::create_dir_all(link.parent().expect("has one")).expect("made");
            symlink(&file, &link).expect("linked");
            assert_eq!(seen(), Some(file.clone()), "{name}");
            fs::remove_file(link).expect("removed");
        }
        assert_eq!(seen(), None);
        let quoted = format!("\"{}\"\n", place.join("objs").display()).replace("/objs", "/\\157bjs");
        let odd = [b"#\xff\n".to_vec(), format!("{}\n", place.join("objs").display()).into_bytes()].concat();
        for text in [quoted.into_bytes(), odd] {
            fs::write(&alternates, &text).expect("written");
            assert_eq!(seen(), Some(place.join("objs")), "{}", String::from_utf8_lossy(&text));
        }
        fs::remove_file(&alternates).expect("removed");
        fs::create_dir(&alternates).expect("made");
        let unknown = below(&common, || places.to_vec()).expect("it may name any");
        assert!(unknown.fault(&common).cause.contains("cannot be read"), "{unknown:?}");
        fs::remove_dir(&alternates).expect("removed");
        fs::write(&alternates, "").expect("written");
        // A repository in the place has its own objects there.
        assert_eq!(below(&common, || vec![root.clone()]), None);
    }

    #[test]
    fn objects_of_submodules_and_in_records_of_worktrees_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let (common, place) = (root.join("repo/.git"), root.join("tree"));
        let record = common.join("worktrees/tree");
        fs::create_dir_all(place.join("objs")).expect("made");
        fs::create_dir_all(record.join("objs")).expect("made");
        fs::write(record.join("gitdir"), format!("{}\n", place.join(".git").display())).expect("written");
        for of in ["", "modules/sub", "modules/deep/er", "modules/sub/modules/inner"] {
            let of = common.join(of);
            fs::create_dir_all(of.join("objects/info")).expect("made");
            fs::write(of.join("HEAD"), "ref: refs/heads/main\n").expect("written");
            assert_eq!(below(&common, || places(&common)), None);
            let alternates = of.join("objects/info/alternates");
            for objects in [place.join("objs"), record.join("objs")] {
                fs::write(&alternates, format!("{}\n", objects.display())).expect("written");
                let found = below(&common, || places(&common)).expect("found");
                assert_eq!((&found.of, &found.dir), (&of.components().collect(), &Some(objects)));
                let remedy = found.fault(&common).remedy.expect("one");
                let repack = command_line(["git", "-C", &found.of.to_string_lossy(), "repack"]);
                assert!(remedy.contains(&repack), "{remedy}");
            }
            fs::remove_file(alternates).expect("removed");
        }
    }
}
