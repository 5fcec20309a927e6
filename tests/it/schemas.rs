//! Published schemas: one for each name, and output conforms to it. All other tests of this binary check their output
//! against the schemas too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::common::{Rig, SOON, schema, wait_until};

/// Returns the schema names in a text, such as `swarm.workers/1`, between two marks.
fn names_in(text: &str, mark: char) -> BTreeSet<String> {
    let is_name = |word: &&str| {
        let parts = word.strip_prefix("swarm.").and_then(|rest| rest.split_once('/'));
        parts.is_some_and(|(name, number)| !name.is_empty() && number.parse::<u32>().is_ok())
    };
    text.split(mark).filter(is_name).map(str::to_owned).collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_schema_is_printed_described_and_published_under_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let text = |path: &PathBuf| std::fs::read_to_string(path).expect("text");
    let mut printed: BTreeSet<String> = files.iter().flat_map(|path| names_in(&text(path), '"')).collect();
    // Used only by a unit test.
    printed.remove("swarm.x/1");
    let described = names_in(&text(&root.join("docs/json.md")), '`');
    let published: BTreeSet<String> = std::fs::read_dir(schema::folder())
        .expect("there")
        .flatten()
        .map(|entry| {
            let schema = schema::read(&entry.path());
            let name = schema["properties"]["schema"]["const"].as_str().expect("a name").to_owned();
            assert_eq!(entry.path(), schema::file_of(&name));
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
            name
        })
        .collect();
    assert_eq!(printed, published, "printed and published schemas differ");
    assert_eq!(described, published, "described and published schemas differ");
}

#[test]
fn a_value_that_violates_its_schema_is_found() {
    let spoilt = |value: &str| std::panic::catch_unwind(|| schema::check_lines(value)).is_err();
    assert_eq!(schema::check_lines("{\"schema\":\"swarm.man/1\",\"dir\":\"/d\",\"pages\":[\"a\"]}\n"), ["swarm.man/1"]);
    for value in [
        json!({"dir": "/d", "pages": [1]}),
        json!({"dir": "/d"}),
        json!({"dir": null, "pages": []}),
        json!({"dir": "/d", "pages": [], "more": 1}),
    ] {
        let line = value.to_string().replacen('{', "{\"schema\":\"swarm.man/1\",", 1);
        assert!(spoilt(&line), "{line}");
    }
}

/// Runs the verbs and returns the schema names of their output, which [`Rig::swarm`] validates.
#[track_caller]
fn printed(rig: &Rig, cwd: &Path, verbs: &[&[&str]]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for words in verbs {
        let said = rig.swarm_in(cwd, &[words, &["--json"][..]].concat());
        let found = schema::check_lines(&said.out);
        assert!(!found.is_empty(), "{words:?}: {said:?}");
        names.extend(found);
    }
    names
}

#[test]
fn output_about_workers_conforms_to_its_schemas() {
    let rig = Rig::new();
    let repo = rig.repo();
    rig.swarm_in(&repo, &["spawn", "--name", "tree", "--worktree", "--env", "A=1", "--", "sh", "-c", "echo x > y"])
        .ok();
    rig.wait("tree");
    rig.swarm_in(&repo, &["spawn", "--name", "live", "--worktree", "--", "sleep", "600"]).ok();
    rig.spawn_sh("window", &["--tmux", "--tag", "t"], "echo ready; while read line; do echo \"got $line\"; done");
    wait_until("the window is ready", SOON, || rig.log("window", "tmux").contains("ready"));
    rig.spawn_sh("shot", &["--restart", "never"], "kill -9 $$");
    rig.wait("shot");
    let fleet = rig.file("fleet.toml", "[[worker]]\nname = 'many'\ncommand = 'sleep 600'\n");
    let man = rig.path("man");
    let names = printed(
        &rig,
        &repo,
        &[
            &["spawn", "--file", &fleet],
            &["ls"],
            &["status", "tree"],
            &["status", "window"],
            &["status", "shot"],
            &["logs", "window"],
            &["peek", "window"],
            &["send", "window", "hello"],
            &["keys", "window", "Enter"],
            &["diff", "tree"],
            &["history", "shot"],
            &["session", "show", "tree"],
            &["session", "check", "tree"],
            &["session", "note", "live", "--operation", "x"],
            &["merge", "add", "tree"],
            &["merge", "wait", "--timeout", "25"],
            &["merge", "ls", "--all"],
            &["merge", "status", "tree"],
            &["merge", "log"],
            &["recover"],
            &["heartbeat", "start", "window", "--interval", "1h"],
            &["heartbeat", "list"],
            &["heartbeat", "status", "window"],
            &["heartbeat", "stop", "window"],
            &["supervisor", "status"],
            &["man", "--dir", man.to_str().expect("text")],
            &["init"],
            &["agents"],
            &["kill", "--tag", "t"],
            &["wait", "--all", "--timeout", "0.1"],
            &["respawn", "shot"],
            &["clean", "tree"],
        ],
    );
    assert!(names.len() >= 27, "{names:?}");
}

#[test]
fn output_about_runs_flows_and_loops_conforms_to_its_schemas() {
    let rig = Rig::new();
    let repo = rig.repo();
    std::fs::create_dir(repo.join("specs")).expect("made");
    let spec = "---\nadapter: shell\n---\n# One\n\n```sh\necho one > one\n```\n";
    std::fs::write(repo.join("specs/one.md"), spec).expect("written");
    let workflow = "workflow:\n  name: Two\n  summary: Two steps.\n  nodes:\n    - {id: owner-intake, role: owner, work: [a]}\n    - {id: owner-close, role: owner, work: [b]}\n  edges: [{from: owner-intake, to: owner-close}]\n";
    std::fs::write(repo.join("w.yaml"), workflow).expect("written");
    rig.git(&repo, &["add", "-A"]);
    rig.git(&repo, &["commit", "-q", "-m", "specs"]);
    let mut names = printed(
        &rig,
        &repo,
        &[
            &["run", "init"],
            &["plan", "--specs", "specs", "-y"],
            &["run", "status"],
            &["flow", "check", "w.yaml"],
            &["flow", "new", "demo", "--workflow", "w.yaml"],
            &["flow", "ls"],
            &["flow", "status", "2"],
            &["flow", "graph", "2"],
            &["flow", "requests", "2"],
            &["flow", "consent", "2", "full-access"],
            &["flow", "events", "2"],
            &["ralph", "init"],
            &["ralph", "template"],
            &["ralph", "list"],
        ],
    );
    names.extend(printed(&rig, &repo, &[&["trust", "--yes"], &["trust", "--show"], &["trust", "--list"]]));
    rig.swarm_in(&repo, &["run", "--headless"]).ok();
    names.extend(printed(&rig, &repo, &[&["run", "status"], &["run", "cleanup"], &["merge", "ls", "--all"]]));
    assert!(names.len() >= 15, "{names:?}");
}
