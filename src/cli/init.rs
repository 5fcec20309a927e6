//! `swarm init`: adds a section about swarm to the file that agents read, and writes files for sandboxes. Replaces no
//! text of the user; `--force` replaces only the section between the swarm heading and the next heading.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::files::{self, Durability, Mode};

use super::args::{GuideFile, InitArgs};
use super::error::Failure;
use super::json;
use super::screen::Screen;

/// Text that marks a file with a swarm section.
const MARKER: &str = "Process Management (swarm)";
const HEADING: &str = "## Process Management (swarm)";
const GUIDE: &str = include_str!("init/guide.md");

struct Template {
    name: &'static str,
    text: &'static str,
    executable: bool,
}

const SANDBOX: [Template; 6] = [
    Template { name: "sandbox.sh", text: include_str!("init/sandbox.sh"), executable: true },
    Template { name: "Dockerfile.sandbox", text: include_str!("init/Dockerfile.sandbox"), executable: false },
    Template {
        name: "setup-sandbox-network.sh",
        text: include_str!("init/setup-sandbox-network.sh"),
        executable: true,
    },
    Template {
        name: "teardown-sandbox-network.sh",
        text: include_str!("init/teardown-sandbox-network.sh"),
        executable: true,
    },
    Template { name: "ORCHESTRATOR.md", text: include_str!("init/ORCHESTRATOR.md"), executable: false },
    Template { name: "PROMPT.md", text: include_str!("init/PROMPT.md"), executable: false },
];

pub fn run(args: &InitArgs, screen: &mut Screen) -> Result<u8, Failure> {
    init_in(Path::new("."), args, screen)
}

fn init_in(dir: &Path, args: &InitArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let mut report = Report { as_json: args.json, files: Vec::new() };
    guide(dir, args, &mut report, screen)?;
    if args.with_sandbox {
        for template in &SANDBOX {
            scaffold(dir, template, args.dry_run, &mut report, screen)?;
        }
    }
    if args.json {
        json::print_list(screen, "swarm.initialized/1", "files", report.files)?;
    }
    Ok(0)
}

/// Writes the section into AGENTS.md or CLAUDE.md, or reports that it exists.
fn guide(dir: &Path, args: &InitArgs, report: &mut Report, screen: &mut Screen) -> Result<(), Failure> {
    let (name, old) = target(dir, args)?;
    let path = dir.join(name);
    let (text, action) = match &old {
        None => (GUIDE.to_owned(), Action::Create),
        Some(old) if old.contains(MARKER) && !args.force => return report.say(name, Action::Keep, screen),
        Some(old) => match replaced(old) {
            Some(text) if args.force => (text, Action::Update),
            _ => (appended(old), Action::Append),
        },
    };
    if args.dry_run {
        return report.say(name, action.would(), screen);
    }
    replace(&path, &text, None).map_err(|error| unwritable(&path, &error))?;
    report.say(name, action, screen)
}

/// Returns the file to write and its current text. Without `--file`: the file with a swarm section, else the existing
/// file, else a new AGENTS.md.
fn target(dir: &Path, args: &InitArgs) -> Result<(&'static str, Option<String>), Failure> {
    if let Some(file) = args.file {
        return Ok((file.name(), read(&dir.join(file.name()))?));
    }
    let both = [GuideFile::Agents, GuideFile::Claude].map(GuideFile::name);
    let mut present = Vec::new();
    for name in both {
        if let Some(text) = read(&dir.join(name))? {
            present.push((name, text));
        }
    }
    let marked = present.iter().position(|(_, text)| text.contains(MARKER)).unwrap_or(0);
    if present.is_empty() {
        return Ok((GuideFile::Agents.name(), None));
    }
    let (name, text) = present.swap_remove(marked);
    Ok((name, Some(text)))
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| {
            let cause = format!("{} is not valid UTF-8", path.display());
            Refusal::new(RefusalKind::Invalid, cause).remedy("use --file to choose another file").into()
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::system(format!("cannot read {}", path.display()), &error)),
    }
}

/// Returns `old` with the section appended after exactly one blank line.
fn appended(old: &str) -> String {
    match old.trim_end_matches('\n') {
        "" => GUIDE.to_owned(),
        kept => format!("{kept}\n\n{GUIDE}"),
    }
}

/// Returns `old` with its section replaced by the current one. A section ends at the next heading of its level. Returns
/// `None` if `old` has no section.
fn replaced(old: &str) -> Option<String> {
    let begin = old.find(HEADING)?;
    let (before, section) = old.split_at(begin);
    let rest = section.find("\n## ").map_or("", |end| &section[end + 1..]);
    let gap = if rest.is_empty() { "" } else { "\n" };
    Some(format!("{before}{GUIDE}{gap}{rest}"))
}

