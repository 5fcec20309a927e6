//! Plans how an interrupted worker resumes: in its own conversation if the agent keeps one, otherwise with a prompt
//! that describes the work done so far.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;
use swarm_actors::worker::caller_of;
use swarm_model::json::Members as _;
use swarm_model::{Contract, Resume, Session, SessionPlan, Spec};
use swarm_sys::files::{list, open_regular};

use super::folder::Folder;
use super::{TODOS, activity, conversation, recorded, store};
use crate::records::{self, IDLE};
use swarm_agents::resume;
use swarm_sys::paths::Paths;

/// File of the recovery prompt, in the session's folder, or among the records of a worker without a session.
pub const PROMPT: &str = "recovery.md";
/// Maximum number of changed files that the prompt names.
const FILES_MAX: usize = 40;
/// Limits of the search for a conversation: days, and conversations in total.
const DAYS_MAX: usize = 14;
const CONVERSATIONS_MAX: usize = 500;

/// Plans the resumption of a worker, and writes the recovery prompt to its session folder. Without a session, the prompt is
/// for the records of the start, whose directory is made later.
pub fn plan(paths: &Paths, spec: &Spec) -> Resume {
    let (resume, said) = inspect(paths, spec);
    // The prompt is not written to the session of another issue. The start checks the owner again.
    let ours = |session: &SessionPlan| {
        let found = store::read(Path::new(&session.dir)).ok().and_then(|state| state.identifier());
        found.is_none_or(|found| found == session.identifier)
    };
    let Some(session) = spec.session() else {
        let file = paths.worker(&spec.name, spec.generation).join(PROMPT);
        return Resume { prompt: Some(file.to_string_lossy().into_owned()), text: Some(said), ..resume };
    };
    let kept = Some(session).filter(ours).and_then(|session| keep(Path::new(&session.dir), &said));
    Resume { prompt: kept, ..resume }
}

/// Returns the command that a resumption would execute instead of the contract's command. Writes nothing.
pub fn how(paths: &Paths, spec: &Spec) -> Resume {
    inspect(paths, spec).0
}

fn inspect(paths: &Paths, spec: &Spec) -> (Resume, String) {
    let contract = &spec.contract;
    let session = spec.session();
    let base = session.as_ref().map(|plan| PathBuf::from(&plan.dir));
    let state = base.as_deref().and_then(|base| store::read(base).ok());
    let cwd = spec.worktree.as_ref().map_or_else(|| PathBuf::from(&contract.cwd), |tree| PathBuf::from(&tree.path));
    let said = prompt(spec, state.as_ref(), base.as_deref(), &cwd);
    let conversation = kept(paths, spec, state.as_ref(), &cwd).filter(|id| resume::is_id(id));
    // An agent whose turn was over had nothing left to do: it waits for its next task, as before.
    let is_idle = is_idle(paths, spec, base.as_deref());
    let reopened = conversation.as_deref().filter(|_| is_idle).and_then(|id| resume::reopen(&contract.argv, id));
    let argv = reopened.or_else(|| resume::command(&contract.argv, conversation.as_deref(), &said));
    let conversation = conversation.filter(|_| argv.is_some());
    (Resume { argv, conversation, ..Resume::default() }, said)
}

/// Reports whether the last turn of the agent had ended by itself at the end of its last life: as the agent said, or, if it
/// said nothing, as its screen showed. A turn that failed or was interrupted has left work to be done. A dialog that ends
/// with its window is such a turn, too.
fn is_idle(paths: &Paths, spec: &Spec, base: Option<&Path>) -> bool {
    let Some(records) = last_life(paths, spec) else { return false };
    match base.and_then(activity).or_else(|| recorded(&records)) {
        Some(told) => told.idle && told.turn.is_none(),
        None => records.join(IDLE).exists(),
    }
}

/// Returns the records of the worker's last life. The start that resumes it has the next number, and no records yet.
fn last_life(paths: &Paths, spec: &Spec) -> Option<PathBuf> {
    let lives = [spec.generation, spec.generation.saturating_sub(1)].map(|number| paths.worker(&spec.name, number));
    lives.into_iter().find(|dir| dir.is_dir())
}

