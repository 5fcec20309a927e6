use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::keys::TABLE;
use super::super::reading::Reading;
use super::super::row::{Answer, Branch, Kind, Subject};
use super::*;

pub fn row(name: &str, class: Class) -> Row {
    Row {
        id: Id::worker(name),
        label: name.into(),
        generation: Some(1),
        rev: 1,
        class,
        state: "working".into(),
        at: String::new(),
        since_ms: Some(0),
        is_running: matches!(class, Class::Working | Class::NeedsYou),
        has_window: true,
        tags: Vec::new(),
        place: String::new(),
        answer: None,
        is_first: false,
        worker: None,
        branch: None,
        subject: None,
    }
}

fn whole(rows: Vec<Row>) -> Event {
    Event::Rows { is_whole: true, rows, gone: Vec::new() }
}

fn changed(rows: Vec<Row>) -> Event {
    Event::Rows { is_whole: false, rows, gone: Vec::new() }
}

fn gone(name: &str) -> Event {
    Event::Rows { is_whole: false, rows: Vec::new(), gone: vec![Id::worker(name)] }
}

fn working(names: &[&str]) -> Machine {
    let mut machine = Machine::new(false);
    machine.take(0, whole(names.iter().map(|name| row(name, Class::Working)).collect()));
    machine
}

/// Presses keys at a time, and returns what is to be done but for reading.
fn press_at(machine: &mut Machine, now: u64, keys: &str) -> Vec<Effect> {
    let key = |c| match c {
        '\n' => Key::Enter,
        '\x1b' => Key::Escape,
        c => Key::Char(c),
    };
    let effects = keys.chars().flat_map(|c| machine.take(now, Event::Key(key(c)))).collect::<Vec<_>>();
    effects.into_iter().filter(|effect| !matches!(effect, Effect::Show(_))).collect()
}

fn press(machine: &mut Machine, keys: &str) -> Vec<Effect> {
    press_at(machine, 10_000, keys)
}

fn run(words: &str) -> Effect {
    Effect::Run { words: words.split(' ').map(str::to_owned).collect(), input: None, dir: None }
}

fn names(machine: &Machine) -> Vec<&str> {
    machine.window().map(|(row, ..)| row.id.name.as_str()).collect()
}

fn selected(machine: &Machine) -> &str {
    machine.selected().map_or("", |row| &row.id.name)
}

fn told(machine: &Machine) -> &str {
    machine.message().map_or("", |message| &message.text)
}

#[test]
fn a_row_that_moves_keeps_the_cursor() {
    let mut machine = working(&["a", "b", "c", "d"]);
    press_at(&mut machine, 0, "jj");
    assert_eq!(selected(&machine), "c");
    machine.take(5_000, changed(vec![row("d", Class::NeedsYou), row("a", Class::Ended)]));
    assert_eq!(names(&machine), ["d", "b", "c", "a"]);
    assert_eq!(selected(&machine), "c");
    machine.take(6_000, gone("b"));
    assert_eq!((selected(&machine), names(&machine)), ("c", vec!["d", "c", "a"]));
    // The next one takes the place of one that is gone.
    machine.take(7_000, gone("c"));
    assert_eq!(selected(&machine), "a");
    machine.take(7_000, whole(Vec::new()));
    assert_eq!((selected(&machine), machine.place()), ("", (0, 0)));
}

#[test]
fn the_order_stands_still_while_keys_are_pressed() {
    let mut machine = working(&["a", "b", "c"]);
    press_at(&mut machine, 1_000, "j");
    machine.take(2_000, changed(vec![row("c", Class::NeedsYou), row("new", Class::NeedsYou)]));
    assert_eq!(names(&machine), ["a", "b", "c", "new"], "the sign changes, and the place later");
    assert_eq!(machine.due(), Some(1_000 + STILL_MS));
    machine.take(3_999, Event::Tick);
    assert_eq!(names(&machine), ["a", "b", "c", "new"]);
    machine.take(4_000, Event::Tick);
    assert_eq!((names(&machine), machine.due()), (vec!["c", "new", "a", "b"], None));
    assert_eq!(selected(&machine), "b");
    press_at(&mut machine, 5_000, "f");
    machine.take(60_000, changed(vec![row("b", Class::NeedsYou)]));
    assert_eq!((names(&machine), machine.due()), (vec!["c", "new", "a", "b"], None), "frozen");
    press_at(&mut machine, 60_000, "f");
    assert_eq!(names(&machine), ["b", "c", "new", "a"]);
}

