//! End of a provider's limit, from the words in which an agent reports it. Pure functions of the current time and zone.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// Time for which a date may have passed and still counts as the end of a limit: the message is older than the clock, and
/// its minutes are rounded down.
const PAST_MAX: i64 = 15 * 60;

/// Words before the time at which a limit ends.
const MARKS: [&str; 3] = ["try again at ", "resets at ", "resets "];

/// Returns the end of a limit in Unix milliseconds if the message has it: `try again in 1.5s`, `try again at 4:35 PM.`,
/// `try again at Jan 15th, 2027 8:00 AM`, `resets 4:29pm (UTC)` or `resets Nov 25, 2:30pm (Europe/Berlin)`. `zone` is the
/// zone of times that name none. A time without a date is the next one, and a date without a year the next one.
pub fn reset(message: &str, now_ms: u64, zone: &TimeZone) -> Option<u64> {
    if let Some((_, rest)) = message.split_once("try again in ") {
        return Some(now_ms.saturating_add(duration(rest)?));
    }
    let now = Timestamp::from_millisecond(i64::try_from(now_ms).ok()?).ok()?;
    let words = MARKS.iter().find_map(|mark| message.split_once(mark))?.1;
    let until = date(words, now, zone)?;
    u64::try_from(until.timestamp().as_millisecond()).ok()
}

