//! Why the terminal of a worker hung up: its window was closed, or its tmux server was lost with all of its windows. The
//! shim decides, because the difference shows only at this moment: a server also ends with its last window.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_model::Lease;
use swarm_store::leases;
use swarm_sys::procfs::{self, Stat};

use super::pane;

/// Time in which a server that ends closes all of its windows.
const SETTLE: Duration = Duration::from_millis(100);
/// Maximum time for which a server without windows waits for its clients.
const SERVER_MAX: Duration = Duration::from_secs(1);

/// What the kernel shows of a tmux server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// A signal or failure has ended it, or is ending it.
    Failed,
    /// It is ending or has ended, as far as is known by itself, with `others` windows beside that of this shim.
    Ends { others: usize },
    /// It runs, and has `others` windows beside that of this shim, of which `open` have a terminal.
    Lives { others: usize, open: usize },
}

/// The server of a window that has just lost its terminal.
pub struct Closing {
    server: i32,
    first: Sight,
    since: Instant,
}

impl Closing {
    /// Looks at the server. `None` if it cannot be examined.
    pub fn look() -> Option<Self> {
        let server = pane()?.server_pid;
        Some(Self { server, first: sight(server)?, since: Instant::now() })
    }

    /// Reports whether this was the last window of its server.
    pub fn is_last(&self) -> bool {
        matches!(self.first, Sight::Lives { others: 0, .. } | Sight::Ends { others: 0 })
    }

    /// Waits until it is known whether the server was lost. `None` if it cannot be examined.
    pub fn is_server_lost(&self) -> Option<bool> {
        loop {
            match judge(self.first, sight(self.server)?, self.since.elapsed()) {
                Verdict::Lost(is_lost) => return Some(is_lost),
                Verdict::Wait(limit) => self.wait_end(limit)?,
            }
        }
    }

