//! Time, randomness and the name of the machine.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use swarm_model::Machine;
use swarm_ports::{Alarm, BoxFuture, Clock};

use crate::boot_clock;

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

/// Returns the time zone of this process. That of the machine is read from its file: to find its name, the library would list
/// all zones that are installed, which takes as long as most verbs.
pub fn zone() -> TimeZone {
    if std::env::var_os("TZ").is_some() {
        return TimeZone::system();
    }
    zone_in(Path::new("/etc/localtime")).unwrap_or_else(TimeZone::system)
}

fn zone_in(file: &Path) -> Option<TimeZone> {
    TimeZone::tzif("localtime", &fs::read(file).ok()?).ok()
}

/// Returns the milliseconds since boot, suspend included; the same in all time namespaces.
pub fn boot_ms() -> u64 {
    u64::try_from(boot_clock::since_boot().as_millis()).unwrap_or(u64::MAX)
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
        bytes = (boot_clock::since_boot().as_nanos() ^ (u128::from(std::process::id()) << 96)).to_be_bytes();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    fn boot_ms(&self) -> u64 {
        boot_ms()
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
    fn a_zone_is_read_from_its_file() {
        let found = |zone: TimeZone| zone.to_offset(Timestamp::from_second(1_779_892_200).expect("is a time"));
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("localtime");
        assert!(zone_in(&file).is_none());
        // Berlin, as of a file that has only the rule for the future.
        let header = |version: u8| [b"TZif".as_slice(), &[version], &[0; 15 + 16], &[0, 0, 0, 1, 0, 0, 0, 4]].concat();
        let types = b"\0\0\x0e\x10\0\0CET\0";
        let rule = b"\nCET-1CEST,M3.5.0,M10.5.0/3\n";
        fs::write(&file, [&header(b'2'), types.as_slice(), &header(b'2'), types, rule].concat()).expect("written");
        assert_eq!(found(zone_in(&file).expect("a zone")).seconds(), 7200);
    }

    #[test]
    fn times_have_milliseconds() {
        let text = |ms| iso(Timestamp::from_millisecond(ms).expect("is a time"));
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_400_001), "2000-02-29T00:00:00.001Z");
        assert_eq!(text(1_779_892_200_123), "2026-05-27T14:30:00.123Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999Z");
    }
}
