//! Client side of the API: synchronous, without a runtime. Connects, starts a supervisor if there is none, and repeats
//! requests whose connection broke.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, socket, sockopt::PeerCredentials};
use swarm_model::{Answer, Hello, Refusal, RefusalKind, Reply, Route};

use super::start::{self, Replacement};
use super::supervision::stopped;
use crate::api::{BUILD_HEADER, REPLACE_ROUTE, Replace, SENT_HEADER, build_text};
use crate::processes::guard;
use swarm_sys::clock::boot_ms;
use swarm_sys::paths::Paths;
use swarm_sys::{processes, procfs};

/// Maximum wait for a place in the queue of a supervisor that is stopped.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for the first byte of an answer, after which the supervisor is reported as unresponsive.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for further bytes: work such as creating a worktree of a large repository may take long.
const WORK_MAX: Duration = Duration::from_secs(16 * 60);
/// Maximum number of attempts for one request whose connections break or are refused.
const ATTEMPTS_MAX: u32 = 6;
/// Pause after the first attempt. It doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Failure of one attempt.
enum Broken {
    /// There is no supervisor, or the connection was cut: repeat.
    Connection,
    /// The supervisor is an older program: replace it.
    Upgrade,
    /// The supervisor has no place for the request, for this reason.
    Busy(String),
    /// The supervisor answered with this HTTP status and text.
    Status(u16, String),
    Refused(Refusal),
}

impl From<Broken> for Refusal {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Refused(refusal) => refusal,
            Broken::Busy(cause) => internal(&cause),
            Broken::Status(status, text) => internal(&format!("HTTP status {status}: {text}")),
            Broken::Connection | Broken::Upgrade => internal("the connection broke"),
        }
    }
}

/// Sends the request to its route and hands every reply to `each`.
///
/// # Errors
/// Fails if the request could not be carried out at all; refusals of single workers arrive as replies.
pub fn post<R: Route>(paths: &Paths, request: &R, each: &mut dyn FnMut(Reply<R::Answer>)) -> Result<(), Refusal> {
    post_lines(paths, request, false, &mut replies::<R>(each))
}

/// Like [`post`], for a request that is answered when something has happened: it is not repeated if a person stops the
/// supervisor meanwhile.
///
/// # Errors
/// As [`post`], and if the supervisor is stopped before it answers.
pub fn post_and_wait<R: Route>(
    paths: &Paths,
    request: &R,
    each: &mut dyn FnMut(Reply<R::Answer>),
) -> Result<(), Refusal> {
    post_lines(paths, request, true, &mut replies::<R>(each))
}

fn replies<R: Route>(each: &mut dyn FnMut(Reply<R::Answer>)) -> impl FnMut(Answer) {
    move |line| {
        if let Some(reply) = Reply::of::<R>(line) {
            each(reply);
        }
    }
}

/// The same for callers that handle the lines of several routes alike. The last line, `Done`, is
/// left out.
///
/// # Errors
/// As [`post`].
pub fn post_raw<R: Route>(paths: &Paths, request: &R, each: &mut dyn FnMut(Answer)) -> Result<(), Refusal> {
    post_lines(paths, request, false, each)
}