/// Returns the id of the conversation of the worker's last life: as the agent's hook named it, or else the one with which
/// that life began.
fn told(paths: &Paths, spec: &Spec, program: &str) -> Option<String> {
    let dir = last_life(paths, spec)?;
    let named = conversation(&dir).and_then(|known| id_of(&known.file, program));
    named.or_else(|| records::spec(&dir).ok()?.spec()?.resume.as_ref()?.conversation.clone())
}

/// Returns the id of the conversation in this file. Claude Code names the file by it, and Codex writes it into the first
/// line.
fn id_of(file: &Path, program: &str) -> Option<String> {
    match program {
        "claude" => Some(file.file_stem()?.to_str()?.to_owned()),
        // The agent chose the path.
        _ => {
            let opened = open_regular(fs::OpenOptions::new().read(true), file).ok()?;
            line_of(opened)?.member("payload")?.text("id").map(str::to_owned)
        }
    }
}

fn keep(base: &Path, prompt: &str) -> Option<String> {
    let folder = if base.is_dir() { Folder::make(base).ok()? } else { return None };
    folder.replace(PROMPT, prompt.as_bytes(), false).ok()?;
    Some(folder.path().join(PROMPT).to_string_lossy().into_owned())
}

/// Returns the id of the conversation in the agent's own files. An id named by the session, by the agent's hook or by the
/// command counts only if such a conversation exists. Otherwise the newest one is taken, but only if no other worker shares
/// the directory.
fn kept(paths: &Paths, spec: &Spec, state: Option<&Session>, cwd: &Path) -> Option<String> {
    let program = spec.contract.argv.first()?.rsplit('/').next()?;
    let since_ms = state.and_then(|state| state.integer("startedAt")).and_then(|at| u64::try_from(at).ok());
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms.unwrap_or(0));
    let variable = |name: &str| variable(spec, name).map(PathBuf::from);
    let home = || variable("HOME");
    let (find, root): (Find, PathBuf) = match program {
        "claude" => {
            let root = variable("CLAUDE_CONFIG_DIR").or_else(|| Some(home()?.join(".claude")))?;
            (of_claude, root.join("projects"))
        }
        "codex" => {
            let root = variable("CODEX_HOME").or_else(|| Some(home()?.join(".codex")))?;
            (of_codex, root.join("sessions"))
        }
        _ => return None,
    };
    let noted = state.and_then(|state| state.text("providerSessionId"));
    let named = [noted, told(paths, spec, program), resume::named(&spec.contract.argv)];
    let mut named = named.into_iter().flatten().filter(|id| resume::is_id(id));
    let alone = spec.worktree.is_some() && state.is_some();
    let known = named.find_map(|id| find(&root, cwd, since, Some(&id), false));
    known.or_else(|| find(&root, cwd, since, None, alone))
}

/// Finds a conversation below a folder of an agent: in this directory, since that time, with this id, or without one the
/// newest, if the worker is alone in the directory.
type Find = fn(&Path, &Path, SystemTime, Option<&str>, bool) -> Option<String>;

/// Returns the value of a variable in the worker's environment; `None` if it is unset or empty.
pub fn variable<'a>(spec: &'a Spec, name: &str) -> Option<&'a str> {
    variable_in(&spec.contract, name)
}

/// Returns the value of a variable in the environment of a worker with this contract; `None` if it is unset or empty.
pub fn variable_in<'a>(contract: &'a Contract, name: &str) -> Option<&'a str> {
    let mut all = contract.private.iter().chain(contract.environment.iter());
    let inherited = || all.find(|(key, _)| key == name).map(|(_, value)| value);
    let value = contract.env.get(name).or_else(inherited)?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

/// Finds a conversation of Claude Code, which keeps a folder for each directory, named by its path, and in it a file
/// for each conversation.
fn of_claude(projects: &Path, cwd: &Path, since: SystemTime, named: Option<&str>, alone: bool) -> Option<String> {
    let slug = |dir: &Path| -> String {
        let path = dir.to_string_lossy();
        path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
    };
    let real = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
    let folders = [projects.join(slug(&real)), projects.join(slug(cwd))];
    if let Some(id) = named
        && folders.iter().any(|folder| folder.join(format!("{id}.jsonl")).is_file())
    {
        return Some(id.to_owned());
    }
    if !alone {
        return None;
    }
    let files = folders.iter().flat_map(|folder| listed(folder));
    let conversations = files.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
    let newest =
        conversations.filter_map(|path| Some((modified(&path)?, path))).filter(|(at, _)| *at >= since).max()?;
    newest.1.file_stem().map(|stem| stem.to_string_lossy().into_owned())
}

