//! What a repository's files execute or set counts only after a person agreed to it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, remove_worktree, wait_until};
use crate::run::Site;

const HOSTILE: &str = "[spawn]\nworktree = true\nenv = { LD_PRELOAD = '/evil.so' }\n\
                       [worktree]\npost_create = 'touch \"$SWARM_BASE_REPO/pwned\"'\npre_remove = 'touch \"$SWARM_BASE_REPO/pwned\"'\n";

pub fn set(rig: &Rig, repo: &Path, config: &str) {
    fs::write(repo.join("swarm.toml"), config).expect("written");
    rig.git(repo, &["add", "swarm.toml"]);
    rig.git(repo, &["commit", "-q", "-m", "config", "--", "swarm.toml"]);
}

pub fn refusal(repo: &Path, what: &str) -> (String, String) {
    let repo = repo.display();
    (format!("swarm.toml of {repo} is not trusted: it would {what}"), format!("swarm: hint: run 'swarm trust {repo}'"))
}

#[test]
fn a_repository_cannot_choose_where_its_files_are_checked_out() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[spawn]\nworktree = true\nworktree_dir = '.vim/pack/x/start'\n");
    let spawn = || rig.swarm_in(&repo, &["spawn", "--name", "w", "--", "true"]);
    spawn().refused(1, &refusal(&repo, "change 1 permission").0);
    assert!(!rig.path(".vim").exists());
    rig.swarm_in(&repo, &["trust", "--yes"]).ok();
    spawn().ok();
    rig.wait("w");
    assert!(rig.path(".vim/pack/x/start/w").exists());
}

#[test]
fn a_fresh_clone_executes_and_sets_nothing_before_a_person_agreed() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, HOSTILE);
    let spawn = |name: &str| rig.swarm_in(&repo, &["spawn", "--name", name, "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let (cause, hint) = refusal(&repo, "execute 2 commands, set 1 variable");
    assert_eq!(spawn("s").refused(1, &cause).err.lines().nth(1), Some(hint.as_str()));
    assert!(!rig.root().exists() && !repo.join("pwned").exists() && !rig.path("home/.config").exists());

    let shown = rig.swarm_in(&repo, &["trust", "--show"]);
    assert_eq!(shown.code, Some(1), "{shown:?}");
    for line in ["swarm.toml: spawn.env.LD_PRELOAD = \"/evil.so\"  (new)", "swarm.toml: worktree.pre_remove = "] {
        assert!(shown.out.contains(line), "{shown:?}");
    }
    let asked = rig.swarm_in(&repo, &["trust"]);
    assert!(asked.err.contains("cannot ask for confirmation") && asked.code == Some(1), "{asked:?}");
    assert!(!rig.path("home/.config").exists(), "nothing is recorded without consent");

    let said = rig.swarm_in(&repo, &["trust", "--yes"]).ok();
    assert!(said.ends_with(&format!("trusted {}\n", repo.display())), "{said}");
    let book = rig.path("home/.config/swarm/trust.json");
    assert_eq!(fs::metadata(&book).expect("there").permissions().mode() & 0o777, 0o600);
    spawn("s").ok();
    rig.wait("s");
    assert_eq!((rig.log("s", "stdout").trim_end(), repo.join("pwned").exists()), ("/evil.so", true));
    let listed = rig.swarm(&["trust", "--list"]).ok();
    assert!(listed.contains(repo.to_str().expect("text")), "{listed}");

    // Other settings need no consent; a changed value needs it again, for the verbs that use it.
    set(&rig, &repo, &format!("{HOSTILE}[run]\nlimit = 3\n"));
    spawn("t").ok();
    set(&rig, &repo, &HOSTILE.replace("pwned", "again"));
    spawn("u").refused(1, &refusal(&repo, "execute 2 commands").0);
    rig.swarm_in(&repo, &["spawn", "--name", "v", "--no-worktree", "--", "true"]).ok();
    rig.swarm_in(&repo, &["trust", "--revoke"]).is(0, &format!("no longer trusted: {}\n", repo.display()), "");
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--no-worktree", "--", "true"])
        .refused(1, &refusal(&repo, "set 1 variable").0);
}

#[test]
fn on_a_terminal_a_verb_asks_once() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[spawn]\nenv = { FROM = 'the file' }\n");
    let place = repo.to_str().expect("text");
    assert_eq!(rig.tmux(&["new-session", "-d", "-s", "t", "-x", "200", "-y", "50", "-c", place, "sh"]).code, Some(0));
    let sees = |what: &str| {
        let screen = || rig.tmux(&["capture-pane", "-p", "-t", "t"]).out;
        wait_until(what, SOON, || screen().contains(what));
        screen()
    };
    let types = |text: &str| rig.tmux(&["send-keys", "-t", "t", text, "Enter"]);
    let spawn = |name: &str| {
        types(&format!(
            "{} spawn --name {name} -- printenv FROM; echo {name} $((40 + $?))",
            env!("CARGO_BIN_EXE_swarm")
        ))
    };
    spawn("no");
    let asked = sees("[y/N]");
    assert!(asked.contains("  swarm.toml: spawn.env.FROM = \"the file\"  (new)"), "{asked}");
    types("n");
    sees("no 41");
    assert!(!rig.path("home/.config").exists() && !rig.root().exists());
    rig.tmux(&["clear-history", "-t", "t"]);
    spawn("yes");
    wait_until("it asks again", SOON, || {
        rig.tmux(&["capture-pane", "-p", "-t", "t"]).out.matches("[y/N]").count() == 2
    });
    types("y");
    sees("yes 40");
    spawn("again");
    assert_eq!(sees("again 40").matches("[y/N]").count(), 2, "not asked again");
    rig.wait("yes");
    assert_eq!(rig.log("yes", "stdout"), "the file\n");
}

