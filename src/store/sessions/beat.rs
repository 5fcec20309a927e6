//! Writes `heartbeat.json`, in the format of the original program, for a whole fleet.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use swarm_model::asks::{AskRecord, AskState};
use swarm_model::{Doing, Fence, Session};
use swarm_ports::{Beaten, Life, Sight};

use super::activity::{self, Tool};
use super::folder::{Folder, Stamp};
use super::store::{STATE, StoreError, load, save};
use crate::asks::Asks;
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;
use swarm_sys::pool::Pool;
use swarm_sys::procfs::{self, Stat};

pub const HEARTBEAT: &str = "heartbeat.json";
/// Silence after which an agent counts as idle, in milliseconds.
const IDLE_MS: u64 = 60_000;
/// Interval at which `state.json` records the last beat if nothing else changes, in milliseconds.
const NOTED_MS: u64 = 60_000;

/// Content of `heartbeat.json`. All fields are always present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    pub timestamp: i64,
    /// Pid of the agent, not of the supervisor that writes the file.
    pub pid: i32,
    #[serde(rename = "memoryUsageMB")]
    pub memory_usage_mb: u64,
    /// Uptime in seconds.
    pub uptime: u64,
    pub last_activity_type: String,
    pub last_activity_timestamp: i64,
    pub tool_calls_count: u64,
    pub current_operation: Option<String>,
}

/// Reads the time and the pid of the last heartbeat. `None` if the file is absent or torn, or if the timestamp is not
/// a number.
pub fn stamp_of(folder: &Folder) -> Option<(i64, i32)> {
    #[derive(Deserialize)]
    struct Stamp {
        timestamp: i64,
        #[serde(default)]
        pid: i32,
    }
    let bytes = folder.read(HEARTBEAT).ok().flatten()?;
    let stamp: Stamp = serde_json::from_slice(&bytes).ok()?;
    Some((stamp.timestamp, stamp.pid))
}

/// Maximum number of launches remembered as ended.
const ENDED_MAX: usize = 256;

/// State of a session between two beats.
#[derive(Default)]
struct Seen {
    /// Launch that this state belongs to. A worker name and its generations recur after a clean.
    session_id: String,
    /// Version of `state.json` that was last verified to be ours.
    state: Option<Stamp>,
    activity: &'static str,
    noted_ms: u64,
}

/// Returns the name of the spare file that earlier versions kept beside the heartbeat of a launch. It is removed at the end of
/// the session.
pub fn spare(session_id: &str) -> String {
    format!(".{HEARTBEAT}.tmp-{session_id}")
}

/// Writes the heartbeats of sessions. Each session has its own lock, because its disk may not answer.
#[derive(Default)]
pub struct Beater {
    /// By worker.
    seen: Mutex<BTreeMap<String, Arc<Mutex<Seen>>>>,
    /// Launches that have ended, oldest first.
    ended: Mutex<VecDeque<String>>,
}

impl Beater {
    /// Marks a launch as ended: no further beat is written for it. Waits for one that is being written.
    pub fn end(&self, life: &Life) {
        {
            let mut ended = lock(&self.ended);
            ended.push_back(life.session_id.clone());
            // A beat that started before this end is over long before so many others have ended.
            if ended.len() > ENDED_MAX {
                ended.pop_front();
            }
        }
        let seen = lock(&self.seen).remove(&life.worker);
        drop(seen.as_deref().map(lock));
    }

