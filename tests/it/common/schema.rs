//! Validates `--json` output against docs/schemas. Implements only the part of JSON Schema that these files use, and
//! strictly: a key that is not published is an error.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas")
}

/// File of a schema such as `swarm.workers/1`.
pub fn file_of(name: &str) -> PathBuf {
    folder().join(format!("{}.json", name.replace('/', ".")))
}

pub fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Validates each line of an output that names a schema, and returns the names.
#[track_caller]
pub fn check_lines(out: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in out.lines().filter(|line| line.starts_with("{\"schema\":\"swarm.")) {
        // The last line may be incomplete if a test killed its writer.
        let Ok(mut value) = serde_json::from_str::<Value>(line) else { continue };
        let name = value["schema"].as_str().expect("it begins so").to_owned();
        if file_of(&name).exists() {
            let schema = read(&file_of(&name));
            // Added to each object if several hosts were asked.
            if let Some(object) = value.as_object_mut().filter(|_| schema["properties"]["host"].is_null()) {
                object.remove("host");
            }
            let faults = faults(&schema, &schema, &value, "");
            assert!(faults.is_empty(), "{name}: {faults:?} in {line}");
        }
        names.push(name);
    }
    names
}

/// Violations of a value, each with its path.
fn faults(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} leads nowhere"));
        return faults(root, target, value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let tried: Vec<Vec<String>> = choices.iter().map(|choice| faults(root, choice, value, at)).collect();
        return tried.into_iter().min_by_key(Vec::len).unwrap_or_default();
    }
    let mut found = Vec::new();
    if !is_of(&schema["type"], value) {
        return vec![format!("{at}: {value} is no {}", schema["type"])];
    }
    if schema["enum"].as_array().is_some_and(|known| !known.contains(value)) {
        found.push(format!("{at}: {value} is none of {}", schema["enum"]));
    }
    if !schema["const"].is_null() && schema["const"] != *value {
        found.push(format!("{at}: {value} is not {}", schema["const"]));
    }
    if let Some(list) = value.as_array() {
        let of_item = |(number, item)| faults(root, &schema["items"], item, &format!("{at}[{number}]"));
        found.extend(list.iter().enumerate().flat_map(of_item));
    }
    if let Some(object) = value.as_object() {
        found.extend(in_object(root, schema, object, at));
    }
    found
}

fn in_object(root: &Value, schema: &Value, object: &Map<String, Value>, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    found.extend(required.filter(|key| !object.contains_key(*key)).map(|key| format!("{at}: no {key}")));
    for (key, value) in object {
        let at = format!("{at}.{key}");
        match (&schema["properties"][key], &schema["additionalProperties"]) {
            (Value::Null, Value::Bool(true)) => {}
            (Value::Null, more) if more.is_object() => found.extend(faults(root, more, value, &at)),
            (Value::Null, _) => found.push(format!("{at} is not published")),
            (known, _) => found.extend(faults(root, known, value, &at)),
        }
    }
    found
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind {
        Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
        Value::String(kind) => match kind.as_str() {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("unsupported type {other}"),
        },
        _ => true,
    }
}
