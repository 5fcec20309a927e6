//! The documents: their examples run, the verbs and flags in them exist, their links lead somewhere.
//!
//! The info string of a fence decides what happens to a block:
//!
//! | info | |
//! |---|---|
//! | `sh` | executed with `sh -eu` in a fresh repository; must succeed |
//! | `sh no-run` | not executed; its verbs and flags must exist |
//! | `LANGUAGE PATH` | written to PATH before the next `sh` block of the page; a `swarm.toml` must be valid |
//! | others | `$ swarm …` lines of `console` are checked like `sh no-run`, the rest is text |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Rig, run_within, schema};

/// Maximum time of one example.
const BLOCK_MAX: Duration = Duration::from_secs(60);
/// Maximum length of the README, which is an overview.
const README_LINES_MAX: usize = 150;
/// Words that may precede a command.
const PREFIXES: [&str; 8] = ["if", "until", "while", "do", "then", "else", "!", "$"];

/// A fenced block.
struct Block {
    info: String,
    /// Line of the opening fence, from 1.
    line: usize,
    text: String,
}

impl Block {
    fn words(&self) -> Vec<&str> {
        self.info.split_whitespace().collect()
    }
}

/// A document, split into its fenced blocks and the prose around them.
struct Page {
    name: String,
    blocks: Vec<Block>,
    /// Paragraphs outside of fences, with the line of their first line.
    prose: Vec<(usize, String)>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> Page {
    let text = std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut page = Page { name: name.to_owned(), blocks: Vec::new(), prose: Vec::new() };
    let mut open: Option<(String, Block)> = None;
    let mut paragraph = String::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mark = if text.starts_with("~~~") { '~' } else { '`' };
        let fence = text.chars().take_while(|c| *c == mark).count();
        match &mut open {
            Some((closing, block))
                if text.trim_end().starts_with(closing.as_str()) && text.trim_end().len() == fence =>
            {
                page.blocks.push(std::mem::replace(block, Block { info: String::new(), line, text: String::new() }));
                open = None;
            }
            Some((_, block)) => {
                block.text.push_str(text);
                block.text.push('\n');
            }
            None if fence >= 3 => {
                let info = text[fence..].trim().to_owned();
                open = Some((text[..fence].to_owned(), Block { info, line, text: String::new() }));
            }
            None if text.is_empty() || text.starts_with('|') => {
                end_paragraph(&mut page, &mut paragraph, line);
                page.prose.push((line, text.to_owned()));
            }
            None => {
                paragraph.push_str(text);
                paragraph.push('\n');
            }
        }
    }
    end_paragraph(&mut page, &mut paragraph, text.lines().count() + 1);
    assert!(open.is_none(), "{name}: a fence is not closed");
    page
}

/// Adds the paragraph that ends before `line`.
fn end_paragraph(page: &mut Page, paragraph: &mut String, line: usize) {
    if !paragraph.is_empty() {
        let lines = paragraph.lines().count();
        page.prose.push((line - lines, std::mem::take(paragraph)));
    }
}

/// All documents, by their paths below the repository.
fn pages() -> Vec<Page> {
    let docs = std::fs::read_dir(root().join("docs")).expect("readable").flatten();
    let docs = docs.map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    let mut names: Vec<String> = docs.filter(|name| name.ends_with(".md")).collect();
    names.sort();
    names.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned));
    names.iter().map(|name| read(name)).collect()
}

/// Runs each `sh` block of a page, with the files that the page names before it.
#[track_caller]
fn run_examples(name: &str) {
    let mut files: Vec<(String, String)> = Vec::new();
    for block in read(name).blocks {
        match block.words().as_slice() {
            ["sh"] => run_example(&format!("{name}:{}", block.line), &block.text, &std::mem::take(&mut files)),
            ["sh", ..] => {}
            [_, path] => files.push(((*path).to_owned(), block.text)),
            _ => {}
        }
    }
    let unused: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert!(unused.is_empty(), "{name}: no example uses {unused:?}");
}

