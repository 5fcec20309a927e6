//! Control groups: one for the tree of each worker whose limits the kernel is to
//! hold, beside this process's own group. The shim makes them, the worker's process
//! enters before it executes anything, and whoever ends the tree removes them.
//!
//! A group is called `swarm-NAME.GENERATION-TOKEN`. Nothing else is ever ended or removed.

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

/// How long a tree has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How long it is ended again and again, for what forks meanwhile.
const INSISTENCE: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(200);
/// The kernel may take a moment to let go of a group whose last process has ended.
const REMOVAL_MAX: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);
/// So many processes are signalled at a time: descriptors are limited.
const BATCH: usize = 256;

/// The group in which a child is from its first moment on.
pub struct Born(Option<usize>);

/// The groups of one worker; none for one without limits.
#[derive(Debug, Default)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Where the groups of these limits would be on this system. Nothing is made yet.
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
            // Without a call that ends all of a group at once it helps that nothing in it forks.
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

    /// Makes them; those that cannot be made are left out.
    pub fn make(mut self, limits: &Limits) -> Self {
        self.0.retain_mut(|group| group.make(limits).is_ok());
        self
    }

    /// Those of a worker, from its lease. Only what is called as ours are.
    pub fn of(lease: &Lease) -> Self {
        let listed = lease.limits.iter().flat_map(|held| &held.groups).map(Path::new);
        Self(listed.filter(|dir| is_ours(dir, &lease.token)).map(Group::known).collect())
    }

    /// Forks a process of one thread. Where one of them is of version 2 the child is born in it:
    /// to move there later it would have to wait for all threads of the machine.
    ///
    /// # Errors
    /// What the system says; there is no child then.
    pub fn fork(&self) -> io::Result<(ForkResult, Born)> {
        let new = self.0.iter().position(|group| group.version == Version::V2);
        let born = new.and_then(|at| Some((birth::fork_in(&self.0[at].dir).ok()?, Born(Some(at)))));
        match born {
            Some(born) => Ok(born),
            None => Ok((birth::fork()?, Born(None))),
        }
    }

    /// Takes the calling process into each of them; says which took it, a bit for each.
    pub fn enter(&self, born: &Born) -> u8 {
        let is_in = |at: usize, group: &Group| born.0 == Some(at) || group.enter().is_ok();
        let bit = |(at, group): (usize, &Group)| if is_in(at, group) { 1_u8 << at } else { 0 };
        self.0.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// What [`enter`](Self::enter) says when all took it.
    pub fn all(&self) -> u8 {
        (0..self.0.len()).fold(0, |all, at| all | 1 << at)
    }

    /// Whether one of them, although it was made, may not take a process of this user.
    pub fn may_refuse(&self, born: &Born) -> bool {
        self.0.len() > usize::from(born.0.is_some()) && !rustix::process::geteuid().is_root()
    }

    /// Removes those that did not take it.
    #[must_use]
    pub fn entered(self, bits: u8) -> Self {
        let (kept, refused): (Vec<_>, Vec<_>) =
            self.0.into_iter().enumerate().partition(|(at, _)| bits & (1 << at) != 0);
        Self(refused.into_iter().map(|(_, group)| group).collect()).remove();
        Self(kept.into_iter().map(|(_, group)| group).collect())
    }

    /// What holds each limit, where these groups do what they can and each process has limits
    /// of its own for the rest.
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

    /// Whether one of those that took it holds its memory.
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

    /// All that is in any of them.
    pub fn members(&self) -> BTreeSet<i32> {
        self.0.iter().flat_map(Group::members).collect()
    }

    /// What of the limits was run into so far.
    pub fn hits(&self) -> Hits {
        Hits {
            oom_kills: self.0.iter().map(Group::oom_kills).sum(),
            pids_refused: self.0.iter().map(Group::pids_refused).sum(),
        }
    }

    pub fn forbid_forks(&self) {
        self.0.iter().for_each(Group::forbid_forks);
    }

    /// Ends everything in them once, without asking.
    pub fn kill(&self) {
        for group in self.0.iter().filter(|group| !group.kill_at_once()) {
            signal_members(group, Signal::KILL);
        }
    }

    /// Ends everything in them: TERM, five seconds, KILL. Returns what outlived that.
    pub fn end(&self) -> Vec<i32> {
        if self.members().is_empty() {
            return Vec::new();
        }
        let fds: Vec<OwnedFd> = self.0.iter().flat_map(|group| signal_members(group, Signal::TERM)).collect();
        let began = Instant::now();
        while began.elapsed() < GRACE && !self.members().is_empty() {
            // Those that were there first; what they make meanwhile is looked at each round.
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

    /// Removes them. What is still in use stays, and goes with the worker's directory.
    pub fn remove(&self) {
        let deadline = Instant::now() + REMOVAL_MAX;
        for group in &self.0 {
            while group.remove().is_err() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Finds out where groups can be made, for a process whose forks will need to know, and makes
/// room for them while there is nobody but us in a group that was handed over.
pub fn learn() {
    if let Some(own) = &Places::own().v2 {
        let _ = delegated::parent(own, &Controller::ALL);
    }
}

/// Removes groups of the worker whose directory is called `leaf`, by their paths. A group with
/// living processes stays, and so does what is not called as ours are.
pub fn remove_listed(paths: &str, leaf: &str) {
    let prefix = format!("swarm-{leaf}-");
    let is_its =
        |dir: &&Path| dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    Groups(paths.lines().map(Path::new).filter(is_its).map(Group::known).collect()).remove();
}

/// What a worker's groups are called.
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

/// Signals what is in a group. A descriptor is opened first, and whoever is no longer a member
/// then is left alone: its number may be another's by now.
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

/// Writes down which groups are about to be made, so that whoever clears up after a process
/// that was killed in between finds them.
///
/// # Errors
/// What the system says.
pub fn list(groups: &Groups, file: &Path) -> io::Result<()> {
    let lines: Vec<PathBuf> = groups.dirs().map(Path::to_owned).collect();
    let text: String = lines.iter().filter_map(|dir| dir.to_str()).map(|dir| format!("{dir}\n")).collect();
    crate::files::write_private(file, text.as_bytes())
}

#[cfg(test)]
mod tests;
