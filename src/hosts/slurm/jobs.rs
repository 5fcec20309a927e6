//! What Slurm says about jobs. Read as text: its JSON differs between releases, and one of them ignores all filters there.

use std::time::Duration;

/// Format of a line of squeue. The name is last, because it may contain anything.
pub const FORMAT: &str = "%i|%T|%r|%B|%S|%e|%j";
/// Beginning of the names of jobs that are allocations. The name of the host and a token follow.
const PREFIX: &str = "swarm";
/// Length of a token in hex digits.
pub const TOKEN_DIGITS: usize = 12;

/// State of a job, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The job waits in the queue.
    Pending,
    Running,
    /// Slurm has suspended the job.
    Suspended,
    /// Slurm is ending the processes of the job.
    Ending,
    /// All processes of the job have ended.
    Over,
    /// It counts as ended, but its node was not asked, or could not be: its processes may still work.
    Lost,
    /// A state that is not known here. It may still work.
    Unknown,
}

impl State {
    /// Reads a state by its first word: later releases append others with `+`, and squeue may append a reason.
    pub fn parse(text: &str) -> Self {
        let mut words = text.split(['+', ' ']);
        if words.clone().any(|word| word == "COMPLETING" || word == "STAGE_OUT") {
            return Self::Ending;
        }
        match words.next().unwrap_or_default() {
            "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT"
            | "RESV_DEL_HOLD" => Self::Pending,
            "RUNNING" | "RESIZING" | "SIGNALING" => Self::Running,
            "SUSPENDED" | "STOPPED" => Self::Suspended,
            "COMPLETED" | "FAILED" | "CANCELLED" | "TIMEOUT" | "OUT_OF_MEMORY" | "DEADLINE" => Self::Over,
            "NODE_FAIL" | "PREEMPTED" | "BOOT_FAIL" | "REVOKED" | "LAUNCH_FAILED" => Self::Lost,
            _ => Self::Unknown,
        }
    }

    /// Reports whether the job may still work, or begin to.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::Over | Self::Lost)
    }
}

/// A job that is an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: u64,
    pub state: State,
    /// State in Slurm's word.
    pub word: String,
    /// Why it waits or has ended, in Slurm's words.
    pub reason: Option<String>,
    /// Node of its first process.
    pub node: Option<String>,
    /// Begin and end, in seconds since the Unix epoch. The end is that of its time limit while it runs.
    pub begun: Option<u64>,
    pub ends: Option<u64>,
    pub token: String,
}

impl Job {
    /// Returns the time until its limit.
    pub fn left(&self, now_ms: u64) -> Option<Duration> {
        let ends_ms = self.ends.filter(|_| self.state == State::Running)?.saturating_mul(1000);
        Some(Duration::from_millis(ends_ms.saturating_sub(now_ms)))
    }
}

/// Returns the name of a job.
pub fn name(host: &str, token: &str) -> String {
    format!("{PREFIX}.{host}.{token}")
}

/// A line of squeue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub id: u64,
    pub state: State,
    /// State in Slurm's word.
    pub word: String,
    /// Why the job waits or has ended, in Slurm's words.
    pub reason: Option<String>,
    /// Node of its first process.
    pub node: Option<String>,
    begun: Option<u64>,
    ends: Option<u64>,
    pub name: String,
}

