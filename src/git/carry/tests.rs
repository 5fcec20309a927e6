use std::fs;

use super::returned::ref_part;
use super::*;
use crate::fixture::{Fixture, text};

const CONTROLLER: &str = "0123456789abcdef0123456789abcdef";

/// Two repositories, and a program that connects them.
struct Pair {
    fix: Fixture,
    far: FarRepository,
    there: PathBuf,
    common: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let fix = Fixture::new();
        let there = fix.root.join("there");
        fix.at(&fix.root, &["init", "-q", "-b", "none", "there"]);
        fix.at(&there, &["config", "receive.fsckObjects", "true"]);
        let far = FarRepository {
            program: fix.root.join("it's a program"),
            verb: "__carry",
            host: "me@it's".to_owned(),
            controller: CONTROLLER.to_owned(),
            repository: "fedcba98".to_owned(),
        };
        let common = fix.repo.join(".git");
        let pair = Self { fix, far, there, common };
        pair.connect(&format!("exec git \"${{1#git-}}\" '{}'", pair.there.display()));
        pair
    }

    /// Replaces what the program does after it has checked its words: `$1` is the program of git, `$2` the path.
    fn connect(&self, body: &str) {
        let check = "[ \"$1 $2 $3\" = \"__carry me@it's far\" ] || exit 9\neval \"set -- $4\"";
        let path = format!("[ \"$2\" = /{CONTROLLER}/fedcba98 ] || exit 8");
        self.fix.script(&self.far.program, &format!("{check}\n{path}\n{body}"));
    }

    fn push(&self, commits: &[String]) -> Result<(), CarryError> {
        push(&self.common, &self.far, commits, &self.fix.caller)
    }

    fn fetch(&self, tip: &str) -> Result<(), CarryError> {
        fetch(&self.common, &self.far, tip, &self.fix.caller)
    }

    fn take(&self, branch: &str, tip: &str) -> Result<(), String> {
        take(&self.common, Move { branch, tip, why: "swarm: work of attempt 1 on box" }, &self.fix.caller)
    }

    fn head(&self) -> String {
        text(&self.fix.git(&["rev-parse", "HEAD"]))
    }

    /// Makes a commit there on top of what was sent, pins it, and returns it.
    fn work(&self, onto: &str, message: &str) -> String {
        let tree = text(&self.fix.at(&self.there, &["rev-parse", &format!("{onto}^{{tree}}")]));
        let tip = text(&self.fix.at(&self.there, &["commit-tree", "-p", onto, "-m", message, &tree]));
        self.fix.at(&self.there, &["update-ref", &pinned(&tip), &tip]);
        tip
    }

    fn at(&self, dir: &Path, name: &str) -> Option<String> {
        let (is_there, commit) = self.fix.attempt(dir, &["rev-parse", "--verify", "-q", name]);
        is_there.then(|| text(&commit))
    }
}

#[test]
fn commits_are_sent_and_work_comes_back() {
    let pair = Pair::new();
    let base = pair.head();
    pair.push(&[base.clone(), base.clone()]).expect("sent");
    pair.push(std::slice::from_ref(&base)).expect("sent again");
    assert_eq!(pair.at(&pair.there, &format!("{IN}/{base}")), Some(base.clone()));
    let tip = pair.work(&base, "work");
    pair.fetch(&tip).expect("fetched");
    assert_eq!(pair.at(&pair.fix.repo, &pinned(&tip)), Some(tip.clone()));
    assert!(!pair.common.join("FETCH_HEAD").exists());
    assert!(!pair.common.join("gc.pid").exists());
    pair.connect("exit 1");
    pair.fetch(&tip).expect("it is here");
}

