//! A connection to a program of git on another machine, which serves a clone there. After a first line, git's own bytes go
//! in both directions.

use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use swarm_sys::commands::deadline::wait_until;

use crate::fault::{Fault, FaultKind};
use crate::frames::Lines;
use crate::host::Host;
use crate::master;
use crate::pipe::{END_MAX, HELLO_MAX, NOISE_BYTES_MAX, SAID_BYTES_MAX, Silent, end, read_some};
use crate::slurm;
use crate::words::far_git;

/// First line of the far process.
const BEGIN: &[u8] = b"swarm-git 1";
/// Begins the first line of a far process that does not serve the clone.
const REFUSED: &[u8] = b"swarm-git refused: ";
/// Number of hex digits in the names of a clone.
const HEX: std::ops::RangeInclusive<usize> = 8..=64;

/// Program of git that serves a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    ReceivePack,
    UploadPack,
}

impl Program {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::ReceivePack => "receive-pack",
            Self::UploadPack => "upload-pack",
        }
    }
}

/// Program of git, and the clone on the other machine that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub program: Program,
    /// Lowercase hex digits.
    pub controller: String,
    /// Lowercase hex digits.
    pub repository: String,
}

impl Service {
    /// Reads the command that git executes on the other machine; `None` if it is not one of the two.
    pub fn of_command(command: &str) -> Option<Self> {
        let (program, place) = command.split_once(' ')?;
        let program = match program {
            "git-receive-pack" => Program::ReceivePack,
            "git-upload-pack" => Program::UploadPack,
            _ => return None,
        };
        let (controller, repository) = place.strip_prefix("'/")?.strip_suffix('\'')?.split_once('/')?;
        let is_hex = |text: &str| {
            HEX.contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let service = Self { program, controller: controller.to_owned(), repository: repository.to_owned() };
        (is_hex(controller) && is_hex(repository)).then_some(service)
    }
}

/// Connection to a program of git that is ready.
#[derive(Debug)]
pub struct Carrier {
    child: Child,
    /// Standard streams of the program there, until they are taken.
    pub streams: Option<(ChildStdin, ChildStdout)>,
    /// First bytes of its output, which were read with the first line.
    pub first: Vec<u8>,
}

impl Carrier {
    /// Connects to `host`.
    ///
    /// # Errors
    /// Returns why there is no connection, or why the program there does not serve the clone.
    pub fn open(host: &Host, service: &Service) -> Result<Self, Fault> {
        let host = &slurm::reached(host)?;
        let mut command = far_git(host, &master::control(host), service);
        // In the process group of its caller: git that gives up ends all of it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| Silent::NotStarted(command.get_program().into(), error).fault(host))?;
        let (Some(input), Some(mut output), Some(said)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three are pipes")
        };
        let (sender, said_of) = mpsc::channel();
        thread::spawn(move || {
            use std::io::Read as _;
            let mut text = Vec::new();
            let mut said = said;
            let _ = said.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut text);
            let _ = sender.send(text);
            // Whoever writes more must not wait.
            let _ = std::io::copy(&mut said, &mut std::io::sink());
        });
        let mut lines = Lines::default();
        match first_line(&mut output, &mut lines) {
            First::Begun => Ok(Self { child, streams: Some((input, output)), first: lines.rest().to_vec() }),
            First::Refused(cause) => {
                drop(input);
                end(&mut child);
                let cause = format!("{} refuses the clone: {cause}", host.name);
                Err(Fault { kind: FaultKind::Refused, cause, remedy: None })
            }
            First::Late(noise) => {
                drop(input);
                end(&mut child);
                Err(if noise.is_empty() { Silent::Hung } else { Silent::Noisy(noise) }.fault(host))
            }
            First::Ended(noise) => {
                drop(input);
                let code = end(&mut child);
                let said = said_of.recv_timeout(END_MAX).unwrap_or_default();
                Err(Silent::Ended { code, said: String::from_utf8_lossy(&said).into_owned(), noise }.fault(host))
            }
        }
    }

