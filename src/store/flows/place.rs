//! Locates flows: `.a-society/state/PROJECT/FLOW/` below the root of a workspace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use swarm_actors::flow::rules::document::{FLOW_BYTES_MAX, FlowRun, FlowSummary};
use swarm_actors::flow::rules::names::FlowRef;

use super::file;
use super::store::{FLOW, FlowFiles, StoreError};
use swarm_sys::files;

/// Directory of all flows of a workspace.
pub(super) const HOME: &str = ".a-society";
/// Directory in [`HOME`] that has the flows.
pub(super) const STATE: &str = "state";

/// A workspace: the folder that contains the projects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    root: PathBuf,
}

/// All readable flows, newest first, and messages about the others.
#[derive(Debug, Default)]
pub struct Listing {
    pub rows: Vec<FlowSummary>,
    pub broken: Vec<String>,
}

impl Workspace {
    /// Returns the `named` workspace, or the one of `cwd`: the nearest ancestor with `.a-society`, otherwise the
    /// nearest one with `.git`, otherwise `cwd` itself.
    ///
    /// # Errors
    /// Fails if the named folder does not exist or is not a directory.
    pub fn find(named: Option<&Path>, cwd: &Path) -> io::Result<Self> {
        if let Some(named) = named {
            let root = cwd.join(named).canonicalize()?;
            return match root.is_dir() {
                true => Ok(Self { root }),
                false => Err(io::Error::from(io::ErrorKind::NotADirectory)),
            };
        }
        let cwd = cwd.canonicalize()?;
        let above = |test: &dyn Fn(&Path) -> bool| cwd.ancestors().find(|dir| test(dir)).map(Path::to_owned);
        let of_git = || swarm_config::root_above(&cwd).map(Path::to_owned);
        let root = above(&|dir| dir.join(HOME).is_dir()).or_else(of_git);
        Ok(Self { root: root.unwrap_or(cwd) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn state(&self) -> PathBuf {
        self.root.join(HOME).join(STATE)
    }

    /// Returns the directories in which a new flow changes a name, and the only name that counts there, if not all do: the one of
    /// all projects, those of the projects, folders without a readable flow, and what is above as long as that does not exist.
    pub fn places(&self) -> Vec<(PathBuf, Option<&'static str>)> {
        let (home, state) = (self.root.join(HOME), self.state());
        let mut places = vec![(state.clone(), None)];
        if files::is_absent(&home) {
            places.push((self.root.clone(), Some(HOME)));
        } else if files::is_absent(&state) {
            places.push((home, Some(STATE)));
        }
        places.extend(names(&state).into_iter().flatten().map(|project| (state.join(project), None)));
        let flows = self.ids(None).unwrap_or_default().into_iter().map(|id| self.flow(id));
        places.extend(flows.filter(|flow| flow.read().is_err()).map(|flow| (flow.dir().to_owned(), None)));
        places
    }

    pub fn flow(&self, id: FlowRef) -> FlowFiles {
        let dir = self.state().join(&id.project).join(&id.flow);
        FlowFiles::new(self.root.clone(), id, dir)
    }

    /// Returns the ids of all folders that may be flows.
    ///
    /// # Errors
    /// Fails if the folders cannot be listed.
    pub fn ids(&self, project: Option<&str>) -> io::Result<Vec<FlowRef>> {
        let projects = match project {
            Some(project) => vec![project.to_owned()],
            None => names(&self.state())?,
        };
        let mut ids = Vec::new();
        for project in projects {
            let flows = names(&self.state().join(&project))?;
            // A folder with an invalid name is not a flow.
            ids.extend(flows.iter().filter_map(|flow| FlowRef::new(&project, flow).ok()));
        }
        Ok(ids)
    }

    /// Finds a flow by `PROJECT/FLOW`, `FLOW`, or a unique prefix of `FLOW`.
    ///
    /// # Errors
    /// Fails if no flow matches, or more than one.
    pub fn resolve(&self, text: &str) -> Result<FlowFiles, StoreError> {
        let (project, prefix) = match text.split_once('/') {
            Some((project, prefix)) => (Some(project), prefix),
            None => (None, text),
        };
        let is_name = project.is_none_or(|project| FlowRef::new(project, "x").is_ok());
        let ids = if is_name { self.ids(project)? } else { Vec::new() };
        let begins = |id: &&FlowRef| !prefix.is_empty() && id.flow.starts_with(prefix);
        let mut found: Vec<&FlowRef> = ids.iter().filter(begins).collect();
        if found.iter().any(|id| id.flow == prefix) {
            found.retain(|id| id.flow == prefix);
        }
        match found.as_slice() {
            [] => Err(StoreError::NotFound { flow: text.to_owned(), root: self.root.clone() }),
            [id] => Ok(self.flow((*id).clone())),
            many => Err(StoreError::Ambiguous {
                flow: text.to_owned(),
                found: many.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    /// Lists the flows of one project or of all.
    ///
    /// # Errors
    /// Fails if the folders cannot be listed.
    pub fn list(&self, project: Option<&str>) -> io::Result<Listing> {
        let mut rows: Vec<(Option<SystemTime>, FlowSummary)> = Vec::new();
        let mut broken = Vec::new();
        for id in self.ids(project)? {
            let flow = self.flow(id);
            match self.row(&flow) {
                Ok(Some(row)) => {
                    let written = fs::metadata(flow.dir().join(FLOW)).and_then(|meta| meta.modified()).ok();
                    rows.push((written, row));
                }
                // The folder contains no flow.
                Ok(None) => {}
                Err(cause) => broken.push(format!("skipping flow '{}': {cause}", flow.id())),
            }
        }
        rows.sort_by(|(a, _), (b, _)| b.cmp(a));
        Ok(Listing { rows: rows.into_iter().map(|(_, row)| row).collect(), broken })
    }

    fn row(&self, flow: &FlowFiles) -> Result<Option<FlowSummary>, String> {
        let text = file::read_text(&flow.dir().join(FLOW), FLOW_BYTES_MAX).map_err(|error| error.to_string())?;
        let Some(text) = text else { return Ok(None) };
        let mut row = match FlowRun::load(&text, flow.id()) {
            Ok(loaded) => {
                let here = self.root.to_str().is_some_and(|root| loaded.flow.check_root(root).is_ok());
                FlowSummary { openable: here, ..FlowSummary::of_flow(&loaded.flow) }
            }
            Err(error) => FlowSummary::of(&text, flow.id()).ok_or_else(|| error.to_string())?,
        };
        if let Some(record) = super::store::record_of(Path::new(&row.record_folder)) {
            (row.record_name, row.record_summary) = (record.name, record.summary);
        }
        Ok(Some(row))
    }
}

impl FlowFiles {
    /// Reports whether somebody who may write in `place` and below can change this flow or another one of its workspace
    /// otherwise than through its record.
    pub fn is_exposed(&self, place: &Path) -> bool {
        let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let (place, home) = (resolved(place), resolved(&self.root().join(HOME)));
        let is_record = || place.starts_with(resolved(&self.dir().join("record")));
        home.starts_with(&place) || (place.starts_with(&home) && !is_record())
    }
}

/// Returns the names of the folders in a folder, sorted; empty if it does not exist.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match files::list_if_present(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        entries => entries?,
    };
    let folders = entries.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_exposed_where_more_than_its_record_can_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        let files = Workspace { root: root.clone() }.flow(FlowRef::new("p", "f").expect("valid"));
        fs::create_dir_all(files.dir().join("record/findings")).expect("made");
        fs::create_dir_all(root.join("p/src")).expect("made");
        std::os::unix::fs::symlink(&root, root.join("p/up")).expect("linked");
        for (place, is) in [
            ("", true),
            ("..", true),
            ("p/up", true),
            (".a-society", true),
            (".a-society/state/p", true),
            (".a-society/state/p/f", true),
            (".a-society/state/p/f/turns/owner/1", true),
            (".a-society/state/p/other/record", true),
            (".a-society/state/p/f/record", false),
            (".a-society/state/p/f/record/findings", false),
            ("p", false),
            ("p/src", false),
        ] {
            assert_eq!(files.is_exposed(&root.join(place)), is, "{place}");
        }
    }
}
