//! `swarm trust`: agrees to what a repository's files execute, set or permit. Other verbs that start something ask the
//! same question for what they use ([`gate`]).

pub mod again;
pub mod args;
pub mod gate;
pub mod inside;
mod records;
pub mod specs;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use swarm_config::trust::{self, AGENTS, Book, Entry, Project, SETTINGS, SPECS, Status};
use swarm_model::{Refusal, RefusalKind};

use self::args::TrustArgs;
use self::gate::Verb;
use super::error::Failure;
use super::json;
use super::render::{Clock, counted, escape, table};
use super::screen::Screen;
use swarm_sys::clock::wall_ms;
use swarm_sys::paths::Paths;

/// All sections of a project.
const ALL: [&str; SETTINGS.len() + 1 + AGENTS.len()] = [
    SETTINGS[0],
    SETTINGS[1],
    SETTINGS[2],
    SETTINGS[3],
    SETTINGS[4],
    SETTINGS[5],
    SETTINGS[6],
    SPECS,
    AGENTS[0],
    AGENTS[1],
    AGENTS[2],
    AGENTS[3],
    AGENTS[4],
    AGENTS[5],
];

/// Carries out `swarm trust --run`.
pub fn run_records(args: &TrustArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let dir = args.dir.as_ref().map_or_else(|| cwd.clone(), |dir| cwd.join(dir));
    let dir = dir.canonicalize().map_err(|error| Failure::system(dir.display(), &error))?;
    records::run(args, &dir, paths, screen)
}

pub fn run(args: &TrustArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let book = gate::book()?;
    if args.list {
        return list(&book, args.json, screen);
    }
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let dir = args.dir.as_ref().map_or_else(|| cwd.clone(), |dir| cwd.join(dir));
    if args.revoke {
        return revoke(&book, &dir, args.json, screen);
    }
    let dir = dir.canonicalize().map_err(|error| Failure::system(dir.display(), &error))?;
    let root = trust::root_of(&dir);
    let project = gate::project(root)?;
    let named = project.named(root);
    let entries = entries(root, &project, screen)?;
    let agreed = Book::read(&book).map_err(gate::unreadable)?.projects.remove(&project.key);
    let all = trust::compare(agreed.as_ref(), &ALL, &entries);
    let pending = all.iter().filter(|(status, _)| *status != Status::Agreed).count();
    if !args.json {
        tell(&named, &all, screen)?;
    }
    let done = match pending {
        0 => "unchanged",
        _ if args.show => "shown",
        _ => {
            gate::refuse_below_a_worker(Verb::Trust, &named)?;
            if !args.yes && !asked(&named, &all, args.json, screen)? {
                return Ok(1);
            }
            trust::agree(&book, &project, &ALL, &entries, wall_ms()).map_err(gate::unreadable)?;
            "agreed"
        }
    };
    if args.json {
        print(&named, done, &all, screen)?;
    } else if done == "agreed" {
        screen.line(&format!("trusted {}", escape(&named)))?;
    }
    Ok(u8::from(done == "shown"))
}

/// Returns everything that a project wants to execute, set or permit.
fn entries(root: &Path, project: &Project, screen: &mut Screen) -> Result<Vec<Entry>, Failure> {
    let mut all = gate::settings(root, project)?;
    all.extend(specs::planned(root, screen)?);
    all.extend(trust::agent_files(root, &AGENTS).map_err(gate::unreadable)?);
    Ok(all)
}

fn asked(named: &str, all: &[(Status, Entry)], as_json: bool, screen: &mut Screen) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let refusal =
            Refusal::new(RefusalKind::Invalid, "cannot ask for confirmation: standard input is not a terminal");
        return Err(refusal.remedy("use --yes to agree without asking").into());
    }
    screen.flush()?;
    if as_json {
        gate::show(all, &mut |line| screen.aside("", line));
    }
    gate::ask(named, screen)
}

