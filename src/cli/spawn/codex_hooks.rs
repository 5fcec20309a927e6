//! Asks `codex` for the hashes of our hooks, without which it would ask a person whether to trust them. Once for each version
//! of `codex`; without an answer, its windows start without hooks.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use swarm_agents::codex_hooks::{self, Hashes};
use swarm_model::Contract;
use swarm_store::sessions::hooked;
use swarm_sys::paths::Paths;

/// Maximum wait for the answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks `codex` if the worker of this contract needs that. Returns a warning if there is no answer.
pub fn ask(contract: &Contract, paths: &Paths) -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let codex = hooked::codex_to_ask(paths, contract, &program)?;
    let asked = hashes(&codex, &program).and_then(|hashes| {
        // The directory may not exist before the first start.
        swarm_sys::files::make_dirs(paths.root()).map_err(|error| error.to_string())?;
        hooked::remember(paths, &codex, &program, hashes).map_err(|error| error.to_string())
    });
    let cause = asked.err()?;
    Some(format!("codex does not report what it does, because it cannot be asked about its hooks: {cause}"))
}

fn hashes(codex: &Path, program: &Path) -> Result<Hashes, String> {
    let flags = codex_hooks::flags(program).ok_or("the path of swarm is not UTF-8")?;
    let mut command = Command::new(codex);
    // Nothing of the current directory is loaded.
    command.arg("app-server").args(flags).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = command.spawn().map_err(|error| error.to_string())?;
    let answer = talk(&mut server, program);
    // A wrapper script may have a child, which ends when its input does.
    drop(server.stdin.take());
    // Without it, a server that is stopped would be waited for without a limit.
    let _ = server.kill();
    let _ = server.wait();
    answer
}

fn talk(server: &mut Child, program: &Path) -> Result<Hashes, String> {
    let (Some(stdin), Some(stdout)) = (server.stdin.as_mut(), server.stdout.take()) else {
        return Err("it has no streams".to_owned());
    };
    for line in codex_hooks::questions(Path::new("/")) {
        writeln!(stdin, "{line}").map_err(|error| error.to_string())?;
    }
    let (sender, answer) = mpsc::channel();
    let program = program.to_owned();
    // Ends with the output, at the latest when the server is killed.
    thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let said = lines.filter_map(|line| codex_hooks::hashes(&line, &program)).next();
        let _ = sender.send(said.unwrap_or_else(|| Err("it ended without an answer".to_owned())));
    });
    answer.recv_timeout(LIMIT).unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
}
