//! Open requests of flows that are run, named `FLOW/N` or, without a number, `FLOW/NODE`.

use serde_json::{Value, json};
use swarm_model::RefusalKind;
use swarm_store::flows::registered::registered;
use swarm_store::flows::store::{FlowFiles, Open};
use swarm_sys::paths::Paths;
use swarm_sys::quoting::command_line;

use super::refused;
use crate::board::flow::{self, Waiting};
use crate::cli::error::Failure;
use crate::cli::flow::args::{AllowArgs, AnswerArgs, ApproveArgs, Common, DeclineArgs, DenyArgs, FlowOf};
use crate::cli::flow::{consent, respond};
use crate::cli::screen::Screen;

/// Something in a flow that waits for a person.
pub struct FlowRequest {
    /// `PROJECT/ID`.
    flow: String,
    /// Id of the flow within its project.
    id: String,
    root: String,
    number: Option<u64>,
    /// Node, or role in the improvement phase.
    who: String,
    is_role: bool,
    is_handoff: bool,
    is_script: bool,
    pub role: String,
    pub reason: String,
    pub text: String,
    pub asked_at: Option<String>,
}

impl FlowRequest {
    fn of(files: &FlowFiles, open: &Open, waiting: Waiting) -> Self {
        let asked = waiting.number.and_then(|number| open.sidecar.requests.get(&number));
        Self {
            flow: files.id().to_string(),
            id: files.id().flow.clone(),
            root: files.root().display().to_string(),
            number: waiting.number,
            is_role: waiting.is_role,
            is_handoff: waiting.is_handoff,
            is_script: waiting.is_script,
            who: waiting.who,
            role: waiting.role,
            reason: waiting.reason,
            text: waiting.what,
            asked_at: asked.map(|asked| asked.asked_at.clone()),
        }
    }

    fn part(&self) -> String {
        self.number.map_or_else(|| self.who.clone(), |number| number.to_string())
    }

    /// Returns the name with which the verbs find the request.
    pub fn id(&self) -> String {
        format!("{}/{}", self.id, self.part())
    }

    pub fn kind(&self) -> &'static str {
        match self.number {
            Some(_) => "permission",
            None if self.is_script => "permission",
            None if self.is_handoff => "handoff",
            None => "question",
        }
    }

    /// Returns the command that answers the request.
    pub fn command(&self) -> String {
        match self.kind() {
            "question" => format!("{} TEXT", command_line(["swarm", "answer", &self.id()])),
            _ => command_line(["swarm", "approve", &self.id()]),
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "id": self.id(), "state": "open", "kind": self.kind(), "worker": null, "run": null, "workstream": null,
            "agent": null, "flow": self.flow, "node": self.who, "tool": null, "text": self.text, "questions": [],
            "cwd": self.root, "waits": "held", "digest": null, "asked_at_ms": null, "expires_at_ms": null, "answer": null, "over": null,
            "command": self.command(),
        })
    }

    fn of_flow(&self) -> FlowOf {
        let common = Common { root: Some(self.root.clone().into()), json: false };
        FlowOf { flow: self.flow.clone(), common }
    }

    pub fn approve(self, screen: &mut Screen) -> Result<u8, Failure> {
        match (self.kind(), self.number) {
            (_, Some(request)) => consent::allow(&AllowArgs { of: self.of_flow(), request, flow_wide: false }, screen),
            ("handoff" | "permission", None) => {
                respond::approve(&ApproveArgs { of: self.of_flow(), node: self.who }, screen)
            }
            _ => {
                let cause = format!("request {} is a question", self.id());
                Err(refused(RefusalKind::Invalid, cause, format!("use '{}'", self.command())))
            }
        }
    }

    pub fn deny(self, reason: Option<&str>, screen: &mut Screen) -> Result<u8, Failure> {
        match (self.kind(), self.number) {
            (_, Some(request)) => consent::deny(&DenyArgs { of: self.of_flow(), request }, screen),
            ("handoff" | "permission", None) => {
                let message = reason.map(str::to_owned);
                respond::decline(&DeclineArgs { of: self.of_flow(), node: self.who, message }, screen)
            }
            _ => {
                let cause = format!("request {} is a question, which a flow waits for", self.id());
                Err(refused(RefusalKind::Invalid, cause, format!("use '{}'", self.command())))
            }
        }
    }

    pub fn answer(self, texts: &[String], screen: &mut Screen) -> Result<u8, Failure> {
        if self.kind() != "question" {
            let cause = format!("request {} asks for a permission", self.id());
            return Err(refused(RefusalKind::Invalid, cause, format!("use '{}'", self.command())));
        }
        let of = self.of_flow();
        let (node, role) = if self.is_role { (None, Some(self.who)) } else { (Some(self.who), None) };
        respond::answer(&AnswerArgs { of, text: texts.join("\n"), node, role }, screen)
    }
}

/// Returns what waits for a person in the flows that are run in this state directory. A flow that cannot be read is warned
/// about.
pub fn open(paths: &Paths, screen: &mut Screen) -> Vec<FlowRequest> {
    let mut found = Vec::new();
    for files in registered(paths) {
        match files.open() {
            Ok(open) => found.extend(of_flow(&files, &open)),
            Err(error) => screen.warning(&format!("cannot read flow '{}': {error}", files.id())),
        }
    }
    found
}

fn of_flow(files: &FlowFiles, open: &Open) -> Vec<FlowRequest> {
    let waiting = flow::waiting(open).into_iter().filter(|waiting| waiting.who != "flow");
    waiting.map(|waiting| FlowRequest::of(files, open, waiting)).collect()
}

/// Returns one request.
///
/// # Errors
/// Fails if no flow that is run has this name, or several have, or the request is not open.
pub fn find(paths: &Paths, flow: &str, part: &str) -> Result<FlowRequest, Failure> {
    let is_named = |files: &FlowFiles| files.id().to_string() == flow || files.id().flow.starts_with(flow);
    let mut named: Vec<FlowFiles> = registered(paths).into_iter().filter(is_named).collect();
    if named.iter().any(|files| files.id().flow == flow || files.id().to_string() == flow) {
        named.retain(|files| files.id().flow == flow || files.id().to_string() == flow);
    }
    let list = "run 'swarm approvals' to list requests";
    let files = match named.as_slice() {
        [] => return Err(refused(RefusalKind::NotFound, format!("no flow '{flow}' is run"), list)),
        [files] => files,
        _ => {
            let cause = format!("several flows begin with '{flow}'");
            return Err(refused(RefusalKind::Invalid, cause, "use a longer prefix, or PROJECT/ID"));
        }
    };
    let found = of_flow(files, &files.open()?).into_iter().find(|request| request.part() == part);
    found.ok_or_else(|| refused(RefusalKind::NotFound, format!("request {flow}/{part} is not open"), list))
}
