use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Barrier;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::json;
use swarm_actors::flow::rules::block::Signal;
use swarm_actors::flow::rules::handoff;
use swarm_actors::flow::rules::operator::{self, Denied, To};
use swarm_actors::flow::rules::validate::OwnerRules;

use super::*;
use crate::flows::Make;
use crate::flows::place::Workspace;
use crate::flows::replay::data;

const LINE: &str = "workflow:\n  name: A line\n  nodes:\n    - {id: owner-intake, role: owner}\n    - {id: build, role: dev}\n    - {id: owner-close, role: owner}\n  edges: [{from: owner-intake, to: build}, {from: build, to: owner-close}]\n";

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Denied(#[from] Denied),
}

fn made() -> (tempfile::TempDir, Workspace, FlowFiles) {
    let dir = tempfile::tempdir().expect("a directory");
    let space = Workspace::find(Some(dir.path()), Path::new("/")).expect("is there");
    let files = space
        .make(&Make { project: "demo", workflow: LINE, sidecar: Sidecar::default(), consent: None })
        .expect("made");
    (dir, space, files)
}

/// Creates a flow whose first node has asked a question.
fn asking() -> (tempfile::TempDir, Workspace, FlowFiles) {
    let made = made();
    made.2
        .update(|open| {
            let look = |_: &str| Artifact::File;
            let asked = Signal::PromptHuman;
            handoff::finish(&mut open.flow, &open.graph, "owner-intake", &asked, look, OwnerRules::Strict)
                .expect("asks");
            Ok::<_, StoreError>(())
        })
        .expect("written");
    made
}

fn answer(files: &FlowFiles, text: &str) -> Result<String, Failed> {
    files.update(|open| {
        let node = operator::answer(&mut open.flow, &open.graph, To::Anyone, text, &now_iso())?;
        open.tell("human.answered", [("nodeId", json!(node))]);
        Ok(node)
    })
}

#[test]
fn damaged_events_are_returned_and_torn_ones_are_not() {
    let (_dir, _, files) = asking();
    answer(&files, "yes").expect("answered");
    let whole = fs::read_to_string(files.events_file()).expect("there");
    fs::write(files.events_file(), format!("{whole}{{\"to\n{{\"a\"~1}}\n{whole}{{\"la")).expect("written");
    let (events, damaged) = files.events().expect("readable");
    let count = whole.lines().count();
    assert_eq!((events.len(), damaged.iter().map(|one| one.line).collect::<Vec<_>>()), (2 * count, vec![count + 2]));
}

fn flow_json(files: &FlowFiles) -> String {
    fs::read_to_string(files.dir().join(FLOW)).expect("is there")
}

fn refusal(files: &FlowFiles) -> String {
    let error = files.open().expect_err("opened");
    assert!(error.is_closed(), "{error}");
    error.to_string()
}

