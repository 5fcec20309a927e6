//! Unit by which the service manager starts the supervisor: it is written, linked and removed, and never replaces a
//! foreign file.

use std::fs;

use serde_json::Value;

use crate::common::{Rig, SOON, run, wait_until};

#[test]
fn the_unit_is_installed_once_and_removed_completely() {
    let rig = Rig::new();
    let shown = rig.swarm(&["supervisor", "install", "--print"]).ok();
    let dir = rig.path("home/.config/systemd/user");
    assert!(!dir.exists() && shown.contains("Delegate=yes") && !shown.contains("recover"), "{shown}");
    let install = || {
        let said = rig.swarm(&["supervisor", "install", "--recover", "--json"]).ok();
        serde_json::from_str::<Value>(&said).expect("JSON")
    };
    let body = install();
    assert_eq!(body, install(), "a second install changed something");
    let name = body["unit"].as_str().expect("a name");
    let text = fs::read_to_string(dir.join(name)).expect("written");
    assert!(text.contains(&format!("Environment=\"SWARM_DIR={}\"", rig.root().display())), "{text}");
    assert!(text.contains("supervisor start\n") && text.contains("recover --apply\n"), "{text}");
    let link = dir.join("default.target.wants").join(name);
    assert_eq!(fs::read_link(&link).expect("a link"), dir.join(name));
    rig.swarm(&["supervisor", "uninstall"]).ok();
    assert!(!dir.join(name).exists() && link.symlink_metadata().is_err());
    rig.swarm(&["supervisor", "uninstall"]).is(0, "no unit is installed\n", "");
    // A link of that name with another target belongs to the user.
    std::os::unix::fs::symlink("/usr/lib/systemd/user/other.service", &link).expect("made");
    for words in [["supervisor", "install"], ["supervisor", "uninstall"]] {
        let said = rig.swarm(&words);
        assert!(said.code == Some(1) && said.err.contains("does not point to a unit of swarm"), "{said:?}");
    }
    fs::remove_file(&link).expect("still there");
    fs::remove_file(dir.join(name)).ok();
    fs::write(dir.join(name), "[Unit]\n").expect("written");
    let said = rig.swarm(&["supervisor", "install"]);
    assert!(said.code == Some(1) && said.err.contains("was not created by swarm"), "{said:?}");
    assert_eq!(fs::read_to_string(dir.join(name)).expect("there"), "[Unit]\n");
}

#[test]
fn a_supervisor_started_by_the_unit_stays() {
    let rig = Rig::new();
    let mut command = rig.command(&["supervisor", "start"]);
    command.env("SWARM_STAY", "1");
    run(command).is(0, "supervisor is running\n", "");
    let (supervisor, _) = rig.keepers();
    rig.swarm(&["supervisor", "start"]).is(0, "supervisor is running\n", "");
    assert_eq!(rig.keepers().0, supervisor, "the supervisor was replaced");
    // A successor stays too, because it inherits the environment.
    crate::common::proc::kill(supervisor.expect("it runs"));
    wait_until("another supervisor runs", SOON, || rig.swarm(&["supervisor", "status"]).code == Some(0));
    let marked = rig.keepers().0.map(|pid| crate::common::proc::has_variable(pid, "SWARM_STAY=1"));
    assert_eq!(marked, Some(true));
}
