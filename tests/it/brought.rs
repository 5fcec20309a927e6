//! Records of runs and flows that came with a repository, or that are those of another one: nothing that they say is
//! carried out.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Rig, Said, run};
use crate::flow_run;
use crate::run::Site;

/// Runs the program in `dir` with a PATH that has no agents.
fn alone(rig: &Rig, dir: &Path, words: &[&str]) -> Said {
    let mut command = rig.command(words);
    command.current_dir(dir).env("PATH", "/usr/bin:/bin");
    run(command)
}

/// A repository with a run that failed, whose verification leaves a trace and whose specs a person executes with the agent
/// `shell`. Returns the path of the trace.
fn evil() -> (Site, PathBuf) {
    let site = Site::new();
    fs::write(site.repo.join("specs/a.md"), "# Improve\n\n```sh\nexit 1\n```\n").expect("written");
    site.git(&["add", "-A"]);
    site.git(&["commit", "-q", "-m", "specs"]);
    site.plan();
    let canary = site.rig.path("canary");
    let verify = format!("touch '{}'", canary.display());
    let said = site.swarm(&["run", "--agent", "shell", "--verify", &verify, "--retries", "0"]);
    assert!(said.code == Some(1) && !canary.exists(), "{said:?}");
    let spec = format!("# Improve\n\n```sh\ntouch '{}'; echo b > b\n```\n", canary.display());
    fs::write(site.repo.join("specs/a.md"), spec).expect("written");
    site.git(&["commit", "-q", "-a", "-m", "specs"]);
    (site, canary)
}

/// Verbs that act on what the records of a run say.
const ACTING: [&[&str]; 4] = [
    &["plan", "--specs", "specs", "-y"],
    &["run", "--retry-failed"],
    &["run", "cleanup"],
    &["run", "context", "a", "text"],
];

#[test]
fn a_run_that_came_in_a_submodule_is_refused() {
    let (site, canary) = evil();
    let home = site.rig.path("home.git");
    fs::create_dir(&home).expect("made");
    for name in ["run.jsonl", "state.json"] {
        fs::copy(site.repo.join(".arial").join(name), home.join(name)).expect("copied");
    }
    site.rig.git(&home, &["init", "-q"]);
    site.rig.git(&home, &["add", "-A"]);
    site.rig.git(&home, &["commit", "-q", "-m", "home"]);
    fs::remove_dir_all(site.repo.join(".arial")).expect("removed");
    let file = ["-c", "protocol.file.allow=always"];
    site.git(&[&file[..], &["submodule", "--quiet", "add", "-f", home.to_str().expect("text"), ".arial"]].concat());
    site.git(&["commit", "-q", "-m", "with a run"]);
    let clone = site.rig.path("clone");
    let words = ["clone", "-q", "--recurse-submodules", ".", clone.to_str().expect("text")];
    site.git(&[&file[..], &words].concat());
    assert!(clone.join(".arial/run.jsonl").exists());
    let cause =
        format!("swarm: error: {} is tracked by git, and decides what a run does", clone.join(".arial").display());
    for words in ACTING {
        let said = alone(&site.rig, &clone, words);
        assert!(said.code == Some(1) && said.err.starts_with(&cause), "{words:?}: {said:?}");
        assert!(said.err.contains("run 'git rm -r --cached .arial', and delete .arial unless"), "{said:?}");
    }
    let named = ["run", "cleanup", "--home", ".arial"];
    assert!(alone(&site.rig, &clone, &named).err.starts_with(&cause));
    // Without a repository of its own, it is still the submodule's content.
    fs::remove_file(clone.join(".arial/.git")).expect("removed");
    assert!(alone(&site.rig, &clone, &["run", "--retry-failed"]).err.starts_with(&cause));
    assert!(!canary.exists());
}

