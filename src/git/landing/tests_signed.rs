//! Signed copies of candidates.

use swarm_model::merge::Landing;
use swarm_model::merge::queue::{Item, State};
use swarm_ports::Landings as _;

use super::tests_checkout::Site;
use super::tests_odd_commits::SIGNER;
use crate::fixture::text;

#[tokio::test]
async fn a_ref_of_somebody_else_is_no_signed_copy_of_a_candidate() {
    let site = Site::new();
    let signer = site.fix.root.join("signer");
    let uses = site.fix.root.join("uses");
    site.fix.script(&signer, &format!("echo >> '{}'\n{SIGNER}", uses.display()));
    site.branch("topic", "echo t > t");
    for (key, value) in [("gpg.program", signer.to_str().expect("text")), ("commit.gpgSign", "true")] {
        site.fix.git(&["config", key, value]);
    }
    let item = site.item("topic").await;
    let candidate = site.built(&item).await;
    let signed = |words: &[&str]| {
        let program = format!("gpg.program={}", signer.display());
        text(&site.fix.git(&[&["-c", &program, "commit-tree", "-S"], words].concat()))
    };
    let (base, topic) = (site.tip("main"), site.tip("topic"));
    let tree = text(&site.fix.git(&["rev-parse", &format!("{candidate}^{{tree}}")]));
    let message = site.shows("%B", &candidate);
    let name = format!("refs/swarm/signed/{candidate}");
    // Another tree, other parents, another message, none of them signed.
    let evil = signed(&["-m", &message, "-p", &base, "-p", &topic, "main^{tree}"]);
    let short = signed(&["-m", &message, "-p", &base, &tree]);
    let renamed = signed(&["-m", "other", "-p", &base, "-p", &topic, &tree]);
    // The candidate by another committer, with a header that only looks like a signature.
    let raw = text(&site.fix.git(&["cat-file", "commit", &candidate]));
    let committer = raw.lines().find(|line| line.starts_with("committer ")).expect("a committer");
    let raw = raw.replace(committer, "committer Mallory <m@localhost> 1700000000 +0000\ngpgsig garbage");
    let file = site.fix.root.join("forged");
    std::fs::write(&file, raw).expect("written");
    let forged = text(&site.fix.git(&["hash-object", "-t", "commit", "-w", file.to_str().expect("text")]));
    let workspace = site.workspace();
    for foreign in [&evil, &short, &renamed, &candidate, &forged] {
        site.fix.git(&["update-ref", &name, foreign]);
        let made = super::land::sign(&workspace, &base, &candidate).expect("signed").tip;
        assert_ne!(made, **foreign);
        assert_eq!(site.tip(&name), made, "it is written anew");
    }
    // Copies of the same second are the same commit, however often they are signed.
    let used = || std::fs::read(&uses).expect("read").len();
    let (own, before) = (site.tip(&name), used());
    assert_eq!(super::land::sign(&workspace, &base, &candidate).expect("signed").tip, own, "it is signed once");
    // A later supervisor knows the copy, whatever somebody has made of the ref since.
    site.fix.git(&["update-ref", &name, &forged]);
    assert_eq!(super::land::sign(&site.workspace(), &base, &candidate).expect("signed").tip, own);
    assert_eq!(site.tip(&name), own, "it is kept from being pruned");
    let landed = site.landings.land(&site.target, &item, &base, &candidate).await;
    assert!(matches!(landed, Landing::Done(_)), "{landed:?}");
    assert_eq!((site.tip("main"), used()), (own.clone(), before));
    let record = site.workspace().own.join("signed.json");
    assert!(std::fs::read_to_string(&record).expect("read").contains(&own));
    let item = Item { state: State::Landed { commit: own }, ..item };
    site.landings.tidy(&site.target, std::slice::from_ref(&item)).await;
    assert_eq!(std::fs::read_to_string(&record).expect("read"), "[]");
    assert!(!site.fix.has(&name));
}
