//! `swarm peek`: the current content of a worker's pane.

use swarm_model::{Refusal, RefusalKind, WorkerView};

use super::send::{Environment, Verb, Who, live_worker, locate};

/// Lines of scrollback that are shown before the visible pane, as in the original.
const SCROLLBACK: usize = 30;

/// Writes the last `lines` lines that are not blank; without a number, some lines of scrollback and the visible pane. The
/// text of one worker is unchanged, that of several is under a heading with the name. Zero stands for the visible pane.
///
/// # Errors
/// Returns an error if the named worker has no pane to show; the kind is `NotFound` if no worker has this name.
pub fn peek(verb: &mut Verb<'_>, who: Option<Who<'_>>, lines: Option<usize>) -> Result<u8, Refusal> {
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

fn shown(worker: &WorkerView, lines: Option<usize>, environment: &Environment) -> Result<String, Refusal> {
    let name = &worker.row.name;
    let failed = |refusal: Refusal| Refusal {
        cause: format!("failed to capture pane for '{name}': {}", refusal.cause),
        ..refusal
    };
    let target = locate(worker, environment).map_err(failed)?;
    let text = target.tmux.capture(&target.pane, lines.unwrap_or(SCROLLBACK), false);
    let text = text.map_err(|error| failed(Refusal::from(error).of(name)))?;
    Ok(match lines {
        Some(lines @ 1..) => last_lines(&text, lines),
        Some(0) | None => text,
    })
}

/// Returns the last lines that are not blank.
fn last_lines(text: &str, lines: usize) -> String {
    let shown: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    shown[shown.len().saturating_sub(lines)..].iter().map(|line| format!("{line}\n")).collect()
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
        let (result, out, _) = spoken(&registry, environment, |verb| peek(verb, Some(Who::Name("job")), None));
        assert_eq!(result, Ok(0));
        assert_eq!((out.lines().count(), out.lines().last()), (80, Some("done")), "{out:?}");
        let peeked = |lines| spoken(&registry, environment, |verb| peek(verb, Some(Who::Name("job")), Some(lines))).1;
        assert_eq!((peeked(2).as_str(), peeked(0).lines().count()), ("100\ndone\n", 50));
        let second = spoken(&registry, environment, |verb| peek(verb, Some(Who::Name("job-two")), Some(5))).1;
        assert_eq!(second, "second\n", "the blank rest of the screen is left out");
        let (result, out, err) = spoken(&registry, environment, |verb| peek(verb, Some(Who::All), Some(0)));
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
            let refusal = spoken(&registry, environment, |verb| peek(verb, who, None)).0.expect_err("is refused");
            (refusal.kind, refusal.cause)
        };
        assert_eq!(told(None), (RefusalKind::Invalid, "worker name required (or use --all)".to_owned()));
        assert_eq!(told(Some(Who::Name("x"))), (RefusalKind::NotFound, "worker 'x' not found".to_owned()));
        let cause = "failed to capture pane for 'gone': can't find pane: %99".to_owned();
        assert_eq!(told(Some(Who::Name("gone"))), (RefusalKind::Tool, cause));
    }
}
