//! Configuration files: `swarm.toml` at a repository's root and the user's own `~/.config/swarm/config.toml`. The
//! repository's file wins key by key, and flags win over both.
//!
//! ```text
//! file (bytes) -> check (names, by keys) -> Sections (types) -> merged: repository over user
//! ```

mod check;
pub mod defaults;
mod file;
pub mod hosts;
pub mod keys;
pub mod sections;
mod shown;
pub mod trust;
pub mod words;
pub mod worktree;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize as _;
use swarm_model::asks::rules::AskRule;
use toml::{Table, Value};

pub use self::file::{USER_FILE, root_above, user_path, user_path_in};
use self::hosts::HostConfig;
pub use self::sections::{ApprovalTimes, Sections};
pub use self::shown::{Shown, Source, shown};
use self::trust::Unasked;

/// Name of the file at a repository's root.
pub const FILE: &str = "swarm.toml";

static IGNORES_USER_FILE: AtomicBool = AtomicBool::new(false);

/// Makes [`load`] ignore the user's own files in this process. For tests, which must not depend on who runs them.
pub fn ignore_user_file() {
    IGNORES_USER_FILE.store(true, Ordering::Relaxed);
}

/// Owner of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User,
    Repository,
}

/// Whether a repository's file is limited to what a person agreed to.
#[derive(Clone, Copy, Debug)]
enum Consent<'a> {
    Ignored,
    /// By this book. `None`: there is no place for one, so that nobody can have agreed to anything.
    Book(Option<&'a Path>),
}

/// Contents of one file.
struct Layer {
    owner: Owner,
    shown: String,
    text: String,
    table: Table,
}

/// Returns the configuration in the repository with this root, or outside of any repository. What the repository's file
/// executes, sets or permits counts only as a person agreed to it ([`trust`]). Sections that have such values, and about
/// which nobody was ever asked, are in [`Sections::unasked`]: who executes a section requires it first.
///
/// # Errors
/// Fails with the file, the line and the problem. Values are not shown, because they may be addresses or commands.
pub fn load(root: Option<&Path>) -> Result<Sections, String> {
    let (user, book) = (user_path(), trust::book_path());
    first(match ignores_user() {
        true => of_files(None, Consent::Ignored, root),
        false => of_files(user.as_deref(), Consent::Book(book.as_deref()), root),
    })
}

/// Returns the configuration as the files are written, whether or not a person agreed to it: for what is only shown or
/// checked, and to find out what to ask about. Nothing of it may be executed.
///
/// # Errors
/// Fails as [`load`] does.
pub fn as_written(root: Option<&Path>) -> Result<Sections, String> {
    let user = user_path().filter(|_| !ignores_user());
    first(of_files(user.as_deref(), Consent::Ignored, root))
}

fn ignores_user() -> bool {
    cfg!(test) || IGNORES_USER_FILE.load(Ordering::Relaxed)
}

/// Returns the rules of the user's own file and those of the repository with this root. The latter only deny and ask.
///
/// # Errors
/// Fails as [`load`] does.
pub fn approvals(root: Option<&Path>) -> Result<Vec<AskRule>, String> {
    let user = user_path().filter(|_| !ignores_user());
    approvals_of(user.as_deref(), root)
}

/// Returns the rules of the repository with this root. They only deny and ask.
///
/// # Errors
/// Fails as [`load`] does.
pub fn repository_approvals(root: &Path) -> Result<Vec<AskRule>, String> {
    approvals_of(None, Some(root))
}

fn approvals_of(user: Option<&Path>, root: Option<&Path>) -> Result<Vec<AskRule>, String> {
    let mut rules = Vec::new();
    for layer in first(layers(user, root))? {
        let failed = |cause: String| format!("{}: {cause}", layer.shown);
        let sections = Sections::deserialize(layer.table.clone()).map_err(|error| failed(error.to_string()))?;
        rules.extend(sections.approvals.rules().map_err(failed)?);
    }
    Ok(rules)
}

/// Returns the other machines of the user's own file, by name.
///
/// # Errors
/// Fails as [`load`] does.
pub fn hosts() -> Result<BTreeMap<String, HostConfig>, String> {
    let mut all = places()?;
    all.remove(hosts::LOCAL);
    Ok(all)
}

/// Returns the machines of the user's own file, by name, with what it says of this one.
///
/// # Errors
/// Fails as [`load`] does.
pub fn places() -> Result<BTreeMap<String, HostConfig>, String> {
    match user_path().filter(|_| !ignores_user()) {
        Some(path) => of_user(&path).map(|sections| sections.hosts),
        None => Ok(BTreeMap::new()),
    }
}

