//! Names for files that several processes make in one repository. A pid does not tell processes of two containers apart: it
//! is often the same in each of them.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use swarm_sys::paths::digest;
use swarm_sys::{machine, procfs};

/// Length of the hashed id of a machine or a boot in a name, in bytes.
const ID_BYTES: usize = 4;
/// An id that is not known.
const NONE: &str = "0";

/// Process that made a file, as its name says: `PID`, or `PID-MACHINE.BOOT.NAMESPACE.START`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pid: i32,
    /// `None` in names of older versions.
    origin: Option<Origin>,
}

/// Where and when a process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    machine: String,
    boot: String,
    /// Namespace of the pid.
    namespace: u64,
    start_ticks: u64,
}

impl Origin {
    fn of_this(pid: i32) -> Self {
        let hashed = |id: &str| if id.is_empty() { NONE.to_owned() } else { digest(id.as_bytes(), ID_BYTES) };
        let namespace = fs::read_link("/proc/self/ns/pid").ok();
        let namespace = namespace.and_then(|name| {
            let name = name.to_string_lossy().into_owned();
            name.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
        });
        Self {
            machine: hashed(&machine::this().id),
            boot: hashed(&procfs::boot_id()),
            namespace: namespace.unwrap_or_default(),
            start_ticks: procfs::stat(pid).map_or(0, |stat| stat.start_ticks),
        }
    }
}

/// Returns the name of this process for files that it makes, which no other process has.
pub(crate) fn own() -> String {
    static KNOWN: Mutex<Option<(u32, String)>> = Mutex::new(None);
    let pid = std::process::id();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        // Another pid is that of the process from which this one was forked.
        Some((of, name)) if *of == pid => name.clone(),
        _ => {
            let Origin { machine, boot, namespace, start_ticks } = Origin::of_this(i32::try_from(pid).unwrap_or(0));
            let name = format!("{pid}-{machine}.{boot}.{namespace}.{start_ticks}");
            *known = Some((pid, name.clone()));
            name
        }
    }
}

/// Returns [`own`] with a number that this process has not used yet.
pub(crate) fn own_next() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", own(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Writer {
    /// Parses what [`own`] returns, or the pid alone.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (pid, origin) = match text.split_once('-') {
            Some((pid, rest)) => (pid, Some(origin(rest)?)),
            None => (text, None),
        };
        let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
        Some(Self { pid, origin })
    }

    /// Reports whether the name has only a pid.
    pub(crate) fn is_older_version(&self) -> bool {
        self.origin.is_none()
    }

    /// Reports whether the process is gone. `None` if it may live in another namespace or on another machine.
    pub(crate) fn is_gone(&self) -> Option<bool> {
        let Some(origin) = &self.origin else { return Some(procfs::stat(self.pid).is_none()) };
        let here = Origin::of_this(self.pid);
        if origin.boot == NONE || origin.boot != here.boot {
            let is_earlier = origin.boot != NONE && here.boot != NONE;
            return Some(true).filter(|_| is_earlier && origin.machine != NONE && origin.machine == here.machine);
        }
        if origin.namespace != here.namespace || origin.namespace == 0 {
            return None;
        }
        // What cannot be read may live.
        let stat = procfs::read_stat(self.pid).ok()?;
        Some(!stat.is_some_and(|stat| stat.is_alive() && stat.start_ticks == origin.start_ticks))
    }
}

fn origin(text: &str) -> Option<Origin> {
    let mut parts = text.split('.');
    let mut id = || parts.next().filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let (machine, boot) = (id()?.to_owned(), id()?.to_owned());
    let mut number = || parts.next()?.parse().ok();
    let (namespace, start_ticks) = (number()?, number()?);
    parts.next().is_none().then_some(Origin { machine, boot, namespace, start_ticks })
}

/// Returns the name that a process with the pid of this one has in another container.
#[cfg(test)]
pub(crate) fn in_another_namespace() -> String {
    let own = own();
    let parts: Vec<&str> = own.split('.').collect();
    format!("{}.{}.1.{}", parts[0], parts[1], parts[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_is_proven_gone_is_gone() {
        let own = own();
        let gone = |text: &str| Writer::parse(text).map(|writer| writer.is_gone());
        assert_eq!(gone(&own), Some(Some(false)));
        assert_eq!(gone(&in_another_namespace()), Some(None));
        let parts: Vec<&str> = own.split('.').collect();
        let (pid, here, boot, namespace, start) =
            (std::process::id(), parts[0], parts[1], parts[2], parts[3].parse::<u64>().expect("a number"));
        assert_eq!(
            gone(&format!("{here}.{boot}.{namespace}.{}", start + 1)),
            Some(Some(true)),
            "the pid is used again"
        );
        assert_eq!(gone(&format!("{pid}-12345678.ffffffff.{namespace}.{start}")), Some(None), "of another machine");
        let machine = here.split_once('-').expect("two parts").1;
        let earlier = gone(&format!("{here}.ffffffff.{namespace}.{start}"));
        assert_eq!(earlier, Some(Some(true).filter(|_| machine != NONE)), "of an earlier boot");
        assert_eq!(gone(&pid.to_string()), Some(Some(false)), "of an older version");
        for odd in ["", "x", "0", "-1", "1-", "1-0.0.0", "1-0.0.0.0.0", "1-x.0.0.0"] {
            assert_eq!(gone(odd), None, "{odd}");
        }
    }

    #[test]
    fn no_name_is_used_twice() {
        let (first, second) = (own_next(), own_next());
        assert!(first != second && first.starts_with(&own()) && own() != in_another_namespace());
    }
}
