//! The boot clock of the machine. In a time namespace, the kernel shows another one, and other start times of processes.
//! Times that processes compare with each other count from the boot of the machine, in every time namespace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Length of a clock tick in nanoseconds, the unit of start times.
const TICK_NS: i64 = 10_000_000;

/// Returns the time since boot, suspend included.
pub fn since_boot() -> Duration {
    let shown = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
    machine_time(shown, offset_ns())
}

/// Returns the time that the kernel shows to this process when that much has passed since boot.
pub fn shown_ms(since_boot_ms: u64) -> u64 {
    since_boot_ms.saturating_add_signed(offset_ns() / 1_000_000)
}

/// Returns the start time of a process in ticks since boot. `shown` is the one in its file in `/proc`.
pub fn start_ticks(shown: u64) -> u64 {
    shown.saturating_add_signed(-(offset_ns().div_euclid(TICK_NS)))
}

fn machine_time(shown: Duration, offset_ns: i64) -> Duration {
    let offset = Duration::from_nanos(offset_ns.unsigned_abs());
    if offset_ns < 0 { shown.saturating_add(offset) } else { shown.saturating_sub(offset) }
}

/// Returns by how much the clock that this process sees is ahead. A process never leaves its time namespace.
fn offset_ns() -> i64 {
    static OFFSET: OnceLock<i64> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        let inode = |leaf: &str| fs::metadata(format!("/proc/self/ns/{leaf}")).map(|meta| meta.ino()).ok();
        // The file is about the namespace of the process's children, which is another one until it executes a program.
        let is_own = inode("time") == inode("time_for_children");
        let text = fs::read_to_string("/proc/self/timens_offsets").ok().filter(|_| is_own);
        text.and_then(|text| parse(&text)).unwrap_or(0)
    })
}

/// Returns the offset of the boot clock in the text of `/proc/self/timens_offsets`.
fn parse(text: &str) -> Option<i64> {
    let fields = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let of_clock = |fields: Vec<&str>| match fields[..] {
        // Older kernels print the number of the clock.
        ["boottime" | "7", seconds, nanoseconds] => {
            let (seconds, rest): (i64, i64) = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
            seconds.checked_mul(1_000_000_000)?.checked_add(rest)
        }
        _ => None,
    };
    fields.into_iter().find_map(of_clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_the_boot_clock_is_read() {
        let text = |line: &str| format!("monotonic  77  5\n{line}\n");
        assert_eq!(parse(&text("boottime      100000         0")), Some(100_000_000_000_000));
        assert_eq!(parse(&text("7     -2  500000000")), Some(-1_500_000_000));
        for other in ["boottime 1", "boottime x 0", "", "boottime 9223372036854775807 0"] {
            assert_eq!(parse(&text(other)), None, "{other}");
        }
    }

    #[test]
    fn the_clock_of_the_machine_is_behind_one_that_is_ahead() {
        let second = Duration::from_secs(1);
        assert_eq!(machine_time(3 * second, 1_000_000_000), 2 * second);
        assert_eq!(machine_time(3 * second, -1_000_000_000), 4 * second);
        assert_eq!(machine_time(second, 3_000_000_000), Duration::ZERO);
    }

    #[test]
    fn a_process_of_the_machine_sees_the_clock_of_the_machine() {
        // In a time namespace, both differ from what the kernel shows by the same.
        let shown = |ms: u64| i128::from(shown_ms(ms)) - i128::from(ms);
        assert_eq!(shown(10_000_000), i128::from(offset_ns() / 1_000_000));
        assert_eq!(start_ticks(u64::MAX / 2).abs_diff(u64::MAX / 2), offset_ns().div_euclid(TICK_NS).unsigned_abs());
    }
}
