//! Attempts on other hosts that a run has given up.

use serde::{Deserialize, Serialize};

/// Attempt that was sent to a host, and is over for its run although nobody knows what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandoned {
    /// Id of its job, which the present plan need not have.
    pub job: String,
    pub attempt: u32,
    pub host: String,
    /// Whether the host was told: the attempt is ended there, and its work is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_back: bool,
    /// Reference to its work. `None` if it has left none, or is not back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_at: Option<String>,
    /// Whether another machine or state directory is under the name of the host now, which never had the attempt. The one that
    /// has it may return.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
    /// Why its work is not here yet, although the host answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

impl Abandoned {
    pub fn new(job: &str, attempt: u32, host: &str) -> Self {
        let (job, host, found_at, waits) = (job.to_owned(), host.to_owned(), None, None);
        Self { job, attempt, host, is_back: false, found_at, is_gone: false, waits }
    }

    /// Reference here to its work, once that is fetched. Another one with a number is used if this one is taken.
    pub fn reference(&self) -> String {
        let mut host: String = self.host.chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
        // git allows no '..' in the name of a reference, and no '.lock' at its end.
        while host.contains("..") {
            host = host.replace("..", ".");
        }
        let host = host.trim_matches('.');
        let host = host.strip_suffix(".lock").unwrap_or(host);
        format!("{RETURNED}{}/{}.{}", if host.is_empty() { "host" } else { host }, self.job, self.attempt)
    }
}

/// What the names of the references to the work of such attempts begin with.
pub const RETURNED: &str = "refs/swarm/from/";

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host_becomes_a_part_of_the_name_of_a_reference() {
        for (host, part) in [
            ("box", "box"),
            ("me@box.example", "me-box.example"),
            ("../a b", "-a-b"),
            (".x.lock", "x"),
            ("a...b", "a.b"),
            ("..", "host"),
            ("k{x", "k-x"),
        ] {
            let abandoned = Abandoned::new("auth", 2, host);
            assert_eq!(abandoned.reference(), format!("refs/swarm/from/{part}/auth.2"), "{host}");
        }
    }
}
