//! The board as lines of JSON: `swarm.board/1`, then `swarm.board.change/1`. Documented in docs/json.md; keys are added,
//! never changed.

use serde::Serialize;
use serde_json::value::RawValue;
use swarm_actors::board::Since;

use super::{Board, Key, Kind};

#[derive(Serialize)]
struct Whole<'a> {
    schema: &'static str,
    board: &'a str,
    rev: u64,
    workers: Vec<Box<RawValue>>,
    items: Vec<Box<RawValue>>,
    runs: Vec<Box<RawValue>>,
    workstreams: Vec<Box<RawValue>>,
    flows: Vec<Box<RawValue>>,
}

#[derive(Serialize)]
struct Change<'a> {
    schema: &'static str,
    board: &'a str,
    rev: u64,
    workers: Vec<Box<RawValue>>,
    items: Vec<Box<RawValue>>,
    runs: Vec<Box<RawValue>>,
    workstreams: Vec<Box<RawValue>>,
    flows: Vec<Box<RawValue>>,
    gone: Vec<Gone<'a>>,
}

#[derive(Serialize)]
struct Gone<'a> {
    kind: &'static str,
    name: &'a str,
}

/// Returns all rows of the board with this id.
pub fn whole(id: &str, board: &Board) -> String {
    let since = board.since(0);
    let [workers, items, runs, workstreams, flows] = all_rows(&since);
    line(&Whole { schema: "swarm.board/1", board: id, rev: since.rev, workers, items, runs, workstreams, flows })
}

/// Returns what is newer than a revision of the same board.
pub fn change(id: &str, board: &Board, rev: u64) -> String {
    let since = board.since(rev);
    let gone = since.gone.iter().map(|key| Gone { kind: key.kind.word(), name: &key.name }).collect();
    let [workers, items, runs, workstreams, flows] = all_rows(&since);
    let (schema, rev) = ("swarm.board.change/1", since.rev);
    line(&Change { schema, board: id, rev, workers, items, runs, workstreams, flows, gone })
}

/// Returns the rows of all kinds, in the order of the lists of a line.
fn all_rows(since: &Since<'_, Key, String>) -> [Vec<Box<RawValue>>; 5] {
    [Kind::Worker, Kind::Item, Kind::Run, Kind::Workstream, Kind::Flow].map(|kind| rows(since, kind))
}

/// Returns the rows of one kind, each with its revision as first key.
fn rows(since: &Since<'_, Key, String>, kind: Kind) -> Vec<Box<RawValue>> {
    let of_kind = since.rows.iter().filter(|(_, key, _)| key.kind == kind);
    let row = |(rev, _, text): &(u64, &Key, &String)| {
        let more = text.strip_prefix('{').unwrap_or(text);
        RawValue::from_string(format!("{{\"rev\":{rev},{more}")).expect("a row is an object with keys")
    };
    of_kind.map(row).collect()
}

fn line(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("plain objects with text keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_new_rows_and_what_is_gone() {
        let mut board = Board::default();
        let key = |name: &str| Key { kind: Kind::Worker, name: name.to_owned() };
        board.put(key("a"), r#"{"name":"a"}"#.to_owned());
        board.put(key("b"), r#"{"name":"b"}"#.to_owned());
        let whole = whole("id", &board);
        let expected = r#"{"schema":"swarm.board/1","board":"id","rev":2,"workers":[{"rev":1,"name":"a"},{"rev":2,"name":"b"}],"items":[],"runs":[],"workstreams":[],"flows":[]}"#;
        assert_eq!(whole, expected);
        board.remove(&key("a"));
        board.put(key("b"), r#"{"name":"b","state":"x"}"#.to_owned());
        let expected = r#"{"schema":"swarm.board.change/1","board":"id","rev":4,"workers":[{"rev":4,"name":"b","state":"x"}],"items":[],"runs":[],"workstreams":[],"flows":[],"gone":[{"kind":"worker","name":"a"}]}"#;
        assert_eq!(change("id", &board, 2), expected);
    }
}