/// Returns a duration such as `1.5s` in milliseconds.
fn duration(text: &str) -> Option<u64> {
    let number: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let amount: f64 = number.trim_end_matches('.').parse().ok()?;
    let unit = text[number.len()..].trim_start();
    let factor = match unit {
        unit if unit.starts_with("ms") => 1.0,
        unit if unit.starts_with('s') || number.ends_with('.') => 1_000.0,
        unit if unit.starts_with('m') => 60_000.0,
        unit if unit.starts_with('h') => 3_600_000.0,
        unit if unit.starts_with('d') => 86_400_000.0,
        _ => return None,
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of a few days in milliseconds")]
    let milliseconds = (amount * factor) as u64;
    Some(milliseconds)
}

/// Parses `[Nov 25[th],] [2027,] 2:30[ ]pm [(ZONE)]` at the beginning of a text.
fn date(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Zoned> {
    let (text, named) = match text.split_once('(') {
        Some((before, rest)) => (before, Some(rest.split_once(')')?.0)),
        None => (text, None),
    };
    // A zone that is not known would make the date wrong by hours.
    let zone = match named {
        Some(name) => TimeZone::get(name).ok()?,
        None => zone.clone(),
    };
    let mut words = text.split_whitespace().filter(|word| *word != "at").peekable();
    let month = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let (mut day, mut year) = (None, None);
    if month.is_some() {
        let number = words.next()?.trim_end_matches(',').trim_end_matches(|c: char| c.is_ascii_alphabetic());
        day = Some(number.parse::<i8>().ok()?);
        let is_year = |word: &&str| word.trim_end_matches(',').len() == 4 && !word.contains(':');
        year = words.next_if(is_year).and_then(|word| word.trim_end_matches(',').parse::<i16>().ok());
    }
    let time = time(words.next()?, words.next())?;
    let earliest = now.checked_sub(Span::new().seconds(PAST_MAX)).ok()?;
    let here = earliest.to_zoned(zone.clone()).date();
    let on = |date: Date| date.to_datetime(time).to_zoned(zone.clone()).ok();
    let Some((month, day)) = month.zip(day) else {
        // The earliest time may be before midnight.
        let days = [Some(here), here.tomorrow().ok()];
        return days.into_iter().flatten().filter_map(on).find(|at| at.timestamp() >= earliest);
    };
    let month = month_of(month)?;
    if let Some(year) = year {
        return on(Date::new(year, month, day).ok()?);
    }
    let dates = [here.year(), here.year() + 1].map(|year| Date::new(year, month, day).ok());
    dates.into_iter().flatten().filter_map(on).find(|at| at.timestamp() >= earliest)
}

/// Parses `4:35 PM`, `4:29pm` or `8am`; `next` is the word after it.
fn time(word: &str, next: Option<&str>) -> Option<Time> {
    let end = word.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(word.len());
    let (digits, half) = word.split_at(end);
    let half = if half.is_empty() { next? } else { half };
    let half: String = half.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_lowercase();
    let (hour, minute) = digits.split_once(':').unwrap_or((digits, "0"));
    let hour: i8 = hour.parse().ok().filter(|hour| (1..=12).contains(hour))?;
    let afternoon = match half.as_str() {
        "am" => 0,
        "pm" => 12,
        _ => return None,
    };
    Time::new(hour % 12 + afternoon, minute.parse().ok()?, 0, 0).ok()
}

fn month_of(word: &str) -> Option<i8> {
    const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let word = word.to_lowercase();
    let at = MONTHS.iter().position(|month| word.starts_with(month))?;
    i8::try_from(at + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> u64 {
        let at: Timestamp = text.parse().expect("a time");
        u64::try_from(at.as_millisecond()).expect("after 1970")
    }

    const NEW_YORK: &str = "EST5EDT,M3.2.0,M11.1.0";
    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    const UTC: &str = "UTC0";

    /// Checks messages that are read at `now` in a zone: each has its end, or none.
    fn check(now: &str, zone: &str, cases: &[(&str, Option<&str>)]) {
        let zone = TimeZone::posix(zone).expect("a zone");
        for (message, until) in cases {
            assert_eq!(reset(message, at(now), &zone), until.map(at), "{message} at {now}");
        }
    }

    #[test]
    fn a_time_of_day_is_the_next_one_in_its_zone() {
        check(
            "2026-11-23T14:00:00Z",
            NEW_YORK,
            &[
                ("You\u{2019}ve hit your usage limit or try again at 4:35 PM.", Some("2026-11-23T21:35:00Z")),
                ("You've hit your limit \u{b7} resets 4:29pm (UTC)", Some("2026-11-23T16:29:00Z")),
                ("You've hit your limit \u{b7} resets 4am (Europe/Berlin)", Some("2026-11-24T03:00:00Z")),
                ("resets 12am (UTC)", Some("2026-11-24T00:00:00Z")),
                ("resets 12:05pm (UTC)", Some("2026-11-24T12:05:00Z")),
                // Just passed: the limit is over.
                ("resets 1:50pm (UTC)", Some("2026-11-23T13:50:00Z")),
            ],
        );
        // Around midnight.
        check("2026-11-24T00:05:00Z", UTC, &[("try again at 11:58 PM.", Some("2026-11-23T23:58:00Z"))]);
    }

    #[test]
    fn a_date_without_a_year_is_the_next_one() {
        check(
            "2026-11-23T14:00:00Z",
            UTC,
            &[
                ("You've hit your weekly limit \u{b7} resets Nov 25, 2:30pm (UTC)", Some("2026-11-25T14:30:00Z")),
                ("resets Jan 2, 8am (UTC)", Some("2027-01-02T08:00:00Z")),
                ("5-hour limit \u{b7} resets Jan 15, 2027, 8am (UTC)", Some("2027-01-15T08:00:00Z")),
                ("try again at Jan 15th, 2027 8:00 AM.", Some("2027-01-15T08:00:00Z")),
                ("resets Nov 25 at 2:30pm (UTC)", Some("2026-11-25T14:30:00Z")),
            ],
        );
    }

    #[test]
    fn a_change_of_the_clock_is_taken_into_account() {
        // Summer time ends in the night.
        check("2026-10-24T20:00:00Z", BERLIN, &[("try again at 8:00 AM.", Some("2026-10-25T07:00:00Z"))]);
    }

    #[test]
    fn other_words_are_no_date() {
        check(
            "2026-11-23T14:00:00Z",
            UTC,
            &[
                ("You've hit your limit", None),
                ("resets soon", None),
                ("resets 25:00pm", None),
                ("resets 4:29", None),
                ("resets 4:29pm (Moon/Base)", None),
                ("try again at Feb 30, 8am", None),
                ("try again in a while", None),
                ("try again at ", None),
                ("resets Nov", None),
                ("try again in 1.5s", Some("2026-11-23T14:00:01.5Z")),
            ],
        );
    }
}
