//! `swarm run logs`: conversations of agents, and output of jobs.

use serde_json::Value;

use crate::common::{Rig, SOON, run, wait_until};
use crate::run::{Site, text};

/// An agent that prints what claude prints. Its first attempt fails.
fn site() -> Site {
    let site = Site::new();
    let say = |line: &str| format!("echo '{line}'\n");
    let script = [
        "cat > /dev/null\n".to_owned(),
        say(r#"{"type":"system","subtype":"init","session_id":"7"}"#),
        say(
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"I look around."},{"type":"tool_use","id":"1","name":"Bash","input":{"command":"ls"}}]}}"#,
        ),
        say(r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"1","content":"file"}]}}"#),
        say(r#"{"type":"novelty","text":"ignored"}"#),
        "if [ $SWARM_ATTEMPT = 1 ]; then echo fallen over >&2; exit 1; fi\n".to_owned(),
        "while [ ! -e ../../../go ]; do :; done\necho a > a.txt\n".to_owned(),
        say(
            r#"{"type":"result","subtype":"success","is_error":false,"result":"All done.","total_cost_usd":0.25,"usage":{"input_tokens":9,"output_tokens":4}}"#,
        ),
    ];
    site.agent(&script.concat(), "events = 'claude'\n");
    site.write("specs/a.md", "# A\n");
    site
}

#[test]
fn the_conversation_of_each_attempt_is_shown_and_followed() {
    let site = site();
    site.commit();
    site.plan();
    site.swarm(&["run", "logs", "a"]).refused(1, "there is no run here");
    site.swarm(&["run", "--agent", "mine", "--detach"]).ok();
    let begin = "conversation 7\nI look around.\n> Bash: ls\n  file\n";
    wait_until("the second attempt is at work", SOON, || {
        let said = site.swarm(&["run", "logs", "a", "--attempt", "2"]);
        said.code == Some(0) && said.out == begin
    });
    assert_eq!(site.swarm(&["run", "logs", "a", "--attempt", "1"]).ok(), format!("{begin}fallen over\n"));
    let follower = std::thread::spawn({
        let mut command = site.rig.command(&["run", "logs", "a", "--follow"]);
        command.current_dir(&site.repo);
        move || run(command)
    });
    site.write("go", "");
    let end = "end of turn: done, 9 tokens in, 4 tokens out, 0.2500 USD: All done.\n";
    let all = format!("=== attempt 1\n{begin}fallen over\n=== attempt 2\n{begin}{end}");
    follower.join().expect("joined").is(0, &all, "");
    assert_eq!(site.swarm(&["run", "logs", "a"]).ok(), all);
    assert_eq!(site.swarm(&["run", "attach", "--json"]).code, Some(0));
    let lines = site.swarm(&["run", "logs", "a", "--json"]).ok();
    let parts: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let attempts: Vec<u64> = parts.iter().map(|part| part["attempt"].as_u64().expect("a number")).collect();
    assert!(attempts.is_sorted() && attempts.contains(&1), "{attempts:?}");
    let parts: Vec<Value> = parts.into_iter().filter(|part| part["attempt"] == 2).collect();
    let kinds: Vec<&str> = parts.iter().map(|part| text(&part["kind"])).collect();
    assert_eq!(kinds, ["begin", "message", "tool", "result", "end"]);
    assert_eq!((parts[4]["attempt"].as_u64(), parts[4]["usd"].as_f64()), (Some(2), Some(0.25)));
    let said = site.swarm(&["run", "logs", "a", "--attempt", "3"]).refused(1, "'a' has no attempt 3");
    assert!(said.err.contains("its latest attempt is 2"), "{said:?}");
    site.swarm(&["run", "logs", "b"]).refused(1, "workstream 'b' not found");
    assert_eq!(site.landed("a.txt"), "a");
}

#[test]
fn the_output_of_a_job_is_shown_while_it_runs_and_afterwards() {
    let rig = Rig::new();
    let command = "echo oops >&2; echo one; while [ ! -e go ]; do :; done; echo two";
    let file = rig.file("jobs.toml", &format!("[[job]]\nname = 'a'\ncommand = '{command}'\n"));
    rig.swarm(&["run", &file, "--detach"]).ok();
    let shown = || rig.swarm(&["run", "logs", "a", "--home", &file]).out;
    wait_until("it has begun", SOON, || shown() == "oops\none\n");
    rig.file("go", "");
    assert_eq!(rig.swarm(&["run", "logs", "a", "--home", &file, "--follow"]).ok(), "oops\none\ntwo\n");
    assert_eq!(rig.swarm(&["run", "attach", "--home", &file, "--json"]).code, Some(0));
    assert_eq!(shown(), "oops\none\ntwo\n");
}
