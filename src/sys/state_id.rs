//! Id of a state directory, by which other machines tell apart what belongs to it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::clock::random_token;
use crate::files::{is_absent, make_dirs};
use crate::paths::Paths;

/// Number of hex digits.
const DIGITS: usize = 32;

/// Returns the id of the state directory: 32 lowercase hex digits. It is made once, durably; of several callers, one makes
/// it, and nobody sees it empty.
///
/// # Errors
/// Fails if the file cannot be read or made, or has another content.
pub fn state_id(paths: &Paths) -> io::Result<String> {
    let file = paths.id();
    if is_absent(&file) {
        make(paths.root(), &file)?;
    }
    let text = fs::read_to_string(&file)?;
    let wrong = || io::Error::other(format!("{} does not contain an id: remove it", file.display()));
    id_in(&text).map(str::to_owned).ok_or_else(wrong)
}

/// Reports whether the directory has an id, which proves that it is a state directory. Makes none.
pub fn has_id(paths: &Paths) -> bool {
    let mut text = String::new();
    let limit = u64::try_from(2 * DIGITS).unwrap_or(u64::MAX);
    let is_file = fs::symlink_metadata(paths.id()).is_ok_and(|meta| meta.is_file() && meta.len() <= limit);
    let mut read = || File::open(paths.id())?.take(limit).read_to_string(&mut text);
    is_file && read().is_ok() && id_in(&text).is_some()
}

fn id_in(text: &str) -> Option<&str> {
    let id = text.trim_end();
    (id.len() == DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))).then_some(id)
}

fn make(root: &Path, file: &Path) -> io::Result<()> {
    make_dirs(root)?;
    let id = random_token();
    let temporary = root.join(format!("id.{id}.tmp"));
    let written = || {
        let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        writeln!(new, "{id}")?;
        new.sync_all()?;
        fs::hard_link(&temporary, file)
    };
    let made = written();
    let _ = fs::remove_file(&temporary);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => File::open(root)?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_ask_at_once_get_the_same_id() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let start = std::sync::Barrier::new(8);
        let ids: Vec<String> = std::thread::scope(|scope| {
            let ask = || {
                start.wait();
                state_id(&paths).expect("an id")
            };
            let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().expect("ended")).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0] && id.len() == DIGITS), "{ids:?}");
        assert_eq!(crate::files::list(paths.root()).expect("listed").len(), 1, "no temporary file is left");
        assert!(has_id(&paths));
        fs::write(paths.id(), "../x\n").expect("written");
        state_id(&paths).expect_err("another content");
        assert!(!has_id(&paths));
        fs::remove_file(paths.id()).expect("removed");
        assert!(!has_id(&paths) && is_absent(&paths.id()), "looking makes none");
    }
}