/// Runs one block in a repository that has one commit and these files.
#[track_caller]
fn run_example(place: &str, script: &str, files: &[(String, String)]) {
    let rig = Rig::new();
    let repo = rig.repo();
    for (path, text) in files {
        let path = repo.join(path);
        std::fs::create_dir_all(path.parent().expect("it is below the repository")).expect("made");
        std::fs::write(&path, text).expect("written");
    }
    if files.iter().any(|(path, _)| path == "swarm.toml") {
        let said = rig.swarm_in(&repo, &["config"]);
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{place}: the swarm.toml before it is not valid");
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_swarm")).parent().expect("a directory");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)));
    let mut command = rig.program("sh");
    command.args(["-eu", "-c", script]).current_dir(&repo).env("PATH", path.expect("no separator in a path"));
    let said = run_within(command, BLOCK_MAX).unwrap_or_else(|step| panic!("{place}: {step} took over {BLOCK_MAX:?}"));
    assert_eq!(said.code, Some(0), "{place} failed\n{script}\nstdout: {}\nstderr: {}", said.out, said.err);
    schema::check_lines(&said.out);
}

/// One test for each page with examples, so that pages run at the same time.
macro_rules! examples {
    ($($test:ident = $page:literal),* $(,)?) => {
        const WITH_EXAMPLES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                run_examples($page);
            }
        )*
    };
}

examples! {
    agents = "docs/agents.md",
    approvals = "docs/approvals.md",
    configuration = "docs/configuration.md",
    exit_codes = "docs/exit-codes.md",
    files = "docs/files.md",
    flows = "docs/flows.md",
    interactive = "docs/interactive.md",
    json = "docs/json.md",
    landing = "docs/landing.md",
    limits = "docs/limits.md",
    loops = "docs/loops.md",
    notifications = "docs/notifications.md",
    readme = "README.md",
    runs = "docs/runs.md",
    sessions = "docs/sessions.md",
    troubleshooting = "docs/troubleshooting.md",
    workers = "docs/workers.md",
    worktrees = "docs/worktrees.md",
}

#[test]
fn every_page_with_examples_has_a_test() {
    let pages = pages();
    for page in &pages {
        let vague = page.blocks.iter().filter(|block| matches!(block.words()[..], ["bash" | "shell" | "zsh", ..]));
        let lines: Vec<usize> = vague.map(|block| block.line).collect();
        assert!(lines.is_empty(), "{}: lines {lines:?}: mark shell blocks with sh, console or text", page.name);
    }
    let runs = |page: &&Page| page.blocks.iter().any(|block| block.words() == ["sh"]);
    let with_examples: BTreeSet<&str> = pages.iter().filter(runs).map(|page| page.name.as_str()).collect();
    assert_eq!(with_examples, WITH_EXAMPLES.iter().copied().collect());
}

#[test]
fn the_readme_is_short() {
    let lines = std::fs::read_to_string(root().join("README.md")).expect("readable").lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines; move details to docs/");
}

/// The help texts of verbs, each asked for once.
struct Helps {
    rig: Rig,
    known: BTreeMap<Vec<String>, Option<String>>,
}

impl Helps {
    /// The help of a verb, `None` if there is no such verb.
    fn of(&mut self, verb: &[&str]) -> Option<String> {
        let key: Vec<String> = verb.iter().map(|word| (*word).to_owned()).collect();
        if !self.known.contains_key(&key) {
            let said = self.rig.swarm(&[verb, &["--help"]].concat());
            self.known.insert(key.clone(), (said.code == Some(0)).then_some(said.out));
        }
        self.known[&key].clone()
    }

