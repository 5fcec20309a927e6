//! Facts about processes from `/proc`, for the shim, readers and the supervisor. Every answer may be stale when it is
//! used, so code that signals must open a pidfd first and check again.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use swarm_model::ProcessId;

use super::allocation::Allocation;
use super::boot_clock;
use super::files::list;

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub state: char,
    pub parent: i32,
    pub session: i32,
    /// Whether it is ending. Its terminals and sockets are closed after this is set, and before it is a zombie.
    pub exiting: bool,
    /// Controlling terminal, 0 if there is none. The kernel takes it away when the terminal hangs up.
    pub terminal: i32,
    /// Clock ticks since boot (field 22), the same in all time namespaces.
    pub start_ticks: u64,
    /// Memory in use, in pages (field 24).
    resident_pages: u64,
    /// Status with which it ends, as `waitpid` reports it (field 52). 0 while it runs.
    exit_code: i32,
}

impl Stat {
    /// Reports whether the process is alive. A zombie is not: it has ended, but is not reaped yet.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Returns the memory in use in bytes, as the kernel last computed it.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_pages.saturating_mul(rustix::param::page_size() as u64)
    }

    /// Reports whether the process is ending, and not with success: a signal ends it, or it fails.
    pub fn is_failing(&self) -> bool {
        self.exiting && self.exit_code != 0
    }

    /// Reports whether the process is stopped by a signal or a tracer.
    pub fn is_suspended(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Flag of a process that is ending, `PF_EXITING` in the kernel.
const EXITING: u32 = 0x4;

/// Parses one line of `/proc/PID/stat`. The command may contain spaces and parentheses, so fields are counted from
/// the last `)`.
pub fn parse_stat(text: &str) -> Option<Stat> {
    let rest = text.get(text.rfind(')')? + 1..)?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        exiting: fields.get(6)?.parse::<u32>().ok()? & EXITING != 0,
        terminal: fields.get(4)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
        resident_pages: fields.get(21)?.parse().ok()?,
        exit_code: fields.get(49).and_then(|code| code.parse().ok()).unwrap_or(0),
    })
}

/// Returns the state of a process, which may be a zombie. `None` if it does not exist or its state cannot be read, so
/// this does not prove that the process is gone: [`read_stat`] does.
pub fn stat(pid: i32) -> Option<Stat> {
    read_stat(pid).ok().flatten()
}

