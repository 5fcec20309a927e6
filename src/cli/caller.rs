//! The caller: all attributes of this process that a worker inherits, and the id of the request.

use std::ffi::OsString;
use std::io;

use nix::sys::resource::{Resource, getrlimit};
use swarm_model::{Caller, Refusal, RefusalKind, Rlimit};
use swarm_sys::attributes;
use swarm_sys::variables::HOSTS;

/// All resource limits, indexed by their numbers in `<sys/resource.h>`: 0 to 15.
const RESOURCES: [Resource; 16] = [
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_STACK,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_AS,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
];

/// The caller, and the part of its environment that cannot be passed on.
pub struct Collected {
    pub caller: Caller,
    /// Names of variables that are not UTF-8. Requests are JSON text, and an altered value would be worse than a
    /// missing one.
    pub dropped: Vec<String>,
}

/// Reads the attributes of this process.
///
/// # Errors
/// Returns an error if the current directory is gone or not UTF-8, or if the kernel does not report the limits, the
/// niceness or random bytes.
pub fn collect() -> Result<Collected, Refusal> {
    let system = |doing: &str, error: io::Error| Refusal::new(RefusalKind::Internal, format!("{doing}: {error}"));
    let cwd = std::env::current_dir().map_err(|error| {
        system("cannot determine the current directory", error).remedy("change to a directory that exists")
    })?;
    let Some(cwd) = cwd.to_str() else {
        let cause = format!("the path of the current directory is not valid UTF-8: {}", cwd.display());
        return Err(Refusal::new(RefusalKind::Invalid, cause));
    };
    let (environment, dropped) = textual(std::env::vars_os());
    let rlimits = rlimits().map_err(|error| system("cannot read the resource limits", error))?;
    let nice =
        rustix::process::getpriority_process(None).map_err(|error| system("cannot read the niceness", error.into()))?;
    let caller = Caller {
        request: request_id().map_err(|error| system("cannot read random bytes", error))?,
        repeated: 0,
        cwd: cwd.to_owned(),
        environment: environment.into(),
        umask: umask(),
        rlimits,
        nice,
        attributes: attributes::own(),
        namespaces: attributes::namespaces(),
        below: None,
    };
    Ok(Collected { caller, dropped })
}

/// Separates variables that are UTF-8 from the names of the others.
fn textual(variables: impl Iterator<Item = (OsString, OsString)>) -> (Vec<(String, String)>, Vec<String>) {
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (key, value) in variables {
        // It is about the verb that was typed. The hooks of an agent call `swarm` where the agent runs.
        if key == HOSTS {
            continue;
        }
        match (key.into_string(), value.into_string()) {
            (Ok(key), Ok(value)) => kept.push((key, value)),
            (Ok(key), Err(_)) => dropped.push(key),
            (Err(key), _) => dropped.push(key.to_string_lossy().into_owned()),
        }
    }
    (kept, dropped)
}

/// Returns 128 random bits in hexadecimal.
pub fn request_id() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the file creation mask by setting and resetting it, the only way there is. The process has one thread, so the
/// temporary mask has no effect.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    rustix::process::umask(mask);
    mask.bits()
}

fn rlimits() -> io::Result<Vec<Rlimit>> {
    let read = |(number, resource): (usize, &Resource)| {
        let (soft, hard) = getrlimit(*resource)?;
        Ok(Rlimit { resource: u32::try_from(number).expect("there are sixteen"), soft, hard })
    };
    RESOURCES.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        for (number, resource) in RESOURCES.iter().enumerate() {
            assert_eq!(usize::try_from(*resource as i64), Ok(number), "{resource:?}");
        }
        assert_eq!(rlimits().expect("readable").len(), 16);
    }

    #[test]
    fn variables_that_are_not_utf8_are_reported_and_not_altered() {
        let odd = || OsString::from_vec(vec![b'a', 0xff]);
        let all = [
            ("A".into(), "1".into()),
            (HOSTS.into(), "box".into()),
            ("B".into(), odd()),
            (odd(), "x".into()),
            ("C=".into(), String::new().into()),
        ];
        let (kept, dropped) = textual(all.into_iter());
        assert_eq!(kept, [("A".to_owned(), "1".to_owned()), ("C=".to_owned(), String::new())]);
        assert_eq!(dropped, ["B", "a\u{fffd}"]);
    }

    #[test]
    fn request_ids_differ() {
        let (one, two) = (collect().expect("a caller"), collect().expect("a caller"));
        assert_eq!(one.caller.request.len(), 32);
        assert_ne!(one.caller.request, two.caller.request);
        assert_eq!(one.caller.rlimits, two.caller.rlimits);
    }
}
