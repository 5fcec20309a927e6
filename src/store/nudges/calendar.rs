//! Computes the dates of cron expressions in the local time zone.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Maximum number of cached expressions.
const REMEMBERED_MAX: usize = 4096;

/// Cache of the next date of each expression, which is the answer for every earlier moment since it was computed.
#[derive(Default)]
pub struct Calendar(Mutex<BTreeMap<String, (u64, u64)>>);

impl Calendar {
    /// Returns the first date after `wall_ms` in Unix milliseconds.
    ///
    /// # Errors
    /// Fails as [`date_after`] does.
    pub fn date_after(&self, expression: &str, wall_ms: u64) -> Result<u64, String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((from, date)) = known.get(expression)
            && (*from..*date).contains(&wall_ms)
        {
            return Ok(*date);
        }
        let date = date_after(expression, wall_ms, &TimeZone::system())?;
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(expression.to_owned(), (wall_ms, date));
        Ok(date)
    }
}

/// Returns the first date after `wall_ms` in this time zone, in Unix milliseconds.
///
/// # Errors
/// Fails with a message for users if the expression is invalid or has no later date.
pub fn date_after(expression: &str, wall_ms: u64, zone: &TimeZone) -> Result<u64, String> {
    let wrong = |why: String| format!("invalid cron expression '{expression}': {why}");
    let cron = parse(expression).map_err(wrong)?;
    let after = i64::try_from(wall_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let after = after.ok_or_else(|| wrong("the time is out of range".to_owned()))?;
    let date = cron.find_next_occurrence(&after.to_zoned(zone.clone()), false);
    let date = date.map_err(|_| wrong("no date in the future".to_owned()))?;
    Ok(u64::try_from(date.timestamp().as_millisecond()).unwrap_or(0))
}

fn parse(expression: &str) -> Result<Cron, String> {
    let fields = expression.split_whitespace().count();
    if fields != 5 && !expression.trim_start().starts_with('@') {
        return Err(format!("expected 5 fields (minute hour day month weekday), found {fields}"));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(expression).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> u64 {
        u64::try_from(text.parse::<Timestamp>().expect("a time").as_millisecond()).expect("after 1970")
    }

    fn next(expression: &str, after: &str, zone: &str) -> Result<String, String> {
        let zone = TimeZone::posix(zone).expect("a zone");
        let date = date_after(expression, ms(after), &zone)?;
        let at = Timestamp::from_millisecond(i64::try_from(date).expect("small")).expect("a time");
        Ok(at.to_string())
    }

    #[test]
    fn five_fields_have_the_meaning_of_cron() {
        for (expression, after, date) in [
            ("* * * * *", "2026-03-05T10:00:30Z", "2026-03-05T10:01:00Z"),
            ("*/15 9-17 * * 1-5", "2026-03-06T17:50:00Z", "2026-03-09T09:00:00Z"),
            ("0 9 * * MON", "2026-03-09T09:00:00Z", "2026-03-16T09:00:00Z"),
            ("30 4 1,15 * *", "2026-03-02T00:00:00Z", "2026-03-15T04:30:00Z"),
            ("0 0 29 2 *", "2026-03-02T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("@daily", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"),
        ] {
            assert_eq!(next(expression, after, "UTC0").as_deref(), Ok(date), "{expression}");
        }
    }

    #[test]
    fn dates_are_local_also_if_an_hour_is_skipped_or_repeated() {
        let zone = "CET-1CEST,M3.5.0,M10.5.0/3";
        assert_eq!(next("0 9 * * *", "2026-07-01T00:00:00Z", zone).as_deref(), Ok("2026-07-01T07:00:00Z"));
        // 2:30 does not exist in that night; in autumn it occurs twice.
        let spring = next("30 2 * * *", "2026-03-28T12:00:00Z", zone).expect("a date");
        assert!(spring.starts_with("2026-03-29T01:"), "{spring}");
        let first = next("30 2 * * *", "2026-10-24T12:00:00Z", zone).expect("a date");
        assert_eq!(first, "2026-10-25T00:30:00Z");
        assert_eq!(next("30 2 * * *", &first, zone).as_deref(), Ok("2026-10-26T01:30:00Z"), "once a night");
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for text in ["", "* * * *", "* * * * * *", "61 * * * *", "* * * * funday", "0 0 30 2 *", "a b c d e", "@often"]
        {
            let refused = date_after(text, ms("2026-03-05T10:00:00Z"), &TimeZone::UTC);
            let cause = refused.expect_err(text);
            assert!(cause.starts_with(&format!("invalid cron expression '{text}': ")), "{cause}");
        }
    }

    #[test]
    fn cached_dates_equal_computed_ones() {
        let calendar = Calendar::default();
        let mut at = ms("2026-03-05T10:00:00Z");
        for _ in 0..50 {
            for expression in ["*/7 * * * *", "0 * * * *"] {
                let found = date_after(expression, at, &TimeZone::system());
                assert_eq!(calendar.date_after(expression, at), found, "{expression} {at}");
            }
            at += 61_000;
        }
        let back = ms("2026-03-05T09:00:01Z");
        assert_eq!(calendar.date_after("0 * * * *", back), date_after("0 * * * *", back, &TimeZone::system()));
    }
}
