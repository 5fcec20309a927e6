//! `swarm doctor`: reports problems with remedies, and repairs them if the user agrees.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use serde_json::{Value, json};
use swarm_model::RefusalKind;

use super::caller;
use super::error::Failure;
use super::json;
use super::render::{colour_wanted, escape};
use super::screen::Screen;
use crate::doctor::{self, Finding, Patient, Repair, Severity};
use swarm_sys::paths::Paths;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Make the repairs that cannot lose work, after asking
    #[arg(long)]
    pub repair: bool,
    /// Repair without asking
    #[arg(short, long, requires = "repair")]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &DoctorArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let patient = Patient::new(paths.clone(), caller);
    let findings = patient.findings();
    let repairs: Vec<&Repair> = findings.iter().filter_map(|finding| finding.repair.as_ref()).collect();
    if !args.json {
        show(&findings, &repairs, args.repair, screen)?;
    }
    let agreed = args.repair && !repairs.is_empty() && (args.yes || agreed(&repairs, args.json, screen)?);
    let done = if agreed { apply(&repairs, &patient) } else { Vec::new() };
    if args.json {
        print(&findings, &done, screen)?;
    } else {
        for (repair, result) in &done {
            match result {
                Ok(()) => screen.line(&format!("done: {}", escape(&repair.words())))?,
                Err(cause) => screen.warning(&format!("not repaired: {}: {}", repair.words(), escape(cause))),
            }
        }
    }
    let repaired = done.iter().filter(|(_, result)| result.is_ok()).count();
    Ok(u8::from(repaired < findings.len()))
}

fn show(findings: &[Finding], repairs: &[&Repair], is_repairing: bool, screen: &mut Screen) -> Result<(), Failure> {
    let colour = std::io::stdout().is_terminal() && colour_wanted();
    for finding in findings {
        let (word, paint) = match finding.severity {
            Severity::Error => ("error", "\x1b[31m"),
            Severity::Warning => ("warning", "\x1b[33m"),
        };
        let word = if colour { format!("{paint}{word}\x1b[0m") } else { word.to_owned() };
        screen.line(&format!("{word}: {}: {}", finding.check, escape(&finding.what)))?;
        if let Some(remedy) = &finding.remedy {
            screen.line(&format!("  hint: {}", escape(remedy)))?;
        }
        if let Some(repair) = &finding.repair {
            screen.line(&format!("  repair: {}", escape(&repair.words())))?;
        }
    }
    let checks = doctor::checks().count();
    let how = match repairs.len() {
        0 => String::new(),
        _ if is_repairing => String::new(),
        count => format!("; run 'swarm doctor --repair' to repair {count}"),
    };
    match findings.len() {
        0 => screen.line(&format!("{checks} checks, no problems")),
        count => screen.line(&format!("{checks} checks, {count} problem(s){how}")),
    }
}

fn agreed(repairs: &[&Repair], as_json: bool, screen: &mut Screen) -> Result<bool, Failure> {
    if as_json || !std::io::stdin().is_terminal() {
        let refusal = swarm_model::Refusal::new(
            RefusalKind::Invalid,
            "cannot ask for confirmation: standard input is not a terminal",
        );
        return Err(refusal.remedy("use --yes to repair without asking").into());
    }
    screen.flush()?;
    screen.aside("", &format!("repair {} problem(s)? [y/N]", repairs.len()));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::system("cannot read the answer", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn apply<'a>(repairs: &[&'a Repair], patient: &Patient) -> Vec<(&'a Repair, Result<(), String>)> {
    repairs.iter().map(|repair| (*repair, repair.apply(&patient.paths, &patient.caller))).collect()
}

fn print(findings: &[Finding], done: &[(&Repair, Result<(), String>)], screen: &mut Screen) -> Result<(), Failure> {
    let one = |finding: &Finding| {
        let result = finding.repair.as_ref().and_then(|repair| done.iter().find(|(known, _)| *known == repair));
        let (is_repaired, failure) = match result {
            None => (false, Value::Null),
            Some((_, Ok(()))) => (true, Value::Null),
            Some((_, Err(cause))) => (false, json!(cause)),
        };
        json!({
            "check": finding.check, "severity": finding.severity, "what": finding.what, "remedy": finding.remedy,
            "repair": finding.repair.as_ref().map(Repair::words), "repaired": is_repaired, "failure": failure,
        })
    };
    let body = json!({
        "checks": doctor::checks().collect::<Vec<_>>(),
        "findings": findings.iter().map(one).collect::<Vec<_>>(),
    });
    json::print(screen, "swarm.doctor/1", &body)
}
