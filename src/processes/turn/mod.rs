//! `swarm __role DIR`: one turn of a role in a flow, the command of its worker. Talks to the agent until the agent has
//! given a valid signal (handoff, question, wait or close), and records that in the flow's file. Has no runtime. May be
//! killed at any moment; then the turn is started again.
//!
//! ```text
//!   work of other roles ─▶ agent ─▶ signal ─▶ commit ─▶ flow.json
//!                            ▲        │ refused
//!                            └────────┘ up to the repair limit
//! ```

pub mod artifact;
pub mod bring;
mod reporter;
pub mod word;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::json;
use swarm_actors::flow::rules::block::Refusal;
use swarm_model::Caller;
use swarm_model::asks::judge::Consent;
use swarm_model::run::{FaultKind, Outcome};

use self::bring::Brought;
use crate::processes::attempt::turn::take_turn;
use crate::processes::turn::reporter::Spoken;
use swarm_agents::{self, Report, Session, Turn, shell_script};
use swarm_git::worktrees::role;
use swarm_store::flows;
use swarm_store::flows::active::{FlowSite, files_of};
use swarm_store::flows::advance::{abort, is_open};
use swarm_store::flows::config::Player;
use swarm_store::flows::feed::{self, Kind};
use swarm_store::flows::scripts::WORK_BYTES_MAX;
use swarm_store::flows::store::{FlowFiles, Open, StoreError};
use swarm_store::flows::turns::{self, Order, PROMPT, TOLD};
use swarm_sys::clock::{random_uuid, wall_ms};
use swarm_sys::files::make_dirs;
use swarm_sys::quoting::command_line;

/// Maximum size of `SWARM_ANSWER` in bytes; the kernel allows 128 KiB for one variable.
const ANSWER_BYTES_MAX: usize = 100 << 10;
/// First pause before a retry after a temporary failure; doubled at each further failure.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum pause before a retry.
const PAUSE_MAX: Duration = Duration::from_secs(300);

pub fn main(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let Some(dir) = arguments.next().map(PathBuf::from) else { return 2 };
    match play(&dir) {
        Ok(()) => 0,
        Err(cause) => {
            swarm_sys::complain!("swarm: error: {}: {cause}", dir.display());
            1
        }
    }
}

fn play(dir: &Path) -> Result<(), String> {
    let order = turns::read(dir).map_err(|error| error.to_string())?;
    let files = files_of(&order.place)?;
    let played = Role::prepare(dir, &order, &files).and_then(|role| role.play());
    match played {
        Ok(()) => Ok(()),
        Err(Fail::Gone) => {
            swarm_sys::say!("the turn was ended or replaced in the meantime");
            Ok(())
        }
        Err(Fail::Store(error)) => Err(error.to_string()),
        Err(Fail::Over(cause)) => give_up(&order, &files, &cause),
    }
}

fn give_up(order: &Order, files: &FlowFiles, cause: &str) -> Result<(), String> {
    swarm_sys::say!("waiting for a person: {cause}");
    let given = files.update(|open| match check(order, open) {
        Ok(()) => abort(open, &order.turn, cause),
        Err(_) => Ok(()),
    });
    given.map_err(|error| error.to_string())
}

/// Checks that this turn is still the current one of its role.
///
/// # Errors
/// Fails with [`Fail::Gone`] if it is not.
fn check(order: &Order, open: &Open) -> Result<(), Fail> {
    let is_at = open.sidecar.is_at(&order.turn) && is_open(&open.flow, &order.turn);
    if is_at { Ok(()) } else { Err(Fail::Gone) }
}

