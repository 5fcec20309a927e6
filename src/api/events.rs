//! `GET /v1/events`: a stream of events that can be continued where it was cut.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use swarm_store::events::{Follower, Heard};
use swarm_store::replay::Place;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::connections::Streams;
use super::server::Context;

/// Number of events that wait for a slow listener; it gets later ones from the files.
const WAITING_MAX: usize = 64;

#[derive(serde::Deserialize)]
pub struct Wanted {
    /// Identifier of the last event that the listener has.
    since: Option<String>,
    /// Seconds of silence after which a comment is sent.
    keepalive: Option<u64>,
}

/// Streams events as they happen. After an identifier, in `Last-Event-ID` or `since`, it first sends what has happened
/// since then; an event `gap` says that some of it is no longer recorded.
pub async fn stream(
    State(context): State<Context>,
    Extension(streams): Extension<Streams>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Result<Response, (StatusCode, String)> {
    // A listener that reconnects sends the header, and the same address again.
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default().to_owned());
    let since = last.or(wanted.since).filter(|text| !text.is_empty()).map(|text| text.parse::<Place>());
    let since = since.transpose().map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    let place = streams.place()?;
    let (sender, receiver) = channel(WAITING_MAX);
    tokio::spawn(tell(context.events.follow(since), sender, place));
    let events = Sse::new(ReceiverStream::new(receiver));
    Ok(match wanted.keepalive.filter(|seconds| *seconds > 0) {
        Some(seconds) => events.keep_alive(KeepAlive::new().interval(Duration::from_secs(seconds))).into_response(),
        None => events.into_response(),
    })
}

/// Passes on what a follower hears until the listener is gone. Keeps its place until then.
async fn tell(mut follower: Follower, listener: Sender<Result<Event, Infallible>>, _place: OwnedSemaphorePermit) {
    loop {
        let heard = tokio::select! {
            heard = follower.next() => heard,
            () = listener.closed() => return,
        };
        let heard = match heard {
            Ok(Some(heard)) => heard,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot read the recorded events, so a listener is disconnected");
                return;
            }
        };
        for heard in heard {
            if listener.send(Ok(event(heard))).await.is_err() {
                return;
            }
        }
    }
}

fn event(heard: Heard) -> Event {
    match heard {
        Heard::Event(told) => {
            let numbered = told.place.map(|place| Event::default().id(place.to_string()));
            numbered.unwrap_or_default().data(&*told.text)
        }
        Heard::Gap => Event::default().event("gap").data("{}"),
    }
}
