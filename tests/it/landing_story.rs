//! Landing as one story: three workers edit the same repository, two of them the same line, and one breaks the tests;
//! then the same with all processes killed in the middle.

use std::fs;

use crate::common::{SOON, wait_until};
use crate::crash::kill_keepers;
use crate::landing::{CHECK, Site};

/// Processes to kill in the middle: supervisor and guard, with the processes that they run.
#[derive(Clone, Copy, PartialEq)]
enum Killing {
    Nothing,
    /// During the work, during a verification, and during a resolution.
    Everything,
}

struct Story {
    site: Site,
    killing: Killing,
}

impl Story {
    fn begin(killing: Killing) -> Self {
        let site = Site::new();
        let (verify, resolver) =
            (gated(&site, "verify", CHECK), gated(&site, "resolve", "printf 'one\\nleft\\nright\\n' > file"));
        let config = format!("[merge]\nverify = '{verify}'\nresolver = '{resolver}'\n");
        site.write("swarm.toml", &config);
        site.git(&["add", "swarm.toml"]);
        site.git(&["commit", "-q", "-m", "config", "--", "swarm.toml"]);
        let story = Self { site, killing };
        for (name, does) in
            [("left", "echo left >> file"), ("right", "echo right >> file"), ("breaks", "echo ill > health")]
        {
            let script = format!("{does}; {}", gate(&story.site, "work"));
            story.site.swarm(&["spawn", "--name", name, "--worktree", "--merge", "--", "sh", "-c", &script]).ok();
        }
        story
    }

    /// Opens this gate, after killing the processes if requested.
    fn pass(&self, what: &str) {
        let at_gate = || self.site.rig.path(&format!("{what}.began")).exists();
        wait_until("something waits there", SOON, at_gate);
        if self.killing == Killing::Everything {
            kill_keepers(&self.site.rig);
        }
        fs::write(self.site.rig.path(&format!("{what}.go")), "").expect("written");
        // Any command restarts them, if no ending worker does.
        self.site.swarm(&["merge", "ls"]).ok();
    }

    fn end(&self) {
        let site = &self.site;
        let said = site.swarm(&["merge", "wait", "left", "right", "breaks", "--timeout", "25"]);
        assert_eq!(said.code, Some(1), "one item is rejected: {said:?}");
        let states = ["left", "right", "breaks"].map(|name| site.state(name));
        assert_eq!(states, ["landed", "landed", "rejected"], "{}", site.swarm(&["merge", "log"]).out);
        assert_eq!(fs::read_to_string(site.repo.join("file")).expect("there"), "one\nleft\nright\n");
        assert_eq!(fs::read_to_string(site.repo.join("health")).expect("there"), "good\n");
        assert_eq!(site.git(&["log", "--first-parent", "--merges", "--format=%s", "main"]).lines().count(), 2);
        site.assert_untouched();
        let log = site.swarm(&["merge", "log"]).ok();
        let rows: Vec<Vec<&str>> = log.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let mut told: Vec<(&str, &str)> = rows.iter().map(|row| (row[3], row[4])).collect();
        told.sort_unstable();
        assert_eq!(told, [("breaks", "rejected"), ("left", "landed"), ("right", "landed")]);
        let why = site.reason("breaks");
        let output = why.split_once("its output is in ").map(|(_, path)| path.to_owned()).expect("it names its log");
        assert_eq!(fs::read_to_string(output).expect("the log"), "verify looks\n");
    }
}

/// Reports its arrival and waits until the gate opens.
fn gate(site: &Site, what: &str) -> String {
    let path = |end: &str| site.rig.path(&format!("{what}.{end}")).display().to_string();
    format!("touch {}; while test ! -e {}; do sleep 0.05; done", path("began"), path("go"))
}

/// User command that waits at its own gate.
fn gated(site: &Site, what: &str, does: &str) -> String {
    site.script(what, &format!("echo {what} looks\n{}\n{does}", gate(site, what)))
}

#[test]
fn good_work_lands_broken_work_is_rejected_and_the_conflict_is_resolved() {
    for killing in [Killing::Nothing, Killing::Everything] {
        let story = Story::begin(killing);
        ["work", "verify", "resolve"].iter().for_each(|what| story.pass(what));
        story.end();
    }
}
