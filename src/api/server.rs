//! Server side of the API: routes without any decisions.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::de::DeserializeOwned;
use swarm_actors::supervisor::{Exit, Request, SupervisorHandle};
use swarm_model::{
    Answer, Caller, CleanRequest, FlowOrder, FlowRequest, Hello, KillRequest, LoopOrder, LoopRequest, MergeOrder,
    MergeRequest, NudgeOrder, NudgeRequest, RecoverRequest, Refusal, RefusalKind, RespawnRequest, Route as _, RunOrder,
    RunRequest, SpawnRequest,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::api::below::below;
use crate::api::connections::{self, Limits, Streams};
use crate::api::events;
use crate::api::peer::{Apart, Peer};
use crate::api::{BUILD_HEADER, REPLACE_ROUTE, Replace, SENT_HEADER, build, build_of, is_newer};
use crate::board::worker::{Named, Worker, Workers};
use crate::processes::guard;
use swarm_store::events::EventLog;
use swarm_store::{nudges as nudge_files, views};
use swarm_sys::attributes;
use swarm_sys::clock::boot_ms;
use swarm_sys::paths::Paths;

/// Maximum age of a request in milliseconds. Callers wait five seconds for the first byte, so they have given up older
/// requests.
const REQUEST_AGE_MS_MAX: u64 = 4_000;

/// Time within which most requests are answered, and after which `Accepted` is sent first.
const PROMPT_MAX: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Context {
    pub handle: SupervisorHandle,
    pub events: Arc<EventLog>,
    pub paths: Paths,
    pub guard: Arc<AtomicI32>,
    /// Program that the guard must execute after this supervisor.
    pub successor: Arc<OnceLock<PathBuf>>,
    pub started_ms: u64,
}

/// Serves until the process ends.
pub async fn serve(listener: tokio::net::UnixListener, context: Context) {
    // Found now: the file may be moved later.
    crate::api::installed();
    let work = Router::new()
        .route(SpawnRequest::PATH, post(spawn).get(workers))
        .route(KillRequest::PATH, post(kill))
        .route(CleanRequest::PATH, post(clean))
        .route(RespawnRequest::PATH, post(respawn))
        .route(RecoverRequest::PATH, post(recover))
        .route(MergeRequest::PATH, post(merge).get(queues))
        .route(RunRequest::PATH, post(run).get(runs))
        .route(LoopRequest::PATH, post(ralph))
        .route(FlowRequest::PATH, post(flow))
        .route(NudgeRequest::PATH, post(nudge).get(nudges))
        .layer(middleware::from_fn(is_current));
    let router = work
        .route("/v1/workers/{name}", get(worker))
        .route("/v1/hello", get(hello))
        .route("/v1/events", get(events::stream))
        .route("/v1/stop", post(stop))
        .route(REPLACE_ROUTE, post(replace))
        .layer(middleware::from_fn(is_in_time))
        .with_state(context);
    connections::serve(listener, router, Limits::of_this_process()).await;
}

/// Rejects requests of newer programs, which then replace this process.
async fn is_current(request: HttpRequest, next: Next) -> Response {
    let theirs = request.headers().get(BUILD_HEADER).and_then(|value| value.to_str().ok());
    if theirs.is_some_and(|theirs| is_newer(theirs, build())) {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    }
    next.run(request).await
}

/// Rejects requests that their callers have given up.
async fn is_in_time(request: HttpRequest, next: Next) -> Response {
    let sent: Option<u64> =
        request.headers().get(SENT_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    if sent.is_some_and(|sent| boot_ms().saturating_sub(sent) > REQUEST_AGE_MS_MAX) {
        let cause = "the supervisor was busy for too long, and the request was not carried out";
        return (StatusCode::REQUEST_TIMEOUT, cause).into_response();
    }
    next.run(request).await
}

async fn spawn(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let mut request: SpawnRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller) {
        return Ok(refused(refusal.of(&request.name)).await);
    }
    request.caller.below = below(peer.pid, &context.paths);
    if request.caller.environment.is_empty() {
        request.caller.environment = request.contract.environment.clone();
    }
    Ok(answers(&context, Request::Spawn(Box::new(request))).await)
}

/// Status and text of the answer to a request that is not carried out.
type Rejected = (StatusCode, String);

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejected> {
    serde_json::from_slice(body).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

async fn kill(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: KillRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| request.rm_worktree) {
        return Ok(refused(refusal).await);
    }
    Ok(answers(&context, Request::Kill(Box::new(request))).await)
}

async fn clean(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: CleanRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| request.rm_worktree) {
        return Ok(refused(refusal).await);
    }
    Ok(answers(&context, Request::Clean(Box::new(request))).await)
}

async fn respawn(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: RespawnRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller) {
        return Ok(refused(refusal.of(&request.name)).await);
    }
    Ok(answers(&context, Request::Respawn(Box::new(request))).await)
}

