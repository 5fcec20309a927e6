//! Removes requests that have been over for a long time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use swarm_model::asks::Over;
use swarm_sys::files::remove_if_present;

use super::Asks;

/// Time for which a request that is over is kept, in milliseconds.
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;

impl Asks {
    /// Removes the requests that have been over for 30 days. The one with the highest number stays, so that no number is
    /// given to another request.
    ///
    /// # Errors
    /// Returns any I/O error. What is left then is removed by the next call.
    pub fn remove_past(&self, now_ms: u64) -> io::Result<()> {
        let files = self.files()?;
        let last = files.iter().map(|(number, _)| *number).max();
        let over: BTreeSet<u64> = files.iter().filter(|(_, part)| part == "over").map(|(number, _)| *number).collect();
        let is_past = |number: &u64| {
            // A damaged record has no age.
            let over: Option<Over> = self.read(*number, "over").unwrap_or_default();
            Some(*number) != last && over.is_some_and(|over| over.at_ms.saturating_add(KEPT_MS) < now_ms)
        };
        let past: Vec<u64> = over.into_iter().filter(is_past).collect();
        if past.is_empty() {
            return Ok(());
        }
        past.iter().try_for_each(|number| remove_if_present(&self.path(*number, "ask")))?;
        // A request without the file that ends it would be open again.
        File::open(&self.dir)?.sync_all()?;
        let parts = ["answer", "taken", "over"];
        let left = past.iter().flat_map(|number| parts.map(|part| self.path(*number, part)));
        left.into_iter().try_for_each(|path| remove_if_present(&path))
    }
}

#[cfg(test)]
mod tests {
    use swarm_sys::clock::wall_ms;
    use swarm_sys::files::list_if_present;
    use swarm_sys::paths::Paths;

    use super::super::tests::{answer, draft};
    use super::*;

    #[test]
    fn what_is_over_for_30_days_is_removed_and_its_number_is_not_used_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let asks = Asks::new(&Paths::new(dir.path()));
        asks.remove_past(u64::MAX).expect("nothing was asked");
        let asked: Vec<_> =
            (1..=4).map(|key| asks.ask(&draft(&format!("run/{key}"), "make")).expect("asked")).collect();
        asks.answer(1, &answer(&asked[0], 1)).expect("answered");
        assert!(asks.take(1, "attempt").expect("taken"));
        for number in [1, 2, 4] {
            asks.end(number, "the worker has ended").expect("ended");
        }
        std::fs::write(asks.path(2, "over"), "{").expect("damaged");
        let names = || -> Vec<String> {
            let list = list_if_present(&asks.dir).expect("listed");
            let mut names: Vec<String> =
                list.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort_unstable();
            names
        };
        let before = names();
        asks.remove_past(wall_ms() + KEPT_MS - 60_000).expect("nothing to do");
        assert_eq!(names(), before);
        asks.remove_past(wall_ms() + KEPT_MS + 60_000).expect("removed");
        let left = ["2.ask.json", "2.over.json", "3.ask.json", "4.ask.json", "4.over.json"];
        assert_eq!(names(), left, "one is damaged, one is open, and one has the highest number");
        assert_eq!(asks.ask(&draft("run/1", "make")).expect("asked").number, 5);
        // The rest of a removal that was interrupted.
        std::fs::remove_file(asks.path(4, "ask")).expect("removed");
        asks.remove_past(u64::MAX).expect("removed");
        assert_eq!(names(), ["2.ask.json", "2.over.json", "3.ask.json", "5.ask.json"]);
    }
}
