//! Connections: how many there may be, and how long each may take. A peer that sends slowly, or that does not read what
//! it is sent, is dropped; nobody waits for it.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Maximum number of connections. More wait to be accepted.
const CONNECTIONS: usize = 64;
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
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Each connection ends within a limit, unless it has the token and reads.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let router = router.clone();
            let accepted = match &listener {
                Registered::Loopback(listener) => listener.accept().await.map(|(stream, _)| {
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(async move {
                        talk(stream, router).await;
                        drop(place);
                    });
                }),
                Registered::Socket(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        talk(stream, router).await;
                        drop(place);
                    });
                }),
            };
            if accepted.is_err() {
                // No descriptor is left, perhaps.
                sleep(FAILURE_PAUSE).await;
            }
        }
    })
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    // One request for each connection: an idle connection would occupy a place.
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
