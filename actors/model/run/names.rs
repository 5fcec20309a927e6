//! Names that are stable across crashes: of a run's workers, and of the requests that start them.

use crate::WorkerName;

/// Returns the request that starts the worker of an attempt. Stable across crashes.
pub fn request_of(run: &str, job: &str, attempt: u32) -> String {
    format!("{}{attempt}", request_prefix(run, job))
}

/// Returns the common prefix of the requests of all attempts of a job.
pub fn request_prefix(run: &str, job: &str) -> String {
    format!("run/{run}/{job}/")
}

/// Returns the key of the queue item of an attempt. `again`: how many items the same attempt has had before.
pub fn key_of(run: &str, job: &str, attempt: u32, again: u32) -> String {
    let first = request_of(run, job, attempt);
    if again == 0 { first } else { format!("{first}+{again}") }
}

/// Returns the job and the attempt of the queue item with this key. `None` if it is not an item of this run.
pub fn parse_key<'a>(run: &str, key: &'a str) -> Option<(&'a str, u32)> {
    let of_run = key.strip_prefix("run/")?.strip_prefix(run)?.strip_prefix('/')?;
    let (job, attempt) = of_run.rsplit_once('/')?;
    let attempt = attempt.split_once('+').map_or(attempt, |(attempt, _)| attempt);
    Some((job, attempt.parse().ok()?))
}

/// Returns `<slug>.<id>` if that is a valid worker name. Otherwise replaces invalid characters, shortens the name if
/// necessary, and appends a hash of the original.
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

/// Returns the name of the worker on another host: that of the worker here and the id of the run, because there may be
/// workers of other controllers. A name that is too long is shortened and gets a hash of the original.
pub fn far_worker_name(worker: &str, run: &str) -> String {
    let plain = format!("{worker}-{run}");
    if WorkerName::parse(&plain).is_ok() {
        return plain;
    }
    let end = format!("-{:08x}-{run}", fnv(&plain));
    let kept: String = worker.chars().take(WorkerName::LENGTH_MAX.saturating_sub(end.len())).collect();
    format!("{}{end}", kept.trim_end_matches('.'))
}

/// Returns the 32-bit FNV-1a hash, which is the same in every build, unlike the standard library's.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_items_name_their_job_and_attempt() {
        for (again, key) in [(0, "run/r1/a/2"), (1, "run/r1/a/2+1"), (12, "run/r1/a/2+12")] {
            assert_eq!(key_of("r1", "a", 2, again), key);
            assert_eq!(parse_key("r1", key), Some(("a", 2)));
            assert_eq!(parse_key("r", key), None);
        }
        assert_eq!(parse_key("r1", "run/r1/a/x"), None);
    }

    #[test]
    fn worker_names_are_valid_for_any_id() {
        assert_eq!(worker_name("project", "auth-system"), "project.auth-system");
        for id in ["a/b", "ünïcode", "x".repeat(80).as_str(), "a..b", "end.lock", ""] {
            let name = worker_name("project", id);
            assert!(WorkerName::parse(&name).is_ok(), "{id} → {name}");
        }
        assert_ne!(worker_name("p", "a/b"), worker_name("p", "a:b"), "the hash distinguishes them");
    }

    #[test]
    fn names_on_hosts_contain_the_run_and_stay_valid() {
        assert_eq!(far_worker_name("p.a", "0a1b2c3d"), "p.a-0a1b2c3d");
        let long = |end: &str| far_worker_name(&format!("{}{end}", "x".repeat(62)), "0a1b2c3d");
        assert_ne!(long("a"), long("b"), "the hash distinguishes them");
        for length in 1..=WorkerName::LENGTH_MAX {
            for worker in ["x".repeat(length), format!("x{}", ".x".repeat(length))] {
                let worker: String = worker.chars().take(length).collect();
                let worker = worker.trim_end_matches('.');
                let name = far_worker_name(worker, "0a1b2c3d");
                assert!(WorkerName::parse(&name).is_ok() && name.ends_with("-0a1b2c3d"), "{worker} -> {name}");
            }
        }
    }
}
