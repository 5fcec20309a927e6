//! Acts of the list. Each is a verb, run as a person would type it.

use super::super::edit::Edit;
use super::super::keys::Action;
use super::super::mode::{Mode, Planned, Question, Request, Target, Typing};
use super::super::row::{Answer, Id, Row, Subject, View};
use super::{Effect, Machine};

impl Machine {
    pub(super) fn act(&mut self, action: Action, effects: &mut Vec<Effect>) {
        if self.is_read_only {
            return self.tell("this is read-only: '--read-only' was given".to_owned(), true);
        }
        if self.marks.is_empty() && self.act_on_subject(action, effects) {
            return;
        }
        match action {
            Action::Command => self.mode = Mode::Type(Typing::Command, Edit::default()),
            Action::Spawn => self.mode = Mode::Type(Typing::Command, Edit::with("spawn --name ")),
            Action::Answer => self.open_request(),
            Action::Attach => self.attach(effects),
            Action::Press => self.press(),
            Action::Type => self.type_line(),
            Action::Stop => self.ask("kill"),
            Action::Respawn => self.respawn(effects),
            Action::Interrupt => {
                let targets = self.workers();
                self.run_each(&["interrupt"], &targets, None, effects);
            }
            Action::Land => {
                let names = self.workers().into_iter().map(|(id, _)| id.name).collect::<Vec<_>>();
                if !names.is_empty() {
                    self.run(words(&["merge", "add"], names), None, effects);
                }
            }
            _ => {}
        }
    }

    /// Acts on the run or the flow that is selected. Reports whether the action is about it, and not about a worker.
    fn act_on_subject(&mut self, action: Action, effects: &mut Vec<Effect>) -> bool {
        let Some(row) = self.selected() else { return false };
        let target = (row.id.clone(), row.generation);
        let name = match &row.branch {
            Some(branch) if branch.depth > 0 => format!("{}/{}", branch.name, row.label),
            _ => row.label.clone(),
        };
        let Some(subject) = row.subject.clone() else { return false };
        match (verb_of(&subject, action, &name, row.worker.as_deref()), action) {
            (Some(Verb::Ask(planned)), _) => {
                let (targets, planned) = (vec![target], Some(planned));
                self.mode = Mode::Ask(Question { verb: "", targets, planned, number: Edit::default() });
            }
            (Some(Verb::Run(words)), _) => self.run(words, None, effects),
            (Some(Verb::Refuse(cause)), _) => self.tell(cause, true),
            (None, Action::Type) if matches!(subject, Subject::Workstream { .. }) => {
                self.mode = Mode::Type(Typing::Context(target), Edit::default());
            }
            (None, _) => return false,
        }
        true
    }

    /// Gives the agent of a workstream a text, at its next turn.
    pub(super) fn say_to(&mut self, target: &Target, text: &str, effects: &mut Vec<Effect>) {
        if !self.are_same(std::slice::from_ref(target)) {
            return;
        }
        let subject = self.rows.get(&target.0).and_then(|row| row.subject.clone());
        if let Some(Subject::Workstream { home, id, .. }) = subject {
            let verb = ["run", "context", "--home", &home, "--", &id, "-"];
            self.run(words(&verb, Vec::new()), Some(text.to_owned()), effects);
        }
    }

    /// Returns the workers that an act is for: all that are marked, else the one that is selected.
    fn workers(&mut self) -> Vec<Target> {
        let worker_of = |row: &Row| self.rows.get(&Id::worker(row.own_worker()?));
        let marked = self.marks.iter().filter_map(|id| self.rows.get(id));
        let mut chosen: Vec<&Row> = marked.filter_map(worker_of).collect();
        if chosen.is_empty() {
            chosen.extend(self.selected().and_then(worker_of));
        }
        let mut targets: Vec<Target> = chosen.into_iter().map(|row| (row.id.clone(), row.generation)).collect();
        targets.dedup();
        if targets.is_empty() {
            self.tell("no worker is selected".to_owned(), true);
        }
        targets
    }

    fn window_of_selected(&mut self) -> Option<Target> {
        let row = self.selected()?;
        let worker = row.own_worker().and_then(|name| self.rows.get(&Id::worker(name)));
        let name = row.label.clone();
        if let Some(worker) = worker.filter(|worker| worker.has_window) {
            return Some((worker.id.clone(), worker.generation));
        }
        self.tell(format!("'{name}' has no window"), true);
        None
    }

    fn attach(&mut self, effects: &mut Vec<Effect>) {
        if let Some((id, _)) = self.window_of_selected() {
            effects.push(Effect::Attach(id.name));
        }
    }

    fn press(&mut self) {
        if let Some(target) = self.window_of_selected() {
            self.view = View::Screen;
            self.mode = Mode::Type(Typing::Keys(target), Edit::default());
        }
    }

    fn type_line(&mut self) {
        let targets = self.workers();
        if !targets.is_empty() {
            self.mode = Mode::Type(Typing::Line(targets), Edit::default());
        }
    }

    fn ask(&mut self, verb: &'static str) {
        let targets = self.workers();
        if !targets.is_empty() {
            self.mode = Mode::Ask(Question { verb, targets, planned: None, number: Edit::default() });
        }
    }

    fn respawn(&mut self, effects: &mut Vec<Effect>) {
        let targets = self.workers();
        let runs = |(id, _): &Target| self.rows.get(id).is_some_and(|row| row.is_running);
        if targets.len() > 1 || targets.iter().any(runs) {
            self.mode = Mode::Ask(Question { verb: "respawn", targets, planned: None, number: Edit::default() });
        } else {
            self.run_each(&["respawn"], &targets, None, effects);
        }
    }

