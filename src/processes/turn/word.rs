//! Reading an agent's signal from its handoff file or last message, and restricting the agent as the flow requires.

use std::path::Path;

use serde_json::Value;
use swarm_actors::flow::rules::block::{self, BLOCK_BYTES_MAX, Code, Refusal, Signal, Which};
use swarm_model::asks::judge::Consent;

use super::Fail;
use swarm_agents::{Agent, Kind, consent};
use swarm_store::flows::store::{FlowFiles, gate_of};
use swarm_store::flows::turns::{self, HANDOFF_BYTES_MAX};
use swarm_store::flows::{self, yaml};
use swarm_store::runs::prepare;
use swarm_sys::quoting::command_line;

/// Maximum size of a question in bytes; the rest is left out.
pub const QUESTION_BYTES_MAX: usize = 16 << 10;
/// Script of the `shell` agent for the improvement phase: writes findings without content.
pub const LOOK_BACK: &str = r#"file=$(sed -n 's/^Write it to \(.*\), then stop with$/\1/p' "$SWARM_PROMPT" | tail -n 1)
mkdir -p "$(dirname "$file")"
printf '# %s\n\nA script: it did what it says.\n' "$SWARM_ROLE" > "$file"
sed -n '/^```handoff$/,/^```$/p' "$SWARM_PROMPT" | tail -n 4
"#;

/// Signal of an agent with its question.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub signal: Signal,
    pub question: String,
}

/// Returns the signal in the handoff file, or else in the last block of the agent's last message.
pub fn find(file: &Path, message: &str) -> Result<Word, Refusal> {
    match flows::read_text(file, HANDOFF_BYTES_MAX) {
        Ok(Some(text)) => read(&text),
        Ok(None) => {
            let signal = block::parse(message, Which::Last, yaml::parse)?;
            Ok(Word { signal, question: above(message) })
        }
        Err(error) => {
            let message = format!("Error: {} cannot be read: {error}. Write it again.", file.display());
            Err(Refusal::new(Code::MissingBlock, "Handoff file cannot be read", message))
        }
    }
}

/// Parses a handoff file: the block alone, or a text that contains the block.
pub fn read(text: &str) -> Result<Word, Refusal> {
    if text.contains("```") {
        let signal = block::parse(text, Which::Last, yaml::parse)?;
        return Ok(Word { signal, question: above(text) });
    }
    let wrong = |cause: String| {
        let message = format!("Error: The handoff file is not valid YAML: {cause}. Write it again.");
        Refusal::new(Code::YamlParse, "Malformed handoff file", message)
    };
    if text.len() > BLOCK_BYTES_MAX {
        return Err(wrong(format!("longer than {BLOCK_BYTES_MAX} bytes")));
    }
    let value = yaml::parse(text).map_err(wrong)?;
    let question = value.get("question").and_then(Value::as_str).unwrap_or_default();
    let question = cut(question.trim());
    Ok(Word { signal: block::interpret(&value)?, question })
}

/// Returns the text above the last block, which is the question if the agent asks one.
fn above(message: &str) -> String {
    let end = message.to_lowercase().rfind("```handoff").filter(|at| message.is_char_boundary(*at));
    cut(message[..end.unwrap_or(message.len())].trim())
}

