//! Applies `[spawn]` and `[limits]` of the configuration as defaults for flags that were not given.

use std::path::PathBuf;

use swarm_model::{Limits, Refusal, RefusalKind, RestartPolicy};

use crate::cli::args::{LimitFlags, Restart, SpawnArgs};
use crate::cli::error::Failure;
use crate::cli::screen::Screen;
use crate::cli::trust::again::{self, question};
use swarm_config::trust::Untrusted;
use swarm_config::{self, Sections};
use swarm_sys::duration;

/// Returns `args` with the defaults that are configured for the current directory, after a person agreed to what they
/// execute and set.
pub fn filled(args: &SpawnArgs, screen: &mut Screen) -> Result<SpawnArgs, Failure> {
    let cwd = current_dir()?;
    let root = swarm_config::root_above(&cwd);
    let asked = over(args, &swarm_config::as_written(root).map_err(wrong)?).map_err(wrong)?;
    question(root, &used_by(&asked))?.require(screen)?;
    let sections = swarm_config::load(root).map_err(wrong)?;
    let untrusted = |untrusted: Untrusted| Refusal::new(RefusalKind::Invalid, untrusted.cause).remedy(untrusted.remedy);
    sections.unasked.require(&["spawn"]).map_err(untrusted)?;
    Ok(over(args, &sections).map_err(wrong)?)
}

/// Returns the sections whose commands and variables the worker gets: of the configuration, and of the files that its
/// agent loads from the new worktree. Without a worktree, an agent runs where it was typed, as in a shell.
pub fn used_by(args: &SpawnArgs) -> Vec<&'static str> {
    let used = [("spawn", true), ("worktree", args.worktree), ("trash", args.worktree), ("merge", args.merge)];
    let used = used.into_iter().filter(|(_, is_used)| *is_used).map(|(section, _)| section);
    used.chain(again::loads_of(&args.command).filter(|_| args.worktree)).collect()
}

/// Returns the limits for a worker in its own window: as typed, else as configured.
pub fn limits(typed: LimitFlags) -> Result<LimitFlags, Failure> {
    let set = sections()?.limits.parse().map_err(wrong)?;
    Ok(Limits::from(typed).or(set).into())
}

/// Reads the configuration that applies in the current directory.
fn sections() -> Result<Sections, Failure> {
    Ok(swarm_config::load(swarm_config::root_above(&current_dir()?)).map_err(wrong)?)
}

fn current_dir() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::system("cannot determine the current directory", &error))
}

fn wrong(cause: String) -> Refusal {
    Refusal::new(RefusalKind::Invalid, cause).remedy("fix the file and try again")
}

/// Returns `args` with defaults from `sections`.
///
/// # Errors
/// Returns an error if a configured duration or limit is invalid.
pub fn over(args: &SpawnArgs, sections: &Sections) -> Result<SpawnArgs, String> {
    let (mut args, set) = (args.clone(), &sections.spawn);
    args.tmux |= set.tmux && !args.no_tmux;
    args.worktree |= set.worktree && !args.no_worktree;
    args.restart = args.restart.or_else(|| set.restart.map(restart));
    for (typed, set) in [(&mut args.timeout, &set.timeout), (&mut args.stuck_after, &set.stuck_after)] {
        if let (None, Some(time)) = (&typed, set) {
            *typed = Some(duration::parse_positive(&time.text())?);
        }
    }
    let limits = sections.limits.parse()?;
    let place = &mut args.place;
    place.limits = Limits::from(place.limits).or(limits).into();
    // Places for windows and worktrees do not apply to a worker without one.
    if args.tmux {
        place.session = place.session.take().or_else(|| set.session.clone());
        place.tmux_socket = place.tmux_socket.take().or_else(|| set.tmux_socket.clone());
    }
    if args.worktree {
        place.base = place.base.take().or_else(|| set.base.clone());
        place.worktree_dir = place.worktree_dir.take().or_else(|| set.worktree_dir.clone());
    }
    place.tags.splice(0..0, set.tags.iter().cloned());
    // The last of two equal names counts, so typed variables come last.
    place.env.splice(0..0, set.env.iter().map(|(name, value)| format!("{name}={value}")));
    Ok(args)
}

fn restart(policy: RestartPolicy) -> Restart {
    match policy {
        RestartPolicy::Never => Restart::Never,
        RestartPolicy::OnFailure => Restart::OnFailure,
        RestartPolicy::Always => Restart::Always,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::sample;

    fn filled(set: &str, words: &[&str]) -> SpawnArgs {
        let sections: swarm_config::Sections = toml::from_str(set).expect("sections");
        let words = [&["spawn", "--name", "x"], words, &["--", "true"]].concat();
        match sample::command(&words) {
            Command::Spawn(args) => over(&args, &sections).expect("it fits"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_override_the_configuration() {
        let set = "[spawn]\ntmux = true\nworktree = true\nrestart = 'always'\ntimeout = '5m'\ntags = ['a']\n\
                   base = 'main'\nsession = 's'\n[spawn.env]\nA = '1'\nB = '2'\n";
        let args = filled(set, &[]);
        assert!(args.tmux && args.worktree && matches!(args.restart, Some(Restart::Always)));
        assert_eq!(args.timeout.map(|life| life.as_secs()), Some(300));
        assert_eq!((args.place.tags.as_slice(), args.place.base.as_deref()), (&["a".to_owned()][..], Some("main")));
        let typed =
            ["--no-tmux", "--no-worktree", "--restart", "never", "--timeout", "9", "--tag", "b", "--env", "A=3"];
        let args = filled(set, &typed);
        assert!(!args.tmux && !args.worktree && matches!(args.restart, Some(Restart::Never)));
        assert_eq!(args.timeout.map(|life| life.as_secs()), Some(9));
        assert_eq!((args.place.tags.join(","), args.place.env.join(",")), ("a,b".into(), "A=1,B=2,A=3".into()));
        assert_eq!((args.place.base, args.place.session), (None, None));
    }

    #[test]
    fn each_limit_has_its_own_default() {
        let limits = filled("[limits]\nmemory = '2G'\ncpu = 0.5\npids = 100\n", &["--memory", "1G"]).place.limits;
        assert_eq!((limits.memory, limits.cpu, limits.pids), (Some(1 << 30), Some(500), Some(100)));
    }

    #[test]
    fn the_last_of_a_flag_and_its_opposite_counts() {
        assert!(filled("", &["--no-tmux", "--tmux"]).tmux);
        assert!(!filled("", &["--tmux", "--no-tmux"]).tmux);
    }
}
