//! Calls of a controller to a host about commands.

use std::collections::BTreeMap;
use std::fs;

use swarm_model::{Ended, Reason};
use swarm_store::runs::far::{FarAnswer, FarAttempt, FarCall, FarCommand, FarResult, FarStart, FarWork};

use crate::common::{SOON, wait_until};
use crate::far_calls::{Line, RUN, Site};
use crate::recover::{reboot, rewrite_boot};

/// Returns the start of a command without a worktree.
fn start(site: &Site, job: &str, attempt: u32, script: &str) -> FarStart {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let work = FarWork::Command(FarCommand { argv, ..FarCommand::default() });
    FarStart { work, tree: None, ..site.order(job, attempt, "", "") }
}

fn end(line: &mut Line, start: &FarStart) -> FarResult {
    let id = line.begin(&FarCall::End { at: start.at.clone(), base: String::new(), subject: None });
    line.ended(id)
}

#[test]
fn a_command_is_executed_once_in_an_empty_directory_without_a_clone() {
    let site = Site::new();
    let mut line = Line::open(&site.rig);
    assert_eq!(line.ask(&FarCall::Hail {}), FarAnswer::Done);
    let mut first = start(&site, "c", 1, "ls -A; pwd; echo $X; echo bad >&2; echo once >> file; exit 3");
    let FarWork::Command(command) = &mut first.work else { panic!("a command") };
    (command.env, command.dir) = (BTreeMap::from([("X".into(), "it's".into())]), "a/b".into());
    let generation = line.start(&first);
    let left = end(&mut line, &first);
    assert_eq!(left.exit.as_ref().map(|exit| (exit.ended, exit.reason)), Some((Ended::Code(3), Reason::Exited)));
    let work = site.dir().join("runs").join(RUN).join("attempts/c.1/work");
    assert_eq!(left.stdout, format!("{}\nit's\n", work.join("a/b").display()));
    assert_eq!((left.stderr.as_str(), left.tip.as_deref(), left.waits.as_deref()), ("bad\n", None, None));
    // Also if somebody has cleaned the worker meanwhile.
    assert_eq!(line.start(&first), generation);
    site.rig.swarm(&["clean", "p.c"]).ok();
    assert_eq!(line.start(&first), 0);
    assert_eq!(end(&mut line, &first), left);
    assert_eq!(fs::read_to_string(work.join("a/b/file")).expect("text"), "once\n");

    let again = start(&site, "c", 2, "ls -A; exec sleep 600");
    line.start(&again);
    // One that a run gave up.
    let third = start(&site, "c", 3, "true");
    let answer = line.ask(&FarCall::Start(Box::new(third.clone())));
    let cause = format!("an earlier attempt still works: far/c0ffee00/{RUN}/c/2");
    assert_eq!(answer, FarAnswer::Unfit { program: None, cause });
    assert_eq!(line.ask(&FarCall::Stop(again.at.clone())), FarAnswer::Done);
    let left = end(&mut line, &again);
    assert_eq!((left.exit.map(|exit| exit.reason), left.stdout.as_str()), (Some(Reason::Stopped), ""));
    line.start(&third);
    assert_eq!(end(&mut line, &third).exit.map(|exit| exit.ended), Some(Ended::Code(0)));
    let elsewhere = FarAttempt { host: Some("0f".into()), ..third.at.clone() };
    let answer = line.ask(&FarCall::Forget(elsewhere));
    assert!(matches!(answer, FarAnswer::Unknown(_)), "the machine that has it is still to be asked: {answer:?}");
    let own = fs::read_to_string(site.rig.root().join("id")).expect("an id");
    assert_eq!(line.whose.as_deref(), Some(own.trim()), "who answers is known");
    assert_eq!(line.ask(&FarCall::Forget(third.at)), FarAnswer::Done);
    assert_eq!(site.rig.names(), [""; 0]);
    assert!(!site.dir().join("runs").join(RUN).exists() && !site.dir().join("clone").exists());
}

#[test]
fn a_command_with_a_worktree_leaves_its_work() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let tree = site.order("c", 1, "", &base).tree;
    let first = FarStart { tree, ..start(&site, "c", 1, "pwd; echo w > w.txt; exit 1") };
    line.start(&first);
    let left = line.end(&first.at);
    let worktree = site.dir().join("worktrees").join(RUN).join("c");
    assert_eq!(left.stdout.trim(), worktree.display().to_string());
    let tip = left.tip.expect("a commit");
    assert_eq!(site.rig.git(&site.dir().join("clone"), &["show", &format!("{tip}:w.txt")]), "w");
    assert_eq!(line.ask(&FarCall::Forget(first.at)), FarAnswer::Done);
    assert!(!worktree.exists());
}

#[test]
fn nothing_leads_out_of_the_directory_of_a_command() {
    let site = Site::new();
    let mut line = Line::open(&site.rig);
    for dir in ["..", "/", "a/../../b", "/tmp"] {
        let mut odd = start(&site, "c", 1, "true");
        let FarWork::Command(command) = &mut odd.work else { panic!("a command") };
        command.dir = dir.into();
        let answer = line.ask(&FarCall::Start(Box::new(odd)));
        assert_eq!(answer, FarAnswer::Refused(format!("invalid directory '{dir}'")));
    }
    let mut odd = start(&site, "c", 1, "true");
    odd.work = FarWork::Command(FarCommand { argv: vec!["no-such-program".into()], ..FarCommand::default() });
    let answer = line.ask(&FarCall::Start(Box::new(odd)));
    let cause = "'no-such-program' is not installed on this host".into();
    assert_eq!(answer, FarAnswer::Unfit { program: Some("no-such-program".into()), cause });
    wait_until("nothing was started", SOON, || site.rig.names().is_empty());
}

#[test]
fn a_command_goes_on_after_a_restart_of_the_machine_and_after_its_shim_was_killed() {
    for restarts in [true, false] {
        let site = Site::new();
        let mut line = Line::open(&site.rig);
        let first = start(&site, "c", 1, "exec sleep 600");
        line.start(&first);
        reboot(&site.rig);
        if restarts {
            rewrite_boot(&site.dir(), &["begun.json"]);
        }
        let mut line = Line::open(&site.rig);
        let second = start(&site, "c", 2, "echo done");
        let answer = line.ask(&FarCall::Start(Box::new(second.clone())));
        assert!(matches!(answer, FarAnswer::Unfit { .. }), "its end was not told: {answer:?}");
        let left = end(&mut line, &first);
        assert_eq!((left.exit, left.is_restarted), (None, restarts));
        line.start(&second);
        assert_eq!(end(&mut line, &second).stdout, "done\n");
    }
}
