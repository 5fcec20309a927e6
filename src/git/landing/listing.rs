//! Trees as git stores them: `MODE NAME NUL ID` for each entry, in an order of their own. Reading them this way costs a
//! fraction of libgit2's parsed trees and builder, which sort and copy every entry: a directory of 20,000 files is merged
//! in milliseconds.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use git2::{ObjectType, Odb, Oid, Repository};

use crate::repository::shared;

/// Size of an object id.
const ID: usize = 20;
const TREE: u32 = 0o040_000;
/// Maximum number of nested directories. A path with more cannot be checked out as a whole.
const DEPTH_MAX: usize = 500;
/// Maximum number of bytes of trees that are kept. A chain of merges needs the last ones again and again.
const KEPT_MAX: usize = 4 << 20;

/// Entry of a tree object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// One of the five modes that git writes.
    pub(crate) mode: u32,
    pub(crate) name: &'a [u8],
    pub(crate) id: Oid,
}

impl Entry<'_> {
    pub(crate) fn is_tree(&self) -> bool {
        self.mode == TREE
    }

    /// Compares in git's order: a directory sorts as if its name ended in `/`.
    fn order(&self, other: &Self) -> Ordering {
        order((self.name, self.is_tree()), (other.name, other.is_tree()))
    }
}

fn order(one: (&[u8], bool), other: (&[u8], bool)) -> Ordering {
    let common = one.0.len().min(other.0.len());
    let after = |(name, is_tree): (&[u8], bool)| name.get(common).copied().or(is_tree.then_some(b'/'));
    // With the same name, a directory sorts after a file, because nothing sorts before `/`.
    one.0[..common].cmp(&other.0[..common]).then_with(|| after(one).cmp(&after(other)))
}

/// The content of a tree.
#[derive(Clone, Default)]
pub(crate) struct Listing(Arc<[u8]>);

impl Listing {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses the entries.
    ///
    /// # Errors
    /// Fails if the tree is malformed.
    pub(crate) fn entries(&self) -> Result<Vec<Entry<'_>>, git2::Error> {
        let mut rest = &self.0[..];
        let mut entries = Vec::with_capacity(rest.len() / (ID + 12));
        while !rest.is_empty() {
            let (entry, after) = parse(rest).ok_or_else(|| git2::Error::from_str("malformed tree"))?;
            entries.push(entry);
            rest = after;
        }
        Ok(entries)
    }
}

/// Returns what git takes a mode for. Old versions and other programs wrote more modes than git does.
fn canonical(mode: u32) -> u32 {
    match mode & 0o170_000 {
        0o100_000 if mode & 0o100 == 0 => 0o100_644,
        0o100_000 => 0o100_755,
        known @ (TREE | 0o120_000) => known,
        _ => 0o160_000,
    }
}

/// Parses the first entry; returns it and the bytes after it.
fn parse(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let blank = bytes.iter().take(8).position(|byte| *byte == b' ').filter(|blank| *blank > 0)?;
    let digits = bytes[..blank].iter().map(|digit| digit.checked_sub(b'0').filter(|digit| *digit < 8));
    let mode = digits.into_iter().try_fold(0, |mode, digit| Some(mode * 8 + u32::from(digit?)))?;
    let mode = canonical(mode);
    let bytes = &bytes[blank + 1..];
    let end = bytes.iter().position(|byte| *byte == 0).filter(|end| *end > 0)?;
    let (id, rest) = bytes[end + 1..].split_at_checked(ID)?;
    Some((Entry { mode, name: &bytes[..end], id: Oid::from_bytes(id).ok()? }, rest))
}

/// A name whose entries differ between two trees.
pub(crate) struct Change<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) before: Option<Entry<'a>>,
    pub(crate) after: Option<Entry<'a>>,
}

/// Returns the names whose entries differ between the trees, sorted and without duplicates: what was a file and is a
/// directory is one change.
pub(crate) fn changed<'a>(before: &[Entry<'a>], after: &[Entry<'a>]) -> Vec<Change<'a>> {
    let mut changes: BTreeMap<&[u8], Change<'a>> = BTreeMap::new();
    let (mut one, mut other) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (one.peek(), other.peek()) {
            (Some(left), Some(right)) => left.order(right),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => break,
        };
        let left = if order == Ordering::Greater { None } else { one.next() };
        let right = if order == Ordering::Less { None } else { other.next() };
        if left == right {
            continue;
        }
        let Some(name) = left.or(right).map(|entry| entry.name) else { break };
        let change = changes.entry(name).or_insert(Change { name, before: None, after: None });
        change.before = change.before.or(left.copied());
        change.after = change.after.or(right.copied());
    }
    changes.into_values().collect()
}

/// An entry's name, and its new mode and id; `None` removes it.
pub(crate) type Edit<'a> = (&'a [u8], Option<(u32, Oid)>);

