//! What swarm stands on: room and kind of the file system, the clock, git, tmux, the login
//! manager, and the configuration.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Finding, Patient};
use crate::adapters::tmux::{Server, Tmux};
use crate::adapters::{events, git, logind};
use crate::config;

/// Below this a night's logs may not fit.
const ROOM_BYTES_MIN: u64 = 1 << 30;
const FILES_MIN: u64 = 10_000;
/// Clocks of the same machine that differ by less are set, not wrong.
const CLOCK_SLACK_MS: u64 = 60_000;

/// File systems, by statfs(2), on which locks or renames may not mean what they should.
const REMOTE: [(i64, &str); 6] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x6573_5546, "FUSE"),
];
/// Its content is gone after a reboot.
const TMPFS: i64 = 0x0102_1994;

pub fn disk(patient: &Patient) -> Vec<Finding> {
    let root = patient.paths.root();
    let there = root.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let (stat, kind) = match (rustix::fs::statvfs(there), rustix::fs::statfs(there)) {
        (Ok(stat), Ok(kind)) => (stat, kind.f_type),
        (Err(error), _) | (_, Err(error)) => {
            let error = io::Error::from(error);
            return vec![Finding::error("disk", format!("{} cannot be looked at: {error}", there.display()))];
        }
    };
    if rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_err() {
        let what = format!("{} cannot be written", there.display());
        return vec![Finding::error("disk", what).remedy("set SWARM_DIR to a directory of your own")];
    }
    let room = stat.f_bavail.saturating_mul(stat.f_frsize);
    judge_disk(&root.display().to_string(), room, (stat.f_files > 0).then_some(stat.f_favail), kind)
}

/// `files` is how many more there may be, where that is limited.
fn judge_disk(shown: &str, room: u64, files: Option<u64>, kind: i64) -> Vec<Finding> {
    let mut found = Vec::new();
    let remedy = "swarm clean forgets workers with their logs; SWARM_DIR may lie elsewhere";
    if room < ROOM_BYTES_MIN {
        let what = format!("only {} MiB are left where {shown} lies; output and records need room", room >> 20);
        found.push(Finding::error("disk", what).remedy(remedy));
    }
    if let Some(files) = files.filter(|files| *files < FILES_MIN) {
        let what = format!("only {files} more files can be made where {shown} lies");
        found.push(Finding::error("disk", what).remedy(remedy));
    }
    if let Some((_, name)) = REMOTE.iter().find(|(known, _)| *known == kind) {
        let what = format!("{shown} lies on {name}, where locks and renames may not hold what they promise");
        found.push(Finding::warning("disk", what).remedy("set SWARM_DIR to a directory of a local disk"));
    }
    if kind == TMPFS {
        let what = format!("{shown} lies in memory: after a reboot nothing of it is left to recover");
        found.push(Finding::warning("disk", what).remedy("set SWARM_DIR to a directory of a disk"));
    }
    found
}

pub fn clock(patient: &Patient) -> Vec<Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0));
    let last = events::last_at_ms(&patient.paths);
    judge_clock(now, last).into_iter().collect()
}

fn judge_clock(now_ms: u64, last_ms: Option<u64>) -> Option<Finding> {
    let ahead = last_ms?.checked_sub(now_ms)?;
    (ahead > CLOCK_SLACK_MS).then(|| {
        let what = format!("the clock was set back: something was recorded {} s from now", ahead / 1000);
        Finding::warning("clock", what).remedy("have the clock set (timedatectl); times shown until then are wrong")
    })
}

pub fn git(patient: &Patient) -> Vec<Finding> {
    match git::is_usable(&patient.caller) {
        Ok(()) => Vec::new(),
        Err((cause, remedy)) => vec![Finding { remedy, ..Finding::error("git", cause) }],
    }
}

pub fn tmux(patient: &Patient) -> Vec<Finding> {
    match Tmux::new(Server::Default, &patient.caller.environment).version() {
        Ok(_) => Vec::new(),
        Err(error) => vec![Finding { remedy: error.remedy(), ..Finding::warning("tmux", error.to_string()) }],
    }
}

pub fn login(_: &Patient) -> Vec<Finding> {
    logind::warning().map(|text| Finding::warning("login", text)).into_iter().collect()
}

pub fn configuration(patient: &Patient) -> Vec<Finding> {
    match config::shown(config::user_path().as_deref(), patient.root.as_deref()) {
        Ok(_) => Vec::new(),
        Err(causes) => {
            let told = |cause| Finding::error("configuration", cause).remedy("mend the file");
            causes.into_iter().map(told).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_lacks_is_told() {
        let told = |room, files, kind| -> Vec<String> {
            judge_disk("/s", room, files, kind).into_iter().map(|finding| finding.what).collect()
        };
        assert!(told(ROOM_BYTES_MIN, Some(FILES_MIN), 0xef53).is_empty());
        assert!(told(ROOM_BYTES_MIN, None, 0xef53).is_empty());
        assert_eq!(told(5 << 20, Some(9), 0xef53).len(), 2);
        assert!(told(u64::MAX, None, 0x6969)[0].contains("lies on NFS"));
        assert!(told(u64::MAX, None, TMPFS)[0].contains("after a reboot"));
    }

    #[test]
    fn a_clock_that_was_set_back_is_told() {
        assert_eq!(judge_clock(1_000_000, None), None);
        assert_eq!(judge_clock(1_000_000, Some(1_000_000 + CLOCK_SLACK_MS)), None);
        let finding = judge_clock(1_000_000, Some(1_000_000 + 90_000)).expect("it was set back");
        assert!(finding.what.contains("90 s from now"), "{finding:?}");
    }
}
