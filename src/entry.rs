//! The C entry point. Rust's own looks for the end of the stack in
//! `/proc/self/maps` and installs handlers for its overflow, which takes a
//! twentieth of the life of `swarm status`. The two things of it that are needed
//! are done here.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStringExt as _;
use std::panic::catch_unwind;

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

/// What a panic leaves with, as in any Rust program.
const PANICKED: i32 = 101;

#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "an entry point has a fixed name")]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    let code = catch_unwind(|| {
        open_standard_streams();
        ignore_signals();
        crate::start(arguments(count, words))
    });
    // As at the end of any Rust program: buffers are flushed.
    std::process::exit(code.map_or(PANICKED, i32::from))
}

fn arguments(count: c_int, words: *const *const c_char) -> Vec<OsString> {
    let word = |at: usize| {
        // SAFETY: the C library gives `count` pointers to texts that end in zero.
        #[expect(unsafe_code, reason = "what a C entry point is given")]
        let word = unsafe { CStr::from_ptr(*words.add(at)) };
        OsString::from_vec(word.to_bytes().to_vec())
    };
    (0..usize::try_from(count).unwrap_or(0)).map(word).collect()
}

/// A caller may have closed them, and then the next file that is opened would be
/// written to by whoever means standard output.
fn open_standard_streams() {
    let closed = |fd: c_int| {
        // SAFETY: asks about a number.
        #[expect(unsafe_code, reason = "a closed descriptor cannot be borrowed")]
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        flags < 0
    };
    for _ in (0..3).filter(|fd| closed(*fd)) {
        // The lowest free number is the one that was found closed; it stays open for life.
        let _ = nix::fcntl::open("/dev/null", nix::fcntl::OFlag::O_RDWR, nix::sys::stat::Mode::empty())
            .map(std::os::fd::IntoRawFd::into_raw_fd);
    }
}

/// A reader that went away and a caller's limit of file sizes are to be errors
/// with a name, not deaths.
fn ignore_signals() {
    for ignored in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: ignoring installs no handler, so nothing runs in signal context.
        #[expect(unsafe_code, reason = "sigaction is unsafe for handlers, of which this has none")]
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
}
