//! Output of `--json`: one line with an object whose `schema` names its shape. The shapes are documented in
//! docs/json.md; keys are added, never changed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::error::Failure;
use super::screen::Screen;
use crate::board::worker::Named;
pub use crate::board::worker::{Exit, Worker, Workers, object};

/// Prints `body`, an object, with its schema as the first key.
pub fn print(screen: &mut Screen, schema: &str, body: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(&Named { schema, body }).expect("views are plain objects with text keys");
    screen.line(&text)
}

/// Prints an object with a schema and one list.
pub fn print_list<T: Serialize>(screen: &mut Screen, schema: &str, key: &str, list: Vec<T>) -> Result<(), Failure> {
    print(screen, schema, &BTreeMap::from([(key, list)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn the_schema_comes_first_on_one_line() {
        let (out, _, _) = sample::said(|screen| print_list(screen, "swarm.x/1", "workers", vec![1]).map(|()| 0));
        assert_eq!(out, "{\"schema\":\"swarm.x/1\",\"workers\":[1]}\n");
    }
}
