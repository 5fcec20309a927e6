//! Errors of parsers in plain words.

/// Returns an error of a parser without the words of its library: `expected a string, found integer 7`, and not
/// ``invalid type: integer `7`, expected a string``.
pub fn plain(message: &str) -> String {
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("'{key}' is missing");
    }
    let Some((found, wanted)) = message.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return message.to_owned();
    };
    // A struct has the name of a type in the code.
    let wanted = if wanted.starts_with("struct ") { "an object" } else { named(wanted) };
    format!("expected {wanted}, found {}", named(found).replace('`', ""))
}

fn named(kind: &str) -> &str {
    match kind {
        "sequence" | "a sequence" => "a list",
        "map" | "a map" => "an object",
        "string" => "a string",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_library_are_left_out() {
        for (message, words) in [
            ("missing field `specsDir`", "'specsDir' is missing"),
            ("invalid type: sequence, expected a string", "expected a string, found a list"),
            ("invalid type: integer `7`, expected a sequence", "expected a list, found integer 7"),
            ("invalid type: null, expected struct ArialState", "expected an object, found null"),
            ("key must be a string", "key must be a string"),
        ] {
            assert_eq!(plain(message), words);
        }
    }
}