async fn recover(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: RecoverRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller) {
        return Ok(refused(refusal.of(&request.name)).await);
    }
    Ok(answers(&context, Request::Recover(Box::new(request))).await)
}

async fn merge(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let mut request: MergeRequest = parse(&body)?;
    let starts = matches!(request.order, MergeOrder::Add { .. } | MergeOrder::Retry { .. } | MergeOrder::Resume { .. });
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| starts) {
        return Ok(refused(refusal).await);
    }
    request.caller.below = below(peer.pid, &context.paths);
    Ok(stream(context.handle.merge(request)).await)
}

async fn queues(State(context): State<Context>) -> Response {
    listed(context.handle.queues().await, "a merge queue cannot be read yet")
}

async fn run(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let mut request: RunRequest = parse(&body)?;
    let starts = matches!(request.order, RunOrder::Begin { .. } | RunOrder::Resume { .. });
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| starts) {
        return Ok(refused(refusal).await);
    }
    request.caller.below = below(peer.pid, &context.paths);
    Ok(stream(context.handle.run(request)).await)
}

async fn ralph(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let mut request: LoopRequest = parse(&body)?;
    let starts = matches!(request.order, LoopOrder::Begin { .. } | LoopOrder::Resume { .. } | LoopOrder::Attend { .. });
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| starts) {
        return Ok(refused(refusal).await);
    }
    request.caller.below = below(peer.pid, &context.paths);
    Ok(stream(context.handle.ralph(request)).await)
}

async fn flow(
    State(context): State<Context>,
    Extension(streams): Extension<Streams>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: FlowRequest = parse(&body)?;
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| matches!(request.order, FlowOrder::Run(_))) {
        return Ok(refused(refusal).await);
    }
    // Answered when the flow waits for a person or is over.
    let place = if request.order == FlowOrder::Rest { Some(streams.place()?) } else { None };
    Ok(stream_in(context.handle.flow(request), place).await)
}

async fn runs(State(context): State<Context>) -> Response {
    listed(context.handle.runs().await, "a run cannot be read yet")
}