#[test]
fn a_run_that_an_agent_put_into_its_worktree_is_refused() {
    let (site, canary) = evil();
    let trees = [site.repo.join(".arial/worktrees/x"), site.rig.path("linked")];
    for (tree, branch) in trees.iter().zip(["arial/a-9", "side"]) {
        site.git(&["worktree", "add", "-q", "-f", "-b", branch, tree.to_str().expect("text")]);
        fs::create_dir(tree.join(".arial")).expect("made");
        for name in ["run.jsonl", "state.json"] {
            fs::copy(site.repo.join(".arial").join(name), tree.join(".arial").join(name)).expect("copied");
        }
        let journal = tree.join(".arial/run.jsonl");
        let cause = format!(
            "{} is in a worktree, where an agent may have written it: swarm began no run there",
            journal.display()
        );
        for words in ACTING {
            alone(&site.rig, tree, words).refused(1, &cause);
        }
        let said = alone(&site.rig, tree, &["merge", "add", "refs/heads/arial/a-9", "--base", "main"]);
        assert!(said.code == Some(1) && said.err.contains(journal.to_str().expect("text")), "{said:?}");
        fs::remove_dir_all(tree.join(".arial")).expect("removed");
    }
    assert!(!canary.exists());
    // One that a person begins there is continued.
    let [_, linked] = &trees;
    fs::write(linked.join("specs/a.md"), "# Improve\n\n```sh\nexit 1\n```\n").expect("written");
    site.rig.git(linked, &["commit", "-q", "-a", "-m", "specs"]);
    assert_eq!(alone(&site.rig, linked, ACTING[0]).code, Some(0));
    let run = ["run", "--agent", "shell", "--verify", "true", "--retries", "0"];
    assert_eq!(alone(&site.rig, linked, &run).code, Some(1));
    let said = alone(&site.rig, linked, &["run", "--retry-failed"]);
    assert!(said.err.contains("continuing with earlier flags: --verify 'true' --agent shell"), "{said:?}");
}

#[test]
fn a_run_in_a_worktree_is_continued_once_a_person_agrees_to_its_records() {
    let (site, _) = evil();
    let moved = site.rig.path("moved");
    site.git(&["worktree", "add", "-q", "-b", "moved", moved.to_str().expect("text")]);
    fs::write(moved.join("specs/a.md"), "# Improve\n\n```sh\necho b > b\n```\n").expect("written");
    site.rig.git(&moved, &["commit", "-q", "-a", "-m", "specs"]);
    assert_eq!(alone(&site.rig, &moved, ACTING[0]).code, Some(0));
    let run = ["run", "--agent", "shell", "--verify", "true", "--no-merge"];
    assert_eq!(alone(&site.rig, &moved, &run).code, Some(0));
    let begun = site.rig.root().join("begun");
    fs::remove_dir_all(&begun).expect("removed");
    let said = alone(&site.rig, &moved, &["run", "status"]);
    assert!(said.out.contains("not landed; first run 'swarm trust --run'"), "{said:?}");
    assert!(!said.out.contains("--merge") && said.err.contains("if you began that run yourself"), "{said:?}");
    let said = alone(&site.rig, &moved, &["run", "--merge"]);
    assert!(said.code == Some(1) && said.err.contains("run 'swarm trust --run'"), "{said:?}");
    let said = alone(&site.rig, &moved, &["trust", "--run", "--show"]);
    assert!(
        said.code == Some(1) && said.out.contains("\n  agent = shell\n") && said.out.contains("\n  verify = true\n"),
        "{said:?}"
    );
    let said = alone(&site.rig, &moved, &["trust", "--run"]);
    assert!(said.code == Some(1) && said.err.contains("standard input is not a terminal"), "{said:?}");
    let said = alone(&site.rig, &moved, &["trust", "--run", "--yes", "--json"]);
    assert!(said.code == Some(0) && said.out.contains("\"done\":\"agreed\""), "{said:?}");
    assert!(alone(&site.rig, &moved, &["run", "status"]).out.contains("or 'swarm run --merge'"));
    let said = alone(&site.rig, &moved, &["trust", "--run"]);
    assert!(said.code == Some(0) && said.out.contains("no run that needs consent"), "{said:?}");
    assert_eq!(alone(&site.rig, &moved, &["run", "--merge"]).code, Some(0));
}

