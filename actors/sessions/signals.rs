//! Signals of an agent's state, and their detection on its screen. Pure functions. Screens are the
//! last resort, used if no event and no record tells the state.

use swarm_model::clearing::{Clearing, clearing};
use swarm_model::dialog::dialog;
use swarm_model::screen::{Screen, judge, last_lines, shows_work};
use swarm_model::{EventKind, NeedKind, TurnEnd};
use swarm_ports::Mark;

/// Reason why an agent makes no progress, or soon will not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// The agent has written nothing for this long, in milliseconds.
    Silent { for_ms: u64 },
    /// The agent has been running the same operation for this long, in milliseconds.
    SameOperation { operation: String, for_ms: u64 },
    /// The agent waits for a person.
    Waiting { kind: NeedKind, what: String },
    /// The agent has finished its task and waits for the next one.
    Idle { what: String },
    /// The screen shows a question, for example for a login, a permission or trust in a directory.
    Asks { what: String },
    /// The agent's context is nearly full.
    ContextFull { percent: u32 },
    /// The agent compacts its conversation and so loses context.
    Compacting,
}

impl Signal {
    /// Returns the stable name of the signal.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Silent { .. } => "silent",
            Self::SameOperation { .. } => "same-operation",
            Self::Waiting { .. } => "waiting",
            Self::Idle { .. } => "idle",
            Self::Asks { .. } => "asks",
            Self::ContextFull { .. } => "context-full",
            Self::Compacting => "compacting",
        }
    }

    /// Reports whether the agent cannot continue before a person answers.
    pub fn needs_a_person(&self) -> bool {
        match self {
            Self::Waiting { .. } | Self::Asks { .. } => true,
            Self::Silent { .. }
            | Self::SameOperation { .. }
            | Self::Idle { .. }
            | Self::ContextFull { .. }
            | Self::Compacting => false,
        }
    }

    /// Returns the mark of a worker with this signal that is only reported.
    pub fn mark(&self) -> Mark {
        match self {
            Self::Waiting { .. } | Self::Asks { .. } => Mark::Waits(self.evidence()),
            Self::Idle { .. } => Mark::Idle(self.evidence()),
            Self::Silent { .. } | Self::SameOperation { .. } | Self::ContextFull { .. } | Self::Compacting => {
                Mark::Stuck(self.evidence())
            }
        }
    }

    /// Returns the event that tells people of a signal on which no step is taken; `step` is the word for that.
    pub fn event(&self, step: &str) -> EventKind {
        let text = self.evidence();
        match self {
            Self::Waiting { kind, .. } => EventKind::WorkerWaiting { kind: *kind, text },
            Self::Asks { what } => EventKind::WorkerWaiting { kind: kind_of(what), text },
            Self::Idle { .. } => EventKind::WorkerIdle { text },
            Self::Silent { .. } | Self::SameOperation { .. } | Self::ContextFull { .. } | Self::Compacting => {
                EventKind::WorkerStuck { signal: self.word().to_owned(), evidence: text, step: step.to_owned() }
            }
        }
    }

    /// Reports whether the agent is not at work, but not stuck either.
    pub fn is_rest(&self) -> bool {
        matches!(self, Self::Idle { .. }) || self.needs_a_person()
    }

    /// Returns what was observed, worded for people.
    pub fn evidence(&self) -> String {
        let time = |ms: &u64| match ms / 1000 {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds => format!("{} min", seconds / 60),
        };
        match self {
            Self::Silent { for_ms } => format!("no output for {}", time(for_ms)),
            Self::SameOperation { operation, for_ms } => format!("at {operation:?} for {}", time(for_ms)),
            Self::Waiting { what, .. } | Self::Idle { what } | Self::Asks { what } => what.clone(),
            Self::ContextFull { percent } => format!("context is {percent} % full"),
            Self::Compacting => "compacting its conversation".to_owned(),
        }
    }
}

/// Returns the kind of a question on a screen, from the evidence for it. The question itself, in parentheses, may have any
/// words.
pub fn kind_of(evidence: &str) -> NeedKind {
    let evidence = evidence.split_once(" (").map_or(evidence, |(evidence, _)| evidence);
    match evidence {
        _ if ["log in", "login", "logged in"].iter().any(|word| evidence.contains(word)) => NeedKind::Login,
        _ if evidence.contains("trust") => NeedKind::Trust,
        _ if evidence.contains("permission") => NeedKind::Permission,
        _ => NeedKind::Input,
    }
}

