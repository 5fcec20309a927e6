//! Requests of agents to people: listed, answered once by a person and never by an agent, and over with their worker.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::common::proc::{self, Signal};
use crate::common::{Rig, SOON, skipped, wait_until};
use crate::flow_run::{Site, line};

const BIN: &str = env!("CARGO_BIN_EXE_swarm");

/// Records a request, as the hook of an agent does.
pub fn put(rig: &Rig, number: u64, worker: &str, waits: &str, tool: &str, wish: &Value) {
    let ask = json!({
        "schema": "swarm.ask/1", "number": number, "key": format!("k{number}"), "who": {"worker": worker, "agent": "claude"},
        "tool": tool, "wish": wish, "cwd": rig.cwd(), "waits": waits, "digest": format!("d{number}"),
        "asked_at_ms": now_ms(),
    });
    let dir = rig.root().join("asks");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join(format!("{number}.tmp")), ask.to_string()).expect("written");
    fs::rename(dir.join(format!("{number}.tmp")), dir.join(format!("{number}.ask.json"))).expect("named");
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("before the end of time")
}

fn command(text: &str) -> Value {
    json!({"type": "command", "command": text})
}

fn question(options: &[&str]) -> Value {
    let one = json!({"id": "q", "text": "Which database?", "options": options, "several": false});
    json!({"type": "question", "questions": [one]})
}

