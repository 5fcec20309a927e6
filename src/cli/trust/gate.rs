//! The question that verbs ask before they use what a repository's files execute, set or permit. Nothing is written or
//! started before the answer.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

use swarm_config::trust::{self, Book, Effect, Entry, Project, SETTINGS, Status};
use swarm_model::{FlowPlace, Refusal, RefusalKind};

use super::inside;
use crate::cli::error::Failure;
use crate::cli::render::{counted, escape};
use crate::cli::screen::Screen;
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

/// Section that only the verb itself reads. The others are read by the supervisor as well, perhaps much later.
const READ_ONCE: &str = "spawn";
/// Sections that are read from the main worktree of a repository, whatever worktree the verb is typed in.
const OF_THE_MAIN_TREE: [&str; 3] = ["merge", "trash", "worktree"];

/// What a verb uses.
#[derive(Default)]
pub struct Use<'a> {
    /// Directory whose `swarm.toml` applies; `None` if there is none.
    pub root: Option<&'a Path>,
    pub sections: Vec<&'static str>,
    /// Entries that are not in `swarm.toml`.
    pub more: Vec<Entry>,
    /// Keys that flags override.
    pub overridden: Vec<&'static str>,
}

impl<'a> Use<'a> {
    pub fn new(root: Option<&'a Path>, sections: &[&'static str]) -> Self {
        Self { root, sections: sections.to_vec(), ..Self::default() }
    }

    /// Makes sure that a person agreed to everything that the verb uses. Asks on a terminal. Returns whether a person
    /// has agreed just now, so that the configuration must be read again.
    ///
    /// # Errors
    /// Fails if something is not trusted and nobody agrees, or if the files or the book cannot be read.
    pub fn require(&self, screen: &mut Screen) -> Result<bool, Failure> {
        let Some(root) = self.root else { return Ok(false) };
        let project = project(root)?;
        let mut entries = settings(root, &project)?;
        entries.extend(self.more.iter().cloned());
        let uses = |entry: &Entry| self.sections.contains(&entry.section.as_str());
        if self.sections == [READ_ONCE] && !entries.iter().any(uses) {
            return Ok(false);
        }
        let Some(path) = trust::book_path() else {
            return if entries.iter().any(|entry| uses(entry) && !entry.is_none()) {
                book().map(|_| false)
            } else {
                Ok(false)
            };
        };
        let agreed = Book::read(&path).map_err(unreadable)?.projects.remove(&project.key);
        let all = trust::compare(agreed.as_ref(), &self.sections, &entries);
        let counts = |(status, entry): &&(Status, Entry)| {
            *status != Status::Agreed && !self.overridden.contains(&entry.key.as_str())
        };
        if all.iter().any(|one| counts(&one)) {
            let new: Vec<_> = all.into_iter().filter(|(status, _)| *status != Status::Agreed).collect();
            refuse_or_ask(&project.named(root), &new, screen)?;
            trust::agree(&path, &project, &self.sections, &entries, wall_ms()).map_err(unreadable)?;
            return Ok(true);
        }
        let is_settled = |section: &&str| agreed.as_ref().is_some_and(|known| known.sections.contains_key(*section));
        // Entries that flags override do not count: nobody agreed to them.
        let open: Vec<&str> =
            self.sections.iter().copied().filter(|one| *one != READ_ONCE && !is_settled(one)).collect();
        if !open.is_empty()
            && let Err(cause) = trust::settle(&path, &project, &open, wall_ms())
        {
            screen.warning(&format!("{cause}; what is started waits if {} changes", swarm_config::FILE));
        }
        Ok(false)
    }

    /// Does what [`Use::require`] does for the sections about which nobody was ever asked. For the others, what a
    /// person agreed to is in force.
    ///
    /// # Errors
    /// Fails as [`Use::require`] does.
    pub fn require_once(mut self, screen: &mut Screen) -> Result<(), Failure> {
        let (Some(root), Some(path)) = (self.root, trust::book_path()) else { return self.require(screen).map(drop) };
        let agreed = trust::recorded(&path, root).map_err(unreadable)?;
        self.sections.retain(|section| !agreed.as_ref().is_some_and(|known| known.sections.contains_key(*section)));
        if self.sections.is_empty() { Ok(()) } else { self.require(screen).map(drop) }
    }
}

