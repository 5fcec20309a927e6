//! Builds candidates: an item's work on top of a commit, as a new commit that only our ref names.
//! In-process if the merge is trivial, otherwise with `git merge-tree`. No worktree is touched.

use std::collections::BTreeSet;

use git2::{ObjectType, Oid, Repository, Signature, Time};
use swarm_model::merge::Build;
use swarm_model::merge::queue::{Item, Strategy};

use super::check::Check;
use super::landed::{self, Landed};
use super::listing::Listings;
use super::{land, trees};
use crate::landing::workspace::{Library, Workspace, date};
use crate::repository::fault::Fault;
use crate::repository::plain_ref::{self, Before, Update};
use crate::repository::{holders, shared};
use crate::worktrees::{plan, record};

/// Directory of the refs to candidates.
pub(crate) const CANDIDATES: &str = "refs/swarm/cand";

/// Result of a merge of trees: the id of the tree, or the paths in conflict.
enum Merged {
    Tree(String),
    Conflict(Vec<String>),
}

/// A commit to create.
struct Draft<'a> {
    tree: &'a str,
    parents: &'a [&'a str],
    message: &'a str,
    /// Original author; `None` for the caller.
    author: Option<&'a Author>,
}

pub(crate) fn build(workspace: &Workspace, strategy: Strategy, item: &Item, onto: &str) -> Result<Build, Fault> {
    let _hold = workspace.hold()?;
    let library = workspace.library();
    let parts = library.as_ref().map(Library::parts);
    let (of_library, trees) = (parts.map(|(repo, _)| repo), parts.map(|(repo, cache)| Listings::new(repo, cache)));
    let trees = trees.transpose()?;
    let built = Builder { workspace, library: of_library, trees: trees.as_ref(), item, onto }.build(strategy)?;
    if let Build::Made(commit) = &built {
        pin(workspace, library.as_deref(), commit)?;
    }
    Ok(built)
}

/// Protects the candidates from `git gc` with one ref to the newest, which contains the earlier
/// ones.
fn pin(workspace: &Workspace, library: Option<&Repository>, commit: &str) -> Result<(), Fault> {
    let name = reference(workspace);
    record::check_reference(&workspace.common, &name)?;
    holders::clear_stale_locks(&[workspace.common.join(format!("{name}.lock"))], None);
    let update = Update { name: &name, to: commit, before: Before::Any, is_durable: false };
    if plain_ref::set(&workspace.common, &update, |_| ())? {
        return Ok(());
    }
    let pinned = library.map(|repo| {
        let id = Oid::from_str(commit)?;
        repo.reference(&name, id, true, "swarm: candidate").map(drop)
    });
    match pinned {
        Some(Ok(())) => Ok(()),
        _ => Ok(workspace.write().args(["update-ref", "--no-deref", &name, commit]).run().map(drop)?),
    }
}

/// Returns the name of the ref to this queue's candidates.
fn reference(workspace: &Workspace) -> String {
    let id = workspace.own.file_name().unwrap_or_default().to_string_lossy();
    format!("{CANDIDATES}/{id}")
}

/// A commit of the topic with a single parent.
struct Commit {
    id: String,
    parent: String,
    author: Author,
    message: String,
}

impl Commit {
    /// Number of fields that git prints per commit.
    const FIELDS: usize = 8;

    /// Parses the fields of a commit. git writes no commit whose author has no name; an author without one is replaced
    /// by the commit's committer, and if that one has no name either, by `caller`. The date remains the author's.
    fn read(fields: &[&str], caller: (&str, &str)) -> Result<Self, Fault> {
        let is_id = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let [id, parent, name, mail, committer, committer_mail, date, message] = *fields else {
            return Err(Self::odd());
        };
        if !is_id(id) || !is_id(parent) {
            return Err(Self::odd());
        }
        let people = [(name, mail), (committer, committer_mail)];
        let (name, mail) = people.into_iter().find(|(name, _)| is_name(name)).unwrap_or(caller);
        let author = Author { name: name.to_owned(), mail: mail.to_owned(), date: date.to_owned() };
        Ok(Self { id: id.to_owned(), parent: parent.to_owned(), author, message: message.to_owned() })
    }

