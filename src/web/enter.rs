//! The exchange of the code of an address for the token, and the check that a process acts for a person.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Server;
use super::codes::{Codes, Taken};
use super::notice::{Notice, Tell};
use super::peer::{self, Above, End, Stranger};
use super::routes::{Refused, Site, failed};

/// Maximum time for which a process is examined.
const EXAMINE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of workers about whose attempts the person is warned, once for each.
const TOLD_MAX: usize = 64;

/// Decides who may enter and act.
pub struct Gate {
    codes: Arc<Codes>,
    above: Above,
    tell: Tell,
    /// Workers about whose attempts the person was warned.
    told: Mutex<BTreeSet<String>>,
}

/// Request of a page that has an address only.
#[derive(Deserialize)]
struct Entry {
    code: String,
}

impl Gate {
    pub fn new(server: &Server) -> Self {
        let Server { codes, above, tell, .. } = server;
        Self { codes: Arc::clone(codes), above: Arc::clone(above), tell: Arc::clone(tell), told: Mutex::default() }
    }

    /// Returns the process at the other end, or why it cannot be told which it is. Refuses one below a worker.
    async fn examine(&self, end: End) -> Result<Result<String, String>, Refused> {
        let above = Arc::clone(&self.above);
        let examined = tokio::task::spawn_blocking(move || peer::examine(end, &above));
        let late = |_| failed("it took too long to find out which process asks; try again");
        match timeout(EXAMINE_MAX, examined).await.map_err(late)?.map_err(failed)? {
            Ok(process) => Ok(Ok(process)),
            Err(Stranger::Unknown(cause)) => Ok(Err(cause)),
            Err(Stranger::Below { worker, process }) => {
                let cause = format!(
                    "{worker} cannot use the page for a person: the request is from {process}. \
                     Use a browser that you have started yourself"
                );
                self.tell_once(Notice::Below { worker: worker.clone(), process }, worker);
                Err(Refused(StatusCode::FORBIDDEN, cause))
            }
            Err(Stranger::Perhaps { worker }) => {
                let cause = format!(
                    "the request may be from {worker}, which has a process that must not be examined, as has the \
                     one that sends it. Open the page over 'swarm web --socket', or when that worker has ended"
                );
                self.tell_once(Notice::Perhaps { worker: worker.clone() }, worker);
                Err(Refused(StatusCode::FORBIDDEN, cause))
            }
        }
    }

    fn tell_once(&self, notice: Notice, worker: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD_MAX && told.insert(worker) {
            (self.tell)(notice);
        }
    }

    /// Checks that the process at the other end is not below a worker.
    ///
    /// # Errors
    /// Refuses one that is, and one of which it cannot be told.
    pub async fn must_be_a_person(&self, end: End) -> Result<(), Refused> {
        self.examine(end).await?.map(drop).map_err(|cause| {
            let cause = format!(
                "the page only looks here: it cannot be told which process sends the request ({cause}). \
                 Run the verb in a terminal, or open the page over 'swarm web --socket'"
            );
            Refused(StatusCode::FORBIDDEN, cause)
        })
    }

    /// Uses a code.
    ///
    /// # Errors
    /// Refuses one that was used before, or that is not known, and a process below a worker.
    async fn enter(&self, code: &str, end: End) -> Result<(), Refused> {
        let unknown = || {
            let cause = "the address is of an earlier start, or void because of a newer one; \
                open the last one that 'swarm web' printed";
            Refused(StatusCode::UNAUTHORIZED, cause.to_owned())
        };
        // Before the process is examined, which takes time: a request without a known code must cost nothing.
        if !self.codes.is_known(code) {
            return Err(unknown());
        }
        // A process that cannot be found may look: it cannot act.
        let by = self.examine(end).await?.unwrap_or_else(|_| "an unknown process".to_owned());
        match self.codes.take(code, &by) {
            Taken::First => {
                (self.tell)(Notice::Opened { by });
                Ok(())
            }
            Taken::Again { by: first, is_news } => {
                if is_news {
                    (self.tell)(Notice::Again { by, first });
                }
                let cause = "this address was already used. If that was not you, end 'swarm web' with Ctrl-C: whoever \
                    used it sees the fleet. For another address press Enter in its terminal, or start it again";
                Err(Refused(StatusCode::GONE, cause.to_owned()))
            }
            Taken::Unknown => Err(unknown()),
        }
    }
}

/// Answers with the token for the code of an address.
pub async fn enter(
    State(site): State<Arc<Site>>,
    Extension(end): Extension<End>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let entry = serde_json::from_slice::<Entry>(&body);
    let entry = entry.map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("this is no code: {error}")))?;
    site.gate.enter(&entry.code, end).await?;
    Ok(Json(json!({"token": site.token.text()})))
}
