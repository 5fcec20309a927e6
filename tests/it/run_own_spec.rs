//! Work that changes the spec of its own workstream, as agents do that tick the boxes of a checklist.

use crate::run::Site;

/// Script that ticks the box of spec `a`, besides its work.
const TICKS: &str = "echo a > a.txt; sed -i 's/^- \\[ \\] do/- [x] do/' specs/a.md";

/// A repository in which `a` has landed and ticked its box, and `b` has failed.
fn ticked(strategy: &str) -> Site {
    let site = Site::new();
    site.write("swarm.toml", &format!("[merge]\nstrategy = '{strategy}'\n"));
    let text = format!("---\nadapter: shell\n---\n# Spec a\n\n- [ ] do it\n\n```sh\n{TICKS}\n```\n");
    site.write("specs/a.md", &text);
    site.spec("b", "retries: 0\n", "exit 1");
    site.commit();
    site.plan();
    assert_eq!(site.swarm(&["run"]).code, Some(1));
    assert!(site.landed("specs/a.md").contains("- [x] do it") && site.landed("a.txt") == "a");
    site
}

#[test]
fn a_workstream_that_ticks_a_box_of_its_own_spec_stays_done() {
    for strategy in ["merge", "squash", "rebase"] {
        let site = ticked(strategy);
        site.rig.trust(&site.repo);
        site.spec("b", "retries: 0\n", "echo b > b.txt");
        let said = site.swarm(&["run", "--retry-failed"]);
        assert!(said.code == Some(0) && !said.err.contains("spec 'a'"), "{strategy}: {said:?}");
        site.spec("c", "", "echo c > c.txt");
        let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
        assert!(said.err.contains("note: spec 'a' was changed by its own work ("), "{strategy}: {said:?}");
        assert_eq!(site.row("a")["status"], "done", "{strategy}");
        site.rig.trust(&site.repo);
        let said = site.swarm(&["run"]);
        assert!(said.code == Some(0) && site.landed("c.txt") == "c", "{strategy}: {said:?}");
        assert!(!said.err.contains("spec 'a'") && !said.out.contains("a: started"), "{strategy}: {said:?}");
        // The note is about a change, so it comes once.
        let said = site.swarm(&["plan", "--specs", "specs", "-y"]);
        assert!(!said.err.contains("changed by its own work"), "{strategy}: {said:?}");
    }
}

#[test]
fn a_person_who_edits_a_ticked_spec_asks_for_more() {
    let site = ticked("merge");
    let text = site.landed("specs/a.md") + "\n- [ ] more\n";
    site.write("specs/a.md", &text);
    let said = site.swarm(&["run"]);
    assert!(said.err.contains("spec 'a' changed after it was done"), "{said:?}");
    site.plan();
    assert_eq!(site.row("a")["status"], "pending");
}