    fn odd() -> Fault {
        Fault::new("unexpected output of 'git log'")
    }
}

/// Reports whether anything is left of a name after git has removed the characters that it ignores at both ends.
fn is_name(name: &str) -> bool {
    name.chars().any(|c| c > ' ' && !".,:;<>\"\\'".contains(c))
}

/// Author of a commit as git prints and accepts it; the mail may be empty.
pub(crate) struct Author {
    pub(crate) name: String,
    pub(crate) mail: String,
    /// `seconds ±hhmm`
    pub(crate) date: String,
}

impl Author {
    fn signature(&self) -> Result<Signature<'static>, git2::Error> {
        Signature::new(&self.name, &self.mail, &time(&self.date))
    }
}

/// Parses `seconds ±hhmm`. An invalid time becomes the epoch, as in git.
fn time(raw: &str) -> Time {
    let (seconds, zone) = raw.split_once(' ').unwrap_or((raw, "+0000"));
    let zone = zone.parse::<i32>().unwrap_or_default();
    Time::new(seconds.parse().unwrap_or_default(), zone / 100 * 60 + zone % 100)
}

struct Builder<'a> {
    workspace: &'a Workspace,
    library: Option<&'a Repository>,
    trees: Option<&'a Listings<'a>>,
    item: &'a Item,
    onto: &'a str,
}