fn read(rig: &Rig, name: &str) -> Value {
    let text = fs::read(rig.root().join("asks").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_slice(&text).expect("JSON")
}

pub fn listed(rig: &Rig, words: &[&str]) -> Vec<Value> {
    let out = rig.swarm(&[&["approvals", "--json"], words].concat()).ok();
    serde_json::from_str::<Value>(&out).expect("JSON")["approvals"].as_array().expect("a list").clone()
}

#[test]
fn a_worker_asks_a_person_and_hears_the_answer() {
    let rig = Rig::new();
    let script = format!("'{BIN}' ask 'Which database?' --option postgres --option sqlite --wait; echo \"code $?\"");
    rig.spawn_sh("w", &[], &script);
    wait_until("it asks", SOON, || !listed(&rig, &[]).is_empty());
    let one = &listed(&rig, &[])[0];
    assert_eq!((&one["id"], &one["kind"], &one["worker"]), (&json!("1"), &json!("question"), &json!("w")), "{one}");
    assert_eq!(one["command"], "swarm answer 1 TEXT");
    let said = rig.swarm(&["approvals"]).ok();
    assert!(said.contains("Which database?") && said.starts_with("N  AGE  WORKER  KIND      WHAT\n"), "{said}");
    let full = rig.swarm(&["approvals", "1"]).ok();
    assert!(full.contains("    1. postgres\n    2. sqlite\n"), "{full}");
    rig.swarm(&["approve", "1"]).refused(1, "request 1 is a question");
    rig.swarm(&["answer", "1", "2"]).is(0, "answered 1 (w) with 'sqlite': Which database?\n", "");
    rig.wait("w");
    assert_eq!(rig.log("w", "stdout"), "sqlite\ncode 0\n");
    assert!(listed(&rig, &[]).is_empty());
    assert_eq!(read(&rig, "1.answer.json")["by"]["via"], "person");
    let again = rig.swarm(&["answer", "1", "1"]);
    assert!(again.err.contains("request 1 was already answered 'sqlite' by "), "{again:?}");
    assert_eq!(again.code, Some(1));
}

#[test]
fn a_person_without_an_account_is_served() {
    let rig = Rig::new();
    let (binary, root) = (rig.path("swarm"), rustix::process::geteuid().is_root());
    fs::copy(BIN, &binary).expect("copied");
    // No entry of the user database has this number.
    let words = match root {
        true => &["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"][..],
        false => &["unshare", "--user", "--map-user=54321"],
    };
    let give = || {
        let given = rig.program("chown").args(["-R", "54321:54321"]).arg(rig.path("")).status().expect("run");
        assert!(!root || given.success());
    };
    give();
    let stranger = |more: &[&str]| {
        let mut command = rig.program(words[0]);
        command.env_remove("USER").env_remove("LOGNAME").args(&words[1..]).arg(&binary).args(more);
        crate::common::run(command)
    };
    if stranger(&["--version"]).code != Some(0) {
        return skipped("persons without an account: no such user can be made here");
    }
    stranger(&["spawn", "--name", "x", "--", "sh", "-c", "id -u"]).ok();
    stranger(&["wait", "x"]).is(0, "x: exited\n", "");
    assert_eq!(rig.log("x", "stdout"), "54321\n");
    rig.file("cwd/jobs.toml", "[[job]]\nname = 'j'\ncommand = 'id -u > ran'\n");
    put(&rig, 1, "x", "parked", "Bash", &command("make"));
    give();
    assert_eq!(stranger(&["run", "jobs.toml"]).code, Some(0));
    assert_eq!(fs::read_to_string(rig.cwd().join("ran")).expect("written"), "54321\n");
    stranger(&["approve", "1"]).is(0, "approved 1 (x): make\n", "");
    let by = &read(&rig, "1.answer.json")["by"];
    assert_eq!((&by["uid"], &by["user"]), (&json!(54321), &Value::Null));
    let said = stranger(&["doctor"]);
    assert!(matches!(said.code, Some(0 | 1)), "{said:?}");
    stranger(&["supervisor", "stop"]).ok();
    if root {
        let refused = rig.swarm(&["spawn", "--name", "y", "--", "true"]);
        assert!(refused.err.contains(" belongs to user #54321, and no supervisor "), "{refused:?}");
        assert!(refused.err.contains("sudo -u '#54321' swarm supervisor start"), "{refused:?}");
        stranger(&["ls", "-q"]).is(0, "x\n", "");
        put(&rig, 2, "x", "parked", "Bash", &command("make test"));
        give();
        rig.swarm(&["approve", "2"]).ok();
        rig.swarm(&["rules", "add", "--deny", "cargo build", "--everywhere"]).ok();
        // The user reads what root has written.
        stranger(&["approvals"]).ok();
        stranger(&["rules"]).ok();
        fs::remove_file(rig.root().join("state.json")).expect("removed");
        let refused = rig.swarm(&["recover", "--apply"]);
        assert!(refused.err.contains(" belongs to user #54321, and no supervisor "), "{refused:?}");
    }
}

#[test]
fn a_question_can_be_denied_and_ends_with_the_command_that_asked() {
    let rig = Rig::new();
    let asks = format!("'{BIN}' ask 'Go on?' --wait");
    rig.spawn_sh("no", &[], &format!("{asks}; echo \"code $?\""));
    wait_until("it asks", SOON, || !listed(&rig, &[]).is_empty());
    rig.swarm(&["deny", "1", "--reason", "not today"]).ok();
    rig.wait("no");
    assert_eq!(rig.log("no", "stdout"), "code 1\n");
    assert!(rig.log("no", "stderr").contains("request 1 was denied (not today) by "), "{}", rig.log("no", "stderr"));

    rig.spawn_sh("gone", &[], &format!("echo $$; exec {asks}"));
    wait_until("it asks", SOON, || !listed(&rig, &[]).is_empty());
    proc::signal(rig.pid("gone"), Signal::TERM);
    rig.wait("gone");
    assert_eq!(read(&rig, "2.over.json")["why"], "the command that asked was ended by SIGTERM");
    rig.swarm(&["answer", "2", "yes"]).refused(1, "request 2 is over: the command that asked was ended by SIGTERM");

    // A command that is killed cannot end its request; whoever looks does.
    rig.spawn_sh("killed", &[], &format!("{asks} & echo $! > '{}'; exec sleep 600", rig.path("pid").display()));
    wait_until("it asks", SOON, || !listed(&rig, &[]).is_empty());
    let pid = fs::read_to_string(rig.path("pid")).expect("written").trim().parse().expect("a pid");
    proc::signal(pid, Signal::KILL);
    wait_until("it is over", SOON, || listed(&rig, &[]).is_empty());
    assert_eq!(read(&rig, "3.over.json")["why"], "the command that asked has ended");
    rig.swarm(&["ask", "who am I?", "--wait"])
        .refused(1, "a question is asked by a worker, and this command runs in none");
}

#[test]
fn the_first_answer_counts_and_only_to_what_it_is_for() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    put(&rig, 1, "w", "held", "Bash", &command("make test"));
    put(&rig, 2, "w", "shown", "Bash", &command("printf 'a\u{1b}[2Jb'\nrm -rf \u{202e}x"));
    put(&rig, 3, "w", "held", "AskUserQuestion", &question(&["a", "b"]));
    let out = rig.swarm(&["approvals"]).ok();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[1].starts_with("1") && lines[1].ends_with("Bash: make test"), "{out}");
    assert!(lines[2].ends_with(r"Bash: printf 'a\x1b[2Jb'\nrm -rf \u{202e}x"), "{out}");
    let full = rig.swarm(&["approvals", "2"]).ok();
    assert!(full.contains("    printf 'a\\x1b[2Jb'\n    rm -rf \\u{202e}x\n"), "{full}");

    rig.swarm(&["approve", "9"]).refused(1, "request 9 not found");
    rig.swarm(&["answer", "1", "yes"]).refused(1, "request 1 asks for a permission");
    rig.swarm(&["approve", "3"]).refused(1, "request 3 is a question");
    rig.swarm(&["answer", "3", "a", "b"]).refused(1, "request 3 asks 1 question, but got 2 answers");
    assert!(!rig.root().join("asks/1.answer.json").exists() && !rig.root().join("asks/3.answer.json").exists());
    // One that cannot be answered keeps no other one from it.
    let said = rig.swarm(&["approve", "9", "1"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), "approved 1 (w): make test\n"), "{said:?}");
    let answer = read(&rig, "1.answer.json");
    assert_eq!((&answer["verdict"], &answer["digest"]), (&json!("allow"), &json!("d1")));
    let said = rig.swarm(&["deny", "1"]);
    assert!(said.code == Some(1) && said.err.contains("request 1 was already approved by "), "{said:?}");
    rig.swarm(&["deny", "2", "--reason", "no"]).ok();
    assert_eq!(read(&rig, "2.answer.json")["reason"], "no");
    assert_eq!(listed(&rig, &[]).len(), 1);
    let all = listed(&rig, &["--all"]);
    assert_eq!((all.len(), &all[1]["state"], &all[1]["answer"]["reason"]), (3, &json!("answered"), &json!("no")));
}

