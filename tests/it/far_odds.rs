//! Calls of a controller to a host where something is in the way: another run, a person who removes files, a supervisor
//! that dies.

use std::fs;

use swarm_store::runs::far::{FarAnswer, FarCall, FarResult, FarStart};

use crate::common::{SOON, wait_until};
use crate::far_calls::{Line, RUN, Site, is_done};

#[test]
fn a_branch_that_another_run_works_on_is_not_moved() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "echo c > c.txt; git add c.txt; git commit -q -m c; touch done; exec sleep 600";
    let first = site.order("a", 1, script, &base);
    line.start(&first);
    let tree = site.dir().join("worktrees").join(RUN).join("a");
    wait_until("it has worked", SOON, || tree.join("done").exists());
    let clone = site.dir().join("clone");
    let tips = || site.rig.git(&clone, &["for-each-ref", "--format=%(refname) %(objectname)", "refs/heads"]);
    let before = tips();

    let busy = |line: &mut Line, order: &FarStart, branch: &str| {
        let cause = format!("branch '{branch}' is in use by another run on this host");
        assert_eq!(line.ask(&FarCall::Start(Box::new(order.clone()))), FarAnswer::Busy(cause));
    };
    // Another run, with another base, uses the same name for its branch.
    let mut second = site.order("a", 1, "true", &base);
    second.at.run = "ffffffff".into();
    second.at.worker = "p.a-2".into();
    second.base = "other".into();
    busy(&mut line, &second, "arial/a");
    // The branch as a base.
    let third = FarStart { base: "arial/a".into(), branch: "arial/b".into(), leaf: "b".into(), ..second.clone() };
    busy(&mut line, &third, "arial/a");
    assert_eq!(tips(), before);

    assert_eq!(line.ask(&FarCall::Forget(second.at.clone())), FarAnswer::Done);
    assert_eq!(tips(), before);
    assert_eq!(line.ask(&FarCall::Stop(first.at.clone())), FarAnswer::Done);
    let end = line.end(&first.at);
    let tip = end.tip.expect("a commit");
    assert_eq!(site.rig.git(&clone, &["show", &format!("{tip}:c.txt")]), "c");
    assert_eq!(line.ask(&FarCall::Forget(first.at)), FarAnswer::Done);
    // Now it is free.
    line.start(&second);
    assert!(is_done(&line.end(&second.at)));
}

#[test]
fn an_attempt_ends_although_its_work_was_removed_there() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script =
        "echo said; echo c > c.txt; touch ../NAME.worked; until [ -e ../NAME.end ]; do sleep 0.01; done; exit 0";
    let orders = ["a", "b", "c", "d"].map(|job| site.order(job, 1, &script.replace("NAME", job), &base));
    let trees = site.dir().join("worktrees").join(RUN);
    for order in &orders {
        line.start(order);
    }
    for order in &orders {
        let mark = trees.join(format!("{}.worked", order.leaf));
        wait_until("it has worked", SOON, || mark.exists());
    }
    let ended = |line: &mut Line, order: &FarStart, cause: &str| {
        fs::write(trees.join(format!("{}.end", order.leaf)), "").expect("written");
        let end = line.end(&order.at);
        assert_eq!((end.tip.as_deref(), end.waits.as_deref()), (None, Some(cause)), "{end:?}");
        assert!(end.exit.is_some() && end.log.contains("said"), "{end:?}");
        assert_eq!(line.end(&order.at), end);
    };
    let [worked, one, two, three] = orders;
    let clone = site.dir().join("clone");
    fs::write(trees.join("a.end"), "").expect("written");
    let known = line.end(&worked.at);
    assert!(known.tip.is_some());
    fs::remove_dir_all(trees.join("b")).expect("removed");
    site.rig.git(&clone, &["update-ref", "-d", "refs/heads/arial/b"]);
    ended(&mut line, &one, "its branch with the worktree was removed on the host");
    fs::remove_dir_all(&clone).expect("removed");
    ended(&mut line, &two, "the clone was removed on the host");
    let lost = |cause: &str| FarResult { tip: None, waits: Some(cause.to_owned()), ..known.clone() };
    assert_eq!(line.end(&worked.at), lost("the clone was removed on the host"));
    // Another attempt has made it again.
    site.send(&mut line, &base);
    assert_eq!(line.end(&worked.at), lost("its work was removed on the host"));
    fs::write(trees.join("d.end"), "").expect("written");
    let end = line.end(&three.at);
    assert!(end.tip.is_none() && end.waits.is_some() && end.exit.is_some(), "{end:?}");
}

#[test]
fn a_start_that_may_have_been_done_is_not_refused() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let order = site.order("a", 1, "true", &base);
    // As a call leaves it that ended while it asked the supervisor.
    let dir = site.dir().join("runs").join(RUN).join("attempts/a.1");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("order.json"), "{}").expect("written");
    let missing = FarStart { tip: "1".repeat(40), ..order.clone() };
    let answer = line.ask(&FarCall::Start(Box::new(missing)));
    assert!(matches!(answer, FarAnswer::Unknown(_)), "{answer:?}");
    line.start(&order);
    assert!(is_done(&line.end(&order.at)));
}
