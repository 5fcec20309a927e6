use std::sync::Barrier;
use std::thread;

use swarm_model::asks::{Answerer, AskWish, Asker, Verdict, Via, Waits};

use super::*;

fn asks() -> (tempfile::TempDir, Asks) {
    let dir = tempfile::tempdir().expect("a directory");
    let asks = Asks::new(&Paths::new(dir.path()));
    (dir, asks)
}

pub(crate) fn draft(key: &str, command: &str) -> Draft {
    Draft {
        key: key.to_owned(),
        who: Asker { worker: "a".to_owned(), ..Asker::default() },
        tool: "Bash".to_owned(),
        wish: AskWish::Command { command: command.to_owned() },
        cwd: "/w".to_owned(),
        waits: Waits::Parked,
    }
}

pub(crate) fn answer(ask: &Ask, pid: i32) -> AskAnswer {
    let by = Answerer { uid: 0, user: Some("ada".to_owned()), pid, tty: None, from: None, via: Via::Person };
    AskAnswer { verdict: Verdict::Allow { input: None }, digest: ask.digest.clone(), by, at_ms: 1 }
}

#[test]
fn a_request_has_one_number_until_it_is_over() {
    let (_dir, asks) = asks();
    assert_eq!(asks.all().expect("nothing was asked").len(), 0);
    let first = asks.ask(&draft("run/1", "make")).expect("asked");
    let same = asks.ask(&draft("run/1", "make")).expect("asked");
    let other = asks.ask(&draft("run/2", "make")).expect("asked");
    assert_eq!((first.number, same.number, other.number), (1, 1, 2));
    assert_eq!(first.digest, other.digest, "the same is asked");
    assert_ne!(first.digest, asks.ask(&draft("run/3", "make all")).expect("asked").digest);
    asks.end(1, "the run was stopped").expect("ended");
    asks.end(1, "another reason").expect("ended");
    assert_eq!(asks.find(1).expect("read").expect("there").over.expect("over").why, "the run was stopped");
    assert_eq!(asks.ask(&draft("run/1", "make")).expect("asked").number, 4);
    // Neither a damaged record of a request that is over nor a lost one changes the next number.
    std::fs::write(asks.dir().join("1.ask.json"), "{").expect("written");
    std::fs::write(asks.dir().join("7.over.json"), "{}").expect("written");
    assert_eq!(asks.ask(&draft("run/4", "make")).expect("asked").number, 8);
}

#[test]
fn the_first_answer_counts_and_is_used_once() {
    let (_dir, asks) = asks();
    let ask = asks.ask(&draft("k", "make")).expect("asked");
    let start = Barrier::new(8);
    let won = |done: fn(&Asks, &Ask, i32) -> bool| {
        thread::scope(|scope| {
            let each = (0..8).map(|pid| {
                let (asks, ask, start) = (&asks, &ask, &start);
                scope.spawn(move || {
                    start.wait();
                    done(asks, ask, pid)
                })
            });
            let each: Vec<_> = each.collect();
            each.into_iter().map(|one| one.join().expect("no panic")).filter(|won| *won).count()
        })
    };
    assert_eq!(won(|asks, ask, pid| asks.answer(ask.number, &answer(ask, pid)).is_ok()), 1);
    assert_eq!(won(|asks, ask, pid| asks.take(ask.number, &pid.to_string()).expect("taken")), 1);
    let late = asks.answer(ask.number, &answer(&ask, 9)).expect_err("refused");
    assert_eq!(late.to_string(), "request 1 was already answered by ada");
    assert_eq!(asks.find(1).expect("read").expect("there").state(), AskState::Taken);
    assert_eq!(list_if_present(asks.dir()).expect("listed").len(), 3, "no temporary file is left");
}

#[test]
fn an_answer_belongs_to_the_request_that_was_shown() {
    let (_dir, asks) = asks();
    let ask = asks.ask(&draft("k", "make")).expect("asked");
    let other = AskAnswer { digest: "other".to_owned(), ..answer(&ask, 1) };
    assert_eq!(asks.answer(1, &other).expect_err("refused").to_string(), "request 1 is not the one that was shown");
    assert_eq!(asks.answer(7, &other).expect_err("refused").to_string(), "request 7 not found");
    asks.end(1, "the worker has ended").expect("ended");
    let late = asks.answer(1, &answer(&ask, 1)).expect_err("refused");
    assert_eq!(late.to_string(), "request 1 is over: the worker has ended");
    assert_eq!(asks.find(1).expect("read").expect("there").answer, None);
}

