//! Prints answers of the supervisor, as lines on the two output streams or as JSON.

use serde_json::{Map, Value, json};
use swarm_model::{Answer, Refusal, RefusalKind, Spawned, WorkerLine};

use super::error::Failure;
use super::json;
use super::render::escape;
use super::screen::Screen;

/// Prints the answer for each worker and collects it for `--json`.
pub struct Answers {
    as_json: bool,
    refused: bool,
    workers: Vec<Map<String, Value>>,
    /// First failure to write. Later answers are still read, but not printed.
    broken: Option<Failure>,
}

impl Answers {
    pub fn new(as_json: bool) -> Self {
        Self { as_json, refused: false, workers: Vec::new(), broken: None }
    }

    /// Prints one answer. `verb` is `spawned` or `respawned`.
    pub fn tell(&mut self, answer: Answer, verb: &str, screen: &mut Screen) {
        match answer {
            Answer::Accepted
            | Answer::Merge(_)
            | Answer::Run(_)
            | Answer::Loop(_)
            | Answer::Flow(_)
            | Answer::Nudge(_)
            | Answer::Done => {}
            Answer::Spawned(spawned) => {
                spawned.warnings.iter().for_each(|warning| screen.warning(warning));
                self.line(&spawned_line(verb, &spawned), spawned_object(&spawned), screen);
            }
            Answer::Worker(worker) => {
                let line = format!("{} {}", worker.done, escape(&worker.name));
                for (severity, text) in &worker.notes {
                    aside(severity, text, screen);
                }
                self.line(&line, worker_object(&worker), screen);
            }
            Answer::Warning(text) => screen.warning(&text),
            Answer::Refused(refusal) => {
                self.refused = true;
                screen.refusal(&refusal);
                self.workers.push(refusal_object(&refusal));
            }
        }
    }

    fn line(&mut self, line: &str, object: Map<String, Value>, screen: &mut Screen) {
        self.workers.push(object);
        if !self.as_json && self.broken.is_none() {
            self.broken = screen.line(line).and_then(|()| screen.flush()).err();
        }
    }

    /// Returns the exit code: 1 if a worker was refused. With `--json`, prints the list.
    ///
    /// # Errors
    /// Returns the first failure to write.
    pub fn end(self, schema: &str, screen: &mut Screen) -> Result<u8, Failure> {
        if self.as_json {
            json::print_list(screen, schema, "workers", self.workers)?;
        }
        match self.broken {
            Some(failure) => Err(failure),
            None => Ok(u8::from(self.refused)),
        }
    }
}

/// Prints `swarm: warning: …`, `swarm: note: …` or, for lines that the original prints without a severity, `swarm: …`.
fn aside(severity: &str, text: &str, screen: &mut Screen) {
    match severity {
        "plain" => screen.aside("", text),
        "warning" | "note" | "hint" | "error" => screen.aside(&format!("{severity}: "), text),
        _ => screen.aside("note: ", text),
    }
}

/// Returns `spawned NAME (tmux: S:W)` or `spawned NAME (pid: N)`.
pub fn spawned_line(verb: &str, spawned: &Spawned) -> String {
    let name = escape(&spawned.name);
    match (&spawned.window, &spawned.job) {
        (Some(window), _) => format!("{verb} {name} (tmux: {})", escape(window)),
        (None, Some(job)) => format!("{verb} {name} (job: {})", escape(job)),
        (None, None) => format!("{verb} {name} (pid: {})", spawned.pid),
    }
}

pub fn spawned_object(spawned: &Spawned) -> Map<String, Value> {
    json::object([
        ("name", json!(spawned.name)),
        ("generation", json!(spawned.generation)),
        ("pid", json!(spawned.pid)),
        ("window", json!(spawned.window)),
        ("pane", json!(spawned.pane)),
        ("socket_path", json!(spawned.socket_path)),
        ("worktree", json!(spawned.worktree)),
        ("job", json!(spawned.job)),
        ("warnings", json!(spawned.warnings)),
    ])
}

fn worker_object(worker: &WorkerLine) -> Map<String, Value> {
    let note = |(severity, text): &(String, String)| json!({"severity": severity, "text": text});
    let notes: Vec<Value> = worker.notes.iter().map(note).collect();
    json::object([("name", json!(worker.name)), ("done", json!(worker.done)), ("notes", notes.into())])
}

pub fn refusal_object(refusal: &Refusal) -> Map<String, Value> {
    json::object([
        ("name", json!(refusal.name)),
        ("error", json!({"kind": refusal.kind, "cause": refusal.cause, "remedy": refusal.remedy})),
    ])
}

/// Failure for an answer that ended without a result.
pub fn no_answer() -> Failure {
    Refusal::new(RefusalKind::Internal, "the supervisor closed the connection without a result")
        .remedy("run 'swarm ls' to see what was done")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    fn told(as_json: bool, answers: Vec<Answer>) -> (String, String, u8) {
        sample::said(|screen| {
            let mut told = Answers::new(as_json);
            answers.into_iter().for_each(|answer| told.tell(answer, "respawned", screen));
            told.end("swarm.cleaned/1", screen)
        })
    }

    fn several() -> Vec<Answer> {
        let notes = [("warning", "preserving worktree for 'a'"), ("plain", "worktree at: /w"), ("note", "n")];
        let notes = notes.map(|(severity, text)| (severity.to_owned(), text.to_owned())).to_vec();
        vec![
            Answer::Accepted,
            Answer::Worker(WorkerLine { name: "a".into(), done: "cleaned".into(), notes }),
            Answer::Refused(
                Refusal::new(RefusalKind::Running, "cannot clean running worker 'b'").of("b").remedy("kill it"),
            ),
            Answer::Worker(WorkerLine { name: "c".into(), done: "cleaned".into(), notes: Vec::new() }),
            Answer::Done,
        ]
    }

    #[test]
    fn each_worker_is_reported_in_turn_and_one_refusal_makes_the_exit_code_one() {
        let (out, err, code) = told(false, several());
        assert_eq!((out.as_str(), code), ("cleaned a\ncleaned c\n", 1));
        let lines = "swarm: warning: preserving worktree for 'a'\nswarm: worktree at: /w\nswarm: note: n\n\
                     swarm: error: cannot clean running worker 'b'\nswarm: hint: kill it\n";
        assert_eq!(err, lines);
    }

    #[test]
    fn json_has_every_worker_once() {
        let (out, _, code) = told(true, several());
        let value: Value = serde_json::from_str(&out).expect("json");
        assert_eq!((value["schema"].as_str(), code), (Some("swarm.cleaned/1"), 1));
        let names: Vec<_> = (0..3).map(|i| value["workers"][i]["name"].as_str()).collect();
        assert_eq!(names, [Some("a"), Some("b"), Some("c")]);
        assert_eq!(value["workers"][1]["error"]["kind"], "running");
    }

    #[test]
    fn a_start_is_reported_with_its_window_or_pid() {
        let mut spawned = Spawned {
            name: "x".into(),
            generation: 1,
            pid: 7,
            window: None,
            pane: None,
            socket_path: None,
            worktree: None,
            job: None,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        assert_eq!(told(false, vec![Answer::Spawned(spawned.clone())]).0, "respawned x (pid: 7)\n");
        spawned.window = Some("swarm-1:x".into());
        assert_eq!(spawned_line("spawned", &spawned), "spawned x (tmux: swarm-1:x)");
    }
}
