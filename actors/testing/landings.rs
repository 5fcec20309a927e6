//! A repository in which a commit is the list of its items, and an in-memory journal.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::script::Script;
use swarm_model::merge::queue::{Item, ItemId, Obstacle, Queue, Rules};
use swarm_model::merge::{Build, Landing, Resolution, Verdict};
use swarm_model::{Caller, MergeSettings, Refusal, RefusalKind, Target};
use swarm_ports::{BoxFuture, Completed, Completion, Landings, Survey, Verification};

pub struct FakeLandings {
    script: Arc<Script>,
    inner: Mutex<Inner>,
    /// Notified when the base or the edits change.
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    /// Journal as text, as a disk would hold it.
    journal: Option<String>,
    base: Vec<ItemId>,
    bad: BTreeSet<ItemId>,
    /// Every worktree has another branch checked out than the recorded one.
    elsewhere: bool,
    /// The base branch is gone, so that there is no commit to land.
    baseless: bool,
    /// Uncommitted edits are in the way of every landing.
    edits: bool,
    /// Items that have uncommitted edits of their own in the way.
    edited: BTreeSet<ItemId>,
    /// Items that conflict with the base.
    conflicting: BTreeSet<ItemId>,
    /// Rules of the configuration to which a person agreed.
    rules: MergeSettings,
}