#[test]
fn killing_asks_for_those_that_were_shown() {
    let mut machine = working(&["a", "b", "c"]);
    assert!(press(&mut machine, "jx").is_empty());
    let Mode::Ask(question) = machine.mode() else { panic!("{:?}", machine.mode()) };
    assert_eq!(question.text(), "stop b? y n");
    // Rows move, and other keys are no answer.
    machine.take(60_000, changed(vec![row("c", Class::NeedsYou)]));
    assert!(press(&mut machine, "jx \nq").is_empty());
    assert_eq!(press(&mut machine, "y"), [run("kill b")]);
    assert_eq!(machine.under_way().map(|words| words.join(" ")).as_deref(), Some("kill b"));
    let done = |code, said: &str| Event::Done { words: vec!["kill".into(), "b".into()], code, said: said.into() };
    machine.take(0, done(Some(0), "killed b"));
    assert_eq!((told(&machine), machine.under_way()), ("swarm kill b: killed b", None));
    assert!(press(&mut machine, "xn").is_empty());
    assert_eq!(told(&machine), "nothing was done");
    // Another worker under that name is not meant.
    press(&mut machine, "gjx");
    let again = selected(&machine).to_owned();
    machine.take(0, changed(vec![Row { generation: Some(2), ..row(&again, Class::Working) }]));
    assert!(press(&mut machine, "y").is_empty());
    assert!(told(&machine).contains("is not the one that was shown"), "{}", told(&machine));
    machine.take(0, done(Some(2), "swarm: error: no"));
    assert!(machine.message().is_some_and(|message| message.is_refusal && message.text.contains("exit code 2")));
}

#[test]
fn many_are_stopped_only_with_their_number() {
    let mut machine = working(&["a", "b", "c", "d", "e", "f"]);
    assert!(press(&mut machine, "*xy").is_empty(), "a key is not enough");
    assert_eq!(press(&mut machine, "\x1b*"), []);
    assert_eq!(press(&mut machine, "*x5\n"), []);
    assert_eq!(told(&machine), "nothing was done");
    assert_eq!(press(&mut machine, "x6\n"), [run("kill a b c d e f")]);
    assert_eq!(machine.marked(), (0, 0));
}

#[test]
fn marks_stay_with_their_rows() {
    let mut machine = working(&["a", "b", "c"]);
    press(&mut machine, " j ");
    assert_eq!(machine.marked(), (2, 0));
    press(&mut machine, "/b\n");
    assert_eq!((names(&machine), machine.marked()), (vec!["b"], (2, 2)));
    assert_eq!(press(&mut machine, "m"), [run("merge add a c")], "marked and not listed");
    machine.take(0, gone("a"));
    assert_eq!(machine.marked(), (1, 1));
    press(&mut machine, "\x1b");
    assert_eq!((names(&machine), machine.filter()), (vec!["b", "c"], ""));
    press(&mut machine, "\x1b");
    assert_eq!(machine.marked(), (0, 0));
}

