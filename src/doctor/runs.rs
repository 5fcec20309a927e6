//! Journals of runs, and recorded events, that cannot be read completely.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{Finding, Patient};
use swarm_store::flows::registered;
use swarm_store::flows::store::FlowFiles;
use swarm_store::lines;
use swarm_store::runs::home::Home;
use swarm_store::runs::{self, journal};

fn homes(patient: &Patient) -> BTreeSet<PathBuf> {
    let mut homes: BTreeSet<PathBuf> = runs::registered(&patient.paths).into_iter().collect();
    homes.extend(patient.root.as_deref().map(|root| Home::of(root).path().to_owned()));
    homes
}

/// Checks the recorded events of workers, runs and flows.
pub fn events(patient: &Patient) -> Vec<Finding> {
    let ours = patient.paths.events();
    let mut files = vec![ours.with_file_name("events.jsonl.1"), ours];
    files.extend(homes(patient).iter().map(|home| Home::new(home).events()));
    files.extend(registered::registered(&patient.paths).iter().map(FlowFiles::events_file));
    files.iter().filter_map(|file| damaged_events(file)).collect()
}

fn damaged_events(file: &Path) -> Option<Finding> {
    let shown = file.display();
    match lines::damaged(file) {
        Ok(damage) => {
            let first = damage.first()?;
            let what = format!(
                "{shown}, line {}: {}; damaged lines: {}, whose events are missing in all views",
                first.line,
                first.cause,
                damage.len()
            );
            Some(Finding::warning("events", what).remedy("check the disk; the states of workers are not affected"))
        }
        Err(error) => Some(Finding::error("events", format!("cannot read {shown}: {error}"))),
    }
}

pub fn runs(patient: &Patient) -> Vec<Finding> {
    let mut found = Vec::new();
    for home in homes(patient).iter().map(Home::new) {
        match journal::read_all(&home) {
            Ok(journal) => found.extend(journal.iter().flat_map(|journal| &journal.damage).map(|one| {
                let what = format!("damaged journal of a run: {}", journal::shown(&home, one));
                let remedy = format!(
                    "compare 'swarm run status' with the branches, and keep a copy of {}",
                    home.journal().display()
                );
                Finding::warning("runs", format!("{what}; the run continues with what is sound")).remedy(remedy)
            })),
            Err(cause) => {
                found.push(Finding::error("runs", cause).remedy("move the file away, then run 'swarm run' again"))
            }
        }
    }
    found
}
