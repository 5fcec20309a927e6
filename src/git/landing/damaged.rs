//! Merge queues whose journal is damaged. The supervisor moves the journal aside under a name that was not in use, and
//! what it pinned in the repository is named, so that it can be added again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use git2::Oid;
use swarm_model::{Caller, Target};
use swarm_sys::files;
use swarm_sys::paths::Paths;

use super::complete::DONE;
use super::journal::{self, CALLER, FILE, Unreadable};
use crate::repository::{objects, pipes};
use crate::worktrees::plan;

/// End of the names of damaged journals; further ones are numbered.
const ASIDE: &str = ".corrupted";

/// A queue whose items are lost or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedQueue {
    /// The damaged journal.
    pub file: PathBuf,
    pub cause: String,
    /// `None` if neither the journal nor what lies beside it says so.
    pub target: Option<Target>,
    /// Whether the journal's content is damaged; otherwise only reading it failed.
    pub is_lost: bool,
    /// Branches and commits that were queued in the repository, belong to no other queue and have not landed. `None`
    /// if that is unknown.
    pub work: Option<Vec<String>>,
}

impl DamagedQueue {
    /// Returns the problem as a sentence.
    pub fn what(&self) -> String {
        let of = self.target.as_ref().map(|target| format!(" of {}", target.base())).unwrap_or_default();
        let (file, cause) = (self.file.display(), &self.cause);
        match self.is_lost {
            true => format!("the journal of the merge queue{of} is damaged, its items are lost: {file}: {cause}"),
            false => format!("cannot read the merge queue{of}: {file}: {cause}"),
        }
    }

    /// Returns what a person can do. `None` if the file could not be read.
    pub fn remedy(&self) -> Option<String> {
        let file = self.file.display();
        let remedy = match &self.work {
            _ if !self.is_lost => return None,
            Some(work) if work.is_empty() => format!("all work that was queued has landed; delete {file}"),
            Some(work) => {
                let base = self.target.as_ref().map_or("BASE", Target::base);
                let work = work.join(", ");
                format!("add what should land with 'swarm merge add BRANCH --base {base}', then delete {file}: {work}")
            }
            None => {
                let list = "git for-each-ref refs/swarm/done";
                format!("run '{list}' in the repository, add what should land, then delete {file}")
            }
        };
        Some(remedy)
    }
}

/// Moves the damaged journals aside and returns them with their new names. Called when a supervisor starts, which is the
/// only writer.
pub(crate) fn set_aside(paths: &Paths) -> io::Result<Vec<DamagedQueue>> {
    let mut moved = Vec::new();
    for place in files::list_if_present(&paths.merges())? {
        let file = place.path().join(FILE);
        let Err(Unreadable::Damaged(cause)) = journal::read(&file) else { continue };
        match quarantine(&file) {
            Ok(aside) => moved.push(aside),
            Err(error) => tracing::error!(file = %file.display(), %cause, %error, "cannot move a damaged queue aside"),
        }
    }
    let all = damaged(paths)?;
    Ok(all.into_iter().filter(|queue| moved.contains(&queue.file)).collect())
}

/// Renames a file to the first free name. An existing file is never replaced.
fn quarantine(path: &Path) -> io::Result<PathBuf> {
    let mut number = 0_u32;
    loop {
        let end = if number == 0 { String::new() } else { format!(".{number}") };
        let aside = path.with_file_name(format!("{FILE}{ASIDE}{end}"));
        match fs::hard_link(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
            Ok(()) => {
                fs::remove_file(path)?;
                if let Some(dir) = path.parent() {
                    fs::File::open(dir)?.sync_all()?;
                }
                return Ok(aside);
            }
        }
    }
}

