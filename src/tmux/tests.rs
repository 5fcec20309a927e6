//! Tests with a real tmux. Each test has its own server.

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use swarm_model::TmuxPane;

use super::testing::{Private, wait_until};
use super::{Clear, Key, OF_A_WORKER, Order, SendOptions, Server, Start, Tmux, TmuxError};

const PLAIN: SendOptions = SendOptions { clear: Clear::Nothing, enter: true };

#[test]
fn a_server_gets_no_variable_of_a_worker() {
    let names = OF_A_WORKER.into_iter().chain(["PWD", "MINE"]);
    let environment: Vec<_> = names.map(|name| (name.to_owned(), "x".to_owned())).collect();
    let command = Tmux::new(Server::Default, &environment).bare(None);
    let passed: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(passed, ["MINE"]);
}

#[test]
fn a_client_is_spawned_and_this_process_is_not_forked() {
    let environment: Vec<_> = std::env::vars().collect();
    let tmux = Tmux::new(Server::Default, &environment);
    let client = tmux.client(Start::Never).expect("is made");
    // The standard library forks for a program that it has to search for, and for another directory.
    assert!(Path::new(client.get_program()).is_absolute() && client.get_current_dir().is_none(), "{client:?}");
    let starter = tmux.client(Start::Allowed).expect("is made");
    assert_eq!(starter.get_current_dir(), Some(Path::new("/")), "a new server pins no directory");
}

#[test]
fn a_missing_tmux_is_named() {
    let nowhere = [("PATH".to_owned(), "/nowhere".to_owned())];
    assert_eq!(Tmux::new(Server::Default, &nowhere).version(), Err(TmuxError::Missing));
}

#[test]
fn a_window_has_its_ids_its_directory_and_its_log() {
    let server = Private::new();
    let window = server.open("w", "pwd; echo said; exec sleep 1000");
    wait_until("the log", || server.logged("w").contains("said"));
    let place = server.dir.path().to_string_lossy().into_owned();
    assert!(server.logged("w").starts_with(&place));
    assert_eq!((window.session.as_str(), window.pane.socket_path.as_str()), ("swarm", server.socket().as_str()));
    assert_eq!(vec![window.pane.server_pid], server.servers());
    let panes = server.tmux().list().expect("lists");
    assert_eq!(panes.len(), 1, "a session of ours has no useless first window: {panes:?}");
    assert_eq!((panes[0].pane.as_str(), panes[0].pane_pid), (window.pane.pane.as_str(), window.pane_pid));
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", window.pane_pid)).expect("reads");
    assert!(command.starts_with("sleep\0"), "no shell stands between: {command:?}");
    assert_eq!(server.user(&["show-options", "-wvt", &window.window_id, "allow-rename"]), "off");
    assert_eq!(server.user(&["show-options", "-wvt", &window.window_id, "automatic-rename"]), "off");
}

#[test]
fn names_match_exactly_even_if_one_is_a_prefix_of_another() {
    let server = Private::new();
    let (session, log) = ("job", server.log("x"));
    server.user(&["new-session", "-d", "-s", "job-two", "-n", "a-long", "sleep", "1000"]);
    let order = Order { session, name: "a", cwd: "/", argv: &["sleep", "1000"], log: &log };
    let window = server.tmux().open_window(&order, &|| Ok(Vec::new())).expect("opens");
    assert_eq!(window.session, "job");
    let find = |session: &str, name: &str| server.tmux().find_window(session, name).expect("finds").len();
    assert_eq!((find("job", "a"), find("job", "a-long"), find("jo", "a"), find("job-two", "a")), (1, 0, 0, 0));
    server.tmux().kill_window(&window.window_id).expect("kills");
    assert_eq!(server.user(&["list-sessions", "-F", "#{session_name}"]), "job-two");
    server.tmux().kill_window(&window.window_id).expect("a second time is no error");
}