/// Finds a conversation of Codex, which keeps folders by day; the first line of each conversation names its directory.
fn of_codex(sessions: &Path, cwd: &Path, since: SystemTime, named: Option<&str>, alone: bool) -> Option<String> {
    let below = |dirs: Vec<PathBuf>| -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = dirs.iter().flat_map(|dir| listed(dir)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    };
    let days: Vec<PathBuf> = below(below(listed(sessions))).into_iter().take(DAYS_MAX).collect();
    let real = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
    let look = |path: &PathBuf, named: Option<&str>| {
        let meta = first_line(path)?;
        let payload = meta.member("payload")?;
        let (id, led) = (payload.text("id")?, payload.text("cwd")?);
        let same = match named {
            Some(named) => id == named,
            None => modified(path)? >= since && (Path::new(led) == cwd || Path::new(led) == real),
        };
        same.then(|| id.to_owned())
    };
    let all: Vec<PathBuf> = below(days).into_iter().take(CONVERSATIONS_MAX).collect();
    let known = named.and_then(|named| all.iter().find_map(|path| look(path, Some(named))));
    known.or_else(|| if alone { all.iter().find_map(|path| look(path, None)) } else { None })
}

fn listed(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = list(dir).into_iter().flatten().map(|entry| entry.path()).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    paths
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn first_line(path: &Path) -> Option<Value> {
    line_of(fs::File::open(path).ok()?)
}

/// Returns the first line of a file.
fn line_of(file: fs::File) -> Option<Value> {
    let mut line = String::new();
    BufReader::new(std::io::Read::take(file, 1 << 20)).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

#[derive(Deserialize)]
struct Todos {
    items: Vec<Todo>,
}

#[derive(Deserialize)]
struct Todo {
    content: String,
    status: String,
}

/// Writes the recovery prompt: the task, the work done, and the work left.
fn prompt(spec: &Spec, state: Option<&Session>, base: Option<&Path>, cwd: &Path) -> String {
    let text = |key: &str| state.and_then(|state| state.text(key)).filter(|text| !text.is_empty());
    let mut lines =
        vec!["You are resuming interrupted work; the work done so far is preserved.".to_owned(), String::new()];
    let mut say = |label: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push(format!("{label}: {value}"));
        }
    };
    say("Issue", text("issueIdentifier"));
    say("Type of work", text("workType"));
    say(
        "Last phase",
        text("currentPhase").filter(|phase| !matches!(phase.as_str(), "running" | "starting" | "failed")),
    );
    say("Attempt", state.map(|state| (state.recoveries() + 2).to_string()));
    let todos = base.map(todos).unwrap_or_default();
    if !todos.is_empty() {
        lines.push(format!("\nYour to-do list:\n{}", todos.join("\n")));
    }
    lines.extend(git_state(spec, cwd));
    lines.push("\nCheck `git status` and `git log`, find out what is done, and do the rest.".to_owned());
    let task = text("prompt").filter(|task| *task != spec.contract.argv.join(" "));
    if let Some(task) = task.or_else(|| resume::task(&spec.contract.argv)) {
        lines.push(format!("\nThe original task:\n\n{task}"));
    }
    lines.join("\n")
}

fn todos(base: &Path) -> Vec<String> {
    let read = || -> Option<Todos> {
        let bytes = Folder::open(base).ok()??.read(TODOS).ok()??;
        serde_json::from_slice(&bytes).ok()
    };
    let mark = |todo: Todo| {
        let mark = match todo.status.as_str() {
            "completed" => "[x]",
            "in_progress" => "[>]",
            _ => "[ ]",
        };
        format!("- {mark} {}", todo.content)
    };
    read().map(|todos| todos.items.into_iter().map(mark).collect()).unwrap_or_default()
}

