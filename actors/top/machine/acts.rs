//! Acts of the list. Each is a verb, run as a person would type it.

use super::super::edit::Edit;
use super::super::keys::Action;
use super::super::mode::{Mode, Question, Request, Target, Typing};
use super::super::row::{Answer, Id, Kind, Row, View};
use super::{Effect, Machine};

impl Machine {
    pub(super) fn act(&mut self, action: Action, effects: &mut Vec<Effect>) {
        if self.is_read_only {
            return self.tell("this is read-only: '--read-only' was given".to_owned(), true);
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

    /// Returns the workers that an act is for: all that are marked, else the one that is selected.
    fn workers(&mut self) -> Vec<Target> {
        let is_worker = |row: &&Row| row.id.kind == Kind::Worker;
        let marked = self.marks.iter().filter_map(|id| self.rows.get(id));
        let mut chosen: Vec<&Row> = marked.filter(is_worker).collect();
        if chosen.is_empty() {
            chosen.extend(self.selected().filter(is_worker));
        }
        let targets: Vec<Target> = chosen.into_iter().map(|row| (row.id.clone(), row.generation)).collect();
        if targets.is_empty() {
            self.tell("no worker is selected".to_owned(), true);
        }
        targets
    }

    fn window_of_selected(&mut self) -> Option<Target> {
        let row = self.selected()?;
        let target = (row.id.clone(), row.generation);
        if row.id.kind == Kind::Worker && row.has_window {
            return Some(target);
        }
        self.tell(format!("'{}' has no window", target.0.name), true);
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
            self.mode = Mode::Ask(Question { verb, targets, number: Edit::default() });
        }
    }

    fn respawn(&mut self, effects: &mut Vec<Effect>) {
        let targets = self.workers();
        let runs = |(id, _): &Target| self.rows.get(id).is_some_and(|row| row.is_running);
        if targets.len() > 1 || targets.iter().any(runs) {
            self.mode = Mode::Ask(Question { verb: "respawn", targets, number: Edit::default() });
        } else {
            self.run_each(&["respawn"], &targets, None, effects);
        }
    }

    fn open_request(&mut self) {
        let Some(row) = self.selected() else { return };
        let (id, name) = (row.id.clone(), row.label.clone());
        let worker = row.asks_for().to_owned();
        match row.answer.clone() {
            Some(Answer::Window) => self.press(),
            Some(answer) => {
                self.mode = Mode::Answer(Request { id, worker, answer, is_shown: false, edit: Edit::default() });
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
        self.under_way.push(words.clone());
        effects.push(Effect::Run { words, input });
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
