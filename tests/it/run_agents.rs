//! What a run learns from the output of its agents, with stand-ins that print what the real ones do.

use serde_json::Value;

use crate::run::Site;

/// A script that prints these lines.
fn say(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("echo '{line}'\n")).collect()
}

fn status(site: &Site) -> Value {
    let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
    status["workstreams"][0].clone()
}

#[test]
fn the_tokens_of_a_killed_attempt_count_and_not_once_more_when_it_is_continued() {
    let site = Site::new();
    // The first attempt is killed with its agent, after its answers are recorded. The next total has them.
    let answer =
        r#"{"type":"assistant","message":{"id":"ID","content":[],"usage":{"input_tokens":100,"output_tokens":1}}}"#;
    let (one, two) = (answer.replace("ID", "a"), answer.replace("ID", "b"));
    let script = [
        "cat > /dev/null\n".to_owned(),
        say(&[r#"{"type":"system","subtype":"init","session_id":"7"}"#]),
        "if [ $SWARM_ATTEMPT = 1 ]; then\n".to_owned(),
        say(&[&one, &one, &two]),
        "until grep -q '\"input_tokens\":200' ../../attempts/a.1/session.json; do :; done\nkill -9 $PPID; exit\nfi\n"
            .to_owned(),
        "echo a > a.txt\n".to_owned(),
        say(&[
            r#"{"type":"result","subtype":"success","is_error":false,"result":"done","total_cost_usd":0.5,"usage":{"input_tokens":50,"output_tokens":5},"modelUsage":{"m":{"inputTokens":250,"outputTokens":25}}}"#,
        ]),
    ];
    site.agent(&script.concat(), "events = 'claude'\n");
    site.write("specs/a.md", "---\nretries: 0\n---\n# A\n");
    site.commit();
    site.plan();
    site.run(1, &["--agent", "mine"]);
    let row = status(&site);
    assert_eq!((&row["input_tokens"], &row["output_tokens"], &row["unpriced"]), (&200.into(), &2.into(), &true.into()));
    site.run(0, &["--agent", "mine", "--retry-failed"]);
    let row = status(&site);
    assert_eq!(
        (&row["input_tokens"], &row["output_tokens"], &row["usd"]),
        (&250.into(), &25.into(), &0.5.into()),
        "{row}"
    );
}

#[test]
fn the_tokens_of_a_killed_attempt_of_codex_are_read_from_its_own_file() {
    let site = Site::new();
    let usage = |input: u64| {
        format!(
            "echo '{{\"type\":\"token_usage_record\",\"payload\":{{\"thread_token_usage\":{{\"input_tokens\":{input},\"output_tokens\":7}}}}}}' \
             >> $dir/rollout-2026-11-24T05-21-07-01a2.jsonl\n"
        )
    };
    let script = [
        "cat > /dev/null\ndir=$HOME/.codex/sessions/2026/11/24\nmkdir -p $dir\n".to_owned(),
        say(&[r#"{"type":"thread.started","thread_id":"01a2"}"#]),
        "if [ $SWARM_ATTEMPT = 1 ]; then\n".to_owned(),
        usage(1000),
        say(&[r#"{"type":"item.started","item":{"type":"command_execution","command":"ls"}}"#]),
        "until grep -q '\"input_tokens\":1000' ../../attempts/a.1/session.json; do :; done\nkill -9 $PPID; exit\nfi\n"
            .to_owned(),
        usage(1300),
        "echo a > a.txt\n".to_owned(),
        say(&[
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"done"}}"#,
            r#"{"type":"turn.completed","usage":{"input_tokens":1300,"output_tokens":7}}"#,
        ]),
    ];
    site.agent(&script.concat(), "events = 'codex'\n");
    site.write("specs/a.md", "---\nretries: 1\n---\n# A\n");
    site.commit();
    site.plan();
    site.run(0, &["--agent", "mine"]);
    let row = status(&site);
    assert_eq!((&row["input_tokens"], &row["output_tokens"]), (&1300.into(), &7.into()), "{row}");
}

#[test]
fn what_aider_writes_for_itself_is_no_work() {
    let site = Site::new();
    let script = "cat > /dev/null\nmkdir .aider.tags.cache.v4\necho x > .aider.tags.cache.v4/cache.db\n\
        echo x > .aider.chat.history.md\necho a > a.txt\necho b > .aiderignore\n\
        echo 'Tokens: 1.0k sent, 20 received.'\n";
    site.agent(script, "events = 'aider'\n");
    site.write("specs/a.md", "# A\n");
    site.commit();
    site.plan();
    site.run(0, &["--agent", "mine"]);
    let landed = site.git(&["ls-tree", "-r", "--name-only", "HEAD"]);
    let names: Vec<&str> = landed.lines().filter(|name| name.contains("aider") || *name == "a.txt").collect();
    assert_eq!(names, [".aiderignore", "a.txt"]);
}

#[test]
fn an_agent_that_stops_at_a_deferred_tool_use_has_not_succeeded() {
    let site = Site::new();
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"","stop_reason":"tool_deferred","deferred_tool_use":{"id":"t","name":"Bash","input":{"command":"make"}}}"#;
    let script = format!("cat > /dev/null\necho a > a.txt\n{}", say(&[result]));
    site.agent(&script, "events = 'claude'\n");
    site.write("specs/a.md", "# A\n");
    site.commit();
    site.plan();
    site.run(1, &["--agent", "mine"]);
    let error = site.row("a")["lastError"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("stopped at Bash: make: a hook in claude's settings deferred it"), "{error}");
}

#[test]
fn opencode_and_gemini_land_their_work_and_a_lost_conversation_is_replaced() {
    // Stand-ins that know no conversation but their own, and fail their first attempt.
    let gemini = format!(
        "case \"$*\" in *--resume*) echo 'Error resuming session: Invalid session identifier \"x\".' >&2; exit 42;; esac\n{}\
         [ $SWARM_ATTEMPT = 1 ] && exit 1\necho a > a.txt\n{}",
        say(&[
            r#"{"type":"init","session_id":"x"}"#,
            r#"{"type":"message","role":"assistant","content":"it is","delta":true}"#
        ]),
        say(&[r#"{"type":"result","status":"success","stats":{"input_tokens":10,"output_tokens":2}}"#]),
    );
    let opencode = format!(
        "case \"$*\" in *' -s '*) printf '\\033[91m\\033[1mError: \\033[0mSession not found\\n' >&2; exit 1;; esac\n{}\
         [ $SWARM_ATTEMPT = 1 ] && exit 1\necho a > a.txt\n{}",
        say(&[
            r#"{"type":"step_start","sessionID":"x"}"#,
            r#"{"type":"text","sessionID":"x","part":{"text":"it is"}}"#
        ]),
        say(&[
            r#"{"type":"step_finish","sessionID":"x","part":{"reason":"stop","tokens":{"input":10,"output":2},"cost":0.1}}"#
        ]),
    );
    for (events, script) in [("gemini", gemini), ("opencode", opencode)] {
        let site = Site::new();
        site.agent(&format!("cat > /dev/null\n{script}"), &format!("events = '{events}'\n"));
        site.write("specs/a.md", "---\nretries: 1\n---\n# A\n");
        site.commit();
        site.plan();
        let all = site.run(0, &["--agent", "mine"]);
        assert_eq!(site.landed("a.txt"), "a", "{events}");
        let said = |event: &Value| event["text"] == "the conversation is gone; starting a new one";
        assert!(all.iter().any(said), "{events}: {all:?}");
        let row = status(&site);
        assert_eq!((&row["input_tokens"], &row["summary"]), (&10.into(), &"it is".into()), "{events}: {row}");
    }
}

#[test]
fn gemini_is_not_started_where_it_would_load_files_to_which_nobody_agreed() {
    let site = Site::new();
    let script = "cat > /dev/null\nmkdir -p .gemini\necho '{}' > .gemini/settings.json\nexit 1\n";
    site.agent(script, "events = 'gemini'\n");
    site.write("specs/a.md", "---\nretries: 1\n---\n# A\n");
    site.commit();
    site.plan();
    site.run(1, &["--agent", "mine"]);
    let error = site.row("a")["lastError"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("mine would load files in the worktree that are not those that were trusted"), "{error}");
}

#[test]
fn the_consent_of_a_run_decides_about_the_sandbox_of_codex_and_refuses_agents_that_cannot_keep_it() {
    let site = Site::new();
    let script = [
        "cat > /dev/null\nprintf '%s\\n' \"$@\" > ../../args.txt\n".to_owned(),
        "echo $SWARM_ATTEMPT >> $SWARM_WORKSTREAM.txt\n".to_owned(),
        say(&[
            r#"{"type":"thread.started","thread_id":"7"}"#,
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"done"}}"#,
            r#"{"type":"turn.completed","usage":{"input_tokens":1,"output_tokens":1}}"#,
        ]),
    ];
    site.agent(&script.concat(), "events = 'codex'\n");
    for id in ["a", "b"] {
        site.write(&format!("specs/{id}.md"), &format!("---\nadapter: mine\n---\n# {id}\n"));
    }
    site.commit();
    site.plan();
    std::fs::create_dir(site.repo.join(".git/rr-cache")).expect("made");
    let args = || std::fs::read_to_string(site.repo.join(".arial/args.txt")).expect("it ran");
    let consent = || {
        let status: Value = serde_json::from_str(&site.swarm(&["run", "status", "--json"]).ok()).expect("JSON");
        status["consent"].clone()
    };
    site.run(0, &["-j", "1"]);
    let git = site.repo.join(".git").canonicalize().expect("a repository");
    assert!(args().contains("sandbox_mode=\"workspace-write\"") && !args().contains("--dangerously"), "{}", args());
    // Neither hooks, the configuration, nor recorded resolutions.
    let names = ["worktrees/b", "objects", "refs", "logs"];
    let roots = serde_json::to_string(&names.map(|name| git.join(name))).expect("JSON");
    assert!(args().contains(&format!("sandbox_workspace_write.writable_roots={roots}")), "{}", args());
    assert_eq!(consent(), Value::Null);
    site.write("specs/c.md", "---\nadapter: mine\n---\n# C\n");
    site.commit();
    site.plan();
    site.run(0, &["--consent", "full-access"]);
    assert!(args().contains("--dangerously-bypass-approvals-and-sandbox"), "{}", args());
    assert_eq!(consent(), "full-access");
    let other = Site::new();
    other.agent("exit 1", "events = 'gemini'\n");
    other.write("specs/a.md", "---\nadapter: mine\n---\n# A\n");
    other.commit();
    other.plan();
    let refused = other.swarm(&["run", "--consent", "partial-access"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("specs/a.md: agent 'mine' can neither ask"), "{refused:?}");
    assert!(refused.err.contains("use --consent full-access"), "{refused:?}");
}
