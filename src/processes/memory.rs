//! Memory settings: one pool for all threads, and returning memory of idle processes to the system. There is a shim for
//! every worker, and all of them wait nearly all of the time.

use std::time::Duration;

/// Idle time after which a process returns free memory.
pub const CALM: Duration = Duration::from_millis(100);

/// Uses a single memory pool for all threads. Threads for blocking calls come and go, and memory left in pools of their
/// own would never be returned. Must be called while the process has one thread.
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
