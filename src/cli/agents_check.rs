//! `swarm agents --check`: whether an agent is installed and logged in, in one sentence.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use swarm_agents::traits::Login;
use swarm_agents::{Agent, is_logged_out};
use swarm_config::sections::AgentConfig;
use swarm_model::{Refusal, RefusalKind};
use swarm_sys::commands::deadline::{self, Said};
use swarm_sys::paths::Paths;

use super::agents::{program_of, version};
use super::error::Failure;
use super::render::escape;
use super::screen::Screen;

/// Time in which the program says whether it is logged in.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum output of the program, in bytes.
const BYTES_MAX: usize = 64 << 10;

pub fn run(
    name: &str,
    configured: &BTreeMap<String, AgentConfig>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    let agent = Agent::find(name, configured).map_err(|cause| Failure::new(RefusalKind::Invalid, cause))?;
    let name = &agent.name;
    let Some(program) = program_of(&agent) else {
        if agent.kind.traits().program.is_none() && agent.config.command.is_none() {
            screen.line(&format!("{}: part of swarm", escape(name)))?;
            return Ok(0);
        }
        let wanted = agent.config.command.as_ref().and_then(|words| words.first()).map(String::as_str);
        let wanted = wanted.or(agent.kind.traits().program).unwrap_or_default();
        let cause = format!("{name} is not installed: '{wanted}' is not in PATH");
        let remedy = format!("install it, or set [agents.{name}] command");
        return Err(Refusal::new(RefusalKind::NotFound, cause).remedy(remedy).into());
    };
    let version = version(&agent, paths).map(|version| format!(" {version}")).unwrap_or_default();
    let shown = format!("{}{version} ({})", escape(name), escape(&program.to_string_lossy()));
    // A command of the configuration is not executed: only the user's own programs are.
    let Some(login) = agent.kind.traits().login().filter(|_| agent.config.command.is_none()) else {
        screen.line(&format!("{shown}: installed; it does not tell whether it is logged in"))?;
        return Ok(0);
    };
    match is_logged_in(&program, login) {
        Some(true) => screen.line(&format!("{shown}: logged in")).map(|()| 0),
        None => screen.line(&format!("{shown}: installed; whether it is logged in is not known")).map(|()| 0),
        Some(false) => {
            let refusal = Refusal::new(RefusalKind::Tool, format!("{name} is not logged in"));
            Err(refusal.remedy(format!("run '{}' on that machine", login.remedy)).into())
        }
    }
}

/// Asks the program; `None` if it gives no answer that is understood.
fn is_logged_in(program: &Path, login: Login) -> Option<bool> {
    let mut command = Command::new(program);
    // Nothing of the current directory is loaded, and no program replaces itself.
    command.args(login.status).current_dir("/").env("DISABLE_AUTOUPDATER", "1");
    verdict(&deadline::run(&mut command, None, LIMIT, BYTES_MAX).ok()?)
}

fn verdict(said: &Said) -> Option<bool> {
    if said.success {
        return Some(true);
    }
    let text = String::from_utf8_lossy(&[said.stdout.as_slice(), &said.stderr].concat()).into_owned();
    // Programs that do not know these words fail as well.
    let is_out = is_logged_out(&text) || text.replace(' ', "").contains("\"loggedIn\":false");
    is_out.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_is_understood_counts() {
        for (success, out, err, expected) in [
            (true, "{\"loggedIn\": true}", "", Some(true)),
            (false, "{\n  \"loggedIn\": false,\n}", "", Some(false)),
            (false, "", "Not logged in\n", Some(false)),
            (false, "", "error: unknown command 'auth'", None),
            (false, "", "", None),
        ] {
            let said = Said { success, stdout: out.into(), stderr: err.into() };
            assert_eq!(verdict(&said), expected, "{out}{err}");
        }
    }
}