fn post_lines<R: Route>(paths: &Paths, request: &R, waits: bool, each: &mut dyn FnMut(Answer)) -> Result<(), Refusal> {
    let mut answered = BTreeSet::new();
    let mut fresh = |answer: Answer| {
        // A repeated request is answered again from the start; answers that were already delivered are dropped.
        let name = match &answer {
            Answer::Spawned(spawned) => Some(spawned.name.clone()),
            Answer::Worker(line) => Some(line.name.clone()),
            Answer::Merge(line) => Some(line.name.clone()),
            Answer::Refused(refusal) => refusal.name.clone(),
            Answer::Run(line) => Some(line.home.clone()),
            Answer::Loop(line) => Some(format!("{} {}", line.done, line.name)),
            Answer::Flow(line) => Some(line.place.to_string()),
            Answer::Nudge(line) => Some(line.worker.clone()),
            Answer::Accepted | Answer::Warning(_) | Answer::Done => None,
        };
        if name.is_none_or(|name| answered.insert(name)) {
            each(answer);
        }
    };
    let mut text = serde_json::to_vec(request).map_err(|error| internal(&error.to_string()))?;
    for attempt in 1..=ATTEMPTS_MAX {
        match attempt_post(paths, R::PATH, &text, &mut fresh) {
            Ok(()) => return Ok(()),
            Err(Broken::Upgrade) => start::replace(paths)?,
            Err(Broken::Connection) if waits && guard::is_stopped(paths.root()) => return Err(stopped()),
            Err(Broken::Busy(_)) if attempt < ATTEMPTS_MAX => {
                pause_after(attempt);
                // Nothing of it was carried out.
                continue;
            }
            Err(Broken::Connection) => pause_after(attempt),
            Err(broken) => return Err(broken.into()),
        }
        text = repeated(&text, attempt).map_err(|error| internal(&error.to_string()))?;
    }
    let cause = format!("the connection to the supervisor broke {ATTEMPTS_MAX} times");
    Err(Refusal::new(RefusalKind::Internal, cause).remedy(format!("see {}", paths.supervisor_log().display())))
}

/// Lets a supervisor start, or end what it is doing, before the next attempt.
fn pause_after(attempt: u32) {
    std::thread::sleep(PAUSE_MIN * 2_u32.pow(attempt - 1));
}

/// Returns the request marked as possibly already carried out.
fn repeated(text: &[u8], attempt: u32) -> serde_json::Result<Vec<u8>> {
    let mut value: serde_json::Value = serde_json::from_slice(text)?;
    if let Some(caller) = value.get_mut("caller").and_then(serde_json::Value::as_object_mut) {
        caller.insert("repeated".to_owned(), attempt.into());
    }
    serde_json::to_vec(&value)
}

fn attempt_post(paths: &Paths, route: &str, body: &[u8], each: &mut dyn FnMut(Answer)) -> Result<(), Broken> {
    let stream = connect_or_start(paths).map_err(Broken::Refused)?;
    let mut answers = send(stream, "POST", route, body)?;
    // The supervisor has started to process the request.
    let _ = answers.get_ref().set_read_timeout(Some(WORK_MAX));
    loop {
        let mut line = String::new();
        match answers.read_line(&mut line) {
            Ok(0) => return Err(Broken::Connection),
            Ok(_) => {}
            Err(error) if is_timeout(&error) => return Err(Broken::Refused(unresponsive(answers.get_ref(), WORK_MAX))),
            Err(_) => return Err(Broken::Connection),
        }
        // An incomplete line means that the connection broke.
        match serde_json::from_str(&line) {
            Ok(Answer::Done) => return Ok(()),
            Ok(Answer::Accepted) => {}
            Ok(answer) => each(answer),
            Err(_) => return Err(Broken::Connection),
        }
    }
}

/// Writes the request and reads the head of the reply. HTTP/1.0, so the body ends with the connection.
fn send(stream: UnixStream, method: &str, route: &str, body: &[u8]) -> Result<BufReader<UnixStream>, Broken> {
    let limits =
        stream.set_read_timeout(Some(FIRST_BYTE_MAX)).and_then(|()| stream.set_write_timeout(Some(FIRST_BYTE_MAX)));
    limits.map_err(|error| Broken::Refused(internal(&error.to_string())))?;
    let head = format!(
        "{method} {route} HTTP/1.0\r\nhost: swarm\r\n{BUILD_HEADER}: {}\r\n{SENT_HEADER}: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        build_text(),
        boot_ms(),
        body.len()
    );
    let mut request = head.into_bytes();
    request.extend_from_slice(body);
    let mut stream = stream;
    let written = stream.write_all(&request);
    let mut reply = BufReader::new(stream);
    if let Err(error) = written {
        return Err(if is_timeout(&error) {
            Broken::Refused(unresponsive(reply.get_ref(), FIRST_BYTE_MAX))
        } else {
            Broken::Connection
        });
    }
    let status = status(&mut reply)?;
    match status {
        200..=299 => Ok(reply),
        426 => Err(Broken::Upgrade),
        status => {
            let mut text = String::new();
            let _ = reply.take(4096).read_to_string(&mut text);
            Err(match status {
                408 if !text.is_empty() => Broken::Refused(internal(text.trim())),
                429 | 503 => Broken::Busy(text.trim().to_owned()),
                status => Broken::Status(status, text.trim().to_owned()),
            })
        }
    }
}

