//! Calls of a controller to a host where something is in the way: another run, a person who removes files, a supervisor
//! that dies.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use swarm_store::runs::far::{FarAnswer, FarCall, FarClone, FarFile, FarResult, FarStart, FarWork};

use crate::common::{SOON, wait_until};
use crate::far_calls::{Line, RUN, Site, is_done, with_tree};
use crate::recover::{reboot, rewrite_boot};

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
        let answer = line.ask(&FarCall::Start(Box::new(order.clone())));
        assert_eq!(answer, FarAnswer::Unfit { program: None, cause }, "the host may start others");
    };
    // Another run, with another base, uses the same name for its branch.
    let mut second = site.order("a", 1, "true", &base);
    second.at.run = "ffffffff".into();
    second.at.worker = "p.a-2".into();
    second = with_tree(&second, |tree| tree.base = "other".into());
    busy(&mut line, &second, "arial/a");
    // The branch as a base.
    let third = with_tree(&second, |tree| {
        (tree.base, tree.branch, tree.leaf) = ("arial/a".into(), "arial/b".into(), "b".into());
    });
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
        let mark = trees.join(format!("{}.worked", order.at.job));
        wait_until("it has worked", SOON, || mark.exists());
    }
    let ended = |line: &mut Line, order: &FarStart, cause: &str| {
        fs::write(trees.join(format!("{}.end", order.at.job)), "").expect("written");
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
fn a_clone_that_was_removed_is_made_again_and_what_a_worktree_has_is_put_aside() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "echo a > a.txt; touch ../worked; exec sleep 600";
    let first = site.order("a", 1, script, &base);
    line.start(&first);
    let trees = site.dir().join("worktrees").join(RUN);
    wait_until("it has worked", SOON, || trees.join("worked").exists());
    fs::remove_dir_all(site.dir().join("clone")).expect("removed");
    assert_eq!(line.ask(&FarCall::Stop(first.at.clone())), FarAnswer::Done);
    assert_eq!(line.end(&first.at).waits.as_deref(), Some("the clone was removed on the host"));
    let second = site.order("a", 2, "test ! -e a.txt; echo b > b.txt", &base);
    let answer = line.ask(&FarCall::Start(Box::new(second.clone())));
    assert!(matches!(answer, FarAnswer::Gone(_)), "{answer:?}");
    site.send(&mut line, &base);
    line.start(&second);
    assert!(is_done(&line.end(&second.at)));
    let kept = site.dir().join("aside").join(RUN).join("a.1/a.txt");
    assert_eq!(fs::read_to_string(&kept).expect("it is kept"), "a\n");
    assert_eq!(line.ask(&FarCall::Forget(second.at)), FarAnswer::Done);
    assert!(kept.exists() && site.rig.names() == [""; 0]);
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
    let missing = with_tree(&order, |tree| tree.tip = "1".repeat(40));
    let answer = line.ask(&FarCall::Start(Box::new(missing.clone())));
    assert_eq!(answer, FarAnswer::Gone(format!("the clone does not have the commit {}", "1".repeat(40))));
    // The host lacks a program now.
    let mut lacking = order.clone();
    let FarWork::Agent { order: agents, .. } = &mut lacking.work else { panic!("an agent") };
    agents.agent.kind = swarm_agents::Kind::Command;
    agents.agent.config.command = Some(vec!["no-such-agent".into()]);
    let answer = line.ask(&FarCall::Start(Box::new(lacking)));
    assert!(matches!(answer, FarAnswer::Unknown(_)), "{answer:?}");
    line.start(&order);
    assert!(is_done(&line.end(&order.at)));
}

