//! Where the clones and attempts of controllers are in the state directory. Whatever comes over the line is checked before
//! it becomes part of a path.
//!
//! ```text
//!   far/CONTROLLER/REPOSITORY/
//!     clone/             clone of the controller's repository
//!     worktrees/RUN/LEAF worktree of a job
//!     aside/RUN/LEAF.N   such a directory after somebody has removed the clone
//!     runs/RUN/          home of the run: attempts, logs, events; `work` of an attempt is the directory of a command
//!     locks/             one file per job at which something is being changed
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use swarm_model::WorkerName;
use swarm_store::runs::far::{FarAttempt, FarClone, FarResult, FarStart};
use swarm_store::runs::home::{Home, make_all};
use swarm_store::runs::order::read_result;
use swarm_store::runs::specs::check_id;
use swarm_sys::files::{list_if_present, lock, remove_if_present, replace_durably};
use swarm_sys::machine;
use swarm_sys::paths::Paths;
use swarm_sys::procfs::known_boot_id;
use swarm_sys::state_id::state_id;

/// Record of what was asked of an attempt.
const BEGUN: &str = "begun.json";
/// Record of the command that an attempt executes.
pub const COMMAND: &str = "command.json";
/// Directory of a command without a worktree.
const WORK: &str = "work";
/// Record of what was answered about its end.
pub const ENDED: &str = "ended.json";
/// Lock that is held while a clone is made, or an attempt gets its branch and worktree.
const CLONE_LOCK: &str = "clone";

/// Directory of a repository of a controller.
#[derive(Clone, Debug)]
pub struct Site {
    dir: PathBuf,
}

impl Site {
    /// Returns all directories of all controllers. Those that cannot be listed are left out.
    pub fn all(paths: &Paths) -> Vec<Self> {
        let below = |dir: &Path| list_if_present(dir).unwrap_or_default().into_iter().map(|entry| entry.path());
        below(&paths.root().join("far")).flat_map(|controller| below(&controller)).map(|dir| Self { dir }).collect()
    }

    /// # Errors
    /// Fails if a part of the name is none.
    pub fn of(clone: &FarClone, paths: &Paths) -> Result<Self, String> {
        check_digits("controller", &clone.controller, 8..=64)?;
        check_digits("repository", &clone.repository, 8..=64)?;
        Ok(Self { dir: paths.root().join("far").join(&clone.controller).join(&clone.repository) })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn clone_dir(&self) -> PathBuf {
        self.dir.join("clone")
    }

    pub fn home(&self, run: &str) -> Home {
        Home::new(self.dir.join("runs").join(run))
    }

    pub fn worktrees(&self, run: &str) -> PathBuf {
        self.dir.join("worktrees").join(run)
    }

    /// Directory for worktrees of a run whose clone was removed. Nobody but a person removes them.
    pub fn aside(&self, run: &str) -> PathBuf {
        self.dir.join("aside").join(run)
    }

    /// Waits until nobody else makes the clone, moves branches of it, or adds a worktree.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn lock_clone(&self) -> io::Result<File> {
        self.lock(CLONE_LOCK)
    }

    /// Reports whether the directory has attempts.
    ///
    /// # Errors
    /// Fails if they cannot be listed.
    pub fn has_attempts(&self) -> io::Result<bool> {
        for run in list_if_present(&self.dir.join("runs"))? {
            if !attempts(&Home::new(run.path()))?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn lock(&self, name: &str) -> io::Result<File> {
        let dir = self.dir.join("locks");
        let path = dir.join(name);
        loop {
            // The clone may have been removed meanwhile.
            make_all(&dir)?;
            let mut open = OpenOptions::new();
            let file = open.write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            lock::lock(&file)?;
            // Whoever held it may have deleted it.
            let (held, found) = (file.metadata()?, fs::metadata(&path));
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())) {
                return Ok(file);
            }
        }
    }
}

/// Error for an attempt that was sent to another state directory.
pub const ELSEWHERE: &str = "this is another machine or state directory than the one to which the attempt was sent";

/// Reports whether the attempt was sent to another machine or state directory. A home with its state directory may have been copied
/// to a second machine, or be shared by several: the boot of one proves nothing about what works on another.
///
/// # Errors
/// Fails if the id of the state directory is unknown.
pub fn is_elsewhere(at: &FarAttempt, paths: &Paths) -> Result<bool, String> {
    if let Some(host) = &at.host {
        let own = state_id(paths).map_err(|error| format!("cannot read the id of the state directory: {error}"))?;
        if own != *host {
            return Ok(true);
        }
    }
    let begun = home_of(at, paths).ok().and_then(|home| Begun::read(&home.attempt(&at.job, at.attempt)));
    Ok(begun.is_some_and(|begun| begun.is_of_another_machine(&machine::this().id)))
}