fn status(reply: &mut BufReader<UnixStream>) -> Result<u16, Broken> {
    let mut status = None;
    loop {
        let mut line = String::new();
        match reply.read_line(&mut line) {
            Ok(0) => return Err(Broken::Connection),
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {
                return Err(Broken::Refused(unresponsive(reply.get_ref(), FIRST_BYTE_MAX)));
            }
            Err(_) => return Err(Broken::Connection),
        }
        if status.is_none() {
            status = line.split_ascii_whitespace().nth(1).and_then(|code| code.parse().ok());
        }
        if line.trim_end().is_empty() {
            return status.ok_or(Broken::Connection);
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects to the supervisor.
///
/// # Errors
/// Fails if nobody listens, or if another user does: a request contains the caller's whole environment.
pub(super) fn connect(paths: &Paths) -> io::Result<UnixStream> {
    let stream = connect_within(&paths.socket(), CONNECT_MAX)?;
    let peer = getsockopt(&stream, PeerCredentials)?.uid();
    let me = nix::unistd::getuid().as_raw();
    let owner = std::fs::metadata(paths.root()).map_or(me, |meta| meta.uid());
    if is_trusted(peer, me, owner) {
        return Ok(stream);
    }
    Err(io::Error::other(format!("{} is served by another user (uid {peer})", paths.socket().display())))
}

/// Connects to a socket. The kernel waits while the queue of a stopped listener is full, at most for `limit`.
fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(limit))?;
    let address = UnixAddr::new(path)?;
    loop {
        match nix::sys::socket::connect(stream.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let cause = format!("the supervisor did not accept a connection within {} s", limit.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
            }
            Err(error) => return Err(error.into()),
        }
    }
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Reports whether a supervisor of user `peer` may get requests of user `me` for a state directory of user `owner`. For
/// a long path, the socket is below `/tmp`, where another user can listen first. The owner may be another user than
/// `me` if root acts for a user, or if a container's user writes to a directory of the host.
fn is_trusted(peer: u32, me: u32, owner: u32) -> bool {
    peer == me || peer == owner || peer == 0
}

pub(super) fn connect_or_start(paths: &Paths) -> Result<UnixStream, Refusal> {
    match connect(paths) {
        Ok(stream) => Ok(stream),
        Err(error) if nobody(&error) => start::start(paths),
        Err(error) => Err(internal(&error.to_string())),
    }
}

/// Connects to the supervisor; `None` if there is none that this user may talk to.
fn connect_if_running(paths: &Paths) -> Result<Option<UnixStream>, Refusal> {
    match connect(paths) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if is_timeout(&error) => Err(internal(&error.to_string())),
        Err(_) => Ok(None),
    }
}

/// Reports whether an error of [`connect`] means that there is no supervisor.
pub(super) fn nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Returns the refusal for a supervisor that does not answer, with its pid and state.
fn unresponsive(stream: &UnixStream, waited: Duration) -> Refusal {
    let pid = getsockopt(stream, PeerCredentials).map_or(0, |peer| peer.pid());
    let state = match procfs::stat(pid).map(|stat| stat.state) {
        Some('T' | 't') => "stopped",
        Some('Z' | 'X') | None => "gone",
        Some('D') => "waiting for the disk",
        Some(_) => "running",
    };
    let cause = format!("the supervisor (pid {pid}, {state}) did not answer within {} s", waited.as_secs());
    let remedy = if state == "stopped" {
        format!("run 'kill -CONT {pid}'")
    } else {
        format!("run 'kill -9 {pid}'; a new supervisor takes over and no worker is lost")
    };
    Refusal::new(RefusalKind::Internal, cause).remedy(remedy)
}

pub(super) fn internal(cause: &str) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("cannot talk to the supervisor: {cause}"))
}

