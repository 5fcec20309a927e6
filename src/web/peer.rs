//! Who is at the other end of a connection. The token tells that a request has it, not who sends it: a process of the same
//! user, such as an agent, can read what a browser writes to its files. What the kernel says about the process counts.

use std::net::SocketAddr;
use std::sync::Arc;

use swarm_sys::procfs;
use swarm_sys::sockets::{self, Holders};

/// Both ends of a connection, as the kernel named them when it was accepted.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Loopback {
        theirs: SocketAddr,
        ours: SocketAddr,
    },
    /// The process that connected to the socket. `None` if it is in no process namespace that this process can see.
    Socket {
        pid: Option<i32>,
    },
}

/// Returns the worker above one of these processes, as `worker 'NAME'`.
pub type Above = Arc<dyn Fn(&[i32]) -> Option<String> + Send + Sync>;

/// Why a process is not taken for a person's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stranger {
    Below {
        worker: String,
        process: String,
    },
    /// The process must not be examined, and may be one below this worker.
    Perhaps {
        worker: String,
    },
    /// The process cannot be determined, for this reason.
    Unknown(String),
}

/// Answer of the kernel about an end.
#[derive(Debug)]
enum Facts {
    Held(Holders),
    Closed,
    Elsewhere,
    Unread(String),
}

/// Finds the process at the other end, and returns what it is called. Reads the descriptors of all processes, so this takes
/// some milliseconds.
///
/// # Errors
/// Returns why it is not taken for a person's.
pub fn examine(end: End, above: &Above) -> Result<String, Stranger> {
    judge(facts(end), &**above, &named)
}

fn facts(end: End) -> Facts {
    match end {
        End::Loopback { theirs, ours } => match sockets::other_end(theirs, ours) {
            Ok(Some(socket)) if socket.inode == 0 => Facts::Closed,
            Ok(Some(socket)) => {
                sockets::holders(socket).map_or_else(|error| Facts::Unread(error.to_string()), Facts::Held)
            }
            Ok(None) => Facts::Elsewhere,
            Err(error) => Facts::Unread(error.to_string()),
        },
        End::Socket { pid: Some(pid) } if procfs::stat(pid).is_some_and(|stat| stat.is_alive()) => {
            Facts::Held(Holders { known: vec![pid], hidden: Vec::new() })
        }
        End::Socket { pid: Some(_) } => Facts::Closed,
        End::Socket { pid: None } => Facts::Elsewhere,
    }
}

fn named(pid: i32) -> String {
    procfs::command(pid).map_or_else(|| format!("process {pid}"), |name| format!("{name} (process {pid})"))
}

/// Decides about a process. One that must not be examined may be any of those that must not, so none of them may be below a
/// worker.
fn judge(
    facts: Facts,
    above: &dyn Fn(&[i32]) -> Option<String>,
    named: &dyn Fn(i32) -> String,
) -> Result<String, Stranger> {
    const HIDDEN: &str = "a process that must not be examined, such as a server of ssh";
    let unknown = |cause: &str| Err(Stranger::Unknown(cause.to_owned()));
    let Holders { known, hidden } = match facts {
        Facts::Held(holders) => holders,
        Facts::Closed => return unknown("the process that connected has closed the connection, or has ended"),
        Facts::Elsewhere => return unknown("it is in another namespace or on another machine"),
        Facts::Unread(cause) => return unknown(&cause),
    };
    if let Some(first) = known.first() {
        let process = named(*first);
        return match above(&known) {
            Some(worker) => Err(Stranger::Below { worker, process }),
            None => Ok(process),
        };
    }
    if hidden.is_empty() {
        return unknown("it is in another process namespace, or hidden");
    }
    match above(&hidden) {
        Some(worker) => Err(Stranger::Perhaps { worker }),
        None => Ok(HIDDEN.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_taken_for_a_persons_if_no_worker_can_be_above_it() {
        // Processes from 50 on are below a worker.
        let above = |pids: &[i32]| pids.iter().any(|pid| *pid >= 50).then(|| "worker 'w'".to_owned());
        let named = |pid: i32| format!("p{pid}");
        let of = |facts| judge(facts, &above, &named);
        let held =
            |known: &[i32], hidden: &[i32]| of(Facts::Held(Holders { known: known.into(), hidden: hidden.into() }));
        let below =
            |process: &str| Err(Stranger::Below { worker: "worker 'w'".to_owned(), process: process.to_owned() });
        assert_eq!(held(&[3], &[]), Ok("p3".to_owned()));
        assert_eq!(held(&[3], &[70]), Ok("p3".to_owned()), "it is known who holds it");
        assert_eq!(held(&[70], &[]), below("p70"));
        assert_eq!(held(&[3, 70], &[]), below("p3"), "it has passed the socket on");
        let hidden = "a process that must not be examined, such as a server of ssh";
        assert_eq!(held(&[], &[4, 5]), Ok(hidden.to_owned()));
        let perhaps = Err(Stranger::Perhaps { worker: "worker 'w'".to_owned() });
        assert_eq!(held(&[], &[4, 70]), perhaps, "it may be that one");
        for facts in
            [Facts::Held(Holders::default()), Facts::Closed, Facts::Elsewhere, Facts::Unread("EMFILE".to_owned())]
        {
            assert!(matches!(of(facts), Err(Stranger::Unknown(_))));
        }
    }

    #[test]
    fn the_process_of_a_socket_is_the_one_that_connected() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        let nobody: Above = Arc::new(|_| None);
        let of = |pid| examine(End::Socket { pid }, &nobody);
        assert!(of(Some(own)).is_ok_and(|name| name.ends_with(&format!("(process {own})"))));
        assert!(matches!(of(None), Err(Stranger::Unknown(_))));
        assert!(matches!(of(Some(i32::MAX)), Err(Stranger::Unknown(_))), "it has ended");
        let all: Above = Arc::new(|pids| Some(format!("above {pids:?}")));
        let below = examine(End::Socket { pid: Some(own) }, &all);
        assert!(matches!(below, Err(Stranger::Below { worker, .. }) if worker == format!("above [{own}]")));
    }
}
