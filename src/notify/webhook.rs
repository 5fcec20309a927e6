//! A webhook of theirs: one POST over plain HTTP, within a time that holds for all of it,
//! the host's name included.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::way::Failed;

/// What is read of a server's answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;
/// Names that may be looked up at once: the system may take long, and cannot be told to stop.
const LOOKUPS_MAX: usize = 8;
static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
/// How many are under way, also those that nobody waits for any more.
type Lookups = &'static AtomicUsize;

/// Posts the event to a server.
///
/// # Errors
/// How it failed, with no more of the address than host and port.
pub fn post(url: &str, body: &str, limit: Duration) -> Result<(), Failed> {
    let address = Address::parse(url).map_err(Failed::for_good)?;
    send(&address, body, Limit::new(limit), &LOOKUPS, look_up)
        .map_err(|failed| Failed { cause: format!("{address}: {}", failed.cause), ..failed })
}

fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((name, port).to_socket_addrs()?.collect())
}

/// Where plain HTTP goes.
#[derive(PartialEq, Eq)]
struct Address {
    /// As it stands in the address.
    host: String,
    /// Without brackets.
    name: String,
    port: u16,
    path: String,
}

impl fmt::Display for Address {
    /// What may be shown of it: a path may hold a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.name.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "http://{open}{}{close}:{}", self.name, self.port)
    }
}

impl Address {
    /// The refusals show nothing of it: what is written wrongly may be in the wrong place.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| Err(format!("its address {why}"));
        let (scheme, rest) = url.trim().split_once("://").unwrap_or_default();
        if scheme.eq_ignore_ascii_case("https") {
            return wrong(
                "is https, which swarm does not speak; send to a relay on http://127.0.0.1, or use `command` with curl",
            );
        }
        if !scheme.eq_ignore_ascii_case("http") {
            return wrong("does not begin with http://");
        }
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return wrong("has a blank in it");
        }
        // What follows a '#' is for readers of pages.
        let rest = rest.split('#').next().unwrap_or_default();
        let (host, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        if host.contains('@') {
            return wrong("has a user in it, which is not sent");
        }
        let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((name, port)) => (name, port),
            None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
        };
        if name.is_empty() {
            return wrong("names no host");
        }
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c)) {
            return wrong("has a host with other characters than letters, digits, '.' and '-'");
        }
        let port = if port.is_empty() { ":80" } else { port };
        let Some(Ok(port)) = port.strip_prefix(':').map(str::parse) else {
            return wrong("has no port after its host's colon");
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = format!("{slash}{}", in_ascii(path));
        Ok(Self { host: host.to_owned(), name: name.to_owned(), port, path })
    }
}

/// As a request's line takes it.
fn in_ascii(path: &str) -> String {
    let byte = |byte: u8| if byte.is_ascii() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(byte).collect()
}

/// A time for several steps together.
#[derive(Clone, Copy)]
struct Limit {
    whole: Duration,
    deadline: Instant,
}

impl Limit {
    fn new(whole: Duration) -> Self {
        Self { whole, deadline: Instant::now() + whole }
    }

    /// What is left, and never nothing.
    fn left(self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn told(self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("no answer within {:?}", self.whole),
            _ => error.to_string(),
        }
    }
}

fn send<L>(address: &Address, body: &str, limit: Limit, under_way: Lookups, look_up: L) -> Result<(), Failed>
where
    L: FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
{
    let failed = |error: io::Error| Failed::for_now(limit.told(&error));
    let found = resolve(address, limit, under_way, look_up).map_err(Failed::for_now)?;
    let mut stream = connect(&found, limit).map_err(failed)?;
    let Address { host, path, .. } = address;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: swarm/{}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    let sent = write(&mut stream, format!("{head}{body}").as_bytes(), limit);
    // A server may refuse it before it has read all of it.
    match (read_status(&mut stream, limit), sent) {
        (Ok(Some(status)), _) => judge(status),
        (_, Err(error)) | (Err(error), Ok(())) => Err(failed(error)),
        (Ok(None), Ok(())) => Err(Failed::for_now("it did not answer in HTTP")),
    }
}

/// Where the name leads to, found on a thread that is left to itself when it takes too long.
fn resolve<L>(address: &Address, limit: Limit, under_way: Lookups, look_up: L) -> Result<Vec<SocketAddr>, String>
where
    L: FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
{
    if let Ok(ip) = address.name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, address.port)]);
    }
    if under_way.fetch_add(1, Ordering::Relaxed) >= LOOKUPS_MAX {
        under_way.fetch_sub(1, Ordering::Relaxed);
        return Err(format!("{LOOKUPS_MAX} names are being looked up and none is found"));
    }
    let (sender, receiver) = mpsc::channel();
    let (name, port) = (address.name.clone(), address.port);
    let work = move || {
        let found = look_up(&name, port);
        under_way.fetch_sub(1, Ordering::Relaxed);
        let _ = sender.send(found);
    };
    if let Err(error) = std::thread::Builder::new().name("look-up".to_owned()).spawn(work) {
        under_way.fetch_sub(1, Ordering::Relaxed);
        return Err(format!("the machine gives no thread: {error}"));
    }
    match limit.left().map(|left| receiver.recv_timeout(left)) {
        Ok(Ok(Ok(found))) if found.is_empty() => Err("its host has no address".to_owned()),
        Ok(Ok(Ok(found))) => Ok(found),
        Ok(Ok(Err(error))) => Err(error.to_string()),
        Ok(Err(_)) | Err(_) => Err(format!("its host's name was not found within {:?}", limit.whole)),
    }
}

/// To the first that answers; each has its share of the time that is left.
fn connect(found: &[SocketAddr], limit: Limit) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for (address, others) in found.iter().zip((1_u32..=u32::try_from(found.len()).unwrap_or(u32::MAX)).rev()) {
        let share = (limit.left()? / others).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// All of it; a server may take it in drips.
fn write(stream: &mut TcpStream, mut bytes: &[u8], limit: Limit) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(limit.left()?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The first line is all that counts; the rest may never end.
fn read_status(stream: &mut TcpStream, limit: Limit) -> io::Result<Option<u16>> {
    let mut answer = Vec::new();
    let mut piece = [0_u8; 512];
    while !answer.contains(&b'\n') && answer.len() < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(limit.left()?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let mut words = text.lines().next().unwrap_or_default().split(' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    Ok(words.next().filter(|_| is_http).and_then(|status| status.parse().ok()))
}

/// Whether it was taken; what the server will refuse again is not sent again.
fn judge(status: u16) -> Result<(), Failed> {
    match status {
        200..=299 => Ok(()),
        300..=399 => Err(Failed::for_good(format!("it answered {status}, and redirects are not followed"))),
        408 | 425 | 429 => Err(Failed::for_now(format!("it answered {status}"))),
        400..=499 => Err(Failed::for_good(format!("it answered {status}"))),
        _ => Err(Failed::for_now(format!("it answered {status}"))),
    }
}

#[cfg(test)]
#[path = "webhook_tests.rs"]
mod tests;
