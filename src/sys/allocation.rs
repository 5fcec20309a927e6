//! The allocation of a batch system in which this process works, if there is one.
//!
//! Allocations that share a state directory are one machine that was restarted: what worked in the earlier one has ended,
//! whichever node it was on. Their processes therefore take the identity of the directory for that of the machine, and each
//! allocation counts as a boot of its own. A process on the same node that does not belong to the allocation is on another
//! machine, so that it acts on nothing there.

use std::sync::OnceLock;

/// Variable that all processes of an allocation have: the id of the state directory and the token of the allocation, with
/// a dot between.
pub const VARIABLE: &str = "SWARM_ALLOCATION";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Id of the state directory.
    pub directory: String,
    /// Random digits that no other allocation has.
    pub token: String,
}

impl Allocation {
    /// Returns the allocation of this process.
    pub fn of_this() -> Option<&'static Self> {
        static THIS: OnceLock<Option<Allocation>> = OnceLock::new();
        THIS.get_or_init(|| Self::parse(&std::env::var(VARIABLE).ok()?)).as_ref()
    }

    fn parse(text: &str) -> Option<Self> {
        let (directory, token) = text.split_once('.')?;
        let is_hex = |text: &str| {
            (8..=64).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let valid = is_hex(directory) && is_hex(token);
        valid.then(|| Self { directory: directory.to_owned(), token: token.to_owned() })
    }

    /// Returns the value of the variable.
    pub fn text(&self) -> String {
        format!("{}.{}", self.directory, self.token)
    }

    /// Returns the id of the boot as which the allocation counts, on a node with this one.
    pub fn boot(&self, node: &str) -> String {
        format!("{}-{node}", self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_read_as_it_was_written_and_nothing_else_is() {
        let allocation = Allocation { directory: "0123456789abcdef".into(), token: "fedcba98".into() };
        assert_eq!(Allocation::parse(&allocation.text()), Some(allocation.clone()));
        for text in ["", "x", "0123456789abcdef", "0123456789abcdef.", ".fedcba98", "0123456789abcdef.fedcba9/"] {
            assert_eq!(Allocation::parse(text), None, "{text}");
        }
        let other = Allocation { token: "00000000".into(), ..allocation.clone() };
        assert_ne!(allocation.boot("b"), other.boot("b"), "the same node");
    }
}
