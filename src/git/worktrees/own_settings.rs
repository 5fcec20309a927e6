//! `config.worktree` in the record of a worktree, which git reads like the configuration of the repository if that has
//! `extensions.worktreeConfig`. A sandboxed agent may write it, so only settings that execute nothing count.

use std::path::Path;

use super::{admin, record};
use crate::repository::fault::Fault;

pub(super) const FILE: &str = "config.worktree";
/// Settings that git writes there itself, and others that name neither a program nor a file that git reads.
const HARMLESS: [&str; 14] = [
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.bare",
    "core.autocrlf",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.symlinks",
    "core.splitindex",
    "core.untrackedcache",
    "index.sparse",
    "user.email",
    "user.name",
];

/// Makes sure that git executes nothing that only the record `entry` configures. `git worktree add` copies the settings of
/// the main worktree, which no agent of another worktree can write.
///
/// # Errors
/// Fails with the first setting that may execute something, or if a file cannot be read.
pub(super) fn check(common: &Path, entry: &Path) -> Result<(), Fault> {
    checked(common, entry).map(drop)
}

/// Returns the checked content of the file, which is empty if there is none. `None` if git does not read the file.
///
/// # Errors
/// As [`check`].
pub(super) fn checked(common: &Path, entry: &Path) -> Result<Option<Vec<u8>>, Fault> {
    let (file, main) = (entry.join(FILE), common.join("config"));
    // The extension counts only in this very file.
    let is_used = record::read_linked(&main).map_err(Fault::at(&main))?.to_ascii_lowercase();
    if !is_used.windows(b"worktreeconfig".len()).any(|part| part == b"worktreeconfig") {
        return Ok(None);
    }
    let Some(bytes) = admin::ignore_missing(record::read(&file)).map_err(Fault::at(&file))? else {
        return Ok(Some(Vec::new()));
    };
    let (text, known) =
        (String::from_utf8_lossy(&bytes).into_owned(), record::read(&common.join(FILE)).unwrap_or_default());
    let known = String::from_utf8_lossy(&known);
    let known: Vec<(&str, &str)> = lines(&known).collect();
    let is_harmless = |&(section, line): &(&str, &str)| {
        let key = format!("{section}.{}", line.split('=').next().unwrap_or_default().trim()).to_ascii_lowercase();
        HARMLESS.contains(&key.as_str()) || known.contains(&(section, line))
    };
    match lines(&text).find(|one| !is_harmless(one)) {
        None => Ok(Some(bytes)),
        Some((section, line)) => Err(Fault::new(format!(
            "{} has a setting that the main worktree does not have: [{section}] {line}",
            file.display()
        ))
        .remedy("delete it, or add it to the configuration of the main worktree, if it is yours".to_owned())),
    }
}

/// Returns the lines of a configuration that are settings, each with its section. A line of a form that git does not write
/// has a section that no harmless setting has. A value that goes on in the next line makes that line a setting, too.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut section = "";
    text.lines().map(str::trim).filter_map(move |line| {
        if line.is_empty() || line.starts_with(['#', ';']) {
            return None;
        }
        match line.strip_prefix('[') {
            None => Some((section, line)),
            Some(rest) => {
                // Subsections have quotes, which may contain anything.
                let name = rest.strip_suffix(']').filter(|name| !name.contains([']', '[']));
                section = name.unwrap_or("?");
                name.is_none().then_some((section, line))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn a_worktree_has_no_setting_of_its_own_that_executes_something() {
        let fix = Fixture::new();
        let tree = fix.root.join("w");
        fix.git(&["config", "extensions.worktreeConfig", "true"]);
        fix.git(&["config", "--worktree", "filter.own.clean", "cat"]);
        fix.git(&["worktree", "add", "-q", tree.to_str().expect("text")]);
        let common = fix.repo.join(".git");
        let entry = common.join("worktrees/w");
        let sets = |text: &str| {
            fs::write(entry.join(FILE), text).expect("written");
            check(&common, &entry).is_ok()
        };
        check(&common, &entry).expect("copied from the main worktree");
        fix.at(&tree, &["sparse-checkout", "set", "d"]);
        check(&common, &entry).expect("of git itself");
        fix.at(&tree, &["config", "--worktree", "user.email", "me@example.org"]);
        check(&common, &entry).expect("harmless");
        for text in [
            "[filter \"e\"]\n\tclean = touch x\n",
            "[filter \"own\"]\n\tclean = touch x\n",
            "[core] sshCommand = touch x\n",
            "[core]\n\tsparseCheckout = true\n[core]fsmonitor=touch x\n",
            "[user]\n\tname = x \\\n[core]\n\tpager = touch x\n",
            "[include]\n\tpath = x\n",
            "\u{feff}[include]\n\tpath = x\n",
            "[filter.e]\n\tclean = touch x\n",
            "[user]\r\n\tname = x\r\n[alias]\r\n\tx = !y\r\n",
        ] {
            assert!(!sets(text), "{text}");
        }
        assert!(sets("# nothing\n[core]\n\tbare = false\n") && sets(""));
        fix.git(&["config", "--unset", "extensions.worktreeConfig"]);
        assert!(sets("[include]\n\tpath = x\n"), "git does not read it");
    }
}
