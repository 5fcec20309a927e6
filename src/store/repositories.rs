//! All of git that verbs may use. Verbs import git through this list only, so that it shows what of git reaches the
//! command line.

pub use swarm_git::repository::{
    Listed, Site, branch_tip, common_dir, contains, content_in, exclude, has_branch, is_branch_name, lines, main_tree,
    remove_landed_branch, repair_bare, root, site, tracked, worktrees_of,
};
pub use swarm_git::trash;
pub use swarm_git::worktrees::{include, kept_worktree, topic, usage};

pub use crate::tenants::{check_free, remove_without_work, remove_worktree_if_clean};

/// Merge queues as their journals have them, for verbs that ask no supervisor.
pub mod landing {
    pub use swarm_git::landing::{DamagedQueue, damaged, has_resolver, journal, target_of};
}