#[test]
fn requests_of_one_worker_are_ended_together() {
    let (_dir, asks) = asks();
    asks.end_all("worker/a/1/", "nothing was asked").expect("nothing to do");
    for key in ["worker/a/1/x", "worker/a/1/y", "worker/a/12/x", "run/1"] {
        asks.ask(&draft(key, "make")).expect("asked");
    }
    asks.end(2, "answered in the dialog").expect("ended");
    let numbers = || -> Vec<u64> { asks.unfinished().expect("read").iter().map(|one| one.ask.number).collect() };
    assert_eq!(numbers(), [1, 3, 4]);
    // A damaged record of a request that is over is not read.
    std::fs::write(asks.dir().join("2.ask.json"), "{").expect("written");
    asks.end_all("worker/a/1/", "the worker has ended").expect("ended");
    assert_eq!(numbers(), [3, 4]);
    assert_eq!(asks.find(1).expect("read").expect("there").over.expect("over").why, "the worker has ended");
}

#[test]
fn a_damaged_request_hides_no_other() {
    let (_dir, asks) = asks();
    for key in ["1", "2", "3", "4", "5", "6", "7"] {
        asks.ask(&draft(key, "make")).expect("asked");
    }
    let path = |name: &str| asks.dir().join(name);
    std::fs::write(path("1.ask.json"), "{").expect("damaged");
    std::fs::write(path("2.answer.json"), r#"{"verdict":"later"}"#).expect("of another version");
    for number in [3, 4, 5] {
        std::fs::remove_file(path(&format!("{number}.ask.json"))).expect("removed");
    }
    nix::unistd::mkfifo(&path("3.ask.json"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    std::os::unix::fs::symlink("6.ask.json", path("4.ask.json")).expect("made");
    std::fs::create_dir(path("5.ask.json")).expect("made");
    std::fs::File::options().write(true).open(path("6.ask.json")).and_then(|it| it.set_len(1 << 30)).expect("grown");
    let numbers = |list: Vec<AskRecord>| list.iter().map(|one| one.ask.number).collect::<Vec<_>>();
    assert_eq!((numbers(asks.all().expect("read")), numbers(asks.unfinished().expect("read"))), (vec![7], vec![7]));
    assert_eq!(asks.open().expect("read").iter().map(|ask| ask.number).collect::<Vec<_>>(), [7]);
    let damaged = asks.damaged().expect("read");
    assert_eq!(damaged.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6], "{damaged:?}");
    assert!(matches!(asks.answer(2, &answer(&asks.open().expect("read")[0], 1)), Err(AnswerError::Io { .. })));
    assert_eq!(asks.ask(&draft("8", "make")).expect("asked").number, 8);
    asks.end(1, "nobody needs it").expect("ended");
    assert_eq!(asks.damaged().expect("read").len(), 5);
}

#[test]
fn a_dialog_that_was_answered_in_the_window_ends_its_request_alone() {
    let (_dir, asks) = asks();
    let only = asks.ask(&draft("worker/a/2/c/-/m/1", "make")).expect("asked");
    asks.ask(&draft("worker/a/20/c/-/m/1", "make")).expect("asked by another one");
    let end = |age_ms: u64| asks.end_shown("a", 2, only.asked_at_ms + age_ms).expect("ended");
    let open = || asks.open().expect("read").iter().map(|ask| ask.number).collect::<Vec<_>>();
    end(SHOWN_MS_MIN - 1);
    assert_eq!(open(), [1, 2], "the screen may be older");
    let second = asks.ask(&draft("worker/a/2/c/-/m/2", "make all")).expect("asked");
    end(SHOWN_MS_MIN);
    assert_eq!(open(), [1, 2, 3], "the screen does not say which one");
    asks.end(second.number, "x").expect("ended");
    end(SHOWN_MS_MIN);
    assert_eq!(open(), [2]);
    assert_eq!(asks.find(1).expect("read").expect("there").over.expect("over").why, ANSWERED_IN_DIALOG);
}
