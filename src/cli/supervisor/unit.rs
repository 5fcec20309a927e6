//! `swarm supervisor install`: installs a unit of the user's service manager that starts the supervisor at boot. The
//! unit is enabled by a symbolic link, as `systemctl --user enable` creates it, so that it also works without a login.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::json;
use swarm_model::{Refusal, RefusalKind};

use crate::cli::args::{InstallFlags, SupervisorFlags};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::escape;
use crate::cli::screen::Screen;
use swarm_sys::files::replace_durably;
use swarm_sys::logind;
use swarm_sys::paths::Paths;

/// First line of a unit that this program created.
const MARK: &str = "# Made by swarm supervisor install; swarm supervisor uninstall removes it.";
/// Directory of the enabling link, below the directory of the user's units.
const WANTED_BY: &str = "default.target.wants";

/// Contents of a unit.
struct Unit<'a> {
    program: &'a str,
    root: &'a str,
    path: Option<&'a str>,
    /// Value of `XDG_CONFIG_HOME`, whose `trust.json` the supervisor reads.
    config: Option<&'a str>,
    recover: bool,
}

impl Unit<'_> {
    fn text(&self) -> String {
        // `$` starts a variable in a command, but not in an assignment.
        let (program, root) = (quoted(self.program).replace('$', "$$"), self.root);
        let mut text = format!(
            "{MARK}\n[Unit]\nDescription=swarm: supervisor of the coding agents in {}\n\n[Service]\n\
             Type=oneshot\nRemainAfterExit=yes\nEnvironment=SWARM_STAY=1\nEnvironment={}\n",
            root.replace('%', "%%"),
            quoted(&format!("SWARM_DIR={root}")),
        );
        for (name, value) in [("PATH", self.path), ("XDG_CONFIG_HOME", self.config)] {
            if let Some(value) = value {
                let _ = writeln!(text, "Environment={}", quoted(&format!("{name}={value}")));
            }
        }
        let _ = writeln!(text, "ExecStart={program} supervisor start");
        if self.recover {
            // The `-` ignores a failure: a worker that cannot be recovered must not stop the others.
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

/// Quotes a text as systemd.service(5) specifies: in double quotes, with `%` doubled.
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

/// Directory of the user's units and name of this unit.
struct UnitFile {
    dir: PathBuf,
    name: String,
}

impl UnitFile {
    fn of(paths: &Paths) -> Result<Self, Refusal> {
        let user = swarm_config::user_path().and_then(|path| Some(path.parent()?.parent()?.join("systemd/user")));
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

    /// Reports whether the unit is enabled.
    ///
    /// # Errors
    /// Fails if a link or file of that name was created by someone else.
    fn is_linked(&self) -> Result<bool, Failure> {
        match fs::read_link(self.link()) {
            Ok(target) if target == self.file() => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Ok(_) | Err(_) => {
                let cause = format!("'{}' does not point to a unit of swarm", self.link().display());
                Err(Refusal::new(RefusalKind::Exists, cause).remedy("move it away first").into())
            }
        }
    }

    /// Returns the text of the installed unit; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read or was not created by this program.
    fn known(&self) -> Result<Option<String>, Failure> {
        match fs::read_to_string(self.file()) {
            Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
            Ok(_) => {
                let cause = format!("'{}' was not created by swarm", self.file().display());
                Err(Refusal::new(RefusalKind::Exists, cause).remedy("move it away first").into())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::system(format!("cannot read '{}'", self.file().display()), &error)),
        }
    }
}

pub fn install(args: &InstallFlags, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::system("cannot determine the path of this program", &error))?;
    let path = std::env::var("PATH").ok();
    let config = std::env::var("XDG_CONFIG_HOME").ok().filter(|value| Path::new(value).is_absolute());
    let unit = Unit {
        program: one_line(&program)?,
        root: one_line(paths.root())?,
        path: path.as_deref(),
        config: config.as_deref(),
        recover: args.recover,
    };
    for (name, value) in [("PATH", &path), ("XDG_CONFIG_HOME", &config)] {
        if value.as_ref().is_some_and(|value| value.contains(char::is_control)) {
            let cause = format!("{name} contains control characters, which are not possible in a unit");
            return Err(Failure::new(RefusalKind::Invalid, cause));
        }
    }
    let text = unit.text();
    if args.print {
        screen.bytes(text.as_bytes())?;
        return Ok(0);
    }
    let site = UnitFile::of(paths)?;
    let is_new = site.known()?.as_deref() != Some(text.as_str());
    let failed = |error: &io::Error| Failure::system(format!("cannot write to '{}'", site.dir.display()), error);
    fs::create_dir_all(site.dir.join(WANTED_BY)).map_err(|error| failed(&error))?;
    if is_new {
        replace_durably(&site.dir, &site.name, text.as_bytes()).map_err(|error| failed(&error))?;
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

/// Returns a path as text for a unit.
///
/// # Errors
/// Fails if the path is not UTF-8 or contains control characters.
fn one_line(path: &Path) -> Result<&str, Failure> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| {
        let cause = format!("path '{}' is not valid UTF-8 or contains control characters", path.display());
        Failure::new(RefusalKind::Invalid, escape(&cause))
    })
}

/// Returns the commands that the user still has to run, each with its purpose.
fn next(name: &str, is_told: bool) -> Vec<String> {
    let mut next = Vec::new();
    if !is_told {
        next.push(
            "systemctl --user daemon-reload    run this once logged in: the service manager is not reachable from here"
                .to_owned(),
        );
    }
    next.push(format!("systemctl --user start {name}    starts it now; otherwise it starts at your next login"));
    if !logind::lingers() {
        let user = logind::user().unwrap_or_else(|| "$USER".to_owned());
        next.push(format!(
            "loginctl enable-linger {user}    starts it at boot and keeps it running after logout; otherwise your \
             services end with your last session"
        ));
    }
    next
}

pub fn uninstall(flags: &SupervisorFlags, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let site = UnitFile::of(paths)?;
    let was_there = site.known()?.is_some();
    let link = if site.is_linked()? { Some(site.link()) } else { None };
    for path in link.into_iter().chain(was_there.then(|| site.file())) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::system(format!("cannot remove '{}'", path.display()), &error));
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
        screen.line(&format!("removed {}; running workers continue", escape(&site.file().to_string_lossy())))?;
    } else {
        screen.line("no unit is installed")?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_systemd() {
        assert_eq!(quoted("/a b/100%/$x\"\\"), "\"/a b/100%%/$x\\\"\\\\\"");
        let unit = Unit { program: "/$b/swarm", root: "/$s", path: None, config: None, recover: false }.text();
        assert!(unit.contains("ExecStart=\"/$$b/swarm\" ") && unit.contains("\"SWARM_DIR=/$s\""), "{unit}");
    }

    #[test]
    fn a_unit_has_program_and_directory_and_recovers_only_if_asked() {
        let (path, config) = (Some("/bin"), Some("/c d"));
        let unit = |recover| Unit { program: "/bin/swarm", root: "/s", path, config, recover }.text();
        assert!(unit(false).starts_with(MARK) && !unit(false).contains("recover"));
        assert!(unit(true).contains("ExecStartPost=-\"/bin/swarm\" recover --apply\n"));
        assert!(unit(true).contains("Environment=\"SWARM_DIR=/s\"\n") && unit(true).contains("Delegate=yes"));
        assert!(unit(true).contains("Environment=\"PATH=/bin\"\nEnvironment=\"XDG_CONFIG_HOME=/c d\"\n"));
    }
}