impl Builder<'_> {
    fn build(&self, strategy: Strategy) -> Result<Build, Fault> {
        let tip = self.item.tip.as_str();
        if !self.is_there(tip) {
            return Err(Fault::new(format!("commit {tip} not found in the repository")));
        }
        let bases = self.merge_bases(self.onto, tip)?;
        self.check_fork()?;
        let [base, ..] = bases.as_slice() else {
            return Err(Fault::new("the branch has no common history with its base"));
        };
        let landed = self.landed().before(strategy, base)?;
        let base = landed.as_ref().unwrap_or(base);
        if base == tip {
            return self.nothing(base);
        }
        // Conflict resolutions in the topic's own merges are part of no single non-merge commit.
        let strategy = if strategy == Strategy::Rebase && self.has_merges(base)? { Strategy::Squash } else { strategy };
        if strategy == Strategy::Rebase {
            // A topic whose commits revert each other has nothing to land. Its single commits could conflict with the base.
            return if self.tree_of(tip)? == self.tree_of(base)? { self.nothing(base) } else { self.rebase(base) };
        }
        let merged = match &landed {
            Some(landed) => {
                let ours = joined(self.workspace, self.onto, landed)?;
                self.merge(&self.merge_bases(&ours, tip)?, &ours)?
            }
            None => self.merge(&bases, self.onto)?,
        };
        let tree = match merged {
            Merged::Tree(tree) => tree,
            Merged::Conflict(files) => return Ok(Build::Conflict(files)),
        };
        if tree == self.tree_of(self.onto)? {
            return self.nothing(base);
        }
        let name = &self.item.name;
        let (parents, message) = match strategy {
            Strategy::Merge => (vec![self.onto, tip], format!("Merge {name}\n\n{}", self.trailer())),
            Strategy::Squash | Strategy::Rebase => {
                (vec![self.onto], format!("{name}\n\n{}\n{}", self.subjects(base)?, self.trailer()))
            }
        };
        self.commit(&Draft { tree: &tree, parents: &parents, message: &message, author: None }).map(Build::Made)
    }

    /// Returns the result for work of which nothing is left to land.
    fn nothing(&self, base: &str) -> Result<Build, Fault> {
        Ok(if self.landed().has_changes(base)? { Build::Contained } else { Build::Nothing })
    }

    fn landed(&self) -> Landed<'_> {
        let Self { workspace, library, item, onto, .. } = *self;
        Landed { workspace, library, item, onto }
    }

    /// Fails if the work started from a commit that was on the base and no longer is: the merge would bring back what
    /// somebody removed from the base.
    fn check_fork(&self) -> Result<(), Fault> {
        let Some(fork) = &self.item.fork else { return Ok(()) };
        if self.is_there(fork) && land::is_ancestor(self.workspace, fork, self.onto)? {
            return Ok(());
        }
        let (name, base, fork) = (&self.item.name, self.workspace.target.base(), plan::short(fork));
        let cause = format!("the base was rewritten: '{base}' no longer contains {fork}, from which '{name}' started");
        Err(Fault::new(cause).remedy(format!(
            "landing it would bring removed commits back; run 'swarm merge retry {name}' to land it nevertheless"
        )))
    }

    fn is_there(&self, commit: &str) -> bool {
        landed::is_there(self.workspace, self.library, commit)
    }

    fn trailer(&self) -> String {
        format!("Swarm-Completion: {}/{}\n", self.item.name, self.item.id)
    }

    fn has_merges(&self, base: &str) -> Result<bool, Fault> {
        let range = format!("{base}..{}", self.item.tip);
        let found = self.workspace.read().args(["rev-list", "--merges", "--max-count=1", &range]).line()?;
        Ok(!found.is_empty())
    }

    /// Returns the subjects of the topic's commits, oldest first, one per line.
    fn subjects(&self, base: &str) -> Result<String, Fault> {
        let range = format!("{base}..{}", self.item.tip);
        let out = self
            .workspace
            .read()
            .args(["log", "--no-show-signature", "--reverse", "--no-merges", "--format=* %s", &range])
            .run()?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// Applies each commit of the topic on top of the one before. The topic contains no merges.
    fn rebase(&self, base: &str) -> Result<Build, Fault> {
        let mut at = self.onto.to_owned();
        for commit in self.topic(base)? {
            let (before, after) = (&commit.parent, &commit.id);
            let merged = match self.trivially(before, &at, after) {
                Some(tree) => Merged::Tree(tree),
                None => {
                    let words = [format!("--merge-base={before}")];
                    self.checked(std::slice::from_ref(before), &words, &at, after)?
                }
            };
            let tree = match merged {
                Merged::Tree(tree) => tree,
                Merged::Conflict(files) => return Ok(Build::Conflict(files)),
            };
            if tree == self.tree_of(&at)? {
                continue;
            }
            let (message, author) = (&*commit.message, Some(&commit.author));
            at = self.commit(&Draft { tree: &tree, parents: &[&at], message, author })?;
        }
        // Commits that only take each other back change nothing.
        if self.tree_of(&at)? == self.tree_of(self.onto)? { self.nothing(base) } else { Ok(Build::Made(at)) }
    }

    /// Returns the topic's commits, oldest first.
    fn topic(&self, base: &str) -> Result<Vec<Commit>, Fault> {
        let range = format!("{base}..{}", self.item.tip);
        let fields = "--format=%H%x00%P%x00%an%x00%ae%x00%cn%x00%ce%x00%ad%x00%B";
        let call =
            self.workspace.read().args(["log", "--no-show-signature", "--reverse", "--topo-order", "--date=raw"]);
        let told = call.args(["--encoding=UTF-8", "-z", fields, &range]).run()?;
        let told = String::from_utf8_lossy(&told);
        // Every field ends with NUL, including the last one.
        let told = told.strip_suffix('\0').map(|told| told.split('\0').collect::<Vec<_>>()).unwrap_or_default();
        let caller = self.workspace.identity()?.author_words();
        told.chunks(Commit::FIELDS).map(|fields| Commit::read(fields, caller)).collect()
    }

    fn merge_bases(&self, one: &str, other: &str) -> Result<Vec<String>, Fault> {
        if let Some(repo) = self.library
            && let Ok(bases) = by_library(repo, one, other)
        {
            return Ok(bases);
        }
        let (_, out) = self.workspace.read().args(["merge-base", "--all", one, other]).run_for(&[0, 1])?;
        Ok(String::from_utf8_lossy(&out).lines().map(str::to_owned).collect())
    }

    fn merge(&self, bases: &[String], ours: &str) -> Result<Merged, Fault> {
        let theirs = &self.item.tip;
        // With several merge bases, git merges these first.
        if let [base] = bases
            && let Some(tree) = self.trivially(base, ours, theirs)
        {
            return Ok(Merged::Tree(tree));
        }
        // git finds the same merge bases itself, and proceeds like `git merge`.
        self.checked(bases, &[], ours, theirs)
    }

    fn trivially(&self, base: &str, ours: &str, theirs: &str) -> Option<String> {
        let merged = trivially(self.library?, self.trees?, base, ours, theirs).ok().flatten();
        merged.map(|tree| tree.to_string())
    }

    fn by_command(&self, words: &[String], ours: &str, theirs: &str) -> Result<Merged, Fault> {
        let call = self.workspace.write().args(["merge-tree", "--write-tree", "--name-only", "--messages", "-z"]);
        // Without a checkout, git needs to know where to read attributes (merge drivers, binary files).
        let call = call.env("GIT_ATTR_SOURCE", ours);
        let (code, out) = call.args(words).args([ours, theirs]).run_for(&[0, 1])?;
        match code {
            0 => Ok(Merged::Tree(out.split(|byte| *byte == 0).next().map(text).unwrap_or_default())),
            _ => Ok(Merged::Conflict(conflicts(&out))),
        }
    }

    /// Merges with git, and checks that the result is a merge of these two sides and nothing else.
    fn checked(&self, bases: &[String], words: &[String], ours: &str, theirs: &str) -> Result<Merged, Fault> {
        let merged = self.by_command(words, ours, theirs)?;
        if let Merged::Tree(tree) = &merged {
            let Self { workspace, library, item, .. } = *self;
            Check { workspace, library, name: &item.name, bases, ours, theirs }.run(tree)?;
        }
        Ok(merged)
    }

    fn tree_of(&self, commit: &str) -> Result<String, Fault> {
        if let Some(repo) = self.library
            && let Ok(found) = Oid::from_str(commit).and_then(|id| repo.find_commit(id))
        {
            return Ok(found.tree_id().to_string());
        }
        tree_of(self.workspace, commit)
    }

    fn commit(&self, draft: &Draft<'_>) -> Result<String, Fault> {
        let identity = self.workspace.identity()?;
        if let Some(repo) = self.library {
            let made = (|| {
                // libgit2 rejects an author without a mail; git accepts it.
                let author = draft.author.map_or_else(|| identity.author(), Author::signature)?;
                write_commit(repo, draft, &author, &identity.committer()?)
            })();
            if let Ok(id) = made {
                return Ok(id.to_string());
            }
        }
        commit_tree(self.workspace, draft.tree, draft.parents, draft.message, draft.author)
    }
}

