//! Keys in front of the list: the filter, a line that is typed, a question, a request.

use super::super::edit::Edit;
use super::super::keys::{Action, Key, TABLE, action_of};
use super::super::mode::{Mode, Question, Request, Typing};
use super::super::row::Answer;
use super::acts::words;
use super::{Effect, Machine};

impl Machine {
    pub(super) fn take_dialog_key(&mut self, key: Key, effects: &mut Vec<Effect>) {
        match std::mem::take(&mut self.mode) {
            Mode::List => {}
            Mode::Help(line) => self.help_key(key, line),
            Mode::Filter(before) => self.filter_key(key, before),
            Mode::Type(typing, edit) => self.typing_key(key, typing, edit, effects),
            Mode::Ask(question) => self.question_key(key, question, effects),
            Mode::Answer(request) => self.request_key(key, request, effects),
        }
    }

    fn help_key(&mut self, key: Key, line: usize) {
        // With a title for each group, and a line before it.
        let last = TABLE.len() + 16;
        let page = usize::from(self.size.1).saturating_sub(3).max(1);
        let line = match action_of(key) {
            Some(Action::Down | Action::TextDown) => line + 1,
            Some(Action::Up | Action::TextUp) => line.saturating_sub(1),
            Some(Action::PageDown | Action::TextPageDown | Action::HalfDown) => line + page,
            Some(Action::PageUp | Action::TextPageUp | Action::HalfUp) => line.saturating_sub(page),
            Some(Action::First) => 0,
            Some(Action::Last) => last,
            _ => return,
        };
        self.mode = Mode::Help(line.min(last.saturating_sub(page)));
    }

    fn filter_key(&mut self, key: Key, before: String) {
        match key {
            Key::Enter => {}
            Key::Escape => {
                self.filter = before;
                self.rearrange();
            }
            key => {
                let mut edit = Edit::with(&self.filter);
                if edit.take(key) {
                    edit.text().clone_into(&mut self.filter);
                    self.rearrange();
                }
                self.mode = Mode::Filter(before);
            }
        }
    }

    fn typing_key(&mut self, key: Key, typing: Typing, mut edit: Edit, effects: &mut Vec<Effect>) {
        match key {
            Key::Escape => {}
            Key::Enter => self.typed(&typing, edit.text(), effects),
            key => {
                edit.take(key);
                self.mode = Mode::Type(typing, edit);
            }
        }
    }

    fn typed(&mut self, typing: &Typing, text: &str, effects: &mut Vec<Effect>) {
        if text.trim().is_empty() {
            return self.tell("nothing was typed".to_owned(), false);
        }
        match typing {
            // Through standard input: arguments can be seen in the list of processes.
            Typing::Line(targets) => self.run_each(&["send"], targets, Some(text), effects),
            Typing::Keys(target) => {
                if self.are_same(std::slice::from_ref(target)) {
                    let keys = text.split_whitespace().map(str::to_owned);
                    let names = std::iter::once(target.0.name.clone()).chain(keys).collect();
                    self.run(words(&["keys"], names), None, effects);
                }
            }
            Typing::Context(target) => self.say_to(target, text, effects),
            Typing::Command => match split(text) {
                Some(typed) => {
                    let skip = usize::from(typed.first().is_some_and(|word| word == "swarm"));
                    self.run(typed.into_iter().skip(skip).collect(), None, effects);
                }
                None => self.tell("a quotation mark is not closed; nothing was done".to_owned(), true),
            },
        }
    }

