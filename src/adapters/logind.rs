//! Whether the login manager ends what a user leaves behind at the end of a session:
//! a run that was begun there would be ended with it.

use std::fs;
use std::path::Path;

const CONFIG: [&str; 3] = ["/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf"];
const DROP_INS: [&str; 3] =
    ["/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"];
const LINGER: &str = "/var/lib/systemd/linger";

/// A sentence with the remedy, where that is so here.
pub fn warning() -> Option<String> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?.name;
    let lingers = Path::new(LINGER).join(&user).exists();
    if !in_session(&cgroup) || lingers || !kills(&config()) {
        return None;
    }
    Some(format!(
        "this machine ends a user's processes when the last session ends (KillUserProcesses), and the run with them; \
         loginctl enable-linger {user} keeps them"
    ))
}

/// What is configured, the word that counts last.
fn config() -> String {
    let main = CONFIG.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let mut files: Vec<_> = DROP_INS.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    let drop_ins = files.iter().filter_map(|file| fs::read_to_string(file.path()).ok());
    std::iter::once(main).chain(drop_ins).collect::<Vec<_>>().join("\n")
}

/// Whether this process belongs to a login session, as a cgroup's name says.
fn in_session(cgroup: &str) -> bool {
    cgroup.lines().any(|line| line.split('/').any(|part| part.starts_with("session-") && part.ends_with(".scope")))
}

fn kills(config: &str) -> bool {
    let mut said = config.lines().filter_map(|line| line.trim().strip_prefix("KillUserProcesses="));
    said.next_back().is_some_and(|value| matches!(value.trim(), "yes" | "true" | "1" | "on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_known_by_its_scope() {
        assert!(in_session("0::/user.slice/user-1000.slice/session-3.scope\n"));
        assert!(!in_session("0::/user.slice/user-1000.slice/user@1000.service/app.slice\n"));
        assert!(!in_session(""));
    }

    #[test]
    fn the_last_word_counts_and_none_is_no() {
        assert!(kills("[Login]\nKillUserProcesses=yes\n"));
        assert!(!kills("[Login]\nKillUserProcesses=yes\nKillUserProcesses=no\n"));
        assert!(!kills("[Login]\n#KillUserProcesses=yes\n"));
    }
}
