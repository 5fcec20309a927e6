//! Codes of addresses. Each is exchanged once for the token of this start, so that an address that is left in a history, a
//! file or a terminal is worthless, and its use by somebody else is noticed.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::guard::Token;

/// Maximum number of codes that are known to have been used. Older ones count as unknown.
const USED_MAX: usize = 64;

/// The code that can be used, and those that were.
#[derive(Default)]
pub struct Codes(Mutex<State>);

#[derive(Default)]
struct State {
    open: Option<Token>,
    used: VecDeque<Used>,
}

struct Used {
    code: Token,
    by: String,
    is_told: bool,
}

/// Result of a use of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    First,
    /// `by` has used it before. `is_news` the first time that this is found.
    Again {
        by: String,
        is_news: bool,
    },
    /// The code is none, of an earlier start, or void because of a newer one.
    Unknown,
}

impl Codes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a code. The one before it is void unless it was used: at most one can be used at any time.
    ///
    /// # Errors
    /// Fails if the kernel has no random bits.
    pub fn renew(&self) -> io::Result<String> {
        let code = Token::random()?;
        let text = code.text().to_owned();
        self.state().open = Some(code);
        Ok(text)
    }

    /// Reports whether a code can be used, or was.
    pub fn is_known(&self, given: &str) -> bool {
        let state = self.state();
        // All are compared, so that the time tells nothing.
        let used = state.used.iter().filter(|used| used.code.is(given.as_bytes())).count();
        state.open.as_ref().is_some_and(|code| code.is(given.as_bytes())) | (used > 0)
    }

    /// Uses a code. `by` is the process that does.
    pub fn take(&self, given: &str, by: &str) -> Taken {
        let mut state = self.state();
        if let Some(code) = state.open.take_if(|code| code.is(given.as_bytes())) {
            state.used.truncate(USED_MAX - 1);
            state.used.push_front(Used { code, by: by.to_owned(), is_told: false });
            return Taken::First;
        }
        let used = state.used.iter_mut().find(|used| used.code.is(given.as_bytes()));
        used.map_or(Taken::Unknown, |used| {
            let is_news = !std::mem::replace(&mut used.is_told, true);
            Taken::Again { by: used.by.clone(), is_news }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_used_once_and_the_second_use_is_news_once() {
        let codes = Codes::default();
        let code = codes.renew().expect("bits");
        assert!(codes.is_known(&code) && !codes.is_known(&"0".repeat(64)) && !codes.is_known(""));
        assert_eq!(codes.take(&code.to_uppercase().replace('A', "b"), "x"), Taken::Unknown);
        assert_eq!(codes.take(&code, "firefox"), Taken::First);
        let again = |is_news| Taken::Again { by: "firefox".to_owned(), is_news };
        assert_eq!([codes.take(&code, "curl"), codes.take(&code, "curl")], [again(true), again(false)]);
        assert!(codes.is_known(&code));
    }

    #[test]
    fn a_newer_code_makes_the_one_before_void_unless_it_was_used() {
        let codes = Codes::default();
        let [first, second] = [codes.renew().expect("bits"), codes.renew().expect("bits")];
        assert_ne!(first, second);
        assert_eq!([codes.take(&first, "a"), codes.take(&second, "b")], [Taken::Unknown, Taken::First]);
        let third = codes.renew().expect("bits");
        assert_eq!(codes.take(&second, "c"), Taken::Again { by: "b".to_owned(), is_news: true });
        assert_eq!(codes.take(&third, "d"), Taken::First);
    }

    #[test]
    fn used_codes_are_bounded() {
        let codes = Codes::default();
        let all: Vec<String> = (0..USED_MAX + 2).map(|_| codes.renew().expect("bits")).collect();
        assert!(all[..all.len() - 1].iter().all(|code| !codes.is_known(code)), "void");
        let all: Vec<String> = std::iter::repeat_with(|| {
            let code = codes.renew().expect("bits");
            assert_eq!(codes.take(&code, "x"), Taken::First);
            code
        })
        .take(USED_MAX + 2)
        .collect();
        assert_eq!(all.iter().filter(|code| codes.is_known(code)).count(), USED_MAX);
        assert!(!codes.is_known(&all[1]) && codes.is_known(&all[2]));
    }
}