#[test]
fn a_users_session_keeps_its_windows_and_its_current_one() {
    let server = Private::new();
    server.user(&["new-session", "-d", "-s", "mine", "-n", "one", "sleep", "1000"]);
    server.user(&["set-option", "-g", "base-index", "3"]);
    server.user(&["set-option", "-g", "renumber-windows", "on"]);
    server.user(&["new-window", "-t", "=mine:9", "-n", "two", "sleep", "1000"]);
    server.user(&["select-window", "-t", "=mine:one"]);
    server.user(&["new-session", "-d", "-t", "mine", "-s", "grouped"]);
    let first = server.open_in("mine", "w1", "echo out-1; exec sleep 1000");
    let second = server.open_in("grouped", "w2", "echo out-2; exec sleep 1000");
    assert_ne!(first.pane.pane, second.pane.pane);
    let shown = server.user(&["list-windows", "-t", "=mine", "-F", "#{window_index} #{window_name} #{window_active}"]);
    assert_eq!(shown, "0 one 1\n9 two 0\n10 w1 0\n11 w2 0");
    wait_until("both logs", || server.logged("w1").contains("out-1") && server.logged("w2").contains("out-2"));
    assert!(!server.logged("w1").contains("out-2"));
    assert_eq!(server.user(&["show-options", "-vt", "=mine", "destroy-unattached"]), "");
}

#[test]
fn eight_starts_into_a_new_session_all_succeed() {
    let server = Private::new();
    let barrier = Barrier::new(8);
    let windows: Vec<_> = std::thread::scope(|scope| {
        let start = |n: usize| {
            let (server, barrier) = (&server, &barrier);
            scope.spawn(move || {
                barrier.wait();
                server.open(&format!("w{n}"), &format!("echo out-{n}; exec sleep 1000"))
            })
        };
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
    });
    assert_eq!(server.servers().len(), 1);
    let sessions: std::collections::BTreeSet<_> = windows.iter().map(|window| &window.session_id).collect();
    let panes: std::collections::BTreeSet<_> = windows.iter().map(|window| &window.pane.pane).collect();
    assert_eq!((sessions.len(), panes.len(), server.tmux().list().expect("lists").len()), (1, 8, 8));
    for n in 0..8 {
        wait_until("its log", || server.logged(&format!("w{n}")) == format!("out-{n}\r\n"));
    }
}

#[test]
fn fifty_windows_are_in_the_order_of_their_starts() {
    let server = Private::new();
    let made: Vec<_> = (0..50).map(|n| server.open(&format!("w{n}"), "exec sleep 1000").pane.pane).collect();
    let listed: Vec<_> = server.tmux().list().expect("lists").into_iter().map(|line| line.pane).collect();
    assert_eq!(made, listed);
}

#[test]
fn a_server_without_socket_is_recovered_and_never_doubled() {
    let server = Private::new();
    let first = server.open("w1", "exec sleep 1000");
    let known = (first.pane.socket_path.clone(), first.pane.server_pid);
    std::fs::remove_file(&known.0).expect("removes the socket");
    assert_eq!(server.tmux().list().expect("no server is no error"), Vec::new());
    let log = server.log("w2");
    let order = Order { session: "swarm", name: "w2", cwd: "/", argv: &["sleep", "1000"], log: &log };
    let second = server.tmux().open_window(&order, &|| Ok(vec![known.clone()])).expect("opens");
    assert_eq!((second.pane.server_pid, second.session_id), (first.pane.server_pid, first.session_id));
    assert_eq!(server.servers(), vec![first.pane.server_pid]);
    assert_eq!(server.tmux().list().expect("lists").len(), 2);
}

/// Stops a server, and waits until it is: before that, it would still receive a signal with a lower number.
fn stop(pid: nix::unistd::Pid) {
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("stops the server");
    wait_until("the server is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
}

#[test]
fn a_server_that_ends_while_its_socket_is_asked_for_is_replaced() {
    let server = Private::new();
    let first = server.open("w1", "exec sleep 1000");
    let known = (first.pane.socket_path.clone(), first.pane.server_pid);
    let pid = nix::unistd::Pid::from_raw(known.1);
    stop(pid);
    std::fs::remove_file(&known.0).expect("removes the socket");
    let asked = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).map(str::trim);
        pending.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & (1 << 9) != 0)
    };
    let log = server.log("w2");
    let order = Order { session: "swarm", name: "w2", cwd: "/", argv: &["sleep", "1000"], log: &log };
    let second = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("SIGUSR1 is pending", asked);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("ends the server");
        });
        server.tmux().open_window(&order, &|| Ok(vec![known.clone()])).expect("opens")
    });
    assert_ne!(second.pane.server_pid, known.1);
}

