//! Which machine is meant: a name of `[hosts.NAME]` in the user's configuration, or anything that ssh knows.

use std::collections::BTreeMap;

use swarm_config::hosts::{HostConfig, check_destination};
use swarm_model::{Refusal, RefusalKind, nearest};

use crate::fault::Fault;
use crate::slurm::{self, Slurm};

/// Name of this machine, which needs no connection.
pub const LOCAL: &str = "local";
/// Program on the other machine, unless the configuration names another one.
const PROGRAM: &str = "~/.local/bin/swarm";

/// How a machine is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By ssh, with this destination.
    Ssh(String),
    /// By a command whose standard streams become those of the words that are appended to it.
    Command(Vec<String>),
    /// As a step of a job of Slurm.
    Slurm(Slurm),
}

/// Another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub(crate) way: Way,
    /// Path of `swarm` there.
    pub program: String,
    /// Directory in which verbs are executed, relative to the home there.
    pub dir: Option<String>,
    /// State directory, relative to the home there.
    pub state: Option<String>,
    /// Names of variables of this machine that verbs there get.
    send_env: Vec<String>,
}

impl Host {
    /// Returns the variables of this process that verbs there get, as far as they are set and texts.
    pub fn sent(&self) -> BTreeMap<String, String> {
        self.send_env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect()
    }

    /// Executes verbs in `dir`, which is relative to the directory that is configured.
    pub fn enter(&mut self, dir: &str) {
        let is_whole = dir.starts_with(['/', '~']);
        self.dir = Some(match self.dir.take().filter(|_| !is_whole) {
            Some(above) => format!("{}/{dir}", above.trim_end_matches('/')),
            None => dir.to_owned(),
        });
    }

    /// Returns the host as it is reached at the moment: that of an allocation is found now, and used by all later
    /// connections of the returned host.
    ///
    /// # Errors
    /// Returns why there is no allocation.
    pub fn reached(&self) -> Result<Self, Fault> {
        slurm::reached(self)
    }

    pub(crate) fn by(&self, way: Way) -> Self {
        Self { way, ..self.clone() }
    }

    /// Returns the destination for ssh; `None` if another command reaches the host. For an allocation, it is the login node.
    pub fn destination(&self) -> Option<&str> {
        match &self.way {
            Way::Ssh(destination) => Some(destination),
            Way::Command(_) => None,
            Way::Slurm(slurm) => slurm.login.as_deref(),
        }
    }

    /// Reports whether the host is an allocation, which exists for some time only.
    pub fn is_allocation(&self) -> bool {
        matches!(&self.way, Way::Slurm(slurm) if !slurm.by_worker)
    }

    /// Returns the arguments for the submission of a worker that is a job of its own; `None` if the host is a machine.
    pub fn job_arguments(&self) -> Option<&[String]> {
        match &self.way {
            Way::Slurm(slurm) if slurm.by_worker => Some(&slurm.arguments),
            Way::Slurm(_) | Way::Ssh(_) | Way::Command(_) => None,
        }
    }
}

/// Returns the host with this name. A name that is not configured is a destination for ssh.
///
/// # Errors
/// Refuses what ssh would take for an option, and what names no machine.
pub fn find(name: &str, configured: &BTreeMap<String, HostConfig>) -> Result<Host, Refusal> {
    if let Some(config) = configured.get(name) {
        return Ok(of_config(name, config));
    }
    let refuse = |cause: &str| Refusal::new(RefusalKind::Invalid, format!("invalid host '{name}': {cause}"));
    check_destination(name).map_err(refuse)?;
    if name.contains(':') {
        // `HOST:NAME` is a worker.
        let near = nearest(name, configured.keys().map(String::as_str));
        return Err(refuse("it contains ':'").remedy(near.map_or_else(
            || format!("give it a name: [hosts.NAME] ssh = \"{name}\" in ~/.config/{}", swarm_config::USER_FILE),
            |near| format!("did you mean '{near}'?"),
        )));
    }
    Ok(of_config(name, &HostConfig::default()))
}

/// Returns all configured hosts, sorted by name.
pub fn known(configured: &BTreeMap<String, HostConfig>) -> Vec<Host> {
    configured.iter().map(|(name, config)| of_config(name, config)).collect()
}

fn of_config(name: &str, config: &HostConfig) -> Host {
    let is_allocation = config.engine.is_some();
    let way = match &config.command {
        Some(command) => Way::Command(command.clone()),
        None if is_allocation => Way::Slurm(Slurm::of(config)),
        None => Way::Ssh(config.ssh.clone().unwrap_or_else(|| name.to_owned())),
    };
    Host {
        name: name.to_owned(),
        way,
        program: config.swarm.clone().unwrap_or_else(|| PROGRAM.to_owned()),
        dir: config.dir.clone(),
        state: config.state.clone().or_else(|| is_allocation.then(|| slurm::state_of(name))),
        send_env: config.send_env.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_configured_or_a_destination_for_ssh() {
        let config = HostConfig { ssh: Some("me@build1".into()), dir: Some("work".into()), ..HostConfig::default() };
        let mut configured = BTreeMap::from([("box".to_owned(), config)]);
        let found = find("box", &configured).expect("configured");
        assert_eq!((found.destination(), found.dir.as_deref()), (Some("me@build1"), Some("work")));
        assert_eq!(found.program, PROGRAM);
        assert_eq!(
            find("me@other.example", &configured).expect("a destination").destination(),
            Some("me@other.example")
        );
        let command = Some(vec!["srun".to_owned()]);
        configured.insert("alloc".into(), HostConfig { command, ..HostConfig::default() });
        assert_eq!(find("alloc", &configured).expect("configured").destination(), None);
        assert_eq!(known(&configured).len(), 2);
    }

    #[test]
    fn a_directory_is_below_the_configured_one_unless_it_is_whole() {
        let mut host = find("box", &BTreeMap::new()).expect("a destination");
        for (dir, whole) in [("work", "work"), ("shop", "work/shop"), ("~/x", "~/x"), ("/srv", "/srv")] {
            host.enter(dir);
            assert_eq!(host.dir.as_deref(), Some(whole));
        }
    }

    #[test]
    fn what_ssh_would_misread_is_refused() {
        for name in ["", "-oProxyCommand=x", "a b", "a\nb", "bax:fix", "a\u{7}"] {
            find(name, &BTreeMap::new()).expect_err(name);
        }
        let configured = BTreeMap::from([("box:1".to_owned(), HostConfig::default())]);
        let refusal = find("box:2", &configured).expect_err("not known");
        assert_eq!(refusal.remedy.as_deref(), Some("did you mean 'box:1'?"));
    }
}
