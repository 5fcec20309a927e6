//! A connection to a host that is cut while a verb is at work.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::Signal;

use crate::common::{SOON, proc, wait_until};
use crate::hosts::Site;

/// A command in the background, with its output in files.
pub struct Going {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Going {
    pub fn on_box(site: &Site, words: &[&str]) -> Self {
        let (out, err) = (site.here.path("going.out"), site.here.path("going.err"));
        let mut command = site.here.command(&[&["--host", "box"], words].concat());
        command.stdout(File::create(&out).expect("made")).stderr(File::create(&err).expect("made"));
        Self { child: command.spawn().expect("started"), out, err }
    }

    pub fn out(&self) -> String {
        fs::read_to_string(&self.out).expect("there")
    }

    pub fn err(&self) -> String {
        fs::read_to_string(&self.err).expect("there")
    }

    pub fn shows(&self, what: &str) {
        wait_until(&format!("it shows {what:?}"), SOON, || self.out().contains(what));
    }

    pub fn says(&self, what: &str) {
        wait_until(&format!("it says {what:?}"), SOON, || self.err().contains(what));
    }

    /// Presses Ctrl-C.
    pub fn interrupt(&self) {
        proc::signal(i32::try_from(self.child.id()).expect("a pid"), Signal::INT);
    }

    pub fn code(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("it ends", SOON, || {
            code = self.child.try_wait().expect("a child");
            code.is_some()
        });
        code.and_then(|status| status.code())
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const NOTES: [&str; 2] = ["is out of reach; '", "swarm: note: box answers again\n"];

/// Worker that prints what is appended to a file. Returns the file.
fn speaker(site: &Site, flags: &[&str]) -> PathBuf {
    let file = site.there.path("speech");
    fs::write(&file, "").expect("written");
    site.there.spawn("w", flags, &["tail", "-n", "+1", "-f", &file.to_string_lossy()]);
    file
}

fn say(file: &PathBuf, lines: std::ops::Range<u32>) -> String {
    let text: String = lines.map(|number| format!("line {number:03}\n")).collect();
    OpenOptions::new().append(true).open(file).expect("there").write_all(text.as_bytes()).expect("written");
    text
}

#[test]
fn a_followed_log_goes_on_where_it_was_without_a_gap_or_a_line_twice() {
    let site = Site::new();
    let file = speaker(&site, &[]);
    let mut expected = say(&file, 0..5);
    wait_until("it is logged", SOON, || site.there.log("w", "stdout").contains("line 004"));
    let mut going = Going::on_box(&site, &["logs", "w", "-f"]);
    going.shows("line 004\n");
    for round in 1..4 {
        expected += &say(&file, round * 100..round * 100 + 3);
        going.shows(&format!("line {round}02\n"));
        site.cut();
        wait_until("it is said", SOON, || going.err().matches(NOTES[0]).count() == round as usize);
        expected += &say(&file, round * 100 + 3..round * 100 + 6);
        site.open();
        wait_until("it is said", SOON, || going.err().matches(NOTES[1]).count() == round as usize);
    }
    expected += &say(&file, 400..401);
    going.shows("line 400\n");
    assert_eq!(going.out(), expected);
    going.interrupt();
    assert_eq!(going.code(), Some(0));
    assert_eq!(going.out(), expected);
    assert_eq!(going.err().lines().count(), 6, "{}", going.err());
}

#[test]
fn the_log_of_a_window_and_json_go_on_where_they_were() {
    let site = Site::new();
    let file = speaker(&site, &["--tmux"]);
    say(&file, 0..5);
    wait_until("it is logged", SOON, || site.there.swarm(&["logs", "w"]).out.contains("line 004"));
    for flags in [&[][..], &["--json"]] {
        let mut going = Going::on_box(&site, &[&["logs", "w", "-f", "--lines", "2"], flags].concat());
        going.shows("line 0");
        let begun = going.out().lines().count();
        say(&file, 10..40);
        going.shows("line 039");
        site.cut();
        going.says(NOTES[0]);
        say(&file, 40..70);
        site.open();
        going.shows("line 069");
        say(&file, 70..72);
        going.shows("line 071");
        let out = going.out();
        let numbers: Vec<&str> =
            out.lines().skip(begun).filter_map(|line| line.split("line ").nth(1)?.get(..3)).collect();
        let expected: Vec<String> = (10..72).map(|number| format!("{number:03}")).collect();
        assert_eq!(numbers, expected);
        going.interrupt();
        assert_eq!(going.code(), Some(0));
        fs::write(&file, "").expect("emptied");
        say(&file, 0..5);
        wait_until("it begins anew", SOON, || site.there.swarm(&["peek", "w"]).out.contains("line 004"));
    }
}

#[test]
fn followed_events_go_on_where_they_were() {
    let site = Site::new();
    site.there.spawn("a", &[], &["sleep", "600"]);
    let mut going = Going::on_box(&site, &["events", "-f", "--json"]);
    going.shows("\"worker\":\"a\"");
    site.cut();
    going.says(NOTES[0]);
    site.there.spawn("b", &[], &["true"]);
    site.there.wait("b");
    site.open();
    going.says(NOTES[1]);
    site.there.spawn("c", &[], &["sleep", "600"]);
    going.shows("\"worker\":\"c\"");
    let told = site.there.swarm(&["events", "--json"]).ok();
    wait_until("all is shown", SOON, || going.out().lines().count() == told.lines().count());
    assert_eq!(going.out(), told);
    // A person who gives up does not wait for the next try.
    site.cut();
    wait_until("it is said", SOON, || going.err().matches(NOTES[0]).count() == 2);
    going.interrupt();
    assert_eq!(going.code(), Some(130));
}

#[test]
fn a_wait_is_asked_again_and_tells_each_end_once() {
    let site = Site::new();
    let file = |name: &str| site.there.path(name).to_string_lossy().into_owned();
    let waits = |name: &str, code: u8| {
        let script = format!("until [ -e {} ]; do sleep 0.01; done; exit {code}", file(name));
        site.there.spawn(name, &[], &["sh", "-c", &script]);
    };
    waits("a", 0);
    waits("b", 7);
    let mut going = Going::on_box(&site, &["wait", "a", "b", "--exit-code"]);
    wait_until("it is asked", SOON, || site.ends().len() == 1);
    fs::write(file("a"), "").expect("written");
    going.shows("a: exited\n");
    site.cut();
    going.says(NOTES[0]);
    fs::write(file("b"), "").expect("written");
    site.there.wait("b");
    site.there.swarm(&["clean", "a"]).ok();
    site.open();
    assert_eq!(going.code(), Some(1));
    assert_eq!(going.out(), "a: exited\nb: failed (exit code 7)\n");

    waits("c", 0);
    // The line about b proves that the host has been asked.
    let mut going = Going::on_box(&site, &["wait", "b", "c", "--timeout", "5"]);
    going.shows("b: exited\n");
    site.cut();
    assert_eq!(going.code(), Some(255));
    assert!(going.err().contains("swarm: error: box is out of reach, and the time to wait is over"), "{}", going.err());
}
