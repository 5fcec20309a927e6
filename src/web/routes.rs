//! Routes: the page, the board, texts about a worker, and acts. What is more than the board is a verb, executed as a process.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use swarm_model::json::Members as _;
use swarm_store::views::load_one;
use swarm_sys::paths::Paths;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::Server;
use super::acts::{Act, Allowed, Found, Item, Order};
use super::enter::{Gate, enter};
use super::files;
use super::guard::{self, Token};
use super::hub::Hub;
use super::peer::End;
use super::stream::{self, Wanted};
use super::text::{self, Part};
use crate::board::Kind;
use crate::verbs::{self, Line, READ_MAX};

/// Maximum size of a request in bytes, and maximum time for it to arrive.
const BODY_BYTES_MAX: usize = 64 * 1024;
const BODY_MAX: Duration = Duration::from_secs(5);
/// Maximum number of verbs that read at the same time.
const READS: usize = 4;
/// Maximum number of streams.
const STREAMS: usize = 32;
/// Maximum number of acts that wait for each other.
const ACTS: usize = 8;
/// Lines of a log.
const LOG_LINES: &str = "1000";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

pub struct Site {
    pub hub: Arc<Hub>,
    pub paths: Paths,
    pub token: Token,
    pub gate: Gate,
    allowed: Allowed,
    reads: Semaphore,
    streams: Arc<Semaphore>,
    waiting: Semaphore,
    acts: Mutex<()>,
}

impl Site {
    /// # Errors
    /// Fails if the kernel has no random bits.
    pub fn new(hub: Arc<Hub>, server: &Server) -> io::Result<Self> {
        let (reads, waiting) = (Semaphore::new(READS), Semaphore::new(ACTS));
        Ok(Self {
            hub,
            paths: server.paths.clone(),
            token: Token::random()?,
            gate: Gate::new(server),
            allowed: server.allowed,
            reads,
            streams: Arc::new(Semaphore::new(STREAMS)),
            waiting,
            acts: Mutex::default(),
        })
    }
}

/// An answer that is no success: a status and a sentence.
pub struct Refused(pub StatusCode, pub String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

pub fn failed(cause: impl ToString) -> Refused {
    Refused(StatusCode::INTERNAL_SERVER_ERROR, cause.to_string())
}

pub fn router(site: Arc<Site>) -> Router {
    let mut router = Router::new()
        .route(guard::ENTER, post(enter))
        .route("/v1/hello", get(hello))
        .route("/v1/board", get(board))
        .route("/v1/changes", get(changes))
        .route("/v1/worker/{name}/{view}", get(view))
        .route("/v1/request", get(request))
        .route("/v1/item", get(item));
    if site.allowed != Allowed::default() {
        router = router.route("/v1/act", post(act));
    }
    let checked = middleware::from_fn_with_state(Arc::clone(&site), check);
    router.fallback(page).method_not_allowed_fallback(wrong_method).layer(checked).with_state(site)
}

/// Refuses what is not from the page of this server, reads the body, and adds the headers that each answer has.
async fn check(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let mut response = match guard::check(&head, &site.token) {
        Err((status, why)) => Refused(status, why.to_owned()).into_response(),
        Ok(()) if head.method != Method::POST => next.run(Request::from_parts(head, Body::empty())).await,
        Ok(()) => match timeout(BODY_MAX, to_bytes(body, BODY_BYTES_MAX)).await {
            Ok(Ok(bytes)) => next.run(Request::from_parts(head, Body::from(bytes))).await,
            Ok(Err(_)) => {
                let cause = format!("the body is longer than {BODY_BYTES_MAX} bytes, or broke off");
                Refused(StatusCode::PAYLOAD_TOO_LARGE, cause).into_response()
            }
            Err(_) => {
                Refused(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time".to_owned()).into_response()
            }
        },
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn wrong_method() -> Refused {
    Refused(StatusCode::METHOD_NOT_ALLOWED, "this address has another method".to_owned())
}

async fn page(request: Request) -> Result<Response, Refused> {
    let file = files::answer(request.uri().path(), request.headers()).filter(|_| request.method() != Method::POST);
    file.ok_or(Refused(StatusCode::NOT_FOUND, "there is nothing at this address".to_owned()))
}

async fn hello(State(site): State<Arc<Site>>) -> Json<Value> {
    let Allowed { act, answer } = site.allowed;
    let host = nix::unistd::gethostname().unwrap_or_default();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "host": host.to_string_lossy(),
        "allow": {"act": act, "answer": answer},
    }))
}

async fn board(State(site): State<Arc<Site>>, Query(wanted): Query<Wanted>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], site.hub.since(wanted.board.as_deref(), wanted.since)).into_response()
}

