//! Names that are the same before and after a crash: of the workers of a run, and of the requests that start them.

use crate::WorkerName;

/// Under which request the worker of an attempt is started: the same after a crash.
pub fn request_of(run: &str, job: &str, attempt: u32) -> String {
    format!("{}{attempt}", request_prefix(run, job))
}

/// What the requests of all attempts of a job begin with.
pub fn request_prefix(run: &str, job: &str) -> String {
    format!("run/{run}/{job}/")
}

/// `<slug>.<id>`, where that is a name that a worker may have; otherwise what of it
/// may stay, and a hash of the whole.
pub fn worker_name(slug: &str, id: &str) -> String {
    let plain = format!("{slug}.{id}");
    if WorkerName::parse(&plain).is_ok() {
        return plain;
    }
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let kept: String = plain.chars().map(keep).skip_while(|c| !c.is_ascii_alphanumeric()).collect();
    let kept: String = kept.chars().take(WorkerName::LENGTH_MAX - 9).collect();
    format!("{}-{:08x}", if kept.is_empty() { "w" } else { &kept }, fnv(&plain))
}

/// FNV-1a of 32 bits: the same in every build, which the standard library's is not.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workers_are_names_that_workers_may_have() {
        assert_eq!(worker_name("project", "auth-system"), "project.auth-system");
        for id in ["a/b", "ünïcode", "x".repeat(80).as_str(), "a..b", "end.lock", ""] {
            let name = worker_name("project", id);
            assert!(WorkerName::parse(&name).is_ok(), "{id} → {name}");
        }
        assert_ne!(worker_name("p", "a/b"), worker_name("p", "a:b"), "they are told apart by the hash");
    }
}
