//! Execution of verbs as processes of their own: what a client asks for is carried out with the same words, checks and
//! refusals as if it were typed, and nothing of it can reach the stream of a protocol.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use swarm_sys::readable::Readable;
use swarm_sys::variables::HOSTS;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};

/// Maximum length of what a verb prints in bytes.
const OUT_MAX: usize = 16 * 1024 * 1024;
/// Maximum time of a verb that reads.
pub const READ_MAX: Duration = Duration::from_secs(30);
/// Maximum time of a verb that changes something. It goes on after that, and only its answer is not waited for.
pub const ACT_MAX: Duration = Duration::from_secs(180);

/// Words of a verb, without the name of the program. No value can become an option: options carry theirs behind `=`, and
/// names come after `--`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line(pub Vec<String>);

impl Line {
    pub fn new(words: &[&str]) -> Self {
        Self(words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// Adds `--NAME=VALUE` if there is a value.
    #[must_use]
    pub fn option(mut self, name: &str, value: Option<&str>) -> Self {
        self.0.extend(value.map(|value| format!("--{name}={value}")));
        self
    }

    #[must_use]
    pub fn flag(mut self, name: &str, is_set: bool) -> Self {
        self.0.extend(is_set.then(|| format!("--{name}")));
        self
    }

    /// Adds `--` and words that are no options.
    #[must_use]
    pub fn names<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.push("--".to_owned());
        self.0.extend(names.into_iter().map(str::to_owned));
        self
    }
}

/// Limit of descriptors before this process raised its own.
static DESCRIPTORS: OnceLock<(u64, u64)> = OnceLock::new();

/// Has verbs start with the present limit of descriptors, whatever it is for this process later.
pub fn keep_descriptor_limit() {
    if let Ok(limits) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = DESCRIPTORS.set(limits);
    }
}

/// Has a command start with the limit of descriptors that was [kept](keep_descriptor_limit): a worker gets that of its caller.
pub fn with_limit_of_caller(command: &mut Command) {
    let Some((soft, hard)) = DESCRIPTORS.get().copied() else { return };
    // SAFETY: setrlimit is async-signal-safe, and the closure does nothing else.
    #[expect(unsafe_code, reason = "the only way to give a child another limit than this process has")]
    unsafe {
        command.pre_exec(move || {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, soft, hard);
            Ok(())
        })
    };
}

/// Output and exit code of a verb.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl Said {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Returns what the verb printed to standard error, without the prefixes that are for people.
    pub fn cause(&self) -> String {
        let text = String::from_utf8_lossy(&self.err);
        let lines = text.lines().map(|line| {
            let line = line.strip_prefix("swarm: ").unwrap_or(line);
            line.strip_prefix("error: ").unwrap_or(line)
        });
        // Of a usage error only the first line is for a client.
        let is_for_people = |line: &str| ["Usage:", "For more information"].iter().any(|begin| line.starts_with(begin));
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !is_for_people(line)).collect();
        if lines.is_empty() { "the verb failed and said nothing".to_owned() } else { lines.join("; ") }
    }
}

/// A verb that runs. One that only reads ends with this value and with this process.
struct Running {
    child: Child,
    reads: bool,
    is_reaped: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.reads && !self.is_reaped {
            // An error means that it has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn start(line: &Line, dir: Option<&Path>, has_input: bool, reads: bool) -> io::Result<Running> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("swarm").args(&line.0).env_remove(HOSTS).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(dir) = dir {
        command.current_dir(dir);
    }
    command.stdin(if has_input { Stdio::piped() } else { Stdio::null() });
    with_limit_of_caller(&mut command);
    if reads {
        // SAFETY: prctl is async-signal-safe, and the closure does nothing else.
        #[expect(unsafe_code, reason = "the only way to have a child end with this process")]
        unsafe {
            command.pre_exec(|| set_pdeathsig(Signal::SIGTERM).map_err(io::Error::from))
        };
    }
    Ok(Running { child: command.spawn()?, reads, is_reaped: false })
}

/// Executes a verb that only reads.
///
/// # Errors
/// Returns a sentence if it cannot be started, prints too much, or takes too long.
pub async fn read(line: &Line, limit: Duration) -> Result<Said, String> {
    read_in(line, None, limit).await
}

/// Does the same in another directory, such as that of a repository.
///
/// # Errors
/// Like [`read`].
pub async fn read_in(line: &Line, dir: Option<&Path>, limit: Duration) -> Result<Said, String> {
    let said = async { talk(start(line, dir, false, true).map_err(cannot)?, None).await };
    tokio::time::timeout(limit, said).await.unwrap_or_else(|_| Err(late(line, limit)))
}

