//! Names of tracked files, from the index of git. Only what tells where tracked files are is read: path and type of each
//! entry.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::Path;

use swarm_sys::files::open_regular;

/// Beginning of an index.
const MAGIC: &[u8] = b"DIRC";
/// Lengths of object ids: SHA-1, SHA-256.
const ID_LENGTHS: [usize; 2] = [20, 32];
/// Length of the times, numbers and sizes before the id of an entry.
const STAT_LENGTH: usize = 40;
/// Position of the mode in an entry.
const MODE_AT: usize = 24;
/// Bits of the mode that tell the type, and their value for a submodule.
const TYPE: u32 = 0o170_000;
const SUBMODULE: u32 = 0o160_000;
/// Flag of an entry with two more bytes of flags.
const EXTENDED: u16 = 0x4000;
/// Bits of the flags with the length of the name, which is at least this long if all are set.
const NAME_LENGTH: usize = 0x0fff;
/// Entries are filled up to a multiple of this length, before version 4.
const ALIGNMENT: usize = 8;
/// Extension of a sparse index, which has a directory in place of files that are not checked out. Any other extension
/// that a reader must understand changes which entries there are.
const SPARSE: &[u8] = b"sdir";

/// A tracked path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracked {
    pub(super) path: Vec<u8>,
    pub(super) is_submodule: bool,
}

/// Returns the tracked paths in the index at `file` for which `is_wanted` is true. Empty if there is no such file, `None`
/// if it cannot be read or has a form that only git knows.
pub(super) fn tracked(file: &Path, is_wanted: &dyn Fn(&[u8], bool) -> bool) -> Option<Vec<Tracked>> {
    let mut bytes = Vec::new();
    match open_regular(OpenOptions::new().read(true), file).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => parse(&bytes, is_wanted),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Some(Vec::new())
        }
        Err(_) => None,
    }
}

fn parse(bytes: &[u8], is_wanted: &dyn Fn(&[u8], bool) -> bool) -> Option<Vec<Tracked>> {
    ID_LENGTHS.iter().find_map(|id_length| entries(bytes, *id_length, is_wanted))
}

/// Returns the wanted entries of an index whose ids have this length; `None` if it is not one.
fn entries(bytes: &[u8], id_length: usize, is_wanted: &dyn Fn(&[u8], bool) -> bool) -> Option<Vec<Tracked>> {
    let body = bytes.get(..bytes.len().checked_sub(id_length)?)?;
    let rest = body.strip_prefix(MAGIC)?;
    let (version, rest) = number(rest)?;
    let (count, mut rest) = number(rest)?;
    if !(2..=4).contains(&version) {
        return None;
    }
    let (mut found, mut name) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let entry = rest;
        let mode = number(entry.get(MODE_AT..)?)?.0;
        rest = entry.get(STAT_LENGTH + id_length..)?;
        let flags = u16::from_be_bytes(*rest.first_chunk()?);
        rest = rest.get(if flags & EXTENDED == 0 { 2 } else { 4 }..)?;
        if version == 4 {
            let (removed, after) = offset(rest)?;
            name.truncate(name.len().checked_sub(removed)?);
            rest = after;
        } else {
            name.clear();
        }
        let end = rest.iter().position(|byte| *byte == 0)?;
        name.extend_from_slice(&rest[..end]);
        rest = &rest[end..];
        let used = entry.len() - rest.len();
        let filled = if version == 4 { 1 } else { ALIGNMENT - used % ALIGNMENT };
        let (zeros, after) = rest.split_at_checked(filled)?;
        if name.len().min(NAME_LENGTH) != usize::from(flags) & NAME_LENGTH || zeros.iter().any(|byte| *byte != 0) {
            return None;
        }
        rest = after;
        let is_submodule = mode & TYPE == SUBMODULE;
        if is_wanted(&name, is_submodule) {
            found.push(Tracked { path: name.clone(), is_submodule });
        }
    }
    has_only_known_extensions(rest).then_some(found)
}