/// Returns the home of the run of an attempt.
///
/// # Errors
/// Fails if a part of the name is none.
fn home_of(at: &FarAttempt, paths: &Paths) -> Result<Home, String> {
    let site = Site::of(&at.clone, paths)?;
    check_digits("run", &at.run, 8..=8)?;
    check_job(&at.job)?;
    Ok(site.home(&at.run))
}

/// An attempt, and where its files are.
pub struct Attempt {
    pub at: FarAttempt,
    pub site: Site,
    pub clone: PathBuf,
    pub home: Home,
    /// Its directory.
    pub dir: PathBuf,
    /// Id of the request that starts its worker.
    pub request: String,
    /// Common beginning of the requests of all attempts of the job.
    pub series: String,
}

impl Attempt {
    /// # Errors
    /// Fails if a part of the name is none.
    pub fn of(at: &FarAttempt, paths: &Paths) -> Result<Self, String> {
        let site = Site::of(&at.clone, paths)?;
        if is_elsewhere(at, paths)? {
            return Err(ELSEWHERE.to_owned());
        }
        check_digits("run", &at.run, 8..=8)?;
        check_job(&at.job)?;
        WorkerName::parse(&at.worker).map_err(|error| format!("invalid worker name '{}': {error}", at.worker))?;
        let home = site.home(&at.run);
        let series = format!("far/{}/{}/{}/", at.clone.controller, at.run, at.job);
        Ok(Self {
            clone: site.clone_dir(),
            dir: home.attempt(&at.job, at.attempt),
            request: format!("{series}{}", at.attempt),
            at: at.clone(),
            site,
            home,
            series,
        })
    }

    /// Reports whether a later attempt of the job has begun.
    ///
    /// # Errors
    /// Fails if the attempts cannot be listed.
    pub fn is_past(&self) -> io::Result<bool> {
        let number = |dir: &PathBuf| dir.extension()?.to_str()?.parse::<u32>().ok();
        let is_later = |dir: &PathBuf| number(dir).is_some_and(|number| number > self.at.attempt);
        Ok(self.all()?.iter().any(|dir| is_later(dir) && Begun::read(dir).is_some()))
    }

    /// Returns the directory in which a command without a worktree is executed; `dir` is a relative path.
    pub fn work_dir(&self, dir: &str) -> PathBuf {
        self.dir.join(WORK).join(dir)
    }

    /// Reports whether this attempt, with this order, has left a result.
    pub fn has_ended(&self, asked: &FarStart) -> bool {
        let is_same = |begun: Begun| match &asked.tree {
            Some(tree) => begun.tip == tree.tip && begun.base_commit == tree.base_commit,
            None => !begun.has_tree(),
        };
        let is_over = || read_end(&self.dir).is_some() || read_result(&self.dir).is_some();
        Begun::read(&self.dir).is_some_and(is_same) && is_over()
    }

    /// Returns where the worktree is.
    pub fn tree(&self, leaf: &str) -> PathBuf {
        self.site.worktrees(&self.at.run).join(leaf)
    }

    /// Waits until nobody else changes something of this job.
    ///
    /// # Errors
    /// Returns any I/O error.
    pub fn lock(&self) -> io::Result<File> {
        self.site.lock(&self.lock_name())
    }

    /// Removes the file of the lock, which the caller holds.
    pub fn remove_lock(&self) {
        let _ = fs::remove_file(self.site.dir.join("locks").join(self.lock_name()));
    }

    fn lock_name(&self) -> String {
        format!("{}.{}", self.at.run, self.at.job)
    }

    /// Returns the directories of all attempts of the job.
    ///
    /// # Errors
    /// Fails if they cannot be listed.
    pub fn all(&self) -> io::Result<Vec<PathBuf>> {
        attempts(&self.home)
            .map(|all| all.into_iter().filter(|(job, _)| *job == self.at.job).map(|(_, dir)| dir).collect())
    }

    /// Returns the directories of all attempts of other jobs in the repository.
    ///
    /// # Errors
    /// Fails if they cannot be listed.
    pub fn others(&self) -> io::Result<Vec<PathBuf>> {
        let mut others = Vec::new();
        for run in list_if_present(&self.site.dir.join("runs"))? {
            let home = Home::new(run.path());
            let is_own = |job: &str| home == self.home && job == self.at.job;
            others.extend(attempts(&home)?.into_iter().filter(|(job, _)| !is_own(job)).map(|(_, dir)| dir));
        }
        Ok(others)
    }
}

