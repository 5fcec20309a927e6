//! Calls of a controller to a host where agents use the branches of the clone as they like.

use std::fs;

use swarm_store::runs::far::{FarAnswer, FarCall};

use crate::common::{SOON, wait_until};
use crate::far_calls::{Line, RUN, Site, is_done};

#[test]
fn an_agent_on_the_base_branch_blocks_no_start() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let go = site.rig.path("go");
    let script = format!(
        "git switch -q main; echo x > x.txt; git add x.txt; git commit -q -m x; echo y > y.txt; touch done; until [ -e {} ]; \
         do sleep 0.01; done",
        go.display()
    );
    let astray = site.order("a", 1, &script, &base);
    line.start(&astray);
    let tree = site.dir().join("worktrees").join(RUN).join("a");
    wait_until("it is on the base", SOON, || tree.join("done").exists());
    let made = site.rig.git(&tree, &["rev-parse", "HEAD"]);

    // The base has gone on here.
    site.rig.git(&site.rig.path("repo"), &["commit", "-q", "--allow-empty", "-m", "next"]);
    let next = site.base();
    site.send(&mut line, &next);
    let other = site.order("b", 1, "test $(git rev-parse main) = $(git rev-parse HEAD)", &next);
    line.start(&other);
    assert!(is_done(&line.end(&other.at)));
    let clone = site.dir().join("clone");
    assert_eq!(site.rig.git(&clone, &["rev-parse", "main"]), next);
    assert!(site.references().contains(&format!("refs/swarm/stray/{made}")), "nothing names its commit");

    fs::write(&go, "").expect("written");
    let end = line.end(&astray.at);
    let also = end.also.expect("a save");
    assert_eq!(site.rig.git(&clone, &["show", &format!("{also}:y.txt")]), "y");
    site.rig.git(&clone, &["merge-base", "--is-ancestor", &made, &also]);
    assert_eq!(end.strays, [""; 0], "the save has it");
    assert!(end.waits.is_some_and(|cause| cause.contains("instead of 'arial/a'")), "it is no work of the job");

    let again = site.order("a", 2, "git switch -q main && git commit -q --allow-empty -m more", &base);
    line.start(&again);
    let end = line.end(&again.at);
    assert!(end.waits.is_some_and(|cause| cause.contains("'main'")));
    // Its own worktree has the base checked out.
    let last = site.order("a", 3, "echo z > z.txt", &base);
    line.start(&last);
    assert!(is_done(&line.end(&last.at)));
    for order in [last, other] {
        assert_eq!(line.ask(&FarCall::Forget(order.at)), FarAnswer::Done);
    }
    let left: Vec<String> = site.references().into_iter().filter(|name| !name.contains("/trash/")).collect();
    assert_eq!(left, ["refs/heads/main"]);
    assert_eq!(site.rig.git(&clone, &["rev-parse", "main"]), next);
}

#[test]
fn commits_on_the_base_branch_are_answered_and_taken_off_it() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "git switch -q main; git commit -q --allow-empty -m x; git switch -q arial/a; echo w > w.txt; echo i > i.o; \
                  echo '*.o' > .gitignore";
    let order = site.order("a", 1, script, &base);
    line.start(&order);
    let end = line.end(&order.at);
    assert!(is_done(&end) && end.waits.is_none(), "{end:?}");
    assert_eq!(end.ignored, ["i.o"]);
    let clone = site.dir().join("clone");
    let made = site.rig.git(&clone, &["rev-parse", "main"]);
    assert_ne!(made, base);
    assert_eq!(end.strays, std::slice::from_ref(&made));
    assert!(site.references().contains(&format!("refs/swarm/done/{made}")));
    assert_eq!(line.end(&order.at), end);
    // Another job, whose agent did not make it.
    let other = site.order("b", 1, "true", &base);
    line.start(&other);
    assert_eq!(line.end(&other.at).strays, [""; 0]);
    for order in [order, other] {
        assert_eq!(line.ask(&FarCall::Forget(order.at)), FarAnswer::Done);
    }
    assert_eq!(site.references(), ["refs/heads/main"]);
    assert_eq!(site.rig.git(&clone, &["rev-parse", "main"]), base);
}
