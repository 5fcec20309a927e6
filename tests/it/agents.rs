//! `swarm agents`: which programs are found, and how often they are executed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Rig, Said, run, schema};

/// A directory of programs that note each start.
struct Programs<'a> {
    rig: &'a Rig,
    dir: PathBuf,
}

impl<'a> Programs<'a> {
    fn new(rig: &'a Rig) -> Self {
        let dir = rig.path("programs");
        fs::create_dir(&dir).expect("made");
        Self { rig, dir }
    }

    fn make(&self, name: &str, prints: &str) {
        let path = self.dir.join(name);
        let started = self.rig.path("started");
        let script = format!("#!/bin/sh\necho \"{name} $* in $PWD\" >> '{}'\necho '{prints}'\n", started.display());
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    fn swarm(&self, words: &[&str]) -> Said {
        let mut command = self.rig.command(words);
        command.env("PATH", &self.dir);
        run(command)
    }

    fn agents(&self) -> Vec<Value> {
        let said = self.swarm(&["agents", "--json"]).ok();
        assert_eq!(schema::check_lines(&said), ["swarm.agents/1"]);
        let said: Value = serde_json::from_str(&said).expect("JSON");
        said["agents"].as_array().expect("a list").clone()
    }

    fn agent(&self, name: &str) -> Value {
        self.agents().into_iter().find(|agent| agent["name"] == name).expect("listed")
    }

    /// The starts of the programs since the last call.
    fn started(&self) -> Vec<String> {
        let file = self.rig.path("started");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

#[test]
fn each_program_is_executed_once_until_it_changes() {
    let rig = Rig::new();
    fs::create_dir_all(rig.root()).expect("made");
    let programs = Programs::new(&rig);
    programs.make("claude", "2.1.328 (Claude Code)");
    programs.make("codex", "codex-cli 0.100.0");
    let names: Vec<Value> = programs.agents().iter().map(|agent| agent["name"].clone()).collect();
    assert_eq!(
        names,
        ["claude", "codex", "gemini", "opencode", "aider", "gemini-acp", "opencode-acp", "qwen", "shell"]
    );
    assert_eq!(programs.started(), ["claude --version in /", "codex --version in /"]);
    let claude = programs.agent("claude");
    assert_eq!((&claude["version"], &claude["lost"]), (&json!("2.1.328"), &json!([])));
    assert_eq!(claude["program"], json!(programs.dir.join("claude")));
    let codex = programs.agent("codex");
    assert_eq!(codex["lost"], json!(["older than 0.169.0, the version that this adapter was tested with"]));
    assert_eq!(programs.agent("gemini")["program"], Value::Null);
    assert_eq!(programs.started(), Vec::<String>::new(), "the versions are known");
    programs.make("claude", "2.1.50 (Claude Code), an older one");
    assert_eq!(programs.agent("claude")["version"], "2.1.50");
    assert_eq!(programs.started(), ["claude --version in /"]);
    let shown = programs.swarm(&["agents"]).ok();
    assert!(shown.contains("claude 2.1.50: hooks cannot defer a tool use (since 2.1.89)"), "{shown}");
    let gemini = shown.lines().find(|line| line.starts_with("gemini ")).expect("a line");
    assert!(gemini.trim_end().ends_with("(not found)"), "{gemini}");
}

#[test]
fn a_command_of_the_configuration_is_listed_and_not_executed() {
    let rig = Rig::new();
    let programs = Programs::new(&rig);
    programs.make("mine", "1.2.3");
    let user = rig.path("home/.config/swarm");
    fs::create_dir_all(&user).expect("made");
    let text = "[agents.own]\ncommand = ['mine', 'x']\nevents = 'opencode'\ncapabilities = ['file_read']\n";
    fs::write(user.join("config.toml"), text).expect("written");
    let own = programs.agent("own");
    assert_eq!((&own["adapter"], &own["version"]), (&json!("opencode"), &Value::Null));
    assert_eq!((&own["capabilities"], &own["program"]), (&json!(["file_read"]), &json!(programs.dir.join("mine"))));
    assert_eq!(programs.started(), Vec::<String>::new());
}
