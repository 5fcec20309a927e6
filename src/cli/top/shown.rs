//! The rows of the board as rows of the screen. Some of them say more together: a request belongs to its worker, a workstream
//! to its run.

use std::collections::{BTreeMap, BTreeSet};

use swarm_actors::board::Since;
use swarm_actors::top::{Id, Kind as RowKind, Row};

use super::super::render::Clock;
use super::{rows, trees};
use crate::board::{Key, Kind};

/// Rows of the screen that were made from the board so far.
#[derive(Default)]
pub struct Shown {
    /// Items of merge queues as the board has them.
    items: BTreeMap<String, String>,
    /// Number of the request of each worker that has one.
    requests: BTreeMap<String, String>,
    runs: BTreeMap<String, OneRun>,
    /// Rows of each flow.
    flows: BTreeMap<String, BTreeSet<Id>>,
}

/// A run as the board has it.
#[derive(Default)]
struct OneRun {
    /// Its revision and text.
    run: (u64, String),
    /// Rows of the workstreams.
    workstreams: BTreeMap<String, (u64, String)>,
}

impl Shown {
    /// Returns an item of a merge queue.
    pub fn item(&self, key: &str) -> &str {
        self.items.get(key).map_or("", |row| row)
    }

    /// Returns the rows that have changed, and those that are gone.
    pub fn take(&mut self, since: &Since<'_, Key, String>, clock: &Clock) -> (Vec<Row>, Vec<Id>) {
        if since.is_whole {
            *self = Self::default();
        }
        let (mut rows, mut gone, mut runs) = (Vec::new(), Vec::new(), BTreeSet::new());
        for key in &since.gone {
            gone.push(Id { kind: row_kind(key.kind), name: key.name.clone() });
            match key.kind {
                Kind::Worker => gone.extend(self.request_of(&key.name)),
                Kind::Item => drop(self.items.remove(&key.name)),
                Kind::Run => drop(self.runs.remove(&key.name)),
                Kind::Workstream => {
                    if let Some(run) = self.runs.get_mut(home_of(&key.name)) {
                        run.workstreams.remove(&key.name);
                        runs.insert(home_of(&key.name).to_owned());
                    }
                }
                Kind::Flow => gone.extend(self.flows.remove(&key.name).unwrap_or_default()),
            }
        }
        for (rev, key, text) in &since.rows {
            let name = key.name.clone();
            match key.kind {
                Kind::Worker => {
                    gone.extend(self.request_of(&name));
                    let row = rows::worker(*rev, text, clock);
                    if let Some(request) = row.as_ref().and_then(rows::request) {
                        self.requests.insert(name, request.id.name.clone());
                        rows.push(request);
                    }
                    rows.extend(row);
                }
                Kind::Item => {
                    rows.extend(rows::item(*rev, text));
                    self.items.insert(name, (*text).clone());
                }
                Kind::Run => {
                    self.runs.entry(name.clone()).or_default().run = (*rev, (*text).clone());
                    runs.insert(name);
                }
                Kind::Workstream => {
                    let home = home_of(&name).to_owned();
                    let run = self.runs.entry(home.clone()).or_default();
                    run.workstreams.insert(name, (*rev, (*text).clone()));
                    runs.insert(home);
                }
                Kind::Flow => {
                    let of_flow = trees::flow(*rev, text);
                    let ids: BTreeSet<Id> = of_flow.iter().map(|row| row.id.clone()).collect();
                    let earlier = self.flows.insert(name, ids.clone()).unwrap_or_default();
                    gone.extend(earlier.difference(&ids).cloned());
                    rows.extend(of_flow);
                }
            }
        }
        for home in runs {
            let Some(run) = self.runs.get(&home) else { continue };
            rows.extend(run.rows());
        }
        // Others may have come under the same name at the same time.
        let present: BTreeSet<&Id> = rows.iter().map(|row| &row.id).collect();
        gone.retain(|id| !present.contains(id));
        (rows, gone)
    }

    /// Forgets the request of a worker, and returns it.
    fn request_of(&mut self, worker: &str) -> Option<Id> {
        let name = self.requests.remove(worker)?;
        Some(Id { kind: RowKind::Request, name })
    }
}

impl OneRun {
    fn rows(&self) -> Vec<Row> {
        let Some(run) = trees::run(&self.run.1) else { return Vec::new() };
        let texts = self.workstreams.values().map(|(rev, text)| (*rev, text.as_str()));
        let mut rows = vec![run.row(self.run.0)];
        rows.extend(trees::workstreams(&run, texts));
        rows
    }
}

/// Returns the key of the run of a workstream.
fn home_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(home, _)| home)
}

fn row_kind(kind: Kind) -> RowKind {
    match kind {
        Kind::Worker => RowKind::Worker,
        Kind::Item => RowKind::Item,
        Kind::Run => RowKind::Run,
        Kind::Workstream => RowKind::Workstream,
        Kind::Flow => RowKind::Flow,
    }
}
