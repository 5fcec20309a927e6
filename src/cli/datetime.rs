//! Parses times as users type them: a duration (ago), a time of today, a date, or date and time.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use super::duration;

const EXPECTED: &str = "expected 10m, 2d, 12:30, 2026-01-31 or 2026-01-31T12:30:05";

/// Parses a time; returns milliseconds since the Unix epoch.
///
/// # Errors
/// Returns the expected formats, for the usage error.
pub fn parse(text: &str) -> Result<u64, String> {
    parse_at(text, &Timestamp::now().to_zoned(TimeZone::system()))
}

/// Parses the begin of a time in the past: a time of day that is still to come today is that of yesterday.
///
/// # Errors
/// Returns the expected formats, for the usage error.
pub fn parse_begin(text: &str) -> Result<u64, String> {
    begin_at(text, &Timestamp::now().to_zoned(TimeZone::system()))
}

fn begin_at(text: &str, now: &Zoned) -> Result<u64, String> {
    let at = parse_at(text, now)?;
    let is_to_come = i64::try_from(at).is_ok_and(|at| at > now.timestamp().as_millisecond());
    let is_time = ago(text, now).is_none() && text.parse::<DateTime>().is_err() && text.parse::<Time>().is_ok();
    match is_to_come && is_time {
        true => now.yesterday().map_err(|_| EXPECTED.to_owned()).and_then(|yesterday| parse_at(text, &yesterday)),
        false => Ok(at),
    }
}

fn parse_at(text: &str, now: &Zoned) -> Result<u64, String> {
    let wrong = || EXPECTED.to_owned();
    let local = |then: DateTime| then.to_zoned(now.time_zone().clone()).map(|then| then.timestamp()).ok();
    let moment = ago(text, now)
        .or_else(|| text.parse::<Timestamp>().ok())
        // Before the time of day, whose parser would ignore a leading date.
        .or_else(|| local(text.parse::<DateTime>().ok()?))
        .or_else(|| local(text.parse::<Time>().ok()?.on(now.year(), now.month(), now.day())))
        .ok_or_else(wrong)?;
    u64::try_from(moment.as_millisecond()).map_err(|_| wrong())
}

fn ago(text: &str, now: &Zoned) -> Option<Timestamp> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    let span = match days {
        Some(days) => SignedDuration::from_hours(24 * i64::from(days)),
        None => SignedDuration::try_from(duration::parse(text).ok()?).ok()?,
    };
    now.timestamp().checked_sub(span).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_all_formats() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().expect("a time");
        let now = now.to_zoned(TimeZone::fixed(jiff::tz::offset(1)));
        for (text, moment) in [
            ("10m", "2026-01-31T11:50:00Z"),
            ("90", "2026-01-31T11:58:30Z"),
            ("2d", "2026-01-29T12:00:00Z"),
            ("12:30", "2026-01-31T11:30:00Z"),
            ("2026-01-30", "2026-01-29T23:00:00Z"),
            ("2026-01-30 08:15", "2026-01-30T07:15:00Z"),
            ("2026-01-30T08:15:10", "2026-01-30T07:15:10Z"),
            ("2026-01-30T08:15:10Z", "2026-01-30T08:15:10Z"),
            ("2026-01-30T08:15:10-05:00", "2026-01-30T13:15:10Z"),
        ] {
            let expected: Timestamp = moment.parse().expect("a time");
            assert_eq!(
                parse_at(text, &now),
                u64::try_from(expected.as_millisecond()).map_err(|_| String::new()),
                "{text}"
            );
        }
        for text in ["", "soon", "25:00", "2026-13-01", "10x", "-5m", "1900-01-01"] {
            assert!(parse_at(text, &now).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_of_day_that_is_to_come_begins_yesterday() {
        let now: Timestamp = "2026-01-31T03:00:00Z".parse().expect("a time");
        let now = now.to_zoned(TimeZone::UTC);
        for (text, moment) in [
            ("23:00", "2026-01-30T23:00:00Z"),
            ("02:00", "2026-01-31T02:00:00Z"),
            ("2026-01-31T23:00:00", "2026-01-31T23:00:00Z"),
            ("2026-02-01", "2026-02-01T00:00:00Z"),
            ("10m", "2026-01-31T02:50:00Z"),
        ] {
            let expected: Timestamp = moment.parse().expect("a time");
            assert_eq!(
                begin_at(text, &now),
                u64::try_from(expected.as_millisecond()).map_err(|_| String::new()),
                "{text}"
            );
        }
    }
}
