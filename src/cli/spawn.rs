//! `swarm spawn`: checks the request completely before it asks the supervisor, with the messages of the original
//! `swarm` and in its order.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use swarm_model::{
    Caller, Contract, Every, NameError, NudgeOrder, NudgeSettings, Refusal, RefusalKind, Reply, RestartPolicy,
    SessionRules, SpawnRequest, Spawned, TmuxPlace, WatchRules, WorkerName, WorktreeRequest,
};

mod codex_hooks;
pub mod defaults;
mod env_file;
mod first_questions;
pub mod on;

use super::answers::{no_answer, spawned_line, spawned_object};
use super::args::SpawnArgs;
use super::caller;
use super::error::Failure;
use super::heartbeat;
use super::json;
use super::many;
use super::screen::Screen;
use super::terminal;
use swarm_actors::worker::LOG_LIMIT_BYTES;
use swarm_store::repositories;
use swarm_store::views::load;
use swarm_sys::lookup::{self, Place};

use crate::api::client::post;
use swarm_sys::paths::Paths;

/// Default nudge for a stuck worker.
const STUCK_MESSAGE: &str = "continue";

pub fn run(args: &SpawnArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    if let Some(file) = &args.file {
        return many::run(file, args.json, paths, screen);
    }
    if args.command.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "no command provided (use -- command...)"));
    }
    check_name(&args.name)?;
    let args = &on::adjusted(args, &defaults::filled(args, screen)?)?;
    let nudge = nudge(args).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let collected = caller::collect()?;
    if args.worktree {
        repair_bare(Path::new(&collected.caller.cwd), &collected.caller, screen);
    }
    let log_limit = std::env::var("SWARM_LOG_MAX_BYTES").ok();
    let request = build(args, collected.caller, &paths.session(), log_limit.as_deref())
        .map_err(|refusal| taken_first(&args.name, paths).unwrap_or(refusal))?;
    for variable in &collected.dropped {
        screen.warning(&format!("environment variable '{variable}' is not valid UTF-8 and is not passed on"));
    }
    on::warning(args).into_iter().for_each(|warning| screen.warning(warning));
    let spawned = start(&request, paths, &mut |text| screen.warning(&text))?;
    announce(args, &spawned, nudge, paths, screen)
}

/// Repairs the repository around `dir` if it has a working tree but says that it is bare, as the original `swarm` does
/// before it creates a worktree. If that fails, the start is refused later, because a bare repository has no worktree.
pub fn repair_bare(dir: &Path, caller: &Caller, screen: &mut Screen) {
    match repositories::repair_bare(dir, caller) {
        Ok(false) => {}
        Ok(true) => screen.warning("Fixed core.bare=true in git config"),
        Err(cause) => screen.warning(&format!("cannot repair core.bare=true in git's configuration: {cause}")),
    }
}

/// Asks the supervisor to start the worker. Passes its warnings to `warn`.
pub fn start(request: &SpawnRequest, paths: &Paths, warn: &mut dyn FnMut(String)) -> Result<Spawned, Failure> {
    if let Some(warning) = codex_hooks::ask(&request.contract, paths) {
        warn(warning);
    }
    let mut settled = None;
    post(paths, request, &mut |reply| match reply {
        Reply::Answer(spawned) => settled = Some(Ok(spawned)),
        Reply::Refused(refusal) => settled = Some(Err(refusal)),
        Reply::Warning(text) => warn(text),
    })?;
    let settled = settled.ok_or_else(no_answer)?;
    if let Err(refusal) = &settled
        && request.worktree.is_some()
        && matches!(refusal.kind, RefusalKind::Start | RefusalKind::Tool)
    {
        // The supervisor has removed the worktree by now. Scripts look for these words of the original `swarm`.
        warn("spawn failed, cleaning up partial state".to_owned());
    }
    Ok(settled?)
}