#[test]
fn settings_that_a_verb_does_not_use_and_verbs_that_report_need_no_consent() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'touch pwned'\n[agents.mine]\ncommand = ['x']\n");
    rig.swarm_in(&repo, &["spawn", "--name", "x", "--worktree", "--", "true"]).ok();
    rig.wait("x");
    for words in [&["config"][..], &["doctor"], &["ls"], &["merge", "ls"], &["diff", "x"], &["du"]] {
        let said = rig.swarm_in(&repo, words);
        assert!(!said.err.contains("not trusted"), "{said:?}");
    }
    let add = rig.swarm_in(&repo, &["merge", "add", "x"]);
    add.refused(1, &refusal(&repo, "execute 1 command").0);
    rig.swarm_in(&repo, &["merge", "add", "x", "--verify", "true"]).ok();
    // From any directory: the rules are those of the worker's repository.
    rig.swarm(&["merge", "add", "x"]).refused(1, &refusal(&repo, "execute 1 command").0);
    rig.swarm_in(&repo, &["spawn", "--name", "y", "--worktree", "--merge", "--", "true"])
        .refused(1, &refusal(&repo, "execute 1 command").0);
    assert!(!repo.join("pwned").exists());
}

#[test]
fn no_worker_can_agree() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, HOSTILE);
    let bin = env!("CARGO_BIN_EXE_swarm");
    let script = format!(
        "cd '{}' || exit; '{bin}' trust --yes; env -u SWARM_TOKEN -u SWARM_WORKER setsid '{bin}' trust --yes; \
         '{bin}' spawn --name inner -- true; exit 0",
        repo.display()
    );
    rig.spawn_sh("agent", &[], &script);
    rig.wait("agent");
    let said = rig.log("agent", "stderr");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("swarm: error: ")).collect();
    let own = format!("swarm: error: worker 'agent' cannot trust {}", repo.display());
    assert_eq!(lines[..2], [own.as_str(), own.as_str()], "{said}");
    assert!(lines[2].contains("is not trusted") && lines.len() == 3, "{said}");
    assert!(said.contains("worker 'agent' cannot agree") && !repo.join("pwned").exists(), "{said}");
    assert!(rig.swarm_in(&repo, &["trust", "--show"]).code == Some(1));
}

#[test]
fn a_damaged_list_of_consents_names_the_remedy() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'true'\n");
    rig.trust(&repo);
    let book = rig.path("home/.config/swarm/trust.json");
    fs::write(&book, "{\"version\": 1, \"projects\": 3}").expect("written");
    let expected = format!(
        "swarm: error: {}: damaged at line 1, column 28; move the file aside and agree again with 'swarm trust'\n",
        book.display()
    );
    rig.swarm_in(&repo, &["trust", "--list"]).is(1, "", &expected);
    fs::rename(&book, book.with_extension("aside")).expect("moved");
    rig.trust(&repo);
    assert_eq!(rig.swarm_in(&repo, &["trust", "--show"]).code, Some(0));
}

