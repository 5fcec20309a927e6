//! `swarm web`: the page gets the board and acts; nothing else that can connect does.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::asks;
use crate::common::{Rig, SOON, proc, schema, wait_until};
use crate::flow_run::{self, workflow};

/// A running `swarm web`. What it says is in the file `said`.
pub struct Web {
    pub child: Child,
    pub address: String,
    /// The code of the first address.
    pub code: String,
    /// Token that the code was exchanged for. Empty if it was not.
    pub token: String,
    said: PathBuf,
}

/// Status, head and body of an answer. The status is 0 if the connection was closed without any.
pub struct Said {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Said {
    pub fn of(all: &[u8]) -> Self {
        let all = String::from_utf8_lossy(all);
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.body))
    }
}

impl Web {
    /// Starts it, and exchanges its code as a page does.
    pub fn start(rig: &Rig, words: &[&str]) -> Self {
        Self::start_in(rig, &rig.cwd(), words)
    }

    fn start_in(rig: &Rig, dir: &Path, words: &[&str]) -> Self {
        let mut web = Self::unopened(rig, dir, words);
        let entered = web.enter(&web.code);
        assert_eq!(entered.status, 200, "{}", entered.body);
        web.token = entered.json()["token"].as_str().expect("a token").to_owned();
        web
    }

    /// Starts it, and leaves its address alone.
    pub fn unopened(rig: &Rig, dir: &Path, words: &[&str]) -> Self {
        let mut command = rig.command(&[&["web"], words].concat());
        let said = rig.path("said.web");
        let file = OpenOptions::new().create(true).append(true).open(&said).expect("opened");
        command.current_dir(dir);
        let mut child = command.stdout(Stdio::piped()).stderr(file).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("an address");
        let (address, code) = line.trim().split_once("/#code=").unwrap_or_else(|| panic!("no code: {line}"));
        let address = address.strip_prefix("http://").expect("an address").to_owned();
        Self { child, address, code: code.to_owned(), token: String::new(), said }
    }

    pub fn enter(&self, code: &str) -> Said {
        self.raw(&self.request("POST", "/v1/enter", &json!({"code": code}).to_string()))
    }

