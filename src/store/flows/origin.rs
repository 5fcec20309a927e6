//! Where the records of a flow come from. Records that came with a repository were written by whoever made the commit, and
//! nobody here agreed to what they permit.

use std::io;

use swarm_git::repository::{brought, tracked};
use swarm_model::Caller;

use super::place::HOME;
use super::store::{FLOW, FlowFiles, SIDECAR, StoreError, WORKFLOW};

impl FlowFiles {
    /// Checks that none of the records that decide what the flow does came with a repository: as a tracked file, in a
    /// submodule, or behind a tracked symbolic link. What was handed over may be tracked.
    ///
    /// # Errors
    /// Returns [`StoreError::Brought`] otherwise. Also fails if git cannot tell.
    pub fn check_origin(&self, caller: &Caller) -> Result<(), StoreError> {
        let unknown = |cause: &str| {
            let cause = format!("cannot find out whether git tracks {}: {cause}", self.dir().display());
            StoreError::System(io::Error::other(cause))
        };
        let entries = tracked(self.root(), HOME, caller).map_err(|cause| unknown(&cause))?;
        let below = self.dir().strip_prefix(self.root()).ok().and_then(|below| below.to_str());
        let below = below.ok_or_else(|| unknown("its path is not valid UTF-8"))?;
        let workflow = format!("record/{WORKFLOW}");
        for record in [FLOW, SIDECAR, &workflow, "turns"] {
            if self.dir().join(record).symlink_metadata().is_ok()
                && let Some(entry) = brought(&entries, &format!("{below}/{record}"))
            {
                let path = self.root().join(entry);
                let whole = if path.starts_with(self.dir()) { self.dir().to_owned() } else { path.clone() };
                return Err(StoreError::Brought { path, whole });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::super::make::Make;
    use super::super::place::Workspace;
    use super::super::sidecar::Sidecar;
    use super::*;

    fn git(dir: &Path, words: &[&str]) {
        let mut command = Command::new("git");
        command.arg("-C").arg(dir).args(["-c", "user.name=x", "-c", "user.email=x"]).args(words);
        assert!(command.env("GIT_CONFIG_GLOBAL", "/dev/null").status().expect("git runs").success(), "{words:?}");
    }

    #[test]
    fn a_flow_is_ones_own_unless_git_tracks_one_of_its_records() {
        let root = tempfile::tempdir().expect("a directory");
        let path = std::env::var("PATH").expect("set");
        let caller = Caller {
            cwd: "/".to_owned(),
            environment: vec![("PATH".to_owned(), path)].into(),
            umask: 0o022,
            ..Caller::default()
        };
        let space = Workspace::find(Some(root.path()), root.path()).expect("there");
        let workflow =
            "workflow:\n  name: x\n  nodes:\n    - {id: owner-intake, role: owner, work: [x]}\n  edges: []\n";
        let make = Make { project: "p", workflow, sidecar: Sidecar::default(), consent: None };
        let files = space.make(&make).expect("made");
        files.check_origin(&caller).expect("there is no repository");
        git(root.path(), &["init", "-q"]);
        files.check_origin(&caller).expect("not tracked");
        let brings = || match files.check_origin(&caller) {
            Err(StoreError::Brought { path, .. }) => {
                path.strip_prefix(space.root()).expect("below").display().to_string()
            }
            other => panic!("{other:?}"),
        };
        let dir = format!(".a-society/state/p/{}", files.id().flow);
        fs::write(files.dir().join("record/plan.md"), "x").expect("written");
        git(root.path(), &["add", &format!("{dir}/record/plan.md")]);
        files.check_origin(&caller).expect("what was handed over may be tracked");
        for record in ["record/workflow.yaml", "swarm.json", "flow.json"] {
            git(root.path(), &["add", &format!("{dir}/{record}")]);
            assert_eq!(brings(), format!("{dir}/{record}"));
        }
        git(root.path(), &["rm", "-q", "-r", "--cached", ".a-society"]);
        let state = root.path().join(".a-society/state");
        git(&state, &["init", "-q"]);
        git(&state, &["commit", "-q", "--allow-empty", "-m", "sub"]);
        git(root.path(), &["add", ".a-society"]);
        assert_eq!(brings(), ".a-society/state", "a submodule");
    }
}
