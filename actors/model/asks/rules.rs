//! Rules with which people decide in advance: a pure function of the rules and the wish.
//!
//! A pattern is the first words of one command, as `cargo test`; each is compared whole, and `*` at the end of a word
//! stands for its rest. `mcp__SERVER__TOOL` is a tool of an MCP server.
//!
//! A rule that allows must match every command of a line, and a line with anything that could start another command or
//! write a file matches none: see [`shell`](super::shell). A rule that denies or asks matches if any command of the line
//! does, however it is wrapped.

use serde::{Deserialize, Serialize};

use super::AskWish;
use super::judge::Rule;
use super::shell::{Line, quoted};

/// Maximum length of a command that rules are applied to. A person is asked about longer ones.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Beginning of a pattern for tools of MCP servers.
const MCP: &str = "mcp__";

/// Effect of a rule on what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    Allow,
    Deny,
    Ask,
}

impl Effect {
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

/// A rule of a person or of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRule {
    pub effect: Effect,
    pub pattern: String,
    /// What an agent is told if the rule denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl AskRule {
    /// Returns a rule, if its pattern can match something.
    ///
    /// # Errors
    /// Fails with the problem of the pattern.
    pub fn new(effect: Effect, pattern: &str, reason: Option<&str>) -> Result<Self, String> {
        check(effect, pattern)?;
        Ok(Self { effect, pattern: pattern.trim().to_owned(), reason: reason.map(str::to_owned) })
    }

    /// Returns what an agent is told if this rule denies.
    fn told(&self) -> String {
        self.reason.clone().unwrap_or_else(|| format!("a rule denies '{}'", self.pattern))
    }
}

/// Returns what the rules say about a wish. A rule that denies wins over one that asks, and that over one that allows.
/// Rules are about commands and tools of MCP servers; none applies to another wish.
pub fn rule_of(rules: &[AskRule], wish: &AskWish) -> Rule {
    match wish {
        AskWish::Command { command } => of_command(rules, command),
        AskWish::Mcp { server, name, .. } => decided(rules, |rule| fits_tool(&rule.pattern, server, name)),
        AskWish::Write { .. } | AskWish::Tool { .. } | AskWish::Question { .. } => Rule::None,
    }
}

/// Returns the decision of the rules that match.
fn decided(rules: &[AskRule], is_match: impl Fn(&AskRule) -> bool) -> Rule {
    let of = |effect: Effect| rules.iter().find(|rule| rule.effect == effect && is_match(rule));
    match (of(Effect::Deny), of(Effect::Ask), of(Effect::Allow)) {
        (Some(rule), _, _) => Rule::Deny { reason: rule.told() },
        (None, Some(_), _) => Rule::Ask,
        (None, None, Some(_)) => Rule::Allow,
        (None, None, None) => Rule::None,
    }
}

fn of_command(rules: &[AskRule], command: &str) -> Rule {
    if command.len() > COMMAND_BYTES_MAX {
        return Rule::Ask;
    }
    let line = Line::of(command);
    let restricted = decided(rules, |rule| {
        rule.effect != Effect::Allow && words_of(&rule.pattern).is_some_and(|words| is_within(&words, &line))
    });
    if restricted != Rule::None {
        return restricted;
    }
    let allowed: Vec<Vec<String>> =
        rules.iter().filter(|rule| rule.effect == Effect::Allow).filter_map(|rule| words_of(&rule.pattern)).collect();
    let is_allowed = |words: &Vec<String>| allowed.iter().any(|pattern| begins(pattern, words, Star::Plain));
    match line.is_plain() && !line.commands.is_empty() && line.commands.iter().all(is_allowed) {
        true => Rule::Allow,
        false => Rule::None,
    }
}

/// Reports whether a pattern that denies or asks matches one of the commands of a line, also behind programs that execute
/// another one.
fn is_within(pattern: &[String], line: &Line) -> bool {
    line.everything().any(|words| {
        let begin = |from: usize| begins_with_program(pattern, &words[from..]);
        match super::shell::is_wrapper(&words) {
            true => (0..words.len()).any(begin),
            false => begin(0),
        }
    })
}

