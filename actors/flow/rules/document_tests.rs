//! Tests of the document, names and JSON layout.

use super::document::{FlowRun, FlowSummary, LoadError, NewFlow};
use super::json::{Json, number_text};
use super::names::{FlowRef, edge_key, flow_id, split_edge_key};

fn id() -> FlowRef {
    FlowRef::new("demo", "20260527T143000123Z-a1b2c3").expect("is a name")
}

fn new_flow() -> FlowRun {
    let record = "/ws/.a-society/state/demo/x/record";
    FlowRun::new(&NewFlow { id: &id(), workspace_root: "/ws", record_folder: record, first_node: "owner-intake" })
}

#[test]
fn a_new_flow_has_all_fields_in_order_and_round_trips() {
    let text = new_flow().render();
    let doc = Json::parse(&text).expect("is JSON");
    let keys: Vec<&str> = doc.as_object().expect("an object").keys().collect();
    assert_eq!(
        keys,
        [
            "flowId",
            "workspaceRoot",
            "projectNamespace",
            "recordFolderPath",
            "runningNodes",
            "awaitingHumanNodes",
            "pendingHumanInputs",
            "pendingHandoffApprovals",
            "visitedNodeIds",
            "completedHandoffs",
            "receivingHandoff",
            "historyHandoff",
            "awaitingHandoff",
            "status",
            "stateVersion",
            "feedbackContext",
            "consentState",
        ]
    );
    assert!(text.starts_with("{\n  \"flowId\": \"2026") && text.ends_with("}\n  }\n}"), "{text}");
    let loaded = FlowRun::load(&text, &id()).expect("loads");
    assert_eq!((loaded.changed, loaded.flow.render()), (Vec::new(), text));
}

#[test]
fn the_first_failed_check_is_reported() {
    let load = |change: &dyn Fn(&mut FlowRun)| {
        let mut flow = new_flow();
        change(&mut flow);
        FlowRun::load(&flow.render(), &id()).err()
    };
    let remove = |keys: &'static [&'static str]| {
        load(&move |flow| {
            for key in keys {
                flow.doc.remove(key);
            }
        })
    };
    let version = |found: &str| Some(LoadError::Version { found: found.to_owned() });
    assert_eq!(remove(&["stateVersion", "workspaceRoot", "runningNodes"]), version("missing"));
    assert_eq!(load(&|flow| flow.doc.set("stateVersion", Json::Number(11.0))), version("11"));
    assert_eq!(load(&|flow| flow.doc.set("stateVersion", Json::Null)), version("missing"));
    assert_eq!(remove(&["recordFolderPath", "flowId", "runningNodes"]), Some(LoadError::Paths));
    assert_eq!(load(&|flow| flow.doc.set("workspaceRoot", "")), Some(LoadError::Paths));
    assert!(matches!(remove(&["flowId", "runningNodes"]), Some(LoadError::Identity { .. })));
    assert_eq!(remove(&["runningNodes", "awaitingHumanNodes"]), Some(LoadError::Missing("runningNodes")));
    assert_eq!(remove(&["awaitingHumanNodes", "pendingHumanInputs"]), Some(LoadError::Missing("awaitingHumanNodes")));
    assert_eq!(remove(&["pendingHumanInputs"]), Some(LoadError::Missing("pendingHumanInputs")));
    for text in ["", "{", "null", "[]", "7", "{} {}"] {
        assert!(matches!(FlowRun::load(text, &id()), Err(LoadError::Corrupt(_))), "{text}");
    }
}

#[test]
fn record_name_and_summary_are_never_written() {
    let mut flow = new_flow();
    flow.doc.set("recordName", "old");
    flow.doc.set("mine", [("b", Json::Number(1.5)), ("a", Json::Null)]);
    let loaded = FlowRun::load(&flow.render(), &id()).expect("loads").flow;
    assert_eq!(loaded.record_name.as_deref(), Some("old"));
    assert!(!loaded.render().contains("recordName"));
    assert!(loaded.render().ends_with("\"mine\": {\n    \"b\": 1.5,\n    \"a\": null\n  }\n}"), "{}", loaded.render());
}

