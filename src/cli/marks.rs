//! Marks of a verb that another machine asked for: how far its output is, so that it can go on there after the connection
//! was cut. Output and marks take one way, a socket in place of standard input, so that their order is known.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use swarm_hosts::frames::{Bytes, CHUNK_BYTES, GoesOn, LINE_BYTES_MAX, Tell, line};

/// Maximum length of a mark as JSON. A longer one is left out: the verb goes on from the one before.
const BYTES_MAX: usize = 128 << 10;

/// The way to the other machine, and where this verb goes on.
pub struct Marks {
    socket: UnixStream,
    goes_on: GoesOn,
    last: Option<Value>,
}

impl Marks {
    /// Takes standard input for the socket, and reads the first line.
    ///
    /// # Errors
    /// Fails if standard input is no socket or ends.
    pub fn take() -> io::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut first = Vec::new();
        BufReader::new((&socket).take(LINE_BYTES_MAX as u64)).read_until(b'\n', &mut first)?;
        Ok(Self { goes_on: serde_json::from_slice(&first)?, socket, last: None })
    }

    /// Returns writers for the two streams of output.
    ///
    /// # Errors
    /// Fails if the socket cannot be duplicated.
    pub fn streams(&self) -> io::Result<(Framed, Framed)> {
        let framed = |make| Ok::<_, io::Error>(Framed { socket: self.socket.try_clone()?, make });
        Ok((framed(Tell::Out)?, framed(Tell::Err)?))
    }

    /// Returns the mark from which the verb goes on; `None` at its beginning.
    pub fn from<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_value(self.goes_on.from.clone()?).ok()
    }

    /// Returns the time since the beginning of the verb.
    pub fn spent(&self) -> Duration {
        Duration::from_millis(self.goes_on.spent_ms)
    }

    /// Sends a mark, unless nothing has changed since the last one.
    ///
    /// # Errors
    /// Fails if the other end is gone.
    pub fn send(&mut self, mark: &impl Serialize, has_printed: bool) -> io::Result<()> {
        let mark = serde_json::to_value(mark)?;
        if !has_printed && self.last.as_ref() == Some(&mark) {
            return Ok(());
        }
        let sent = line(&Tell::Mark(mark.clone()));
        if sent.len() <= BYTES_MAX {
            self.socket.write_all(&sent)?;
            self.last = Some(mark);
        }
        Ok(())
    }
}

/// A stream of output, as frames.
pub struct Framed {
    socket: UnixStream,
    make: fn(Bytes) -> Tell,
}

impl Write for Framed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
        self.socket.write_all(&line(&(self.make)(Bytes::of(bytes))))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
