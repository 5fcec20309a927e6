//! Compares our pure functions with tables of results of the original program.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use swarm_actors::flow::rules::block::{Code, Which, extract, parse};
use swarm_actors::flow::rules::consent::{Answer, Gate, Request, Wish, is_harmless, normalize, request};
use swarm_actors::flow::rules::document::FlowRun;
use swarm_actors::flow::rules::graph::Graph;
use swarm_actors::flow::rules::json::Json;
use swarm_actors::flow::rules::live;
use swarm_actors::flow::rules::names::{FlowRef, RoleId};
use swarm_actors::flow::rules::plan::{ImprovementMode, Plan, Step};
use swarm_actors::flow::rules::validate::{OwnerRules, validate};
use swarm_model::asks::judge::Consent;

use super::replay::{flow_in, graph_of, signal_value, table, text, timeless};
use super::yaml;

#[test]
fn blocks_are_parsed_as_in_the_original() {
    let rows = table("handoff-parse.json");
    for row in &rows {
        let text = row["text"].as_str().expect("a text");
        let read = parse(text, Which::First, yaml::parse);
        if let Some(result) = row.get("result") {
            assert_eq!(read.as_ref().map(signal_value), Ok(result.clone()), "{text}");
        } else if let Some(error) = row.get("error") {
            let refusal = read.expect_err(text);
            assert_eq!((refusal.code.word(), refusal.summary.as_str()), pair(error), "{text}");
        } else {
            // The original crashes here; we refuse the block with a message to the agent.
            assert_eq!(read.map_err(|refusal| refusal.code), Err(Code::InvalidTargetShape), "{text}");
        }
        if text.to_lowercase().matches("```handoff").count() < 2 {
            assert_eq!(extract(text, Which::First), extract(text, Which::Last), "{text}");
        }
    }
    assert_eq!(rows.len(), 35);
}

fn pair(error: &Value) -> (&str, &str) {
    (error["code"].as_str().expect("a code"), error["operatorSummary"].as_str().expect("a summary"))
}

#[test]
fn workflows_have_as_many_errors_as_in_the_original() {
    let rows = table("graph-validate.json");
    for row in &rows {
        let text = row["yaml"].as_str().expect("a text");
        // A parse error counts as one error.
        let found: Vec<String> = match yaml::parse(text) {
            Err(error) => vec![error],
            Ok(document) => findings(&document, &row["flow"]),
        };
        match row.get("errors") {
            Some(errors) => assert_eq!(found.len(), *errors, "{text}\n{}\n{found:#?}", row["flow"]),
            None => assert!(!found.is_empty(), "the original crashes: {text}"),
        }
    }
    assert_eq!(rows.len(), 49);
}

fn findings(document: &Value, state: &Value) -> Vec<String> {
    let found = if state.is_null() {
        validate(document, OwnerRules::Strict)
    } else {
        live::validate(document, OwnerRules::Strict, &flow_with(state))
    };
    found.into_iter().map(|finding| finding.message).collect()
}

fn flow_with(state: &Value) -> FlowRun {
    flow_in(state, &FlowRef::new("p", "f").expect("is a name"), "/ws")
}

#[test]
fn improvement_plans_are_those_of_the_original() {
    let rows = table("improvement-plan.json");
    for row in &rows {
        let graph = graph_of(row["yaml"].as_str().expect("a text"));
        let mode = ImprovementMode::of(row["mode"].as_str().expect("a text")).expect("a mode");
        let plan = Plan::of(&graph, mode).map(|plan| plan_value(&plan));
        match row.get("plan") {
            Some(expected) => assert_eq!(plan.as_ref(), Ok(expected), "{row}"),
            None => assert!(plan.is_err(), "{row}"),
        }
    }
    assert_eq!(rows.len(), 16);
}

pub fn plan_value(plan: &Plan) -> Value {
    let entries: Vec<Value> = plan
        .entries
        .iter()
        .map(|entry| {
            let session = if entry.step == Step::MetaAnalysis { "existing-session" } else { "new-session" };
            json!({
                "role": entry.role, "stepType": entry.step.word(), "sessionInstruction": session,
                "findingsRolesToInject": entry.reads,
            })
        })
        .collect();
    let edges: Vec<Value> = plan.edges.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
    json!({"entries": entries, "edges": edges})
}

#[test]
fn roles_are_parsed_as_in_the_original() {
    let rows = table("role-id.json");
    for row in &rows {
        let role = RoleId::parse(row["role"].as_str().expect("a text"));
        match row.get("result") {
            None => assert!(role.is_err(), "{row}"),
            Some(result) => {
                let role = role.expect("is a role");
                let mut value = json!({"instanceRoleId": role.instance, "baseRoleId": role.base});
                if let Some(number) = role.number {
                    value["instanceNumber"] = number.into();
                }
                assert_eq!(value, *result);
            }
        }
    }
    assert_eq!(rows.len(), 16);
}

