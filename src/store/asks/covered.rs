//! Open requests that the rules allow now.

use std::io;
use std::path::PathBuf;

use swarm_model::asks::judge::Rule;
use swarm_model::asks::rules::AskRule;
use swarm_model::asks::{Ask, AskState};
use swarm_sys::paths::Paths;

use super::present;
use super::rules::rule_with;
use crate::records::started_in;
use crate::runs::order;
use crate::views::load_one;

/// Returns the open requests that the rules allow, by number. If the directory or the run of an agent is not known, its
/// requests stay open.
///
/// # Errors
/// Fails if the requests cannot be read.
pub fn allowed(paths: &Paths) -> io::Result<Vec<Ask>> {
    let open = present::unfinished(paths)?.into_iter().filter(|one| one.state() == AskState::Open);
    Ok(open.map(|one| one.ask).filter(|ask| is_allowed(paths, ask)).collect())
}

fn is_allowed(paths: &Paths, ask: &Ask) -> bool {
    let Some((dir, recorded)) = place(paths, ask) else { return false };
    rule_with(paths, &dir, &recorded, &ask.wish) == Ok(Rule::Allow)
}

/// Returns the directory whose rules apply to an agent, and the rules that its run has recorded.
fn place(paths: &Paths, ask: &Ask) -> Option<(PathBuf, Vec<AskRule>)> {
    let worker = load_one(paths, &ask.who.worker).ok()??;
    if let Some(run) = &ask.who.run {
        let order = order::read_order(order::attempt_of(&worker.row.cmd)?).ok()?;
        let is_its = order.run == *run && Some(&order.job) == ask.who.job.as_ref();
        return is_its.then(|| (ask.cwd.clone().into(), order.rules));
    }
    // The agent may have moved to another directory since.
    let started = started_in(&paths.workers().join(worker.dir?))?;
    Some((started.into(), Vec::new()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use swarm_model::asks::rules::Effect;
    use swarm_model::asks::{AskWish, Asker, Draft, Waits};

    use super::super::rules;
    use super::*;
    use crate::asks::Asks;

    #[test]
    fn a_rule_of_a_run_keeps_its_requests_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let attempt = dir.path().join("a.1");
        fs::create_dir_all(&attempt).expect("made");
        fs::create_dir_all(paths.root()).expect("made");
        let rows = json!({"schema_version": 1, "workers": [{
            "name": "p.a", "status": "running", "cmd": ["swarm", order::VERB, attempt], "started": "2026-01-02T00:00:00.000000",
            "cwd": "/", "env": {}, "tags": [], "tmux": null, "worktree": null, "pid": null, "metadata": {},
        }]});
        fs::write(paths.state(), rows.to_string()).expect("written");
        let ask = |worker: &str, job: &str, line: &str| {
            let run = Some("r".to_owned());
            let who = Asker { worker: worker.to_owned(), run, job: Some(job.to_owned()), ..Asker::default() };
            let draft = Draft {
                key: format!("run/r/{job}/1/{line}"),
                who,
                tool: "Bash".to_owned(),
                wish: AskWish::Command { command: line.to_owned() },
                cwd: dir.path().to_string_lossy().into_owned(),
                waits: Waits::Parked,
            };
            Asks::new(&paths).ask(&draft).expect("asked").number
        };
        let make = ask("p.a", "a", "make");
        // A redirection, a worker that is not known, and another workstream than that of the order.
        for (worker, job, line) in [("p.a", "a", "make > log"), ("p.b", "a", "make all"), ("p.a", "b", "make none")] {
            ask(worker, job, line);
        }
        let open = || allowed(&paths).expect("read").iter().map(|ask| ask.number).collect::<Vec<_>>();
        let ordered = |run: &str, asks: &[AskRule]| {
            let agent = json!({"name": "mine", "kind": "acp", "config": {"command": ["x"], "capabilities": null,
                "events": "acp", "arguments": [], "env": {}, "model": null}});
            let order = json!({"run": run, "job": "a", "attempt": 1, "root": null, "agent": agent, "events": "", "log": "",
                "context": "", "session": null, "fresh_id": "f", "rules": asks});
            fs::write(attempt.join(order::ORDER), order.to_string()).expect("written");
        };
        let rule = |effect: Effect| AskRule::new(effect, "make", None).expect("a rule");
        ordered("r", &[]);
        assert_eq!(open(), [0; 0], "there is no rule yet");
        rules::add(&paths, &[rule(Effect::Allow)], None).expect("added");
        assert_eq!(open(), [make]);
        for effect in [Effect::Deny, Effect::Ask] {
            ordered("r", &[rule(effect)]);
            assert_eq!(open(), [0; 0], "the run has begun with a rule to {}", effect.word());
        }
        ordered("other", &[]);
        assert_eq!(open(), [0; 0], "the worker is one of another run now");
        fs::remove_file(attempt.join(order::ORDER)).expect("removed");
        assert_eq!(open(), [0; 0], "the rules of the run are not known");
    }
}
