//! Where the text of a view comes from.

use super::row::{Kind, Row, Subject, View};

/// Lines of a log.
const LOG_LINES: &str = "1000";
/// Lines of a log in place of a screen.
const SCREEN_LINES: &str = "200";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The window of this worker.
    Window(String),
    /// Output of this verb.
    Verb(Vec<String>),
    /// Output of a verb, read again whenever a log of this worker, or this file, has grown.
    Log { words: Vec<String>, worker: Option<String>, file: Option<String> },
}

impl Reading {
    /// Returns where a view of a row comes from. `worker`: the row of its worker, if it has one.
    pub fn of(row: &Row, worker: Option<&Row>, view: View) -> Self {
        let name = worker.map(|worker| worker.id.name.as_str());
        if row.id.kind == Kind::Request {
            return Self::Verb(words(&["approvals", &row.id.name]));
        }
        match (&row.subject, view) {
            (None | Some(Subject::Workstream { .. } | Subject::Flow { node: Some(_), .. }), View::Screen)
                if worker.is_some_and(|worker| worker.has_window) =>
            {
                Self::Window(name.unwrap_or_default().to_owned())
            }
            (None, _) => Self::of_worker(name.unwrap_or(row.own_worker().unwrap_or(&row.place)), view),
            (Some(Subject::Run { home, .. }), _) => Self::Verb(words(&["run", "status", "--home", home])),
            (Some(Subject::Workstream { home, id, .. }), View::Screen | View::Log) => Self::Log {
                words: words(&["run", "logs", "--home", home, "--", id]),
                worker: name.map(str::to_owned),
                file: Some(format!("{home}/logs/{id}.log")),
            },
            (Some(Subject::Workstream { home, .. }), view) => match name {
                Some(name) => Self::of_worker(name, view),
                None => Self::Verb(words(&["run", "status", "--home", home])),
            },
            // First what it asks.
            (Some(Subject::Flow { root, flow, .. }), View::Screen) if row.answer.is_some() => {
                Self::of_flow(root, flow, None, None, View::Explain)
            }
            (Some(Subject::Flow { root, flow, node, .. }), view) => {
                Self::of_flow(root, flow, node.as_ref(), name, view)
            }
        }
    }

    fn of_flow(root: &str, flow: &str, node: Option<&(String, String)>, worker: Option<&str>, view: View) -> Self {
        let root = format!("--root={root}");
        let verb = |verb: &str| Self::Verb(words(&["flow", verb, &root, "--", flow]));
        match (view, node, worker) {
            (View::Log, Some((_, role)), _) => {
                Self::Verb(words(&["flow", "feed", &root, &format!("--role={role}"), "--", flow]))
            }
            (View::Diff | View::Session | View::History | View::Explain, Some(_), Some(worker)) => {
                Self::of_worker(worker, view)
            }
            (View::Log, ..) => verb("feed"),
            (View::Diff, ..) => verb("graph"),
            (View::History, ..) => verb("events"),
            (View::Explain, ..) => verb("requests"),
            (View::Screen | View::Session, ..) => verb("status"),
        }
    }

    fn of_worker(name: &str, view: View) -> Self {
        let mut verb = match view {
            View::Screen => words(&["logs", "-n", SCREEN_LINES]),
            View::Log => words(&["logs", "-n", LOG_LINES]),
            View::Diff => words(&["diff"]),
            View::Session => words(&["session", "show"]),
            View::History => words(&["history"]),
            View::Explain => words(&["explain"]),
        };
        if name.starts_with('-') {
            verb.push("--".to_owned());
        }
        verb.push(name.to_owned());
        if view.is_followed() {
            return Self::Log { words: verb, worker: Some(name.to_owned()), file: None };
        }
        Self::Verb(verb)
    }

    /// Returns the title of a view of a row. `None`: the row has one view, whatever is chosen.
    pub fn title(row: &Row, view: View) -> Option<&'static str> {
        match (&row.subject, view) {
            (Some(Subject::Flow { node: None, .. }), view) => Some(match view {
                View::Screen | View::Session => "status",
                View::Log => "feed",
                View::Diff => "graph",
                View::History => "events",
                View::Explain => "requests",
            }),
            (Some(Subject::Workstream { .. } | Subject::Flow { .. }), view) => Some(view.title()),
            (None, view) if row.id.kind == Kind::Worker => Some(view.title()),
            (Some(Subject::Run { .. }) | None, _) => None,
        }
    }

    /// Reports whether the text grows by itself.
    pub fn grows(&self) -> bool {
        !matches!(self, Self::Verb(_))
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::row;
    use super::super::row::Class;
    use super::*;

    fn said(reading: Reading) -> String {
        match reading {
            Reading::Window(name) => format!("window {name}"),
            Reading::Verb(words) | Reading::Log { words, .. } => words.join(" "),
        }
    }

    #[test]
    fn each_view_is_a_verb_or_a_window() {
        let (live, gone) = (row("w", Class::Working), Row { has_window: false, ..row("-w", Class::Ended) });
        let of = |row: &Row, worker: Option<&Row>, view| said(Reading::of(row, worker, view));
        assert_eq!(of(&live, Some(&live), View::Screen), "window w");
        assert_eq!(of(&gone, Some(&gone), View::Screen), "logs -n 200 -- -w");
        let (home, root) = ("/r/.arial".to_owned(), "/r".to_owned());
        let stream = Subject::Workstream {
            home: home.clone(),
            root: Some(root.clone()),
            id: "a".into(),
            stage: "working".into(),
            is_over: false,
        };
        let stream = Row { subject: Some(stream), ..row("a", Class::Working) };
        assert_eq!(of(&stream, Some(&live), View::Screen), "window w");
        assert_eq!(of(&stream, None, View::Log), "run logs --home /r/.arial -- a");
        assert_eq!(of(&stream, Some(&live), View::Diff), "diff w");
        assert_eq!(of(&stream, None, View::Explain), "run status --home /r/.arial");
        let run = Subject::Run { home, root: Some(root.clone()), status: "running".into(), is_over: false };
        let run = Row { subject: Some(run), ..row("r", Class::Working) };
        assert_eq!(of(&run, None, View::Diff), "run status --home /r/.arial");
        let flow = |node: Option<(String, String)>| Row {
            subject: Some(Subject::Flow { root: root.clone(), flow: "p/f".into(), is_run: true, node }),
            ..row("f", Class::Working)
        };
        assert_eq!(of(&flow(None), None, View::Screen), "flow status --root=/r -- p/f");
        let node = flow(Some(("build".into(), "dev".into())));
        assert_eq!(of(&node, None, View::Log), "flow feed --root=/r --role=dev -- p/f");
        assert_eq!(of(&node, Some(&live), View::Explain), "explain w");
        assert_eq!(of(&node, Some(&live), View::Screen), "window w");
        assert_eq!(of(&node, None, View::Screen), "flow status --root=/r -- p/f");
    }
}
