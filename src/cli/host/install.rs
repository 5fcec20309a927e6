//! `swarm hosts install`: copies this program to a host. It is static, so it runs on any Linux of the same architecture.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use swarm_hosts::{FaultKind, Host, Pipe, script};
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::commands::deadline::{self, Silence};

use super::args::HostsInstallArgs;
use super::found;
use crate::cli::error::Failure;
use crate::cli::render::escape;
use crate::cli::screen::Screen;

/// Time for a short command there.
const SHORT_MAX: Duration = Duration::from_secs(40);
/// Time for copying the program.
const COPY_MAX: Duration = Duration::from_secs(600);
const BYTES_MAX: usize = 1 << 20;
/// Directory there that has one directory for each installed build, from the home.
const BUILDS: &str = ".local/share/swarm";

pub fn run(args: &HostsInstallArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let host = found(std::slice::from_ref(&args.host))?.remove(0);
    let Some(target) = host.program.strip_prefix("~/") else {
        let cause = format!("{} is not below the home, so it is not replaced", host.program);
        let remedy =
            format!("copy the program by hand, or set [hosts.{}] swarm to a path that begins with ~/", host.name);
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into());
    };
    let bytes = fs::read("/proc/self/exe").map_err(|error| Failure::system("cannot read this program", &error))?;
    let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    check_system(&host)?;
    check_version(&host, args.force)?;
    let build = format!("{BUILDS}/{}", &hash[..16]);
    if !execute(&host, &reading(&build), None, SHORT_MAX)?.ends_with(&hash) {
        screen.aside("", &format!("copying {} MB to {}", bytes.len() / 1_000_000, host.name));
        execute(&host, &copying(&build, &hash), Some(&bytes), COPY_MAX)?;
    }
    execute(&host, &linking(&build, target, args.force), None, SHORT_MAX)?;
    let version = if host.is_allocation() || host.job_arguments().is_some() {
        // There may be no allocation yet. The login node has the same home.
        execute(&host, &format!("cd; ./{target} --version >/dev/null"), None, SHORT_MAX)?;
        env!("CARGO_PKG_VERSION").to_owned()
    } else {
        Pipe::open(&host).map_err(Refusal::from)?.hello.version.clone()
    };
    let (name, version) = (escape(&host.name), escape(&version));
    screen.line(&format!("installed swarm {version} on {name} as {}", escape(&host.program)))?;
    Ok(0)
}

/// Refuses a machine that cannot execute this program.
fn check_system(host: &Host) -> Result<(), Failure> {
    let there = execute(host, "uname -s -m", None, SHORT_MAX)?;
    let own = format!("Linux {}", std::env::consts::ARCH);
    // What a login shell prints comes first.
    match there.lines().last().unwrap_or_default().trim() == own {
        true => Ok(()),
        false => {
            let cause = format!("{} is '{}', and this program is for {own}", host.name, short(&there));
            Err(Refusal::new(RefusalKind::Invalid, cause).remedy("build swarm there").into())
        }
    }
}

/// Refuses to replace a newer version.
fn check_version(host: &Host, force: bool) -> Result<(), Failure> {
    let version = match Pipe::open(host) {
        Ok(pipe) => pipe.hello.version.clone(),
        Err(fault) if matches!(fault.kind, FaultKind::Refused) => return Err(Refusal::from(fault).into()),
        Err(_) => return Ok(()),
    };
    if !force && numbers(&version) > numbers(env!("CARGO_PKG_VERSION")) {
        let cause = format!("{} has swarm {version}, which is newer than this one", host.name);
        return Err(Refusal::new(RefusalKind::Invalid, cause).remedy("use --force to replace it").into());
    }
    Ok(())
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

/// Script that prints the hash of what is installed of this build; nothing if there is none.
fn reading(build: &str) -> String {
    format!("cd; if test -f {build}/swarm; then sha256sum < {build}/swarm | cut -c1-64; fi")
}

/// Script that writes its input to the file of this build, if it is complete.
fn copying(build: &str, hash: &str) -> String {
    format!(
        "set -e; umask 077; cd; mkdir -p {build}; t={build}/new.$$; trap \"rm -f $t\" EXIT; cat > $t; chmod 700 $t; \
         if test $(sha256sum < $t | cut -c1-64) = {hash}; then :; else echo what arrived is not what was sent >&2; exit 4; fi; \
         sync $t || sync; mv -f $t {build}/swarm"
    )
}

/// Script that makes `target`, a path below the home, a link to this build.
fn linking(build: &str, target: &str, force: bool) -> String {
    let dir = Path::new(target).parent().unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let dir = if dir.is_empty() { ".".to_owned() } else { dir };
    let check = match force {
        true => String::new(),
        false => format!(
            "if test -e {target} && test -z \"$(readlink {target} | grep {BUILDS}/)\"; then \
             echo {target} is there and was not installed by swarm >&2; exit 3; fi; "
        ),
    };
    format!(
        "set -e; cd; {check}mkdir -p {dir}; t={target}.$$; trap \"rm -f $t\" EXIT; ln -sf \"$PWD\"/{build}/swarm $t; mv -fT $t {target}"
    )
}

/// Executes a script there and returns what it printed.
fn execute(host: &Host, text: &str, input: Option<&[u8]>, limit: Duration) -> Result<String, Failure> {
    let said = deadline::run(&mut script(host, text), input, limit, BYTES_MAX).map_err(|silence| {
        let cause = match silence {
            Silence::Spawn(error) => format!("cannot start ssh: {error}"),
            Silence::Timeout => format!("{} did not answer within {} seconds", host.name, limit.as_secs()),
            Silence::TooMuch => format!("{} printed too much", host.name),
            Silence::System(error) => format!("cannot wait for {}: {error}", host.name),
        };
        Failure::new(RefusalKind::Tool, cause)
    })?;
    if said.success {
        return Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned());
    }
    let why = match short(&String::from_utf8_lossy(&said.stderr)) {
        why if why.is_empty() => "the connection was cut".to_owned(),
        why => why,
    };
    let cause = format!("{}: {why}", host.name);
    let refusal = Refusal::new(RefusalKind::Tool, cause);
    Err(match String::from_utf8_lossy(&said.stderr).contains("was not installed by swarm") {
        true => refusal.remedy("use --force to replace it").into(),
        false => refusal.into(),
    })
}