/// Number of lines at the end of a screen that are searched for words.
const LINES_MAX: usize = 20;
/// Ends of the last line, in lower case, of programs that ask for yes or no.
const YES_OR_NO: [&str; 2] = ["(y/n)", "[y/n]"];
const COMPACTING: &str = "compacting conversation";
/// Texts, in lower case, of the input lines of gemini, qwen and opencode.
const INPUTS: [&str; 2] = ["type your message", "ctrl+p commands"];
/// What is shown of an agent that is idle by its screen.
const IDLE: &str = "its turn is over";
/// Beginnings of messages of claude, codex and gemini that say that a turn broke off.
const BROKEN: [(&str, TurnEnd); 6] = [
    ("⎿  Interrupted", TurnEnd::Interrupted),
    ("● API Error", TurnEnd::Failed),
    ("■ Conversation interrupted", TurnEnd::Interrupted),
    ("■ ", TurnEnd::Failed),
    ("ℹ Request cancelled", TurnEnd::Interrupted),
    ("✕ [API Error", TurnEnd::Failed),
];
/// First characters of the messages of these agents.
const MESSAGES: [char; 3] = ['●', '•', '✦'];
/// Share of the context in use, in percent, from which on it counts as nearly full.
const CONTEXT_PERCENT: u32 = 90;

/// Reports whether a screen shows an agent that works and asks nothing.
pub fn is_at_work(screen: &str) -> bool {
    shows_work(screen) && question(screen).is_none()
}

/// Returns what the screen of an agent shows that reports nothing itself: it may be idle as well. The screen must not have
/// changed for some time, because an agent may leave out the signs of its work for a moment.
pub fn of_silent_screen(screen: &str) -> Option<Signal> {
    match of_screen(screen) {
        Some(signal @ (Signal::Asks { .. } | Signal::Compacting)) => Some(signal),
        _ if is_idle(screen) => Some(Signal::Idle { what: broken_off(screen).unwrap_or_else(|| IDLE.to_owned()) }),
        other => other,
    }
}

/// Like [`of_silent_screen`], of an agent that has reported the beginning of its turn but not the end: a turn that is over was
/// broken off. Only the screen of claude counts: other agents report each end.
pub fn of_unfinished_screen(screen: &str) -> Option<Signal> {
    let is_claude = !shows_work(screen) && clearing(screen) == Clearing::Line;
    match of_silent_screen(screen) {
        Some(Signal::Idle { .. }) if !is_claude => of_screen(screen),
        Some(Signal::Idle { what }) if what == IDLE => {
            Some(Signal::Idle { what: TurnEnd::Interrupted.words().to_owned() })
        }
        other => other,
    }
}

/// Returns what is shown of an agent whose last message says that its turn broke off. `None` for other messages.
fn broken_off(screen: &str) -> Option<String> {
    // claude writes spaces that do not break.
    let screen = screen.replace('\u{a0}', " ");
    let lines = screen.lines().rev().map(str::trim).filter(|line| !line.is_empty()).take(LINES_MAX);
    let of = |line: &str| BROKEN.iter().find_map(|(begin, end)| Some((*end, line.strip_prefix(begin)?.to_owned())));
    let is_message = |line: &str| line.starts_with(MESSAGES);
    for line in lines {
        match of(line) {
            Some((TurnEnd::Interrupted, _)) => return Some(TurnEnd::Interrupted.words().to_owned()),
            Some((end, cause)) => return Some(end.told(message_of(cause.trim_start_matches([':', ' '])))),
            None if is_message(line) => return None,
            None => {}
        }
    }
    None
}