#[test]
fn a_request_is_answered_after_it_was_shown() {
    let asks = |name: &str, number: &str| Row {
        answer: Some(Answer::Permission(number.into())),
        ..row(name, Class::NeedsYou)
    };
    let mut machine = Machine::new(false);
    machine.take(0, whole(vec![asks("a", "7")]));
    assert!(press(&mut machine, "ay").is_empty(), "nothing was shown yet");
    let want = machine.wanted().0.cloned().expect("asked for");
    assert_eq!(want.what, What::Request("7".into()));
    machine.take(0, Event::Shown { want: want.clone(), lines: 3 });
    // Another one has taken its place: what was shown counts no more.
    machine.take(0, changed(vec![asks("a", "8")]));
    assert_eq!(told(&machine), "request 7 is over; this is another one");
    assert!(press(&mut machine, "y").is_empty());
    machine.take(0, Event::Shown { want, lines: 3 });
    assert!(press(&mut machine, "y").is_empty(), "the text of the earlier one");
    let want = machine.wanted().0.cloned().expect("asked for");
    machine.take(0, Event::Shown { want, lines: 3 });
    assert_eq!(press(&mut machine, "y"), [run("approve 8")]);
    // Where there is no place for it, nobody has read it.
    machine.take(0, Event::Resized { columns: 10, rows: 2 });
    press(&mut machine, "a");
    let want = machine.wanted().0.cloned().expect("asked for");
    machine.take(0, Event::Shown { want, lines: 3 });
    assert!(press(&mut machine, "y").is_empty());
    machine.take(0, Event::Resized { columns: 80, rows: 24 });
    assert_eq!(press(&mut machine, "n"), [run("deny 8")]);
    let question = Row { answer: Some(Answer::Question("9".into())), ..row("a", Class::NeedsYou) };
    machine.take(0, changed(vec![question]));
    press(&mut machine, "a");
    let want = machine.wanted().0.cloned().expect("asked for");
    machine.take(0, Event::Shown { want, lines: 1 });
    machine.take(0, Event::Pasted("light\n".into()));
    let expected =
        Effect::Run { words: vec!["answer".into(), "9".into(), "light blue".into()], input: None, dir: None };
    assert_eq!(press(&mut machine, "blue\n"), [expected]);
    press(&mut machine, "a");
    machine.take(0, changed(vec![row("a", Class::Working)]));
    assert_eq!((machine.mode(), told(&machine)), (&Mode::List, "request 9 is over"));
}

#[test]
fn lines_and_keys_go_to_the_window() {
    let mut machine = working(&["a"]);
    let line =
        Effect::Run { words: vec!["send".into(), "a".into(), "-".into()], input: Some("hello x".into()), dir: None };
    assert_eq!(press(&mut machine, "thello x\n"), [line]);
    assert_eq!(press(&mut machine, "pEscape 1\n"), [run("keys a Escape 1")]);
    assert_eq!(press(&mut machine, "\n"), [Effect::Attach("a".into())]);
    assert_eq!(press(&mut machine, ":swarm ls -l\n"), [run("ls -l")]);
    assert_eq!(press(&mut machine, "t  \n"), []);
    // At the list, letters of a paste would be acts.
    assert!(machine.take(0, Event::Pasted("xyq".into())).is_empty() && *machine.mode() == Mode::List);
    machine.take(0, whole(vec![Row { has_window: false, ..row("-p", Class::Ended) }]));
    assert_eq!(press(&mut machine, "\n"), []);
    assert_eq!(told(&machine), "'-p' has no window");
    assert_eq!(press(&mut machine, "r"), [run("respawn -- -p")], "a name is no option");
}

#[test]
fn read_only_leaves_every_act_out() {
    let mut machine = Machine::new(true);
    machine.take(0, whole(vec![row("a", Class::NeedsYou)]));
    for binding in TABLE.iter().filter(|binding| binding.group == super::super::keys::Group::Act) {
        let effects = machine.take(0, Event::Key(binding.keys[0]));
        assert!(effects.is_empty() && *machine.mode() == Mode::List, "{binding:?}");
        assert!(told(&machine).contains("read-only"), "{binding:?}");
    }
}

