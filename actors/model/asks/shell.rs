//! Commands of a shell, read only as far as rules need it. What is not understood is odd, and no rule allows it.

use super::programs::{OPTION, has_risky_option};

/// Options of `env` that take a line of words.
const SPLITS: [&str; 3] = ["--split-string=", "--split-string", "-S"];
/// Maximum depth of lines in words of lines.
const DEPTH_MAX: usize = 8;
/// Programs that execute another program, or words of the shell in front of one.
const WRAPPERS: [&str; 47] = [
    "!",
    "builtin",
    "bwrap",
    "chroot",
    "chrt",
    "command",
    "coproc",
    "do",
    "doas",
    "elif",
    "else",
    "env",
    "eval",
    "exec",
    "find",
    "flock",
    "if",
    "ionice",
    "ltrace",
    "nice",
    "nocorrect",
    "noglob",
    "nohup",
    "nsenter",
    "parallel",
    "repeat",
    "runuser",
    "script",
    "setpriv",
    "setsid",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "then",
    "time",
    "timeout",
    "unbuffer",
    "unshare",
    "until",
    "watch",
    "while",
    "xargs",
    "{",
];
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "busybox"];
/// Redirections that write nothing.
const HARMLESS: [&str; 7] = ["2>&1", "1>&2", ">&2", ">/dev/null", "1>/dev/null", "2>/dev/null", "</dev/null"];

/// A line of a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// Words of each command, without quotes.
    pub commands: Vec<Vec<String>>,
    /// Why no rule can allow the line. `None` if a rule can.
    pub odd: Option<&'static str>,
    /// Words of the commands in words of an odd line, which another shell or `env -S` would read.
    inner: Vec<Vec<String>>,
    /// The line as it is written, with continued lines joined.
    text: String,
}

impl Line {
    pub fn of(text: &str) -> Self {
        Self::read(text, Reader::default())
    }

    /// Reads the words of a rule, in which `*` has its own meaning.
    pub fn of_pattern(text: &str) -> Self {
        Self::read(text, Reader { is_pattern: true, ..Reader::default() })
    }

    fn read(text: &str, reader: Reader) -> Self {
        Self::read_at(0, text, reader)
    }

    fn read_at(depth: usize, text: &str, mut reader: Reader) -> Self {
        reader.read(text);
        let Reader { commands, mut odd, .. } = reader;
        let risky = commands.iter().find_map(|words| risk(words).or_else(|| wrapped_risk(words)));
        odd = odd.or(risky);
        let words = commands.iter().flatten().map(String::as_str).filter(|_| odd.is_some() && depth < DEPTH_MAX);
        let lines = words.map(|word| SPLITS.iter().find_map(|option| word.strip_prefix(option)).unwrap_or(word));
        let lines = lines.filter(|line| line.contains(|c: char| c.is_whitespace() || c == ';'));
        let inner = lines.map(|line| Self::read_at(depth + 1, line, Reader::default()));
        let inner = inner.flat_map(|line| line.everything().collect::<Vec<_>>()).collect();
        Self { commands, odd, inner, text: text.replace("\\\n", "") }
    }

    pub fn is_plain(&self) -> bool {
        self.odd.is_none()
    }

    /// Returns the words of each command. For an odd line also those that are found without regard to quotes, so that a
    /// command in a substitution, or in the argument of another shell, is among them.
    pub fn everything(&self) -> impl Iterator<Item = Vec<String>> {
        let splits = |c: char| ";|&\n\r()`<>{}".contains(c);
        // A quote may begin a command, or be within one of its words.
        let divided = self.text.split(move |c: char| splits(c) || "'\"".contains(c));
        let rough = self.text.split(splits).chain(divided).filter(|_| self.odd.is_some());
        let word = |word: &str| word.replace(['\\', '\'', '"'], "");
        let rough = rough.map(move |part| part.split_whitespace().map(word).collect());
        self.commands.iter().chain(&self.inner).cloned().chain(rough)
    }
}