/// Returns the queues whose journals are damaged, including those that were moved aside earlier, or cannot be read.
///
/// # Errors
/// Fails if a directory cannot be read.
pub fn damaged(paths: &Paths) -> io::Result<Vec<DamagedQueue>> {
    let mut found = Vec::new();
    for place in files::list_if_present(&paths.merges())?.into_iter().filter(|place| place.path().is_dir()) {
        for file in files::list_if_present(&place.path())? {
            let name = file.file_name();
            let name = name.to_string_lossy();
            if name != FILE && !name.starts_with(&format!("{FILE}{ASIDE}")) {
                continue;
            }
            let (cause, is_lost) = match journal::read(&file.path()) {
                Ok(_) if name == FILE => continue,
                // Somebody has repaired it, but it is not in place.
                Ok(_) => ("it was moved aside".to_owned(), true),
                Err(Unreadable::Damaged(cause)) => (cause, true),
                Err(Unreadable::Other(error)) => (error.to_string(), false),
            };
            let target = target(&place.path(), &file.path());
            let work = target.as_ref().and_then(|target| lost_work(paths, target).ok());
            found.push(DamagedQueue { file: file.path(), cause, target, is_lost, work });
        }
    }
    found.sort_by(|one, other| one.file.cmp(&other.file));
    Ok(found)
}

/// Returns the target of the queue in `place`: from the beginning of its journal, or else by comparing the name of the
/// directory with those that the branches of the caller's repository would have.
fn target(place: &Path, file: &Path) -> Option<Target> {
    let id = place.file_name()?.to_str()?.to_owned();
    let is_it = |target: &Target| journal::id(target) == id;
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let said = text
        .split_once("\"target\":")
        .and_then(|(_, rest)| serde_json::Deserializer::from_str(rest).into_iter::<Target>().next()?.ok());
    if let Some(target) = said.filter(is_it) {
        return Some(target);
    }
    let caller: Caller = serde_json::from_slice(&fs::read(place.join(CALLER)).ok()?).ok()?;
    let repo = objects::open(Path::new(&caller.cwd)).ok()?;
    let repository = repo.commondir().to_str()?.trim_end_matches('/').to_owned();
    if pipes::below(&repo.commondir().join("refs")).is_some() {
        return None;
    }
    let branches = repo.references_glob("refs/heads/*").ok()?;
    let names: Vec<String> = branches.flatten().filter_map(|one| one.name().ok().map(str::to_owned)).collect();
    names.into_iter().map(|branch| Target { repository: repository.clone(), branch }).find(is_it)
}

