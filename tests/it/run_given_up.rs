//! `swarm run give-up`: an attempt at a host that is out of reach is repeated elsewhere, and its work comes back later.

use std::fs;
use std::path::PathBuf;

use crate::common::{SOON, wait_until};
use crate::run_on::Fleet;

const KEPT: &str = "refs/swarm/from/a/w.1";

/// A spec whose agent works until the file `go` exists.
fn spec(fleet: &Fleet) -> (PathBuf, PathBuf) {
    let (on, go) = (fleet.site.rig.path("on"), fleet.site.rig.path("go"));
    let script = format!(
        "pwd >> {on}; echo committed > c.txt; git add c.txt; git commit -q -m c; echo left > w.txt; echo . >> {on}; until [ -e \
         {go} ]; do sleep 0.05; done",
        on = on.display(),
        go = go.display()
    );
    fleet.site.spec("w", "", &script);
    fleet.plan();
    (on, go)
}

fn attempts(on: &PathBuf) -> usize {
    fs::read_to_string(on).unwrap_or_default().lines().filter(|line| *line == ".").count()
}

fn references(fleet: &Fleet) -> String {
    fleet.site.git(&["for-each-ref", "--format=%(refname)", "refs/swarm/from"])
}

/// Starts the run on `a`, loses that host, and gives up the attempt.
fn give_up(fleet: &Fleet, on: &PathBuf) {
    fleet.run(&["--on", "a,b", "--detach"]).ok();
    wait_until("it works on a", SOON, || attempts(on) == 1 && !fleet.host("a").names().is_empty());
    fleet.run(&["give-up", "w"]).refused(1, "workstream 'w' works on a, which answers");
    fleet.lose("a");
    wait_until("that is known", SOON, || fleet.run(&["status"]).out.contains("on a, which is out of reach"));
    let said = fleet.run(&["give-up", "w"]).ok();
    assert!(said.starts_with("given up; run "), "{said}");
    wait_until("it works on b", SOON, || attempts(on) == 2);
    let status = fleet.run(&["status"]).ok();
    assert!(status.contains("w: attempt 1 was given up; what it has done comes back when a answers"), "{status}");
    assert_eq!(fleet.status()["workstreams"][0]["host"], "b");
}

fn check_kept(fleet: &Fleet) {
    for (file, text) in [("c.txt", "committed"), ("w.txt", "left")] {
        assert_eq!(fleet.site.git(&["show", &format!("{KEPT}:{file}")]), text);
    }
    let kept = fleet.status()["given_up"][0].clone();
    assert_eq!((&kept["id"], &kept["attempt"], &kept["reference"]), (&"w".into(), &1.into(), &KEPT.into()));
    let status = fleet.run(&["status"]).ok();
    assert!(status.contains(&format!("w: what attempt 1 has done on a is kept as {KEPT}; merge it")), "{status}");
}