    fn question_key(&mut self, key: Key, mut question: Question, effects: &mut Vec<Effect>) {
        let is_agreed = if question.needs_number() {
            match key {
                Key::Escape => return self.tell("nothing was done".to_owned(), false),
                Key::Enter => question.number.text() == question.targets.len().to_string(),
                key => {
                    question.number.take(key);
                    self.mode = Mode::Ask(question);
                    return;
                }
            }
        } else {
            match key {
                Key::Char('y' | 'Y') => true,
                Key::Char('n' | 'N') | Key::Escape => false,
                // A key that was meant for the list is no answer.
                _ => {
                    self.mode = Mode::Ask(question);
                    return;
                }
            }
        };
        if !is_agreed {
            return self.tell("nothing was done".to_owned(), false);
        }
        if !self.are_same(&question.targets) {
            return;
        }
        if let Some(planned) = question.planned {
            return self.run_in(planned.words, None, planned.dir, effects);
        }
        self.marks.clear();
        if question.verb == "respawn" {
            return self.run_each(&[question.verb], &question.targets, None, effects);
        }
        let names = question.targets.into_iter().map(|(id, _)| id.name).collect();
        self.run(words(&[question.verb], names), None, effects);
    }

    fn request_key(&mut self, key: Key, mut request: Request, effects: &mut Vec<Effect>) {
        if key == Key::Escape {
            return;
        }
        let scrolled = match key {
            Key::Down => self.scroll_by(1),
            Key::Up => self.scroll_by(-1),
            Key::PageDown => self.scroll_by(self.page()),
            Key::PageUp => self.scroll_by(-self.page()),
            _ => false,
        };
        if scrolled {
            self.mode = Mode::Answer(request);
            return;
        }
        if !request.is_shown {
            self.mode = Mode::Answer(request);
            return;
        }
        let number = request.answer.request().unwrap_or_default().to_owned();
        match (&request.answer, key) {
            (Answer::Permission(_), Key::Char('y')) => self.run(words(&["approve"], vec![number]), None, effects),
            (Answer::Permission(_), Key::Char('n')) => self.run(words(&["deny"], vec![number]), None, effects),
            (Answer::Question(_), Key::Enter) if !request.edit.text().trim().is_empty() => {
                let answer = request.edit.text().to_owned();
                self.run(words(&["answer"], vec![number, answer]), None, effects);
            }
            (Answer::Question(_), key) => {
                request.edit.take(key);
                self.mode = Mode::Answer(request);
            }
            _ => self.mode = Mode::Answer(request),
        }
    }

    /// Closes the request that is shown if it is over, or shows the one that has taken its place.
    pub(super) fn check_request(&mut self) {
        let Mode::Answer(request) = &self.mode else { return };
        let number = request.answer.request().unwrap_or_default().to_owned();
        let row = self.rows.get(&request.id);
        match row.and_then(|row| Some((row.answer.clone()?, row.at.clone()))) {
            Some((answer, asks)) if answer == request.answer && asks == request.asks => {}
            Some((answer, asks)) if answer.request().is_some() => {
                let (id, worker) = (request.id.clone(), request.worker.clone());
                self.mode = Mode::Answer(Request { id, worker, answer, asks, is_shown: false, edit: Edit::default() });
                // The text may have the same name, and is another one.
                (self.again, self.lines) = (self.again + 1, None);
                self.tell(format!("request {number} is over; this is another one"), true);
            }
            _ => {
                self.mode = Mode::List;
                self.tell(format!("request {number} is over"), true);
            }
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        match &mut self.mode {
            Mode::Filter(_) => {
                let mut edit = Edit::with(&self.filter);
                edit.paste(text);
                edit.text().clone_into(&mut self.filter);
                self.rearrange();
            }
            Mode::Type(_, edit) => edit.paste(text),
            Mode::Answer(request) if request.is_shown => request.edit.paste(text),
            // Its letters would be acts.
            Mode::List | Mode::Help(_) | Mode::Ask(_) | Mode::Answer(_) => {}
        }
    }
}

/// Splits a line into words as a shell does, with quotes and backslashes and nothing else. `None` if a quote is open.
fn split(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(chars.next()?),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn lines_are_split_as_shells_do() {
        let words = |line| split(line).map(|words| words.join("|"));
        assert_eq!(
            words("spawn  --name a -- sh -c 'sleep 1; true'").as_deref(),
            Some("spawn|--name|a|--|sh|-c|sleep 1; true")
        );
        assert_eq!(words(r#"a "b \"c\"" '' d\ e"#).as_deref(), Some(r#"a|b "c"||d e"#));
        assert_eq!((words("a 'b"), words("a \\")), (None, None));
    }
}