/// Waits for readiness if requested, then prints the result: a script that reads the line may type into the agent at
/// once.
fn announce(
    args: &SpawnArgs,
    spawned: &Spawned,
    nudge: Option<NudgeSettings>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    // First of all: waiting for readiness may take minutes or be interrupted.
    let nudge = begin_nudge(args, nudge, paths, screen);
    wait_ready(args, spawned, paths, screen)?;
    if args.json {
        json::print(screen, "swarm.spawned/1", &spawned_object(spawned))?;
    } else {
        screen.line(&spawned_line("spawned", spawned))?;
        if screen.terminal {
            screen.flush()?;
            screen.aside("hint: ", &next_steps(spawned));
        }
    }
    let nudge = nudge?;
    tell_nudge(nudge.as_ref().filter(|_| !args.json), screen)?;
    Ok(0)
}

/// Returns what a person may want to do with a new worker.
fn next_steps(spawned: &Spawned) -> String {
    let name = &spawned.name;
    let steps = match &spawned.window {
        Some(_) => format!("'swarm attach {name}' to type into its window, 'swarm peek {name}' to see it"),
        None => format!("'swarm logs {name} --follow' to see its output, 'swarm wait {name}' to wait for its end"),
    };
    let changes = spawned.worktree.as_ref().map(|_| format!(", 'swarm diff {name}' for its changes"));
    format!("{steps}{}", changes.unwrap_or_default())
}

pub fn tell_nudge(nudge: Option<&NudgeSettings>, screen: &mut Screen) -> Result<(), Failure> {
    nudge.map_or(Ok(()), |settings| screen.line(&format!("heartbeat started ({})", heartbeat::times(settings))))
}

/// Returns a hint about what the agent in the new window will ask first, if anything.
pub fn first_questions(args: &SpawnArgs, spawned: &Spawned) -> Option<String> {
    spawned.window.as_ref()?;
    let here = || std::env::current_dir().ok();
    let dir = spawned
        .worktree
        .as_ref()
        .map(PathBuf::from)
        .or_else(|| args.place.cwd.as_ref().map(PathBuf::from))
        .or_else(here)?;
    first_questions::hint(&spawned.name, &args.command, &dir.canonicalize().unwrap_or(dir))
}

/// Prints the warnings and notes about a start, and waits for readiness if requested.
pub fn wait_ready(args: &SpawnArgs, spawned: &Spawned, paths: &Paths, screen: &mut Screen) -> Result<(), Failure> {
    spawned.warnings.iter().for_each(|warning| screen.warning(warning));
    spawned.notes.iter().for_each(|note| screen.aside("note: ", note));
    if let Some(hint) = first_questions(args, spawned) {
        screen.aside("hint: ", &hint);
    }
    let timeout = Duration::from_secs(args.place.ready_timeout);
    if args.place.ready_wait
        && spawned.window.is_some()
        && let Some(warning) = terminal::unready(spawned, paths, timeout)?
    {
        screen.warning(&warning);
    }
    Ok(())
}

/// Parses the `--heartbeat` flags, so that mistakes are reported before anything starts.
pub fn nudge(args: &SpawnArgs) -> Result<Option<NudgeSettings>, String> {
    let Some(interval) = &args.place.nudge.heartbeat else { return Ok(None) };
    let every = Every::Interval { ms: heartbeat::args::interval(interval)? };
    let expire_ms = args.place.nudge.heartbeat_expire.as_deref().map(heartbeat::args::expire).transpose()?;
    let message = heartbeat::args::message(&args.place.nudge.heartbeat_message)?;
    Ok(Some(NudgeSettings { every, message, expire_ms, jitter_ms: 0 }))
}