#[test]
fn a_request_is_over_with_its_worker() {
    let rig = Rig::new();
    rig.spawn("held", &[], &["true"]);
    rig.spawn("parked", &[], &["true"]);
    rig.wait("held");
    rig.wait("parked");
    put(&rig, 1, "nobody", "parked", "Bash", &command("make"));
    put(&rig, 2, "held", "held", "Bash", &command("make"));
    put(&rig, 3, "parked", "parked", "Bash", &command("make"));
    let open = listed(&rig, &[]);
    assert_eq!((open.len(), &open[0]["id"]), (1, &json!("3")), "{open:?}");
    assert_eq!(read(&rig, "1.over.json")["why"], "worker 'nobody' no longer exists");
    rig.swarm(&["approve", "2"]).refused(1, "request 2 is over: worker 'held' has ended");
    rig.swarm(&["approve", "3"]).ok();
}

#[test]
fn no_worker_can_answer_or_make_rules() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    put(&rig, 1, "w", "held", "Bash", &command("make"));
    put(&rig, 2, "w", "held", "AskUserQuestion", &question(&[]));
    let verbs = [
        "approve 1",
        "deny 1",
        "answer 2 yes",
        "approve 1 --always",
        "rules add --allow make --everywhere",
        "rules rm 1",
    ];
    let each = verbs.map(|verb| format!("'{BIN}' {verb}; ")).concat();
    // Neither without the marks of the worker, nor in a session of its own, nor with another configuration.
    let script = format!(
        "{each} env -u SWARM_TOKEN -u SWARM_WORKER '{BIN}' approve 1; setsid setsid -w '{BIN}' approve 1; \
         HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent '{BIN}' approve 1; '{BIN}' approvals; exit 0"
    );
    rig.spawn_sh("agent", &[], &script);
    rig.wait("agent");
    let said = rig.log("agent", "stderr");
    let refused =
        said.lines().filter(|line| *line == "swarm: error: worker 'agent' cannot answer for a person").count();
    assert_eq!(refused, verbs.len() + 3, "{said}");
    assert!(rig.log("agent", "stdout").contains("Bash: make"), "a worker may look");
    assert!(!rig.root().join("asks/1.answer.json").exists() && !rig.root().join("rules.jsonl").exists());
    rig.swarm(&["approve", "1"]).ok();
}

