//! `swarm supervisor install`: a unit of the user's own service manager that starts the
//! supervisor at boot. Enabling is a link, as `systemctl --user enable` makes it, so that it
//! also works where nobody is logged in.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_model::{Refusal, RefusalKind};

use crate::adapters::logind;
use crate::adapters::records::write_durably;
use crate::cli::args::{InstallFlags, SupervisorFlags};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use crate::paths::Paths;

/// The first line of what is ours.
const MARK: &str = "# Made by swarm supervisor install; swarm supervisor uninstall removes it.";
/// Who starts it, below the directory of the user's units.
const WANTED_BY: &str = "default.target.wants";

/// What a unit says.
struct Unit<'a> {
    program: &'a str,
    root: &'a str,
    path: Option<&'a str>,
    recover: bool,
}

impl Unit<'_> {
    fn text(&self) -> String {
        // In a command a `$` begins a variable, in an assignment it does not.
        let (program, root) = (quoted(self.program).replace('$', "$$"), self.root);
        let mut text = format!(
            "{MARK}\n[Unit]\nDescription=swarm: supervisor of the coding agents in {}\n\n[Service]\n\
             Type=oneshot\nRemainAfterExit=yes\nEnvironment=SWARM_STAY=1\nEnvironment={}\n",
            root.replace('%', "%%"),
            quoted(&format!("SWARM_DIR={root}")),
        );
        if let Some(path) = self.path {
            let _ = writeln!(text, "Environment={}", quoted(&format!("PATH={path}")));
        }
        let _ = writeln!(text, "ExecStart={program} supervisor start");
        if self.recover {
            // One that cannot go on is no reason to end those that can.
            let _ = writeln!(text, "ExecStartPost=-{program} recover --apply");
        }
        let _ = write!(
            text,
            "ExecStop={program} supervisor stop\n\
             # Workers outlive their supervisor, and get groups of their own for their limits.\n\
             KillMode=process\nDelegate=yes\nTimeoutStartSec=infinity\n\n[Install]\nWantedBy=default.target\n"
        );
        text
    }
}

/// As systemd.service(5) has it: double quotes, with `%` standing for itself.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '%' => quoted.push_str("%%"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Where the user's units lie, and what this one is called.
struct Site {
    dir: PathBuf,
    name: String,
}

impl Site {
    fn of(paths: &Paths) -> Result<Self, Refusal> {
        let user = crate::config::user_path().and_then(|path| Some(path.parent()?.parent()?.join("systemd/user")));
        let none = || Refusal::new(RefusalKind::Invalid, "neither XDG_CONFIG_HOME nor HOME is set");
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".swarm"));
        let is_default = home.and_then(|home| home.canonicalize().ok()).as_deref() == Some(paths.root());
        let name = if is_default { "swarm.service".to_owned() } else { format!("{}.service", paths.session()) };
        Ok(Self { dir: user.ok_or_else(none)?, name })
    }

    fn file(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn link(&self) -> PathBuf {
        self.dir.join(WANTED_BY).join(&self.name)
    }

    /// Whether the manager begins ours; another one of that name is a person's.
    fn is_linked(&self) -> Result<bool, Failure> {
        match fs::read_link(self.link()) {
            Ok(target) if target == self.file() => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Ok(_) | Err(_) => {
                let cause = format!("{} does not lead to a unit of swarm", self.link().display());
                Err(Refusal::new(RefusalKind::Exists, cause).remedy("move it away").into())
            }
        }
    }

    /// What is there, if it is ours.
    fn known(&self) -> Result<Option<String>, Failure> {
        match fs::read_to_string(self.file()) {
            Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
            Ok(_) => {
                let cause = format!("{} was not made by swarm", self.file().display());
                Err(Refusal::new(RefusalKind::Exists, cause).remedy("move it away").into())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::system(self.file().display(), &error)),
        }
    }
}

