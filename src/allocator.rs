//! What is asked of the C library's allocator, where it is glibc's.

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

/// Returns free memory to the system.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: touches nothing that is in use.
        #[expect(unsafe_code, reason = "a C function")]
        let _ = unsafe { nix::libc::malloc_trim(0) };
    }
}
