//! Workers that are being started: they have a contract, and are not registered yet.

use swarm_actors::registry::reconcile;
use swarm_model::Row;
use swarm_ports::SpecFacts;
use swarm_sys::files::list_if_present;
use swarm_sys::paths::Paths;

use crate::records;

/// Returns the rows that these workers will have, without their pids. A worker that is started again has another row
/// already. What cannot be read is left out.
pub fn rows(paths: &Paths) -> Vec<Row> {
    let dirs = list_if_present(&paths.workers()).unwrap_or_default().into_iter().map(|entry| entry.path());
    // Most directories have no such file, and one look is cheaper than reading the contract.
    let pending = dirs.filter(|dir| dir.join("spec.pending").exists());
    let row = |spec: SpecFacts| match spec {
        SpecFacts::Pending(spec) => Some(reconcile::row_of(&spec, 0, "")),
        SpecFacts::Executed(_) | SpecFacts::Missing => None,
    };
    pending.filter_map(|dir| row(records::spec(&dir).ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_model::{Contract, Spec};

    use super::*;

    #[test]
    fn only_contracts_that_were_not_executed_count() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path());
        assert_eq!(rows(&paths), Vec::new());
        let contract = Contract { cwd: "/r".to_owned(), tags: vec!["t".to_owned()], ..Contract::default() };
        let pending =
            [("a", 1, "spec.json"), ("a", 2, "spec.pending"), ("b", 1, "spec.json"), ("c", 1, "spec.pending")];
        for (name, generation, file) in pending {
            let spec = Spec {
                name: name.to_owned(),
                generation,
                token: "k".to_owned(),
                request: String::new(),
                started: "s".to_owned(),
                contract: contract.clone(),
                worktree: None,
                logs: Vec::new(),
                resume: None,
                hooked: None,
                machine: None,
                exit_slot: None,
            };
            fs::create_dir_all(paths.worker(name, generation)).expect("made");
            fs::write(paths.worker(name, generation).join(file), serde_json::to_vec(&spec).expect("JSON"))
                .expect("written");
        }
        fs::create_dir_all(paths.worker("torn", 1)).expect("made");
        fs::write(paths.worker("torn", 1).join("spec.pending"), "{").expect("written");
        let mut found: Vec<_> = rows(&paths).into_iter().map(|row| (row.name, row.tags, row.cwd)).collect();
        found.sort();
        let row = |name: &str| (name.to_owned(), vec!["t".to_owned()], "/r".to_owned());
        assert_eq!(found, [row("a"), row("c")]);
    }
}
