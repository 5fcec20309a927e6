//! Parts of a conversation as lines for people.

use swarm_agents::conversation::Said;

use super::render::escape;

/// Returns the lines that show a part of a conversation.
pub fn lines(said: &Said) -> Vec<String> {
    match said {
        Said::Begin { session } => vec![format!("conversation {}", escape(session))],
        Said::Message { text } => block("", "", text),
        Said::Text { text } => vec![escape(text).into_owned()],
        Said::Plan { text } => [vec!["plan:".to_owned()], block("  ", "  ", text)].concat(),
        Said::Tool { tool, text } if text.is_empty() => vec![format!("> {}", escape(tool))],
        Said::Tool { tool, text } => block(&format!("> {}: ", escape(tool)), "    ", text),
        Said::Result { text, failed, cut } => {
            let failed = failed.then(|| "  failed:".to_owned());
            let shown = if text.is_empty() { Vec::new() } else { block("  ", "  ", text) };
            let more = (*cut > 0).then(|| format!("  ({cut} more lines)"));
            failed.into_iter().chain(shown).chain(more).collect()
        }
        Said::Question { text } => block("? ", "  ", text),
        Said::Denied { text } => block("denied: ", "    ", text),
        Said::Notice { text } => block("note: ", "    ", text),
        Said::End { failed, text, usd, input_tokens, output_tokens } => {
            let mut about = vec![if *failed { "failed".to_owned() } else { "done".to_owned() }];
            about.extend(input_tokens.map(|tokens| format!("{tokens} tokens in")));
            about.extend(output_tokens.map(|tokens| format!("{tokens} tokens out")));
            about.extend(usd.map(|usd| format!("{usd:.4} USD")));
            let head = format!("end of turn: {}", about.join(", "));
            if text.is_empty() { vec![head] } else { block(&format!("{head}: "), "    ", text) }
        }
    }
}

/// Returns lines: the first after `head`, the others after `indent`.
pub fn block(head: &str, indent: &str, text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let first = format!("{head}{}", escape(lines.next().unwrap_or_default()));
    std::iter::once(first).chain(lines.map(|line| format!("{indent}{}", escape(line)))).collect()
}
