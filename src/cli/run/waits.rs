//! Why jobs wait that could start if a host had a place for them.

use std::collections::BTreeMap;

use swarm_actors::run::place::{NoSeat, without_place};
use swarm_model::run::progress::{Run, Unfit};

use crate::board::run::{InTheWay, quoted};
use crate::cli::render::Clock;

/// Returns the jobs that wait for a host, by index.
pub fn of(run: &Run) -> BTreeMap<usize, InTheWay<'_>> {
    without_place(run).into_iter().collect()
}

/// Returns since when something is so, in Unix milliseconds, as the end of a sentence. Nothing if it is not known.
pub fn since(since_ms: u64, clock: &Clock) -> String {
    let at = Some(since_ms).filter(|at_ms| *at_ms > 0).and_then(|at_ms| clock.brief(at_ms));
    at.map_or_else(String::new, |at| format!(" since {at}"))
}

/// Returns as text what is in the way on each host.
pub fn words(hosts: &[(&str, NoSeat)], clock: &Clock) -> String {
    let word = |(host, why): &(&str, NoSeat)| match why {
        NoSeat::Tags(tags) => format!("{host} lacks {}", quoted(tags.iter().copied())),
        NoSeat::Unfit(Unfit { program: Some(program), .. }) => format!("{host} has no '{program}'"),
        NoSeat::Unfit(unfit) => format!("{host} cannot take it: {}", unfit.cause),
        NoSeat::Closed(closed) => {
            format!("{host} is {}{}: {}", closed.kind.word(), since(closed.since_ms, clock), closed.cause)
        }
        NoSeat::GivenUp => format!("{host} still has an attempt that was given up"),
        NoSeat::Full => format!("{host} is full"),
    };
    format!("waits for a host: {}", hosts.iter().map(word).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;
    use serde_json::json;
    use swarm_model::run::progress::{Closed, ClosedKind};
    use swarm_store::runs::home::iso;

    use super::*;

    #[test]
    fn what_is_in_the_way_is_named_for_each_host() {
        let now: Timestamp = "2026-01-31T18:00:00Z".parse().expect("a time");
        let clock = Clock { now, zone: TimeZone::UTC };
        let ms = |hours: i64| u64::try_from(now.as_millisecond() - hours * 3_600_000 + 120_000).expect("after 1970");
        let closed =
            |kind, since_ms| Closed { kind, cause: "why".into(), since_ms, tries: 1, refusals: 0, until_ms: Some(1) };
        let unfit = |program: Option<&str>| {
            let (program, cause) = (program.map(str::to_owned), "its branch is in use".to_owned());
            Unfit { program, cause, tries: 1, until_ms: Some(1) }
        };
        let (away, old) = (closed(ClosedKind::Away, ms(4)), closed(ClosedKind::Away, ms(48)));
        let (refused, busy) = (closed(ClosedKind::Refused, 0), closed(ClosedKind::Busy, ms(1)));
        let (lacks, used) = (unfit(Some("codex")), unfit(None));
        let hosts = [
            ("a", NoSeat::Full),
            ("b", NoSeat::Closed(&away)),
            ("c", NoSeat::Closed(&old)),
            ("d", NoSeat::Closed(&refused)),
            ("e", NoSeat::Closed(&busy)),
            ("f", NoSeat::Unfit(&lacks)),
            ("g", NoSeat::Unfit(&used)),
            ("h", NoSeat::Tags(vec!["gpu", "big"])),
        ];
        assert_eq!(
            words(&hosts, &clock),
            "waits for a host: a is full, b is out of reach since 14:02: why, c is out of reach since 2026-01-29 18:02: why, d is \
             not usable: why, e is busy since 17:02: why, f has no 'codex', g cannot take it: its branch is in use, h lacks \
             'gpu', 'big'"
        );
        let objects = crate::board::run::seats(&hosts);
        let reasons: Vec<&str> = objects.iter().filter_map(|object| object["reason"].as_str()).collect();
        assert_eq!(reasons, ["full", "away", "away", "refused", "busy", "unfit", "unfit", "tags"]);
        assert_eq!(objects[1], json!({"host": "b", "reason": "away", "cause": "why", "since": iso(ms(4))}));
        assert_eq!(objects[0], json!({"host": "a", "reason": "full", "cause": null, "since": null}));
    }
}
