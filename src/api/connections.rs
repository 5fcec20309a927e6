//! Connections to the API: how many there may be, and how long a request may take to arrive.
//!
//! Each connection takes a descriptor, and the supervisor needs descriptors for its workers. Connections therefore get a
//! part of them only. If all places are taken, the oldest connection that has sent nothing is closed. If each has sent a
//! request, new ones wait for a place for a short time and are refused then, with a reason.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use nix::libc::{EMFILE, ENFILE};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Maximum size of a request in bytes: an environment and a command line may have 2 MB each.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of connections that are being refused.
const REFUSALS_MAX: usize = 8;
/// Maximum time to refuse a connection for which there was only the reserve.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed `accept` that the reserve does not help.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Minimum time between two log entries about the same.
const LOG_PAUSE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum time for the head of a request to arrive, and for its body after that. Callers send both at once.
    pub arrival: Duration,
    /// Maximum time for which all places may be in use before new connections are refused. Callers give up after five
    /// seconds.
    pub wait: Duration,
}

impl Limits {
    /// Returns limits for the descriptors that this process may have.
    pub fn of_this_process() -> Self {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
        let connections = usize::try_from(soft / 4).unwrap_or(usize::MAX).clamp(8, 1024);
        Self { connections, arrival: Duration::from_secs(5), wait: Duration::from_secs(3) }
    }
}

/// Serves until the process ends.
pub async fn serve(listener: UnixListener, router: Router, limits: Limits) {
    let arrival = limits.arrival;
    let arrives = middleware::from_fn(move |request: Request, next: Next| arrive(request, next, arrival));
    let mut door = Door {
        limits,
        router: router.layer(arrives).layer(DefaultBodyLimit::max(BODY_BYTES_MAX)),
        refusing: refusing(format!("all {} connections to the supervisor are in use", limits.connections)),
        places: Arc::new(Semaphore::new(limits.connections)),
        refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
        silent: VecDeque::new(),
        full_since: None,
        reserve: reserve(),
        logged: None,
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => door.admit(stream).await,
            Err(error) if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => door.relieve(&listener, error).await,
            Err(error) => {
                door.log(&format!("cannot accept a connection: {error}"));
                sleep(FAILURE_PAUSE).await;
            }
        }
    }
}

/// Reads the whole request, so that a caller that stops in the middle of it does not keep its place.
async fn arrive(request: Request, next: Next, limit: Duration) -> Response {
    let (head, body) = request.into_parts();
    let whole = Request::from_parts(head.clone(), body);
    match timeout(limit, Bytes::from_request(whole, &())).await {
        Ok(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(rejection)) => rejection.into_response(),
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Returns the routes of a connection that is refused.
fn refusing(reason: String) -> Router {
    Router::new().fallback(move || std::future::ready((StatusCode::TOO_MANY_REQUESTS, reason.clone())))
}

/// Opens a descriptor that is closed if there is no other for a connection, so that its caller can be told.
fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

struct Door {
    limits: Limits,
    router: Router,
    refusing: Router,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    /// Waits for the first byte of a connection, oldest first. Some have ended.
    silent: VecDeque<AbortHandle>,
    /// When all places were found taken. `None` if one was free since.
    full_since: Option<Instant>,
    reserve: Option<File>,
    /// Time of the last log entry.
    logged: Option<Instant>,
}

impl Door {
    async fn admit(&mut self, stream: UnixStream) {
        self.silent.retain(|wait| !wait.is_finished());
        if let Some(place) = self.place().await {
            let wait = tokio::spawn(listen(stream, self.router.clone(), place, self.limits.arrival));
            self.silent.push_back(wait.abort_handle());
        } else if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
            tokio::spawn(listen(stream, self.refusing.clone(), place, self.limits.arrival));
        }
    }

    /// Returns a place, closing a silent connection if there is no other. `None` if all are in use for long.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            self.full_since = None;
            return Some(place);
        }
        if self.close_silent().await {
            self.log("the oldest connection without a request was closed, because all places were taken");
        }
        let until = *self.full_since.get_or_insert_with(Instant::now) + self.limits.wait;
        if let Ok(place) = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await {
            self.full_since = None;
            return place.ok();
        }
        self.log("connections are refused, because all places have been in use for long");
        None
    }

    /// Closes the oldest connection on which nothing has arrived. Returns false if there is none.
    async fn close_silent(&mut self) -> bool {
        // Requests that have arrived in the meantime are noticed before that.
        tokio::task::yield_now().await;
        self.silent.retain(|wait| !wait.is_finished());
        let Some(oldest) = self.silent.pop_front() else { return false };
        oldest.abort();
        tokio::task::yield_now().await;
        true
    }

    /// Handles the lack of a descriptor for a connection that waits to be accepted.
    async fn relieve(&mut self, listener: &UnixListener, error: io::Error) {
        self.log(&format!("no descriptor is left for a connection: {error}"));
        if self.close_silent().await {
            return;
        }
        self.reserve = None;
        // The kernel reports the lack before it looks for a connection, so the next one may come much later.
        match listener.accept().await {
            Ok((stream, _)) => {
                self.reserve = reserve();
                if self.reserve.is_some() {
                    return self.admit(stream).await;
                }
                let router = refusing(format!("the supervisor has no descriptor left: {error}"));
                let _ = timeout(REFUSAL_MAX, talk(stream, router, REFUSAL_MAX)).await;
            }
            Err(_) => sleep(FAILURE_PAUSE).await,
        }
        self.reserve = reserve();
    }

    fn log(&mut self, what: &str) {
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_PAUSE) {
            self.logged = Some(Instant::now());
            tracing::warn!("{what}");
        }
    }
}