/// Returns the attempts in a home, each with its job.
fn attempts(home: &Home) -> io::Result<Vec<(String, PathBuf)>> {
    let split = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let (job, attempt) = name.rsplit_once('.')?;
        attempt.parse::<u32>().ok().map(|_| (job.to_owned(), entry.path()))
    };
    Ok(list_if_present(&home.path().join("attempts"))?.into_iter().filter_map(split).collect())
}

/// Parameters of the start of an attempt, for later calls, which do not repeat them. Branch, leaf and commits are empty if the
/// attempt has no worktree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub branch: String,
    pub leaf: String,
    pub tip: String,
    pub base: String,
    pub base_commit: String,
    /// Commit of the branch before this attempt, which was pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Id of the machine on which it was started. `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Id of the boot in which it was started. `None` in records of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl Begun {
    /// Reports whether the machine was restarted since the start. Nothing of the attempt runs any more then.
    pub fn is_of_another_boot(&self, present: Option<&str>) -> bool {
        matches!((self.boot.as_deref(), present), (Some(boot), Some(present)) if boot != present)
    }

    /// Returns the record of an attempt without a worktree that begins now, on this machine.
    pub fn here() -> Self {
        let machine = Some(machine::this().id.clone()).filter(|id| !id.is_empty());
        Self { machine, boot: known_boot_id().ok(), ..Self::default() }
    }

    /// Reports whether another machine than the present one, both of which are known, has begun it.
    pub fn is_of_another_machine(&self, present: &str) -> bool {
        !present.is_empty() && self.machine.as_ref().is_some_and(|machine| machine != present)
    }

    /// Reports whether the attempt works in a worktree.
    pub fn has_tree(&self) -> bool {
        !self.branch.is_empty()
    }

    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join(BEGUN)).ok()?).ok()
    }

    /// # Errors
    /// Returns any I/O error.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        replace_durably(dir, BEGUN, &serde_json::to_vec(self)?)
    }
}

/// Returns the recorded end of an attempt.
pub fn read_end(dir: &Path) -> Option<FarResult> {
    serde_json::from_slice(&fs::read(dir.join(ENDED)).ok()?).ok()
}

/// # Errors
/// Returns any I/O error.
pub fn write_end(dir: &Path, end: &FarResult) -> io::Result<()> {
    replace_durably(dir, ENDED, &serde_json::to_vec(end)?)
}

/// # Errors
/// Returns any I/O error, except that there is none.
pub fn forget_end(dir: &Path) -> io::Result<()> {
    remove_if_present(&dir.join(ENDED))
}

fn check_digits(what: &str, text: &str, lengths: std::ops::RangeInclusive<usize>) -> Result<(), String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match lengths.contains(&text.len()) && text.bytes().all(is_digit) {
        true => Ok(()),
        false => Err(format!("invalid {what} '{}'", text.escape_debug())),
    }
}

fn check_job(job: &str) -> Result<(), String> {
    check_id(job)
        .and_then(|()| check_leaf(job))
        .map_err(|cause| format!("invalid job '{}': {cause}", job.escape_debug()))
}

