//! Screens that were recorded with claude 2.1.328, codex 0.169.0, gemini 0.61.0, opencode 1.18.33 and qwen 0.15.10.

use super::*;
use crate::screen::{Screen, judge};

macro_rules! recorded {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../tests/data/screens/", $path, ".txt")))),*]
    };
}

fn shown(path: &str, screen: &str) -> (Kind, String, Vec<String>) {
    let dialog = dialog(screen).unwrap_or_else(|| panic!("{path} is a dialog"));
    (dialog.kind, dialog.title, dialog.choices)
}

#[test]
fn dialogs_of_agents_are_recognised() {
    let screens = recorded![
        "claude/trust",
        "claude/theme",
        "claude/login",
        "claude/login-code",
        "claude/permission-command",
        "claude/permission-write",
        "claude/question",
        "claude/model-menu",
        "codex/trust",
        "codex/login",
        "codex/permission",
        "codex/update",
        "codex/model-menu",
        "codex/permissions-menu",
        "gemini/trust",
        "gemini/login",
        "gemini/permission",
        "gemini/theme",
        "opencode/permission",
        "opencode/permission-wide",
        "opencode/question",
        "qwen/permission",
    ];
    let told: Vec<String> = screens
        .iter()
        .map(|(path, screen)| {
            let (kind, title, choices) = shown(path, screen);
            assert_eq!(judge(screen), Screen::Asks, "{path}");
            format!("{path} {kind:?} {} {title}", choices.len())
        })
        .collect();
    let expected = [
        "claude/trust Trust 2 Security guide",
        "claude/theme Theme 7 To change this later, run /theme",
        "claude/login Login 3 Select login method:",
        "claude/login-code Login 0 Paste code here if prompted",
        "claude/permission-command Permission 4 Do you want to proceed?",
        "claude/permission-write Permission 3 Do you want to create new.txt?",
        "claude/question Choice 4 Which database?",
        "claude/model-menu Choice 5 Your pick is the default for new sessions. For other models, use --model.",
        "codex/trust Trust 2 only if you trust these files. Your trust decision will be saved.",
        "codex/login Login 3 Choose how you want to use Codex.",
        "codex/permission Permission 3 Reason: May I touch it?",
        "codex/update Update 3 Release notes: https://github.com/openai/codex/releases/latest",
        "codex/model-menu Choice 8 Select Model and Effort",
        "codex/permissions-menu Choice 4 Update Model Permissions",
        "gemini/trust Trust 3 Do you trust the files in this folder?",
        "gemini/login Login 3 How would you like to authenticate for this project?",
        "gemini/permission Permission 3 Allow execution of [Shell]?",
        "gemini/theme Theme 9 > Select Theme                               Preview",
        "opencode/permission Permission 0 △ Permission required",
        "opencode/permission-wide Permission 0 △ Permission required",
        "opencode/question Choice 0 Which database?",
        "qwen/permission Permission 4 Allow execution of: 'touch'?",
    ];
    assert_eq!(told, expected);
    let (.., choices) = shown("claude/trust", screens[0].1);
    assert_eq!(choices, ["No, exit", "Yes, I trust this folder"]);
}

#[test]
fn agents_that_take_text_show_no_dialog() {
    let ready = recorded![
        "claude/start",
        "claude/idle",
        "claude/working",
        "claude/working-tool",
        "claude/not-logged-in",
        "claude/printed-list",
        "claude/printed-menu",
        "claude/draft",
        "claude/slash",
        "codex/start",
        "codex/idle",
        "codex/working",
        "codex/draft",
        "codex/draft-list",
        "codex/printed-list",
        "codex/printed-menu",
        "gemini/start",
        "gemini/idle",
        "gemini/working",
        "gemini/printed-list",
        "opencode/start",
        "opencode/idle",
        "opencode/working",
        "opencode/working-tool",
        "opencode/printed-list",
        "qwen/start",
        "qwen/idle",
        "qwen/working",
    ];
    for (path, screen) in ready {
        assert_eq!(dialog(screen), None, "{path}");
        assert_eq!(judge(screen), Screen::Ready, "{path}");
    }
    for (path, screen) in recorded!["codex/loading", "codex/loading-2"] {
        assert_eq!((dialog(screen), judge(screen)), (None, Screen::Other), "{path}");
    }
}

#[test]
fn text_of_other_programs_is_no_dialog() {
    for screen in [
        "Options:\n1. Yes\n2. No\nWhich one? ",
        "> 1. Yes\n  2. No\n> ",
        "❯ 1. Yes\n  2. No\n  Esc to cancel\nuser@host:~$ ",
        "❯ 1. Yes\n  2. No\n  Enter to confirm · Esc to cancel\n❯ ",
        "❯ ls\n  a\n  b\n❯ ",
        "Overwrite? (y/N) ",
        "Press enter to continue",
        "$ ",
        "",
    ] {
        assert_eq!(dialog(screen), None, "{screen:?}");
    }
    assert!(dialog("❯ 1. Yes\n  2. No\n  Enter to confirm · Esc to cancel").is_some());
}

#[test]
fn an_agent_that_cannot_start_is_told_from_one_that_asks_at_work() {
    for (path, screen) in recorded!["claude/trust", "codex/trust", "gemini/login", "codex/update", "claude/theme"] {
        assert!(obstacle(screen).is_some(), "{path}");
    }
    for (path, lost) in recorded!["claude/not-logged-in", "claude/not-logged-in-401"] {
        assert_eq!(obstacle(lost).as_deref(), Some("is not logged in"), "{path}");
    }
    assert_eq!(obstacle("● Please run /login · API Error: 401 x\n● It works again."), None);
    assert_eq!(obstacle("● The README says: please run /login."), None);
    for (path, screen) in recorded!["claude/permission-command", "claude/idle", "codex/idle", "opencode/question"] {
        assert_eq!(obstacle(screen), None, "{path}");
    }
}
