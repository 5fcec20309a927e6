//! Rules to which a person agreed for the work of a run. A process below a worker cannot replace them.

use super::request::MergeSettings;

/// Rules by which a run lands the work of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Settings of the run; `swarm.toml` supplies those that are `None`.
    pub settings: MergeSettings,
    /// Base of the run.
    pub base: Option<String>,
    /// Whether the run lands the work by itself.
    pub lands: bool,
    /// Whether the rules are those of the work itself. If not, they are those of the caller's own run, and count only for the
    /// base of that run.
    pub is_of_work: bool,
}

impl Agreed {
    /// Returns the first typed setting that replaces a rule of the run. An empty verification is none.
    pub fn replaced(&self, typed: &MergeSettings) -> Option<&'static str> {
        let differs = |typed: &Option<String>, agreed: &Option<String>| {
            let of = |command: &Option<String>| command.as_deref().map(str::trim).map(str::to_owned);
            typed.is_some() && of(typed) != of(agreed)
        };
        // Without a verification of its own, the run left that to the configuration.
        let verifies = self.settings.verify.is_some();
        let all = [
            ("verify", verifies && differs(&typed.verify, &self.settings.verify)),
            ("resolver", differs(&typed.resolver, &self.settings.resolver)),
            ("strategy", typed.strategy.is_some() && typed.strategy != self.settings.strategy),
        ];
        all.into_iter().find(|(_, is_replaced)| *is_replaced).map(|(key, _)| key)
    }

    /// Returns the settings with which the work is added: those of the run, and what it says nothing about as typed.
    pub fn applied(&self, typed: &MergeSettings) -> MergeSettings {
        let own = self.settings.clone();
        MergeSettings {
            verify: own.verify.or_else(|| typed.verify.clone()),
            resolver: own.resolver.or_else(|| typed.resolver.clone()),
            strategy: own.strategy.or(typed.strategy),
            ..typed.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::queue::Strategy;

    fn verify(command: Option<&str>) -> MergeSettings {
        MergeSettings { verify: command.map(str::to_owned), ..MergeSettings::default() }
    }

    #[test]
    fn a_rule_of_a_run_is_replaced_by_any_other_value_but_not_by_itself() {
        let agreed = |command| Agreed { settings: verify(command), ..Agreed::default() };
        for (own, typed, replaced) in [
            (Some("make test"), None, None),
            (Some("make test"), Some("make test"), None),
            (Some("make test"), Some("true"), Some("verify")),
            (Some("make test"), Some(""), Some("verify")),
            // The run verifies nothing, and says so.
            (Some(""), Some("true"), Some("verify")),
            (None, Some("true"), None),
        ] {
            assert_eq!(agreed(own).replaced(&verify(typed)), replaced, "{own:?} {typed:?}");
        }
        let resolver = MergeSettings { resolver: Some("r".to_owned()), ..MergeSettings::default() };
        assert_eq!(agreed(None).replaced(&resolver), Some("resolver"));
        let strategy = MergeSettings { strategy: Some(Strategy::Squash), ..MergeSettings::default() };
        assert_eq!(agreed(None).replaced(&strategy), Some("strategy"));
        assert_eq!(Agreed { settings: strategy.clone(), ..Agreed::default() }.replaced(&strategy), None);
    }

    #[test]
    fn what_a_run_says_nothing_about_stays_as_typed() {
        let agreed = Agreed { settings: verify(Some("make test")), ..Agreed::default() };
        let typed = MergeSettings { batch: Some(3), ..verify(None) };
        assert_eq!(agreed.applied(&typed), MergeSettings { batch: Some(3), ..verify(Some("make test")) });
        assert_eq!(Agreed::default().applied(&verify(Some("true"))), verify(Some("true")));
    }
}
