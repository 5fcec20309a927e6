//! `swarm run --on`: settings files of agents in the repository, and what is said about work that has no worker here.

use std::fs;

use crate::run_on::Fleet;

#[test]
fn agents_that_would_load_settings_on_another_host_are_refused_before_anything_starts() {
    let fleet = Fleet::new(&["a"]);
    let site = &fleet.site;
    site.write("opencode.json", "{}\n");
    for (id, adapter) in [("m", "opencode"), ("n", "claude"), ("o", "shell")] {
        site.write(&format!("specs/{id}.md"), &format!("---\nadapter: {adapter}\n---\n# {id}\n\n```sh\ntrue\n```\n"));
    }
    fleet.plan();
    let cause = "workstream 'm': opencode would load opencode.json of main, which counts on no other host";
    for words in [&["--on", "a"][..], &["--on", "a", "--dry-run"]] {
        fleet.run(words).refused(1, cause);
    }
    assert!(!site.repo.join(".arial/events.jsonl").exists() && fleet.host("a").names().is_empty());
    // The others are not asked about.
    fs::remove_file(site.repo.join("specs/m.md")).expect("removed");
    fleet.plan();
    let said = fleet.run(&["--on", "a", "--dry-run"]);
    assert!(said.code == Some(0) && !said.err.contains("would load"), "{said:?}");
}

#[test]
fn work_of_another_host_is_reviewed_and_landed_by_its_branch() {
    let fleet = Fleet::new(&["a"]);
    fleet.site.spec("m", "", "echo m > m.txt");
    fleet.plan();
    let said = fleet.run(&["--on", "a", "--no-merge"]);
    let hint = "review with 'git diff main...arial/m', land with 'swarm merge add arial/m'";
    assert!(said.code == Some(0) && said.err.contains(hint), "{said:?}");
    assert!(fleet.site.git(&["diff", "--name-only", "main...arial/m"]).contains("m.txt"));
    assert!(fleet.run(&["status"]).ok().contains("swarm merge add arial/m"));
    let add = fleet.site.swarm(&["merge", "add", "arial/m", "--base", "main", "--verify", "true"]);
    assert_eq!(add.code, Some(0), "{add:?}");
    fleet.site.swarm(&["merge", "wait", "arial/m", "--timeout", "25"]).ok();
    assert_eq!(fleet.site.landed("m.txt"), "m");
}