#[test]
fn a_rule_answers_the_next_time() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    let test = |line: &str, code: i32, out: &str| rig.swarm(&["rules", "test", line]).is(code, out, "");
    put(&rig, 1, "w", "held", "Bash", &command("cargo test -p x"));
    put(&rig, 2, "w", "held", "Bash", &command("make > log"));
    put(&rig, 3, "w", "held", "Bash", &command("cargo build"));
    let place = rig.cwd();
    rig.swarm(&["approve", "2", "--always"])
        .refused(1, "cannot make a rule of request 2: no rule can allow a command with a redirection");
    rig.swarm(&["approve", "3", "--always", "--as", "cargo test"])
        .refused(1, "cannot make a rule of request 3: 'cargo test' does not allow it");
    assert!(!rig.root().join("asks/2.answer.json").exists() && !rig.root().join("rules.jsonl").exists());
    let told = format!("rule 1: allow 'cargo test' in {}\napproved 1 (w): cargo test -p x\n", place.display());
    rig.swarm(&["approve", "1", "--always", "--as", "cargo test"]).is(0, &told, "");
    let told = format!("rule 2: allow 'cargo build' in {}\napproved 3 (w): cargo build\n", place.display());
    rig.swarm(&["approve", "3", "--always"]).is(0, &told, "");
    test("cargo test && cargo build --release", 0, "allowed\n");
    test("cargo run", 1, "no rule applies\n");
    let repo = rig.repo();
    rig.swarm_in(&repo, &["rules", "test", "cargo test"]).is(1, "no rule applies\n", "");
    rig.swarm(&["rules", "add", "--deny", "cargo build", "--reason", "slow", "--everywhere"]).is(
        0,
        "rule 3: deny 'cargo build' everywhere (slow)\n",
        "",
    );
    test("cargo build", 1, "denied: slow\n");
    fs::write(repo.join("swarm.toml"), "[[approvals.rule]]\nask = 'git push'\n").expect("written");
    rig.swarm_in(&repo, &["rules", "test", "git push"]).is(1, "a person is asked\n", "");
    let out = rig.swarm_in(&repo, &["rules", "--json"]).ok();
    let rules: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&rules["rules"][0]["rule"], &rules["rules"][0]["from"]), (&json!("ask"), &json!("configuration")));
    assert_eq!(rules["rules"].as_array().expect("a list").len(), 4);
    rig.swarm(&["rules", "rm", "3"]).is(0, "removed rule 3: deny 'cargo build' everywhere (slow)\n", "");
    rig.swarm(&["rules", "rm", "3"]).refused(1, "rule 3 not found");
    test("cargo build", 0, "allowed\n");
    rig.swarm(&["rules", "add", "--allow", "xargs rm"])
        .refused(1, "invalid pattern 'xargs rm': no rule can allow a command with xargs");
}

