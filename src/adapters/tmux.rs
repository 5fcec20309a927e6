//! tmux: windows by ids, text by paste buffer.
