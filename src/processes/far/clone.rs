//! Clones of repositories of controllers, and git's side of a push or fetch: `swarm __git STATE SERVICE CONTROLLER
//! REPOSITORY`.

use std::ffi::OsString;
use std::io;

use swarm_git::clones;
use swarm_store::runs::far::{FarAnswer, FarClone};
use swarm_store::runs::home::make_all;

use super::host::{Host, answer_to};
use super::place::Site;
use super::say;

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
    made.map(|()| FarAnswer::Done).map_err(answer_to)
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
