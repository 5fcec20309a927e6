//! `swarm __say CONTROLLER REPOSITORY RUN JOB ATTEMPT WORKER NAME TEXT`: leaves a message for the agent of an attempt, which gets it
//! at its next turn. Unlike other internal processes, it may be executed in place of a verb. A repeated one changes nothing.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use swarm_model::{Refusal, RefusalKind};
use swarm_store::runs::far::{FarAttempt, FarText};
use swarm_store::runs::home::make_all;
use swarm_store::runs::order::read_result;
use swarm_sys::files::{is_absent, list_if_present, replace_durably};
use swarm_sys::paths::Paths;

use super::place::{Attempt, Begun, read_end};
use super::stream;
use crate::cli::error::Failure;
use crate::cli::screen::{self, Screen};

pub const VERB: &str = "__say";
/// Ending of the name of a message that is not delivered yet.
const OPEN: &str = "md";
const DELIVERED: &str = "delivered";

/// Returns the words that leave a message for an attempt on its host.
pub fn words(at: &FarAttempt, message: &FarText) -> Vec<String> {
    let place = stream::words(at, false).into_iter().skip(1);
    [VERB.to_owned()].into_iter().chain(place).chain([message.name.clone(), message.text.clone()]).collect()
}

pub fn main(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    screen::run(|_: &mut Screen| say(&words))
}

fn say(words: &[String]) -> Result<u8, Failure> {
    let invalid = |cause: String| Failure::new(RefusalKind::Invalid, cause);
    let (at, message) = read(words).ok_or_else(|| invalid("these are not the words of a message".to_owned()))?;
    let paths = Paths::from_env().map_err(|error| Failure::system("cannot find the state directory", &error))?;
    let attempt = Attempt::of(&at, &paths).map_err(invalid)?;
    if Begun::read(&attempt.dir).is_none() {
        return Err(Refusal::new(RefusalKind::NotFound, "the attempt has not begun there").into());
    }
    if read_result(&attempt.dir).is_some() || read_end(&attempt.dir).is_some() {
        return Err(invalid("its agent has no further turn".to_owned()));
    }
    let left = leave(&attempt.home.context(&at.job), std::slice::from_ref(&message));
    left.map_err(|error| Failure::system("cannot leave the message", &error))?;
    Ok(0)
}

/// Writes messages for an agent, except those that it has got.
///
/// # Errors
/// Returns any I/O error, and refuses names that are none.
pub fn leave(dir: &Path, messages: &[FarText]) -> io::Result<()> {
    for FarText { name, text } in messages {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "invalid name of a message"));
        }
        if is_absent(&dir.join(format!("{name}.{DELIVERED}"))) {
            make_all(dir)?;
            replace_durably(dir, &format!("{name}.{OPEN}"), text.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns the names of the messages that the agent has got.
pub fn delivered(dir: &Path) -> Vec<String> {
    let files = list_if_present(dir).unwrap_or_default().into_iter().map(|file: fs::DirEntry| file.path());
    let is_delivered = |file: &std::path::PathBuf| file.extension().is_some_and(|end| end == DELIVERED);
    let name = |file: std::path::PathBuf| Some(file.file_stem()?.to_str()?.to_owned());
    files.filter(is_delivered).filter_map(name).collect()
}

fn read(words: &[String]) -> Option<(FarAttempt, FarText)> {
    let [place @ .., name, text] = words else { return None };
    let (at, false) = stream::read(place)? else { return None };
    Some((at, FarText { name: name.clone(), text: text.clone() }))
}

#[cfg(test)]
mod tests {
    use swarm_store::runs::far::FarClone;

    use super::*;

    #[test]
    fn a_message_is_left_once() {
        let clone = FarClone { controller: "c0ffee00".into(), repository: "c0ffee00".into() };
        let (run, job, worker) = ("0a1b2c3d".into(), "a".into(), "p.a".into());
        let at = FarAttempt { clone, run, job, attempt: 2, worker, host: None };
        let message = FarText { name: "12".into(), text: "--follow".into() };
        assert_eq!(read(&words(&at, &message)[1..]), Some((at, message.clone())));
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("context");
        assert_eq!(delivered(&dir), [""; 0]);
        leave(&dir, std::slice::from_ref(&message)).expect("left");
        assert_eq!(fs::read_to_string(dir.join("12.md")).expect("read"), "--follow");
        fs::rename(dir.join("12.md"), dir.join("12.delivered")).expect("renamed");
        leave(&dir, std::slice::from_ref(&message)).expect("known");
        assert!(is_absent(&dir.join("12.md")));
        assert_eq!(delivered(&dir), ["12"]);
        for name in ["", "../1", "1.md", "x"] {
            leave(&dir, &[FarText { name: name.into(), ..message.clone() }]).expect_err("no name");
        }
    }
}
