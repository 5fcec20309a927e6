use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use super::*;
use crate::fixture::{Fixture, text};
use crate::worktrees::admin;

/// Returns the branch of the role's worktree at `dir`, and its repository, which is beside it.
fn role(dir: &Path) -> (&str, PathBuf) {
    (dir.file_name().and_then(|name| name.to_str()).unwrap(), dir.with_file_name("repo"))
}

fn commit_work(dir: &Path, message: &str, caller: &Caller) -> Result<String, Refusal> {
    let (branch, base_repo) = role(dir);
    super::commit_work(RoleTree { dir, base_repo: &base_repo, branch }, message, caller).map(|done| done.commit)
}

fn merge_handoff(dir: &Path, commit: &str, from: &str, caller: &Caller) -> Result<MergeOutcome, Refusal> {
    let (branch, base_repo) = role(dir);
    super::merge_handoff(RoleTree { dir, base_repo: &base_repo, branch }, commit, from, caller)
}

/// Returns the record of the worktree at `dir`.
fn record(dir: &Path) -> PathBuf {
    admin::link_of(dir).unwrap().unwrap()
}

#[test]
fn only_the_recorded_branch_gets_the_work_of_a_role() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    fs::write(dev.join("f"), "of dev\n").unwrap();
    let work = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    fix.at(&dev, &["switch", "-q", "-c", "wip", "main"]);
    for uncommitted in [false, true] {
        if uncommitted {
            fs::write(dev.join("f"), "more\n").unwrap();
        }
        let refused = commit_work(&dev, "dev 2", &fix.caller).unwrap_err().cause;
        assert_eq!(refused, "its worktree has branch 'wip' checked out instead of 'dev'");
    }
    assert!(merge_handoff(&dev, &work, "qa", &fix.caller).unwrap_err().cause.contains("branch 'wip' checked out"));
    assert_eq!(text(&fix.git(&["rev-parse", "wip"])), text(&fix.git(&["rev-parse", "main"])), "nothing was committed");
    // A detached HEAD that contains the branch is where an agent may be in the middle of its own work.
    fix.at(&qa, &["checkout", "-q", "--detach"]);
    fs::write(qa.join("f"), "of qa\n").unwrap();
    assert!(commit_work(&qa, "qa 1", &fix.caller).is_ok());
}

#[test]
fn a_branch_that_leads_to_another_gets_no_work_of_a_role() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    fs::write(qa.join("f"), "of qa\n").unwrap();
    let work = commit_work(&qa, "qa 1", &fix.caller).unwrap();
    fix.git(&["symbolic-ref", "refs/heads/dev", "refs/heads/main"]);
    let cause = merge_handoff(&dev, &work, "qa", &fix.caller).unwrap_err().cause;
    assert_eq!(cause, "its branch 'dev' is a symbolic ref to 'main', which a commit would move");
    fs::write(dev.join("f"), "of dev\n").unwrap();
    assert_eq!(commit_work(&dev, "dev 1", &fix.caller).unwrap_err().cause, cause);
    assert_eq!(text(&fix.git(&["log", "--format=%s", "main"])), "first");
}

fn worktree(fix: &Fixture, name: &str) -> std::path::PathBuf {
    let path = fix.root.join(name);
    fix.git(&["worktree", "add", "-q", "-b", name, path.to_str().unwrap()]);
    path
}

#[test]
fn what_a_commit_of_a_role_leaves_out_is_named() {
    let fix = Fixture::new();
    let dir = worktree(&fix, "dev");
    let tree = RoleTree { dir: &dir, base_repo: &fix.repo, branch: "dev" };
    for name in ["pkg/dist/d.go", "fixtures/s.log", "main.go"] {
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        fs::write(dir.join(name), "new\n").unwrap();
    }
    let left_out = || super::commit_work(tree, "turn 1", &fix.caller).unwrap().left_out;
    assert_eq!(left_out(), ["fixtures/s.log", "pkg/dist/d.go"]);
    // A file that still exists is named again; a removed one is not.
    fs::remove_file(dir.join("fixtures/s.log")).unwrap();
    assert_eq!(left_out(), ["pkg/dist/d.go"]);
    fix.at(&dir, &["add", "pkg/dist/d.go"]);
    assert_eq!(left_out(), [""; 0]);
    assert_eq!(text(&fix.at(&dir, &["ls-files", "pkg"])), "pkg/dist/d.go");
}

