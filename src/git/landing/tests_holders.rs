//! Which worktrees have the base checked out, or are about to move it.

use std::fs;

use swarm_model::merge::Landing;
use swarm_model::merge::queue::{Addition, Rules};
use swarm_ports::{Completion, Landings as _};

use super::tests_checkout::Site;
use crate::fixture::text;

/// A site whose references are stored in the given format; `main` is checked out in `other` instead of the repository.
fn site(format: &str) -> (Site, std::path::PathBuf) {
    let mut site = Site::new();
    fs::remove_dir_all(&site.fix.repo).unwrap();
    site.fix.at(&site.fix.root, &["init", "-q", "-b", "main", &format!("--ref-format={format}"), "repo"]);
    for number in ["1", "2", "3"] {
        site.fix.commit(number, number, number);
    }
    site.fix.git(&["switch", "-qc", "side"]);
    let other = site.fix.root.join("other");
    site.fix.git(&["worktree", "add", "-q", other.to_str().unwrap(), "main"]);
    site.fix.set("GIT_SEQUENCE_EDITOR", "sed -i s/^pick/edit/");
    (site, other)
}

impl Site {
    /// Lands a branch on `main`, which is not what the caller has checked out.
    pub(super) async fn land_on_main(&self, name: &str) -> Landing {
        let completion = Completion { base: Some("main".into()), ..self.completion(name) };
        let done = self.landings.complete(completion).await.unwrap();
        assert_eq!((&done.target, &done.waits), (&self.target, &None));
        let addition = Addition { name: name.into(), tip: done.tip, rules: done.rules, ..Addition::default() };
        self.land_item(&addition.into_item(0, &Rules::default(), 0)).await
    }
}

#[tokio::test]
async fn a_base_that_a_rebase_is_about_to_move_does_not_move() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        let main = || text(&site.fix.git(&["rev-parse", "main"]));
        let before = main();
        site.branch("topic", "echo t > t");
        let waits = async |what: &str| {
            let landed = site.land_on_main("topic").await;
            let why = format!("'main' is being rebased in {} (", other.display());
            let is_busy = matches!(&landed, Landing::Busy { reason, .. } if reason.starts_with(&why));
            assert!(is_busy, "{format}, {what}: {landed:?}");
            assert_eq!(main(), before);
            site.fix.at(&other, &["rebase", "--abort"]);
        };
        site.fix.at(&other, &["rebase", "-q", "-i", "HEAD~1"]);
        waits("its own rebase").await;
        // `main` is in the middle of a stack that is rebased.
        site.fix.at(&other, &["switch", "-qc", "stacked"]);
        site.fix.at(&other, &["commit", "-q", "--allow-empty", "-m", "above"]);
        site.fix.at(&other, &["rebase", "-q", "-i", "--update-refs", "HEAD~2"]);
        waits("a stack").await;
        // A bisection checks out whatever the base is at its end.
        site.fix.at(&other, &["switch", "-q", "main"]);
        site.fix.at(&other, &["bisect", "start", "-q", "main", "main~2"]);
        assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()), "{format}");
        site.fix.at(&other, &["bisect", "reset"]);
        assert!(other.join("t").exists());
        assert_eq!(text(&site.fix.at(&other, &["status", "--porcelain"])), "");
    }
}

#[tokio::test]
async fn a_checkout_of_the_base_under_another_name_is_updated() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        let lands = async |name: &str| {
            site.branch(name, &format!("echo {name} > {name}"));
            assert_eq!(site.land_on_main(name).await, Landing::Done(Vec::new()), "{format}, {name}");
            assert!(other.join(name).exists(), "{format}: the file of {name}");
            assert_eq!(text(&site.fix.at(&other, &["status", "--porcelain"])), "", "{format}, {name}");
        };
        site.fix.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        site.fix.git(&["symbolic-ref", "refs/heads/another", "refs/heads/alias"]);
        site.fix.at(&other, &["symbolic-ref", "HEAD", "refs/heads/another"]);
        lands("symbolic").await;
        if format == "files" {
            // As git writes it if `core.preferSymlinkRefs` is set.
            let head = site.fix.repo.join(".git/worktrees/other/HEAD");
            fs::remove_file(&head).unwrap();
            std::os::unix::fs::symlink("refs/heads/main", &head).unwrap();
            lands("linked").await;
        }
    }
}

#[tokio::test]
async fn a_symbolic_branch_leads_to_the_queue_of_the_real_one() {
    for format in ["files", "reftable"] {
        let (site, _) = site(format);
        site.fix.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        let caller = site.completion("topic").caller;
        assert_eq!(super::target_of(&caller, "alias").unwrap(), site.target, "{format}");
        assert_eq!(super::target_of(&caller, "side").unwrap().branch, "refs/heads/side");
    }
}

