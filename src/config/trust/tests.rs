use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::{Consent, FILE, Sections, of_files};

struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("repo/.git")).expect("made");
        fs::write(dir.path().join("repo/.git/HEAD"), "ref: refs/heads/main\n").expect("written");
        let site = Self { dir };
        site.write(text);
        site
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    fn book(&self) -> PathBuf {
        self.dir.path().join("config/swarm/trust.json")
    }

    fn write(&self, text: &str) {
        fs::write(self.root().join(FILE), text).expect("written");
    }

    fn project(&self) -> Project {
        Project::of(&self.root()).expect("a project")
    }

    fn agree(&self, sections: &[&str]) {
        agree(&self.book(), &self.project(), sections, &settings(&self.root()).expect("read"), 1).expect("written");
    }

    fn load(&self) -> Sections {
        of_files(None, Consent::Book(Some(&self.book())), Some(&self.root())).expect("read")
    }

    fn changes(&self, sections: &[&str]) -> Vec<(Status, String)> {
        let agreed = recorded(&self.book(), &self.root()).expect("read");
        let all = compare(agreed.as_ref(), sections, &settings(&self.root()).expect("read"));
        all.into_iter().map(|(status, entry)| (status, entry.key)).collect()
    }
}

const TEXT: &str = "[spawn]\ntags = ['x']\nenv = { A = '1', \"B.C\" = '2' }\n[merge]\nverify = 'make'\nbatch = 2\n\
                    [agents.'my.agent']\ncommand = ['a', 'b']\narguments = ['--x']\n[agents.'my.agent'.env]\nK = 'v'\n\
                    [flow.roles.dev]\nunsafe = true\n[worktree]\npost_create = 'make'\ninclude = ['.env']\n";

#[test]
fn the_statement_has_what_executes_sets_or_permits_and_nothing_else() {
    let site = Site::new(TEXT);
    let all: Vec<String> =
        settings(&site.root()).expect("read").iter().map(|one| format!("{} = {}", one.key, one.text)).collect();
    assert_eq!(
        all,
        [
            "agents.\"my.agent\".arguments = [\"--x\"]",
            "agents.\"my.agent\".command = [\"a\",\"b\"]",
            "agents.\"my.agent\".env.K = \"v\"",
            "flow.roles.dev.unsafe = true",
            "merge.verify = \"make\"",
            "spawn.env.\"B.C\" = \"2\"",
            "spawn.env.A = \"1\"",
            "worktree.post_create = \"make\"",
        ]
    );
    for key in all.iter().filter_map(|line| line.split(" = ").next()) {
        assert_eq!(joined(&split(key)), key);
    }
    assert!(settings(site.dir.path()).expect("no file").is_empty());
}

