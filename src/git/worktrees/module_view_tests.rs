//! Repositories that an agent has put into the record of its worktree.

use std::fs;
use std::path::PathBuf;

use swarm_ports::Force;

use super::submodules;
use super::topic::{Objects, snapshot};
use super::{identity, record};
use crate::fixture::{Fixture, text};

/// A worktree of which an agent has made the directory `sub` a submodule: the repository is in the record, and its
/// configuration names a program.
struct Hostile {
    fix: Fixture,
    tree: PathBuf,
    module: PathBuf,
    /// What the program makes.
    proof: PathBuf,
}

impl Hostile {
    fn new() -> Self {
        let fix = Fixture::new();
        let (_, tree) = fix.made("w");
        let (sub, proof) = (tree.join("sub"), fix.root.join("ESCAPED"));
        fix.at(&tree, &["init", "-q", "sub"]);
        fs::write(sub.join(".gitattributes"), "* filter=e\n").expect("written");
        fs::write(sub.join("f"), "x").expect("written");
        fix.at(&sub, &["add", "-A"]);
        fix.at(&sub, &["commit", "-qm", "s"]);
        let touch = format!("touch {}; cat", proof.display());
        for key in ["filter.e.clean", "core.fsmonitor", "core.sshCommand", "diff.external"] {
            fix.at(&sub, &["config", key, &touch]);
        }
        fix.at(&sub, &["config", "core.worktree", sub.to_str().expect("text")]);
        let module = fix.repo.join(".git/worktrees/w/modules/evil");
        fs::create_dir_all(module.parent().expect("a parent")).expect("made");
        fs::rename(sub.join(".git"), &module).expect("moved");
        // Another size, so that git need not look at the content to know of the change, and an old index, so that it does.
        fs::write(sub.join("f"), "y").expect("written");
        Self { fix, tree, module, proof }
    }

    fn is_executed_by(&self, git: &[&str]) -> bool {
        let (dir, tree) = (self.module.to_str().expect("text"), self.tree.join("sub"));
        let place = [format!("--git-dir={dir}"), format!("--work-tree={}", tree.display())];
        let _ = self.fix.attempt(&tree, &[&[place[0].as_str(), place[1].as_str()], git].concat());
        fs::remove_file(&self.proof).is_ok()
    }
}

#[test]
fn git_enters_no_repository_with_a_configuration_that_an_agent_has_written() {
    let own = Hostile::new();
    assert!(own.is_executed_by(&["status"]), "the attack works");
    let place = identity::open(&own.fix.cli(), &own.tree, &own.fix.repo).expect("opened").expect("there");
    let left = snapshot(&own.fix.cli(), &place, Objects::Discard).expect("looked").left_out;
    assert_eq!(left, ["sub/"], "it is found all the same");
    let refused = own.fix.check(&own.tree, Force::No).expect_err("kept");
    own.fix.remove(&own.tree, Force::SaveFirst).expect_err("kept");
    let head = text(&own.fix.at(&own.tree, &["rev-parse", "HEAD"]));
    submodules::check_shared(&own.fix.cli(), &place, &head, "w").expect("nothing is named");
    assert!(!own.proof.exists(), "{refused:?}");
    let left = fs::read_dir(own.fix.repo.join(".git")).expect("listed").flatten();
    let left = left.filter(|file| file.file_name().to_string_lossy().starts_with("swarm-module-"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_configuration_that_cannot_be_read_is_a_reason_to_keep() {
    for hostile in ["a link", "a line", "no HEAD"] {
        let own = Hostile::new();
        let config = own.module.join("config");
        match hostile {
            "a link" => {
                fs::remove_file(&config).expect("removed");
                std::os::unix::fs::symlink("/dev/zero", &config).expect("linked");
            }
            "a line" => fs::write(&config, "[core\n").expect("written"),
            _ => {
                fs::remove_file(own.module.join("HEAD")).expect("removed");
                std::os::unix::fs::symlink(own.module.join("config"), own.module.join("HEAD")).expect("linked");
            }
        }
        let refused = format!("{:?}", own.fix.check(&own.tree, Force::No).expect_err(hostile));
        assert!(refused.contains("submodule evil cannot be checked"), "{hostile}: {refused}");
        assert!(!own.proof.exists(), "{hostile}");
    }
}

#[test]
fn a_link_in_place_of_a_repository_leads_nowhere() {
    let own = Hostile::new();
    let elsewhere = own.fix.root.join("elsewhere");
    fs::rename(&own.module, &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, &own.module).expect("linked");
    fs::remove_dir_all(own.tree.join("sub")).expect("removed");
    own.fix.check(&own.tree, Force::No).expect("only the link is removed");
    own.fix.remove(&own.tree, Force::No).expect("removed");
    assert!(record::read(&elsewhere.join("config")).is_ok() && !own.proof.exists());
}
