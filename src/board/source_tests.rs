//! The reader of the board against a real directory and the kernel.

use std::fs;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use swarm_model::run::plan::{Job, Plan};
use swarm_model::run::progress::{Mode, Progress, Run, Verdict};
use swarm_store::runs::home::Home;
use swarm_store::runs::journal;

use super::*;

/// Limit of each wait.
const SOON: Duration = Duration::from_secs(20);

/// Replaces the registry as its writer does.
fn put(root: &Path, names: &[&str]) {
    let row = |name: &&str| format!(r#"{{"name":"{name}","status":"stopped","cmd":["x"],"started":"s","cwd":"/"}}"#);
    let rows: Vec<String> = names.iter().map(row).collect();
    fs::write(root.join("new"), format!("{{\"workers\":[{}]}}", rows.join(","))).expect("written");
    fs::rename(root.join("new"), root.join("state.json")).expect("renamed");
}

/// Looks until the board is as it is to be.
fn wait_for(source: &mut Source, board: &mut Board, condition: impl Fn(&Board) -> bool) {
    let deadline = Instant::now() + SOON;
    loop {
        source.look(board).expect("readable");
        if condition(board) {
            return;
        }
        let now = Instant::now();
        assert!(now < deadline, "{:?}", board.since(0));
        let left = source.due().unwrap_or(deadline).min(deadline).saturating_duration_since(now);
        let left = Timespec::try_from(left + Duration::from_millis(1)).expect("short");
        poll(&mut [PollFd::new(&source.epoll, PollFlags::IN)], Some(&left)).expect("polled");
    }
}

/// Looks until the board has these rows.
fn until(source: &mut Source, board: &mut Board, names: &[&str]) {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    wait_for(source, board, |board| {
        board.since(0).rows.iter().map(|(_, key, _)| key.name.as_str()).collect::<BTreeSet<_>>() == names
    });
}

#[test]
fn rows_follow_the_registry_also_if_it_is_not_there_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("above/state");
    let mut source = Source::at(&Paths::new(&root), None).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &[]);
    assert!(source.due().is_none() && !root.exists());
    fs::create_dir_all(&root).expect("made");
    put(&root, &["a"]);
    until(&mut source, &mut board, &["a"]);
    let rev = board.rev();
    put(&root, &["a", "b"]);
    until(&mut source, &mut board, &["a", "b"]);
    let since = board.since(rev);
    assert_eq!((since.rows.len(), since.gone.len()), (1, 0), "one row has changed");
    put(&root, &["b"]);
    until(&mut source, &mut board, &["b"]);
    fs::rename(&root, dir.path().join("away")).expect("renamed");
    until(&mut source, &mut board, &[]);
    fs::rename(dir.path().join("away"), &root).expect("renamed");
    until(&mut source, &mut board, &["b"]);
    assert_eq!(source.due(), None, "nothing happens, so nothing is due");
}

#[test]
fn changes_in_quick_succession_are_read_together() {
    let dir = tempfile::tempdir().expect("a directory");
    put(dir.path(), &["a"]);
    let mut source = Source::at(&Paths::new(dir.path()), None).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &["a"]);
    // As after a look that has taken long.
    source.not_before = Instant::now() + SOON;
    put(dir.path(), &["a", "b"]);
    source.look(&mut board).expect("readable");
    assert_eq!((board.rev(), source.due()), (1, Some(source.not_before)));
    source.not_before = Instant::now();
    until(&mut source, &mut board, &["a", "b"]);
}

#[test]
fn a_registry_that_cannot_be_read_is_tried_again() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("state.json")).expect("made");
    let mut source = Source::at(&Paths::new(dir.path()), None).expect("starts");
    let mut board = Board::default();
    source.look(&mut board).expect_err("is a directory");
    assert!(source.due().is_some_and(|due| due > Instant::now()));
}

/// Registers a run with this home.
fn register(root: &Path, home: &Path) {
    let place = root.join("run/0123");
    fs::create_dir_all(&place).expect("made");
    let active = serde_json::json!({"home": home, "caller": swarm_model::Caller::default()});
    fs::write(place.join("caller.json"), active.to_string()).expect("written");
}

/// Returns a run of two jobs, the second one after the first.
fn two_jobs(home: &Path) -> Run {
    let job = |id: &str, after: &[&str]| Job {
        id: id.to_owned(),
        after: after.iter().map(|id| (*id).to_owned()).collect(),
        ..Job::default()
    };
    let plan = Plan {
        id: "01234567".into(),
        home: home.to_string_lossy().into_owned(),
        slug: "shop".into(),
        jobs: vec![job("a", &[]), job("b", &["a"])],
        ..Plan::default()
    };
    Run { plan: plan.into(), jobs: vec![Progress::default(); 2], ..Run::default() }
}

