//! The connection of a run to a host: a process `swarm __reach`, which ends with its input. Calls may overlap; each is
//! answered under its number.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use serde_json::Value;
use swarm_hosts::frames::{CALL_BYTES_MAX, Lines, Tell, call_lines};
use swarm_model::Caller;
use swarm_ports::HostFault;
use swarm_store::runs::far::{FarAnswer, FarCall};
use swarm_sys::commands::deadline::wait_until;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinHandle;

use crate::processes::near::REACH;

/// Time for the process to end after its input has.
const END_MAX: Duration = Duration::from_secs(5);
/// Time for an answer, except that to a call that waits for the end of an attempt.
const ANSWER_MAX: Duration = Duration::from_secs(900);
const BLOCK_BYTES: usize = 64 << 10;

/// Connections, by run and host.
pub struct Links {
    executable: PathBuf,
    open: Mutex<BTreeMap<(String, String), Arc<Link>>>,
    /// Runs that get no connection, because they are over.
    released: Mutex<BTreeSet<String>>,
}

impl Links {
    pub fn new(executable: PathBuf) -> Self {
        Self { executable, open: Mutex::default(), released: Mutex::default() }
    }

    /// Returns the connection of a run to a host. Opens one if there is none, or if it was cut.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or if the run is over.
    pub fn get(&self, run: &str, host: &str, caller: &Caller) -> Result<Arc<Link>, HostFault> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if self.released.lock().unwrap_or_else(PoisonError::into_inner).contains(run) {
            return Err(HostFault::Away { cause: "the run is over".to_owned() });
        }
        let key = (run.to_owned(), host.to_owned());
        if let Some(link) = open.get(&key).filter(|link| !link.is_over()) {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::open(&self.executable, host, caller)?);
        open.insert(key, Arc::clone(&link));
        Ok(link)
    }

    /// Returns the tasks that use the connections of a run.
    pub fn tasks(&self, run: &str) -> Vec<JoinHandle<()>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let links = open.iter().filter(|((of, _), _)| of == run).map(|(_, link)| link);
        links.filter_map(|link| link.bringing.lock().unwrap_or_else(PoisonError::into_inner).take()).collect()
    }

    /// Allows connections of a run.
    pub fn admit(&self, run: &str) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }

    /// Closes the connections of a run, and opens none until it is admitted again.
    pub fn release(&self, run: &str) {
        // First, so that one that is being opened is the last.
        self.released.lock().unwrap_or_else(PoisonError::into_inner).insert(run.to_owned());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(of, _), _| of != run);
    }
}

/// Connection to a host. Dropping it ends the process.
pub struct Link {
    host: String,
    calls: Arc<Mutex<Calls>>,
    sender: Sender<Write>,
    /// Set once the host was told the orders that it did not get at an earlier contact.
    pub delivered: OnceCell<()>,
    /// Brings back what the host still has.
    bringing: Mutex<Option<JoinHandle<()>>>,
}

/// Calls that wait for their answer.
#[derive(Default)]
struct Calls {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<Told, HostFault>>>,
    /// Id of the state directory that has answered last.
    host: Option<String>,
    /// Why there is no connection any more.
    over: Option<HostFault>,
}

/// An answer, and the id of the state directory that gave it.
type Told = (Value, Option<String>);

enum Write {
    Line(Vec<u8>),
    Close,
}

/// First line of the process.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum First {
    Hello(#[expect(dead_code, reason = "only its presence counts")] Value),
    Fault {
        kind: String,
        cause: String,
        #[serde(default)]
        remedy: Option<String>,
    },
}