/// Checks that a text can be the name of a directory.
///
/// # Errors
/// Returns what is wrong with it.
pub fn check_leaf(leaf: &str) -> Result<(), String> {
    const BYTES_MAX: usize = 200;
    let is_odd = |c: char| c == '/' || c == '\\' || c.is_control();
    match leaf {
        "" => Err("the name is empty".to_owned()),
        _ if leaf.len() > BYTES_MAX => Err("the name is too long".to_owned()),
        _ if leaf.starts_with(['-', '.']) => Err("the name begins with '-' or '.'".to_owned()),
        _ if leaf.chars().any(is_odd) => {
            Err("the name has a character that a name of a directory must not have".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> FarAttempt {
        let clone = FarClone { controller: "c0ffee00".into(), repository: "0123456789abcdef".into() };
        FarAttempt {
            clone,
            run: "0a1b2c3d".into(),
            job: "auth".into(),
            attempt: 2,
            worker: "p.auth".into(),
            host: None,
        }
    }

    #[test]
    fn an_attempt_has_its_files_below_its_controller() {
        let paths = Paths::new("/s");
        let attempt = Attempt::of(&at(), &paths).expect("a name");
        let site = "/s/far/c0ffee00/0123456789abcdef";
        assert_eq!(attempt.clone, Path::new(site).join("clone"));
        assert_eq!(attempt.dir, Path::new(site).join("runs/0a1b2c3d/attempts/auth.2"));
        assert_eq!(attempt.tree("auth-1"), Path::new(site).join("worktrees/0a1b2c3d/auth-1"));
        assert_eq!(attempt.request, "far/c0ffee00/0a1b2c3d/auth/2");
        assert!(attempt.request.starts_with(&attempt.series));
    }

    #[test]
    fn nothing_leads_out_of_the_directory() {
        let paths = Paths::new("/s");
        let refused = |change: &dyn Fn(&mut FarAttempt)| {
            let mut at = at();
            change(&mut at);
            assert!(Attempt::of(&at, &paths).is_err(), "{at:?}");
        };
        for text in ["", "..", "../../x", "C0FFEE00", "c0ffee0", "c0ffee0/", "c0ffee00\n", &"a".repeat(65)] {
            refused(&|at| at.clone.controller = text.to_owned());
            refused(&|at| at.clone.repository = text.to_owned());
            refused(&|at| at.run = text.to_owned());
        }
        for text in ["", "..", "a/b", "-x", ".x", "a\nb", "a..b", "---", &"a".repeat(201)] {
            refused(&|at| at.job = text.to_owned());
            refused(&|at| at.worker = text.to_owned());
        }
        for leaf in ["", ".", "..", ".git", "-x", "a/b", "/", "a\0", "a\\b"] {
            assert!(check_leaf(leaf).is_err(), "{leaf:?}");
        }
        assert_eq!(check_leaf("auth-2"), Ok(()));
    }

    #[test]
    fn an_attempt_that_was_sent_to_another_state_directory_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path());
        let own = state_id(&paths).expect("an id");
        let is_taken = |host: &str| Attempt::of(&FarAttempt { host: Some(host.to_owned()), ..at() }, &paths).is_ok();
        assert!(is_taken(&own) && !is_taken(&"0".repeat(32)));
    }

    #[test]
    fn attempts_of_other_jobs_are_told_from_those_of_the_job() {
        let root = tempfile::tempdir().expect("a directory");
        let attempt = Attempt::of(&at(), &Paths::new(root.path())).expect("a name");
        let other = attempt.site.home("ffffffff").attempt("auth", 1);
        for dir in [&attempt.dir, &attempt.home.attempt("auth", 1), &attempt.home.attempt("auth.2", 1), &other] {
            fs::create_dir_all(dir).expect("made");
        }
        let sorted = |found: io::Result<Vec<PathBuf>>| {
            let mut found = found.expect("listed");
            found.sort();
            found
        };
        assert_eq!(sorted(attempt.all()), [attempt.home.attempt("auth", 1), attempt.dir.clone()]);
        assert_eq!(sorted(attempt.others()), [attempt.home.attempt("auth.2", 1), other]);
    }

    #[test]
    fn only_a_known_boot_is_another_one() {
        let of = |boot: Option<&str>| Begun { boot: boot.map(str::to_owned), ..Begun::default() };
        for (recorded, present, expected) in [
            (Some("a"), Some("b"), true),
            (Some("a"), Some("a"), false),
            (Some("a"), None, false),
            (None, Some("b"), false),
        ] {
            assert_eq!(of(recorded).is_of_another_boot(present), expected, "{recorded:?} {present:?}");
        }
        let old = r#"{"branch":"b","leaf":"l","tip":"t","base":"main","base_commit":"c"}"#;
        let old: Begun = serde_json::from_str(old).expect("a record of an older program");
        assert_eq!(old.boot, None);
    }

    #[test]
    fn an_attempt_that_a_copy_of_the_home_knows_belongs_to_the_machine_that_began_it() {
        let root = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(root.path());
        let attempt = Attempt::of(&at(), &paths).expect("a name");
        make_all(&attempt.dir).expect("made");
        Begun::here().write(&attempt.dir).expect("written");
        assert_eq!(is_elsewhere(&at(), &paths), Ok(false));
        Begun { machine: None, ..Begun::here() }.write(&attempt.dir).expect("written");
        assert_eq!(is_elsewhere(&at(), &paths), Ok(false), "an older program has written it");
        let of = |machine: &str| Begun { machine: Some(machine.to_owned()), ..Begun::default() };
        for (recorded, present, expected) in [("a", "b", true), ("a", "a", false), ("a", "", false)] {
            assert_eq!(of(recorded).is_of_another_machine(present), expected, "{recorded} {present}");
        }
    }

    #[test]
    fn a_lock_that_was_deleted_is_taken_anew() {
        let root = tempfile::tempdir().expect("a directory");
        let attempt = Attempt::of(&at(), &Paths::new(root.path())).expect("a name");
        let held = attempt.lock().expect("locked");
        attempt.remove_lock();
        let again = attempt.lock().expect("another file");
        assert_ne!(held.metadata().expect("open").ino(), again.metadata().expect("open").ino());
    }
}
