//! Client side of the API: synchronous, without a runtime. Connects, starts a supervisor if there is none, and repeats
//! requests whose connection broke.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use swarm_actors::registry::store;
use swarm_model::{Answer, Hello, Refusal, RefusalKind, Reply, Route};

use crate::api::{BUILD_HEADER, SENT_HEADER, build_text};
use swarm_sys::clock::boot_ms;
use swarm_sys::files::lock;
use swarm_sys::paths::Paths;
use swarm_sys::{processes, procfs};

/// Maximum wait for the first byte of an answer, after which the supervisor is reported as unresponsive.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for further bytes: work such as creating a worktree of a large repository may take long.
const WORK_MAX: Duration = Duration::from_secs(16 * 60);
/// Maximum time for a supervisor to start and to adopt all workers.
const START_MAX: Duration = Duration::from_secs(20);
/// Minimum file size limit of a supervisor in bytes, for the registry and the records.
const SUPERVISOR_FILE_BYTES_MIN: u64 = 64 << 20;
/// Maximum number of attempts for one request whose connections break.
const ATTEMPTS_MAX: u32 = 6;

/// Failure of one attempt.
enum Broken {
    /// There is no supervisor, or the connection was cut: repeat.
    Connection,
    /// The supervisor is an older program: replace it.
    Upgrade,
    Refused(Refusal),
}

/// Sends the request to its route and hands every reply to `each`.
///
/// # Errors
/// Fails if the request could not be carried out at all; refusals of single workers arrive as replies.
pub fn post<R: Route>(paths: &Paths, request: &R, each: &mut dyn FnMut(Reply<R::Answer>)) -> Result<(), Refusal> {
    post_raw(paths, request, &mut |line| {
        if let Some(reply) = Reply::of::<R>(line) {
            each(reply);
        }
    })
}

/// The same for callers that handle the lines of several routes alike. The last line, `Done`, is
/// left out.
///
/// # Errors
/// As [`post`].
pub fn post_raw<R: Route>(paths: &Paths, request: &R, each: &mut dyn FnMut(Answer)) -> Result<(), Refusal> {
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
            Err(Broken::Refused(refusal)) => return Err(refusal),
            Err(Broken::Upgrade) => replace(paths)?,
            Err(Broken::Connection) => {}
        }
        text = repeated(&text, attempt).map_err(|error| internal(&error.to_string()))?;
    }
    let cause = format!("the connection to the supervisor broke {ATTEMPTS_MAX} times");
    Err(Refusal::new(RefusalKind::Internal, cause).remedy(format!("see {}", paths.supervisor_log().display())))
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
    let stream = connect_or_start(paths)?;
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
            Err(Broken::Refused(internal(&format!("HTTP status {status}: {}", text.trim()))))
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
fn connect(paths: &Paths) -> io::Result<UnixStream> {
    let stream = loop {
        match UnixStream::connect(paths.socket()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            connected => break connected?,
        }
    };
    let peer = getsockopt(&stream, PeerCredentials)?.uid();
    let me = nix::unistd::getuid().as_raw();
    let owner = std::fs::metadata(paths.root()).map_or(me, |meta| meta.uid());
    if is_trusted(peer, me, owner) {
        return Ok(stream);
    }
    Err(io::Error::other(format!("{} is served by another user (uid {peer})", paths.socket().display())))
}

/// Reports whether a supervisor of user `peer` may get requests of user `me` for a state directory of user `owner`. For
/// a long path, the socket is below `/tmp`, where another user can listen first. The owner may be another user than
/// `me` if root acts for a user, or if a container's user writes to a directory of the host.
fn is_trusted(peer: u32, me: u32, owner: u32) -> bool {
    peer == me || peer == owner || peer == 0
}

fn connect_or_start(paths: &Paths) -> Result<UnixStream, Broken> {
    match connect(paths) {
        Ok(stream) => Ok(stream),
        Err(error) if nobody(&error) => start(paths).map_err(Broken::Refused),
        Err(error) => Err(Broken::Refused(internal(&error.to_string()))),
    }
}

fn nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Starts a supervisor unless another command has started one in the meantime. A lock serializes concurrent commands.
fn start(paths: &Paths) -> Result<UnixStream, Refusal> {
    let failed = |step: &str, error: &io::Error| Refusal::new(RefusalKind::Internal, format!("cannot {step}: {error}"));
    make_dirs(paths).map_err(|error| failed(&format!("create {}", paths.root().display()), &error))?;
    check_limits()?;
    let _turn = take_turn(paths).map_err(|error| failed("lock the start of the supervisor", &error))?;
    let deadline = std::time::Instant::now() + START_MAX;
    loop {
        match connect(paths) {
            Ok(stream) => return Ok(stream),
            Err(error) if nobody(&error) => {}
            Err(error) => return Err(internal(&error.to_string())),
        }
        let said = start_once(paths).map_err(|error| failed("start the supervisor", &error))?;
        // Retry if a supervisor that another guard has just started holds the lock, or if the new one was killed before
        // it printed anything. Both cases have taken some time already.
        let again = said.is_empty() || said.contains(crate::processes::supervisor::ANOTHER);
        if said != "ready" && (!again || std::time::Instant::now() > deadline) {
            // An unreadable registry is reported with the same message as by commands that only read.
            if let Err(error) = store::load(&paths.state()) {
                return Err(swarm_actors::worker::of_store(&error));
            }
            let cause = said.strip_prefix("error ").unwrap_or("no reason given").to_owned();
            let remedy = format!("see {}", paths.supervisor_log().display());
            return Err(
                Refusal::new(RefusalKind::Internal, format!("the supervisor cannot start: {cause}")).remedy(remedy)
            );
        }
    }
}

