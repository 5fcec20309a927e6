//! Decides whether a tool use needs a person: a pure function of the consent, the rules, and the wish.

use serde::{Deserialize, Serialize};

use super::AskWish;

/// What the agents of a run may do without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consent {
    /// Only reading, and what a rule allows.
    NoAccess,
    /// Also writing files in the worktree.
    PartialAccess,
    /// Everything.
    FullAccess,
}

impl Consent {
    pub const ALL: [Self; 3] = [Self::NoAccess, Self::PartialAccess, Self::FullAccess];

    pub fn word(self) -> &'static str {
        match self {
            Self::NoAccess => "no-access",
            Self::PartialAccess => "partial-access",
            Self::FullAccess => "full-access",
        }
    }

    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|consent| consent.word() == word)
    }
}

/// What the rules of people say about a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No rule applies.
    None,
    Allow,
    Deny {
        reason: String,
    },
    /// A person is asked, whatever the consent says.
    Ask,
}

/// Result of [`judge`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    Allow,
    Deny { reason: String },
    Ask,
}

/// Decides about a wish. `is_confined` tells whether a path is in the worktree and neither configures git nor an agent;
/// it is not used for other wishes.
pub fn judge(consent: Consent, rule: Rule, wish: &AskWish, is_confined: bool) -> Ruling {
    match (rule, consent, wish) {
        (Rule::Deny { reason }, _, _) => Ruling::Deny { reason },
        // A question is not a permission: only a person can answer it.
        (_, _, AskWish::Question { .. }) | (Rule::Ask, _, _) => Ruling::Ask,
        (Rule::Allow, _, _) | (_, Consent::FullAccess, _) => Ruling::Allow,
        (_, Consent::PartialAccess, AskWish::Write { .. }) if is_confined => Ruling::Allow,
        (Rule::None, Consent::NoAccess | Consent::PartialAccess, _) => Ruling::Ask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_first_and_questions_are_always_asked() {
        let write = AskWish::Write { path: "a".to_owned(), change: String::new() };
        let command = AskWish::Command { command: "make".to_owned() };
        let question = AskWish::Question { questions: Vec::new() };
        let deny = Rule::Deny { reason: "no".to_owned() };
        for consent in Consent::ALL {
            let full = if consent == Consent::FullAccess { Ruling::Allow } else { Ruling::Ask };
            let partial = if consent == Consent::NoAccess { Ruling::Ask } else { Ruling::Allow };
            for (rule, wish, is_confined, ruling) in [
                (deny.clone(), &command, true, Ruling::Deny { reason: "no".to_owned() }),
                (Rule::Ask, &write, true, Ruling::Ask),
                (Rule::Allow, &command, false, Ruling::Allow),
                (Rule::Allow, &question, true, Ruling::Ask),
                (Rule::None, &question, true, Ruling::Ask),
                (Rule::None, &command, true, full.clone()),
                (Rule::None, &write, false, full),
                (Rule::None, &write, true, partial),
            ] {
                assert_eq!(judge(consent, rule, wish, is_confined), ruling, "{consent:?} {wish:?}");
            }
            assert_eq!(Consent::of(consent.word()), Some(consent));
        }
    }
}
