//! Attributes of this process that its children inherit: CPUs, niceness, scheduling policy, I/O priority, preference when
//! memory runs out, and namespaces.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use nix::libc;
use swarm_model::{Attributes, Namespaces, Policy};

/// Number of CPUs in a mask for the kernel.
const CPUS_MAX: usize = 8192;
/// Selects one process, by its id; from `<linux/ioprio.h>`, as the next constant.
const IOPRIO_WHO_PROCESS: i32 = 1;
/// Position of the class in an I/O priority.
const IOPRIO_CLASS_SHIFT: i32 = 13;
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Returns the attributes of this process. Those that cannot be read are unknown.
pub fn own() -> Attributes {
    Attributes { cpus: cpus(), oom_score_adj: oom_score_adj(), policy: policy(), io_priority: io_priority() }
}

/// Returns the scheduling policy, without the flag that children get the default. A deadline policy counts as unknown:
/// its parameters are those of one task and cannot be inherited.
fn policy() -> Option<Policy> {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the calls read this process only, and the structure is complete and lives through the call.
    #[expect(unsafe_code, reason = "the calls have no safe wrapper")]
    let (number, known) = unsafe { (libc::sched_getscheduler(0), libc::sched_getparam(0, &raw mut param)) };
    let number = number & !libc::SCHED_RESET_ON_FORK;
    (number >= 0 && known == 0 && number != libc::SCHED_DEADLINE)
        .then_some(Policy { number, priority: param.sched_priority })
}

fn set_policy(policy: Policy) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: policy.priority };
    // SAFETY: the structure is complete and lives through the call.
    #[expect(unsafe_code, reason = "the call has no safe wrapper")]
    let set = unsafe { libc::sched_setscheduler(0, policy.number, &raw const param) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the I/O priority of this process; 0 if it follows from the niceness.
fn io_priority() -> Option<i32> {
    // SAFETY: the call takes two numbers and changes nothing.
    #[expect(unsafe_code, reason = "the call has no wrapper")]
    let found = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    let found = i32::try_from(found).ok().filter(|found| *found >= 0)?;
    // Without a class of its own, newer kernels report the level that follows from the niceness.
    Some(if found >> IOPRIO_CLASS_SHIFT == 0 { 0 } else { found })
}

fn set_io_priority(priority: i32) -> io::Result<()> {
    // SAFETY: the call takes three numbers and changes this process only.
    #[expect(unsafe_code, reason = "the call has no wrapper")]
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, priority) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a policy as chrt(1) names it.
fn policy_word(policy: Policy) -> String {
    match policy.number {
        libc::SCHED_OTHER => "other".to_owned(),
        libc::SCHED_BATCH => "batch".to_owned(),
        libc::SCHED_IDLE => "idle".to_owned(),
        libc::SCHED_FIFO => format!("fifo {}", policy.priority),
        libc::SCHED_RR => format!("rr {}", policy.priority),
        number => format!("number {number}"),
    }
}

/// Returns an I/O priority as ionice(1) names it.
fn io_word(priority: i32) -> String {
    let level = priority & ((1 << IOPRIO_CLASS_SHIFT) - 1);
    match priority >> IOPRIO_CLASS_SHIFT {
        0 => "none".to_owned(),
        1 => format!("realtime {level}"),
        2 => format!("best-effort {level}"),
        _ => "idle".to_owned(),
    }
}

/// CPUs of this process, or of the one that it was forked from.
static LEARNED: OnceLock<Learned> = OnceLock::new();

/// CPUs that a process may use.
struct Learned {
    /// Those that were in use, as a mask.
    usable: Box<[u8]>,
    /// All of them, in the words of the kernel.
    list: String,
}

impl Learned {
    /// Returns the list, unless the mask has changed since.
    fn list(&self, usable: Option<&[u8]>) -> Option<String> {
        (usable == Some(&*self.usable)).then(|| self.list.clone())
    }
}

/// Reads what processes that are forked from this one can then compare without a file, of which the kernel renders all
/// lines for each reader.
pub fn learn() {
    if let (Some(usable), Some(list)) = (usable_cpus(), read_cpus()) {
        let _ = LEARNED.set(Learned { usable, list });
    }
}

fn cpus() -> Option<String> {
    LEARNED.get().and_then(|learned| learned.list(usable_cpus().as_deref())).or_else(read_cpus)
}

fn read_cpus() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

/// Returns the number of CPUs that this process may use now, at least 1.
pub fn usable_cpu_count() -> usize {
    let count = |mask: Box<[u8]>| mask.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    usable_cpus().map_or(1, count).max(1)
}

/// Returns the CPUs that are in use now and that this process may use, as a mask. `None` if they cannot be read.
fn usable_cpus() -> Option<Box<[u8]>> {
    let mut mask = [0_u8; CPUS_MAX / 8];
    // SAFETY: the kernel writes at most `mask.len()` bytes to the array.
    #[expect(unsafe_code, reason = "the call has no safe wrapper for more than 1024 CPUs")]
    let count = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, mask.len(), mask.as_mut_ptr()) };
    usize::try_from(count).ok().and_then(|count| mask.get(..count)).map(Box::from)
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
    if let Some(wanted) = wanted.policy.filter(|wanted| policy() != Some(*wanted))
        && let Err(error) = set_policy(wanted)
    {
        let word = policy_word(wanted);
        failed.push(format!("the worker does not have the caller's scheduling policy ({word}): {error}"));
    }
    if let Some(wanted) = wanted.io_priority.filter(|wanted| io_priority() != Some(*wanted))
        && let Err(error) = set_io_priority(wanted)
    {
        let word = io_word(wanted);
        failed.push(format!("the worker does not have the caller's I/O priority ({word}): {error}"));
    }
    failed
}