/// Returns the pinned work that belongs to no queue and is not on the base.
fn lost_work(paths: &Paths, target: &Target) -> Result<Vec<String>, git2::Error> {
    let failed = |error: io::Error| git2::Error::from_str(&error.to_string());
    let views = journal::views(paths).map_err(failed)?;
    let of_others = views.iter().filter(|view| view.target.repository == target.repository);
    let known: BTreeSet<&str> =
        of_others.flat_map(|view| view.queue.items.iter().map(|item| item.tip.as_str())).collect();
    let repo = objects::open(Path::new(&target.repository))?;
    if let Some(pipe) = pipes::below(&repo.commondir().join("refs")) {
        return Err(objects::held_by(pipe));
    }
    let base = repo.find_reference(&target.branch)?.peel_to_commit()?.id();
    let mut branches: BTreeMap<Oid, String> = BTreeMap::new();
    for branch in repo.references_glob("refs/heads/*")?.flatten() {
        if let (Some(tip), Ok(name)) = (branch.target(), branch.shorthand()) {
            branches.insert(tip, name.to_owned());
        }
    }
    let mut work = Vec::new();
    for pinned in repo.references_glob(&format!("{DONE}/*"))? {
        let tip = pinned?.peel_to_commit()?.id();
        let id = tip.to_string();
        if known.contains(id.as_str()) || tip == base || repo.graph_descendant_of(base, tip)? {
            continue;
        }
        work.push(match branches.get(&tip) {
            Some(branch) => format!("{branch} ({})", plan::short(&id)),
            None => id,
        });
    }
    work.sort();
    Ok(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::landing::tests_checkout::Site;
    use swarm_model::merge::queue::{Item, Queue};
    use swarm_ports::Landings as _;

    async fn save(site: &Site, items: &[&Item]) -> PathBuf {
        let queue = Queue { items: items.iter().map(|item| (*item).clone()).collect(), ..Queue::default() };
        site.landings.save(&site.target, &queue).await.unwrap();
        journal::place(&site.paths, &site.target).join(FILE)
    }

    #[tokio::test]
    async fn a_damaged_journal_is_moved_aside_and_its_work_is_named() {
        let site = Site::new();
        site.branch("one", "echo 1 > one");
        site.branch("landed", "echo 2 > landed");
        let (one, landed) = (site.item("one").await, site.item("landed").await);
        let file = save(&site, &[&one, &landed]).await;
        site.fix.git(&["merge", "-q", "--no-edit", "landed"]);
        assert_eq!(damaged(&site.paths).unwrap(), []);
        let whole = fs::read_to_string(&file).unwrap();
        let cases = [&whole[..whole.len() / 2], "", "\0\0\0\0", "[]"];
        for (number, text) in cases.into_iter().enumerate() {
            fs::write(&file, text).unwrap();
            let seen = damaged(&site.paths).unwrap();
            assert!(seen.iter().any(|queue| queue.file == file), "it is shown before it is moved");
            let moved = site.landings.set_damaged_aside().await.unwrap();
            let end = if number == 0 { String::new() } else { format!(".{number}") };
            let aside = file.with_file_name(format!("{FILE}{ASIDE}{end}"));
            assert_eq!(moved.len(), 1);
            assert_eq!((moved[0].base.as_deref(), Path::new(&moved[0].file)), (Some("main"), aside.as_path()));
            assert_eq!(fs::read_to_string(&aside).unwrap(), text, "{aside:?}");
            assert!(!file.exists());
            assert!(site.landings.set_damaged_aside().await.unwrap().is_empty(), "each is reported once");
            let all = damaged(&site.paths).unwrap();
            assert_eq!(all.len(), number + 1);
            let queue = all.iter().find(|queue| queue.file == aside).unwrap();
            let name = format!("one ({})", plan::short(&one.tip));
            assert_eq!((&queue.target, &queue.work), (&Some(site.target.clone()), &Some(vec![name.clone()])));
            assert!(
                queue.remedy().unwrap().ends_with(&name) && queue.what().contains("merge queue of main is damaged")
            );
        }
        // Once it is queued again, it is no longer lost.
        save(&site, &[&one]).await;
        assert!(damaged(&site.paths).unwrap().iter().all(|queue| queue.work == Some(Vec::new())));
    }

    #[tokio::test]
    async fn a_journal_of_a_newer_version_or_that_cannot_be_read_stays() {
        let site = Site::new();
        site.branch("one", "echo 1 > one");
        let one = site.item("one").await;
        let file = save(&site, &[&one]).await;
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("\"version\":1", "\"version\":2").replace("\"queue\"", "\"other\"")).unwrap();
        assert!(site.landings.set_damaged_aside().await.unwrap().is_empty());
        fs::write(&file, text.replace("queued", "a state of another version")).unwrap();
        assert!(text.contains("queued") && site.landings.set_damaged_aside().await.unwrap().is_empty());
        fs::remove_file(&file).unwrap();
        // Reading a directory fails.
        fs::create_dir(&file).unwrap();
        assert!(site.landings.set_damaged_aside().await.unwrap().is_empty());
        let seen = damaged(&site.paths).unwrap();
        assert!(seen.len() == 1 && !seen[0].is_lost && seen[0].remedy().is_none(), "{seen:?}");
        assert!(seen[0].what().starts_with("cannot read the merge queue of main: "), "{}", seen[0].what());
    }
}
