use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::SystemTime;

use super::*;
use crate::fixture::Fixture;

const SOON: Duration = Duration::from_secs(60);

/// A process that lives until it is killed.
struct Holder(Child);

impl Holder {
    fn new() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn text(&self) -> String {
        format!("{} {}", self.0.id(), host())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refused(common: &Path) -> String {
    let fault = hold(common, Duration::ZERO).unwrap_err();
    assert!(!fault.transient && fault.remedy.is_some(), "{fault:?}");
    fault.cause
}

/// Asserts that a waiter gets the lock after `change`.
fn taken_after(common: &Path, change: impl FnOnce()) {
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let held = hold(common, SOON).unwrap();
            sender.send(()).unwrap();
            held
        });
        assert!(receiver.try_recv().is_err());
        change();
        receiver.recv_timeout(SOON).unwrap();
        assert_eq!(fs::read_to_string(common.join(FILE)).unwrap(), own_text());
        drop(waiting.join().unwrap());
    });
}

#[test]
fn git_collects_nothing_while_somebody_here_needs_it() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let collects = || fix.attempt(&fix.repo, &["gc", "-q", "--prune=now"]).0;
    let first = hold(&common, SOON).unwrap();
    // The path by which the repository is named does not matter.
    let second = hold(&fix.repo.join("../repo/.git"), SOON).unwrap();
    drop(first);
    assert!(!collects());
    drop(second);
    assert!(collects());
    assert!(!common.join(FILE).exists() && !common.join(LOCK).exists());
}

#[test]
fn the_end_of_another_is_waited_for_however_it_ends() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let mut other = Holder::new();
    fs::write(common.join(FILE), other.text()).unwrap();
    assert!(refused(&common).contains(&format!("git gc (process {})", other.0.id())));
    taken_after(&common, || fs::remove_file(common.join(FILE)).unwrap());
    fs::write(common.join(FILE), other.text()).unwrap();
    taken_after(&common, || other.0.kill().unwrap());
}

#[test]
fn what_a_dead_one_left_is_in_nobodys_way() {
    let fix = Fixture::new();
    let common = fix.repo.join(".git");
    let ended = Holder::new().text();
    let living = Holder::new();
    let leave = |name: &str, text: &str, age_s: u64| {
        fs::write(common.join(name), text).unwrap();
        let file = OpenOptions::new().write(true).open(common.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    };
    let elsewhere = "1 another-machine";
    for (name, text, age_s, is_stale) in [
        (FILE, ended.as_str(), 0, true),
        (FILE, own_text().as_str(), 0, true),
        (FILE, "nonsense", 0, true),
        (FILE, elsewhere, 60, false),
        (FILE, elsewhere, 13 * 3600, true),
        // The process started long after the file was written and is not git: the pid was reused.
        (FILE, living.text().as_str(), 3600, true),
        (LOCK, ended.as_str(), 0, true),
        (LOCK, "", 0, false),
        (LOCK, "", 60, true),
    ] {
        leave(name, text, age_s);
        let held = hold(&common, Duration::ZERO);
        assert_eq!(held.is_ok(), is_stale, "{name} {text} {age_s}");
        drop(held);
        assert_eq!(common.join(name).exists(), !is_stale, "{name} {text} {age_s}");
        let _ = fs::remove_file(common.join(name));
    }
    leave(FILE, &own_text(), 0);
    clear_stale(&common);
    assert!(!common.join(FILE).exists());
    leave(FILE, elsewhere, 0);
    clear_stale(&common);
    assert!(common.join(FILE).exists());
}