/// As [`begins`]; the program may be written with its directory, and options in front of its verb do not count.
fn begins_with_program(pattern: &[String], words: &[String]) -> bool {
    let (Some((meant, verb)), Some((program, rest))) = (pattern.split_first(), words.split_first()) else {
        return false;
    };
    let bare = program.rsplit('/').next().unwrap_or(program);
    let is_program = fits(meant, program, Star::Any) || fits(meant, bare, Star::Any);
    is_program && super::shell::verbs_at(rest).any(|at| begins(verb, &rest[at.min(rest.len())..], Star::Any))
}

/// What `*` at the end of a word stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Star {
    Any,
    /// Neither the parent directory nor a variable.
    Plain,
}

/// Reports whether the words begin with those of the pattern.
fn begins(pattern: &[String], words: &[String], star: Star) -> bool {
    pattern.len() <= words.len() && pattern.iter().zip(words).all(|(pattern, word)| fits(pattern, word, star))
}

fn fits(pattern: &str, word: &str, star: Star) -> bool {
    let Some(begin) = pattern.strip_suffix('*') else { return pattern == word };
    let Some(rest) = word.strip_prefix(begin) else { return false };
    star == Star::Any || !(rest.contains("..") || rest.contains('$'))
}

fn fits_tool(pattern: &str, server: &str, name: &str) -> bool {
    let Some(pattern) = pattern.strip_prefix(MCP) else { return false };
    // The name of the server is compared whole: `docs__x` is another server than `docs`.
    let of_server = pattern.strip_prefix(server).and_then(|rest| rest.strip_prefix("__"));
    pattern == "*" || of_server.is_some_and(|pattern| fits(pattern, name, Star::Any))
}

/// Returns the words of a pattern for commands. `None` for one of tools.
fn words_of(pattern: &str) -> Option<Vec<String>> {
    if pattern.starts_with(MCP) {
        return None;
    }
    match Line::of_pattern(pattern).commands.as_slice() {
        [words] => Some(words.clone()),
        _ => None,
    }
}

/// Checks a pattern.
fn check(effect: Effect, pattern: &str) -> Result<(), String> {
    if let Some(tool) = pattern.strip_prefix(MCP) {
        return match tool == "*" || tool.split_once("__").is_some_and(|(server, name)| is_tool(server, name)) {
            true => Ok(()),
            false => Err(format!("'{pattern}' names no tool: write mcp__SERVER__TOOL or mcp__SERVER__*")),
        };
    }
    let line = Line::of_pattern(pattern);
    let [words] = line.commands.as_slice() else {
        return Err("a rule is the first words of one command".to_owned());
    };
    let has_star_within = |word: &String| word.strip_suffix('*').unwrap_or(word).contains('*');
    if words.iter().any(has_star_within) {
        return Err("'*' is possible only at the end of a word".to_owned());
    }
    match effect {
        Effect::Allow if words[0] == "*" => Err("a rule that allows names the program".to_owned()),
        Effect::Allow => line.odd.map_or(Ok(()), |odd| Err(format!("no rule can allow a command with {odd}"))),
        Effect::Deny | Effect::Ask => Ok(()),
    }
}

fn is_tool(server: &str, name: &str) -> bool {
    !server.is_empty() && !server.contains('*') && !name.is_empty() && !name[..name.len() - 1].contains('*')
}

/// Returns the patterns that allow this wish again, and as little else as possible: one for each command of a line.
///
/// # Errors
/// Fails with the cause if no pattern can allow it.
pub fn suggested(wish: &AskWish) -> Result<Vec<String>, String> {
    match wish {
        AskWish::Command { command } => {
            let line = Line::of(command);
            if let Some(odd) = line.odd {
                return Err(format!("no rule can allow a command with {odd}"));
            }
            let mut patterns: Vec<String> = Vec::new();
            for words in &line.commands {
                if words.iter().any(|word| word.contains('*')) {
                    return Err("the command contains '*', which has another meaning in a rule".to_owned());
                }
                let pattern = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
                if !patterns.contains(&pattern) {
                    patterns.push(pattern);
                }
            }
            if patterns.is_empty() { Err("the command is empty".to_owned()) } else { Ok(patterns) }
        }
        AskWish::Mcp { server, name, .. } => Ok(vec![format!("{MCP}{server}__{name}")]),
        AskWish::Write { .. } | AskWish::Tool { .. } | AskWish::Question { .. } => {
            Err("rules are about commands and tools of MCP servers".to_owned())
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
