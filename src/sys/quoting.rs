//! Command lines for `sh` that are shown to people or executed later.

/// Quotes a text as one word for `sh`.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a command line for `sh` with these words. Only words that need quotes have them.
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let word = |word: &str| match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => quoted(word),
    };
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}
