//! The ways by which people are told. Each blocks, and each has an end.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::pace::Notice;
use crate::paths::Paths;
use crate::runner::{Ended, Outcome};

/// Longest time that one delivery may take.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// What is shown of a command's output.
const OUTPUT_BYTES_MAX: usize = 300;
/// What is read of a server's answer.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Runs the command with the event on its standard input. What it leaves is ended with
/// it, also when its time is up or when this process dies.
///
/// # Errors
/// How it failed, in a sentence.
pub fn command(paths: &Paths, command: &str, notice: &Notice) -> Result<(), String> {
    // The runner's own standard input is the line to this process.
    let fed = format!("printf '%s\\n' \"$SWARM_EVENT\" | {{ {command}\n}}");
    run(paths, &fed, notice).map_err(|why| format!("'{command}' {why}"))
}

/// Whether there is a program for notices on the desktop.
pub fn has_desktop() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program =
        |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).any(|dir| is_program(&dir.join("notify-send")))
}

/// # Errors
/// As [`command`].
pub fn desktop(paths: &Paths, notice: &Notice) -> Result<(), String> {
    if !has_desktop() {
        return Err("notify-send is not installed or not in PATH".to_owned());
    }
    let command = "exec notify-send --app-name=swarm -- swarm \"$SWARM_MESSAGE\"";
    run(paths, command, notice).map_err(|why| format!("notify-send {why}"))
}

fn run(paths: &Paths, command: &str, notice: &Notice) -> Result<(), String> {
    let log = paths.root().join("notify.log");
    let ended = start(paths, &log, command, notice).map_err(|error| format!("could not be run: {error}"))?;
    let said = || {
        let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).trim().to_owned();
        let short: String = text.chars().take(OUTPUT_BYTES_MAX).collect();
        if short.is_empty() { short } else { format!(": {short}") }
    };
    match ended.map(|ended| ended.outcome) {
        Some(Outcome::Code(0)) => Ok(()),
        Some(Outcome::Code(code)) => Err(format!("ended with code {code}{}", said())),
        Some(Outcome::Signal(signal)) => Err(format!("was ended by signal {signal}{}", said())),
        Some(Outcome::Timeout) => Err(format!("took longer than {} s and was ended", DELIVERY_MAX.as_secs())),
        Some(Outcome::Unknown(why)) => Err(why),
        None => Err("was ended by somebody".to_owned()),
    }
}

fn start(paths: &Paths, log: &Path, command: &str, notice: &Notice) -> io::Result<Option<Ended>> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(log)?;
    let mut runner = Command::new(format!("/proc/{}/exe", std::process::id()))
        .arg("__runner")
        .args([paths.root(), log])
        .args([&DELIVERY_MAX.as_millis().to_string(), "77", command])
        .env("SWARM_EVENT", notice.event.to_string())
        .env("SWARM_EVENT_TYPE", &notice.kind)
        .env("SWARM_WORKER", &notice.worker)
        .env("SWARM_MESSAGE", &notice.message)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // Held until it is over: its end would end the runner.
    let life = runner.stdin.take();
    let mut text = String::new();
    if let Some(mut output) = runner.stdout.take() {
        output.read_to_string(&mut text)?;
    }
    drop(life);
    runner.wait()?;
    Ok(Ended::read(&text))
}

/// Posts the event to a server.
///
/// # Errors
/// How it failed, in a sentence.
pub fn webhook(url: &str, notice: &Notice) -> Result<(), String> {
    let address = Address::parse(url)?;
    post(&address, &notice.event.to_string()).map_err(|why| format!("{url}: {why}"))
}

/// Where plain HTTP goes.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// As it stands in the address.
    host: String,
    /// Without brackets.
    name: String,
    port: u16,
    path: String,
}

impl Address {
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("webhook '{url}' {why}"));
        if url.starts_with("https://") {
            return wrong(
                "is https, which swarm does not speak; send to a relay on http://127.0.0.1, or use `command` with curl",
            );
        }
        let Some(rest) = url.strip_prefix("http://") else { return wrong("does not begin with http://") };
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return wrong("has a blank in it");
        }
        let (host, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if host.contains('@') {
            return wrong("has a user in it, which is not sent");
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((name, port)) => (name, port.strip_prefix(':')),
            None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
        };
        let Ok(port) = port.unwrap_or("80").parse() else { return wrong("has no port after its colon") };
        if name.is_empty() {
            return wrong("names no host");
        }
        Ok(Self { host: host.to_owned(), name: name.to_owned(), port, path })
    }
}

fn post(address: &Address, body: &str) -> Result<(), String> {
    let deadline = Instant::now() + DELIVERY_MAX;
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let told = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no answer within {} s", DELIVERY_MAX.as_secs()),
        _ => error.to_string(),
    };
    let found = (address.name.as_str(), address.port).to_socket_addrs().map_err(told)?.next();
    let found = found.ok_or("its host has no address")?;
    let mut stream = TcpStream::connect_timeout(&found, left()).map_err(told)?;
    stream.set_write_timeout(Some(left())).map_err(told)?;
    let Address { host, path, .. } = address;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: swarm/{}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(format!("{head}{body}").as_bytes()).map_err(told)?;
    let mut answer = Vec::new();
    // The first line is all that counts; a server may drip.
    while !answer.contains(&b'\n') && (answer.len() as u64) < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(left())).map_err(told)?;
        let mut piece = [0_u8; 512];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(told(error)),
        }
        if Instant::now() >= deadline {
            return Err(format!("no answer within {} s", DELIVERY_MAX.as_secs()));
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let first = text.lines().next().unwrap_or_default();
    let status: Option<u16> = first.strip_prefix("HTTP/1.").and_then(|_| first.split(' ').nth(1)?.parse().ok());
    match status {
        Some(200..=299) => Ok(()),
        Some(status) => Err(format!("it answered {status}")),
        None => Err("it did not answer in HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused_with_a_sentence() {
        let parsed = |url: &str| Address::parse(url).map(|at| (at.name, at.port, at.path));
        let is = |name: &str, port, path: &str| Ok((name.to_owned(), port, path.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:8080/hook?x=1"), is("127.0.0.1", 8080, "/hook?x=1"));
        assert_eq!(parsed("http://localhost"), is("localhost", 80, "/"));
        assert_eq!(parsed("http://[::1]:99/a"), is("::1", 99, "/a"));
        for (url, why) in [
            ("https://127.0.0.1/", "is https"),
            ("ftp://x", "does not begin with http://"),
            ("http://", "names no host"),
            ("http://x:y/", "no port"),
            ("http://a b/", "a blank"),
            ("http://u:p@x/", "a user in it"),
        ] {
            let cause = Address::parse(url).expect_err(url);
            assert!(cause.contains(why), "{cause}");
        }
    }
}
