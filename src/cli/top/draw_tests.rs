use proptest::prelude::*;
use ratatui::layout::Rect;
use swarm_actors::top::{Answer, Event, Id, Key, TABLE, View, What};

use super::*;

const FACE: Face = Face { colour: true, unicode: true, now_ms: 10_000_000 };

fn row(name: &str, class: Class, state: &str, minutes: u64, at: &str) -> Row {
    Row {
        id: Id::worker(name),
        label: name.into(),
        generation: Some(1),
        rev: 1,
        class,
        state: state.into(),
        at: at.into(),
        since_ms: Some(FACE.now_ms - minutes * 60_000),
        is_running: true,
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

fn fleet() -> Vec<Row> {
    vec![
        row("parser", Class::Working, "working", 12, "Bash: cargo test --quiet"),
        row("fix", Class::NeedsYou, "asks", 4, "may it run: cargo publish?"),
        row("billing", Class::Queued, "backoff", 0, "sh -c make"),
        row("search", Class::Failed, "exited 3", 9, "no such index"),
        row("docs", Class::Ended, "exited", 125, "claude"),
    ]
}

fn machine(columns: u16, rows: u16, all: Vec<Row>) -> Machine {
    let mut machine = Machine::new(false);
    machine.take(0, Event::Resized { columns, rows });
    machine.take(0, Event::Rows { is_whole: true, rows: all, gone: Vec::new() });
    machine
}

fn press(machine: &mut Machine, keys: &str) {
    for c in keys.chars() {
        machine.take(0, Event::Key(Key::Char(c)));
    }
}

/// Gives the detail a text.
fn show(machine: &mut Machine, text: &str) -> Text {
    let (want, lines) = (machine.wanted().0.cloned(), sgr::lines(text));
    if let Some(want) = want.clone() {
        machine.take(0, Event::Shown { want, lines: lines.len() });
    }
    Text { want, lines }
}

fn drawn(machine: &Machine, text: &Text, face: Face) -> Buffer {
    let (columns, rows) = machine.size();
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    draw(machine, text, face, &mut buffer);
    buffer
}

/// The lines of a picture, without blanks at their ends.
fn lines(buffer: &Buffer) -> Vec<String> {
    let line = |y| {
        let (mut text, mut covered) = (String::new(), 0);
        for x in 0..buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            // The second half of a wide character has no text of its own.
            if covered > 0 {
                covered -= 1;
                continue;
            }
            covered = ratatui::text::Span::raw(symbol).width().saturating_sub(1);
            text.push_str(symbol);
        }
        text.trim_end().to_owned()
    };
    (0..buffer.area.height).map(line).collect()
}

fn picture(machine: &Machine, text: &Text) -> String {
    lines(&drawn(machine, text, FACE)).join("\n")
}

/// Compares a picture with a recorded one, without empty lines at the end.
#[track_caller]
fn is_recorded(picture: &str, name: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/top").join(name);
    let recorded = std::fs::read_to_string(path).expect("a recorded picture");
    assert_eq!(picture.trim_end(), recorded.trim_end(), "the picture is now:\n{picture}\n");
}

#[test]
fn a_usual_terminal_shows_who_needs_somebody_first() {
    let mut machine = machine(80, 24, fleet());
    let text = show(&mut machine, "\x1b[1mMay I run this?\x1b[0m\n  cargo publish\n  1. yes  2. no");
    is_recorded(&picture(&machine, &text), "80x24.txt");
}

#[test]
fn a_wide_terminal_shows_list_and_detail_side_by_side() {
    let mut machine = machine(120, 40, fleet());
    press(&mut machine, "jj d");
    let text = show(&mut machine, "diff --git a/f b/f\n@@ -1 +1 @@\n-old\n+new");
    is_recorded(&picture(&machine, &text), "120x40.txt");
}

#[test]
fn a_very_large_terminal_has_place_for_all_of_it() {
    let mut all = fleet();
    all.extend((0..120).map(|number| row(&format!("worker-{number:03}"), Class::Working, "working", 3, "cargo build")));
    let mut machine = machine(300, 100, all);
    let text = show(&mut machine, "one\ntwo");
    let lines = lines(&drawn(&machine, &text, FACE));
    assert_eq!(lines.len(), 100);
    assert_eq!(lines[0], "swarm  125 workers  1 needs you  1 failed  121 at work  1 queued  1 ended");
    assert!(lines[1].contains("1/125"), "{}", lines[1]);
    assert!(lines[2].starts_with(">! fix "), "{}", lines[2]);
    assert!(lines[98].contains("worker-09"), "{}", lines[98]);
    assert!(lines[99].starts_with("enter attach") && lines[99].ends_with("q leave"), "{}", lines[99]);
    assert_eq!(lines[2].chars().skip(101).collect::<String>(), "one");
}

#[test]
fn a_question_is_in_the_last_line_and_its_workers_above() {
    let mut machine = machine(80, 24, fleet());
    press(&mut machine, "  x");
    let lines = lines(&drawn(&machine, &Text::default(), FACE));
    assert_eq!(lines[23], "stop fix, search? y n");
    assert_eq!(
        (lines[12].as_str(), lines[13].as_str(), lines[14].as_str()),
        (" stop these workers", " fix", " search")
    );
    let small = self::machine(10, 2, fleet());
    let mut small = small;
    assert_eq!(self::lines(&drawn(&small, &Text::default(), FACE))[1], "5 workers…");
    press(&mut small, "x");
    assert_eq!(self::lines(&drawn(&small, &Text::default(), FACE))[1], "stop fix?…");
}

#[test]
fn a_request_is_shown_in_full_before_its_keys_are() {
    let asks = Row { answer: Some(Answer::Permission("7".into())), ..row("fix", Class::NeedsYou, "asks", 1, "push?") };
    let mut machine = machine(60, 12, vec![asks]);
    press(&mut machine, "a");
    assert_eq!(machine.wanted().0.map(|want| &want.what), Some(&What::Request("7".into())));
    let before = lines(&drawn(&machine, &Text::default(), FACE));
    assert_eq!((before[1].as_str(), before[11].as_str()), (" request 7 of fix", "reading the request"));
    let text = show(&mut machine, "git push origin main");
    let after = lines(&drawn(&machine, &text, FACE));
    assert_eq!((after[2].as_str(), &after[11][..9]), ("git push origin main", "y approve"));
}

#[test]
fn what_is_typed_has_the_cursor_at_its_end() {
    let mut machine = machine(40, 12, fleet());
    press(&mut machine, "tgo 漢");
    let mut buffer = Buffer::empty(Rect::new(0, 0, 40, 12));
    let cursor = draw(&machine, &Text::default(), FACE, &mut buffer);
    assert_eq!(lines(&buffer)[11], "type into fix: go 漢");
    assert_eq!(cursor, Some(Position { x: 20, y: 11 }));
    press(&mut machine, &"long".repeat(40));
    let cursor = draw(&machine, &Text::default(), FACE, &mut buffer).expect("typed");
    assert!(cursor.x < 40 && lines(&buffer)[11].ends_with("longlong"), "{cursor:?}");
}

#[test]
fn colour_is_never_the_only_sign() {
    let mut machine = machine(80, 24, fleet());
    press(&mut machine, " jj");
    let text = show(&mut machine, "\x1b[31mred\x1b[0m");
    let (with, without) = (drawn(&machine, &text, FACE), drawn(&machine, &text, Face { colour: false, ..FACE }));
    assert_eq!(lines(&with), lines(&without));
    let is_plain =
        |style: Style| style.fg.is_none_or(|fg| fg == Color::Reset) && style.bg.is_none_or(|bg| bg == Color::Reset);
    assert!(without.content.iter().all(|cell| is_plain(cell.style())), "NO_COLOR");
    assert!(with.content.iter().any(|cell| cell.fg == Color::Red));
    assert!(with.content.iter().all(|cell| !matches!(cell.fg, Color::Blue | Color::Black)), "unreadable on dark");
}

#[test]
fn ascii_shows_ascii_only() {
    let mut all = fleet();
    all.push(row("漢字-é", Class::NeedsYou, "asks", 1, &"ein sehr länger Text ".repeat(9)));
    let mut machine = machine(80, 24, all);
    let text = show(&mut machine, "● done");
    let shown = lines(&drawn(&machine, &text, Face { unicode: false, ..FACE })).join("\n");
    assert!(shown.is_ascii() && shown.contains("??-?") && shown.contains('~'), "{shown}");
}

#[test]
fn hostile_names_and_texts_stay_in_their_place() {
    let mut all = fleet();
    let hostile = "\x1b[31m\u{202e}x\n\u{1f468}\u{200d}\u{1f469}\u{fe0f}漢字".repeat(20);
    all.push(row(&hostile, Class::NeedsYou, "asks", 1, "\u{9b}2J"));
    let mut machine = machine(80, 24, all);
    let text = show(&mut machine, "\x1b]0;t\x07\x1b[2Ja\u{202e}b");
    let buffer = drawn(&machine, &text, FACE);
    let is_clean = |symbol: &str| !symbol.contains(|c: char| c.is_control() || c == '\u{202e}');
    assert!(buffer.content.iter().all(|cell| is_clean(cell.symbol())));
    let lines = lines(&buffer);
    assert!(lines[3].contains("4m") || lines[2].contains("4m"), "{lines:#?}");
}

#[test]
fn help_has_every_key() {
    let mut machine = machine(100, 80, fleet());
    press(&mut machine, "?");
    let shown = picture(&machine, &Text::default());
    for binding in TABLE {
        assert!(shown.contains(binding.help), "{binding:?}");
    }
}

#[test]
fn ages_are_right_if_the_clock_was_set_back_or_a_night_has_passed() {
    let machine = machine(80, 24, vec![row("a", Class::Working, "working", 0, "")]);
    let of = |now_ms| {
        let lines = lines(&drawn(&machine, &Text::default(), Face { now_ms, ..FACE }));
        lines[2].split_whitespace().last().expect("an age").to_owned()
    };
    assert_eq!(of(FACE.now_ms - 3_600_000), "+1h", "as a time to come");
    assert_eq!((of(FACE.now_ms + 59_000), of(FACE.now_ms + 8 * 3_600_000)), ("<1m".to_owned(), "8h".to_owned()));
}

/// A run with a workstream that asks, and a flow with a gate.
fn trees() -> Vec<Row> {
    let run = r#"{"key":"/r/.arial","run":"0ca81f3e","home":"/r/.arial","root":"/r","name":"shop","specs":"specs","base":"main",
        "status":"running","over":false,"stages":{"done":1,"asking":1,"working":1,"pending":1},"hosts":[],"error":null}"#;
    let job = |id: &str, stage: &str, after: &str, more: &str| {
        format!(
            r#"{{"key":"/r/.arial/{id}","id":"{id}","home":"/r/.arial","stage":"{stage}","worker":"shop.{id}","attempt":1,"host":null,
            "after":[{after}],"waits_for_host":null,"commit":null,"files":[],"summary":null,"error":null,"waiting":null,
            "started_at":null,"completed_at":null,"item":null,"needs":null,"retry_ms":null{more}}}"#
        )
        .replace(r#""needs":null,"retry_ms":null,"#, r#""retry_ms":null,"#)
    };
    let asks = r#","needs":{"kind":"permission","text":"may it run: npm publish?","answer":"swarm approve 7"}"#;
    let jobs = [
        job("schema", "done", "", ""),
        job("api", "working", r#""schema""#, ""),
        job("client", "asking", r#""schema","api""#, asks),
        job("docs", "pending", r#""client""#, ""),
    ];
    let run = super::super::trees::run(run).expect("a run");
    let mut rows = vec![run.row(1)];
    rows.extend(super::super::trees::workstreams(&run, jobs.iter().map(|text| (1, text.as_str()))));
    let flow = r#"{"key":"/r/demo/20260101T000000000Z-abc123","project":"demo","flow":"20260101T000000000Z-abc123","root":"/r",
        "status":"running","name":"Rate limits","run":true,"next":[],"stalled":null,"not_queued":null,
        "nodes":[{"id":"intake","role":"owner","state":"done","reason":null,"answered":false},
        {"id":"build","role":"dev","state":"awaiting-human","reason":"handoff","answered":false}],
        "roles":[{"role":"owner","worker":null,"turn":0},{"role":"dev","worker":"demo.dev","turn":2}],
        "requests":[{"request":null,"node":"build","role":"dev","reason":"handoff","text":"hands over x.md\nto close",
        "answers":{"yes":["flow","approve"],"no":["flow","decline"],"text":null}}]}"#;
    rows.extend(super::super::trees::flow(1, flow));
    rows.push(row("shop.api", Class::Working, "working", 4, "Bash: cargo test"));
    rows
}

#[test]
fn a_run_is_a_tree_of_its_workstreams() {
    let mut machine = machine(80, 24, trees());
    press(&mut machine, "]jjj");
    let text = show(&mut machine, "I would like to publish it.");
    let lines = lines(&drawn(&machine, &text, FACE));
    let plain: Vec<String> = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines[0].ends_with(" runs") && lines[5].starts_with(">!       client"), "{lines:#?}");
    assert_eq!(
        plain[2..7],
        [
            "shop 0ca81f3e running - 1/4 done, 1 asking, 1 working, on main",
            ". schema done -",
            "api working - Bash: cargo test",
            ">! client asks - may it run: npm publish?",
            "~ docs pending - after client",
        ]
    );
    assert!(lines[12].starts_with(" client  [1 screen]  2 log"), "{lines:#?}");
    assert_eq!(lines[13], "I would like to publish it.");
}