    /// Checks the words after `swarm`; ignores placeholders (`VERB`, `<verb>`, `…`) and internal verbs.
    fn check(&mut self, words: &[String]) -> Result<(), String> {
        let is_name = |word: &&String| word.starts_with(|c: char| c.is_ascii_lowercase());
        let mut own: Vec<&String> = words.iter().take_while(|word| *word != "--").collect();
        if let Some(at) = own.iter().position(|word| *word == "--host").filter(|at| at + 1 < own.len()) {
            own.drain(at..at + 2);
            if own.first().is_some_and(|word| *word == "-C") {
                own.drain(..2.min(own.len()));
            }
        }
        let flags = own.iter().filter(|word| is_flag(word)).map(|word| word.split('=').next().unwrap_or(word));
        let mut verb: Vec<&str> = own.first().copied().filter(is_name).map(String::as_str).into_iter().collect();
        if verb.is_empty() && own.first().is_some_and(|word| !word.starts_with('-')) {
            return Ok(());
        }
        let mut help = self.of(&verb).ok_or_else(|| format!("there is no verb '{}'", verb.join(" ")))?;
        if let Some(below) = own.get(1).copied().filter(is_name).filter(|_| help.contains("\nCommands:\n")) {
            match self.of(&[verb[0], below]) {
                Some(text) if help.contains(&format!("\n  {below} ")) => (verb, help) = (vec![verb[0], below], text),
                _ if help.contains("\nArguments:\n") => {}
                _ => return Err(format!("there is no verb '{} {below}'", verb[0])),
            }
        }
        let known: BTreeSet<&str> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
        match flags.into_iter().find(|flag| !known.contains(flag)) {
            Some(flag) => Err(format!("'swarm {}' has no flag {flag}", verb.join(" "))),
            None => Ok(()),
        }
    }
}

/// `--name`, `--name=value` or `-n`.
fn is_flag(word: &str) -> bool {
    let long = word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    long || (word.len() == 2 && word.starts_with('-') && word.ends_with(|c: char| c.is_ascii_alphabetic()))
}

/// Returns the words after each `swarm` that is the first word of a command.
fn commands(script: &str) -> Vec<Vec<String>> {
    let starts = |words: &Vec<String>| {
        let is_prefix = |word: &&String| PREFIXES.contains(&word.as_str()) || word.contains('=');
        let at = words.iter().take_while(is_prefix).count();
        (words.get(at).map(String::as_str) == Some("swarm")).then(|| words[at + 1..].to_vec())
    };
    simple_commands(script).iter().filter_map(starts).collect()
}

