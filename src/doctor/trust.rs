//! Projects whose files ask for more than a person agreed to.

use std::path::Path;

use swarm_config::trust::{self, Agreed, Book, Project, Status};

use super::{Finding, Patient};
use swarm_sys::quoting::command_line;

/// Maximum number of settings that are named.
const NAMED_MAX: usize = 3;

pub fn trust(patient: &Patient) -> Vec<Finding> {
    let Some(path) = trust::user_book() else { return Vec::new() };
    let book = match Book::read(&path) {
        Ok(book) => book,
        Err(cause) => {
            let remedy = "move the file away, then run 'swarm trust' in each repository";
            return vec![Finding::error("trust", cause).remedy(remedy)];
        }
    };
    let here = patient.root.as_deref();
    let key_of = |root: &Path| Project::of(root).ok().map(|project| project.key);
    let own = here.and_then(|root| Some((root, key_of(root)?)));
    let mut found = Vec::new();
    for (key, agreed) in &book.projects {
        let is_here = own.as_ref().filter(|(_, own)| own == key).map(|(root, _)| *root);
        // In other projects of which nothing is trusted, nothing is expected to take effect.
        if is_here.is_none() && agreed.sections.values().all(std::collections::BTreeMap::is_empty) {
            continue;
        }
        let main = Path::new(trust::shown(key));
        // A bare repository has no files of its own.
        let root = if main.join("HEAD").is_file() { is_here } else { Some(main).filter(|main| main.is_dir()) };
        let Some(names) = root.and_then(|root| waiting(root, agreed)).filter(|names| !names.is_empty()) else {
            continue;
        };
        found.push(finding(
            trust::shown(key),
            &names,
            "changed and wait for consent; what was trusted before stays in force",
        ));
    }
    // A project about which nobody was ever asked is reported only there.
    if let Some((root, key)) = own.filter(|(_, key)| !book.projects.contains_key(key)) {
        let names = waiting(root, &Agreed::default()).unwrap_or_default();
        if !names.is_empty() {
            let shown = Project { key }.named(root);
            found.push(finding(&shown, &names, "wait for consent; until then they do not count"));
        }
    }
    found
}

/// Returns the names of the settings that wait for consent. `None` if the files cannot be read, which is reported
/// elsewhere.
fn waiting(root: &Path, agreed: &Agreed) -> Option<Vec<String>> {
    let recorded = agreed.sections.keys().map(String::as_str).filter(|section| *section != trust::SPECS);
    let sections: Vec<&str> = match agreed.sections.is_empty() {
        true => trust::SETTINGS.into_iter().chain([trust::CLAUDE, trust::CODEX]).collect(),
        false => recorded.collect(),
    };
    let mut entries = trust::settings(root).ok()?;
    entries.extend(trust::agent_files(root, &sections).ok()?);
    let all = trust::compare(Some(agreed), &sections, &entries);
    Some(all.into_iter().filter(|(status, _)| *status != Status::Agreed).map(|(_, entry)| entry.key).collect())
}

fn finding(shown: &str, names: &[String], state: &str) -> Finding {
    let more = names.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let what = format!("{shown}: {named}{more} {state}");
    Finding::warning("trust", what).remedy(format!("run 'swarm trust {}'", command_line([shown])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_settings_are_named_and_the_others_counted() {
        let names = |count: usize| (0..count).map(|at| format!("k{at}")).collect::<Vec<_>>();
        assert!(finding("/r", &names(3), "changed").what.starts_with("/r: k0, k1, k2 changed"));
        assert!(finding("/r", &names(5), "changed").what.starts_with("/r: k0, k1, k2 and 2 more changed"));
        assert_eq!(finding("/a b", &names(1), "changed").remedy.as_deref(), Some("run 'swarm trust '/a b''"));
    }
}
