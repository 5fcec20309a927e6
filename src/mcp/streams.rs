//! Standard input and output of the server. Two threads carry the bytes, because both may be files, pipes, sockets or
//! terminals that other processes share: none of them may become non-blocking. A client that does not read what it is sent
//! stops only its own thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Pair;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;

const BLOCK: usize = 64 * 1024;

/// State of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Client {
    #[default]
    Here,
    /// The client sends nothing any more.
    Silent,
    /// The client reads nothing any more.
    Gone,
}

/// The streams of the protocol.
pub struct Streams {
    pub input: UnixStream,
    pub output: UnixStream,
    /// Tells that all was written.
    pub written: mpsc::Receiver<()>,
}

impl Streams {
    /// Starts the threads. They tell what becomes of the client.
    ///
    /// # Errors
    /// Fails if the system has no descriptors or threads left.
    pub fn start(client: &watch::Sender<Client>) -> io::Result<Self> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let (input, mut to_server) = Pair::pair()?;
        let (output, mut from_server) = Pair::pair()?;
        let (tell, written) = mpsc::channel();
        let (silent, gone) = (client.clone(), client.clone());
        thread::Builder::new().name("input".to_owned()).spawn(move || {
            carry(stdin, &mut to_server);
            // First the news, then the end itself: a wait must not outlive the input.
            silent.send_if_modified(|client| std::mem::replace(client, Client::Silent.max(*client)) == Client::Here);
            let _ = to_server.shutdown(Shutdown::Write);
        })?;
        thread::Builder::new().name("output".to_owned()).spawn(move || {
            if !carry(&mut from_server, stdout) {
                gone.send_replace(Client::Gone);
            }
            let _ = tell.send(());
        })?;
        let asynchronous = |pair: Pair| {
            pair.set_nonblocking(true)?;
            UnixStream::from_std(pair)
        };
        Ok(Self { input: asynchronous(input)?, output: asynchronous(output)?, written })
    }
}

/// Waits until all that was sent is written, at most for `limit`.
pub fn finish(written: &mpsc::Receiver<()>, limit: Duration) {
    let _ = written.recv_timeout(limit);
}

impl Client {
    /// Returns the later one of two states.
    fn max(self, other: Self) -> Self {
        if self == Self::Gone || other == Self::Gone { Self::Gone } else { self }
    }
}

/// Waits until the client sends nothing any more.
pub async fn leaves(client: &mut watch::Receiver<Client>) {
    // An error means that nobody tells any more.
    let _ = client.wait_for(|client| *client != Client::Here).await;
}

/// Copies bytes until the input ends; false if they cannot be written.
fn carry(mut from: impl Read, mut to: impl Write) -> bool {
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => return true,
            Ok(count) => {
                if to.write_all(&block[..count]).is_err() {
                    return false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
}