/// Starts the heartbeat of a worker that has been started.
///
/// # Errors
/// Returns an error if the heartbeat cannot start; the worker runs nevertheless.
pub fn begin_nudge(
    args: &SpawnArgs,
    nudge: Option<NudgeSettings>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<Option<NudgeSettings>, Failure> {
    let Some(settings) = nudge else { return Ok(None) };
    if !args.tmux {
        screen.warning("heartbeat requires tmux worker, skipping (use --tmux)");
        return Ok(None);
    }
    heartbeat::warn_of(&settings, &mut |text| screen.warning(text));
    // Replace the heartbeat file of an earlier worker with this name.
    let order = NudgeOrder::Start { settings: settings.clone(), force: true };
    match heartbeat::ask(&args.name, order, paths) {
        Ok(_) => Ok(Some(settings)),
        Err(refusal) => {
            let cause = format!("worker started, but its heartbeat was not: {}", refusal.cause);
            Err(Refusal { cause, ..refusal }.into())
        }
    }
}

pub fn check_name(name: &str) -> Result<(), Refusal> {
    let named = |error: NameError| {
        Refusal::new(RefusalKind::Invalid, format!("invalid worker name '{name}': {error}")).remedy(WorkerName::RULE)
    };
    WorkerName::parse(name).map(drop).map_err(named)
}

/// Returns the refusal for a name in use. The original `swarm` reports that before any other mistake. The supervisor
/// decides whether a name is free, so the registry is read here only if there is another mistake to report.
pub fn taken_first(name: &str, paths: &Paths) -> Option<Refusal> {
    let registry = load(paths).ok()?;
    registry.find(name)?;
    Some(Refusal::exists(name))
}

pub fn build(
    args: &SpawnArgs,
    mut caller: Caller,
    session: &str,
    log_limit: Option<&str>,
) -> Result<SpawnRequest, Refusal> {
    let env = parse_env(&args.place.env)?;
    check_together(args)?;
    let cwd = directory(args, &caller)?;
    // Sent once: the supervisor takes the environment of the caller from the contract.
    let environment = std::mem::take(&mut caller.environment);
    let private = env_file::read_all(&args.place.env_files, Path::new(&caller.cwd))?;
    let path = lookup::path_of(&env, &private).or_else(|| lookup::path_of(&env, &environment));
    let place = if args.worktree { Place::LaterWorktree } else { Place::Directory(Path::new(&cwd)) };
    if args.on.is_none() {
        lookup::check(&args.command[0], path, &place)?;
    }
    let tmux = args.tmux.then(|| tmux_place(args, session)).transpose()?;
    let worktree = args.worktree.then(|| WorktreeRequest {
        cwd: caller.cwd.clone(),
        branch: args.place.branch.clone(),
        dir: args.place.worktree_dir.clone(),
        base: args.place.base.clone(),
        ..WorktreeRequest::default()
    });
    let mut contract = Contract {
        argv: args.command.clone(),
        cwd,
        environment,
        private: private.into(),
        env,
        tags: args.place.tags.clone(),
        umask: caller.umask,
        rlimits: caller.rlimits.clone(),
        nice: caller.nice,
        attributes: caller.attributes.clone(),
        tmux,
        restart: args.restart.map_or(RestartPolicy::Never, Into::into),
        timeout_ms: args.timeout.map(|life| u64::try_from(life.as_millis()).unwrap_or(u64::MAX).max(1)),
        log_limit_bytes: parse_log_limit(log_limit)?,
        merge: args.merge,
        session: session_rules(args, &caller)?,
        watch: args.stuck_after.map(|after| WatchRules {
            after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            message: args.stuck_message.clone().unwrap_or_else(|| STUCK_MESSAGE.to_owned()),
        }),
        limits: args.place.limits.into(),
        ..Contract::default()
    };
    on::make_job(args, &mut contract)?;
    Ok(SpawnRequest { caller, name: args.name.clone(), contract, worktree, replaces: None, takes_over: None })
}

/// Refuses flags whose prerequisite is neither given nor configured.
fn check_together(args: &SpawnArgs) -> Result<(), Refusal> {
    if args.merge && !args.worktree {
        let refusal = Refusal::new(RefusalKind::Invalid, "--merge requires a worktree");
        return Err(refusal.remedy("add --worktree"));
    }
    if args.stuck_message.is_some() && args.stuck_after.is_none() {
        let refusal = Refusal::new(RefusalKind::Invalid, "--stuck-message requires --stuck-after");
        return Err(refusal.remedy("add --stuck-after DURATION"));
    }
    Ok(())
}

/// Reads the session flags. The session directory must exist: creating it would hide a typing error.
fn session_rules(args: &SpawnArgs, caller: &Caller) -> Result<SessionRules, Refusal> {
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let dir = args.session_dir.as_ref().map(|asked| {
        let joined = Path::new(&caller.cwd).join(asked);
        let absolute = std::path::absolute(&joined).unwrap_or(joined);
        if !absolute.is_dir() {
            return Err(invalid(format!("session directory does not exist: {asked}")));
        }
        Ok(absolute.to_str().expect("two texts joined are text").to_owned())
    });
    let has_session = args.worktree || args.session_dir.is_some();
    let typed = [("--issue", &args.issue), ("--work-type", &args.work_type), ("--prompt", &args.prompt)];
    if let Some((flag, _)) = typed.iter().find(|(_, value)| value.is_some()).filter(|_| !has_session) {
        let refusal = invalid(format!("{flag} requires a session"));
        return Err(refusal.remedy("add --worktree or --session-dir DIR"));
    }
    if args.issue.as_ref().is_some_and(|issue| issue.trim().is_empty() || issue.contains(char::is_control)) {
        return Err(invalid("invalid --issue: empty or contains control characters".to_owned()));
    }
    Ok(SessionRules {
        dir: dir.transpose()?,
        issue: args.issue.clone(),
        work_type: args.work_type.clone(),
        prompt: args.prompt.clone(),
        provider: None,
    })
}

/// Parses `KEY=VAL` pairs, split at the first `=`; the last of two equal keys wins.
fn parse_env(pairs: &[String]) -> Result<BTreeMap<String, String>, Refusal> {
    let mut env = BTreeMap::new();
    for pair in pairs {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() && !pair.contains('\0') => {
                env.insert(key.to_owned(), value.to_owned());
            }
            _ => {
                let cause = format!("invalid env format '{pair}' (expected KEY=VAL)");
                return Err(Refusal::new(RefusalKind::Invalid, cause));
            }
        }
    }
    Ok(env)
}

