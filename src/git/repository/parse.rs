//! Parsers for the output of git. Pure: bytes in, values out.

/// One entry of `git status --porcelain -z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) staged: u8,
    pub(crate) unstaged: u8,
    pub(crate) path: Vec<u8>,
}

impl Change {
    /// Reports whether this is a repository inside the worktree: git lists an untracked
    /// directory as one entry although all untracked files were requested.
    pub(crate) fn is_embedded_repository(&self) -> bool {
        self.staged == b'?' && self.path.ends_with(b"/")
    }

    /// Reports whether a tracked file is missing from the worktree and nothing is staged for it.
    pub(crate) fn is_plain_deletion(&self) -> bool {
        self.staged == b' ' && self.unstaged == b'D'
    }
}

/// Parses `git status --porcelain=v1 -z`.
pub(crate) fn status(out: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut fields = out.split(|byte| *byte == 0);
    while let Some(field) = fields.next() {
        let [staged, unstaged, _, path @ ..] = field else { continue };
        let (staged, unstaged) = (*staged, *unstaged);
        if [staged, unstaged].iter().any(|letter| matches!(letter, b'R' | b'C')) {
            // The old name follows as a separate field.
            fields.next();
        }
        changes.push(Change { staged, unstaged, path: path.to_vec() });
    }
    changes
}

/// One worktree of `git worktree list --porcelain -z`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) path: String,
    /// Full ref name; `None` if HEAD is detached or the repository is bare.
    pub(crate) branch: Option<String>,
    /// Reason of the lock, possibly empty; `None` if the worktree is not locked.
    pub(crate) locked: Option<String>,
    pub(crate) prunable: bool,
}

pub(crate) fn worktrees(out: &[u8]) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for field in out.split(|byte| *byte == 0) {
        let field = String::from_utf8_lossy(field);
        let (key, value) = field.split_once(' ').unwrap_or((&field, ""));
        if key == "worktree" {
            listed.push(Listed { path: value.to_owned(), ..Listed::default() });
        } else if let Some(last) = listed.last_mut() {
            match key {
                "branch" => last.branch = Some(value.to_owned()),
                "locked" => last.locked = Some(value.to_owned()),
                "prunable" => last.prunable = true,
                _ => {}
            }
        }
    }
    listed
}

/// One entry of `git ls-files -s -z` or of `git ls-tree -r -z`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mode: String,
    pub(crate) id: String,
    /// 0 for merged entries; always 0 for a tree.
    pub(crate) stage: u8,
    pub(crate) path: Vec<u8>,
}

/// Parses `MODE ID STAGE<tab>PATH` lines of an index.
pub(crate) fn index(out: &[u8]) -> Vec<Entry> {
    entries(out, |words| {
        let [mode, id, stage] = words else { return None };
        Some(((*mode).to_owned(), (*id).to_owned(), stage.parse().ok()?))
    })
}

/// Parses `MODE TYPE ID<tab>PATH` lines of a tree.
pub(crate) fn tree(out: &[u8]) -> Vec<Entry> {
    entries(out, |words| {
        let [mode, _, id] = words else { return None };
        Some(((*mode).to_owned(), (*id).to_owned(), 0))
    })
}

fn entries(out: &[u8], head: impl Fn(&[&str]) -> Option<(String, String, u8)>) -> Vec<Entry> {
    let read = |field: &[u8]| {
        let tab = field.iter().position(|byte| *byte == b'\t')?;
        let words: Vec<&str> = std::str::from_utf8(&field[..tab]).ok()?.split(' ').collect();
        let (mode, id, stage) = head(&words)?;
        Some(Entry { mode, id, stage, path: field[tab + 1..].to_vec() })
    };
    out.split(|byte| *byte == 0).filter_map(read).collect()
}

