//! Rules of the architecture that the compiler does not check. Each message says what to do instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every package, its folder, and the packages of this workspace that it may depend on.
const PACKAGES: [(&str, &str, &[&str]); 10] = [
    ("swarm-model", "actors/model", &[]),
    ("swarm-ports", "actors/ports", &["swarm-model"]),
    ("swarm-sys", "src/sys", &["swarm-model", "swarm-ports"]),
    ("swarm-actors", "actors", &["swarm-model", "swarm-ports", "swarm-sys"]),
    ("swarm-config", "src/config", &["swarm-model", "swarm-sys"]),
    ("swarm-agents", "src/agents", &["swarm-config", "swarm-model"]),
    ("swarm-tmux", "src/tmux", &["swarm-model", "swarm-sys"]),
    ("swarm-git", "src/git", &["swarm-config", "swarm-model", "swarm-ports", "swarm-sys"]),
    ("swarm-hosts", "src/hosts", &["swarm-config", "swarm-model", "swarm-sys"]),
    (
        "swarm-store",
        "src/store",
        &[
            "swarm-actors",
            "swarm-agents",
            "swarm-config",
            "swarm-git",
            "swarm-model",
            "swarm-ports",
            "swarm-sys",
            "swarm-tmux",
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// The Rust files below a folder, each without its comments.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let (mut open, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code: Vec<String> = read(&path)
                .lines()
                .map(|line| if line.trim_start().starts_with("//") { String::new() } else { line.to_owned() })
                .collect();
            found.push((path, code.join("\n")));
        }
    }
    assert!(!found.is_empty(), "no Rust file below {folder}");
    found
}

/// The part of a file before its unit tests.
fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {").next().unwrap_or(code)
}

fn is_test(path: &Path) -> bool {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let in_tests = path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "testing");
    in_tests || name == "tests" || name.ends_with("_tests") || name.starts_with("tests_")
}

/// The dependencies on packages of this workspace in one section of a manifest.
fn own_dependencies(manifest: &str, section: &str) -> BTreeSet<String> {
    let body = manifest.split(&format!("\n[{section}]\n")).nth(1).unwrap_or_default();
    let body = body.split("\n[").next().unwrap_or_default();
    let names = body.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("swarm-")).map(str::to_owned).collect()
}

#[test]
fn packages_depend_only_on_those_below_them() {
    for (package, folder, allowed) in PACKAGES {
        let manifest = read(&root().join(folder).join("Cargo.toml"));
        assert!(manifest.contains(&format!("name = \"{package}\"")), "{folder} holds another package than {package}");
        let found = own_dependencies(&manifest, "dependencies");
        let wrong: Vec<&String> = found.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(wrong.is_empty(), "{package} may not depend on {wrong:?}: move the shared value to swarm-model");
    }
}

#[test]
fn every_package_is_in_the_table() {
    let manifest = read(&root().join("Cargo.toml"));
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
    for member in members.split(',').map(|member| member.trim().trim_matches('"')).filter(|member| *member != ".") {
        assert!(PACKAGES.iter().any(|(_, folder, _)| *folder == member), "add {member} to the table of packages");
    }
}