impl FakeLandings {
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, inner: Mutex::default(), changed: Notify::new() }
    }

    /// Returns the items on the base branch.
    pub fn base(&self) -> Vec<ItemId> {
        self.with(|inner| inner.base.clone())
    }

    /// Empties the journal, as if other items had taken the place of all in it.
    pub fn forget_items(&self) {
        self.with(|inner| inner.journal = None);
    }

    /// Makes every verification that includes this item fail.
    pub fn make_bad(&self, item: ItemId) {
        self.with(|inner| inner.bad.insert(item));
    }

    /// Makes this item pass again.
    pub fn make_good(&self, item: ItemId) {
        self.with(|inner| inner.bad.remove(&item));
    }

    /// Sets the rules of the configuration.
    pub fn configure(&self, rules: MergeSettings) {
        self.with(|inner| inner.rules = rules);
    }

    pub fn make_conflicting(&self, item: ItemId) {
        self.with(|inner| inner.conflicting.insert(item));
    }

    /// Checks out another branch than the recorded one in every worktree, or the recorded one again.
    pub fn switch_away(&self, elsewhere: bool) {
        self.with(|inner| inner.elsewhere = elsewhere);
    }

    /// Removes the base branch, or creates it again.
    pub fn lose_base(&self, gone: bool) {
        self.with(|inner| inner.baseless = gone);
    }

    /// Adds a user's commit to the base.
    pub fn commit(&self, item: ItemId) {
        self.with(|inner| inner.base.push(item));
        self.changed.notify_waiters();
    }

    /// Makes uncommitted edits that are in the way of one item, in a file of its own, or removes them.
    pub fn edit_of(&self, item: ItemId, edits: bool) {
        self.with(|inner| if edits { inner.edited.insert(item) } else { inner.edited.remove(&item) });
        self.changed.notify_waiters();
    }

    /// Makes uncommitted edits that are in the way of every landing, or removes them.
    pub fn edit(&self, edits: bool) {
        self.with(|inner| inner.edits = edits);
        self.changed.notify_waiters();
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the only target.
pub fn target() -> Target {
    Target { repository: "/repo/.git".to_owned(), branch: "refs/heads/main".to_owned() }
}

/// Returns the key of a caller: its `PATH`.
fn path_of(caller: &Caller) -> String {
    let path = caller.environment.iter().find(|(name, _)| name == "PATH");
    path.map(|(_, path)| path.clone()).unwrap_or_default()
}

fn name(commit: &[ItemId]) -> String {
    commit.iter().map(u64::to_string).collect::<Vec<_>>().join("+")
}

fn read(commit: &str) -> Vec<ItemId> {
    commit.split('+').filter_map(|part| part.parse().ok()).collect()
}

impl Landings for FakeLandings {
    fn targets(&self) -> BoxFuture<'_, io::Result<Survey<Target>>> {
        Box::pin(async move {
            let is_known = self.with(|inner| inner.journal.is_some());
            let known = is_known.then(target).into_iter().collect();
            self.script.survey("targets", known, |target| target.branch.clone()).await
        })
    }

    fn complete(&self, completion: Completion) -> BoxFuture<'_, Result<Completed, Refusal>> {
        Box::pin(async move {
            let done = self.script.before("complete", &completion.name).await;
            done.map_err(|cause| Refusal::new(RefusalKind::Tool, cause))?;
            let typed = completion.settings;
            let settings = match (&completion.caller.below, &completion.agreed) {
                (Some(below), Some(agreed)) if agreed.replaced(&typed).is_some() => {
                    return Err(Refusal::new(RefusalKind::Invalid, format!("{below} cannot replace 'verify'")));
                }
                (Some(_), Some(agreed)) => agreed.applied(&typed),
                _ => typed,
            };
            let (verify, resolver) = (settings.verify, settings.resolver);
            let rules = Rules { verify, resolver, ..Rules::default() };
            let rules = Some(rules);
            let waits = self.with(|inner| inner.elsewhere.then(|| "another branch is checked out".to_owned()));
            let is_mendable = waits.is_some();
            let waits = waits.or_else(|| self.with(|inner| inner.baseless.then(|| "no base".to_owned())));
            let tip = if waits.is_some() { String::new() } else { format!("tip of {}", completion.name) };
            let caller = Some(path_of(&completion.caller));
            Ok(Completed { target: target(), tip, rules, waits, is_mendable, fork: None, caller, left_out: Vec::new() })
        })
    }

    fn rules_of<'a>(&'a self, root: &'a str, _: &'a Caller) -> BoxFuture<'a, Result<MergeSettings, Refusal>> {
        Box::pin(async move {
            let read = self.script.before("rules_of", root).await;
            read.map_err(|cause| Refusal::new(RefusalKind::Tool, cause))?;
            Ok(self.with(|inner| inner.rules.clone()))
        })
    }

    fn remember<'a>(&'a self, _: &'a Target, caller: &'a Caller) -> BoxFuture<'a, io::Result<String>> {
        Box::pin(async move {
            self.script.before("remember", "caller").await.map_err(io::Error::other)?;
            Ok(path_of(caller))
        })
    }

    fn load<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, io::Result<Option<Queue>>> {
        Box::pin(async move {
            self.script.before("load", "queue").await.map_err(io::Error::other)?;
            let journal = self.with(|inner| inner.journal.clone());
            journal.map(|text| serde_json::from_str(&text).map_err(io::Error::other)).transpose()
        })
    }

    fn save<'a>(&'a self, _: &'a Target, queue: &'a Queue) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            self.script.before("save", "queue").await.map_err(io::Error::other)?;
            let text = serde_json::to_string(queue).map_err(io::Error::other)?;
            self.with(|inner| inner.journal = Some(text));
            self.script.after("save").await.map_err(io::Error::other)
        })
    }

    fn read_base<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            self.script.before("read_base", "base").await?;
            Ok(name(&self.base()))
        })
    }

    fn build<'a>(&'a self, _: &'a Target, item: &'a Item, onto: &'a str) -> BoxFuture<'a, Build> {
        Box::pin(async move {
            if let Err(cause) = self.script.before("build", &item.name).await {
                return Build::Failed(cause);
            }
            let mut commit = read(onto);
            if self.with(|inner| inner.conflicting.contains(&item.id)) {
                return Build::Conflict(vec!["f".to_owned()]);
            }
            if commit.contains(&item.id) {
                return Build::Nothing;
            }
            commit.push(item.id);
            Build::Made(name(&commit))
        })
    }

    fn verify<'a>(
        &'a self,
        _: &'a Target,
        item: &'a Item,
        commit: &'a str,
        kind: Verification,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            if kind != Verification::First {
                self.script.note(format!("fresh {commit}"));
            }
            if let Err(cause) = self.script.before("verify", &item.name).await {
                return Verdict::Unknown(cause);
            }
            match read(commit).iter().any(|item| self.with(|inner| inner.bad.contains(item))) {
                true => Verdict::Red("exit code 1".to_owned()),
                false => Verdict::Green,
            }
        })
    }

    fn land<'a>(&'a self, _: &'a Target, item: &'a Item, from: &'a str, to: &'a str) -> BoxFuture<'a, Landing> {
        Box::pin(async move {
            if let Err(cause) = self.script.before("land", to).await {
                return Landing::Failed(cause);
            }
            let landing = self.with(|inner| {
                if inner.base.starts_with(&read(to)) {
                    Landing::Done(Vec::new())
                } else if inner.edits {
                    Landing::Overlap(vec!["f".to_owned()])
                } else if inner.edited.contains(&item.id) {
                    Landing::Overlap(vec![own_file(item.id)])
                } else if inner.base == read(from) {
                    inner.base = read(to);
                    Landing::Done(Vec::new())
                } else {
                    Landing::Moved
                }
            });
            match self.script.after("land").await {
                Ok(()) => landing,
                Err(cause) => Landing::Failed(cause),
            }
        })
    }

    fn resolve<'a>(&'a self, _: &'a Target, item: &'a Item, _: &'a str, _: &'a [String]) -> BoxFuture<'a, Resolution> {
        Box::pin(async move {
            if let Err(cause) = self.script.before("resolve", &item.name).await {
                return if cause == "limit" { Resolution::Later(cause) } else { Resolution::Failed(cause) };
            }
            self.with(|inner| inner.conflicting.remove(&item.id));
            Resolution::Done(format!("{}-resolved", item.tip))
        })
    }

    fn cleared<'a>(&'a self, _: &'a Target, obstacle: &'a Obstacle) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            self.script.before("cleared", "obstacle").await?;
            loop {
                // Made before the check, so that no change is missed.
                let changed = self.changed.notified();
                let is_gone = match obstacle {
                    Obstacle::Base(commit) => name(&self.base()) != *commit,
                    Obstacle::Leftovers | Obstacle::File(_) => true,
                    Obstacle::Edits(files) => self.with(|inner| {
                        let has_own = inner.edited.iter().any(|item| files.contains(&own_file(*item)));
                        !inner.edits && !has_own
                    }),
                };
                if is_gone {
                    return Ok(());
                }
                changed.await;
            }
        })
    }

    fn tidy<'a>(&'a self, _: &'a Target, items: &'a [Item]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            items.iter().for_each(|item| self.script.note(format!("tidy {}", item.name)));
        })
    }
}

/// Returns the name of the file of [`FakeLandings::edit_of`].
fn own_file(item: ItemId) -> String {
    format!("f{item:02}")
}