/// Returns the role's worktree; `None` outside of a repository.
///
/// # Errors
/// Fails if the current directory is the main checkout, which must not be committed by a role.
fn worktree(site: &FlowSite, caller: &Caller) -> Result<Option<PathBuf>, String> {
    let Some(repo) = &site.repo else { return Ok(None) };
    // The worker starts at the root of its worktree, whose `.git` file is not asked where that is.
    let here = Path::new(&caller.cwd).canonicalize().map_err(|error| format!("{}: {error}", caller.cwd))?;
    if here == *repo {
        return Err(format!("'{}' is not a separate worktree", here.display()));
    }
    role::verify(&here, repo).map_err(|refusal| refusal.cause)?;
    Ok(Some(here))
}

/// Returns the caller for git commands: this process with its environment.
fn caller() -> Result<Caller, String> {
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let cwd = cwd.to_str().ok_or("the path of the current directory is not valid UTF-8")?.to_owned();
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let umask = rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    rustix::process::umask(umask);
    Ok(Caller { cwd, environment: environment.into(), umask: umask.bits(), ..Caller::default() })
}

/// Reason why a turn ends without a signal.
#[derive(Debug)]
enum Fail {
    /// The turn was ended or replaced.
    Gone,
    /// A person has to decide how to continue.
    Over(String),
    Store(StoreError),
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Fail {
    fn from(error: io::Error) -> Self {
        Self::Store(StoreError::System(error))
    }
}

struct Role<'a> {
    dir: &'a Path,
    order: &'a Order,
    files: &'a FlowFiles,
    player: Player,
    caller: Caller,
    worktree: Option<PathBuf>,
    /// Repository of the worktree.
    repo: Option<PathBuf>,
    /// Repository, or the folder of the project.
    project: PathBuf,
    /// Record folder, to which artifacts are copied.
    record: String,
}

impl<'a> Role<'a> {
    fn prepare(dir: &'a Path, order: &'a Order, files: &'a FlowFiles) -> Result<Self, Fail> {
        let caller = caller().map_err(Fail::Over)?;
        let site = FlowSite::of(&order.place, &caller).map_err(Fail::Over)?;
        site.config.check_asked().map_err(Fail::Over)?;
        let player = site.config.player(&order.turn.role).map_err(Fail::Over)?;
        let worktree = worktree(&site, &caller).map_err(Fail::Over)?;
        let record = files.read()?.record_folder().to_owned();
        // The order may be that of an earlier version.
        make_dirs(&turns::outbox(dir))?;
        let (repo, project) = (site.repo.clone(), site.repo.unwrap_or(site.dir));
        Ok(Self { dir, order, files, player, caller, worktree, repo, project, record })
    }

    fn play(&self) -> Result<(), Fail> {
        let open = self.files.open()?;
        self.check(&open)?;
        self.check_consent(&open)?;
        self.check_script(&open)?;
        let mut session = self.session(&open);
        let mut said = self.prompt(session.is_some())?;
        if let Some(worktree) = &self.worktree {
            role::clear_stale_locks(worktree, self.repo.as_deref().unwrap_or(&self.project));
        }
        // A turn that was killed may have left its signal.
        if self.brings_what_was_left()? {
            return Ok(());
        }
        self.note(&[self.activation()]);
        let conflicts = self.take_in()?;
        if !conflicts.is_empty() {
            // A script would continue as if there were no conflicts.
            if !self.player.agent.converses() {
                return Err(Fail::Over(conflicts));
            }
            said = format!("{said}\n{conflicts}");
            self.write(PROMPT, &said)?;
        }
        let mut failures = 0;
        loop {
            let (report, spoken) = self.turn(&said, session.as_ref())?;
            if report.is_gone && session.take().is_some() {
                // The new conversation needs the whole prompt.
                said = format!("{}\n{conflicts}", self.prompt(false)?);
                self.write(PROMPT, &said)?;
                continue;
            }
            session = report.session.or(session);
            self.keep_session(session.as_ref())?;
            let (refusal, why) = match report.outcome {
                Outcome::Success { .. } => match self.bring(report.said.as_deref().unwrap_or(&spoken))? {
                    Brought::Done => return Ok(()),
                    Brought::Refused(refusal) => {
                        let message = refusal.message.strip_prefix("Error: ").unwrap_or(&refusal.message);
                        let why = format!("{}: {message}", refusal.summary);
                        (refusal, why)
                    }
                },
                Outcome::Stopped | Outcome::Parked { .. } => {
                    return Err(Fail::Over("the turn was stopped".to_owned()));
                }
                // The agent had given its signal before it failed.
                Outcome::Failure { .. } if self.brings_what_was_left()? => return Ok(()),
                Outcome::Failure { cause, fault, .. } => {
                    self.check(&self.files.open()?)?;
                    failures += 1;
                    self.pause(&cause, fault, failures)?;
                    (word::failed(&cause), cause)
                }
            };
            self.repair(&refusal, &why)?;
            said = match session.is_some() && self.player.agent.resumes() {
                true => refusal.message,
                false => self.again(&refusal)?,
            };
        }
    }

