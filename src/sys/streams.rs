//! Standard streams: whether the caller passed them, and lines to them that end no process.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// Prints a line to standard error. Unlike `eprintln!`, it does not panic if the line cannot be written: the standard error of
/// a worker is its log, which may be on a full disk.
#[macro_export]
macro_rules! complain {
    ($($words:tt)*) => { $crate::streams::complain(::std::format_args!($($words)*)) };
}

/// Prints a line to standard output. Unlike `println!`, it does not panic if the line cannot be written.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::streams::say(::std::format_args!($($words)*)) };
}

/// Prints a line to standard output, as [`say!`](crate::say) does.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a line to standard error, as [`complain!`](crate::complain) does.
pub fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Reports whether standard output was closed when this process was executed. The standard library then opens
/// `/dev/null` in its place, so that every write would seem to succeed.
pub fn stdout_was_closed() -> bool {
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Runs before `main`, and before the standard library opens anything.
extern "C" fn look() {
    // SAFETY: queries the flags of a descriptor by number, and fails if it is not open.
    #[expect(unsafe_code, reason = "a descriptor that may be closed has no safe type")]
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    IS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the C library calls each function in this section once, at the start of the program; this one needs nothing
// that is set up later.
#[expect(unsafe_code, reason = "nothing safe runs before the standard library replaces closed streams")]
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
