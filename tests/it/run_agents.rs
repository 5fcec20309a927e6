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
