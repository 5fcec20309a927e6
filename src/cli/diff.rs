//! `swarm diff`: the changes that a worker would land on its base, committed or not.

use std::io::{self, IsTerminal as _};

use serde::Serialize;
use swarm_model::{BaseRef, Refusal, RefusalKind, RowWorktree, WorkerView};

use super::args::DiffArgs;
use super::caller;
use super::error::{Failure, unknown_worker};
use super::json;
use super::merge::queues::Queues;
use super::render::escape;
use super::screen::Screen;
use swarm_store::repositories::kept_worktree;
use swarm_store::repositories::topic::{Shape, Topic, topic};
use swarm_sys::paths::Paths;

/// Maximum number of excluded paths that the note names.
const NAMED_MAX: usize = 5;

/// Result of `--json`.
#[derive(Serialize)]
struct Difference<'a> {
    name: &'a str,
    branch: &'a str,
    /// Commit that the changes are relative to: one of the base branch, or the newest one of the worker that has landed as
    /// another commit.
    from: &'a str,
    /// Last commit of the worker.
    tip: &'a str,
    files: Vec<File>,
    left_out: &'a [String],
}

#[derive(Serialize)]
struct File {
    path: String,
    status: &'static str,
    added: Option<u64>,
    deleted: Option<u64>,
}

pub fn run(args: &DiffArgs, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let registry = super::read_one(paths, &args.name, screen)?;
    if let Some(view) = registry.find(&args.name) {
        return show(args, view, paths, screen);
    }
    // What `merge add` of this name would land.
    let caller = caller::collect()?.caller;
    match kept_worktree(&args.name, paths.root(), &caller).filter(|kept| !kept.is_superseded) {
        Some(kept) => show_topic(args, &kept.tree, kept.base.as_ref(), paths, screen),
        None => Err(unknown_worker(&args.name, &registry)),
    }
}

fn show(args: &DiffArgs, view: &WorkerView, paths: &Paths, screen: &mut Screen) -> Result<u8, Failure> {
    let row = &view.row;
    let Some(worktree) = &row.worktree else {
        let cause = format!("worker '{}' has no worktree", row.name);
        return Err(Refusal::new(RefusalKind::Invalid, cause).of(&row.name).into());
    };
    show_topic(args, worktree, row.swarm().and_then(|meta| meta.base.as_ref()), paths, screen)
}

fn show_topic(
    args: &DiffArgs,
    worktree: &RowWorktree,
    base: Option<&BaseRef>,
    paths: &Paths,
    screen: &mut Screen,
) -> Result<u8, Failure> {
    let caller = caller::collect()?.caller;
    let topic = topic(&caller, worktree, base).map_err(|refusal| refusal.of(&args.name))?;
    let branch = base.and_then(|base| base.branch.as_deref());
    let queue = branch.and_then(|branch| Queues::of_base(&worktree.base_repo, branch, paths));
    let topic = topic.without_landed(queue.as_ref().map_or(&[], |view| &view.queue.items))?;
    if args.json {
        print_json(&args.name, &worktree.branch, &topic, screen)?;
    } else {
        let shape = match (args.stat, args.name_only) {
            (true, _) => Shape::Stat,
            (_, true) => Shape::Names,
            (false, false) => Shape::Patch,
        };
        let text = topic.diff(shape)?;
        if io::stdout().is_terminal() {
            screen.bytes(for_terminal(&text, screen.colour && shape == Shape::Patch).as_bytes())?;
        } else {
            screen.bytes(&text)?;
        }
    }
    screen.flush()?;
    if !args.json && !topic.left_out.is_empty() {
        screen.aside("note: ", &left_out(&topic.left_out));
    }
    Ok(0)
}

fn print_json(name: &str, branch: &str, topic: &Topic, screen: &mut Screen) -> Result<(), Failure> {
    let file = |changed: swarm_store::repositories::topic::Changed| File {
        status: match changed.status {
            'A' => "added",
            'D' => "deleted",
            'T' => "type",
            _ => "modified",
        },
        path: changed.path,
        added: changed.added,
        deleted: changed.deleted,
    };
    let difference = Difference {
        name,
        branch,
        from: &topic.fork,
        tip: &topic.tip,
        files: topic.changed()?.into_iter().map(file).collect(),
        left_out: &topic.left_out,
    };
    json::print(screen, "swarm.diff/1", &difference)
}

pub fn left_out(paths: &[String]) -> String {
    format!("{} uncommitted path(s) will not land: {}", paths.len(), named(paths))
}

/// Names the first paths.
pub fn named(paths: &[String]) -> String {
    let named = paths.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if paths.len() > NAMED_MAX { ", …" } else { "" };
    format!("{named}{more}")
}

/// Escapes control characters in a patch before it is written to a terminal.
pub fn for_terminal(text: &[u8], colour: bool) -> String {
    let text = String::from_utf8_lossy(text);
    let mut shown = String::with_capacity(text.len() + 256);
    for line in text.split_inclusive('\n') {
        let body = line.strip_suffix('\n').unwrap_or(line);
        let safe: Vec<_> = body.split('\t').map(escape).collect();
        let paint = if colour { painted(body) } else { None };
        shown.push_str(paint.unwrap_or_default());
        shown.push_str(&safe.join("\t"));
        shown.push_str(paint.map_or("", |_| "\x1b[0m"));
        shown.push('\n');
    }
    shown
}

/// Returns the colour of a line, as git has it.
fn painted(line: &str) -> Option<&'static str> {
    match line.as_bytes().first()? {
        b'+' if !line.starts_with("+++ ") => Some("\x1b[32m"),
        b'-' if !line.starts_with("--- ") => Some("\x1b[31m"),
        b'@' => Some("\x1b[36m"),
        b'd' | b'i' | b'n' | b'o' | b'+' | b'-' => Some("\x1b[1m"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sample;

    #[test]
    fn file_content_cannot_move_the_cursor() {
        let patch = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+\x1b[2Jnew\tx\n";
        assert_eq!(
            for_terminal(patch, false),
            "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+\\x1b[2Jnew\tx\n"
        );
        let coloured = for_terminal(patch, true);
        assert!(coloured.contains("\x1b[31m-old\x1b[0m\n\x1b[32m+\\x1b[2Jnew\tx\x1b[0m\n"), "{coloured:?}");
        assert!(coloured.contains("\x1b[1m+++ b/f\x1b[0m\n"), "{coloured:?}");
    }

    #[test]
    fn a_worker_without_a_worktree_is_refused() {
        let crate::cli::args::Command::Diff(args) = sample::command(&["diff", "p"]) else { panic!("not diff") };
        let said = sample::said(|screen| show(&args, &sample::process("p"), &Paths::new("/nowhere"), screen));
        let line = "swarm: error: worker 'p' has no worktree\n";
        assert_eq!(said, (String::new(), line.to_owned(), 1));
    }

    #[test]
    fn many_paths_are_counted_and_the_first_are_named() {
        let paths: Vec<String> = (0..7).map(|number| format!("dist/{number}")).collect();
        assert!(left_out(&paths).ends_with(": dist/0, dist/1, dist/2, dist/3, dist/4, …"));
    }
}
