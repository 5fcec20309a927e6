//! Registrations of flows: `caller.json` in a directory for each flow that is run, below `flow/` in the state directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_model::{Caller, FlowPlace, FlowRules};
use swarm_ports::Survey;

use super::active::files_of;
use super::store::{FLOW, FlowFiles};
use swarm_sys::files;
use swarm_sys::paths::{Paths, digest};

pub(super) const CALLER: &str = "caller.json";

/// Content of `caller.json`, which registers a flow as active, with the caller on whose behalf it runs.
#[derive(Serialize, Deserialize)]
pub(super) struct Active {
    pub place: FlowPlace,
    pub caller: Caller,
    pub rules: FlowRules,
}

/// Returns the directory that registers a flow.
pub(super) fn registration(paths: &Paths, place: &FlowPlace) -> PathBuf {
    let text = format!("{}\0{}\0{}", place.root, place.project, place.flow);
    paths.flows().join(digest(text.as_bytes(), 8))
}

/// Returns the registration of a flow; `None` if it has none.
pub(super) fn read(paths: &Paths, place: &FlowPlace) -> io::Result<Option<Active>> {
    read_in(&registration(paths, place))
}

fn read_in(dir: &Path) -> io::Result<Option<Active>> {
    match fs::read(dir.join(CALLER)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reports whether a supervisor runs the flow, or is going to.
pub fn is_run(paths: &Paths, place: &FlowPlace) -> bool {
    // If the lookup fails, the file may exist.
    registration(paths, place).join(CALLER).try_exists().unwrap_or(true)
}

/// Returns the places of all registered flows. The registration of a flow that was removed is removed as well.
pub(super) fn active(paths: &Paths) -> io::Result<Survey<FlowPlace>> {
    let mut survey = Survey::default();
    for entry in files::list_if_present(&paths.flows())? {
        match read_in(&entry.path()) {
            Ok(None) => {}
            Ok(Some(Active { place, .. })) if files::is_absent(Path::new(&place.root)) => {
                tracing::warn!(flow = %place, root = %place.root, "the workspace of a flow that is run does not exist");
            }
            Ok(Some(Active { place, .. })) if is_gone(&place) => drop(fs::remove_dir_all(entry.path())),
            Ok(Some(active)) => survey.found.push(active.place),
            Err(error) => survey.miss(entry.path().display(), error),
        }
    }
    survey.found.sort();
    Ok(survey)
}

/// Returns the flows that are registered in this state directory. What cannot be read is left out, and nothing changes.
pub fn registered(paths: &Paths) -> Vec<FlowFiles> {
    let entries = files::list_if_present(&paths.flows()).unwrap_or_default();
    let files = |dir: &Path| files_of(&read_in(dir).ok()??.place).ok();
    entries.iter().filter_map(|entry| files(&entry.path())).collect()
}

/// Reports whether the flow was removed from its workspace.
fn is_gone(place: &FlowPlace) -> bool {
    files_of(place).is_ok_and(|files| files::is_absent(&files.dir().join(FLOW)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_that_cannot_be_read_hides_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("s"));
        assert_eq!(active(&paths).expect("none"), Survey::default());
        let root = dir.path().join("ws");
        let flow = |name: &str| FlowPlace {
            root: root.to_string_lossy().into_owned(),
            project: "p".to_owned(),
            flow: name.to_owned(),
        };
        let (kept, gone) = (flow("20260101T000000000Z-aaaaaa"), flow("20260101T000000000Z-bbbbbb"));
        let far = FlowPlace { root: dir.path().join("not mounted").to_string_lossy().into_owned(), ..kept.clone() };
        for place in [&kept, &gone, &far] {
            let dir = registration(&paths, place);
            fs::create_dir_all(&dir).expect("made");
            let active = Active { place: place.clone(), caller: Caller::default(), rules: FlowRules::default() };
            fs::write(dir.join(CALLER), serde_json::to_vec(&active).expect("JSON")).expect("written");
        }
        fs::create_dir_all(&root).expect("made");
        let files = files_of(&kept).expect("valid");
        fs::create_dir_all(files.dir()).expect("made");
        fs::write(files.dir().join(FLOW), "{}").expect("written");
        // A directory can be opened, but not read, whoever asks.
        let unread = paths.flows().join("0");
        fs::create_dir_all(unread.join(CALLER)).expect("made");
        let damaged = paths.flows().join("1");
        fs::create_dir_all(&damaged).expect("made");
        fs::write(damaged.join(CALLER), "{").expect("written");
        let survey = active(&paths).expect("listed");
        assert_eq!(survey.found, std::slice::from_ref(&kept));
        let mut places: Vec<String> = survey.unread.into_iter().map(|one| one.place).collect();
        places.sort();
        assert_eq!(places, [unread, damaged].map(|path| path.to_string_lossy().into_owned()));
        assert!(registration(&paths, &far).exists() && !registration(&paths, &gone).exists());
        // The directory itself.
        fs::remove_dir_all(paths.flows()).expect("removed");
        fs::write(paths.flows(), "").expect("written");
        active(&paths).expect_err("a file is no directory");
    }
}
