//! Names in flows: which flow, which edge, which role.

use std::fmt;

/// The node that every flow begins with.
pub const FIRST_NODE: &str = "owner-intake";
/// The role that begins and ends every flow.
pub const OWNER: &str = "owner";
/// The role of the last step of the improvement phase.
pub const FEEDBACK_ROLE: &str = "a-society-feedback";

/// Which flow: the two folders below the state folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowRef {
    pub project: String,
    pub flow: String,
}

impl FlowRef {
    /// # Errors
    /// Where a part of it is no name of a folder.
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

/// A role as it is used in a flow: two instances of one role are two conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleId {
    /// `dev_2`.
    pub instance: String,
    /// `dev`.
    pub base: String,
    pub number: Option<u64>,
}

impl RoleId {
    /// # Errors
    /// Where it is no name of a role.
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
        // Only its being there matters; what does not fit is as large as can be.
        let number = number.map(|digits| digits.parse().unwrap_or(u64::MAX));
        Ok(Self { instance: name.to_owned(), base: base.to_owned(), number })
    }

    /// What tells conversations apart, also for a role that is none.
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

/// The two nodes of an edge key; none where it does not split into just two.
pub fn split_edge_key(key: &str) -> Option<(&str, &str)> {
    let (from, to) = key.split_once("=>")?;
    (!from.is_empty() && !to.is_empty() && !to.contains("=>")).then_some((from, to))
}

/// The id of a new flow: when it was made (ISO 8601), and three random bytes.
pub fn flow_id(time: &str, random: [u8; 3]) -> String {
    let time: String = time.chars().filter(|c| !matches!(c, '-' | ':' | '.')).collect();
    let [a, b, c] = random;
    format!("{time}-{a:02x}{b:02x}{c:02x}")
}