    /// Applies the signal in the handoff file, if any, and returns whether that succeeded. Deletes a refused signal.
    fn brings_what_was_left(&self) -> Result<bool, Fail> {
        if !turns::has_handoff(self.dir) {
            // A folder or a link, if anything.
            return self.forget_word().map(|()| false);
        }
        match self.bring("")? {
            Brought::Done => Ok(true),
            Brought::Refused(_) => self.forget_word().map(|()| false),
        }
    }

    /// Deletes the handoff file, so that the next turn does not start with a refused signal.
    fn forget_word(&self) -> Result<(), Fail> {
        Ok(turns::remove_handoff(self.dir)?)
    }

    /// Writes a file of the turn. Replaces a link, and does not follow it.
    fn write(&self, name: &str, text: &str) -> Result<(), Fail> {
        Ok(flows::replace_lightly(&self.dir.join(name), text.as_bytes())?)
    }

    /// Adds items to the role's feed, which is only for readers. Failures are only warned of.
    fn note(&self, items: &[(Kind, String)]) {
        if let Err(error) = feed::add(self.files.dir(), &self.order.turn.role, items) {
            swarm_sys::complain!("swarm: warning: cannot write the feed of the role: {error}");
        }
    }

    fn check(&self, open: &Open) -> Result<(), Fail> {
        check(self.order, open)
    }

    /// Refuses an agent that cannot ask for permission if the flow allows nothing without asking.
    fn check_consent(&self, open: &Open) -> Result<(), Fail> {
        let is_free = !self.player.agent.kind.can_be_held_back() && !self.player.is_unsafe;
        if !is_free || flows::store::gate_of(&open.flow).mode() != Consent::NoAccess {
            return Ok(());
        }
        let (agent, id) = (&self.player.agent.name, open.flow.id().to_string());
        let consent = command_line(["swarm", "flow", "consent", &id, "full-access"]);
        Err(Fail::Over(format!(
            "agent '{agent}' cannot ask for permission: run '{consent}' or set 'unsafe = true' \
             for the role in swarm.toml, then answer"
        )))
    }

    /// Refuses to execute work that is not that of the start, and to which no person agreed.
    fn check_script(&self, open: &Open) -> Result<(), Fail> {
        let (turn, work) = (&self.order.turn, &self.order.work);
        let is_shell = self.player.agent.kind == swarm_agents::Kind::Shell;
        let Some(node) = turn.node.as_ref().filter(|_| is_shell) else { return Ok(()) };
        let script = self.script()?;
        if open.may_execute(node, &turn.role, work) {
            return Ok(());
        }
        let cause = "what this node executes was changed after the flow started";
        if script.len() > WORK_BYTES_MAX || work.iter().map(String::len).sum::<usize>() > WORK_BYTES_MAX {
            let remedy = format!("write less than {WORK_BYTES_MAX} bytes into workflow.yaml, then answer");
            return Err(Fail::Over(format!("{cause}, and is too long to be shown: {remedy}")));
        }
        self.files.update(|open| {
            self.check(open)?;
            open.propose(node, &turn.role, work);
            Ok::<_, Fail>(())
        })?;
        Err(Fail::Over(format!("{cause}, and needs your approval")))
    }