#[test]
fn what_was_agreed_to_counts_until_a_person_agrees_to_a_change() {
    let site = Site::new(TEXT);
    // Nobody was asked yet: nothing counts, and who would execute it is refused.
    let read = site.load();
    assert_eq!((read.merge.verify, read.merge.batch, read.spawn.env.len()), (None, Some(2), 0));
    assert_eq!(read.unasked.require(&["claude", "trash"]), Ok(()));
    let cause = read.unasked.require(&["merge", "worktree"]).expect_err("nobody agreed");
    let (root, book) = (site.root().canonicalize().expect("there"), site.book());
    assert_eq!(
        cause.cause,
        format!(
            "swarm.toml of {} is not trusted: merge.verify, worktree.post_create not in {}",
            root.display(),
            book.display()
        )
    );
    assert_eq!(cause.remedy, format!("run 'swarm trust {}'", root.display()));
    let nowhere = of_files(None, Consent::Book(None), Some(&site.root())).expect("read");
    assert!(nowhere.merge.verify.is_none() && nowhere.unasked.require(&["merge"]).is_err());
    site.agree(&SETTINGS);
    let as_written = site.load();
    assert_eq!(as_written, of_files(None, Consent::Ignored, Some(&site.root())).expect("read"));
    assert!(site.changes(&SETTINGS).iter().all(|(status, _)| *status == Status::Agreed));

    site.write("[merge]\nverify = 'evil'\nresolver = 'evil'\nbatch = 9\n[agents.new]\ncommand = ['evil']\n[spawn]\nenv = { A = '1', LD_PRELOAD = 'x' }\n[worktree]\npre_remove = 'evil'\n");
    let read = site.load();
    assert_eq!(
        (read.merge.verify.as_deref(), read.merge.resolver.clone(), read.merge.batch),
        (Some("make"), None, Some(9))
    );
    assert_eq!(read.agents["new"].command, None);
    assert_eq!(read.spawn.env, BTreeMap::from([("A".to_owned(), "1".to_owned())]));
    assert_eq!((read.worktree.pre_remove, read.worktree.post_create), (None, None), "a removed hook does not run");
    assert_eq!(read.agents["my.agent"].arguments, ["--x"], "a removed restriction stays");
    let found = site.changes(&["agents", "merge"]);
    assert_eq!(read.agents["my.agent"].command.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
    assert_eq!(read.agents["my.agent"].env["K"], "v", "a removed variable stays");
    assert!(read.flow.roles["dev"].is_unsafe);
    let expected = [
        (Status::Removed, "agents.\"my.agent\".arguments"),
        (Status::Removed, "agents.\"my.agent\".command"),
        (Status::Removed, "agents.\"my.agent\".env.K"),
        (Status::New, "agents.new.command"),
        (Status::New, "merge.resolver"),
        (Status::Changed, "merge.verify"),
    ];
    assert_eq!(found, expected.map(|(status, key)| (status, key.to_owned())));

    fs::remove_file(site.root().join(FILE)).expect("removed");
    assert_eq!(site.load().merge.verify.as_deref(), Some("make"), "a removed verification stays");
    assert!(site.load().agents["my.agent"].command.is_some(), "a removed sandbox stays");
    site.agree(&SETTINGS);
    assert_eq!(site.load(), Sections::default());
}

#[test]
fn each_section_is_settled_by_itself_and_a_settled_one_gains_nothing() {
    let site = Site::new("");
    settle(&site.book(), &site.project(), &["merge"], 1).expect("written");
    site.write(TEXT);
    let read = site.load();
    assert_eq!((read.merge.verify, read.worktree.post_create), (None, None));
    assert!(read.unasked.require(&["merge"]).is_ok() && read.unasked.require(&["worktree"]).is_err());
    assert_eq!(site.changes(&["merge"]), [(Status::New, "merge.verify".to_owned())]);
    site.agree(&["merge"]);
    settle(&site.book(), &site.project(), &["merge"], 2).expect("unchanged");
    assert_eq!(site.load().merge.verify.as_deref(), Some("make"));
    assert!(revoke(&site.book(), &site.project().key).expect("written"));
    let read = site.load();
    assert!(read.merge.verify.is_none() && read.unasked.require(&["merge"]).is_err(), "as if nobody was ever asked");
    assert!(!revoke(&site.book(), "/nowhere").expect("nothing"));
}

#[test]
fn all_worktrees_of_a_repository_are_one_project() {
    let site = Site::new("");
    let (tree, entry) = (site.dir.path().join("tree"), site.root().join(".git/worktrees/tree"));
    fs::create_dir_all(&entry).expect("made");
    fs::create_dir(&tree).expect("made");
    fs::write(entry.join("commondir"), "../..\n").expect("written");
    fs::write(tree.join(".git"), format!("gitdir: {}\n", entry.display())).expect("written");
    assert_eq!(Project::of(&tree).expect("read"), site.project());
    assert!(site.project().shown().ends_with("/repo"), "{}", site.project().shown());
    let link = site.dir.path().join("link");
    std::os::unix::fs::symlink(site.root(), &link).expect("linked");
    assert_eq!(Project::of(&link).expect("read"), site.project());
    let plain = site.dir.path().join("plain");
    fs::create_dir(&plain).expect("made");
    assert!(Project::of(&plain).expect("read").key.ends_with("/plain"));
    assert!(Project::of(&site.dir.path().join("none")).is_err());
}

#[test]
fn a_book_that_cannot_be_read_is_an_error() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new(TEXT);
    site.agree(&["merge"]);
    assert_eq!(fs::metadata(site.book()).expect("there").permissions().mode() & 0o777, 0o600);
    let (damaged, remedy) =
        (": damaged at line 1, column ", "; move the file aside and agree again with 'swarm trust'");
    let newer = ": version 2 is not supported (expected 1)";
    let cases = [
        ("", [": damaged at line 1, column 0", remedy]),
        ("[]", [damaged, remedy]),
        ("{\"version\": 1, \"projects\": 3}", [damaged, remedy]),
        ("{\"version\": 2}", [newer, ""]),
        // A file of a newer version is not damaged, whatever its shape is.
        ("{\"version\": 2, \"projects\": 3}", [newer, ""]),
    ];
    for (text, words) in cases {
        fs::write(site.book(), text).expect("written");
        let cause = of_files(None, Consent::Book(Some(&site.book())), Some(&site.root())).expect_err("damaged");
        let expected = format!("{}{}", words[0], words[1]);
        assert!(cause[0].contains(&format!("trust.json{}", words[0])), "{cause:?}, not {expected}");
        assert!(cause[0].ends_with(words[1]) && !cause[0].contains("invalid type"), "{cause:?}, not {expected}");
        assert!(settle(&site.book(), &site.project(), &["merge"], 1).is_err());
        assert_eq!(fs::read_to_string(site.book()).expect("kept"), text);
    }
}

