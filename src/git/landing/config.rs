//! Rules of a merge queue: `[merge]` of `swarm.toml` at the repository's root, overridden by flags.

use std::path::Path;

use swarm_model::merge::queue::Rules;
use swarm_model::{MergeSettings, Refusal, RefusalKind};

pub(super) use swarm_config::FILE;

/// Returns the rules for the repository whose root is `toplevel`.
///
/// # Errors
/// Fails if the file cannot be read, a rule is invalid, or nobody was ever asked about the rules.
pub(crate) fn rules(toplevel: Option<&Path>, typed: &MergeSettings) -> Result<Rules, Refusal> {
    rules_for(toplevel, typed, &[])
}

/// As [`rules`]; a refusal is for somebody with this environment.
///
/// # Errors
/// Fails as [`rules`] does.
pub(crate) fn rules_for(
    toplevel: Option<&Path>,
    typed: &MergeSettings,
    environment: &[(String, String)],
) -> Result<Rules, Refusal> {
    let wrong = |cause| Refusal::new(RefusalKind::Invalid, cause).remedy("fix the file and try again");
    let sections = swarm_config::load(toplevel).map_err(wrong)?;
    if let Err(untrusted) = sections.unasked.require(&["merge"]) {
        let untrusted = untrusted.to(environment);
        return Err(Refusal::new(RefusalKind::Invalid, untrusted.cause).remedy(untrusted.remedy));
    }
    merged(sections.merge, typed)
}

/// Returns the settings of the file to which a person agreed.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn of_file(toplevel: Option<&Path>) -> Result<MergeSettings, Refusal> {
    let wrong = |cause| Refusal::new(RefusalKind::Invalid, cause).remedy("fix the file and try again");
    Ok(swarm_config::load(toplevel).map_err(wrong)?.merge)
}

fn merged(file: MergeSettings, typed: &MergeSettings) -> Result<Rules, Refusal> {
    let standard = Rules::default();
    let rules = Rules {
        batch: typed.batch.or(file.batch).unwrap_or(standard.batch),
        verify_each: typed.verify_each.or(file.verify_each).unwrap_or(standard.verify_each),
        verify: typed.verify.clone().or(file.verify).filter(|command| !command.trim().is_empty()),
        timeout_ms: typed.timeout.or(file.timeout).map_or(standard.timeout_ms, |limit| limit.saturating_mul(1000)),
        resolver: typed.resolver.clone().or(file.resolver).filter(|command| !command.trim().is_empty()),
        resolver_tries: typed.max_retries.or(file.max_retries).unwrap_or(standard.resolver_tries),
        strategy: typed.strategy.or(file.strategy).unwrap_or(standard.strategy),
        checkout: None,
    };
    if rules.batch == 0 || rules.timeout_ms == 0 {
        let which = if rules.batch == 0 { "batch" } else { "timeout" };
        return Err(Refusal::new(RefusalKind::Invalid, format!("merge.{which}: must be at least 1")));
    }
    Ok(rules)
}

/// Returns the rules of work that is added with these settings, if they are not `rules`. `None` also if the configuration
/// cannot be read, or nobody was asked about it.
pub fn changed(rules: &Rules, toplevel: &Path, typed: &MergeSettings) -> Option<Rules> {
    let present = self::rules(Some(toplevel), typed).ok()?;
    let present = Rules { checkout: rules.checkout.clone(), ..present };
    (present != *rules).then_some(present)
}

/// Reports whether a resolver is configured for the repository.
pub fn has_resolver(root: &Path) -> bool {
    swarm_config::load(Some(root)).is_ok_and(|sections| sections.merge.resolver.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_model::merge::queue::Strategy;

    fn with(text: &str, typed: &MergeSettings) -> Result<Rules, String> {
        swarm_config::ignore_user_file();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(swarm_config::FILE), text).unwrap();
        rules(Some(dir.path()), typed).map_err(|refusal| refusal.cause.replace(dir.path().to_str().unwrap(), ""))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_the_defaults() {
        let text = "[run]\nlimit = 1\n[merge]\nverify = \"make test\"\nbatch = 4\nstrategy = \"squash\"\ntimeout = 9\n";
        let rules = with(text, &MergeSettings { batch: Some(2), ..MergeSettings::default() }).unwrap();
        assert_eq!((rules.verify.as_deref(), rules.batch, rules.timeout_ms), (Some("make test"), 2, 9_000));
        assert_eq!((rules.strategy, rules.resolver_tries), (Strategy::Squash, 2));
        assert_eq!(super::rules(None, &MergeSettings::default()).unwrap(), Rules::default());
        let off = MergeSettings { verify: Some(String::new()), ..MergeSettings::default() };
        assert_eq!(with(text, &off).unwrap().verify, None);
    }

    #[test]
    fn rules_have_changed_if_the_file_or_a_flag_says_something_else() {
        swarm_config::ignore_user_file();
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join(swarm_config::FILE), text).unwrap();
        let typed =
            |verify: Option<&str>| MergeSettings { verify: verify.map(str::to_owned), ..MergeSettings::default() };
        write("[merge]\nverify = \"mkae\"\nbatch = 3\n");
        let found = Rules { checkout: Some("/r".into()), ..super::rules(Some(dir.path()), &typed(None)).unwrap() };
        let changed = |verify| super::changed(&found, dir.path(), &typed(verify));
        assert_eq!([changed(None), changed(Some("mkae"))], [None, None]);
        assert_eq!(changed(Some("make")), Some(Rules { verify: Some("make".into()), ..found.clone() }));
        assert_eq!(changed(Some("")), Some(Rules { verify: None, ..found.clone() }));
        write("[merge]\nverify = \"make\"\nbatch = 3\n");
        assert_eq!(changed(None), Some(Rules { verify: Some("make".into()), ..found.clone() }));
        assert_eq!(changed(Some("mkae")), None);
        write("[merge]\nverfy = 1\n");
        assert_eq!(changed(None), None, "it cannot be told");
    }

    #[test]
    fn errors_name_the_line() {
        let none = MergeSettings::default();
        let unknown = with("[merge]\nverfy = \"x\"\n", &none).unwrap_err();
        assert!(unknown.starts_with("/swarm.toml, line 2: unknown key 'merge.verfy'"), "{unknown}");
        assert!(with("[merge]\nbatch = \"x\"\n", &none).unwrap_err().contains("line 2"));
        let zero = with("[merge]\nbatch = 0\n", &none).unwrap_err();
        assert_eq!(zero, "/swarm.toml, line 2: merge.batch: must be at least 1");
    }
}