/// Reports whether a supervisor accepts connections.
pub fn is_running(paths: &Paths) -> bool {
    match connect(paths) {
        Ok(_) => true,
        Err(error) => is_timeout(&error),
    }
}

/// Returns the supervisor's description of itself; `None` if no supervisor is running.
///
/// # Errors
/// Fails if a supervisor is running but does not answer.
pub fn hello(paths: &Paths) -> Result<Option<Hello>, Refusal> {
    let Some(text) = get(paths, "/v1/hello")? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| internal(&error.to_string()))
}

/// Returns the supervisor's answer at `route`; `None` if no supervisor is running.
///
/// # Errors
/// Fails if a supervisor is running but does not answer.
pub fn get(paths: &Paths, route: &str) -> Result<Option<String>, Refusal> {
    let Some(stream) = connect_if_running(paths)? else { return Ok(None) };
    let mut text = String::new();
    match send(stream, "GET", route, b"") {
        Ok(mut reply) => drop(reply.read_to_string(&mut text)),
        Err(Broken::Connection | Broken::Upgrade) => return Ok(None),
        Err(broken) => return Err(broken.into()),
    }
    Ok(Some(text))
}

/// Starts a supervisor unless one is running.
///
/// # Errors
/// Fails with the reason if no supervisor could be started.
pub fn ensure(paths: &Paths) -> Result<(), Refusal> {
    connect_or_start(paths).map(drop)
}

/// Successor of a supervisor that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// None until a command needs one.
    None,
    /// Another one is started at once.
    Another,
}

/// Stops the supervisor and waits until it has ended; workers continue. Returns false if none was running.
///
/// # Errors
/// Fails if the supervisor does not answer or does not end.
pub fn stop(paths: &Paths, after: After) -> Result<bool, Refusal> {
    let Some(stream) = connect_if_running(paths)? else { return Ok(false) };
    let pid = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
    let boot = procfs::boot_id();
    let fd = procfs::identity(pid, &boot).and_then(|process| processes::pidfd(&process, &boot).ok().flatten());
    let route = match after {
        After::None => "/v1/stop",
        After::Another => "/v1/stop?again=true",
    };
    match send(stream, "POST", route, b"") {
        Ok(_) | Err(Broken::Connection) => {}
        Err(Broken::Upgrade) => return Err(internal("the supervisor refused to stop")),
        Err(broken) => return Err(broken.into()),
    }
    let ended = fd.is_none_or(|fd| processes::wait_all_gone(&[fd], Duration::from_secs(10)));
    if ended { Ok(true) } else { Err(internal(&format!("the supervisor (pid {pid}) did not end within 10 s"))) }
}

/// Asks the supervisor to end, so that its guard executes `program`.
///
/// # Errors
/// Fails if the supervisor does not answer.
pub fn post_replace(paths: &Paths, program: &Path, again: bool) -> Result<Replacement, Refusal> {
    let body = serde_json::to_vec(&Replace { program: program.to_owned(), again });
    let body = body.map_err(|error| internal(&error.to_string()))?;
    let stream = connect(paths).map_err(|error| internal(&error.to_string()))?;
    match send(stream, "POST", REPLACE_ROUTE, &body) {
        Ok(_) | Err(Broken::Connection) => Ok(Replacement::Begun),
        Err(Broken::Status(409, _)) => Ok(Replacement::NotOlder),
        // A server without this route answers as to any request of a newer program.
        Err(Broken::Upgrade | Broken::Status(404 | 405, _)) => {
            Ok(Replacement::Impossible("its guard is older, too".to_owned()))
        }
        Err(Broken::Status(503, _)) => Ok(Replacement::Impossible("its guard is gone".to_owned())),
        Err(Broken::Status(_, why)) => Ok(Replacement::Impossible(why)),
        Err(broken) => Err(broken.into()),
    }
}