fn git_state(spec: &Spec, cwd: &Path) -> Vec<String> {
    let Some(plan) = &spec.worktree else { return Vec::new() };
    let caller = caller_of(&spec.contract, &spec.request);
    let lines = |words: &[&str]| swarm_git::repository::lines_in(cwd, Path::new(&plan.base_repo), words, &caller);
    let mut told = vec![format!("\nThe branch is {}.", plan.branch)];
    let commits = lines(&["log", "--oneline", "--no-show-signature", &format!("{}..HEAD", plan.base.commit)]);
    if let Some(commits) = commits.filter(|commits| !commits.is_empty()) {
        told.push(format!("Committed so far:\n{}", commits.join("\n")));
    }
    if let Some(changes) =
        lines(&["status", "--porcelain", "--ignore-submodules=dirty"]).filter(|lines| !lines.is_empty())
    {
        let more = changes.len().saturating_sub(FILES_MAX);
        let shown: Vec<&str> = changes.iter().take(FILES_MAX).map(String::as_str).collect();
        let more = if more > 0 { format!("\n… and {more} more") } else { String::new() };
        told.push(format!("Not committed yet:\n{}{more}", shown.join("\n")));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn the_newest_conversation_of_the_directory_is_resumed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (projects, cwd) = (dir.path().join("projects"), Path::new("/no/such_tree.x"));
        let before = SystemTime::UNIX_EPOCH;
        assert_eq!(of_claude(&projects, cwd, before, None, true), None);
        let folder = projects.join("-no-such-tree-x");
        touch(&folder.join("old.jsonl"), "");
        let old = fs::File::options().write(true).open(folder.join("old.jsonl")).expect("opened");
        old.set_modified(before + Duration::from_secs(1000)).expect("set");
        touch(&folder.join("new.jsonl"), "");
        touch(&folder.join("notes.txt"), "");
        touch(&projects.join("-other/x.jsonl"), "");
        assert_eq!(of_claude(&projects, cwd, before, None, true).as_deref(), Some("new"));
        assert_eq!(of_claude(&projects, cwd, before, Some("old"), true).as_deref(), Some("old"));
        assert_eq!(of_claude(&projects, cwd, before, Some("gone"), true).as_deref(), Some("new"));
        assert_eq!(of_claude(&projects, cwd, before, None, false), None, "other workers share the directory");
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(of_claude(&projects, cwd, later, None, true), None, "older conversations belong to others");
    }

    #[test]
    fn an_agent_that_was_idle_by_its_screen_alone_was_idle() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let spec = Spec {
            name: "a".to_owned(),
            generation: 2,
            token: "t".to_owned(),
            request: String::new(),
            started: "s".to_owned(),
            contract: Contract::default(),
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        };
        assert!(!is_idle(&paths, &spec, None), "nothing is recorded");
        let last = paths.worker("a", 1);
        touch(&last.join("works"), "");
        assert!(!is_idle(&paths, &spec, None));
        touch(&last.join(IDLE), "its turn is over");
        assert!(is_idle(&paths, &spec, None));
        // A report of the agent counts more than its screen.
        touch(&last.join("activity.json"), r#"{"at_ms": 1, "operation": "make"}"#);
        assert!(!is_idle(&paths, &spec, None));
        touch(&last.join("activity.json"), r#"{"at_ms": 1, "idle": true, "waiting": "its turn is over"}"#);
        assert!(is_idle(&paths, &spec, None));
        touch(&paths.worker("a", 2).join("works"), "");
        assert!(!is_idle(&paths, &spec, None), "that was another life");
        for turn in ["failed", "interrupted"] {
            let told = format!(r#"{{"at_ms": 1, "idle": true, "waiting": "its turn", "turn": "{turn}"}}"#);
            touch(&paths.worker("a", 2).join("activity.json"), &told);
            assert!(!is_idle(&paths, &spec, None), "its turn {turn}");
        }
    }

    /// Returns the contract of a worker without a session, which starts this program in `dir`.
    fn plain(dir: &Path, argv: &[&str]) -> Spec {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let home = [("CLAUDE_CONFIG_DIR", "claude"), ("CODEX_HOME", "codex")];
        let environment = home.map(|(key, leaf)| (key.to_owned(), text(dir.join(leaf)))).to_vec();
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let environment = environment.into();
        let contract = Contract { argv, cwd: text(dir.join("cwd")), environment, ..Contract::default() };
        Spec {
            name: "a".to_owned(),
            generation: 2,
            token: "t".to_owned(),
            request: String::new(),
            started: "s".to_owned(),
            contract,
            worktree: None,
            logs: Vec::new(),
            resume: None,
            hooked: None,
            machine: None,
            exit_slot: None,
        }
    }

    #[test]
    fn an_agent_without_a_session_continues_the_conversation_that_its_hook_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (paths, real) = (Paths::new(dir.path().join("state")), dir.path().canonicalize().expect("there"));
        fs::create_dir_all(real.join("cwd")).expect("made");
        let last = paths.worker("a", 1);
        fs::create_dir_all(&last).expect("made");
        let id = "11111111-1111-4111-8111-111111111111";
        let argv = |spec: &Spec| plan(&paths, spec).argv.unwrap_or_default();
        let note = |file: &Path| {
            crate::sessions::note_conversation(&last, file).expect("noted");
        };
        // claude
        let spec = plain(&real, &["claude", "fix it"]);
        let slug: String = real
            .join("cwd")
            .to_string_lossy()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let file = real.join("claude/projects").join(slug).join(format!("{id}.jsonl"));
        touch(&file.with_file_name("22222222-2222-4222-8222-222222222222.jsonl"), "");
        assert!(!argv(&spec).iter().any(|word| word == "--resume"), "another worker may have that one");
        note(&file);
        assert!(!argv(&spec).iter().any(|word| word == id), "its file is gone");
        touch(&file, "");
        assert_eq!(argv(&spec)[..3], ["claude", "--resume", id].map(str::to_owned));
        assert_eq!(how(&paths, &spec).conversation.as_deref(), Some(id));
        // A life that ended before its hook named the conversation with which it began.
        fs::remove_file(last.join("conversation.json")).expect("removed");
        let resume = Some(Resume { conversation: Some(id.to_owned()), ..Resume::default() });
        let earlier = Spec { generation: 1, resume, ..spec.clone() };
        touch(&last.join("spec.json"), &serde_json::to_string(&earlier).expect("JSON"));
        assert_eq!(plan(&paths, &spec).conversation.as_deref(), Some(id));
        // codex
        let spec = plain(&real, &["codex", "fix it"]);
        let file = real.join("codex/sessions/2026/01/02").join(format!("rollout-2026-01-02T00-00-00-{id}.jsonl"));
        touch(&file, &format!("{{\"payload\": {{\"id\": \"{id}\", \"cwd\": \"/elsewhere\"}}}}\n"));
        note(&file);
        let argv = argv(&spec);
        assert!(argv.iter().any(|word| word == "resume") && argv.iter().any(|word| word == id), "{argv:?}");
    }

    #[test]
    fn what_was_done_is_written_also_without_a_session() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let resume = plan(&paths, &plain(dir.path(), &["sh", "-c", "work"]));
        let file = paths.worker("a", 2).join(PROMPT);
        assert_eq!(resume.prompt.as_deref(), file.to_str());
        assert!(resume.text.expect("a text").starts_with("You are resuming interrupted work"));
        assert!(resume.argv.is_none() && !paths.root().exists(), "nothing is written before the start");
    }

    #[test]
    fn a_conversation_is_found_by_its_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let meta = |id: &str, cwd: &str| format!("{{\"payload\": {{\"id\": \"{id}\", \"cwd\": \"{cwd}\"}}}}\n{{}}\n");
        touch(&dir.path().join("2026/01/02/rollout-a.jsonl"), &meta("mine", "/w/a"));
        touch(&dir.path().join("2026/01/03/rollout-b.jsonl"), &meta("other", "/w/b"));
        touch(&dir.path().join("2026/01/03/rollout-c.jsonl"), "torn");
        let before = SystemTime::UNIX_EPOCH;
        assert_eq!(of_codex(dir.path(), Path::new("/w/a"), before, None, true).as_deref(), Some("mine"));
        assert_eq!(of_codex(dir.path(), Path::new("/w/c"), before, None, true), None);
        assert_eq!(of_codex(dir.path(), Path::new("/w/c"), before, Some("other"), true).as_deref(), Some("other"));
    }
}
