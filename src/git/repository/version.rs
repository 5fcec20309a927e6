//! Checks that git responds and is new enough. Each git program is checked once per process,
//! before any other use, so that a git that hangs is recognized early.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::cli::{Cli, CliError};

/// First version with `merge-tree --write-tree`.
const OLDEST: (u32, u32) = (2, 38);
/// Time limit for `git version`.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Programs that passed the check, with their modification times.
static KNOWN: Mutex<BTreeMap<PathBuf, Option<SystemTime>>> = Mutex::new(BTreeMap::new());

pub(crate) fn check(cli: &Cli) -> Result<(), CliError> {
    check_within(cli, ANSWER_MAX)
}

fn check_within(cli: &Cli, limit: Duration) -> Result<(), CliError> {
    let program = cli.program();
    let written = fs::metadata(program).and_then(|meta| meta.modified()).ok();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known().get(program) == Some(&written) {
        return Ok(());
    }
    let said = cli.read(Path::new("/")).limit(limit).arg("version").finish(&[0]);
    let said = match said {
        Err(CliError::Timeout(_)) => return Err(CliError::Silent(limit.as_secs())),
        said => String::from_utf8_lossy(&said?.1).into_owned(),
    };
    let version = said.trim().trim_start_matches("git version ");
    if number(version).is_some_and(|number| number < OLDEST) {
        return Err(CliError::Old(version.to_owned()));
    }
    known().insert(program.to_owned(), written);
    Ok(())
}

/// Parses major and minor version. `None` (unparsable) does not count as too old.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, is_old) in [("2.9.5", true), ("2.37.4", true), ("2.38.0", false), ("3.0", false), ("odd", false)]
        {
            assert_eq!(number(version).is_some_and(|number| number < OLDEST), is_old, "{version}");
        }
    }

    #[test]
    fn one_that_is_too_old_is_said_so_each_time() {
        let mut fix = Fixture::new();
        let stub = fix.root.join("old/git");
        fix.script(&stub, "echo git version 2.30.2");
        let path = format!("{}:{}", fix.root.join("old").display(), std::env::var("PATH").unwrap());
        fix.set("PATH", &path);
        for _ in 0..2 {
            let error = fix.cli().read(&fix.repo).args(["status"]).run().unwrap_err();
            assert_eq!(error.to_string(), "git 2.30.2 is too old");
        }
    }

    #[test]
    fn one_that_hangs_is_told_from_one_that_works() {
        let mut fix = Fixture::new();
        fix.script(&fix.root.join("hangs/git"), "exec sleep 600");
        let path = format!("{}:{}", fix.root.join("hangs").display(), std::env::var("PATH").unwrap());
        let works = check_within(&fix.cli(), ANSWER_MAX);
        fix.set("PATH", &path);
        let hangs = check_within(&fix.cli(), Duration::from_millis(50));
        assert!(works.is_ok() && matches!(hangs, Err(CliError::Silent(_))), "{works:?} {hangs:?}");
    }
}