#[test]
fn a_new_rule_also_approves_open_requests() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    let lines = ["cargo test -p x", "cargo test -p y", "cargo test > log", "cargo build", "git push", "cargo build -r"];
    for (number, line) in (1..).zip(lines) {
        put(&rig, number, "w", "held", "Bash", &command(line));
    }
    put(&rig, 7, "w", "held", "AskUserQuestion", &question(&["a"]));
    put(&rig, 8, "w", "held", "Bash", &command("npm test"));
    let place = rig.cwd();
    let told = format!(
        "rule 1: allow 'cargo test' in {}\napproved 1 (w): cargo test -p x\napproved 2 (w) by a rule: cargo test -p y\n",
        place.display()
    );
    rig.swarm(&["approve", "1", "--always", "--as", "cargo test"]).is(0, &told, "");
    let answer = read(&rig, "2.answer.json");
    assert_eq!((&answer["verdict"], &answer["by"]["via"]), (&json!("allow"), &json!("rule")));
    let told = "rule 2: deny 'git push' everywhere\n";
    rig.swarm(&["rules", "add", "--deny", "git push", "--everywhere"]).is(0, told, "");
    let told = format!(
        "rule 3: allow 'cargo build' in {place}\napproved 4 (w) by a rule: cargo build\n\
         approved 6 (w) by a rule: cargo build -r\n",
        place = place.display()
    );
    rig.swarm(&["rules", "add", "--allow", "cargo build"]).is(0, &told, "");
    let open: Vec<Value> = listed(&rig, &[]).iter().map(|one| one["id"].clone()).collect();
    assert_eq!(open, ["3", "5", "7", "8"], "a rule that denies ends nothing, and the others are not allowed");
    // The rules of another directory than that in which the worker was started do not apply.
    let repo = rig.repo();
    let told = rig.swarm_in(&repo, &["rules", "add", "--allow", "npm test"]).ok();
    assert!(told.lines().count() == 1 && !rig.root().join("asks/8.answer.json").exists(), "{told}");
}

/// Writes the user's own configuration.
pub fn configure(rig: &Rig, text: &str) {
    fs::create_dir_all(rig.path("home/.config/swarm")).expect("made");
    fs::write(rig.path("home/.config/swarm/config.toml"), text).expect("written");
}

#[test]
fn a_request_that_nobody_answers_in_time_is_denied() {
    let rig = Rig::new();
    let asks = format!("'{BIN}' ask 'Go on?' --wait");
    rig.spawn_sh("open", &[], &asks);
    wait_until("it asks", SOON, || listed(&rig, &[]).len() == 1);
    assert!(!rig.swarm(&["approvals"]).ok().contains("LEFT"), "there is no limit");
    configure(&rig, "[approvals]\ntimeout = '1h'\n");
    rig.spawn_sh("later", &[], &asks);
    wait_until("it asks", SOON, || listed(&rig, &[]).len() == 2);
    let list = rig.swarm(&["approvals"]).ok();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["N", "AGE", "WORKER", "KIND", "LEFT", "WHAT"]);
    assert_eq!((rows[1][4], rows[2][4]), ("-", "59m"), "{list}");
    let full = rig.swarm(&["approvals", "2"]).ok();
    assert!(full.contains("expires:   ") && full.contains("; then the answer is no\n"), "{full}");
    let one = &listed(&rig, &[])[1];
    assert_eq!(one["expires_at_ms"].as_u64(), one["asked_at_ms"].as_u64().map(|asked| asked + 3_600_000));

    configure(&rig, "[approvals]\ntimeout = '1s'\n");
    rig.spawn_sh("late", &[], &format!("{asks}; echo \"code $?\""));
    rig.wait("late");
    assert_eq!(rig.log("late", "stdout"), "code 1\n");
    let said = rig.log("late", "stderr");
    assert!(said.contains("request 3 was denied because nobody answered in time"), "{said}");
    assert_eq!(read(&rig, "3.answer.json")["by"]["via"], "timeout");
    // What expires while no supervisor runs is denied by the next one.
    rig.swarm(&["supervisor", "stop"]).ok();
    let path = rig.root().join("asks/2.ask.json");
    let mut ask = read(&rig, "2.ask.json");
    ask["expires_at_ms"] = json!(1);
    fs::write(path, ask.to_string()).expect("written");
    rig.swarm(&["supervisor", "start"]).ok();
    rig.wait("later");
    assert_eq!(read(&rig, "2.answer.json")["reason"], "nobody answered in time");
    assert_eq!(listed(&rig, &[]).len(), 1, "the one without a limit is still open");
}