/// Splits a script at operators and line ends, and each command into words without quotes.
fn simple_commands(script: &str) -> Vec<Vec<String>> {
    let script = script.replace("\\\n", " ");
    let (mut found, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut letters = script.chars().chain(['\n']).peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while letters.next_if(|letter| *letter != '\n').is_some() {},
            (None, letter) if letter.is_whitespace() || ";&|()".contains(letter) => {
                words.extend(word.take());
                if letter != ' ' && letter != '\t' && !words.is_empty() {
                    found.push(std::mem::take(&mut words));
                }
            }
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    found
}

/// Code between backticks in prose, with the line where its paragraph starts.
fn inline_code(page: &Page) -> Vec<(usize, String)> {
    let code = |(line, text): &(usize, String)| {
        let parts: Vec<String> = text.split('`').map(|part| part.replace("\\|", "|").replace('\n', " ")).collect();
        assert!(parts.len() % 2 == 1, "{}:{line}: a backtick is not closed", page.name);
        parts.into_iter().skip(1).step_by(2).map(|part| (*line, part)).collect::<Vec<_>>()
    };
    page.prose.iter().flat_map(code).collect()
}

#[test]
fn verbs_and_flags_exist() {
    let mut helps = Helps { rig: Rig::new(), known: BTreeMap::new() };
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let mut scripts = inline_code(&page);
        for block in &page.blocks {
            match block.words().as_slice() {
                ["sh", "no-run"] => scripts.push((block.line, block.text.clone())),
                ["console"] => {
                    let typed = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
                    scripts.extend(typed.map(|line| (block.line, line.to_owned())));
                }
                _ => {}
            }
        }
        for (line, script) in scripts {
            for words in commands(&script) {
                count += 1;
                if let Err(cause) = helps.check(&words) {
                    wrong.push(format!("{}:{line}: {cause}: swarm {}", page.name, words.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 100, "{count} commands in all documents");
}

/// Returns the keys that the TOML examples set, as `section.key`.
fn keys_in(pages: &[Page]) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for block in pages.iter().flat_map(|page| &page.blocks).filter(|block| block.words().first() == Some(&"toml")) {
        let mut section = "";
        for line in block.text.lines() {
            if let Some(list) = line.strip_prefix("[[") {
                let name = list.split(']').next().unwrap_or_default();
                section = name.rsplit_once('.').map_or("", |(section, _)| section);
                keys.insert(name.to_owned());
            } else if let Some(name) = line.strip_prefix('[') {
                section = name.split(']').next().unwrap_or_default();
            } else if let Some((key, _)) = line.split_once(" = ") {
                keys.insert(format!("{section}.{key}"));
            }
        }
    }
    keys
}

#[test]
fn every_verb_and_every_key_is_documented() {
    let (rig, pages) = (Rig::new(), pages());
    let man = rig.path("man");
    let said = rig.swarm(&["man", "--dir", man.to_str().expect("text"), "--json"]).ok();
    let written: Value = serde_json::from_str(&said).expect("JSON");
    let written = written["pages"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let verbs = written.filter_map(|page| page.strip_prefix("swarm-")?.strip_suffix(".1"));
    let blocks = pages.iter().flat_map(|page| page.blocks.iter().map(|block| block.text.clone()));
    let prose = pages.iter().flat_map(inline_code).map(|(_, code)| code);
    let shown: BTreeSet<String> =
        blocks.chain(prose).flat_map(|script| commands(&script)).filter_map(|words| words.first().cloned()).collect();
    let missing: Vec<&str> = verbs.filter(|verb| !shown.contains(*verb)).collect();
    assert!(missing.is_empty(), "verbs without an example: {missing:?}");

    let values: Value = serde_json::from_str(&rig.swarm(&["config", "--json"]).ok()).expect("JSON");
    let known = values["values"].as_array().expect("a list").iter().filter_map(|value| value["key"].as_str());
    let set = keys_in(&pages);
    let missing: Vec<&str> = known.filter(|key| !set.contains(*key)).collect();
    assert!(missing.is_empty(), "keys without an example: {missing:?}");
}

#[test]
fn a_wrong_verb_or_flag_is_found() {
    let mut helps = Helps { rig: Rig::new(), known: BTreeMap::new() };
    let mut check = |script: &str| commands(script).iter().try_for_each(|words| helps.check(words));
    for script in [
        "swarm ls -l && swarm merge add x --verify 'make test' # --nonsense",
        "for n in a b; do swarm spawn --name $n -- claude --model x; done",
        "ssh host 'cd project && swarm nonsense'",
        "until swarm history x | grep -q y; do swarm wait x --timeout 1 || true; done",
        "swarm VERB --help; swarm __shim --x; swarm run jobs.toml --dry-run; swarm --version",
    ] {
        assert_eq!(check(script), Ok(()), "{script}");
    }
    for (script, cause) in [
        ("true && swarm lss", "there is no verb 'lss'"),
        ("swarm merge ad x", "there is no verb 'merge ad'"),
        ("swarm merge add x --verfy y", "'swarm merge add' has no flag --verfy"),
        ("swarm ls -Z", "'swarm ls' has no flag -Z"),
    ] {
        assert_eq!(check(script), Err(cause.to_owned()), "{script}");
    }
}

/// Returns the targets of the links in a paragraph.
fn links(text: &str) -> Vec<&str> {
    let prose: Vec<&str> = text.split('`').collect();
    let is_link = |part: &&str| !part.is_empty();
    let targets = prose.iter().flat_map(|part| part.split("](").skip(1));
    targets.filter_map(|rest| rest.split(')').next()).filter(is_link).collect()
}

/// Returns the anchor of a heading, as Markdown renderers generate it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_has_a_target() {
    let pages = pages();
    let anchors: BTreeMap<PathBuf, BTreeSet<String>> = pages
        .iter()
        .map(|page| {
            let lines = page.prose.iter().flat_map(|(_, text)| text.lines());
            (PathBuf::from(&page.name), lines.filter(|line| line.starts_with('#')).map(anchor).collect())
        })
        .collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in &pages {
        let folder = Path::new(&page.name).parent().expect("a folder");
        for (line, target) in
            page.prose.iter().flat_map(|(line, text)| links(text).into_iter().map(move |at| (line, at)))
        {
            if target.contains("://") {
                continue;
            }
            count += 1;
            let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { PathBuf::from(&page.name) } else { folder.join(path) };
            let known = fragment.is_empty() || anchors.get(&path).is_some_and(|known| known.contains(fragment));
            if !root().join(&path).exists() || !known {
                wrong.push(format!("{}:{line}: {target}", page.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 50, "{count} links in all documents");
}
