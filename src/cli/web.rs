//! `swarm web`: the fleet as a page for a browser on this machine.

use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use clap::Args;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::paths::Paths;

use super::error::Failure;
use super::mcp::Allow;
use super::render::escape;
use super::screen::Screen;
use super::trust::inside::worker_above_any_in;
use super::watch::{Interrupt, Until, allow_many_descriptors, wait_any};
use crate::verbs;
use crate::web::{self, Above, Allowed, Codes, Listener, Notice, Server, Tell};

#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address to listen on, of this machine only [default: 127.0.0.1 with a free port]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "socket")]
    pub bind: Option<String>,
    /// Listen on a new Unix socket that only you can open, for 'ssh -L' or a proxy
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Allow more than looking (may be repeated)
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub allow: Vec<Allow>,
    /// Open the page in your browser
    #[arg(long, conflicts_with = "socket")]
    pub open: bool,
}

/// A socket file that is removed at the end.
struct Socket {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another one may be there by now.
        if identity(&self.path).is_some_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Number of notices that may wait for a terminal that takes none. More are dropped.
const NOTICES: usize = 64;

pub fn run(args: &WebArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let codes = Arc::new(Codes::default());
    let code = codes.renew().map_err(|error| Failure::system("cannot make a code", &error))?;
    // Before the address is printed, so that whoever reads it can end this.
    let signals = Interrupt::catch_all(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let (listener, place, _socket) = match &args.socket {
        Some(path) => {
            let (listener, socket) = listen_on_socket(path)?;
            (Listener::Socket(listener), "127.0.0.1:PORT".to_owned(), Some(socket))
        }
        None => {
            let listener = listen_on_loopback(args.bind.as_deref().unwrap_or("127.0.0.1:0"))?;
            let bound = listener.local_addr().map_err(|error| Failure::system("cannot listen", &error))?;
            (Listener::Loopback(listener), bound.to_string(), None)
        }
    };
    let address = address(&place, &code);
    screen.line(&address)?;
    screen.flush()?;
    let allowed = Allowed { act: args.allow.contains(&Allow::Act), answer: args.allow.contains(&Allow::Answer) };
    let failed = |error| Failure::system("cannot serve the page", &error);
    let terminal = terminal().map_err(failed)?;
    explain(args, allowed, terminal.is_some(), screen);
    let opened = args.open.then(|| open(&address));
    if let Some(Err(error)) = &opened {
        screen.warning(&format!("cannot open a browser: {error}"));
    }
    verbs::keep_descriptor_limit();
    allow_many_descriptors();
    let mut ends: Vec<OwnedFd> = vec![signals.as_fd().try_clone_to_owned().map_err(failed)?];
    ends.extend(end_of_terminal(screen.terminal).map_err(failed)?);
    let tell = teller(place).map_err(failed)?;
    let state = paths.clone();
    let above: Above = Arc::new(move |pids| worker_above_any_in(pids, &state));
    let server = Server { paths: paths.clone(), allowed, codes, above, tell, terminal, ends };
    web::serve(listener, server).map_err(failed)?;
    Ok(0)
}

fn address(place: &str, code: &str) -> String {
    format!("http://{place}/#code={code}")
}

/// Returns standard input if it is a terminal.
fn terminal() -> io::Result<Option<OwnedFd>> {
    let stdin = io::stdin();
    stdin.is_terminal().then(|| stdin.as_fd().try_clone_to_owned()).transpose()
}

/// Returns what prints notices. A terminal that takes no text holds up nobody but the thread that prints.
fn teller(place: String) -> io::Result<Tell> {
    let (sender, notices) = sync_channel(NOTICES);
    std::thread::Builder::new().name("notices".to_owned()).spawn(move || {
        for notice in notices {
            match notice {
                Notice::Address { code } => swarm_sys::say!("{}", address(&place, &code)),
                other => swarm_sys::complain!("swarm: {}", escape(&words(&other))),
            }
        }
    })?;
    Ok(Arc::new(move |notice| drop(sender.try_send(notice))))
}

fn words(notice: &Notice) -> String {
    match notice {
        Notice::Address { code } => code.clone(),
        Notice::Opened { by } => format!("the page was opened by {by}"),
        Notice::Again { by, first } => format!(
            "warning: an address was used again, by {by}; first it was used by {first}. \
             If one of them is not your browser, press Ctrl-C"
        ),
        Notice::Below { worker, process } => {
            format!(
                "warning: {worker} wanted to use the page for a person and was refused; the request was from {process}"
            )
        }
        Notice::Perhaps { worker } => format!(
            "warning: a process that must not be examined wanted to use the page and was refused: it may be one of {worker}"
        ),
    }
}

fn explain(args: &WebArgs, allowed: Allowed, has_keys: bool, screen: &mut Screen) {
    let what = match (allowed.act, allowed.answer) {
        (false, false) => "looks only; start it with '--allow act,answer' to act",
        (true, false) => "acts, but does not answer what agents ask",
        (false, true) => "answers what agents ask, and does nothing else",
        (true, true) => "acts, and answers what agents ask",
    };
    let keys = if has_keys { "Press Enter for another address, and Ctrl-C to end" } else { "Press Ctrl-C to end" };
    screen.aside("hint: ", &format!("the page {what}. The address is a secret and can be used once. {keys}"));
    if let Some(path) = &args.socket {
        let path = path.display();
        screen.aside(
            "hint: ",
            &format!("on your machine: ssh -N -L 127.0.0.1:PORT:{path} HOST, then open the address with that PORT"),
        );
    }
}

fn refused(cause: String, remedy: &str) -> Failure {
    Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into()
}

fn listen_on_loopback(text: &str) -> Result<TcpListener, Failure> {
    let numeric = text.replacen("localhost:", "127.0.0.1:", 1);
    let Ok(address) = numeric.parse::<SocketAddr>() else {
        return Err(refused(format!("'{text}' is not ADDRESS:PORT"), "use for example --bind 127.0.0.1:8080"));
    };
    let is_here =
        address.ip() == IpAddr::from([127, 0, 0, 1]) || address.ip() == IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
    if !is_here {
        let cause = format!("cannot listen on {text}: the page is served only on 127.0.0.1 and [::1]");
        return Err(refused(cause, "for another machine run 'ssh -L 8080:127.0.0.1:PORT HOST' there"));
    }
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            refused(format!("'{text}' is in use"), "choose another port, or port 0 for a free one")
        }
        _ => Failure::system(format!("cannot listen on {text}"), &error),
    })
}

