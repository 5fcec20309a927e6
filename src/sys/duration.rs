//! Durations as people type them: `90`, `0.5`, `90s`, `5m`, `1h30m`, `90d`.

use std::time::Duration;

use serde::Deserialize;

/// Longest duration taken: a hundred years, far from every overflow.
const SECONDS_MAX: f64 = 100.0 * 366.0 * 86_400.0;

/// Reads a duration; days, hours, minutes and seconds in that order, each at most once.
///
/// # Errors
/// A sentence for the usage error.
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

/// As [`parse`], for limits where nothing at all makes no sense.
///
/// # Errors
/// A sentence for the usage error.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    parse(text).and_then(|duration| if duration.is_zero() { Err("must be above 0".into()) } else { Ok(duration) })
}

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

/// As files have it: seconds as a number, or the same texts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
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
    fn what_is_no_duration_is_refused() {
        for text in ["", "x", "5x", "m", "30m1h", "1h1h", "-1", "1e3", "nan", "inf", "1 m", "5m3", "1.2.3", ".", "1_0"]
        {
            assert!(parse(text).is_err(), "{text:?} was taken");
        }
        assert!(parse("99999999999999999999").is_err());
        assert!(parse_positive("0").is_err() && parse_positive("0s").is_err());
    }
}
