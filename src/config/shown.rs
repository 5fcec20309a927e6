//! All keys with their values and the files that set them.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::{Layer, Owner, check, keys, layers, trust};

/// Replacement for hidden values.
const HIDDEN: &str = "***";

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File { path: String, line: usize },
}

/// Key with its value, to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub key: String,
    /// Value, hidden if it may be secret.
    pub value: String,
    pub source: Source,
    /// Whether the value applies. A value of the repository's file does not if it needs consent, and nobody has agreed to it.
    pub in_force: bool,
    pub about: &'static str,
}

/// Returns all keys that are set, and the defaults of the others, sorted by name. `book` has what people agreed to.
///
/// # Errors
/// Returns every problem in the files.
pub fn shown(user: Option<&Path>, root: Option<&Path>, book: Option<&Path>) -> Result<Vec<Shown>, Vec<String>> {
    let mut list: BTreeMap<String, Shown> = BTreeMap::new();
    for layer in layers(user, root)? {
        let agreed = match (&layer.owner, book, root) {
            (Owner::Repository, Some(book), Some(root)) => trust::recorded(book, root).map_err(|cause| vec![cause])?,
            _ => None,
        };
        let limited = match layer.owner {
            Owner::User => layer.table.clone(),
            Owner::Repository => trust::limited(layer.table.clone(), &agreed.unwrap_or_default()),
        };
        list.extend(leaves(&layer, &limited).into_iter().map(|set| (set.key.clone(), set)));
    }
    for key in keys::KEYS.iter().filter(|key| !key.name.contains('*')) {
        let value = if key.default.is_empty() { "-" } else { key.default };
        list.entry(key.name.to_owned()).or_insert_with(|| Shown {
            key: key.name.into(),
            value: value.into(),
            source: Source::Default,
            in_force: true,
            about: key.about,
        });
    }
    Ok(list.into_values().collect())
}

/// Returns the values of a file. `limited` has those that apply.
fn leaves(layer: &Layer, limited: &Table) -> Vec<Shown> {
    let mut found = Vec::new();
    if let Ok(spanned) = DeTable::parse(&layer.text) {
        collect(layer, (&layer.table, Some(limited)), spanned.get_ref(), &mut Vec::new(), &mut found);
    }
    found
}

/// Collects the values from `values` and their lines from `places`. `limited` has those that apply.
fn collect<'a>(
    layer: &Layer,
    (values, limited): (&'a Table, Option<&Table>),
    places: &DeTable<'_>,
    path: &mut Vec<&'a str>,
    found: &mut Vec<Shown>,
) {
    for (name, value) in values {
        path.push(name);
        let place = places.get_key_value(name.as_str());
        let applies = limited.and_then(|table| table.get(name));
        match (keys::find(path), value, place) {
            (Some(key), value, Some((place, _))) => {
                let line = check::line_of(&layer.text, place.span().start);
                let in_force = applies == Some(value);
                let value = if keys::is_secret(path) { HIDDEN.to_owned() } else { text(value) };
                let source = Source::File { path: layer.shown.clone(), line };
                found.push(Shown { key: path.join("."), value, source, in_force, about: key.about });
            }
            (None, Value::Table(values), Some((_, places))) => {
                if let Some(places) = table(places) {
                    collect(layer, (values, applies.and_then(Value::as_table)), places, path, found);
                }
            }
            _ => {}
        }
        path.pop();
    }
}

/// Returns a value as JSON, which for the values of these files equals TOML.
fn text(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn table<'a, 'i>(value: &'a Spanned<DeValue<'i>>) -> Option<&'a DeTable<'i>> {
    value.get_ref().as_table()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_value_is_shown_with_its_file_and_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let user = dir.path().join("config.toml");
        fs::write(&user, "[merge]\nverify = 'make'\nbatch = 3\n[notify]\nwebhook = 'http://h/token'\n")
            .expect("written");
        fs::write(dir.path().join(crate::FILE), "[merge]\n\nbatch = 5\n[agents.x.env]\nA = 'token'\n")
            .expect("written");
        let list = shown(Some(&user), Some(dir.path()), None).expect("read");
        let of = |name: &str| {
            let one = list.iter().find(|one| one.key == name).expect("there");
            let line = match &one.source {
                Source::Default => 0,
                Source::File { path, line } => line + if path.ends_with("config.toml") { 100 } else { 0 },
            };
            (one.value.as_str(), line)
        };
        assert_eq!(of("merge.verify"), ("\"make\"", 102));
        assert_eq!(of("merge.batch"), ("5", 3));
        assert_eq!(of("merge.strategy"), ("merge", 0));
        assert_eq!(of("run.templates"), ("-", 0));
        assert_eq!((of("notify.webhook"), of("agents.x.env.A")), (("***", 105), ("***", 5)));
    }

    #[test]
    fn a_value_of_the_repository_applies_only_as_a_person_agreed_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (root, book) = (dir.path().join("r"), dir.path().join("trust.json"));
        fs::create_dir(&root).expect("made");
        let write = |text: &str| fs::write(root.join(crate::FILE), text).expect("written");
        let text = "[merge]\nverify = 'make'\nbatch = 5\n[spawn.env]\nA = 'b'\n";
        write(text);
        let set = || -> Vec<(String, bool)> {
            let list = shown(None, Some(&root), Some(&book)).expect("read");
            list.into_iter().filter(|one| one.source != Source::Default).map(|one| (one.key, one.in_force)).collect()
        };
        let of = |batch: bool, verify: bool, env: bool| {
            [("merge.batch", batch), ("merge.verify", verify), ("spawn.env.A", env)]
                .map(|(key, is)| (key.to_owned(), is))
        };
        assert_eq!(set(), of(true, false, false));
        let project = trust::Project::of(&root).expect("a project");
        let entries = trust::settings(&root).expect("read");
        trust::agree(&book, &project, &["merge", "spawn"], &entries, 1).expect("agreed");
        assert_eq!(set(), of(true, true, true));
        write(&text.replace("make", "evil"));
        assert_eq!(set(), of(true, false, true));
        assert!(shown(None, Some(&root), None).expect("read").iter().any(|one| !one.in_force), "nowhere to agree");
    }
}
