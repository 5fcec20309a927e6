//! Connections: how many there may be, and how long each may take. A peer that sends slowly, or that does not read what
//! it is sent, is dropped; nobody waits for it. Other users of this machine can connect, too, but they have few places of their own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use swarm_sys::sockets::{self, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::peer::End;

/// Maximum number of connections of this user, and of root. More wait to be accepted.
const CONNECTIONS: usize = 64;
/// Maximum number of connections of other users, together. More are closed: nobody waits for them.
const OTHERS: usize = 16;
/// Maximum time for the head of a request to arrive.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Maximum time for which a peer may read nothing of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Maximum length of the head of a request in bytes, and number of its headers.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// Pause after a failed `accept`.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Where connections come from.
pub enum Listener {
    Loopback(TcpListener),
    Socket(UnixListener),
}

/// Returns a future that accepts connections until it is dropped.
///
/// # Errors
/// Fails if the listener cannot be registered with the runtime.
pub fn serve(listener: Listener, router: Router) -> io::Result<impl Future<Output = ()>> {
    enum Registered {
        Loopback(tokio::net::TcpListener),
        Socket(tokio::net::UnixListener),
    }
    let listener = match listener {
        Listener::Loopback(listener) => {
            listener.set_nonblocking(true)?;
            Registered::Loopback(tokio::net::TcpListener::from_std(listener)?)
        }
        Listener::Socket(listener) => {
            listener.set_nonblocking(true)?;
            Registered::Socket(tokio::net::UnixListener::from_std(listener)?)
        }
    };
    Ok(async move {
        let places = Places::new();
        loop {
            let accepted = match &listener {
                Registered::Loopback(listener) => match listener.accept().await {
                    Ok((stream, theirs)) => places.seat_loopback(stream, theirs, &router).await,
                    Err(error) => Err(error),
                },
                Registered::Socket(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        // Others cannot open the socket.
                        let pid = stream.peer_cred().ok().and_then(|cred| cred.pid()).filter(|pid| *pid > 0);
                        places.seat(stream, true, End::Socket { pid }, &router).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            if accepted.is_err() {
                // No descriptor is left, perhaps.
                sleep(FAILURE_PAUSE).await;
            }
        }
    })
}

/// Places of connections.
struct Places {
    own: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Places {
    fn new() -> Self {
        Self { own: Arc::new(Semaphore::new(CONNECTIONS)), others: Arc::new(Semaphore::new(OTHERS)) }
    }

    async fn seat_loopback(
        &self,
        stream: tokio::net::TcpStream,
        theirs: SocketAddr,
        router: &Router,
    ) -> io::Result<()> {
        let _ = stream.set_nodelay(true);
        let Ok(ours) = stream.local_addr() else { return Ok(()) };
        // The file of the kernel may be long.
        let found = tokio::task::spawn_blocking(move || sockets::other_end(theirs, ours)).await;
        let is_own = is_own(&found.unwrap_or_else(|error| Err(io::Error::other(error))), own_uid());
        self.seat(stream, is_own, End::Loopback { theirs, ours }, router).await;
        Ok(())
    }

    /// Serves a connection as soon as it has a place. Each one ends within a limit, unless it has the token and reads.
    async fn seat(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        is_own: bool,
        end: End,
        router: &Router,
    ) {
        let Some(place) = self.place(is_own).await else { return };
        let router = router.clone().layer(Extension(end));
        tokio::spawn(async move {
            talk(stream, router).await;
            drop(place);
        });
    }

    /// Returns a place. `None` if other users have none left.
    async fn place(&self, is_own: bool) -> Option<OwnedSemaphorePermit> {
        if is_own {
            return Arc::clone(&self.own).acquire_owned().await.ok();
        }
        Arc::clone(&self.others).try_acquire_owned().ok()
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Reports whether a connection is one of user `me`, or of root, who can do everything anyway. One whose other end is not in the
/// table of the kernel, or has been closed, is that of somebody else. If the table cannot be read, nobody can be told apart.
fn is_own(found: &io::Result<Option<Socket>>, me: u32) -> bool {
    match found {
        Ok(Some(socket)) => socket.inode != 0 && [me, 0].contains(&socket.uid),
        Ok(None) => false,
        Err(_) => true,
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    // Close the connection after each request, because an idle one would occupy a place.
    let mut http = builder.http1();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).keep_alive(false);
    http.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    // An error means that the peer is gone, or was too slow.
    let _ = builder
        .serve_connection(TokioIo::new(Patient::new(stream, SILENCE_MAX)), TowerToHyperService::new(router))
        .await;
}

/// A stream that fails if its peer reads nothing for too long.
struct Patient<S> {
    stream: S,
    limit: Duration,
    /// End of the patience; set while a write waits.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, until: None }
    }

    fn waits<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.until = None;
            return polled;
        }
        let limit = self.limit;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        match until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.waits(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.waits(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.waits(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Returns the far side of a connection to a small site, and what tells its end.
    fn connected(room: usize) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (near, far) = duplex(room);
        let router = Router::new().route("/", get(|| async { Body::from(vec![b'x'; 1 << 20]) }));
        (far, tokio::spawn(talk(near, router)))
    }

    #[test]
    fn connections_of_this_user_and_of_root_are_told_from_others() {
        let of = |uid, inode| is_own(&Ok(Some(Socket { uid, inode })), 1000);
        assert_eq!([of(1000, 7), of(0, 7), of(1001, 7), of(65534, 7)], [true, true, false, false]);
        assert!(!of(0, 0), "the kernel names root for what nobody holds");
        assert!(!is_own(&Ok(None), 1000) && is_own(&Err(io::ErrorKind::PermissionDenied.into()), 1000));
    }

    #[tokio::test(start_paused = true)]
    async fn others_do_not_take_the_places_of_this_user() {
        let places = Places::new();
        let router = Router::new().route("/", get(|| async { "found" }));
        let mut held = Vec::new();
        let mut connect = async |is_own| {
            let (near, far) = duplex(1024);
            places.seat(near, is_own, End::Socket { pid: None }, &router).await;
            held.push(far);
            held.len() - 1
        };
        for _ in 0..OTHERS * 3 {
            connect(false).await;
        }
        let own = connect(true).await;
        assert_eq!((places.others.available_permits(), places.own.available_permits()), (0, CONNECTIONS - 1));
        let far = &mut held[own];
        far.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
        let mut said = String::new();
        far.read_to_string(&mut said).await.expect("read");
        assert!(said.ends_with("found"), "{said}");
        // Those without a place are closed at once, and the others when their time is over.
        let mut none = String::new();
        held[OTHERS].read_to_string(&mut none).await.expect("closed");
        assert_eq!(none, "");
        sleep(HEAD_MAX * 2).await;
        assert_eq!(places.others.available_permits(), OTHERS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_arrive_ends_the_connection() {
        for begun in ["", "GET / HTTP/1.1\r\nhost: local"] {
            let (mut far, talking) = connected(1024);
            far.write_all(begun.as_bytes()).await.expect("written");
            let began = Instant::now();
            talking.await.expect("ended");
            assert!(began.elapsed() <= HEAD_MAX + Duration::from_secs(1), "{begun:?} {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_ends_the_connection() {
        let (mut far, talking) = connected(1024);
        far.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
        let began = Instant::now();
        talking.await.expect("ended");
        let took = began.elapsed();
        assert!(took >= SILENCE_MAX && took < SILENCE_MAX * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_gets_everything() {
        let (mut far, talking) = connected(64 * 1024);
        far.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
        let (mut part, mut all) = (vec![0; 64 * 1024], 0);
        loop {
            sleep(SILENCE_MAX / 2).await;
            match far.read(&mut part).await.expect("read") {
                0 => break,
                count => all += count,
            }
        }
        assert!(all > 1 << 20, "{all}");
        talking.await.expect("ended");
    }

    #[tokio::test(start_paused = true)]
    async fn long_heads_are_refused() {
        let line = format!("x-a: {}\r\n", "a".repeat(HEAD_BYTES_MAX));
        for more in [line, "x-a: b\r\n".repeat(HEADERS_MAX + 1)] {
            let (mut far, talking) = connected(1 << 20);
            far.write_all(format!("GET / HTTP/1.1\r\nhost: localhost\r\n{more}\r\n").as_bytes())
                .await
                .expect("written");
            let mut said = String::new();
            far.read_to_string(&mut said).await.expect("read");
            assert!(said.starts_with("HTTP/1.1 431 "), "{said:.80}");
            talking.await.expect("ended");
        }
    }
}
