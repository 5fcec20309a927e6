//! Reads below directories that others have chosen: their disk may not answer, and a face must not wait for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// Longest time for which one read is waited for.
const READ_MAX: Duration = Duration::from_secs(2);

/// Reads that have not ended, by their place. There is at most one for each.
#[derive(Default)]
pub struct Reads(BTreeMap<PathBuf, Receiver<()>>);

impl Reads {
    /// Reads in another thread and waits for it.
    ///
    /// # Errors
    /// Fails if the disk does not answer in time, or has not answered to an earlier read.
    pub fn read<T: Send + 'static>(
        &mut self,
        place: &Path,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let away = || format!("{}: its disk does not answer", place.display());
        if let Some(earlier) = self.0.get(place) {
            if earlier.try_recv() == Err(TryRecvError::Empty) {
                return Err(away());
            }
            self.0.remove(place);
        }
        let (sender, answer) = channel();
        let (bell, end) = channel();
        let thread = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
            let _ = sender.send(read());
            let _ = bell.send(());
        });
        thread.map_err(|error| format!("{}: {error}", place.display()))?;
        match answer.recv_timeout(READ_MAX) {
            Ok(found) => Ok(found),
            Err(RecvTimeoutError::Timeout) => {
                self.0.insert(place.to_owned(), end);
                Err(away())
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("{}: internal error", place.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_is_asked_once() {
        let mut reads = Reads::default();
        let (release, held) = channel::<()>();
        let slow = move || held.recv().is_ok();
        let cause = reads.read(Path::new("/far"), slow).expect_err("it hangs");
        assert_eq!(cause, "/far: its disk does not answer");
        reads.read(Path::new("/far"), || false).expect_err("the first one has not ended");
        assert_eq!(reads.read(Path::new("/near"), || 7), Ok(7));
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(20);
        while reads.read(Path::new("/far"), || true) != Ok(true) {
            assert!(Instant::now() < deadline, "it answers again");
            std::thread::yield_now();
        }
    }
}