pub fn install(args: &InstallFlags, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::system("this program", &error))?;
    let path = std::env::var("PATH").ok();
    let unit = Unit {
        program: one_line(&program)?,
        root: one_line(paths.root())?,
        path: path.as_deref(),
        recover: args.recover,
    };
    if path.as_ref().is_some_and(|path| path.contains(char::is_control)) {
        return Err(Failure::new(RefusalKind::Invalid, "PATH has control characters, which a unit cannot hold"));
    }
    let text = unit.text();
    if args.print {
        screen.bytes(text.as_bytes())?;
        return Ok(0);
    }
    let site = Site::of(paths)?;
    let is_new = site.known()?.as_deref() != Some(text.as_str());
    let failed = |error: &io::Error| Failure::system(site.dir.display(), error);
    fs::create_dir_all(site.dir.join(WANTED_BY)).map_err(|error| failed(&error))?;
    if is_new {
        write_durably(&site.dir, &site.name, text.as_bytes()).map_err(|error| failed(&error))?;
    }
    if !site.is_linked()? {
        symlink(site.file(), site.link()).map_err(|error| failed(&error))?;
    }
    let is_told = logind::reload_units();
    let next = next(&site.name, is_told);
    if args.json {
        let body = json!({"unit": site.name, "file": site.file(), "recover": args.recover, "lingers": logind::lingers(), "next": next});
        json::print(screen, "swarm.supervisor.installed/1", &body)?;
        return Ok(0);
    }
    screen.line(&format!("installed {}", escape(&site.file().to_string_lossy())))?;
    next.iter().try_for_each(|line| screen.line(line))?;
    Ok(0)
}

/// A path as a unit can hold it.
fn one_line(path: &Path) -> Result<&str, Failure> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| {
        let cause = format!("{} is not UTF-8 or has control characters, which a unit cannot hold", path.display());
        Failure::new(RefusalKind::Invalid, escape(&cause))
    })
}

/// What is left for the person to do.
fn next(name: &str, is_told: bool) -> Vec<String> {
    let mut next = Vec::new();
    if !is_told {
        next.push(
            "systemctl --user daemon-reload    once you are logged in: the service manager cannot be reached from here"
                .to_owned(),
        );
    }
    next.push(format!("systemctl --user start {name}    begins it now; otherwise it begins with your next login"));
    if !logind::lingers() {
        let user = logind::user().unwrap_or_else(|| "$USER".to_owned());
        next.push(format!(
            "loginctl enable-linger {user}    begins it at boot and lets it outlive your logout; without that your \
             services end with your last session"
        ));
    }
    next
}

pub fn uninstall(flags: &SupervisorFlags, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let site = Site::of(paths)?;
    let was_there = site.known()?.is_some();
    let link = if site.is_linked()? { Some(site.link()) } else { None };
    for path in link.into_iter().chain(was_there.then(|| site.file())) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::system(path.display(), &error));
            }
            _ => {}
        }
    }
    if was_there {
        logind::reload_units();
    }
    if flags.json {
        json::print(screen, "swarm.supervisor.uninstalled/1", &json!({"unit": site.name, "removed": was_there}))?;
    } else if was_there {
        screen.line(&format!("removed {}; what runs goes on", escape(&site.file().to_string_lossy())))?;
    } else {
        screen.line("nothing is installed")?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_the_manager_reads_them() {
        assert_eq!(quoted("/a b/100%/$x\"\\"), "\"/a b/100%%/$x\\\"\\\\\"");
        let unit = Unit { program: "/$b/swarm", root: "/$s", path: None, recover: false }.text();
        assert!(unit.contains("ExecStart=\"/$$b/swarm\" ") && unit.contains("\"SWARM_DIR=/$s\""), "{unit}");
    }

    #[test]
    fn a_unit_says_who_and_where_and_recovers_only_when_asked() {
        let unit = |recover| Unit { program: "/bin/swarm", root: "/s", path: Some("/bin"), recover }.text();
        assert!(unit(false).starts_with(MARK) && !unit(false).contains("recover"));
        assert!(unit(true).contains("ExecStartPost=-\"/bin/swarm\" recover --apply\n"));
        assert!(unit(true).contains("Environment=\"SWARM_DIR=/s\"\n") && unit(true).contains("Delegate=yes"));
    }
}