#[test]
fn runs_are_shown_from_their_registration_to_their_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, home) = (dir.path().join("state"), dir.path().join("shop/.arial"));
    fs::create_dir_all(&root).expect("made");
    fs::create_dir_all(&home).expect("made");
    let mut source = Source::at(&Paths::new(&root), None).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &[]);
    let place = Home::new(&home);
    journal::begin(&place, &two_jobs(&home), "r").expect("begun");
    register(&root, &home);
    let names = |ids: &[&str]| -> Vec<String> {
        let home = home.to_string_lossy();
        let of_jobs = ids.iter().map(|id| format!("{home}/{id}"));
        std::iter::once(home.clone().into_owned()).chain(of_jobs).collect()
    };
    let all = names(&["a", "b"]);
    until(&mut source, &mut board, &all.iter().map(String::as_str).collect::<Vec<_>>());
    let row = |board: &Board, kind: Kind, name: &str| -> serde_json::Value {
        let since = board.since(0);
        let found = since.rows.iter().find(|(_, key, _)| key.kind == kind && key.name == name);
        serde_json::from_str(found.expect("a row").2).expect("JSON")
    };
    assert_eq!(row(&board, Kind::Workstream, &all[2])["after"], serde_json::json!(["a"]));
    assert_eq!(row(&board, Kind::Run, &all[0])["status"], "running");
    assert_eq!(source.due(), None, "nothing happens, so nothing is due");
    let rev = board.rev();
    journal::append(&place, &[(5, swarm_model::run::Event::Hold)]).expect("appended");
    wait_for(&mut source, &mut board, |board| row(board, Kind::Run, &all[0])["status"] == "paused");
    assert_eq!(board.since(rev).rows.len(), 1, "its workstreams are as they were");
    fs::write(place.journal(), "{}\n").expect("written");
    wait_for(&mut source, &mut board, |board| row(board, Kind::Run, &all[0])["status"] == "unreadable");
    fs::remove_dir_all(root.join("run/0123")).expect("removed");
    until(&mut source, &mut board, &[]);
}

#[test]
fn the_run_of_the_current_repository_is_shown_also_if_it_is_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, shop) = (dir.path().join("state"), dir.path().join("shop"));
    fs::create_dir_all(shop.join(".git")).expect("made");
    fs::create_dir_all(shop.join("src")).expect("made");
    fs::write(shop.join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
    let home = Home::of(&shop);
    home.make().expect("made");
    let over = Run { mode: Mode::Over(Verdict::Failed), ..two_jobs(home.path()) };
    journal::begin(&home, &over, "r").expect("begun");
    let mut source = Source::at(&Paths::new(&root), Some(shop.join("src"))).expect("starts");
    let mut board = Board::default();
    source.look(&mut board).expect("readable");
    assert_eq!(board.since(0).rows.len(), 3);
    assert!(!root.exists() && source.due().is_none(), "looking writes nothing, and nothing is due");
}

#[test]
fn without_inotify_it_looks_every_few_seconds_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    put(dir.path(), &["a"]);
    let mut source = Source::at(&Paths::new(dir.path()), None).expect("starts");
    (source.inotify, source.blind) = (None, Some("no instance is left".into()));
    let mut board = Board::default();
    let warnings = source.look(&mut board).expect("readable");
    let said = "cannot watch everything, and looks every few seconds: no instance is left";
    assert_eq!((warnings.as_slice(), board.rev()), (&[said.to_owned()][..], 1));
    put(dir.path(), &["a", "b"]);
    assert!(source.due().is_some_and(|due| due <= Instant::now() + watching::LOOK_PAUSE), "{:?}", source.due());
    until(&mut source, &mut board, &["a", "b"]);
}

#[test]
fn a_damaged_registry_is_warned_about_and_read_when_it_is_sound() {
    let dir = tempfile::tempdir().expect("a directory");
    put(dir.path(), &["a"]);
    let mut source = Source::at(&Paths::new(dir.path()), None).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &["a"]);
    fs::write(dir.path().join("state.json"), "{").expect("written");
    let deadline = Instant::now() + SOON;
    let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    while !source.look(&mut board).expect("rebuilt").iter().any(|warning| warning.contains("corrupt state file")) {
        assert!(Instant::now() < deadline, "it is damaged");
        poll(&mut [PollFd::new(&source.epoll, PollFlags::IN)], Some(&pause)).expect("polled");
    }
    put(dir.path(), &["a", "b"]);
    until(&mut source, &mut board, &["a", "b"]);
}

/// The kernel tells what changes of runs and flows. Only if it may not, they are read again with the workers.
#[test]
fn what_is_due_each_minute_are_the_workers_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, home) = (dir.path().join("state"), dir.path().join("shop/.arial"));
    fs::create_dir_all(&root).expect("made");
    fs::create_dir_all(&home).expect("made");
    let mut source = Source::at(&Paths::new(&root), None).expect("starts");
    let mut board = Board::default();
    until(&mut source, &mut board, &[]);
    // The source can no longer tell what an event of the kernel is about.
    source.about.clear();
    journal::begin(&Home::new(&home), &two_jobs(&home), "r").expect("begun");
    register(&root, &home);
    put(&root, &["a"]);
    for (is_doubtful, rows) in [(false, 1), (true, 4)] {
        source.take().expect("taken");
        source.about.clear();
        source.workers.insert("running".to_owned(), Watched::default());
        source.elsewhere.is_doubtful = is_doubtful;
        (source.wanted, source.not_before) = (Wanted::default(), Instant::now());
        source.looked = Instant::now().checked_sub(AGAIN).expect("the machine runs for longer");
        source.look(&mut board).expect("readable");
        assert_eq!(board.since(0).rows.len(), rows, "doubtful: {is_doubtful}");
    }
    assert!(!source.elsewhere.is_doubtful, "all was read and is watched");
}
