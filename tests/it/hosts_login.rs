//! The login on a host: its shell, its environment, and the agents there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::{Said, run, skipped};
use crate::hosts::Site;

/// Way to a host that executes words as sshd does: joined, by the login shell.
fn by_shell(shell: &str) -> String {
    format!(
        "shift 2\nenvironment=\"\"\nwhile case \"$1\" in *=*) true;; *) false;; esac; do\n    \
             environment=\"$environment $1\"\n    shift\ndone\nexec env -i $environment SHELL={shell} {shell} -c \"$*\"\n"
    )
}

fn worker_env(site: &Site) -> String {
    site.on_box(&["spawn", "--name", "w", "--", "env"]).ok();
    site.there.wait("w");
    site.there.log("w", "stdout")
}

#[test]
fn other_login_shells_than_those_of_posix_work() {
    for (shell, file, text) in [
        ("/usr/bin/tcsh", ".login", "echo welcome\nsetenv FROM_LOGIN 1\n"),
        ("/usr/bin/fish", ".config/fish/config.fish", "echo welcome\nset -x FROM_LOGIN 1\n"),
    ] {
        if !fs::exists(shell).expect("looked") {
            skipped(&format!("{shell} is not installed"));
            continue;
        }
        let site = Site::new();
        site.here.file("gate", &by_shell(shell));
        let file = site.there.home().join(file);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(&file, text).expect("written");
        fs::write(site.there.home().join(".cshrc"), "echo noise\n").expect("written");
        let printed = worker_env(&site);
        assert!(printed.lines().any(|line| line == "FROM_LOGIN=1"), "{shell}: {printed}");
    }
}

#[test]
fn variables_are_sent_by_name_and_never_by_default() {
    let site = Site::new();
    let env = |name: &str| -> String {
        let mut command = site.here.command(&["--host", "box", "spawn", "--name", name, "--", "env"]);
        command.env("MY_KEY", "secret").env("OTHER", "1");
        run(command).ok();
        site.there.wait(name);
        site.there.log(name, "stdout")
    };
    assert!(!env("a").contains("MY_KEY"));
    site.configure("send_env = ['MY_KEY', 'UNSET']\n");
    let printed = env("b");
    assert!(
        printed.contains("MY_KEY=secret\n") && !printed.contains("OTHER") && !printed.contains("UNSET"),
        "{printed}"
    );
    site.configure("send_env = ['PATH']\n");
    let said = site.on_box(&["ls"]);
    assert!(said.code == Some(1) && said.err.contains("'PATH' is not sent"), "{said:?}");
}

#[test]
fn agents_on_a_host_are_checked() {
    let site = Site::new();
    let check = || -> Said { site.here.swarm(&["hosts", "check", "box", "--agent", "claude"]) };
    let bin = site.there.path("bin");
    fs::create_dir(&bin).expect("made");
    let path = format!("export PATH={}:/usr/bin:/bin\n", bin.display());
    fs::write(site.there.home().join(".profile"), path).expect("written");
    let said = check();
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("claude is not installed: 'claude' is not in PATH"), "{said:?}");
    let claude = bin.join("claude");
    let script = "#!/bin/sh\n[ \"$1\" != --version ] || exec echo 2.1.300\n[ \"$*\" = 'auth status' ] || exit 9\n\
                  [ -e \"$HOME/in\" ] || { echo '{\"loggedIn\": false}'; exit 1; }\necho '{\"loggedIn\": true}'\n";
    fs::write(&claude, script).expect("written");
    fs::set_permissions(&claude, fs::Permissions::from_mode(0o755)).expect("executable");
    let said = check();
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("claude is not logged in") && said.out.contains("'claude auth login'"), "{said:?}");
    fs::write(site.there.home().join("in"), "").expect("written");
    let said = check();
    assert!(said.out.contains(&format!("claude 2.1.300 ({}): logged in", claude.display())), "{said:?}");
}