#[test]
fn what_is_left_on_a_host_is_kept_under_the_name_of_its_attempt() {
    let pair = Pair::new();
    let base = pair.head();
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let (one, two) = (pair.work(&base, "one"), pair.work(&base, "two"));
    let keep = |commit: &str| fetch_left(&pair.common, &pair.far, (commit, "a.1"), &pair.fix.caller);
    let name = "refs/swarm/from/me@it-s/a.1";
    assert_eq!((keep(&one), keep(&one)), (Ok(name.to_owned()), Ok(name.to_owned())));
    // Of an earlier run.
    let second = format!("{name}-2");
    assert_eq!((keep(&two), keep(&two)), (Ok(second.clone()), Ok(second.clone())));
    assert_eq!((pair.at(&pair.fix.repo, name), pair.at(&pair.fix.repo, &second)), (Some(one), Some(two)));
    assert!(matches!(keep("HEAD"), Err(CarryError::Refused(_))));
    for (text, part) in [("a b", "a-b"), ("..", "--"), (".x.lock", "x"), ("@", "-"), ("", "-"), ("box", "box")] {
        assert_eq!(ref_part(text), part);
    }
}

#[test]
fn what_was_sent_before_is_not_sent_again() {
    let pair = Pair::new();
    let first = pair.head();
    pair.push(std::slice::from_ref(&first)).expect("sent");
    // The job is forgotten there.
    pair.fix.at(&pair.there, &["update-ref", "-d", &format!("{IN}/{first}")]);
    pair.fix.commit("second", "f", "2\n");
    let second = pair.head();
    let pack = pair.fix.root.join("pack");
    let count = format!("tee '{}' | git \"${{1#git-}}\" '{}'", pack.display(), pair.there.display());
    pair.connect(&count);
    pair.push(std::slice::from_ref(&second)).expect("sent");
    let sent = fs::read(&pack).expect("read");
    let at = sent.windows(4).position(|part| part == b"PACK").expect("a pack");
    assert_eq!(sent[at + 8..at + 12], 3_u32.to_be_bytes(), "a commit, a tree and a blob");
    // An older base, of another run.
    pair.push(std::slice::from_ref(&first)).expect("sent");
    assert_eq!(pair.at(&pair.there, BASE), Some(first));
}

#[test]
fn settings_and_hooks_of_the_user_have_no_effect() {
    let pair = Pair::new();
    let base = pair.head();
    pair.fix.git(&["tag", "-a", "-m", "t", "v1"]);
    let mark = pair.fix.root.join("hook-ran");
    let hook = format!("touch '{}'; exit 1", mark.display());
    for name in ["pre-push", "reference-transaction", "post-checkout"] {
        pair.fix.script(&pair.common.join("hooks").join(name), &hook);
    }
    for (key, value) in [
        ("url.ssh://evil/.insteadOf", "ssh://far/"),
        ("url.ssh://evil/.pushInsteadOf", "ssh://far/"),
        ("url.ssh://worse/.insteadOf", "ssh:"),
        ("core.sshCommand", "false"),
        ("ssh.variant", "ssh"),
        ("protocol.allow", "never"),
        ("protocol.ssh.allow", "never"),
        ("push.followTags", "true"),
        ("push.gpgSign", "true"),
        ("push.pushOption", "x"),
        ("push.recurseSubmodules", "only"),
        ("push.default", "nothing"),
        ("remote.pushDefault", "origin"),
        ("remote.origin.url", "ssh://evil/x"),
        ("remote.origin.fetch", "+refs/*:refs/*"),
        ("remote.origin.mirror", "true"),
        ("fetch.prune", "true"),
        ("fetch.pruneTags", "true"),
        ("fetch.all", "true"),
        ("fetch.writeCommitGraph", "true"),
        ("fetch.fsckObjects", "false"),
        ("submodule.recurse", "true"),
    ] {
        pair.fix.git(&["config", key, value]);
    }
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let refs = text(&pair.fix.at(&pair.there, &["for-each-ref", "--format=%(refname)"]));
    assert_eq!(refs, format!("{BASE}\n{IN}/{base}"), "nothing else was sent");
    let tip = pair.work(&base, "work");
    pair.fix.at(&pair.there, &["tag", "v2", &tip]);
    pair.fetch(&tip).expect("fetched");
    pair.take("w", &tip).expect("moved");
    let refs = text(&pair.fix.git(&["for-each-ref", "--format=%(refname)"]));
    assert_eq!(refs, format!("refs/heads/main\nrefs/heads/w\n{}\nrefs/tags/v1", pinned(&tip)));
    assert!(!mark.exists(), "a hook ran");
}

