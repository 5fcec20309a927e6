//! Which queues and items are meant: those of the repository that one is in,
//! else all that there are.

use swarm_actors::merge::queue::Item;
use swarm_actors::model::{QueueView, Refusal, RefusalKind, Target, nearest};

use crate::adapters::git;
use crate::adapters::landing::journal;
use crate::api::client;
use crate::cli::caller;
use crate::cli::error::Failure;
use crate::paths::Paths;

pub struct Queues(pub Vec<QueueView>);

impl Queues {
    /// Those that are meant.
    pub fn read(paths: &Paths, base: Option<&str>) -> Result<Self, Failure> {
        let queues = Self::read_any(paths, base)?;
        match base {
            Some(base) if queues.0.is_empty() => Err(none_for(base)),
            _ => Ok(queues),
        }
    }

    /// The same where there need be none yet.
    pub fn read_any(paths: &Paths, base: Option<&str>) -> Result<Self, Failure> {
        Self::read_all(paths)?.chosen(base)
    }

    /// All there are, from the supervisor, or from the disk when there is none.
    pub fn read_all(paths: &Paths) -> Result<Self, Failure> {
        let all = match client::get(paths, "/v1/merge")? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| Refusal::new(RefusalKind::Internal, format!("the supervisor's answer: {error}")))?,
            None => journal::views(paths).map_err(|error| Failure::system("cannot read the merge queues", &error))?,
        };
        Ok(Self(all))
    }

    fn chosen(mut self, base: Option<&str>) -> Result<Self, Failure> {
        if !self.0.is_empty()
            && let Some(here) = git::common_dir(&caller::collect()?.caller)
        {
            self.0.retain(|view| view.target.repository == here);
        }
        if let Some(base) = base.map(short) {
            self.0.retain(|view| view.target.base() == base);
        }
        Ok(self)
    }

    /// The only one.
    pub fn one(&self) -> Result<&QueueView, Failure> {
        match self.0.as_slice() {
            [one] => Ok(one),
            [] => Err(none()),
            many => {
                let named: Vec<String> = many.iter().map(|view| self.name_of(view)).collect();
                let cause = format!("there are several merge queues: {}", named.join(", "));
                let remedy = match self.are_of_one_repository() {
                    true => "name one with --base",
                    false => "say it inside the repository that is meant",
                };
                Err(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy).into())
            }
        }
    }

    fn are_of_one_repository(&self) -> bool {
        self.0.windows(2).all(|views| views[0].target.repository == views[1].target.repository)
    }

    /// The base, and the repository where there are several.
    pub fn name_of(&self, view: &QueueView) -> String {
        match self.are_of_one_repository() {
            true => view.target.base().to_owned(),
            false => format!("{} ({})", view.target.base(), view.target.repository),
        }
    }

    /// The item of that number, or the newest of that name.
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

    /// The newest of a workstream, whose worker is called `<repository>.<id>`, where there
    /// is one of that name only.
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
        let refusal = Refusal::new(RefusalKind::NotFound, format!("there is no item '{wanted}' in a merge queue here"));
        let remedy = nearest(wanted, names).map(|near| format!("did you mean '{near}'?"));
        Failure::from(refusal.remedy(remedy.unwrap_or_else(|| "swarm merge ls --all".to_owned()))).unknown_is_two()
    }
}

/// A branch as it is typed.
pub fn short(base: &str) -> &str {
    base.strip_prefix("refs/heads/").unwrap_or(base)
}

pub fn none_for(base: &str) -> Failure {
    let cause = format!("there is no merge queue for '{}' here", short(base));
    Refusal::new(RefusalKind::NotFound, cause).remedy("swarm merge ls").into()
}

fn none() -> Failure {
    let refusal = Refusal::new(RefusalKind::NotFound, "there is no merge queue here");
    refusal.remedy("swarm merge add NAME makes one").into()
}