/// Returns the path of the book.
///
/// # Errors
/// Fails if there is no configuration directory.
pub fn book() -> Result<PathBuf, Failure> {
    trust::book_path().ok_or_else(|| {
        let refusal = Refusal::new(RefusalKind::Invalid, "cannot determine the configuration directory");
        refusal.remedy("set HOME or XDG_CONFIG_HOME").into()
    })
}

pub fn project(root: &Path) -> Result<Project, Failure> {
    Project::of(root).map_err(|error| Failure::system(format!("cannot read {}", root.display()), &error))
}

pub fn unreadable(cause: String) -> Failure {
    Failure::new(RefusalKind::Invalid, cause)
}

/// Returns the entries of the files `swarm.toml` that apply in `root`.
///
/// # Errors
/// Fails with the first problem in a file.
pub fn settings(root: &Path, project: &Project) -> Result<Vec<Entry>, Failure> {
    let wrong = |cause| Failure::from(Refusal::new(RefusalKind::Invalid, cause).remedy("fix the file and try again"));
    let own = trust::settings(root).map_err(wrong)?;
    let main = Path::new(project.shown());
    if main == Path::new(&project.key) || root.canonicalize().is_ok_and(|root| root == main) {
        return Ok(own);
    }
    let is_of_main = |entry: &Entry| OF_THE_MAIN_TREE.contains(&entry.section.as_str());
    let mut all: Vec<Entry> = own.into_iter().filter(|entry| !is_of_main(entry)).collect();
    all.extend(trust::settings(main).map_err(wrong)?.into_iter().filter(is_of_main));
    Ok(all)
}

/// Change of the book.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Trust,
    /// `swarm trust --run`.
    Run,
    Revoke,
}

impl Verb {
    fn words(self) -> &'static str {
        match self {
            Self::Trust => "trust",
            Self::Run => "trust the run in",
            Self::Revoke => "withdraw the consent for",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Trust => "",
            Self::Run => " --run",
            Self::Revoke => " --revoke",
        }
    }
}

/// Refuses to change the book from within a worker: an agent could extend its own rights, or stop other work.
///
/// # Errors
/// Fails if a worker is above this process.
pub fn refuse_below_a_worker(verb: Verb, named: &str) -> Result<(), Failure> {
    let Some(worker) = inside::worker_above() else { return Ok(()) };
    let cause = format!("{worker} cannot {} {named}", verb.words());
    let remedy = format!("run 'swarm trust{} {}' in a terminal of your own", verb.flag(), command_line([named]));
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
}

/// Refuses to decide for a person in a flow from within a worker: an agent could approve its own work, or extend its own
/// rights.
///
/// # Errors
/// Fails if a worker is above this process.
pub fn refuse_to_steer_below_a_worker(place: &FlowPlace) -> Result<(), Failure> {
    let Some(worker) = inside::worker_above_flow(place) else { return Ok(()) };
    let cause = format!("{worker} cannot decide for a person in flow '{place}'");
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy("run the command in a terminal of your own").into())
}

/// Refuses to type keys from within a worker: an agent could answer what is asked of a person.
///
/// # Errors
/// Fails if a worker is above this process.
pub fn refuse_keys_below_a_worker(name: &str) -> Result<(), Failure> {
    let Some(worker) = inside::worker_above() else { return Ok(()) };
    let cause = format!("{worker} cannot answer for a person in the window of '{name}'");
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy("run the command in a terminal of your own").into())
}

