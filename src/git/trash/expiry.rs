//! Expiry of saves that are too old or exceed the total size. Nothing expires automatically
//! unless `[trash]` configures it, and every expired save is reported.

use std::path::Path;
use std::time::Duration;

use super::saved::{self, Save};
use crate::repository::cli::Cli;
use crate::repository::deletion;
use crate::repository::fault::Fault;

/// Maximum age for `swarm restore --expire` if no limit is given or configured.
pub const AGE: Duration = Duration::from_secs(90 * 86_400);

/// Limits on the age and the total size of saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrashPolicy {
    pub max_age: Option<Duration>,
    pub max_bytes: Option<u64>,
}

/// A save that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub save: Save,
    pub bytes: u64,
    pub why: &'static str,
}

/// Returns the saves to delete: those that are too old, then the oldest until the rest is small
/// enough. The size limit never deletes the newest. `saves` are sorted from newest to oldest.
fn due(saves: Vec<(Save, u64)>, policy: TrashPolicy, now_ms: u64) -> Vec<Due> {
    let age_max = policy.max_age.map_or(u64::MAX, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let bytes_max = policy.max_bytes.unwrap_or(u64::MAX);
    let (mut kept, mut gone) = (0_u64, Vec::new());
    for (at, (save, bytes)) in saves.into_iter().enumerate() {
        let is_old = now_ms.saturating_sub(save.at_ms) > age_max;
        let why = match at > 0 && kept.saturating_add(bytes) > bytes_max {
            _ if is_old => "older than the age limit",
            true => "total size over the limit",
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

/// Deletes a save unless its ref changed since it was read.
pub(crate) fn forget(cli: &Cli, common: &Path, save: &Save) -> Result<(), Fault> {
    deletion::delete(cli, common, &save.reference, Some(&save.commit)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "older than the age limit";
    const LARGE: &str = "total size over the limit";

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
            metadata: None,
            autostash: None,
            commits: None,
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
        assert_eq!(gone(Some(5_000), None), [(1_000, OLD)]);
        assert_eq!(gone(None, Some(119)), [(1_000, LARGE)]);
        assert_eq!(gone(None, Some(50)), [(5_000, LARGE)], "a small old one fits");
        assert_eq!(gone(Some(8_000), Some(20)), [(5_000, LARGE), (1_000, OLD)]);
        assert_eq!(gone(None, Some(0)).len(), 2, "not the newest");
        assert_eq!(gone(Some(500), None).len(), 3);
    }
}
