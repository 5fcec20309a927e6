//! Notifications: by a command and by a webhook on loopback, in time and never in the way.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::common::{Rig, SOON, holds_for, run, wait_until};

fn configure(rig: &Rig, text: &str) {
    let dir = rig.path("home").join(".config/swarm");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("config.toml"), format!("[notify]\n{text}")).expect("written");
}

/// Configures a command that appends each notification to a file as one line, and returns that file.
fn keeper(rig: &Rig) -> std::path::PathBuf {
    let told = rig.path("told");
    fs::write(&told, "").expect("written");
    let line = r#"printf '%s|%s|%s|%s\n' \"$SWARM_EVENT_TYPE\" \"$SWARM_WORKER\" \"$SWARM_MESSAGE\" \"$(cat)\""#;
    configure(rig, &format!("command = \"{line} >> {}\"\n", told.display()));
    told
}

fn lines(told: &std::path::Path) -> Vec<String> {
    fs::read_to_string(told).expect("there").lines().map(str::to_owned).collect()
}

/// Server that gives each request the next of these answers; the receiver yields the requests.
fn server(answers: &'static [&'static str]) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut text = Vec::new();
            let mut piece = [0_u8; 4096];
            let body = |text: &[u8]| {
                let text = String::from_utf8_lossy(text).into_owned();
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("content-length").then_some(value)
                })?;
                let length = length.parse().ok()?;
                (body.len() >= length).then_some(text)
            };
            let request = loop {
                match stream.read(&mut piece) {
                    Ok(0) | Err(_) => break String::new(),
                    Ok(count) => text.extend_from_slice(&piece[..count]),
                }
                if let Some(request) = body(&text) {
                    break request;
                }
            };
            let _ = stream.write_all(answer.as_bytes());
            let _ = sender.send(request);
        }
    });
    (port, receiver)
}

#[test]
fn a_command_gets_the_name_and_the_exit_of_a_worker() {
    let rig = Rig::new();
    let told = keeper(&rig);
    rig.spawn("good", &[], &["true"]);
    wait_until("the success is told", SOON, || lines(&told).len() == 1);
    let line = &lines(&told)[0];
    assert!(line.starts_with("worker.exited|good|good finished|{"), "{line}");
    let event: Value = serde_json::from_str(line.splitn(4, '|').nth(3).expect("an event")).expect("JSON");
    assert_eq!((event["worker"].as_str(), event["group"].as_str()), (Some("good"), Some("finished")));
    rig.spawn("bad", &[], &["sh", "-c", "exit 3"]);
    wait_until("the failure is told", SOON, || lines(&told).len() == 2);
    assert!(lines(&told)[1].starts_with("worker.exited|bad|bad exited with code 3|"));
    // The end of a worker that a user kills is no news.
    rig.spawn("ended", &[], &["sleep", "600"]);
    rig.swarm(&["kill", "ended"]).ok();
    holds_for("nothing is told of it", Duration::from_secs(1), || lines(&told).len() == 2);
    // The current content of the file counts.
    let text = fs::read_to_string(rig.path("home").join(".config/swarm/config.toml")).expect("there");
    fs::write(rig.path("home").join(".config/swarm/config.toml"), format!("{text}events = [\"landed\"]\n"))
        .expect("written");
    rig.spawn("quiet", &[], &["true"]);
    rig.wait("quiet");
    holds_for("no notification is sent", Duration::from_secs(1), || lines(&told).len() == 2);
}

#[test]
fn a_burst_becomes_one_notification() {
    let rig = Rig::new();
    let told = keeper(&rig);
    let go = rig.path("go");
    for i in 0..10 {
        let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
        rig.spawn_sh(&format!("w{i}"), &[], &wait);
    }
    fs::write(&go, "").expect("written");
    rig.swarm(&["wait", "--all", "--timeout", "20"]);
    wait_until("a notification arrives", SOON, || !lines(&told).is_empty());
    holds_for("not ten times", Duration::from_secs(1), || lines(&told).len() < 5);
    assert!(lines(&told).iter().any(|line| line.contains(" workers finished: ")), "{:?}", lines(&told));
}

