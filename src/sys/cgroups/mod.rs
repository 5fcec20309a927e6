//! Control groups for the process trees of workers whose limits the kernel enforces, next to this process's own
//! group. The shim creates them, the worker's process enters them before it executes anything, and the process that
//! ends the tree removes them.
//!
//! The name of a group is `swarm-NAME.GENERATION-TOKEN`. No other group is ever ended or removed.

mod birth;
mod delegated;
mod group;
mod place;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::ForkResult;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use swarm_model::{By, Held, Hits, Lease, Limits};

use self::group::{Group, Version};
use self::place::{Controller, Places};
use crate::processes;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Time for which SIGKILL is repeated, because processes may fork meanwhile.
const INSISTENCE: Duration = Duration::from_secs(5);
/// Pause between two checks whether processes ended after SIGTERM.
const ROUND: Duration = Duration::from_millis(200);
/// Time limit for removing a group. The kernel may still use it shortly after its last process has ended.
const REMOVAL_MAX: Duration = Duration::from_millis(500);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of processes that are signalled at a time, because descriptors are limited.
const BATCH: usize = 256;

/// Index of the group in which a child was created. `None` if it was created outside.
pub struct Born(Option<usize>);

/// Control groups of one worker. Empty for a worker without limits.
#[derive(Debug, Default)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Returns the groups for these limits on this system. Nothing is created yet.
    pub fn plan(limits: &Limits, leaf: &str) -> Self {
        if limits.needs_kernel() { Self::at(Places::own(), limits, leaf) } else { Self::default() }
    }

    fn at(places: &Places, limits: &Limits, leaf: &str) -> Self {
        let wanted = wanted(limits);
        let new = places.v2.as_deref().and_then(|own| delegated::parent(own, &wanted));
        let mut groups = Vec::new();
        let mut held = Vec::new();
        if let Some((parent, controllers)) = new {
            held.clone_from(&controllers);
            groups.push(Group::new(parent.join(leaf), Version::V2, controllers));
        }
        let mut left: Vec<Controller> = wanted.into_iter().filter(|one| !held.contains(one)).collect();
        if groups.is_empty() && !left.contains(&Controller::Pids) {
            // If the kernel cannot kill a group at once, forbidding forks helps to end it.
            left.push(Controller::Pids);
        }
        for controller in left {
            let Some(dir) = places.v1(controller).map(|place| place.join(leaf)) else { continue };
            match groups.iter_mut().find(|group: &&mut Group| group.dir == dir) {
                Some(group) => group.controllers.push(controller),
                None => groups.push(Group::new(dir, Version::V1, vec![controller])),
            }
        }
        Self(groups)
    }

    /// Creates the groups. Those that cannot be created are left out.
    pub fn make(mut self, limits: &Limits) -> Self {
        self.0.retain_mut(|group| group.make(limits).is_ok());
        self
    }

    /// Returns the groups of a worker from its lease, but only those with a name of this program.
    pub fn of(lease: &Lease) -> Self {
        let listed = lease.limits.iter().flat_map(|held| &held.groups).map(Path::new);
        Self(listed.filter(|dir| is_ours(dir, &lease.token)).map(Group::known).collect())
    }

    /// Forks this process, which must be single-threaded. If one of the groups has version 2, the child is created in
    /// it, because a later move would wait for all threads of the machine.
    ///
    /// # Errors
    /// Fails if the system refuses. There is no child then.
    pub fn fork(&self) -> io::Result<(ForkResult, Born)> {
        let new = self.0.iter().position(|group| group.version == Version::V2);
        let born = new.and_then(|at| Some((birth::fork_in(&self.0[at].dir).ok()?, Born(Some(at)))));
        match born {
            Some(born) => Ok(born),
            None => Ok((birth::fork()?, Born(None))),
        }
    }

    /// Moves the calling process into each group. Returns a bit for each group that accepted it.
    pub fn enter(&self, born: &Born) -> u8 {
        let is_in = |at: usize, group: &Group| born.0 == Some(at) || group.enter().is_ok();
        let bit = |(at, group): (usize, &Group)| if is_in(at, group) { 1_u8 << at } else { 0 };
        self.0.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// Returns the bits that [`enter`](Self::enter) returns if all groups accepted the process.
    pub fn all(&self) -> u8 {
        (0..self.0.len()).fold(0, |all, at| all | 1 << at)
    }

    /// Reports whether a group, although it was created, might not accept a process of this user.
    pub fn may_refuse(&self, born: &Born) -> bool {
        self.0.len() > usize::from(born.0.is_some()) && !rustix::process::geteuid().is_root()
    }

    /// Removes the groups that did not accept the process, and returns the others.
    #[must_use]
    pub fn entered(self, bits: u8) -> Self {
        let (kept, refused): (Vec<_>, Vec<_>) =
            self.0.into_iter().enumerate().partition(|(at, _)| bits & (1 << at) != 0);
        Self(refused.into_iter().map(|(_, group)| group).collect()).remove();
        Self(kept.into_iter().map(|(_, group)| group).collect())
    }

    /// Returns what enforces each limit: these groups as far as they can, and limits of each single process
    /// otherwise.
    pub fn held(&self, asked: Limits, logged_before_bytes: u64) -> Held {
        let by =
            |controller| self.0.iter().find(|group| group.holds.contains(&controller)).map(|group| group.version.by());
        Held {
            asked,
            memory: by(Controller::Memory).or(asked.memory_bytes.map(|_| By::Rlimit)),
            cpu: by(Controller::Cpu),
            pids: by(Controller::Pids),
            output: asked.max_output_bytes.map(|_| By::Swarm),
            groups: self.dirs().filter_map(|dir| dir.to_str().map(str::to_owned)).collect(),
            logged_before_bytes,
        }
    }

    /// Reports whether a group that accepted the process limits its memory.
    pub fn hold_memory(&self, bits: u8) -> bool {
        let mut groups = self.0.iter().enumerate();
        groups.any(|(at, group)| bits & (1 << at) != 0 && group.holds.contains(&Controller::Memory))
    }

    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|group| group.dir.as_path())
    }

    /// Returns the processes in all groups.
    pub fn members(&self) -> BTreeSet<i32> {
        self.0.iter().flat_map(Group::members).collect()
    }

    /// Returns which limits were hit so far, and how often.
    pub fn hits(&self) -> Hits {
        Hits {
            oom_kills: self.0.iter().map(Group::oom_kills).sum(),
            pids_refused: self.0.iter().map(Group::pids_refused).sum(),
        }
    }

    /// Forbids forks in all groups from now on, as far as possible.
    pub fn forbid_forks(&self) {
        self.0.iter().for_each(Group::forbid_forks);
    }

    /// Kills all processes in the groups once.
    pub fn kill(&self) {
        for group in self.0.iter().filter(|group| !group.kill_at_once()) {
            signal_members(group, Signal::KILL);
        }
    }

    /// Ends all processes in the groups: SIGTERM, after five seconds SIGKILL. Returns the processes that survived.
    pub fn end(&self) -> Vec<i32> {
        if self.members().is_empty() {
            return Vec::new();
        }
        let fds: Vec<OwnedFd> = self.0.iter().flat_map(|group| signal_members(group, Signal::TERM)).collect();
        let began = Instant::now();
        while began.elapsed() < GRACE && !self.members().is_empty() {
            // Waits for the processes that existed first. Their children are checked in each round.
            processes::wait_all_gone(&fds, ROUND);
        }
        self.forbid_forks();
        let deadline = Instant::now() + INSISTENCE;
        while !self.members().is_empty() && Instant::now() < deadline {
            self.kill();
            std::thread::sleep(PAUSE);
        }
        self.members().into_iter().collect()
    }

    /// Removes the groups. Groups that are still in use are removed later, with the worker's directory.
    pub fn remove(&self) {
        let deadline = Instant::now() + REMOVAL_MAX;
        for group in &self.0 {
            while group.remove().is_err() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Determines where groups can be created, for the forks of this process. Moves all processes into a leaf while only
/// this program uses a delegated group.
pub fn learn() {
    if let Some(own) = &Places::own().v2 {
        let _ = delegated::parent(own, &Controller::ALL);
    }
}

/// Removes groups of the worker whose directory is named `leaf`, by their paths. Groups with living processes remain,
/// and so do groups with other names.
pub fn remove_listed(paths: &str, leaf: &str) {
    let prefix = format!("swarm-{leaf}-");
    let is_its =
        |dir: &&Path| dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    Groups(paths.lines().map(Path::new).filter(is_its).map(Group::known).collect()).remove();
}

/// Returns the name of a worker's groups.
pub fn leaf(worker_dir: &str, token: &str) -> String {
    format!("swarm-{worker_dir}-{token}")
}

fn is_ours(dir: &Path, token: &str) -> bool {
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    !token.is_empty() && name.starts_with("swarm-") && name.ends_with(token)
}

fn wanted(limits: &Limits) -> Vec<Controller> {
    let asked = |controller: &Controller| match controller {
        Controller::Memory => limits.memory_bytes.is_some(),
        Controller::Cpu => limits.cpu_milli.is_some(),
        Controller::Pids => limits.pids.is_some(),
    };
    Controller::ALL.into_iter().filter(asked).collect()
}

/// Signals all processes of a group. A pidfd is opened first; a process that is no longer a member then is not
/// signalled, because its pid may have been reused.
fn signal_members(group: &Group, signal: Signal) -> Vec<OwnedFd> {
    let mut signalled = Vec::new();
    let members: Vec<i32> = group.members().into_iter().collect();
    for batch in members.chunks(BATCH) {
        let open = |pid: &i32| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?));
        let opened: Vec<(i32, OwnedFd)> = batch.iter().filter_map(open).collect();
        let still = group.members();
        for (_, fd) in opened.into_iter().filter(|(pid, _)| still.contains(pid)) {
            let _ = pidfd_send_signal(&fd, signal);
            let _ = pidfd_send_signal(&fd, Signal::CONT);
            if signalled.len() < BATCH {
                signalled.push(fd);
            }
        }
    }
    signalled
}

/// Writes the paths of the groups to `file` before they are created, so that they can be removed if this process is
/// killed.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn list(groups: &Groups, file: &Path) -> io::Result<()> {
    let lines: Vec<PathBuf> = groups.dirs().map(Path::to_owned).collect();
    let text: String = lines.iter().filter_map(|dir| dir.to_str()).map(|dir| format!("{dir}\n")).collect();
    crate::files::write_private(file, text.as_bytes())
}

#[cfg(test)]
mod tests;
