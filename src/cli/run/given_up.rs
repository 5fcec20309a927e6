//! Attempts of a run that were given up, and where their work is.

use std::path::Path;

use serde_json::{Value, json};
use swarm_model::run::progress::Run;
use swarm_model::run::{Abandoned, RETURNED};
use swarm_store::repositories::lines;

use crate::cli::caller;
use crate::cli::error::Failure;

/// An attempt that was given up.
pub struct GivenUp<'a> {
    it: &'a Abandoned,
    /// Reference to its work. `None` until it is back.
    reference: Option<String>,
}

/// Returns the attempts of a run whose work is here, or is still out. Another run may have brought it.
pub fn of(run: &Run) -> Result<Vec<GivenUp<'_>>, Failure> {
    if run.abandoned.is_empty() {
        return Ok(Vec::new());
    }
    let words = ["for-each-ref", "--format=%(refname)", RETURNED];
    let known = lines(Path::new(&run.plan.root), &words, &caller::collect()?.caller).unwrap_or_default();
    Ok(run.abandoned.iter().filter_map(|it| judged(it, &known)).collect())
}

/// Returns an attempt with its reference, which is one of `known`. `None` if a person has dropped the reference, or if the
/// attempt has left nothing.
fn judged<'a>(it: &'a Abandoned, known: &[String]) -> Option<GivenUp<'a>> {
    let is_there = |name: &String| known.contains(name);
    if it.is_back {
        return it.found_at.clone().filter(is_there).map(|name| GivenUp { it, reference: Some(name) });
    }
    let name = it.reference();
    let numbered = (2..).map(|number| format!("{name}-{number}")).take_while(is_there).last();
    Some(GivenUp { it, reference: numbered.or(Some(name).filter(is_there)) })
}

impl GivenUp<'_> {
    /// Returns the attempt as a line for people.
    pub fn line(&self) -> String {
        let Abandoned { job, attempt, host, .. } = self.it;
        match &self.reference {
            Some(name) => format!(
                "{job}: what attempt {attempt} has done on {host} is kept as {name}; merge it, or drop it with 'git update-ref -d \
                 {name}'"
            ),
            None if self.it.is_gone => format!(
                "{job}: attempt {attempt} is gone with the host: another machine or state directory answers as {host} now; if the \
                 earlier one answers again, what it has done comes back"
            ),
            None => match &self.it.waits {
                Some(cause) => {
                    format!("{job}: attempt {attempt} was given up; {host} answers; what it has done waits: {cause}")
                }
                None => {
                    format!("{job}: attempt {attempt} was given up; what it has done comes back when {host} answers")
                }
            },
        }
    }

    pub fn json(&self) -> Value {
        let Abandoned { job, attempt, host, is_gone, waits, .. } = self.it;
        let (is_here, is_gone) = (self.reference.is_some(), *is_gone && self.reference.is_none());
        let cause = waits.as_ref().filter(|_| !is_here);
        json!({"id": job, "attempt": attempt, "host": host, "reference": self.reference, "gone": is_gone, "cause": cause})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_known_until_a_person_drops_it_whichever_run_has_brought_it() {
        let out = Abandoned::new("auth", 1, "box");
        let back =
            |found_at: Option<&str>| Abandoned { is_back: true, found_at: found_at.map(str::to_owned), ..out.clone() };
        let (first, second) = ("refs/swarm/from/box/auth.1", "refs/swarm/from/box/auth.1-2");
        for (it, known, expected) in [
            (out.clone(), &[][..], Some(None)),
            (out.clone(), &[first][..], Some(Some(first))),
            (out.clone(), &[first, second], Some(Some(second))),
            (back(Some(first)), &[first, second], Some(Some(first))),
            (back(Some(first)), &[second], None),
            (back(None), &[first], None),
        ] {
            let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
            let judged = judged(&it, &known).map(|one| one.reference);
            assert_eq!(judged, expected.map(|name: Option<&str>| name.map(str::to_owned)), "{it:?} {known:?}");
        }
        assert!(judged(&out, &[]).expect("it is out").line().ends_with("comes back when box answers"));
        let waits = Abandoned { waits: Some("a lock".to_owned()), ..out.clone() };
        assert!(
            judged(&waits, &[]).expect("it is out").line().ends_with("box answers; what it has done waits: a lock")
        );
        let gone = Abandoned { is_gone: true, ..out.clone() };
        let told = judged(&gone, &[]).expect("it is out");
        assert!(told.line().starts_with("auth: attempt 1 is gone with the host"), "{}", told.line());
        let is_gone = |known: &[&str]| {
            let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
            judged(&gone, &known).expect("it is known").json()["gone"].clone()
        };
        assert_eq!((is_gone(&[]), is_gone(&[first])), (true.into(), false.into()), "the earlier machine has returned");
    }
}
