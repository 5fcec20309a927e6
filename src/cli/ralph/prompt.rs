//! `swarm ralph init` and `template`: the prompt template.

use std::fs;
use std::path::Path;

use serde_json::json;
use swarm_model::RefusalKind;

use super::args::{InitArgs, TemplateArgs};
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::screen::Screen;

const TEMPLATE: &str = include_str!("PROMPT.md");
const FILE: &str = "PROMPT.md";

pub fn init(args: &InitArgs, screen: &mut Screen) -> Result<u8, Failure> {
    let file = Path::new(FILE);
    let was_there = fs::symlink_metadata(file).is_ok();
    if was_there && !args.force {
        return Err(Failure::new(RefusalKind::Exists, "PROMPT.md already exists (use --force to overwrite)"));
    }
    fs::write(file, TEMPLATE).map_err(|error| Failure::system("cannot write PROMPT.md", &error))?;
    if args.json {
        let action = if was_there { "overwritten" } else { "created" };
        json::print(screen, "swarm.ralph.init/1", &json!({"file": FILE, "action": action}))?;
    } else {
        screen.line(if was_there { "created PROMPT.md (overwritten)" } else { "created PROMPT.md" })?;
    }
    Ok(0)
}

pub fn template(args: &TemplateArgs, screen: &mut Screen) -> Result<u8, Failure> {
    if args.json {
        json::print(screen, "swarm.ralph.template/1", &json!({"text": TEMPLATE}))?;
    } else {
        screen.bytes(TEMPLATE.as_bytes())?;
    }
    Ok(0)
}