/// Returns the content of a tree after edits.
fn edited(entries: &[Entry<'_>], edits: &[Edit<'_>]) -> Vec<u8> {
    let by_name: BTreeMap<&[u8], Option<(u32, Oid)>> = edits.iter().copied().collect();
    let mut new: Vec<Entry<'_>> =
        by_name.iter().filter_map(|(name, new)| new.map(|(mode, id)| Entry { mode, name, id })).collect();
    new.sort_by(Entry::order);
    let mut content = Vec::with_capacity(entries.len() * (ID + 16));
    let mut new = new.into_iter().peekable();
    for entry in entries.iter().filter(|entry| !by_name.contains_key(entry.name)) {
        while let Some(earlier) = new.next_if(|new| new.order(entry) == Ordering::Less) {
            append(&mut content, &earlier);
        }
        append(&mut content, entry);
    }
    new.for_each(|entry| append(&mut content, &entry));
    content
}

fn append(content: &mut Vec<u8>, entry: &Entry<'_>) {
    content.extend_from_slice(format!("{:o} ", entry.mode).as_bytes());
    content.extend_from_slice(entry.name);
    content.push(0);
    content.extend_from_slice(entry.id.as_bytes());
}

/// Finds the entry of this name, whatever it is.
pub(crate) fn find<'a>(entries: &[Entry<'a>], name: &[u8]) -> Option<Entry<'a>> {
    let of = |is_tree| entries.binary_search_by(|entry| order((entry.name, entry.is_tree()), (name, is_tree))).ok();
    of(false).or_else(|| of(true)).map(|at| entries[at])
}

/// Content of the trees that were used last, newest first.
#[derive(Default)]
pub(crate) struct Cache(RefCell<Kept>);

#[derive(Default)]
struct Kept {
    trees: VecDeque<(Oid, Listing)>,
    bytes: usize,
}

impl Cache {
    fn take(&self, id: Oid) -> Option<Listing> {
        let mut kept = self.0.borrow_mut();
        let at = kept.trees.iter().position(|(known, _)| *known == id)?;
        let (_, tree) = kept.trees.remove(at)?;
        kept.bytes -= tree.0.len();
        Some(tree)
    }

    fn put(&self, id: Oid, tree: Listing) {
        let mut kept = self.0.borrow_mut();
        kept.bytes += tree.0.len();
        kept.trees.push_front((id, tree));
        while kept.bytes > KEPT_MAX
            && let Some((_, oldest)) = kept.trees.pop_back()
        {
            kept.bytes -= oldest.0.len();
        }
    }
}

/// Trees of a repository.
pub(crate) struct Listings<'r> {
    repo: &'r Repository,
    odb: Odb<'r>,
    cache: &'r Cache,
    depth: Cell<usize>,
}

/// A level of directories in which a function is. Left when it is dropped.
pub(crate) struct Level<'a>(&'a Cell<usize>);

impl Drop for Level<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<'r> Listings<'r> {
    pub(crate) fn new(repo: &'r Repository, cache: &'r Cache) -> Result<Self, git2::Error> {
        Ok(Self { repo, odb: repo.odb()?, cache, depth: Cell::new(0) })
    }