/// Returns the message in an error, which may be an answer of the provider as JSON.
fn message_of(error: &str) -> &str {
    let message = || error.rsplit_once(r#""message":"#)?.1.trim_start().strip_prefix('"')?.split('"').next();
    message().unwrap_or(error.trim_end_matches(']'))
}

/// Reports whether a screen shows that a turn is over: the input line of a known agent, and no question.
pub fn is_over(screen: &str) -> bool {
    question(screen).is_none() && is_idle(screen)
}

/// Reports whether a screen shows the empty or filled input line of a known agent, and no sign of work.
fn is_idle(screen: &str) -> bool {
    let last = last_lines(screen);
    let is_rule = |line: &str| line.chars().count() > 3 && line.chars().all(|c| c == '─');
    let below_a_rule = |is_input: &dyn Fn(&str) -> bool| {
        last.windows(2).any(|pair| is_input(pair[0].trim()) && is_rule(pair[1].trim()))
    };
    let is_claude = || below_a_rule(&|line| line.starts_with('❯'));
    let is_aider = || {
        let is_prompt =
            |line: &str| line.strip_suffix('>').is_some_and(|mode| mode.chars().all(|c| c.is_ascii_lowercase()));
        last.first().is_some_and(|line| is_prompt(line.trim())) && below_a_rule(&is_prompt)
    };
    let is_codex = || matches!(judge(screen), Screen::Ready) && last.iter().any(|line| line.starts_with('›'));
    let shows_input = last.iter().any(|line| INPUTS.iter().any(|text| line.to_lowercase().contains(text)));
    !shows_work(screen) && (shows_input || is_claude() || is_codex() || is_aider())
}

/// Returns the most severe signal that a screen shows.
pub fn of_screen(screen: &str) -> Option<Signal> {
    if let Some(what) = question(screen) {
        return Some(Signal::Asks { what });
    }
    let lines: Vec<&str> = screen.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES_MAX)..].join(" ");
    let text: String = last.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    if text.contains(COMPACTING) {
        return Some(Signal::Compacting);
    }
    context(screen).filter(|percent| *percent >= CONTEXT_PERCENT).map(|percent| Signal::ContextFull { percent })
}

/// Returns what the program asks: a dialog of an agent, or yes or no on its last line.
fn question(screen: &str) -> Option<String> {
    if let Some(dialog) = dialog(screen) {
        return Some(dialog.sentence());
    }
    let last = screen.lines().rfind(|line| !line.trim().is_empty())?.to_lowercase();
    let last = last.trim_end_matches([' ', ':', '?']);
    YES_OR_NO.iter().any(|words| last.ends_with(words)).then(|| "asks for a choice".to_owned())
}

