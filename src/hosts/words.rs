//! Command lines: ssh with options that suit a program, or the user's own command. No word of a user reaches the login
//! shell of the other machine, except the path of the program.

use std::process::Command;

use swarm_sys::quoting::quoted;

use crate::carrier::Service;
use crate::host::{Host, Way};
use crate::master::Control;
use crate::slurm::{self, Slurm};

/// Options that each connection has: nothing is asked, forwarded or executed here, a dead line is noticed after 15
/// seconds, and standard error contains only what went wrong.
const OPTIONS: [&str; 8] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
];

/// Returns ssh with these options, without a destination.
pub(crate) fn ssh(terminal: bool) -> Command {
    let mut command = Command::new("ssh");
    command.args([if terminal { "-t" } else { "-T" }, "-a", "-x"]);
    for option in OPTIONS {
        // A person can answer questions on a terminal.
        if !(terminal && option == "BatchMode=yes") {
            command.args(["-o", option]);
        }
    }
    // Causes of failures are recognized by ssh's own words.
    command.env("LC_ALL", "C");
    command
}

/// Returns the command whose standard streams are those of the far end.
pub(crate) fn far_end(host: &Host, control: &Control) -> Command {
    // If the shared connection is full, ssh would log in once more by itself, beside many others.
    let only_there: &[&str] = match control {
        Control::Own(_) => &["-o", "ProxyCommand=false"],
        Control::OfUser | Control::None => &[],
    };
    far(host, control, only_there, &["__stdio"])
}

/// Returns the command whose standard streams are those of a program of git on the other machine, which serves a clone
/// there.
pub(crate) fn far_git(host: &Host, control: &Control, service: &Service) -> Command {
    let state = host.state.as_deref().unwrap_or("-");
    far(host, control, &[], &["__git", state, service.program.word(), &service.controller, &service.repository])
}

/// Returns the command that executes `swarm` there with these words, which no login shell reads differently.
fn far(host: &Host, control: &Control, options: &[&str], words: &[&str]) -> Command {
    match &host.way {
        Way::Ssh(destination) => {
            let mut command = ssh(false);
            through(&mut command, control);
            command.args(options).arg("--").arg(destination).arg(&host.program).args(words);
            command
        }
        Way::Command(way) => {
            let mut command = Command::new(&way[0]);
            command.args(&way[1..]);
            match host.program.starts_with('~') {
                // Only a shell there knows the home there.
                true => command.args(["/bin/sh", "-c", &format!("exec {} {}", host.program, words.join(" "))]),
                false => command.arg(&host.program).args(words),
            };
            command
        }
        Way::Slurm(slurm) => within(host, slurm, control, words, false),
    }
}

/// Returns the command that executes `swarm` with these words as a step of the host's allocation, which was found before.
fn within(host: &Host, slurm: &Slurm, control: &Control, words: &[&str], terminal: bool) -> Command {
    let Some(job) = &slurm.job else { unreachable!("the allocation is found first") };
    let (step, state) = (slurm::step(job, terminal), host.state.as_deref().unwrap_or_default());
    let entering = slurm::entering(state, job);
    let all: Vec<&str> = entering.into_iter().chain(words.iter().copied()).collect();
    let mut command = match &slurm.login {
        Some(login) => {
            let mut command = ssh(terminal);
            through(&mut command, control);
            // A login shell there knows the home.
            command.arg("--").arg(login).args(step).arg(&host.program).args(all);
            return command;
        }
        None => Command::new(&step[0]),
    };
    command.args(&step[1..]);
    match host.program.starts_with('~') {
        true => command.args(["/bin/sh", "-c", &format!("exec {} {}", host.program, all.join(" "))]),
        false => command.arg(&host.program).args(all),
    };
    slurm::scrub(&mut command);
    command
}

/// Adds the connection to use.
pub(crate) fn through(command: &mut Command, control: &Control) {
    match control {
        Control::Own(path) => drop(command.arg("-S").arg(path).args(["-o", "ControlMaster=no"])),
        Control::None => drop(command.args(["-S", "none", "-o", "ControlMaster=no"])),
        Control::OfUser => {}
    }
}

