//! Time, randomness and the machine's name.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use swarm_ports::{Alarm, BoxFuture, Clock};

pub struct SystemClock {
    host: String,
}

impl SystemClock {
    pub fn new() -> Self {
        Self { host: host() }
    }
}

/// This machine's name.
pub fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Milliseconds since boot, suspend included.
pub fn boot_ms() -> u64 {
    let up = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    up.map_or(0, |up| u64::try_from(up.as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds since the Unix epoch.
pub fn wall_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// ISO 8601 in UTC, with milliseconds: `2026-05-27T14:30:00.123Z`.
pub fn iso(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

pub fn now_iso() -> String {
    iso(Timestamp::now())
}

/// Random bits in the form that conversations are named by (version 4, RFC 9562).
pub fn random_uuid() -> String {
    let token = random_token();
    let (head, tail) = (&token[..12], &token[20..]);
    format!("{}-{}-4{}-a{}-{tail}", &head[..8], &head[8..], &token[13..16], &token[17..20])
}

/// 128 random bits in hex.
pub fn random_token() -> String {
    let mut bytes = [0_u8; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        // Time and pid still tell two starts on one machine apart.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from).unwrap_or_default();
        bytes = (now.as_nanos() ^ (u128::from(std::process::id()) << 96)).to_be_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn boot_ms(&self) -> u64 {
        let up = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from).unwrap_or_default();
        u64::try_from(up.as_millis()).unwrap_or(u64::MAX)
    }

    fn alarm(&self, alarm: Alarm) -> BoxFuture<'_, ()> {
        Box::pin(super::alarm::ring(alarm))
    }

    fn started(&self) -> String {
        // Always six digits: the original's parser in old Pythons wants them.
        jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S.%6f").to_string()
    }

    fn token(&self) -> String {
        random_token()
    }

    fn host(&self) -> String {
        self.host.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_of_a_second() {
        let text = |ms| iso(Timestamp::from_millisecond(ms).expect("is a time"));
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(text(1_779_892_200_123), "2026-05-27T14:30:00.123Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999Z");
    }
}
