//! Tests with real programs in a real tmux.

use super::*;
use swarm_store::windows::Window;
use swarm_store::windows::testing::{Private, wait_until};

const LONG: Duration = Duration::from_secs(60);
const AT_ONCE: Duration = Duration::ZERO;

fn target(server: &Private, window: &Window) -> Target {
    Target { tmux: server.tmux(), pane: window.pane.pane.clone(), session: window.session.clone() }
}

fn process(pid: i32) -> ProcessId {
    procfs::identity(pid, "").expect("reads")
}

#[test]
fn a_late_prompt_is_seen_through_the_log_or_by_polling() {
    let server = Private::new();
    for (name, logged) in [("log", true), ("clock", false)] {
        let window = server.open(name, "echo loading; read go; printf '$ '; exec sleep 1000");
        let log = server.log(name);
        let ready = std::thread::scope(|scope| {
            let target = target(&server, &window);
            let log = logged.then_some(log.as_path());
            let shell = process(window.pane_pid);
            let waiting = scope.spawn(move || wait_ready(&target, log, Some(&shell), AT_ONCE, LONG));
            wait_until("the start", || server.logged(name).contains("loading"));
            assert!(!waiting.is_finished());
            server.user(&["send-keys", "-t", &window.pane.pane, "Enter"]);
            waiting.join().expect("ends")
        });
        assert_eq!(ready, Ok(Readiness::Ready), "{name}");
    }
}

#[test]
fn a_dialog_ends_the_wait_and_is_not_answered() {
    let server = Private::new();
    for (name, asks) in [("trust", "asks whether to trust this directory"), ("login", "asks how to log in")] {
        let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/screens/claude/{name}.txt"));
        // Only the last lines fit the window.
        let shown = shown.display();
        let window =
            server.open(name, &format!("stty -echo; tail -n 15 '{shown}'; read x; echo answered; exec sleep 1000"));
        let ready = wait_ready(&target(&server, &window), Some(&server.log(name)), None, AT_ONCE, LONG);
        let asked = ready.map(|ready| match ready {
            Readiness::Asks(dialog) => dialog.asks(),
            _ => "nothing",
        });
        assert_eq!(asked, Ok(asks));
        assert!(!server.logged(name).contains("answered"));
    }
}

#[test]
fn a_dialog_that_follows_a_prompt_is_seen_if_the_prompt_must_stand() {
    let server = Private::new();
    let screens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/screens");
    let trust = screens.join("claude/trust.txt").display().to_string();
    for (name, steady, asks) in [("late", LONG, true), ("soon", Duration::from_millis(300), false)] {
        let later = if asks { format!("read go; clear; tail -n 15 '{trust}'") } else { String::new() };
        let window = server.open(name, &format!("echo '>   Type your message'\n{later}\nexec sleep 1000"));
        let ready = std::thread::scope(|scope| {
            let (target, log) = (target(&server, &window), server.log(name));
            let waiting = scope.spawn(move || wait_ready(&target, Some(&log), None, steady, LONG));
            wait_until("the prompt", || server.logged(name).contains("Type your message"));
            if asks {
                server.user(&["send-keys", "-t", &window.pane.pane, "Enter"]);
            }
            waiting.join().expect("ends")
        });
        let ready = ready.expect("no failure");
        assert_eq!(matches!(ready, Readiness::Asks(_)), asks, "{ready:?}");
        assert_eq!(ready == Readiness::Ready, !asks, "{ready:?}");
    }
}

#[test]
fn the_end_of_the_worker_ends_the_wait() {
    let server = Private::new();
    server.open("keeper", "exec sleep 1000");
    let window = server.open("w", "echo loading; read go");
    let ended = std::thread::scope(|scope| {
        let target = target(&server, &window);
        let log = server.log("w");
        let shell = process(window.pane_pid);
        let waiting = scope.spawn(move || wait_ready(&target, Some(&log), Some(&shell), AT_ONCE, LONG));
        wait_until("the start", || server.logged("w").contains("loading"));
        server.user(&["send-keys", "-t", &window.pane.pane, "Enter"]);
        waiting.join().expect("ends")
    });
    assert_eq!(ended, Ok(Readiness::Ended));
    assert_eq!(wait_ready(&target(&server, &window), None, None, AT_ONCE, LONG), Ok(Readiness::Ended));
    let reused = ProcessId { start_ticks: 1, ..process(i32::try_from(std::process::id()).expect("fits")) };
    assert_eq!(wait_ready(&target(&server, &window), None, Some(&reused), AT_ONCE, LONG), Ok(Readiness::Ended));
}

#[test]
fn a_program_that_never_asks_times_out() {
    let server = Private::new();
    let window = server.open("w", "echo loading; exec sleep 1000");
    let late = wait_ready(&target(&server, &window), Some(&server.log("w")), None, AT_ONCE, Duration::from_millis(300));
    assert_eq!(late, Ok(Readiness::TimedOut));
}