#[test]
fn people_are_reminded_of_an_open_request() {
    let rig = Rig::new();
    let told = rig.path("told");
    let command = json!(format!("echo \"$SWARM_MESSAGE\" >> '{}'", told.display()));
    configure(&rig, &format!("[approvals]\nremind = '1s'\n[notify]\ncommand = {command}\n"));
    rig.spawn_sh("w", &[], &format!("'{BIN}' ask 'Go on?' --wait"));
    let reminders = || rig.swarm(&["events", "--json"]).ok().matches("approval.reminded").count();
    wait_until("people are reminded twice", SOON, || reminders() >= 2);
    assert!(rig.swarm(&["events", "w"]).ok().contains("reminder: request 1 is still open"));
    let notified = || fs::read_to_string(&told).unwrap_or_default();
    wait_until("they are notified", SOON, || notified().contains("w still asks you a question: swarm approvals 1\n"));
    rig.swarm(&["answer", "1", "yes"]).ok();
    rig.wait("w");
    let last = reminders();
    rig.spawn_sh("x", &[], &format!("'{BIN}' ask 'Go on?' --wait"));
    wait_until("people are reminded of another one", SOON, || reminders() > last);
    assert!(!rig.swarm(&["events", "w"]).ok().trim_end().ends_with("still open"), "the first one was answered");
}

#[test]
fn everybody_sees_that_a_worker_asks_and_notifications_do_not_tell_what() {
    let rig = Rig::new();
    let told = rig.path("told");
    let command_line = format!("printf '%s %s\\n' \"$SWARM_MESSAGE\" \"$(cat)\" >> '{}'", told.display());
    configure(&rig, &format!("[notify]\ncommand = {}\n", json!(command_line)));
    rig.spawn("w", &[], &["sleep", "600"]);
    put(&rig, 1, "w", "held", "Bash", &command("make --secret"));
    let view = rig.view("w");
    let needs = &view["needs"];
    assert_eq!((&needs["kind"], &needs["text"]), (&json!("permission"), &json!("Bash: make --secret")), "{view}");
    assert_eq!((&needs["answer"], &view["activity"]["doing"]), (&json!("swarm approve 1"), &json!("waiting")));
    let long = rig.swarm(&["ls", "-l"]).ok();
    assert!(long.contains("waiting: Bash: make --secret"), "{long}");
    let said = rig.swarm(&["explain", "w"]).ok();
    assert!(said.contains("waits for a person: Bash: make --secret") && said.contains("swarm approve 1"), "{said}");

    let events = || rig.swarm(&["events", "w"]).ok();
    wait_until("the event", SOON, || events().contains("asks for Bash: swarm approvals 1"));
    let text = || fs::read_to_string(&told).unwrap_or_default();
    wait_until("the notification", SOON, || text().contains("w asks you to approve Bash: swarm approvals 1 {"));
    rig.swarm(&["approve", "1"]).ok();
    wait_until("the answer", SOON, || events().contains("request 1 was approved by "));
    let json = rig.swarm(&["events", "w", "--json"]).ok();
    assert!(!json.contains("secret") && !text().contains("secret"), "{json} {}", text());
    assert_eq!(rig.view("w")["needs"], Value::Null);
    // A new supervisor tells what was asked meanwhile, and nothing twice.
    rig.swarm(&["supervisor", "stop"]).ok();
    put(&rig, 2, "w", "held", "Bash", &command("make"));
    rig.spawn("other", &[], &["sleep", "600"]);
    wait_until("the event", SOON, || events().contains("asks for Bash: swarm approvals 2"));
    assert_eq!(events().matches("swarm approvals 1").count(), 1, "{}", events());
}