/// Waits for the first byte, and serves the connection then.
async fn listen(stream: UnixStream, router: Router, place: OwnedSemaphorePermit, limit: Duration) {
    if matches!(timeout(limit, begins(&stream)).await, Ok(Ok(()))) {
        // Another task, so that the end of this one says that something has arrived.
        tokio::spawn(async move {
            talk(stream, router, limit).await;
            drop(place);
        });
    }
}

/// Waits until something has arrived, or the other side has closed the connection. The runtime alone cannot tell: a new
/// socket may count as readable.
async fn begins(stream: &UnixStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        let peek = || Ok(recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)?);
        match stream.try_io(Interest::READABLE, peek) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            peeked => return peeked.map(drop),
        }
    }
}

async fn talk(stream: UnixStream, router: Router, limit: Duration) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limit);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use axum::routing::{get, post};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    const NEVER: Duration = Duration::from_hours(1);
    const SOON: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);

    /// A server with a few routes. `/slow` answers when `answers` is notified.
    struct Site {
        _dir: TempDir,
        path: PathBuf,
        answers: Arc<Notify>,
    }

    impl Site {
        fn with(connections: usize, arrival: Duration, wait: Duration) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).expect("bound");
            let answers = Arc::new(Notify::new());
            let slow = Arc::clone(&answers);
            let slow = move || async move {
                slow.notified().await;
                "slow"
            };
            let router = Router::new()
                .route("/", get(|| async { "quick" }))
                .route("/", post(|body: Bytes| async move { body }))
                .route("/slow", get(slow));
            tokio::spawn(serve(listener, router, Limits { connections, arrival, wait }));
            Self { _dir: dir, path, answers }
        }

        async fn says(&self, text: &str) -> UnixStream {
            let mut stream = UnixStream::connect(&self.path).await.expect("connected");
            stream.write_all(text.as_bytes()).await.expect("written");
            stream
        }

        async fn asks(&self, route: &str) -> UnixStream {
            self.says(&format!("GET {route} HTTP/1.0\r\n\r\n")).await
        }
    }

    /// Returns the status and the last line of an answer. Both are empty if the connection was closed without any.
    async fn answer(stream: &mut UnixStream) -> (String, String) {
        let mut text = String::new();
        let read = timeout(SOON, stream.read_to_string(&mut text)).await;
        let _ = read.expect("the connection stays open");
        let status = text.split(' ').nth(1).unwrap_or_default().to_owned();
        (status, text.lines().last().unwrap_or_default().to_owned())
    }

    fn told(status: &str, text: &str) -> (String, String) {
        (status.to_owned(), text.to_owned())
    }

    #[tokio::test]
    async fn connections_without_a_request_make_way() {
        let site = Site::with(3, NEVER, NEVER);
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(site.says("").await);
        }
        for _ in 0..2 {
            assert_eq!(answer(&mut site.asks("/").await).await, told("200", "quick"));
        }
        assert_eq!(answer(&mut silent[0]).await, told("", ""));
    }

    #[tokio::test]
    async fn a_request_arrives_within_a_limit_or_not_at_all() {
        let site = Site::with(3, SHORT, NEVER);
        for (text, end) in [
            ("", told("", "")),
            ("GET / HT", told("", "")),
            ("GET / HTTP/1.1\r\nhost: x\r\n", told("", "")),
            ("POST / HTTP/1.0\r\ncontent-length: 5\r\n\r\nab", told("408", "")),
        ] {
            assert_eq!(answer(&mut site.says(text).await).await, end, "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_in_use_is_not_closed_however_long_the_answer_takes() {
        let site = Site::with(2, SHORT, SHORT);
        let mut slow = [site.asks("/slow").await, site.asks("/slow").await];
        for _ in 0..2 {
            let reason = "all 2 connections to the supervisor are in use";
            assert_eq!(answer(&mut site.asks("/").await).await, told("429", reason));
        }
        for each in &mut slow {
            site.answers.notify_one();
            assert_eq!(answer(each).await, told("200", "slow"));
        }
        assert_eq!(answer(&mut site.asks("/").await).await, told("200", "quick"));
    }

    #[tokio::test]
    async fn many_requests_at_once_wait_for_a_place() {
        let site = Site::with(2, NEVER, NEVER);
        let mut all = Vec::new();
        for _ in 0..30 {
            all.push(site.asks("/").await);
        }
        for each in &mut all {
            assert_eq!(answer(each).await, told("200", "quick"));
        }
    }
}