#[test]
fn the_work_of_a_role_may_be_outside_of_the_sparse_patterns() {
    let fix = Fixture::new();
    for name in ["in", "out"] {
        fs::create_dir(fix.repo.join(name)).unwrap();
        fix.commit(name, &format!("{name}/x"), "1\n");
    }
    let dir = worktree(&fix, "dev");
    fix.at(&dir, &["sparse-checkout", "set", "--cone", "in"]);
    assert!(!dir.join("out").exists());
    for (name, content) in [("out/x", "2\n"), ("out/new", "new\n"), ("other/new", "new\n"), ("in/x", "2\n")] {
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        fs::write(dir.join(name), content).unwrap();
    }
    let work = commit_work(&dir, "dev 1", &fix.caller).unwrap();
    let changed = fix.at(&dir, &["diff-tree", "--no-commit-id", "--name-status", "-r", &work]);
    assert_eq!(text(&changed), "M\tin/x\nA\tother/new\nA\tout/new\nM\tout/x");
    assert_eq!(commit_work(&dir, "dev 2", &fix.caller).unwrap(), work, "nothing is left");
}

#[test]
fn the_changes_of_a_role_become_one_commit_without_generated_files() {
    let fix = Fixture::new();
    let dir = worktree(&fix, "dev");
    let before = commit_work(&dir, "nothing", &fix.caller).unwrap();
    assert_eq!(before, text(&fix.git(&["rev-parse", "main"])), "nothing changed, and nothing was committed");
    fs::write(dir.join("f"), "2\n").unwrap();
    fs::create_dir_all(dir.join("sub dir/node_modules/x")).unwrap();
    fs::write(dir.join("sub dir/ünï"), "new\n").unwrap();
    fs::write(dir.join("sub dir/node_modules/x/y"), "").unwrap();
    fs::write(dir.join("ignored"), "").unwrap();
    let kept = commit_work(&dir, "turn 1", &fix.caller).unwrap();
    assert_eq!(kept, text(&fix.at(&dir, &["rev-parse", "HEAD"])));
    let files = fix.at(&dir, &["-c", "core.quotepath=false", "show", "--name-only", "--format=%s", &kept]);
    assert_eq!(text(&files), "turn 1\n\nf\nsub dir/ünï");
    assert_eq!(commit_work(&dir, "again", &fix.caller).unwrap(), kept);
}

#[test]
fn a_first_commit_of_new_files_needs_no_tracked_one() {
    let fix = Fixture::empty();
    fix.git(&["commit", "-q", "--allow-empty", "-m", "first"]);
    let dir = worktree(&fix, "dev");
    fs::write(dir.join("new"), "1").unwrap();
    assert!(commit_work(&dir, "new", &fix.caller).is_ok());
    assert_eq!(text(&fix.at(&dir, &["ls-files"])), "new");
}

