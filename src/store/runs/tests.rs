use swarm_model::run::words::Word;

use super::*;

/// A state directory and the home of a run.
struct Rig {
    root: tempfile::TempDir,
    runs: DiskRuns,
    run: Run,
}

impl Rig {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let home = root.path().join("home").to_str().expect("text").to_owned();
        let plan = Plan { id: "r".to_owned(), home, ..Plan::default() };
        let run = Run { plan: Arc::new(plan), ..Run::default() };
        let runs = DiskRuns::new(Paths::new(root.path().join("s")), PathBuf::from("/bin/true"));
        fs::create_dir(root.path().join("s")).expect("made");
        Self { root, runs, run }
    }

    fn home(&self) -> Home {
        Home::new(&self.run.plan.home)
    }

    fn caller(request: &str) -> Caller {
        Caller { request: request.to_owned(), ..Caller::default() }
    }

    async fn active(&self) -> Vec<String> {
        let Survey { found, unread } = self.runs.active().await.expect("listed");
        assert_eq!(unread, []);
        found
    }

    /// Returns the runs as a supervisor finds them that has just started.
    async fn restarted(&mut self) -> Survey<String> {
        self.runs = DiskRuns::new(self.runs.paths.clone(), PathBuf::from("/bin/true"));
        self.runs.active().await.expect("listed")
    }

    fn is_under_way(&self) -> bool {
        is_under_way(&Paths::new(self.root.path().join("s")), &self.home())
    }
}

#[tokio::test]
async fn a_run_is_active_from_its_journal_until_it_is_closed() {
    let rig = Rig::new();
    let home = rig.run.plan.home.clone();
    assert_eq!(rig.runs.open(&home).await, Ok(None));
    rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
    assert_eq!((rig.active().await, rig.is_under_way()), (Vec::new(), true), "it runs here");
    let next = DiskRuns::new(rig.runs.paths.clone(), PathBuf::from("/bin/true"));
    assert_eq!(next.active().await.expect("listed").found, std::slice::from_ref(&home));
    rig.runs.close(&home).await;
    assert_eq!((rig.active().await, rig.is_under_way()), (vec![home.clone()], false), "its end is not reported yet");
    assert_eq!(rig.runs.resume(&home).await.map(|journaled| journaled.caller.request), Ok("one".to_owned()));
    rig.runs.close(&home).await;
    let over = Run { told: 1, ..rig.run.clone() };
    rig.runs.forget(&over).await;
    assert_eq!(rig.active().await.len(), 1, "the report is missing");
    let last = Telling { at_ms: 0, number: Some(0), job: None, word: Word::RunPaused };
    rig.runs.tell(&rig.run.plan, vec![last]).await;
    rig.runs.forget(&over).await;
    assert_eq!((rig.active().await.len(), rig.runs.place(&home).exists()), (0, false));
}

#[tokio::test]
async fn a_journal_that_is_deleted_during_the_run_is_written_anew() {
    for deletes_all in [false, true] {
        let mut rig = Rig::new();
        let plan = Plan { jobs: vec![Job { id: "a".to_owned(), ..Job::default() }], ..Plan::clone(&rig.run.plan) };
        rig.run = Run { plan: Arc::new(plan), jobs: vec![Progress::default()], ..rig.run.clone() };
        let home = rig.run.plan.home.clone();
        rig.runs.open(&home).await.expect("opened");
        rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
        rig.runs.append(&rig.run, &[(1, Event::Began)]).await.expect("appended");
        match deletes_all {
            true => fs::remove_dir_all(rig.home().path()).expect("removed"),
            false => fs::remove_file(rig.home().journal()).expect("removed"),
        }
        let held = Run { told: 7, mode: swarm_model::run::progress::Mode::Held, ..rig.run.clone() };
        rig.runs.append(&held, &[(2, Event::Hold)]).await.expect("appended");
        rig.runs.append(&held, &[(3, Event::Hold)]).await.expect("appended");
        assert!(rig.home().is_locked(), "nobody else may begin a run");
        assert_eq!(rig.restarted().await.found, [home.as_str()]);
        let journaled = rig.runs.resume(&home).await.expect("resumed");
        let mut machine = Machine::new(journaled.run);
        assert_eq!(journaled.events.len(), 2, "it has begun");
        for (at_ms, event) in &journaled.events {
            machine.on(event, *at_ms);
        }
        assert_eq!((machine.mode, machine.told, journaled.caller.request.as_str()), (held.mode, 7, "one"));
    }
}