    fn activation(&self) -> (Kind, String) {
        let role = &self.order.turn.role;
        (Kind::Activation, format!("{} ({role}) is active.", self.order.turn.node.as_ref().unwrap_or(role)))
    }

    fn session(&self, open: &Open) -> Option<Session> {
        let side = open.sidecar.roles.get(&self.order.turn.role)?;
        let same = side.agent.as_ref() == Some(&self.player.agent.name) && self.player.agent.resumes();
        side.session.clone().filter(|_| same)
    }

    /// Records the conversation at once, so that an interrupted turn can resume it.
    fn keep_session(&self, session: Option<&Session>) -> Result<(), Fail> {
        let Some(session) = session else { return Ok(()) };
        self.files.update(|open| {
            // A denial by a person ends the turn but not its conversation.
            if !open.sidecar.is_at(&self.order.turn)
                && open.sidecar.role(&self.order.turn.role).turn != self.order.turn.number
            {
                return Err(Fail::Gone);
            }
            let side = open.sidecar.role(&self.order.turn.role);
            side.agent = Some(self.player.agent.name.clone());
            side.session = Some(session.clone());
            Ok(())
        })
    }

    fn prompt(&self, knows: bool) -> Result<String, Fail> {
        let said = if knows { &self.order.prompt } else { &self.order.whole };
        self.write(PROMPT, said)?;
        if self.player.agent.kind == swarm_agents::Kind::Shell {
            return self.script();
        }
        Ok(said.clone())
    }

    fn script(&self) -> Result<String, Fail> {
        if self.order.turn.node.is_none() {
            return Ok(word::LOOK_BACK.to_owned());
        }
        shell_script(&self.order.work.join("\n")).map_err(|cause| Fail::Over(format!("work of the node: {cause}")))
    }

    /// Returns the whole prompt with the refusal, for an agent without a conversation.
    fn again(&self, refusal: &Refusal) -> Result<String, Fail> {
        let text = format!("{}\n## What was wrong with your last answer\n\n{}\n", self.order.whole, refusal.message);
        self.write(PROMPT, &text)?;
        if self.player.agent.kind == swarm_agents::Kind::Shell { self.script() } else { Ok(text) }
    }

    /// Returns the branch that was recorded for the role's worktree.
    fn branch(&self) -> String {
        swarm_store::flows::active::branch(&self.order.place, &self.order.turn.role)
    }

    /// Merges the commits that other roles handed over. Returns instructions for the agent if there are conflicts.
    fn take_in(&self) -> Result<String, Fail> {
        let Some(worktree) = &self.worktree else { return Ok(String::new()) };
        let mut conflicts = String::new();
        let branch = self.branch();
        let base_repo = self.repo.as_deref().unwrap_or(&self.project);
        let tree = role::RoleTree { dir: worktree, base_repo, branch: &branch };
        for (from, commit) in &self.order.commits {
            match role::merge_handoff(tree, commit, from, &self.caller) {
                Ok(role::MergeOutcome::Merged) => {}
                Ok(role::MergeOutcome::Conflict(files)) => {
                    let files = files.join(", ");
                    conflicts.push_str(&format!(
                        "The work of {from} (commit {commit}) conflicts with your worktree; the conflict markers are \
                         in {files}. Resolve them first.\n"
                    ));
                }
                Err(refusal) => conflicts.push_str(&format!(
                    "The work of {from} (commit {commit}) is not in your worktree yet: {}. Merge it with git.\n",
                    refusal.cause
                )),
            }
        }
        Ok(conflicts)
    }

