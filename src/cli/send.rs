//! `swarm send`, `interrupt` and `eof`: keys typed into workers. A line on standard output confirms that tmux accepted
//! them for exactly that pane; otherwise the verb fails.

use std::io::Write;

use swarm_model::{Refusal, RefusalKind, WorkerView, nearest};

use super::tagged::{self, has_all};
use swarm_agents::resume;
use swarm_store::views::Registry;
use swarm_store::windows::{Clear, Key, NamedKey, SendOptions, Target, TmuxError};

/// Environment of the caller, in its order.
pub type Environment = [(String, String)];

/// Target of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    Name(&'a str),
    /// Every running tmux worker; others are skipped silently.
    All,
    /// Every running tmux worker with all of these tags.
    Tagged(&'a [String]),
}

impl Who<'_> {
    /// Returns the target workers.
    ///
    /// # Errors
    /// Returns an error if the named worker is not a running tmux worker, or if no running tmux worker has the tags.
    pub fn workers(self, registry: &Registry) -> Result<Vec<&WorkerView>, Refusal> {
        match self {
            Who::Name(name) => Ok(vec![live_worker(registry, name)?]),
            Who::All => Ok(live_workers(registry).collect()),
            Who::Tagged(tags) => {
                tagged::workers(tags, registry)?;
                let live: Vec<&WorkerView> = live_workers(registry).filter(|view| has_all(&view.row, tags)).collect();
                let cause = || format!("no running tmux worker has the tag '{}'", tags.join("', '"));
                if live.is_empty() { Err(Refusal::new(RefusalKind::NotFound, cause())) } else { Ok(live) }
            }
        }
    }
}

/// Text to type, with its options.
#[derive(Clone, Copy, Debug)]
pub struct Typed<'a> {
    pub text: &'a str,
    pub options: SendOptions,
    pub proof: Proof,
}

/// Requirement that the window shows the text before Enter is pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    Wanted,
    Waived,
}

/// Types a text into one worker or several.
///
/// # Errors
/// Returns an error if the named worker cannot be reached, or if no target is given.
pub fn send(verb: &mut Verb<'_>, who: Option<Who<'_>>, typed: Typed<'_>) -> Result<u8, Refusal> {
    let missing = || Refusal::new(RefusalKind::Invalid, "--name required when not using --all");
    let who = who.ok_or_else(|| missing().remedy("run 'swarm send NAME TEXT'; a single argument is the text"))?;
    let Typed { text, options, proof } = typed;
    let act = |worker: &WorkerView, target: &Target| {
        let options = SendOptions { clear: cleared(options.clear, &worker.row.cmd), ..options };
        match proof {
            Proof::Wanted => target.tmux.send_proven(&target.pane, text, options),
            Proof::Waived => target.tmux.send_text(&target.pane, text, options),
        }
    };
    each(verb, who, "sent to", &act)
}

/// Returns what to press before a text for this command. Escape interrupts a codex that works, and ends its turn.
fn cleared(clear: Clear, command: &[String]) -> Clear {
    match clear {
        Clear::Whole if resume::program(command) == Some("codex") => Clear::Line,
        clear => clear,
    }
}

/// Types Ctrl-C into one worker or several.
///
/// # Errors
/// Fails as [`send`] does.
pub fn interrupt(verb: &mut Verb<'_>, who: Option<Who<'_>>) -> Result<u8, Refusal> {
    let missing = || Refusal::new(RefusalKind::Invalid, "worker name required when not using --all");
    let act = |_: &WorkerView, target: &Target| target.tmux.send_key(&target.pane, Key::Interrupt);
    each(verb, who.ok_or_else(missing)?, "interrupted", &act)
}

/// Types Ctrl-D into one worker or several.
///
/// # Errors
/// Fails as [`send`] does.
pub fn eof(verb: &mut Verb<'_>, who: Option<Who<'_>>) -> Result<u8, Refusal> {
    let who = who.ok_or_else(|| Refusal::new(RefusalKind::Invalid, "worker name required"))?;
    let act = |_: &WorkerView, target: &Target| target.tmux.send_key(&target.pane, Key::Eof);
    each(verb, who, "sent eof to", &act)
}

