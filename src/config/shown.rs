//! All keys with their values and the files that set them.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::{Layer, check, keys, layers};

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
    pub about: &'static str,
}

/// Returns all keys that are set, and the defaults of the others, sorted by name.
///
/// # Errors
/// Returns every problem in the files.
pub fn shown(user: Option<&Path>, root: Option<&Path>) -> Result<Vec<Shown>, Vec<String>> {
    let mut list: BTreeMap<String, Shown> = BTreeMap::new();
    for layer in layers(user, root)? {
        list.extend(leaves(&layer).into_iter().map(|set| (set.key.clone(), set)));
    }
    for key in keys::KEYS.iter().filter(|key| !key.name.contains('*')) {
        let value = if key.default.is_empty() { "-" } else { key.default };
        list.entry(key.name.to_owned()).or_insert_with(|| Shown {
            key: key.name.into(),
            value: value.into(),
            source: Source::Default,
            about: key.about,
        });
    }
    Ok(list.into_values().collect())
}

fn leaves(layer: &Layer) -> Vec<Shown> {
    let mut found = Vec::new();
    if let Ok(spanned) = DeTable::parse(&layer.text) {
        collect(layer, &layer.table, spanned.get_ref(), &mut Vec::new(), &mut found);
    }
    found
}

/// Collects the values from `values` and their lines from `places`.
fn collect<'a>(
    layer: &Layer,
    values: &'a Table,
    places: &DeTable<'_>,
    path: &mut Vec<&'a str>,
    found: &mut Vec<Shown>,
) {
    for (name, value) in values {
        path.push(name);
        let place = places.get_key_value(name.as_str());
        match (keys::find(path), value, place) {
            (Some(key), value, Some((place, _))) => {
                let line = check::line_of(&layer.text, place.span().start);
                let value = if keys::is_secret(path) { HIDDEN.to_owned() } else { text(value) };
                let source = Source::File { path: layer.shown.clone(), line };
                found.push(Shown { key: path.join("."), value, source, about: key.about });
            }
            (None, Value::Table(values), Some((_, places))) => {
                if let Some(places) = table(places) {
                    collect(layer, values, places, path, found);
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
        let list = shown(Some(&user), Some(dir.path())).expect("read");
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
}
