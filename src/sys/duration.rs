//! Durations as people type them: `90`, `0.5`, `90s`, `5m`, `1h30m`, `90d`.

use std::time::Duration;

use serde::Deserialize;

/// Maximum duration: a hundred years, far below any overflow.
const SECONDS_MAX: f64 = 100.0 * 366.0 * 86_400.0;

/// Parses a duration: seconds, or days, hours, minutes and seconds in this order, each at most once.
///
/// # Errors
/// Returns a message if the text is not a duration, or is longer than a hundred years.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration (expected 90, 90s, 5m or 1h30m)");
    let seconds = if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        text.parse::<f64>().map_err(|_| wrong())?
    } else {
        with_units(text).ok_or_else(wrong)?
    };
    if seconds > SECONDS_MAX {
        return Err(format!("'{text}' is longer than a hundred years"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a duration like [`parse`], for limits that cannot be 0.
///
/// # Errors
/// Fails as [`parse`] does, and if the duration is 0.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    parse(text).and_then(|duration| if duration.is_zero() { Err("must be above 0".into()) } else { Ok(duration) })
}

/// Returns the seconds of a duration with units. `None` if the text is malformed.
fn with_units(text: &str) -> Option<f64> {
    let mut rest = text;
    let mut total = 0.0;
    for (unit, factor) in [('d', 86_400.0), ('h', 3600.0), ('m', 60.0), ('s', 1.0)] {
        let Some((number, after)) = rest.split_once(unit) else { continue };
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return None;
        }
        total += number.parse::<f64>().ok()? * factor;
        rest = after;
    }
    (rest.is_empty() && !text.is_empty()).then_some(total)
}

/// Duration in a file: seconds as a number, or text as on the command line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected seconds or a duration such as '10m'")]
pub enum NumberOrText {
    Number(u64),
    Text(String),
}

impl NumberOrText {
    pub fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_all_their_forms() {
        let cases = [("90", 90.0), ("0", 0.0), ("0.5", 0.5), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0)];
        for (text, seconds) in
            cases.into_iter().chain([("1h2m3s", 3723.0), ("2h3s", 7203.0), ("1.5m", 90.0), ("2d1h", 176_400.0)])
        {
            assert_eq!(parse(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn malformed_durations_are_refused() {
        for text in ["", "x", "5x", "m", "30m1h", "1h1h", "-1", "1e3", "nan", "inf", "1 m", "5m3", "1.2.3", ".", "1_0"]
        {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
        assert!(parse("99999999999999999999").is_err());
        assert!(parse_positive("0").is_err() && parse_positive("0s").is_err());
    }
}