#[test]
fn handoffs_are_merged_and_the_role_resolves_conflicts() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    fs::write(dev.join("f"), "of dev\n").unwrap();
    let first = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    assert_eq!(merge_handoff(&qa, &first, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    assert_eq!(text(&fix.at(&qa, &["rev-parse", "HEAD"])), first, "a fast-forward");
    assert_eq!(merge_handoff(&qa, &first, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    fs::write(qa.join("f"), "of qa\n").unwrap();
    commit_work(&qa, "qa 1", &fix.caller).unwrap();
    fs::write(dev.join("f"), "of dev again\n").unwrap();
    let second = commit_work(&dev, "dev 2", &fix.caller).unwrap();
    assert_eq!(
        merge_handoff(&qa, &second, "build", &fix.caller).unwrap(),
        MergeOutcome::Conflict(vec!["f".to_owned()])
    );
    assert!(commit_work(&qa, "qa 2", &fix.caller).unwrap_err().cause.contains("contains conflict markers"));
    fs::write(qa.join("f"), "of both\n").unwrap();
    let merged = commit_work(&qa, "qa 2", &fix.caller).unwrap();
    let parents = text(&fix.at(&qa, &["rev-list", "--parents", "-n", "1", &merged]));
    assert!(parents.ends_with(&second) && parents.split(' ').count() == 3, "{parents}");
}

#[test]
fn odd_names_and_long_markers_hide_no_conflict_and_no_new_file() {
    let fix = Fixture::new();
    let names = [OsStr::from_bytes(b"caf\xe9.txt"), OsStr::from_bytes(b"long.txt")];
    let write = |dir: &Path, content: &str| names.iter().for_each(|name| fs::write(dir.join(name), content).unwrap());
    write(&fix.repo, "one\n");
    fix.commit("attributes", ".gitattributes", "long.txt conflict-marker-size=32\n");
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    write(&dev, "of dev\n");
    fs::write(dev.join(OsStr::from_bytes(b"n\xe9w")), "new\n").unwrap();
    let handed = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    assert!(fix.at(&dev, &["ls-tree", "-z", "--name-only", "HEAD"]).windows(4).any(|name| name == b"n\xe9w\0"));
    write(&qa, "of qa\n");
    commit_work(&qa, "qa 1", &fix.caller).unwrap();
    for name in names {
        let outcome = merge_handoff(&qa, &handed, "build", &fix.caller).unwrap();
        assert!(matches!(outcome, MergeOutcome::Conflict(_)), "{outcome:?}");
        let refused = commit_work(&qa, "qa 2", &fix.caller).unwrap_err().cause;
        assert_eq!(refused, format!("{} contains conflict markers", name.to_string_lossy()));
        fs::write(qa.join(name), "of both\n").unwrap();
    }
    commit_work(&qa, "qa 2", &fix.caller).unwrap();
}

#[test]
fn an_unknown_commit_is_an_error() {
    let fix = Fixture::new();
    assert!(merge_handoff(&worktree(&fix, "dev"), &"0".repeat(40), "build", &fix.caller).is_err());
}

#[test]
fn only_the_partial_merge_of_a_killed_git_is_rolled_back() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    fs::write(dev.join("f"), "of dev\n").unwrap();
    fs::write(dev.join("new"), "of dev\n").unwrap();
    let first = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    fs::write(qa.join("own"), "under way\n").unwrap();
    commit_work(&qa, "what was under way", &fix.caller).unwrap();
    // Killed in the middle of the merge: one file is written in part, and the index is not updated.
    fs::write(record(&qa).join(MERGE_MARKER), &first).unwrap();
    fs::write(qa.join("new"), "of d").unwrap();
    fs::write(qa.join("f"), "of").unwrap();
    assert_eq!(merge_handoff(&qa, &first, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    let read = |name: &str| fs::read_to_string(qa.join(name)).unwrap();
    assert_eq!((read("f"), read("new"), read("own")), ("of dev\n".into(), "of dev\n".into(), "under way\n".into()));
    assert!(!record(&qa).join(MERGE_MARKER).exists());
    // Killed before the merge started.
    fs::write(record(&qa).join(MERGE_MARKER), "").unwrap();
    assert_eq!(merge_handoff(&qa, &first, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
}

/// Commits a file of the role in `dir`, also if tools typically generate it.
fn added(fix: &Fixture, dir: &Path, name: &str, content: &str) -> String {
    fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
    fs::write(dir.join(name), content).unwrap();
    fix.at(dir, &["add", "-f", name]);
    fix.at(dir, &["commit", "-q", "-m", name]);
    text(&fix.at(dir, &["rev-parse", "HEAD"]))
}

#[test]
fn a_merge_is_rolled_back_within_the_worktree_only() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = added(&fix, &dev, "x/y", "of dev\n");
    let shared = fix.root.join("shared");
    fs::create_dir(&shared).unwrap();
    std::os::unix::fs::symlink("../shared", qa.join("x")).unwrap();
    commit_work(&qa, "a link", &fix.caller).unwrap();
    // Also a file with the same content is not the one of the merge.
    for content in ["of a person\n", "of dev\n", ""] {
        fs::write(record(&qa).join(MERGE_MARKER), &handed).unwrap();
        fs::write(shared.join("y"), content).unwrap();
        merge_handoff(&qa, &handed, "build", &fix.caller).unwrap();
        assert_eq!(fs::read_to_string(shared.join("y")).unwrap(), content);
        assert!(!record(&qa).join(MERGE_MARKER).exists());
        fix.at(&qa, &["merge", "--abort"]);
    }
}

#[test]
fn untracked_files_survive_a_rollback_unless_the_merge_wrote_them() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = added(&fix, &dev, "node_modules/a", "of dev\n");
    let (marker, file) = (record(&qa).join(MERGE_MARKER), qa.join("node_modules/a"));
    fs::create_dir(qa.join("node_modules")).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    // A part of the content is the merge's own only if it was written after the marker.
    for (content, is_earlier) in [("of a person\n", false), ("of dev\nand a person\n", false), ("of", true), ("", true)]
    {
        fs::write(&marker, &handed).unwrap();
        fs::write(&file, content).unwrap();
        if is_earlier {
            fs::File::options().write(true).open(&marker).unwrap().set_modified(later).unwrap();
        }
        let refused = merge_handoff(&qa, &handed, "build", &fix.caller).unwrap_err();
        assert!(refused.cause.to_lowercase().contains("untracked"), "{refused:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content);
    }
    for content in ["of dev\n", "of", ""] {
        fs::write(&marker, &handed).unwrap();
        fs::write(&file, content).unwrap();
        assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), MergeOutcome::Merged, "{content}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "of dev\n");
        fix.at(&qa, &["reset", "-q", "--hard", "main"]);
        fs::create_dir_all(qa.join("node_modules")).unwrap();
    }
}

#[test]
fn what_was_edited_after_a_killed_merge_is_saved_before_the_rollback() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = added(&fix, &dev, "new", "of dev\n");
    let saves = || text(&fix.git(&["for-each-ref", "--format=%(objectname)", "refs/swarm/trash/qa/"]));
    let interrupted = || fs::write(record(&qa).join(MERGE_MARKER), &handed).unwrap();
    // Staged and unstaged.
    interrupted();
    fs::write(qa.join("f"), "staged\n").unwrap();
    fix.at(&qa, &["add", "f"]);
    fs::write(qa.join("f"), "of a person\n").unwrap();
    assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    let saved = saves();
    assert_eq!(saved.lines().count(), 1, "{saved}");
    assert_eq!(text(&fix.git(&["show", &format!("{saved}:f")])), "of a person");
    assert_eq!(text(&fix.git(&["show", &format!("{saved}^2:f")])), "staged");
    // A rollback that changes no tracked file saves nothing.
    fix.at(&qa, &["reset", "-q", "--hard", "main"]);
    interrupted();
    fs::write(qa.join("new"), "of").unwrap();
    assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    assert_eq!(saves(), saved);
    // What cannot be saved stays.
    fix.at(&qa, &["reset", "-q", "--hard", "main"]);
    fix.at(&qa, &["init", "-q", "inner"]);
    interrupted();
    fs::write(qa.join("f"), "of a person\n").unwrap();
    let refused = merge_handoff(&qa, &handed, "build", &fix.caller).unwrap_err();
    assert!(refused.cause.contains("inner is a separate repository"), "{refused:?}");
    assert_eq!(fs::read_to_string(qa.join("f")).unwrap(), "of a person\n");
}

#[test]
fn git_takes_no_option_from_the_marker_of_a_merge() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = added(&fix, &dev, "new", "of dev\n");
    let canary = fix.root.join("canary");
    fs::write(record(&qa).join(MERGE_MARKER), format!("--output={}", canary.display())).unwrap();
    assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    assert!(!canary.exists() && !record(&qa).join(MERGE_MARKER).exists());
}

#[test]
fn uncommitted_work_is_committed_before_a_merge() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    fs::write(dev.join("new"), "of dev\n").unwrap();
    let first = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    fs::write(qa.join("new"), "of qa\n").unwrap();
    assert_eq!(
        merge_handoff(&qa, &first, "build", &fix.caller).unwrap(),
        MergeOutcome::Conflict(vec!["new".to_owned()])
    );
    assert!(text(&fix.at(&qa, &["show", "HEAD:new"])).contains("of qa"));
}

#[test]
fn settings_for_merges_by_hand_do_not_apply_to_handoffs() {
    let fix = Fixture::new();
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    for (key, value) in
        [("merge.ff", "only"), ("merge.verifySignatures", "true"), ("branch.qa.mergeOptions", "--squash --no-commit")]
    {
        fix.git(&["config", key, value]);
    }
    fs::write(dev.join("new"), "of dev\n").unwrap();
    let handed = commit_work(&dev, "dev 1", &fix.caller).unwrap();
    fs::write(qa.join("f"), "of qa\n").unwrap();
    assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), MergeOutcome::Merged);
    assert_eq!(text(&fix.at(&qa, &["merge-base", "HEAD", &handed])), handed, "the merge is complete");
    assert_eq!(text(&fix.at(&qa, &["status", "--porcelain"])), "");
}