#[test]
fn a_restart_of_the_machine_ends_an_attempt_and_the_next_one_goes_on_in_its_worktree() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let first = site.order("a", 1, "echo a > a.txt; touch ../worked; exec sleep 600", &base);
    line.start(&first);
    let trees = site.dir().join("worktrees").join(RUN);
    wait_until("it has worked", SOON, || trees.join("worked").exists());
    let inode = || fs::metadata(trees.join("a")).expect("a worktree").ino();
    let before = inode();
    reboot(&site.rig);
    rewrite_boot(&site.dir(), &["begun.json"]);
    let mut line = Line::open(&site.rig);
    let end = line.end(&first.at);
    assert_eq!((end.is_restarted, &end.exit, &end.result), (true, &None, &None));
    let tip = end.tip.clone().expect("a commit");
    let clone = site.dir().join("clone");
    assert_eq!(site.rig.git(&clone, &["show", &format!("{tip}:a.txt")]), "a");
    assert_eq!(line.end(&first.at), end);
    let second = site.order("a", 2, "test -s a.txt", &tip);
    line.start(&second);
    let end = line.end(&second.at);
    assert!(is_done(&end) && !end.is_restarted, "{end:?}");
    assert_eq!(inode(), before);
}

#[test]
fn a_worker_that_a_person_has_started_again_is_left_alone() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "[ ! -e ../worked ] || { echo b > later.txt; touch ../again; exec sleep 600; }; \
                  echo a > a.txt; git add a.txt; git commit -q -m a; touch ../worked; exec sleep 600";
    let first = site.order("a", 1, script, &base);
    line.start(&first);
    let trees = site.dir().join("worktrees").join(RUN);
    wait_until("it has worked", SOON, || trees.join("worked").exists());
    site.rig.swarm(&["kill", "p.a"]).ok();
    let again = site.rig.swarm(&["respawn", "p.a"]).ok();
    wait_until("the later life has worked", SOON, || trees.join("again").exists());
    let end = line.end(&first.at);
    let waits = "worker 'p.a' was started again on the host before its work was taken";
    assert_eq!(end.waits.as_deref(), Some(waits), "{end:?}");
    let clone = site.dir().join("clone");
    let tip = end.tip.clone().expect("a commit");
    assert_eq!(site.rig.git(&clone, &["show", "--format=%s", "--name-only", &tip]), "a\n\na.txt");
    assert_eq!(line.end(&first.at), end);

    let stays = "worker 'p.a' was started again on the host, and stays there with its worktree";
    assert_eq!(line.ask(&FarCall::Stop(first.at.clone())), FarAnswer::Done);
    assert_eq!(line.ask(&FarCall::Forget(first.at.clone())), FarAnswer::Refused(stays.into()));
    let lives = || again.contains(&format!("(pid: {})", site.rig.pid("p.a")));
    assert!(lives() && site.rig.swarm(&["ls", "--status", "running"]).ok().contains("p.a"), "{again}");
    // Also once that life has ended.
    site.rig.swarm(&["kill", "p.a"]).ok();
    assert_eq!(line.ask(&FarCall::Forget(first.at.clone())), FarAnswer::Refused(stays.into()));
    assert_eq!(fs::read_to_string(trees.join("a/later.txt")).expect("it is there"), "b\n");
    assert!(site.rig.names() == ["p.a"] && site.references().contains(&"refs/heads/arial/a".to_owned()));

    site.rig.git(&trees.join("a"), &["commit", "-q", "--allow-empty", "-m", "later"]);
    let later = site.rig.git(&clone, &["rev-parse", "arial/a"]);
    let second = site.order("a", 2, "true", &base);
    line.start(&second);
    assert!(is_done(&line.end(&second.at)));
    assert_eq!(line.ask(&FarCall::Forget(second.at)), FarAnswer::Done);
    let kept = |name: &str| site.references().iter().any(|known| known.starts_with(name));
    assert!(kept("refs/swarm/trash/") && kept(&format!("refs/swarm/refused/{later}")), "what it has left is lost");
    assert_eq!(site.rig.names(), [""; 0]);
}

#[test]
fn a_prompt_may_be_longer_than_a_line() {
    let site = Site::new();
    let base = site.base();
    let mut sender = Line::open(&site.rig);
    site.send(&mut sender, &base);
    // The first call of a connection.
    let mut line = Line::open(&site.rig);
    let script = format!("# {}\necho long > long.txt", "ä\u{1}\"".repeat(400_000));
    let order = site.order("a", 1, &script, &base);
    line.start(&order);
    line.end(&order.at);
    let prompt = site.dir().join("runs").join(RUN).join("attempts/a.1/prompt.md");
    assert_eq!(fs::read_to_string(prompt).expect("read"), script);
}