/// Writes a file unless it exists; an existing file belongs to the user.
fn scaffold(
    dir: &Path,
    template: &Template,
    dry_run: bool,
    report: &mut Report,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let path = dir.join(template.name);
    if fs::symlink_metadata(&path).is_ok() {
        return report.say(template.name, Action::Skip, screen);
    }
    if dry_run {
        return report.say(template.name, Action::WouldScaffold, screen);
    }
    let add = template.executable.then_some(0o755);
    replace(&path, template.text, add).map_err(|error| unwritable(&path, &error))?;
    report.say(template.name, Action::Create, screen)
}

/// Replaces the file at `path` atomically: a crash leaves the old file or the new one. A symbolic link stays a link, a
/// file keeps its mode.
fn replace(path: &Path, text: &str, add_mode: Option<u32>) -> io::Result<()> {
    let path = inside(path, &followed(path))?;
    let name = path.file_name().unwrap_or_default();
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What a killed 'swarm init' left.
    files::remove_abandoned(dir, |of| name == of)?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".tmp.{}", std::process::id()));
    let mode = Mode::KeepOrDefault { add: add_mode.unwrap_or(0) };
    files::replace(&path.with_file_name(temporary), &path, text.as_bytes(), mode, Durability::Synced)
}

/// Returns the file to which a path leads, whether or not it exists.
fn followed(path: &Path) -> PathBuf {
    match fs::canonicalize(path) {
        Ok(target) => target,
        // A dangling link: its target is created.
        Err(_) => fs::read_link(path).map_or_else(|_| path.to_owned(), |link| sibling(path, &link)),
    }
}

/// Returns `target`, to which `path` leads, if it is in the same project: a link of a hostile repository may lead to a
/// file that another program executes. The project is the repository around `path`, or else the directory of `path`.
fn inside(path: &Path, target: &Path) -> io::Result<PathBuf> {
    let dir = |path: &Path| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        fs::canonicalize(dir.unwrap_or(Path::new(".")))
    };
    let own = dir(path)?;
    let project = swarm_config::root_above(&own).unwrap_or(&own);
    let real = dir(target)?.join(target.file_name().unwrap_or_default());
    match real.starts_with(project) && !real.is_symlink() {
        true => Ok(real),
        false => {
            Err(io::Error::other(format!("it is a symbolic link to {}, outside of the project", target.display())))
        }
    }
}

fn sibling(path: &Path, link: &Path) -> PathBuf {
    path.parent().map_or_else(|| link.to_owned(), |dir| dir.join(link))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::system(format!("cannot write {}", path.display()), error)
}

#[derive(Clone, Copy)]
enum Action {
    Create,
    Append,
    Update,
    Keep,
    Skip,
    WouldCreate,
    WouldAppend,
    WouldUpdate,
    WouldScaffold,
}

impl Action {
    fn would(self) -> Self {
        match self {
            Self::Create => Self::WouldCreate,
            Self::Append => Self::WouldAppend,
            Self::Update => Self::WouldUpdate,
            other => other,
        }
    }

    fn sentence(self, file: &str) -> String {
        match self {
            Self::Create => format!("Created {file}"),
            Self::Append => format!("Added swarm instructions to {file}"),
            Self::Update => format!("Updated swarm instructions in {file}"),
            Self::Keep => format!("swarm: {file} already contains swarm instructions"),
            Self::Skip => format!("swarm: {file} already exists, skipping"),
            Self::WouldCreate => format!("Would create {file} with swarm agent instructions"),
            Self::WouldAppend => format!("Would append swarm instructions to {file}"),
            Self::WouldUpdate => format!("Would update swarm instructions in {file}"),
            Self::WouldScaffold => format!("Would create {file}"),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Append => "added",
            Self::Update => "updated",
            Self::Keep => "unchanged",
            Self::Skip => "skipped",
            Self::WouldCreate | Self::WouldScaffold => "would-create",
            Self::WouldAppend => "would-add",
            Self::WouldUpdate => "would-update",
        }
    }
}

struct Report {
    as_json: bool,
    files: Vec<Map<String, Value>>,
}

impl Report {
    fn say(&mut self, file: &str, action: Action, screen: &mut Screen) -> Result<(), Failure> {
        self.files.push(json::object([("file", json!(file)), ("action", json!(action.word()))]));
        if self.as_json { Ok(()) } else { screen.line(&action.sentence(file)) }
    }
}

#[cfg(test)]
#[path = "init_tests.rs"]
mod tests;