/// Reports whether the extensions after the entries are complete and leave the entries as they are.
fn has_only_known_extensions(mut rest: &[u8]) -> bool {
    while let Some((kind, after)) = rest.split_first_chunk::<4>() {
        let after = number(after).and_then(|(length, after)| after.get(length as usize..));
        match after {
            Some(after) if kind[0].is_ascii_uppercase() || kind == SPARSE => rest = after,
            _ => return false,
        }
    }
    rest.is_empty()
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// Reads the number of bytes to remove from the previous name: seven bits in each byte, and one more for each further
/// byte.
fn offset(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (mut value, mut rest) = (0_usize, bytes);
    loop {
        let (byte, after) = rest.split_first()?;
        (value, rest) = (value.checked_mul(128)?.checked_add(usize::from(byte & 0x7f))?, after);
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
        value = value.checked_add(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of an index; ids are zeros.
    fn index(version: u32, id_length: usize, entries: &[(&str, u32)], after: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &version.to_be_bytes(), &(entries.len() as u32).to_be_bytes()].concat();
        let mut before = "";
        for (name, mode) in entries {
            let begin = bytes.len();
            bytes.extend([0; MODE_AT]);
            bytes.extend(mode.to_be_bytes());
            bytes.extend(vec![0; STAT_LENGTH - MODE_AT - 4 + id_length]);
            let flags = name.len().min(NAME_LENGTH) as u16;
            let is_extended = version >= 3 && name.starts_with('a');
            bytes.extend((flags | if is_extended { EXTENDED } else { 0 }).to_be_bytes());
            bytes.extend(vec![0; if is_extended { 2 } else { 0 }]);
            let common = before.bytes().zip(name.bytes()).take_while(|(one, other)| one == other).count();
            if version == 4 {
                let removed = before.len() - common;
                match removed.checked_sub(128) {
                    None => bytes.push(removed as u8),
                    Some(above) => bytes.extend([0x80 | (above / 128) as u8, (above % 128) as u8]),
                }
                bytes.extend(&name.as_bytes()[common..]);
                bytes.push(0);
            } else {
                bytes.extend(name.as_bytes());
                bytes.extend(vec![0; ALIGNMENT - (bytes.len() - begin) % ALIGNMENT]);
            }
            before = name;
        }
        bytes.extend(after);
        bytes.extend(vec![7; id_length]);
        bytes
    }

    fn names(bytes: &[u8]) -> Option<Vec<(String, bool)>> {
        let shown = |one: Tracked| (String::from_utf8(one.path).expect("UTF-8"), one.is_submodule);
        Some(parse(bytes, &|_, _| true)?.into_iter().map(shown).collect())
    }

    #[test]
    fn every_version_of_an_index_with_ids_of_every_length_is_read() {
        let long = format!("b/{}", "x".repeat(5000));
        let entries = [("a", 0o100_644), ("a/b", 0o120_000), (&long, 0o100_755), ("c", 0o160_000), ("c/d", 0o100_644)];
        let expected: Vec<_> = entries.map(|(name, mode)| (name.to_owned(), mode == 0o160_000)).to_vec();
        for version in 2..=4 {
            for id_length in ID_LENGTHS {
                let read = |after: &[u8]| names(&index(version, id_length, &entries, after));
                assert_eq!(read(b"").as_ref(), Some(&expected), "{version} {id_length}");
                assert_eq!(read(b"TREE\0\0\0\x01xsdir\0\0\0\0").as_ref(), Some(&expected), "{version} {id_length}");
                // The entries of a split index are in another file.
                assert_eq!(read(b"link\0\0\0\x01x"), None, "{version} {id_length}");
                assert_eq!(read(b"TREE\0\0\0\x02x"), None, "{version} {id_length}");
            }
        }
        assert_eq!(names(&index(5, 20, &entries, b"")), None);
        let wanted = parse(&index(2, 20, &entries, b""), &|name, _| name == b"a/b").expect("read");
        assert_eq!(wanted, [Tracked { path: b"a/b".to_vec(), is_submodule: false }]);
    }

    #[test]
    fn no_part_of_an_index_is_read_as_a_whole_one() {
        for version in 2..=4 {
            let whole = index(version, 20, &[("a/b", 0o100_644), ("a/c", 0o100_644)], b"");
            for length in 0..whole.len() {
                assert_eq!(names(&whole[..length]), None, "{version} {length}");
            }
        }
    }

    #[test]
    fn nothing_but_a_missing_file_is_an_empty_index() {
        let dir = tempfile::tempdir().expect("a directory");
        let read = |name: &str| tracked(&dir.path().join(name), &|_, _| true);
        assert_eq!(read("none"), Some(Vec::new()));
        std::fs::write(dir.path().join("empty"), "").expect("written");
        nix::unistd::mkfifo(&dir.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert_eq!((read("empty"), read("pipe"), read(".")), (None, None, None));
    }
}
