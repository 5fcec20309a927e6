//! Trivial three-way merge of trees. Descends only where all three ids differ, and takes each path
//! that only one side changed from that side. Everything else, and everything that may be part of
//! a rename, is left to `git merge-tree`. With 20,000 files this costs a hundredth of reading all
//! of them.

use git2::{Oid, Repository, Tree};

use super::listing::{Cache, Entry, Listing, Listings, changed, find};

/// Returns `ours` with the changes from `base` to `theirs`, or `None` if the merge is not
/// trivial.
pub(crate) fn merge(trees: &Listings<'_>, base: Oid, ours: Oid, theirs: Oid) -> Result<Option<Oid>, git2::Error> {
    if base == theirs {
        return Ok(Some(ours));
    }
    if base == ours {
        return Ok(Some(theirs));
    }
    // Both sides made the same change: parts of it may be halves of renames.
    if ours == theirs {
        return Ok(None);
    }
    let _level = trees.enter()?;
    let (base, ours, theirs) = (trees.read(base)?, trees.read(ours)?, trees.read(theirs)?);
    let (base, ours, theirs) = (base.entries()?, ours.entries()?, theirs.entries()?);
    let mut edits = Vec::new();
    for change in changed(&base, &theirs) {
        let (before, wanted) = (change.before, change.after);
        let mine = find(&ours, change.name);
        if before == mine {
            edits.push((change.name, wanted.map(|entry| (entry.mode, entry.id))));
            continue;
        }
        let (Some(before), Some(mine), Some(wanted)) = (before, mine, wanted) else { return Ok(None) };
        if !(before.is_tree() && mine.is_tree() && wanted.is_tree()) {
            return Ok(None);
        }
        let Some(below) = merge(trees, before.id, mine.id, wanted.id)? else { return Ok(None) };
        let is_empty = trees.read(below)?.is_empty();
        edits.push((change.name, (!is_empty).then_some((mine.mode, below))));
    }
    Ok(Some(trees.write(&ours, &edits)?))
}