#[test]
fn a_cut_connection_differs_from_a_refusal() {
    let pair = Pair::new();
    let base = pair.head();
    for (body, expected) in [
        (format!("echo 'fatal: {AWAY}no route' >&2; exit 255"), CarryError::Away("no route".to_owned())),
        (format!("echo 'fatal: {REFUSED}no such clone' >&2; exit 255"), CarryError::Refused("no such clone".into())),
    ] {
        pair.connect(&body);
        assert_eq!(pair.push(std::slice::from_ref(&base)), Err(expected.clone()));
        assert_eq!(pair.fetch(&"a".repeat(40)), Err(expected));
    }
    // A hook there.
    pair.connect(&format!("exec git \"${{1#git-}}\" '{}'", pair.there.display()));
    pair.fix.script(&pair.there.join(".git/hooks/pre-receive"), "exit 1");
    assert!(matches!(pair.push(&[base]), Err(CarryError::Refused(_) | CarryError::Failed(_))));
}

/// A line that is cut after a number of bytes moves no reference, leaves no half objects, and can be tried again.
#[test]
fn a_line_may_be_cut_at_any_byte() {
    let pair = Pair::new();
    let files: String = (0..200).map(|at| format!("{at} {}\n", "x".repeat(at))).collect();
    pair.fix.commit("much", "much", &files);
    let base = pair.head();
    let there = pair.there.display();
    let cut = format!("echo 'fatal: {AWAY}cut' >&2");
    let up = |bytes: usize| {
        format!("{{ dd bs=1 count={bytes} 2>/dev/null; {cut}; }} | git \"${{1#git-}}\" '{there}' 2>/dev/null; exit 255")
    };
    let down = |bytes: usize| {
        format!("git \"${{1#git-}}\" '{there}' 2>/dev/null | {{ dd bs=1 count={bytes} 2>/dev/null; {cut}; kill $$; }}")
    };
    let refs = |dir: &Path| text(&pair.fix.at(dir, &["for-each-ref"]));
    let parts = |dir: &Path| {
        let found =
            std::process::Command::new("find").arg(dir).args(["-name", "tmp_*", "-o", "-name", "incoming-*"]).output();
        text(&found.expect("ran").stdout)
    };
    let direct = || pair.connect(&format!("exec git \"${{1#git-}}\" '{there}'"));
    for bytes in [0, 1, 50, 180, 250, 400] {
        for body in [up(bytes), down(bytes)] {
            pair.connect(&body);
            // After the last byte that counts, it is not known here that it is done.
            let failed = pair.push(std::slice::from_ref(&base));
            assert!(
                matches!(failed, Err(CarryError::Away(_) | CarryError::Refused(_))) || bytes > 200,
                "{body}: {failed:?}"
            );
            let is_whole = pair.at(&pair.there, &format!("{IN}/{base}")) == Some(base.clone());
            assert!(is_whole || refs(&pair.there).is_empty(), "{body}");
            assert_eq!(parts(&pair.there), "", "{body}");
            if is_whole {
                pair.fix.at(&pair.there, &["fsck", "--connectivity-only", &base]);
            }
        }
    }
    direct();
    pair.push(std::slice::from_ref(&base)).expect("sent");
    // Many objects come as a pack.
    fs::create_dir(pair.there.join("d")).expect("made");
    for at in 0..600 {
        fs::write(pair.there.join(format!("d/{at}")), format!("{at}\n")).expect("written");
    }
    pair.fix.at(&pair.there, &["add", "d"]);
    let tree = text(&pair.fix.at(&pair.there, &["write-tree"]));
    let tip = text(&pair.fix.at(&pair.there, &["commit-tree", "-p", &base, "-m", "w", &tree]));
    pair.fix.at(&pair.there, &["update-ref", &pinned(&tip), &tip]);
    let before = refs(&pair.fix.repo);
    for bytes in [0, 1, 200, 1000, 4000, 9000] {
        for body in [up(bytes.min(150)), down(bytes)] {
            pair.connect(&body);
            let failed = pair.fetch(&tip);
            assert!(matches!(failed, Err(CarryError::Away(_) | CarryError::Refused(_))), "{body}: {failed:?}");
            assert_eq!((refs(&pair.fix.repo), parts(&pair.common)), (before.clone(), String::new()), "{body}");
        }
    }
    direct();
    pair.fetch(&tip).expect("fetched");
    pair.fix.git(&["fsck", "--connectivity-only", &tip]);
}

