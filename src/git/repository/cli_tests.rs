use std::os::unix::process::ExitStatusExt as _;
use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::*;
use crate::fixture::Fixture;
use crate::repository::exit::{DRAIN_MS_MAX, Finished, STDERR_BYTES_MAX};
use crate::repository::fault::Fault;
use crate::repository::held::Held;

fn shell(script: &str, limit: Duration) -> Finished {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    wait_for_exit(command.spawn().unwrap(), limit, &|| None).unwrap()
}

#[test]
fn a_command_that_hangs_is_killed_with_its_helpers() {
    // The helper holds the pipe: the pipe reaches end of file when the helper
    // dies, long before the drain limit would end the wait.
    let begun = Instant::now();
    let ended = shell("echo begun; sleep 1000 & wait", Duration::from_millis(50));
    assert!(ended.timed_out && begun.elapsed() < Duration::from_millis(DRAIN_MS_MAX));
    assert_eq!((ended.status.signal(), ended.stdout.as_slice()), (Some(9), b"begun\n".as_slice()));
}

#[test]
fn output_is_bounded_but_read_to_its_end() {
    let ended = shell("head -c 300000 /dev/zero >&2; echo done", Duration::from_secs(60));
    assert_eq!((ended.stderr.len(), ended.stdout.as_slice()), (STDERR_BYTES_MAX, b"done\n".as_slice()));
    assert!(!ended.timed_out && ended.status.success());
}

#[test]
fn a_background_process_of_a_hook_is_not_waited_for() {
    let ended = shell("sleep 1000 & echo $!", Duration::from_secs(60));
    let pid = String::from_utf8(ended.stdout).unwrap().trim().parse().unwrap();
    assert!(ended.status.success() && !ended.timed_out);
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn exit_code_signal_and_missing_git_are_distinguished() {
    let mut fix = Fixture::new();
    let cli = fix.cli();
    let failed = cli.read(&fix.repo).args(["rev-parse", "--verify", "nothing"]).run().unwrap_err();
    assert!(
        matches!(&failed, CliError::Exit { code: 128, message } if message == "Needed a single revision"),
        "{failed:?}"
    );
    let signal = cli.read(&fix.repo).args(["-c", "alias.die=!kill -9 $PPID", "die"]).run().unwrap_err();
    assert!(matches!(signal, CliError::Signal(9)) && signal.was_cut_off(), "{signal:?}");
    fix.set("PATH", "/nowhere");
    let missing = Cli::new(&fix.caller).err().unwrap();
    assert_eq!(missing.to_string(), "git is not installed or not in PATH");
    assert!(missing.remedy().unwrap().contains("2.38"));
}

#[test]
fn repository_variables_do_not_reach_git_and_hooks_do_not_run() {
    let mut fix = Fixture::new();
    for key in UNSET {
        fix.set(key, "/elsewhere");
    }
    fix.set("LC_ALL", "de_DE.UTF-8");
    let out = fix.cli().read(&fix.repo).args(["-c", "alias.environment=!env", "environment"]).run().unwrap();
    let out = String::from_utf8(out).unwrap();
    // git itself sets some of them for the alias; none may keep the caller's value.
    assert!(!out.contains("/elsewhere"), "{out}");
    for line in ["LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0"] {
        assert!(out.lines().any(|seen| seen == line), "{line} is missing");
    }
    let hook = fix.repo.join(".git/hooks/reference-transaction");
    fix.script(&hook, "touch hook-ran");
    fix.cli().write(&fix.repo).args(["update-ref", "refs/x", "HEAD"]).run().unwrap();
    assert!(!fix.repo.join("hook-ran").exists());
    fix.cli().user(&fix.repo).args(["update-ref", "refs/y", "HEAD"]).run().unwrap();
    assert!(fix.repo.join("hook-ran").exists());
}

#[test]
fn recorded_resolutions_are_neither_written_nor_used() {
    let fix = Fixture::new();
    for setting in ["rerere.enabled", "rerere.autoUpdate"] {
        fix.git(&["config", setting, "true"]);
    }
    fix.git(&["checkout", "-q", "-b", "other"]);
    fix.commit("other", "f", "other\n");
    fix.git(&["checkout", "-q", "main"]);
    fix.commit("main", "f", "main\n");
    assert!(!fix.attempt(&fix.repo, &["merge", "-q", "other"]).0);
    fix.commit("merged", "f", "resolved\n");
    fix.git(&["reset", "-q", "--hard", "HEAD~1"]);
    let cache = fix.repo.join(".git/rr-cache");
    let [known] = &std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..] else {
        panic!("not recorded")
    };
    let own = fix.root.join("own");
    std::fs::write(&own, "own\n").unwrap();
    for name in ["thisimage", "preimage.1"] {
        let _ = std::fs::remove_file(known.join(name));
        std::os::unix::fs::symlink(&own, known.join(name)).unwrap();
    }
    fix.cli().write(&fix.repo).args(["merge", "-q", "--no-commit", "other"]).run_for(&[1]).unwrap();
    assert!(std::fs::read_to_string(fix.repo.join("f")).unwrap().contains("<<<<<<<"));
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "own\n");
}

#[test]
fn files_of_the_user_get_the_callers_umask() {
    let mut fix = Fixture::new();
    for umask in [0o077, 0o002] {
        fix.caller.umask = umask;
        let out = fix.cli().user(&fix.repo).args(["-c", "alias.mask=!umask; :", "mask"]).line().unwrap();
        assert_eq!(u32::from_str_radix(&out, 8).unwrap(), umask);
        let out = fix.cli().write(&fix.repo).args(["-c", "alias.mask=!umask; :", "mask"]).line().unwrap();
        assert_eq!(u32::from_str_radix(&out, 8).unwrap(), umask, "objects are everybody's who may read the repository");
    }
}

#[test]
fn a_git_that_waits_for_a_pipe_which_is_gone_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut git = Command::new("cat");
    let git = git.arg(&pipe).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let find = || {
        let _ = std::fs::remove_file(&pipe);
        None
    };
    let ended = wait_for_exit(git.spawn().unwrap(), Duration::from_secs(60), &find).unwrap();
    assert!(matches!(ended.held, Some(Held::Unknown)) && !ended.timed_out);
    let fault = Fault::from(CliError::from(Held::Unknown));
    assert!(fault.transient && fault.passes && !fault.is_mendable, "{fault:?}");
}

#[test]
fn a_pipe_that_holds_git_up_is_named_at_once() {
    let fix = Fixture::new();
    let (pipe, cli, begun) = (fix.repo.join("d/.gitignore"), fix.cli(), Instant::now());
    std::fs::create_dir(fix.repo.join("d")).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(fix.repo.join("d/new"), "").unwrap();
    for call in [cli.read(&fix.repo).arg("status"), cli.write(&fix.repo).args(["add", "-A"])] {
        let held = call.within(&fix.repo).run().unwrap_err();
        assert!(matches!(&held, CliError::Pipe(found) if *found == pipe), "{held:?}");
        assert_eq!(held.to_string(), format!("git cannot read {}, which is a named pipe", pipe.display()));
        assert!(!fix.repo.join(".git/index.lock").exists());
    }
    assert!(begun.elapsed() < Duration::from_millis(READ_MS_MAX));
    // A pipe at which git does not look is none.
    std::fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&fix.repo.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let slow = cli.read(&fix.repo).within(&fix.repo).args(["-c", "alias.slow=!sleep 1.5", "slow"]);
    slow.run().unwrap();
}
