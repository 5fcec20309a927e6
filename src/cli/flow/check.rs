//! `swarm flow check`: reports every error of a workflow with its line.

use std::path::Path;

use serde_json::{Value, json};
use swarm_actors::flow::live;
use swarm_actors::flow::validate::{Finding, OwnerRules, validate};

use super::args::CheckArgs;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_store::flows::yaml::{self, Document};

/// An error in a workflow file and its location.
pub struct Fault {
    line: Option<u64>,
    path: String,
    message: String,
}

impl Fault {
    /// Returns `FILE:LINE: MESSAGE`, or `FILE: MESSAGE` if the line is unknown.
    pub fn text(&self, file: &Path) -> String {
        let line = self.line.map(|line| format!("{line}: ")).unwrap_or_else(|| " ".to_owned());
        format!("{}:{line}{}", escape(&file.to_string_lossy()), escape(&self.message))
    }

    fn value(&self) -> Value {
        json!({"line": self.line, "path": self.path, "message": self.message})
    }
}

pub fn rules(relaxed: bool) -> OwnerRules {
    if relaxed { OwnerRules::Relaxed } else { OwnerRules::Strict }
}

pub fn run(args: &CheckArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let text = super::read_file(&args.file)?;
    let flow = match &args.flow {
        Some(flow) => Some(super::workspace(&args.common)?.resolve(flow)?.read()?),
        None => None,
    };
    let rules = rules(args.relaxed);
    let faults = faults(&text, |document| match &flow {
        Some(flow) => live::validate(document, rules, flow),
        None => validate(document, rules),
    });
    if args.common.json {
        let list: Vec<Value> = faults.iter().map(Fault::value).collect();
        let file = json!(args.file.to_string_lossy());
        let object = json::object([("file", file), ("ok", json!(list.is_empty())), ("findings", json!(list))]);
        json::print(screen, "swarm.flow.check/1", &object)?;
    } else {
        for fault in &faults {
            screen.line(&fault.text(&args.file))?;
        }
    }
    Ok(u8::from(!faults.is_empty()))
}

/// Returns the errors of a workflow's text: the parse error, or everything that `find` reports.
pub fn faults(text: &str, find: impl Fn(&Value) -> Vec<Finding>) -> Vec<Fault> {
    let document: Document = match yaml::read(text) {
        Ok(document) => document,
        Err(message) => return vec![Fault { line: None, path: String::new(), message }],
    };
    let fault =
        |finding: Finding| Fault { line: document.line(&finding.path), path: finding.path, message: finding.message };
    find(&document.value).into_iter().map(fault).collect()
}
