//! Escaping of text for the parsers of tmux. Pure, so that each special case is a line of a table in the tests.

use tmux_interface::TmuxCommand;

use super::error::TmuxError;

/// Maximum length of the path of a Unix socket in bytes (`sun_path` without its final NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Joins commands into the arguments of one tmux process. tmux reads an argument that ends in `;` as the end of a
/// command, so such words are escaped, and only the separators between the commands are bare.
pub fn sequence<'a>(commands: impl IntoIterator<Item = TmuxCommand<'a>>) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for command in commands {
        if !words.is_empty() {
            words.push(";".to_owned());
        }
        words.extend(command.to_vec().iter().map(|word| plain(word)));
    }
    words
}

/// Returns the word escaped so that tmux takes it literally.
fn plain(word: &str) -> String {
    match word.strip_suffix(';') {
        Some(start) => format!("{start}\\;"),
        None => word.to_owned(),
    }
}

/// Escapes text so that it is unchanged after tmux has expanded it as a format. A doubled `#` expands to one, but
/// tmux copies a run of `#` before `[` (a style) as it is. Nothing in such a run is ever executed.
pub fn literal_format(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some(at) = rest.find('#') {
        let run = rest[at..].len() - rest[at..].trim_start_matches('#').len();
        let after = at + run;
        let copies = if rest[after..].starts_with('[') { 1 } else { 2 };
        escaped.push_str(&rest[..at]);
        escaped.push_str(&"#".repeat(run * copies));
        rest = &rest[after..];
    }
    escaped.push_str(rest);
    escaped
}

/// Returns the command for `pipe-pane` that appends to `path`. tmux expands formats and `strftime` in the command,
/// and passes the rest to `sh`. Each `#` is followed by an empty quoted string, so that tmux never sees a style. `cat`
/// needs no locale, and to load one takes a third of the time in which it starts.
pub fn append_to_log(path: &str) -> String {
    let mut quoted = String::with_capacity(path.len() + 16);
    for c in path.chars() {
        match c {
            '\'' => quoted.push_str("'\\''"),
            '#' => quoted.push_str("##''"),
            '%' => quoted.push_str("%%"),
            other => quoted.push(other),
        }
    }
    format!("LC_ALL=C exec cat >>'{quoted}'")
}

/// Checks that tmux keeps `name` unchanged for a session, and finds it again. tmux replaces `.` and `:` by `_`,
/// doubles a backslash, encodes control characters, and does not read some prefixes as a name.
///
/// # Errors
/// Returns the rule that the name breaks.
pub fn check_session_name(name: &str) -> Result<(), TmuxError> {
    let refuse = |why: &str| Err(TmuxError::Session { name: name.to_owned(), why: why.to_owned() });
    if name.is_empty() {
        return refuse("must not be empty");
    }
    if let Some(bad) = name.chars().find(|c| c.is_control() || matches!(c, '.' | ':' | '\\')) {
        return refuse(&format!("contains {bad:?}, which tmux would replace"));
    }
    if let Some(bad) = name.chars().next().filter(|c| matches!(c, '-' | '=' | '$' | '@' | '%' | '{' | '!' | '+' | '~'))
    {
        return refuse(&format!("starts with {bad:?}, which tmux does not read as a name"));
    }
    // If tmux does not find a session of this name, it searches for a terminal of that name.
    if ["/dev/", "pts/", "tty", "client-"].iter().any(|terminal| name.starts_with(terminal)) {
        return refuse("tmux reads it as the name of a terminal");
    }
    Ok(())
}

/// Checks that `name` is valid for `tmux -L`.
///
/// # Errors
/// Fails if the name is empty, is a path, or contains a NUL.
pub fn check_socket_name(name: &str) -> Result<(), TmuxError> {
    let why = match name {
        "" => "must not be empty",
        "." | ".." => "names a directory",
        _ if name.contains('/') => "contains '/'",
        _ if name.contains('\0') => "contains a NUL",
        _ => return Ok(()),
    };
    Err(TmuxError::SocketName { name: name.to_owned(), why })
}

