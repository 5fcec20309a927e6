//! Flags that limit the resources of a worker.

use clap::Args;
use swarm_model::{Limits, parse_cores, parse_memory, parse_pids, parse_size};

/// Resource limits, enforced by the kernel as far as this system permits; `status --json` shows how each is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct LimitFlags {
    /// Limit the total memory of the worker's processes: 512M, 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Limit the CPU cores that the worker's processes use together: 0.5, 2
    #[arg(long, value_name = "CORES", value_parser = parse_cores)]
    pub cpu: Option<u32>,
    /// Limit the number of the worker's processes and threads
    #[arg(long, value_name = "N", value_parser = parse_pids)]
    pub pids: Option<u32>,
    /// Stop the worker if it writes more than this to its logs: 100M, 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_output: Option<u64>,
}

impl From<Limits> for LimitFlags {
    fn from(limits: Limits) -> Self {
        let Limits { memory_bytes, cpu_milli, pids, max_output_bytes } = limits;
        Self { memory: memory_bytes, cpu: cpu_milli, pids, max_output: max_output_bytes }
    }
}

impl From<LimitFlags> for Limits {
    fn from(flags: LimitFlags) -> Self {
        Self { memory_bytes: flags.memory, cpu_milli: flags.cpu, pids: flags.pids, max_output_bytes: flags.max_output }
    }
}