#[test]
fn the_end_of_a_run_is_one_notification() {
    let rig = Rig::new();
    let told = keeper(&rig);
    let repo = rig.repo();
    fs::write(
        repo.join("jobs.toml"),
        "[[job]]\nname = \"good\"\ncommand = [\"true\"]\n[[job]]\nname = \"bad\"\ncommand = [\"false\"]\n",
    )
    .expect("written");
    assert_eq!(rig.swarm_in(&repo, &["run", "jobs.toml"]).code, Some(1));
    let ends = || lines(&told).into_iter().filter(|line| line.starts_with("run.ended|")).collect::<Vec<_>>();
    wait_until("a notification arrives", SOON, || !ends().is_empty());
    rig.swarm_in(&repo, &["supervisor", "restart"]).ok();
    rig.swarm_in(&repo, &["run", "status", "jobs.toml"]);
    let told = ends();
    assert_eq!(told.len(), 1, "{told:?}");
    let parts: Vec<&str> = told[0].splitn(4, '|').collect();
    assert!(parts[1].is_empty() && parts[2].ends_with(" failed: 1 done, 1 failed (bad)"), "{told:?}");
    let event: Value = serde_json::from_str(parts[3]).expect("JSON");
    assert_eq!((&event["group"], &event["failures"]), (&Value::from("failed"), &serde_json::json!(["bad"])));
}

#[test]
fn a_webhook_request_is_retried() {
    let rig = Rig::new();
    let (port, requests) = server(&["HTTP/1.1 503 Busy\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"]);
    configure(&rig, &format!("webhook = \"http://127.0.0.1:{port}/hook\"\n"));
    rig.spawn("good", &[], &["true"]);
    for _ in 0..2 {
        let request = requests.recv_timeout(SOON).expect("a request");
        assert!(request.starts_with("POST /hook HTTP/1.1\r\n"), "{request}");
        let (_, body) = request.split_once("\r\n\r\n").expect("a body");
        let event: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!((event["type"].as_str(), event["message"].as_str()), (Some("worker.exited"), Some("good finished")));
    }
}

#[test]
fn an_https_webhook_needs_a_trusted_certificate() {
    let rig = Rig::new();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("made");
    let (trusted, other) = (rig.path("trusted.pem"), rig.path("other.pem"));
    fs::write(&trusted, made.cert.pem()).expect("written");
    let unrelated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    fs::write(&other, unrelated.cert.pem()).expect("written");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(vec![made.cert.der().clone()], key).expect("a configuration"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        }
    });
    let test = |roots: &std::path::Path| {
        let mut command = rig.command(&["notify", "test"]);
        command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
        run(command)
    };
    for host in ["127.0.0.1", "localhost"] {
        configure(&rig, &format!("webhook = \"https://{host}:{port}/s3cret\"\n"));
        test(&trusted).is(0, "webhook: delivered\n", "");
        let said = test(&other);
        let why = format!("webhook: failed: https://{host}:{port}: invalid peer certificate: ");
        assert!(said.code == Some(1) && said.out.starts_with(&why), "{said:?}");
        let said = test(&rig.path("missing.pem"));
        let why = format!("webhook: failed: https://{host}:{port}: SSL_CERT_FILE has no certificates");
        assert!(said.code == Some(1) && said.out.starts_with(&why), "{said:?}");
    }
}

#[test]
fn a_hanging_command_is_killed_with_its_processes_and_delays_no_worker() {
    let rig = Rig::new();
    configure(&rig, "command = \"sleep 611 & sleep 611\"\n");
    rig.spawn("good", &[], &["true"]);
    let hanging = || {
        let words = rig.processes().into_iter().map(crate::common::proc::words);
        words.filter(|words| words.iter().any(|word| word == "611")).count()
    };
    wait_until("the command hangs", SOON, || hanging() == 2);
    rig.spawn("next", &[], &["true"]);
    rig.wait("next");
    // The notification of `next` hangs just as long, after the first one.
    wait_until("all its processes have ended", SOON * 4, || hanging() == 0);
}