/// Reports whether a command may execute what follows in its words.
pub(super) fn is_wrapper(words: &[String]) -> bool {
    words.first().is_some_and(|first| is_assignment(first) || WRAPPERS.contains(&base(first)))
}

/// Returns the places at which the verb of a program may be, in the words after the program: the first one, and those
/// behind options, of which each may take the next word. `+NAME` chooses a toolchain.
pub(super) fn verbs_at(words: &[String]) -> impl Iterator<Item = usize> {
    let is_option = |word: &String| word.starts_with(['-', '+']);
    let end = (0..words.len()).find(|at| !is_option(&words[*at]) && (*at == 0 || !is_option(&words[at - 1])));
    0..=end.unwrap_or(words.len())
}

/// Returns a word as it can be written in a line.
pub(super) fn quoted(word: &str) -> String {
    let is_bare = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_bare) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let name = name.strip_suffix('+').unwrap_or(name);
    !name.is_empty() && name.chars().all(|c| c == '_' || c == '[' || c == ']' || c.is_ascii_alphanumeric())
}

/// Returns why no rule may allow a command that executes another one.
fn wrapped_risk(words: &[String]) -> Option<&'static str> {
    // The directory of `find` is not the builtin that reads a file.
    let mut begins = (1..words.len()).filter(|from| words[*from] != "." && is_wrapper(words));
    begins.find_map(|from| risk(&words[from..]))
}

/// Returns why no rule may allow this command, although its words are plain.
fn risk(words: &[String]) -> Option<&'static str> {
    let (first, rest) = words.split_first()?;
    if is_assignment(first) {
        return Some("a variable in front of it");
    }
    let has = |begins: &[&str]| rest.iter().any(|word| begins.iter().any(|begin| word.starts_with(begin)));
    let is_cluster = |word: &String| word.starts_with('-') && !word.starts_with("--") && word.contains('c');
    match base(first) {
        "xargs" | "parallel" => Some("xargs"),
        "eval" | "source" | "." | "exec" | "trap" | "alias" => Some("eval"),
        "find" if has(&["-exec", "-ok", "-delete", "-fprint", "-fls"]) => Some("find -exec"),
        "env" if has(&SPLITS) => Some("env -S"),
        "git" if has(&["-c", "--config-env", "--exec-path"]) => Some("git -c"),
        shell if SHELLS.contains(&shell) && rest.iter().any(is_cluster) => Some("sh -c"),
        program => has_risky_option(program, rest).then_some(OPTION),
    }
}

/// Reports whether a character is not shown as it is: a control character other than a tab, or one that changes the direction or has no
/// width.
fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Reports whether a `$` with this text after it is replaced by the shell.
fn expands(after: &str) -> bool {
    after.starts_with(|c: char| c.is_ascii_alphanumeric() || "_@*#?!-$({['\"".contains(c))
}

/// Reports whether a shell replaces a character outside of quotes, with this text after it, by names of files or several
/// words.
fn is_glob(c: char) -> bool {
    matches!(c, '*' | '?' | '[' | '{')
}

/// Reports whether a word that begins with `{` is only `{}`, with this text after its first character. Inside of a longer
/// word, `{}` may be part of a list: `.{},.}` is `.}` and `..`.
fn is_lone_braces(after: &str) -> bool {
    after.strip_prefix('}').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', ';', '|', '&', '\n']))
}

#[derive(Default)]
struct Reader {
    /// `*` has the meaning of a rule.
    is_pattern: bool,
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    /// Word that is being read. `None` between two words.
    word: Option<String>,
    /// The next word names the file of a redirection. The command goes on behind it.
    is_target: bool,
    odd: Option<&'static str>,
}

