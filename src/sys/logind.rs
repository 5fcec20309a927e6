//! The login manager, which may end what a user leaves behind at the end of a session (a run
//! that was begun there with it), and the user's service manager.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::commands::deadline;

const CONFIG: [&str; 3] = ["etc/systemd/logind.conf", "run/systemd/logind.conf", "usr/lib/systemd/logind.conf"];
const DROP_INS: [&str; 3] = ["usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d"];
/// How long the service manager may take, and what it may say.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 << 10;
const LINGER: &str = "var/lib/systemd/linger";

/// A sentence with the remedy, where that is so here.
pub fn warning() -> Option<String> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    warning_for(Path::new("/"), &cgroup, &user()?)
}

/// Has the user's service manager read its units again; whether it did.
pub fn reload_units() -> bool {
    let mut command = Command::new("systemctl");
    command.args(["--user", "daemon-reload"]);
    deadline::run(&mut command, None, ANSWER_MAX, ANSWER_BYTES_MAX).is_ok_and(|said| said.success)
}

/// The name of this process's user.
pub fn user() -> Option<String> {
    Some(nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten()?.name)
}

/// Whether the user's services begin at boot and outlive the last session.
pub fn lingers() -> bool {
    user().is_some_and(|user| Path::new("/").join(LINGER).join(user).exists())
}

fn warning_for(root: &Path, cgroup: &str, user: &str) -> Option<String> {
    let lingers = root.join(LINGER).join(user).exists();
    if !in_session(cgroup) || lingers || !kills(&config(root), user) {
        return None;
    }
    Some(format!(
        "this machine ends a user's processes when the last session ends (KillUserProcesses), and the run with them; \
         loginctl enable-linger {user} keeps them"
    ))
}

/// What is configured, the word that counts last.
fn config(root: &Path) -> String {
    let main = CONFIG.iter().find_map(|path| fs::read_to_string(root.join(path)).ok()).unwrap_or_default();
    let mut files: Vec<_> =
        DROP_INS.iter().filter_map(|dir| fs::read_dir(root.join(dir)).ok()).flatten().flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    let drop_ins = files.iter().filter_map(|file| fs::read_to_string(file.path()).ok());
    std::iter::once(main).chain(drop_ins).collect::<Vec<_>>().join("\n")
}

/// Whether this process belongs to a login session, as a cgroup's name says.
fn in_session(cgroup: &str) -> bool {
    cgroup.lines().any(|line| line.split('/').any(|part| part.starts_with("session-") && part.ends_with(".scope")))
}

/// In the order of logind.conf(5): who is excluded, root where nobody is named; then who
/// alone is meant; then all or none.
fn kills(config: &str, user: &str) -> bool {
    let said = |key: &str| {
        let values = config.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        values.map(str::trim).collect::<Vec<_>>()
    };
    // Lists grow with each line, and an empty one begins them anew.
    let names = |key: &str| {
        let said = said(key);
        let from = said.iter().rposition(|value| value.is_empty()).unwrap_or(0);
        let names = said[from..].iter().flat_map(|value| value.split_whitespace()).map(str::to_owned);
        (!said.is_empty()).then(|| names.collect::<Vec<_>>())
    };
    let has = |names: &[String]| names.iter().any(|name| name == user);
    if has(&names("KillExcludeUsers").unwrap_or_else(|| vec!["root".to_owned()])) {
        return false;
    }
    match names("KillOnlyUsers").filter(|names| !names.is_empty()) {
        Some(only) => has(&only),
        None => matches!(said("KillUserProcesses").last(), Some(&("yes" | "true" | "1" | "on"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "0::/user.slice/user-1000.slice/session-3.scope\n";

    #[test]
    fn a_session_is_known_by_its_scope() {
        assert!(in_session(SESSION));
        assert!(!in_session("0::/user.slice/user-1000.slice/user@1000.service/app.slice\n"));
        assert!(!in_session(""));
    }

    #[test]
    fn the_last_word_counts_and_none_is_no() {
        assert!(kills("[Login]\nKillUserProcesses=yes\n", "ada"));
        assert!(!kills("[Login]\nKillUserProcesses=yes\nKillUserProcesses=no\n", "ada"));
        assert!(!kills("[Login]\n#KillUserProcesses=yes\n", "ada"));
    }

    #[test]
    fn who_is_named_counts_before_all() {
        assert!(!kills("KillUserProcesses=yes\n", "root"));
        assert!(kills("KillUserProcesses=yes\nKillExcludeUsers=\n", "root"));
        assert!(!kills("KillUserProcesses=yes\nKillExcludeUsers=bob ada\n", "ada"));
        assert!(!kills("KillUserProcesses=yes\nKillExcludeUsers=ada\nKillExcludeUsers=bob\n", "ada"));
        assert!(kills("KillOnlyUsers=ada\n", "ada") && !kills("KillUserProcesses=yes\nKillOnlyUsers=bob\n", "ada"));
    }

    #[test]
    fn it_is_said_where_the_machine_is_so() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let said = |cgroup: &str| warning_for(root.path(), cgroup, "ada");
        assert_eq!(said(SESSION), None, "nothing is configured");
        write("usr/lib/systemd/logind.conf", "[Login]\nKillUserProcesses=no\n");
        write("etc/systemd/logind.conf.d/kill.conf", "[Login]\nKillUserProcesses=yes\n");
        assert!(said(SESSION).is_some_and(|text| text.contains("loginctl enable-linger ada")));
        assert_eq!(said("0::/system.slice/cron.service\n"), None, "it is of no session");
        write("var/lib/systemd/linger/ada", "");
        assert_eq!(said(SESSION), None, "what lingers stays");
    }
}
