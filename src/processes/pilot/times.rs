//! What an allocation still takes on, by the time that is left of it. Pure.
//!
//! | part of the allocation | what it does |
//! |---|---|
//! | all but the last 30 minutes, or the last quarter if that is shorter | starts whatever would end in time |
//! | after that | starts nothing for runs; what works goes on |
//! | the last 5 minutes, or the last tenth | ends all workers, so that their work is committed and fetched |

use std::time::Duration;

/// Maximum time before the end in which nothing is started.
const CLOSED_MAX: Duration = Duration::from_secs(30 * 60);
/// Part of the allocation in which nothing is started.
const CLOSED_PART: u32 = 4;
/// Maximum time before the end at which all workers are ended.
const STOPS_MAX: Duration = Duration::from_secs(5 * 60);
const STOPS_PART: u32 = 10;

/// Times of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From its begin to its end.
    pub all: Duration,
    pub left: Duration,
}

/// Why something is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing is.
    Closed,
    /// Its own limit is longer than the time that is left.
    TooLong,
}

impl Times {
    /// Returns the time before the end at which all workers are ended.
    pub fn stops(&self) -> Duration {
        STOPS_MAX.min(self.all / STOPS_PART)
    }

    fn closed(&self) -> Duration {
        CLOSED_MAX.min(self.all / CLOSED_PART)
    }

    /// Reports whether all workers are to be ended now.
    pub fn is_over(&self) -> bool {
        self.left <= self.stops()
    }

    /// Returns why something with this time limit is not started; `None` if it is.
    pub fn refuses(&self, limit: Option<Duration>) -> Option<Refused> {
        if self.left <= self.closed() {
            return Some(Refused::Closed);
        }
        limit.is_some_and(|limit| limit > self.left - self.stops()).then_some(Refused::TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_that_would_not_end_in_time() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        for (all, left, limit, expected) in [
            (480, 480, None, None),
            (480, 31, None, None),
            (480, 30, None, Some(Refused::Closed)),
            (480, 0, None, Some(Refused::Closed)),
            (480, 60, Some(55), None),
            (480, 60, Some(56), Some(Refused::TooLong)),
            // As short as the pause at the end of a long one.
            (30, 30, None, None),
            (30, 8, None, None),
            (30, 7, None, Some(Refused::Closed)),
            (30, 30, Some(27), None),
            (30, 30, Some(28), Some(Refused::TooLong)),
            (4, 2, None, None),
            (4, 1, None, Some(Refused::Closed)),
        ] {
            let times = Times { all: minutes(all), left: minutes(left) };
            assert_eq!(times.refuses(limit.map(minutes)), expected, "{all} {left} {limit:?}");
        }
    }

    #[test]
    fn workers_are_ended_some_minutes_before_the_end() {
        for (all, left, expected) in
            [(28_800, 301, false), (28_800, 300, true), (600, 61, false), (600, 60, true), (0, 0, true)]
        {
            let times = Times { all: Duration::from_secs(all), left: Duration::from_secs(left) };
            assert_eq!(times.is_over(), expected, "{all} {left}");
        }
    }
}