#[test]
fn a_server_that_stays_unreachable_is_reported_and_not_doubled() {
    let server = Private::new();
    let first = server.open("w1", "exec sleep 1000");
    let known = (first.pane.socket_path.clone(), first.pane.server_pid);
    let pid = nix::unistd::Pid::from_raw(known.1);
    stop(pid);
    std::fs::remove_file(&known.0).expect("removes the socket");
    let log = server.log("w2");
    let order = Order { session: "swarm", name: "w2", cwd: "/", argv: &["sleep", "1000"], log: &log };
    let error = server.tmux().open_window(&order, &|| Ok(vec![known.clone()])).expect_err("cannot open");
    assert_eq!(error, TmuxError::Unreachable { pid: known.1, path: known.0.clone() });
    assert_eq!(server.servers(), vec![known.1]);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).expect("continues the server");
    wait_until("the socket", || Path::new(&known.0).exists());
}

#[test]
fn hostile_names_of_directories_and_sessions_execute_nothing() {
    let server = Private::new();
    let names = [
        "#(touch ran)",
        "$(touch ran)",
        "`touch ran`",
        "a;touch ran;",
        "it's",
        "sp ace",
        "#[x",
        "a##b",
        "#{pid}",
        "%H",
        "x#[#(touch ran)",
        "tail;",
        "\u{e9}",
    ];
    for (n, odd) in names.into_iter().enumerate() {
        let cwd = server.dir.path().join(odd);
        std::fs::create_dir(&cwd).expect("makes the directory");
        let cwd = cwd.to_string_lossy().into_owned();
        let log = Path::new(&cwd).join("log");
        std::fs::write(&log, "").expect("makes the log");
        let name = format!("w{n}");
        let session = format!("s{n}{odd}");
        // The first round also creates the session, with another command of tmux.
        for round in 1..=2 {
            let argv = ["sh", "-c", "echo \"$1|$2\"; pwd; exec sleep 1000", "sh", &cwd, ";"];
            let order = Order { session: &session, name: &name, cwd: &cwd, argv: &argv, log: &log };
            let window =
                server.tmux().open_window(&order, &|| Ok(Vec::new())).unwrap_or_else(|error| panic!("{odd}: {error}"));
            assert_eq!(window.session, session);
            let expected = format!("{cwd}|;\r\n{cwd}\r\n");
            let read = || std::fs::read_to_string(&log).expect("reads");
            wait_until(&format!("the log of {odd}"), || read().matches(&expected).count() == round);
        }
    }
    let ran = std::fs::read_dir(server.dir.path()).expect("reads").flatten().any(|entry| entry.file_name() == "ran");
    assert!(!ran && !Path::new("/ran").exists());
}

#[test]
fn odd_texts_arrive_unchanged() {
    let server = Private::new();
    let out = server.dir.path().join("out");
    let script = format!("stty raw -echo; exec cat >'{}'", out.display());
    let window = server.open("w", &script);
    wait_until("cat", || out.exists());
    let tmux = server.tmux();
    let send = |text: &str, options| tmux.send_text(&window.pane.pane, text, options).expect("sends");
    for text in ["-x", "C-c", "tail;", ";", "a\nb", "#{pid} %H #(x)", "\u{e9}\u{4e16}", "a\u{1b}[201~b", "", "\\;"] {
        send(text, PLAIN);
    }
    send("no enter", SendOptions { clear: Clear::Whole, enter: false });
    tmux.send_key(&window.pane.pane, Key::Eof).expect("sends");
    let expected = "-x\rC-c\rtail;\r;\ra\nb\r#{pid} %H #(x)\r\u{e9}\u{4e16}\rab\r\r\\;\r\u{1b}\u{15}no enter\u{4}";
    let read = || std::fs::read_to_string(&out).expect("reads");
    wait_until("the last of it", || read().ends_with('\u{4}'));
    assert_eq!(read(), expected);
}

#[test]
fn a_megabyte_arrives_whole_and_in_order() {
    let server = Private::new();
    let out = server.dir.path().join("out");
    let window = server.open("w", &format!("stty raw -echo; exec cat >'{}'", out.display()));
    wait_until("cat", || out.exists());
    let text: String = (0..125_000).map(|n| format!("{n:07} ")).collect();
    server.tmux().send_text(&window.pane.pane, &text, PLAIN).expect("sends");
    wait_until("all of it", || std::fs::metadata(&out).is_ok_and(|data| data.len() == 1_000_001));
    assert_eq!(std::fs::read_to_string(&out).expect("reads"), text + "\r");
    assert_eq!(server.user(&["list-buffers"]), "", "no buffer is left");
}