#[test]
fn any_tracked_record_of_a_run_is_refused_and_others_are_not() {
    let site = Site::new();
    site.spec("a", "", "echo a > a.txt");
    site.commit();
    site.plan();
    fs::create_dir_all(site.repo.join(".arial/templates")).expect("made");
    fs::write(site.repo.join(".arial/templates/execution.md"), "{{spec}}").expect("written");
    site.git(&["add", "-f", ".arial/templates"]);
    site.git(&["commit", "-q", "-m", "templates"]);
    for record in ["state.json", "context/a/1.md", "attempts/a.1/order.json"] {
        let path = site.repo.join(".arial").join(record);
        fs::create_dir_all(path.parent().expect("has one")).expect("made");
        if !path.exists() {
            fs::write(&path, "{}").expect("written");
        }
        site.git(&["add", "-f", &format!(".arial/{record}")]);
        let first = site.repo.join(".arial").join(record.split('/').next().expect("one"));
        let cause = format!("{} is tracked by git, and decides what a run does", first.display());
        for words in [&["run"][..], &["run", "cleanup"]] {
            site.swarm(words).refused(1, &cause);
        }
        site.git(&["rm", "-q", "--cached", &format!(".arial/{record}")]);
        fs::rename(&path, site.rig.path("aside")).expect("moved");
        if record == "state.json" {
            fs::rename(site.rig.path("aside"), &path).expect("back");
        }
    }
    fs::remove_dir_all(site.repo.join(".arial/attempts")).expect("removed");
    site.run(0, &[]);
    assert_eq!(site.landed("a.txt"), "a");
}

/// Makes the recorded run one of the repository `other`, with one workstream more, whose directory is not in the home.
fn divert(journal: &Path, other: &Path) {
    let text = fs::read_to_string(journal).expect("read");
    let mut first: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let run = &mut first["run"];
    let mut job = run["plan"]["jobs"][0].clone();
    (job["id"], job["branch"]) = (json!("job"), json!("release"));
    (run["plan"]["root"], run["plan"]["slug"]) = (json!(other), json!("team"));
    run["plan"]["jobs"] = json!([job]);
    run["jobs"] = json!([run["jobs"][0]]);
    run["jobs"][0]["stage"] = json!("done");
    fs::write(journal, format!("{first}\n")).expect("written");
}

#[test]
fn cleanup_removes_nothing_of_another_repository() {
    let (site, _) = evil();
    let other = site.rig.repo_named("other");
    site.rig.git(&other, &["branch", "release"]);
    site.rig.spawn_sh("team.job", &[], "echo important; exit 3");
    site.rig.wait("team.job");
    divert(&site.repo.join(".arial/run.jsonl"), &other);
    let branches = || site.rig.git(&other, &["branch", "--list", "release"]);
    let is_whole = || site.rig.names().contains(&"team.job".to_owned()) && branches().contains("release");
    // One that was copied here.
    let cause = format!("{} is of a run in {}", site.repo.join(".arial/run.jsonl").display(), other.display());
    site.swarm(&["run", "cleanup"]).refused(1, &cause);
    assert!(is_whole());
    // One that came with a commit.
    site.git(&["add", "-f", ".arial/run.jsonl"]);
    let path = site.repo.join(".arial/run.jsonl");
    site.swarm(&["run", "cleanup"])
        .refused(1, &format!("{} is tracked by git, and decides what a run does", path.display()));
    assert!(is_whole());
}

#[test]
fn a_flow_that_came_with_the_repository_is_refused() {
    let script = "touch $SWARM_FLOW_ROOT/../canary; echo x > x.txt; swarm flow emit --to owner-close --artifact x.txt";
    let site = flow_run::Site::new(&flow_run::line(script, ""));
    let git = |words: &[&str]| site.rig.git(&site.repo, words);
    assert_eq!(git(&["status", "--porcelain"]), "", "a new flow is not committed by mistake");
    let record = format!(".a-society/state/demo/{}/swarm.json", site.id);
    git(&["add", "-f", &record]);
    git(&["commit", "-q", "-m", "with a flow"]);
    let record = site.repo.join(record);
    let cause = format!("{} is tracked by git, and decides what the agents of the flow may do", record.display());
    for verb in ["run", "resume"] {
        let said = site.flow(verb, &[]).refused(1, &cause);
        assert!(said.err.contains(&format!("run 'git rm -r --cached {}'", site.dir().display())), "{said:?}");
    }
    assert!(site.flow("status", &[]).ok().contains("owner-intake"));
    let canary = site.rig.path("canary");
    assert!(!canary.exists());
    git(&["rm", "-q", "--cached", "-r", ".a-society"]);
    assert_eq!(site.run(), "waiting");
    assert!(canary.exists());
}