/// Reports whether all objects exist that the commits after `from` up to `to` introduced.
pub(crate) fn is_complete(repo: &Repository, from: &str, to: &str) -> Result<bool, git2::Error> {
    let mut walk = repo.revwalk()?;
    walk.push(Oid::from_str(to)?)?;
    walk.hide(Oid::from_str(from)?)?;
    let cache = Cache::default();
    let trees = Listings::new(repo, &cache)?;
    for id in walk {
        let commit = repo.find_commit(id?)?;
        let before = commit.parents().next().map(|parent| parent.tree_id());
        if !has_new(&trees, before, commit.tree_id())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether all objects exist that the tree `after` has and the tree `before` has not.
fn has_new(trees: &Listings<'_>, before: Option<Oid>, after: Oid) -> Result<bool, git2::Error> {
    let _level = trees.enter()?;
    let (before, after) = (before.map_or_else(|| Ok(Listing::default()), |id| trees.read(id))?, trees.read(after)?);
    for change in changed(&before.entries()?, &after.entries()?) {
        let Some(entry) = change.after else { continue };
        let is_there = if entry.is_tree() {
            let old = change.before.filter(Entry::is_tree).map(|old| old.id);
            has_new(trees, old, entry.id)?
        } else {
            Kind::of(entry.mode) == Kind::Link || trees.has(entry.id)
        };
        if !is_there {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reports whether an error only means that an object does not exist.
pub(crate) fn is_absent(error: &git2::Error) -> bool {
    error.code() == git2::ErrorCode::NotFound
}

/// Kind of a path in a commit, unless it is a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file or a symbolic link.
    File,
    /// Commit of another repository: a submodule.
    Link,
}

impl Kind {
    /// Returns the kind for a tree entry mode.
    pub(crate) fn of(mode: u32) -> Self {
        if mode == 0o160_000 { Self::Link } else { Self::File }
    }
}

/// A path that differs between two commits. Its kind on a side is `None` if nothing or a
/// directory exists there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Differing {
    pub(crate) path: Vec<u8>,
    pub(crate) before: Option<Kind>,
    pub(crate) after: Option<Kind>,
}

/// Returns the paths that differ between two commits or trees.
pub(crate) fn differing(repo: &Repository, one: &str, other: &str) -> Result<Vec<Differing>, git2::Error> {
    let tree =
        |name: &str| repo.find_object(Oid::from_str(name)?, None)?.peel_to_tree().map(|tree: Tree<'_>| tree.id());
    let (mut paths, cache) = (Vec::new(), Cache::default());
    walk(&Listings::new(repo, &cache)?, Some(tree(one)?), Some(tree(other)?), &[], &mut paths)?;
    Ok(paths)
}

fn walk(
    trees: &Listings<'_>,
    one: Option<Oid>,
    other: Option<Oid>,
    above: &[u8],
    paths: &mut Vec<Differing>,
) -> Result<(), git2::Error> {
    let _level = trees.enter()?;
    let read = |id: Option<Oid>| id.map_or_else(|| Ok(Listing::default()), |id| trees.read(id));
    let (one, other) = (read(one)?, read(other)?);
    for change in changed(&one.entries()?, &other.entries()?) {
        let path = [above, change.name].concat();
        let both = [change.before, change.after];
        let [before, after] =
            both.map(|entry| entry.filter(|entry| !entry.is_tree()).map(|entry| Kind::of(entry.mode)));
        if before.is_some() || after.is_some() {
            paths.push(Differing { path: path.clone(), before, after });
        }
        let [before, after] = both.map(|entry| entry.filter(Entry::is_tree).map(|entry| entry.id));
        if before.is_some() || after.is_some() {
            walk(trees, before, after, &[&path[..], b"/"].concat(), paths)?;
        }
    }
    Ok(())
}

/// Parses `git diff-tree -r -z --raw`: `:MODE MODE ID ID LETTER` and a path.
pub(crate) fn listed(out: &[u8]) -> Vec<Differing> {
    let kind = |mode: &str| u32::from_str_radix(mode, 8).ok().filter(|mode| *mode != 0).map(Kind::of);
    let one = |pair: &[&[u8]]| {
        let mut words = std::str::from_utf8(pair[0]).ok()?.strip_prefix(':')?.split(' ');
        let (before, after) = (kind(words.next()?), kind(words.next()?));
        Some(Differing { path: pair[1].to_vec(), before, after })
    };
    let fields: Vec<&[u8]> = out.split(|byte| *byte == 0).filter(|field| !field.is_empty()).collect();
    fields.chunks_exact(2).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, text};

    /// Returns a tree with a file of this content below that many nested directories.
    fn nested(repo: &Repository, depth: usize, content: &str) -> Oid {
        let (mut id, mut name, mut mode) = (repo.blob(content.as_bytes()).unwrap(), "f", 0o100_644);
        for _ in 0..=depth {
            let mut tree = repo.treebuilder(None).unwrap();
            tree.insert(name, id, mode).unwrap();
            (id, name, mode) = (tree.write().unwrap(), "d", 0o040_000);
        }
        id
    }

    #[test]
    fn trees_that_are_nested_too_deeply_are_an_error() {
        let fix = Fixture::new();
        let repo = Repository::open(&fix.repo).unwrap();
        let cache = Cache::default();
        let trees = Listings::new(&repo, &cache).unwrap();
        for (depth, fits) in [(400, true), (5000, false), (400, true)] {
            let [base, ours, theirs] = ["base", "ours", "theirs"].map(|content| nested(&repo, depth, content));
            // All three differ in one file, so that the merge descends to it.
            assert_eq!(merge(&trees, base, ours, theirs).is_ok(), fits, "merge at depth {depth}");
            assert_eq!(has_new(&trees, Some(base), ours).is_ok(), fits, "has_new at depth {depth}");
            assert_eq!(differing(&repo, &base.to_string(), &ours.to_string()).is_ok(), fits, "at depth {depth}");
        }
    }

    #[test]
    fn trees_with_unusual_modes_are_merged_as_git_does() {
        let fix = Fixture::new();
        let repo = Repository::open(&fix.repo).unwrap();
        let (odb, cache) = (repo.odb().unwrap(), Cache::default());
        let trees = Listings::new(&repo, &cache).unwrap();
        let blob = |text: &str| repo.blob(text.as_bytes()).unwrap();
        let tree = |entries: &[(&str, &str, Oid)]| {
            let of = |(mode, name, id): &(&str, &str, Oid)| {
                [mode.as_bytes(), b" ", name.as_bytes(), b"\0", id.as_bytes()].concat()
            };
            odb.write(git2::ObjectType::Tree, &entries.iter().flat_map(of).collect::<Vec<u8>>()).unwrap()
        };
        for (dir, file) in [("40000", "100644"), ("040000", "0100664"), ("40755", "100755"), ("40000", "100711")] {
            let root = |one: &str, other: &str| {
                let below = tree(&[("100644", "a", blob(one)), (file, "b", blob("b")), ("100644", "c", blob(other))]);
                tree(&[
                    (dir, "d", below),
                    (file, "g", blob("g")),
                    ("100644", one, blob("1")),
                    ("120000", "z", blob("z")),
                ])
            };
            let [base, ours, theirs] = [root("h", "0"), root("i", "0"), root("h", "2")];
            let commit = |tree: Oid, parent: Option<&str>| {
                let (tree, parent) = (tree.to_string(), parent.map(|parent| ["-p", parent]));
                let words = ["commit-tree", "-m", "x", &tree].into_iter().chain(parent.into_iter().flatten());
                text(&fix.git(&words.collect::<Vec<_>>()))
            };
            let fork = commit(base, None);
            let sides = [ours, theirs].map(|tree| commit(tree, Some(&fork)));
            let by_git = text(&fix.git(&["merge-tree", "--write-tree", &sides[0], &sides[1]]));
            let merged = merge(&trees, base, ours, theirs).unwrap().map(|id| id.to_string());
            assert_eq!(merged, Some(by_git), "{dir} {file}");
        }
    }
}
