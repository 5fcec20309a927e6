//! `--tag`: selects workers by tag instead of by name, for every verb that takes names.

use clap::Args;
use swarm_model::{Refusal, RefusalKind, Row, WorkerView, nearest};

use super::error::Failure;
use swarm_store::views::Registry;

#[derive(Clone, Debug, Default, Args)]
pub struct Tagged {
    /// Select workers by this tag instead of by name (may be repeated to require several tags)
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
}

impl Tagged {
    pub fn is_given(&self) -> bool {
        !self.tags.is_empty()
    }

    /// Reports whether a worker is selected.
    pub fn is_of(&self, row: &Row) -> bool {
        has_all(row, &self.tags)
    }

    /// Returns the selected workers, in the order of the registry.
    ///
    /// # Errors
    /// Returns an error if no worker has the tags: a typing error must not look like success.
    pub fn workers<'a>(&self, registry: &'a Registry) -> Result<Vec<&'a WorkerView>, Refusal> {
        workers(&self.tags, registry)
    }

    /// Returns the names of the selected workers.
    ///
    /// # Errors
    /// Fails as [`Tagged::workers`] does.
    pub fn names(&self, registry: &Registry) -> Result<Vec<String>, Failure> {
        Ok(self.workers(registry)?.into_iter().map(|view| view.row.name.clone()).collect())
    }
}

/// Reports whether a worker has all of these tags.
pub fn has_all(row: &Row, tags: &[String]) -> bool {
    tags.iter().all(|tag| row.tags.contains(tag))
}

/// Returns the workers with all of these tags, in the order of the registry.
///
/// # Errors
/// Returns an error if no worker has them all.
pub fn workers<'a>(tags: &[String], registry: &'a Registry) -> Result<Vec<&'a WorkerView>, Refusal> {
    let found: Vec<&WorkerView> = registry.workers.iter().filter(|view| has_all(&view.row, tags)).collect();
    if found.is_empty() { Err(nobody(tags, registry)) } else { Ok(found) }
}

fn nobody(tags: &[String], registry: &Registry) -> Refusal {
    let known = || registry.workers.iter().flat_map(|view| view.row.tags.iter().map(String::as_str));
    let missing = tags.iter().find(|tag| !known().any(|known| known == *tag));
    let cause = match missing {
        Some(tag) => format!("no worker has the tag '{tag}'"),
        None => format!("no worker has all of the tags '{}'", tags.join("', '")),
    };
    let near = missing.and_then(|tag| nearest(tag, known()));
    let remedy = near.map_or_else(
        || "run 'swarm ls' to list workers with their tags".to_owned(),
        |near| format!("did you mean '{near}'?"),
    );
    Refusal::new(RefusalKind::NotFound, cause).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn several_tags_select_workers_that_have_all_of_them() {
        let all = sample::registry(vec![sample::process("one"), sample::window("none"), sample::process("two")]);
        let named = |tags: &[&str]| {
            let tagged = Tagged { tags: tags.iter().map(ToString::to_string).collect() };
            tagged.workers(&all).map(|found| found.iter().map(|view| view.row.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(named(&["ci"]), Ok(vec!["one".to_owned(), "two".to_owned()]));
        assert_eq!(named(&["ci", "a"]), named(&["ci"]));
        let refusal = named(&["cii"]).expect_err("nobody");
        assert_eq!(refusal.cause, "no worker has the tag 'cii'");
        assert_eq!(refusal.remedy.as_deref(), Some("did you mean 'ci'?"));
        assert_eq!(named(&["ci", "nightly"]).expect_err("nobody").cause, "no worker has the tag 'nightly'");
    }
}