    fn turn(&self, said: &str, session: Option<&Session>) -> Result<(Report, String), Fail> {
        let mut agent = self.player.agent.clone();
        word::hold_back(&mut agent, self.files, self.dir, &self.project)?;
        let fresh_id = random_uuid();
        let here = std::env::current_dir()?;
        let here = here.to_string_lossy();
        let turn = Turn { prompt: said, session, fresh_id: &fresh_id, cwd: &here, consent: None };
        let mut launch = agent.launch(&turn);
        launch.env.extend(self.environment());
        let talk = agent.talk(&turn);
        self.write(TOLD, "")?;
        let mut teller = Spoken::new(!agent.resumes(), self);
        let report = take_turn(&launch, talk, &mut teller);
        let spoken = teller.end();
        let report = report.map_err(|error| {
            let program = launch.argv.first().map_or("nothing", String::as_str);
            Fail::Over(format!("cannot start '{program}': {error}"))
        })?;
        Ok((report, spoken))
    }

    fn environment(&self) -> Vec<(String, String)> {
        let (place, turn) = (&self.order.place, &self.order.turn);
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut variables = vec![
            ("SWARM_FLOW", place.to_string()),
            ("SWARM_FLOW_ROOT", place.root.clone()),
            ("SWARM_NODE", turn.node.clone().unwrap_or_default()),
            ("SWARM_ROLE", turn.role.clone()),
            ("SWARM_TURN", turn.number.to_string()),
            ("SWARM_RECORD", self.record.clone()),
            ("SWARM_HANDOFF", path(&turns::handoff(self.dir))),
            ("SWARM_PROMPT", path(&self.dir.join(PROMPT))),
        ];
        // A longer answer does not fit into the environment; the prompt contains it.
        let answer = self.order.answer.clone().filter(|answer| answer.len() <= ANSWER_BYTES_MAX);
        variables.extend(answer.map(|answer| ("SWARM_ANSWER", answer)));
        if let Some(worktree) = &self.worktree {
            variables.push(("SWARM_WORKTREE", worktree.to_string_lossy().into_owned()));
        }
        if let Some(search) = word::search_path() {
            variables.push(("PATH", search));
        }
        variables.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Waits before a retry as the kind of failure requires. A lasting failure is left to a person.
    fn pause(&self, cause: &str, fault: FaultKind, failures: u32) -> Result<(), Fail> {
        match fault {
            FaultKind::Lasting => Err(Fail::Over(cause.to_owned())),
            FaultKind::Limit { until_ms: Some(until_ms) } => {
                swarm_sys::say!("{cause}");
                self.files.update(|open| {
                    let members = [("role", json!(self.order.turn.role)), ("until", json!(until_ms))];
                    open.tell("role.delayed", members);
                    Ok::<_, StoreError>(())
                })?;
                thread::sleep(Duration::from_millis(until_ms.saturating_sub(wall_ms())));
                Ok(())
            }
            FaultKind::Passing | FaultKind::Limit { until_ms: None } => {
                thread::sleep(PAUSE.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX));
                Ok(())
            }
            FaultKind::Task | FaultKind::Lost => Ok(()),
        }
    }

    /// Counts a repair, and gives up if the limit is reached.
    fn repair(&self, refusal: &Refusal, why: &str) -> Result<(), Fail> {
        let Refusal { code, summary, .. } = refusal;
        swarm_sys::say!("sent back: {summary}");
        self.note(&[(Kind::Repair, summary.clone())]);
        let turn = &self.order.turn;
        let is_enough = self.files.update(|open| {
            // A person may have denied a request or ended the turn.
            self.check(open)?;
            let repairs = open.sidecar.repairs.entry(turn.role.clone()).or_default();
            let is_enough = *repairs >= self.player.repairs;
            if !is_enough {
                *repairs += 1;
                let members = [
                    ("nodeId", json!(turn.node)),
                    ("role", json!(turn.role)),
                    ("code", json!(code.word())),
                    ("summary", json!(summary)),
                ];
                open.tell("repair.requested", members);
            }
            Ok::<_, Fail>(is_enough)
        })?;
        self.forget_word()?;
        if is_enough { Err(Fail::Over(why.to_owned())) } else { Ok(()) }
    }
}