#[tokio::test]
async fn the_journal_of_a_repository_that_is_away_is_not_written_anew() {
    let mut rig = Rig::new();
    let home = rig.root.path().join("repo/.arial").to_str().expect("text").to_owned();
    fs::create_dir_all(rig.root.path().join("repo/.git")).expect("made");
    rig.run = Run { plan: Arc::new(Plan { home: home.clone(), ..Plan::clone(&rig.run.plan) }), ..rig.run.clone() };
    rig.runs.open(&home).await.expect("opened");
    rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
    fs::rename(rig.root.path().join("repo"), rig.root.path().join("away")).expect("moved");
    fs::create_dir(rig.root.path().join("repo")).expect("the mount point");
    rig.runs.append(&rig.run, &[(1, Event::Hold)]).await.expect_err("it is away");
    assert!(!rig.home().path().exists(), "the way back is free");
    fs::remove_dir(rig.root.path().join("repo")).expect("removed");
    fs::rename(rig.root.path().join("away"), rig.root.path().join("repo")).expect("moved");
    rig.runs.append(&rig.run, &[(1, Event::Hold)]).await.expect("it is back");
}

#[tokio::test]
async fn the_next_run_is_not_forgotten_with_the_one_before() {
    let mut rig = Rig::new();
    let home = rig.run.plan.home.clone();
    rig.runs.open(&home).await.expect("opened");
    rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
    rig.runs.close(&home).await;
    rig.runs.open(&home).await.expect("opened");
    rig.runs.begin(&rig.run, &Rig::caller("two")).await.expect("begun");
    rig.runs.forget(&rig.run).await;
    assert!(rig.is_under_way());
    assert_eq!(rig.restarted().await.found, [home]);
}

#[tokio::test]
async fn a_start_interrupted_before_its_journal_leaves_no_run() {
    let mut rig = Rig::new();
    let home = rig.run.plan.home.clone();
    rig.runs.open(&home).await.expect("opened");
    rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
    let journal = fs::read(rig.home().journal()).expect("there");
    rig.runs.begin(&rig.run, &Rig::caller("two")).await.expect("begun");
    // Simulates a crash between the two writes.
    for cut_off in [Some(journal), None] {
        match cut_off {
            Some(journal) => fs::write(rig.home().journal(), journal).expect("written"),
            None => fs::remove_file(rig.home().journal()).expect("removed"),
        }
        assert!(!rig.is_under_way());
        assert_eq!(rig.active().await.len(), 0);
        assert!(rig.runs.place(&home).exists(), "it is being started here");
        assert_eq!(rig.restarted().await, Survey::default());
        assert!(!rig.runs.place(&home).exists(), "nothing of it is left");
        rig.runs.open(&home).await.expect("opened");
        rig.runs.begin(&rig.run, &Rig::caller("three")).await.expect("begun");
    }
    // A repository that is not accessible now may be accessible later.
    let away = rig.root.path().join("away");
    fs::rename(rig.home().path(), &away).expect("moved");
    assert_eq!((rig.restarted().await, rig.is_under_way()), (Survey::default(), true));
    rig.runs.resume(&home).await.expect_err("it is away");
    assert!(!rig.home().path().exists(), "the way back is free");
    fs::rename(away, rig.home().path()).expect("moved");
    assert_eq!(rig.restarted().await.found, [home]);
}

