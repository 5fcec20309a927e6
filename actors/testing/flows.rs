//! Flows with planned turns: each wave of turns waits for the previous one, and a turn is done once
//! its worker exits with success.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::script::Script;
use swarm_model::flow::{Begin, Ended, How, Standing, Turn, request_of, request_prefix, worker_name};
use swarm_model::run::Wish;
use swarm_model::{Caller, Contract, FlowPlace, MergeSettings, SpawnRequest};
use swarm_ports::{BoxFuture, Flows, Opened, Survey};

pub struct FakeFlows {
    script: Arc<Script>,
    flows: Mutex<BTreeMap<FlowPlace, Flow>>,
}

#[derive(Default)]
struct Flow {
    opened: Option<Opened>,
    active: bool,
    /// Each wave is claimed as a whole once no turn is running.
    ahead: VecDeque<Vec<Turn>>,
    at_work: Vec<Turn>,
    /// Number of repeated turns.
    again: u32,
    /// The result is to land.
    lands: bool,
    /// Why the result is not queued.
    refusal: Option<String>,
}

impl FakeFlows {
    pub fn new(script: Arc<Script>) -> Self {
        Self { script, flows: Mutex::default() }
    }

    /// Adds waves of turns to the flow's plan.
    pub fn plan(&self, place: &FlowPlace, waves: Vec<Vec<Turn>>) {
        self.with(place, |flow| flow.ahead.extend(waves));
    }

    /// Returns the turns that the files list as running.
    pub fn at_work(&self, place: &FlowPlace) -> Vec<Turn> {
        self.with(place, |flow| flow.at_work.clone())
    }

    /// Removes the flow as another program would.
    pub fn take_away(&self, place: &FlowPlace) {
        self.with(place, |flow| flow.active = false);
    }

    /// Makes the result of the flow one that is to land.
    pub fn land(&self, place: &FlowPlace) {
        self.with(place, |flow| flow.lands = true);
    }

    /// Returns why the result of the flow is not queued.
    pub fn refusal(&self, place: &FlowPlace) -> Option<String> {
        self.with(place, |flow| flow.refusal.clone())
    }

    pub fn is_active(&self, place: &FlowPlace) -> bool {
        self.with(place, |flow| flow.active)
    }

    fn with<T>(&self, place: &FlowPlace, work: impl FnOnce(&mut Flow) -> T) -> T {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        work(flows.entry(place.clone()).or_default())
    }
}

impl Flow {
    fn advance(&mut self, ended: &[Ended], claim: bool) -> Standing {
        for Ended { turn, how } in ended {
            let Some(at) = self.at_work.iter().position(|known| known == turn) else { continue };
            let well = matches!(how, How::Exit(Some(exit)) if exit.ended.is_success());
            if well {
                self.at_work.remove(at);
            } else {
                self.again += 1;
                self.at_work[at].number += 1;
            }
        }
        if claim && self.at_work.is_empty() {
            self.at_work = self.ahead.pop_front().unwrap_or_default();
        }
        let over = self.at_work.is_empty() && self.ahead.is_empty();
        Standing { turns: self.at_work.clone(), over, ..Standing::default() }
    }
}

impl Flows for FakeFlows {
    fn active(&self) -> BoxFuture<'_, io::Result<Survey<FlowPlace>>> {
        Box::pin(async {
            let places: Vec<FlowPlace> = {
                let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
                flows.iter().filter(|(_, flow)| flow.active).map(|(place, _)| place.clone()).collect()
            };
            self.script.survey("flow.active", places, |place| place.flow.clone()).await
        })
    }

    fn open<'a>(&'a self, place: &'a FlowPlace, begin: Option<&'a Begin>) -> BoxFuture<'a, Result<Opened, String>> {
        Box::pin(async move {
            self.script.before("flow.open", &place.flow).await?;
            self.script.after("flow.open").await?;
            self.with(place, |flow| {
                if let Some(begin) = begin {
                    flow.active = true;
                    flow.opened = Some(Opened { caller: begin.caller.clone(), rules: begin.rules.clone() });
                }
                flow.opened.clone().ok_or_else(|| "it was never run".to_owned())
            })
        })
    }

    fn advance<'a>(
        &'a self,
        place: &'a FlowPlace,
        ended: &'a [Ended],
        claim: bool,
    ) -> BoxFuture<'a, Result<Standing, String>> {
        Box::pin(async move {
            self.script.before("flow.advance", &place.flow).await?;
            let standing = self.with(place, |flow| flow.advance(ended, claim));
            self.script.after("flow.advance").await?;
            Ok(standing)
        })
    }

    fn changed<'a>(&'a self, _: &'a FlowPlace) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn prepare<'a>(
        &'a self,
        place: &'a FlowPlace,
        turn: &'a Turn,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<SpawnRequest, String>> {
        Box::pin(async move {
            self.script.before("flow.prepare", &turn.role).await?;
            Ok(SpawnRequest {
                caller: Caller { request: request_of(place, turn), ..caller.clone() },
                name: worker_name(place, &turn.role),
                contract: Contract { argv: vec!["role".to_owned()], ..Contract::default() },
                worktree: None,
                replaces: Some(request_prefix(place, &turn.role)),
                takes_over: None,
            })
        })
    }

    fn wish<'a>(&'a self, place: &'a FlowPlace, caller: &'a Caller) -> BoxFuture<'a, Result<Option<Wish>, String>> {
        Box::pin(async move {
            let lands = self.with(place, |flow| flow.lands);
            self.script.before("flow.wish", &place.flow).await?;
            Ok(lands.then(|| Wish {
                key: format!("flow/{place}/merge"),
                worker: worker_name(place, "owner"),
                place: None,
                base: Some("main".to_owned()),
                priority: 0,
                settings: MergeSettings::default(),
                subject: None,
                mends: false,
                caller: caller.clone(),
            }))
        })
    }

    fn keep_refusal<'a>(&'a self, place: &'a FlowPlace, cause: Option<&'a str>) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.with(place, |flow| flow.refusal = cause.map(str::to_owned)) })
    }

    fn close<'a>(&'a self, place: &'a FlowPlace, _: bool) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _ = self.script.before("flow.close", &place.flow).await;
            self.with(place, |flow| flow.active = false);
        })
    }
}