    /// Observes an agent, and writes one beat if it has a session. A failed write is left to the next beat. There is no
    /// sight if the agent has ended or cannot be examined.
    pub fn beat(&self, paths: &Paths, boot: &str, life: &Life, fence: Option<&Fence>) -> (Beaten, Option<Sight>) {
        let seen = Arc::clone(lock(&self.seen).entry(life.worker.clone()).or_default());
        let mut seen = lock(&seen);
        // Only while this very process exists and its end has not been recorded.
        let over = lock(&self.ended).contains(&life.session_id);
        // If the process cannot be examined, the next beat tries again.
        let Some(stat) = procfs::alive(&life.process, boot).ok().flatten().filter(|_| !over) else {
            return (Beaten::Done, None);
        };
        let folder = life.plan.as_ref().and_then(|plan| reach(Path::new(&plan.dir), fence.is_some()));
        let pulse = pulse(paths, life, &stat, folder.as_ref());
        let beaten = match (&folder, fence) {
            (Some(folder), Some(fence)) => write(&mut seen, folder, life, fence, &pulse),
            _ => Beaten::Done,
        };
        (beaten, Some(pulse.sight()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(seen: &mut Seen, folder: &Folder, life: &Life, fence: &Fence, pulse: &Pulse) -> Beaten {
    if seen.session_id != life.session_id {
        *seen = Seen { session_id: life.session_id.clone(), ..Seen::default() };
    }
    let mut missing = false;
    let stamp = folder.stamp(STATE);
    if stamp.is_none() || stamp != seen.state {
        match owner(folder, fence) {
            Owner::Us => seen.state = stamp,
            Owner::Other(found) => return Beaten::Lost { found },
            Owner::Nobody => missing = true,
            Owner::Unknown => {}
        }
    }
    let (now_ms, activity) = (pulse.now_ms, activity(pulse));
    if let Err(error) = folder.replace(HEARTBEAT, &pulse.render(activity), false) {
        tracing::debug!(worker = life.worker, %error, "cannot write a heartbeat");
        return Beaten::Done;
    }
    if (activity != seen.activity || now_ms.abs_diff(seen.noted_ms) >= NOTED_MS)
        && let Some(stamp) = record_beat(folder, fence, now_ms)
    {
        (seen.state, seen.activity, seen.noted_ms) = (Some(stamp), activity, now_ms);
    }
    if missing { Beaten::Missing } else { Beaten::Done }
}

/// Opens the folder of a session. With `make`, recreates it if only the folder was removed; a deleted worktree is not
/// recreated.
fn reach(base: &Path, make: bool) -> Option<Folder> {
    match Folder::open(base) {
        Ok(None) if make && base.is_dir() => Folder::make(base).ok(),
        there => there.ok()?,
    }
}

enum Owner {
    Us,
    Other(Fence),
    /// The state is absent, names no session, or is malformed.
    Nobody,
    /// The state cannot be read at the moment.
    Unknown,
}

fn owner(folder: &Folder, fence: &Fence) -> Owner {
    match load(folder) {
        Ok(Some(session)) if session.fence() == *fence => Owner::Us,
        Ok(Some(session)) if session.session_id().is_none() && session.identifier().is_none() => Owner::Nobody,
        Ok(Some(session)) => Owner::Other(session.fence()),
        Ok(None) | Err(StoreError::Malformed { .. }) => Owner::Nobody,
        Err(_) => Owner::Unknown,
    }
}

/// Sets `lastHeartbeat` in `state.json`, never backward, if the session is still ours and no other writer holds the
/// lock. Not synced: a power cut ends the agent as well.
fn record_beat(folder: &Folder, fence: &Fence, now_ms: u64) -> Option<Stamp> {
    let lock = folder.try_lock().ok().flatten()?;
    // If the state is torn or absent, a later beat records it.
    let before = folder.read(STATE).ok()??;
    let session = Session::parse(str::from_utf8(&before).ok()?).ok();
    let mut session = session.filter(|session| session.fence() == *fence)?;
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let last = session.integer("lastHeartbeat").unwrap_or_default();
    session.set("lastHeartbeat", &last.max(now_ms));
    session.set("lastUpdatedAt", &now_ms);
    save(folder, &lock, session, false).ok().map(|(_, stamp)| stamp)
}

/// Observations of an agent from outside.
struct Pulse {
    now_ms: u64,
    pid: i32,
    memory_mb: u64,
    up_s: u64,
    wrote_ms: u64,
    output: u64,
    tool: Option<Tool>,
    held: bool,
}

impl Pulse {
    fn sight(&self) -> Sight {
        let (reports, tool) = (self.tool.is_some(), self.tool.clone().unwrap_or_default());
        let operation = tool.operation.map(|what| (what, tool.calls));
        let kind = tool.kind.unwrap_or_default();
        let quiet_ms = self.now_ms.saturating_sub(self.wrote_ms);
        let (waiting, idle, held) = (tool.waiting, tool.idle, self.held);
        Sight { output: self.output, quiet_ms, reports, operation, waiting, kind, idle, held }
    }

    fn render(&self, activity: &str) -> Vec<u8> {
        let tool = self.tool.clone().unwrap_or_default();
        let beat = Heartbeat {
            timestamp: i64::try_from(self.now_ms).unwrap_or(i64::MAX),
            pid: self.pid,
            memory_usage_mb: self.memory_mb,
            uptime: self.up_s,
            last_activity_type: activity.to_owned(),
            last_activity_timestamp: i64::try_from(self.wrote_ms.max(tool.at_ms)).unwrap_or(i64::MAX),
            tool_calls_count: tool.calls,
            current_operation: tool.operation,
        };
        serde_json::to_vec_pretty(&beat).expect("numbers and texts are JSON")
    }
}

fn activity(pulse: &Pulse) -> &'static str {
    let recent = |at_ms: u64| pulse.now_ms.saturating_sub(at_ms) < IDLE_MS;
    match &pulse.tool {
        Some(tool) if tool.idle => "idle",
        Some(tool) if tool.waiting.is_some() => "waiting",
        Some(tool) if tool.operation.is_some() && recent(tool.at_ms) => "tool_use",
        _ if recent(pulse.wrote_ms) => "thinking",
        _ => "idle",
    }
}

fn pulse(paths: &Paths, life: &Life, stat: &Stat, folder: Option<&Folder>) -> Pulse {
    let now_ms = wall_ms();
    let up_s = swarm_sys::clock::boot_ms().saturating_sub(life.process.start_ticks.saturating_mul(10)) / 1000;
    let written: Vec<(u64, u64)> = life.logs.iter().filter_map(|log| written(&paths.logs().join(log))).collect();
    let wrote_ms = written.iter().map(|(at_ms, _)| *at_ms).max().unwrap_or(0);
    let tool =
        folder.and_then(activity::read).or_else(|| activity::recorded(&paths.worker(&life.worker, life.generation)));
    let waits = tool.as_ref().is_some_and(|tool| tool.doing() == Doing::Waiting);
    Pulse {
        now_ms,
        pid: life.process.pid,
        memory_mb: stat.resident_bytes() >> 20,
        up_s,
        output: written.iter().fold(0, |sum, (at_ms, bytes)| sum.wrapping_mul(31).wrapping_add(at_ms ^ (bytes << 20))),
        // Before the first output, the start counts as the last activity.
        wrote_ms: wrote_ms.max(now_ms.saturating_sub(up_s * 1000)),
        held: waits && life.window && is_held(paths, life),
        tool,
    }
}

/// Reports whether a hook of this launch waits for the answer in place of a dialog.
fn is_held(paths: &Paths, life: &Life) -> bool {
    let ours = Asks::of_worker(&life.worker, life.generation);
    let is_held = |one: &AskRecord| one.ask.key.starts_with(&ours) && one.state() == AskState::Open && one.is_hidden();
    Asks::new(paths).unfinished().is_ok_and(|all| all.iter().any(is_held))
}

/// Ends the request of an agent that was answered in the dialog of its window.
pub async fn end_shown(disks: Arc<Pool>, asks: Asks, life: &Life) {
    let (worker, generation) = (life.worker.clone(), life.generation);
    let ended = disks.run(move || asks.end_shown(&worker, generation, wall_ms())).await;
    if let Some(Err(error)) = ended {
        tracing::warn!(worker = life.worker, %error, "cannot end a request that was answered in its window");
    }
}

/// Returns the time of the last write to a log in Unix milliseconds, and its length in bytes. `None` if it is empty.
fn written(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    // The modification time of an empty log is only its creation time.
    if meta.len() == 0 {
        return None;
    }
    Some((u64::try_from(meta.mtime() * 1000 + meta.mtime_nsec() / 1_000_000).ok()?, meta.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(worker: &str) -> Life {
        let boot = procfs::boot_id();
        let me = i32::try_from(std::process::id()).expect("a pid");
        Life {
            worker: worker.to_owned(),
            generation: 1,
            session_id: format!("{worker}-1"),
            process: procfs::identity(me, &boot).expect("it is me"),
            plan: None,
            logs: Vec::new(),
            watch: None,
            window: false,
            agent: false,
            rungs: swarm_model::Rungs::default(),
        }
    }

    #[test]
    fn a_session_whose_disk_does_not_answer_delays_no_other_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, boot, beater) = (Paths::new(dir.path()), procfs::boot_id(), Beater::default());
        let beat = |worker: &str| beater.beat(&paths, &boot, &life(worker), None).1.is_some();
        assert!(beat("hangs"));
        // As a beat does that is being written.
        let slot = Arc::clone(&lock(&beater.seen)["hangs"]);
        let hangs = lock(&slot);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| beat("hangs"));
            assert!(beat("works"));
            beater.end(&life("works"));
            assert!(!beat("works"), "it has ended");
            let end = scope.spawn(|| beater.end(&life("hangs")));
            assert!(!end.is_finished(), "no beat is written after the end");
            drop(hangs);
            end.join().expect("no panic");
            let _ = waits.join().expect("no panic");
        });
        assert!(!beat("hangs"));
    }
}
