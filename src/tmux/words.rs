//! Words for tmux: how free text passes through tmux's own parsers unread.
//! Pure, so that every trap is a line of a table in the tests.

use tmux_interface::TmuxCommand;

use super::error::TmuxError;

/// Longest path a Unix socket may have (`sun_path` less its final NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Joins commands into the arguments of one tmux process. tmux reads an
/// argument that ends in `;` as the end of a command, so such words are escaped
/// and the separators between the commands are the only bare ones.
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

/// One word that tmux takes as it is.
fn plain(word: &str) -> String {
    match word.strip_suffix(';') {
        Some(start) => format!("{start}\\;"),
        None => word.to_owned(),
    }
}

/// Text that tmux expands as a format and that must come out unchanged. A
/// doubled `#` gives one, except that tmux copies a run of `#` before `[` (a
/// style to it) as it stands; nothing in such a run is ever executed.
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

/// The command for `pipe-pane`: tmux expands formats and `strftime` in it and
/// gives the rest to `sh`. Each `#` is followed by an empty quoted string, so
/// that tmux never sees a style.
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
    format!("exec cat >>'{quoted}'")
}

/// Whether tmux would keep `name` for a session and find it again. tmux turns
/// `.` and `:` into `_`, doubles a backslash, encodes control characters, and
/// reads some beginnings as something else than a name.
///
/// # Errors
/// The rule that the name breaks.
pub fn check_session_name(name: &str) -> Result<(), TmuxError> {
    let refuse = |why: &str| Err(TmuxError::Session { name: name.to_owned(), why: why.to_owned() });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if let Some(bad) = name.chars().find(|c| c.is_control() || matches!(c, '.' | ':' | '\\')) {
        return refuse(&format!("it has {bad:?} in it, which tmux would replace"));
    }
    if let Some(bad) = name.chars().next().filter(|c| matches!(c, '-' | '=' | '$' | '@' | '%' | '{' | '!' | '+' | '~'))
    {
        return refuse(&format!("it begins with {bad:?}, which tmux does not read as a name"));
    }
    // Before it gives up on an exact name, tmux looks for a terminal of that name.
    if ["/dev/", "pts/", "tty", "client-"].iter().any(|terminal| name.starts_with(terminal)) {
        return refuse("tmux reads it as the name of a terminal");
    }
    Ok(())
}

/// Whether `name` can be given to `tmux -L`.
///
/// # Errors
/// When it is empty or names a path.
pub fn check_socket_name(name: &str) -> Result<(), TmuxError> {
    let why = match name {
        "" => "it is empty",
        "." | ".." => "it names a directory",
        _ if name.contains('/') => "it has '/' in it",
        _ if name.contains('\0') => "it has a NUL in it",
        _ => return Ok(()),
    };
    Err(TmuxError::SocketName { name: name.to_owned(), why })
}

/// Whether `path` fits into a socket address.
///
/// # Errors
/// When it is too long, naming it and its length.
pub fn check_socket_path(path: &str) -> Result<(), TmuxError> {
    if path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(path_too_long(path));
    }
    Ok(())
}

/// The error for a socket path that no address can hold.
pub fn path_too_long(path: &str) -> TmuxError {
    TmuxError::SocketPath { path: path.to_owned(), bytes: path.len(), limit: SOCKET_PATH_BYTES_MAX }
}

/// Text as it may be pasted: without the sequence that ends a bracketed paste,
/// behind which the rest would count as keys. Removing one can make another,
/// so it is done until none is left.
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
    fn formats_come_out_as_they_went_in() {
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
            ("/a/b.log", "exec cat >>'/a/b.log'"),
            ("/a b/$(x);", "exec cat >>'/a b/$(x);'"),
            ("/it's", "exec cat >>'/it'\\''s'"),
            ("/#(x)%H#[", "exec cat >>'/##''(x)%%H##''['"),
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
            assert!(check_session_name(name).is_err(), "{name:?} was taken");
        }
    }

    #[test]
    fn sockets_are_checked_before_tmux_is_asked() {
        assert!(check_socket_name("work").is_ok() && check_socket_name("a.b").is_ok());
        for name in ["", "a/b", "..", "/tmp/x"] {
            assert!(check_socket_name(name).is_err(), "{name:?} was taken");
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
