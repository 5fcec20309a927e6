//! Threads for work on disks that may not answer. The threads of the runtime are shared by everything that the supervisor
//! does, and each that waits for such a disk is lost until it answers.
//!
//! A few threads do the work of one pool. One that has been at the same work for long counts as stuck, and another one does
//! what waits behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Number of threads that work at the same time, besides those that are stuck.
const ACTIVE_MAX: usize = 4;
/// Time at the same work after which a thread counts as stuck.
const STUCK: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() + Send>;

/// Work that waits for a thread.
struct Job {
    work: Work,
    /// Whether somebody waits for it.
    wanted: Weak<()>,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<Job>,
    /// Since when each thread has been at its work, by its number.
    threads: Vec<(u64, Instant)>,
    last: u64,
}

pub struct Pool {
    inner: Mutex<Inner>,
    threads_max: usize,
    /// Time after which a thread that is at the same work counts as stuck.
    stuck: Duration,
}

impl Pool {
    /// Returns a pool that has at most so many threads, all of which may be stuck.
    pub fn new(threads_max: usize) -> Arc<Self> {
        Self::with(threads_max, STUCK)
    }

    fn with(threads_max: usize, stuck: Duration) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::default(), threads_max, stuck })
    }

    /// Has a thread do this, and returns its result. `None` if it panics, or no thread can be made. Work that nobody waits
    /// for any more is not begun.
    pub async fn run<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (begun, mut begins) = oneshot::channel();
        let (done, mut ends) = oneshot::channel();
        let wanted = Arc::new(());
        let work = Box::new(move || {
            let _ = begun.send(());
            let _ = done.send(work());
        });
        {
            let mut inner = self.inner();
            inner.waiting.retain(|job| job.wanted.strong_count() > 0);
            inner.waiting.push_back(Job { work, wanted: Arc::downgrade(&wanted) });
        }
        loop {
            if !self.help() {
                return None;
            }
            // All threads may have got stuck meanwhile.
            match tokio::time::timeout(self.stuck, &mut begins).await {
                Ok(_) => return (&mut ends).await.ok(),
                Err(_) => continue,
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if work waits and too few threads are active. Returns false if there is none.
    fn help(self: &Arc<Self>) -> bool {
        let number = {
            let mut inner = self.inner();
            let active = inner.threads.iter().filter(|(_, since)| since.elapsed() < self.stuck).count();
            if inner.waiting.is_empty() || active >= ACTIVE_MAX || inner.threads.len() >= self.threads_max {
                return true;
            }
            inner.last += 1;
            let number = inner.last;
            inner.threads.push((number, Instant::now()));
            number
        };
        let pool = Arc::clone(self);
        let started = std::thread::Builder::new().name("disk".to_owned()).spawn(move || Thread { pool, number }.work());
        if started.is_err() {
            let mut inner = self.inner();
            inner.threads.retain(|(other, _)| *other != number);
            return !inner.threads.is_empty();
        }
        true
    }
}

/// A thread of a pool, which the pool forgets when it ends.
struct Thread {
    pool: Arc<Pool>,
    number: u64,
}

impl Thread {
    fn work(self) {
        while let Some(job) = self.next() {
            (job.work)();
        }
    }

    /// Returns the next work. If there is none, the pool has forgotten this thread.
    fn next(&self) -> Option<Job> {
        let mut inner = self.pool.inner();
        let job = std::iter::from_fn(|| inner.waiting.pop_front()).find(|job| job.wanted.strong_count() > 0);
        match &job {
            Some(_) => inner.threads.iter_mut().filter(|(number, _)| *number == self.number).for_each(|thread| {
                thread.1 = Instant::now();
            }),
            None => inner.threads.retain(|(number, _)| *number != self.number),
        }
        job
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // Also if the work has panicked.
        self.pool.inner().threads.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_behind_a_disk_that_does_not_answer_is_done() {
        let pool = Pool::with(9, Duration::from_millis(20));
        let (began, begins) = mpsc::channel();
        let mut locks = Vec::new();
        let mut stuck = Vec::new();
        for _ in 0..8 {
            let (release, waits) = mpsc::channel::<()>();
            let (pool, began) = (Arc::clone(&pool), began.clone());
            let work = move || (began.send(()), waits.recv());
            stuck.push(tokio::spawn(async move { pool.run(work).await }));
            locks.push(release);
        }
        for _ in 0..8 {
            while begins.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(pool.run(|| 7).await, Some(7));
        assert!(pool.inner().threads.len() <= 9);
        drop(locks);
        for one in stuck {
            assert!(one.await.expect("no panic").is_some());
        }
        assert_eq!(pool.run(|| 8).await, Some(8));
    }

    #[tokio::test]
    async fn a_panic_costs_only_its_own_result() {
        let pool = Pool::new(1);
        assert_eq!(pool.run(|| panic!("told to")).await, None::<()>);
        assert_eq!(pool.run(|| 1).await, Some(1));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_not_begun() {
        let pool = Pool::new(1);
        let (release, waits) = mpsc::channel::<()>();
        let (began, begins) = mpsc::channel();
        let other = Arc::clone(&pool);
        let stuck = tokio::spawn(async move {
            other.run(move || began.send(()).and_then(|()| waits.recv().map_err(|_| mpsc::SendError(())))).await
        });
        tokio::task::yield_now().await;
        begins.recv().expect("it begins");
        let given_up = tokio::time::timeout(Duration::from_millis(1), pool.run(|| panic!("nobody wants this"))).await;
        assert!(given_up.is_err());
        drop(release);
        assert_eq!(pool.run(|| 1).await, Some(1));
        assert!(stuck.await.is_ok());
    }
}
