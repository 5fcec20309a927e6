//! Connections to the API: how many there may be, and how long a request may take to arrive.
//!
//! Each connection takes a descriptor, and the supervisor needs descriptors for its workers. Connections therefore get a
//! part of them only. If all places are taken, the oldest connection that has sent nothing is closed. If each has sent a
//! request, new ones wait for a place for a short time and are refused then, with a reason. Answers that last until
//! something happens get only a part of the places, so that the others are left for requests such as `kill`.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use nix::errno::Errno;
use nix::libc::{EMFILE, ENFILE};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{MsgFlags, recv};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::peer::Peer;

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
    /// Maximum number of connections whose answers last until something happens.
    pub streams: usize,
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
        let streams = connections - connections / 4;
        Self { connections, streams, arrival: Duration::from_secs(5), wait: Duration::from_secs(3) }
    }
}

/// Places of answers that last until something happens.
#[derive(Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    count: usize,
}

impl Streams {
    fn new(count: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(count)), count }
    }

    /// Returns a place, which the answer must keep until it ends.
    ///
    /// # Errors
    /// Returns the answer to a request for which there is no place.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, (StatusCode, String)> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| {
            let cause = format!("all {} connections that may wait for events are in use", self.count);
            (StatusCode::TOO_MANY_REQUESTS, cause)
        })
    }
}

/// Socket of a connection. Its requests end with it, so the number stays valid in them.
#[derive(Clone, Copy)]
struct Socket(RawFd);

impl Socket {
    /// Reports whether the other side has closed the connection.
    fn is_closed(self) -> bool {
        match recv(self.0, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error, Errno::EAGAIN | Errno::EINTR),
        }
    }
}

/// Serves until the process ends.
pub async fn serve(listener: UnixListener, router: Router, limits: Limits) {
    let arrival = limits.arrival;
    let arrives = middleware::from_fn(move |request: Request, next: Next| arrive(request, next, arrival));
    let mut door = Door {
        limits,
        router: router
            .layer(arrives)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(Extension(Streams::new(limits.streams))),
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

/// Reads the whole request, so that a caller that stops in the middle of it does not keep its place. A request whose
/// caller has closed the connection by then is not carried out.
async fn arrive(request: Request, next: Next, limit: Duration) -> Response {
    let (head, body) = request.into_parts();
    let socket = head.extensions.get::<Socket>().copied();
    let whole = Request::from_parts(head.clone(), body);
    match timeout(limit, Bytes::from_request(whole, &())).await {
        Ok(Ok(_)) if socket.is_some_and(Socket::is_closed) => StatusCode::REQUEST_TIMEOUT.into_response(),
        Ok(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(rejection)) => rejection.into_response(),
        Err(_) => {
            let cause = format!("the request did not arrive within {} s", limit.as_secs());
            (StatusCode::REQUEST_TIMEOUT, cause).into_response()
        }
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
    // One request for each connection: a caller that keeps its connection keeps a place.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limit).keep_alive(false);
    let router = router.layer(Extension(Socket(stream.as_raw_fd()))).layer(Extension(Peer::of(&stream)));
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::{get, post};
    use tempfile::TempDir;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::sync::Notify;

    use super::*;

    const NEVER: Duration = Duration::from_hours(1);
    const SOON: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);

    /// A server with a few routes. `/slow` answers when `answers` is notified; `/count` counts its
    /// requests.
    struct Site {
        _dir: TempDir,
        path: PathBuf,
        answers: Arc<Notify>,
        count: Arc<AtomicUsize>,
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
            let count = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&count);
            let counts = move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() };
            let router = Router::new()
                .route("/", get(|| async { "quick" }))
                .route("/", post(|body: Bytes| async move { body }))
                .route("/count", post(counts))
                .route("/stream", get(lasting))
                .route("/slow", get(slow));
            let limits = Limits { connections, streams: connections - 1, arrival, wait };
            tokio::spawn(serve(listener, router, limits));
            Self { _dir: dir, path, answers, count }
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

    /// Answers at once, with a body that never ends.
    async fn lasting(Extension(streams): Extension<Streams>) -> Result<Body, (StatusCode, String)> {
        let place = streams.place()?;
        let parts = tokio_stream::StreamExt::map(tokio_stream::pending::<io::Result<Bytes>>(), move |part| {
            let _ = &place;
            part
        });
        Ok(Body::from_stream(parts))
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
            ("POST / HTTP/1.0\r\ncontent-length: 5\r\n\r\nab", told("408", "the request did not arrive within 0 s")),
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

    /// Sends requests that are given up before the server looks at them, with and without a body.
    #[tokio::test]
    async fn a_request_whose_caller_is_gone_is_not_carried_out() {
        let site = Site::with(1, NEVER, NEVER);
        for request in ["POST /count HTTP/1.0\r\n\r\n", "POST /count HTTP/1.0\r\ncontent-length: 2\r\n\r\nab"] {
            let mut stream = std::os::unix::net::UnixStream::connect(&site.path).expect("connected");
            std::io::Write::write_all(&mut stream, request.as_bytes()).expect("written");
        }
        // There is one place only, so the others were served before.
        assert_eq!(answer(&mut site.asks("/").await).await, told("200", "quick"));
        assert_eq!(site.count.load(Ordering::SeqCst), 0);
        let counted = "POST /count HTTP/1.0\r\n\r\n";
        assert_eq!(answer(&mut site.says(counted).await).await.0, "200");
        assert_eq!(site.count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn streams_leave_places_for_requests() {
        let site = Site::with(4, NEVER, SHORT);
        let mut streams = Vec::new();
        for _ in 0..3 {
            let mut stream = BufReader::new(site.asks("/stream").await);
            let mut status = String::new();
            timeout(SOON, stream.read_line(&mut status)).await.expect("answered").expect("readable");
            assert_eq!(status, "HTTP/1.0 200 OK\r\n");
            streams.push(stream);
        }
        let refused = told("429", "all 3 connections that may wait for events are in use");
        assert_eq!(answer(&mut site.asks("/stream").await).await, refused);
        assert_eq!(answer(&mut site.asks("/").await).await, told("200", "quick"));
        streams.clear();
        assert_eq!(answer(&mut site.asks("/").await).await, told("200", "quick"));
    }

    #[tokio::test]
    async fn a_connection_serves_one_request() {
        let site = Site::with(1, NEVER, NEVER);
        let mut kept = site.says("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(answer(&mut kept).await, told("200", "quick"));
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
