//! One control group of one worker: access to its files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use swarm_model::{By, Limits};

use super::place::Controller;
use crate::files::list;

/// Period of the processor quota in microseconds, the default of a new group.
const PERIOD_US: u64 = 100_000;

/// Version of the control group hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl Version {
    pub fn by(self) -> By {
        match self {
            Self::V1 => By::GroupV1,
            Self::V2 => By::GroupV2,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub dir: PathBuf,
    pub version: Version,
    /// Controllers of the group.
    pub controllers: Vec<Controller>,
    /// Controllers whose limit was written.
    pub holds: Vec<Controller>,
}

impl Group {
    pub fn new(dir: PathBuf, version: Version, controllers: Vec<Controller>) -> Self {
        Self { dir, version, controllers, holds: Vec::new() }
    }

    /// Returns an existing group.
    pub fn known(dir: &Path) -> Self {
        let version = if dir.join("cgroup.controllers").exists() { Version::V2 } else { Version::V1 };
        let there = |controller: &Controller| dir.join(events_of(*controller, version)).exists();
        Self::new(dir.to_owned(), version, Controller::ALL.into_iter().filter(there).collect())
    }

    /// Creates the group, and writes its limits. `holds` lists those that were written.
    ///
    /// # Errors
    /// Fails if the group cannot be created.
    pub fn make(&mut self, limits: &Limits) -> io::Result<()> {
        fs::create_dir(&self.dir)?;
        let written = |controller: &Controller| self.write(*controller, limits).is_ok_and(|asked| asked);
        self.holds = self.controllers.iter().copied().filter(written).collect();
        Ok(())
    }

    /// Writes the limit of a controller. Returns `false` if no such limit is requested.
    fn write(&self, controller: Controller, limits: &Limits) -> io::Result<bool> {
        let lines = match controller {
            Controller::Memory => limits.memory_bytes.map(|bytes| memory(self.version, bytes)),
            Controller::Cpu => limits.cpu_milli.map(|milli| cpu(self.version, milli)),
            Controller::Pids => limits.pids.map(|pids| vec![(Need::Must, "pids.max", pids.to_string())]),
        };
        let Some(lines) = lines else { return Ok(false) };
        for (need, file, text) in lines {
            match (fs::write(self.dir.join(file), text), need) {
                (Err(error), Need::Must) => return Err(error),
                (Err(_), Need::May) | (Ok(()), _) => {}
            }
        }
        Ok(true)
    }

    /// Moves the calling process, which must have one thread, into the group.
    ///
    /// # Errors
    /// Fails if the system refuses. The process then remains where it was.
    pub fn enter(&self) -> io::Result<()> {
        // Moving a process waits for all threads of the machine, but a thread that moves itself does not. In version
        // 2, only a whole process can enter from outside.
        let file = match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.procs",
        };
        fs::write(self.dir.join(file), "0")
    }

    /// Returns the processes in the group and in all groups below it.
    pub fn members(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for dir in tree(&self.dir) {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            // Zero means a process that this process cannot see.
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1));
        }
        found
    }

    /// Forbids forks in the group from now on, if the group has that controller.
    pub fn forbid_forks(&self) {
        if self.controllers.contains(&Controller::Pids) {
            let _ = fs::write(self.dir.join("pids.max"), "0");
        }
    }

    /// Kills all processes of the group at once. Returns `false` if the kernel cannot do that.
    pub fn kill_at_once(&self) -> bool {
        let file = self.dir.join("cgroup.kill");
        self.version == Version::V2 && file.exists() && fs::write(file, "1").is_ok()
    }

    /// Returns how many processes of the group the kernel killed for lack of memory.
    pub fn oom_kills(&self) -> u64 {
        self.count(Controller::Memory, "oom_kill")
    }

    /// Returns how many forks the kernel refused in the group.
    pub fn pids_refused(&self) -> u64 {
        self.count(Controller::Pids, "max")
    }

    fn count(&self, controller: Controller, key: &str) -> u64 {
        if !self.controllers.contains(&controller) {
            return 0;
        }
        let text = fs::read_to_string(self.dir.join(events_of(controller, self.version))).unwrap_or_default();
        value(&text, key).unwrap_or(0)
    }

    /// Removes the group, with the groups that its processes created in it.
    ///
    /// # Errors
    /// Fails if a process is still in one of them, or the system refuses.
    pub fn remove(&self) -> io::Result<()> {
        for dir in tree(&self.dir).into_iter().rev() {
            match fs::remove_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the group and all groups below it, parents first.
fn tree(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while next < found.len() {
        let entries = list(&found[next]).into_iter().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        found.extend(below);
        next += 1;
    }
    found
}

/// Whether a limit works without this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

type Line = (Need, &'static str, String);

/// Returns the lines for a limit of memory and swap together. If swap is not counted, the limit applies to memory
/// only.
fn memory(version: Version, bytes: u64) -> Vec<Line> {
    match version {
        Version::V1 => vec![
            (Need::Must, "memory.limit_in_bytes", bytes.to_string()),
            (Need::May, "memory.memsw.limit_in_bytes", bytes.to_string()),
        ],
        Version::V2 => {
            vec![(Need::Must, "memory.max", bytes.to_string()), (Need::May, "memory.swap.max", "0".to_owned())]
        }
    }
}

fn cpu(version: Version, milli: u32) -> Vec<Line> {
    let quota_us = u64::from(milli) * PERIOD_US / 1000;
    match version {
        Version::V1 => vec![(Need::Must, "cpu.cfs_quota_us", quota_us.to_string())],
        Version::V2 => vec![(Need::Must, "cpu.max", format!("{quota_us} {PERIOD_US}"))],
    }
}

/// Returns the name of the file that counts the events of a controller.
fn events_of(controller: Controller, version: Version) -> &'static str {
    match (controller, version) {
        (Controller::Memory, Version::V1) => "memory.oom_control",
        (Controller::Memory, Version::V2) => "memory.events",
        (Controller::Cpu, _) => "cpu.stat",
        (Controller::Pids, _) => "pids.events",
    }
}

/// Returns the number of a key in a file with one key and number per line.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { memory_bytes: Some(64 << 20), cpu_milli: Some(1500), pids: Some(50), max_output_bytes: Some(1) }
    }

    /// Returns a group of version 2, and the files that are written for it.
    fn written(limits: &Limits, controllers: &[Controller]) -> (Group, Vec<(String, String)>) {
        let root = tempfile::tempdir().expect("a directory");
        let mut group = Group::new(root.path().join("swarm-x"), Version::V2, controllers.to_vec());
        group.make(limits).expect("made");
        let read = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path()).expect("text");
            (entry.file_name().into_string().expect("text"), text)
        };
        let mut files: Vec<_> = fs::read_dir(&group.dir).expect("there").flatten().map(read).collect();
        files.sort();
        (group, files)
    }

    #[test]
    fn limits_of_version_two_have_the_format_of_the_kernel() {
        let (group, files) = written(&limits(), &Controller::ALL);
        let expected =
            [("cpu.max", "150000 100000"), ("memory.max", "67108864"), ("memory.swap.max", "0"), ("pids.max", "50")];
        assert_eq!(files, expected.map(|(file, text)| (file.to_owned(), text.to_owned())));
        assert_eq!(group.holds, Controller::ALL);
    }

    #[test]
    fn a_group_holds_only_available_and_requested_limits() {
        let (group, files) = written(&limits(), &[Controller::Pids]);
        assert_eq!((files.len(), group.holds), (1, vec![Controller::Pids]));
        let (group, files) = written(&Limits { cpu_milli: Some(10), ..Limits::default() }, &Controller::ALL);
        assert_eq!((files[0].1.as_str(), group.holds), ("1000 100000", vec![Controller::Cpu]));
        let mut taken = Group::new("/nowhere/at/all".into(), Version::V2, Controller::ALL.to_vec());
        assert!(taken.make(&limits()).is_err() && taken.holds.is_empty());
    }

    #[test]
    fn limits_of_version_one_count_swap_as_well() {
        let files =
            |lines: Vec<Line>| lines.into_iter().map(|(_, file, text)| format!("{file}={text}")).collect::<Vec<_>>();
        assert_eq!(files(memory(Version::V1, 7)), ["memory.limit_in_bytes=7", "memory.memsw.limit_in_bytes=7"]);
        assert_eq!(files(cpu(Version::V1, 500)), ["cpu.cfs_quota_us=50000"]);
    }

    #[test]
    fn events_are_read_from_files_of_both_versions() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n";
        assert_eq!((value(v1, "oom_kill"), value(v2, "oom_kill")), (Some(3), Some(2)));
        assert_eq!((value("max 9\n", "max"), value("", "max"), value("max\n", "max")), (Some(9), None, None));
        assert_eq!(value("maximum 9\n", "max"), None);
    }

    #[test]
    fn members_are_read_from_the_group_and_all_groups_below() {
        let root = tempfile::tempdir().expect("a directory");
        let below = root.path().join("below");
        fs::create_dir(&below).expect("made");
        fs::write(root.path().join("cgroup.procs"), "77\n0\n88\n").expect("written");
        fs::write(below.join("cgroup.procs"), "99\n77\n").expect("written");
        let group = Group::known(root.path());
        assert_eq!(group.members(), [77, 88, 99].into());
        assert_eq!((group.version, group.controllers), (Version::V1, Vec::new()));
    }
}