#[test]
fn specs_add_up_and_files_are_recorded_by_their_content() {
    let site = Site::new("");
    let book = site.book();
    let spec = |name: &str, text: &str| Entry::of_text(SPECS, name, "sh", text);
    for name in ["a.md", "b.md"] {
        fs::write(site.root().join(name), "# It\n").expect("written");
    }
    agree(&book, &site.project(), &[SPECS], &[spec("a.md", "echo a")], 1).expect("written");
    agree(&book, &site.project(), &[SPECS], &[spec("b.md", "echo b")], 2).expect("written");
    let agreed = recorded(&book, &site.root()).expect("read").expect("there");
    let all = [spec("a.md", "echo a"), spec("b.md", "echo B"), spec("c.md", "echo c")];
    let statuses: Vec<Status> = compare(Some(&agreed), &[SPECS], &all).into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [Status::Agreed, Status::Changed, Status::New]);
    fs::remove_file(site.root().join("a.md")).expect("removed");
    agree(&book, &site.project(), &[SPECS], &[spec("c.md", "echo c")], 3).expect("written");
    let agreed = recorded(&book, &site.root()).expect("read").expect("there");
    assert_eq!(agreed.sections[SPECS].keys().collect::<Vec<_>>(), ["b.md sh", "c.md sh"]);
    fs::write(site.root().join(".mcp.json"), "{}").expect("written");
    let files = agent_files(&site.root(), &[CLAUDE]).expect("read");
    assert_eq!(files.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), [".mcp.json"]);
    assert!(agent_files(&site.root(), &[CODEX]).expect("read").is_empty());
}

#[test]
fn repositories_that_are_gone_and_have_nothing_agreed_are_forgotten() {
    let (gone, site) = (Site::new(TEXT), Site::new(TEXT));
    let book = site.book();
    settle(&book, &gone.project(), &["merge"], 1).expect("written");
    assert_eq!(Book::read(&book).expect("read").projects.len(), 1);
    let key = gone.project().key;
    drop(gone);
    settle(&book, &site.project(), &["merge"], 2).expect("written");
    let known = Book::read(&book).expect("read").projects;
    assert!(known.len() == 1 && !known.contains_key(&key));
}

#[test]
fn a_consent_and_an_agent_stay_if_a_change_removes_them() {
    let site = Site::new("[run]\nconsent = 'partial-access'\nagent = 'codex'\n[flow]\nagent = 'codex'\n");
    site.agree(&["run", "flow"]);
    site.write("[flow]\nagent = 'gemini'\n");
    let read = site.load();
    assert_eq!(
        (read.run.consent.map(|one| one.word()), read.run.agent.as_deref()),
        (Some("partial-access"), Some("codex"))
    );
    assert_eq!(read.flow.agent.as_deref(), Some("codex"));
    let removed = |key: &str| (Status::Removed, key.to_owned());
    let changed = (Status::Changed, "flow.agent".to_owned());
    assert_eq!(site.changes(&["run", "flow"]), [changed, removed("run.agent"), removed("run.consent")]);
}

