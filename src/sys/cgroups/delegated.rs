//! Where groups of version 2 may be made. There a group either has processes or
//! hands controllers down, never both: this process's own group can be a parent only when it is
//! ours alone, and then everybody in it moves into a leaf first.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::place::Controller;
use crate::procfs;

/// The leaf for our own processes.
const LEAF: &str = "swarm-supervisor";
/// How often those who were forked meanwhile are moved as well.
const ROUNDS_MAX: u32 = 8;
/// A chain longer than any real tree means that it changed under our eyes.
const ANCESTORS_MAX: u32 = 1024;
/// It is there where systemd rules over all groups but those that it handed over.
const SYSTEMD: &str = "/run/systemd/system";

/// Where to make a group, and which of the wanted controllers it will have there. None where
/// no group can hold any of them.
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

/// Those of `wanted` that the file names.
fn listed(dir: &Path, file: &str, wanted: &[Controller]) -> Vec<Controller> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    let words: Vec<&str> = text.split_ascii_whitespace().map(|word| word.trim_start_matches('+')).collect();
    wanted.iter().copied().filter(|controller| words.contains(&controller.name())).collect()
}

fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Moves everybody in the group into a leaf below it.
pub(super) fn moved_to_leaf(dir: &Path) -> bool {
    let leaf = dir.join(LEAF);
    // Another shim may have made it just now.
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

/// systemd says by an attribute which groups are not its own any more.
fn is_handed_over(dir: &Path) -> bool {
    let is_marked = |name: &str| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(dir, name, &mut value).is_ok_and(|length| value[..length] == *b"1")
    };
    !Path::new(SYSTEMD).exists() || is_marked("trusted.delegate") || is_marked("user.delegate")
}

/// Every process in it runs this program, or descends from one that does.
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
                // It has ended meanwhile.
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

    /// A group as the kernel shows it.
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
    fn a_group_that_hands_down_already_is_a_parent() {
        let own = group("cpuset cpu io memory pids", "memory pids cpu", "1\n2\n");
        assert_eq!(found(own.path(), false), Some((own.path().to_owned(), ALL.to_vec())));
    }

    #[test]
    fn one_with_processes_of_others_is_none_and_is_left_as_it_is() {
        let own = group("cpu memory pids", "", "1\n2\n");
        assert_eq!(found(own.path(), false), None);
        assert!(!own.path().join(LEAF).exists());
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "");
    }

    #[test]
    fn one_that_is_ours_alone_sends_us_into_a_leaf_first() {
        let own = group("cpu memory pids", "", "71\n");
        // No kernel takes the process out of this list, so nothing may be handed down.
        assert_eq!(found(own.path(), true), None);
        assert_eq!(fs::read_to_string(own.path().join(LEAF).join("cgroup.procs")).expect("moved"), "71");
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "");
    }

    #[test]
    fn what_can_be_handed_down_is_and_no_more() {
        let own = group("memory", "", "");
        assert_eq!(found(own.path(), false), Some((own.path().to_owned(), vec![Controller::Memory])));
        assert_eq!(fs::read_to_string(own.path().join("cgroup.subtree_control")).expect("there"), "+memory");
        assert_eq!(found(group("hugetlb", "", "").path(), true), None);
        assert_eq!(found(Path::new("/nowhere/at/all"), true), None);
    }

    #[test]
    fn from_the_leaf_it_is_the_group_above() {
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