/// Names of all packages that building a package and its tests needs, by Cargo.lock.
fn closure(package: &str) -> BTreeSet<String> {
    let lock = read(&root().join("Cargo.lock"));
    let mut needs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in lock.split("[[package]]").skip(1) {
        let name = entry.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a name");
        let list = entry.split("dependencies = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
        let names = list.split('"').skip(1).step_by(2).filter_map(|name| name.split(' ').next());
        needs.entry(name).or_default().extend(names);
    }
    let (mut open, mut found) = (vec![package], BTreeSet::new());
    while let Some(name) = open.pop() {
        if found.insert(name.to_owned()) {
            open.extend(needs.get(name).into_iter().flatten().copied());
        }
    }
    found
}

#[test]
fn git_is_built_without_the_runtime_of_actors_the_command_line_and_the_server() {
    let needed = closure("swarm-git");
    assert!(needed.contains("git2") && needed.contains("swarm-model"), "Cargo.lock is not understood: {needed:?}");
    for heavy in ["clap", "axum", "ractor"] {
        assert!(!needed.contains(heavy), "swarm-git must not need {heavy}");
    }
}

#[test]
fn verbs_reach_git_and_tmux_through_the_store() {
    for (path, code) in sources("src/cli") {
        let code = if is_test(&path) { "" } else { without_tests(&code) };
        for banned in ["swarm_git", "swarm_tmux", "git2::", "tmux_interface::"] {
            assert!(
                !code.contains(banned),
                "{} uses {banned}: add what it needs to swarm_store::repositories or swarm_store::windows",
                path.display()
            );
        }
    }
}

#[test]
fn directories_are_listed_completely_or_not_at_all() {
    for (path, code) in ["src", "actors"].into_iter().flat_map(sources) {
        let is_listing = path.ends_with("sys/files/list.rs") || path.ends_with("tmux/testing.rs") || is_test(&path);
        assert!(
            is_listing || !without_tests(&code).contains("read_dir("),
            "{}: list the directory with swarm_sys::files::list, which repeats interrupted calls",
            path.display()
        );
    }
}

#[test]
fn actors_look_at_disks_in_other_threads() {
    // The supervisor has one thread, and a disk may not answer. The registry does its work in other threads.
    for (path, code) in sources("actors") {
        let is_other = ["registry", "testing", "tests"].iter().any(|room| path.iter().any(|part| part == *room));
        if is_other || is_test(&path) {
            continue;
        }
        for line in without_tests(&code).lines().filter(|line| !line.contains("spawn_blocking")) {
            for banned in [".is_dir()", ".is_file()", ".exists()", "std::fs", "metadata("] {
                let at = path.display();
                assert!(!line.contains(banned), "{at}: {line}: use a port, or tokio::task::spawn_blocking");
            }
        }
    }
}

#[test]
fn the_state_of_a_machine_changes_only_by_events() {
    let mut machines = 0;
    for (path, code) in sources("actors") {
        if !path.ends_with("machine.rs") {
            continue;
        }
        for body in code.split("pub struct Machine").skip(1) {
            machines += 1;
            let fields = body.split('}').next().unwrap_or_default();
            assert!(!fields.contains("pub "), "{}: a machine's fields are private", path.display());
        }
        assert!(!code.contains("DerefMut"), "{}: a machine's state is read-only outside", path.display());
    }
    assert!(machines >= 4, "only {machines} machines found");
}

/// Names of variables that hold the key of a member.
const KEY_NAMES: [&str; 5] = ["key", "field", "member", "name", "id"];

/// Places where code reads or writes a member of a JSON value by index, with the line: `value["key"]`, `value[key]`.
fn unchecked_members(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        for (at, _) in text.match_indices('[') {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let is_index = before.is_alphanumeric() || "_)]?".contains(before);
            let Some((inner, after)) = text[at + 1..].split_once(']').filter(|_| is_index) else { continue };
            let is_key = match inner.strip_prefix('"') {
                // Parts of strings, such as `line["failed ".len()..]`, are no members.
                Some(word) => word.ends_with('"') && !inner.contains(".len()"),
                None => KEY_NAMES.contains(&inner) || (is_name(inner) && is_read_as_json(after)),
            };
            if is_key {
                found.push((line, text.trim().to_owned()));
            }
        }
    }
    found
}

/// Reports whether an index is a plain name, such as `at` or `STATUS`.
fn is_name(inner: &str) -> bool {
    let inner = inner.trim_start_matches('*');
    inner.starts_with(|c: char| c.is_ascii_alphabetic()) && inner.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reports whether what follows an index is a use that only JSON values have.
fn is_read_as_json(after: &str) -> bool {
    let uses = ["as_u64()", "as_i64()", "as_f64()", "as_bool()", "as_array", "as_object", "is_string()", "is_null()"];
    let more = ["is_array()", "is_object()", "is_number()", "is_boolean()", "take()"];
    let is_use = |rest: &str| uses.iter().chain(&more).any(|one| rest.starts_with(one));
    after.starts_with('[') || after.strip_prefix('.').is_some_and(is_use)
}

/// The files below a folder that are compiled for tests only, by `#[cfg(test)]` before `mod NAME;`.
fn test_files(files: &[(PathBuf, String)]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for (path, code) in files {
        for after in code.split("#[cfg(test)]\n").skip(1) {
            let declared = after.lines().next().and_then(|line| line.trim().strip_suffix(';'));
            let Some((_, name)) = declared.and_then(|line| line.split_once("mod ")) else { continue };
            found.insert(path.with_file_name(format!("{name}.rs")));
        }
    }
    found
}

#[test]
fn foreign_json_is_read_with_checks() {
    let sample = "a[\"b\"] = 1;\nf(x)[\"b\"]\nv[0][\"b\"]\nv[key].as_str()\nv[KEY][\"x\"]\n\
                  line[\"failed \".len()..]\nlet x = [\"a\"];\nvec![\"a\"]\nf(&[\"a\"])\nlist[at].as_str()\nreturn [\"a\"]";
    let lines: BTreeSet<usize> = unchecked_members(sample).iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, BTreeSet::from([1, 2, 3, 4, 5]), "the rule finds what it should");
    let mut wrong = Vec::new();
    for files in ["src", "actors"].map(sources) {
        let for_tests = test_files(&files);
        for (path, code) in files.iter().filter(|(path, _)| !is_test(path) && !for_tests.contains(path)) {
            let found = unchecked_members(without_tests(code)).into_iter();
            wrong.extend(found.map(|(line, text)| format!("{}:{line}: {text}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "read JSON with swarm_model::json::Members, write it with as_object_mut: {wrong:#?}");
}