/// Returns the command that attaches this terminal to `swarm` on the other machine; `None` if the host is not reached by
/// ssh.
///
/// # Errors
/// Refuses words that a login shell could read differently, with the word.
pub fn attach(host: &Host, words: &[String]) -> Result<Option<Command>, String> {
    if matches!(host.way, Way::Command(_)) {
        return Ok(None);
    }
    let is_plain = |word: &&String| {
        !word.is_empty() && word.chars().all(|it| it.is_ascii_alphanumeric() || "._:/-@%+=".contains(it))
    };
    if let Some(odd) = words.iter().find(|word| !is_plain(word)) {
        return Err(odd.clone());
    }
    let control = crate::master::control(host);
    // The far end sets up the environment, and is told where the state directory is.
    let state = host.state.as_deref().unwrap_or("-");
    if let Way::Slurm(slurm) = &host.way {
        let all: Vec<&str> = ["__attach", state].into_iter().chain(words.iter().map(String::as_str)).collect();
        let mut command = within(host, slurm, &control, &all, true);
        command.env_remove("LC_ALL");
        return Ok(Some(command));
    }
    let mut command = ssh(true);
    through(&mut command, &control);
    command.env_remove("LC_ALL").arg("--").args(host.destination());
    command.arg(&host.program).arg("__attach").arg(state).args(words);
    Ok(Some(command))
}

/// Returns the command that executes a script of `/bin/sh` on the other machine, of an allocation on the login node. The
/// script must not contain single quotes, because login shells agree on their meaning only.
pub fn script(host: &Host, script: &str) -> Command {
    match &host.way {
        Way::Ssh(destination) => on(host, Some(destination), script),
        Way::Slurm(slurm) => slurm::on_login(host, slurm, script),
        Way::Command(words) => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["/bin/sh", "-c", script]);
            command
        }
    }
}

/// Returns the command that executes a script of `/bin/sh` at this destination for ssh of the host; on this machine if there
/// is none.
pub(crate) fn on(host: &Host, destination: Option<&str>, script: &str) -> Command {
    debug_assert!(!script.contains(['\'', '!', '\n']), "login shells read this differently");
    let Some(destination) = destination else {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        return command;
    };
    let mut command = ssh(false);
    through(&mut command, &crate::master::control(host));
    command.arg("--").arg(destination).arg(format!("/bin/sh -c {}", quoted(script)));
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swarm_config::hosts::HostConfig;

    use super::*;
    use crate::host::find;

    fn words(command: &Command) -> Vec<String> {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_remote_command_is_one_path_and_one_word() {
        let host = find("me@box", &BTreeMap::new()).expect("a destination");
        let words = words(&far_end(&host, &Control::None));
        assert_eq!(words[words.len() - 4..], ["--", "me@box", "~/.local/bin/swarm", "__stdio"]);
        assert!(words.contains(&"BatchMode=yes".to_owned()));
    }

    #[test]
    fn another_command_gets_the_same_words() {
        let command = Some(vec!["srun".to_owned(), "--overlap".to_owned()]);
        let config = HostConfig { command, swarm: Some("/opt/swarm".into()), ..HostConfig::default() };
        let host = find("alloc", &BTreeMap::from([("alloc".to_owned(), config)])).expect("configured");
        assert_eq!(words(&far_end(&host, &Control::None)), ["srun", "--overlap", "/opt/swarm", "__stdio"]);
        assert_eq!(words(&script(&host, "uname -s")), ["srun", "--overlap", "/bin/sh", "-c", "uname -s"]);
        assert_eq!(attach(&host, &[]).expect("no odd words").map(|command| words(&command)), None);
    }

    #[test]
    fn words_that_a_login_shell_could_change_are_not_passed_to_it() {
        let host = find("box", &BTreeMap::new()).expect("a destination");
        for word in ["", "a b", "$(x)", "a;b", "*", "~", "a'b"] {
            assert_eq!(attach(&host, &[word.to_owned()]).map(drop), Err(word.to_owned()));
        }
    }
}