/// Returns the paths of `git ls-files -v -z` that git does not look at: lower case
/// tags are assume-unchanged, `S` is skip-worktree.
pub(crate) fn hidden(out: &[u8]) -> Vec<Vec<u8>> {
    let is_hidden = |tag: &u8| tag.is_ascii_lowercase() || *tag == b'S';
    let fields = out.split(|byte| *byte == 0);
    fields
        .filter(|field| field.first().is_some_and(is_hidden))
        .filter_map(|field| field.get(2..))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns the paths of `git ls-files -v -z` by flag: assume-unchanged, then skip-worktree.
pub(crate) fn flagged(out: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut assumed, mut skipped) = (Vec::new(), Vec::new());
    for field in out.split(|byte| *byte == 0) {
        let [tag, _, path @ ..] = field else { continue };
        if tag.is_ascii_lowercase() {
            assumed.push(path.to_vec());
        }
        if tag.eq_ignore_ascii_case(&b'S') {
            skipped.push(path.to_vec());
        }
    }
    (assumed, skipped)
}

/// Maximum number of lines that name what an error is about.
const NAMED_MAX: usize = 12;

/// Returns the line of git's stderr that states the error, without its prefix, with the lines after it if it announces
/// them. A directory outside of any repository is reported in the words of the original `swarm`.
pub(crate) fn first_useful_line(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let with = |prefix: &str| lines.iter().find_map(|line| line.strip_prefix(prefix));
    // `git add` names the file in an error, and then only says that it failed; so does the check of what is fetched.
    let is_bare = |text: &str| ["adding files failed", "fsck error in packed object"].contains(&text);
    let prefixed = with("fatal: ").filter(|text| !is_bare(text)).or_else(|| with("error: "));
    let prefixed = prefixed.or_else(|| with("fatal: "));
    let noise = ["Preparing worktree", "HEAD is now at", "hint: ", "warning: "];
    let plain = || lines.iter().find(|line| !noise.iter().any(|n| line.starts_with(n))).copied();
    let cause = prefixed.or_else(plain)?;
    if cause.starts_with("The following ") {
        let after = lines.iter().skip_while(|line| !line.ends_with(cause)).skip(1);
        let ends = ["hint: ", "Please ", "Aborting"];
        let named: Vec<&str> =
            after.copied().take_while(|line| !ends.iter().any(|end| line.starts_with(end))).collect();
        let more = if named.len() > NAMED_MAX { " …" } else { "" };
        let shown = &named[..named.len().min(NAMED_MAX)];
        return Some(format!("{cause} {}{more}", shown.join(" ")).trim_end().to_owned());
    }
    let is_outside = cause.starts_with("not a git repository (or any");
    Some(if is_outside { "not in a git repository" } else { cause }.to_owned())
}

/// Texts of errors with which git leaves out a file or a directory. Not those that say that something does not exist.
const UNSEEN: [&str; 9] = [
    "Permission denied",
    "Operation not permitted",
    "Input/output error",
    "Cannot allocate memory",
    "Too many open files",
    "Too many open files in system",
    "File name too long",
    "Stale file handle",
    "Transport endpoint is not connected",
];