#[test]
fn consent_works_as_in_the_original() {
    let table: Value = serde_json::from_str(&text("consent.json")).expect("is JSON");
    let rows = |key: &str| table[key].as_array().expect("a list").clone();
    for row in rows("autoAllowed") {
        assert_eq!(is_harmless(row["command"].as_str().expect("a text")), row["allowed"], "{row}");
    }
    for row in rows("normalize") {
        let given = Some(&row["value"]).filter(|value| **value != "<undefined>").map(Json::from);
        let state = serde_json::to_value(normalize(given.as_ref())).expect("is JSON");
        assert_eq!(state, row["result"], "{row}");
    }
    assert_eq!((rows("autoAllowed").len(), rows("normalize").len(), rows("scripts").len()), (28, 9, 6));
    rows("scripts").iter().for_each(play);
}

/// Replays a script of checks, answers and mode changes.
fn play(script: &Value) {
    let mut gate = Gate::of(Some(&Json::from(&script["initial"])));
    let mut checks: BTreeMap<String, &str> = BTreeMap::new();
    let mut open: Vec<(String, Request)> = Vec::new();
    let mut events: Vec<Value> = Vec::new();
    for result in script["results"].as_array().expect("a list") {
        let step = &result["step"];
        if let Some(check) = step.get("check") {
            let id = step["id"].as_str().expect("a name").to_owned();
            let role = check["role"].as_str().unwrap_or("dev");
            let asked = request(check["tool"].as_str().expect("a tool"), &check["input"], "n", role);
            let pending = asked.filter(|asked| gate.ask(asked.clone()));
            checks.insert(id.clone(), if pending.is_some() { "pending" } else { "proceed" });
            if let Some(asked) = pending {
                events.push(json!({"kind": "consent.requested", "request": request_value(&asked)}));
                open.push((id, asked));
            }
        } else if let Some(mode) = step.get("mode") {
            let mode = mode.as_str().and_then(Consent::of).expect("a mode");
            if let Some(settled) = gate.set_mode(mode) {
                conclude(&settled, "proceed", &mut open, &mut checks);
                events.push(json!({"kind": "consent.mode_changed", "mode": mode.word()}));
            }
        } else {
            let words = [Answer::AllowOnce, Answer::AllowFlow, Answer::Deny];
            let answer = words.into_iter().find(|answer| step["respond"] == answer.word()).expect("an answer");
            let settled = gate.respond(step["role"].as_str().unwrap_or("dev"), answer, "now");
            conclude(&settled, if answer == Answer::Deny { "deny" } else { "proceed" }, &mut open, &mut checks);
            let event = |request| json!({"kind": "consent.resolved", "request": request, "decision": answer.word()});
            events.extend(settled.iter().map(request_value).map(event));
        }
        assert_eq!(json!(checks), result["checks"], "{step}");
        let state = serde_json::to_value(gate.state()).expect("is JSON");
        assert_eq!(timeless(state), timeless(result["state"].clone()), "{step}");
    }
    assert_eq!(Value::Array(events), script["events"]);
}

fn conclude<'a>(
    settled: &[Request],
    verdict: &'a str,
    open: &mut Vec<(String, Request)>,
    checks: &mut BTreeMap<String, &'a str>,
) {
    for request in settled {
        let at = open.iter().position(|(_, asked)| asked == request).expect("was asked");
        checks.insert(open.remove(at).0, verdict);
    }
}

fn request_value(request: &Request) -> Value {
    let mut value = match &request.wish {
        Wish::Write { tool, path } => json!({"kind": "file-write", "toolName": tool, "path": path}),
        Wish::Command { command } => json!({"kind": "bash-command", "toolName": "run_command", "command": command}),
        Wish::Tool { tool, server, name, arguments } => json!({
            "kind": "mcp-tool", "toolName": tool, "serverName": server, "toolDisplayName": name,
            "argsPreview": arguments,
        }),
    };
    value["nodeId"] = json!(request.node);
    value["role"] = json!(request.role);
    value
}

#[test]
fn missing_fields_of_a_node_come_from_the_project() {
    let own = json!({"workflow": {"nodes": [{"id": "a", "role": "dev", "work": null}, {"id": "b", "role": "qa"}],
        "edges": [{"from": "a", "to": "b"}]}});
    let project = json!({"workflow": {"nodes": [{"id": "a", "role": "other", "work": ["x"], "human-colab": true},
        {"id": "c", "role": "unused"}], "edges": [{"from": "b", "to": "c"}]}});
    let graph = Graph::resolve(&own, Some(&project)).expect("is a workflow");
    let a = graph.node("a").expect("is there");
    assert_eq!(
        (a.role.as_str(), a.human_colab, a.work.len()),
        ("dev", true, 0),
        "a field that is present, even null, wins"
    );
    assert_eq!((graph.nodes().len(), graph.edges().count()), (2, 1));
}