#[test]
fn the_work_of_an_attempt_that_was_given_up_comes_back_and_does_not_land() {
    let fleet = Fleet::new(&["a", "b"]);
    let (on, go) = spec(&fleet);
    give_up(&fleet, &on);
    fleet.find("a");
    wait_until("its work is here", SOON, || references(&fleet).contains(KEPT));
    wait_until("it is forgotten there", SOON, || fleet.host("a").names().is_empty());
    assert_eq!(fleet.stage("w"), "working");
    let told = fs::read_to_string(fleet.site.repo.join(".arial/events.jsonl")).expect("read");
    assert!(told.contains(r#""event":"workstream.abandoned","attempt":1,"host":"a""#), "{told}");
    wait_until("that is told", SOON, || {
        let told = fs::read_to_string(fleet.site.repo.join(".arial/events.jsonl")).expect("read");
        told.contains(&format!(r#""event":"workstream.returned","attempt":1,"host":"a","reference":"{KEPT}""#))
    });
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    assert_eq!((fleet.stage("w"), attempts(&on)), ("done".to_owned(), 2));
    assert_eq!(fleet.site.git(&["log", "--format=%s", "--merges", "main"]).lines().count(), 1);
    check_kept(&fleet);
    fleet.run(&["cleanup"]).ok();
    assert_eq!(references(&fleet), KEPT, "nothing else deletes it");
    fleet.nothing_left();
    fleet.site.git(&["update-ref", "-d", KEPT]);
    assert_eq!(fleet.status()["given_up"].as_array().map(Vec::len), Some(0), "a person has dropped it");
}

/// The account on `a` is set up anew, with the same name.
#[test]
fn nothing_waits_for_an_attempt_that_is_gone_with_its_host() {
    let fleet = Fleet::new(&["a"]);
    let (on, go) = spec(&fleet);
    fleet.run(&["--on", "a", "--detach"]).ok();
    wait_until("it works on a", SOON, || attempts(&on) == 1 && !fleet.host("a").names().is_empty());
    fleet.lose("a");
    wait_until("that is known", SOON, || fleet.run(&["status"]).out.contains("on a, which is out of reach"));
    fleet.run(&["give-up", "w"]).ok();
    let (state, earlier) = (fleet.host("a").root(), fleet.site.rig.path("earlier"));
    fs::rename(&state, &earlier).expect("moved");
    fleet.find("a");
    wait_until("the next attempt works there", SOON, || attempts(&on) == 2);
    let status = fleet.run(&["status"]).ok();
    assert!(status.contains("w: attempt 1 is gone with the host"), "{status}");
    assert_eq!(fleet.status()["given_up"][0]["gone"], true);
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    assert_eq!((fleet.stage("w"), references(&fleet)), ("done".to_owned(), String::new()));
}

#[test]
fn the_work_comes_back_with_the_next_run_that_reaches_the_host() {
    let fleet = Fleet::new(&["a", "b"]);
    let (on, go) = spec(&fleet);
    give_up(&fleet, &on);
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    assert_eq!((fleet.stage("w"), references(&fleet)), ("done".to_owned(), String::new()));
    fleet.find("a");
    fleet.site.spec("v", "", "echo v > v.txt");
    fleet.plan();
    let said = fleet.run(&["--on", "a"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(attempts(&on), 2);
    check_kept(&fleet);
    fleet.nothing_left();
}

#[test]
fn an_attempt_whose_spec_is_planned_anew_is_ended_and_its_work_kept() {
    let fleet = Fleet::new(&["a", "b"]);
    let (on, _) = spec(&fleet);
    fleet.run(&["--on", "a", "--detach"]).ok();
    wait_until("it works on a", SOON, || attempts(&on) == 1 && !fleet.host("a").names().is_empty());
    fleet.lose("a");
    wait_until("that is known", SOON, || fleet.run(&["status"]).out.contains("on a, which is out of reach"));
    assert_eq!(fleet.run(&["stop"]).code, Some(0));
    fleet.site.spec("w", "", "echo anew > n.txt");
    fleet.plan();
    fleet.find("a");
    let said = fleet.run(&["--on", "a,b"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(fs::read_to_string(fleet.site.repo.join("n.txt")).expect("read"), "anew\n");
    assert!(!fleet.site.repo.join("w.txt").exists());
    wait_until("it is ended there", SOON, || fleet.host("a").names().is_empty());
    assert_eq!(fleet.site.git(&["show", &format!("{KEPT}:w.txt")]), "left");
}

#[test]
fn a_host_is_forgotten_only_without_work_that_is_not_here() {
    let fleet = Fleet::new(&["a", "b"]);
    let (on, go) = spec(&fleet);
    give_up(&fleet, &on);
    fs::write(&go, "").expect("written");
    wait_until("the run is over", SOON, || fleet.is_over());
    let forget = |words: &[&str]| fleet.site.swarm(&[&["hosts", "forget", "a"], words].concat());
    let said = forget(&[]);
    said.refused(1, "a may still have work that is not here (w.1) and files of finished workstreams (w.2)");
    assert!(forget(&["--force"]).ok().starts_with("forgot a; what it has of runs stays there"));
    assert_eq!(forget(&[]).ok(), "forgot a\n");
    // The run itself still knows of the attempt.
    fleet.find("a");
    fleet.site.spec("v", "", "echo v > v.txt");
    fleet.plan();
    assert_eq!(fleet.run(&["--on", "a"]).code, Some(0));
    check_kept(&fleet);
}
