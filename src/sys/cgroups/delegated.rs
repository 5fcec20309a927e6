//! Parent of new control groups of version 2. A group of version 2 either contains processes or delegates
//! controllers, never both. The group of this process can therefore be a parent only if no other program uses it, and
//! only after all its processes have moved into a leaf below it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::place::Controller;
use crate::procfs;

/// Name of the leaf for this program's own processes.
const LEAF: &str = "swarm-supervisor";
/// Maximum number of rounds to move processes that were forked meanwhile.
const ROUNDS_MAX: u32 = 8;
/// Maximum number of ancestors. A longer chain means that the tree changed meanwhile.
const ANCESTORS_MAX: u32 = 1024;
/// Directory that exists if systemd manages all groups, except those that it delegated.
const SYSTEMD: &str = "/run/systemd/system";

/// Returns the parent for a new group, and which of the wanted controllers the group will have. `None` if it would
/// have none of them.
pub fn parent(own: &Path, wanted: &[Controller]) -> Option<(PathBuf, Vec<Controller>)> {
    parent_where(own, wanted, &|dir| is_handed_over(dir) && is_ours_alone(dir))
}

fn parent_where(
    own: &Path,
    wanted: &[Controller],
    may_move: &dyn Fn(&Path) -> bool,
) -> Option<(PathBuf, Vec<Controller>)> {
    let in_leaf = own.file_name().is_some_and(|name| name == LEAF);
    let dir = if in_leaf { own.parent()? } else { own };
    let able: Vec<Controller> = listed(dir, "cgroup.controllers", wanted);
    if able.is_empty() {
        return None;
    }
    let missing = |able: &[Controller]| {
        let on = listed(dir, "cgroup.subtree_control", wanted);
        able.iter().copied().filter(|one| !on.contains(one)).collect::<Vec<_>>()
    };
    if !missing(&able).is_empty() {
        let is_empty = members(dir).is_empty() || (may_move(dir) && moved_to_leaf(dir));
        if !is_empty {
            return None;
        }
        for controller in missing(&able) {
            let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{}", controller.name()));
        }
    }
    let handed_down = listed(dir, "cgroup.subtree_control", &able);
    (!handed_down.is_empty()).then(|| (dir.to_owned(), handed_down))
}

/// Returns the controllers of `wanted` that the file lists.
fn listed(dir: &Path, file: &str, wanted: &[Controller]) -> Vec<Controller> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    let words: Vec<&str> = text.split_ascii_whitespace().map(|word| word.trim_start_matches('+')).collect();
    wanted.iter().copied().filter(|controller| words.contains(&controller.name())).collect()
}

fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Moves all processes of the group into a leaf below it. Returns whether the group is empty then.
pub(super) fn moved_to_leaf(dir: &Path) -> bool {
    let leaf = dir.join(LEAF);
    // Another shim may have created the leaf at the same time.
    let _ = fs::create_dir(&leaf);
    for _ in 0..ROUNDS_MAX {
        let here = members(dir);
        if here.is_empty() {
            return true;
        }
        for pid in here {
            let _ = fs::write(leaf.join("cgroup.procs"), pid.to_string());
        }
    }
    false
}

/// Reports whether systemd, if it runs, has delegated the group, which it marks by an attribute.
fn is_handed_over(dir: &Path) -> bool {
    let is_marked = |name: &str| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(dir, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    };
    !Path::new(SYSTEMD).exists() || is_marked("trusted.delegate") || is_marked("user.delegate")
}

/// Reports whether all processes of the group run this program, or descend from one that does.
fn is_ours_alone(dir: &Path) -> bool {
    let program = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).ok().map(|meta| (meta.dev(), meta.ino()));
    let ours = i32::try_from(std::process::id()).ok().and_then(program);
    let is_ours = |pid: i32| {
        let mut at = pid;
        for _ in 0..ANCESTORS_MAX {
            if program(at) == ours {
                return true;
            }
            match procfs::stat(at) {
                Some(stat) if stat.parent > 1 => at = stat.parent,
                Some(_) => return false,
                // The process has ended meanwhile.
                None => return at == pid && pid > 0,
            }
        }
        false
    };
    ours.is_some() && members(dir).into_iter().all(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Controller; 3] = Controller::ALL;

    /// Creates files of a group as the kernel shows them.
    fn group(controllers: &str, handed_down: &str, processes: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let files = [("controllers", controllers), ("subtree_control", handed_down), ("procs", processes)];
        for (file, text) in files {
            fs::write(dir.path().join(format!("cgroup.{file}")), text).expect("written");
        }
        dir
    }

    fn found(dir: &Path, may_move: bool) -> Option<(PathBuf, Vec<Controller>)> {
        parent_where(dir, &ALL, &|_| may_move)
    }

    #[test]
    fn a_group_that_delegates_already_is_a_parent() {
        let own = group("cpuset cpu io memory pids", "memory pids cpu", "1\n2\n");
        assert_eq!(found(own.path(), false), Some((own.path().to_owned(), ALL.to_vec())));
    }

    #[test]
    fn a_group_with_foreign_processes_is_no_parent_and_is_not_changed() {
        let own = group("cpu memory pids", "", "1\n2\n");
        assert_eq!(found(own.path(), false), None);
        assert!(!own.path().join(LEAF).exists());
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "");
    }

    #[test]
    fn processes_of_an_own_group_move_into_a_leaf_first() {
        let own = group("cpu memory pids", "", "71\n");
        // No kernel removes the process from this file, so no controller may be delegated.
        assert_eq!(found(own.path(), true), None);
        assert_eq!(fs::read_to_string(own.path().join(LEAF).join("cgroup.procs")).expect("moved"), "71");
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "");
    }

    #[test]
    fn only_available_controllers_are_delegated() {
        let own = group("memory", "", "");
        assert_eq!(found(own.path(), false), Some((own.path().to_owned(), vec![Controller::Memory])));
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "+memory");
        assert_eq!(found(group("hugetlb", "", "").path(), true), None);
        assert_eq!(found(Path::new("/nowhere/at/all"), true), None);
    }

    #[test]
    fn in_the_leaf_the_parent_is_the_group_above() {
        let own = group("cpu memory pids", "cpu memory pids", "");
        let leaf = own.path().join(LEAF);
        fs::create_dir(&leaf).expect("made");
        fs::write(leaf.join("cgroup.controllers"), "").expect("written");
        assert_eq!(found(&leaf, false), Some((own.path().to_owned(), ALL.to_vec())));
    }

    #[test]
    fn processes_of_this_program_and_below_are_ours() {
        let child = std::process::Command::new("sleep").arg("100").spawn();
        let mut child = child.expect("started");
        let own = group("", "", &format!("{}\n{}\n", std::process::id(), child.id()));
        let ours = is_ours_alone(own.path());
        fs::write(own.path().join("cgroup.procs"), "1\n").expect("written");
        let others = is_ours_alone(own.path());
        child.kill().expect("ended");
        child.wait().expect("reaped");
        assert!(ours && !others);
    }
}