/// Creates a commit. libgit2's own function would read the whole tree.
fn write_commit(
    repo: &Repository,
    draft: &Draft<'_>,
    author: &Signature<'_>,
    committer: &Signature<'_>,
) -> Result<Oid, git2::Error> {
    let (tree, odb) = (Oid::from_str(draft.tree)?, repo.odb()?);
    if odb.read_header(tree)?.1 != ObjectType::Tree {
        return Err(git2::Error::from_str("not a tree"));
    }
    let mut text = format!("tree {tree}\n").into_bytes();
    for parent in draft.parents {
        text.extend_from_slice(format!("parent {}\n", repo.find_commit(Oid::from_str(parent)?)?.id()).as_bytes());
    }
    for (role, who) in [("author", author), ("committer", committer)] {
        let date = date(who.when());
        let parts = [role.as_bytes(), b" ", who.name_bytes(), b" <", who.email_bytes(), b"> ", date.as_bytes(), b"\n"];
        text.extend(parts.concat());
    }
    text.push(b'\n');
    text.extend_from_slice(draft.message.as_bytes());
    shared::write(repo, &odb, ObjectType::Commit, &text)
}

/// Returns the commit's tree with git.
pub(crate) fn tree_of(workspace: &Workspace, commit: &str) -> Result<String, Fault> {
    Ok(workspace.read().args(["rev-parse", "--verify", "--end-of-options", &format!("{commit}^{{tree}}")]).line()?)
}

/// Returns a commit with the content of `onto` whose history has `landed`, a commit of the topic that is on the base as another
/// one. git takes it for a merge base then, so that a merge brings nothing of it again.
pub(crate) fn joined(workspace: &Workspace, onto: &str, landed: &str) -> Result<String, Fault> {
    let message = format!("{} has {}", workspace.target.base(), plan::short(landed));
    commit_tree(workspace, &tree_of(workspace, onto)?, &[onto, landed], &message, None)
}

