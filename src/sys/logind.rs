//! Login manager, which may kill all processes of a user at the end of a session, and the user's service manager.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::commands::deadline;
use crate::files::list;

const CONFIG: [&str; 3] = ["etc/systemd/logind.conf", "run/systemd/logind.conf", "usr/lib/systemd/logind.conf"];
const DROP_INS: [&str; 3] = ["usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d", "etc/systemd/logind.conf.d"];
/// Time limit of a call to the service manager.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum output of the service manager in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const LINGER: &str = "var/lib/systemd/linger";

/// Returns a warning with a remedy if the login manager will kill this process at the end of the session.
pub fn warning() -> Option<String> {
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    warning_for(Path::new("/"), &cgroup, &user()?)
}

/// Makes the user's service manager read its units again. Returns whether it did.
pub fn reload_units() -> bool {
    let mut command = Command::new("systemctl");
    command.args(["--user", "daemon-reload"]);
    deadline::run(&mut command, None, ANSWER_MAX, ANSWER_BYTES_MAX).is_ok_and(|said| said.success)
}

/// Returns the name of this process's user. `None` if it is unknown.
///
/// Reads `/etc/passwd` itself: in a static program the C library's `getpwuid` loads the modules of whichever C library
/// is installed, and crashes. A user of a directory service is known by `USER` and `LOGNAME` alone.
pub fn user() -> Option<String> {
    let from_file = name_of(nix::unistd::getuid().as_raw());
    let said = |key: &str| std::env::var(key).ok().filter(|name| !name.is_empty() && !name.contains('/'));
    from_file.or_else(|| said("USER")).or_else(|| said("LOGNAME"))
}

/// Returns the name of the user with this id. `None` if `/etc/passwd` does not have it.
pub fn name_of(uid: u32) -> Option<String> {
    fs::read_to_string("/etc/passwd").ok().and_then(|text| name_in(&text, uid))
}

/// Returns the name of the user with this id from the text of `/etc/passwd`.
fn name_in(text: &str, uid: u32) -> Option<String> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Reports whether the services of the user start at boot and survive the last session.
pub fn lingers() -> bool {
    user().is_some_and(|user| Path::new("/").join(LINGER).join(user).exists())
}

fn warning_for(root: &Path, cgroup: &str, user: &str) -> Option<String> {
    let lingers = root.join(LINGER).join(user).exists();
    if !in_session(cgroup) || lingers || !kills(&config(root), user) {
        return None;
    }
    Some(format!(
        "this machine kills a user's processes when the last session ends (KillUserProcesses), including this run; \
         run 'loginctl enable-linger {user}' to keep them"
    ))
}

/// Returns the configuration as text, in order of increasing precedence.
fn config(root: &Path) -> String {
    let main = CONFIG.iter().find_map(|path| fs::read_to_string(root.join(path)).ok()).unwrap_or_default();
    let mut files: Vec<_> = DROP_INS.iter().filter_map(|dir| list(&root.join(dir)).ok()).flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    let drop_ins = files.iter().filter_map(|file| fs::read_to_string(file.path()).ok());
    std::iter::once(main).chain(drop_ins).collect::<Vec<_>>().join("\n")
}

/// Reports whether this process belongs to a login session, by the name of its control group.
fn in_session(cgroup: &str) -> bool {
    cgroup.lines().any(|line| line.split('/').any(|part| part.starts_with("session-") && part.ends_with(".scope")))
}

/// Reports whether the login manager kills the processes of a user, by the rules of logind.conf(5): excluded users
/// first (root by default), then the exclusive list, then the setting for all.
fn kills(config: &str, user: &str) -> bool {
    let said = |key: &str| {
        let values = config.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        values.map(str::trim).collect::<Vec<_>>()
    };
    // Each line adds to a list, and an empty value clears it.
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
    fn a_name_is_that_of_the_first_line_with_the_id() {
        let text =
            "root:x:0:0:root:/root:/bin/sh\n#comment\nann:x:1000:1000::/home/ann:/bin/sh\nb:x:1000:1::/:/bin/sh\n";
        assert_eq!(name_in(text, 1000).as_deref(), Some("ann"));
        assert_eq!(name_in(text, 0).as_deref(), Some("root"));
        assert_eq!(name_in(text, 4242), None);
        assert_eq!(name_in(":x:7:7\ntorn:x\n", 7), None);
    }

    #[test]
    fn a_session_is_known_by_its_scope() {
        assert!(in_session(SESSION));
        assert!(!in_session("0::/user.slice/user-1000.slice/user@1000.service/app.slice\n"));
        assert!(!in_session(""));
    }

    #[test]
    fn the_last_value_wins_and_the_default_is_no() {
        assert!(kills("[Login]\nKillUserProcesses=yes\n", "ada"));
        assert!(!kills("[Login]\nKillUserProcesses=yes\nKillUserProcesses=no\n", "ada"));
        assert!(!kills("[Login]\n#KillUserProcesses=yes\n", "ada"));
    }

    #[test]
    fn lists_of_users_take_precedence() {
        assert!(!kills("KillUserProcesses=yes\n", "root"));
        assert!(kills("KillUserProcesses=yes\nKillExcludeUsers=\n", "root"));
        assert!(!kills("KillUserProcesses=yes\nKillExcludeUsers=bob ada\n", "ada"));
        assert!(!kills("KillUserProcesses=yes\nKillExcludeUsers=ada\nKillExcludeUsers=bob\n", "ada"));
        assert!(kills("KillOnlyUsers=ada\n", "ada") && !kills("KillUserProcesses=yes\nKillOnlyUsers=bob\n", "ada"));
    }

    #[test]
    fn the_warning_depends_on_session_configuration_and_lingering() {
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
        assert_eq!(said("0::/system.slice/cron.service\n"), None, "not in a session");
        write("var/lib/systemd/linger/ada", "");
        assert_eq!(said(SESSION), None, "the user lingers");
    }
}