#[test]
fn the_detail_is_read_once_for_what_is_selected() {
    let mut machine = Machine::new(false);
    let want = |name: &str, view, edition| {
        let shown = row(name, Class::Working);
        let from = Reading::of(&shown, Some(&shown), view);
        Effect::Show(Some(Want { id: Id::worker(name), what: What::View(view), from, edition }))
    };
    let first = machine.take(0, whole(vec![row("a", Class::Working), row("b", Class::Working)]));
    assert_eq!(first, [want("a", View::Screen, (Some(1), 0, 0))]);
    assert!(machine.take(0, changed(vec![Row { rev: 2, ..row("a", Class::Working) }])).is_empty());
    assert_eq!(machine.take(0, Event::Key(Key::Char('e'))), [want("a", View::Explain, (Some(1), 2, 0))]);
    let again = machine.take(0, changed(vec![Row { rev: 3, ..row("a", Class::Working) }]));
    assert_eq!(again, [want("a", View::Explain, (Some(1), 3, 0))]);
    assert_eq!(machine.take(0, Event::Key(Key::Down)), [want("b", View::Explain, (Some(1), 1, 0))]);
    assert_eq!(machine.take(0, Event::Key(Key::Char('R'))), [want("b", View::Explain, (Some(1), 1, 1))]);
    assert_eq!(machine.take(0, Event::Resized { columns: 40, rows: 8 }), [Effect::Show(None)], "no place for it");
}

#[test]
fn a_text_that_grows_is_followed_until_it_is_scrolled() {
    let mut machine = working(&["a"]);
    let shown = |machine: &mut Machine, lines| {
        let want = machine.wanted().0.cloned().expect("asked for");
        machine.take(0, Event::Shown { want, lines });
    };
    let rows = usize::from(machine.layout().detail.rows);
    shown(&mut machine, 100);
    assert_eq!(machine.top_line(), 100 - rows);
    press(&mut machine, "K");
    shown(&mut machine, 110);
    assert_eq!(machine.top_line(), 99 - rows);
    press(&mut machine, "}}");
    shown(&mut machine, 120);
    assert_eq!(machine.top_line(), 120 - rows, "at the end it follows again");
    press(&mut machine, "d");
    shown(&mut machine, 120);
    assert_eq!(machine.top_line(), 0, "a text that does not grow begins at its begin");
}

#[test]
fn the_next_that_needs_somebody_is_found_all_around() {
    let mut machine = working(&["a", "b", "c"]);
    press(&mut machine, "w");
    assert_eq!(told(&machine), "nothing that is listed needs you");
    machine.take(0, changed(vec![row("a", Class::NeedsYou), row("c", Class::NeedsYou)]));
    let mut seen = Vec::new();
    for _ in 0..3 {
        press(&mut machine, "w");
        seen.push(selected(&machine).to_owned());
    }
    assert_eq!(seen, ["c", "a", "c"]);
}

fn any_class() -> impl Strategy<Value = Class> {
    prop::sample::select(vec![Class::NeedsYou, Class::Failed, Class::Working, Class::Queued, Class::Ended])
}

