//! Rules of work that a process below a worker adds: those to which a person agreed cannot be replaced by what it types.

use std::path::Path;

use super::config;
use super::site::CompletionRepo;
use swarm_model::merge::queue::Rules;
use swarm_model::{Below, MergeSettings, Refusal, RefusalKind, Target};
use swarm_ports::Completion;

/// Returns the rules by which completed work lands on `target`. `root` is the main checkout.
///
/// # Errors
/// Fails as [`config::rules`] does, and if an agent replaces a rule.
pub(super) fn rules(
    site: &CompletionRepo<'_>,
    target: &Target,
    completion: &Completion,
    root: Option<&Path>,
) -> Result<Rules, Refusal> {
    let typed = &completion.settings;
    let present = |settings: &MergeSettings| config::rules_for(root, settings, &completion.caller.environment);
    let Some(below) = &completion.caller.below else { return present(typed) };
    let of_run = |base: &String| site.resolved(format!("refs/heads/{base}")) == target.branch;
    let agreed = completion.agreed.as_ref().map(|agreed| (agreed, agreed.base.as_ref().is_none_or(of_run)));
    let settings = match agreed {
        Some((agreed, false)) if agreed.is_of_work => return Err(refused(below, "base", "of its run")),
        // The worker's run lands on another base.
        None | Some((_, false)) => typed.clone(),
        Some((agreed, true)) => match agreed.replaced(typed) {
            Some(key) => return Err(refused(below, key, "of its run")),
            None => agreed.applied(typed),
        },
    };
    // What the run itself says counts more than the file.
    let own = completion.agreed.as_ref().filter(|_| settings != *typed).map(|agreed| &agreed.settings);
    let is_typed = |key: &str| own.is_none_or(|own| !own.sets(key));
    if let Some(key) = config::of_file(root)?.replaced(typed).into_iter().find(|key| is_typed(key)) {
        return Err(refused(below, key, &format!("of {}", config::FILE)));
    }
    present(&settings)
}

fn refused(below: &Below, key: &str, whose: &str) -> Refusal {
    let what = if key == "base" { "the base".to_owned() } else { format!("'{key}'") };
    let refusal = Refusal::new(RefusalKind::Invalid, format!("{below} cannot replace {what} {whose}"));
    refusal.remedy(format!("run the command without --{key}"))
}