fn tell(named: &str, all: &[(Status, Entry)], screen: &mut Screen) -> Result<(), Failure> {
    let shown = escape(named).into_owned();
    if all.is_empty() {
        return screen.line(&format!("{shown}: nothing to trust"));
    }
    let pending = all.iter().filter(|(status, _)| *status != Status::Agreed).count();
    let state = if pending == 0 { "all trusted".to_owned() } else { format!("{pending} not trusted") };
    let mut lines = vec![format!("{shown}: {}, {state}", counted(all.len() as u64, "setting"))];
    gate::show(all, &mut |line| lines.push(line.to_owned()));
    lines.iter().try_for_each(|line| screen.line(line))
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Agreed => "trusted",
        Status::New => "new",
        Status::Changed => "changed",
        Status::Removed => "removed",
    }
}

fn print(named: &str, done: &str, all: &[(Status, Entry)], screen: &mut Screen) -> Result<(), Failure> {
    let one = |(status, entry): &(Status, Entry)| json!({"file": entry.source, "key": entry.key, "value": entry.text, "status": word(*status)});
    let entries: Vec<Value> = all.iter().map(one).collect();
    json::print(screen, "swarm.trust/1", &json!({"project": named, "done": done, "entries": entries}))
}

fn list(book: &Path, as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    let book = Book::read(book).map_err(gate::unreadable)?;
    let count = |agreed: &trust::Agreed| agreed.sections.values().map(|values| values.len() as u64).sum::<u64>();
    let known = book.projects.iter().filter(|(_, agreed)| count(agreed) > 0);
    let known: Vec<_> = known.map(|(key, agreed)| (trust::shown(key), agreed.at_ms, count(agreed))).collect();
    if as_json {
        let one = |(project, at_ms, entries): &(&str, u64, u64)| json!({"project": project, "at_ms": at_ms, "entries": entries});
        json::print_list(screen, "swarm.trusted/1", "projects", known.iter().map(one).collect())?;
        return Ok(0);
    }
    let clock = Clock::system();
    let head = ["PROJECT", "TRUSTED", "SETTINGS"].map(str::to_owned).to_vec();
    let row = |(project, at_ms, entries): &(&str, u64, u64)| {
        vec![escape(project).into_owned(), clock.local(*at_ms), entries.to_string()]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(known.iter().map(row)).collect();
    screen.bytes(table(&rows, |_, _, _| None).as_bytes())?;
    Ok(0)
}

fn revoke(book: &Path, dir: &Path, as_json: bool, screen: &mut Screen) -> Result<u8, Failure> {
    // The directory may be gone.
    let keys: Vec<String> = match dir.canonicalize() {
        Ok(dir) => vec![gate::project(trust::root_of(&dir))?.key],
        Err(_) => [dir.to_owned(), dir.join(".git")].map(|path: PathBuf| path.to_string_lossy().into_owned()).to_vec(),
    };
    let shown = trust::shown(&keys[0]).to_owned();
    gate::refuse_below_a_worker(Verb::Revoke, &shown)?;
    let mut had_any = false;
    for key in &keys {
        had_any |= trust::revoke(book, key).map_err(gate::unreadable)?;
    }
    if !had_any {
        return Err(Failure::new(RefusalKind::NotFound, format!("{shown} is not trusted")));
    }
    if as_json {
        json::print(screen, "swarm.trust/1", &json!({"project": shown, "done": "revoked", "entries": []}))?;
    } else {
        screen.line(&format!("no longer trusted: {}", escape(&shown)))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_agents::confined::is_confined;
    use swarm_config::trust::{AGENT_FILES, AGENTS, agent_places};

    #[test]
    fn all_sections_are_covered() {
        assert!(AGENT_FILES.iter().all(|(section, _)| ALL.contains(section)));
        assert!(SETTINGS.iter().all(|section| ALL.contains(section)));
    }

    #[test]
    fn no_agent_writes_unasked_what_an_agent_loads() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(is_confined(dir.path(), "src/lib.rs".as_ref()));
        for place in AGENTS.iter().flat_map(|section| agent_places(section)) {
            assert!(!is_confined(dir.path(), place.as_ref()), "{place}");
            assert!(!is_confined(dir.path(), format!("{place}/x/SKILL.md").as_ref()), "{place}");
        }
    }
}