#[test]
fn a_hostile_answer_changes_nothing_here() {
    let pair = Pair::new();
    let base = pair.head();
    for odd in ["HEAD", "--upload-pack=x", "refs/heads/main", &"A".repeat(40), &"a".repeat(41), "", "../x"] {
        assert!(matches!(pair.fetch(odd), Err(CarryError::Refused(_))), "{odd}");
        assert!(matches!(pair.push(&[odd.to_owned()]), Err(CarryError::Refused(_))), "{odd}");
        pair.take("w", odd).expect_err(odd);
    }
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let tip = pair.work(&base, "work");
    // A ref whose name lies.
    let lie = "d".repeat(40);
    pair.fix.at(&pair.there, &["update-ref", &pinned(&lie), &tip]);
    assert!(matches!(pair.fetch(&lie), Err(CarryError::Refused(_) | CarryError::Failed(_))));
    // Something else than a commit.
    let blob = pair.there.join("blob");
    fs::write(&blob, "blob").expect("written");
    let blob = text(&pair.fix.at(&pair.there, &["hash-object", "-w", "blob"]));
    pair.fix.at(&pair.there, &["update-ref", &pinned(&blob), &blob]);
    assert!(matches!(pair.fetch(&blob), Err(CarryError::Refused(_) | CarryError::Failed(_))));
    // A commit that git's own check rejects: a tree with '.git' in it.
    let tree = pair.fix.root.join("tree");
    fs::write(&tree, format!("100644 blob {blob}\t.git\n")).expect("written");
    let words = format!("git -C '{}' mktree < '{}'", pair.there.display(), tree.display());
    let made = std::process::Command::new("sh").args(["-c", &words]).output().expect("ran");
    let tree = text(&made.stdout);
    let evil = text(&pair.fix.at(&pair.there, &["commit-tree", "-p", &base, "-m", "evil", &tree]));
    pair.fix.at(&pair.there, &["update-ref", &pinned(&evil), &evil]);
    let Err(CarryError::Unsound(cause)) = pair.fetch(&evil) else { panic!("not refused for what it is") };
    assert!(cause.starts_with(&format!("object {tree}: hasDotgit")), "{cause}");
    let refs = text(&pair.fix.git(&["for-each-ref", "--format=%(refname)"]));
    assert_eq!(refs, "refs/heads/main");
}

#[test]
fn work_with_the_faults_of_old_histories_is_fetched() {
    let pair = Pair::new();
    let base = pair.head();
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let tree = text(&pair.fix.at(&pair.there, &["rev-parse", &format!("{base}^{{tree}}")]));
    let body = format!("tree {tree}\nparent {base}\nauthor A <a> 1 +51800\ncommitter A<a> 0001 +0000\n\nold\n");
    fs::write(pair.there.join("commit"), body).expect("written");
    let words = ["hash-object", "-t", "commit", "-w", "--literally", "commit"];
    let old = text(&pair.fix.at(&pair.there, &words));
    pair.fix.at(&pair.there, &["update-ref", &pinned(&old), &old]);
    pair.fetch(&old).expect("fetched");
}