#[test]
fn events_and_limits_of_the_trash_count_only_as_agreed_to() {
    let site = Site::new("[agents.claude]\nevents = 'claude'\n[trash]\nmax_age = '1s'\nmax_size = '1M'\n");
    let keys: Vec<String> = settings(&site.root()).expect("read").into_iter().map(|entry| entry.key).collect();
    assert_eq!(keys, ["agents.claude.events", "trash.max_age", "trash.max_size"]);
    assert_eq!((site.load().trash.max_age, site.load().trash.max_size), (None, None));
    site.agree(&SETTINGS);
    assert!(site.load().trash.max_age.is_some());
    site.write("");
    assert_eq!(site.load().agents["claude"].events.as_deref(), Some("claude"), "without it, the kind would change");
    assert_eq!(site.load().trash.max_age, None);
}

#[test]
fn a_change_removes_what_killed_ones_left() {
    let site = Site::new(TEXT);
    site.agree(&["spawn"]);
    let dir = site.book().parent().expect("a directory").to_owned();
    for name in ["trust.json.tmp.1", "trust.json.tmp.4194305", "trust.json.tmp.mine", "trust.json.old"] {
        fs::write(dir.join(name), "half").expect("written");
    }
    site.agree(&["merge"]);
    let mut names: Vec<_> = fs::read_dir(dir).expect("read").map(|file| file.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, ["trust.json", "trust.json.old", "trust.json.tmp.mine", "trust.lock"]);
}

#[test]
fn files_of_agents_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    for (name, section) in [(".mcp.json", CLAUDE), (".lsp.json", QWEN)] {
        let loads = || loads_as_agreed_in(&site.book(), &site.root(), &site.root(), section).expect("read");
        assert!(loads(), "there are none");
        fs::write(site.root().join(name), "{}").expect("written");
        assert!(!loads(), "nobody was asked");
        let files = agent_files(&site.root(), &[section]).expect("read");
        agree(&site.book(), &site.project(), &[section], &files, 1).expect("written");
        assert!(loads());
    }
}

#[test]
fn agents_skills_and_commands_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    let loads = || loads_as_agreed_in(&site.book(), &site.root(), &site.root(), CLAUDE);
    let write = |name: &str, text: &str| {
        let path = site.root().join(".claude").join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    write("skills/deep/picture.png", "not a text");
    assert_eq!(loads(), Ok(true));
    let mut keys = Vec::new();
    for name in ["agents/of/mine.md", "commands/mine.MD", "skills/deep/SKILL.md"] {
        write(name, "---\nhooks: {}\n---\n");
        assert_eq!(loads(), Ok(false), "{name}");
        let files = agent_files(&site.root(), &[CLAUDE]).expect("read");
        agree(&site.book(), &site.project(), &[CLAUDE], &files, 1).expect("written");
        assert_eq!(loads(), Ok(true), "{name}");
        keys.push(format!(".claude/{name}"));
        assert_eq!(files.iter().map(|one| &one.key).collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
    }
    write("skills/deep/SKILL.md", "---\nhooks: {PreToolUse: []}\n---\n");
    assert_eq!(loads(), Ok(false), "it changed");
    fs::remove_file(site.root().join(".claude/skills/deep/SKILL.md")).expect("removed");
    assert_eq!(loads(), Ok(true));
    // The agent follows links.
    std::os::unix::fs::symlink(site.root().join(".claude/agents"), site.root().join(".claude/skills/more"))
        .expect("made");
    assert_eq!(loads(), Ok(false), "another skill");
    fs::remove_file(site.root().join(".claude/skills/more")).expect("removed");
    std::os::unix::fs::symlink(".", site.root().join(".claude/skills/again")).expect("made");
    assert!(loads().is_err_and(|cause| cause.ends_with("more than 8 levels of directories")));
}

#[test]
fn skills_in_a_folder_for_all_agents_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    let loads = |section| loads_as_agreed_in(&site.book(), &site.root(), &site.root(), section).expect("read");
    for (name, sections) in [
        (".agents/skills/fmt/SKILL.md", &[CODEX, GEMINI, QWEN][..]),
        (".agents/skills/fmt/agents/openai.yaml", &[CODEX, GEMINI, QWEN]),
        (".codex/skills/fmt/agents/openai.yml", &[CODEX]),
        (".gemini/policies/all.toml", &[GEMINI]),
        (".agents/notes.md", &[]),
        (".qwen/settings.json.orig", &[QWEN]),
    ] {
        let path = site.root().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, "---\nhooks: {}\n---\n").expect("written");
        for section in AGENTS {
            assert_eq!(loads(section), !sections.contains(&section), "{name} for {section}");
        }
        let files = agent_files(&site.root(), sections).expect("read");
        agree(&site.book(), &site.project(), sections, &files, 1).expect("written");
        assert!(AGENTS.iter().all(|section| loads(section)), "{name}");
    }
}

