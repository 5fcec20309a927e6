//! Attributes of this process that its children inherit: CPUs, niceness, scheduling policy, preference when memory runs
//! out, and namespaces.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use nix::libc;
use swarm_model::{Attributes, Namespaces};

/// Number of CPUs in a mask for the kernel.
const CPUS_MAX: usize = 8192;
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Returns the attributes of this process. Those that cannot be read are unknown.
pub fn own() -> Attributes {
    Attributes { cpus: cpus(), oom_score_adj: oom_score_adj() }
}

fn cpus() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string(OOM_SCORE_ADJ).ok()?.trim().parse().ok()
}

/// Gives this process the attributes that are known. Returns a message for each that cannot be set.
pub fn assume(wanted: &Attributes) -> Vec<String> {
    let mut failed = Vec::new();
    if let Some(list) = wanted.cpus.as_ref().filter(|list| cpus().as_ref() != Some(list))
        && let Err(error) = parse(list).map_or_else(|| Err(io::ErrorKind::InvalidInput.into()), |all| run_on(&all))
    {
        failed.push(format!("the worker does not run on the caller's CPUs ({list}): {error}"));
    }
    if let Some(score) = wanted.oom_score_adj.filter(|score| oom_score_adj() != Some(*score))
        && let Err(error) = std::fs::write(OOM_SCORE_ADJ, score.to_string())
    {
        failed.push(format!("the worker does not have the caller's oom_score_adj ({score}): {error}"));
    }
    failed
}

/// Undoes what makes this process less important than others, as far as that is allowed: a process that serves all
/// callers must not keep the attributes of the first one.
pub fn reset() {
    let policy = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure is complete and lives through the call.
    #[expect(unsafe_code, reason = "the call has no safe wrapper")]
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const policy) };
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice > 0) {
        let _ = rustix::process::setpriority_process(None, 0);
    }
    let all: Vec<usize> = (0..CPUS_MAX).collect();
    let _ = run_on(&all);
    if oom_score_adj().is_some_and(|score| score > 0) {
        let _ = std::fs::write(OOM_SCORE_ADJ, "0");
    }
}

/// Restricts this process to these CPUs. The kernel ignores those that do not exist.
fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut mask = [0_u8; CPUS_MAX / 8];
    for cpu in cpus.iter().filter(|cpu| **cpu < CPUS_MAX) {
        mask[cpu / 8] |= 1 << (cpu % 8);
    }
    // SAFETY: the kernel reads as many bytes as it is told, and the array has them. Bits are numbered as in memory of
    // little-endian machines, the only ones that are supported.
    #[expect(unsafe_code, reason = "the call has no safe wrapper for more than 1024 CPUs")]
    let set = unsafe { libc::sched_setaffinity(0, mask.len(), mask.as_ptr().cast()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Parses a list like `0-3,8`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last.min(CPUS_MAX));
    }
    Some(all)
}

/// Returns the namespaces of this process. `None` if they cannot be read.
pub fn namespaces() -> Option<Namespaces> {
    let inode = |kind: &str| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|meta| meta.ino()).ok();
    Some(Namespaces { mount: inode("mnt")?, process: inode("pid")?, network: inode("net")?, user: inode("user")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(parse("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse("7"), Some(vec![7]));
        assert_eq!((parse(""), parse("a-b")), (None, None));
    }

    #[test]
    fn attributes_that_are_ours_already_need_nothing() {
        let own = own();
        assert!(own.cpus.is_some() && own.oom_score_adj.is_some());
        assert_eq!(assume(&own), Vec::<String>::new());
        assert_eq!(assume(&Attributes::default()), Vec::<String>::new());
        let no_cpu = Attributes { cpus: Some("8000".to_owned()), ..own };
        assert_eq!(assume(&no_cpu).len(), 1, "there are so many CPUs?");
    }

    #[test]
    fn namespaces_are_compared_by_kind() {
        let own = namespaces().expect("readable");
        assert_eq!(own.difference(&own), None);
        let other = Namespaces { network: own.network + 1, user: 0, ..own.clone() };
        assert_eq!(own.difference(&other), Some("network"));
    }
}