impl Reader {
    fn read(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if is_hidden(c) {
                self.odd("control characters or several lines");
            }
            if self.word.is_none()
                && let Some(after) = HARMLESS.iter().find_map(|known| rest.strip_prefix(known))
                && after.chars().next().is_none_or(|next| " ;|".contains(next))
            {
                rest = after;
                continue;
            }
            let after = &rest[c.len_utf8()..];
            rest = match c {
                '\'' => self.single(after),
                '"' => self.double(after),
                '\\' => self.escaped(after),
                ' ' | '\t' => {
                    self.end_word();
                    after
                }
                ';' | '|' | '&' | '\n' | '\r' => self.separated(c, after),
                '(' | ')' | '`' => {
                    self.odd("a substitution or a subshell");
                    self.end_command();
                    after
                }
                '<' | '>' => self.redirected(after),
                '$' if after.starts_with(['\'', '"']) => {
                    self.odd("a variable or a substitution");
                    after
                }
                _ => {
                    let is_plain =
                        (self.is_pattern && c == '*') || (c == '{' && self.word.is_none() && is_lone_braces(after));
                    if is_glob(c) && !is_plain {
                        self.odd("a pattern of file names or braces");
                    }
                    self.push(c, after);
                    after
                }
            };
        }
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        } else if !self.commands.is_empty() {
            self.odd("an empty command");
        }
    }

    fn odd(&mut self, why: &'static str) {
        self.odd.get_or_insert(why);
    }

    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    /// Adds a character that is followed by `after`.
    fn push(&mut self, c: char, after: &str) {
        if c == '$' && expands(after) {
            self.odd("a variable or a substitution");
        }
        self.word().push(c);
    }

    fn end_word(&mut self) {
        let word = self.word.take();
        let is_target = word.is_some() && std::mem::take(&mut self.is_target);
        self.words.extend(word.filter(|_| !is_target));
    }

    /// Reads the rest of a redirection, after its first character.
    fn redirected<'a>(&mut self, after: &'a str) -> &'a str {
        self.odd("a redirection");
        // A number or a name in braces in front of it belongs to it.
        let is_descriptor = |word: &mut String| {
            word.chars().all(|c| c.is_ascii_digit()) || (word.starts_with('{') && word.ends_with('}'))
        };
        self.word.take_if(is_descriptor);
        self.end_word();
        self.is_target = true;
        after.trim_start_matches(['<', '>', '&', '|', '-', ' ', '\t'])
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_target = false;
        match std::mem::take(&mut self.words) {
            words if words.is_empty() => self.odd("an empty command"),
            words => self.commands.push(words),
        }
    }

    /// Reads what separates two commands, after its first character.
    fn separated<'a>(&mut self, c: char, after: &'a str) -> &'a str {
        self.end_command();
        match after.strip_prefix(c).filter(|_| c == '&' || c == '|') {
            Some(after) => after,
            None => {
                if c == '&' || (c == '|' && after.starts_with('&')) {
                    self.odd("'&'");
                }
                after
            }
        }
    }

    fn single<'a>(&mut self, after: &'a str) -> &'a str {
        let Some((text, after)) = after.split_once('\'') else {
            self.odd("a quote without an end");
            self.word().push_str(after);
            return "";
        };
        if text.contains(is_hidden) {
            self.odd("control characters or several lines");
        }
        self.word().push_str(text);
        after
    }

    fn double<'a>(&mut self, mut rest: &'a str) -> &'a str {
        self.word();
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '"' => return rest,
                '\\' if rest.starts_with(['"', '\\', '$', '`']) => {
                    self.word().push_str(&rest[..1]);
                    rest = &rest[1..];
                }
                '\\' if rest.starts_with('\n') => {
                    self.odd("control characters or several lines");
                    rest = &rest[1..];
                }
                '`' => self.odd("a substitution or a subshell"),
                '$' if rest.starts_with('"') => self.word().push(c),
                _ if is_hidden(c) => self.odd("control characters or several lines"),
                _ => self.push(c, rest),
            }
        }
        self.odd("a quote without an end");
        rest
    }

    fn escaped<'a>(&mut self, after: &'a str) -> &'a str {
        let Some(c) = after.chars().next() else {
            self.odd("a quote without an end");
            return after;
        };
        if is_hidden(c) {
            self.odd("control characters or several lines");
        }
        if c == '\n' {
            // The shell joins the lines.
            return &after[1..];
        }
        self.word().push(c);
        &after[c.len_utf8()..]
    }
}
