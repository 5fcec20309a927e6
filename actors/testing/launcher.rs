//! Shims that hold their children at a gate. A shim whose supervisor dies reads `state.json` and
//! decides by that, like the real one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::kernel::Kernel;
use super::records::{FakeRecords, Key};
use super::script::Script;
use crate::registry::store::{self, Loaded};
use swarm_model::{By, Caller, Contract, Held, Lease, Limits, ProcessId, Refusal, RefusalKind, Spec, TmuxPane};
use swarm_ports::{BoxFuture, LaunchError, Launcher, Prepared};

/// Time that a shim without a supervisor takes to decide. A commit that was in progress when the
/// supervisor died is over by then.
const DECIDE: Duration = Duration::from_millis(20);

pub struct FakeLauncher {
    shim: Shim,
    script: Arc<Script>,
}

/// State that a shim needs to continue without a supervisor.
#[derive(Clone)]
struct Shim {
    root: PathBuf,
    kernel: Arc<Kernel>,
    records: Arc<FakeRecords>,
}

/// The supervisor's end of the handshake. Dropping it is end of file for the shim.
struct Gate {
    shim: Option<Shim>,
    key: Key,
    lease: Lease,
}

impl FakeLauncher {
    pub fn new(root: PathBuf, kernel: Arc<Kernel>, records: Arc<FakeRecords>, script: Arc<Script>) -> Self {
        Self { shim: Shim { root, kernel, records }, script }
    }

    /// Records the commit in the list of calls, as soon as a call finds it done.
    fn note_commit(&self, key: &Key, lease: &Lease) {
        let call = format!("commit {}", subject(key));
        if is_committed(&self.shim.root, &lease.token) && self.script.position(&call).is_none() {
            self.script.note(call);
        }
    }

    fn child_at_gate(&self, spec: &Spec) -> Prepared {
        let key = key_of(spec);
        let (kernel, place) = (&self.shim.kernel, spec.contract.tmux.as_ref());
        let is_job = spec.contract.job.is_some();
        // A job has no process here.
        let fork = || if is_job { ProcessId { pid: 0, start_ticks: 0, boot: kernel.boot() } } else { kernel.fork() };
        let socket = |name: &str| format!("/sockets/{name}");
        let lease = Lease {
            token: spec.token.clone(),
            started: spec.started.clone(),
            shim: fork(),
            worker: fork(),
            pane: place.map(|place| TmuxPane {
                pane: format!("%{}", spec.generation),
                socket_path: socket(place.socket.as_deref().unwrap_or("default")),
                server_pid: 99,
            }),
            restart: spec.contract.restart,
            limits: held(spec.contract.limits),
            machine: None,
            process_namespace: None,
            survivors: Vec::new(),
        };
        self.shim.records.set_lease(&key, &lease);
        let window = place.map(|place| format!("{}:{}", place.session, spec.name));
        let gate = Gate { shim: Some(self.shim.clone()).filter(|_| !is_job), key, lease: lease.clone() };
        Prepared { lease, window, gate: Box::new(gate) }
    }
}

impl Gate {
    /// Opens the gate. A job that is submitted is executed later.
    fn go(mut self) -> Result<(), LaunchError> {
        let Some(shim) = self.shim.take() else { return Ok(()) };
        if !shim.kernel.is_alive(&self.lease.shim) {
            return Err(LaunchError::NotStarted("the shim was killed before it could start the command".to_owned()));
        }
        shim.records.execute(&self.key);
        Ok(())
    }

    fn give_up(mut self) {
        if let Some(shim) = self.shim.take() {
            shim.give_up(&self.lease);
        }
    }
}

impl Shim {
    fn give_up(&self, lease: &Lease) {
        self.kernel.end(&lease.worker);
        self.kernel.end(&lease.shim);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let (Some(shim), Ok(runtime)) = (self.shim.take(), tokio::runtime::Handle::try_current()) else { return };
        let (key, lease) = (self.key.clone(), self.lease.clone());
        runtime.spawn(async move {
            tokio::time::sleep(DECIDE).await;
            match shim.kernel.is_alive(&lease.shim) && is_committed(&shim.root, &lease.token) {
                true => shim.records.execute(&key),
                false => shim.give_up(&lease),
            }
        });
    }
}

/// Returns the limits in force on a machine that supports only output limits.
fn held(asked: Limits) -> Option<Held> {
    (!asked.is_none()).then(|| Held { asked, output: asked.max_output_bytes.map(|_| By::Swarm), ..Held::default() })
}

fn gate_of(prepared: Prepared) -> Gate {
    *prepared.gate.downcast().expect("a gate of this launcher")
}

fn key_of(spec: &Spec) -> Key {
    (spec.name.clone(), spec.generation)
}

fn subject((name, generation): &Key) -> String {
    swarm_model::worker_dir_name(name, *generation)
}

/// Reports whether a row in `state.json` has this token.
fn is_committed(root: &Path, token: &str) -> bool {
    let Ok(Loaded::Table(table)) = store::load(&root.join("state.json")) else { return false };
    let mut rows = table.entries.iter().filter_map(|entry| entry.row.as_ref().ok());
    rows.any(|row| row.swarm().is_some_and(|meta| meta.id == token))
}

impl Launcher for FakeLauncher {
    fn check<'a>(&'a self, contract: &'a Contract, _: Option<&'a str>) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let checked = self.script.before("check", &contract.argv.join(" ")).await;
            checked.map_err(|cause| Refusal::new(RefusalKind::Invalid, cause))
        })
    }

    fn reserve<'a>(&'a self, spec: &'a Spec) -> BoxFuture<'a, Result<(), LaunchError>> {
        Box::pin(async move {
            self.script.before("reserve", &subject(&key_of(spec))).await.map_err(LaunchError::System)?;
            self.shim.records.reserve(spec).map_err(|error| LaunchError::System(error.to_string()))?;
            self.script.after("reserve").await.map_err(LaunchError::System)
        })
    }

    fn prepare<'a>(&'a self, spec: &'a Spec, _: &'a Caller) -> BoxFuture<'a, Result<Prepared, LaunchError>> {
        let refused = if spec.contract.tmux.is_some() { LaunchError::Tmux } else { LaunchError::System };
        Box::pin(async move {
            self.script.before("prepare", &subject(&key_of(spec))).await.map_err(refused)?;
            let prepared = self.child_at_gate(spec);
            self.note_commit(&key_of(spec), &prepared.lease);
            match self.script.after("prepare").await {
                Ok(()) => Ok(prepared),
                Err(cause) => {
                    gate_of(prepared).give_up();
                    Err(LaunchError::NotStarted(cause))
                }
            }
        })
    }

    fn open(&self, prepared: Prepared) -> BoxFuture<'_, Result<Vec<String>, LaunchError>> {
        Box::pin(async move {
            let (lease, gate) = (prepared.lease.clone(), gate_of(prepared));
            self.note_commit(&gate.key, &lease);
            if let Err(cause) = self.script.before("open", &subject(&gate.key)).await {
                gate.give_up();
                return Err(LaunchError::Exec(cause));
            }
            gate.go()?;
            // The exec happened: the worker runs, even if its shim dies.
            let _ = self.script.after("open").await;
            Ok(Vec::new())
        })
    }

    fn withdraw(&self, prepared: Prepared) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let gate = gate_of(prepared);
            let _ = self.script.before("withdraw", &subject(&gate.key)).await;
            gate.give_up();
        })
    }
}
