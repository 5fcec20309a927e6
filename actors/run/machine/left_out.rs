//! Texts for people and for the next attempt about uncommitted paths that do not land.

/// Returns the part of the next attempt's prompt that lists the uncommitted paths that do not land.
pub(super) fn told(paths: &[String]) -> String {
    let (repositories, files): (Vec<_>, Vec<_>) = paths.iter().cloned().partition(|path| path.ends_with('/'));
    let mut told = String::new();
    if !files.is_empty() {
        told.push_str(&format!(
            "\n\nThese new files were not committed for you, because tools usually generate files of their kind: {}. \
             Commit them yourself ('git add -f') if they are part of the work.",
            listed(&files)
        ));
    }
    if !repositories.is_empty() {
        told.push_str(&format!(
            "\n\nWhat is uncommitted in these submodules or repositories was not committed for you: {}. If it is part \
             of the work, commit it there, and then commit the changed submodule.",
            listed(&repositories)
        ));
    }
    told
}

/// Returns the paths as one text; only the first of many.
pub(super) fn listed(paths: &[String]) -> String {
    const PATHS_MAX: usize = 20;
    let more = if paths.len() > PATHS_MAX { format!(" and {} more", paths.len() - PATHS_MAX) } else { String::new() };
    format!("{}{more}", paths[..paths.len().min(PATHS_MAX)].join(", "))
}