#[test]
fn work_that_lands_cannot_change_the_rules() {
    let rig = Rig::new();
    let repo = rig.repo();
    set(&rig, &repo, "[merge]\nverify = 'test ! -e bad'\n");
    rig.trust(&repo);
    let work = |name: &str, does: &str| {
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--merge", "--", "sh", "-c", does]).ok();
        rig.swarm_in(&repo, &["merge", "wait", name, "--timeout", "25"])
    };
    // One worker is at work while another one's changes land.
    let gate = rig.path("gate");
    let waits = format!("while ! test -e '{}'; do sleep 0.05; done; touch bad", gate.display());
    rig.swarm_in(&repo, &["spawn", "--name", "late", "--worktree", "--merge", "--", "sh", "-c", &waits]).ok();
    let pwned = rig.path("pwned");
    let hostile = format!("[merge]\nverify = 'touch \"{}\"'\nresolver = 'x'\n", pwned.display());
    let evil = format!("cp '{}' swarm.toml", rig.file("hostile", &hostile));
    assert_eq!(work("evil", &evil).code, Some(0));
    assert!(fs::read_to_string(repo.join("swarm.toml")).expect("landed").contains("pwned"));
    fs::write(&gate, "").expect("written");
    let said = rig.swarm_in(&repo, &["merge", "wait", "late", "--timeout", "25"]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(1), "late: rejected (main)\n"),
        "{}",
        rig.swarm_in(&repo, &["merge", "status", "late"]).out
    );
    rig.swarm_in(&repo, &["merge", "add", "late"]).refused(1, &refusal(&repo, "execute 2 commands").0);
    assert!(!pwned.exists());

    // Without the rule everything would land.
    set(&rig, &repo, "");
    let said = rig.swarm_in(&repo, &["merge", "retry", "late"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(rig.swarm_in(&repo, &["merge", "wait", "late", "--timeout", "25"]).code, Some(1));
    let cause = format!(
        "swarm.toml of {} does not set merge.verify: the trusted value stays in force until you agree to the removal",
        repo.display()
    );
    rig.swarm_in(&repo, &["merge", "add", "late"]).refused(1, &cause);
    fs::remove_file(repo.join("swarm.toml")).expect("removed");
    rig.swarm_in(&repo, &["merge", "add", "late"]).refused(1, &cause);
    let shown = rig.swarm_in(&repo, &["trust", "--show"]).out;
    assert!(shown.contains("merge.verify = \"test ! -e bad\"  (no longer set; still applies)"), "{shown}");
    rig.trust(&repo);
    rig.swarm_in(&repo, &["merge", "add", "late"]).ok();
    assert_eq!(rig.swarm_in(&repo, &["merge", "wait", "late", "--timeout", "25"]).code, Some(0));
}

/// Plans one spec that names this agent, in a repository with this configuration.
fn planned(config: &str, spec: &str) -> Site {
    let site = Site::new();
    fs::write(site.repo.join("swarm.toml"), config).expect("written");
    fs::write(site.repo.join("specs/a.md"), spec).expect("written");
    site.commit();
    site.swarm(&["plan", "--specs", "specs", "-y"]).ok();
    site
}

pub fn run_alone(site: &Site, flags: &[&str]) -> crate::common::Said {
    site.rig.swarm_in(&site.repo, &[&["run", "--headless"], flags].concat())
}

#[test]
fn a_run_shows_and_needs_consent_for_commands_in_specs() {
    let site = planned("", "---\nadapter: shell\nverify: test -e a\n---\n# A\n\n```sh\ntouch a ../../../pwned\n```\n");
    let cause = format!("specs/a.md of {} is not trusted: it would execute 2 commands", site.repo.display());
    run_alone(&site, &[]).refused(1, &cause);
    assert!(site.swarm(&["run", "--dry-run"]).code == Some(0) && !site.repo.join("pwned").exists());
    fs::remove_file(site.rig.path("home/.config/swarm/trust.json")).expect("the rig agreed");
    run_alone(&site, &[]).refused(1, &cause);
    let shown = site.rig.swarm_in(&site.repo, &["trust", "--show"]).out;
    assert!(shown.contains("  specs/a.md sh:  (new)\n      touch a ../../../pwned\n"), "{shown}");
    site.rig.trust(&site.repo);
    run_alone(&site, &[]).ok();
    assert!(site.repo.join("pwned").exists());
}

#[test]
fn a_run_needs_consent_for_what_its_agents_load() {
    let rig = Rig::new();
    let agent = rig.file("claude", "#!/bin/sh\ncat > /dev/null\n");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("executable");
    let site = planned(&format!("[agents.claude]\ncommand = ['{agent}']\n"), "# A\n");
    site.rig.trust(&site.repo);
    fs::write(site.repo.join(".mcp.json"), "{\"mcpServers\": {\"x\": {\"command\": \"evil\"}}}").expect("written");
    let cause = format!(".mcp.json of {} is not trusted: it would execute 1 command", site.repo.display());
    run_alone(&site, &[]).refused(1, &cause);
    // Another agent does not load it.
    let said = run_alone(&site, &["--agent", "shell", "--detach"]);
    assert!(!said.err.contains("not trusted"), "{said:?}");
}

#[test]
fn commands_of_a_spec_that_change_during_the_run_need_consent() {
    let site = planned("", "---\nadapter: shell\n---\n# A\n\n```sh\necho a > a\n```\n");
    let second = |script: &str| format!("---\nadapter: shell\nafter: a\n---\n# B\n\n```sh\n{script}\n```\n");
    let pwned: PathBuf = site.rig.path("pwned");
    let changed = second(&format!("echo b > b; touch '{}'", pwned.display()));
    let script = format!("cat > specs/b.md <<'END'\n{changed}END");
    fs::write(site.repo.join("specs/a.md"), format!("---\nadapter: shell\n---\n# A\n\n~~~sh\n{script}\n~~~\n"))
        .expect("written");
    fs::write(site.repo.join("specs/b.md"), second("echo b > b")).expect("written");
    site.commit();
    site.plan();
    let said = run_alone(&site, &[]);
    assert_eq!(said.code, Some(1), "{said:?}");
    wait_until("the run is over", SOON, || site.row("b")["status"] == "failed");
    let error = site.row("b")["lastError"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("the commands in specs/b.md changed and are not trusted"), "{error}");
    assert!(!pwned.exists());
    site.rig.trust(&site.repo);
    let said = run_alone(&site, &["--retry-failed"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(pwned.exists());
}

#[test]
fn a_run_that_came_with_the_repository_is_refused() {
    let site = planned("", "# A\n\n```sh\nexit 1\n```\n");
    let canary = site.rig.path("canary");
    let verify = format!("touch '{}'", canary.display());
    let said = run_alone(&site, &["--agent", "shell", "--verify", &verify, "--retries", "0"]);
    assert!(said.code == Some(1) && !canary.exists(), "{said:?}");
    let continued = run_alone(&site, &[]);
    assert!(continued.err.contains("continuing with earlier flags: --verify"), "{continued:?}");
    let spec = format!("# A\n\n```sh\ntouch '{}'\n```\n", canary.display());
    fs::write(site.repo.join("specs/a.md"), spec).expect("written");
    site.rig.git(&site.repo, &["add", "-f", "specs", ".arial/run.jsonl", ".arial/state.json"]);
    site.rig.git(&site.repo, &["commit", "-q", "-m", "with a run"]);
    let clone = site.rig.path("clone");
    site.rig.git(&site.repo, &["clone", "-q", ".", clone.to_str().expect("text")]);
    let mut run = site.rig.command(&["run", "--retry-failed"]);
    run.current_dir(&clone).env("PATH", "/usr/bin:/bin");
    let said = crate::common::run(run);
    assert!(said.code == Some(1) && said.err.contains("run.jsonl is tracked by git"), "{said:?}");
    assert!(said.err.contains("git rm -r --cached .arial"), "{said:?}");
    assert!(!canary.exists(), "{said:?}");
}

/// Makes a program that records its arguments and then does what the script says.
fn agent(rig: &Rig, name: &str, script: &str) -> String {
    let told = rig.path("told");
    let agent = rig.file(name, &format!("#!/bin/sh\necho \"$@\" >> '{}'\n{script}\n", told.display()));
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("executable");
    agent
}

/// Reports for each start of the agent whether it got the arguments that keep it from loading files of the repository.
fn held(rig: &Rig, arguments: &str) -> Vec<bool> {
    let told = fs::read_to_string(rig.path("told")).expect("it ran");
    told.lines().map(|line| line.contains(arguments)).collect()
}

const CLAUDE_HELD: &str = "--strict-mcp-config --setting-sources user";
const CODEX_HELD: &str = "={trust_level=\"untrusted\"}}";

#[test]
fn an_agent_does_not_load_what_an_earlier_attempt_wrote() {
    let script = "cat > /dev/null; echo '{}' > .mcp.json; [ $SWARM_ATTEMPT = 1 ] || echo ok > ok\n\
                  echo '{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"done\"}'";
    for (name, more) in [("claude", "events = 'claude'"), ("mine", "")] {
        let rig = Rig::new();
        let claude = agent(&rig, "claude", script);
        let config = format!("[run]\nagent = '{name}'\n[agents.{name}]\ncommand = ['{claude}']\n{more}\n");
        let site = planned(&config, "# A\n");
        site.rig.trust(&site.repo);
        let said = run_alone(&site, &["--verify", "test -e ok"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(held(&rig, CLAUDE_HELD), [false, true], "{name}");
    }
}

#[test]
fn opencode_starts_only_with_plugins_that_a_person_agreed_to() {
    let rig = Rig::new();
    let script = "cat > /dev/null; mkdir -p .opencode/plugin; echo 1 > .opencode/plugin/x.js; exit 1";
    let opencode = agent(&rig, "opencode", script);
    let config = format!("[agents.opencode]\ncommand = ['{opencode}']\nevents = 'opencode'\n");
    let site = planned(&config, "---\nadapter: opencode\nretries: 1\n---\n# A\n");
    site.rig.trust(&site.repo);
    let said = run_alone(&site, &[]);
    let cause = "opencode would load files in the worktree that are not those that were trusted (opencode.json, \
                 opencode.jsonc, tui.json, tui.jsonc, .opencode): run 'swarm trust'";
    assert!(said.out.contains(cause) && held(&rig, "").len() == 1, "{said:?}");
    fs::create_dir_all(site.repo.join(".opencode/plugin")).expect("made");
    fs::write(site.repo.join(".opencode/plugin/y.js"), "2").expect("written");
    run_alone(&site, &["--retry-failed"]).refused(
        1,
        &format!(".opencode/plugin/y.js of {} is not trusted: it would execute 1 command", site.repo.display()),
    );
}

#[test]
fn codex_does_not_load_what_an_earlier_attempt_wrote() {
    let rig = Rig::new();
    let script = "cat > /dev/null; mkdir -p .codex; echo 'a = 1' > .codex/config.toml\n\
                  [ $SWARM_ATTEMPT = 1 ] || echo ok > ok\n\
                  echo '{\"type\":\"thread.started\",\"thread_id\":\"t\"}'\n\
                  echo '{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"done\"}}'\n\
                  echo '{\"type\":\"turn.completed\",\"usage\":{}}'";
    let codex = agent(&rig, "codex", script);
    let config = format!("[run]\nagent = 'codex'\n[agents.codex]\ncommand = ['{codex}']\nevents = 'codex'\n");
    let site = planned(&config, "# A\n");
    // A file that nobody is asked about does not make codex trust the others.
    fs::create_dir(site.repo.join(".codex")).expect("made");
    fs::write(site.repo.join(".codex/notes"), "").expect("written");
    site.commit();
    site.plan();
    site.rig.trust(&site.repo);
    let said = run_alone(&site, &["--verify", "test -e ok"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    // It would otherwise take the worktree for trusted by itself.
    assert_eq!(held(&rig, CODEX_HELD), [true, true]);
}

#[test]
fn a_worker_that_is_started_again_loads_only_what_was_agreed_to() {
    for (name, script, arguments) in [
        ("claude", "echo '{}' > .mcp.json", CLAUDE_HELD),
        ("claude", "mkdir -p .claude/skills/x; echo x > .claude/skills/x/SKILL.md", CLAUDE_HELD),
        ("codex", "mkdir -p .codex; echo 'a = 1' > .codex/config.toml", CODEX_HELD),
    ] {
        let rig = Rig::new();
        let repo = rig.repo();
        let agent = agent(&rig, name, script);
        rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", &agent, "hello"]).ok();
        rig.wait("w");
        let said = rig.swarm_in(&repo, &["respawn", "w"]);
        assert!(said.code == Some(0) && said.err.contains("are not those that were trusted"), "{said:?}");
        rig.wait("w");
        assert_eq!(held(&rig, arguments), [false, true], "{name}");
        // In another worktree, nothing was written yet.
        rig.swarm_in(&repo, &["spawn", "--name", "other", "--worktree", "--", &agent, "hello"]).ok();
        rig.wait("other");
        assert_eq!(held(&rig, arguments), [false, true, false], "{name}");
    }
}

#[test]
fn an_agent_that_cannot_be_held_back_starts_only_with_what_was_agreed_to() {
    let rig = Rig::new();
    let repo = rig.repo();
    let settings = |text: &str| {
        fs::create_dir_all(repo.join(".qwen")).expect("made");
        fs::write(repo.join(".qwen/settings.json"), text).expect("written");
        rig.git(&repo, &["add", ".qwen"]);
        rig.git(&repo, &["commit", "-q", "-m", "settings"]);
    };
    settings("{}");
    let agent = agent(&rig, "qwen", "echo '{\"mcpServers\": {}}' > .qwen/settings.json");
    let spawn = || rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", &agent, "hello"]);
    spawn()
        .refused(1, &format!(".qwen/settings.json of {} is not trusted: it would execute 1 command", repo.display()));
    rig.trust(&repo);
    spawn().ok();
    rig.wait("w");
    let again = rig.swarm_in(&repo, &["respawn", "w"]);
    assert!(again.code != Some(0) && again.err.contains("that are not those that were trusted"), "{again:?}");
    assert_eq!(held(&rig, "hello"), [true], "it started once");
}

#[test]
fn an_agent_starts_in_a_worktree_after_a_person_agreed_to_what_it_loads() {
    let rig = Rig::new();
    let repo = rig.repo();
    let agent = agent(&rig, "claude", "true");
    fs::write(repo.join(".mcp.json"), "{}").expect("written");
    rig.git(&repo, &["add", ".mcp.json"]);
    rig.git(&repo, &["commit", "-q", "-m", "servers"]);
    let spawn = |flags: &[&str]| rig.swarm_in(&repo, &[&["spawn"], flags, &["--", &agent, "hello"]].concat());
    let cause = format!(".mcp.json of {} is not trusted: it would execute 1 command", repo.display());
    spawn(&["--name", "w", "--worktree"]).refused(1, &cause);
    spawn(&["--name", "here"]).ok();
    rig.wait("here");
    rig.trust(&repo);
    spawn(&["--name", "w", "--worktree"]).ok();
    rig.wait("w");
    assert_eq!(held(&rig, CLAUDE_HELD), [false, false]);
    // The person changes the file in the checkout: a respawn asks, as the first start did.
    fs::write(repo.join(".mcp.json"), "{\"mcpServers\": {}}").expect("written");
    rig.swarm_in(&repo, &["respawn", "w"]).refused(1, &cause);
}

#[test]
fn a_respawn_asks_about_commands_that_changed() {
    let rig = Rig::new();
    let repo = rig.repo();
    let hook = |name: &str| format!("[worktree]\npost_create = 'touch {}'\n", rig.path(name).display());
    set(&rig, &repo, &hook("agreed"));
    rig.trust(&repo);
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "true"]).ok();
    rig.wait("w");
    set(&rig, &repo, &hook("pwned"));
    // The worktree exists, so that its command is not executed.
    rig.swarm_in(&repo, &["respawn", "w"]).ok();
    rig.wait("w");
    let (cause, hint) = refusal(&repo, "execute 1 command");
    let said = rig.swarm(&["respawn", "w", "--clean-first"]).refused(1, &cause);
    assert_eq!(said.err.lines().nth(1), Some(hint.as_str()));
    let tree = rig.view("w")["worktree"]["path"].as_str().expect("a path").to_owned();
    remove_worktree(&tree);
    rig.swarm(&["respawn", "w"]).refused(1, &cause);
    assert!(!Path::new(&tree).exists() && !rig.path("pwned").exists());
    rig.trust(&repo);
    rig.swarm(&["respawn", "w"]).ok();
    assert!(Path::new(&tree).exists() && rig.path("pwned").exists());
}
