use std::sync::Mutex;

use swarm_actors::testing::FakeClock;
use swarm_model::{Ended, EventKind, Reason};
use tokio::time::Instant;

use super::*;

fn finished(worker: &str) -> Event {
    let kind = EventKind::WorkerExited {
        ended: Some(Ended::Code(0)),
        reason: Some(Reason::Exited),
        duration_ms: None,
        hits: Default::default(),
    };
    Event { at_ms: 7, worker: Some(worker.to_owned()), generation: None, request: None, kind }
}

/// Deliveries: way, worker, and seconds since the start.
type Told = Arc<Mutex<Vec<(Way, String, u64)>>>;

/// Starts a notifier whose deliveries take the time and have the result that `behaviour` returns.
fn start<B>(behaviour: B) -> (broadcast::Sender<Event>, Notifier, Told)
where
    B: Fn(Way, &Notice) -> (Duration, Result<(), Failed>) + Send + Sync + 'static,
{
    let (events, listener) = broadcast::channel(1024);
    let (over, is_over) = oneshot::channel();
    let told = Told::default();
    let (keep, began) = (Arc::clone(&told), Instant::now());
    let deliver = move |way, notice: Arc<Notice>| {
        let (takes, result) = behaviour(way, &notice);
        let keep = Arc::clone(&keep);
        async move {
            tokio::time::sleep(takes).await;
            keep.lock().expect("whole").push((way, notice.worker.clone(), began.elapsed().as_secs()));
            result
        }
    };
    let task = tokio::spawn(tell_all(Arc::new(FakeClock::default()), listener, is_over, deliver));
    (events, Notifier { over, task }, told)
}

fn by(way: Way, told: &Told) -> Vec<(String, u64)> {
    let told = told.lock().expect("whole");
    told.iter().filter(|(by, ..)| *by == way).map(|(_, worker, at)| (worker.clone(), *at)).collect()
}

const HOUR: Duration = Duration::from_hours(1);

/// Captures the log while the guard is held.
fn log() -> (Arc<Mutex<Vec<u8>>>, tracing::subscriber::DefaultGuard) {
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("whole").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&lines);
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || Lines(Arc::clone(&keep))).finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

fn logged(lines: &Arc<Mutex<Vec<u8>>>, what: &str) -> Vec<String> {
    let text = String::from_utf8(lines.lock().expect("whole").clone()).expect("text");
    text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_hanging_way_delays_only_itself() {
    let hangs = |way, _: &Notice| (if way == Way::Command { HOUR } else { Duration::ZERO }, Ok(()));
    let (events, _notifier, told) = start(hangs);
    for name in ["a", "b"] {
        events.send(finished(name)).expect("heard");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    let soon = [("a".to_owned(), 0), ("b".to_owned(), 10)];
    assert_eq!((by(Way::Webhook, &told), by(Way::Desktop, &told)), (soon.to_vec(), soon.to_vec()));
    assert!(by(Way::Command, &told).is_empty());
    tokio::time::sleep(2 * HOUR).await;
    assert_eq!(by(Way::Command, &told), [("a".to_owned(), 3600), ("b".to_owned(), 7200)]);
}

#[tokio::test(start_paused = true)]
async fn too_many_notices_of_a_way_drop_its_oldest_which_are_logged_once() {
    let (lines, _guard) = log();
    let hangs = |way, notice: &Notice| {
        let takes = if way == Way::Webhook && notice.worker == "first" { HOUR } else { Duration::ZERO };
        (takes, Ok(()))
    };
    let (events, _notifier, told) = start(hangs);
    events.send(finished("first")).expect("heard");
    tokio::time::sleep(Duration::from_secs(10)).await;
    for number in 0..QUEUE_MAX + 3 {
        events.send(finished(&format!("w{number}"))).expect("heard");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(by(Way::Command, &told).len(), QUEUE_MAX + 4);
    assert!(logged(&lines, "dropped").is_empty());
    tokio::time::sleep(HOUR).await;
    let names: Vec<String> = by(Way::Webhook, &told).into_iter().map(|(name, _)| name).collect();
    let kept = (3..QUEUE_MAX + 3).map(|number| format!("w{number}"));
    assert_eq!(names, std::iter::once("first".to_owned()).chain(kept).collect::<Vec<_>>());
    let dropped = logged(&lines, "dropped");
    assert!(dropped.len() == 1 && dropped[0].contains("way=\"webhook\" dropped=3"), "{dropped:?}");
}

#[tokio::test(start_paused = true)]
async fn temporary_failures_are_retried_and_permanent_ones_are_not() {
    let fails = |way, _: &Notice| {
        let failed = if way == Way::Webhook { Failed::for_now("busy") } else { Failed::for_good("wrong") };
        (Duration::ZERO, Err(failed))
    };
    let (events, _notifier, told) = start(fails);
    events.send(finished("a")).expect("heard");
    tokio::time::sleep(HOUR).await;
    assert_eq!(by(Way::Webhook, &told).into_iter().map(|(_, at)| at).collect::<Vec<_>>(), [0, 1, 3, 7]);
    assert_eq!(by(Way::Command, &told).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cause_is_logged_once_and_so_is_its_end() {
    let (lines, _guard) = log();
    let fails = |way, notice: &Notice| {
        let is_bad = way == Way::Desktop && notice.worker != "good";
        (Duration::ZERO, if is_bad { Err(Failed::for_good("no screen")) } else { Ok(()) })
    };
    let (events, _notifier, _told) = start(fails);
    for name in ["a", "b", "good", "c"] {
        events.send(finished(name)).expect("heard");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(logged(&lines, "no screen").len(), 2);
    let over = logged(&lines, "delivered again");
    assert!(over.len() == 1 && over[0].contains("missed=2"), "{over:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_delivers_pending_notices_and_does_not_wait_for_hanging_ones() {
    let (lines, _guard) = log();
    let quick = |_, _: &Notice| (Duration::from_millis(100), Ok(()));
    let (events, notifier, told) = start(quick);
    events.send(finished("last")).expect("heard");
    notifier.end().await;
    assert!(Way::ALL.iter().all(|way| by(*way, &told) == [("last".to_owned(), 0)]), "{told:?}");
    assert!(logged(&lines, "before all notifications").is_empty());

    let hangs = |way, _: &Notice| (if way == Way::Webhook { HOUR } else { Duration::ZERO }, Ok(()));
    let (events, notifier, told) = start(hangs);
    events.send(finished("last")).expect("heard");
    let began = Instant::now();
    notifier.end().await;
    assert_eq!(began.elapsed(), END_MAX);
    assert_eq!((by(Way::Command, &told).len(), by(Way::Webhook, &told).len()), (1, 0));
    assert_eq!(logged(&lines, "before all notifications").len(), 1);
}

#[test]
fn the_end_of_the_runtime_waits_for_no_delivery() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (hold, wait) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = std::sync::mpsc::channel();
    runtime.spawn(off_thread(move || {
        let _ = begun.send(());
        let _ = wait.recv();
        Ok(())
    }));
    runtime.block_on(tokio::task::yield_now());
    has_begun.recv_timeout(Duration::from_secs(20)).expect("it is under way");
    // With a thread of the runtime's pool, this would never return.
    drop(runtime);
    drop(hold);
}
