//! Delivers one notice by one way. Each delivery blocks, for a limited time.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use super::config::Notify;
use super::own;
use super::pace::Notice;
use super::way::{Failed, Way};
use super::webhook;
use swarm_sys::commands::runner::{Ended, Order, Outcome};
use swarm_sys::paths::Paths;

/// Time limit of one delivery.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// Additional time for the runner to end the processes of a command: five seconds after TERM, five after KILL, and two
/// for itself.
const ENDING_MAX: Duration = Duration::from_secs(12);
/// Maximum size of a command's output that is read.
const OUTPUT_BYTES_MAX: u64 = 4096;
/// Maximum length of a command's output that is shown.
const OUTPUT_CHARS_MAX: usize = 300;
/// Maximum length of a variable. The kernel accepts 128 kB each, and all variables and arguments together must fit into
/// the space that the stack limit leaves.
const VARIABLE_BYTES_MAX: usize = 16 << 10;

/// Delivers a notice by this way; `None` if the way is not configured.
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

/// Runs the command with the event on its standard input. Processes that it leaves are ended, also if it times out or
/// this process dies.
fn command(paths: &Paths, command: &str, notice: &Notice) -> Result<(), Failed> {
    run(paths, program(command), command, notice)
}

fn desktop(paths: &Paths, notice: &Notice) -> Result<(), Failed> {
    if !has_desktop() {
        return Err(Failed::for_good("notify-send is not installed or not in PATH"));
    }
    // The message is passed as the title, which is plain text: the body interprets markup and backslashes.
    run(paths, "notify-send", "exec notify-send --app-name=swarm -- \"$SWARM_MESSAGE\"", notice)
}

/// Reports whether `notify-send` is installed.
fn has_desktop() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program =
        |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).any(|dir| is_program(&dir.join("notify-send")))
}

/// Returns the name of the program that a command starts with. Arguments and preceding variable assignments may be
/// secret: if the program cannot be told from them with certainty, the name is `sh`.
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
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    let cause = match ended.map(|ended| ended.outcome) {
        Some(Outcome::Code(0)) => return Ok(()),
        Some(Outcome::Code(code)) => format!("exited with code {code}"),
        Some(Outcome::Signal(signal)) => format!("was killed by signal {signal}"),
        Some(Outcome::Timeout) => format!("timed out after {} s", DELIVERY_MAX.as_secs()),
        Some(Outcome::Unknown(why)) => format!("ended with an unknown result: {why}"),
        None => "was killed".to_owned(),
    };
    Err(Failed { output, ..failed(cause) })
}

/// Runs a command by the runner, and returns how it ended, and its output. Event and output are anonymous files, which
/// the runner opens through this process's `/proc` entry: no thread has to write or read concurrently with the command,
/// and no file remains.
fn start(runner: &Path, dir: &Path, command: &str, notice: &Notice) -> io::Result<(Option<Ended>, String)> {
    let nameless = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
    let (mut event, output) = (nameless("event")?, nameless("output")?);
    let text = notice.event.to_string();
    event.write_all(format!("{text}\n").as_bytes())?;
    let path = |file: &File| PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let (log, input) = (path(&output), path(&event));
    let order = Order { dir, log: &log, limit: DELIVERY_MAX, umask: 0o77, command, input: Some(&input) };
    let runner = order.start(runner, |command| {
        command.env("SWARM_EVENT", variable(&text)).env("SWARM_EVENT_TYPE", variable(&notice.kind));
        command.env("SWARM_WORKER", variable(&notice.worker)).env("SWARM_MESSAGE", variable(&notice.message));
    })?;
    let _mark = own::Mark::set(runner.pid());
    let ended = runner.wait_within(DELIVERY_MAX + ENDING_MAX)?;
    let mut said = Vec::new();
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut said)?;
    Ok((ended, String::from_utf8_lossy(&said).trim().chars().take(OUTPUT_CHARS_MAX).collect()))
}

/// Converts a text into a valid value of an environment variable: limited length, no NUL.
fn variable(text: &str) -> String {
    const MORE: &str = "…";
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= VARIABLE_BYTES_MAX {
        return text;
    }
    format!("{}{MORE}", &text[..text.floor_char_boundary(VARIABLE_BYTES_MAX - MORE.len())])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_program_of_a_command_is_shown() {
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
    fn variables_accept_any_text_and_are_truncated() {
        assert_eq!(variable("a\0b ü"), "a\u{fffd}b ü");
        let whole = "x".repeat(VARIABLE_BYTES_MAX);
        assert_eq!(variable(&whole), whole);
        for (before, fill) in [("", "ü"), ("x", "ü"), ("", "\0"), ("xx", "𝄞")] {
            let cut = variable(&format!("{before}{}", fill.repeat(VARIABLE_BYTES_MAX)));
            assert!(cut.len() <= VARIABLE_BYTES_MAX && cut.len() > VARIABLE_BYTES_MAX - 8, "{}", cut.len());
            assert!(cut.ends_with('…') && cut.starts_with(before));
        }
    }

    /// A minimal runner. A shell writes it, because a file that this process has open for writing cannot be executed.
    fn runner(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("runner");
        let text = r#"echo '#!/bin/sh
cd "$2"; sh -c "$6" <"$7" >>"$3" 2>&1; echo "{\"code\":$?}"' >"$0"; chmod 700 "$0""#;
        assert!(Command::new("sh").args(["-c", text]).arg(&path).status().expect("run").success());
        path
    }

    #[test]
    fn a_huge_event_is_complete_on_standard_input_and_truncated_in_the_environment() {
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
        // A command that reads nothing does not block.
        let (ended, _) = start(&runner, dir.path(), "true", &notice).expect("run");
        assert_eq!(ended.map(|ended| ended.outcome), Some(Outcome::Code(0)));
    }
}