    /// Waits a moment for the end of the command, ends it if it goes on, and returns its exit code. Its streams must have
    /// been closed.
    pub fn end(&mut self) -> Option<i32> {
        self.streams = None;
        end(&mut self.child)
    }
}

/// First line of the far process.
enum First {
    Begun,
    Refused(String),
    Late(String),
    Ended(String),
}

fn first_line(output: &mut ChildStdout, lines: &mut Lines) -> First {
    let (deadline, mut noise) = (Instant::now() + HELLO_MAX, Vec::new());
    let text = |noise: &[u8], lines: &Lines| String::from_utf8_lossy(&[noise, lines.rest()].concat()).into_owned();
    loop {
        while let Ok(Some(line)) = lines.complete() {
            if line.ends_with(BEGIN) {
                return First::Begun;
            }
            if let Some(at) = line.windows(REFUSED.len()).position(|part| part == REFUSED) {
                let cause = String::from_utf8_lossy(&line[at + REFUSED.len()..]).trim().to_owned();
                return First::Refused(cause.chars().filter(|it| !it.is_control()).take(300).collect());
            }
            noise.extend_from_slice(&line);
            noise.push(b'\n');
        }
        if noise.len() + lines.rest().len() > NOISE_BYTES_MAX {
            return First::Late(text(&noise, lines));
        }
        let mut waits = [PollFd::new(output, PollFlags::IN)];
        if !wait_until(&mut waits, deadline).unwrap_or(false) {
            return First::Late(text(&noise, lines));
        }
        if !read_some(output, lines) {
            return First::Ended(text(&noise, lines));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use swarm_config::hosts::HostConfig;

    use super::*;
    use crate::host::find;

    fn service() -> Service {
        Service::of_command("git-upload-pack '/0123456789abcdef/fedcba98'").expect("valid")
    }

    /// Returns a host on which this script takes the place of `swarm`.
    fn host(script: &str) -> Host {
        let command = ["sh", "-c", script, "way"].map(str::to_owned).to_vec();
        let config = HostConfig { command: Some(command), swarm: Some("/opt/swarm".into()), ..HostConfig::default() };
        find("box", &BTreeMap::from([("box".to_owned(), config)])).expect("configured")
    }

    #[test]
    fn only_the_two_programs_serve_and_only_clones() {
        let service = service();
        assert_eq!((service.program, &*service.repository), (Program::UploadPack, "fedcba98"));
        for command in [
            "git-upload-archive '/0123456789abcdef/fedcba98'",
            "git-upload-pack '/0123456789abcdef/../fedcba98'",
            "git-upload-pack '/0123456789abcdef/fedcba9'",
            "git-upload-pack '/0123456789ABCDEF/fedcba98'",
            "git-upload-pack /0123456789abcdef/fedcba98",
            "git-upload-pack '/0123456789abcdef/fedcba98' '/x'",
            "git-upload-pack",
        ] {
            assert_eq!(Service::of_command(command), None, "{command}");
        }
    }

    #[test]
    fn bytes_of_git_begin_after_the_first_line() {
        let host = host("printf 'Welcome\\nto swarm-git 1\\n\\0\\n0012'; echo \"$*\"");
        let mut carrier = Carrier::open(&host, &service()).expect("opened");
        let (_, mut output) = carrier.streams.take().expect("both");
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).expect("read");
        let all = [carrier.first.clone(), rest].concat();
        assert_eq!(all, b"\0\n0012/opt/swarm __git - upload-pack 0123456789abcdef fedcba98\n");
        assert_eq!(carrier.end(), Some(0));
    }

    #[test]
    fn a_clone_that_is_not_served_is_explained() {
        let fault = Carrier::open(&host("echo 'swarm-git refused: no such clone'"), &service()).expect_err("refused");
        assert_eq!((fault.kind, &*fault.cause), (FaultKind::Refused, "box refuses the clone: no such clone"));
        let fault = Carrier::open(&host("echo gone >&2; exit 3"), &service()).expect_err("ended");
        assert_eq!((fault.kind, &*fault.cause), (FaultKind::Away, "no swarm answers on box: gone"));
    }
}
