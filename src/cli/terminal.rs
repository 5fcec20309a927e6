//! Verbs that use a pane: converts their arguments for `peek`, `send` and `attach`, and prints the results.

use std::borrow::Cow;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use serde_json::json;
use swarm_model::screen::steady_ms;
use swarm_model::{Ended, ExitRecord, Refusal, RefusalKind, Spawned, WorkerView};

use super::answers::refusal_object;
use super::args::{AttachArgs, EofArgs, InterruptArgs, KeysArgs, PeekArgs, SendArgs};
use super::error::Failure;
use super::render::signal_name;
use super::screen::Screen;
use super::send::{Proof, Typed, Verb, Who};
use super::session::dialogs::give_way;
use super::tagged::Tagged;
use super::trust::gate;
use super::watch::{Changes, Until, wait_any};
use super::{attach, json, peek, ready, send};
use swarm_store::asks::Asks;
use swarm_store::views::{Registry, load_one};
use swarm_store::windows::{Clear, SendOptions};
use swarm_sys::paths::Paths;

/// Maximum length of a text from standard input: that of an argument.
const TEXT_BYTES_MAX: u64 = 128 << 10;

type Environment = Vec<(String, String)>;
type Act<'a> = &'a dyn Fn(&mut Verb<'_>, Option<Who<'_>>) -> Result<u8, Refusal>;

pub fn peek(args: &PeekArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let lines = args.lines.map(|lines| lines as usize);
    let who = who(args.name.as_deref(), args.all, &args.tagged);
    let act = |verb: &mut Verb<'_>, who: Option<Who<'_>>| peek::peek(verb, who, lines);
    let told =
        if args.json { tell(paths, screen, who, "swarm.panes/1", &act) } else { speak(paths, screen, who, &act) };
    told.map_err(Failure::unknown_is_two)
}

pub fn send(args: &SendArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let options = SendOptions { clear: if args.raw { Clear::Nothing } else { Clear::Whole }, enter: !args.no_enter };
    let who = who(args.name(), args.all, &args.tagged);
    let proof = if args.no_proof { Proof::Waived } else { Proof::Wanted };
    let text = text_of(args.text())?;
    let typed = Typed { text: &text, options, proof };
    let act = |verb: &mut Verb<'_>, who: Option<Who<'_>>| {
        check_generation(verb, who, args.generation)?;
        send::send(verb, who, typed)
    };
    said(args.json, paths, screen, who, &act)
}

/// Returns the text that was typed, or standard input without its last newlines if that is `-`: arguments can be seen in
/// the list of processes.
fn text_of(typed: &str) -> Result<Cow<'_, str>, Failure> {
    if typed != "-" {
        return Ok(typed.into());
    }
    let mut text = String::new();
    let read = io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::system("cannot read standard input", &error))?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        let cause = format!("standard input is longer than {TEXT_BYTES_MAX} bytes");
        return Err(Failure::new(RefusalKind::Invalid, cause));
    }
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    if text.is_empty() {
        return Err(Failure::new(RefusalKind::Invalid, "standard input is empty; nothing was sent"));
    }
    Ok(text.into())
}

pub fn interrupt(args: &InterruptArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let who = who(args.name.as_deref(), args.all, &args.tagged);
    said(args.json, paths, screen, who, &|verb, who| {
        check_generation(verb, who, args.generation)?;
        send::interrupt(verb, who)
    })
}

pub fn eof(args: &EofArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let who = who(args.name.as_deref(), false, &args.tagged);
    said(args.json, paths, screen, who, &|verb, who| send::eof(verb, who))
}

/// Types keys. Refused below a worker: an agent must not answer questions that are meant for a person.
pub fn keys(args: &KeysArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    gate::refuse_keys_below_a_worker(&args.name)?;
    said(args.json, paths, screen, Some(Who::Name(&args.name)), &|verb, who| {
        check_generation(verb, who, args.generation)?;
        send::keys(verb, who, &args.keys)
    })
}

pub fn attach(args: &AttachArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    let generation = registry.find(&args.name).and_then(|view| view.row.swarm()).map(|swarm| swarm.generation);
    let before = || {
        // If this fails, the hook of the agent still waits, and the window shows that instead of the dialog.
        let _ = generation.map(|generation| give_way(&Asks::new(paths), &args.name, generation));
    };
    Ok(attach::attach(&registry, &args.name, &environment(), before)?)
}

/// Waits until the agent in a new window shows its prompt, at most `limit`. Returns a warning if it does not.
pub fn unready(spawned: &Spawned, paths: &Paths, limit: Duration) -> Result<Option<String>, Failure> {
    let name = &spawned.name;
    let late = || Some(format!("agent '{name}' did not become ready within {}s", limit.as_secs()));
    let Some(view) = load_one(paths, name)? else { return Ok(late()) };
    let Some(target) = swarm_store::windows::target(&view, &environment()).map_err(Refusal::from)? else {
        return Ok(None);
    };
    let log = paths.log(&spawned.name, "tmux");
    let steady = Duration::from_millis(steady_ms(&view.row.cmd));
    let readiness =
        ready::wait_ready(&target, Some(&log), view.watch.as_ref(), steady, limit).map_err(Refusal::from)?;
    Ok(match readiness {
        ready::Readiness::Ready => None,
        ready::Readiness::Asks(dialog) => {
            let sentence = dialog.sentence();
            let remedy = format!("run 'swarm attach {name}' and answer, or use 'swarm keys {name} KEY…'");
            Some(format!("agent '{name}' is not ready: it {sentence}; {remedy}"))
        }
        ready::Readiness::TimedOut => late(),
        ready::Readiness::Ended => Some(gone(name, exit_of(name, paths)?.as_ref())),
    })
}