/// Returns the last line, shortened.
fn short(text: &str) -> String {
    text.trim().lines().last().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(numbers("0.10.0") > numbers("0.9.1"));
        assert!(numbers("1.0.0-rc1") <= numbers("1.0.0"));
        assert!(numbers("odd") < numbers("0.1.0"));
    }

    #[test]
    fn scripts_have_nothing_that_login_shells_disagree_about() {
        let all = [
            reading("a/b"),
            copying("a/b", "0"),
            linking("a/b", ".local/bin/swarm", false),
            linking("a/b", "swarm", true),
        ];
        for script in all {
            assert!(!script.contains(['\'', '!', '\n']), "{script}");
        }
    }

    #[test]
    fn a_program_is_linked_unless_somebody_else_put_one_there() {
        let home = tempfile::tempdir().expect("a directory");
        let sh = |script: &str, input: &[u8]| {
            let mut command = std::process::Command::new("/bin/sh");
            command.args(["-c", script]).env("HOME", home.path());
            deadline::run(&mut command, Some(input), SHORT_MAX, BYTES_MAX).expect("ended")
        };
        let hash = |text: &[u8]| -> String { Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect() };
        let said = sh(&copying(".local/share/swarm/1", &hash(b"one")), b"one");
        assert!(said.success, "{}", String::from_utf8_lossy(&said.stderr));
        let said = sh(&copying(".local/share/swarm/1", &hash(b"one")), b"on");
        assert!(!said.success, "half of it was taken");
        let read = sh(&reading(".local/share/swarm/1"), b"").stdout;
        assert_eq!(String::from_utf8_lossy(&read).trim(), hash(b"one"));
        assert_eq!(fs::read_dir(home.path().join(".local/share/swarm/1")).expect("there").count(), 1);
        let target = home.path().join(".local/bin/swarm");
        assert!(sh(&linking(".local/share/swarm/1", ".local/bin/swarm", false), b"").success);
        assert_eq!(fs::read(&target).expect("linked"), b"one");
        assert!(sh(&copying(".local/share/swarm/2", &hash(b"two")), b"two").success);
        assert!(sh(&linking(".local/share/swarm/2", ".local/bin/swarm", false), b"").success);
        assert_eq!(fs::read(&target).expect("linked"), b"two");
        fs::remove_file(&target).expect("removed");
        fs::write(&target, "of somebody else").expect("written");
        assert!(!sh(&linking(".local/share/swarm/2", ".local/bin/swarm", false), b"").success);
        assert_eq!(fs::read(&target).expect("kept"), b"of somebody else");
        assert!(sh(&linking(".local/share/swarm/2", ".local/bin/swarm", true), b"").success);
        assert_eq!(fs::read(&target).expect("linked"), b"two");
        fs::remove_file(&target).expect("removed");
        fs::create_dir(&target).expect("made");
        assert!(!sh(&linking(".local/share/swarm/2", ".local/bin/swarm", true), b"").success);
        assert_eq!(fs::read_dir(home.path().join(".local/bin")).expect("there").count(), 1, "something is left");
    }
}
