//! Result of a check.

use serde::Serialize;

use super::Repair;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Will cause trouble sooner or later.
    Warning,
    /// Something does not work, or work may be lost.
    Error,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    pub severity: Severity,
    /// Problem and its consequence, as a sentence.
    pub what: String,
    /// Advice to the user.
    pub remedy: Option<String>,
    /// Repair that the program can do itself if the user agrees.
    pub repair: Option<Repair>,
}

impl Finding {
    pub fn new(check: &'static str, severity: Severity, what: impl Into<String>) -> Self {
        Self { check, severity, what: what.into(), remedy: None, repair: None }
    }

    pub fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, what)
    }

    pub fn error(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, what)
    }

    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    #[must_use]
    pub fn repair(mut self, repair: Repair) -> Self {
        self.repair = Some(repair);
        self
    }
}