/// Returns the jobs in what squeue has printed. Elements of arrays are left out, because no job here is one.
pub fn lines(text: &str) -> Vec<Line> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Line> {
    let mut fields = line.splitn(7, '|').map(str::trim);
    let mut next = || fields.next();
    let (id, word, reason, node, begun, ends, name) = (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    let told = |text: &str| (!["", "None", "n/a", "N/A", "(null)"].contains(&text)).then(|| text.to_owned());
    Some(Line {
        id: id.parse().ok()?,
        state: State::parse(word),
        word: word.to_owned(),
        reason: told(reason),
        node: told(node).filter(|node| node.chars().all(|it| it.is_ascii_alphanumeric() || "._-".contains(it))),
        begun: begun.parse().ok(),
        ends: ends.parse().ok(),
        name: name.to_owned(),
    })
}

/// Returns the jobs of the host in what squeue has printed.
pub fn jobs(text: &str, host: &str) -> Vec<Job> {
    lines(text).into_iter().filter_map(|line| job(line, host)).collect()
}

fn job(line: Line, host: &str) -> Option<Job> {
    let token = line.name.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_prefix(host)?.strip_prefix('.')?;
    let is_token = token.len() == TOKEN_DIGITS && token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let token = token.to_owned();
    let Line { id, state, word, reason, node, begun, ends, .. } = line;
    is_token.then_some(Job { id, state, word, reason, node, begun, ends, token })
}

/// Returns the job that is the host: the one that holds the directory, if it is live; else the newest live one; else the
/// one that has ended last.
pub fn present<'a>(jobs: &'a [Job], holder: Option<&str>) -> Option<&'a Job> {
    let newest = |is_meant: &dyn Fn(&&Job) -> bool| jobs.iter().filter(is_meant).max_by_key(|job| job.id);
    let holds = |job: &&Job| holder == Some(job.token.as_str());
    newest(&|job| holds(job) && job.state.is_live())
        .or_else(|| newest(&|job| job.state.is_live()))
        .or_else(|| newest(&|_| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_by_their_first_word_and_an_unknown_one_is_no_end() {
        for (text, expected) in [
            ("PENDING", State::Pending),
            ("CONFIGURING", State::Pending),
            ("RUNNING", State::Running),
            ("RUNNING+SIGNALING", State::Running),
            ("SUSPENDED", State::Suspended),
            ("COMPLETING", State::Ending),
            ("CANCELLED+COMPLETING", State::Ending),
            ("COMPLETED", State::Over),
            ("CANCELLED by 0", State::Over),
            ("CANCELLED", State::Over),
            ("TIMEOUT", State::Over),
            ("FAILED+RECONFIG_FAIL", State::Over),
            ("OUT_OF_MEMORY", State::Over),
            ("NODE_FAIL", State::Lost),
            ("PREEMPTED", State::Lost),
            ("BOOT_FAIL", State::Lost),
            ("EXPEDITING", State::Unknown),
            ("COMPLETED_LATER", State::Unknown),
            ("", State::Unknown),
        ] {
            assert_eq!(State::parse(text), expected, "{text}");
        }
        assert!(State::Unknown.is_live() && State::Ending.is_live() && !State::Lost.is_live());
    }

    #[test]
    fn only_jobs_of_the_host_are_read() {
        let text = "12|RUNNING|None|n1|1795786537|1795786837|swarm.cluster.0123456789ab\n\
                    13|PENDING|ReqNodeNotAvail, UnavailableNodes:n1|n/a|N/A|N/A|swarm.cluster.ba9876543210\n\
                    14|RUNNING|None|n1|1|2|swarm.other.0123456789ab\n\
                    15|RUNNING|None|n1|1|2|swarm.cluster.b.0123456789ab\n\
                    16|RUNNING|None|n1|1|2|swarm.cluster.0123\n17|RUNNING|None|n1|1|2|a|b\n18_4|X\nsqueue: hello\n";
        let jobs = jobs(text, "cluster");
        assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [12, 13]);
        assert_eq!((jobs[0].node.as_deref(), jobs[0].ends), (Some("n1"), Some(1_795_786_837)));
        assert_eq!(jobs[0].left(1_795_786_837_000 - 60_500), Some(Duration::from_millis(60_500)));
        assert_eq!(jobs[1].reason.as_deref(), Some("ReqNodeNotAvail, UnavailableNodes:n1"));
        assert_eq!((jobs[1].left(0), &jobs[1].node), (None, &None));
        assert_eq!(name("cluster", "0123456789ab"), "swarm.cluster.0123456789ab");
    }

    #[test]
    fn the_holder_is_the_host_while_it_lives() {
        let job = |id, word: &str, token: &str| Job {
            id,
            state: State::parse(word),
            word: word.into(),
            reason: None,
            node: None,
            begun: None,
            ends: None,
            token: token.into(),
        };
        let all = [job(1, "TIMEOUT", "a"), job(2, "RUNNING", "b"), job(3, "PENDING", "c"), job(4, "FAILED", "d")];
        for (holder, expected) in [(Some("b"), 2), (Some("a"), 3), (None, 3)] {
            assert_eq!(present(&all, holder).map(|job| job.id), Some(expected), "{holder:?}");
        }
        let over = [all[0].clone(), all[3].clone()];
        assert_eq!(present(&over, Some("a")).map(|job| job.id), Some(4));
        assert_eq!(present(&[], None), None);
    }
}
