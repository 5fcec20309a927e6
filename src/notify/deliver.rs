//! Delivery of one notice by one way. Each blocks, and each has an end.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::fs::{MemfdFlags, memfd_create};

use super::config::Notify;
use super::pace::Notice;
use super::way::{Failed, Way};
use super::webhook;
use swarm_sys::commands::runner::{Ended, Outcome};
use swarm_sys::paths::Paths;
use swarm_sys::processes;

/// Longest time that one delivery may take.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// How much longer the runner may take to end what a command left: five seconds after
/// TERM, five after KILL, and some for itself.
const ENDING_MAX: Duration = Duration::from_secs(12);
/// What is kept of a command's output, and what is shown of it.
const OUTPUT_BYTES_MAX: u64 = 4096;
const OUTPUT_CHARS_MAX: usize = 300;
/// The longest text in a variable: the kernel takes 128 kB, and all of them together
/// with the arguments share what the stack's limit leaves.
const VARIABLE_BYTES_MAX: usize = 16 << 10;

/// Delivers it; `None` where this way is not configured.
pub fn by(way: Way, paths: &Paths, notify: &Notify, notice: &Notice) -> Option<Result<(), Failed>> {
    match way {
        Way::Command => notify.command.as_ref().map(|text| command(paths, text, notice)),
        Way::Desktop => notify.desktop.then(|| desktop(paths, notice)),
        Way::Webhook => {
            let url = notify.webhook.as_ref()?;
            Some(webhook::post(url, &notice.event.to_string(), DELIVERY_MAX))
        }
    }
}

/// Runs the command with the event on its standard input. What it leaves is ended with
/// it, also when its time is up or when this process dies.
fn command(paths: &Paths, command: &str, notice: &Notice) -> Result<(), Failed> {
    run(paths, program(command), command, notice)
}

fn desktop(paths: &Paths, notice: &Notice) -> Result<(), Failed> {
    if !has_desktop() {
        return Err(Failed::for_good("notify-send is not installed or not in PATH"));
    }
    // As the title, which is plain text: in the body there is markup, and backslashes count.
    run(paths, "notify-send", "exec notify-send --app-name=swarm -- \"$SWARM_MESSAGE\"", notice)
}

/// Whether there is a program for notices on the desktop.
fn has_desktop() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program =
        |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).any(|dir| is_program(&dir.join("notify-send")))
}

/// The name of the program that a command begins with. Its arguments may be secret, and
/// so may variables that are set before it: where it is not plain which is which, it is
/// the shell.
fn program(command: &str) -> &str {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./+=:@%,~".contains(c);
    for word in command.split_ascii_whitespace() {
        let end = word.find(|c| ";|&<>()".contains(c)).unwrap_or(word.len());
        let (word, is_cut) = (&word[..end], end < word.len());
        if word.is_empty() || !word.chars().all(is_plain) {
            break;
        }
        if !word.contains('=') {
            return word.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("sh");
        }
        if is_cut {
            break;
        }
    }
    "sh"
}

fn run(paths: &Paths, name: &str, command: &str, notice: &Notice) -> Result<(), Failed> {
    let failed = |why: String| Failed::for_good(format!("{name} {why}"));
    let runner = format!("/proc/{}/exe", std::process::id());
    let (ended, output) = start(Path::new(&runner), paths.root(), command, notice)
        .map_err(|error| failed(format!("could not be run: {error}")))?;
    let cause = match ended.map(|ended| ended.outcome) {
        Some(Outcome::Code(0)) => return Ok(()),
        Some(Outcome::Code(code)) => format!("ended with code {code}"),
        Some(Outcome::Signal(signal)) => format!("was ended by signal {signal}"),
        Some(Outcome::Timeout) => format!("took longer than {} s and was ended", DELIVERY_MAX.as_secs()),
        Some(Outcome::Unknown(why)) => format!("ended, and nobody knows how: {why}"),
        None => "was ended by somebody".to_owned(),
    };
    Err(Failed { output, ..failed(cause) })
}

/// How it ended, and what it said. Event and output are in files without a name, which
/// the runner finds among this process's: nobody need write or read beside the command,
/// and nothing is left of them.
fn start(runner: &Path, dir: &Path, command: &str, notice: &Notice) -> io::Result<(Option<Ended>, String)> {
    let nameless = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let (mut event, output) = (nameless("event")?, nameless("output")?);
    let text = notice.event.to_string();
    event.write_all(format!("{text}\n").as_bytes())?;
    let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let runner = Command::new(runner)
        .arg("__runner")
        .arg(dir)
        .args([&path(&output), &DELIVERY_MAX.as_millis().to_string(), "77", command, &path(&event)])
        .env("SWARM_EVENT", variable(&text))
        .env("SWARM_EVENT_TYPE", variable(&notice.kind))
        .env("SWARM_WORKER", variable(&notice.worker))
        .env("SWARM_MESSAGE", variable(&notice.message))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let ended = wait(runner, DELIVERY_MAX + ENDING_MAX)?;
    let mut said = Vec::new();
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut said)?;
    Ok((ended, String::from_utf8_lossy(&said).trim().chars().take(OUTPUT_CHARS_MAX).collect()))
}

