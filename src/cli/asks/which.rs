//! Names of requests on the command line.

use std::fmt;
use std::str::FromStr;

/// Name of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Request of a worker, by its number.
    Number(u64),
    /// Request in a flow: the flow, and the number of the request or the name of the node.
    Flow { flow: String, part: String },
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((flow, part)) = text.rsplit_once('/').filter(|(flow, part)| !flow.is_empty() && !part.is_empty()) {
            return Ok(Self::Flow { flow: flow.to_owned(), part: part.to_owned() });
        }
        let number = text.strip_prefix('#').unwrap_or(text).parse();
        number.map(Self::Number).map_err(|_| "not the number of a request ('swarm approvals' lists them)".to_owned())
    }
}

impl fmt::Display for Which {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(out, "{number}"),
            Self::Flow { flow, part } => write!(out, "{flow}/{part}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_number_or_by_flow() {
        let flow = |flow: &str, part: &str| Ok(Which::Flow { flow: flow.to_owned(), part: part.to_owned() });
        for (text, which) in [
            ("17", Ok(Which::Number(17))),
            ("#17", Ok(Which::Number(17))),
            ("f1/3", flow("f1", "3")),
            ("project/f1/dev", flow("project/f1", "dev")),
        ] {
            assert_eq!(text.parse(), which, "{text}");
        }
        for text in ["", "-1", "x", "/3", "f1/", "1.5", "99999999999999999999"] {
            assert!(text.parse::<Which>().is_err(), "{text}");
        }
    }
}