async fn changes(State(site): State<Arc<Site>>, Query(wanted): Query<Wanted>) -> Result<Response, Refused> {
    let place = Arc::clone(&site.streams).try_acquire_owned();
    let full = |_| Refused(StatusCode::TOO_MANY_REQUESTS, format!("{STREAMS} tabs listen already; close one"));
    let (place, lines) = (place.map_err(full)?, HeaderValue::from_static("application/x-ndjson"));
    Ok(([(header::CONTENT_TYPE, lines)], stream::body(&site, wanted, place)).into_response())
}

#[derive(Deserialize)]
struct Of {
    generation: Option<u64>,
}

/// Answers with a text about a worker.
async fn view(
    State(site): State<Arc<Site>>,
    Path((name, view)): Path<(String, String)>,
    Query(of): Query<Of>,
) -> Result<Json<Value>, Refused> {
    let (words, part): (&[&str], Part) = match view.as_str() {
        "log" => (&["logs", "-n", LOG_LINES], Part::End),
        "diff" => (&["diff"], Part::Begin),
        "history" => (&["history"], Part::End),
        "explain" => (&["explain"], Part::Begin),
        "session" => (&["session", "show"], Part::End),
        _ => return Err(Refused(StatusCode::NOT_FOUND, format!("there is no view '{view}'"))),
    };
    if let Some(generation) = of.generation {
        is_same(&site, &name, generation).await?;
    }
    said(&site, &Line::new(words).names([name.as_str()]), None, part).await.map(Json)
}

/// Executes a verb that reads, and returns its text. A verb that refuses says why; that is a text, too.
async fn said(site: &Site, line: &Line, dir: Option<PathBuf>, part: Part) -> Result<Value, Refused> {
    let _permit = site.reads.acquire().await;
    let said = verbs::read_in(line, dir.as_deref(), READ_MAX).await;
    let said = said.map_err(failed)?;
    let is_refused = !said.success && said.out.is_empty();
    let (lines, is_cut) = text::lines(&if is_refused { said.cause() } else { said.out() }, part);
    Ok(json!({"lines": lines, "cut": is_cut, "refused": is_refused}))
}

#[derive(Deserialize)]
struct Asked {
    id: String,
}