#[test]
fn a_program_that_knows_bracketed_paste_is_told_its_end() {
    let server = Private::new();
    let out = server.dir.path().join("out");
    let script = format!("printf '\\033[?2004h'; stty raw -echo; exec cat >'{}'", out.display());
    let window = server.open("w", &script);
    wait_until("cat", || out.exists() && server.logged("w").contains("2004h"));
    server.tmux().send_text(&window.pane.pane, "a\nb", PLAIN).expect("sends");
    wait_until("it", || std::fs::read_to_string(&out).is_ok_and(|text| text == "\u{1b}[200~a\nb\u{1b}[201~\r"));
}

#[test]
fn a_shell_executes_one_line_and_several_lines() {
    let server = Private::new();
    let window = server.open("w", "PS1='ready$ ' exec bash --norc --noprofile -i");
    wait_until("the prompt", || server.logged("w").contains("ready$"));
    let options = SendOptions { clear: Clear::Nothing, enter: true };
    server.tmux().send_text(&window.pane.pane, "echo one$((1+1))", options).expect("sends");
    wait_until("its answer", || server.logged("w").contains("one2"));
    server.tmux().send_text(&window.pane.pane, "echo two$((1+1))\necho three$((1+1))", options).expect("sends");
    wait_until("both answers", || server.logged("w").contains("two2") && server.logged("w").contains("three2"));
}

#[test]
fn a_person_who_scrolls_does_not_swallow_the_keys() {
    let server = Private::new();
    let window = server.open("w", "read line; echo got-$line; exec sleep 1000");
    server.user(&["copy-mode", "-t", &window.pane.pane]);
    server.tmux().send_text(&window.pane.pane, "it", PLAIN).expect("sends");
    wait_until("the line", || server.logged("w").contains("got-it"));
}

#[test]
fn text_for_a_pane_that_ended_is_not_delivered() {
    let server = Private::new();
    server.open("keeper", "exec sleep 1000");
    let window = server.open("w", "exec sleep 1000");
    let pane = window.pane.pane.clone();
    let stranger = Tmux { server_pid: Some(1), ..server.tmux() };
    assert_eq!(stranger.send_text(&pane, "x", PLAIN), Err(TmuxError::NotDelivered { pane: pane.clone() }));
    assert!(!stranger.pane_exists(&pane).expect("asks") && stranger.capture(&pane, 10_000, false).is_err());
    assert!(server.tmux().pane_exists(&pane).expect("asks"));
    server.user(&["set-option", "-wt", &window.window_id, "remain-on-exit", "on"]);
    let process = nix::unistd::Pid::from_raw(window.pane_pid);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).expect("kills");
    wait_until("the end", || server.tmux().list().expect("lists").iter().any(|line| line.dead));
    assert!(!server.tmux().pane_exists(&pane).expect("asks"));
    assert_eq!(server.tmux().send_text(&pane, "x", PLAIN), Err(TmuxError::NotDelivered { pane: pane.clone() }));
    server.tmux().kill_window(&pane).expect("kills");
    assert_eq!(server.tmux().send_key(&pane, Key::Interrupt), Err(TmuxError::NotDelivered { pane: pane.clone() }));
    assert_eq!(server.user(&["list-buffers"]), "");
}

#[test]
fn a_capture_shows_screen_and_scrollback() {
    let server = Private::new();
    let window = server.open("w", "seq 1 300; printf '\\033[31mred\\033[0m \\303\\251'; exec sleep 1000");
    wait_until("the output", || server.logged("w").contains("red"));
    let capture =
        |scrollback, escapes| server.tmux().capture(&window.pane.pane, scrollback, escapes).expect("captures");
    let screen = capture(0, false);
    assert!(screen.ends_with("300\nred \u{e9}\n") && screen.lines().count() == 50, "{screen:?}");
    assert_eq!(capture(7, false).lines().count(), 57);
    assert!(capture(10_000, false).starts_with("1\n2\n"));
    assert!(capture(0, true).contains("\u{1b}[31mred"));
}

#[test]
fn without_a_server_the_list_is_empty_and_a_window_starts_one() {
    let server = Private::new();
    assert_eq!(server.tmux().list().expect("lists"), Vec::new());
    assert_eq!(server.tmux().find_window("a", "b").expect("finds"), Vec::new());
    assert!(!server.tmux().pane_exists("%1").expect("asks"));
    server.tmux().kill_window("@1").expect("is no error");
    assert!(server.servers().is_empty(), "asking starts no server");
    let gone = (server.socket(), 0);
    let log = server.log("w");
    let order = Order { session: "s", name: "w", cwd: "/", argv: &["sleep", "1000"], log: &log };
    server.tmux().open_window(&order, &|| Ok(vec![gone.clone()])).expect("a dead server is no hindrance");
}

