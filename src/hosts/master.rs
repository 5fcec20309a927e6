//! Connections that several commands share, one per host (`ControlMaster` of ssh). A login takes a quarter of a second and
//! servers refuse bursts of them; over a connection that is there, a command takes a hundredth.
//!
//! A connection of the user is used as it is, because a second login may need a hardware key. Otherwise swarm has one of its
//! own, which ends ten minutes after its last use.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use swarm_sys::commands::deadline;
use swarm_sys::files::lock::lock_within;

use crate::host::Host;
use crate::resolved::{hash, resolved};
use crate::words::ssh;

/// Maximum length of a control path: ssh appends 17 bytes while it creates the socket, and a socket has 108.
const PATH_BYTES_MAX: usize = 90;
/// Time within which a connection answers. A process that is stopped never does.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time for a login.
const LOGIN_MAX: Duration = Duration::from_secs(20);
const BYTES_MAX: usize = 1 << 20;

/// Connection that a command uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// That of swarm, with the path of its socket.
    Own(PathBuf),
    /// The one that the user's configuration of ssh names.
    OfUser,
    /// A new one for this command alone.
    None,
}

/// Returns the connection to use, and makes it if there is none. If that fails, the command connects by itself, and reports
/// why it cannot.
pub fn control(host: &Host) -> Control {
    let Some(destination) = host.destination() else { return Control::None };
    let dir = directory();
    let Some(resolved) = resolved(destination, dir.as_deref().ok()) else { return Control::None };
    if of_user(&resolved).is_some_and(|path| accepts(Path::new(path))) {
        return Control::OfUser;
    }
    let Ok(dir) = dir else { return Control::None };
    // If the configuration changes, the path does.
    let path = dir.join(hash(&resolved));
    if path.as_os_str().len() > PATH_BYTES_MAX {
        return Control::None;
    }
    // A process that is stopped still accepts connections; the missing hello shows it.
    if accepts(&path) {
        return Control::Own(path);
    }
    // It would end with the worker.
    if std::env::var_os("SWARM_TOKEN").is_some() {
        return Control::None;
    }
    match one_at_a_time(&path, || made(destination, &path)) {
        Ok(true) => Control::Own(path),
        Ok(false) | Err(_) => Control::None,
    }
}

/// Returns the control path of the user's configuration.
fn of_user(resolved: &str) -> Option<&str> {
    let path = resolved.lines().find_map(|line| line.strip_prefix("controlpath "))?.trim();
    Some(path).filter(|path| !path.eq_ignore_ascii_case("none"))
}

/// Moves the socket of a connection aside that accepts commands, but does not execute them.
pub fn put_aside(control: &Control) {
    if let Control::Own(path) = control {
        let _ = fs::rename(path, path.with_extension("stale"));
    }
}

/// Returns the directory of sockets, which nobody else can enter.
fn directory() -> io::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    private(match runtime {
        Some(dir) => dir.join("swarm-ssh"),
        None => Path::new("/tmp").join(format!("swarm-ssh-{uid}")),
    })
}

/// Makes this directory, unless it is there and only this user can enter it.
fn private(dir: PathBuf) -> io::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let meta = fs::symlink_metadata(&dir)?;
    match meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0 {
        true => Ok(dir),
        false => Err(io::Error::other(format!("{} is not private", dir.display()))),
    }
}

/// Calls `make` while no other process does so for the same path. Servers refuse bursts of logins.
fn one_at_a_time(path: &Path, make: impl FnOnce() -> bool) -> io::Result<bool> {
    let held = held(path)?;
    Ok(held.is_some() && make())
}

/// Calls `login`, which connects beside a connection that is shared, while no other process does so. Whoever has waited for
/// too long does not wait any longer.
pub fn alone<T>(control: &Control, login: impl FnOnce() -> T) -> T {
    let _held = match control {
        Control::Own(path) => held(path).ok().flatten(),
        Control::OfUser | Control::None => None,
    };
    login()
}

/// Returns the lock of logins for this path; `None` if another process keeps it.
fn held(path: &Path) -> io::Result<Option<File>> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.with_extension("lock"))?;
    // Whoever holds it for longer has a login that hangs.
    lock_within(file, LOGIN_MAX)
}

/// Reports whether a process listens at `path`. One that is stopped, with a full queue of callers, does not count.
fn accepts(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let Ok(socket) = socket(AddressFamily::Unix, SockType::Stream, flags, None) else { return false };
    UnixAddr::new(path).is_ok_and(|address| connect(socket.as_raw_fd(), &address).is_ok())
}

/// Reports whether the process of a connection answers. Its socket accepts callers even if it is stopped.
pub fn answers(host: &Host, control: &Control) -> bool {
    let Some(destination) = host.destination() else { return false };
    let mut check = ssh(false);
    match control {
        Control::Own(path) => drop(check.arg("-S").arg(path)),
        Control::OfUser => {}
        Control::None => return false,
    }
    deadline::run(check.args(["-O", "check", "--", destination]), None, ANSWER_MAX, BYTES_MAX)
        .is_ok_and(|said| said.success)
}

/// Reports whether a connection is at `path`, which is made if there is none.
fn made(destination: &str, path: &Path) -> bool {
    if accepts(path) {
        return true;
    }
    // Its process has ended.
    put_aside(&Control::Own(path.to_owned()));
    let mut master = ssh(false);
    // It outlives this command, and must not keep its directory.
    master
        .current_dir("/")
        .args(["-M", "-N", "-f", "-o", "ControlPersist=10m", "-S"])
        .arg(path)
        .args(["--", destination]);
    // Its streams are not read to their end: the connection keeps them open.
    deadline::run(&mut master, None, LOGIN_MAX, BYTES_MAX).is_ok_and(|said| said.success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_enter_or_lead_elsewhere_is_not_used() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("own");
        assert_eq!(private(own.clone()).expect("made"), own);
        assert_eq!(private(own.clone()).expect("there"), own);
        symlink(&own, dir.path().join("link")).expect("made");
        assert!(private(dir.path().join("link")).is_err(), "somebody else could have made it");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).expect("changed");
        assert!(private(own).is_err(), "the group can enter it");
        fs::write(dir.path().join("file"), "").expect("written");
        assert!(private(dir.path().join("file")).is_err() && private(dir.path().join("a/b")).is_err());
    }

    #[test]
    fn a_socket_without_a_process_is_put_aside() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        assert!(accepts(&path));
        drop(listener);
        assert!(!accepts(&path) && path.exists(), "it is stale");
        put_aside(&Control::Own(path.clone()));
        assert!(!path.exists() && path.with_extension("stale").exists());
        put_aside(&Control::OfUser);
        assert!(!accepts(&dir.path().join("x".repeat(PATH_BYTES_MAX + 20))), "its path is too long for a socket");
    }

    /// The socket of a connection of which the process is stopped still accepts.
    #[test]
    fn a_connection_that_never_answers_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let host = crate::find("me@box", &std::collections::BTreeMap::new()).expect("a destination");
        let begun = std::time::Instant::now();
        assert!(accepts(&path) && !answers(&host, &Control::Own(path)));
        assert!(begun.elapsed() < ANSWER_MAX * 10, "{:?}", begun.elapsed());
    }

    #[test]
    fn the_control_path_of_the_user_is_found() {
        assert_eq!(of_user("host box\ncontrolpath /run/x/box\nport 22\n"), Some("/run/x/box"));
        assert_eq!((of_user("controlpath none\n"), of_user("host box\n")), (None, None));
    }
}
