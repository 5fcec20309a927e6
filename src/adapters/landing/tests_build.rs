//! Candidates are what `git merge` would have made.

use swarm_actors::merge::machine::Build;
use swarm_actors::ports::Landings as _;

use super::tests_checkout::Site;
use crate::adapters::git::fixture::text;

#[tokio::test]
async fn the_attributes_of_the_base_say_how_a_file_is_merged() {
    let site = Site::new();
    site.fix.commit("rules", ".gitattributes", "list merge=union\nlock -merge\n");
    site.fix.commit("list", "list", "one\n");
    site.fix.commit("lock", "lock", "one\ntwo\nthree\nfour\nfive\n");
    for name in ["a", "b"] {
        site.branch(&format!("list-{name}"), &format!("echo {name} >> list"));
    }
    site.branch("lock-a", "sed -i s/one/first/ lock");
    site.branch("lock-b", "sed -i s/five/last/ lock");
    for (file, is_merged) in [("list", true), ("lock", false)] {
        site.fix.git(&["merge", "-q", "--no-edit", &format!("{file}-a")]);
        let item = site.item(&format!("{file}-b")).await;
        let onto = text(&site.fix.git(&["rev-parse", "main"]));
        let built = site.landings.build(&site.target, &item, &onto).await;
        let (merged, _) = site.fix.attempt(&site.fix.repo, &["merge", "-q", "--no-edit", &format!("{file}-b")]);
        assert_eq!(merged, is_merged, "{file}, by git merge");
        match built {
            Build::Made(commit) if is_merged => {
                assert_eq!(text(&site.fix.git(&["show", &format!("{commit}:list")])), "one\na\nb");
            }
            Build::Conflict(files) if !is_merged => assert_eq!(files, ["lock"]),
            other => panic!("{file}: {other:?}"),
        }
        site.fix.attempt(&site.fix.repo, &["merge", "--abort"]);
    }
}
