//! Worktrees in which an agent has laid traps for git: each trick meets every verb that runs git there. Nothing that the
//! agent wrote is executed, nothing outside of its worktree changes, and none of its work is lost.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Rig, SOON, Said, run, wait_until};

/// What the scripts of the tricks share: `$X` is a program that leaves a trace, `fake` makes a git directory in
/// `evil/git` whose settings are the arguments, and `link` makes the worktree point to it.
const PRELUDE: &str = r#"
set -eu
mkdir evil evil/hooks
X="$PWD/evil/x"
printf '#!/bin/sh\ntouch "%s"\ncat 2>/dev/null || true\n' "$CANARY" > "$X"
chmod +x "$X"
for hook in pre-commit post-checkout reference-transaction post-index-change pre-merge-commit commit-msg post-merge
do cp "$X" "evil/hooks/$hook"; done
echo changed >> file
echo new > added
fake() {
    cp -r "$REPO/.git" evil/git
    rm -rf evil/git/worktrees
    while [ $# -gt 0 ]; do git config --file evil/git/config "$1" "$2"; shift 2; done
}
link() { echo "gitdir: $PWD/evil/git" > .git; }
"#;

/// Name and script of each trick. The script runs in the worktree, as the agent does.
const TRICKS: [(&str, &str); 34] = [
    ("filter clean", r#"fake filter.x.clean "$X"; echo '* filter=x' > .gitattributes; link"#),
    (
        "filter process",
        r#"fake filter.x.process "$X" filter.x.required true; echo '* filter=x' > .gitattributes; link"#,
    ),
    ("filter smudge", r#"fake filter.x.smudge "$X"; echo '* filter=x' > .gitattributes; link"#),
    ("file system monitor", r#"fake core.fsmonitor "$X"; link"#),
    ("hooks path", r#"fake core.hooksPath "$PWD/evil/hooks"; link"#),
    ("hooks of a copy", r#"fake a.b c; cp evil/hooks/* evil/git/hooks/; link"#),
    ("external diff", r#"fake diff.external "$X"; link"#),
    ("text conversion", r#"fake diff.x.textconv "$X"; echo '* diff=x' > .gitattributes; link"#),
    ("merge driver", r#"fake merge.x.driver "$X" merge.default x; echo '* merge=x' > .gitattributes; link"#),
    ("pager and editor", r#"fake core.pager "$X" core.editor "$X" sequence.editor "$X" pager.diff true; link"#),
    (
        "signing program",
        r#"fake commit.gpgSign true gpg.program "$X" gpg.ssh.program "$X" log.showSignature true; link"#,
    ),
    (
        "included settings",
        r#"git config --file evil/more core.fsmonitor "$X"; fake include.path "$PWD/evil/more"; link"#,
    ),
    ("worktree elsewhere", r#"fake core.worktree "$OUTSIDE"; link"#),
    (
        "credentials and transport",
        r#"fake credential.helper "$X" core.sshCommand "$X" remote.origin.url "ext::$X"; link"#,
    ),
    ("alternates", r#"fake core.fsmonitor "$X"; echo "$OUTSIDE" > evil/git/objects/info/alternates; link"#),
    (
        "common directory",
        r#"fake core.fsmonitor "$X"; mkdir evil/e; echo "$PWD/evil/git" > evil/e/commondir
        cp evil/git/HEAD evil/e/HEAD; echo "$PWD/.git" > evil/e/gitdir; echo "gitdir: $PWD/evil/e" > .git"#,
    ),
    ("relative link", r#"fake core.fsmonitor "$X"; echo "gitdir: evil/git" > .git"#),
    ("directory in place of the link", r#"fake core.fsmonitor "$X"; rm .git; mv evil/git .git"#),
    ("symbolic link to a directory", r#"fake core.fsmonitor "$X"; rm .git; ln -s evil/git .git"#),
    (
        "symbolic link to a file",
        r#"fake core.fsmonitor "$X"; echo "gitdir: $PWD/evil/git" > evil/l; rm .git; ln -s evil/l .git"#,
    ),
    ("no link", "rm .git"),
    ("empty link", ": > .git"),
    ("garbage in the link", "head -c 3000 /dev/urandom > .git"),
    ("endless link", "truncate -s 4G .git"),
    ("pipe in place of the link", "rm .git; mkfifo .git"),
    ("the user's own checkout", r#"echo "gitdir: $REPO/.git" > .git"#),
    ("another worker's record", r#"echo "gitdir: $REPO/.git/worktrees/other" > .git"#),
    (
        "submodule with a monitor",
        r#"git init -q sub; git -C sub commit -q --allow-empty -m one; git add sub
        git -c core.hooksPath=/dev/null commit -q -m sub; git -C sub config core.fsmonitor "$X"
        git -C sub config core.hooksPath "$PWD/evil/hooks"; echo x > sub/file"#,
    ),
    (
        "submodule with a filter",
        r#"git init -q sub; echo '* filter=x' > sub/.gitattributes; echo one > sub/one
        git -C sub add .; git -C sub commit -qm one; git add sub; git -c core.hooksPath=/dev/null commit -q -m sub
        git -C sub config filter.x.clean "$X"; echo two > sub/one"#,
    ),
    (
        "submodule elsewhere",
        r#"git init -q sub; echo one > sub/one; git -C sub add .; git -C sub commit -qm one; git add sub
        git -c core.hooksPath=/dev/null commit -q -m sub; fake filter.x.clean "$X" core.fsmonitor "$X"
        echo '* filter=x' > sub/.gitattributes; rm -rf sub/.git; echo "gitdir: $PWD/evil/git" > sub/.git; echo two > sub/one"#,
    ),
    (
        "repository inside",
        r#"git init -q sub; git -C sub commit -q --allow-empty -m one; git -C sub config core.fsmonitor "$X""#,
    ),
    (
        "declared submodule",
        r#"git init -q sub; git -C sub commit -q --allow-empty -m one
        printf '[submodule "s"]\n\tpath = sub\n\turl = ext::%s\n' "$X" > .gitmodules
        git add .gitmodules sub; git -c core.hooksPath=/dev/null commit -q -m sub
        rm -rf sub/.git; cp -r "$REPO/.git" sub/.git; git config --file sub/.git/config core.fsmonitor "$X""#,
    ),
    ("directory elsewhere", r#"here="$PWD"; cd ..; mv "$here" "$here.moved"; ln -s "$OUTSIDE" "$here""#),
    (
        "link to a file outside",
        r#"rm file; ln -s "$OUTSIDE/secret" file; ln -s "$OUTSIDE" out; echo "ref: ../../x" > .GIT"#,
    ),
];

/// A repository with a trapped worker, and what must stay as it is.
struct Trap {
    rig: Rig,
    repo: PathBuf,
}

impl Trap {
    fn new(script: &str) -> Self {
        Self::with(script, &[])
    }

    /// A trap whose worker has more flags.
    fn with(script: &str, more: &[&str]) -> Self {
        let rig = Rig::new();
        let repo = rig.repo();
        fs::create_dir(rig.path("outside")).expect("made");
        fs::write(rig.path("outside/secret"), "secret").expect("written");
        let trap = Self { rig, repo };
        trap.swarm(&["spawn", "--name", "other", "--worktree", "--", "true"]).ok();
        let script = format!("{PRELUDE}\n{script}");
        let canary = format!("CANARY={}", trap.rig.path("canary").display());
        let repo = format!("REPO={}", trap.repo.display());
        let outside = format!("OUTSIDE={}", trap.rig.path("outside").display());
        let flags = ["spawn", "--name", "w", "--worktree", "--env", &canary, "--env", &repo, "--env", &outside];
        let said = trap.swarm(&[&flags[..], more, &["--", "sh", "-c", &script]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        trap.rig.wait("w");
        trap.rig.wait("other");
        assert_eq!(trap.rig.exit("w"), "code 0, exited", "{}", trap.rig.log("w", "stderr"));
        trap
    }

    fn swarm(&self, words: &[&str]) -> Said {
        self.rig.swarm_in(&self.repo, words)
    }

    /// Content of everything that the agent may not change through us.
    fn outside(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let git = self.repo.join(".git");
        let mut files = Vec::new();
        for place in [self.rig.path("outside"), git.join("hooks"), git.join("worktrees/other")] {
            collect(&place, &mut files);
        }
        files.push((git.join("config"), fs::read(git.join("config")).expect("there")));
        files.retain(|(path, _)| !path.ends_with("index"));
        files
    }
}

fn collect(dir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    let mut entries: Vec<_> =
        fs::read_dir(dir).into_iter().flatten().map(|entry| entry.expect("read").path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => collect(&path, files),
            false => files.push((path.clone(), fs::read(&path).expect("read"))),
        }
    }
}

/// The verbs that run git in a worker's worktree, or look at it.
const VERBS: [&[&str]; 12] = [
    &["diff", "w"],
    &["diff", "w", "--stat"],
    &["ls", "-l"],
    &["status", "w"],
    &["doctor"],
    &["du"],
    &["merge", "add", "w"],
    &["merge", "wait", "w", "--timeout", "20"],
    &["run", "cleanup"],
    &["clean", "w", "--rm-worktree"],
    &["clean", "w", "--rm-worktree", "--force-dirty"],
    &["doctor"],
];

fn check(name: &str, script: &str) {
    let trap = Trap::new(script);
    let before = trap.outside();
    for words in VERBS {
        let said = trap.swarm(words);
        assert!(said.code.is_some_and(|code| code < 100), "{name}: {words:?}: {said:?}");
        assert!(!trap.rig.path("canary").exists(), "{name}: {words:?} executed what the agent wrote: {said:?}");
        assert!(trap.outside() == before, "{name}: {words:?} changed something outside: {said:?}");
        assert!(!said.out.contains("secret"), "{name}: {words:?} shows a file outside: {said:?}");
    }
    let mut status = trap.rig.program("git");
    status.current_dir(&trap.repo).args(["status", "--porcelain"]);
    let status = run(status).ok();
    assert!(!status.contains("file") && !status.contains("evil"), "{name}: the user's checkout: {status}");
    let kept = trap.rig.git(&trap.repo, &["for-each-ref", "--format=%(refname)", "refs/heads", "refs/swarm"]);
    assert!(kept.contains("refs/heads/w"), "{name}: the branch is gone: {kept}");
}

fn check_part(number: usize) {
    for (name, script) in TRICKS.iter().skip(number).step_by(4) {
        check(name, script);
    }
}

#[test]
fn traps_in_a_worktree_have_no_effect_part_1() {
    check_part(0);
}

#[test]
fn traps_in_a_worktree_have_no_effect_part_2() {
    check_part(1);
}

#[test]
fn traps_in_a_worktree_have_no_effect_part_3() {
    check_part(2);
}

#[test]
fn traps_in_a_worktree_have_no_effect_part_4() {
    check_part(3);
}

#[test]
fn a_trapped_worker_that_lands_at_its_end_has_no_effect() {
    let script = r#"fake filter.x.clean "$X" core.fsmonitor "$X" core.hooksPath "$PWD/evil/hooks"
        echo '* filter=x' > .gitattributes; link"#;
    let trap = Trap::with(script, &["--merge"]);
    let before = trap.outside();
    let waiting = || trap.swarm(&["merge", "ls"]).ok();
    wait_until("it was examined", SOON, || waiting().contains("leads to another repository"));
    assert!(!trap.rig.path("canary").exists(), "what the agent wrote was executed");
    assert!(trap.outside() == before, "something outside changed");
    assert_eq!(trap.rig.git(&trap.repo, &["log", "--format=%s", "main"]), "one");
}

#[test]
fn a_worktree_without_its_link_is_neither_landed_nor_started_in() {
    let trap = Trap::new("git add file; git -c core.hooksPath=/dev/null commit -qm half; echo rest > rest; rm .git");
    let refused = trap.swarm(&["merge", "add", "w"]);
    let shown = trap.swarm(&["merge", "ls"]);
    assert!(format!("{}{}", refused.err, shown.out).contains("has lost its .git file"), "{refused:?} {shown:?}");
    assert_eq!(trap.rig.git(&trap.repo, &["log", "--format=%s", "main"]), "one");
    let diff = trap.swarm(&["diff", "w"]);
    assert!(diff.code == Some(1) && diff.err.contains("has lost its .git file"), "{diff:?}");
    let hint = diff.err.lines().last().expect("a hint").split('\'').nth(1).expect("a command").to_owned();
    run_line(&trap.rig, &hint);
    trap.swarm(&["merge", "add", "w"]);
    trap.swarm(&["merge", "retry", "w"]);
    trap.swarm(&["merge", "wait", "w", "--timeout", "20"]);
    assert_eq!(fs::read_to_string(trap.repo.join("rest")).expect("landed"), "rest\n");
}

/// Runs a command line from a hint.
fn run_line(rig: &Rig, line: &str) {
    let mut shell = rig.program("sh");
    shell.args(["-c", line]);
    let said = run(shell);
    assert_eq!(said.code, Some(0), "{line}: {said:?}");
}

#[test]
fn an_agent_starts_in_its_own_worktree_although_the_link_is_gone() {
    let rig = Rig::new();
    let repo = rig.repo();
    let script = "git rev-parse --show-toplevel; rm .git";
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "sh", "-c", script]).ok();
    rig.wait("w");
    rig.swarm_in(&repo, &["respawn", "w"]).ok();
    rig.wait("w");
    let tree = rig.view("w")["worktree"]["path"].as_str().expect("a path").to_owned();
    assert_eq!(rig.log("w", "stdout").lines().last(), Some(tree.as_str()));
}

#[test]
fn a_recovery_describes_work_without_executing_what_is_in_the_worktree() {
    let rig = Rig::new();
    let repo = rig.repo();
    let trap = r#"fake filter.x.clean "$X"; echo '* filter=x' > .gitattributes; link; sleep 1000"#;
    let script = format!("{PRELUDE}\n{trap}");
    let canary = format!("CANARY={}", rig.path("canary").display());
    let place = format!("REPO={}", repo.display());
    let flags = ["spawn", "--name", "w", "--worktree", "--env", &canary, "--env", &place, "--", "sh", "-c", &script];
    rig.swarm_in(&repo, &flags).ok();
    let tree = rig.view("w")["worktree"]["path"].as_str().expect("a path").to_owned();
    let link = Path::new(&tree).join(".git");
    wait_until("the trap is laid", SOON, || fs::read_to_string(&link).is_ok_and(|link| link.contains("evil")));
    crate::recover::reboot(&rig);
    let said = rig.swarm(&["recover"]);
    assert!(said.code == Some(0) && said.out.contains("start"), "{said:?}");
    let applied = rig.swarm(&["recover", "--apply", "--settle", "0s"]);
    assert!(applied.err.contains("leads to another repository"), "{applied:?}");
    assert!(!rig.path("canary").exists());
}

#[test]
fn a_verification_cannot_redirect_the_queue_to_another_worktree() {
    let rig = Rig::new();
    let repo = rig.repo();
    let spawn = |name: &str| {
        let script = format!("echo {name} > {name}; git add .; git commit -qm {name}");
        rig.swarm_in(&repo, &["spawn", "--name", name, "--worktree", "--", "sh", "-c", &script]).ok();
        rig.wait(name);
    };
    ["other", "one", "two"].into_iter().for_each(spawn);
    let entry = repo.join(".git/worktrees/other");
    let verify = format!("echo 'gitdir: {}' > .git", entry.display());
    for name in ["one", "two"] {
        rig.swarm_in(&repo, &["merge", "add", name, "--verify", &verify]).ok();
        rig.swarm_in(&repo, &["merge", "wait", name, "--timeout", "25"]).ok();
    }
    assert_eq!(fs::read_to_string(entry.join("HEAD")).expect("there"), "ref: refs/heads/other\n");
    let tree = rig.view("other")["worktree"]["path"].as_str().expect("a path").to_owned();
    assert_eq!(rig.git(Path::new(&tree), &["status", "--porcelain"]), "");
}

#[test]
fn git_does_not_find_the_repository_around_a_worktree_that_lost_its_link() {
    let rig = Rig::new();
    let repo = rig.repo();
    fs::write(repo.join("mine"), "not finished").expect("written");
    let inside = repo.join(".arial/worktrees");
    let script = "mkdir sub; rm .git; cd sub; git add -A ..; git commit -qam stolen; git reset -q --hard; echo $GIT_CEILING_DIRECTORIES";
    let flags = ["spawn", "--name", "w", "--worktree", "--worktree-dir", inside.to_str().expect("text")];
    let flags = [&flags[..], &["--env", "GIT_CEILING_DIRECTORIES=/mine", "--", "sh", "-c", script]].concat();
    rig.swarm_in(&repo, &flags).ok();
    rig.wait("w");
    assert_eq!(rig.git(&repo, &["log", "--format=%s", "--all"]), "one", "{}", rig.log("w", "stderr"));
    assert_eq!(fs::read_to_string(repo.join("mine")).expect("still there"), "not finished");
    assert_eq!(rig.log("w", "stdout").trim_end(), format!("/mine:{}", inside.display()));
}

#[test]
fn replaced_objects_are_not_verified_in_place_of_the_real_ones() {
    let rig = Rig::new();
    let repo = rig.repo();
    let script = "echo BAD > health; git add .; git commit -qm work; bad=$(git rev-parse HEAD:health)
        good=$(echo GOOD | git hash-object -w --stdin); git replace $bad $good";
    rig.swarm_in(&repo, &["spawn", "--name", "w", "--worktree", "--", "sh", "-c", script]).ok();
    rig.wait("w");
    rig.swarm_in(&repo, &["merge", "add", "w", "--verify", "grep GOOD health"]).ok();
    rig.swarm_in(&repo, &["merge", "wait", "--timeout", "25"]);
    assert_eq!(rig.git(&repo, &["log", "--format=%s", "main"]), "one", "the verification saw the replaced file");
}

#[test]
fn a_worktree_behind_a_symbolic_link_is_refused() {
    let trap = Trap::new(r#"here="$PWD"; cd ..; mv "$here" "$here.moved"; ln -s "$here.moved" "$here""#);
    let diff = trap.swarm(&["diff", "w"]);
    assert!(diff.err.contains("is not a directory"), "{diff:?}");
}