async fn nudge(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Result<Response, Rejected> {
    let request: NudgeRequest = parse(&body)?;
    let types = matches!(request.order, NudgeOrder::Start { .. } | NudgeOrder::Resume);
    if let Some(refusal) = is_elsewhere(peer, &request.caller).filter(|_| types) {
        return Ok(refused(refusal).await);
    }
    Ok(stream(context.handle.nudge(request)).await)
}

/// Returns the heartbeat files unchanged.
async fn nudges(State(context): State<Context>) -> Response {
    let listed = tokio::task::spawn_blocking(move || nudge_files::list(&context.paths, &nudge_files::present())).await;
    match listed {
        Ok(Ok(listed)) => Json(listed.nudges.into_iter().map(|(file, _)| file).collect::<Vec<_>>()).into_response(),
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Refuses a request that starts something, types, or runs git, for a caller in other namespaces or in a sandbox: that
/// would happen where the supervisor is, which may see and reach more than the caller, or less. What the kernel says about the peer
/// counts, whatever the caller says; the caller may also forward the request of another process.
fn is_elsewhere(peer: Peer, caller: &Caller) -> Option<Refusal> {
    let said = || caller.namespaces.as_ref()?.difference(&attributes::namespaces()?);
    let (cause, place) = match peer.apart.or_else(|| said().map(Apart::Namespace))? {
        Apart::Namespace(kind) => {
            let where_to = "than the supervisor, where its work would start";
            (format!("this command runs in {} {where_to}", attributes::place_apart(kind)), "where the supervisor runs")
        }
        Apart::Restraint(kind) => {
            let cause =
                format!("this command is restrained ({kind}), and the supervisor, where its work would start, is not");
            (cause, "outside of its sandbox")
        }
        Apart::Unknown => {
            let cause = "the supervisor cannot examine the process that connected, which may be in other namespaces";
            (cause.to_owned(), "as the user of the supervisor")
        }
        Apart::Unexamined(lack) => {
            let error = io::Error::from_raw_os_error(lack);
            let cause = format!("the supervisor cannot examine the process that connected: {error}");
            let remedy = "try again, or raise 'ulimit -n' and run 'swarm supervisor restart'";
            return Some(Refusal::new(RefusalKind::Internal, cause).remedy(remedy));
        }
    };
    let remedy = format!("run it {place}, or set SWARM_DIR to another directory to use a supervisor here");
    Some(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy))
}

/// Answers with a list, or with `busy` if it is not complete yet.
fn listed<T: serde::Serialize>(list: Option<Vec<T>>, busy: &'static str) -> Response {
    match list {
        Some(list) => Json(list).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, busy).into_response(),
    }
}

async fn refused(refusal: Refusal) -> Response {
    let (answers, receiver) = tokio::sync::mpsc::unbounded_channel();
    let _ = answers.send(Answer::Refused(refusal));
    let _ = answers.send(Answer::Done);
    drop(answers);
    stream(receiver).await
}

async fn answers(context: &Context, request: Request) -> Response {
    stream(context.handle.request(request)).await
}

/// Streams one line per answer. If the first answer takes long, `Accepted` is sent before it, so that the caller knows
/// that the request is being processed.
async fn stream(answers: UnboundedReceiver<Answer>) -> Response {
    stream_in(answers, None).await
}

/// Like [`stream`], for answers that keep a place.
async fn stream_in(mut answers: UnboundedReceiver<Answer>, place: Option<OwnedSemaphorePermit>) -> Response {
    let first = tokio::time::timeout(PROMPT_MAX, answers.recv()).await.unwrap_or(Some(Answer::Accepted));
    let lines = tokio_stream::iter(first).chain(UnboundedReceiverStream::new(answers)).map(move |answer| {
        let _ = &place;
        serde_json::to_vec(&answer).map(|mut line| {
            line.push(b'\n');
            line
        })
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Lists the workers as `ls --json` does: rows contain what `--env` set, and callers pass answers on.
async fn workers(State(context): State<Context>) -> Response {
    let loaded = tokio::task::spawn_blocking(move || views::load(&context.paths)).await;
    match loaded {
        Ok(Ok(registry)) => {
            let workers: Vec<Worker> = registry.workers.iter().map(Worker::of).collect();
            let total = workers.len();
            Json(Named { schema: "swarm.workers/1", body: Workers { total, workers } }).into_response()
        }
        Ok(Err(refusal)) => (StatusCode::INTERNAL_SERVER_ERROR, Json(refusal)).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn worker(State(context): State<Context>, Path(name): Path<String>) -> Response {
    let loaded = tokio::task::spawn_blocking(move || views::load_one(&context.paths, &name)).await;
    match loaded {
        Ok(Ok(Some(view))) => Json(Named { schema: "swarm.worker/1", body: Worker::of(&view) }).into_response(),
        Ok(Ok(None)) => StatusCode::NOT_FOUND.into_response(),
        Ok(Err(refusal)) => (StatusCode::INTERNAL_SERVER_ERROR, Json(refusal)).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn hello(State(context): State<Context>) -> Json<Hello> {
    let guard = context.guard.load(Ordering::Relaxed);
    Json(Hello {
        build: build().clone(),
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        guard: (guard > 1).then_some(guard),
        state_dir: context.paths.root().to_string_lossy().into_owned(),
        workers: context.handle.live().await,
        started_ms: context.started_ms,
    })
}

#[derive(serde::Deserialize)]
struct StopQuery {
    /// The caller starts another supervisor.
    #[serde(default)]
    again: bool,
}

async fn stop(State(context): State<Context>, Query(asked): Query<StopQuery>) -> StatusCode {
    context.handle.stop(if asked.again { Exit::Replaced } else { Exit::Asked });
    StatusCode::ACCEPTED
}

/// Ends this supervisor, so that its guard executes the caller's program. Answers 409 if the caller is not newer, 403
/// if the guard must not execute that program, and 503 if there is no guard now.
async fn replace(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Rejected> {
    let asked: Replace = parse(&body)?;
    let theirs = headers.get(BUILD_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !asked.again && !is_newer(theirs, build()) {
        return Ok(StatusCode::CONFLICT.into_response());
    }
    let built_ns = build_of(theirs).map_or(0, |(_, built_ns)| built_ns);
    let checked = guard::check_program(&asked.program, built_ns);
    if let Err(cause) = checked.and_then(|()| peer.check_program(&asked.program, crate::api::installed().as_deref())) {
        return Err((StatusCode::FORBIDDEN, cause));
    }
    if let Some(root) = of_a_repository(&asked.program)
        && crate::api::installed().as_deref() != Some(&*asked.program)
        && below(peer.pid, &context.paths).is_some()
    {
        let cause = format!("{} is in the repository {}", asked.program.display(), root.display());
        return Err((StatusCode::FORBIDDEN, cause));
    }
    if context.guard.load(Ordering::Relaxed) <= 1 {
        return Ok(StatusCode::SERVICE_UNAVAILABLE.into_response());
    }
    tracing::info!(program = %asked.program.display(), "replaced by a program that a command named");
    // The first of several concurrent requests counts.
    let _ = context.successor.set(asked.program);
    context.handle.stop(Exit::Replaced);
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Returns the repository or worktree in which a program lies. An agent that builds the program there may not put it above
/// all workers. `None` if it lies in none.
fn of_a_repository(program: &std::path::Path) -> Option<&std::path::Path> {
    swarm_config::root_above(program.parent()?)
}
