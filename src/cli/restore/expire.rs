//! `swarm restore --expire`: deletes saves that are too old or take too much space, and lists them.

use serde::Serialize;

use super::args::RestoreArgs;
use crate::cli::error::Failure;
use crate::cli::json;
use crate::cli::render::{Clock, escape, size};
use crate::cli::screen::Screen;
use swarm_store::repositories::trash::expiry::{AGE, TrashPolicy};
use swarm_store::repositories::trash::list::TrashList;

#[derive(Serialize)]
struct Expired {
    dry_run: bool,
    saves: Vec<Gone>,
}

#[derive(Serialize)]
struct Gone {
    name: String,
    reference: String,
    commit: String,
    bytes: u64,
    why: &'static str,
}

pub fn run(args: &RestoreArgs, trash: &TrashList, screen: &mut Screen) -> Result<u8, Failure> {
    let typed = TrashPolicy { max_age: args.older_than, max_bytes: args.max_size };
    let nothing = TrashPolicy::default();
    let policy = match (typed, trash.policy()?) {
        (typed, _) if typed != nothing => typed,
        (_, said) if said != nothing => said,
        _ => TrashPolicy { max_age: Some(AGE), ..nothing },
    };
    let clock = Clock::system();
    let now_ms = u64::try_from(clock.now.as_millisecond()).unwrap_or(0);
    let word = if args.dry_run { "would expire" } else { "expired" };
    let mut saves = Vec::new();
    for due in trash.due(policy, now_ms)? {
        let save = due.save;
        if !args.dry_run {
            trash.forget(&save)?;
        }
        if !args.json {
            let (name, at) = (escape(&save.name).into_owned(), clock.local(save.at_ms));
            let line =
                format!("{word} {name}/{} (saved {at}, {}, commit {})", save.stamp, size(due.bytes), save.commit);
            screen.line(&line)?;
        }
        let (reference, commit) = (save.reference, save.commit);
        saves.push(Gone { name: save.name, reference, commit, bytes: due.bytes, why: due.why });
    }
    if args.json {
        json::print(screen, "swarm.saves.expired/1", &Expired { dry_run: args.dry_run, saves })?;
    }
    Ok(0)
}