/// Returns the first line in which a successful git says that it could not look at something: it names a directory in a
/// warning, and a file alone.
pub(crate) fn unseen(stderr: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(stderr);
    let is_unseen = |line: &&str| {
        line.contains("could not open directory ")
            || line.rsplit_once(": ").is_some_and(|(_, cause)| UNSEEN.contains(&cause))
    };
    let line = text.lines().map(str::trim).find(is_unseen)?;
    Some(line.strip_prefix("warning: ").unwrap_or(line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_git_left_out_is_found() {
        let said = b"warning: in the working copy of 'a', LF will be replaced by CRLF\n\
                     warning: could not open directory 'notes/': Permission denied\n";
        assert_eq!(unseen(said).as_deref(), Some("could not open directory 'notes/': Permission denied"));
        assert_eq!(unseen(b"d/f: Permission denied\n").as_deref(), Some("d/f: Permission denied"));
        let deep = b"warning: could not open directory 'd/': File name too long\n";
        assert_eq!(unseen(deep).as_deref(), Some("could not open directory 'd/': File name too long"));
        for other in [&b""[..], b"hint: a: b\n", b"warning: a: No such file or directory\n"] {
            assert_eq!(unseen(other), None);
        }
    }

    #[test]
    fn a_rename_is_one_change() {
        let out = b"R  new\0old\0 M a b\0?? dir/\0";
        let changes = status(out);
        let seen: Vec<_> = changes.iter().map(|c| (c.staged, c.unstaged, c.path.as_slice())).collect();
        let expected: Vec<(u8, u8, &[u8])> = vec![(b'R', b' ', b"new"), (b' ', b'M', b"a b"), (b'?', b'?', b"dir/")];
        assert_eq!(seen, expected);
        assert!(changes[2].is_embedded_repository());
        assert!(status(b"").is_empty());
        assert!(status(b" D x\0")[0].is_plain_deletion());
        assert!(!status(b"D  x\0")[0].is_plain_deletion());
    }

    #[test]
    fn worktrees_with_locks_and_odd_paths() {
        let out = b"worktree /a b\0HEAD 1\0branch refs/heads/x/y\0\0worktree /c\0HEAD 2\0detached\0locked why not\0prunable gone\0\0";
        let listed = worktrees(out);
        assert_eq!(listed.len(), 2);
        assert_eq!(listed[0].path, "/a b");
        assert_eq!(listed[0].branch.as_deref(), Some("refs/heads/x/y"));
        assert_eq!(listed[1].locked.as_deref(), Some("why not"));
        assert!(listed[1].prunable && listed[1].branch.is_none());
    }

    #[test]
    fn index_and_tree_entries_keep_tabs_in_paths() {
        let entry = Entry { mode: "100644".into(), id: "ab".into(), stage: 2, path: b"x\ty".to_vec() };
        assert_eq!(index(b"100644 ab 2\tx\ty\0"), vec![entry.clone()]);
        assert_eq!(tree(b"100644 blob ab\tx\ty\0"), vec![Entry { stage: 0, ..entry }]);
    }

    #[test]
    fn hidden_files_are_listed() {
        let expected: Vec<Vec<u8>> = vec![b"a b".to_vec(), b"s".to_vec()];
        assert_eq!(hidden(b"H f\0h a b\0S s\0M m\0"), expected);
    }

    #[test]
    fn the_line_with_the_cause_is_found() {
        let stderr = b"Preparing worktree (new branch 'w')\nhint: try\nfatal: a branch named 'w' already exists\n";
        assert_eq!(first_useful_line(stderr).as_deref(), Some("a branch named 'w' already exists"));
        assert_eq!(first_useful_line(b"Preparing worktree (x)\nhook said no\n").as_deref(), Some("hook said no"));
        assert_eq!(first_useful_line(b"\n"), None);
        let outside = b"fatal: not a git repository (or any of the parent directories): .git\n";
        assert_eq!(first_useful_line(outside).as_deref(), Some("not in a git repository"));
        let outside =
            b"fatal: not a git repository (or any parent up to mount point /)\nStopping at filesystem boundary\n";
        assert_eq!(first_useful_line(outside).as_deref(), Some("not in a git repository"));
        let left_out = b"The following paths and/or pathspecs matched paths that exist\noutside of your definition:\nb/new\nhint: x\n";
        let whole = "The following paths and/or pathspecs matched paths that exist outside of your definition: b/new";
        assert_eq!(first_useful_line(left_out).as_deref(), Some(whole));
        let files = "\tf\n".repeat(NAMED_MAX + 1);
        let kept = format!("error: The following files would be removed:\n{files}Please move them.\nAborting\n");
        let many = format!("The following files would be removed:{} …", " f".repeat(NAMED_MAX));
        assert_eq!(first_useful_line(kept.as_bytes()), Some(many));
        // A link that leads nowhere is another mistake.
        let dangling = b"fatal: not a git repository: /gone/.git/worktrees/w\n";
        assert_eq!(first_useful_line(dangling).as_deref(), Some("not a git repository: /gone/.git/worktrees/w"));
    }
}