#[test]
fn a_hanging_command_does_not_delay_the_supervisors_exit_and_ends_with_it() {
    let rig = Rig::new();
    configure(&rig, "command = \"sleep 612 & sleep 612\"\n");
    let hanging = || {
        let words = rig.processes().into_iter().map(crate::common::proc::words);
        words.filter(|words| words.iter().any(|word| word == "612")).count()
    };
    rig.spawn("good", &[], &["true"]);
    wait_until("the command hangs", SOON, || hanging() == 2);
    rig.swarm(&["supervisor", "stop"]).ok();
    // A successor would not get the lock if the first supervisor waited for the command.
    rig.spawn("next", &[], &["true"]);
    rig.wait("next");
    rig.swarm(&["supervisor", "stop"]).ok();
    wait_until("all of it is ended", SOON, || hanging() == 0);
}

#[test]
fn possible_secrets_are_neither_logged_nor_shown() {
    let rig = Rig::new();
    let (port, requests) = server(&["HTTP/1.1 404 s3cret\r\n\r\n"; 2]);
    let text = format!(
        "command = \"TOKEN=s3cret sh -c 'exit 5' s3cret\"\nwebhook = \"http://127.0.0.1:{port}/s3cret?t=s3cret\"\n"
    );
    configure(&rig, &text);
    rig.spawn("good", &[], &["true"]);
    requests.recv_timeout(SOON).expect("a request");
    let log = || fs::read_to_string(rig.root().join("supervisor.log")).unwrap_or_default();
    let (by_command, by_webhook) = ("sh exited with code 5", format!("http://127.0.0.1:{port}: HTTP status 404"));
    wait_until("both are logged", SOON, || log().contains(by_command) && log().contains(&by_webhook));
    assert!(!log().contains("s3cret"), "{}", log());
    for words in [&["notify", "test"][..], &["notify", "test", "--json"]] {
        let said = rig.swarm(words);
        assert!(said.out.contains(by_command) && !format!("{said:?}").contains("s3cret"), "{said:?}");
    }
}

#[test]
fn each_channel_can_be_tested() {
    let rig = Rig::new();
    let test = || rig.swarm(&["notify", "test"]);
    let said = test().refused(1, "no notifications are configured");
    assert!(said.err.contains("config.toml"), "{said:?}");
    let (port, requests) = server(&["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 500 No\r\n\r\n"]);
    configure(&rig, &format!("command = \"cat > got\"\nwebhook = \"http://127.0.0.1:{port}\"\n"));
    test().is(0, "command: delivered\nwebhook: delivered\n", "");
    assert!(requests.recv_timeout(SOON).expect("a request").contains("\"notify.test\""));
    let said = test();
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains(&format!("webhook: failed: http://127.0.0.1:{port}: HTTP status 500")), "{said:?}");
    configure(&rig, "command = \"echo broken; exit 4\"\nwebhook = \"ftp://127.0.0.1/\"\n");
    let said = test();
    assert!(said.out.contains("command: failed: echo exited with code 4: broken\n"), "{said:?}");
    let why = "webhook: failed: the URL does not begin with http:// or https://";
    assert!(said.out.contains(why), "{said:?}");
    let json: Value = serde_json::from_str(&rig.swarm(&["notify", "test", "--json"]).out).expect("JSON");
    assert_eq!(
        (json["schema"].as_str(), json["ways"][0]["delivered"].as_bool()),
        (Some("swarm.notified/1"), Some(false))
    );
    configure(&rig, "comand = 1\n");
    let said = test();
    assert!(said.code == Some(1) && said.err.contains("line 2: unknown key 'notify.comand'"), "{said:?}");
    assert_eq!(rig.keepers(), (None, None), "it needs no supervisor");
}
