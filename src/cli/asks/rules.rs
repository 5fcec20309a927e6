//! `swarm rules`: rules that answer requests in advance.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_config::trust::shown;
use swarm_model::RefusalKind;
use swarm_model::asks::AskWish;
use swarm_model::asks::judge::Rule;
use swarm_model::asks::rules::{AskRule, Effect};
use swarm_store::asks::rules::{self, MadeRule, rule_for};
use swarm_sys::paths::Paths;

use super::args::{RulesAction, RulesAddArgs, RulesArgs, RulesRmArgs, RulesTestArgs};
use super::refused;
use super::respond::by_rules;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{escape, table};
use crate::cli::screen::Screen;
use crate::cli::trust::gate::refuse_answers_below_a_worker;

const SCHEMA: &str = "swarm.rules/1";

pub fn run(args: &RulesArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    match &args.action {
        None => list(args.json, paths, screen),
        Some(RulesAction::Add(args)) => {
            refuse_answers_below_a_worker(paths)?;
            let cwd = cwd()?;
            let rules = [rule(args)?];
            add(paths, &rules, Some(cwd.as_path()).filter(|_| !args.everywhere), args.json, screen)?;
            if args.allow.is_some() {
                by_rules(args.json, paths, screen)?;
            }
            if args.json { print(made(paths)?, Vec::new(), screen) } else { Ok(0) }
        }
        Some(RulesAction::Rm(args)) => remove(args, paths, screen),
        Some(RulesAction::Test(args)) => test(args, paths, screen),
    }
}

fn invalid(cause: String) -> Failure {
    Failure::new(RefusalKind::Invalid, cause)
}

fn cwd() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))
}

fn made(paths: &Paths) -> Result<Vec<MadeRule>, Failure> {
    rules::made(paths).map_err(invalid)
}

fn rule(args: &RulesAddArgs) -> Result<AskRule, Failure> {
    let given = [(Effect::Allow, &args.allow), (Effect::Deny, &args.deny), (Effect::Ask, &args.ask)];
    let given = given.into_iter().find_map(|(effect, pattern)| Some((effect, pattern.as_deref()?)));
    let (effect, pattern) = given.ok_or_else(|| invalid("give --allow, --deny or --ask".to_owned()))?;
    AskRule::new(effect, pattern, args.reason.as_deref())
        .map_err(|cause| invalid(format!("invalid pattern '{pattern}': {cause}")))
}

/// Records rules for the project of a directory, or for everywhere, and shows them.
pub fn add(
    paths: &Paths,
    made: &[AskRule],
    dir: Option<&Path>,
    as_json: bool,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let project = dir.map(rules::project_of).transpose().map_err(invalid)?;
    let key = project.as_ref().map(|project| project.key.as_str());
    let numbers = rules::add(paths, made, key).map_err(invalid)?;
    if as_json {
        return Ok(());
    }
    for (number, rule) in numbers.iter().zip(made) {
        screen.line(&format!("rule {number}: {}", escape(&sentence(rule, key))))?;
    }
    Ok(())
}

fn sentence(rule: &AskRule, project: Option<&str>) -> String {
    let place = project.map_or_else(|| "everywhere".to_owned(), |key| format!("in {}", shown(key)));
    let reason = rule.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
    format!("{} '{}' {place}{reason}", rule.effect.word(), rule.pattern)
}

fn list(as_json: bool, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let cwd = cwd()?;
    let of_files = swarm_config::approvals(Some(swarm_config::trust::root_of(&cwd))).map_err(invalid)?;
    let made = made(paths)?;
    if as_json {
        return print(made, of_files, screen);
    }
    let row = |number: String, rule: &AskRule, place: String| {
        let reason = rule.reason.as_deref().unwrap_or("-");
        vec![
            number,
            rule.effect.word().to_owned(),
            escape(&rule.pattern).into_owned(),
            escape(&place).into_owned(),
            escape(reason).into_owned(),
        ]
    };
    let mut rows = vec![["N", "RULE", "PATTERN", "WHERE", "REASON"].map(str::to_owned).to_vec()];
    rows.extend(of_files.iter().map(|rule| row("-".to_owned(), rule, "configuration".to_owned())));
    rows.extend(made.iter().map(|made| {
        let place = made.project.as_deref().map_or_else(|| "everywhere".to_owned(), |key| shown(key).to_owned());
        row(made.number.to_string(), &made.rule, place)
    }));
    if rows.len() == 1 {
        if screen.terminal {
            screen.line("no rules; add one with 'swarm rules add' or 'swarm approve N --always'")?;
        }
        return Ok(0);
    }
    for line in table(&rows, |_, _, _| None).lines() {
        screen.line(line.trim_end())?;
    }
    Ok(0)
}

fn print(made: Vec<MadeRule>, of_files: Vec<AskRule>, screen: &mut Screen) -> Result<u8, Failure> {
    let value = |number: Option<u64>, rule: &AskRule, project: Option<&str>, from: &str| {
        json!({
            "number": number, "rule": rule.effect.word(), "pattern": rule.pattern, "reason": rule.reason,
            "project": project, "from": from,
        })
    };
    let of_files = of_files.iter().map(|rule| value(None, rule, None, "configuration"));
    let made = made.iter().map(|made| value(Some(made.number), &made.rule, made.project.as_deref(), "verb"));
    let list: Vec<Value> = of_files.chain(made).collect();
    json::print_list(screen, SCHEMA, "rules", list).map(|()| 0)
}

fn remove(args: &RulesRmArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    refuse_answers_below_a_worker(paths)?;
    let Some(removed) = rules::remove(paths, args.number).map_err(invalid)? else {
        let cause = format!("rule {} not found", args.number);
        return Err(refused(RefusalKind::NotFound, cause, "run 'swarm rules' to list rules"));
    };
    if args.json {
        return print(made(paths)?, Vec::new(), screen);
    }
    let told = sentence(&removed.rule, removed.project.as_deref());
    screen.line(&format!("removed rule {}: {}", removed.number, escape(&told)))?;
    Ok(0)
}

/// Prints what the rules say. The exit code is 0 if they allow the command.
fn test(args: &RulesTestArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let here = cwd()?;
    let dir = args.cwd.as_ref().map_or_else(|| here.clone(), |dir| here.join(dir));
    let wish = AskWish::Command { command: args.line.clone() };
    let (text, code) = match rule_for(paths, &dir, &wish).map_err(invalid)? {
        Rule::Allow => ("allowed".to_owned(), 0),
        Rule::Deny { reason } => (format!("denied: {reason}"), 1),
        Rule::Ask => ("a person is asked".to_owned(), 1),
        Rule::None => ("no rule applies".to_owned(), 1),
    };
    screen.line(&escape(&text))?;
    Ok(code)
}