#[test]
fn a_new_flow_is_private_and_complete() {
    let (_dir, space, files) = made();
    let open = files.open().expect("opens");
    assert_eq!(open.flow.running().collect::<Vec<_>>(), ["owner-intake"]);
    assert_eq!(open.flow.record_name.as_deref(), Some("A line"));
    for name in [FLOW, SIDECAR, "record/workflow.yaml", "record/record.yaml"] {
        let mode = fs::metadata(files.dir().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(fs::metadata(files.dir()).expect("there").permissions().mode() & 0o777, 0o700);
    assert_eq!(space.list(None).expect("lists").rows.len(), 1);
}

#[test]
fn an_answer_is_recorded_and_reported_and_a_second_one_changes_nothing() {
    let (_dir, _space, files) = asking();
    assert_eq!(answer(&files, "go").expect("taken"), "owner-intake");
    let before = flow_json(&files);
    assert!(matches!(answer(&files, "again"), Err(Failed::Denied(Denied::AlreadyAnswered(_)))));
    assert_eq!(flow_json(&files), before);
    assert!(!before.ends_with('\n') && before.contains("\"text\": \"go\"") && !before.contains("recordName"));
    let events = fs::read_to_string(files.dir().join(EVENTS)).expect("told");
    assert_eq!(events.lines().count(), 1, "{events}");
}

#[test]
fn unchanged_files_are_not_written() {
    let (_dir, _space, files) = made();
    let path = files.dir().join(FLOW);
    let before = file::stamp(&path);
    files.update(|_| Ok::<_, StoreError>(())).expect("looked");
    assert_eq!(file::stamp(&path), before);
}

#[test]
fn the_mode_that_another_program_gave_a_file_is_kept() {
    let (_dir, _space, files) = asking();
    let path = files.dir().join(FLOW);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    answer(&files, "go").expect("taken");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
}

#[test]
fn unusable_flows_are_refused_with_a_message_and_left_unchanged() {
    let (_dir, _space, files) = made();
    let (path, good) = (files.dir().join(FLOW), flow_json(&files));
    let cases = [
        (good.replace("\"11\"", "\"12\""), "Unsupported persisted flow state version \"12\""),
        (good.replace("\"demo\"", "\"other\""), "Persisted flow identity mismatch: loaded \"other/"),
        (good.replace("workspaceRoot\": \"/", "workspaceRoot\": \"/x/"), "Persisted flow workspace root mismatch"),
        (good[..good.len() / 2].to_owned(), "is not valid JSON"),
        (String::new(), "is not valid JSON"),
        (good.replace("\"runningNodes\"", "\"runs\""), "is missing runningNodes"),
    ];
    for (text, cause) in cases {
        fs::write(&path, &text).expect("written");
        assert!(refusal(&files).contains(cause), "{} has not {cause}", refusal(&files));
        assert!(files.update(|_| Ok::<_, StoreError>(())).is_err());
        assert_eq!(flow_json(&files), text);
    }
    fs::write(&path, &good).expect("written");
    fs::write(files.dir().join("record/workflow.yaml"), "a: [").expect("written");
    assert!(refusal(&files).starts_with("cannot read ") && refusal(&files).contains("workflow.yaml: "));
}

#[test]
fn a_torn_file_is_waited_for() {
    let (_dir, _space, files) = made();
    let files = FlowFiles { torn_max: Duration::from_secs(60), ..files };
    let (path, good) = (files.dir().join(FLOW), flow_json(&files));
    fs::write(&path, &good[..10]).expect("written");
    let looks = Inotify::init(InitFlags::IN_CLOEXEC).expect("made");
    looks.add_watch(&path, AddWatchFlags::IN_CLOSE_NOWRITE).expect("watched");
    let writer = thread::spawn(move || {
        // The reader has seen the torn file.
        looks.read_events().expect("read");
        fs::write(path, good).expect("written");
    });
    files.open().expect("opens");
    writer.join().expect("wrote");
}

#[test]
fn what_another_program_writes_meanwhile_is_not_lost() {
    let (_dir, _space, files) = asking();
    let path = files.dir().join(FLOW);
    let mut asked = 0;
    let node = files.update(|open| {
        asked += 1;
        let node = operator::answer(&mut open.flow, &open.graph, To::Anyone, "go", &now_iso())?;
        open.sidecar.repairs.insert(node.clone(), asked);
        if asked == 1 {
            let text = flow_json(&files).replacen('{', "{\n  \"theirs\": true,", 1);
            fs::write(&path, text).expect("written");
        }
        Ok::<_, Failed>(node)
    });
    assert_eq!((node.expect("taken").as_str(), asked), ("owner-intake", 2));
    let text = flow_json(&files);
    assert!(text.contains("\"theirs\": true") && text.contains("\"go\""), "{text}");
    assert_eq!(files.sidecar().expect("reads").repairs["owner-intake"], 2);
}

#[test]
fn what_a_kill_between_two_swaps_left_is_put_back_before_the_next_change() {
    let (_dir, _space, files) = asking();
    let path = files.dir().join(FLOW);
    let before = flow_json(&files);
    let theirs = before.replacen('{', "{\n  \"theirs\": true,", 1);
    answer(&files, "go").expect("taken");
    let ours = flow_json(&files);
    // Another program wrote its version right before ours was swapped in.
    let digests = [&before, &ours].map(|text| swarm_sys::paths::digest(text.as_bytes(), 8)).join(".");
    fs::write(files.dir().join(format!("{FLOW}.tmp.1.{digests}")), &theirs).expect("written");
    super::super::turns::tidy(files.dir(), &swarm_model::flow::Turn::default());
    answer(&files, "go").expect("the question is open again");
    assert!(flow_json(&files).contains("\"theirs\": true"));
    assert!(fs::read_to_string(&path).expect("there") != theirs, "with the answer");
    let left = fs::read_dir(files.dir()).expect("listed").flatten();
    assert_eq!(left.filter(|file| file.file_name().to_string_lossy().contains(".tmp")).count(), 0);
}

#[test]
fn one_of_many_concurrent_answers_is_accepted() {
    let (_dir, _space, files) = asking();
    let start = Barrier::new(8);
    let taken: usize = thread::scope(|scope| {
        let each = |at: usize| {
            let (files, start) = (&files, &start);
            scope.spawn(move || {
                start.wait();
                usize::from(answer(files, &format!("answer {at}")).is_ok())
            })
        };
        let all: Vec<_> = (0..8).map(each).collect();
        all.into_iter().map(|one| one.join().expect("ended")).sum()
    });
    assert_eq!(taken, 1);
    assert_eq!(flow_json(&files).matches("answer ").count(), 1);
}

#[test]
fn every_stored_flow_is_written_back_unchanged() {
    let mut seen = 0;
    for case in fs::read_dir(data("cases")).expect("cases").flatten() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("is there");
        let projects = case.path().join("ws/.a-society/state");
        for project in fs::read_dir(projects).into_iter().flatten().flatten() {
            for flow in fs::read_dir(project.path()).expect("flows").flatten() {
                let names = (project.file_name(), flow.file_name());
                let (Some(project), Some(name)) = (names.0.to_str(), names.1.to_str()) else { continue };
                let Ok(id) = FlowRef::new(project, name) else { continue };
                let Ok(text) = fs::read_to_string(flow.path().join(FLOW)) else { continue };
                let theirs = format!("@@ROOT@@/cases/{}/ws", case.file_name().display());
                let text = text.replace(&theirs, root.to_str().expect("text"));
                let files = Workspace::find(Some(&root), &root).expect("there").flow(id);
                fs::create_dir_all(files.dir().join("record")).expect("made");
                fs::write(files.dir().join(FLOW), &text).expect("written");
                for file in ["workflow.yaml", "record.yaml"] {
                    let _ = fs::copy(flow.path().join("record").join(file), files.dir().join("record").join(file));
                }
                seen += 1;
                let written = files.update(|_| Ok::<_, StoreError>(()));
                assert_eq!(flow_json(&files), text, "{}: {written:?}", case.path().display());
            }
        }
    }
    assert!(seen >= 60, "{seen}");
}

#[test]
fn a_flow_goes_on_with_its_last_valid_workflow() {
    let (_dir, _space, files) = made();
    let workflow = files.dir().join("record/workflow.yaml");
    let update = || files.update(|open| Ok::<_, StoreError>(open.graph.nodes().len()));
    files
        .update(|open| {
            open.sidecar.start = Some(open.graph.start());
            Ok::<_, StoreError>(())
        })
        .expect("begun");
    assert_eq!(files.sidecar().expect("reads").last, None, "nothing was changed");
    for broken in ["a: [", "a: 1", "\u{0}"] {
        fs::write(&workflow, broken).expect("written");
        let open = files.open().expect("opens");
        assert!(open.damage.is_some_and(|cause| cause.contains("workflow.yaml: ")), "{broken}");
        assert_eq!((open.graph.nodes().len(), update().expect("changes")), (3, 3), "that of the start");
    }
    fs::write(&workflow, LINE.replace("  edges", "    - {id: more, role: dev}\n  edges")).expect("written");
    assert_eq!(update().expect("changes"), 4);
    fs::remove_file(&workflow).expect("there");
    fs::create_dir(&workflow).expect("made");
    assert_eq!(update().expect("changes"), 4, "the one that was read last");
    fs::remove_dir(&workflow).expect("there");
    fs::write(&workflow, LINE).expect("written");
    assert_eq!((update().expect("changes"), files.open().expect("opens").damage), (3, None));
    assert_eq!(files.sidecar().expect("reads").last, None);
    // What the projects of the workspace share may be damaged as well.
    let shared = files.root().join("demo/a-docs/workflow");
    fs::create_dir_all(&shared).expect("made");
    fs::write(shared.join("main.yaml"), "a: [").expect("written");
    assert_eq!(update().expect("changes"), 3);
}

#[test]
fn a_record_that_cannot_be_written_does_not_keep_a_flow_from_going_on() {
    let (_dir, _space, files) = asking();
    let record = files.dir().join("record/record.yaml");
    fs::remove_file(&record).expect("there");
    fs::create_dir(&record).expect("made");
    answer(&files, "go").expect("taken");
}

#[test]
fn flows_are_found_by_prefix() {
    let (_dir, space, files) = made();
    let other = space
        .make(&Make { project: "next", workflow: LINE, sidecar: Sidecar::default(), consent: None })
        .expect("made");
    let id = files.id().flow.as_str();
    for text in [id.to_owned(), format!("demo/{}", &id[..8]), files.id().to_string()] {
        assert_eq!(space.resolve(&text).expect("found").id(), files.id(), "{text}");
    }
    let error = space.resolve(&id[..8]).expect_err("two").to_string();
    assert!(error.contains(&files.id().to_string()) && error.contains(&other.id().to_string()), "{error}");
    for text in ["", "x", "demo/", "../demo", "demo/x"] {
        assert!(matches!(space.resolve(text), Err(StoreError::NotFound { .. })), "{text}");
    }
}

#[test]
fn the_list_contains_unopenable_flows_and_names_broken_ones() {
    let (_dir, space, files) = made();
    let broken = space
        .make(&Make { project: "demo", workflow: LINE, sidecar: Sidecar::default(), consent: None })
        .expect("made");
    fs::write(broken.dir().join(FLOW), "{").expect("written");
    fs::write(files.dir().join(FLOW), flow_json(&files).replace("\"11\"", "\"9\"")).expect("written");
    let listing = space.list(Some("demo")).expect("lists");
    assert_eq!((listing.rows.len(), listing.broken.len()), (1, 1));
    assert_eq!((listing.rows[0].openable, listing.rows[0].version.as_str()), (false, "9"));
}

#[test]
fn the_workspace_is_the_nearest_enclosing_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().canonicalize().expect("there");
    let deep = root.join("p/src");
    fs::create_dir_all(&deep).expect("made");
    fs::create_dir_all(root.join("p/src/.git")).expect("made");
    fs::create_dir_all(root.join("p/.git")).expect("made");
    fs::write(root.join("p/.git/HEAD"), "").expect("written");
    assert_eq!(Workspace::find(None, &deep).expect("found").root(), root.join("p"));
    fs::create_dir(root.join(".a-society")).expect("made");
    assert_eq!(Workspace::find(None, &deep).expect("found").root(), root);
    assert_eq!(Workspace::find(Some(Path::new("..")), &deep).expect("found").root(), root.join("p"));
    assert!(Workspace::find(Some(Path::new("nowhere")), &deep).is_err());
}
