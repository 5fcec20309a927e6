//! `swarm explain`: the state of a worker, its cause, and the evidence: each fact with its source and age.

mod facts;
mod why;

use clap::Args;
use serde_json::json;
use swarm_model::Doing;

use self::facts::{Evidence, Fact};
use super::error::{Failure, unknown_worker};
use super::json;
use super::render::{Clock, escape, state_word, table, words};
use super::screen::Screen;
use swarm_store::views::Registry;
use swarm_sys::paths::Paths;

/// Number of output lines shown.
const OUTPUT_LINES: usize = 5;
/// Number of events shown.
const EVENTS: usize = 5;

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the worker
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ExplainArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    let clock = Clock::system();
    let Some(view) = registry.find(&args.name) else { return Err(unknown(&args.name, &registry, paths)) };
    let evidence = Evidence::of(view, paths);
    let (because, next) = (why::because(view, &evidence, &clock), why::next(view, &evidence));
    let facts = facts::facts(view, &evidence, paths, &clock);
    if args.json {
        let fact =
            |fact: &Fact| json!({"fact": fact.what, "value": fact.value, "source": fact.source, "age_ms": fact.age_ms});
        let body = json!({
            "name": view.row.name, "state": state_word(view.shown_state()), "because": because, "next": next,
            "facts": facts.iter().map(fact).collect::<Vec<_>>(),
            "output": evidence.output, "events": evidence.events,
        });
        json::print(screen, "swarm.explained/1", &body)?;
        return Ok(0);
    }
    let state = if view.is_parked() { Doing::Waiting.word() } else { state_word(view.shown_state()) };
    screen.line(&format!("{}: {state}: {}", escape(&view.row.name), escape(&because)))?;
    section("Last output:", &evidence.output, screen)?;
    section("Last events:", &evidence.events, screen)?;
    section("Next:", &next, screen)?;
    screen.line("\nEvidence:")?;
    let head = ["FACT", "VALUE", "SOURCE", "AGE"].map(str::to_owned).to_vec();
    let row = |fact: &Fact| {
        let age = fact.age_ms.map_or_else(|| "-".to_owned(), |ms| words(ms / 1000));
        vec![fact.what.to_owned(), escape(&fact.value).into_owned(), escape(&fact.source).into_owned(), age]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(facts.iter().map(row)).collect();
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    Ok(0)
}

fn section(title: &str, lines: &[String], screen: &mut Screen) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    screen.line(&format!("\n{title}"))?;
    lines.iter().try_for_each(|line| screen.line(&format!("  {}", escape(line))))
}

/// Returns the failure for an unknown name. If events mention the name, the hint says so: the worker was cleaned.
fn unknown(name: &str, registry: &Registry, paths: &Paths) -> Failure {
    let mut failure = unknown_worker(name, registry).unknown_is_two();
    if let Failure::Refused { refusal, .. } = &mut failure
        && refusal.remedy.is_none()
        && !facts::events(paths, name, 1).is_empty()
    {
        refusal.remedy = Some(format!("a worker of this name was cleaned; run 'swarm events {name}' for its events"));
    }
    failure
}
