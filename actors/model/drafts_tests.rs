use super::*;

macro_rules! cells {
    ($name:literal) => {
        include_str!(concat!("../../tests/data/screens/cells/", $name, ".txt"))
    };
}

macro_rules! plain {
    ($name:literal) => {
        include_str!(concat!("../../tests/data/screens/", $name, ".txt"))
    };
}

#[test]
fn a_text_in_an_input_line_is_told_from_a_placeholder() {
    for (name, screen, text) in [
        ("claude", cells!("claude-empty"), None),
        ("claude at work", cells!("claude-working"), None),
        ("a draft in claude", cells!("claude-draft"), Some("a draft")),
        ("a task that claude put back", cells!("claude-put-back"), Some("stop me [[sleep 20]] [[say st]]")),
        ("codex", cells!("codex-empty"), None),
        ("a draft in codex", cells!("codex-draft"), Some("a draft")),
        ("the shell mode of codex", cells!("codex-shell"), Some("ls")),
        ("gemini", plain!("gemini/idle"), None),
        ("gemini at work", plain!("gemini/working"), None),
        ("qwen", plain!("qwen/idle"), None),
    ] {
        assert_eq!(draft(screen).as_deref(), text, "{name}\n{screen}");
    }
}

#[test]
fn drafts_of_several_lines_and_in_other_modes_are_found() {
    let rule = "─".repeat(20);
    let claude = |line: &str| format!("❯ an earlier task\n● done\n{rule}\n{line}\n{rule}\n  ? for shortcuts\n");
    let gemini = |line: &str| format!("▄▄▄▄▄▄\n > earlier\n▀▀▀▀▀▀\n▄▄▄▄▄▄\n{line}\n▀▀▀▀▀▀\n /work/repo\n");
    for (screen, text) in [
        (claude("❯"), None),
        (claude("! rm x"), Some("rm x")),
        (claude("❯ one\n\n  two"), Some("one two")),
        (claude("❯\n  two"), Some("two")),
        (claude("❯ \u{1b}[7mT\u{1b}[0;2mry \"fix it\"\u{1b}[0m"), None),
        (claude("❯ \u{1b}[2mTry \"fix it\"\u{1b}[22m"), None),
        (claude("❯ /mod\u{1b}[2mel\u{1b}[22m"), Some("/mod")),
        (claude("❯ \u{1b}[7ma\u{1b}[27m draft"), Some("a draft")),
        (claude("❯ \u{1b}[38;5;2ma \u{1b}[48;2;2;2;2mdraft"), Some("a draft")),
        (gemini(" > go on"), Some("go on")),
        (gemini(" !   ls"), Some("ls")),
        (gemini(" *   Type your message or @path/to/file"), None),
    ] {
        assert_eq!(draft(&screen).as_deref(), text, "{screen}");
    }
}

#[test]
fn screens_of_other_programs_have_no_known_input_line() {
    let rule = "─".repeat(20);
    for screen in ["$ ls -l", "", "> a", "! careful", &format!("{rule}\n> quoted\nmore"), &format!("{rule}\n{rule}")] {
        assert_eq!(draft(screen), None, "{screen}");
    }
}

#[test]
fn a_long_draft_is_shown_in_part() {
    let shown = sentence(&"x".repeat(100));
    assert!(shown.ends_with(&format!("({}…)", "x".repeat(SHOWN_CHARS))), "{shown}");
    assert!(sentence("go on").ends_with("(go on)"));
}