#[test]
fn plugins_and_tools_of_opencode_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    let loads = || loads_as_agreed_in(&site.book(), &site.root(), &site.root(), OPENCODE);
    let write = |name: &str, text: &str| {
        let path = site.root().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    for name in [".opencode/node_modules/x/index.js", ".opencode/plans/1.md", ".opencode/bun.lock", "x.js"] {
        write(name, "of itself");
        assert_eq!(loads(), Ok(true), "{name}");
    }
    for name in [
        ".opencode/agent/of/mine.md",
        ".opencode/agent/node_modules/x.md",
        ".opencode/opencode.jsonc",
        ".opencode/plugin/x.js",
        ".opencode/plugins/x.TS",
        ".opencode/tool/x.ts",
        "opencode.json",
        "opencode.jsonc",
        "tui.json",
        "tui.jsonc",
    ] {
        write(name, "1");
        assert_eq!(loads(), Ok(false), "{name}");
        let files = agent_files(&site.root(), &[OPENCODE]).expect("read");
        assert!(files.iter().any(|file| file.key == name), "{files:?}");
        agree(&site.book(), &site.project(), &[OPENCODE], &files, 1).expect("written");
        assert_eq!(loads(), Ok(true), "{name}");
    }
    write(".opencode/plugin/x.js", "2");
    assert_eq!(loads(), Ok(false), "it changed");
    assert_eq!(agent_files(&site.root(), &[CLAUDE, CODEX, GEMINI, QWEN, AIDER]), Ok(Vec::new()));
}

#[test]
fn folders_of_claude_in_subdirectories_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    let loads = || loads_as_agreed_in(&site.book(), &site.root(), &site.root(), CLAUDE);
    let write = |name: &str, text: &str| {
        let path = site.root().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    for name in ["node_modules/x/.claude/skills/s.md", "wt/.claude/skills/s.md", "a/.mcp.json", "a/.claude/x.md"] {
        write(name, "x");
    }
    write("wt/.git", "gitdir: /r/.git/worktrees/wt\n");
    assert_eq!(loads(), Ok(true), "nothing of that is loaded");
    let index = site.root().join(".git/index");
    fs::write(&index, "of a newer version").expect("written");
    assert_eq!(loads(), Ok(false), "nobody knows what is tracked, so everything is searched");
    fs::remove_file(index).expect("removed");
    let names = [
        "a/.claude/commands/c.md",
        "a/.claude/settings.json",
        "a/b/.claude/skills/s/SKILL.md",
        "sub/.claude/settings.local.json",
    ];
    write("sub/.git", "gitdir: ../.git/modules/sub\n");
    for name in names {
        write(name, "text");
        assert_eq!(loads(), Ok(false), "{name}");
        let files = agent_files(&site.root(), &[CLAUDE]).expect("read");
        assert!(files.iter().any(|one| one.key == name && one.source == name), "{files:?}");
        agree(&site.book(), &site.project(), &[CLAUDE], &files, 1).expect("written");
        assert_eq!(loads(), Ok(true), "{name}");
    }
    write(names[2], "other");
    assert_eq!(loads(), Ok(false), "it changed");
    assert!(agent_files(&site.root(), &[CODEX]).expect("read").is_empty());
}

