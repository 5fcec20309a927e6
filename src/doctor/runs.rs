//! Journals of runs that cannot be read completely.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{Finding, Patient};
use swarm_store::runs::home::Home;
use swarm_store::runs::{self, journal};

pub fn runs(patient: &Patient) -> Vec<Finding> {
    let mut homes: BTreeSet<PathBuf> = runs::registered(&patient.paths).into_iter().collect();
    homes.extend(patient.root.as_deref().map(|root| Home::of(root).path().to_owned()));
    let mut found = Vec::new();
    for home in homes.iter().map(Home::new) {
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
