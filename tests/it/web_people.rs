//! `swarm web` is for people: an address opens it once, and no process below a worker acts in place of a person.

use serde_json::json;

use crate::asks;
use crate::common::{Rig, SOON, run, skipped, wait_until};
use crate::web::Web;

/// Sends a request: address, method, path, token and body. Prints the status and the body of the answer.
const CLIENT: &str = "import http.client, sys
address, method, path, token, body = sys.argv[1:]
peer = http.client.HTTPConnection(address, timeout=30)
head = {'content-type': 'application/json', **({'authorization': 'Bearer ' + token} if token else {})}
peer.request(method, path, body or None, head)
said = peer.getresponse()
print(said.status, said.read().decode())
";

/// Opens connections to a port, says so, and holds them. Another user may not have the Python of this one.
const HOLDER: &str = "for each in {1..100}; do exec {fd}<>/dev/tcp/127.0.0.1/$1; done; echo held; read line";

/// Has a worker of this name send a request without the marks of a worker, in a session of its own, and returns what it got.
fn sent_by_worker(rig: &Rig, web: &Web, name: &str, words: [&str; 4]) -> String {
    let client = rig.file("client.py", CLIENT);
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let request = format!("python3 '{client}' {} {}", web.address, words.join(" "));
    rig.spawn_sh(name, &[], &format!("env -u SWARM_TOKEN -u SWARM_WORKER setsid -w {request}"));
    rig.wait(name);
    rig.log(name, "stdout") + &rig.log(name, "stderr")
}

#[test]
fn an_address_opens_the_page_once() {
    let rig = Rig::new();
    let web = Web::unopened(&rig, &rig.cwd(), &[]);
    assert_eq!(web.get("/v1/board").status, 401);
    let first = web.enter(&web.code);
    assert_eq!(first.status, 200, "{}", first.body);
    let own = format!("(process {})", std::process::id());
    web.says(&format!("{own}\n"));
    let again = web.enter(&web.code);
    assert_eq!(again.status, 410, "{}", again.body);
    let error = again.json()["error"].as_str().expect("a sentence").to_owned();
    assert!(error.starts_with("this address was already used. If that was not you, end 'swarm web'"), "{error}");
    assert!(error.contains("press Enter in its terminal"), "{error}");
    web.says("swarm: warning: an address was used again, by ");
    let other = Web::unopened(&rig, &rig.cwd(), &[]);
    let unknown = other.enter(&web.code);
    assert_eq!(unknown.status, 401, "{}", unknown.body);
    assert!(unknown.body.contains("open the last one that 'swarm web' printed"), "{}", unknown.body);
    assert_eq!(other.enter(&other.code).status, 200, "a wrong code uses up nothing");
}

#[test]
fn a_process_below_a_worker_neither_enters_nor_acts() {
    let rig = Rig::new();
    rig.spawn("a", &[], &["sleep", "600"]);
    let mut web = Web::unopened(&rig, &rig.cwd(), &["--allow", "act,answer"]);
    let code = json!({"code": web.code}).to_string();
    let said = sent_by_worker(&rig, &web, "thief", ["POST", "/v1/enter", "", &code]);
    assert!(said.starts_with("403 ") && said.contains("worker 'thief' cannot use the page for a person"), "{said}");
    web.says("swarm: warning: worker 'thief' wanted to use the page for a person and was refused");
    let entered = web.enter(&web.code);
    assert_eq!(entered.status, 200, "the code is not used up: {}", entered.body);
    web.token = entered.json()["token"].as_str().expect("a token").to_owned();
    // A worker may have read the token from the files of the browser.
    let generation = Web::generation(&rig, "a");
    asks::put(&rig, 1, "a", "held", "Bash", &json!({"type": "command", "command": "make"}));
    let kill = json!({"verb": "kill", "name": "a", "generation": generation});
    let approve = json!({"verb": "approve", "request": "1", "name": "a", "generation": generation});
    for (name, order) in [("kills", &kill), ("answers", &approve)] {
        let said = sent_by_worker(&rig, &web, name, ["POST", "/v1/act", &web.token, &order.to_string()]);
        assert!(said.starts_with("403 ") && said.contains(&format!("worker '{name}' cannot use the page")), "{said}");
        web.says(&format!("worker '{name}' wanted to use the page"));
    }
    assert_eq!(rig.fine("a"), "running");
    assert_eq!(asks::listed(&rig, &[]).len(), 1, "the request is open");
    // Looking is no act, and what the person does is done.
    let looks = sent_by_worker(&rig, &web, "looks", ["GET", "/v1/hello", &web.token, ""]);
    assert!(looks.starts_with("200 "), "{looks}");
    assert_eq!(web.act(&kill).status, 200);
    assert_eq!(rig.fine("a"), "stopped");
}

