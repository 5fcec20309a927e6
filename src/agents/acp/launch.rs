//! Command lines of the agents that need no configuration.

use swarm_config::sections::AgentConfig;

use crate::{Kind, Launch, gemini};

/// Permissions for which opencode asks.
const ASKS: &str = r#"{"bash":"ask","edit":"ask","webfetch":"ask"}"#;

/// Returns how an agent is started. Each asks before it uses a tool: the answer is that of the run.
pub fn launch(kind: Kind, config: &AgentConfig) -> Launch {
    let (words, env): (&[&str], &[(&str, &str)]) = match kind {
        Kind::GeminiAcp => (&["gemini", "--acp"], &[(gemini::TRUST, "true")]),
        Kind::OpencodeAcp => (
            &["opencode", "acp"],
            &[
                ("OPENCODE_PERMISSION", ASKS),
                ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
                ("OPENCODE_DISABLE_PROJECT_CONFIG", "1"),
            ],
        ),
        Kind::Qwen => (&["qwen", "--acp"], &[]),
        _ => (&[], &[]),
    };
    let mut argv = match &config.command {
        Some(command) => command.clone(),
        None => words.iter().map(ToString::to_string).collect(),
    };
    if let (None, Kind::GeminiAcp | Kind::Qwen) = (&config.command, kind) {
        argv.extend(config.model_option());
    }
    argv.extend(config.arguments.clone());
    let mut env: Vec<(String, String)> =
        env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    if let (Some(model), Kind::OpencodeAcp) = (&config.model, kind) {
        let inline = serde_json::json!({ "model": model });
        env.push(("OPENCODE_CONFIG_CONTENT".to_owned(), inline.to_string()));
    }
    Launch { argv, env, input: None }
}
