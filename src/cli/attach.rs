//! `swarm attach`: shows the window of a worker on this terminal, by executing tmux in place of this process.

use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use swarm_model::{Refusal, RefusalKind};

use super::send::{Environment, live_worker, locate};
use swarm_store::views::Registry;

/// Calls `before` if nothing prevents it, and replaces this process with tmux. Returns only on failure.
///
/// # Errors
/// Returns an error if the worker has no window, if tmux cannot be executed, or if tmux would need a terminal and standard
/// input is none.
pub fn attach(
    registry: &Registry,
    name: &str,
    environment: &Environment,
    before: impl FnOnce(),
) -> Result<u8, Refusal> {
    let mut command = command(registry, name, environment)?;
    // Inside tmux, its client is moved, whatever standard input is.
    if command.get_args().any(|word| word == "attach-session") && !std::io::stdin().is_terminal() {
        let cause = format!("cannot attach to worker '{name}': standard input is not a terminal");
        let remedy = format!("run 'swarm peek {name}' to show its screen");
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).of(name));
    }
    before();
    let error = command.exec();
    Err(Refusal::new(RefusalKind::Tool, format!("cannot execute tmux: {error}")).of(name))
}

/// Returns the command to execute.
fn command(registry: &Registry, name: &str, environment: &Environment) -> Result<Command, Refusal> {
    let target = locate(live_worker(registry, name)?, environment)?;
    let of_worker = |error| Refusal::from(error).of(name);
    let pane = target.find().map_err(of_worker)?;
    target.tmux.attach_command(&pane).map_err(of_worker)
}

#[cfg(test)]
mod tests {
    use super::super::send::tests::{foreign, ours, registry, worker};
    use super::*;
    use swarm_model::FineState;
    use swarm_store::windows::testing::{Private, wait_until};

    #[test]
    fn only_running_tmux_workers_are_attached_to() {
        let registry = registry(vec![worker("process", None, None, FineState::Running)]);
        let cause = |name: &str| command(&registry, name, &[]).expect_err("is refused").cause;
        assert_eq!(cause("nobody"), "worker 'nobody' not found");
        assert_eq!(cause("process"), "worker 'process' is not a tmux worker");
    }

    #[test]
    fn attach_shows_the_window_and_inside_tmux_switches_to_it() {
        let server = Private::new();
        let window = server.open("job", "exec sleep 1000");
        server.open("job-two", "exec sleep 1000");
        let registry = registry(vec![ours("job", &window), foreign("job-two", &server, "swarm")]);
        // Another pane provides the terminal: first without `TMUX`, then from inside the same server.
        let script = |name: &str| {
            let command = command(&registry, name, &server.environment).expect("is made");
            let words: Vec<_> = command.get_args().map(|word| format!("'{}'", word.to_string_lossy())).collect();
            format!("unset TMUX TMUX_PANE; TERM=screen exec tmux {}", words.join(" "))
        };
        let outer = Private::new();
        outer.open(
            "terminal",
            &format!("TMUX_TMPDIR='{}'; export TMUX_TMPDIR; {}", server.dir.path().display(), script("job-two")),
        );
        let shown = || server.user(&["list-clients", "-F", "#{session_name}:#{window_name}"]);
        wait_until("the client", || shown() == "swarm:job-two");
        let inside = format!("{},{},0", server.socket(), window.pane.server_pid);
        let environment = [server.environment.clone(), vec![("TMUX".to_owned(), inside)]].concat();
        let mut command = command(&registry, "job", &environment).expect("is made");
        assert!(command.output().expect("runs").status.success());
        wait_until("the other window", || shown() == "swarm:job");
    }
}