/// Shortens a question to `QUESTION_BYTES_MAX`.
fn cut(text: &str) -> String {
    let mut end = text.len().min(QUESTION_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

/// Returns the refusal for an agent whose process failed.
pub fn failed(cause: &str) -> Refusal {
    let message =
        format!("Your last turn failed: {cause}. Continue where you stopped, and end your turn as instructed.");
    Refusal::new(Code::MissingBlock, cause, message)
}

/// Makes the agent ask before it does what the flow does not allow, as far as its program supports that. `dir` is the
/// directory of the turn, to which the agent may write its signal; `project` is the main checkout or folder, whose files
/// a person agreed to.
pub(super) fn hold_back(agent: &mut Agent, files: &FlowFiles, dir: &Path, project: &Path) -> Result<(), Fail> {
    match agent.kind {
        Kind::Claude => {
            let program = std::env::current_exe()?;
            agent.config.arguments.extend(consent::claude(&program.to_string_lossy()));
        }
        Kind::Codex => {
            let flow = files.read()?;
            let mode = gate_of(&flow).mode();
            let out = turns::outbox(dir);
            let out = out.to_string_lossy();
            let roots = [flow.record_folder(), &out];
            if mode == Consent::PartialAccess {
                let here = std::env::current_dir()?;
                let places = [here.as_path(), Path::new(flow.record_folder())];
                if let Some(place) = places.into_iter().find(|place| files.is_exposed(place)) {
                    return Err(Fail::Over(exposed(&agent.name, place, &flow.id().flow)));
                }
            }
            agent.config.arguments.extend(consent::codex(
                mode == Consent::NoAccess,
                mode == Consent::FullAccess,
                &roots,
            ));
            // Its sandbox contains these directories by default.
            let temporary =
                [("exclude_slash_tmp", Some("/tmp".into())), ("exclude_tmpdir_env_var", std::env::var_os("TMPDIR"))];
            for (key, dir) in temporary {
                if dir.is_some_and(|dir| !dir.is_empty() && files.is_exposed(Path::new(&dir))) {
                    let setting = format!("sandbox_workspace_write.{key}=true");
                    agent.config.arguments.extend(["-c".to_owned(), setting]);
                }
            }
        }
        _ => {}
    }
    prepare::hold_back(agent, project, &std::env::current_dir()?).map_err(Fail::Over)?;
    Ok(())
}

/// Returns why an agent is not started that may write in `place`, and the remedy.
fn exposed(agent: &str, place: &Path, flow: &str) -> String {
    let consent = |mode| command_line(["swarm", "flow", "consent", flow, mode]);
    format!(
        "agent '{agent}' may write in {}, and could change the flow itself, which is stored there: put the workspace into a \
         git repository, in which each role gets a worktree, or run '{}' or '{}', then answer",
        place.display(),
        consent("no-access"),
        consent("full-access")
    )
}

/// Returns `PATH` with this program's directory appended; `None` if it is already there.
pub fn search_path() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let own =
        program.parent().filter(|_| program.file_name().is_some_and(|name| name == "swarm"))?.to_str()?.to_owned();
    let known = std::env::var("PATH").unwrap_or_default();
    (!known.split(':').any(|dir| dir == own)).then(|| format!("{known}:{own}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_the_block_alone_or_a_text_with_it() {
        let asks = Word { signal: Signal::PromptHuman, question: "Which one?".to_owned() };
        assert_eq!(read("type: prompt-human\nquestion: Which one?\n"), Ok(asks.clone()));
        assert_eq!(read("Which one?\n```handoff\ntype: prompt-human\n```\n"), Ok(asks));
        for text in ["", "[]", "a: [", &"x".repeat(BLOCK_BYTES_MAX + 1), "```\nnothing\n```"] {
            assert!(read(text).is_err(), "{text:.20}");
        }
    }

    #[test]
    fn hostile_blocks_are_refused_in_time() {
        let aliases = format!("a: &a [x]\n{}", (0..200).map(|n| format!("b{n}: [*a, *a, *a]\n")).collect::<String>());
        let blocks = [
            "[".repeat(40_000),
            "{a: ".repeat(10_000),
            "a: &a [*a, *a]".to_owned(),
            format!("{aliases}c: *nobody"),
            "- &x [1]\n- *x".to_owned(),
            "target_node_id: [a, b]\nartifact_path: {c: d}".to_owned(),
            "target_node_id: build".repeat(9_000),
            "!!python/object:os.system x".to_owned(),
            "type: [prompt-human]".to_owned(),
            "\u{0}\u{1}".to_owned(),
            "- null\n- null".to_owned(),
            "type: forward-pass-closed\ntype: prompt-human".to_owned(),
        ];
        for block in blocks {
            assert!(read(&block).is_err(), "{block:.60}");
            let message = format!("```handoff\n{block}\n```");
            assert!(find(Path::new("/nowhere/at/all"), &message).is_err(), "{block:.60}");
        }
    }

    #[test]
    fn the_last_block_counts_and_the_question_is_above_it() {
        let message =
            "Ünï first\n```handoff\ntype: await-handoff\n```\nor rather: who?\n```handoff\ntype: prompt-human\n```";
        let word = find(Path::new("/nowhere/at/all"), message).expect("it can be read");
        assert_eq!(word.signal, Signal::PromptHuman);
        assert!(word.question.ends_with("or rather: who?"));
        assert_eq!(
            find(Path::new("/nowhere/at/all"), "no block").map_err(|refusal| refusal.code),
            Err(Code::MissingBlock)
        );
    }
}
