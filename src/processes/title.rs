//! The command line of a process that was forked and executes no other program, as `ps` shows it.

/// Memory from which the kernel reads this process's command line.
pub struct Title(&'static mut [u8]);

impl Title {
    /// Returns `None` if the kernel does not report its location; the command line is not changed then.
    pub fn find() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        // Fields 48 and 49 of proc(5), `arg_start` and `arg_end`; the first here is 3.
        let mut fields = fields.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
        let (start, end) = (fields.next()?.ok()?, fields.next()?.ok()?);
        let length = end.checked_sub(start).filter(|_| start > 0)?;
        // SAFETY: the kernel put the arguments there, writable, at the exec; they
        // were read before, and nothing reads them again.
        #[expect(unsafe_code, reason = "the arguments' memory has no name in Rust")]
        let memory = unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), length) };
        Some(Self(memory))
    }

    /// Returns a word of the command line. Empty if there is none.
    pub fn word(&self, index: usize) -> &[u8] {
        self.0.split(|byte| *byte == 0).nth(index).unwrap_or_default()
    }

    /// Shows these words, as far as there is room.
    pub fn set(&mut self, words: &[&[u8]]) {
        let text = words.join(&0);
        // The last byte must stay zero, or the kernel continues to read into the environment.
        let shown = text.len().min(self.0.len().saturating_sub(1));
        self.0[..shown].copy_from_slice(&text[..shown]);
        self.0[shown..].fill(0);
    }
}