/// Undoes what makes this process less important than others, as far as that is allowed: a process that serves all
/// callers must not keep the attributes of the first one.
pub fn reset() {
    let _ = set_policy(Policy { number: libc::SCHED_OTHER, priority: 0 });
    let _ = set_io_priority(0);
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
    own_namespaces().ok()
}

/// Returns the namespaces of this process, which it never leaves.
fn own_namespaces() -> io::Result<Namespaces> {
    static OWN: OnceLock<Namespaces> = OnceLock::new();
    match OWN.get() {
        Some(own) => Ok(own.clone()),
        None => namespaces_at("/proc/self").map(|own| OWN.get_or_init(|| own).clone()),
    }
}

fn namespaces_at(process: &str) -> io::Result<Namespaces> {
    let inode = |kind: &str| std::fs::metadata(format!("{process}/ns/{kind}")).map(|meta| meta.ino());
    Ok(Namespaces { mount: inode("mnt")?, process: inode("pid")?, network: inode("net")?, user: inode("user")? })
}

/// Process namespace of the machine itself, which exists as long as the boot; from `PROC_PID_INIT_INO` of the kernel.
pub const FIRST_PROCESS_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Returns the process namespace of this process, by its inode. `None` if it cannot be read.
pub fn process_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|meta| meta.ino())
}

/// Kind that [`namespace_apart`] returns for a process with another root directory.
const ROOT: &str = "root directory";

/// Returns where a process is, in words, of which [`namespace_apart`] has returned `kind`.
pub fn place_apart(kind: &str) -> String {
    if kind == ROOT { format!("another {kind}") } else { format!("another {kind} namespace") }
}

/// Returns the kind of the first namespace in which a process is and this process is not. A process in the same namespaces
/// with another root directory (`chroot`) is apart as well. `None` if all are the same. `pid` is 0 for a peer that has none
/// here.
///
/// # Errors
/// Fails if they cannot be read: the process is gone, or the kernel hides them, because it has another user or is in a
/// user namespace above.
pub fn namespace_apart(pid: i32) -> io::Result<Option<&'static str>> {
    if pid <= 0 {
        return Ok(Some("process"));
    }
    let theirs = namespaces_at(&format!("/proc/{pid}"))?;
    if let Some(kind) = own_namespaces()?.difference(&theirs) {
        return Ok(Some(kind));
    }
    Ok((root_of(&format!("/proc/{pid}"))? != root_of("/proc/self")?).then_some(ROOT))
}

/// Returns what identifies the root directory of a process: its device, its inode, and its mount.
fn root_of(process: &str) -> io::Result<(u32, u32, u64, u64)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    // Older kernels have no number of the mount: 0.
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(CWD, format!("{process}/root"), AtFlags::empty(), wanted)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id))
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
    fn learned_cpus_hold_only_for_the_mask_that_they_were_read_with() {
        let (usable, list) = (usable_cpus().expect("readable"), "learned".to_owned());
        let learned = Learned { usable: usable.clone(), list };
        assert_eq!(learned.list(usable_cpus().as_deref()).as_deref(), Some("learned"));
        let mut other = usable;
        other[0] ^= 1;
        assert_eq!((learned.list(Some(&other)), learned.list(None)), (None, None));
        learn();
        assert_eq!(cpus(), read_cpus());
    }

    #[test]
    fn attributes_that_are_ours_already_need_nothing() {
        let own = own();
        assert!(own.cpus.is_some() && own.oom_score_adj.is_some());
        assert_eq!(assume(&own), Vec::<String>::new());
        assert_eq!(assume(&Attributes::default()), Vec::<String>::new());
        let no_cpu = Attributes { cpus: Some("8000".to_owned()), ..own };
        assert_eq!(assume(&no_cpu).len(), 1, "there are so many CPUs?");
        let invalid = Attributes {
            policy: Some(Policy { number: libc::SCHED_BATCH, priority: 7 }),
            io_priority: Some(5 << IOPRIO_CLASS_SHIFT),
            ..Attributes::default()
        };
        let failed = assume(&invalid).join("\n");
        assert!(failed.contains("scheduling policy (batch)") && failed.contains("I/O priority (idle)"), "{failed}");
    }

    #[test]
    fn namespaces_are_compared_by_kind() {
        let own = namespaces().expect("readable");
        assert_eq!(own.difference(&own), None);
        let other = Namespaces { network: own.network + 1, user: 0, ..own.clone() };
        assert_eq!(own.difference(&other), Some("network"));
        let me = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(namespace_apart(me).expect("readable"), None);
        assert_eq!(namespace_apart(0).expect("known"), Some("process"));
        assert_eq!(place_apart("mount"), "another mount namespace");
        assert_eq!(place_apart(ROOT), "another root directory");
        // Larger than any pid.
        assert!(namespace_apart(i32::MAX).is_err(), "there is no such process");
    }
}