/// Creates an unsigned commit with `git commit-tree`.
pub(crate) fn commit_tree(
    workspace: &Workspace,
    tree: &str,
    parents: &[&str],
    message: &str,
    author: Option<&Author>,
) -> Result<String, Fault> {
    let call = workspace.identity()?.environment(workspace.write(), author);
    let call = call.args(["-c", "commit.gpgSign=false", "commit-tree", "-m", message]);
    let call = parents.iter().fold(call, |call, parent| call.args(["-p", parent]));
    Ok(call.arg(tree).line()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Parses the paths in conflict from `git merge-tree -z`: a tree, paths, an empty field, and
/// messages, each a count, as many paths, a kind and a sentence.
fn conflicts(out: &[u8]) -> Vec<String> {
    let mut fields = out.split(|byte| *byte == 0).skip(1);
    let listed: BTreeSet<String> = fields.by_ref().take_while(|field| !field.is_empty()).map(text).collect();
    if !listed.is_empty() {
        return listed.into_iter().collect();
    }
    // Some conflicts have no listed file, such as a directory that was renamed to two names.
    let mut named = BTreeSet::new();
    while let Some(count) = fields.next().and_then(|field| text(field).parse().ok()) {
        let paths: Vec<String> = fields.by_ref().take(count).map(text).collect();
        let kind = fields.next().map(text).unwrap_or_default();
        let _ = fields.next();
        if kind.starts_with("CONFLICT") {
            named.extend(paths);
        }
    }
    named.into_iter().collect()
}

fn by_library(repo: &Repository, one: &str, other: &str) -> Result<Vec<String>, git2::Error> {
    match repo.merge_bases(Oid::from_str(one)?, Oid::from_str(other)?) {
        Ok(bases) => Ok(bases.iter().map(Oid::to_string).collect()),
        Err(error) if trees::is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn trivially(
    repo: &Repository,
    trees: &Listings<'_>,
    base: &str,
    ours: &str,
    theirs: &str,
) -> Result<Option<Oid>, git2::Error> {
    let tree = |id: &str| Ok::<_, git2::Error>(repo.find_commit(Oid::from_str(id)?)?.tree_id());
    trees::merge(trees, tree(base)?, tree(ours)?, tree(theirs)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn a_commit_is_the_one_that_libgit2_writes() {
        let fix = Fixture::new();
        let repo = Repository::open(&fix.repo).unwrap();
        let parent = repo.head().unwrap().peel_to_commit().unwrap();
        let (tree, id) = (parent.tree().unwrap(), parent.id().to_string());
        let (author, other) = (" Ö. x,\n", "a@b");
        let author = Signature::new(author, other, &Time::new(1_700_000_000, -90)).unwrap();
        let committer = Signature::new("c", " d ", &Time::new(5, 330)).unwrap();
        for (parents, message) in [(vec![], ""), (vec![&parent], "one\n"), (vec![&parent, &parent], "a\n\nb\n\n# c")] {
            let ids = vec![id.as_str(); parents.len()];
            let draft = Draft { tree: &tree.id().to_string(), parents: &ids, message, author: None };
            let made = repo.commit(None, &author, &committer, message, &tree, &parents).unwrap();
            assert_eq!(write_commit(&repo, &draft, &author, &committer).unwrap(), made);
        }
        let wrong = Draft { tree: &id, parents: &[], message: "", author: None };
        write_commit(&repo, &wrong, &author, &committer).unwrap_err();
    }

    #[test]
    fn paths_in_conflict_are_those_listed_or_those_of_the_messages() {
        let listed = b"aa\0b\0a\0a\0\x001\0x\0CONFLICT (contents)\0CONFLICT in x\n\0";
        assert_eq!(conflicts(listed), ["a", "b"]);
        let told =
            b"aa\0\x001\0y\0Auto-merging\0Auto-merging y\n\x002\0d\0e\0CONFLICT (directory rename split)\0why\n\0";
        assert_eq!(conflicts(told), ["d", "e"]);
    }
}