    /// Enters a directory, on behalf of a function that calls itself for each one below.
    ///
    /// # Errors
    /// Fails if directories are nested more deeply than [`DEPTH_MAX`]: the stack of a thread is limited.
    pub(crate) fn enter(&self) -> Result<Level<'_>, git2::Error> {
        if self.depth.get() == DEPTH_MAX {
            return Err(git2::Error::from_str("directories are nested too deeply"));
        }
        self.depth.set(self.depth.get() + 1);
        Ok(Level(&self.depth))
    }

    /// Reads a tree.
    ///
    /// # Errors
    /// Fails if there is no such tree.
    pub(crate) fn read(&self, id: Oid) -> Result<Listing, git2::Error> {
        let tree = match self.cache.take(id) {
            Some(tree) => tree,
            None => {
                let object = self.odb.read(id)?;
                if object.kind() != ObjectType::Tree {
                    return Err(git2::Error::from_str("not a tree"));
                }
                Listing(object.data().into())
            }
        };
        self.cache.put(id, tree.clone());
        Ok(tree)
    }

    /// Writes a tree with these entries, edited, and returns its id.
    ///
    /// # Errors
    /// Fails if libgit2 rejects the name, mode or object of an edit, or if the tree cannot be written.
    pub(crate) fn write(&self, entries: &[Entry<'_>], edits: &[Edit<'_>]) -> Result<Oid, git2::Error> {
        let mut checked = self.repo.treebuilder(None)?;
        for (name, new) in edits {
            if let Some((mode, id)) = new {
                checked.insert(*name, *id, i32::try_from(*mode).unwrap_or_default())?;
            }
        }
        let content = edited(entries, edits);
        let id = shared::write(self.repo, &self.odb, ObjectType::Tree, &content)?;
        self.cache.put(id, Listing(content.into()));
        Ok(id)
    }

    /// Reports whether an object exists.
    pub(crate) fn has(&self, id: Oid) -> bool {
        self.odb.exists(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = 0o100_644;

    fn id(number: u8) -> Oid {
        Oid::from_bytes(&[number; ID]).expect("twenty bytes")
    }

    fn listing(entries: &[(&str, u32, u8)]) -> Listing {
        let entries: Vec<Entry<'_>> = entries
            .iter()
            .map(|(name, mode, number)| Entry { mode: *mode, name: name.as_bytes(), id: id(*number) })
            .collect();
        Listing(edited(&entries, &[]).into())
    }

    #[test]
    fn a_name_that_is_a_file_in_one_tree_and_a_directory_in_the_other_is_one_change() {
        let before = listing(&[("a", FILE, 1), ("a-b", FILE, 2), ("same", FILE, 3)]);
        let after = listing(&[("a-b", FILE, 2), ("a", TREE, 4), ("new", FILE, 5), ("same", FILE, 3)]);
        let (before, after) = (before.entries().expect("whole"), after.entries().expect("whole"));
        let changes = changed(&before, &after);
        let seen: Vec<_> = changes.iter().map(|change| (change.name, change.before, change.after)).collect();
        assert_eq!(seen, [(&b"a"[..], find(&before, b"a"), find(&after, b"a")), (b"new", None, find(&after, b"new"))]);
        assert!(find(&after, b"a").is_some_and(|entry| entry.is_tree()) && find(&after, b"b").is_none());
    }

    #[test]
    fn an_edited_tree_is_the_one_that_libgit2_writes() {
        let dir = tempfile::tempdir().expect("a directory");
        let repo = Repository::init(dir.path()).expect("a repository");
        let blob = repo.blob(b"x").expect("written");
        let below = {
            let mut builder = repo.treebuilder(None).expect("made");
            builder.insert("f", blob, FILE as i32).expect("valid");
            builder.write().expect("written")
        };
        let edits: [Edit<'_>; 6] = [
            (b"a", Some((TREE, below))),
            (b"a.b", None),
            (b"b", Some((0o100_755, blob))),
            (b"c", Some((FILE, blob))),
            (b"zz", Some((0o120_000, blob))),
            (b"0", Some((FILE, blob))),
        ];
        let mut builder = repo.treebuilder(None).expect("made");
        for name in ["a", "a-b", "a.b", "a0", "b", "y"] {
            builder.insert(name, blob, FILE as i32).expect("valid");
        }
        let cache = Cache::default();
        let trees = Listings::new(&repo, &cache).expect("opened");
        let old = trees.read(builder.write().expect("written")).expect("there");
        for (name, new) in edits {
            match new {
                Some((mode, id)) => drop(builder.insert(name, id, mode as i32).expect("valid")),
                None => builder.remove(name).expect("there"),
            }
        }
        let entries = old.entries().expect("whole");
        assert_eq!(trees.write(&entries, &edits).expect("written"), builder.write().expect("written"));
        for (name, mode, id) in
            [(&b".git"[..], FILE, blob), (b"..", FILE, blob), (b"f", 0o100_664, blob), (b"f", FILE, id(7))]
        {
            trees.write(&entries, &[(name, Some((mode, id)))]).expect_err("libgit2 rejects it");
        }
    }

    #[test]
    fn a_malformed_tree_is_an_error() {
        let whole = listing(&[("a", FILE, 1), ("b", TREE, 2)]);
        assert_eq!(whole.entries().expect("whole").len(), 2);
        for cut in 1..whole.0.len() {
            let entries = Listing(whole.0[..cut].into());
            assert_eq!(entries.entries().is_ok(), cut == whole.0.len() / 2 + 1, "{cut}");
        }
    }

    #[test]
    fn modes_are_read_as_git_reads_them() {
        let read = |mode: &str| {
            let bytes = [mode.as_bytes(), b" f\0", &[1; ID]].concat();
            Some(Listing(bytes.into()).entries().ok()?[0].mode)
        };
        for (mode, expected) in [
            ("40000", TREE),
            ("040000", TREE),
            ("40755", TREE),
            ("100644", FILE),
            ("100664", FILE),
            ("0100600", FILE),
            ("100755", 0o100_755),
            ("100744", 0o100_755),
            ("120000", 0o120_000),
            ("120777", 0o120_000),
            ("160000", 0o160_000),
            ("0", 0o160_000),
        ] {
            assert_eq!(read(mode), Some(expected), "{mode}");
        }
        for mode in ["", "+40000", "-1", "100648", "x"] {
            assert_eq!(read(mode), None, "{mode}");
        }
    }

    #[test]
    fn the_trees_used_last_are_kept_up_to_a_limit() {
        let cache = Cache::default();
        let big = || Listing(vec![0; KEPT_MAX / 2].into());
        cache.put(id(1), big());
        cache.put(id(2), big());
        let first = cache.take(id(1)).expect("kept");
        cache.put(id(1), first);
        cache.put(id(3), big());
        assert!(cache.take(id(2)).is_none(), "it was used longest ago");
        assert!(cache.take(id(1)).is_some() && cache.take(id(3)).is_some());
        assert_eq!(cache.0.borrow().bytes, 0);
    }
}