/// Ends the supervisor and starts another one.
///
/// # Errors
/// Fails if the supervisor does not end, or no other one can be started.
pub fn restart(paths: &Paths) -> Result<(), Refusal> {
    start::restart(paths)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_supervisor_that_does_not_know_the_replacement_is_not_asked_again() {
        for (status, newer) in [("426 Upgrade Required", false), ("404 Not Found", false), ("202 Accepted", true)] {
            let dir = tempfile::tempdir().expect("a directory");
            let paths = Paths::new(dir.path());
            let listener = UnixListener::bind(paths.socket()).expect("bound");
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                assert!(stream.read(&mut [0_u8; 4096]).expect("readable") > 0, "no request");
                stream.write_all(format!("HTTP/1.0 {status}\r\n\r\n").as_bytes()).expect("answered");
            });
            let answer = post_replace(&paths, Path::new("/bin/swarm"), false).expect("an answer");
            server.join().expect("no panic");
            assert_eq!(matches!(answer, Replacement::Begun), newer, "{status}");
            assert_eq!(matches!(answer, Replacement::Impossible(_)), !newer, "{status}");
        }
    }

    #[test]
    fn a_request_without_a_place_is_sent_again_as_it_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        let listener = UnixListener::bind(paths.socket()).expect("bound");
        let refusal = "HTTP/1.0 429 Too Many Requests\r\n\r\nno place";
        let answers = [refusal, refusal, "HTTP/1.0 200 OK\r\n\r\n\"done\"\n"];
        let server = std::thread::spawn(move || {
            answers.map(|answer| {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut request = [0_u8; 4096];
                let count = stream.read(&mut request).expect("readable");
                stream.write_all(answer.as_bytes()).expect("answered");
                let body = request[..count].windows(4).position(|end| end == b"\r\n\r\n").expect("a body");
                request[body..count].to_vec()
            })
        });
        let scope = swarm_model::Scope::All;
        let caller = swarm_model::Caller::default();
        let (rm_worktree, force_dirty, started_by, generation) = (false, false, None, None);
        let request = swarm_model::KillRequest { caller, scope, rm_worktree, force_dirty, started_by, generation };
        post_raw(&paths, &request, &mut |answer| panic!("{answer:?}")).expect("an answer");
        let bodies = server.join().expect("no panic");
        assert!(bodies.iter().all(|body| *body == bodies[0]), "marked as carried out");
    }

    #[test]
    fn a_full_queue_of_a_stopped_supervisor_is_waited_for_within_a_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bound");
        let none = nix::sys::socket::Backlog::new(0).expect("a length");
        nix::sys::socket::listen(&listener, none).expect("shortened");
        let tries: Vec<_> = (0..3).map(|_| connect_within(&path, Duration::from_millis(20))).collect();
        assert!(tries[0].is_ok(), "{tries:?}");
        assert!(is_timeout(tries[2].as_ref().expect_err("the queue is full")), "{tries:?}");
    }

    #[test]
    fn another_users_supervisor_gets_no_request() {
        for (peer, me, owner, trusted) in [
            (1000, 1000, 1000, true),
            (1000, 0, 1000, true),
            (1000, 1000, 0, true),
            (0, 1000, 1000, true),
            (1001, 1000, 1000, false),
            (1001, 0, 1000, false),
        ] {
            assert_eq!(is_trusted(peer, me, owner), trusted, "{peer} for {me} in a directory of {owner}");
        }
    }
}