#[test]
fn nothing_that_an_agent_wrote_is_executed() {
    let fix = Fixture::new();
    let dir = worktree(&fix, "dev");
    let canary = fix.root.join("canary");
    let command = format!("touch '{}'; cat", canary.display());
    // A submodule whose own settings execute something.
    let sub = dir.join("sub");
    fs::create_dir(&sub).unwrap();
    fix.at(&sub, &["init", "-q"]);
    fs::write(sub.join(".gitattributes"), "* filter=x\n").unwrap();
    fs::write(sub.join("one"), "1\n").unwrap();
    fix.at(&sub, &["add", "."]);
    fix.at(&sub, &["commit", "-q", "-m", "one"]);
    fix.at(&dir, &["add", "sub"]);
    fix.at(&dir, &["commit", "-q", "-m", "sub"]);
    fix.at(&sub, &["config", "filter.x.clean", &command]);
    fs::write(sub.join("one"), "2\n").unwrap();
    fs::write(dir.join("f"), "2\n").unwrap();
    let kept = commit_work(&dir, "turn 1", &fix.caller).unwrap();
    assert!(!canary.exists());
    assert_eq!(text(&fix.at(&dir, &["show", "--name-only", "--format=%s", &kept])), "turn 1\n\nf");
    // A link to a repository whose settings do.
    let evil = dir.join("evil");
    fix.at(&dir, &["init", "-q", "--bare", evil.to_str().unwrap()]);
    fix.at(&evil, &["config", "filter.x.clean", &command]);
    fs::write(dir.join(".gitattributes"), "* filter=x\n").unwrap();
    fs::write(dir.join(".git"), format!("gitdir: {}\n", evil.display())).unwrap();
    let refused = commit_work(&dir, "turn 2", &fix.caller).unwrap_err();
    assert!(refused.cause.contains("leads to another repository"), "{refused:?}");
    assert!(merge_handoff(&dir, &kept, "qa", &fix.caller).is_err());
    clear_stale_locks(&dir, &fix.repo);
    assert!(!canary.exists());
}