#[test]
fn a_branch_moves_to_work_that_contains_it_only() {
    let pair = Pair::new();
    let base = pair.head();
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let first = pair.work(&base, "first");
    let second = pair.work(&first, "second");
    let other = pair.work(&base, "other");
    for tip in [&first, &second, &other] {
        pair.fetch(tip).expect("fetched");
    }
    let at = || pair.at(&pair.fix.repo, "refs/heads/a/w");
    pair.take("a/w", &first).expect("created");
    pair.take("a/w", &first).expect("it is there");
    pair.take("a/w", &second).expect("moved");
    let cause = pair.take("a/w", &other).expect_err("has other commits");
    assert!(cause.contains("has commits that its work on the host does not contain"), "{cause}");
    assert_eq!(at(), Some(second.clone()));
    let log = text(&pair.fix.git(&["reflog", "show", "--format=%gs", "refs/heads/a/w"]));
    assert_eq!(log, "swarm: work of attempt 1 on box\nswarm: work of attempt 1 on box");
    let third = pair.work(&second, "third");
    pair.fetch(&third).expect("fetched");
    pair.fix.git(&["worktree", "add", "-q", "../held", "a/w"]);
    let cause = pair.take("a/w", &third).expect_err("is checked out");
    assert!(cause.contains("is checked out at"), "{cause}");
    assert_eq!(at(), Some(second));
    pair.take("-x", &third).expect_err("not a branch");
    pair.fix.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
    let cause = pair.take("alias", &third).expect_err("leads to a branch that is checked out");
    assert!(cause.contains("is a symbolic ref to refs/heads/main"), "{cause}");
    assert_eq!(pair.at(&pair.fix.repo, "refs/heads/main"), Some(base));
}

#[test]
fn work_that_comes_back_gets_a_reference_of_its_own_that_never_moves() {
    let pair = Pair::new();
    let base = pair.head();
    pair.push(std::slice::from_ref(&base)).expect("sent");
    let (first, second) = (pair.work(&base, "first"), pair.work(&base, "second"));
    let name = "refs/swarm/from/box/a.1";
    let kept_here = |tip: &str| keep(&pair.common, &pair.far, (tip, name), &pair.fix.caller);
    for _ in 0..2 {
        assert_eq!(kept_here(&first).as_deref(), Ok(name));
        assert_eq!(kept_here(&second), Ok(format!("{name}-2")));
    }
    let next = pair.work(&first, "next");
    let all = [next.clone(), first.clone(), second.clone()];
    let kept = keep_all(&pair.common, &pair.far, (&all, "refs/swarm/from/box/b.1"), &pair.fix.caller);
    assert_eq!(kept, Ok(["b.1", "b.1-2"].map(|name| format!("refs/swarm/from/box/{name}")).to_vec()));
    assert_eq!(pair.at(&pair.fix.repo, "refs/swarm/from/box/b.1"), Some(next), "it contains the first");
    assert_eq!((pair.at(&pair.fix.repo, name), pair.at(&pair.fix.repo, &pinned(&first))), (Some(first), None));
    // A power cut has torn the file.
    fs::write(pair.common.join(name), [0; 41]).expect("written");
    let third = pair.work(&base, "third");
    assert_eq!(kept_here(&third).as_deref(), Ok(name));
    assert_eq!(pair.at(&pair.fix.repo, name), Some(third));
    let fourth = pair.work(&base, "fourth");
    pair.connect("echo 'fatal: swarm: away: no route' >&2; exit 255");
    assert_eq!(kept_here(&fourth), Err(CarryError::Away("no route".into())));
    assert!(kept_here("--upload-pack=x").is_err());
}
