//! What keeps a process and its children from getting rights: `no_new_privs` and filters of system calls.
//!
//! The kernel does not show whether a process is confined by Landlock. But only a process that has set `no_new_privs`, or
//! is privileged, may confine itself, and the same is true for filters.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::OnceLock;

/// Size of the buffer for the text of a process, in bytes. Most have less than half of it.
const STATUS_BYTES: usize = 4096;

/// Restraints of a process. Its children inherit them, and it cannot give them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restraints {
    no_new_privs: bool,
    is_filtered: bool,
    /// Number of filters. Kernels before 5.9 do not tell.
    filters: u32,
}

impl Restraints {
    /// Returns the restraints of this process.
    ///
    /// # Errors
    /// Fails if `/proc` cannot be read.
    pub fn own() -> io::Result<Self> {
        // Nothing in this program gives itself restraints, and nobody else can.
        static OWN: OnceLock<Restraints> = OnceLock::new();
        match OWN.get() {
            Some(own) => Ok(*own),
            None => Self::read("/proc/self/status").map(|own| *OWN.get_or_init(|| own)),
        }
    }

    /// Returns the restraints of a process.
    ///
    /// # Errors
    /// Fails if it is gone, or the kernel hides it.
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/status"))
    }

    fn read(status: &str) -> io::Result<Self> {
        // The kernel makes the text at the first read; with room for all of it, the second one finds the end.
        let mut text = String::with_capacity(STATUS_BYTES);
        File::open(status)?.read_to_string(&mut text)?;
        Ok(Self::parse(&text))
    }

    /// Kernels leave out what they do not support, and processes then do not have it.
    fn parse(status: &str) -> Self {
        let number = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse::<u32>().ok()).unwrap_or(0)
        };
        Self {
            no_new_privs: number("NoNewPrivs") != 0,
            is_filtered: number("Seccomp") != 0,
            filters: number("Seccomp_filters"),
        }
    }

    /// Returns the name of a restraint that a process with `self` has and one with `other` has not. `None` if there is no
    /// such restraint.
    pub fn beyond(self, other: Self) -> Option<&'static str> {
        if self.no_new_privs && !other.no_new_privs {
            return Some("no_new_privs");
        }
        let has_more = (self.is_filtered && !other.is_filtered) || self.filters > other.filters;
        has_more.then_some("seccomp")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restraints(no_new_privs: bool, filters: u32) -> Restraints {
        Restraints { no_new_privs, is_filtered: filters > 0, filters }
    }

    #[test]
    fn what_the_kernel_shows_is_parsed() {
        let status = "Name:\tNoNewPrivs:\t1\nSeccomp_filters:\t3\nNoNewPrivs:\t1\nSeccomp:\t2\nSpeculation:\tx\n";
        assert_eq!(Restraints::parse(status), restraints(true, 3));
        assert_eq!(Restraints::parse("NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"), Restraints::default());
        let old = Restraints::parse("Seccomp:\t2\n");
        assert_eq!((old.is_filtered, old.filters), (true, 0));
        assert_eq!(Restraints::parse(""), Restraints::default());
    }

    #[test]
    fn only_what_the_other_does_not_have_counts() {
        let (free, held, container) = (Restraints::default(), restraints(true, 0), restraints(false, 1));
        assert_eq!(held.beyond(free), Some("no_new_privs"));
        assert_eq!(container.beyond(free), Some("seccomp"));
        assert_eq!(restraints(true, 2).beyond(restraints(true, 1)), Some("seccomp"), "a sandbox in a container");
        let old = Restraints { filters: 0, ..container };
        assert_eq!((old.beyond(free), old.beyond(old)), (Some("seccomp"), None));
        for one in [free, held, container, restraints(true, 2)] {
            assert_eq!(one.beyond(one), None, "{one:?}");
            assert_eq!(free.beyond(one), None, "{one:?}");
        }
        assert_eq!(container.beyond(restraints(true, 2)), None);
    }

    #[test]
    fn this_process_has_its_own() {
        let own = Restraints::own().expect("readable");
        let me = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(Restraints::of(me).expect("readable"), own);
        // Larger than any pid.
        assert!(Restraints::of(i32::MAX).is_err(), "there is no such process");
    }
}
