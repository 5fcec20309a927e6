//! Port allocation: a worktree gets the same port every time, if that port is free.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use swarm_model::WorktreePlan;

use super::settings::Ports;

/// Time after which a start either has its row or has failed.
const START_MAX: Duration = Duration::from_secs(900);

/// Returns the first port in `range` for which `is_free` holds, beginning at the position derived from repository
/// and path, and which is not in `taken`.
fn choose(plan: &WorktreePlan, range: Ports, taken: &[u16], is_free: fn(u16) -> bool) -> Option<u16> {
    candidates(plan, range).find(|port| !taken.contains(port) && is_free(*port))
}

/// Ports reserved by starts in progress, whose rows are not yet in the registry.
#[derive(Debug, Default)]
pub(crate) struct Reservations(Mutex<Vec<(u16, String, Instant)>>);

impl Reservations {
    /// Chooses a port on which no process listens, and skips ports that are reserved for other paths.
    pub(crate) fn choose(&self, plan: &WorktreePlan, range: Ports, taken: &[u16]) -> Option<u16> {
        self.choose_of(plan, range, taken, is_free)
    }

    fn choose_of(&self, plan: &WorktreePlan, range: Ports, taken: &[u16], is_free: fn(u16) -> bool) -> Option<u16> {
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reserved.retain(|(_, path, at)| *path != plan.path && at.elapsed() < START_MAX);
        let taken: Vec<u16> = reserved.iter().map(|(port, ..)| *port).chain(taken.iter().copied()).collect();
        let port = choose(plan, range, &taken, is_free)?;
        reserved.push((port, plan.path.clone(), Instant::now()));
        Some(port)
    }
}

fn candidates(plan: &WorktreePlan, range: Ports) -> impl Iterator<Item = u16> {
    let text = format!("{}\0{}", plan.base_repo, plan.path);
    let digest = Sha256::digest(text.as_bytes());
    let number = digest.iter().take(4).fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let count = u32::from(range.last - range.first) + 1;
    let first = number % count;
    (0..count).filter_map(move |step| u16::try_from(u32::from(range.first) + (first + step) % count).ok())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::BaseRef;

    #[test]
    fn starts_at_the_same_time_get_different_ports() {
        let plan = |path: &str| WorktreePlan { path: path.to_owned(), ..plan() };
        // Other processes on this host may use some of these ports.
        let (reserved, range) = (Reservations::default(), Ports { first: 20_100, last: 20_103 });
        let choose = |path: &str| reserved.choose_of(&plan(path), range, &[], |_| true);
        let one = choose("/w");
        assert!(one.is_some() && one == choose("/w"), "a start that is repeated keeps it");
        let others: Vec<_> = ["/a", "/b", "/c"].map(choose).into();
        let mut all: Vec<_> = others.into_iter().chain([one]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
        assert_eq!(choose("/d"), None);
    }

    fn plan() -> WorktreePlan {
        WorktreePlan {
            path: String::new(),
            branch: "w".to_owned(),
            base_repo: "/r".to_owned(),
            base: BaseRef { branch: None, commit: String::new() },
            makes_branch: true,
            made_at: None,
            makes_tree: true,
        }
    }

    #[test]
    fn the_port_is_stable_and_the_next_one_if_it_is_taken() {
        let plan = |path: &str| WorktreePlan { path: path.to_owned(), ..plan() };
        let range = Ports { first: 20_000, last: 20_003 };
        let all: Vec<u16> = candidates(&plan("/w"), range).collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [20_000, 20_001, 20_002, 20_003]);
        assert_eq!(candidates(&plan("/w"), range).collect::<Vec<_>>(), all);
        let wide = Ports { first: 1_024, last: u16::MAX };
        assert_ne!(candidates(&plan("/w"), wide).next(), candidates(&plan("/v"), wide).next());
        assert_eq!(choose(&plan("/w"), range, &[20_000, 20_001, 20_002, 20_003], is_free), None);
        // A port on which a process listens is skipped.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(choose(&plan("/w"), Ports { first: port, last: port }, &[], is_free), None);
    }
}
