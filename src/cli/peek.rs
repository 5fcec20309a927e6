//! `peek`: what a worker's pane shows now.

use swarm_actors::model::{Refusal, RefusalKind, WorkerView};

use super::send::{Environment, Streams, Who, live_worker, live_workers, locate};
use crate::adapters::tmux::Scrollback;
use crate::adapters::views::Registry;

/// Writes the visible pane after `lines` lines of what scrolled away: of one
/// worker raw, of all of them each under its name.
///
/// # Errors
/// When the named worker has no pane to show; [`exit_code`] tells its exit code.
pub fn peek(
    registry: &Registry,
    who: Option<Who<'_>>,
    lines: usize,
    environment: &Environment,
    io: &mut Streams<'_>,
) -> Result<u8, Refusal> {
    let missing = || Refusal::new(RefusalKind::Invalid, "worker name required (or use --all)");
    match who.ok_or_else(missing)? {
        Who::Name(name) => {
            let text = shown(live_worker(registry, name)?, lines, environment)?;
            write(io, &text)?;
        }
        Who::All => {
            for worker in live_workers(registry) {
                match shown(worker, lines, environment) {
                    Ok(text) => write(io, &format!("=== {} ===\n{text}\n", worker.row.name))?,
                    // The original ends with 0 whatever one of many does.
                    Err(refusal) => io.complain(&refusal.cause),
                }
            }
        }
    }
    Ok(0)
}

/// `peek` shares with `status` that a worker that is not there is a usage error.
pub fn exit_code(refusal: &Refusal) -> u8 {
    match refusal.kind {
        RefusalKind::NotFound => 2,
        _ => 1,
    }
}

fn shown(worker: &WorkerView, lines: usize, environment: &Environment) -> Result<String, Refusal> {
    let name = &worker.row.name;
    let failed = |refusal: Refusal| Refusal {
        cause: format!("failed to capture pane for '{name}': {}", refusal.cause),
        ..refusal
    };
    let target = locate(worker, environment).map_err(failed)?;
    let text = target.tmux.capture(&target.pane, Scrollback::Lines(lines), false);
    text.map_err(|error| failed(Refusal::from(error).of(name)))
}

fn write(io: &mut Streams<'_>, text: &str) -> Result<(), Refusal> {
    let written = io.out.write_all(text.as_bytes());
    written.map_err(|error| Refusal::new(RefusalKind::Internal, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::send::tests::{foreign, ours, registry, spoken, worker};
    use super::*;
    use crate::adapters::tmux::testing::{Private, wait_until};
    use swarm_actors::model::{FineState, TmuxPane};

    #[test]
    fn one_pane_is_shown_raw_and_several_under_their_names() {
        let server = Private::new();
        let window = server.open("job", "seq 1 100; printf done; exec sleep 1000");
        server.open("job-two", "printf second; exec sleep 1000");
        wait_until("both", || server.logged("job").contains("done") && server.logged("job-two").contains("second"));
        let registry = registry(vec![
            ours("job", &window),
            worker("process", None, None, FineState::Running),
            foreign("job-two", &server, "swarm"),
        ]);
        let environment = &server.environment;
        let (result, out, _) = spoken(|io| peek(&registry, Some(Who::Name("job")), 2, environment, io));
        assert_eq!(result, Ok(0));
        assert_eq!((out.lines().count(), out.lines().last()), (52, Some("done")), "{out:?}");
        let (result, out, err) = spoken(|io| peek(&registry, Some(Who::All), 0, environment, io));
        assert_eq!((result, err.as_str()), (Ok(0), ""));
        assert!(out.starts_with("=== job ===\n") && out.contains("\ndone\n\n=== job-two ===\nsecond\n"), "{out:?}");
        assert!(out.ends_with("\n\n") && !out.contains("process"));
    }

    #[test]
    fn what_cannot_be_shown_is_told_with_the_originals_codes() {
        let server = Private::new();
        let window = server.open("job", "exec sleep 1000");
        let gone = TmuxPane { pane: "%99".to_owned(), ..window.pane };
        let registry = registry(vec![worker("gone", None, Some(gone), FineState::Running)]);
        let environment = &server.environment;
        let told = |who| {
            let refusal = spoken(|io| peek(&registry, who, 30, environment, io)).0.expect_err("is refused");
            (exit_code(&refusal), refusal.cause)
        };
        assert_eq!(told(None), (1, "worker name required (or use --all)".to_owned()));
        assert_eq!(told(Some(Who::Name("x"))), (2, "worker 'x' not found".to_owned()));
        let cause = "failed to capture pane for 'gone': can't find pane: %99".to_owned();
        assert_eq!(told(Some(Who::Name("gone"))), (1, cause));
    }
}
