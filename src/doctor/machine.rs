//! Checks of the environment: space and kind of the file system, the clock, git, tmux, the login manager, and the
//! configuration.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Finding, Patient};
use swarm_store::events;
use swarm_sys::logind;
use swarm_tmux::{Server, Tmux};

/// Minimum free space in bytes; the logs of a night may need as much.
const ROOM_BYTES_MIN: u64 = 1 << 30;
/// Minimum number of free inodes.
const FILES_MIN: u64 = 10_000;
/// Clock differences below this are normal adjustments, in milliseconds.
const CLOCK_SLACK_MS: u64 = 60_000;

/// File systems by their type in statfs(2) on which locks or renames may be unreliable.
const REMOTE: [(i64, &str); 6] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x6573_5546, "FUSE"),
];
/// Type of tmpfs, whose contents do not survive a reboot.
const TMPFS: i64 = 0x0102_1994;

pub fn disk(patient: &Patient) -> Vec<Finding> {
    let root = patient.paths.root();
    let there = root.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let (stat, kind) = match (rustix::fs::statvfs(there), rustix::fs::statfs(there)) {
        (Ok(stat), Ok(kind)) => (stat, kind.f_type),
        (Err(error), _) | (_, Err(error)) => {
            let error = io::Error::from(error);
            return vec![Finding::error("disk", format!("cannot check '{}': {error}", there.display()))];
        }
    };
    if rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_err() {
        let what = format!("'{}' is not writable", there.display());
        return vec![Finding::error("disk", what).remedy("set SWARM_DIR to a directory of your own")];
    }
    let room = stat.f_bavail.saturating_mul(stat.f_frsize);
    judge_disk(&root.display().to_string(), room, (stat.f_files > 0).then_some(stat.f_favail), kind)
}

/// Judges the free space in bytes, the number of free inodes (`None` if unlimited) and the kind of the file system.
fn judge_disk(shown: &str, room: u64, files: Option<u64>, kind: i64) -> Vec<Finding> {
    let mut found = Vec::new();
    let remedy = "run 'swarm clean' to delete workers with their logs, or set SWARM_DIR to another file system";
    if room < ROOM_BYTES_MIN {
        let what = format!("{shown}: {} MiB of disk space left for output and records", room >> 20);
        found.push(Finding::error("disk", what).remedy(remedy));
    }
    if let Some(files) = files.filter(|files| *files < FILES_MIN) {
        let what = format!("{shown}: {files} inodes left");
        found.push(Finding::error("disk", what).remedy(remedy));
    }
    if let Some((_, name)) = REMOTE.iter().find(|(known, _)| *known == kind) {
        let what = format!("{shown} is on {name}, where locks and renames may be unreliable");
        found.push(Finding::warning("disk", what).remedy("set SWARM_DIR to a directory on a local disk"));
    }
    if kind == TMPFS {
        let what = format!("{shown} is on tmpfs: nothing can be recovered after a reboot");
        found.push(Finding::warning("disk", what).remedy("set SWARM_DIR to a directory on a disk"));
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
        let what = format!("the clock was set back: the newest event is {} s in the future", ahead / 1000);
        Finding::warning("clock", what).remedy("set the clock (see timedatectl); until then the times shown are wrong")
    })
}

pub fn git(patient: &Patient) -> Vec<Finding> {
    match swarm_git::repository::is_usable(&patient.caller) {
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
    match swarm_config::shown(swarm_config::user_path().as_deref(), patient.root.as_deref(), None) {
        Ok(_) => Vec::new(),
        Err(causes) => {
            let told = |cause| Finding::error("configuration", cause).remedy("fix the file");
            causes.into_iter().map(told).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_with_problems_are_reported() {
        let told = |room, files, kind| -> Vec<String> {
            judge_disk("/s", room, files, kind).into_iter().map(|finding| finding.what).collect()
        };
        assert!(told(ROOM_BYTES_MIN, Some(FILES_MIN), 0xef53).is_empty());
        assert!(told(ROOM_BYTES_MIN, None, 0xef53).is_empty());
        assert_eq!(told(5 << 20, Some(9), 0xef53).len(), 2);
        assert!(told(u64::MAX, None, 0x6969)[0].contains("is on NFS"));
        assert!(told(u64::MAX, None, TMPFS)[0].contains("after a reboot"));
    }

    #[test]
    fn a_clock_that_was_set_back_is_reported() {
        assert_eq!(judge_clock(1_000_000, None), None);
        assert_eq!(judge_clock(1_000_000, Some(1_000_000 + CLOCK_SLACK_MS)), None);
        let finding = judge_clock(1_000_000, Some(1_000_000 + 90_000)).expect("it was set back");
        assert!(finding.what.contains("90 s in the future"), "{finding:?}");
    }
}
