//! Time, randomness and the name of the machine.

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use swarm_model::Machine;
use swarm_ports::{Alarm, BoxFuture, Clock};

/// Clock port on the system's clocks.
pub struct SystemClock {
    host: String,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl SystemClock {
    pub fn new() -> Self {
        Self { host: host() }
    }
}

/// Returns the name of this machine. Empty if it cannot be determined.
pub fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the milliseconds since boot, suspend included.
pub fn boot_ms() -> u64 {
    let up = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    up.map_or(0, |up| u64::try_from(up.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the milliseconds since the Unix epoch.
pub fn wall_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Returns the time in ISO 8601, UTC, with milliseconds: `2026-05-27T14:30:00.123Z`.
pub fn iso(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Returns the present time like [`iso`].
pub fn now_iso() -> String {
    iso(Timestamp::now())
}

/// Returns a random UUID (version 4, RFC 9562), the form in which agents name conversations.
pub fn random_uuid() -> String {
    let token = random_token();
    let (head, tail) = (&token[..12], &token[20..]);
    format!("{}-{}-4{}-a{}-{tail}", &head[..8], &head[8..], &token[13..16], &token[17..20])
}

/// Returns 128 random bits in lower-case hex.
pub fn random_token() -> String {
    let mut bytes = [0_u8; 16];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        // Time and pid still distinguish two starts on one machine.
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
        // Always six digits, because the parser of the original `swarm` needs them with old versions of Python.
        jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S.%6f").to_string()
    }

    fn token(&self) -> String {
        random_token()
    }

    fn machine(&self) -> Machine {
        crate::machine::this().clone()
    }

    fn host(&self) -> String {
        self.host.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        let text = |ms| iso(Timestamp::from_millisecond(ms).expect("is a time"));
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(text(1_779_892_200_123), "2026-05-27T14:30:00.123Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999Z");
    }
}