/// Returns the times of requests in the user's own file.
///
/// # Errors
/// Fails as [`load`] does.
pub fn approval_times() -> Result<ApprovalTimes, String> {
    let Some(path) = user_path().filter(|_| !ignores_user()) else { return Ok(ApprovalTimes::default()) };
    of_user(&path)?.approvals.times().map_err(|(key, cause)| format!("{key}: {cause}"))
}

/// Returns the configuration of the user's own file alone.
///
/// # Errors
/// Fails as [`load`] does.
pub fn of_user(path: &Path) -> Result<Sections, String> {
    first(of_files(Some(path), Consent::Ignored, None))
}

fn first<T>(read: Result<T, Vec<String>>) -> Result<T, String> {
    read.map_err(|causes| match causes.as_slice() {
        [cause] => cause.clone(),
        [cause, more @ ..] => format!("{cause} (and {} more; run 'swarm config' to see them)", more.len()),
        [] => "cannot read the configuration".to_owned(),
    })
}

/// Returns the merged configuration of these two files.
///
/// # Errors
/// Returns every problem in the files.
fn of_files(user: Option<&Path>, consent: Consent<'_>, root: Option<&Path>) -> Result<Sections, Vec<String>> {
    let (mut merged, mut own, mut unasked) = (Table::new(), Table::new(), Unasked::default());
    for layer in layers(user, root)? {
        match layer.owner {
            Owner::User => merged = layer.table,
            Owner::Repository => own = layer.table,
        }
    }
    if let (Consent::Book(book), Some(root)) = (consent, root) {
        let agreed = book.map(|book| trust::recorded(book, root)).transpose().map_err(|cause| vec![cause])?;
        let agreed = agreed.flatten().unwrap_or_default();
        unasked = Unasked::of(&own, &agreed, root, book);
        own = trust::limited(own, &agreed);
    }
    merged = over(merged, own);
    // Each file was checked by itself: an error now is a conflict between the two.
    let read = Sections::deserialize(merged);
    let read = read.map_err(|error| vec![format!("the two configuration files conflict: {error}")])?;
    Ok(Sections { unasked, ..read })
}

/// Returns the user's file, then the repository's; missing files are left out.
fn layers(user: Option<&Path>, root: Option<&Path>) -> Result<Vec<Layer>, Vec<String>> {
    let repository = root.map(|root| root.join(FILE));
    let paths = [(user, Owner::User), (repository.as_deref(), Owner::Repository)];
    let (mut layers, mut causes) = (Vec::new(), Vec::new());
    for (path, owner) in paths.into_iter().filter_map(|(path, owner)| Some((path?, owner))) {
        match layer(path, owner) {
            Ok(layer) => layers.extend(layer),
            Err(more) => causes.extend(more),
        }
    }
    if causes.is_empty() { Ok(layers) } else { Err(causes) }
}

/// Reads and checks one file; `None` if it does not exist.
fn layer(path: &Path, owner: Owner) -> Result<Option<Layer>, Vec<String>> {
    let shown = path.display().to_string();
    let Some(text) = file::read(path).map_err(|error| vec![format!("{shown}: {error}")])? else {
        return Ok(None);
    };
    let at = |offset: usize| check::line_of(&text, offset);
    let wrong = |error: &toml::de::Error| {
        let line = error.span().map_or(1, |span| at(span.start));
        let key = error.span().and_then(|span| check::key_at(&text, span.start)).map(|key| format!("{key}: "));
        format!("{shown}, line {line}: {}{}", key.unwrap_or_default(), words::plain(&without_value(error.message())))
    };
    let problems = check::problems(&text, owner).map_err(|error| vec![wrong(&error)])?;
    if !problems.is_empty() {
        let told = |problem: check::Problem| format!("{shown}, line {}: {}", problem.line, problem.cause);
        return Err(problems.into_iter().map(told).collect());
    }
    let sections = toml::from_str::<Sections>(&text).map_err(|_| type_errors(&text, wrong))?;
    sections.check().map_err(|(key, cause)| {
        let line = check::place_of(&text, &key).map_or(1, at);
        vec![format!("{shown}, line {line}: {key}: {cause}")]
    })?;
    if owner == Owner::Repository
        && let Some(name) = sections.approvals.timed().next()
    {
        let key = format!("approvals.{name}");
        let line = check::place_of(&text, &key).map_or(1, at);
        let cause = format!("possible only in the user's own file, ~/.config/{USER_FILE}");
        return Err(vec![format!("{shown}, line {line}: {key}: {cause}")]);
    }
    if owner == Owner::Repository && sections.approvals.allows() {
        let line = check::place_of(&text, "approvals").map_or(1, at);
        let cause = format!("rules that allow are possible only in the user's own file, ~/.config/{USER_FILE}");
        return Err(vec![format!("{shown}, line {line}: approvals: {cause}")]);
    }
    let table = toml::from_str(&text).map_err(|error| vec![wrong(&error)])?;
    Ok(Some(Layer { owner, shown, text, table }))
}

