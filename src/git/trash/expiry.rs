//! Saves go when they are old, or when all of them are too much: never by themselves
//! unless `[trash]` says so, and never unsaid.

use std::path::Path;
use std::time::Duration;

use super::saved::{self, Save};
use crate::repository::cli::Cli;
use crate::repository::fault::Fault;

/// By hand, where nothing is said.
pub const AGE: Duration = Duration::from_secs(90 * 86_400);

/// How long saves are kept, and how much of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrashPolicy {
    pub max_age: Option<Duration>,
    pub max_bytes: Option<u64>,
}

/// One that goes, or would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub save: Save,
    pub bytes: u64,
    pub why: &'static str,
}

/// Which go: those that are too old, then the oldest until the rest is small enough; the
/// newest is never too much. `saves` are the newest first.
fn due(saves: Vec<(Save, u64)>, policy: TrashPolicy, now_ms: u64) -> Vec<Due> {
    let age_max = policy.max_age.map_or(u64::MAX, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let bytes_max = policy.max_bytes.unwrap_or(u64::MAX);
    let (mut kept, mut gone) = (0_u64, Vec::new());
    for (at, (save, bytes)) in saves.into_iter().enumerate() {
        let is_old = now_ms.saturating_sub(save.at_ms) > age_max;
        let why = match at > 0 && kept.saturating_add(bytes) > bytes_max {
            _ if is_old => "it is old",
            true => "all of them are too much",
            false => {
                kept = kept.saturating_add(bytes);
                continue;
            }
        };
        gone.push(Due { save, bytes, why });
    }
    gone
}

pub(crate) fn find(cli: &Cli, common: &Path, policy: TrashPolicy, now_ms: u64) -> Result<Vec<Due>, Fault> {
    if policy == TrashPolicy::default() {
        return Ok(Vec::new());
    }
    let mut saves = Vec::new();
    for save in saved::list(cli, common)? {
        let bytes = saved::bytes(cli, common, &save)?;
        saves.push((save, bytes));
    }
    Ok(due(saves, policy, now_ms))
}

/// Forgets one, as it was seen and not otherwise.
pub(crate) fn forget(cli: &Cli, common: &Path, save: &Save) -> Result<(), Fault> {
    cli.write(common).args(["update-ref", "-d", &save.reference, &save.commit]).run()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saves() -> Vec<(Save, u64)> {
        let save = |at_ms: u64| Save {
            reference: format!("refs/swarm/trash/w/{at_ms}"),
            commit: "c".to_owned(),
            tree: "t".to_owned(),
            name: "w".to_owned(),
            stamp: at_ms.to_string(),
            number: 1,
            at_ms,
            path: None,
            branch: None,
            head: None,
            doing: None,
            changes: None,
            index: None,
            particulars: None,
        };
        [(9_000, 10), (5_000, 100), (1_000, 10)].map(|(at, bytes)| (save(at), bytes)).to_vec()
    }

    fn gone(max_age: Option<u64>, max_bytes: Option<u64>) -> Vec<(u64, &'static str)> {
        let policy = TrashPolicy { max_age: max_age.map(Duration::from_millis), max_bytes };
        due(saves(), policy, 10_000).into_iter().map(|due| (due.save.at_ms, due.why)).collect()
    }

    #[test]
    fn age_and_size_decide_and_the_newest_stay_longest() {
        assert_eq!(gone(None, None), []);
        assert_eq!(gone(Some(5_000), None), [(1_000, "it is old")]);
        assert_eq!(gone(None, Some(119)), [(1_000, "all of them are too much")]);
        assert_eq!(gone(None, Some(50)), [(5_000, "all of them are too much")], "a small old one fits");
        assert_eq!(gone(Some(8_000), Some(20)), [(5_000, "all of them are too much"), (1_000, "it is old")]);
        assert_eq!(gone(None, Some(0)).len(), 2, "not the newest");
        assert_eq!(gone(Some(500), None).len(), 3);
    }
}