#[test]
fn a_flow_has_its_nodes_and_gates_are_in_the_first_list() {
    let mut machine = machine(120, 40, trees());
    let first = lines(&drawn(&machine, &Text::default(), FACE));
    assert!(
        first[0].starts_with("swarm  1 worker  2 need you  1 at work") && first[0].ends_with("run shop: 1/4"),
        "{}",
        first[0]
    );
    assert!(first[2].starts_with(">! demo/build") && first[3].starts_with(" ! shop/client"), "{first:#?}");
    press(&mut machine, "]]jj");
    let text = show(&mut machine, "hands over x.md to close");
    let lines = lines(&drawn(&machine, &text, FACE));
    let plain = |line: usize| {
        let left: String = lines[line].chars().take(60).collect();
        left.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(plain(2).starts_with("abc123 Rate limits running - 1/2 done, 1 request"), "{lines:#?}");
    assert_eq!(plain(3), ". intake done - owner");
    assert!(plain(4).starts_with(">! build asks - handoff: hands"), "{lines:#?}");
    assert!(lines[1].contains("screen: build") && lines[2].ends_with("hands over x.md to close"), "{lines:#?}");
}

proptest! {
    #[test]
    fn the_size_may_change_in_every_dialog(
        sizes in prop::collection::vec((1..=130u16, 1..=40u16), 1..12),
        keys in "[]\\[:/?xatprnjz \n]{0,12}",
    ) {
        let mut machine = machine(80, 24, trees());
        let mut keys = keys.chars();
        for (columns, rows) in sizes {
            if let Some(c) = keys.next() {
                machine.take(0, Event::Key(if c == '\n' { Key::Enter } else { Key::Char(c) }));
            }
            machine.take(0, Event::Resized { columns, rows });
            machine.take(0, Event::Pasted("text\x1b[201~".into()));
            let text = show(&mut machine, "one\ntwo");
            let buffer = drawn(&machine, &text, FACE);
            prop_assert_eq!((buffer.area.width, buffer.area.height), (columns, rows));
        }
    }

    #[test]
    fn no_size_is_too_small(
        columns in 1..=40u16,
        rows in 1..=15u16,
        names in prop::collection::vec("\\PC{1,12}|[a-z]{1,40}", 0..6),
        keys in "[a-zA-Z?/:*{}0-9\\[\\] ]{0,6}",
        text in "[\\PC\x1b\n]{0,80}",
        unicode in any::<bool>(),
    ) {
        let classes = [Class::NeedsYou, Class::Failed, Class::Working, Class::Queued, Class::Ended];
        let all = names.iter().zip(classes.into_iter().cycle());
        let answer = Some(Answer::Question("1".into()));
        let all = all.map(|(name, class)| Row { answer: answer.clone(), ..row(name, class, name, 1, name) });
        let mut machine = machine(columns, rows, all.collect());
        for c in keys.chars() {
            machine.take(0, Event::Key(Key::Char(c)));
            let text = show(&mut machine, &text);
            let buffer = drawn(&machine, &text, Face { unicode, ..FACE });
            prop_assert!(buffer.content.iter().all(|cell| !cell.symbol().contains(char::is_control)));
        }
        for view in View::ALL {
            prop_assert!(!view.title().is_empty());
            machine.take(0, Event::Key(Key::Tab));
            let text = show(&mut machine, &text);
            drawn(&machine, &text, Face { unicode, ..FACE });
        }
    }
}