/// Returns the state of a process, which may be a zombie. `None` if it does not exist.
///
/// # Errors
/// Fails if the state cannot be read, for example because no descriptor is free.
pub fn read_stat(pid: i32) -> io::Result<Option<Stat>> {
    match read_once(&format!("/proc/{pid}/stat")) {
        Ok(text) => {
            let stat = parse_stat(&text);
            let stat = stat.map(|stat| Stat { start_ticks: boot_clock::start_ticks(stat.start_ticks), ..stat });
            stat.map(Some).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is malformed")))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether an error proves that a process does not exist.
fn is_gone(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error)
        .is_some_and(|code| matches!(code, rustix::io::Errno::NOENT | rustix::io::Errno::SRCH))
}

/// Returns the name of a living process, as the kernel truncates it.
pub fn command(pid: i32) -> Option<String> {
    let alive = stat(pid).is_some_and(|stat| stat.is_alive());
    alive.then(|| read_once(&format!("/proc/{pid}/comm")).ok()).flatten().map(|name| name.trim().to_owned())
}

/// Returns the directory in which a process is. `None` if it has ended, or belongs to somebody else.
pub fn dir(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Returns the id of this boot. Each allocation of a batch system counts as one. Empty if the system has none, or it cannot
/// be read. Read once, so that one process never sees two answers.
pub fn boot_id() -> String {
    known_boot_id().unwrap_or_default()
}

/// Returns the id of this boot like [`boot_id`], for a process that must not judge others without it.
///
/// # Errors
/// Fails if the system has a boot id and it cannot be read.
pub fn known_boot_id() -> io::Result<String> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(boot.clone());
    }
    let boot = match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(id) => id.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let boot = Allocation::of_this().map_or_else(|| boot.clone(), |allocation| allocation.boot(&boot));
    Ok(BOOT.get_or_init(|| boot).clone())
}

/// Reads a small file of `/proc`, which one call returns completely.
fn read_once(path: &str) -> io::Result<String> {
    let mut text = [0_u8; 1024];
    let mut file = fs::File::open(path)?;
    let length = loop {
        match file.read(&mut text) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Returns the identity of a process. `None` if it does not exist.
pub fn identity(pid: i32, boot: &str) -> Option<ProcessId> {
    let stat = stat(pid)?;
    Some(ProcessId { pid, start_ticks: stat.start_ticks, boot: boot.to_owned() })
}

/// Reports whether the kernel has taken the terminal away from a process of a window: the window was closed.
pub fn has_hung_up(process: &ProcessId, boot: &str) -> bool {
    alive(process, boot).is_ok_and(|stat| stat.is_some_and(|stat| stat.terminal == 0))
}

/// Returns the state of exactly this process. `None` if it is not alive.
///
/// # Errors
/// Fails if that cannot be decided, for example because no descriptor is free. The process must then count as alive.
pub fn alive(process: &ProcessId, boot: &str) -> io::Result<Option<Stat>> {
    if process.pid <= 1 || process.boot != boot {
        return Ok(None);
    }
    Ok(read_stat(process.pid)?.filter(|stat| stat.is_alive() && stat.start_ticks == process.start_ticks))
}

/// Returns the pids of all processes.
///
/// # Errors
/// Fails if `/proc` cannot be read.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = list(Path::new("/proc"))?;
    Ok(entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the state of a process that is alive. `None` if it is not, or belongs to another user who hides it.
///
/// # Errors
/// Fails if the state cannot be read, for example because no descriptor is free.
pub fn living(pid: i32) -> io::Result<Option<Stat>> {
    match read_stat(pid) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        stat => Ok(stat?.filter(Stat::is_alive)),
    }
}

/// Reports whether the environment with which a process was started contains `NAME=VALUE`. Processes that are gone,
/// and those of other users, do not.
///
/// # Errors
/// Fails if the system lacks the resources to read it.
pub fn has_variable(pid: i32, pair: &[u8]) -> io::Result<bool> {
    match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) => Ok(environment.split(|byte| *byte == 0).any(|one| one == pair)),
        Err(error) if lacks_resources(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Reports whether a process is the parent of a worker's processes. Those that are gone, and those of other users, are not.
///
/// # Errors
/// Fails if the system lacks the resources to read its command line.
pub fn is_shim(pid: i32) -> io::Result<bool> {
    match fs::read(format!("/proc/{pid}/cmdline")) {
        Ok(words) => Ok(words.split(|byte| *byte == 0).nth(1) == Some(b"__shim")),
        Err(error) if lacks_resources(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Reports whether an error says nothing about the file, only that the system or this process has run out of memory or
/// descriptors.
pub fn lacks_resources(error: &io::Error) -> bool {
    use rustix::io::Errno;
    Errno::from_io_error(error).is_some_and(|code| matches!(code, Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Returns all descendants of `root`, parents before children.
///
/// # Errors
/// Fails if the processes cannot be listed, for example because no descriptor is free.
pub fn descendants(root: i32) -> io::Result<Vec<i32>> {
    // Computed at most once, and only if the kernel has no lists of children.
    let mut all_parents: Option<Vec<(i32, i32)>> = None;
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        let children = match children(parent)? {
            Some(children) => children,
            None => {
                let all = match all_parents.take() {
                    Some(all) => all,
                    None => parents()?,
                };
                let below = all.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid).collect();
                all_parents = Some(all);
                below
            }
        };
        for child in children {
            if !found.contains(&child) {
                found.push(child);
            }
        }
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// Returns the children of a process.
///
/// # Errors
/// Fails if the processes cannot be listed, for example because no descriptor is free.
pub fn children_of(pid: i32) -> io::Result<Vec<i32>> {
    match children(pid)? {
        Some(children) => Ok(children),
        None => Ok(parents()?.into_iter().filter(|(_, above)| *above == pid).map(|(pid, _)| pid).collect()),
    }
}

/// Returns the children of a process by the kernel's lists. `None` if the kernel has no such lists, or the process is
/// gone.
fn children(pid: i32) -> io::Result<Option<Vec<i32>>> {
    let read = || -> io::Result<Vec<String>> {
        let tasks = list(Path::new(&format!("/proc/{pid}/task")))?;
        tasks.iter().map(|task| fs::read_to_string(task.path().join("children"))).collect()
    };
    match read() {
        Ok(lists) if lists.is_empty() => Ok(None),
        Ok(lists) => {
            let words = lists.iter().flat_map(|list| list.split_ascii_whitespace());
            Ok(Some(words.filter_map(|word| word.parse().ok()).collect()))
        }
        Err(error) if lacks_resources(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns all processes, each with its parent.
fn parents() -> io::Result<Vec<(i32, i32)>> {
    let mut found = Vec::new();
    for pid in all()? {
        found.extend(living(pid)?.map(|stat| (pid, stat.parent)));
    }
    Ok(found)
}

/// Returns when a process started, in milliseconds since the Unix epoch.
pub fn process_start_ms(start_ticks: u64) -> i64 {
    let age_ms = i64::try_from(boot_clock::since_boot().as_millis()).unwrap_or(i64::MAX)
        - i64::try_from(start_ticks.saturating_mul(10)).unwrap_or(i64::MAX);
    jiff::Timestamp::now().as_millisecond() - age_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_and_spaces_does_not_shift_fields() {
        let line = "42 (a) (b c) S 7 42 41 0 -1 4194560 0 0 0 0 1 2 3 4 20 0 1 0 987654 1000 10";
        let stat = parse_stat(line).expect("parses");
        assert_eq!(
            stat,
            Stat {
                state: 'S',
                parent: 7,
                session: 41,
                exiting: false,
                terminal: 0,
                start_ticks: 987_654,
                resident_pages: 10,
                exit_code: 0
            }
        );
        let ending = format!("{} 0{}", line.replace("4194560", "4194564"), " 0".repeat(27));
        assert_eq!(parse_stat(&ending), Some(Stat { exiting: true, ..stat }));
        let killed = parse_stat(&format!("{} 9", ending.strip_suffix(" 0").expect("a code"))).expect("parses");
        assert!(killed.is_failing() && !stat.is_failing());
        assert_eq!(stat.resident_bytes(), 10 * rustix::param::page_size() as u64);
        assert_eq!(parse_stat("42 (torn"), None);
        assert_eq!(parse_stat("42 (short) S 1"), None);
    }

    #[test]
    fn this_process_is_alive_and_another_start_of_its_pid_is_not() {
        let boot = boot_id();
        let me = i32::try_from(std::process::id()).expect("pids fit");
        let mut id = identity(me, &boot).expect("it is me");
        assert!(alive(&id, &boot).expect("examined").is_some());
        id.start_ticks += 1;
        assert_eq!(alive(&id, &boot).expect("examined"), None);
    }
}
