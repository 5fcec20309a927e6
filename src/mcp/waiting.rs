//! A wait for workers, from the lines of `top --json`: pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use swarm_model::json::Members as _;

use super::show::{Answer, has_ended, needs, row};

/// Workers that are waited for.
#[derive(Debug)]
pub struct Waiting {
    names: Vec<String>,
    any: bool,
    rows: BTreeMap<String, Value>,
    /// Set once the first line was taken.
    is_known: bool,
}

impl Waiting {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>, any: bool) -> Self {
        let mut unique: Vec<String> = Vec::new();
        for name in names {
            if !unique.iter().any(|known| known == name) {
                unique.push(name.to_owned());
            }
        }
        Self { names: unique, any, rows: BTreeMap::new(), is_known: false }
    }

    /// Takes one line of `top --json`.
    ///
    /// # Errors
    /// Fails if it is the first, and a worker is not in it.
    pub fn take(&mut self, line: &Value) -> Result<(), String> {
        for gone in line.list("gone").iter().filter_map(|gone| gone.text("name")) {
            self.rows.remove(gone);
        }
        for worker in line.list("workers") {
            let name = worker.text("name").unwrap_or_default();
            if self.names.iter().any(|known| known == name) {
                self.rows.insert(name.to_owned(), worker.clone());
            }
        }
        if !std::mem::replace(&mut self.is_known, true)
            && let Some(name) = self.names.iter().find(|name| !self.rows.contains_key(*name))
        {
            return Err(format!("worker '{name}' not found; 'ls' lists all"));
        }
        Ok(())
    }

    /// Returns the number of workers that are over: ended, removed, or waiting for a person.
    pub fn over(&self) -> usize {
        self.names.iter().filter(|name| self.is_over(name)).count()
    }

    fn is_over(&self, name: &str) -> bool {
        self.is_known && self.rows.get(name).is_none_or(|row| has_ended(row) || needs(row))
    }

    pub fn total(&self) -> usize {
        self.names.len()
    }

    /// Reports whether the wait is over.
    pub fn is_done(&self) -> bool {
        let over = self.over();
        if self.any { over > 0 } else { over == self.names.len() }
    }

    /// Returns the state of all workers.
    pub fn answer(&self) -> Answer {
        let gone = |name: &String| json!({"name": name, "state": "removed"});
        let rows: Vec<Value> =
            self.names.iter().map(|name| self.rows.get(name).map_or_else(|| gone(name), row)).collect();
        let done = self.is_done();
        let mut text = if done { "done".to_owned() } else { "not done yet; call 'wait' again".to_owned() };
        for row in &rows {
            let of = |key: &str| row.text(key).map(|value| format!(", {value}")).unwrap_or_default();
            let needs = row.member("needs").text("text").map(|text| format!(", needs someone: {text}"));
            text += &format!(
                "\n{}{}{}{}",
                row.text("name").unwrap_or_default(),
                of("state"),
                of("exit"),
                needs.unwrap_or_default().replace('\n', " ")
            );
        }
        Answer { text, data: json!({"done": done, "workers": rows}) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, status: &str, state: &str, asks: bool) -> Value {
        let asks = asks.then(|| json!({"kind": "question", "text": "which?", "answer": "swarm answer 1"}));
        json!({"name": name, "status": status, "state": state, "needs": asks})
    }

    fn taken(waiting: &mut Waiting, workers: &[Value], gone: &[&str]) -> (bool, usize) {
        let gone: Vec<Value> = gone.iter().map(|name| json!({"kind": "worker", "name": name})).collect();
        waiting.take(&json!({"workers": workers, "gone": gone})).expect("known");
        (waiting.is_done(), waiting.over())
    }

    #[test]
    fn all_or_any_of_the_workers_have_ended_or_need_someone() {
        let running = |name: &str| worker(name, "running", "running", false);
        for any in [false, true] {
            let mut waiting = Waiting::new(["a", "b", "c", "a"].into_iter(), any);
            assert!(!waiting.is_done() && waiting.total() == 3, "nothing is known yet");
            let first = [running("a"), running("b"), running("c"), worker("x", "stopped", "exited", false)];
            assert_eq!(taken(&mut waiting, &first, &[]), (false, 0));
            assert_eq!(taken(&mut waiting, &[worker("a", "stopped", "backoff", false)], &[]), (false, 0));
            assert_eq!(taken(&mut waiting, &[worker("a", "stopped", "failed", false)], &["x"]), (any, 1));
            assert_eq!(taken(&mut waiting, &[worker("b", "running", "running", true)], &[]), (any, 2));
            assert_eq!(taken(&mut waiting, &[], &["c"]), (true, 3));
            let Answer { text, data } = waiting.answer();
            assert_eq!(text, "done\na, failed\nb, running, needs someone: which?\nc, removed");
            assert_eq!((data.list("workers").len(), data.get("done")), (3, Some(&json!(true))));
        }
    }

    #[test]
    fn a_worker_that_goes_on_is_waited_for_again() {
        let mut waiting = Waiting::new(["a"].into_iter(), false);
        assert_eq!(taken(&mut waiting, &[worker("a", "running", "running", true)], &[]), (true, 1));
        assert_eq!(taken(&mut waiting, &[worker("a", "running", "running", false)], &[]), (false, 0));
        assert!(waiting.answer().text.starts_with("not done yet"));
    }

    #[test]
    fn an_unknown_worker_is_refused_at_once() {
        let mut waiting = Waiting::new(["a", "b"].into_iter(), true);
        let refused = waiting.take(&json!({"workers": [worker("a", "running", "running", false)]})).expect_err("no b");
        assert_eq!(refused, "worker 'b' not found; 'ls' lists all");
    }
}
