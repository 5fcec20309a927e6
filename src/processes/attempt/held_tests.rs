use swarm_model::asks::{Answerer, AskAnswer, AskWish, Via};
use swarm_store::asks::Asks;
use swarm_sys::files::list_if_present;

use super::*;
use crate::processes::attempt::judging::SPENT;

struct Site {
    dir: tempfile::TempDir,
    paths: Paths,
    asks: Asks,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let asks = Asks::new(&paths);
        Self { dir, paths, asks }
    }

    fn held(&self, attempt: u32, consent: Option<Consent>, hold: Duration) -> Held {
        let who =
            Asker { run: Some("r".to_owned()), job: Some("j".to_owned()), attempt: Some(attempt), ..Asker::default() };
        let cwd = self.dir.path().to_string_lossy().into_owned();
        Held::new(self.paths.clone(), who, cwd, consent, hold)
    }

    fn answer(&self, number: u64, verdict: Verdict) {
        let by = Answerer { uid: 0, user: None, pid: 1, tty: None, from: None, via: Via::Person };
        let digest = self.asks.find(number).expect("read").expect("there").ask.digest;
        self.asks.answer(number, &AskAnswer { verdict, digest, by, at_ms: 1 }).expect("answered");
    }
}

fn command(call: &str, command: &str) -> Request {
    let wish = AskWish::Command { command: command.to_owned() };
    Request { call: call.to_owned(), tool: "execute".to_owned(), wish }
}

fn allow() -> Verdict {
    Verdict::Allow { input: None }
}

#[test]
fn nobody_is_asked_about_what_the_consent_allows() {
    let site = Site::new();
    let write = |path: &str| Request {
        call: "w".to_owned(),
        tool: "edit".to_owned(),
        wish: AskWish::Write { path: path.to_owned(), change: String::new() },
    };
    let mut held = site.held(1, None, HOLD);
    assert_eq!(held.asked(&command("c", "make")), Decided::Now(allow()), "nobody can be asked");
    let mut held = site.held(1, Some(Consent::PartialAccess), HOLD);
    assert_eq!(held.asked(&write("a.txt")), Decided::Now(allow()));
    assert_eq!((held.fd().is_none(), held.until()), (true, None));
    assert!(list_if_present(site.asks.dir()).expect("listed").is_empty(), "nothing was recorded");
    assert_eq!(held.asked(&write(".git/config")), Decided::Held);
    assert_eq!(site.held(1, Some(Consent::NoAccess), HOLD).asked(&write("a.txt")), Decided::Held);
}

#[test]
fn an_answer_is_taken_before_the_agent_hears_it_and_only_once() {
    let site = Site::new();
    let mut held = site.held(1, Some(Consent::PartialAccess), HOLD);
    assert_eq!(held.asked(&command("c", "make")), Decided::Held);
    assert!(held.fd().is_some() && held.until().is_some());
    assert_eq!(held.heard(), []);
    site.answer(1, allow());
    assert_eq!(held.heard(), [Heard::Verdict("c".to_owned(), allow())]);
    assert_eq!(site.asks.find(1).expect("read").expect("there").state(), AskState::Taken);
    // The attempt is killed, and its next life asks for the same call.
    let mut later = site.held(1, Some(Consent::PartialAccess), HOLD);
    assert_eq!(later.asked(&command("c", "make")), no(SPENT.to_owned()));
    // The same command once more is another request.
    assert_eq!(later.asked(&command("d", "make")), Decided::Held);
    assert_eq!(held.end_turn(true), None);
    assert_eq!(site.asks.find(1).expect("read").expect("there").state(), AskState::Over);
    assert_eq!(later.end_turn(true), None);
    let over = site.asks.find(2).expect("read").expect("there").over.expect("over");
    assert_eq!(over.why, "the agent continued without it");
}

#[test]
fn after_the_hold_the_request_stays_open_and_its_answer_is_used_by_the_next_turn_once() {
    let site = Site::new();
    let mut held = site.held(1, Some(Consent::NoAccess), Duration::ZERO);
    assert_eq!(held.asked(&command("c", "make")), Decided::Held);
    assert_eq!(held.heard(), [Heard::Park]);
    let parked = held.end_turn(false).expect("parked");
    assert_eq!((parked.number, parked.what.as_str(), parked.kind), (1, "make", NeedKind::Permission));
    assert_eq!((held.decided(), held.end_turn(false)), (None, None));
    site.answer(1, allow());
    let mut next = site.held(2, Some(Consent::NoAccess), HOLD);
    let told = next.decided().expect("answered");
    assert!(told.ends_with("\n\n- allowed, once: make"), "{told}");
    assert_eq!(next.asked(&command("x", "make all")), Decided::Held, "another command");
    assert_eq!(next.asked(&command("y", "make")), Decided::Now(allow()));
    assert_eq!(next.asked(&command("z", "make")), Decided::Held, "the answer was used");
    let numbers: Vec<u64> = site.asks.all().expect("read").iter().map(|one| one.ask.number).collect();
    assert_eq!((numbers, next.decided()), (vec![1, 2, 3], None));
}

#[test]
fn an_unanswered_request_of_an_earlier_attempt_is_not_asked_twice() {
    let site = Site::new();
    let mut held = site.held(1, Some(Consent::NoAccess), HOLD);
    assert_eq!(held.asked(&command("c", "make")), Decided::Held);
    assert_eq!(held.end_turn(false), None, "the agent has died");
    let mut next = site.held(2, Some(Consent::NoAccess), HOLD);
    assert_eq!(next.asked(&command("d", "make")), Decided::Held);
    assert_eq!(site.asks.all().expect("read").len(), 1);
    site.answer(1, Verdict::Deny { reason: "no".to_owned() });
    assert_eq!(next.heard(), [Heard::Verdict("d".to_owned(), Verdict::Deny { reason: "no".to_owned() })]);
}

#[test]
fn whatever_goes_wrong_is_a_no() {
    let site = Site::new();
    std::fs::create_dir(site.dir.path().join("state")).expect("made");
    std::fs::write(site.asks.dir(), "").expect("a file in the way");
    let Decided::Now(Verdict::Deny { reason }) =
        site.held(1, Some(Consent::NoAccess), HOLD).asked(&command("c", "make"))
    else {
        panic!("not denied")
    };
    assert!(reason.starts_with("nobody can be asked: "), "{reason}");
    // A request that is withdrawn, or whose answer cannot be read.
    let site = Site::new();
    let mut held = site.held(1, Some(Consent::NoAccess), HOLD);
    assert_eq!([held.asked(&command("c", "make")), held.asked(&command("d", "true"))], [Decided::Held, Decided::Held]);
    site.asks.end(1, "the run was stopped").expect("ended");
    std::fs::write(site.asks.dir().join("2.answer.json"), "{").expect("written");
    let heard = held.heard();
    let [Heard::Verdict(_, Verdict::Deny { reason: one }), Heard::Verdict(_, Verdict::Deny { reason: two })] =
        &heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!(one, "the run was stopped");
    assert!(two.starts_with("the answer cannot be read: "), "{two}");
}