#[test]
fn a_conflict_without_markers_is_not_committed_as_it_is() {
    let fix = Fixture::new();
    fs::write(fix.repo.join("logo"), "a\0").unwrap();
    fix.git(&["add", "logo"]);
    fix.commit("logo", "f", "1\n");
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let work = [(&dev, "dev\0"), (&qa, "qa\0")].map(|(dir, content)| {
        fs::write(dir.join("logo"), content).unwrap();
        commit_work(dir, "work", &fix.caller).unwrap()
    });
    let conflict = MergeOutcome::Conflict(vec!["logo".to_owned()]);
    assert_eq!(merge_handoff(&qa, &work[0], "dev", &fix.caller).unwrap(), conflict);
    let refused = commit_work(&qa, "qa 2", &fix.caller).unwrap_err();
    assert_eq!(refused.cause, "logo has an unresolved conflict");
    assert_eq!(merge_handoff(&qa, &work[0], "dev", &fix.caller).unwrap(), conflict, "it waits for the role");
    // Its own side, on purpose.
    fix.at(&qa, &["add", "logo"]);
    let merged = commit_work(&qa, "qa 2", &fix.caller).unwrap();
    assert_eq!(text(&fix.git(&["log", "-1", "--format=%P", &merged])), format!("{} {}", work[1], work[0]));
    assert_eq!(merge_handoff(&qa, &work[0], "dev", &fix.caller).unwrap(), MergeOutcome::Merged);
}