/// Maximum wait for the record of an end that was seen.
const RECORD_MAX: Duration = Duration::from_secs(2);

/// Returns how a worker ended whose window is gone. `None` if nothing records that in time.
fn exit_of(name: &str, paths: &Paths) -> Result<Option<ExitRecord>, Failure> {
    let deadline = Instant::now() + RECORD_MAX;
    let changes = Changes::new()?;
    if let Some(dir) = load_one(paths, name)?.and_then(|view| view.dir) {
        changes.add_dir(&paths.workers().join(dir))?;
    }
    loop {
        let exit = load_one(paths, name)?.and_then(|view| view.exit);
        if exit.is_some() || deadline <= Instant::now() {
            return Ok(exit);
        }
        wait_any(&[(changes.as_fd(), Until::Readable)], Some(deadline))?;
        changes.take()?;
    }
}

/// Returns the warning that an agent ended before it was ready.
fn gone(name: &str, exit: Option<&ExitRecord>) -> String {
    let how = exit.map(|exit| match exit.ended {
        Ended::Code(code) => format!(" (exit {code})"),
        Ended::Signal(signal) => format!(" ({})", signal_name(signal)),
    });
    format!("agent '{name}' ended{} before it was ready; run 'swarm explain {name}'", how.unwrap_or_default())
}

/// Returns the text in the window of a worker, if it has one.
pub fn shown(view: &WorkerView) -> Option<String> {
    let target = swarm_store::windows::target(view, &environment()).ok()??;
    target.tmux.capture(&target.pane, 0, false).ok()
}

/// Returns the target of a verb. `--all` overrides a name, as in the original; tags narrow it.
fn who<'a>(name: Option<&'a str>, all: bool, tagged: &'a Tagged) -> Option<Who<'a>> {
    match name {
        _ if tagged.is_given() => Some(Who::Tagged(&tagged.tags)),
        _ if all => Some(Who::All),
        name => name.map(Who::Name),
    }
}

fn one(who: Option<Who<'_>>) -> Option<&str> {
    match who {
        Some(Who::Name(name)) => Some(name),
        Some(Who::All | Who::Tagged(_)) | None => None,
    }
}

fn said(as_json: bool, paths: &Paths, screen: &mut Screen, who: Option<Who<'_>>, act: Act<'_>) -> Result<u8, Failure> {
    if as_json { tell(paths, screen, who, "swarm.sent/1", act) } else { speak(paths, screen, who, act) }
}

/// Fails if the worker that is named has another generation than `meant`. Its window is that of the same generation, and no
/// later one gets it.
fn check_generation(verb: &Verb<'_>, who: Option<Who<'_>>, meant: Option<u64>) -> Result<(), Refusal> {
    let (Some(meant), Some(Who::Name(name))) = (meant, who) else { return Ok(()) };
    let present = send::known_worker(verb.registry, name)?.row.swarm().map(|swarm| swarm.generation);
    if present == Some(meant) { Ok(()) } else { Err(Refusal::started_again(name)) }
}

/// Runs a verb and prints its result in the words of the original.
fn speak(paths: &Paths, screen: &mut Screen, who: Option<Who<'_>>, act: Act<'_>) -> Result<u8, Failure> {
    let registry = super::read_for(paths, one(who), screen)?;
    let (done, text, complaints) = run(&registry, who, act);
    screen.bytes(&text)?;
    screen.errors(&complaints);
    Ok(done?)
}

/// Runs a verb and prints one JSON object: each worker with its text, or with the cause of its failure.
fn tell(paths: &Paths, screen: &mut Screen, who: Option<Who<'_>>, schema: &str, act: Act<'_>) -> Result<u8, Failure> {
    let registry = super::read_for(paths, one(who), screen)?;
    let Some(who) = who else { return Ok(run(&registry, None, act).0?) };
    let (mut workers, mut code) = (Vec::new(), 0);
    for worker in who.workers(&registry)? {
        let name = &worker.row.name;
        let (done, text, complaints) = run(&registry, Some(Who::Name(name)), act);
        screen.errors(&complaints);
        match (done, who) {
            (Ok(_), _) => workers.push(json!({ "name": name, "text": String::from_utf8_lossy(&text) })),
            (Err(refusal), Who::Name(_)) => return Err(refusal.into()),
            (Err(refusal), Who::All | Who::Tagged(_)) => {
                screen.refusal(&refusal);
                workers.push(refusal_object(&refusal.of(name)).into());
                code = 1;
            }
        }
    }
    json::print_list(screen, schema, "workers", workers)?;
    Ok(code)
}

fn run(registry: &Registry, who: Option<Who<'_>>, act: Act<'_>) -> (Result<u8, Refusal>, Vec<u8>, Vec<u8>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let environment = environment();
    let mut verb = Verb { registry, environment: &environment, out: &mut out, err: &mut err };
    let done = act(&mut verb, who);
    (done, out, err)
}

/// Returns the environment for tmux: all variables that are UTF-8.
fn environment() -> Environment {
    std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))).collect()
}
