//! `[hosts.NAME]`: other machines.

mod slurm;

use serde::Deserialize;

pub use self::slurm::{Engine, check_argument, time_limit};
use super::Sections;

/// `[hosts.NAME]`: how a machine is reached, and where `swarm` is on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Destination for ssh. The name of the host by default.
    pub ssh: Option<String>,
    /// Command that reaches the host instead of ssh. The words that are executed there are appended to it.
    pub command: Option<Vec<String>>,
    /// Directory in which verbs are executed, relative to the home there.
    pub dir: Option<String>,
    /// Path of `swarm` there.
    pub swarm: Option<String>,
    /// State directory, relative to the home there.
    pub state: Option<String>,
    /// Maximum number of concurrent attempts of a run there. 0: none is started there.
    pub cap: Option<usize>,
    /// What the host is or has, such as `gpu`. Specs and jobs may ask for it.
    pub tags: Vec<String>,
    /// Names of variables of the caller that verbs there get.
    pub send_env: Vec<String>,
    /// Whether ignored files that worktrees get are sent there. `None`: nobody has said so.
    pub include: Option<bool>,
    /// Batch system in whose allocations the host is. The keys below belong to it.
    pub engine: Option<Engine>,
    /// Partition of the jobs. That of the site by default.
    pub partition: Option<String>,
    /// Time limit of an allocation, such as `8h`. That of the partition by default.
    pub time: Option<String>,
    /// CPUs of an allocation.
    pub cpus: Option<u32>,
    /// Memory of an allocation, as sbatch takes it.
    pub memory: Option<String>,
    /// Further arguments for sbatch.
    pub arguments: Vec<String>,
    /// Time between two questions to Slurm about workers that are jobs, such as `30s`.
    pub ask: Option<String>,
}

/// Variables that say which programs are executed, or where they find their files.
const NOT_SENT: [&str; 24] = [
    "BASH_ENV",
    "BROWSER",
    "CDPATH",
    "EDITOR",
    "ENV",
    "GCONV_PATH",
    "HOME",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "LOCPATH",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PAGER",
    "PATH",
    "PERL5LIB",
    "PERL5OPT",
    "PROMPT_COMMAND",
    "RUBYLIB",
    "RUBYOPT",
    "SHELL",
    "TMPDIR",
    "USER",
    "VISUAL",
    "ZDOTDIR",
];
/// Beginnings of names of such variables.
const NOT_SENT_STARTS: [&str; 9] = ["BASH_FUNC_", "DYLD_", "GIT_", "LD_", "PYTHON", "SSH_", "SWARM_", "TMUX", "XDG_"];

/// Reports whether a variable with this name may be sent to another machine.
pub fn may_be_sent(name: &str) -> bool {
    let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    !name.is_empty()
        && name.chars().all(is_name)
        && !name.starts_with(|it: char| it.is_ascii_digit())
        && !NOT_SENT.contains(&name)
        && !NOT_SENT_STARTS.iter().any(|start| name.starts_with(start))
}

/// Name of this machine, of which only `cap` and `tags` can be said.
pub const LOCAL: &str = "local";

