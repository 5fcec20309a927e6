//! `swarm agents`: the agents that can be used, their programs, and what each of them offers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde::{Deserialize, Serialize};
use swarm_model::RefusalKind;
use swarm_model::asks::judge::Consent;

use super::agents_check;
use super::error::Failure;
use super::json;
use super::render::{escape, table};
use super::screen::Screen;
use swarm_agents::consent::refusal;
use swarm_agents::traits::{Asks, Conversations, Traits, version_in};
use swarm_agents::{Agent, BUILT_IN};
use swarm_config::sections::AgentConfig;
use swarm_sys::commands::deadline;
use swarm_sys::files::{Durability, replace_private};
use swarm_sys::lookup;
use swarm_sys::paths::Paths;

/// Time limit of `--version`. Some programs start an interpreter and read many files.
const LIMIT: Duration = Duration::from_secs(20);
/// Maximum output of `--version`, in bytes.
const BYTES_MAX: usize = 64 << 10;
/// File of the state directory with the versions of programs.
const CACHE: &str = "agents.json";

#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Check that this agent is installed and logged in (exit code 1: it is not)
    #[arg(long, value_name = "AGENT", conflicts_with = "json")]
    pub check: Option<String>,
}

/// An agent, the program that executes it, and what it offers.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Adapter that starts the program and reads its output.
    adapter: &'static str,
    program: Option<PathBuf>,
    version: Option<String>,
    /// What is missing in this version.
    lost: Vec<String>,
    #[serde(flatten)]
    offers: Offers,
}

#[derive(Debug, Serialize)]
struct Offers {
    tested: Option<&'static str>,
    output: swarm_agents::traits::Output,
    session: Conversations,
    asks: Asks,
    /// Whether it asks in runs that restrict their agents.
    asks_in_runs: bool,
    totals: swarm_agents::traits::Totals,
    price: bool,
    result_schema: bool,
    mcp: bool,
    mail: bool,
    accounts: &'static [&'static str],
    capabilities: Vec<String>,
    unattended: &'static str,
}

/// Version of a program file, which is valid as long as the file does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    changed_ns: u64,
    size: u64,
    version: Option<String>,
}

pub fn run(args: &AgentsArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))?;
    let config = swarm_config::load(swarm_config::root_above(&cwd))
        .map_err(|cause| Failure::new(RefusalKind::Invalid, cause.to_string()))?;
    if let Some(name) = &args.check {
        return agents_check::run(name, &config.agents, paths, screen);
    }
    let agents = all(&config.agents)?;
    let programs: Vec<Option<PathBuf>> = agents.iter().map(program_of).collect();
    // A command of the configuration is not executed: only the user's own programs are.
    let probed: Vec<Option<&Path>> = agents
        .iter()
        .zip(&programs)
        .map(|(agent, program)| program.as_deref().filter(|_| agent.config.command.is_none()))
        .collect();
    let versions = versions(&probed, paths);
    let rows: Vec<Row> = agents
        .iter()
        .zip(programs)
        .zip(versions)
        .map(|((agent, program), version)| row(agent, program, version))
        .collect();
    if args.json {
        json::print(screen, "swarm.agents/1", &serde_json::json!({ "agents": rows }))?;
    } else {
        show(&rows, screen)?;
    }
    Ok(0)
}

/// Returns the built-in agents and those of the configuration, which come after them.
fn all(configured: &BTreeMap<String, AgentConfig>) -> Result<Vec<Agent>, Failure> {
    let own = configured.keys().map(String::as_str).filter(|name| !BUILT_IN.contains(name));
    let find = |name| Agent::find(name, configured).map_err(|cause| Failure::new(RefusalKind::Invalid, cause));
    BUILT_IN.into_iter().chain(own).map(find).collect()
}

/// Returns the file that is executed for an agent, if it exists.
pub fn program_of(agent: &Agent) -> Option<PathBuf> {
    let configured = agent.config.command.as_ref().and_then(|words| words.first()).map(String::as_str);
    let name = configured.or(agent.kind.traits().program)?;
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var("PATH").ok();
    lookup::search(name, path.as_deref())
}

fn row(agent: &Agent, program: Option<PathBuf>, version: Option<String>) -> Row {
    let traits: &Traits = agent.kind.traits();
    let lost = version.as_deref().map(|version| traits.lost(version)).unwrap_or_default();
    let capabilities = agent.config.capabilities.clone();
    let offers = Offers {
        tested: traits.tested,
        output: traits.output,
        session: traits.session,
        asks: traits.asks,
        asks_in_runs: traits.asks != Asks::Never && !is_refused(agent),
        totals: traits.totals,
        price: traits.price,
        result_schema: traits.schema,
        mcp: traits.mcp,
        mail: traits.mail,
        accounts: traits.accounts,
        capabilities: capabilities.unwrap_or_else(|| traits.capabilities.iter().map(ToString::to_string).collect()),
        unattended: traits.unattended,
    };
    Row { name: agent.name.clone(), adapter: traits.name, program, version, lost, offers }
}

/// Reports whether a run that restricts its agents refuses this one.
fn is_refused(agent: &Agent) -> bool {
    refusal(agent, Some(Consent::PartialAccess)).is_some()
}