/// Returns the error of each value of a wrong type: a value that is reported is blanked with its key, and the text is
/// read again. Lines and offsets stay. Stops at a value that cannot be removed, such as one of an inline table.
fn type_errors(text: &str, wrong: impl Fn(&toml::de::Error) -> String) -> Vec<String> {
    let (mut rest, mut causes) = (text.to_owned(), Vec::new());
    while let Err(error) = toml::from_str::<Sections>(&rest) {
        causes.push(wrong(&error));
        let entry = error.span().and_then(|span| check::entry_at(&rest, span.start));
        let Some(entry) = entry.filter(|_| causes.len() < check::PROBLEMS_MAX) else { break };
        let blank = rest[entry.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect::<String>();
        rest.replace_range(entry, &blank);
        if toml::from_str::<Table>(&rest).is_err() {
            break;
        }
    }
    causes
}

/// Merges two tables; tables are merged key by key, all other values are replaced.
fn over(below: Table, above: Table) -> Table {
    let mut merged = below;
    for (key, value) in above {
        let value = match (merged.remove(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => Value::Table(over(below, above)),
            (_, value) => value,
        };
        merged.insert(key, value);
    }
    merged
}

/// Removes the quoted value from an error of the TOML parser, because it may be an address or a command.
fn without_value(message: &str) -> String {
    match (message.find("string \""), message.rfind("\", expected ")) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}string{}", &message[..begin], &message[end + 1..])
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Returns the merged configuration of two texts; errors without the temporary directory.
    fn both(user: &str, repository: &str) -> Result<Sections, Vec<String>> {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, root) = (dir.path().join("config.toml"), dir.path().join("repo"));
        fs::create_dir(&root).expect("made");
        fs::write(&path, user).expect("written");
        fs::write(root.join(FILE), repository).expect("written");
        let short = |cause: String| cause.replace(dir.path().to_str().expect("text"), "");
        of_files(Some(&path), Consent::Ignored, Some(&root)).map_err(|causes| causes.into_iter().map(short).collect())
    }

    #[test]
    fn the_repository_wins_key_by_key() {
        let user = "[merge]\nverify = 'make'\nbatch = 3\n[agents.slow]\ncommand = ['a']\nmodel = 'x'\n";
        let read = both(user, "[merge]\nbatch = 5\n[agents.slow]\nmodel = 'y'\n").expect("read");
        assert_eq!((read.merge.verify.as_deref(), read.merge.batch), (Some("make"), Some(5)));
        let slow = &read.agents["slow"];
        assert_eq!((slow.command.clone(), slow.model.as_deref()), (Some(vec!["a".to_owned()]), Some("y")));
        assert_eq!(of_files(None, Consent::Ignored, None), Ok(Sections::default()));
    }

    #[test]
    fn every_unknown_key_is_reported_with_its_line_and_the_nearest_name() {
        let causes =
            both("[run]\nlimt = 3\n\n[notfy]\nx = 1\n", "[merge]\nverfy = 'x'\nqqqqqqq = 1\n").expect_err("wrong");
        assert_eq!(
            causes,
            [
                "/config.toml, line 2: unknown key 'run.limt' (did you mean 'limit'?)",
                "/config.toml, line 4: unknown key 'notfy' (did you mean 'notify'?)",
                "/repo/swarm.toml, line 2: unknown key 'merge.verfy' (did you mean 'verify'?)",
                "/repo/swarm.toml, line 3: unknown key 'merge.qqqqqqq' (valid keys: batch, max_retries, resolver, \
                 strategy, timeout, verify, verify_each)",
            ]
        );
    }

    #[test]
    fn values_with_which_nothing_could_run_are_refused_with_line_and_key() {
        let cases = [
            ("[run]\nlimit = 0", "2: run.limit: must be at least 1"),
            ("[run.groups]\n\nslow = 0", "3: run.groups.slow: must be at least 1"),
            ("[agents.x]\ncommand = []", "2: agents.x.command: is empty"),
            ("[agents.x]\ncommand = ['']", "2: agents.x.command: is empty"),
            (
                "[agents.x]\ncommand = ['a']\nevents = 'odd'",
                "3: agents.x.events: must be one of claude, codex, gemini, opencode, aider, acp",
            ),
            ("[flow.roles.dev]\ncommand = []", "2: flow.roles.dev.command: is empty"),
            ("[agents.qwen]\nmodel = '--yolo'", "2: agents.qwen.model: must not begin with '-'"),
            ("[agents.qwen]\nmodel = ' '", "2: agents.qwen.model: is empty"),
            ("[flow.roles.dev]\nmodel = '-y'", "2: flow.roles.dev.model: must not begin with '-'"),
        ];
        for (text, expected) in cases {
            let cause = format!("/repo/swarm.toml, line {expected}");
            assert_eq!(both("", text).expect_err("refused"), [cause], "{text}");
        }
    }

    #[test]
    fn every_value_of_a_wrong_type_is_reported() {
        let text = "[merge]\nbatch = 'x'\nverify = 'make'\n[run]\nlimit = [\n  1,\n]\n[spawn]\ntmux = 3\n[run.groups]\nslow = 'ü'\n";
        let causes = both("", text).expect_err("wrong");
        let begins = ["2: merge.batch: ", "5: run.limit: ", "9: spawn.tmux: ", "11: run.groups.slow: "];
        assert_eq!(causes.len(), begins.len(), "{causes:?}");
        for begin in begins {
            assert!(
                causes.iter().any(|cause| cause.starts_with(&format!("/repo/swarm.toml, line {begin}"))),
                "{causes:?}"
            );
        }
        // Nothing can be taken out of an inline table; the first problem is reported.
        let causes = both("", "run = { limit = 'x', retries = 'y' }\n").expect_err("wrong");
        assert_eq!(causes.len(), 1, "{causes:?}");
    }

    #[test]
    fn the_time_for_a_lost_host_is_a_duration_or_a_word() {
        for (text, is_one) in [("wait", true), ("2h", true), ("0", false), ("never", false)] {
            assert_eq!(both("", &format!("[run]\nlost = '{text}'\n")).is_ok(), is_one, "{text}");
        }
    }

    #[test]
    fn a_time_limit_of_the_merge_queue_is_a_duration_as_elsewhere() {
        for (text, expected) in [
            ("1800", Ok(1800)),
            ("'10m'", Ok(600)),
            ("'90'", Ok(90)),
            ("'500ms'", Err(())),
            ("true", Err(())),
            ("'x'", Err(())),
        ] {
            let read = both("", &format!("[merge]\ntimeout = {text}\n"));
            assert_eq!(
                read.as_ref().map(|read| read.merge.timeout).map_err(|_| ()),
                expected.map(Some),
                "{text}: {read:?}"
            );
            if let Err(causes) = read {
                assert!(causes[0].starts_with("/repo/swarm.toml, line 2: merge.timeout: "), "{causes:?}");
                assert!(!causes[0].contains("variant"), "{causes:?}");
            }
        }
        assert_eq!(
            both("", "[merge]\ntimeout = 0\n"),
            Err(vec!["/repo/swarm.toml, line 2: merge.timeout: must be at least 1".to_owned()])
        );
    }

    #[test]
    fn a_repository_cannot_set_a_users_section() {
        let causes = both("", "[notify]\ncommand = 'x'\n").expect_err("refused");
        assert!(causes[0].starts_with("/repo/swarm.toml, line 1: 'notify' is allowed only in"), "{causes:?}");
    }

    #[test]
    fn rules_of_both_files_count_and_a_repository_cannot_allow() {
        let user = "[approvals]\nallow = ['cargo test']\n[[approvals.rule]]\ndeny = 'git push'\n";
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, user).expect("written");
        let read = |text: &str| {
            fs::write(dir.path().join(FILE), text).expect("written");
            let rules = approvals_of(Some(&path), Some(dir.path()))?;
            Ok(rules.into_iter().map(|rule| format!("{} {}", rule.effect.word(), rule.pattern)).collect::<Vec<_>>())
        };
        let theirs = "[[approvals.rule]]\nask = 'make'\nreason = 'slow'\n";
        let rules: Result<_, String> = read(theirs);
        assert_eq!(rules.expect("read"), ["allow cargo test", "deny git push", "ask make"]);
        for (text, line) in [("[approvals]\nallow = ['make']\n", 1), ("\n[[approvals.rule]]\nallow = 'make'\n", 2)] {
            let cause: String = read(text).expect_err("refused");
            assert!(cause.contains(&format!("/swarm.toml, line {line}: approvals: rules that allow ")), "{cause}");
        }
        for (text, cause) in [
            ("[[approvals.rule]]\ndeny = 'make'\nask = 'make'\n", "approvals: a rule has one of allow, deny and ask"),
            ("[[approvals.rule]]\nreason = 'x'\n", "approvals: a rule has one of allow, deny and ask"),
            ("[[approvals.rule]]\ndeny = 'a | b'\n", "approvals: 'a | b': a rule is the first words of one command"),
        ] {
            let found: String = read(text).expect_err("refused");
            assert!(found.ends_with(cause), "{found}");
        }
    }

    #[test]
    fn times_of_requests_are_durations_of_the_users_own_file() {
        let user = "[approvals]\ntimeout = '24h'\nremind = 3600\nhold = '4m'\n";
        let times = both(user, "[[approvals.rule]]\nask = 'make'\n").expect("read").approvals.times().expect("valid");
        let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs());
        assert_eq!(
            (seconds(times.timeout), seconds(times.remind), seconds(times.hold)),
            (Some(86_400), Some(3_600), Some(240))
        );
        let never = both("[approvals]\ntimeout = 'never'\nremind = 'never'\n", "").expect("read");
        assert_eq!(never.approvals.times(), Ok(ApprovalTimes::default()));
        for (text, problem) in [
            ("timeout = 'soon'", "approvals.timeout: 'soon' is not a duration (expected 90, 90s, 5m or 1h30m)"),
            ("timeout = 0", "approvals.timeout: must be above 0"),
            ("remind = '0.5s'", "approvals.remind: must be at least 1 second"),
            ("hold = 'never'", "approvals.hold: 'never' is not a duration (expected 90, 90s, 5m or 1h30m)"),
        ] {
            let causes = both(&format!("[approvals]\n{text}\n"), "").expect_err("wrong");
            assert_eq!(causes, [format!("/config.toml, line 2: {problem}")]);
        }
        for name in ["timeout", "remind", "hold"] {
            let causes = both("", &format!("[approvals]\n{name} = '1h'\n")).expect_err("refused");
            let start = format!("/repo/swarm.toml, line 2: approvals.{name}: possible only in the user's own file");
            assert!(causes[0].starts_with(&start), "{causes:?}");
        }
    }

    #[test]
    fn errors_do_not_show_values_that_may_be_secret() {
        for text in ["desktop = \"curl -H token\"", "events = \"http://host/token\"", "command = \"token"] {
            let causes = both(&format!("[notify]\n{text}\n"), "").expect_err("wrong");
            assert!(causes[0].starts_with("/config.toml, line 2: ") && !causes[0].contains("token"), "{causes:?}");
        }
        assert_eq!(
            without_value("invalid type: string \"a \", expected b\", expected a boolean"),
            "invalid type: string, expected a boolean"
        );
    }

    #[test]
    fn hostile_files_are_reported_with_file_and_line() {
        let deep = format!("x = {}{}", "[".repeat(5_000), "]".repeat(5_000));
        let texts =
            ["\u{feff}[merge", "[merge]\nbatch = -1", "[merge]\n[merge]", "merge = 3", "[[merge]]\nbatch = 1", "\0"];
        for text in
            texts.into_iter().chain([deep.as_str(), "[run.groups]\na = 'x'", "[merge]\nbatch = 99999999999999999999"])
        {
            let causes = both("", text).expect_err("it is wrong");
            assert!(causes.iter().all(|cause| cause.starts_with("/repo/swarm.toml, line ")), "{text:.40}: {causes:?}");
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join(FILE)).expect("made");
        assert!(
            of_files(None, Consent::Ignored, Some(dir.path())).expect_err("no file")[0]
                .ends_with(": not a regular file")
        );
        fs::remove_dir(dir.path().join(FILE)).expect("removed");
        std::os::unix::fs::symlink("nowhere", dir.path().join(FILE)).expect("linked");
        assert!(
            of_files(None, Consent::Ignored, Some(dir.path())).expect_err("dangling")[0]
                .ends_with(": symbolic link to a file that does not exist")
        );
        fs::remove_file(dir.path().join(FILE)).expect("removed");
        fs::write(dir.path().join(FILE), b"[run]\nagent = \"\xff\"\n").expect("written");
        assert!(of_files(None, Consent::Ignored, Some(dir.path())).expect_err("no text")[0].contains("UTF-8"));
    }
}
