//! `swarm trust --run`: agrees to the records of a run in a worktree. An agent may have written them, or they are those of a
//! person: of an earlier version, which noted no such place, or of before the worktree was moved.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use serde_json::json;
use swarm_model::run::plan::{Plan, Work};
use swarm_model::{Caller, Refusal, RefusalKind};

use super::args::TrustArgs;
use super::gate::{self, Verb};
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{counted, escape};
use crate::cli::screen::Screen;
use swarm_store::runs::home::Home;
use swarm_store::runs::{journal, origin};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

/// Agrees to continue the run whose records are in the checkout around `dir`.
pub fn run(args: &TrustArgs, dir: &Path, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let caller = Caller { cwd: dir.to_string_lossy().into_owned(), ..caller::collect()?.caller };
    let root = swarm_store::repositories::root(&caller)?;
    let named = root.to_string_lossy().into_owned();
    let home = Home::of(&root);
    let Some(file) = origin::foreign(paths, &home) else {
        if args.json {
            print(&named, "unchanged", None, screen)?;
        } else {
            screen.line(&format!("{}: no run that needs consent", escape(&named)))?;
        }
        return Ok(0);
    };
    let failed = |error: io::Error| Failure::system(file.display(), &error);
    let plan = Plan::clone(&journal::begun(&home).map_err(failed)?.plan);
    let values = values(&plan);
    let mut lines = vec![format!("{}: run {} of {}", file.display(), plan.id, counted(plan.jobs.len() as u64, "job"))];
    lines.extend(values.iter().map(|(key, value)| format!("  {key} = {value}")));
    if !args.json {
        lines.iter().try_for_each(|line| screen.line(&escape(line)))?;
    }
    let done = if args.show { "shown" } else { "agreed" };
    if !args.show {
        gate::refuse_below_a_worker(Verb::Run, &named)?;
        if !args.yes && !asked(&lines, args.json, &named, screen)? {
            return Ok(1);
        }
        origin::record(paths, &home).map_err(|error| Failure::system("cannot record the consent", &error))?;
    }
    if args.json {
        print(&named, done, Some((&file, &values)), screen)?;
    } else if !args.show {
        screen.line(&format!("trusted the run in {}", escape(&named)))?;
    }
    Ok(u8::from(args.show))
}

fn asked(lines: &[String], as_json: bool, named: &str, screen: &mut Screen) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let refusal =
            Refusal::new(RefusalKind::Invalid, "cannot ask for confirmation: standard input is not a terminal");
        return Err(refusal.remedy("use --yes to agree without asking").into());
    }
    screen.flush()?;
    if as_json {
        lines.iter().for_each(|line| screen.aside("", line));
    }
    gate::ask(&format!("the run in {named}"), screen)
}

/// Returns what the records of a run decide when it continues, as keys and values.
fn values(plan: &Plan) -> BTreeSet<(&'static str, String)> {
    let mut values = BTreeSet::new();
    let mut add = |key, value: Option<&str>| values.extend(value.map(|value| (key, value.to_owned())));
    add("agent", plan.flags.agent.as_deref());
    add("verify", plan.flags.verify.as_deref());
    add("verify", plan.rules.merge.verify.as_deref());
    add("resolver", plan.rules.merge.resolver.as_deref());
    add("consent", plan.flags.consent.or(plan.rules.consent).map(|consent| consent.word()));
    for job in &plan.jobs {
        add("verify", job.verify.as_deref());
        match &job.work {
            Work::Spec(work) => add("agent", work.adapter.as_deref()),
            Work::Command(work) => add("command", Some(&command_line(work.argv.iter().map(String::as_str)))),
        }
    }
    values
}

fn print(
    named: &str,
    done: &str,
    found: Option<(&Path, &BTreeSet<(&'static str, String)>)>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let one = |(file, values): (&Path, &BTreeSet<(&'static str, String)>)| {
        let entry =
            |(key, value): &(&'static str, String)| json!({"file": file, "key": key, "value": value, "status": "new"});
        values.iter().map(entry).collect::<Vec<_>>()
    };
    let entries = found.map(one).unwrap_or_default();
    json::print(screen, "swarm.trust/1", &json!({"project": named, "done": done, "entries": entries}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::run::plan::{CommandWork, Job, SpecWork};

    #[test]
    fn what_a_forged_record_could_execute_is_shown() {
        let spec = |adapter: &str| Work::Spec(SpecWork { adapter: Some(adapter.to_owned()), ..SpecWork::default() });
        let command = Work::Command(CommandWork { argv: vec!["make".into(), "a b".into()], ..CommandWork::default() });
        let job = |work, verify: Option<&str>| Job { work, verify: verify.map(str::to_owned), ..Job::default() };
        let jobs = vec![job(spec("shell"), Some("x")), job(spec("shell"), None), job(command, None)];
        let mut plan = Plan { jobs, ..Plan::default() };
        (plan.flags.verify, plan.rules.merge.verify) = (Some("y".into()), Some("y".into()));
        (plan.flags.agent, plan.rules.merge.resolver) = (Some("codex".into()), Some("z".into()));
        let shown: Vec<String> = values(&plan).into_iter().map(|(key, value)| format!("{key} {value}")).collect();
        let expected = ["agent codex", "agent shell", "command make 'a b'", "resolver z", "verify x", "verify y"];
        assert_eq!(shown, expected);
    }
}
