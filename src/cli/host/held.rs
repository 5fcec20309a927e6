//! Output of a verb that says by marks how far it is. It is held back until its mark comes: after a cut the verb goes on
//! from the last mark, and prints again what it had printed since.

use serde_json::Value;
use swarm_hosts::frames::Bytes;

/// Maximum number of bytes that are held back.
const BYTES_MAX: usize = 64 << 20;

/// Bytes for a stream of output.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Out(Bytes),
    Err(Bytes),
}

#[derive(Debug, Default)]
pub struct Held {
    parts: Vec<Part>,
    bytes: usize,
    mark: Option<Value>,
    /// Set if something was printed since the last mark, because it was too much.
    is_loose: bool,
}

impl Held {
    /// Takes output; returns what is to be printed now.
    pub fn take(&mut self, part: Part) -> Vec<Part> {
        let (Part::Out(bytes) | Part::Err(bytes)) = &part;
        self.bytes += bytes.as_slice().len();
        self.parts.push(part);
        if self.bytes <= BYTES_MAX {
            return Vec::new();
        }
        self.is_loose = true;
        self.end()
    }

    /// Takes a mark; returns what is to be printed now.
    pub fn mark(&mut self, mark: Value) -> Vec<Part> {
        (self.mark, self.is_loose) = (Some(mark), false);
        self.end()
    }

    /// Returns what is left at the end of the verb.
    pub fn end(&mut self) -> Vec<Part> {
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }

    /// Drops what the verb will print again; returns whether it can go on.
    pub fn cut(&mut self) -> bool {
        self.end();
        !self.is_loose
    }

    /// Returns the mark from which the verb goes on; `None` at its beginning.
    pub fn from(&self) -> Option<&Value> {
        self.mark.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Prints the numbers from a mark on, one after the other, and a mark after each third one, until it is cut.
    fn connection(held: &mut Held, until: u64, printed: &mut Vec<u8>) {
        let mut print = |parts: Vec<Part>| {
            for part in parts {
                let (Part::Out(bytes) | Part::Err(bytes)) = part;
                printed.extend_from_slice(bytes.as_slice());
            }
        };
        let begin = held.from().and_then(Value::as_u64).unwrap_or_default();
        for number in begin..begin + until {
            print(held.take(Part::Out(Bytes::of(format!("{number}\n").as_bytes()))));
            if number % 3 == 2 {
                print(held.mark(Value::from(number + 1)));
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_cut_nothing_is_missing_and_nothing_comes_twice(cuts in proptest::collection::vec(0_u64..9, 1..9)) {
            let (mut held, mut printed) = (Held::default(), Vec::new());
            for until in cuts {
                connection(&mut held, until, &mut printed);
                prop_assert!(held.cut());
            }
            let next = held.from().and_then(Value::as_u64).unwrap_or_default();
            let expected: String = (0..next).map(|number| format!("{number}\n")).collect();
            prop_assert_eq!(String::from_utf8(printed).expect("text"), expected);
        }
    }

    #[test]
    fn what_is_too_much_to_be_held_is_printed_and_cannot_be_repeated() {
        let mut held = Held::default();
        let block = || Part::Out(Bytes::Text("x".repeat(BYTES_MAX / 2)));
        assert_eq!((held.take(block()).len(), held.take(block()).len()), (0, 0));
        assert_eq!(held.take(Part::Err(Bytes::Text("x".to_owned()))).len(), 3);
        assert!(!held.cut());
        held.mark(Value::from(1));
        assert!(held.cut());
    }
}
