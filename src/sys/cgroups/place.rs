//! Place of this process in the hierarchies of control groups, from two files in `/proc/self`. Pure, except for
//! reading them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Controller of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    /// Returns the kernel's name of the controller.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// Directories of the control groups of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Directories in hierarchies of version 1, at most one for each controller.
    pub v1: Vec<(Controller, PathBuf)>,
    /// Directory in the hierarchy of version 2.
    pub v2: Option<PathBuf>,
}

impl Places {
    /// Returns the directories of this process. Empty if the system has no control groups or does not show them. Read
    /// only once.
    pub fn own() -> &'static Self {
        static OWN: OnceLock<Places> = OnceLock::new();
        OWN.get_or_init(|| {
            let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
            let places = Self::of(&read(Path::new("/proc/self/mountinfo")), &read(Path::new("/proc/self/cgroup")));
            // Next to hierarchies of version 1, this one may exist for other purposes.
            let is_of_use = |dir: &PathBuf| {
                let able = read(&dir.join("cgroup.controllers"));
                places.v1.is_empty() || Controller::ALL.into_iter().any(|one| able.contains(one.name()))
            };
            Self { v2: places.v2.clone().filter(is_of_use), ..places }
        })
    }

    /// Parses the text of `mountinfo` and `cgroup`, see proc(5) and cgroups(7).
    pub fn of(mounts: &str, own: &str) -> Self {
        let mut places = Self::default();
        for mount in mounts.lines().filter_map(Mount::parse) {
            match mount.kind {
                "cgroup2" if places.v2.is_none() => places.v2 = path_in(own, "").and_then(|path| mount.dir_of(path)),
                "cgroup" => {
                    let here = |name: &str| mount.options.split(',').any(|option| option == name);
                    for controller in Controller::ALL.into_iter().filter(|controller| here(controller.name())) {
                        let known = places.v1.iter().any(|(other, _)| *other == controller);
                        let dir = path_in(own, controller.name()).and_then(|path| mount.dir_of(path));
                        places.v1.extend(dir.filter(|_| !known).map(|dir| (controller, dir)));
                    }
                }
                _ => {}
            }
        }
        places
    }

    pub fn v1(&self, controller: Controller) -> Option<&Path> {
        self.v1.iter().find(|(other, _)| *other == controller).map(|(_, dir)| dir.as_path())
    }
}

/// Line of `mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        Some(Self { root, point, kind, options })
    }

    /// Returns the directory of a group with this path in the hierarchy. `None` if the path is not below the mounted
    /// part.
    fn dir_of(&self, path: &str) -> Option<PathBuf> {
        let root = if self.root == "/" { "" } else { self.root };
        let below = path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        // The kernel prints `..` for a group outside of what this process may see.
        if below.split('/').any(|part| part == "..") || self.point.contains('\\') {
            return None;
        }
        Some(Path::new(self.point).join(below.trim_start_matches('/')))
    }
}

/// Returns the path of this process's group in the hierarchy of a controller, or of version 2.
fn path_in<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|other| other == controller).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(places: &Places) -> Vec<(&str, &str)> {
        places.v1.iter().map(|(controller, dir)| (controller.name(), dir.to_str().expect("text"))).collect()
    }

    #[test]
    fn one_hierarchy_for_everything() {
        let mounts = "24 22 0:21 / /proc rw - proc proc rw\n\
                      31 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let places = Places::of(mounts, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/swarm.service\n");
        let dir = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/swarm.service";
        assert_eq!(places, Places { v1: Vec::new(), v2: Some(dir.into()) });
    }

    #[test]
    fn hierarchies_of_version_one_are_found_for_each_controller() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "8:pids:/\n4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/\n";
        let places = Places::of(mounts, own);
        let expected = [
            ("cpu", "/sys/fs/cgroup/cpu,cpuacct/c"),
            ("memory", "/sys/fs/cgroup/memory/a/b"),
            ("pids", "/sys/fs/cgroup/pids/"),
        ];
        assert_eq!(v1(&places), expected);
        assert_eq!(places.v2, Some("/sys/fs/cgroup/unified/".into()));
        assert_eq!(places.v1(Controller::Memory), Some(Path::new("/sys/fs/cgroup/memory/a/b")));
    }

    #[test]
    fn a_container_sees_its_own_part() {
        let mounts = "9 8 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      9 8 0:36 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n";
        let places = Places::of(mounts, "4:memory:/docker/abc/x\n8:pids:/docker/abcdef\n");
        assert_eq!(v1(&places), [("memory", "/sys/fs/cgroup/memory/x")], "the other group is outside");
        let outside = Places::of("9 8 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../x\n");
        assert_eq!(outside, Places::default());
    }

    #[test]
    fn the_first_of_two_mounts_is_used_and_malformed_lines_are_ignored() {
        let line = |at: &str| format!("9 8 0:32 / {at} rw - cgroup cgroup rw,memory\n");
        let places = Places::of(&(line("/a") + &line("/b")), "4:memory:/\n");
        assert_eq!(v1(&places), [("memory", "/a/")]);
        for (mounts, own) in [("", ""), ("x - y", "4"), ("1 2 3 / /a rw - cgroup2", "0::/"), ("\n\n", "::::")] {
            assert_eq!(Places::of(mounts, own), Places::default());
        }
    }
}
