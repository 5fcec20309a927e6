//! All of tmux that verbs may use: the window of a worker, keys, and what its screen shows.

pub use swarm_tmux::{
    Clear, Emulator, KEY_NAMES, Key, NamedKey, SendOptions, Shown, Size, Target, TmuxError, has_server, target,
};
#[cfg(feature = "testing")]
pub use swarm_tmux::{Window, testing};
