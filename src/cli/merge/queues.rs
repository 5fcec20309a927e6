//! Selection of merge queues and items: those of the caller's repository, or all queues outside of a repository.

use swarm_model::merge::queue::Item;
use swarm_model::{Caller, QueueView, Refusal, RefusalKind, Target, nearest};

use crate::api::client;
use crate::cli::caller;
use crate::cli::error::Failure;
use swarm_store::repositories::landing::journal;
use swarm_sys::paths::Paths;

pub struct Queues(pub Vec<QueueView>);

impl Queues {
    /// Reads the queues of the caller's repository, only that of `base` if given.
    ///
    /// # Errors
    /// Fails if the queues cannot be read, or if there is none for `base`.
    pub fn read(paths: &Paths, base: Option<&str>) -> Result<Self, Failure> {
        let queues = Self::read_any(paths, base)?;
        match base {
            Some(base) if queues.0.is_empty() => Err(none_for(base)),
            _ => Ok(queues),
        }
    }

    /// Like [`Self::read`], but succeeds if there is no queue for `base`.
    pub fn read_any(paths: &Paths, base: Option<&str>) -> Result<Self, Failure> {
        Self::read_all(paths)?.chosen(base)
    }

    /// Reads the queues of all repositories from the supervisor, or from disk if none is running.
    pub fn read_all(paths: &Paths) -> Result<Self, Failure> {
        let all = match client::get(paths, "/v1/merge")? {
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                Refusal::new(RefusalKind::Internal, format!("cannot parse the supervisor's answer: {error}"))
            })?,
            None => journal::views(paths).map_err(|error| Failure::system("cannot read the merge queues", &error))?,
        };
        Ok(Self(all))
    }

    /// Returns the queue of the base of a repository. `None` if there is none, or if it cannot be read.
    pub fn of_base(root: &str, base: &str, paths: &Paths) -> Option<QueueView> {
        let caller = caller::collect().ok()?.caller;
        let here = swarm_store::repositories::common_dir(&Caller { cwd: root.to_owned(), ..caller })?;
        let mut views = Self::read_all(paths).ok()?.0.into_iter();
        views.find(|view| view.target.repository == here && view.target.base() == short(base))
    }

    fn chosen(mut self, base: Option<&str>) -> Result<Self, Failure> {
        if !self.0.is_empty()
            && let Some(here) = swarm_store::repositories::common_dir(&caller::collect()?.caller)
        {
            self.0.retain(|view| view.target.repository == here);
        }
        if let Some(base) = base.map(short) {
            self.0.retain(|view| view.target.base() == base);
        }
        Ok(self)
    }

    /// Returns the only queue.
    ///
    /// # Errors
    /// Fails if there is none or more than one.
    pub fn one(&self) -> Result<&QueueView, Failure> {
        match self.0.as_slice() {
            [one] => Ok(one),
            [] => Err(none()),
            many => {
                let named: Vec<String> = many.iter().map(|view| self.name_of(view)).collect();
                let cause = format!("several merge queues: {}", named.join(", "));
                let remedy = match self.are_of_one_repository() {
                    true => "use --base BRANCH to choose one",
                    false => "run the command inside the repository that you mean",
                };
                Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
            }
        }
    }

    fn are_of_one_repository(&self) -> bool {
        self.0.windows(2).all(|views| views[0].target.repository == views[1].target.repository)
    }

    /// Returns the base branch, with the repository if the queues belong to several.
    pub fn name_of(&self, view: &QueueView) -> String {
        match self.are_of_one_repository() {
            true => view.target.base().to_owned(),
            false => format!("{} ({})", view.target.base(), view.target.repository),
        }
    }

    /// Returns the item with this number, or the newest item of this worker, branch or workstream.
    ///
    /// # Errors
    /// Fails if there is no such item, or if a number is given and there are several queues.
    pub fn find(&self, wanted: &str) -> Result<(&Target, &Item), Failure> {
        let of_number = wanted.parse::<u64>().ok();
        if of_number.is_some() && self.0.len() > 1 {
            self.one()?;
        }
        let found = self.0.iter().filter_map(|view| {
            let number = of_number.and_then(|number| view.queue.item(number));
            let item = number.or_else(|| view.queue.items.iter().rev().find(|item| item.name == wanted))?;
            Some((&view.target, item))
        });
        let newest = |(_, item): &(&Target, &Item)| item.added_ms;
        let workstream = || self.of_workstream(wanted).filter(|_| of_number.is_none());
        found.max_by_key(newest).or_else(workstream).ok_or_else(|| self.unknown(wanted))
    }

    /// Returns the newest item of a workstream, whose worker is named `<repository>.<id>`; `None` if several workers
    /// match.
    fn of_workstream(&self, id: &str) -> Option<(&Target, &Item)> {
        let is_of = |item: &&Item| item.name.split_once('.').is_some_and(|(_, of)| of == id);
        let items = self.0.iter().flat_map(|view| view.queue.items.iter().map(move |item| (&view.target, item)));
        let found: Vec<_> = items.filter(|(_, item)| is_of(item)).collect();
        let (target, name) = found.first().map(|(target, item)| (*target, &item.name))?;
        let is_one = found.iter().all(|(other, item)| *other == target && item.name == *name);
        found.into_iter().filter(|_| is_one).max_by_key(|(_, item)| item.added_ms)
    }

    fn unknown(&self, wanted: &str) -> Failure {
        let names = self.0.iter().flat_map(|view| view.queue.items.iter().map(|item| item.name.as_str()));
        let refusal = Refusal::new(RefusalKind::NotFound, format!("merge item '{wanted}' not found"));
        let remedy = nearest(wanted, names).map(|near| format!("did you mean '{near}'?"));
        Failure::from(
            refusal.remedy(remedy.unwrap_or_else(|| "run 'swarm merge ls --all' to list all items".to_owned())),
        )
        .unknown_is_two()
    }
}

/// Returns a branch name without `refs/heads/`.
pub fn short(base: &str) -> &str {
    base.strip_prefix("refs/heads/").unwrap_or(base)
}

pub fn none_for(base: &str) -> Failure {
    let cause = format!("no merge queue for '{}'", short(base));
    Refusal::new(RefusalKind::NotFound, cause).remedy("run 'swarm merge ls' to list the queued items").into()
}

fn none() -> Failure {
    let refusal = Refusal::new(RefusalKind::NotFound, "no merge queue");
    refusal.remedy("run 'swarm merge add NAME' to create one").into()
}