#[test]
fn a_pipe_that_git_would_read_is_named() {
    let fix = Fixture::new();
    let (dir, other) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = added(&fix, &other, "of-qa", "1\n");
    fs::write(dir.join("new"), "y\n").unwrap();
    let pipe = dir.join(".gitignore");
    fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let cause = format!("git cannot read {}, which is a named pipe", pipe.display());
    for refused in [
        commit_work(&dir, "turn 1", &fix.caller).unwrap_err(),
        merge_handoff(&dir, &handed, "qa", &fix.caller).unwrap_err(),
    ] {
        assert_eq!((refused.cause.as_str(), refused.kind), (cause.as_str(), RefusalKind::Tool));
        assert_eq!(refused.remedy.as_deref(), Some("remove it, then run the command again"));
    }
    fs::remove_file(&pipe).unwrap();
    assert_eq!(merge_handoff(&dir, &handed, "qa", &fix.caller).unwrap(), MergeOutcome::Merged);
}

/// Commits this commit of the submodule `sub` in `dir`.
fn bumped(fix: &Fixture, dir: &Path, digit: &str) -> String {
    let link = format!("160000,{},sub", digit.repeat(40));
    fix.at(dir, &["update-index", "--add", "--cacheinfo", &link]);
    fix.at(dir, &["commit", "-q", "-m", digit]);
    text(&fix.at(dir, &["rev-parse", "HEAD"]))
}

/// Puts a repository into `sub` whose configuration names a program that fetches missing commits. `digit` is its HEAD.
fn planted(fix: &Fixture, dir: &Path, digit: &str) -> PathBuf {
    let (sub, ran) = (dir.join("sub"), fix.root.join("ran"));
    fs::create_dir_all(&sub).unwrap();
    fix.at(&sub, &["init", "-q"]);
    let config = format!(
        "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = evil\n[remote \"evil\"]\npromisor = true\n\
         url = ext::touch {}\n[protocol \"ext\"]\nallow = always\n",
        ran.display()
    );
    fs::write(sub.join(".git/config"), config).unwrap();
    fs::write(sub.join(".git/HEAD"), format!("{}\n", digit.repeat(40))).unwrap();
    ran
}

#[test]
fn a_merge_runs_nothing_of_a_repository_in_place_of_a_submodule() {
    let fix = Fixture::new();
    bumped(&fix, &fix.repo, "1");
    let (dev, qa) = (worktree(&fix, "dev"), worktree(&fix, "qa"));
    let handed = bumped(&fix, &dev, "2");
    let own = bumped(&fix, &qa, "3");
    let ran = planted(&fix, &qa, "3");
    // git's own merge in the worktree is kept from it, too, unless the user's repository is a partial clone.
    let cli = Cli::new(&fix.caller).unwrap();
    let place = identity::open(&cli, &qa, &fix.repo).unwrap().unwrap();
    let merge = || place.call(cli.write(&qa)).args(["merge-tree", "--write-tree", "HEAD", &handed]).run_for(&[1]);
    merge().unwrap();
    assert!(!ran.exists());
    fix.git(&["config", "remote.origin.promisor", "true"]);
    merge().unwrap();
    assert!(fs::remove_file(&ran).is_ok(), "git itself runs it");
    let conflict = MergeOutcome::Conflict(vec!["sub".to_owned()]);
    assert_eq!(merge_handoff(&qa, &handed, "build", &fix.caller).unwrap(), conflict);
    assert!(!ran.exists());
    let stages = text(&fix.at(&qa, &["ls-files", "-u"]));
    assert_eq!(stages.lines().map(|line| &line[7..8]).collect::<String>(), "132", "{stages}");
    assert!(!ran.exists());
    // The role chooses.
    fix.at(&qa, &["update-index", "--cacheinfo", &format!("160000,{},sub", "2".repeat(40))]);
    fs::write(qa.join("sub/.git/HEAD"), format!("{}\n", "2".repeat(40))).unwrap();
    let merged = commit_work(&qa, "qa 2", &fix.caller).unwrap();
    assert_eq!(text(&fix.git(&["log", "-1", "--format=%P", &merged])), format!("{own} {handed}"));
    assert!(!ran.exists());
}