    fn open_request(&mut self) {
        let Some(row) = self.selected() else { return };
        let (id, name) = (row.id.clone(), row.label.clone());
        let worker = row.asks_for().to_owned();
        let asks = row.at.clone();
        match row.answer.clone() {
            Some(Answer::Window) => self.press(),
            Some(Answer::Words(words)) => self.mode = Mode::Type(Typing::Command, Edit::with(&words)),
            Some(answer) => {
                self.mode = Mode::Answer(Request { id, worker, answer, asks, is_shown: false, edit: Edit::default() });
            }
            None => self.tell(format!("'{name}' asks nothing"), false),
        }
    }

    /// Runs a verb once for each of these workers, if it is still the one that was shown.
    pub(super) fn run_each(
        &mut self,
        verb: &[&str],
        targets: &[Target],
        input: Option<&str>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.are_same(targets) {
            return;
        }
        for (id, _) in targets {
            let mut words = words(verb, vec![id.name.clone()]);
            if input.is_some() {
                words.push("-".to_owned());
            }
            self.run(words, input.map(str::to_owned), effects);
        }
    }

    /// Reports whether all of these workers are those that were shown, and tells if one is not.
    pub(super) fn are_same(&mut self, targets: &[Target]) -> bool {
        let is_same = |(id, generation): &&Target| self.rows.get(id).is_some_and(|row| row.generation == *generation);
        let other = targets.iter().find(|target| !is_same(target)).map(|(id, _)| id.clone());
        let Some(Id { name, .. }) = other else { return true };
        self.tell(format!("'{name}' is not the one that was shown any more; nothing was done"), true);
        false
    }

    pub(super) fn run(&mut self, words: Vec<String>, input: Option<String>, effects: &mut Vec<Effect>) {
        self.run_in(words, input, None, effects);
    }

    /// Runs a verb in a directory, if one is given.
    pub(super) fn run_in(
        &mut self,
        words: Vec<String>,
        input: Option<String>,
        dir: Option<String>,
        effects: &mut Vec<Effect>,
    ) {
        self.under_way.push(words.clone());
        effects.push(Effect::Run { words, input, dir });
    }
}

/// Returns a verb with names, which are no options even if they look so.
pub(super) fn words(verb: &[&str], names: Vec<String>) -> Vec<String> {
    let mut words: Vec<String> = verb.iter().map(|word| (*word).to_owned()).collect();
    if names.iter().any(|name| name.starts_with('-')) {
        words.push("--".to_owned());
    }
    words.extend(names);
    words
}

/// Action on a run or a flow.
enum Verb {
    Ask(Planned),
    Run(Vec<String>),
    Refuse(String),
}

/// Returns what an action does with a run or a flow. `None`: nothing, and perhaps something with its worker.
fn verb_of(subject: &Subject, action: Action, name: &str, worker: Option<&str>) -> Option<Verb> {
    let ask = |question: String, verb: &[&str], dir: Option<&String>| {
        Verb::Ask(Planned { question, words: words(verb, Vec::new()), dir: dir.cloned() })
    };
    let again = |root: &Option<String>, verb: &[&str], question: String| match root {
        Some(root) => ask(question, verb, Some(root)),
        None => Verb::Refuse(format!("run {name} was begun with a file: run 'swarm run FILE' again")),
    };
    match (subject, action) {
        (Subject::Run { is_over: true, status, .. }, Action::Stop) => {
            Some(Verb::Refuse(format!("run {name}: {status}")))
        }
        (Subject::Run { home, .. }, Action::Stop) => {
            Some(ask(format!("stop run {name} and its agents?"), &["run", "stop", "--home", home], None))
        }
        (Subject::Run { home, root, status, .. }, Action::Respawn) => Some(match status.as_str() {
            "paused" => Verb::Run(words(&["run", "resume", "--home", home], Vec::new())),
            "interrupted" => again(root, &["run", "--detach"], format!("continue run {name}?")),
            "failed" => again(
                root,
                &["run", "--detach", "--retry-failed"],
                format!("continue run {name}, and retry what failed?"),
            ),
            status => Verb::Refuse(format!("run {name}: {status}")),
        }),
        (Subject::Workstream { root, stage, is_over, .. }, Action::Respawn) => {
            Some(match (stage.as_str(), worker, is_over) {
                ("waiting", Some(worker), _) => Verb::Run(words(&["merge", "retry"], vec![worker.to_owned()])),
                ("failed", _, true) => again(
                    root,
                    &["run", "--detach", "--retry-failed"],
                    format!("continue the run of {name}, and retry all that failed?"),
                ),
                ("failed", _, false) => Verb::Refuse(format!("'{name}' can be retried when its run is over")),
                _ => Verb::Refuse(format!("'{name}' has not failed; its run starts it")),
            })
        }
        (Subject::Flow { root, flow, node: Some((node, _)), .. }, Action::Stop) => {
            let verb = ["flow", "stop", "--root", root, "--", flow, node];
            Some(ask(format!("end the turn of {name}?"), &verb, None))
        }
        (Subject::Flow { root, flow, is_run: true, .. }, Action::Stop) => {
            Some(ask(format!("stop flow {name} and its turns?"), &["flow", "stop", "--root", root, "--", flow], None))
        }
        (Subject::Flow { is_run: false, .. }, Action::Stop) => Some(Verb::Refuse(format!("flow {name} is not run"))),
        (Subject::Flow { root, flow, is_run: false, .. }, Action::Respawn) => {
            Some(ask(format!("run flow {name}?"), &["flow", "run", "--root", root, "--", flow], None))
        }
        (Subject::Flow { .. }, Action::Respawn) => Some(Verb::Refuse(format!("flow {name} is run"))),
        _ => None,
    }
}
