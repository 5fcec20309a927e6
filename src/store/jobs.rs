//! Records of workers that are jobs of a batch system.
//!
//! | file | content | writer |
//! |---|---|---|
//! | `w/NAME.GEN/job.json` | what is known about the job | supervisor |
//! | `w/NAME.GEN/claim` | the execution of the job that may start the command | shim |
//! | `w/NAME.GEN/left` | a later execution has left | its shim |
//! | `w/NAME.GEN/failed` | why the command could not be executed | shim |
//! | `w/NAME.GEN/job.log` | what the job printed beside its command | batch system |
//! | `slurm/mail/NAME.GEN.WHAT` | empty: something happened to this job | shim, removed by the supervisor |
//! | `slurm/asked` | time of the last answer of the batch system | supervisor |

use std::io;
use std::path::{Path, PathBuf};

use swarm_model::{ExitRecord, Job, Lease, ProcessId, Spec, Wanted, WantedState};
use swarm_ports::LeaseFacts;
use swarm_sys::files::{Durability, is_absent, make_dirs, replace_private, write_private};
use swarm_sys::paths::Paths;

use crate::records::record;

/// File of the job in the directory of a generation.
pub const FILE: &str = "job.json";
/// File with the execution of the job that may start the command.
pub const CLAIM: &str = "claim";
/// Mark of a later execution of the same job.
pub const LEFT: &str = "left";
/// File with the reason why the command could not be executed.
pub const FAILED: &str = "failed";
/// File for what the batch system prints.
pub const LOG: &str = "job.log";
const ASKED: &str = "asked";

/// Returns the directory of this state directory's files about jobs.
fn dir(root: &Path) -> PathBuf {
    root.join("slurm")
}

/// Returns the directory in which shims leave a file if something happens.
pub fn mail(root: &Path) -> PathBuf {
    dir(root).join("mail")
}

/// Leaves a file for the supervisor. A failure only delays what it sees.
pub fn send_mail(root: &Path, worker_dir: &str, what: &str) {
    let mail = mail(root);
    let _ = make_dirs(&mail).and_then(|()| write_private(&mail.join(format!("{worker_dir}.{what}")), b""));
}

/// Reads the job of a start; `None` if the worker is no job. Without the file, nothing is known of it.
///
/// # Errors
/// Fails if the file exists and cannot be read.
pub fn read(dir: &Path, spec: &Spec, paths: &Paths) -> io::Result<Option<Job>> {
    let Some(planned) = Job::of(spec) else { return Ok(None) };
    let written: Option<Job> = record(&dir.join(FILE))?;
    let job = written.filter(|job| job.token == spec.token).unwrap_or(planned);
    Ok(Some(Job { asked_ms: asked_ms(paths.root()), ..job }))
}

/// Replaces the job of a generation. It is durable once it says that the job is over.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(dir: &Path, job: &Job) -> io::Result<()> {
    let durability = if job.over.is_some() { Durability::Synced } else { Durability::None };
    replace_private(dir, FILE, &serde_json::to_vec(job)?, durability)
}

/// Returns the time of the last answer of the batch system, in Unix milliseconds. `None` if there was none.
pub fn asked_ms(root: &Path) -> Option<u64> {
    std::fs::read_to_string(dir(root).join(ASKED)).ok()?.trim().parse().ok()
}

/// Notes that the batch system has answered.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn note_asked(root: &Path, now_ms: u64) -> io::Result<()> {
    make_dirs(&dir(root))?;
    replace_private(&dir(root), ASKED, now_ms.to_string().as_bytes(), Durability::None)
}

/// Returns the facts of a job in the place of those of a lease. What the batch system says about a signal becomes a part
/// of the exit record.
pub fn facts(job: Job, content: Option<Lease>, exit: Option<&mut ExitRecord>, wanted: &Wanted) -> LeaseFacts {
    let has_ended = exit.is_some() || job.over.is_some();
    if let Some(exit) = exit {
        match wanted.state {
            WantedState::Stopped => exit.interrupted = false,
            WantedState::Running | WantedState::Failed => job.refine(exit),
        }
    }
    let (held, suspended) = (!has_ended, !has_ended && job.is_suspended());
    LeaseFacts {
        held,
        content,
        this_boot: true,
        worker_alive: held,
        suspended,
        job: Some(job),
        ..LeaseFacts::default()
    }
}

/// Returns a lease for a start whose processes are on a node: none of them has a pid here.
pub fn lease(spec: &Spec) -> Lease {
    let machine = spec.machine.clone();
    let boot = machine.as_ref().map(|machine| machine.boot.clone()).unwrap_or_default();
    let process = ProcessId { pid: 0, start_ticks: 0, boot };
    Lease {
        token: spec.token.clone(),
        started: spec.started.clone(),
        worker: process.clone(),
        shim: process,
        pane: None,
        restart: spec.contract.restart,
        limits: None,
        machine,
        survivors: Vec::new(),
        process_namespace: None,
    }
}