/// Returns the percentage of its context that the agent has used, if its last lines show it.
fn context(screen: &str) -> Option<u32> {
    let last: Vec<String> =
        screen.lines().rev().map(str::to_lowercase).filter(|line| !line.trim().is_empty()).take(3).collect();
    last.iter().filter(|line| line.contains("context")).find_map(|line| {
        let (before, after) = line.split_once('%')?;
        let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let percent: u32 = before[before.len() - digits..].parse().ok()?;
        // Some agents show how much is left.
        let left = after.contains("left") || after.contains("remaining") || after.contains("until");
        Some(if left { 100_u32.saturating_sub(percent) } else { percent.min(100) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: [(&str, &str, &str); 52] = [
        ("claude", "draft", include_str!("../../tests/data/screens/claude/draft.txt")),
        ("claude", "idle", include_str!("../../tests/data/screens/claude/idle.txt")),
        ("claude", "login", include_str!("../../tests/data/screens/claude/login.txt")),
        ("claude", "login-code", include_str!("../../tests/data/screens/claude/login-code.txt")),
        ("claude", "model-menu", include_str!("../../tests/data/screens/claude/model-menu.txt")),
        ("claude", "not-logged-in", include_str!("../../tests/data/screens/claude/not-logged-in.txt")),
        ("claude", "permission-command", include_str!("../../tests/data/screens/claude/permission-command.txt")),
        ("claude", "permission-write", include_str!("../../tests/data/screens/claude/permission-write.txt")),
        ("claude", "printed-list", include_str!("../../tests/data/screens/claude/printed-list.txt")),
        ("claude", "printed-menu", include_str!("../../tests/data/screens/claude/printed-menu.txt")),
        ("claude", "question", include_str!("../../tests/data/screens/claude/question.txt")),
        ("claude", "slash", include_str!("../../tests/data/screens/claude/slash.txt")),
        ("claude", "start", include_str!("../../tests/data/screens/claude/start.txt")),
        ("claude", "theme", include_str!("../../tests/data/screens/claude/theme.txt")),
        ("claude", "trust", include_str!("../../tests/data/screens/claude/trust.txt")),
        ("claude", "working", include_str!("../../tests/data/screens/claude/working.txt")),
        ("claude", "working-tool", include_str!("../../tests/data/screens/claude/working-tool.txt")),
        ("codex", "draft", include_str!("../../tests/data/screens/codex/draft.txt")),
        ("codex", "draft-list", include_str!("../../tests/data/screens/codex/draft-list.txt")),
        ("codex", "idle", include_str!("../../tests/data/screens/codex/idle.txt")),
        ("codex", "loading", include_str!("../../tests/data/screens/codex/loading.txt")),
        ("codex", "loading-2", include_str!("../../tests/data/screens/codex/loading-2.txt")),
        ("codex", "login", include_str!("../../tests/data/screens/codex/login.txt")),
        ("codex", "model-menu", include_str!("../../tests/data/screens/codex/model-menu.txt")),
        ("codex", "permission", include_str!("../../tests/data/screens/codex/permission.txt")),
        ("codex", "permissions-menu", include_str!("../../tests/data/screens/codex/permissions-menu.txt")),
        ("codex", "printed-list", include_str!("../../tests/data/screens/codex/printed-list.txt")),
        ("codex", "printed-menu", include_str!("../../tests/data/screens/codex/printed-menu.txt")),
        ("codex", "start", include_str!("../../tests/data/screens/codex/start.txt")),
        ("codex", "trust", include_str!("../../tests/data/screens/codex/trust.txt")),
        ("codex", "update", include_str!("../../tests/data/screens/codex/update.txt")),
        ("codex", "working", include_str!("../../tests/data/screens/codex/working.txt")),
        ("gemini", "idle", include_str!("../../tests/data/screens/gemini/idle.txt")),
        ("gemini", "login", include_str!("../../tests/data/screens/gemini/login.txt")),
        ("gemini", "permission", include_str!("../../tests/data/screens/gemini/permission.txt")),
        ("gemini", "printed-list", include_str!("../../tests/data/screens/gemini/printed-list.txt")),
        ("gemini", "start", include_str!("../../tests/data/screens/gemini/start.txt")),
        ("gemini", "theme", include_str!("../../tests/data/screens/gemini/theme.txt")),
        ("gemini", "trust", include_str!("../../tests/data/screens/gemini/trust.txt")),
        ("gemini", "working", include_str!("../../tests/data/screens/gemini/working.txt")),
        ("opencode", "idle", include_str!("../../tests/data/screens/opencode/idle.txt")),
        ("opencode", "permission", include_str!("../../tests/data/screens/opencode/permission.txt")),
        ("opencode", "permission-wide", include_str!("../../tests/data/screens/opencode/permission-wide.txt")),
        ("opencode", "printed-list", include_str!("../../tests/data/screens/opencode/printed-list.txt")),
        ("opencode", "question", include_str!("../../tests/data/screens/opencode/question.txt")),
        ("opencode", "start", include_str!("../../tests/data/screens/opencode/start.txt")),
        ("opencode", "working", include_str!("../../tests/data/screens/opencode/working.txt")),
        ("opencode", "working-tool", include_str!("../../tests/data/screens/opencode/working-tool.txt")),
        ("qwen", "idle", include_str!("../../tests/data/screens/qwen/idle.txt")),
        ("qwen", "permission", include_str!("../../tests/data/screens/qwen/permission.txt")),
        ("qwen", "start", include_str!("../../tests/data/screens/qwen/start.txt")),
        ("qwen", "working", include_str!("../../tests/data/screens/qwen/working.txt")),
    ];

    #[test]
    fn screens_say_what_an_agent_asks_or_lacks() {
        for (screen, word) in [
            ("Welcome\n\n Select login method:\n ❯ 1. Claude\n   2. Console", Some("asks")),
            (include_str!("../../tests/data/screens/claude/trust.txt"), Some("asks")),
            (include_str!("../../tests/data/screens/codex/permission.txt"), Some("asks")),
            (include_str!("../../tests/data/screens/claude/printed-menu.txt"), None),
            ("Do you want to proceed?\n1. Yes\n2. No\n> ", None),
            ("Overwrite? (y/N)", Some("asks")),
            ("Overwrite? [y/N]: ", Some("asks")),
            ("Overwrite? (y/n)\nyes\n$ ", None),
            ("✻ Compacting conversation…", Some("compacting")),
            ("> \n  Context left until auto-compact: 4%", None),
            ("> \n  context: 95% used", Some("context-full")),
            ("> \n  7% context left", Some("context-full")),
            ("> \n  60% context left", None),
            ("100% of tests pass\n$ ", None),
            ("", None),
        ] {
            assert_eq!(of_screen(screen).map(|signal| signal.word()), word, "{screen}");
        }
    }

    #[test]
    fn a_dialog_is_named_with_its_question_which_does_not_decide_its_kind() {
        let key = "Detected a custom API key in your environment\n\n ANTHROPIC_API_KEY: sk-ant-x\n\n\
                   Do you want to use this API key?\n\n   1. Yes\n ❯ 2. No (recommended)\n\n Enter to confirm · Esc to cancel\n";
        let trusts = "Do you want to trust what make does?\n ❯ 1. Yes\n   2. No\n\n Esc to cancel\n";
        for (screen, what, kind) in [
            (key, "asks for permission (Do you want to use this API key?)", NeedKind::Permission),
            (trusts, "asks for permission (Do you want to trust what make does?)", NeedKind::Permission),
            ("Overwrite? (y/N)", "asks for a choice", NeedKind::Input),
            (RECORDED[2].2, "asks how to log in", NeedKind::Login),
        ] {
            let signal = of_screen(screen).expect("a question");
            assert_eq!((signal.evidence().as_str(), kind_of(&signal.evidence())), (what, kind), "{screen}");
        }
    }

    #[test]
    fn an_agent_that_can_be_interrupted_is_at_work() {
        for (screen, works) in [
            ("· Cooking…\n────\n❯ \n────\n  ⏵⏵ auto mode on (shift+tab to cycle) · esc to interrupt\n", true),
            ("◦ Working (2s • esc to interrupt)\n\n\n› Ask\n\n  model · /repo\n  ? for shortcuts\n", true),
            ("● done\n────\n❯ \n────\n  ⏵⏵ auto mode on (shift+tab to cycle)\n", false),
            ("Do you want to proceed?\n ❯ 1. Yes\n   2. No, esc to interrupt\n\n Esc to cancel\n", false),
            ("it said: esc to interrupt\na\nb\nc\nd\ne\nf\ng\nh\n", false),
            ("", false),
        ] {
            assert_eq!(is_at_work(screen), works, "{screen}");
        }
    }

    #[test]
    fn recorded_screens_of_agents_show_whether_they_are_idle() {
        let at_rest =
            ["idle", "start", "draft", "draft-list", "printed-list", "printed-menu", "not-logged-in", "slash"];
        for (agent, name, screen) in RECORDED {
            let told = of_silent_screen(screen).map(|signal| signal.word());
            // That draft was typed while codex worked.
            let works = name.starts_with("working") || (agent, name) == ("codex", "draft");
            assert_eq!(is_at_work(screen), works, "{agent} {name}\n{screen}");
            let rests = at_rest.contains(&name) && !works;
            assert_eq!(told == Some("idle"), rests, "{agent} {name}: {told:?}\n{screen}");
        }
    }

    #[test]
    fn the_last_message_on_a_screen_says_whether_the_turn_broke_off() {
        let recorded =
            |agent: &str, name: &str| RECORDED.iter().find(|one| (one.0, one.1) == (agent, name)).expect("recorded").2;
        for (screen, what) in [
            (include_str!("../../tests/data/screens/claude/interrupted.txt"), "its turn was interrupted"),
            (
                include_str!("../../tests/data/screens/claude/failed.txt"),
                "its last turn failed: Request rejected (429) · refused with 429",
            ),
            (include_str!("../../tests/data/screens/codex/interrupted.txt"), "its turn was interrupted"),
            (
                include_str!("../../tests/data/screens/codex/failed.txt"),
                "its last turn failed: exceeded retry limit, last status: 429 Too Many Requests",
            ),
            (include_str!("../../tests/data/screens/gemini/interrupted.txt"), "its turn was interrupted"),
            (include_str!("../../tests/data/screens/gemini/failed.txt"), "its last turn failed: refused with 400"),
            (recorded("claude", "idle"), IDLE),
            (recorded("codex", "idle"), IDLE),
            (recorded("gemini", "idle"), IDLE),
        ] {
            assert_eq!(of_silent_screen(screen), Some(Signal::Idle { what: what.to_owned() }), "{screen}");
        }
        let answered = "■ Conversation interrupted\n\n› go on\n\n• Done.\n\n› Ask Codex to do anything\n\n  gpt · /r\n";
        assert_eq!(of_silent_screen(answered), Some(Signal::Idle { what: IDLE.to_owned() }));
    }

    #[test]
    fn aider_is_idle_at_its_prompt_alone() {
        let rule = "─".repeat(60);
        for (screen, idle) in [
            (format!("Tokens: 1k sent, 20 received.\n{rule}\n> \n"), true),
            (format!("{rule}\narchitect> \n"), true),
            ("It says:\n> \n".to_owned(), false),
            (format!("{rule}\n> do it\n"), false),
            (format!("{rule}\n> \nWaiting for model\n"), false),
            ("$ \n".to_owned(), false),
        ] {
            assert_eq!(of_silent_screen(&screen).is_some(), idle, "{screen}");
        }
    }

    #[test]
    fn only_the_last_lines_show_the_context() {
        assert_eq!(of_screen("context 99%\na\nb\nc\n"), None);
    }
}
