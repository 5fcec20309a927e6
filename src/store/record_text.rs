//! The text of records, whose size is limited.

use std::fs::File;
use std::io::{self, Read as _};

use serde::de::DeserializeOwned;

/// Maximum size of a record in bytes. An environment has at most 2 MB, but JSON writes a control character as six bytes.
pub const RECORD_BYTES_MAX: u64 = 8 << 20;
/// Size of the first read of a record in bytes. Most contracts are smaller.
const PIECE_BYTES: usize = 4096;

/// Parses the content of a record's file; `None` if it is malformed. Most records fit into one read: a regular file
/// that returns less than was requested has no more data.
///
/// # Errors
/// Fails if the file cannot be read, or is larger than [`RECORD_BYTES_MAX`]: a part of it tells nothing.
pub fn parse<T: DeserializeOwned>(file: &mut File) -> io::Result<Option<T>> {
    let mut piece = [0_u8; PIECE_BYTES];
    let length = loop {
        match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if length < piece.len() {
        return Ok(serde_json::from_slice(&piece[..length]).ok());
    }
    let mut text = piece.to_vec();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
    if text.len() as u64 > RECORD_BYTES_MAX {
        return Err(io::Error::other(format!("a record is larger than the limit of {RECORD_BYTES_MAX} bytes")));
    }
    Ok(serde_json::from_slice(&text).ok())
}
