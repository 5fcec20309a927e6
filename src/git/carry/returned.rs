//! Work of attempts that were given up, and what attempts could not commit. A reference keeps it until a person drops it; nothing lands it by itself.

use std::fs;
use std::path::Path;

use swarm_model::Caller;

use super::{CarryError, FarRepository, check, failed, get};
use crate::repository::cli::Cli;
use crate::repository::durable::sync_file_systems;
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Entry};
use crate::repository::{gc_lock, objects};
use crate::worktrees::record;

/// Namespace of the refs here that keep what attempts have left on hosts apart from their work: `HOST/JOB.ATTEMPT`.
const FROM: &str = "refs/swarm/from";
/// Number of references that begin with the same name.
const NAMES_MAX: usize = 100;

/// Fetches work from the clone and keeps it here, durably, under a reference `name`, or `name-2` and so on if there is other
/// work. No reference is moved. Returns its name. Does nothing if that was done before.
///
/// # Errors
/// Returns why the work may not be here.
pub fn keep(
    common: &Path,
    far: &FarRepository,
    (tip, name): (&str, &str),
    caller: &Caller,
) -> Result<String, CarryError> {
    check(std::slice::from_ref(&tip.to_owned()))?;
    let cli = Cli::new(caller).map_err(failed)?;
    let refuse = |fault: Fault| CarryError::Refused(fault.cause);
    let _hold = gc_lock::hold(common, gc_lock::LANDING_WAIT).map_err(refuse)?;
    clear_torn(common, name).map_err(refuse)?;
    get(&cli, common, far, tip)?;
    for name in names(name) {
        let known = objects::commit(&cli, common, &name).map_err(failed)?;
        if known.as_deref().is_some_and(|known| known != tip) {
            continue;
        }
        if known.is_none() {
            create(&cli, common, &name, tip).map_err(refuse)?;
        }
        return sync_file_systems([common]).map(|()| name).map_err(refuse);
    }
    Err(CarryError::Refused(format!("there are {NAMES_MAX} references '{name}'")))
}

/// Fetches several commits and keeps them here as [`keep`] does, except those that another one contains. Returns the names.
///
/// # Errors
/// Returns why they may not be here.
pub fn keep_all(
    common: &Path,
    far: &FarRepository,
    (commits, name): (&[String], &str),
    caller: &Caller,
) -> Result<Vec<String>, CarryError> {
    let cli = Cli::new(caller).map_err(failed)?;
    let (mut names, mut here): (Vec<String>, Vec<&String>) = (Vec::new(), Vec::new());
    for commit in commits {
        let mut is_contained = false;
        for kept in &here {
            // One that is not here is contained in none.
            let words = ["merge-base", "--is-ancestor", commit, kept];
            is_contained |= cli.read(common).args(words).run_for(&[0, 1, 128]).map_err(failed)?.0 == 0;
        }
        if !is_contained {
            names.push(keep(common, far, (commit, name), caller)?);
            here.push(commit);
        }
    }
    Ok(names)
}

/// Fetches what an attempt has left apart from its work, and keeps it here, durably, as [`keep`] does, under a name below
/// `refs/swarm/from/`, which is returned.
///
/// # Errors
/// Returns why it may not be here.
pub fn fetch_left(
    common: &Path,
    far: &FarRepository,
    (commit, label): (&str, &str),
    caller: &Caller,
) -> Result<String, CarryError> {
    let name = format!("{FROM}/{}/{}", ref_part(&far.host), ref_part(label));
    keep(common, far, (commit, &name), caller)
}

/// Returns a text as a part of the name of a reference.
pub(super) fn ref_part(text: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-@.".contains(it);
    let plain: String = text.chars().map(|it| if is_plain(it) { it } else { '-' }).collect();
    let plain = plain.replace("..", "--");
    let plain = plain.strip_suffix(".lock").unwrap_or(&plain).trim_matches('.');
    if plain.is_empty() || plain == "@" { "-".to_owned() } else { plain.to_owned() }
}

/// Removes files of references to which a power cut left no content: git fails because of them. The work comes back again.
fn clear_torn(common: &Path, name: &str) -> Result<(), Fault> {
    for name in names(name) {
        record::check_reference(common, &name)?;
        let file = common.join(&name);
        let Ok(text) = record::read(&file) else { return Ok(()) };
        if text.iter().all(|byte| *byte == 0) {
            fs::remove_file(&file).map_err(Fault::at(&file))?;
        }
    }
    Ok(())
}

fn names(name: &str) -> impl Iterator<Item = String> {
    let more = (2..=NAMES_MAX).map({
        let name = name.to_owned();
        move |number| format!("{name}-{number}")
    });
    std::iter::once(name.to_owned()).chain(more)
}

fn create(cli: &Cli, common: &Path, name: &str, tip: &str) -> Result<(), Fault> {
    let entry = Entry { why: "swarm: work of an attempt on a host", makes: false };
    plain_ref::write(cli, common, (name, tip), Before::Absent, entry)
}
