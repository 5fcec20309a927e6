//! Resource limits of one worker: as requested, what enforces each of them, and which of them were hit. The parsers are
//! here too, so that flags and configuration accept the same text.

use serde::{Deserialize, Serialize};

/// Minimum memory limit. A control group with less cannot even start its command.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// Minimum share of a processor that the kernel accepts, in thousandths.
const CPU_MILLI_MIN: u32 = 10;
/// Maximum processor limit in thousandths, more than any machine has.
const CPU_MILLI_MAX: u32 = 1_000_000;
/// Maximum number of processes that the kernel accepts.
const PIDS_MAX: u32 = 4 << 20;
/// Number of fractional digits that are read. Further digits are ignored.
const DIGITS_MAX: usize = 9;
/// Maximum number of integer digits. A longer number exceeds every limit, and would overflow.
const WHOLE_DIGITS_MAX: usize = 20;

/// Requested resource limits. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes of the worker together, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processor time, in thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u32>,
    /// Number of concurrent processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Output of one generation in bytes, including log parts that were rotated away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

impl Limits {
    /// Reports whether no limit is requested.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether the kernel must enforce any of the limits.
    pub fn needs_kernel(&self) -> bool {
        self.memory_bytes.is_some() || self.cpu_milli.is_some() || self.pids.is_some()
    }

    /// Returns these limits, with those of `others` that are not set here.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            cpu_milli: self.cpu_milli.or(others.cpu_milli),
            pids: self.pids.or(others.pids),
            max_output_bytes: self.max_output_bytes.or(others.max_output_bytes),
        }
    }
}

/// Limits as the configuration has them: `memory = "2G"`, `cpu = 1.5`, `pids = 200`, `max_output = "1G"`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsText {
    pub memory: Option<Typed>,
    pub cpu: Option<Typed>,
    pub pids: Option<Typed>,
    pub max_output: Option<Typed>,
}

/// Value in the configuration: a string, or a number without a unit.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Typed {
    Whole(i64),
    Real(f64),
    Text(String),
}

impl LimitsText {
    /// Parses all limits.
    ///
    /// # Errors
    /// Returns a message that starts with the key of the first invalid limit.
    pub fn parse(&self) -> Result<Limits, String> {
        Ok(Limits {
            memory_bytes: read("memory", self.memory.as_ref(), parse_memory)?,
            cpu_milli: read("cpu", self.cpu.as_ref(), parse_cores)?,
            pids: read("pids", self.pids.as_ref(), parse_pids)?,
            max_output_bytes: read("max_output", self.max_output.as_ref(), parse_size)?,
        })
    }
}

fn read<T>(key: &str, typed: Option<&Typed>, parse: fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    let text = match typed {
        None => return Ok(None),
        Some(Typed::Whole(number)) => number.to_string(),
        Some(Typed::Real(number)) => number.to_string(),
        Some(Typed::Text(text)) => text.clone(),
    };
    parse(&text).map(Some).map_err(|cause| format!("{key}: {cause}"))
}

/// Parses a size such as `512M`, `1.5G` or `1048576`, and returns it in bytes. Units are binary, with or without `B` or
/// `iB`.
///
/// # Errors
/// Fails if the text is not a size, is 0, or exceeds `i64::MAX` bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size (expected 512M, 2G or a number of bytes)");
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let bytes = scaled(number, 1 << shift).ok_or_else(wrong)?;
    match i64::try_from(bytes) {
        Ok(0) => Err("must be above 0".to_owned()),
        Ok(bytes) => Ok(bytes.unsigned_abs()),
        Err(_) => Err(format!("'{text}' is too large")),
    }
}

/// Parses a memory limit, and returns it in bytes.
///
/// # Errors
/// Fails as [`parse_size`] does, and if the limit is below 1 MiB.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    parse_size(text).and_then(|bytes| match bytes {
        ..MEMORY_BYTES_MIN => Err(format!("'{text}' is too small for any command (minimum 1M)")),
        bytes => Ok(bytes),
    })
}

