//! Flags of a run. A run that continues keeps the flags that it was started with, unless they are given again, so that
//! nothing lands unverified because a run was stopped in between. The flags of a completed run do not apply to the next
//! one; a note names them, so that nothing lands unverified without notice.

use std::time::Duration;

use swarm_model::run::plan::{Flags, Job};
use swarm_model::run::progress::{Mode, Progress, Run, Stage, Verdict};

use super::args::BeginArgs;
use crate::cli::screen::Screen;
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;
use swarm_sys::quoting::quoted;

/// Converts the arguments to the flags that are recorded in the plan.
pub fn of(args: &BeginArgs) -> Flags {
    Flags {
        limit: args.limit,
        agent: args.agent.clone(),
        retries: args.retries,
        timeout_ms: args.timeout.map(super::jobs::milliseconds),
        verify: args.verify.clone(),
        no_merge: args.no_merge,
        merge: args.merge,
        consent: args.consent,
        on: args.on.clone(),
        lost: args.lost.clone(),
    }
}

/// Returns the arguments, completed by the flags of the unfinished run in this home. Prints a note that lists these flags,
/// or those of a completed run, which are not applied.
pub fn with_earlier(args: &BeginArgs, home: &Home, screen: &mut Screen) -> BeginArgs {
    let Some(run) = journal::replay(home).ok().flatten() else { return args.clone() };
    let (all, said) = merged(args, &run.plan.flags);
    // A completed run does not continue, unless what it has left is to land: its flags were meant for that, too.
    let is_completed = run.mode == Mode::Over(Verdict::Completed) && !(args.merge && has_left(&run));
    if !said.is_empty() {
        screen.aside("note: ", &note(&said.join(" "), is_completed));
    }
    if is_completed { args.clone() } else { all }
}

/// Reports whether the run has finished work without landing it.
fn has_left(run: &Run) -> bool {
    let is_left = |(job, progress): (&Job, &Progress)| {
        !job.merge && job.branch.is_some() && progress.stage == Stage::Done && progress.commit.is_none()
    };
    run.plan.jobs.iter().zip(&run.jobs).any(is_left)
}

fn note(flags: &str, is_completed: bool) -> String {
    match is_completed {
        true => format!("not using the flags of the completed run: {flags} (give them again to use them)"),
        false => format!("continuing with earlier flags: {flags} (give them again to change them)"),
    }
}

fn merged(args: &BeginArgs, earlier: &Flags) -> (BeginArgs, Vec<String>) {
    let (mut all, mut said) = (args.clone(), Vec::new());
    let mut say = |flag: &str, value: &str| said.push(format!("{flag} {value}"));
    if let (None, Some(verify)) = (&args.verify, &earlier.verify) {
        say("--verify", &quoted(verify));
        all.verify = Some(verify.clone());
    }
    if let (None, Some(limit)) = (args.limit, earlier.limit) {
        say("-j", &limit.to_string());
        all.limit = Some(limit);
    }
    if let (None, Some(agent)) = (&args.agent, &earlier.agent) {
        say("--agent", agent);
        all.agent = Some(agent.clone());
    }
    if let (None, Some(retries)) = (args.retries, earlier.retries) {
        say("--retries", &retries.to_string());
        all.retries = Some(retries);
    }
    if let (None, Some(ms)) = (args.timeout, earlier.timeout_ms) {
        say("--timeout", &format!("{}s", ms.div_ceil(1000)));
        all.timeout = Some(Duration::from_millis(ms));
    }
    if let (None, Some(consent)) = (args.consent, earlier.consent) {
        say("--consent", consent.word());
        all.consent = Some(consent);
    }
    if args.on.is_empty() && !earlier.on.is_empty() {
        say("--on", &earlier.on.join(","));
        all.on.clone_from(&earlier.on);
    }
    if let (None, Some(lost)) = (&args.lost, &earlier.lost) {
        say("--lost", lost);
        all.lost = Some(lost.clone());
    }
    if !args.no_merge && !args.merge && earlier.no_merge {
        said.push("--no-merge".to_owned());
        all.no_merge = true;
    }
    (all, said)
}

#[cfg(test)]
mod tests {
    use swarm_model::asks::judge::Consent;

    use super::*;
    use crate::cli::args::Command;
    use crate::cli::sample;

    fn typed(words: &[&str]) -> BeginArgs {
        let Command::Run(args) = sample::command(&[&["run"], words].concat()) else { panic!("not run") };
        args.begin
    }

    #[test]
    fn earlier_flags_hold_until_they_are_given_again() {
        let first = of(&typed(&["--verify", "make test", "-j", "2", "--timeout", "90s", "--retries", "0"]));
        let (again, said) = merged(&typed(&["-j", "5"]), &first);
        assert_eq!((again.limit, again.verify.as_deref(), again.retries), (Some(5), Some("make test"), Some(0)));
        assert_eq!(said, ["--verify 'make test'", "--retries 0", "--timeout 90s"]);
        assert_eq!(of(&again).timeout_ms, Some(90_000));
        // An explicitly empty --verify is kept as well.
        let (none, _) = merged(&typed(&["--verify", ""]), &of(&again));
        assert_eq!(none.verify.as_deref(), Some(""));
        let (_, said) = merged(&typed(&[]), &of(&none));
        assert_eq!(said, ["--verify ''", "-j 5", "--retries 0", "--timeout 90s"]);
        let (kept, said) = merged(&typed(&[]), &of(&typed(&["--no-merge"])));
        assert_eq!((kept.no_merge, said), (true, vec!["--no-merge".to_owned()]));
        let (kept, said) = merged(&typed(&[]), &of(&typed(&["--consent", "full-access"])));
        assert_eq!(
            (kept.consent.map(Consent::word), said),
            (Some("full-access"), vec!["--consent full-access".to_owned()])
        );
        let (kept, said) = merged(&typed(&[]), &of(&typed(&["--on", "box,gpu1"])));
        assert_eq!((kept.on.join(" "), said), ("box gpu1".to_owned(), vec!["--on box,gpu1".to_owned()]));
        let (kept, said) = merged(&typed(&[]), &of(&typed(&["--lost", "2h"])));
        assert_eq!((kept.lost.as_deref(), said.join(" ").as_str()), (Some("2h"), "--lost 2h"));
        let (kept, said) = merged(&typed(&["--lost", "wait"]), &of(&typed(&["--lost", "2h"])));
        assert_eq!((kept.lost.as_deref(), said.len()), (Some("wait"), 0));
        let (kept, _) = merged(&typed(&[]), &of(&typed(&["--no-merge"])));
        assert!(!merged(&typed(&["--merge"]), &of(&kept)).0.no_merge);
    }
}
