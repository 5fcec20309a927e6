//! Processes of a worker whose shim was killed. Their ancestors do not lead to the worker any more, but they are in its
//! session, unless they have left it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use swarm_ports::LeaseFacts;
use swarm_store::leases;
use swarm_store::records::DiskRecords;
use swarm_sys::files::list;
use swarm_sys::paths::Paths;
use swarm_sys::procfs;

/// Variable with the launch token, which every command of a worker is executed with.
const TOKEN: &[u8] = b"SWARM_TOKEN=";

/// Sessions of a process and of its ancestors.
#[derive(Clone, Debug, Default)]
pub struct Sessions(BTreeSet<i32>);

impl Sessions {
    pub fn add(&mut self, session: i32) {
        self.0.insert(session);
    }

    /// Returns the worker of this state directory to which one of the sessions belongs, and which has neither a shim nor an
    /// exit record. `None` if there is none. Reads the records only if a session may be that of such a worker.
    pub fn worker(&self, paths: &Paths) -> Option<String> {
        let suspects: BTreeSet<i32> = self.0.iter().copied().filter(|leader| is_suspect(*leader)).collect();
        if suspects.is_empty() {
            return None;
        }
        let records = DiskRecords::new(paths.clone());
        list(&paths.workers()).into_iter().flatten().find_map(|dir| {
            let leaf = dir.file_name();
            let (name, number) = leaf.to_str()?.rsplit_once('.')?;
            if !may_lead(&dir.path(), &suspects) {
                return None;
            }
            let facts = records.read(name, number.parse().ok()?).ok()??;
            let is_alone = facts.lease.this_boot && !facts.lease.held && facts.exit.is_none();
            (is_alone && leads(&facts.lease, &suspects)).then(|| name.to_owned())
        })
    }
}

/// Reports whether the worker of a generation may lead one of the sessions. Most workers have ended, which one look tells.
fn may_lead(dir: &Path, sessions: &BTreeSet<i32>) -> bool {
    if dir.join("exit.json").exists() {
        return false;
    }
    match leases::read(dir) {
        Ok(Some(lease)) => sessions.contains(&lease.worker.pid) || sessions.contains(&lease.shim.pid),
        // The whole of the records tells.
        Ok(None) | Err(_) => true,
    }
}

/// Reports whether the leader of a session may be that of a worker without a shim: it has ended, has no parent but `init`, or
/// was executed with the token of a worker. A shell in a terminal is none of these.
fn is_suspect(leader: i32) -> bool {
    let is_token = |entry: &[u8]| entry.starts_with(TOKEN);
    let has_token = || {
        let environment = fs::read(format!("/proc/{leader}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(is_token)
    };
    leader > 1 && procfs::stat(leader).is_none_or(|stat| stat.parent <= 1 || has_token())
}

/// Reports whether the worker leads one of the sessions, or its shim does, as in a window. The kernel gives the number of a
/// leader that has ended to no other process while the session has members.
fn leads(lease: &LeaseFacts, sessions: &BTreeSet<i32>) -> bool {
    let Some(content) = &lease.content else { return false };
    let is_gone = |pid: i32| !procfs::stat(pid).is_some_and(|stat| stat.is_alive());
    let (worker, shim) = (content.worker.pid, content.shim.pid);
    (sessions.contains(&worker) && (lease.worker_alive || is_gone(worker)))
        || (sessions.contains(&shim) && is_gone(shim))
}
