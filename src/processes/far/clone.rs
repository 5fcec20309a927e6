//! Clones of repositories of controllers, and git's side of a push or fetch: `swarm __git STATE SERVICE CONTROLLER
//! REPOSITORY`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::time::{Duration, SystemTime};

use swarm_git::clones;
use swarm_store::runs::far::{FarAnswer, FarClone};
use swarm_store::runs::home::make_all;
use swarm_sys::files::{is_absent, list_if_present, remove_tree};

use super::host::{Host, answer_to};
use super::place::Site;
use super::say;

/// Time without a run after which a clone is removed.
const UNUSED_MAX: Duration = Duration::from_hours(30 * 24);
/// Line after which the bytes are those of git.
const READY: &str = "swarm-git 1\n";

/// Makes a clone, unless it is there.
pub fn make(host: &Host, clone: &FarClone, format: &str) -> Result<FarAnswer, FarAnswer> {
    let site = Site::of(clone, &host.paths).map_err(FarAnswer::Refused)?;
    if !["sha1", "sha256"].contains(&format) {
        return Err(FarAnswer::Refused(format!("unknown object format '{}'", format.escape_debug())));
    }
    host.check_room()?;
    let failed = |error: io::Error| FarAnswer::Refused(format!("{}: {error}", site.dir().display()));
    make_all(site.dir()).map_err(failed)?;
    let _lock = site.lock_clone().map_err(failed)?;
    let made = clones::make_clone(&site.clone_dir(), format, &host.caller(site.dir()));
    made.map_err(answer_to)?;
    // The time of the last use.
    let _ = File::open(site.dir()).and_then(|dir| dir.set_modified(SystemTime::now()));
    Ok(FarAnswer::Done)
}

/// Removes clones that no run has used for a long time. One with attempts, or with work that nobody may have fetched, stays.
pub fn remove_unused(host: &Host) {
    for site in Site::all(&host.paths) {
        match remove_if_unused(host, &site, SystemTime::now()) {
            Ok(true) => tracing::info!(dir = %site.dir().display(), "removed a clone that no run uses any more"),
            Ok(false) => {}
            Err(cause) => tracing::warn!(dir = %site.dir().display(), cause, "cannot remove a clone that no run uses"),
        }
    }
}

fn remove_if_unused(host: &Host, site: &Site, now: SystemTime) -> Result<bool, String> {
    let failed = |error: io::Error| error.to_string();
    let is_old = || {
        let used = fs::metadata(site.dir())?.modified()?;
        Ok::<_, io::Error>(now.duration_since(used).is_ok_and(|age| age > UNUSED_MAX))
    };
    if !is_old().map_err(failed)? {
        return Ok(false);
    }
    let _lock = site.lock_clone().map_err(failed)?;
    let is_free = !site.has_attempts().map_err(failed)?
        && list_if_present(&site.dir().join("worktrees")).map_err(failed)?.is_empty()
        && list_if_present(&site.dir().join("aside")).map_err(failed)?.is_empty();
    // Somebody may have come meanwhile.
    if !is_old().map_err(failed)? || !is_free {
        return Ok(false);
    }
    let clone = site.clone_dir();
    let has_work = !is_absent(&clone)
        && clones::has_own_work(&clone, &host.caller(site.dir())).map_err(|failure| failure.cause)?;
    if has_work {
        return Ok(false);
    }
    remove_tree(site.dir()).map_err(failed)?;
    Ok(true)
}

/// Becomes git. Says why if that is not possible, in one line.
pub fn git(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    let cause = serve(&words).replace('\n', " ");
    let _ = say(format!("swarm-git refused: {cause}\n").as_bytes());
    1
}

/// Returns only if it fails, with the cause.
fn serve(words: &[String]) -> String {
    let [state, service, controller, repository] = words else { return "wrong number of arguments".to_owned() };
    if !["receive-pack", "upload-pack"].contains(&service.as_str()) {
        return format!("unknown service '{}'", service.escape_debug());
    }
    let host = match Host::new(Some(state.as_str()).filter(|state| *state != "-")) {
        Ok(host) => host,
        Err(cause) => return cause,
    };
    let clone = FarClone { controller: controller.clone(), repository: repository.clone() };
    let site = match Site::of(&clone, &host.paths) {
        Ok(site) => site,
        Err(cause) => return cause,
    };
    let dir = site.clone_dir();
    if !dir.is_dir() {
        return format!("there is no clone {}", dir.display());
    }
    clones::serve(&dir, service, &host.caller(&dir), || say(READY.as_bytes()))
}