/// Returns the absolute working directory, because the next command that reads the row may run elsewhere. `--cwd` is
/// ignored with `--worktree`.
fn directory(args: &SpawnArgs, caller: &Caller) -> Result<String, Refusal> {
    let Some(asked) = args.place.cwd.as_ref().filter(|_| !args.worktree) else { return Ok(caller.cwd.clone()) };
    let invalid = |cause: String| Refusal::new(RefusalKind::Invalid, cause);
    let joined: PathBuf = Path::new(&caller.cwd).join(asked);
    match std::fs::metadata(&joined) {
        Ok(meta) if !meta.is_dir() => return Err(invalid(format!("working directory is not a directory: {asked}"))),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(invalid(format!("working directory does not exist: {asked}")));
        }
        Err(error) => return Err(invalid(format!("cannot use working directory '{asked}': {error}"))),
    }
    let absolute = std::path::absolute(&joined).unwrap_or(joined);
    Ok(absolute.to_str().expect("two texts joined are text").to_owned())
}

/// Returns the session and server for the window. Names with a special meaning for tmux are refused.
fn tmux_place(args: &SpawnArgs, session: &str) -> Result<TmuxPlace, Refusal> {
    let invalid = |cause: String| Err(Refusal::new(RefusalKind::Invalid, cause));
    if let Some(name) = &args.place.session
        && (name.is_empty()
            || name.starts_with(['=', '@', '$', '%'])
            || name.contains([':', '.', '#', '{', '}'])
            || name.contains(char::is_control))
    {
        return invalid(format!("invalid --session '{name}': has a special meaning for tmux"));
    }
    if let Some(name) = &args.place.tmux_socket
        && (name.is_empty() || name.contains('/') || name.contains(char::is_control) || name == "." || name == "..")
    {
        return invalid(format!("invalid --tmux-socket '{name}': expected a file name, not a path"));
    }
    let session = args.place.session.as_deref().unwrap_or(session).to_owned();
    Ok(TmuxPlace { session, socket: args.place.tmux_socket.clone(), socket_path: None })
}

fn parse_log_limit(text: Option<&str>) -> Result<u64, Refusal> {
    match text {
        None | Some("") => Ok(LOG_LIMIT_BYTES),
        Some(text) => text.parse().ok().filter(|bytes| *bytes > 0).ok_or_else(|| {
            let cause = format!("invalid SWARM_LOG_MAX_BYTES '{text}': expected a number of bytes above 0");
            Refusal::new(RefusalKind::Invalid, cause)
        }),
    }
}

#[cfg(test)]
#[path = "spawn_tests.rs"]
mod tests;
