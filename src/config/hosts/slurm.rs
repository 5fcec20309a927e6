//! `[hosts.NAME] engine`: a host that is an allocation of Slurm (`slurm-pilot`), or whose workers are jobs (`slurm`).

use std::time::Duration;

use serde::Deserialize;
use swarm_sys::duration;

use super::HostConfig;

/// Maximum length of the name of such a host, which is a part of the name of its jobs.
const NAME_BYTES_MAX: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// One job of Slurm is the host, for as long as it runs.
    SlurmPilot,
    /// Each worker is a job of Slurm.
    Slurm,
}

/// Checks what a host says about allocations. Returns the key that is wrong, and why.
pub(super) fn check(name: &str, host: &HostConfig) -> Result<(), (&'static str, String)> {
    let wrong = |key: &'static str, cause: &str| Err((key, cause.to_owned()));
    if host.engine.is_none() {
        let keys = [
            (".partition", host.partition.is_some()),
            (".time", host.time.is_some()),
            (".cpus", host.cpus.is_some()),
            (".memory", host.memory.is_some()),
            (".arguments", !host.arguments.is_empty()),
            (".ask", host.ask.is_some()),
        ];
        return match keys.into_iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => wrong(key, "is about jobs of Slurm: set engine = \"slurm-pilot\" or \"slurm\", too"),
            None => Ok(()),
        };
    }
    if host.command.is_some() {
        return wrong(".command", "a host with an engine is reached by it");
    }
    if host.engine == Some(Engine::Slurm) {
        let keys = [
            (".ssh", host.ssh.is_some()),
            (".state", host.state.is_some()),
            (".dir", host.dir.is_some()),
            (".cap", host.cap.is_some()),
        ];
        if let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set) {
            let cause = "does not apply to engine = \"slurm\": jobs are submitted on this machine, which shares the state \
                         directory with the nodes";
            return wrong(key, cause);
        }
    }
    if name.len() > NAME_BYTES_MAX || !is_word(name) {
        return wrong("", "a host with an engine is named with letters, digits and . _ -, at most 40 of them");
    }
    if let Some(ask) = &host.ask {
        if host.engine != Some(Engine::Slurm) {
            return wrong(".ask", "applies to engine = \"slurm\" only");
        }
        duration::parse_positive(ask).map_err(|cause| (".ask", cause))?;
    }
    if let Some(time) = &host.time {
        time_limit(time).map_err(|cause| (".time", cause))?;
    }
    for (key, word) in [(".partition", &host.partition), (".memory", &host.memory)] {
        if word.as_ref().is_some_and(|word| !word.split(',').all(is_word)) {
            return wrong(key, "must contain only letters, digits and . _ -");
        }
    }
    if host.cpus == Some(0) {
        return wrong(".cpus", "must be above 0");
    }
    host.arguments.iter().try_for_each(|word| check_argument(word)).map_err(|cause| (".arguments", cause))
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['-', '.'])
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "._-".contains(it))
}

/// Returns a time limit as sbatch takes it: `8h` in minutes; what has the form of Slurm, `08:00:00` or `1-12`, as it is.
///
/// # Errors
/// Refuses what is no time, and a number alone, which is seconds here and minutes there.
pub fn time_limit(text: &str) -> Result<String, String> {
    let is_of_slurm = text.contains([':', '-'])
        && text.starts_with(|it: char| it.is_ascii_digit())
        && text.chars().all(|it| it.is_ascii_digit() || ":-".contains(it));
    if is_of_slurm {
        return Ok(text.to_owned());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("'{text}' has no unit (expected 8h, 90m or 08:00:00)"));
    }
    let limit: Duration = duration::parse_positive(text)?;
    Ok(limit.as_secs().div_ceil(60).max(1).to_string())
}

/// Refuses an argument for sbatch that would change what swarm needs of the job, or that cannot be sent to a login node.
///
/// # Errors
/// Returns the cause.
pub fn check_argument(word: &str) -> Result<(), String> {
    const OWN: [&str; 11] = [
        "--array",
        "--export",
        "--job-name",
        "--output",
        "--parsable",
        "--requeue",
        "--signal",
        "--test-only",
        "--wait",
        "--wrap",
        "--chdir",
    ];
    const OWN_SHORT: [&str; 6] = ["-a", "-J", "-o", "-W", "-D", "-H"];
    let name = word.split('=').next().unwrap_or_default();
    if OWN.contains(&name) || OWN_SHORT.iter().any(|short| !word.starts_with("--") && word.starts_with(short)) {
        return Err(format!("'{name}' is set by swarm"));
    }
    if word.is_empty() || word.contains(['\'', '!']) || word.chars().any(char::is_control) {
        return Err(format!(
            "'{}' is empty, or contains a character that is not passed on: ' or !",
            word.escape_debug()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), &'static str> {
        let host: HostConfig = toml::from_str(text).expect("valid");
        check("cluster", &host).map_err(|(key, _)| key)
    }

    #[test]
    fn a_host_with_an_engine_has_the_keys_of_its_jobs() {
        let all = "engine = 'slurm-pilot'\nssh = 'login1'\npartition = 'cpu,long'\ntime = '8h'\ncpus = 16\n\
                   memory = '32G'\narguments = ['--account=a b', '--constraint=x|y']";
        assert_eq!(checked(all), Ok(()));
        assert_eq!(checked("engine = 'slurm'\nswarm = '/opt/swarm'\ntime = '8h'\ncpus = 2"), Ok(()));
        for (text, key) in [
            ("partition = 'cpu'", ".partition"),
            ("arguments = ['-x']", ".arguments"),
            ("engine = 'slurm-pilot'\ncommand = ['srun']", ".command"),
            ("engine = 'slurm'\nask = 'often'", ".ask"),
            ("engine = 'slurm-pilot'\nask = '30s'", ".ask"),
            ("engine = 'slurm'\nssh = 'login1'", ".ssh"),
            ("engine = 'slurm'\nstate = '~/x'", ".state"),
            ("engine = 'slurm'\ncap = 4", ".cap"),
            ("engine = 'slurm-pilot'\ntime = 'long'", ".time"),
            ("engine = 'slurm-pilot'\ncpus = 0", ".cpus"),
            ("engine = 'slurm-pilot'\npartition = 'a b'", ".partition"),
            ("engine = 'slurm-pilot'\nmemory = '$(x)'", ".memory"),
            ("engine = 'slurm-pilot'\narguments = ['--wait']", ".arguments"),
            ("engine = 'slurm-pilot'\narguments = ['-ojob']", ".arguments"),
        ] {
            assert_eq!(checked(text), Err(key), "{text}");
        }
        for name in ["a b", "-a", "a;b", "", &"a".repeat(41)] {
            let host = HostConfig { engine: Some(Engine::SlurmPilot), ..HostConfig::default() };
            assert_eq!(check(name, &host).map_err(|(key, _)| key), Err(""), "{name}");
        }
    }

    #[test]
    fn a_time_limit_has_a_unit_or_the_form_of_slurm() {
        for (text, minutes) in [("8h", "480"), ("90m", "90"), ("1d", "1440"), ("30s", "1"), ("61s", "2")] {
            assert_eq!(time_limit(text).as_deref(), Ok(minutes));
        }
        for text in ["08:00:00", "1-12", "2-00:30"] {
            assert_eq!(time_limit(text).as_deref(), Ok(text));
        }
        for text in ["480", "", "0s", "-1", "8 h", "1:x", "--x"] {
            time_limit(text).expect_err(text);
        }
    }
}
