//! Waiting without polling: processes by pidfd, files by inotify, Ctrl-C by signalfd, all in one call of `poll`.

use std::cell::OnceCell;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_model::{ProcessId, Refusal, RefusalKind};
use swarm_sys::procfs;
use swarm_sys::watching::LOOK_PAUSE;

use super::error::Failure;

/// Opens the process `id`. Returns `None` if it is gone: the pid is free, or belongs to a process with another start
/// time.
pub fn open_process(id: &ProcessId) -> Result<Option<OwnedFd>, Failure> {
    // Negative numbers name process groups; `Pid::from_raw` must not get one.
    let Some(pid) = (id.pid > 0).then(|| Pid::from_raw(id.pid)).flatten() else { return Ok(None) };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(Failure::system(format!("cannot wait for process {}", id.pid), &error.into())),
    };
    // Read after the descriptor was opened: a matching start time proves that the descriptor is that process.
    Ok(procfs::stat(id.pid).is_some_and(|stat| stat.start_ticks == id.start_ticks).then_some(fd))
}

/// Waits until the process has ended or the deadline has passed.
pub fn ends_before(id: &ProcessId, deadline: Instant) -> Result<(), Failure> {
    if let Some(process) = open_process(id)? {
        wait_any(&[(process.as_fd(), Until::Readable)], Some(deadline))?;
    }
    Ok(())
}

/// Raises the limit of open descriptors to its maximum: each watched worker needs one.
pub fn allow_many_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // If this fails, opening too many descriptors reports the error.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Watches files and directories for changes. If other programs have used up what the kernel allows for that, tells its
/// user from time to time to look.
pub struct Changes {
    inotify: Option<Inotify>,
    /// Readable when it is time to look. Set once something cannot be watched.
    timer: OnceCell<TimerFd>,
    pause: Duration,
}

/// Changes since the last call of [`Changes::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Set if the writer of a watched file closed it.
    pub closed: bool,
}

impl Changes {
    pub fn new() -> Result<Self, Failure> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        Self::of(Inotify::init(flags), LOOK_PAUSE)
    }

    fn of(inotify: Result<Inotify, Errno>, pause: Duration) -> Result<Self, Failure> {
        let changes = Self { inotify: None, timer: OnceCell::new(), pause };
        match inotify {
            Ok(inotify) => Ok(Self { inotify: Some(inotify), ..changes }),
            Err(error) => changes.look_instead("files", error).map(|()| changes),
        }
    }

    /// Sets the timer if a limit of the kernel is the reason why something cannot be watched.
    fn look_instead(&self, what: &str, error: Errno) -> Result<(), Failure> {
        static TOLD: Once = Once::new();
        if !matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC) {
            return Err(watch_failure(what, error));
        }
        if self.timer.get().is_none() {
            let timer = timer(self.pause).map_err(|_| watch_failure(what, error))?;
            self.timer.get_or_init(|| timer);
        }
        TOLD.call_once(|| {
            let seconds = self.pause.as_secs();
            let cause = swarm_sys::watching::explained(error);
            // Nobody may read it.
            let _ = writeln!(io::stderr(), "swarm: warning: cannot watch {what}, looks every {seconds} s: {cause}");
        });
        Ok(())
    }

    /// Watches for bytes written to `file`; ignores a missing file.
    pub fn add_file(&self, file: &Path) -> Result<(), Failure> {
        use AddWatchFlags as F;
        self.add(file, F::IN_MODIFY | F::IN_CLOSE_WRITE | F::IN_ATTRIB | F::IN_MOVE_SELF | F::IN_DELETE_SELF)
    }

    /// Watches for names created in or removed from `dir`; ignores a missing directory.
    pub fn add_dir(&self, dir: &Path) -> Result<(), Failure> {
        use AddWatchFlags as F;
        self.add(dir, F::IN_CREATE | F::IN_MOVED_TO | F::IN_MOVED_FROM | F::IN_DELETE | F::IN_ONLYDIR)
    }

    fn add(&self, path: &Path, flags: AddWatchFlags) -> Result<(), Failure> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        match inotify.add_watch(path, flags) {
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(error) => self.look_instead(&path.display().to_string(), error),
        }
    }

    /// Reads all queued events.
    pub fn take(&self) -> Result<Seen, Failure> {
        let mut seen = Seen::default();
        if let Some(timer) = self.timer.get() {
            // Without a descriptor that blocks, this fails if it is not yet time.
            let _ = timer.wait();
        }
        let Some(inotify) = &self.inotify else { return Ok(seen) };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    seen.closed |= events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE));
                }
                Err(Errno::EAGAIN) => return Ok(seen),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(watch_failure("files", error)),
            }
        }
    }
}

fn watch_failure(what: &str, error: Errno) -> Failure {
    let refusal = Refusal::new(RefusalKind::Internal, format!("cannot watch {what}: {}", io::Error::from(error)));
    match error {
        Errno::EMFILE | Errno::ENOSPC => {
            refusal.remedy("raise fs.inotify.max_user_instances or max_user_watches").into()
        }
        _ => refusal.into(),
    }
}

/// Returns a timer that fires again and again.
fn timer(pause: Duration) -> Result<TimerFd, Errno> {
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
    timer.set(Expiration::Interval(TimeSpec::from_duration(pause)), TimerSetTimeFlags::empty())?;
    Ok(timer)
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match (self.timer.get(), &self.inotify) {
            (Some(timer), _) => timer.as_fd(),
            (None, Some(inotify)) => inotify.as_fd(),
            (None, None) => unreachable!("without inotify there is a timer"),
        }
    }
}

