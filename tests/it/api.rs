//! The API for programs that are not `swarm`: what it answers over the socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::common::{Rig, schema};

/// Sends a request, and returns the connection after its header.
fn ask(rig: &Rig, path: &str, header: &str) -> (String, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(rig.root().join("supervisor.sock")).expect("connected");
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{header}\r\n").as_bytes()).expect("written");
    let mut reply = BufReader::new(stream);
    let mut status = String::new();
    reply.read_line(&mut status).expect("answered");
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(reply.read_line(&mut line).expect("answered"), 0, "{status}");
    }
    (status.split(' ').nth(1).unwrap_or_default().to_owned(), reply)
}

fn get(rig: &Rig, path: &str) -> (String, String) {
    let (status, mut reply) = ask(rig, path, "");
    let mut body = String::new();
    reply.read_to_string(&mut body).expect("answered");
    (status, body)
}

/// Reads events until one of the worker has this type. Returns the id of each event and its type.
fn hear(stream: &mut impl std::io::BufRead, worker: &str, kind: &str) -> Vec<(String, String)> {
    let (mut heard, mut id) = (Vec::new(), String::new());
    loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).expect("goes on"), 0, "{heard:?}");
        if let Some(text) = line.strip_prefix("id: ") {
            text.trim_end().clone_into(&mut id);
        } else if let Some(data) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(data).expect("JSON");
            let word = event["type"].as_str().expect("has one").to_owned();
            heard.push((std::mem::take(&mut id), word.clone()));
            if event["worker"] == worker && word == kind {
                return heard;
            }
        }
    }
}

#[test]
fn workers_are_answered_as_listed_and_without_secrets() {
    let rig = Rig::new();
    rig.spawn("x", &["--env", "KEY=secret"], &["sleep", "600"]);
    for (path, words) in [("/v1/workers", &["ls", "--json"][..]), ("/v1/workers/x", &["status", "x", "--json"])] {
        let (status, body) = get(&rig, path);
        assert_eq!((status.as_str(), body.as_str()), ("200", rig.swarm(words).ok().trim_end()), "{path}");
        assert!(!body.contains("secret") && !schema::check_lines(&body).is_empty(), "{body}");
    }
    assert_eq!(get(&rig, "/v1/workers/y").0, "404");
}

#[test]
fn a_listener_goes_on_after_the_last_event_that_it_has() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["true"]);
    let (status, mut stream) = ask(&rig, "/v1/events", "");
    assert_eq!(status, "200");
    rig.spawn("b", &[], &["true"]);
    let (last, _) = hear(&mut stream, "b", "worker.started").pop().expect("one");
    drop(stream);
    rig.wait("b");
    // Another supervisor continues the same files.
    rig.swarm(&["supervisor", "stop"]).ok();
    rig.spawn("c", &[], &["true"]);
    for (path, header) in [
        ("/v1/events".to_owned(), format!("Last-Event-ID: {last}\r\n")),
        (format!("/v1/events?since={last}&keepalive=600"), String::new()),
    ] {
        let (status, mut stream) = ask(&rig, &path, &header);
        assert_eq!(status, "200");
        let heard = hear(&mut stream, "c", "worker.started");
        let words: Vec<&str> = heard.iter().map(|(_, word)| word.as_str()).collect();
        assert!(heard.iter().all(|(id, _)| !id.is_empty()), "{heard:?}");
        assert_eq!(words.iter().filter(|word| **word == "worker.started").count(), 1, "{heard:?}");
        assert!(words.contains(&"worker.exited") && words.contains(&"supervisor.started"), "{heard:?}");
    }
    assert_eq!(get(&rig, "/v1/events?since=yesterday"), ("400".to_owned(), "not the id of an event".to_owned()));
    // The file of that place is gone.
    let (_, mut stream) = ask(&rig, "/v1/events?since=1.2.3", "");
    let mut line = String::new();
    stream.read_line(&mut line).expect("answered");
    assert_eq!(line, "event: gap\n");
}
