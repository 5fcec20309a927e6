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

/// Returns free memory to the system, and the pages of the program itself: what is
/// needed of those again is found in the page cache. It takes some 0.1 ms to come back.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: touches nothing that is in use.
        #[expect(unsafe_code, reason = "a C function")]
        let _ = unsafe { nix::libc::malloc_trim(0) };
    }
    #[cfg(target_os = "linux")]
    give_back_program();
}

#[cfg(target_os = "linux")]
fn give_back_program() {
    use std::ptr::addr_of;
    // From the linker: the first byte of the image, and the one behind its code. What is
    // written to lies behind that.
    #[expect(unsafe_code, reason = "symbols of the linker")]
    unsafe extern "C" {
        safe static __executable_start: u8;
        safe static etext: u8;
    }
    let (start, end) = (addr_of!(__executable_start), addr_of!(etext));
    let page = rustix::param::page_size();
    let length = end.addr().saturating_sub(start.addr()) / page * page;
    if !is_of_a_file(start.addr(), start.addr() + length) {
        return;
    }
    // SAFETY: these pages are mapped from a file and not written to; the kernel reads
    // them from there again.
    #[expect(unsafe_code, reason = "a system call about addresses")]
    let _ = unsafe { nix::libc::madvise(start.cast_mut().cast(), length, nix::libc::MADV_DONTNEED) };
}

/// Whether all that is mapped there is mapped from a file, and read only: a packed
/// program has unpacked itself into memory that is nowhere else.
#[cfg(target_os = "linux")]
fn is_of_a_file(start: usize, end: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found = false;
    for line in maps.lines() {
        // `from-to modes offset device inode path`, see proc(5).
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, modes, _, _, inode, ..] = words.as_slice() else { return false };
        let Some((from, to)) = range.split_once('-') else { return false };
        let number = |text| usize::from_str_radix(text, 16).unwrap_or(usize::MAX);
        if number(from) >= end || number(to) <= start {
            continue;
        }
        found = true;
        if *inode == "0" || modes.contains('w') {
            return false;
        }
    }
    found
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    static CONSTANT: [u8; 64] = [7; 64];

    #[test]
    fn only_pages_of_a_file_that_nobody_writes_to_are_given_back() {
        let (constant, heap) = (CONSTANT.as_ptr().addr(), Box::new([0_u8; 64]));
        let (heap, stack) = (heap.as_ptr().addr(), [0_u8; 64]);
        assert!(is_of_a_file(constant, constant + 64));
        assert!(!is_of_a_file(heap, heap + 64) && !is_of_a_file(stack.as_ptr().addr(), stack.as_ptr().addr() + 64));
        assert!(!is_of_a_file(constant, heap + 64), "all of it");
        give_back();
        assert_eq!(CONSTANT, [7; 64]);
    }
}
