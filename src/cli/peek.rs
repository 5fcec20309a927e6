//! `swarm peek`: the current content of a worker's pane.

use swarm_model::{Refusal, RefusalKind, WorkerView};

use super::send::{Environment, Verb, Who, live_worker, locate};

/// Writes `lines` lines of scrollback and the visible pane: unchanged for one worker, under a heading with the name for
/// several.
///
/// # Errors
/// Returns an error if the named worker has no pane to show; the kind is `NotFound` if no worker has this name.
pub fn peek(verb: &mut Verb<'_>, who: Option<Who<'_>>, lines: usize) -> Result<u8, Refusal> {
    let (registry, environment) = (verb.registry, verb.environment);
    let missing = || Refusal::new(RefusalKind::Invalid, "worker name required (or use --all)");
    match who.ok_or_else(missing)? {
        Who::Name(name) => {
            let text = shown(live_worker(registry, name)?, lines, environment)?;
            write(verb, &text)?;
        }
        who @ (Who::All | Who::Tagged(_)) => {
            for worker in who.workers(registry)? {
                match shown(worker, lines, environment) {
                    Ok(text) => write(verb, &format!("=== {} ===\n{text}\n", worker.row.name))?,
                    // The exit code stays 0, as in the original.
                    Err(refusal) => verb.complain(&refusal.cause),
                }
            }
        }
    }
    Ok(0)
}

fn shown(worker: &WorkerView, lines: usize, environment: &Environment) -> Result<String, Refusal> {
    let name = &worker.row.name;
    let failed = |refusal: Refusal| Refusal {
        cause: format!("failed to capture pane for '{name}': {}", refusal.cause),
        ..refusal
    };
    let target = locate(worker, environment).map_err(failed)?;
    let text = target.tmux.capture(&target.pane, lines, false);
    text.map_err(|error| failed(Refusal::from(error).of(name)))
}

fn write(verb: &mut Verb<'_>, text: &str) -> Result<(), Refusal> {
    let written = verb.out.write_all(text.as_bytes());
    written.map_err(|error| Refusal::new(RefusalKind::Internal, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::send::tests::{foreign, ours, registry, spoken, worker};
    use super::*;
    use swarm_model::{FineState, TmuxPane};
    use swarm_store::windows::testing::{Private, wait_until};

    #[test]
    fn one_pane_is_shown_unchanged_and_several_under_their_names() {
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
        let (result, out, _) = spoken(&registry, environment, |verb| peek(verb, Some(Who::Name("job")), 2));
        assert_eq!(result, Ok(0));
        assert_eq!((out.lines().count(), out.lines().last()), (52, Some("done")), "{out:?}");
        let (result, out, err) = spoken(&registry, environment, |verb| peek(verb, Some(Who::All), 0));
        assert_eq!((result, err.as_str()), (Ok(0), ""));
        assert!(out.starts_with("=== job ===\n") && out.contains("\ndone\n\n=== job-two ===\nsecond\n"), "{out:?}");
        assert!(out.ends_with("\n\n") && !out.contains("process"));
    }

    #[test]
    fn failures_have_the_original_words_and_kinds() {
        let server = Private::new();
        let window = server.open("job", "exec sleep 1000");
        let gone = TmuxPane { pane: "%99".to_owned(), ..window.pane };
        let registry = registry(vec![worker("gone", None, Some(gone), FineState::Running)]);
        let environment = &server.environment;
        let told = |who| {
            let refusal = spoken(&registry, environment, |verb| peek(verb, who, 30)).0.expect_err("is refused");
            (refusal.kind, refusal.cause)
        };
        assert_eq!(told(None), (RefusalKind::Invalid, "worker name required (or use --all)".to_owned()));
        assert_eq!(told(Some(Who::Name("x"))), (RefusalKind::NotFound, "worker 'x' not found".to_owned()));
        let cause = "failed to capture pane for 'gone': can't find pane: %99".to_owned();
        assert_eq!(told(Some(Who::Name("gone"))), (RefusalKind::Tool, cause));
    }
}