/// Returns a connection whose `tmux` is this script. Another process writes the script: if this process had it open
/// for writing, a child of another test could inherit the descriptor, and exec of the script would be refused.
fn stub(server: &Private, script: &str) -> Tmux {
    let bin = server.dir.path().join("bin");
    let write = "mkdir -p \"$1\"; printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1/tmux\"; chmod 755 \"$1/tmux\"";
    let words = ["-c", write, "sh", &bin.to_string_lossy(), script];
    let written = std::process::Command::new("sh").args(words).status().expect("sh runs");
    assert!(written.success());
    let path = format!("{}:/usr/bin:/bin", bin.display());
    Tmux::new(super::Server::Default, &[("PATH".to_owned(), path)]).with_limit(Duration::from_secs(30))
}

#[test]
fn a_missing_tmux_and_a_hung_one_are_reported() {
    let server = Private::new();
    let missing = Tmux::new(super::Server::Default, &[("PATH".to_owned(), "/nonexistent".to_owned())]);
    let error = missing.list().expect_err("fails");
    assert_eq!(error.to_string(), "tmux is not installed or not in PATH");
    assert!(error.remedy().is_some());
    let hung = stub(&server, "exec sleep 60").with_limit(Duration::from_millis(200));
    let error = hung.list().expect_err("fails");
    assert!(matches!(error, TmuxError::Timeout { limit_ms: 200, .. }), "{error:?}");
    let hung = Tmux { limit: Duration::from_secs(5), ..hung };
    let text = TmuxError::Timeout { limit_ms: 5_000, server: hung.describe() }.to_string();
    assert_eq!(text, "tmux does not answer within 5 s (the default socket)");
}

#[test]
fn a_client_that_was_killed_says_nothing_about_the_server() {
    let server = Private::new();
    let pane = server.open("w", "exec sleep 1000").pane;
    let gone = TmuxPane { server_pid: i32::MAX, ..pane.clone() };
    let lives = |tmux: &Tmux, pane| super::target::is_server_of(tmux, pane);
    assert!(lives(&server.tmux(), &pane) && !lives(&server.tmux(), &gone));
    for script in ["kill -9 $$", "exit 1"] {
        let killed = stub(&server, script);
        assert!(killed.list().is_err());
        assert!(lives(&killed, &pane) && !lives(&killed, &gone), "{script}");
    }
    let missing = Tmux::new(Server::Default, &[("PATH".to_owned(), "/nowhere".to_owned())]);
    assert!(lives(&missing, &pane) && !lives(&missing, &gone));
}

#[test]
fn unexpected_output_of_tmux_is_an_error() {
    let server = Private::new();
    let says = |script: &str| stub(&server, script).list();
    assert_eq!(says("echo 'no server running on /x' >&2; exit 1"), Ok(Vec::new()));
    assert_eq!(
        says("echo 'open terminal failed' >&2; exit 1"),
        Err(TmuxError::Other("open terminal failed".to_owned()))
    );
    assert!(matches!(says("echo nonsense"), Err(TmuxError::Answer(_))));
    let old = "case $1 in -V) echo 'tmux 2.9a';; *) echo 'tmux: unknown option -- N' >&2; exit 1;; esac";
    assert_eq!(says(old), Err(TmuxError::TooOld { found: "tmux 2.9a".to_owned() }));
    let log = server.log("w");
    let order = Order { session: "s", name: "w", cwd: "/", argv: &["sleep", "1000"], log: &log };
    let opened = stub(&server, old).open_window(&order, &|| Ok(Vec::new()));
    assert_eq!(opened, Err(TmuxError::TooOld { found: "tmux 2.9a".to_owned() }));
    let endless = stub(&server, "echo 'no server running on /x' >&2; exit 1").open_window(&order, &|| Ok(Vec::new()));
    assert_eq!(endless, Err(TmuxError::Unsteady("s".to_owned())));
}

#[test]
fn a_socket_path_that_is_too_long_is_reported() {
    let path = format!("/{}", "x".repeat(120));
    let error = Tmux::new(super::Server::Path(path.clone()), &[]).list().expect_err("fails");
    assert_eq!(error.to_string(), format!("the tmux socket path {path} has 121 bytes (maximum 107)"));
}
