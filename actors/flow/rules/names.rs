//! Names in flows: flows, edges and roles.

use std::fmt;

/// Id of the first node of every flow (unless the owner rules are relaxed).
pub const FIRST_NODE: &str = "owner-intake";
/// Role of the first and last node of every flow.
pub const OWNER: &str = "owner";
/// Role of the last step of the improvement phase.
pub const FEEDBACK_ROLE: &str = "a-society-feedback";

/// Identity of a flow: its two folder names below the state folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowRef {
    pub project: String,
    pub flow: String,
}

impl FlowRef {
    /// Creates a reference from two folder names.
    ///
    /// # Errors
    /// Fails if one of them is not a valid folder name.
    pub fn new(project: &str, flow: &str) -> Result<Self, String> {
        let part = |kind, text| segment(text).ok_or_else(|| format!("Invalid {kind} \"{text}\"."));
        Ok(Self { project: part("project namespace", project)?, flow: part("flow id", flow)? })
    }
}

impl fmt::Display for FlowRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.project, self.flow)
    }
}

fn segment(text: &str) -> Option<String> {
    let name = super::json::trim(text);
    let usable = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    usable.then(|| name.to_owned())
}

/// Role instance of a flow. Two instances of one role have separate conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleId {
    /// `dev_2`.
    pub instance: String,
    /// `dev`.
    pub base: String,
    pub number: Option<u64>,
}

impl RoleId {
    /// Parses a role id.
    ///
    /// # Errors
    /// Fails if the id is malformed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = super::json::trim(text);
        let (base, number) = match name.split_once('_') {
            Some((base, digits)) => (base, Some(digits)),
            None => (name, None),
        };
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let is_number = |digits: &str| {
            !digits.is_empty() && !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !base.split('-').all(is_word) || !number.is_none_or(is_number) {
            return Err(format!(
                "Invalid role id \"{text}\". Role ids are lowercase words joined by hyphens, with an optional _N suffix."
            ));
        }
        // Only the presence of the number matters; larger values saturate.
        let number = number.map(|digits| digits.parse().unwrap_or(u64::MAX));
        Ok(Self { instance: name.to_owned(), base: base.to_owned(), number })
    }

    /// Returns the key of a role's conversation, also for an invalid role id.
    pub fn key(text: &str) -> String {
        super::json::trim(text).to_owned()
    }

    pub fn base_of(text: &str) -> String {
        Self::parse(text).map_or_else(|_| Self::key(text), |role| role.base)
    }
}

pub fn edge_key(from: &str, to: &str) -> String {
    format!("{from}=>{to}")
}

/// Splits an edge key into its two nodes. `None` unless it has exactly two non-empty parts.
pub fn split_edge_key(key: &str) -> Option<(&str, &str)> {
    let (from, to) = key.split_once("=>")?;
    (!from.is_empty() && !to.is_empty() && !to.contains("=>")).then_some((from, to))
}

/// Returns the id of a new flow, from its creation time (ISO 8601) and three random bytes.
pub fn flow_id(time: &str, random: [u8; 3]) -> String {
    let time: String = time.chars().filter(|c| !matches!(c, '-' | ':' | '.')).collect();
    let [a, b, c] = random;
    format!("{time}-{a:02x}{b:02x}{c:02x}")
}