impl Sections {
    /// Checks that each host can be reached without a word that ssh or a shell would take for something else.
    pub(super) fn check_hosts(&self) -> Result<(), (String, String)> {
        for (name, host) in &self.hosts {
            let wrong = |key: &str, cause: &str| Err((format!("hosts.{name}{key}"), cause.to_owned()));
            if name == LOCAL
                && *host != (HostConfig { cap: host.cap, tags: host.tags.clone(), ..HostConfig::default() })
            {
                return wrong("", "'local' is this machine, which has only cap and tags");
            }
            let is_odd = |tag: &String| {
                tag.is_empty() || tag.contains(',') || tag.chars().any(|it| it.is_whitespace() || it.is_control())
            };
            if host.tags.iter().any(is_odd) {
                return wrong(".tags", "a tag must not be empty, and not contain ',' or spaces");
            }
            if name.is_empty()
                || name.contains([':', ','])
                || name.chars().any(|it| it.is_whitespace() || it.is_control())
            {
                return wrong("", "the name of a host must not be empty, and not contain ':', ',' or spaces");
            }
            if host.ssh.is_some() && host.command.is_some() {
                return wrong(".command", "a host has ssh or command, not both");
            }
            if let Some(ssh) = &host.ssh
                && let Err(cause) = check_destination(ssh)
            {
                return wrong(".ssh", cause);
            }
            if let Err((key, cause)) = slurm::check(name, host) {
                return wrong(key, &cause);
            }
            if host.command.as_ref().is_some_and(|words| words.first().is_none_or(|word| word.trim().is_empty())) {
                return wrong(".command", "is empty");
            }
            let paths = [(".swarm", &host.swarm), (".state", &host.state)];
            let is_odd = |path: &Option<String>| path.as_ref().is_some_and(|path| !is_plain(path));
            if let Some((key, _)) = paths.into_iter().find(|(_, path)| is_odd(path)) {
                return wrong(
                    key,
                    "must contain only letters, digits and ~ . _ / - + @, because a login shell reads it",
                );
            }
            if host.dir.as_ref().is_some_and(String::is_empty) {
                return wrong(".dir", "must not be empty");
            }
            if let Some(name) = host.send_env.iter().find(|name| !may_be_sent(name)) {
                return wrong(".send_env", &format!("'{name}' is not sent: it may change what is executed there"));
            }
        }
        Ok(())
    }
}

/// Refuses a destination that ssh would take for something else.
///
/// # Errors
/// Returns the cause.
pub fn check_destination(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.starts_with('-') {
        return Err("must not begin with '-'");
    }
    match name.chars().any(|it| it.is_whitespace() || it.is_control()) {
        true => Err("must not contain spaces"),
        false => Ok(()),
    }
}

/// Reports whether every login shell takes the path as one word.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && path.chars().all(|it| it.is_ascii_alphanumeric() || "~._/-+@".contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_names_and_ways() {
        let check = |text: &str| {
            let sections: Sections = toml::from_str(text).expect("valid");
            sections.check_hosts().map_err(|(key, _)| key)
        };
        assert_eq!(check("[hosts.box]\nssh = 'me@build1'\ndir = 'work'\nswarm = '/opt/swarm'"), Ok(()));
        assert_eq!(check("[hosts.alloc]\ncommand = ['srun']\ntags = ['gpu', 'big-memory']"), Ok(()));
        assert_eq!(check("[hosts.local]\ncap = 2\ntags = ['gpu']"), Ok(()));
        assert_eq!(check("[hosts.a]\nsend_env = ['LANG', 'LC_ALL', 'ANTHROPIC_API_KEY', 'https_proxy']"), Ok(()));
        for (text, key) in [
            ("[hosts.local]\nssh = 'a'", "hosts.local"),
            ("[hosts.a]\ntags = ['x y']", "hosts.a.tags"),
            ("[hosts.'a:b']\nssh = 'a'", "hosts.a:b"),
            ("[hosts.a]\nssh = '-oProxyCommand=x'", "hosts.a.ssh"),
            ("[hosts.a]\nssh = 'b c'", "hosts.a.ssh"),
            ("[hosts.a]\nssh = 'b'\ncommand = ['c']", "hosts.a.command"),
            ("[hosts.a]\ncommand = []", "hosts.a.command"),
            ("[hosts.a]\nswarm = 'swarm; rm'", "hosts.a.swarm"),
            ("[hosts.a]\ndir = ''", "hosts.a.dir"),
            ("[hosts.a]\nengine = 'slurm-pilot'\ntime = '480'", "hosts.a.time"),
            ("[hosts.a]\nstate = 'a b'", "hosts.a.state"),
            ("[hosts.a]\nsend_env = ['LANG', 'PATH']", "hosts.a.send_env"),
            ("[hosts.a]\nsend_env = ['LD_PRELOAD']", "hosts.a.send_env"),
            ("[hosts.a]\nsend_env = ['SWARM_DIR']", "hosts.a.send_env"),
            ("[hosts.a]\nsend_env = ['A=b']", "hosts.a.send_env"),
            ("[hosts.a]\nsend_env = ['']", "hosts.a.send_env"),
        ] {
            assert_eq!(check(text), Err(key.to_owned()), "{text}");
        }
    }
}