/// Returns how an agent asks a person in a run, or the name of the agent that does so with the same program.
fn asking(row: &Row) -> String {
    match row.adapter {
        "gemini" | "opencode" if !row.offers.asks_in_runs => format!("as {}-acp", row.adapter),
        _ if !row.offers.asks_in_runs => word(Asks::Never),
        _ => word(row.offers.asks),
    }
}

/// Returns the version of an agent's program. `None` if it does not tell, or if the configuration has another command.
pub fn version(agent: &Agent, paths: &Paths) -> Option<String> {
    let program = program_of(agent).filter(|_| agent.config.command.is_none());
    versions(&[program.as_deref()], paths).pop().flatten()
}

/// Returns the version of each program. Programs that have changed since their version was recorded are executed, all at
/// the same time.
fn versions(programs: &[Option<&Path>], paths: &Paths) -> Vec<Option<String>> {
    let file = paths.root().join(CACHE);
    let known: BTreeMap<PathBuf, Known> =
        std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let found: Vec<Option<(PathBuf, Known)>> = thread::scope(|scope| {
        let threads: Vec<_> =
            programs.iter().map(|program| program.map(|program| scope.spawn(|| version_of(program, &known)))).collect();
        threads.into_iter().map(|thread| thread.and_then(|thread| thread.join().ok().flatten())).collect()
    });
    let others =
        known.iter().filter(|(program, _)| program.exists()).map(|(program, known)| (program.clone(), known.clone()));
    let now: BTreeMap<PathBuf, Known> = others.chain(found.iter().flatten().cloned()).collect();
    // Without a state directory, or on a full disk, the programs are executed again the next time.
    if now != known
        && let Ok(text) = serde_json::to_vec(&now)
    {
        let _ = replace_private(paths.root(), CACHE, &text, Durability::None);
    }
    found.into_iter().map(|found| found.and_then(|(_, known)| known.version)).collect()
}

fn version_of(program: &Path, known: &BTreeMap<PathBuf, Known>) -> Option<(PathBuf, Known)> {
    let file = program.canonicalize().ok()?;
    let about = file.metadata().ok()?;
    let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let (changed_ns, size) = (u64::try_from(changed.as_nanos()).ok()?, about.len());
    let same = |known: &&Known| known.changed_ns == changed_ns && known.size == size;
    if let Some(known) = known.get(program).filter(same) {
        return Some((program.to_owned(), known.clone()));
    }
    let mut command = Command::new(program);
    // Nothing of the current directory is loaded, and no program replaces itself.
    command.arg("--version").current_dir("/").env("DISABLE_AUTOUPDATER", "1").env("OPENCODE_DISABLE_AUTOUPDATE", "1");
    let said = deadline::run(&mut command, None, LIMIT, BYTES_MAX).ok().filter(|said| said.success);
    // A program that does not answer is asked again the next time.
    let said = String::from_utf8_lossy(&said?.stdout).into_owned();
    let version = version_in(&said).map(str::to_owned);
    Some((program.to_owned(), Known { changed_ns, size, version }))
}

/// Returns the name of a value, as in JSON.
fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn show(rows: &[Row], screen: &mut Screen) -> Result<(), Failure> {
    let head = ["AGENT", "VERSION", "CONTINUES", "ASKS", "USAGE PER", "PRICE", "PROGRAM"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let has_program = row.program.is_some() || row.adapter == "shell";
        let program = match &row.program {
            Some(path) => escape(&path.to_string_lossy()).into_owned(),
            None if has_program => "(part of swarm)".to_owned(),
            None => "(not found)".to_owned(),
        };
        lines.push(vec![
            escape(&row.name).into_owned(),
            row.version.clone().unwrap_or_else(|| "-".to_owned()),
            if row.offers.session == Conversations::None { "no" } else { "yes" }.to_owned(),
            asking(row),
            word(row.offers.totals),
            if row.offers.price { "yes" } else { "no" }.to_owned(),
            program,
        ]);
    }
    screen.bytes(table(&lines, |_, _, _| None).as_bytes())?;
    for (row, lost) in rows.iter().flat_map(|row| row.lost.iter().map(move |lost| (row, lost))) {
        let version = row.version.as_deref().unwrap_or_default();
        screen.line(&format!("{} {version}: {lost}", escape(&row.name)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_which_agents_can_ask_in_runs() {
        let agents = all(&BTreeMap::new()).expect("built in");
        let asks = |name: &str| {
            let agent = agents.iter().find(|agent| agent.name == name).expect("there");
            let row = row(agent, None, None);
            (row.offers.asks_in_runs, asking(&row))
        };
        for (name, is_asking, shown) in [
            ("claude", true, "defer"),
            ("codex", true, "dialogue"),
            ("gemini", false, "as gemini-acp"),
            ("gemini-acp", true, "dialogue"),
            ("opencode", false, "as opencode-acp"),
            ("opencode-acp", true, "dialogue"),
            ("aider", false, "never"),
            ("shell", false, "never"),
        ] {
            assert_eq!(asks(name), (is_asking, shown.to_owned()), "{name}");
        }
    }
}