/// Checks that `path` fits into a socket address.
///
/// # Errors
/// Returns [`TmuxError::SocketPath`] if the path is too long.
pub fn check_socket_path(path: &str) -> Result<(), TmuxError> {
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(path_too_long(path));
    }
    Ok(())
}

/// Returns the error for a path that does not fit into a socket address.
pub fn path_too_long(path: &str) -> TmuxError {
    TmuxError::SocketPath { path: path.to_owned(), bytes: path.len(), limit: SOCKET_PATH_BYTES_MAX }
}

/// Removes the sequence that ends a bracketed paste, because tmux would pass the text after it as keys. Repeats that
/// until none is left, because a removal can form another sequence.
pub fn pasteable(text: &str) -> String {
    let mut text = text.to_owned();
    for end in ["\u{1b}[201~", "\u{9b}201~"] {
        while text.contains(end) {
            text = text.replace(end, "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_separators_end_in_a_bare_semicolon() {
        let mut first = TmuxCommand::new();
        first.name("one").push_param("a;").push_param(";").push_param("b\\;").push_param("c;d");
        let mut second = TmuxCommand::new();
        second.name("two");
        assert_eq!(sequence([first, second]), ["one", "a\\;", "\\;", "b\\\\;", "c;d", ";", "two"]);
    }

    #[test]
    fn escaped_formats_expand_to_the_original() {
        for (text, escaped) in [
            ("plain", "plain"),
            ("#(touch x)", "##(touch x)"),
            ("#{pid}", "##{pid}"),
            ("a##b#", "a####b##"),
            ("#[fg=red]", "#[fg=red]"),
            ("##[#(x)", "##[##(x)"),
        ] {
            assert_eq!(literal_format(text), escaped, "{text}");
        }
    }

    #[test]
    fn a_log_path_is_quoted_for_sh_and_for_tmux() {
        for (path, command) in [
            ("/a/b.log", "LC_ALL=C exec cat >>'/a/b.log'"),
            ("/a b/$(x);", "LC_ALL=C exec cat >>'/a b/$(x);'"),
            ("/it's", "LC_ALL=C exec cat >>'/it'\\''s'"),
            ("/#(x)%H#[", "LC_ALL=C exec cat >>'/##''(x)%%H##''['"),
        ] {
            assert_eq!(append_to_log(path), command);
        }
    }

    #[test]
    fn session_names_that_tmux_would_change_are_refused() {
        for name in ["swarm-0a1b2c3d", "my work", "é", "a;b", "a#(x)", "job/two", "a=b"] {
            assert!(check_session_name(name).is_ok(), "{name}");
        }
        let long =
            ["", "a.b", "a:b", "a\\b", "a\nb", "-x", "=x", "$1", "@1", "%1", "{end}", "!", "/dev/pts/3", "pts/3"];
        for name in long {
            assert!(check_session_name(name).is_err(), "{name:?} was accepted");
        }
    }

    #[test]
    fn invalid_socket_names_and_paths_are_refused() {
        assert!(check_socket_name("work").is_ok() && check_socket_name("a.b").is_ok());
        for name in ["", "a/b", "..", "/tmp/x"] {
            assert!(check_socket_name(name).is_err(), "{name:?} was accepted");
        }
        assert!(check_socket_path(&"x".repeat(107)).is_ok());
        assert!(check_socket_path(&"x".repeat(108)).is_err());
    }

    #[test]
    fn no_text_can_end_its_own_paste() {
        for (text, pasted) in
            [("plain\n", "plain\n"), ("a\u{1b}[201~b", "ab"), ("\u{1b}[2\u{1b}[201~01~x", "x"), ("\u{9b}201~y", "y")]
        {
            assert_eq!(pasteable(text), pasted);
        }
    }
}