/// What may stand in the environment: not too much, and no NUL.
fn variable(text: &str) -> String {
    const MORE: &str = "…";
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= VARIABLE_BYTES_MAX {
        return text;
    }
    format!("{}{MORE}", &text[..text.floor_char_boundary(VARIABLE_BYTES_MAX - MORE.len())])
}

/// What the runner tells of the command. One that does not end by itself is killed with
/// its group.
fn wait(mut runner: Child, limit: Duration) -> io::Result<Option<Ended>> {
    // Held until it is over: its end would end the runner.
    let life = runner.stdin.take();
    let mut text = String::new();
    let output = runner.stdout.take().filter(|output| processes::wait_readable(output, limit));
    match output {
        Some(mut output) => drop(output.read_to_string(&mut text)),
        None => {
            // A child not waited for yet: the number is its own, and its group's.
            if let Ok(pid) = i32::try_from(runner.id()) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
            runner.kill()?;
        }
    }
    drop(life);
    runner.wait()?;
    Ok(Ended::read(&text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn of_a_command_only_the_program_is_named() {
        for (command, name) in [
            ("curl -H 'Authorization: secret' http://x/secret", "curl"),
            ("/opt/secret/bin/tell --token secret", "tell"),
            ("  TOKEN=secret LANG=C curl -d @- x", "curl"),
            ("cat>secret", "cat"),
            ("echo broken; exit 4", "echo"),
            ("mail.sh|secret", "mail.sh"),
            ("benachrichtige-mich-schön secret", "benachrichtige-mich-schön"),
            ("TOKEN='a secret' curl", "sh"),
            ("TOKEN=$(secret x) curl", "sh"),
            ("TOKEN=a;secret", "sh"),
            ("TOKEN=a\\ secret curl", "sh"),
            ("(secret)", "sh"),
            ("\"/opt/my secret\" x", "sh"),
            ("/opt/secret/", "sh"),
            ("TOKEN=secret", "sh"),
            ("", "sh"),
        ] {
            assert_eq!(program(command), name, "{command}");
        }
    }

    #[test]
    fn a_variable_takes_any_text_and_not_too_much_of_it() {
        assert_eq!(variable("a\0b ü"), "a\u{fffd}b ü");
        let whole = "x".repeat(VARIABLE_BYTES_MAX);
        assert_eq!(variable(&whole), whole);
        for (before, fill) in [("", "ü"), ("x", "ü"), ("", "\0"), ("xx", "𝄞")] {
            let cut = variable(&format!("{before}{}", fill.repeat(VARIABLE_BYTES_MAX)));
            assert!(cut.len() <= VARIABLE_BYTES_MAX && cut.len() > VARIABLE_BYTES_MAX - 8, "{}", cut.len());
            assert!(cut.ends_with('…') && cut.starts_with(before));
        }
    }

    /// A runner in short. A shell writes it: a file that this process has open for writing
    /// might not be executed.
    fn runner(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("runner");
        let text = r#"echo '#!/bin/sh
cd "$2"; sh -c "$6" <"$7" >>"$3" 2>&1; echo "{\"code\":$?}"' >"$0"; chmod 700 "$0""#;
        assert!(Command::new("sh").args(["-c", text]).arg(&path).status().expect("run").success());
        path
    }

    #[test]
    fn a_huge_event_comes_whole_on_standard_input_and_cut_in_the_environment() {
        let dir = tempfile::tempdir().expect("a directory");
        let runner = runner(dir.path());
        let huge = "ü\0".repeat(1 << 20);
        let event = serde_json::json!({"message": huge});
        let test = Notice::test(7);
        let notice = Notice { message: huge.clone(), worker: huge.clone(), kind: huge, event, ..test };
        let command = "cat >got; printf %s \"$SWARM_EVENT\" >variable; echo said; exit 3";
        let (ended, output) = start(&runner, dir.path(), command, &notice).expect("run");
        assert_eq!((ended.map(|ended| ended.outcome), output.as_str()), (Some(Outcome::Code(3)), "said"));
        assert_eq!(fs::read_to_string(dir.path().join("got")).expect("read"), format!("{}\n", notice.event));
        let cut = fs::read_to_string(dir.path().join("variable")).expect("read");
        assert!(cut.ends_with('…') && cut.len() <= VARIABLE_BYTES_MAX, "{}", cut.len());
        // One that reads nothing of it is not waited for.
        let (ended, _) = start(&runner, dir.path(), "true", &notice).expect("run");
        assert_eq!(ended.map(|ended| ended.outcome), Some(Outcome::Code(0)));
    }

    #[test]
    fn a_runner_that_is_suspended_is_ended_with_its_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 611 & echo $! >&2; kill -STOP $$"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut runner = piped.spawn().expect("started");
        let mut said = runner.stderr.take().expect("piped");
        let began = Instant::now();
        assert_eq!(wait(runner, Duration::from_millis(500)).expect("waited for"), None);
        // Everyone who could write there is gone.
        let mut pid = String::new();
        said.read_to_string(&mut pid).expect("read to its end");
        assert!(pid.trim().parse::<i32>().is_ok(), "{pid}");
        assert!(began.elapsed() < Duration::from_secs(300), "it was waited for");
    }
}