/// Ctrl-C as a descriptor to wait on, so that a follower can exit with 0.
pub struct Interrupt {
    signals: SignalFd,
}

impl Interrupt {
    /// Catches SIGINT.
    ///
    /// # Errors
    /// Fails as [`Interrupt::catch_all`] does.
    pub fn catch() -> Result<Self, Failure> {
        Self::catch_all(&[Signal::SIGINT])
    }

    /// Catches these signals.
    ///
    /// # Errors
    /// Returns an error if the signals cannot be blocked.
    pub fn catch_all(signals: &[Signal]) -> Result<Self, Failure> {
        let set: SigSet = signals.iter().copied().collect();
        let caught = set
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
        caught.map(|signals| Self { signals }).map_err(|error| Failure::system("cannot catch Ctrl-C", &error.into()))
    }
}

impl Interrupt {
    /// Reads all pending signals, so that the next one wakes again; returns the last.
    pub fn take(&self) -> Option<Signal> {
        self.take_all().pop()
    }

    /// Reads all pending signals.
    pub fn take_all(&self) -> Vec<Signal> {
        let read = std::iter::from_fn(|| self.signals.read_signal().ok().flatten());
        read.filter_map(|signal| Signal::try_from(i32::try_from(signal.ssi_signo).ok()?).ok()).collect()
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// Condition to wait for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Readable,
    /// The other end of a pipe or terminal was closed.
    HungUp,
}

/// Waits until the condition of at least one of `sources` holds, or until `deadline`. Returns for each source whether
/// its condition holds; at the deadline, none does.
pub fn wait_any(sources: &[(BorrowedFd, Until)], deadline: Option<Instant>) -> Result<Vec<bool>, Failure> {
    let flags = |until| if until == Until::Readable { PollFlags::POLLIN } else { PollFlags::empty() };
    let mut fds: Vec<PollFd> = sources.iter().map(|(fd, until)| PollFd::new(*fd, flags(*until))).collect();
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll(&mut fds, poll_timeout(left)) {
            Ok(0) if left.is_some_and(|left| left > Duration::ZERO) => {}
            Ok(_) => return Ok(fds.iter().map(|fd| fd.any() == Some(true) || fd.revents().is_none()).collect()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(Failure::system("cannot wait", &error.into())),
        }
    }
}

/// Rounds up to milliseconds, so that the last fraction is not spent spinning.
fn poll_timeout(left: Option<Duration>) -> PollTimeout {
    let Some(left) = left else { return PollTimeout::NONE };
    let millis = i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn id_of(pid: i32) -> ProcessId {
        procfs::identity(pid, "").expect("alive")
    }

    #[test]
    fn a_process_is_watched_by_identity_not_by_pid() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("started");
        let id = id_of(i32::try_from(child.id()).expect("a pid"));
        let other = ProcessId { start_ticks: id.start_ticks + 1, ..id.clone() };
        assert!(open_process(&other).expect("looked").is_none(), "a pid alone was taken for the process");
        let fd = open_process(&id).expect("looked").expect("alive");
        let soon = Some(Instant::now());
        assert_eq!(wait_any(&[(fd.as_fd(), Until::Readable)], soon).expect("polled"), [false]);
        drop(child.stdin.take());
        assert_eq!(wait_any(&[(fd.as_fd(), Until::Readable)], None).expect("polled"), [true]);
        child.wait().expect("reaped");
        assert!(open_process(&id).expect("looked").is_none());
        for pid in [0, -1] {
            assert!(open_process(&ProcessId { pid, ..id.clone() }).expect("looked").is_none());
        }
    }

    #[test]
    fn changes_of_files_and_names_are_detected() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("log");
        let changes = Changes::new().expect("inotify");
        changes.add_file(&file).expect("a missing file is no error");
        changes.add_dir(dir.path()).expect("watched");
        fs::write(&file, "x").expect("written");
        assert_eq!(wait_any(&[(changes.as_fd(), Until::Readable)], None).expect("polled"), [true]);
        assert_eq!(changes.take().expect("read"), Seen { closed: false });
        changes.add_file(&file).expect("watched");
        fs::write(&file, "y").expect("written");
        assert_eq!(changes.take().expect("read"), Seen { closed: true });
    }

    #[test]
    fn without_inotify_it_is_time_to_look_again_and_again() {
        let changes = Changes::of(Err(Errno::EMFILE), Duration::from_millis(20)).expect("a timer");
        changes.add_dir(Path::new("/")).expect("nothing is watched");
        for _ in 0..2 {
            assert_eq!(wait_any(&[(changes.as_fd(), Until::Readable)], None).expect("polled"), [true]);
            assert_eq!(changes.take().expect("read"), Seen::default());
        }
        assert!(Changes::of(Err(Errno::ENOSYS), Duration::from_millis(20)).is_err());
    }

    #[test]
    fn a_closed_reader_is_detected() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let soon = Some(Instant::now());
        assert_eq!(wait_any(&[(writer.as_fd(), Until::HungUp)], soon).expect("polled"), [false]);
        drop(reader);
        assert_eq!(wait_any(&[(writer.as_fd(), Until::HungUp)], None).expect("polled"), [true]);
    }
}