#[tokio::test]
async fn a_base_that_is_checked_out_in_a_missing_worktree_does_not_move() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        let main = || text(&site.fix.git(&["rev-parse", "main"]));
        let before = main();
        site.branch("topic", "echo t > t");
        let away = site.fix.root.join("away");
        let waits = async |remedy: &str| {
            let landed = site.land_on_main("topic").await;
            let why = format!("'main' is checked out in the worktree {}, which is missing (", other.display());
            let Landing::Failed(said) = &landed else { panic!("{format}: {landed:?}") };
            assert!(said.starts_with(&why) && said.contains(remedy), "{format}: {said}");
            assert_eq!(main(), before, "{format}");
        };
        fs::rename(&other, &away).unwrap();
        waits("worktree repair PATH' if it was moved").await;
        // On a disk that is not mounted.
        fs::create_dir(&other).unwrap();
        site.fix.git(&["worktree", "lock", other.to_str().unwrap()]);
        waits(&format!("worktree remove -f -f {}' if it is gone", other.display())).await;
        site.fix.git(&["worktree", "unlock", other.to_str().unwrap()]);
        fs::remove_dir(&other).unwrap();
        site.fix.git(&["worktree", "repair", away.to_str().unwrap()]);
        assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()), "{format}");
        assert!(away.join("t").exists() && text(&site.fix.at(&away, &["status", "--porcelain"])).is_empty());
    }
}

#[tokio::test]
async fn a_directory_that_is_no_longer_a_worktree_is_not_written() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        let main = || text(&site.fix.git(&["rev-parse", "main"]));
        let before = main();
        site.branch("topic", "echo t > t");
        let waits = async |remedy: &str| {
            let Landing::Failed(said) = site.land_on_main("topic").await else { panic!("{format}: it landed") };
            let why = format!("'main' is checked out in the worktree {}", other.display());
            assert!(said.starts_with(&why) && said.contains(remedy), "{format}: {said}");
            assert_eq!(main(), before, "{format}");
            assert!(!other.join("t").exists());
        };
        let dot_git = other.join(".git");
        let link = fs::read(&dot_git).unwrap();
        fs::remove_file(&dot_git).unwrap();
        waits("which has lost its .git file (run 'git -C ").await;
        site.fix.at(&other, &["init", "-q"]);
        waits("worktree repair PATH' if the worktree was moved to PATH, or 'rm -r ").await;
        fs::remove_dir_all(&dot_git).unwrap();
        // As in a copy of the repository.
        fs::write(&dot_git, "gitdir: /elsewhere/.git/worktrees/other\n").unwrap();
        waits("leads elsewhere (").await;
        fs::write(&dot_git, link).unwrap();
        assert_eq!(site.land_on_main("topic").await, Landing::Done(Vec::new()), "{format}");
        assert!(other.join("t").exists());
    }
}

#[tokio::test]
async fn a_repository_that_is_bare_by_mistake_is_repaired_or_waited_for() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        site.fix.git(&["worktree", "remove", "-f", other.to_str().unwrap()]);
        site.fix.git(&["switch", "-q", "main"]);
        let lands = async |name: &str| {
            assert_eq!(site.land_on_main(name).await, Landing::Done(Vec::new()), "{format}");
            assert!(site.fix.repo.join(name).exists(), "{format}: {name}");
            assert_eq!(text(&site.fix.git(&["status", "--porcelain"])), "", "{format}");
        };
        for name in ["one", "two", "three"] {
            site.branch(name, &format!("echo x > {name}"));
        }
        site.fix.git(&["config", "core.bare", "true"]);
        lands("one").await;
        site.fix.git(&["config", "core.bare", "true"]);
        lands("two").await;
        // Not in the file that all worktrees share.
        site.fix.git(&["config", "extensions.worktreeConfig", "true"]);
        site.fix.git(&["config", "--worktree", "core.bare", "true"]);
        let landed = site.land_on_main("three").await;
        let why =
            format!("git takes {} for a bare repository, although 'main' is checked out", site.fix.repo.display());
        assert!(matches!(&landed, Landing::Failed(said) if said.starts_with(&why)), "{format}: {landed:?}");
        site.fix.git(&["config", "--worktree", "core.bare", "false"]);
        lands("three").await;
    }
}

#[tokio::test]
async fn a_record_that_names_the_worktree_of_another_does_not_hold_the_base() {
    for format in ["files", "reftable"] {
        let (site, other) = site(format);
        let add = |name: &str| {
            let tree = site.fix.root.join(name);
            site.fix.git(&["worktree", "add", "-q", "-b", name, tree.to_str().unwrap(), "main"]);
            tree
        };
        // More than one liar, because records are listed in any order.
        let (victim, liars) = (add("victim"), ["a", "b", "x", "y"].map(|name| (name, add(name))));
        for (name, tree) in &liars {
            site.fix.at(tree, &["symbolic-ref", "HEAD", "refs/heads/main"]);
            let record = site.fix.repo.join(".git/worktrees").join(name);
            fs::create_dir(record.join("rebase-merge")).unwrap();
            fs::write(record.join("rebase-merge/head-name"), "refs/heads/main\n").unwrap();
        }
        for named in [&site.fix.repo, &victim, &other] {
            for (name, _) in &liars {
                let text = format!("{}/.git\n", named.display());
                fs::write(site.fix.repo.join(".git/worktrees").join(name).join("gitdir"), text).unwrap();
            }
            let name = format!("of-{}", named.file_name().unwrap().to_str().unwrap());
            site.branch(&name, &format!("echo {name} > {name}"));
            assert_eq!(site.land_on_main(&name).await, Landing::Done(Vec::new()), "{format}: {}", named.display());
            assert!(other.join(&name).exists() && !victim.join(&name).exists() && !site.fix.repo.join(&name).exists());
            assert_eq!(text(&site.fix.at(&other, &["status", "--porcelain"])), "", "{format}");
        }
    }
}