#[test]
fn ignored_files_are_in_the_worktree_before_the_agent_and_in_no_commit() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    site.send(&mut line, &base);
    let script = "cat .env deep/b.local; echo '!.env' > .gitignore; echo one > one.txt";
    let order = site.order("a", 1, script, &base);
    let file = |path: &str, content: &[u8]| FarFile::new(path.to_owned(), 0o600, content.to_vec());
    let files = vec![file(".env", b"SECRET=1\n"), file("deep/b.local", b"\xffb\n")];
    let order = with_tree(&order, |tree| tree.include = files);
    line.start(&order);
    let clone = site.dir().join("clone");
    assert_eq!(fs::read_dir(&clone).expect("read").count(), 1, "the clone still has them");
    let end = line.end(&order.at);
    assert!(is_done(&end) && end.log.contains("SECRET=1"), "{end:?}");
    assert_eq!(end.left_out, [".env"]);
    let tip = end.tip.expect("a commit");
    assert_eq!(site.rig.git(&clone, &["diff", "--name-only", &base, &tip]), ".gitignore\none.txt");
    // As a start that was killed leaves it.
    fs::write(clone.join(".env"), "SECRET=1\n").expect("written");
    assert_eq!(line.ask(&FarCall::Forget(order.at.clone())), FarAnswer::Done);
    assert!(!site.dir().join("worktrees").join(RUN).exists() && !clone.join(".env").exists());

    let odd = with_tree(&site.order("b", 1, "true", &base), |tree| tree.include = vec![file("../b.txt", b"")]);
    let (program, cause) = (None, "'../b.txt' is not a path of an ignored file".into());
    let unfit = FarAnswer::Unfit { program, cause };
    assert_eq!(line.ask(&FarCall::Start(Box::new(odd))), unfit, "the host may start others");
}

#[test]
fn a_clone_that_no_run_has_used_for_long_is_removed_unless_it_has_work() {
    let site = Site::new();
    let base = site.base();
    let mut line = Line::open(&site.rig);
    let (unused, saved) = ("1111111111111111", "2222222222222222");
    for repository in [unused, saved] {
        let clone = FarClone { repository: repository.to_owned(), ..site.clone() };
        assert_eq!(line.ask(&FarCall::Clone { clone, format: "sha1".into() }), FarAnswer::Done);
    }
    let dir = |repository: &str| site.dir().with_file_name(repository);
    let clone = dir(saved).join("clone");
    let tree = site.rig.git(&clone, &["write-tree"]);
    let commit =
        site.rig.git(&clone, &["-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m", "x", tree.trim()]);
    site.rig.git(&clone, &["update-ref", "refs/swarm/trash/x", commit.trim()]);
    site.send(&mut line, &base);
    let order = site.order("a", 1, "echo a > a.txt", &base);
    line.start(&order);
    line.end(&order.at);
    let used_before = |days: u64| {
        let at = std::time::SystemTime::now() - std::time::Duration::from_hours(days * 24);
        for dir in [dir(unused), dir(saved), site.dir()] {
            fs::File::open(dir).and_then(|dir| dir.set_modified(at)).expect("set");
        }
    };
    used_before(29);
    assert_eq!(line.ask(&FarCall::Forget(site.at("nobody", 1))), FarAnswer::Done);
    assert!(dir(unused).exists());
    used_before(31);
    assert_eq!(line.ask(&FarCall::Forget(site.at("nobody", 1))), FarAnswer::Done);
    assert!(!dir(unused).exists() && dir(saved).exists(), "a save is work");
    assert!(site.dir().join("clone").exists(), "it has an attempt");
    assert_eq!(line.ask(&FarCall::Forget(order.at)), FarAnswer::Done);
    // It is made again when it is needed.
    let clone = FarClone { repository: unused.to_owned(), ..site.clone() };
    assert_eq!(line.ask(&FarCall::Clone { clone, format: "sha1".into() }), FarAnswer::Done);
}
