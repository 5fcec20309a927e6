//! Windows that show a dialog of an agent: text is refused, and a person's keys answer it.

use std::fs;

use crate::common::{Rig, SOON, wait_until};

const TRUST: &str = include_str!("../data/screens/claude/trust.txt");
const PRINTED: &str = include_str!("../data/screens/claude/printed-menu.txt");

/// Starts a worker whose window shows `screen` and then echoes each line that it reads.
fn shows(rig: &Rig, name: &str, screen: &str, flags: &[&str]) -> String {
    // Only the last lines fit the window.
    let lines: Vec<&str> = screen.lines().collect();
    fs::write(rig.path(&format!("{name}.txt")), lines[lines.len().saturating_sub(16)..].join("\n")).expect("written");
    let script = format!(
        "cat {}; while read -r line; do echo \"got <$line>\"; done",
        rig.path(&format!("{name}.txt")).display()
    );
    let words = [&["spawn", "--name", name, "--tmux"], flags, &["--", "sh", "-c", &script]].concat();
    let said = rig.swarm(&words);
    assert_eq!(said.code, Some(0), "{said:?}");
    wait_until("the window shows it", SOON, || rig.swarm(&["peek", name]).out.contains(lines[lines.len() - 1].trim()));
    said.err
}

#[test]
fn text_is_refused_while_an_agent_asks_and_keys_answer() {
    let rig = Rig::new();
    let warned = shows(&rig, "fix", TRUST, &["--ready-wait"]);
    let asks = "asks whether to trust this directory";
    assert!(warned.contains(&format!("swarm: warning: agent 'fix' is not ready: it {asks}; ")), "{warned}");
    let refused = rig.swarm(&["send", "fix", "1"]);
    let cause = format!("swarm: error: worker 'fix' {asks}; text would answer that, so nothing was sent\n");
    let hint = "swarm: hint: run 'swarm attach fix' and answer, or use 'swarm keys fix KEY…'\n";
    refused.is(1, "", &(cause + hint));
    assert_eq!(rig.swarm(&["send", "--all", "go on"]).code, Some(1));
    let unknown = rig.swarm(&["keys", "fix", "Dwon"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("unknown key; did you mean 'Down'?"), "{unknown:?}");
    assert!(!rig.log("fix", "tmux").contains("got"), "nothing was typed");
    for verb in [&["keys", "--generation=9", "fix", "1"][..], &["interrupt", "--generation=9", "fix"]] {
        rig.swarm(verb).refused(1, "'fix' is not the one that was shown any more; nothing was done");
    }
    rig.swarm(&["keys", "--generation=1", "fix", "1", "Enter"]).is(0, "sent keys to fix\n", "");
    wait_until("it is answered", SOON, || rig.log("fix", "tmux").contains("got <1>"));
}

#[test]
fn a_menu_that_was_only_printed_takes_text() {
    let rig = Rig::new();
    shows(&rig, "fix", PRINTED, &[]);
    let other = rig.swarm(&["send", "--generation=9", "fix", "go on"]);
    other.refused(1, "'fix' is not the one that was shown any more; nothing was done");
    rig.swarm(&["send", "--generation=1", "fix", "go on"]).is(0, "sent to fix\n", "");
    wait_until("it came", SOON, || rig.log("fix", "tmux").contains("got <go on>"));
}

#[test]
fn an_agent_cannot_answer_for_a_person() {
    let rig = Rig::new();
    shows(&rig, "fix", TRUST, &[]);
    let said = rig.path("said");
    let script = format!("swarm keys fix Enter > {} 2>&1; echo $? >> {}", said.display(), said.display());
    let script = script.replacen("swarm", env!("CARGO_BIN_EXE_swarm"), 1);
    rig.spawn("agent", &[], &["sh", "-c", &script]);
    let read = || fs::read_to_string(&said).unwrap_or_default();
    wait_until("it tried", SOON, || read().ends_with("1\n"));
    assert!(read().contains("worker 'agent' cannot answer for a person in the window of 'fix'"), "{}", read());
    assert!(!rig.log("fix", "tmux").contains("got"));
}

#[test]
fn a_full_screen_agent_is_followed_by_its_conversation_and_another_program_by_its_screen() {
    let rig = Rig::new();
    let script =
        "printf '\\033[?1049h\\033[Hdrawn\\n'; read -r _; printf 'more\\n'; read -r _; printf '\\033[?1049lbye\\n'";
    let follow = |name: &str| {
        rig.spawn(name, &["--tmux"], &["sh", "-c", script]);
        wait_until("it has drawn", SOON, || rig.swarm(&["peek", name]).out.contains("drawn"));
        let out = rig.path(&format!("{name}.out"));
        let mut follow = rig.command(&["logs", name, "--follow"]);
        let follow = follow.stdout(fs::File::create(&out).expect("a file")).spawn().expect("started");
        wait_until("it is followed", SOON, || fs::read_to_string(&out).expect("there").contains("drawn"));
        (follow, move || fs::read_to_string(&out).expect("there"))
    };
    let (mut first, said) = follow("screen");
    rig.swarm(&["send", "screen", "go", "--raw"]).ok();
    wait_until("the change is printed", SOON, || said().contains("more"));
    rig.swarm(&["send", "screen", "go", "--raw"]).ok();
    assert!(first.wait().expect("ended").success());
    assert_eq!((said().matches("drawn").count(), said().matches("more").count()), (1, 1), "{}", said());
    assert!(said().ends_with("bye\n"), "{}", said());

    let (mut second, said) = follow("agent");
    let (records, file) = (rig.root().join("w/agent.1"), rig.path("talk.jsonl"));
    let hook = format!(r#"{{"hook_event_name":"Stop","transcript_path":"{}"}}"#, file.display());
    rig.swarm(&["session", "hook", "--records", records.to_str().expect("UTF-8"), &hook]).ok();
    let turn = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"It is done."}]}}"#;
    fs::write(&file, format!("{turn}\n")).expect("written");
    wait_until("the turn is printed", SOON, || said().ends_with("drawn\nIt is done.\n"));
    rig.swarm(&["send", "agent", "go", "--raw"]).ok();
    rig.swarm(&["send", "agent", "go", "--raw"]).ok();
    assert!(second.wait().expect("ended").success());
    assert!(said().ends_with("drawn\nIt is done.\nbye\n"), "{}", said());
}
