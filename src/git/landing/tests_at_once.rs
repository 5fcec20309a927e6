//! Several callers that complete the work of one worker at the same time.

use std::fs;

use swarm_ports::Landings as _;

use super::tests_checkout::Site;

#[tokio::test]
async fn callers_that_add_one_worker_at_once_add_the_same_commit() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    for round in 0..4 {
        fs::write(tree.join("more"), format!("{round}\n")).unwrap();
        let complete = || site.landings.complete(completion.clone());
        let (one, two, three, four) = tokio::join!(complete(), complete(), complete(), complete());
        for done in [one, two, three, four] {
            let done = done.unwrap();
            assert_eq!((done.tip, done.waits), (site.tip("a"), None), "round {round}");
        }
        let status = site.fix.at(&tree, &["status", "--porcelain"]);
        assert!(status.is_empty(), "{}", String::from_utf8_lossy(&status));
        assert_eq!(site.tip("a~"), site.tip(&format!("a@{{{}}}", 1)), "one commit a round");
    }
}