/// Refuses to answer requests, or to make rules that do, from within a worker: an agent could answer itself.
///
/// # Errors
/// Fails if a worker is above this process.
pub fn refuse_answers_below_a_worker(paths: &Paths) -> Result<(), Failure> {
    let Some(worker) = inside::worker_above_in(paths) else { return Ok(()) };
    let cause = format!("{worker} cannot answer for a person");
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy("run the command in a terminal of your own").into())
}

/// Refuses to replace an agreed rule of the merge queue from within a worker: its work would land by its own rules.
/// `typed` are the keys that flags override.
///
/// # Errors
/// Fails if a worker is above this process and a person agreed to one of these rules, or if these cannot be read.
pub fn refuse_other_rules(root: &Path, typed: &[&'static str]) -> Result<(), Failure> {
    if typed.is_empty() {
        return Ok(());
    }
    let Some(worker) = inside::worker_above() else { return Ok(()) };
    let merge = swarm_config::load(Some(root)).map_err(unreadable)?.merge;
    let set = [("merge.verify", merge.verify.is_some()), ("merge.resolver", merge.resolver.is_some())];
    let Some((key, _)) = set.into_iter().find(|(key, is_set)| *is_set && typed.contains(key)) else { return Ok(()) };
    let named = project(root)?.named(root);
    let flag = key.rsplit('.').next().unwrap_or_default();
    let cause = format!("{worker} cannot replace {key} of {named}");
    let remedy = format!("run the command without --{flag}, and without '{flag}' in a job file");
    Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
}

fn refuse_or_ask(named: &str, new: &[(Status, Entry)], screen: &mut Screen) -> Result<(), Failure> {
    let refusal = Refusal::new(RefusalKind::Invalid, cause(named, new));
    let remedy = format!("run 'swarm trust {}'", command_line([named]));
    if let Some(worker) = inside::worker_above() {
        let remedy = format!("{remedy} in a terminal of your own: {worker} cannot agree");
        return Err(refusal.remedy(remedy).into());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(refusal.remedy(remedy).into());
    }
    screen.flush()?;
    screen.aside("", &cause(named, new));
    show(new, &mut |line| screen.errors(format!("{line}\n").as_bytes()));
    match ask(named, screen)? {
        true => Ok(()),
        false => Err(refusal.remedy(remedy).into()),
    }
}

/// Returns `swarm.toml of /r is not trusted: it would execute 2 commands`. Values that were only removed have a sentence
/// of their own.
fn cause(shown: &str, new: &[(Status, Entry)]) -> String {
    let (removed, new): (Vec<_>, Vec<_>) = new.iter().partition(|(status, _)| *status == Status::Removed);
    if let (true, Some((_, spec))) = (new.is_empty(), removed.iter().find(|(_, entry)| entry.section == trust::SPECS)) {
        return format!("{} of {shown} has no verification any more, although you agreed to one", spec.source);
    }
    if new.is_empty() {
        let keys: Vec<&str> = removed.iter().map(|(_, entry)| entry.key.as_str()).collect();
        let (keys, stays) = match keys.as_slice() {
            [one] => ((*one).to_owned(), "the trusted value stays"),
            all => (all.join(", "), "the trusted values stay"),
        };
        return format!(
            "{} of {shown} does not set {keys}: {stays} in force until you agree to the removal",
            swarm_config::FILE
        );
    }
    let mut files: Vec<&str> = new.iter().map(|(_, entry)| entry.source.as_str()).collect();
    files.dedup();
    files.sort_unstable();
    files.dedup();
    let (named, verb, it) = match files.as_slice() {
        [one] => ((*one).to_owned(), "is", "it"),
        [one, rest @ ..] => (format!("{one} and {}", counted(rest.len() as u64, "more file")), "are", "they"),
        [] => (String::new(), "is", "it"),
    };
    let count = |effect: Effect| new.iter().filter(|(_, entry)| entry.effect == effect).count() as u64;
    let does = [
        (Effect::Command, "execute", "command"),
        (Effect::Variable, "set", "variable"),
        (Effect::Permission, "change", "permission"),
    ];
    let does = does.into_iter().filter(|(effect, ..)| count(*effect) > 0);
    let does: Vec<String> =
        does.map(|(effect, verb, noun)| format!("{verb} {}", counted(count(effect), noun))).collect();
    format!("{named} of {shown} {verb} not trusted: {it} would {}", does.join(", "))
}

/// Passes the lines that show entries, with their whole values, to `line`.
pub fn show(all: &[(Status, Entry)], line: &mut dyn FnMut(&str)) {
    for (status, entry) in all {
        let note = match status {
            Status::Agreed => "",
            Status::New => "  (new)",
            Status::Changed => "  (changed)",
            Status::Removed if entry.section == trust::SPECS => "  (no longer set)",
            Status::Removed => "  (no longer set; still applies)",
        };
        if SETTINGS.contains(&entry.section.as_str()) {
            line(&format!("  {}: {} = {}{note}", entry.source, escape(&entry.key), escape(&entry.text)));
            continue;
        }
        line(&format!("  {}:{note}", escape(&entry.key)));
        for text in entry.text.lines() {
            line(&format!("      {}", escape(text)));
        }
    }
}

/// Asks on the terminal. The end of input is no consent.
pub fn ask(named: &str, screen: &mut Screen) -> Result<bool, Failure> {
    screen.aside("", &format!("trust {named}? [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::system("cannot read the answer", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(source: &str, key: &str, effect: Effect) -> (Status, Entry) {
        let section = if source == swarm_config::FILE { "merge" } else { trust::SPECS };
        let entry = Entry {
            section: section.into(),
            source: source.into(),
            key: key.into(),
            value: toml::Value::Boolean(true),
            text: "a\nb\u{1b}[2J".into(),
            effect,
        };
        (Status::New, entry)
    }

    #[test]
    fn the_refusal_counts_what_would_happen() {
        let verify = entry("swarm.toml", "merge.verify", Effect::Command);
        let text = "swarm.toml of /r is not trusted: it would execute 1 command";
        assert_eq!(cause("/r", std::slice::from_ref(&verify)), text);
        let all =
            [verify, entry("specs/a.md", "specs/a.md sh", Effect::Command), entry("swarm.toml", "x", Effect::Variable)];
        let text = "specs/a.md and 1 more file of /r are not trusted: they would execute 2 commands, set 1 variable";
        assert_eq!(cause("/r", &all), text);
    }

    #[test]
    fn a_removed_value_is_said_to_stay() {
        let (_, verify) = entry("swarm.toml", "merge.verify", Effect::Command);
        let (_, agent) = entry("swarm.toml", "agents.x.command", Effect::Command);
        let removed = [(Status::Removed, agent), (Status::Removed, verify)];
        let text = "swarm.toml of /r does not set agents.x.command, merge.verify: the trusted values stay in force until you \
                    agree to the removal";
        assert_eq!(cause("/r", &removed), text);
        let text = "swarm.toml of /r does not set agents.x.command: the trusted value stays in force until you agree to \
                    the removal";
        assert_eq!(cause("/r", &removed[..1]), text);
        let [one, two] = removed;
        let new = entry("swarm.toml", "merge.resolver", Effect::Command);
        let text = "swarm.toml of /r is not trusted: it would execute 1 command";
        assert_eq!(cause("/r", &[one, two, new]), text);
    }

    #[test]
    fn values_are_shown_whole_and_cannot_move_the_cursor() {
        let mut lines = Vec::new();
        let all = [entry("swarm.toml", "merge.verify", Effect::Command), entry("a.md", "a.md sh", Effect::Command)];
        show(&all, &mut |line| lines.push(line.to_owned()));
        let expected =
            ["  swarm.toml: merge.verify = a\\nb\\x1b[2J  (new)", "  a.md sh:  (new)", "      a", "      b\\x1b[2J"];
        assert_eq!(lines, expected);
    }
}