#[test]
fn requests_of_flows_are_listed_and_answered_as_well() {
    let script = "printf '{\"tool_name\": \"Bash\", \"tool_input\": {\"command\": \"make test\"}}' \
                  | swarm flow consent-check > ../once; exec sleep 600";
    let site = Site::with(
        &line(script, ""),
        "[flow]\nagent = 'shell'\n[flow.roles.owner]\nunsafe = true\n[flow.roles.dev]\nunsafe = true\n",
        &[],
    );
    site.flow("run", &[]).ok();
    wait_until("it asks", SOON, || site.reason("build") == "consent");
    let id = format!("{}/1", site.id);
    let list = listed(&site.rig, &[]);
    assert_eq!((&list[0]["id"], &list[0]["text"]), (&json!(id), &json!("make test")), "{list:?}");
    assert!(site.rig.swarm(&["approvals", &id]).ok().contains("    make test\n"));
    site.rig.swarm(&["answer", &id, "yes"]).refused(1, &format!("request {id} asks for a permission"));
    site.rig.swarm(&["approve", &format!("{}/7", site.id)]).refused(1, &format!("request {}/7 is not open", site.id));
    site.rig.swarm(&["approve", &id]).is(0, "allowed: build\n", "");
    let once = site.rig.path("repo-worktrees/once");
    wait_until("it is allowed", SOON, || fs::read_to_string(&once).is_ok_and(|text| text.contains("\"allow\"")));
    wait_until("nothing waits", SOON, || listed(&site.rig, &[]).is_empty());
    site.flow("stop", &[]).ok();
}

#[test]
fn handoffs_and_questions_of_flows_are_answered_by_their_node() {
    let script = "test -n \"$SWARM_ANSWER\" || { swarm flow emit --ask 'Which way?'; exit; }\n\
                  echo x > x.txt; swarm flow emit --to owner-close --artifact x.txt";
    let site = Site::new(&line(script, "      human-colab: true\n"));
    assert_eq!(site.run(), "waiting");
    let id = format!("{}/build", site.id);
    let kind = || listed(&site.rig, &[]).first().map(|one| (one["id"].clone(), one["kind"].clone()));
    assert_eq!(kind(), Some((json!(id), json!("question"))), "{}", site.text());
    site.rig.swarm(&["approve", &id]).refused(1, &format!("request {id} is a question"));
    site.rig.swarm(&["answer", &id, "left"]).is(0, "answered: build\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(kind(), Some((json!(id), json!("handoff"))), "{}", site.text());
    site.rig.swarm(&["answer", &id, "left"]).refused(1, &format!("request {id} asks for a permission"));
    site.rig.swarm(&["approve", &id]).is(0, "approved: build\n", "");
    assert_eq!(site.run(), "waiting");
    assert_eq!(site.status(), "awaiting_improvement_choice");
}

#[test]
fn requests_are_followed_and_completed() {
    let rig = Rig::new();
    rig.spawn("w", &[], &["sleep", "600"]);
    put(&rig, 1, "w", "held", "Bash", &command("make"));
    put(&rig, 2, "w", "held", "AskUserQuestion", &question(&["a"]));
    for (verb, numbers) in [("approve", &["1"][..]), ("answer", &["2"]), ("deny", &["1", "2"])] {
        let out = rig.swarm(&["__complete", "fish", verb, ""]).ok();
        let offered: Vec<&str> = out.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(offered, numbers, "{verb}: {out}");
    }
    let mut follower = rig.command(&["approvals", "--follow"]).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(follower.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!((next(), next()), ("1  w asks: Bash: make".to_owned(), "2  w asks: Which database?".to_owned()));
    put(&rig, 3, "w", "held", "Bash", &command("true"));
    assert_eq!(next(), "3  w asks: Bash: true");
    rig.swarm(&["deny", "1", "--reason", "no"]).ok();
    let answered = next();
    assert!(answered.starts_with("1  denied (no) by "), "{answered}");
    proc::signal(i32::try_from(follower.id()).expect("a pid"), Signal::INT);
    assert_eq!(follower.wait().expect("ended").code(), Some(0));
}