fn listen_on_socket(path: &Path) -> Result<(UnixListener, Socket), Failure> {
    let failed = |error: io::Error| Failure::system(format!("cannot listen on {}", path.display()), &error);
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(refused(format!("{} exists and is not a socket", path.display()), "choose another path"));
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(failed)?
            }
            _ => {
                return Err(refused(
                    format!("{} is in use", path.display()),
                    "end what listens there, or choose another path",
                ));
            }
        }
    }
    // Nobody else may connect, not even for an instant.
    let earlier = umask(Mode::S_IXUSR | Mode::S_IRWXG | Mode::S_IRWXO);
    let listener = UnixListener::bind(path);
    umask(earlier);
    let listener = listener.map_err(failed)?;
    let inode = identity(path).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    Ok((listener, Socket { path: path.to_owned(), inode }))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Returns a descriptor that becomes readable when the terminal is closed, also if SIGHUP is ignored. `None` without a
/// terminal.
fn end_of_terminal(is_terminal: bool) -> io::Result<Option<OwnedFd>> {
    if !is_terminal {
        return Ok(None);
    }
    let (reader, writer) = io::pipe()?;
    std::thread::Builder::new().name("terminal".to_owned()).spawn(move || {
        let stdout = io::stdout();
        // A failure ends the page as well: the end of the terminal would not be noticed.
        let _ = wait_any(&[(stdout.as_fd(), Until::HungUp)], None);
        drop(writer);
    })?;
    Ok(Some(reader.into()))
}

/// File that leads a browser to the page. Removed at the end. Its address can be used once.
struct Opened(PathBuf);

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens the page in a browser. The address is not among the words of the browser, which others could see, but in a
/// file that only this user can read.
fn open(address: &str) -> io::Result<Opened> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let dir = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join(format!("swarm-web-{}.html", swarm_sys::clock::random_token()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let opened = Opened(path);
    write!(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={address}\">")?;
    let mut command = std::process::Command::new("xdg-open");
    command.arg(&opened.0).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut child = command.stderr(std::process::Stdio::null()).spawn()?;
    std::thread::Builder::new().name("browser".to_owned()).spawn(move || child.wait())?;
    Ok(opened)
}
