//! Work whose objects are only where they do not last.

use std::fs;

use swarm_model::merge::Landing;

use super::tests_checkout::Site;

#[tokio::test]
async fn work_whose_objects_are_in_its_own_worktree_does_not_land() {
    let site = Site::new();
    let (tree, completion) = site.worker("a");
    let (objs, common) = (tree.join("objs"), site.fix.repo.join(".git"));
    for dir in ["pack", "info"] {
        fs::create_dir_all(objs.join(dir)).expect("made");
    }
    fs::write(common.join("info/exclude"), "objs/\n").expect("written");
    let script = format!(
        "cd '{tree}'; export GIT_OBJECT_DIRECTORY='{objs}' GIT_ALTERNATE_OBJECT_DIRECTORIES='{common}/objects'; \
         echo new > new; git add new; git commit -qm new",
        tree = tree.display(),
        objs = objs.display(),
        common = common.display()
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-ec", &script]).env_clear().envs(site.fix.caller.environment.iter().cloned());
    assert!(shell.status().expect("started").success());
    let alternates = common.join("objects/info/alternates");
    fs::write(&alternates, format!("{}\n", objs.display())).expect("written");
    let done = site.done(&completion).await;
    let addition = swarm_model::merge::queue::Addition {
        name: "a".into(),
        tip: done.tip,
        rules: done.rules,
        caller: done.caller,
        ..Default::default()
    };
    let item = addition.into_item(0, &Default::default(), 0);
    let before = site.tip("main");
    let Landing::Failed(why) = site.land_item(&item).await else { panic!("it landed") };
    assert!(why.starts_with(&format!("objects of the repository are in {}", objs.display())), "{why}");
    assert_eq!(site.tip("main"), before);
    // The remedy.
    site.fix.git(&["repack", "-q", "-a", "-d"]);
    fs::remove_file(&alternates).expect("removed");
    assert!(matches!(site.land_item(&item).await, Landing::Done(_)));
}
