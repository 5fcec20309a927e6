//! What this program asks of its memory: one pool for all threads, and, of a process
//! that has nothing to do, what it can give back. There is a shim for every worker, and
//! all of them wait nearly all of the time.

use std::time::Duration;

/// A process that was left alone for so long gives back what it does not need.
pub const CALM: Duration = Duration::from_millis(100);

/// One pool of memory for all threads: those for blocking calls come and go,
/// and what they leave in pools of their own would stay. For a process that has
/// one thread still.
pub fn one_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number.
        #[expect(unsafe_code, reason = "a C function")]
        let _ = unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, 1) };
    }
}

/// Returns free heap memory to the system.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: touches nothing that is in use.
        #[expect(unsafe_code, reason = "a C function")]
        let _ = unsafe { nix::libc::malloc_trim(0) };
    }
}