fn any_row() -> impl Strategy<Value = Row> {
    let answer = prop::option::of(prop::sample::select(vec![
        Answer::Permission("1".into()),
        Answer::Question("2".into()),
        Answer::Window,
    ]));
    let kind = prop::sample::select(vec![Kind::Worker, Kind::Worker, Kind::Worker, Kind::Item, Kind::Request]);
    ("[a-f]", any_class(), 0..3u64, answer, kind).prop_map(|(name, class, generation, answer, kind)| Row {
        id: Id { kind, name: name.clone() },
        label: name.clone(),
        generation: Some(generation),
        answer,
        ..row(&name, class)
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let keys: Vec<Key> = TABLE.iter().flat_map(|binding| binding.keys.iter().copied()).collect();
    let more = ['y', 'n', '2', '6', 'é', '漢'].map(Key::Char);
    let key =
        prop::sample::select(keys.into_iter().chain(more).chain([Key::Backspace, Key::Enter]).collect::<Vec<_>>());
    prop_oneof![
        6 => key.prop_map(Event::Key),
        3 => (any::<bool>(), prop::collection::vec(any_row(), 0..8), prop::collection::vec(any_row(), 0..3)).prop_map(
            |(is_whole, rows, gone)| Event::Rows { is_whole, rows, gone: gone.into_iter().map(|row| row.id).collect() }
        ),
        1 => (1..200u16, 1..60u16).prop_map(|(columns, rows)| Event::Resized { columns, rows }),
        1 => "[a-z :!\n]{0,5}".prop_map(Event::Pasted),
        1 => Just(Event::Tick),
        1 => "[a-z]{0,5}".prop_map(Event::Told),
    ]
}

proptest! {
    #[test]
    fn the_cursor_the_marks_and_the_questions_hold(
        events in prop::collection::vec((0..2_000u64, any_event()), 1..80),
        lines in 0..300usize,
    ) {
        let mut machine = Machine::new(false);
        let (mut now, mut wanted) = (0, None);
        for (later, event) in events {
            now += later;
            let (before, mode) = (machine.clone(), machine.mode().clone());
            let effects = machine.take(now, event.clone());
            // A change of rows moves neither the cursor nor the marks from what they are on.
            if matches!(event, Event::Rows { .. } | Event::Tick | Event::Resized { .. }) {
                if let Some(row) = before.selected() && machine.order.contains(&row.id) {
                    prop_assert_eq!(&machine.selected().expect("selected").id, &row.id);
                }
                let kept = before.marks.iter().filter(|id| machine.rows.contains_key(*id)).count();
                prop_assert_eq!(machine.marks.len(), kept);
            }
            // The selected row is on the screen, if there is place for a row.
            if !machine.order.is_empty() && !machine.layout().list.is_empty() {
                prop_assert_eq!(machine.window().filter(|(_, is_selected, _)| *is_selected).count(), 1);
            }
            let mut seen = BTreeMap::new();
            machine.order.iter().for_each(|id| *seen.entry(id).or_insert(0) += 1);
            prop_assert!(seen.values().all(|count| *count == 1));
            for effect in &effects {
                match effect {
                    Effect::Run { words, .. } if words[0] == "kill" => {
                        let Mode::Ask(question) = &mode else { panic!("no question: {mode:?}") };
                        let names: Vec<&str> = question.targets.iter().map(|(id, _)| id.name.as_str()).collect();
                        prop_assert_eq!(&words[1..], &names);
                    }
                    Effect::Run { words, .. } if words[0] == "approve" || words[0] == "deny" => {
                        let shown = matches!(&mode, Mode::Answer(request) if request.is_shown);
                        prop_assert!(shown);
                    }
                    Effect::Show(want) => wanted.clone_from(want),
                    _ => {}
                }
            }
            prop_assert_eq!(machine.wanted().0, wanted.as_ref(), "told once for each change");
            if let Some(want) = wanted.clone() {
                machine.take(now, Event::Shown { want, lines });
            }
            prop_assert!(machine.top_line() <= lines);
        }
    }
}

/// A run with two workstreams, in a list of their own.
fn run_rows(status: &str, is_over: bool, stage: &str) -> Vec<Row> {
    let branch = |at| Some(Branch { of: "/r/.arial".into(), name: "shop".into(), at, depth: at.min(1) });
    let (home, root) = ("/r/.arial".to_owned(), Some("/r".to_owned()));
    let of_run = Subject::Run { home: home.clone(), root: root.clone(), status: status.into(), is_over };
    let of_job = |id: &str| Subject::Workstream {
        home: home.clone(),
        root: root.clone(),
        id: id.into(),
        stage: stage.into(),
        is_over,
    };
    let job = |id: &str, at| Row {
        id: Id { kind: Kind::Workstream, name: format!("/r/.arial/{id}") },
        branch: branch(at),
        subject: Some(of_job(id)),
        worker: Some(format!("shop.{id}")),
        has_window: false,
        ..row(id, Class::Working)
    };
    let run = Row {
        id: Id { kind: Kind::Run, name: home.clone() },
        branch: branch(0),
        subject: Some(of_run),
        ..row("shop", Class::Working)
    };
    vec![run, job("a", 1), job("b", 2), row("shop.b", Class::Working)]
}

fn on_runs(status: &str, is_over: bool, stage: &str) -> Machine {
    let mut machine = Machine::new(false);
    machine.take(0, whole(run_rows(status, is_over, stage)));
    press(&mut machine, "]");
    machine
}

#[test]
fn a_run_is_stopped_resumed_and_continued_after_a_question() {
    let mut machine = on_runs("running", false, "working");
    assert_eq!(names(&machine), ["/r/.arial", "/r/.arial/a", "/r/.arial/b"]);
    press(&mut machine, "x");
    let Mode::Ask(question) = machine.mode() else { panic!("{:?}", machine.mode()) };
    assert_eq!(question.text(), "stop run shop and its agents? y n");
    assert_eq!(press(&mut machine, "y"), [run("run stop --home /r/.arial")]);
    assert!(press(&mut machine, "r").is_empty());
    assert_eq!(told(&machine), "run shop: running");
    assert_eq!(press(&mut on_runs("paused", false, "pending"), "r"), [run("run resume --home /r/.arial")]);
    let again = |words: &str| match run(words) {
        Effect::Run { words, input, .. } => Effect::Run { words, input, dir: Some("/r".to_owned()) },
        other => other,
    };
    assert_eq!(press(&mut on_runs("failed", true, "failed"), "ry"), [again("run --detach --retry-failed")]);
    assert_eq!(press(&mut on_runs("interrupted", true, "paused"), "ry"), [again("run --detach")]);
    assert!(press(&mut on_runs("interrupted", true, "paused"), "rn").is_empty());
}

#[test]
fn a_workstream_is_retried_told_something_and_has_a_worker() {
    let again = Effect::Run {
        words: ["run", "--detach", "--retry-failed"].map(str::to_owned).to_vec(),
        input: None,
        dir: Some("/r".to_owned()),
    };
    assert_eq!(press(&mut on_runs("failed", true, "failed"), "jry"), [again]);
    assert!(press(&mut on_runs("running", false, "failed"), "jr").is_empty(), "its run is not over");
    assert_eq!(press(&mut on_runs("running", false, "waiting"), "jr"), [run("merge retry shop.a")]);
    let mut machine = on_runs("running", false, "working");
    let said = Effect::Run {
        words: ["run", "context", "--home", "/r/.arial", "--", "a", "-"].map(str::to_owned).to_vec(),
        input: Some("no".to_owned()),
        dir: None,
    };
    assert_eq!(press(&mut machine, "jtno\n"), [said]);
    // Acts on workers are for that of the workstream, if it is there.
    assert!(press(&mut machine, "x").is_empty());
    assert_eq!(told(&machine), "no worker is selected");
    assert_eq!(press(&mut machine, "jxy"), [run("kill shop.b")]);
    assert_eq!(press(&mut machine, "\n"), [Effect::Attach("shop.b".to_owned())]);
}

#[test]
fn what_needs_a_person_is_first_also_if_it_is_no_worker() {
    let mut machine = working(&["a", "b"]);
    let gate = Row {
        id: Id { kind: Kind::Node, name: "/r/p/f\nbuild".into() },
        is_first: true,
        answer: Some(Answer::Permission("f/build".into())),
        at: "handoff: a.md".into(),
        ..row("build", Class::NeedsYou)
    };
    machine.take(0, changed(vec![gate.clone()]));
    assert_eq!(names(&machine), ["/r/p/f\nbuild", "a", "b"]);
    press(&mut machine, "wa");
    let shown = |machine: &mut Machine| {
        let want = machine.wanted().0.cloned().expect("asked for");
        assert_eq!(want.from, Reading::Verb(vec!["approvals".into(), "f/build".into()]));
        machine.take(0, Event::Shown { want, lines: 1 });
    };
    shown(&mut machine);
    // Another handoff under the same name is shown before it is approved.
    machine.take(0, changed(vec![Row { at: "handoff: b.md".into(), ..gate }]));
    assert!(press(&mut machine, "y").is_empty(), "it was not shown");
    shown(&mut machine);
    assert_eq!(press(&mut machine, "y"), [run("approve f/build")]);
}