fn start_once(paths: &Paths) -> io::Result<String> {
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    crate::processes::guard::start(paths.root(), Stdio::from(writer))?;
    Ok(read_ready(File::from(reader)))
}

/// Returns the supervisor's first line; empty if the supervisor died or took too long.
fn read_ready(mut pipe: File) -> String {
    let deadline = std::time::Instant::now() + START_MAX;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let mut bytes = [0_u8; 1024];
        let ready = !left.is_zero() && processes::wait_readable(&pipe, left);
        match if ready { pipe.read(&mut bytes) } else { Ok(0) } {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&line).lines().next().unwrap_or_default().to_owned()
}

fn make_dirs(paths: &Paths) -> io::Result<()> {
    for dir in [paths.root().to_owned(), paths.logs(), paths.workers()] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    Ok(())
}

/// Checks that the inherited file size limit allows a supervisor to write its files.
fn check_limits() -> Result<(), Refusal> {
    use nix::libc::RLIM_INFINITY;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    if hard >= SUPERVISOR_FILE_BYTES_MIN {
        return Ok(());
    }
    // The guard raises the limit if that is allowed; here it is only tested.
    if setrlimit(Resource::RLIMIT_FSIZE, soft, RLIM_INFINITY).is_ok() {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, soft, hard);
        return Ok(());
    }
    let cause = format!("the file size limit of {hard} bytes is too small for a supervisor");
    let remedy = "raise it with 'ulimit -f', or run 'swarm supervisor restart' in another shell first";
    Err(Refusal::new(RefusalKind::Internal, cause).remedy(remedy))
}

fn take_turn(paths: &Paths) -> io::Result<File> {
    let path = paths.root().join("start.lock");
    let lock = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if lock.try_lock().is_ok() {
        return Ok(lock);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::Builder::new().spawn(move || sender.send(lock::lock(&lock).map(|()| lock)))?;
    match receiver.recv_timeout(START_MAX) {
        Ok(locked) => locked,
        Err(_) => Err(io::Error::other(format!(
            "another command has been starting the supervisor for {}s",
            START_MAX.as_secs()
        ))),
    }
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

fn internal(cause: &str) -> Refusal {
    Refusal::new(RefusalKind::Internal, format!("cannot talk to the supervisor: {cause}"))
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
    let Ok(stream) = connect(paths) else { return Ok(None) };
    let mut text = String::new();
    match send(stream, "GET", route, b"") {
        Ok(mut reply) => drop(reply.read_to_string(&mut text)),
        Err(Broken::Refused(refusal)) => return Err(refusal),
        Err(Broken::Connection | Broken::Upgrade) => return Ok(None),
    }
    Ok(Some(text))
}

/// Starts a supervisor unless one is running.
///
/// # Errors
/// Fails with the reason if no supervisor could be started.
pub fn ensure(paths: &Paths) -> Result<(), Refusal> {
    match connect_or_start(paths) {
        Ok(_) => Ok(()),
        Err(Broken::Refused(refusal)) => Err(refusal),
        Err(Broken::Connection | Broken::Upgrade) => Err(internal("the connection broke")),
    }
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
    let Ok(stream) = connect(paths) else { return Ok(false) };
    let pid = getsockopt(&stream, PeerCredentials).map_or(0, |peer| peer.pid());
    let boot = procfs::boot_id();
    let fd = procfs::identity(pid, &boot).and_then(|process| processes::pidfd(&process, &boot).ok().flatten());
    let route = match after {
        After::None => "/v1/stop",
        After::Another => "/v1/stop?again=true",
    };
    match send(stream, "POST", route, b"") {
        Ok(_) | Err(Broken::Connection) => {}
        Err(Broken::Refused(refusal)) => return Err(refusal),
        Err(Broken::Upgrade) => return Err(internal("the supervisor refused to stop")),
    }
    let ended = fd.is_none_or(|fd| processes::wait_all_gone(&[fd], Duration::from_secs(10)));
    if ended { Ok(true) } else { Err(internal(&format!("the supervisor (pid {pid}) did not end within 10 s"))) }
}

fn replace(paths: &Paths) -> Result<(), Refusal> {
    stop(paths, After::Another).map(drop)
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

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