/// Types keys into one worker, whatever its window shows.
///
/// # Errors
/// Returns an error if the worker cannot be reached.
pub fn keys(verb: &mut Verb<'_>, who: Option<Who<'_>>, keys: &[NamedKey]) -> Result<u8, Refusal> {
    let who = who.ok_or_else(|| Refusal::new(RefusalKind::Invalid, "worker name required"))?;
    each(verb, who, "sent keys to", &|_: &WorkerView, target: &Target| target.tmux.send_named(&target.pane, keys))
}

/// Context of a verb: the registry, the environment for tmux, and the output streams.
pub struct Verb<'a> {
    pub registry: &'a Registry,
    pub environment: &'a Environment,
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
}

impl Verb<'_> {
    /// Writes one line to standard output.
    ///
    /// # Errors
    /// Returns an error if the line cannot be written.
    pub fn say(&mut self, line: &str) -> Result<(), Refusal> {
        writeln!(self.out, "{line}").map_err(|error| Refusal::new(RefusalKind::Internal, error.to_string()))
    }

    /// Reports the failure of one worker among several; the verb continues. Ignores failures to write.
    pub fn complain(&mut self, cause: &str) {
        let _ = writeln!(self.err, "swarm: error: {cause}");
    }
}

fn each(
    verb: &mut Verb<'_>,
    who: Who<'_>,
    done: &str,
    act: &dyn Fn(&WorkerView, &Target) -> Result<(), TmuxError>,
) -> Result<u8, Refusal> {
    let (registry, environment) = (verb.registry, verb.environment);
    let reach = |worker: &WorkerView| -> Result<(), Refusal> {
        let target = locate(worker, environment)?;
        act(worker, &target).map_err(|error| refusal(error, worker))
    };
    match who {
        Who::Name(name) => {
            reach(live_worker(registry, name)?)?;
            verb.say(&format!("{done} {name}"))?;
            Ok(0)
        }
        Who::All | Who::Tagged(_) => {
            let mut code = 0;
            for worker in who.workers(registry)? {
                match reach(worker) {
                    Ok(()) => verb.say(&format!("{done} {}", worker.row.name))?,
                    Err(refusal) => {
                        verb.complain(&format!("{}: {}", worker.row.name, refusal.cause));
                        code = 1;
                    }
                }
            }
            Ok(code)
        }
    }
}

/// Returns the refusal for a worker whose window did not take what was typed. A dialog whose request is recorded can be
/// answered without the window.
fn refusal(error: TmuxError, worker: &WorkerView) -> Refusal {
    let name = &worker.row.name;
    let TmuxError::Asks(dialog) = &error else { return Refusal::from(error).of(name) };
    let cause = format!("worker '{name}' {}; text would answer that, so nothing was sent", dialog.sentence());
    let in_window = format!("'swarm attach {name}' and answer, or use 'swarm keys {name} KEY…'");
    let answer = worker.ask.as_ref().filter(|_| !dialog.blocks_start()).and_then(|ask| ask.answer.as_ref());
    let remedy = match answer {
        Some(answer) => format!("run '{answer}', see 'swarm approvals'; or run {in_window}"),
        None => format!("run {in_window}"),
    };
    Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).of(name)
}

/// Returns the worker with this name.
///
/// # Errors
/// Returns `worker 'X' not found`, with the nearest name as hint.
pub fn known_worker<'a>(registry: &'a Registry, name: &str) -> Result<&'a WorkerView, Refusal> {
    registry.find(name).ok_or_else(|| {
        let refusal = Refusal::new(RefusalKind::NotFound, format!("worker '{name}' not found")).of(name);
        match nearest(name, registry.workers.iter().map(|worker| worker.row.name.as_str())) {
            Some(other) => refusal.remedy(format!("did you mean '{other}'?")),
            None => refusal,
        }
    })
}

/// Returns the running tmux worker with this name.
///
/// # Errors
/// Returns the refusals of the original `swarm`, in its order: not found, not a tmux worker, not running.
pub fn live_worker<'a>(registry: &'a Registry, name: &str) -> Result<&'a WorkerView, Refusal> {
    let worker = known_worker(registry, name)?;
    if !lives_in_tmux(worker) {
        return Err(Refusal::new(RefusalKind::Invalid, format!("worker '{name}' is not a tmux worker")).of(name));
    }
    // A session of the same name on this machine is another one.
    super::refuse_elsewhere(worker)?;
    if !worker.state.is_running() {
        return Err(Refusal::new(RefusalKind::Invalid, format!("worker '{name}' is not running")).of(name));
    }
    Ok(worker)
}

