//! Work that the `shell` agent executes, without a sandbox. Agents may edit the workflow, so that work which is not that of
//! the start is executed only if a person agreed to exactly this work.

use swarm_actors::flow::rules::operator;
use swarm_actors::flow::rules::state::Reason;

use super::sidecar::Script;
use super::store::Open;

/// Maximum size of changed work in bytes; a person could not judge more.
pub const WORK_BYTES_MAX: usize = 32 << 10;

impl Open {
    /// Reports whether the `shell` agent may execute the work of a node as this role instance.
    pub fn may_execute(&self, node: &str, role: &str, work: &[String]) -> bool {
        let agreed = |script: &Script| script.agreed && script.role == role && script.work == work;
        self.sidecar.start.as_ref().is_none_or(|start| start.has(node, role, work))
            || self.sidecar.scripts.get(node).is_some_and(agreed)
    }

    /// Records changed work, to be shown to a person once the turn has ended.
    pub fn propose(&mut self, node: &str, role: &str, work: &[String]) {
        let script = Script { role: role.to_owned(), work: work.to_owned(), agreed: false };
        self.sidecar.scripts.insert(node.to_owned(), script);
    }

    /// Returns the changed work of a node that waits for a person to agree to it.
    pub fn proposed(&self, node: &str) -> Option<&Script> {
        let waits = self.flow.wait(node).is_some_and(|wait| wait.reason == Reason::AutonomousAbort.word());
        self.sidecar.scripts.get(node).filter(|script| waits && !script.agreed)
    }

    /// Agrees to the changed work of a node, which is then started again. Returns `false` if there is none.
    pub fn agree(&mut self, node: &str) -> bool {
        if self.proposed(node).is_none() || operator::resume(&mut self.flow, node).is_err() {
            return false;
        }
        self.sidecar.words.remove(node);
        self.sidecar.scripts.entry(node.to_owned()).and_modify(|script| script.agreed = true);
        true
    }

    /// Withdraws changed work, for a reason that is shown. The node still waits. Returns `false` if there is none.
    pub fn withdraw(&mut self, node: &str, why: &str) -> bool {
        if self.proposed(node).is_none() {
            return false;
        }
        self.sidecar.scripts.remove(node);
        self.sidecar.words.insert(node.to_owned(), why.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use swarm_actors::flow::rules::operator::Denied;

    use super::super::make::Make;
    use super::super::place::Workspace;
    use super::super::sidecar::Sidecar;
    use super::super::store::{FlowFiles, StoreError};
    use super::*;

    const NODE: &str = "owner-intake";

    fn made() -> (tempfile::TempDir, FlowFiles) {
        let dir = tempfile::tempdir().expect("a directory");
        let space = Workspace::find(Some(dir.path()), Path::new("/")).expect("is there");
        let workflow =
            "workflow:\n  name: x\n  nodes:\n    - {id: owner-intake, role: owner, work: [make]}\n  edges: []\n";
        let make = Make { project: "demo", workflow, sidecar: Sidecar::default(), consent: None };
        let files = space.make(&make).expect("made");
        (dir, files)
    }

    fn change<T>(files: &FlowFiles, change: impl Fn(&mut Open) -> T) -> T {
        files.update(|open| Ok::<_, StoreError>(change(open))).expect("changed")
    }

    #[test]
    fn changed_work_is_executed_once_a_person_agreed_to_it() {
        let (_dir, files) = made();
        let work = |text: &str| vec![text.to_owned()];
        change(&files, |open| open.sidecar.start = Some(open.graph.start()));
        let may = |role: &str, text: &str| files.open().expect("opens").may_execute(NODE, role, &work(text));
        assert!(may("owner", "make") && !may("owner", "rm") && !may("dev", "make"));
        change(&files, |open| open.propose(NODE, "owner", &work("rm")));
        assert!(!change(&files, |open| open.agree(NODE)), "its turn goes on");
        let abort = |open: &mut Open| operator::abort(&mut open.flow, &open.graph, NODE);
        assert_eq!(change(&files, abort), Ok::<_, Denied>(()));
        let open = files.open().expect("opens");
        assert_eq!(open.proposed(NODE).map(|script| &script.work), Some(&work("rm")));
        assert!(!may("owner", "rm"));
        assert!(change(&files, |open| open.agree(NODE)));
        assert!(may("owner", "rm") && !may("dev", "rm") && !may("owner", "rm -r"), "exactly this work");
        assert!(files.open().expect("opens").flow.is_running(NODE));
        assert!(!change(&files, |open| open.agree(NODE)), "there is nothing left to agree to");
        change(&files, |open| open.propose(NODE, "owner", &work("rm -r")));
        assert_eq!(change(&files, abort), Ok::<_, Denied>(()));
        assert!(change(&files, |open| open.withdraw(NODE, "no")));
        let open = files.open().expect("opens");
        assert_eq!((open.proposed(NODE), open.sidecar.words[NODE].as_str()), (None, "no"));
        assert!(open.flow.wait(NODE).is_some() && !may("owner", "rm -r"));
    }
}