#[test]
fn a_flow_of_an_earlier_release_is_completed() {
    let mut flow = new_flow();
    flow.doc.remove("pendingHandoffApprovals");
    let mut flow = FlowRun::load(&flow.render(), &id()).expect("loads").flow;
    assert!(!flow.render().contains("pendingHandoffApprovals"));
    flow.complete();
    assert!(flow.render().ends_with("\"pendingHandoffApprovals\": {}\n}"));
}

#[test]
fn a_flow_of_another_version_has_a_row_and_a_broken_one_has_none() {
    let text = new_flow().render();
    let row = |text: &str| FlowSummary::of(text, &id());
    assert!(row(&text).is_some_and(|row| row.openable && row.version == "11"));
    let other = row(&text.replace("\"11\"", "\"12\"")).expect("is listed");
    assert_eq!((other.openable, other.version.as_str(), other.status.as_str()), (false, "12", "running"));
    assert_eq!(row(&text.replace("\"11\"", "\"12\"").replace("\"status\": \"running\",", "")), None);
    assert_eq!(row(&text.replace("demo", "other")), None);
    assert_eq!(row(&text[..50]), None);
}

#[test]
fn the_root_is_compared_as_text() {
    let flow = new_flow();
    assert_eq!(flow.check_root("/ws"), Ok(()));
    assert!(flow.check_root("/ws/").is_err());
}

#[test]
fn numbers_are_written_as_in_the_original() {
    for (number, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (100.0, "100"),
        (123_456.789, "123456.789"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (123e-7, "0.0000123"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-9, "1.5e-9"),
        (-2.5e30, "-2.5e+30"),
        (9_007_199_254_740_993.0, "9007199254740992"),
        (f64::MAX, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
    ] {
        assert_eq!(number_text(number), text);
    }
}

#[test]
fn keys_and_texts_are_written_as_in_the_original() {
    let render = |text: &str| Json::parse(text).expect("is JSON").render_compact();
    assert_eq!(render(r#"{"b":1,"10":2,"a":3,"2":4,"01":5,"b":6}"#), r#"{"2":4,"10":2,"b":6,"a":3,"01":5}"#);
    assert_eq!(render(r#"{"4294967295":1,"4294967294":2}"#), r#"{"4294967294":2,"4294967295":1}"#);
    assert_eq!(
        render(r#"["\u00e9\u007f\u2028\/\u0001\b\t", 1.0, 1e2, 12345678901234567890]"#),
        "[\"é\u{7f}\u{2028}/\\u0001\\b\\t\",1,100,12345678901234567000]"
    );
    assert_eq!(
        Json::parse(r#"{"a":[],"b":{},"c":[1]}"#).expect("is JSON").render(),
        "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1\n  ]\n}"
    );
    let mut object = Json::parse(r#"{"x":1,"7":2}"#).expect("is JSON");
    let members = object.as_object_mut().expect("an object");
    members.set("3", "new");
    members.set("x", "old place");
    members.set("12", true);
    assert_eq!(object.render_compact(), r#"{"3":"new","7":2,"12":true,"x":"old place"}"#);
}

#[test]
fn names_are_written_as_in_the_original() {
    assert_eq!(flow_id("2026-05-27T14:30:00.123Z", [0xa1, 0xb2, 0x03]), "20260527T143000123Z-a1b203");
    assert_eq!(split_edge_key(&edge_key("a", "b")), Some(("a", "b")));
    for key in ["", "a", "a=>", "=>b", "a=>b=>c"] {
        assert_eq!(split_edge_key(key), None, "{key}");
    }
    assert_eq!(FlowRef::new(" p ", "f").expect("is a name").to_string(), "p/f");
    for part in ["", " ", ".", "..", "a/b", "a\\b"] {
        assert_eq!(FlowRef::new("p", part), Err(format!("Invalid flow id \"{part}\".")));
        assert_eq!(FlowRef::new(part, "f"), Err(format!("Invalid project namespace \"{part}\".")));
    }
}