/// Parses a number of processors such as `0.5` or `2`, and returns it in thousandths.
///
/// # Errors
/// Fails if the text is not a decimal number, or is not from 0.01 to 1000.
pub fn parse_cores(text: &str) -> Result<u32, String> {
    let milli = scaled(text, 1000).ok_or_else(|| format!("'{text}' is not a number of cores (expected 0.5 or 2)"))?;
    match u32::try_from(milli) {
        Ok(..CPU_MILLI_MIN) => Err(format!("'{text}' is too small (minimum 0.01)")),
        Ok(milli @ ..=CPU_MILLI_MAX) => Ok(milli),
        Ok(_) | Err(_) => Err(format!("'{text}' is too large (maximum {})", CPU_MILLI_MAX / 1000)),
    }
}

/// Parses a number of processes. Threads count as processes, as they do for the kernel.
///
/// # Errors
/// Fails if the text is not a whole number, is 0, or exceeds what the kernel accepts.
pub fn parse_pids(text: &str) -> Result<u32, String> {
    let wrong = || format!("'{text}' is not a number of processes (expected 200)");
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<u32>() {
        Ok(0) => Err("must be above 0".to_owned()),
        Ok(pids @ ..=PIDS_MAX) if is_number => Ok(pids),
        Ok(_) | Err(_) if is_number => Err(format!("'{text}' is too large (maximum {PIDS_MAX})")),
        Ok(_) | Err(_) => Err(wrong()),
    }
}

/// Returns a decimal number times `unit`, rounded down. `None` if the text is not a decimal number.
fn scaled(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    if !is_number || whole.is_empty() || number.ends_with('.') {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(DIGITS_MAX)];
    let whole = whole.trim_start_matches('0');
    if whole.len() > WHOLE_DIGITS_MAX {
        return Some(u128::MAX);
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let digits = u32::try_from(fraction.len()).ok()?;
    Some(whole * u128::from(unit) + part * u128::from(unit) / 10_u128.pow(digits))
}

/// Mechanism that enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    #[serde(rename = "cgroup-v2")]
    GroupV2,
    #[serde(rename = "cgroup-v1")]
    GroupV1,
    /// The kernel, for each process separately.
    Rlimit,
    /// The supervisor, which is notified of every write.
    Swarm,
}

/// Resource limits of a start, each with the mechanism that enforces it. A requested limit without a mechanism is not
/// in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Limits that were requested.
    #[serde(default)]
    pub asked: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<By>,
    /// Directories of the worker's control groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Size of the worker's logs before the start, in bytes.
    #[serde(default)]
    pub logged_before_bytes: u64,
}

const NO_GROUP: &str = "no control group can be created here";

impl Held {
    /// Returns a message for each requested limit that is not in force.
    pub fn warnings(&self) -> Vec<String> {
        let missing = |asked: bool, by: Option<By>| asked && by.is_none();
        let lines = [
            (missing(self.asked.memory_bytes.is_some(), self.memory), format!("--memory is not in force: {NO_GROUP}")),
            (missing(self.asked.cpu_milli.is_some(), self.cpu), format!("--cpu is not in force: {NO_GROUP}")),
            (
                missing(self.asked.pids.is_some(), self.pids),
                format!("--pids is not in force: {NO_GROUP}, and RLIMIT_NPROC counts all processes of the user"),
            ),
            (
                missing(self.asked.max_output_bytes.is_some(), self.output),
                "--max-output is not in force: cannot watch the worker's logs".to_owned(),
            ),
        ];
        lines.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, line)| line).collect()
    }

    /// Returns a message for each limit that is in force in a weaker form.
    pub fn notes(&self) -> Vec<String> {
        let line = format!("--memory applies to each process separately: {NO_GROUP}");
        (self.memory == Some(By::Rlimit)).then_some(line).into_iter().collect()
    }
}

/// Resource limits that a worker ran into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Number of processes that the kernel killed for lack of memory.
    #[serde(default)]
    pub oom_kills: u64,
    /// Number of processes that the kernel refused to create.
    #[serde(default)]
    pub pids_refused: u64,
}

impl Hits {
    /// Reports whether no limit was hit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Describes the hits, for a worker that ended for another reason. `None` if no limit was hit.
    pub fn words(&self) -> Option<String> {
        let processes = |count: u64| if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
        let killed = (self.oom_kills > 0).then(|| format!("{} out of memory", processes(self.oom_kills)));
        let refused = (self.pids_refused > 0).then(|| format!("{} refused by --pids", processes(self.pids_refused)));
        let both: Vec<String> = killed.into_iter().chain(refused).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