    /// Waits until it says this.
    #[track_caller]
    pub fn says(&self, text: &str) {
        wait_until(text, SOON, || std::fs::read_to_string(&self.said).is_ok_and(|said| said.contains(text)));
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(SOON)).expect("set");
        stream
    }

    /// Sends these bytes, and returns the answer.
    pub fn raw(&self, text: &str) -> Said {
        let mut stream = self.connect();
        // A request that is refused early is not read to its end.
        let _ = stream.write_all(text.as_bytes());
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        Said::of(&all)
    }

    /// Returns a request as the page sends it.
    pub fn request(&self, method: &str, path: &str, body: &str) -> String {
        let (address, token) = (&self.address, &self.token);
        let kind = if method == "POST" { "content-type: application/json\r\n" } else { "" };
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\nsec-fetch-site: same-origin\r\n\
             authorization: Bearer {token}\r\n{kind}content-length: {length}\r\n\r\n{body}"
        )
    }

    pub fn get(&self, path: &str) -> Said {
        self.raw(&self.request("GET", path, ""))
    }

    pub fn act(&self, order: &Value) -> Said {
        self.raw(&self.request("POST", "/v1/act", &order.to_string()))
    }

    /// Returns the lines of the stream, as they come.
    pub fn follow(&self, query: &str) -> Receiver<Value> {
        let mut stream = self.connect();
        // Without chunks, lines are lines.
        let request = self.request("GET", &format!("/v1/changes?{query}"), "").replacen("HTTP/1.1", "HTTP/1.0", 1);
        stream.write_all(request.as_bytes()).expect("sent");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stream).lines().map_while(Result::ok).filter(|line| line.starts_with('{'));
            lines.map(|line| serde_json::from_str(&line).expect("JSON")).try_for_each(|line| sender.send(line))
        });
        lines
    }

    pub fn generation(rig: &Rig, name: &str) -> u64 {
        rig.view(name)["generation"].as_u64().expect("a number")
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn nothing_but_the_page_is_answered() {
    let rig = Rig::new();
    let web = Web::start(&rig, &["--allow", "act,answer"]);
    let port = web.address.rsplit_once(':').expect("a port").1;
    let good = web.request("GET", "/v1/board", "");
    assert_eq!(web.raw(&good).status, 200);
    let host = format!("host: {}", web.address);
    let token = format!("authorization: Bearer {}\r\n", web.token);
    let enter = web.request("POST", "/v1/enter", &json!({"code": web.code}).to_string());
    for (what, status, request) in [
        ("no token", 401, good.replace(&token, "")),
        ("another token", 401, good.replace(&web.token, &"a".repeat(64))),
        ("the code in place of the token", 401, good.replace(&web.token, &web.code)),
        ("a token in the query", 401, good.replace(&token, "").replace("/board", &format!("/board?t={}", web.token))),
        ("a token in a cookie", 401, good.replace("authorization: Bearer ", "cookie: t=")),
        ("a rebound name", 403, good.replace(&host, &format!("host: evil.example:{port}"))),
        ("a name that resolves to this machine", 403, good.replace(&host, "host: localtest.me")),
        ("an empty host", 403, good.replace(&host, "host:")),
        ("no host", 403, good.replace(&format!("{host}\r\n"), "")),
        ("two hosts", 403, good.replace(&host, &format!("{host}\r\nhost: evil.example"))),
        ("a request for a proxy", 403, good.replace(" /v1", " http://evil.example/v1")),
        ("a page of another site", 403, good.replace("same-origin", "cross-site")),
        ("a page of another port", 403, good.replace("same-origin", "same-site")),
        ("another origin", 403, good.replace("origin: http://127", "origin: http://evil.example.127")),
        ("a file or sandbox", 403, good.replace(&format!("origin: http://{}", web.address), "origin: null")),
        ("a question before a request of another site", 405, good.replace("GET", "OPTIONS")),
        ("another method", 405, good.replace("GET", "DELETE")),
        ("a form", 415, web.request("POST", "/v1/act", "verb=kill").replace("application/json", "text/plain")),
        ("no act", 400, web.request("POST", "/v1/act", r#"{"verb":"clean","name":"a","generation":1}"#)),
        ("a long body", 413, web.request("POST", "/v1/act", &"x".repeat(17 << 20))),
        ("a long head", 431, good.replace("sec-fetch", &format!("x-a: {}\r\nsec-fetch", "a".repeat(1 << 20)))),
        ("no HTTP", 400, "\u{16}\u{3}\u{1} hello\r\n\r\n".to_owned()),
        ("no code", 400, web.request("POST", "/v1/enter", "{}")),
        ("a used code, of another page", 403, enter.replace("same-origin", "cross-site")),
        ("a used code", 410, enter.clone()),
        ("a wrong code", 401, enter.replace(&web.code, &web.token)),
        ("a code in the query", 405, web.request("GET", &format!("/v1/enter?code={}", web.code), "")),
        ("another file", 404, good.replace("/v1/board", "/../../etc/passwd")),
    ] {
        let said = web.raw(&request);
        assert_eq!(said.status, status, "{what}: {} {}", said.head, said.body);
        assert!(!said.head.contains("access-control") && !said.head.contains("set-cookie"), "{what}: {}", said.head);
        assert!(!said.body.contains("workers") && !said.body.contains(&web.token), "{what}: {}", said.body);
    }
    // The page itself has no secret, and a strict policy.
    let page = web.raw(&format!("GET / HTTP/1.1\r\n{host}\r\n\r\n"));
    assert_eq!(page.status, 200);
    for header in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "no-referrer", "nosniff"] {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    assert!(!page.body.contains(&web.token) && !page.head.contains("unsafe"), "{}", page.head);
    assert!(!rig.root().exists(), "looking writes nothing");
}

#[test]
fn peers_that_stop_block_nobody() {
    let rig = Rig::new();
    let mut web = Web::start(&rig, &[]);
    rig.spawn("a", &[], &["sleep", "600"]);
    let lines = web.follow("");
    assert_eq!(lines.recv_timeout(SOON).expect("a board")["schema"], "swarm.board/1");
    // More than there are places: those that send nothing, half a head, half a body, and a stream that nobody reads.
    let head = web.request("GET", "/v1/board", "");
    let body = web.request("POST", "/v1/act", "{}").replace("content-length: 2", "content-length: 99");
    let stream = web.request("GET", "/v1/changes", "");
    let parts = ["", &head[..40], &body, &stream];
    let mut held = Vec::new();
    for at in 0..80 {
        let mut peer = web.connect();
        let _ = peer.write_all(parts[at % 3].as_bytes());
        held.push(peer);
    }
    let mut peer = web.connect();
    peer.write_all(parts[3].as_bytes()).expect("sent");
    assert_eq!(web.get("/v1/hello").status, 200);
    rig.swarm(&["kill", "a"]).ok();
    wait_until("the change arrives", SOON, || lines.try_iter().any(|line| line["workers"][0]["state"] == "stopped"));
    // The program ends although these connections are open.
    proc::signal(i32::try_from(web.child.id()).expect("a pid"), Signal::TERM);
    assert_eq!(web.child.wait().expect("ended").code(), Some(0));
}

#[test]
fn the_page_gets_the_board_and_the_window() {
    let rig = Rig::new();
    let web = Web::start(&rig, &[]);
    let lines = web.follow("");
    let next = || lines.recv_timeout(SOON).expect("a line");
    let first = next();
    assert_eq!(schema::check_lines(&web.get("/v1/board").body), ["swarm.board/1"]);
    assert_eq!(first["workers"], json!([]));
    rig.spawn_sh("w", &["--tmux", "--env", "KEY=secret"], "printf '\\033[31mred\\033[m <b>'; exec sleep 600");
    let mut row = json!(null);
    wait_until("the stream shows that the worker runs", SOON, || {
        row = next()["workers"][0].clone();
        row["state"] == "running"
    });
    assert!(row["env"] == json!({"KEY": "***"}) && row["name"] == "w", "{row}");
    let (board, generation) = (first["board"].as_str().expect("an id"), Web::generation(&rig, "w"));
    let whole = web.get("/v1/board").json();
    assert_eq!((&whole["board"], &whole["workers"][0]["name"]), (&json!(board), &json!("w")));
    let newer = web.get(&format!("/v1/board?board={board}&since={}", whole["rev"])).json();
    assert_eq!((&newer["schema"], &newer["workers"]), (&json!("swarm.board.change/1"), &json!([])));
    assert_eq!(web.get("/v1/board?board=other&since=1").json()["schema"], "swarm.board/1");
    let lines = web.follow(&format!("board={board}&since={}&screen=w&generation={generation}", whole["rev"]));
    wait_until("the window is shown", SOON, || {
        let line = lines.recv_timeout(SOON).expect("a line");
        line["kind"] == "screen" && line["lines"][0] == json!([["red", {"f": 1}], " <b>"])
    });
    let log = web.get(&format!("/v1/worker/w/log?generation={generation}")).json();
    assert!(log["lines"].to_string().contains("red"), "{log}");
    assert_eq!(web.get("/v1/worker/w/log?generation=99").status, 409);
    assert_eq!(web.get("/v1/worker/w/passwd").status, 404);
    let refused = web.get("/v1/worker/--all/explain").json();
    assert!(refused["refused"] == true && refused["lines"][0].as_str().is_some_and(|text| text.contains("--all")));
}

#[test]
fn acts_are_for_the_worker_that_was_shown() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let generation = Web::generation(&rig, "a");
    let kill = |generation: u64| json!({"verb": "kill", "name": "a", "generation": generation});
    let looks = Web::start(&rig, &[]);
    assert_eq!(looks.act(&kill(generation)).status, 404, "there is no such address");
    let web = Web::start(&rig, &["--allow", "act"]);
    assert_eq!(web.get("/v1/hello").json()["allow"], json!({"act": true, "answer": false}));
    let other = web.act(&kill(generation + 1));
    assert_eq!(other.status, 409, "{}", other.body);
    assert!(other.body.contains("not the one that was shown"), "{}", other.body);
    assert_eq!(rig.fine("a"), "running");
    asks::put(&rig, 1, "a", "held", "Bash", &json!({"command": "make"}));
    let approve = json!({"verb": "approve", "request": "1", "name": "a", "generation": generation});
    assert_eq!(web.act(&approve).status, 403);
    let done = web.act(&kill(generation)).json();
    assert_eq!(done["words"], json!(["kill", "--json", "--", "a"]));
    assert_eq!(rig.fine("a"), "stopped");
    let again = web.act(&json!({"verb": "respawn", "name": "a", "generation": generation}));
    assert_eq!((again.status, rig.fine("a").as_str()), (200, "running"), "{}", again.body);
    assert_eq!(web.act(&kill(generation)).status, 409, "it was started again");
    let shown = Web::generation(&rig, "a");
    // The page compares before the verb runs, and the verb once more.
    let earlier = format!("--generation={generation}");
    for verb in ["kill", "respawn"] {
        rig.swarm(&[verb, &earlier, "a"]).refused(1, "'a' is not the one that was shown any more; nothing was done");
    }
    assert_eq!((Web::generation(&rig, "a"), rig.fine("a").as_str()), (shown, "running"));
    let refused = web.act(&json!({"verb": "merge-add", "name": "a", "generation": shown}));
    assert!(refused.status == 409 && refused.json()["error"].as_str().is_some_and(|why| why.contains("worktree")));
    rig.swarm(&["kill", "a"]).ok();
    rig.swarm(&["clean", "a"]).ok();
    rig.spawn("a", &[], &["sleep", "600"]);
    assert_eq!((web.act(&kill(shown)).status, rig.fine("a").as_str()), (409, "running"), "another one of its name");
    assert_eq!(web.act(&kill(generation)).status, 409);
}

#[test]
fn a_question_is_answered_from_the_page() {
    let rig = Rig::new();
    rig.spawn_sh("a", &[], &format!("'{}' ask 'Which colour?' --option red --wait", env!("CARGO_BIN_EXE_swarm")));
    wait_until("it asks", SOON, || rig.view("a")["needs"]["kind"] == "question");
    let web = Web::start(&rig, &["--allow=answer"]);
    let needs = &web.get("/v1/board").json()["workers"][0]["needs"];
    let id = needs["answer"].as_str().and_then(|answer| answer.split(' ').nth(2)).expect("a number").to_owned();
    let request = web.get(&format!("/v1/request?id={id}")).json();
    assert!(request["lines"].to_string().contains("Which colour?"), "{request}");
    assert_eq!(request["request"]["questions"][0]["options"], json!(["red"]));
    let generation = Web::generation(&rig, "a");
    let answer = json!({"verb": "answer", "request": id, "answers": ["--red"], "name": "a", "generation": generation});
    assert_eq!(web.act(&answer).status, 200);
    rig.wait("a");
    assert_eq!(rig.log("a", "stdout"), "--red\n");
    let late = web.act(&answer);
    assert_eq!(late.status, 409, "one answer counts: {}", late.body);
}

/// A request of a flow is answered once, and only as it was shown, whoever else answers it.
#[test]
fn gates_of_flows_are_answered_from_the_page() {
    // Each turn hands over something else.
    let work = "echo x > $SWARM_RECORD/x-$SWARM_TURN.md\n\
                swarm flow emit --to owner-close --artifact $SWARM_RECORD/x-$SWARM_TURN.md";
    let gate = "      human-colab: true\n";
    let nodes = [("owner-intake", "owner", gate, work), ("owner-close", "owner", gate, "swarm flow emit --close")];
    let site = flow_run::Site::new(&workflow(&nodes, &[("owner-intake", "owner-close")]));
    assert_eq!((site.run().as_str(), site.reason("owner-intake").as_str()), ("waiting", "handoff-approval"));
    let start = |words: &[&str]| Web::start_in(&site.rig, &site.repo, words);
    let (web, acts) = (start(&["--allow", "answer"]), start(&["--allow", "act"]));
    let flow = || web.get("/v1/board").json()["flows"][0].clone();
    let asked = |flow: &Value| {
        let mut asked = flow["requests"][0].clone();
        asked["flow"] = flow["key"].clone();
        asked
    };
    let shown = asked(&flow());
    assert_eq!((&shown["node"], &shown["cut"]), (&json!("owner-intake"), &json!(false)), "{shown}");
    let order = |asked: &Value, reply: Value| json!({"verb": "flow", "asked": asked, "reply": reply});
    assert_eq!(acts.act(&order(&shown, json!("yes"))).status, 403, "it is not allowed");
    let mut other = shown.clone();
    other["text"] = json!("something else");
    let refused = web.act(&order(&other, json!("yes")));
    assert!(refused.status == 409 && refused.body.contains("does not ask what was shown"), "{}", refused.body);
    assert_eq!(site.reason("owner-intake"), "handoff-approval");
    let done = web.act(&order(&shown, json!({"no": "in capitals"})));
    assert_eq!(done.status, 200, "{}", done.body);
    // What was shown is over. If the board does not have that yet, the verb refuses.
    let late = web.act(&order(&shown, json!("yes")));
    let is_over =
        ["does not ask what was shown", "is not awaiting handoff approval"].iter().any(|why| late.body.contains(why));
    assert!(late.status >= 400 && is_over, "{} {}", late.status, late.body);
    assert_eq!(site.run(), "waiting");
    wait_until("it hands over again", SOON, || asked(&flow())["answers"]["yes"].is_array());
    let again = asked(&flow());
    assert_eq!(web.act(&order(&again, json!("yes"))).status, 200);
    assert_eq!(site.run(), "waiting");
    assert_ne!(site.reason("owner-intake"), "handoff-approval");
}

fn mode(path: &Path) -> Option<u32> {
    std::fs::symlink_metadata(path).ok().map(|found| found.permissions().mode() & 0o777)
}

#[test]
fn it_listens_on_this_machine_or_on_a_private_socket() {
    let rig = Rig::new();
    for wide in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "127.0.0.2:0"] {
        let said = rig.swarm(&["web", "--bind", wide]);
        let cause = format!("cannot listen on {wide}: the page is served only on 127.0.0.1 and [::1]");
        said.refused(1, &cause);
    }
    let file = rig.path("file");
    std::fs::write(&file, "kept").expect("written");
    let text = file.display().to_string();
    rig.swarm(&["web", "--socket", &text]).refused(1, &format!("{text} exists and is not a socket"));
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "kept");
    let socket = rig.path("web.sock");
    let text = socket.display().to_string();
    let mut web = Web::unopened(&rig, &rig.cwd(), &["--allow", "act", "--socket", &text]);
    assert_eq!(mode(&socket), Some(0o600));
    rig.swarm(&["web", "--socket", &text]).refused(1, &format!("{text} is in use"));
    let asked = |request: String| {
        let mut peer = UnixStream::connect(&socket).expect("connected");
        // The address that the browser asks for, on the near side of 'ssh -L'.
        peer.write_all(request.replace("127.0.0.1:PORT", "localhost:8080").as_bytes()).expect("sent");
        let mut all = Vec::new();
        peer.read_to_end(&mut all).expect("read");
        Said::of(&all)
    };
    let entered = asked(web.request("POST", "/v1/enter", &json!({"code": web.code}).to_string()));
    assert_eq!(entered.status, 200, "{}", entered.body);
    web.token = entered.json()["token"].as_str().expect("a token").to_owned();
    assert_eq!(asked(web.request("GET", "/v1/hello", "")).status, 200);
    // It is no act, but a person may ask for it.
    assert_eq!(asked(web.request("POST", "/v1/act", r#"{"verb":"kill"}"#)).status, 400);
    proc::signal(i32::try_from(web.child.id()).expect("a pid"), Signal::HUP);
    assert_eq!(web.child.wait().expect("ended").code(), Some(0));
    assert!(!socket.exists(), "the socket stays");
    assert!(!rig.root().exists(), "looking writes nothing");
}