/// Executes a verb that changes something. It is not ended, whatever becomes of this future.
///
/// # Errors
/// Like [`read`].
pub async fn act(line: &Line, input: Option<String>) -> Result<Said, String> {
    act_in(line, None, input).await
}

/// Does the same in another directory, such as that of a repository.
///
/// # Errors
/// Like [`read`].
pub async fn act_in(line: &Line, dir: Option<&Path>, input: Option<String>) -> Result<Said, String> {
    let running = start(line, dir, input.is_some(), false).map_err(cannot)?;
    let said = talk(running, input);
    tokio::time::timeout(ACT_MAX, said).await.unwrap_or_else(|_| Err(late(line, ACT_MAX)))
}

fn cannot(error: io::Error) -> String {
    format!("cannot execute the verb: {error}")
}

fn late(line: &Line, limit: Duration) -> String {
    let verb = line.0.first().map(String::as_str).unwrap_or_default();
    format!("'swarm {verb}' has not ended after {} s", limit.as_secs())
}

/// Takes the output of a verb until it ends. What it started may hold the pipes open, so its end counts.
async fn talk(mut running: Running, input: Option<String>) -> Result<Said, String> {
    let pipe = |fd: Option<OwnedFd>| Receiver::from_owned_fd(fd.ok_or(io::ErrorKind::BrokenPipe)?);
    let pidfd = pidfd_open(Pid::from_child(&running.child), PidfdFlags::empty()).map_err(io::Error::from);
    let ended = pidfd.and_then(Readable::new).map_err(cannot)?;
    let mut out = Output::new(pipe(running.child.stdout.take().map(OwnedFd::from)).map_err(cannot)?);
    let mut err = Output::new(pipe(running.child.stderr.take().map(OwnedFd::from)).map_err(cannot)?);
    let stdin = running.child.stdin.take().map(OwnedFd::from);
    let feed = async {
        if let (Some(stdin), Some(input)) = (stdin, input)
            && let Ok(mut stdin) = Sender::from_owned_fd(stdin)
        {
            // A verb that does not read all of it says why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        std::future::pending::<()>().await
    };
    tokio::pin!(feed);
    loop {
        tokio::select! {
            read = out.fill(), if out.is_open => read.map_err(cannot)?,
            read = err.fill(), if err.is_open => read.map_err(cannot)?,
            () = &mut feed => {}
            ready = ended.wait_for_end() => break ready.map_err(cannot)?,
        }
        if out.bytes.len() + err.bytes.len() > OUT_MAX {
            let _ = running.child.kill();
            let _ = running.child.wait();
            running.is_reaped = true;
            return Err(format!("the output is larger than {} MiB", OUT_MAX >> 20));
        }
    }
    out.drain();
    err.drain();
    let status = running.child.wait().map_err(cannot)?;
    running.is_reaped = true;
    Ok(Said { success: status.success(), out: out.bytes, err: err.bytes })
}

/// Standard output or standard error of a verb.
struct Output {
    pipe: Receiver,
    bytes: Vec<u8>,
    is_open: bool,
}

impl Output {
    fn new(pipe: Receiver) -> Self {
        Self { pipe, bytes: Vec::new(), is_open: true }
    }

    /// Waits for more. Nothing is lost if the future is dropped.
    async fn fill(&mut self) -> io::Result<()> {
        self.bytes.reserve(64 * 1024);
        self.is_open = self.pipe.read_buf(&mut self.bytes).await? > 0;
        Ok(())
    }

    /// Takes what is there.
    fn drain(&mut self) {
        while self.is_open && self.bytes.len() <= OUT_MAX {
            self.bytes.reserve(64 * 1024);
            self.is_open = self.pipe.try_read_buf(&mut self.bytes).is_ok_and(|count| count > 0);
        }
    }
}

/// Lines of a verb that goes on until it is dropped.
pub struct Lines {
    lines: tokio::io::Lines<BufReader<Receiver>>,
    _running: Running,
}

impl Lines {
    /// Starts a verb that prints lines.
    ///
    /// # Errors
    /// Returns a sentence if it cannot be started.
    pub fn start(line: &Line) -> Result<Self, String> {
        let mut running = start(line, None, false, true).map_err(cannot)?;
        // Nobody reads it: what matters is in the lines.
        drop(running.child.stderr.take());
        let stdout = running.child.stdout.take().map(OwnedFd::from);
        let pipe = stdout.ok_or_else(|| cannot(io::ErrorKind::BrokenPipe.into()))?;
        let lines = BufReader::new(Receiver::from_owned_fd(pipe).map_err(cannot)?).lines();
        Ok(Self { lines, _running: running })
    }

    /// Returns the next line. `None` if the verb has ended.
    pub async fn next(&mut self) -> Option<String> {
        self.lines.next_line().await.ok().flatten()
    }
}