/// Answers with the whole of what an agent asks.
async fn request(State(site): State<Arc<Site>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Refused> {
    let (id, line) = ([asked.id.as_str()], |words: &[&str]| Line::new(words));
    let mut text = said(&site, &line(&["approvals"]).names(id), None, Part::Begin).await?;
    // The page makes buttons of the questions and their options.
    let _permit = site.reads.acquire().await;
    let listed = verbs::read(&line(&["approvals", "--json"]).names(id), READ_MAX).await;
    let listed = listed.ok().and_then(|said| serde_json::from_slice::<Value>(&said.out).ok());
    let listed = listed.and_then(|listed| listed.list("approvals").first().cloned()).unwrap_or_default();
    if let Some(text) = text.as_object_mut() {
        text.insert("request".to_owned(), listed);
    }
    Ok(Json(text))
}

/// Answers with the state of an item of a merge queue, with the output of its verification.
async fn item(State(site): State<Arc<Site>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Refused> {
    let item = find_item(&site, &asked.id);
    let item = item.ok_or_else(|| Refused(StatusCode::NOT_FOUND, "the item is in no queue".to_owned()));
    let Item { repository, base, number } = item?;
    let line = Line::new(&["merge", "status"]).option("base", Some(&base)).names([number.to_string().as_str()]);
    said(&site, &line, Some(repository.into()), Part::Begin).await.map(Json)
}

fn find_item(site: &Site, key: &str) -> Option<Item> {
    let row: Value = serde_json::from_str(&site.hub.row(Kind::Item, key)?).ok()?;
    let text = |name: &str| row.text(name).map(str::to_owned);
    Some(Item { repository: text("repository")?, base: text("base")?, number: row.whole("item")? })
}

/// Returns the present row of a flow.
fn find_flow(site: &Site, key: &str) -> Option<Value> {
    site.hub.read();
    serde_json::from_str(&site.hub.row(Kind::Flow, key)?).ok()
}

/// Checks that a worker is still the one that was shown.
async fn is_same(site: &Site, name: &str, generation: u64) -> Result<(), Refused> {
    let (paths, wanted) = (site.paths.clone(), name.to_owned());
    let found = tokio::task::spawn_blocking(move || load_one(&paths, &wanted)).await;
    let found = found.map_err(failed)?.map_err(|refusal| failed(refusal.cause))?;
    let present = found.and_then(|view| view.row.swarm().map(|swarm| swarm.generation));
    if present == Some(generation) {
        return Ok(());
    }
    Err(Refused(StatusCode::CONFLICT, format!("'{name}' is not the one that was shown any more; nothing was done")))
}

/// Executes a verb that changes something. Once begun, it is finished whatever the page does.
async fn act(
    State(site): State<Arc<Site>>,
    Extension(end): Extension<End>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let order = serde_json::from_slice::<Order>(&body);
    let order = order.map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("this is no act: {error}")))?;
    if !order.act.is_allowed(site.allowed) {
        let cause = "this is not allowed; start 'swarm web' with --allow".to_owned();
        return Err(Refused(StatusCode::FORBIDDEN, cause));
    }
    site.gate.must_be_a_person(end).await?;
    // In a task of its own: the connection may end, and the next act has to wait all the same.
    let done = tokio::spawn(async move { carry_out(&site, &order).await });
    done.await.map_err(failed)?.map(Json)
}

async fn carry_out(site: &Site, order: &Order) -> Result<Value, Refused> {
    let Ok(_place) = site.waiting.try_acquire() else {
        return Err(Refused(StatusCode::TOO_MANY_REQUESTS, format!("{ACTS} acts are under way already")));
    };
    let _turn = site.acts.lock().await;
    let invalid = |cause| Refused(StatusCode::BAD_REQUEST, cause);
    let found = match &order.act {
        Act::MergeRetry { item } => find_item(site, item).map_or(Found::Nothing, Found::Item),
        Act::Flow { asked, .. } => find_flow(site, &asked.flow).map_or(Found::Nothing, Found::Flow),
        _ => Found::Nothing,
    };
    // What a flow asks may have been answered by somebody else.
    let invalid_or_over = |cause| match &order.act {
        Act::Flow { .. } => Refused(StatusCode::CONFLICT, cause),
        _ => Refused(StatusCode::BAD_REQUEST, cause),
    };
    let (line, input) = order.line(&found).map_err(invalid_or_over)?;
    if let Some((name, generation)) = order.worker().map_err(invalid)? {
        is_same(site, name, generation).await?;
    }
    let dir = match found {
        Found::Item(item) => Some(PathBuf::from(item.repository)),
        Found::Flow(_) | Found::Nothing => None,
    };
    let said = verbs::act_in(&order.bound(&line), dir.as_deref(), input).await;
    let said = said.map_err(failed)?;
    if !said.success {
        return Err(Refused(StatusCode::CONFLICT, said.cause()));
    }
    let told = if said.err.is_empty() { Value::Null } else { said.cause().into() };
    let data = serde_json::from_slice::<Value>(&said.out).unwrap_or(Value::Null);
    Ok(json!({"words": line.0, "told": told, "result": data}))
}
