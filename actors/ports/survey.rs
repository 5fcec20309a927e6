//! Result of reading all things of one kind when a supervisor starts.

/// Place that exists and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Name or path, for messages.
    pub place: String,
    pub cause: String,
}

/// Things of one kind on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey<T> {
    pub found: Vec<T>,
    /// One thing that cannot be read must not keep the others from being supervised, so it is listed here.
    pub unread: Vec<Unread>,
}

impl<T> Default for Survey<T> {
    fn default() -> Self {
        Self { found: Vec::new(), unread: Vec::new() }
    }
}

impl<T> Survey<T> {
    pub fn map<U>(self, into: impl FnMut(T) -> U) -> Survey<U> {
        Survey { found: self.found.into_iter().map(into).collect(), unread: self.unread }
    }

    /// Adds a place that cannot be read.
    pub fn miss(&mut self, place: impl ToString, cause: impl ToString) {
        self.unread.push(Unread { place: place.to_string(), cause: cause.to_string() });
    }
}
