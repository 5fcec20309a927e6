//! Commits that no directory can hold, because something in them is longer than the kernel accepts. git stores them, and
//! fails to check them out.

use std::collections::HashMap;

use git2::{Oid, Repository};

use super::listing::{Cache, Listings};
use crate::landing::workspace::Workspace;

/// Maximum number of bytes of a path, and of the target of a symbolic link.
const PATH_MAX: usize = 4095;
/// Maximum number of bytes of the name of a file or directory.
const NAME_MAX: usize = 255;
const LINK: u32 = 0o120_000;
/// Number of bytes of a path that are shown.
const SHOWN_MAX: usize = 60;

/// The longest path below a tree.
struct Longest {
    bytes: usize,
    /// Its first name, and the tree in which it continues.
    name: Vec<u8>,
    next: Option<Oid>,
}

/// Returns why a commit cannot be checked out anywhere. `None` if nothing is too long, or if this cannot be determined.
pub(super) fn reason(workspace: &Workspace, commit: &str) -> Option<String> {
    let library = workspace.library()?;
    let tree = Oid::from_str(commit).and_then(|id| library.find_commit(id)).ok()?.tree_id();
    too_long(&library, tree).ok()?
}

/// Works without recursion and looks at each tree once: trees may be nested deeply, and may contain each other many times.
fn too_long(repo: &Repository, root: Oid) -> Result<Option<String>, git2::Error> {
    let (cache, odb) = (Cache::default(), repo.odb()?);
    let trees = Listings::new(repo, &cache)?;
    let mut known: HashMap<Oid, Longest> = HashMap::new();
    let mut todo = vec![root];
    while let Some(id) = todo.last().copied() {
        let listing = trees.read(id)?;
        let entries = listing.entries()?;
        let before = todo.len();
        todo.extend(entries.iter().filter(|entry| entry.is_tree() && !known.contains_key(&entry.id)).map(|one| one.id));
        if todo.len() > before {
            continue;
        }
        todo.pop();
        let mut longest = Longest { bytes: 0, name: Vec::new(), next: None };
        for entry in entries {
            let shown = shown(entry.name.to_vec());
            if entry.name.len() > NAME_MAX {
                return Ok(Some(format!(
                    "the name '{shown}' has {} bytes, and {NAME_MAX} is the limit",
                    entry.name.len()
                )));
            }
            if entry.mode == LINK
                && let Ok((bytes, _)) = odb.read_header(entry.id)
                && bytes > PATH_MAX
            {
                let limit = format!("and {PATH_MAX} is the limit");
                return Ok(Some(format!("the target of the symbolic link '{shown}' has {bytes} bytes, {limit}")));
            }
            let next = Some(entry.id).filter(|_| entry.is_tree());
            let below = next.and_then(|id| known.get(&id)).map_or(0, |below| 1 + below.bytes);
            if entry.name.len() + below > longest.bytes {
                longest = Longest { bytes: entry.name.len() + below, name: entry.name.to_vec(), next };
            }
        }
        known.insert(id, longest);
    }
    let bytes = known.get(&root).map_or(0, |longest| longest.bytes);
    let is_too_long = bytes > PATH_MAX;
    let path = || shown(beginning(&known, root));
    Ok(is_too_long.then(|| format!("the path '{}' has {bytes} bytes, and {PATH_MAX} is the limit", path())))
}

/// Returns the beginning of the longest path.
fn beginning(known: &HashMap<Oid, Longest>, root: Oid) -> Vec<u8> {
    let (mut path, mut next) = (Vec::new(), Some(root));
    while let Some(longest) = next.and_then(|id| known.get(&id)).filter(|_| path.len() <= SHOWN_MAX) {
        path.extend_from_slice(&longest.name);
        path.push(b'/');
        next = longest.next;
    }
    path
}

fn shown(mut path: Vec<u8>) -> String {
    let is_cut = path.len() > SHOWN_MAX;
    path.truncate(SHOWN_MAX);
    String::from_utf8_lossy(&path).into_owned() + if is_cut { "…" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    const FILE: i32 = 0o100_644;

    fn tree(repo: &Repository, entries: &[(&str, Oid, i32)]) -> Oid {
        let mut tree = repo.treebuilder(None).unwrap();
        for (name, id, mode) in entries {
            tree.insert(name, *id, *mode).unwrap();
        }
        tree.write().unwrap()
    }

    #[test]
    fn what_is_too_long_for_the_kernel_is_named() {
        let fix = Fixture::new();
        let repo = Repository::open(&fix.repo).unwrap();
        let blob = |length: usize| repo.blob(&vec![b'x'; length]).unwrap();
        let nested = |depth: usize| {
            let top = tree(&repo, &[("f", blob(1), FILE)]);
            (0..depth).fold(top, |below, _| tree(&repo, &[("d", below, 0o040_000), ("e", blob(1), FILE)]))
        };
        let long = |length: usize| "n".repeat(length);
        let ends = [" has 4097 bytes, and 4095 is the limit", " has 256 bytes, and 255 is the limit"];
        for (root, expected) in [
            (nested(2047), None),
            (nested(2048), Some(format!("the path '{}…'{}", "d/".repeat(30), ends[0]))),
            (tree(&repo, &[(&long(255), blob(1), FILE)]), None),
            (tree(&repo, &[(&long(256), blob(1), FILE)]), Some(format!("the name '{}…'{}", long(60), ends[1]))),
            (tree(&repo, &[("l", blob(4095), LINK as i32), ("f", blob(9000), FILE)]), None),
            (
                tree(&repo, &[("l", blob(4096), LINK as i32)]),
                Some("the target of the symbolic link 'l' has 4096 bytes, and 4095 is the limit".to_owned()),
            ),
        ] {
            assert_eq!(too_long(&repo, root).unwrap(), expected);
        }
        // 2^100 files.
        let many = (0..100).fold(nested(0), |one, _| tree(&repo, &[("a", one, 0o040_000), ("b", one, 0o040_000)]));
        assert_eq!(too_long(&repo, many).unwrap(), None);
    }
}