/// Returns every running tmux worker.
pub fn live_workers(registry: &Registry) -> impl Iterator<Item = &WorkerView> {
    let here = |worker: &&WorkerView| worker.state.is_running() && worker.elsewhere.is_none();
    registry.workers.iter().filter(|worker| lives_in_tmux(worker)).filter(here)
}

fn lives_in_tmux(worker: &WorkerView) -> bool {
    worker.row.tmux.is_some() || worker.pane.is_some()
}

/// Returns the pane of a tmux worker.
///
/// # Errors
/// Returns an error if its window is gone or tmux does not answer.
pub fn locate(worker: &WorkerView, environment: &Environment) -> Result<Target, Refusal> {
    let name = &worker.row.name;
    let target = swarm_store::windows::target(worker, environment).map_err(|error| Refusal::from(error).of(name))?;
    target.ok_or_else(|| Refusal::new(RefusalKind::Invalid, format!("worker '{name}' is not a tmux worker")).of(name))
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use swarm_model::{FineState, RestartPolicy, Row, RowTmux, TmuxPane, WireStatus};

    use super::*;
    use swarm_store::windows::Window;
    use swarm_store::windows::testing::{Private, wait_until};

    /// Returns a worker in a window of the private server; with a pane it is one of ours.
    pub fn worker(name: &str, tmux: Option<RowTmux>, pane: Option<TmuxPane>, state: FineState) -> WorkerView {
        let row = Row {
            name: name.to_owned(),
            status: if state.is_running() { WireStatus::Running } else { WireStatus::Stopped },
            cmd: vec!["x".to_owned()],
            started: "2026-01-01T00:00:00.000001".to_owned(),
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
            tags: Vec::new(),
            tmux,
            worktree: None,
            pid: None,
            metadata: swarm_model::Metadata::default(),
        };
        let restart = RestartPolicy::Never;
        WorkerView {
            row: row.into(),
            state,
            pid: None,
            watch: None,
            pane,
            exit: None,
            restart,
            restarts: 0,
            next_start_ms: None,
            activity: None,
            ask: None,
            stuck: None,
            limits: None,
            elsewhere: None,
            job: None,
            survivors: Vec::new(),
            given_up: None,
            retry_ms: None,
            dir: None,
        }
    }

    pub fn ours(name: &str, window: &Window) -> WorkerView {
        let row = RowTmux { session: window.session.clone(), window: name.to_owned(), socket: None };
        worker(name, Some(row), Some(window.pane.clone()), FineState::Running)
    }

    pub fn foreign(name: &str, server: &Private, session: &str) -> WorkerView {
        let socket = Some(server.name.clone());
        let row = RowTmux { session: session.to_owned(), window: name.to_owned(), socket };
        worker(name, Some(row), None, FineState::Running)
    }

    pub fn registry(workers: Vec<WorkerView>) -> Registry {
        Registry { workers, ..Registry::default() }
    }

    /// Runs a verb; returns its result, its standard output and its standard error.
    pub fn spoken(
        registry: &Registry,
        environment: &Environment,
        act: impl FnOnce(&mut Verb<'_>) -> Result<u8, Refusal>,
    ) -> (Result<u8, Refusal>, String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = act(&mut Verb { registry, environment, out: &mut out, err: &mut err });
        let text = |bytes| String::from_utf8(bytes).expect("is text");
        (result, text(out), text(err))
    }

    fn plain(text: &str) -> Typed<'_> {
        Typed { text, options: SendOptions { clear: Clear::Nothing, enter: true }, proof: Proof::Wanted }
    }

    #[test]
    fn escape_is_not_pressed_where_it_would_end_a_turn() {
        let command = |program: &str| vec![program.to_owned(), "go on".to_owned()];
        assert_eq!(cleared(Clear::Whole, &command("/opt/bin/codex")), Clear::Line);
        assert_eq!(cleared(Clear::Whole, &command("claude")), Clear::Whole);
        assert_eq!(cleared(Clear::Nothing, &command("codex")), Clear::Nothing);
    }

    #[test]
    fn a_dialog_whose_request_is_recorded_can_be_answered_by_its_number() {
        use swarm_model::dialog::{Dialog, Kind};
        use swarm_model::{NeedKind, Needs};
        let answer = Some("swarm approve 7".to_owned());
        let ask = Needs { kind: NeedKind::Permission, text: "Bash: make".to_owned(), since_ms: 1, answer };
        let told = |kind, ask: Option<&Needs>| {
            let worker = WorkerView { ask: ask.cloned(), ..worker("w", None, None, FineState::Running) };
            let dialog = Dialog { kind, title: "Do it?".to_owned(), choices: Vec::new() };
            refusal(TmuxError::Asks(Box::new(dialog)), &worker).remedy.expect("a remedy")
        };
        let window = "run 'swarm attach w' and answer, or use 'swarm keys w KEY…'";
        assert_eq!(told(Kind::Permission, None), window);
        assert_eq!(told(Kind::Trust, Some(&ask)), window, "the request is about something else");
        let both = format!("run 'swarm approve 7', see 'swarm approvals'; or {window}");
        assert_eq!(told(Kind::Permission, Some(&ask)), both);
    }

    #[test]
    fn refusals_have_the_original_words() {
        let tmux = RowTmux { session: "s".to_owned(), window: "w".to_owned(), socket: None };
        let registry = registry(vec![
            worker("process", None, None, FineState::Running),
            worker("ended", Some(tmux), None, FineState::Exited),
        ]);
        let cause = |name: &str| {
            spoken(&registry, &[], |verb| eof(verb, Some(Who::Name(name)))).0.expect_err("is refused").cause
        };
        assert_eq!(cause("nobody"), "worker 'nobody' not found");
        assert_eq!(cause("process"), "worker 'process' is not a tmux worker");
        assert_eq!(cause("ended"), "worker 'ended' is not running");
        let refusal = known_worker(&registry, "endedd").expect_err("is refused");
        assert_eq!(refusal.remedy.as_deref(), Some("did you mean 'ended'?"));
        let (sent, ..) = spoken(&registry, &[], |verb| send(verb, None, plain("x")));
        assert_eq!(sent.expect_err("is refused").cause, "--name required when not using --all");
        let (interrupted, ..) = spoken(&registry, &[], |verb| interrupt(verb, None));
        assert_eq!(interrupted.expect_err("is refused").cause, "worker name required when not using --all");
        let (all, out, err) = spoken(&registry, &[], |verb| send(verb, Some(Who::All), plain("x")));
        assert_eq!((all, out, err), (Ok(0), String::new(), String::new()));
    }

    #[test]
    fn text_reaches_one_worker_or_all_of_them() {
        let server = Private::new();
        let script = "while read line; do echo \"got $line\"; done";
        let (a, b) = (server.open("job", script), server.open("job-two", script));
        server.open("other", script);
        let gone =
            worker("gone", None, Some(TmuxPane { pane: "%99".to_owned(), ..a.pane.clone() }), FineState::Running);
        let workers = vec![ours("job", &a), foreign("job-two", &server, "swarm"), gone];
        let registry = registry(workers);
        let environment = &server.environment;
        let (sent, out, _) = spoken(&registry, environment, |verb| send(verb, Some(Who::Name("job")), plain("one")));
        assert_eq!((sent, out.as_str()), (Ok(0), "sent to job\n"));
        let (sent, out, err) = spoken(&registry, environment, |verb| send(verb, Some(Who::All), plain("two")));
        assert_eq!((sent, out.as_str()), (Ok(1), "sent to job\nsent to job-two\n"));
        assert_eq!(err, "swarm: error: gone: pane %99 has ended; the text was not delivered\n");
        wait_until("both", || server.logged("job").contains("got two") && server.logged("job-two").contains("got two"));
        assert!(server.logged("job").contains("got one") && !server.logged("job-two").contains("got one"));
        assert!(!server.logged("other").contains("got"));
        let (ended, out, _) = spoken(&registry, environment, |verb| eof(verb, Some(Who::Name("job"))));
        assert_eq!((ended, out.as_str()), (Ok(0), "sent eof to job\n"));
        let (interrupted, out, _) = spoken(&registry, environment, |verb| interrupt(verb, Some(Who::Name("job-two"))));
        assert_eq!((interrupted, out.as_str()), (Ok(0), "interrupted job-two\n"));
        let left = || server.tmux().list().expect("lists").into_iter().map(|line| line.window).collect::<Vec<_>>();
        wait_until("their end", || left() == ["other"]);
        assert_ne!(a.pane.pane, b.pane.pane);
    }
}