impl Link {
    fn open(executable: &Path, host: &str, caller: &Caller) -> Result<Self, HostFault> {
        let away = |cause: std::io::Error| HostFault::Away { cause: format!("cannot reach {host}: {cause}") };
        let mut command = Command::new(executable);
        command.args([REACH, host]).env_clear().envs(caller.environment.iter().map(|(key, value)| (key, value)));
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().map_err(away)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes")
        };
        let calls = Arc::<Mutex<Calls>>::default();
        let (sender, writes) = mpsc::channel();
        let (of_reader, closes, name) = (Arc::clone(&calls), sender.clone(), host.to_owned());
        thread::spawn(move || write(child, input, &writes));
        thread::spawn(move || {
            let fault = read(output, &of_reader, &name);
            end_all(&of_reader, &fault);
            let _ = closes.send(Write::Close);
        });
        Ok(Self { host: host.to_owned(), calls, sender, delivered: OnceCell::new(), bringing: Mutex::default() })
    }

    /// Keeps a task that uses the connection, for [`Links::release`].
    pub fn keep(&self, task: JoinHandle<()>) {
        *self.bringing.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }

    fn is_over(&self) -> bool {
        locked(&self.calls).over.is_some()
    }

    /// Sends a call and returns its answer. A call for the end of an attempt may take hours; it ends with the connection.
    ///
    /// # Errors
    /// Fails if there is no connection, or if the call is too long.
    pub async fn ask(&self, call: &FarCall) -> Result<FarAnswer, HostFault> {
        self.ask_whom(call).await.map(|(answer, _)| answer)
    }

    /// Sends a call and returns its answer, and the id of the state directory that answers, if it is known.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_whom(&self, call: &FarCall) -> Result<(FarAnswer, Option<String>), HostFault> {
        let answer = self.sent(call)?;
        let cut = || HostFault::Away { cause: format!("the connection to {} was cut", self.host) };
        let answered = match call {
            FarCall::End { .. } => answer.await,
            _ => tokio::time::timeout(ANSWER_MAX, answer).await.map_err(|_| HostFault::Away {
                cause: format!("{} did not answer within {} s", self.host, ANSWER_MAX.as_secs()),
            })?,
        };
        let (value, whom) = answered.map_err(|_| cut())??;
        // It does not say that nothing was done.
        let answer = serde_json::from_value(value).map_err(|_| HostFault::Away {
            cause: format!(
                "swarm on {0} gave an answer that is not known here: run 'swarm hosts install {0}'",
                self.host
            ),
        })?;
        Ok((answer, whom))
    }

    /// Returns the id of the state directory there. `None` before its first answer, and if it does not tell.
    pub fn state_there(&self) -> Option<String> {
        locked(&self.calls).host.clone()
    }

    fn sent(&self, call: &FarCall) -> Result<oneshot::Receiver<Result<Told, HostFault>>, HostFault> {
        let refused = |cause: String| HostFault::Unfit { program: None, cause };
        let call = serde_json::to_value(call).map_err(|error| refused(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        let mut calls = locked(&self.calls);
        if let Some(fault) = &calls.over {
            return Err(fault.clone());
        }
        let id = calls.last + 1;
        let too_long =
            |_| refused(format!("prompt and files are too long for {}: over {} MiB", self.host, CALL_BYTES_MAX >> 20));
        let lines = call_lines(id, call).map_err(too_long)?;
        calls.last = id;
        calls.waiting.insert(id, sender);
        for line in lines {
            // If the process has ended, its reader answers.
            let _ = self.sender.send(Write::Line(line));
        }
        Ok(receiver)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.sender.send(Write::Close);
    }
}

fn locked(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_all(calls: &Mutex<Calls>, fault: &HostFault) {
    let waiting = {
        let mut calls = locked(calls);
        calls.over = Some(fault.clone());
        std::mem::take(&mut calls.waiting)
    };
    for waiting in waiting.into_values() {
        let _ = waiting.send(Err(fault.clone()));
    }
}

/// Writes lines to the process, then closes its input, and waits for its end.
fn write(mut child: Child, mut input: ChildStdin, writes: &Receiver<Write>) {
    while let Ok(Write::Line(line)) = writes.recv() {
        // If the process has ended, its reader closes.
        let _ = input.write_all(&line);
    }
    drop(input);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let is_ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).is_some_and(|process| {
        let mut waits = [PollFd::new(&process, PollFlags::IN)];
        wait_until(&mut waits, Instant::now() + END_MAX).unwrap_or(false)
    });
    if !is_ended {
        let _ = child.kill();
    }
    let _ = child.wait();
}

/// Reads the lines of the process to their end, and returns why there is no connection any more.
fn read(mut output: ChildStdout, calls: &Mutex<Calls>, host: &str) -> HostFault {
    let (mut lines, mut block, mut is_open) = (Lines::default(), vec![0; BLOCK_BYTES], false);
    let cut = || HostFault::Away { cause: format!("the connection to {host} was cut") };
    loop {
        match output.read(&mut block) {
            Ok(0) => return cut(),
            Ok(read) => lines.add(&block[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return cut(),
        }
        loop {
            let line = match lines.complete() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(_) => return HostFault::Refused { cause: format!("{host} sent a line that is too long") },
            };
            if !is_open {
                match serde_json::from_slice(&line) {
                    Ok(First::Hello(_)) => is_open = true,
                    Ok(First::Fault { kind, cause, remedy }) => return fault(&kind, cause, remedy),
                    Err(_) => return cut(),
                }
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(Tell::Answer { id, answer, host }) => {
                    let host = host.filter(|host| is_id(host));
                    let waiting = {
                        let mut calls = locked(calls);
                        calls.host.clone_from(&host);
                        calls.waiting.remove(&id)
                    };
                    let _ = waiting.map(|waiting| waiting.send(Ok((answer, host))));
                }
                Ok(Tell::Refused(cause)) => return HostFault::Refused { cause: format!("{host}: {cause}") },
                // Of a newer program.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Reports whether a text may be the id of a state directory.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn fault(kind: &str, cause: String, remedy: Option<String>) -> HostFault {
    let cause = match remedy {
        Some(remedy) => format!("{cause} ({remedy})"),
        None => cause,
    };
    if kind == "away" { HostFault::Away { cause } } else { HostFault::Refused { cause } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_out_of_reach_is_away() {
        let away = fault("away", "no route".into(), None);
        assert_eq!(away, HostFault::Away { cause: "no route".into() });
        for kind in ["refused", "missing", "protocol", "new"] {
            let refused = fault(kind, "no".into(), Some("do".into()));
            assert_eq!(refused, HostFault::Refused { cause: "no (do)".into() }, "{kind}");
        }
    }
}