#[test]
fn files_above_a_worktree_are_loaded_only_if_somebody_agreed() {
    let site = Site::new("");
    let write = |name: &str, text: &str| {
        let path = site.root().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    for (tree, record) in [(".arial/worktrees/a", "a"), ("trees/b", "b")] {
        let record = format!(".git/worktrees/{record}");
        write(&format!("{record}/commondir"), "../..\n");
        write(&format!("{tree}/.git"), &format!("gitdir: {}\n", site.root().join(record).display()));
    }
    let loads = |tree: &str, section| {
        loads_as_agreed_in(&site.book(), &site.root(), &site.root().join(tree), section).expect("read")
    };
    fs::write(site.dir.path().join(".mcp.json"), "{}").expect("written");
    for (name, section) in [
        (".arial/.mcp.json", CLAUDE),
        (".arial/worktrees/.mcp.json", CLAUDE),
        (".arial/.claude/skills/s/SKILL.md", CLAUDE),
        (".mcp.json", CLAUDE),
        (".arial/.codex/config.toml", CODEX),
        (".arial/.codex/agents/default.toml", CODEX),
        (".gemini/.env", GEMINI),
        (".qwen/.env", QWEN),
        (".env", GEMINI),
    ] {
        assert!(loads(".arial/worktrees/a", section), "before {name}");
        write(name, "{}");
        assert!(!loads(".arial/worktrees/a", section), "{name}");
        let files = agent_files(&site.root(), &[section]).expect("read");
        agree(&site.book(), &site.project(), &[section], &files, 1).expect("written");
        assert!(loads(".arial/worktrees/a", section), "after {name}");
    }
    assert!(!loads(".arial/worktrees/a", QWEN), "nobody agreed that this agent loads .env");
    // What an agent loads only from where it works.
    for (name, section) in [(".gemini/settings.json", GEMINI), (".gemini/skills/s.md", GEMINI), (".env", AIDER)] {
        write(name, "{}");
        assert!(loads(".arial/worktrees/a", section), "{name}");
    }
    // claude takes local settings and skills from the main checkout, also into worktrees beside it; codex takes hooks.
    let of_claude = [".claude/settings.local.json", ".claude/skills/s/SKILL.md"].map(|name| (name, CLAUDE, CODEX));
    for (name, section, other) in of_claude.into_iter().chain([(".codex/hooks.json", CODEX, CLAUDE)]) {
        write(name, "{}");
        for tree in [".arial/worktrees/a", "trees/b"] {
            assert!(!loads(tree, section) && loads(tree, other), "{name} in {tree}");
        }
        let files = agent_files(&site.root(), &[section]).expect("read");
        agree(&site.book(), &site.project(), &[section], &files, 1).expect("written");
        assert!(loads(".arial/worktrees/a", section) && loads("trees/b", section), "{name}");
    }
    // Nobody is asked about other directories.
    write("trees/.mcp.json", "{}");
    assert!(!loads("trees/b", CLAUDE));
    assert!(loads_nothing(&site.root(), &site.root().join("trees/b"), AIDER).expect("read"));
    assert!(!loads_nothing(&site.root(), &site.root().join("trees/b"), CLAUDE).expect("read"));
}

#[test]
fn a_project_without_a_checkout_of_its_own_is_named_by_the_root_that_was_read() {
    let site = Site::new("");
    let (tree, git) = (site.dir.path().join("tree"), site.dir.path().join("git"));
    fs::create_dir_all(&tree).expect("made");
    fs::create_dir(&git).expect("made");
    fs::write(tree.join(".git"), format!("gitdir: {}\n", git.display())).expect("written");
    assert_eq!(Project::of(&tree).expect("read").named(&tree), tree.display().to_string());
    let root = site.root().canonicalize().expect("there");
    assert_eq!(site.project().named(&site.root()), root.display().to_string());
}