    /// Waits for the end of the server, at most `limit`. `None` if it cannot be watched.
    fn wait_end(&self, limit: Duration) -> Option<()> {
        match pidfd_open(Pid::from_raw(self.server)?, PidfdFlags::empty()) {
            Ok(server) => {
                // Whole milliseconds, and at least one: the next look must come after the limit.
                let limit = PollTimeout::try_from(limit + Duration::from_millis(1)).ok()?;
                poll(&mut [PollFd::new(server.as_fd(), PollFlags::POLLIN)], limit).ok().map(drop)
            }
            Err(Errno::SRCH) => Some(()),
            Err(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Whether the server was lost.
    Lost(bool),
    /// Not known yet: look again when it has ended, or after this time.
    Wait(Duration),
}

/// Decides whether a server was lost, by how it looked when the terminal hung up and how it looks `waited` later.
fn judge(first: Sight, now: Sight, waited: Duration) -> Verdict {
    match (first, now) {
        // A server that is killed closes its terminals while it ends, and one that ends by itself some time before.
        (Sight::Failed, _) => Verdict::Lost(true),
        // It ends because its last window was closed.
        (Sight::Lives { others: 0, .. } | Sight::Ends { others: 0 }, _) => Verdict::Lost(false),
        (Sight::Ends { .. }, _) | (Sight::Lives { .. }, Sight::Failed | Sight::Ends { .. }) => Verdict::Lost(true),
        (Sight::Lives { .. }, Sight::Lives { open, .. }) => {
            let limit = if open > 0 { SETTLE } else { SERVER_MAX };
            if waited >= limit { Verdict::Lost(false) } else { Verdict::Wait(limit - waited) }
        }
    }
}

fn sight(server: i32) -> Option<Sight> {
    if let Some(sight) = sight_of(procfs::read_stat(server).ok()?) {
        return Some(sight);
    }
    let own = nix::unistd::getsid(None).ok()?.as_raw();
    let children = procfs::children_of(server).ok()?.into_iter().filter(|child| *child != own);
    // The first process of a window leads a session; the commands that the server runs do not.
    let led = |child: i32| procfs::stat(child).filter(|stat| stat.session == child);
    let windows: Vec<Stat> = children.filter_map(led).collect();
    let open = windows.iter().filter(|stat| stat.is_alive() && stat.terminal != 0).count();
    let (others, stat) = (windows.len(), procfs::read_stat(server).ok()?);
    // A server that has ended has no children, so the list may have come too late.
    sight_of(stat).or_else(|| {
        let is_ending = stat.is_some_and(|stat| stat.exiting);
        Some(if is_ending { Sight::Ends { others } } else { Sight::Lives { others, open } })
    })
}

/// Returns what a server is that has ended or fails; `None` if it has children that can be listed.
fn sight_of(stat: Option<Stat>) -> Option<Sight> {
    match stat {
        Some(stat) if stat.is_failing() => Some(Sight::Failed),
        Some(stat) if stat.is_alive() => None,
        Some(_) | None => Some(Sight::Ends { others: recorded() }),
    }
}

/// Returns how many other workers of this state directory had a window of the same server until a moment ago, by their
/// records.
fn recorded() -> usize {
    let lease_in = |dir: &Path| leases::read(dir).ok().flatten();
    let Some(own) = lease_in(Path::new(".")) else { return 0 };
    let place = |lease: &Lease| lease.pane.as_ref().map(|pane| (pane.socket_path.clone(), pane.server_pid));
    let had_window = |dir: &Path| {
        let has_ended = fs::metadata(dir.join("exit.json")).and_then(|record| record.modified());
        let ended_before = has_ended.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > SERVER_MAX));
        lease_in(dir).is_some_and(|lease| {
            lease.token != own.token && lease.shim.boot == own.shim.boot && place(&lease) == place(&own)
        }) && !ended_before
    };
    let dirs = swarm_sys::files::list(Path::new("..")).unwrap_or_default();
    dirs.iter().filter(|dir| had_window(&dir.path())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_lost_if_it_ends_with_more_than_the_last_window() {
        let lives = |others, open| Sight::Lives { others, open };
        let (ends, ms) = (|others| Sight::Ends { others }, Duration::from_millis);
        for (first, now, waited, verdict) in [
            // Killed.
            (Sight::Failed, Sight::Failed, ms(0), Verdict::Lost(true)),
            // The last window was closed, and the server ends, or has another one by now.
            (lives(0, 0), Sight::Failed, ms(5), Verdict::Lost(false)),
            (lives(0, 0), lives(0, 0), ms(0), Verdict::Lost(false)),
            (lives(0, 0), lives(1, 1), ms(5), Verdict::Lost(false)),
            (ends(0), ends(0), ms(0), Verdict::Lost(false)),
            (ends(0), Sight::Failed, ms(5), Verdict::Lost(false)),
            // One of several windows was closed.
            (lives(2, 2), lives(2, 2), ms(0), Verdict::Wait(SETTLE)),
            (lives(2, 2), lives(2, 2), SETTLE, Verdict::Lost(false)),
            (lives(2, 1), lives(2, 1), SETTLE, Verdict::Lost(false)),
            // All were closed.
            (lives(2, 2), lives(2, 0), SETTLE, Verdict::Wait(ms(900))),
            (lives(2, 0), lives(2, 0), ms(500), Verdict::Wait(ms(500))),
            (lives(2, 0), Sight::Failed, ms(500), Verdict::Lost(true)),
            (lives(2, 2), Sight::Failed, ms(5), Verdict::Lost(true)),
            (lives(2, 2), ends(1), ms(5), Verdict::Lost(true)),
            (ends(2), Sight::Failed, ms(0), Verdict::Lost(true)),
            // All were closed, and the server is one that stays.
            (lives(2, 0), lives(0, 0), SERVER_MAX, Verdict::Lost(false)),
        ] {
            assert_eq!(judge(first, now, waited), verdict, "{first:?}, {now:?} after {waited:?}");
        }
    }
}
