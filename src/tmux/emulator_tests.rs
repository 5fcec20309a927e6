use super::*;

fn small() -> Emulator {
    Emulator::new(Size { columns: 20, rows: 4 })
}

/// Returns the scrollback and the screen after `text`, which must not depend on blocks.
fn shown(text: &str) -> Vec<String> {
    let (mut whole, mut by_byte) = (small(), small());
    whole.feed(text.as_bytes());
    text.as_bytes().iter().for_each(|byte| by_byte.feed(&[*byte]));
    let all = |emulator: &mut Emulator| {
        let mut all = Vec::new();
        for shown in emulator.take() {
            match shown {
                Shown::Line(line) => all.push(line),
                Shown::HistoryCleared => all.clear(),
                Shown::Left(lines) => all.extend(lines.into_iter().map(|line| format!("left: {line}"))),
            }
        }
        all.extend(emulator.screen());
        all
    };
    let shown = all(&mut whole);
    assert_eq!(shown, all(&mut by_byte), "{text:?}");
    shown
}

#[test]
fn words_that_cursor_movements_separate_stay_apart() {
    assert_eq!(shown("\x1b[1m●\x1b[22m\x1b[1Cthe\x1b[1Canswer\x1b[1Cis\r\n"), ["● the answer is"]);
    assert_eq!(shown("a\x1b[3;5Hb\x1b[1;3Hc"), ["a c", "", "    b"]);
    assert_eq!(shown("10%\r20%\rdone\r\n"), ["done"]);
    assert_eq!(shown("one\r\ntwo\x1b[2K\x1b[1A\x1b[2K\x1b[Gthree"), ["three"]);
}

#[test]
fn lines_wrap_and_scroll_as_on_the_screen() {
    assert_eq!(shown(&"x".repeat(45)), ["x".repeat(20), "x".repeat(20), "x".repeat(5)]);
    assert_eq!(shown("漢字漢字漢字漢字漢字漢"), ["漢字漢字漢字漢字漢字", "漢"]);
    assert_eq!(shown("1\r\n2\r\n3\r\n4\r\n5\r\n6"), ["1", "2", "3", "4", "5", "6"]);
    // Lines inserted above the lower part of the screen, as codex does.
    assert_eq!(shown("a\r\nb\r\nc\r\n>\x1b[1;3r\x1b[3;1H\r\nd\x1b[r\x1b[4;2H"), ["a", "b", "c", "d", ">"]);
}

#[test]
fn the_alternate_screen_is_shown_until_the_program_leaves_it() {
    assert_eq!(shown("shell\r\n\x1b[?1049h\x1b[Heditor"), ["shell", "editor"]);
    assert_eq!(shown("shell\r\n\x1b[?1049h\x1b[Heditor\x1b[?1049lback"), ["left: editor", "shell", "back"]);
    for clear in ["\x1b[H\x1b[J", "\x1b[2J", "\x1b[2J\x1b[H\x1b[J"] {
        let text = format!("\x1b[?1049h\x1b[Hanswer{clear}\x1b[?1049lback");
        assert_eq!(shown(&text), ["left: answer", "back"], "{clear:?}");
    }
    assert_eq!(shown("\x1b[?1049h\x1b[Hold\x1b[2J\x1b[Hnew\x1b[?1049lback"), ["left: new", "back"]);
    assert_eq!(shown("\x1b[?1049h\x1b[Hold\x1b[1;2H\x1b[J\x1b[?1049lback"), ["left: o", "back"]);
}

#[test]
fn clearing_the_screen_keeps_it_as_history_until_that_is_deleted() {
    assert_eq!(shown("a\r\nb\x1b[2J\x1b[Hc"), ["a", "b", "c"]);
    assert_eq!(shown("a\r\nb\x1b[2J\x1b[3J\x1b[Hc"), ["c"]);
    assert_eq!(shown("a\r\nb\x1bcc"), ["a", "b", "c"]);
}

#[test]
fn a_resized_window_wraps_its_lines_again() {
    let mut emulator = small();
    emulator.feed(b"0123456789abcdefghij-");
    emulator.resize(Size { columns: 30, rows: 4 });
    assert_eq!(emulator.screen(), ["0123456789abcdefghij-"]);
    emulator.feed(b"\r\x1b[2Kgone");
    assert_eq!(emulator.screen(), ["gone"]);
}

#[test]
fn bytes_that_are_no_text_do_no_harm() {
    let mut emulator = small();
    emulator.feed(b"a\xffb\xe6\xbc");
    emulator.feed(b"\xa2\x07\x00\x7fc\x1b]0;title\x07d\x1b[999999;999999He\x1b[99999999999999C\x1b[0;0r");
    assert_eq!(emulator.screen().first().map(String::as_str), Some("a\u{fffd}b漢cd"));
    for size in [(1, 1), (0, 0), (200, 1)] {
        emulator.resize(Size { columns: size.0, rows: size.1 });
        emulator.feed("漢\r\n漢\x1b[2J".as_bytes());
    }
}

#[test]
fn finished_rows_are_those_that_the_program_does_not_go_back_to() {
    let mut emulator = small();
    emulator.feed(b"one\r\ntwo\r\nthr");
    assert_eq!(emulator.finished(), ["one", "two"]);
    emulator.feed(b"ee\r\n");
    assert_eq!(emulator.finished(), ["one", "two", "three"]);
    emulator.feed(b"\x1b[2Amessage\r\nspinner\r\n");
    assert_eq!(emulator.finished(), ["one"]);
    // Nothing below was repainted since.
    for _ in 0..PAUSES {
        emulator.feed(b".");
        emulator.finished();
    }
    assert_eq!(emulator.finished(), ["one", "message", "spinner"]);
    emulator.feed(b"\x1b[H\x1b[2Jnext\r\n");
    assert_eq!((emulator.gone(), emulator.finished()), (4, vec!["next".to_owned()]));
}