#[test]
fn the_page_acts_over_each_kind_of_address() {
    let rig = Rig::new();
    for bind in ["127.0.0.1:0", "localhost:0", "[::1]:0"] {
        if bind.starts_with('[') && std::net::TcpListener::bind(bind).is_err() {
            skipped("the machine has no IPv6");
            continue;
        }
        rig.spawn("a", &[], &["sleep", "600"]);
        let web = Web::start(&rig, &["--allow", "act", "--bind", bind]);
        let kill = json!({"verb": "kill", "name": "a", "generation": Web::generation(&rig, "a")});
        let done = web.act(&kill);
        assert_eq!((done.status, rig.fine("a").as_str()), (200, "stopped"), "{bind}: {}", done.body);
        rig.swarm(&["clean", "a"]).ok();
    }
}

/// A private tmux server with one pane.
struct Pane<'a>(&'a Rig);

impl<'a> Pane<'a> {
    fn start(rig: &'a Rig, words: &[&str]) -> Self {
        let start = ["-f", "/dev/null", "new-session", "-d", "-x", "150", "-y", "24", "-s", "outer"];
        let pane = Self(rig);
        pane.tmux(&[&start, words].concat());
        pane
    }

    fn tmux(&self, words: &[&str]) -> String {
        self.0.tmux(&[&["-L", "outer"], words].concat()).ok()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys", "-t", "outer:"], keys].concat());
    }

    fn has(&self, text: &str) {
        wait_until(text, SOON, || self.tmux(&["capture-pane", "-p", "-t", "outer:"]).contains(text));
    }

    /// Returns the addresses that are shown, each with its code.
    fn addresses(&self) -> Vec<(String, String)> {
        let of = |line: &str| {
            let (address, code) =
                line[line.find("http://")?..].trim().strip_prefix("http://")?.split_once("/#code=")?;
            (code.len() == 64).then(|| (address.to_owned(), code.to_owned()))
        };
        self.tmux(&["capture-pane", "-p", "-t", "outer:"]).lines().filter_map(of).collect()
    }
}

#[test]
fn enter_prints_another_address() {
    let rig = Rig::new();
    let script = rig.file("web.sh", &format!("exec '{}' web", env!("CARGO_BIN_EXE_swarm")));
    let pane = Pane::start(&rig, &["sh", &script]);
    wait_until("it prints an address", SOON, || pane.addresses().len() == 1);
    pane.keys(&["x", "Enter", "Enter"]);
    wait_until("it prints another one for the empty line", SOON, || pane.addresses().len() == 2);
    let client = rig.file("client.py", CLIENT);
    let enter = |(address, code): &(String, String)| {
        let mut command = rig.program("python3");
        command.args([&client, address, "POST", "/v1/enter", "", &json!({"code": code}).to_string()]);
        run(command).ok()
    };
    let all = pane.addresses();
    let (first, second) = (enter(&all[0]), enter(&all[1]));
    assert!(first.starts_with("401 ") && first.contains("void because of a newer one"), "{first}");
    assert!(second.starts_with("200 "), "{second}");
    pane.has("swarm: the page was opened by python3 (process ");
    pane.keys(&["C-c"]);
    wait_until("it ends", SOON, || rig.tmux(&["-L", "outer", "has-session"]).code != Some(0));
}

#[test]
fn in_the_background_what_is_typed_is_for_the_shell() {
    let rig = Rig::new();
    let pane = Pane::start(&rig, &["bash", "--norc", "-i"]);
    pane.keys(&[&format!("'{}' web 2> /dev/null &", env!("CARGO_BIN_EXE_swarm")), "Enter"]);
    wait_until("it prints an address", SOON, || pane.addresses().len() == 1);
    pane.keys(&["Enter", "echo the$((1))end; jobs", "Enter"]);
    pane.has("the1end");
    pane.has("Running");
    assert_eq!(pane.addresses().len(), 1);
    pane.keys(&["fg", "Enter"]);
    // The shell prints the command when it has given the terminal away.
    wait_until("it is in the foreground", SOON, || {
        let command = pane.tmux(&["display-message", "-p", "-t", "outer:", "#{pane_current_command}"]);
        command.trim() == "swarm"
    });
    pane.keys(&["Enter"]);
    wait_until("it prints another address", SOON, || pane.addresses().len() == 2);
}

#[test]
fn connections_of_other_users_take_no_places() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can be several users");
    }
    let rig = Rig::new();
    let web = Web::start(&rig, &[]);
    let port = web.address.rsplit_once(':').expect("a port").1;
    let mut command = rig.program("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", HOLDER, "bash", port]);
    command.current_dir("/").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut holder = command.spawn().expect("started");
    let mut line = String::new();
    let out = holder.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("read");
    assert_eq!(line, "held\n");
    // They send nothing, and each would keep its place for five seconds: longer than the limit here.
    let began = std::time::Instant::now();
    let said = web.get("/v1/hello");
    let took = began.elapsed();
    drop(holder.stdin.take());
    holder.wait().expect("ended");
    assert_eq!(said.status, 200, "{}", said.body);
    assert!(took < std::time::Duration::from_secs(4), "{took:?}");
}
