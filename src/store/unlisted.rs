//! Workers that run although the registry has no row of them, or that of an earlier start: another program saved a list
//! that it had read before their start. The supervisor inserts the row when it learns of that.

use std::collections::BTreeMap;
use std::io;

use swarm_actors::registry::reconcile;
use swarm_model::Row;
use swarm_ports::DirFacts;
use swarm_sys::files::list_if_present;
use swarm_sys::paths::Paths;
use swarm_sys::{clock, procfs};

use crate::records::{DiskRecords, parse_dir_name};
use crate::views::Pick;

/// Names in the registry, each with the start of its row; without one if it is not known.
pub type Listed<'a> = BTreeMap<&'a str, Option<Known<'a>>>;

/// Start that a row names. Of several, the latest one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known<'a> {
    pub generation: u64,
    /// Whether the records of this number are those of the row.
    pub has_records: bool,
    pub id: &'a str,
}

impl Known<'_> {
    /// Reports whether the records of a number may be those of a later start.
    fn is_before(&self, generation: u64) -> bool {
        self.generation < generation || (self.generation == generation && !self.has_records)
    }

    /// Reports whether a later start may have records.
    pub fn may_be_outdated(&self, name: &str, records: &DiskRecords) -> bool {
        !self.has_records || records.may_have_later(name, self.generation)
    }
}

/// Returns the rows of the picked workers that run and are not `listed`. Only directories of other names, of later
/// generations, and of rows without records are read. A worker whose records cannot be read is left out: it may have been cleaned.
///
/// # Errors
/// Fails if the directory of all records exists and cannot be read.
pub fn rows(paths: &Paths, records: &DiskRecords, listed: &Listed<'_>, pick: Pick<'_>) -> io::Result<Vec<Row>> {
    let is_closing = |facts: &DirFacts| {
        let in_window = facts.spec.spec().is_some_and(|spec| spec.contract.tmux.is_some());
        let shim = facts.lease.content.as_ref().map(|lease| &lease.shim).filter(|_| in_window && facts.lease.held);
        shim.is_some_and(|shim| procfs::has_hung_up(shim, records.boot()))
    };
    let host = clock::host();
    let mut found: Vec<Row> = Vec::new();
    for entry in list_if_present(&paths.workers())? {
        let leaf = entry.file_name();
        let Some((name, generation)) = leaf.to_str().and_then(parse_dir_name) else { continue };
        let row = listed.get(name);
        let is_listed = row.is_some_and(|known| known.is_none_or(|known| !known.is_before(generation)));
        if is_listed || !pick.takes(name) {
            continue;
        }
        let id = row.copied().flatten().filter(|known| known.generation == generation).map(|known| known.id);
        // A worker whose window was closed is about to end.
        let facts = records.read(name, generation).ok().flatten().filter(|facts| !is_closing(facts));
        // Another program writes its own rows with our id in them.
        let facts = facts.filter(|facts| facts.spec.spec().is_none_or(|spec| Some(spec.token.as_str()) != id));
        let row = facts.filter(reconcile::runs).and_then(|facts| reconcile::row_now(&facts, &host));
        let Some(row) = row else { continue };
        match found.iter_mut().find(|other| other.name == row.name) {
            Some(other) if row.is_later_than(other) => *other = row,
            Some(_) => {}
            None => found.push(row),
        }
    }
    found.sort_by(|a, b| a.started.cmp(&b.started));
    Ok(found)
}