#[tokio::test]
async fn a_registration_that_cannot_be_read_hides_no_other() {
    let mut rig = Rig::new();
    let home = rig.run.plan.home.clone();
    rig.runs.open(&home).await.expect("opened");
    rig.runs.begin(&rig.run, &Rig::caller("one")).await.expect("begun");
    let runs = rig.runs.paths.runs();
    // A directory can be opened, but not read, whoever asks.
    let unread = [CALLER, OVER].map(|name| runs.join("unread").join(name));
    for (path, other) in unread.iter().zip(unread.iter().rev()) {
        let _ = fs::remove_dir(other);
        fs::create_dir_all(path).expect("made");
        let survey = rig.restarted().await;
        assert_eq!(survey.found, std::slice::from_ref(&home));
        let places: Vec<String> = survey.unread.into_iter().map(|one| one.place).collect();
        assert_eq!(places, [runs.join("unread").to_string_lossy().into_owned()]);
    }
    // The directory itself.
    fs::remove_dir_all(&runs).expect("removed");
    fs::write(&runs, "").expect("written");
    rig.runs.active().await.expect_err("a file is no directory");
}

#[tokio::test]
async fn an_interrupted_attempt_is_lost_and_a_full_disk_is_no_failure_of_the_task() {
    use swarm_model::run::FaultKind;
    use swarm_model::{Ended, Reason};
    let mut rig = Rig::new();
    let job = Job { id: "a".to_owned(), work: Work::Spec(Default::default()), ..Job::default() };
    let plan = Plan { jobs: vec![job], ..Plan::clone(&rig.run.plan) };
    let progress = Progress { attempt: 1, ..Progress::default() };
    rig.run = Run { plan: Arc::new(plan), jobs: vec![progress], ..rig.run.clone() };
    let dir = rig.home().attempt("a", 1);
    fs::create_dir_all(&dir).expect("made");
    let exit = |reason, ended, interrupted| ExitRecord {
        token: "t".to_owned(),
        started: String::new(),
        pid: 1,
        ended,
        reason,
        ended_at_ms: 0,
        duration_ms: 0,
        usage: swarm_model::Usage::default(),
        survivors: Vec::new(),
        hits: swarm_model::Hits::default(),
        interrupted,
        server_lost: None,
    };
    let fault = async |exit: &ExitRecord| match rig.runs.outcome(&rig.run.now(0), Some(exit)).await.0 {
        Outcome::Failure { fault, .. } => Some(fault),
        Outcome::Success { .. } | Outcome::Stopped | Outcome::Parked { .. } => None,
    };
    let terminated = exit(Reason::Stopped, Ended::Signal(15), true);
    assert_eq!(fault(&terminated).await, Some(FaultKind::Lost));
    let code = i32::from(order::IO_FAILED);
    assert_eq!(fault(&exit(Reason::Exited, Ended::Code(code), false)).await, Some(FaultKind::Passing));
    assert_eq!(fault(&exit(Reason::Exited, Ended::Code(1), false)).await, Some(FaultKind::Task));
    let stopped = exit(Reason::Stopped, Ended::Signal(15), false);
    assert_eq!(rig.runs.outcome(&rig.run.now(0), Some(&stopped)).await.0, Outcome::Stopped);
}

#[test]
fn an_attempt_that_is_out_on_a_host_is_given_up_if_its_spec_is_planned_anew() {
    let job = Job { id: "a".to_owned(), ..Job::default() };
    let plan = Arc::new(Plan { jobs: vec![job], ..Plan::default() });
    let sent = |sent: bool| Progress {
        stage: swarm_model::run::progress::Stage::Paused,
        attempt: 2,
        started_ms: Some(1),
        host: Some("box".to_owned()),
        visited: vec!["box".to_owned()],
        sent,
        ..Progress::default()
    };
    let row = wire::Workstream { id: "a".to_owned(), status: "pending".to_owned(), ..wire::Workstream::default() };
    let state = ArialState { workstreams: vec![row], ..ArialState::default() };
    for is_out in [true, false] {
        let run = Run { plan: Arc::clone(&plan), jobs: vec![sent(is_out)], ..Run::default() };
        let next = overridden(Some(run), 0, Some(&state)).expect("a run");
        let out = is_out.then(|| swarm_model::run::Abandoned::new("a", 2, "box"));
        assert_eq!(next.abandoned, Vec::from_iter(out));
        let progress = &next.jobs[0];
        assert_eq!((progress.attempt, progress.sent, &progress.host), (2, false, &None));
        assert_eq!(progress.visited, ["box"], "what it has left there is removed at the end");
    }
}
