//! Commits that only some versions or settings of git create, and that land nevertheless.

use std::fs;

use swarm_model::merge::queue::{Item, Strategy};
use swarm_model::merge::{Build, Landing};
use swarm_ports::Landings as _;

use super::tests_checkout::Site;
use crate::fixture::text;

/// Signs with a constant, and knows no key.
pub(super) const SIGNER: &str = r#"case " $* " in *--verify*) cat > /dev/null; echo 'gpg: unknown key' >&2; exit 1;; esac
cat > /dev/null; echo '[GNUPG:] SIG_CREATED ' >&2
printf -- '-----BEGIN PGP SIGNATURE-----\n\nx\n-----END PGP SIGNATURE-----\n'"#;

impl Site {
    async fn item_by(&self, name: &str, strategy: Strategy) -> Item {
        let mut item = self.item(name).await;
        item.rules.strategy = strategy;
        item
    }

    pub(super) async fn built(&self, item: &Item) -> String {
        let base = self.landings.read_base(&self.target).await.unwrap();
        match self.landings.build(&self.target, item, &base).await {
            Build::Made(commit) => commit,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn land_item(&self, item: &Item) -> Landing {
        let base = self.landings.read_base(&self.target).await.unwrap();
        let commit = self.built(item).await;
        self.landings.land(&self.target, item, &base, &commit).await
    }

    pub(super) fn shows(&self, format: &str, commit: &str) -> String {
        let format = format!("--format={format}");
        text(&self.fix.git(&["log", "-1", "--no-show-signature", "--encoding=UTF-8", &format, commit]))
    }
}

/// Returns a script that commits `file`, and then gives that commit another author and committer.
fn by(author: &str, committer: &str, file: &str) -> String {
    let people = format!("s/^author .* 1/author {author} 1/; s/^committer .* 1/committer {committer} 1/");
    format!(
        "echo {file} > {file}; git add {file}; GIT_AUTHOR_DATE='1700000000 +0100' git commit -qm {file}; \
         git reset -q --soft $(git cat-file commit HEAD | sed '{people}' | git hash-object -t commit -w --stdin \
         --literally); echo {file} > {file}-end"
    )
}

#[tokio::test]
async fn a_commit_without_an_author_s_name_lands_by_rebase() {
    let site = Site::new();
    let cases = [
        ("committer", by(" <>", "Ada <ada@localhost>", "a"), "Ada <ada@localhost>"),
        ("mail", by(" <her@localhost>", "Ada <ada@localhost>", "b"), "Ada <ada@localhost>"),
        ("dots", by(".. <her@localhost>", "Ada <>", "c"), "Ada <>"),
        ("nobody", by(" <>", " <>", "d"), "T <t@localhost>"),
        ("named", by("Eve <eve@localhost>", " <>", "e"), "Eve <eve@localhost>"),
    ];
    for (name, script, author) in cases {
        site.branch(name, &script);
        let item = site.item_by(name, Strategy::Rebase).await;
        assert_eq!(site.land_item(&item).await, Landing::Done(Vec::new()), "{name}");
        assert_eq!(site.shows("%an <%ae> %ad", "main~1").split(" Tue").next(), Some(author), "{name}");
        assert_eq!(site.shows("%at", "main~1"), "1700000000", "{name}: the date is the author's");
    }
    site.branch("signed", &by(" <>", "Ada <ada@localhost>", "s"));
    let signer = site.fix.root.join("signer");
    site.fix.script(&signer, SIGNER);
    site.fix.git(&["config", "gpg.program", signer.to_str().unwrap()]);
    site.fix.git(&["config", "commit.gpgSign", "true"]);
    let item = site.item_by("signed", Strategy::Rebase).await;
    assert!(matches!(site.land_item(&item).await, Landing::Done(_)), "signed");
    assert_eq!(site.shows("%an <%ae> %at", "main~1"), "Ada <ada@localhost> 1700000000");
    assert!(text(&site.fix.git(&["cat-file", "commit", "main~1"])).contains("gpgsig "));
}

#[tokio::test]
async fn signatures_that_git_shows_in_logs_become_no_part_of_messages() {
    let site = Site::new();
    let signer = site.fix.root.join("signer");
    site.fix.script(&signer, SIGNER);
    site.fix.git(&["config", "gpg.program", signer.to_str().unwrap()]);
    site.fix.git(&["config", "log.showSignature", "true"]);
    site.branch("topic", "echo a > a; git add a; git commit -qS -m signed; echo b > b");
    let shown = text(&site.fix.git(&["log", "-1", "--format=%s", "topic~1"]));
    assert_eq!(shown, "gpg: unknown key\nsigned", "git shows signatures here");
    let item = site.item_by("topic", Strategy::Squash).await;
    let squashed = site.built(&item).await;
    assert!(site.shows("%B", &squashed).starts_with("topic\n\n* signed\n* topic\n\nSwarm-Completion:"));
    let item = site.item_by("topic", Strategy::Rebase).await;
    let rebased = site.built(&item).await;
    assert_eq!(
        (site.shows("%B", &format!("{rebased}~1")).as_str(), site.shows("%B", &rebased).as_str()),
        ("signed", "topic")
    );
}

#[tokio::test]
async fn names_and_messages_survive_another_encoding_of_logs_and_commits() {
    let site = Site::new();
    let signer = site.fix.root.join("signer");
    site.fix.script(&signer, SIGNER);
    site.branch("topic", "echo a > a; git add a; git commit -qm 'größer' --author 'Zoë <zoe@localhost>'; echo b > b");
    for (key, value) in [
        ("i18n.logOutputEncoding", "ISO-8859-1"),
        ("i18n.commitEncoding", "ISO-8859-1"),
        ("gpg.program", signer.to_str().unwrap()),
        ("commit.gpgSign", "true"),
    ] {
        site.fix.git(&["config", key, value]);
    }
    let squashed = site.built(&site.item_by("topic", Strategy::Squash).await).await;
    assert!(site.shows("%B", &squashed).contains("* größer\n"));
    let item = site.item_by("topic", Strategy::Rebase).await;
    assert!(matches!(site.land_item(&item).await, Landing::Done(_)));
    assert_eq!(site.shows("%an %s", "main~1"), "Zoë größer");
    assert!(text(&site.fix.git(&["cat-file", "commit", "main~1"])).contains("gpgsig "));
}

#[tokio::test]
async fn objects_that_a_remote_promised_are_not_missing() {
    let site = Site::new();
    let (repo, origin) = (&site.fix.repo, site.fix.root.join("origin"));
    for dir in ["in", "out"] {
        fs::create_dir(repo.join(dir)).unwrap();
        site.fix.commit(dir, &format!("{dir}/a"), "1\n");
    }
    site.fix.git(&["switch", "-qc", "feature"]);
    site.fix.commit("of the feature", "out/new", "a blob that nobody fetches\n");
    site.fix.git(&["switch", "-q", "main"]);
    site.fix.git(&["config", "uploadpack.allowFilter", "true"]);
    fs::rename(repo, &origin).unwrap();
    let url = format!("file://{}", origin.display());
    let clone = ["clone", "-q", "--filter=blob:none", "--sparse", &url, repo.to_str().unwrap()];
    site.fix.at(&site.fix.root, &clone);
    site.fix.git(&["sparse-checkout", "set", "in"]);
    let merge = "git merge -q --no-edit origin/feature";
    site.branch("one", &format!("echo one > in/one; git add in/one; git commit -qm one; {merge}; echo 1 > in/more"));
    site.branch("two", "echo two > in/two");
    fs::rename(&origin, site.fix.root.join("gone")).unwrap();
    assert!(!site.fix.attempt(repo, &["cat-file", "-e", "one:out/new"]).0, "it was never fetched");
    let one = site.item("one").await;
    assert_eq!(site.land_item(&one).await, Landing::Done(Vec::new()));
    assert!(repo.join("in/more").exists());
    // Nobody promised what was made here.
    let two = site.item("two").await;
    let blob = text(&site.fix.git(&["rev-parse", "two:in/two"]));
    fs::remove_file(repo.join(".git/objects").join(&blob[..2]).join(&blob[2..])).unwrap();
    let landed = site.land_item(&two).await;
    assert!(matches!(&landed, Landing::Failed(why) if why.contains("are missing in the repository")), "{landed:?}");
}

#[tokio::test]
async fn a_path_that_git_never_writes_is_refused_and_is_no_edit_of_a_person() {
    let site = Site::new();
    let config = fs::read(site.fix.repo.join(".git/config")).unwrap();
    fs::write(site.fix.root.join("outside"), "of a person\n").unwrap();
    let repo = git2::Repository::open(&site.fix.repo).unwrap();
    let blob = repo.blob(b"[core]\n").unwrap();
    let tree = |name: &str, mode: &str, id: git2::Oid| {
        let line = [format!("{mode} {name}\0").as_bytes(), id.as_bytes()].concat();
        repo.odb().unwrap().write(git2::ObjectType::Tree, &line).unwrap()
    };
    let cases = [
        ("settings", tree(".git", "40000", tree("config", "100644", blob)), ".git/config"),
        ("below", tree("d", "40000", tree(".GIT", "100644", blob)), "d/.GIT"),
        ("above", tree("..", "40000", tree("outside", "100644", blob)), "../outside"),
    ];
    for (name, root, path) in cases {
        let commit = text(&site.fix.git(&["commit-tree", "-m", name, "-p", "main", &root.to_string()]));
        site.fix.git(&["branch", name, &commit]);
        let item = site.item_by(name, Strategy::Merge).await;
        let base = text(&site.fix.git(&["rev-parse", "main"]));
        let landed = site.landings.land(&site.target, &item, &base, &commit).await;
        let expected = format!("git writes no file '{path}', so no directory can have this commit");
        assert_eq!(landed, Landing::Failed(expected), "{name}");
        assert_eq!(text(&site.fix.git(&["rev-parse", "main"])), base);
    }
    assert_eq!(fs::read(site.fix.repo.join(".git/config")).unwrap(), config);
    assert_eq!(fs::read_to_string(site.fix.root.join("outside")).unwrap(), "of a person\n");
}