/// Reports whether the command of a generation was executed.
pub fn is_executed(dir: &Path) -> bool {
    !is_absent(&dir.join("spec.json"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_actors::registry::reconcile;
    use swarm_model::{Contract, FineState, JobOrder, Over};

    use super::*;
    use crate::records::DiskRecords;
    use crate::summary::{Detail, Records};

    fn spec() -> Spec {
        let order = JobOrder { host: "cluster".to_owned(), program: "swarm".to_owned(), ..JobOrder::default() };
        let argv = vec!["true".to_owned()];
        Spec {
            name: "a".to_owned(),
            generation: 1,
            token: "0123456789abcdef0123456789abcdef".to_owned(),
            request: "r".to_owned(),
            started: "2026-01-01T00:00:00.000001".to_owned(),
            contract: Contract { argv, cwd: "/".to_owned(), job: Some(order), ..Contract::default() },
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        }
    }

    #[test]
    fn a_job_has_the_state_that_its_records_prove_for_all_readers() {
        use FineState as S;
        let home = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(home.path());
        let dir = paths.worker("a", 1);
        fs::create_dir_all(&dir).expect("made");
        let spec = spec();
        let row = reconcile::row_of(&spec, 0, "host");
        assert_eq!((row.pid, row.place().map(|place| place.name.as_str())), (None, Some("a.0123456789ab")));
        let exit = |end: &str| {
            format!(
                r#"{{"token":"t","started":"s","pid":77,{end},"ended_at_ms":0,"duration_ms":0,
                "usage":{{"user_us":0,"system_us":0,"rss_max_kb":0}}}}"#
            )
        };
        let (ended, signalled) =
            (exit(r#""code":3,"reason":"exited""#), exit(r#""signal":15,"reason":"stopped","interrupted":true"#));
        let (none, over) = (None, Some(Over::Proven));
        for (executed, word, over, record, stopped, expected) in [
            (false, "", none, None, false, S::Queued),
            (false, "PENDING", none, None, true, S::Queued),
            (true, "RUNNING", none, None, false, S::Running),
            (true, "SUSPENDED", none, None, false, S::Suspended),
            (true, "A_NEW_ONE", none, None, false, S::Running),
            // Only what the supervisor concluded is an end.
            (true, "NODE_FAIL", none, None, false, S::Running),
            (true, "FAILED", over, None, false, S::Lost),
            (true, "NODE_FAIL", Some(Over::Unproven), None, false, S::Lost),
            (true, "CANCELLED by 0", over, None, false, S::Lost),
            (true, "CANCELLED by 0", over, None, true, S::Stopped),
            (false, "CANCELLED by 0", over, None, false, S::Stopped),
            (false, "FAILED", over, None, false, S::Lost),
            // A record is true whatever else is said.
            (true, "RUNNING", none, Some(&ended), false, S::Exited),
            (true, "NODE_FAIL", Some(Over::Unproven), Some(&ended), false, S::Exited),
            (true, "COMPLETING", none, Some(&signalled), false, S::Interrupted),
            (true, "CANCELLED by 0", none, Some(&signalled), true, S::Stopped),
            (true, "TIMEOUT", none, Some(&signalled), false, S::Exited),
            (true, "OUT_OF_MEMORY", none, Some(&signalled), false, S::OutOfMemory),
        ] {
            let text = serde_json::to_vec(&spec).expect("is JSON");
            let (here, away) = if executed { ("spec.json", "spec.pending") } else { ("spec.pending", "spec.json") };
            fs::write(dir.join(here), text).expect("written");
            swarm_sys::files::remove_if_present(&dir.join(away)).expect("removed");
            let state = Some(word.to_owned()).filter(|word| !word.is_empty());
            write(&dir, &Job { state, over, ..Job::of(&spec).expect("a job") }).expect("written");
            match record {
                Some(record) => fs::write(dir.join("exit.json"), record).expect("written"),
                None => swarm_sys::files::remove_if_present(&dir.join("exit.json")).expect("removed"),
            }
            let wanted =
                if stopped { r#"{"state":"stopped","restarts":0}"# } else { r#"{"state":"running","restarts":0}"# };
            fs::write(dir.join("wanted.json"), wanted).expect("written");
            let case = format!("{executed} {word} {over:?} {record:?} {stopped}");
            let facts = DiskRecords::new(paths.clone()).read("a", 1).expect("readable").expect("there");
            assert!(reconcile::belongs(&row, &facts), "{case}");
            assert_eq!(reconcile::fine_state(&facts), expected, "{case}");
            let records = Records::open(&paths).expect("readable").expect("there");
            for detail in [Detail::Word, Detail::Exit, Detail::Fine] {
                let summary = records.of(&row, detail).expect("readable").expect("there");
                assert!(reconcile::belongs(&row, &summary), "{case}");
                assert_eq!(reconcile::fine_state(&summary), expected, "{case}");
            }
        }
    }

    #[test]
    fn a_job_without_its_file_is_one_of_which_nothing_is_known() {
        let home = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(home.path());
        let dir = paths.worker("a", 1);
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("spec.json"), serde_json::to_vec(&spec()).expect("is JSON")).expect("written");
        note_asked(home.path(), 7).expect("written");
        let facts = DiskRecords::new(paths).read("a", 1).expect("readable").expect("there");
        assert_eq!(reconcile::fine_state(&facts), FineState::Running);
        assert_eq!(facts.lease.job.and_then(|job| job.asked_ms), Some(7));
    }
}
