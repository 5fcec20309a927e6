//! Compares what is in a file with what was to be written to it.

use std::io::{self, BufRead as _, BufReader, Read};

const BUFFER_BYTES: usize = 64 << 10;

/// Comparison of a file with its intended content, after a kill or a power cut may have interrupted the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// All of it.
    Whole,
    /// A beginning of it, perhaps followed by zeros whose data did not reach the disk.
    Beginning,
    /// Something else.
    Other,
}

/// Compares the content that was found with the content that was being written. Neither is held in memory.
pub(crate) fn compare(found: impl Read, whole: impl Read) -> io::Result<Match> {
    let mut found = BufReader::with_capacity(BUFFER_BYTES, found);
    let mut whole = BufReader::with_capacity(BUFFER_BYTES, whole);
    let mut is_same = true;
    loop {
        let (one, other) = (found.fill_buf()?, whole.fill_buf()?);
        if one.is_empty() {
            return Ok(if is_same && other.is_empty() { Match::Whole } else { Match::Beginning });
        }
        let count = one.len().min(other.len());
        if count == 0 {
            return Ok(Match::Other);
        }
        let (one, other) = (&one[..count], &other[..count]);
        if !is_same || one != other {
            let same = if is_same { one.iter().zip(other).take_while(|(one, other)| one == other).count() } else { 0 };
            if one[same..].iter().any(|byte| *byte != 0) {
                return Ok(Match::Other);
            }
            is_same = false;
        }
        found.consume(count);
        whole.consume(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_written_in_part_is_known_and_an_edited_one_is_not() {
        let whole = b"one\ntwo\n";
        for (found, is) in [
            (&b""[..], Match::Beginning),
            (b"one\n", Match::Beginning),
            (b"one\ntwo\n", Match::Whole),
            (b"\0\0\0\0", Match::Beginning),
            (b"one\n\0\0\0\0", Match::Beginning),
            (b"one\n\0\0\0\0\0", Match::Other),
            (b"one\n\0x", Match::Other),
            (b"ONE\n", Match::Other),
            (b"one\ntwo\nthree\n", Match::Other),
        ] {
            assert_eq!(compare(found, &whole[..]).unwrap(), is, "{found:?}");
            // The same content in reads of different sizes.
            let (one, two) = whole.split_at(3);
            assert_eq!(compare(found, one.chain(two)).unwrap(), is, "{found:?}");
        }
        assert_eq!(compare(&b""[..], &b""[..]).unwrap(), Match::Whole);
    }
}
