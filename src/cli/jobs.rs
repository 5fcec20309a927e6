//! Words about workers that are jobs of Slurm.

use swarm_model::{FineState, Job, Over, WorkerView};
use swarm_sys::clock::wall_ms;

use super::render::escape;

/// Time without an answer of Slurm after which that is said.
const SILENT_MS: u64 = 10 * 60 * 1000;

/// Returns where the job is: `job 4711 on n1`.
pub fn place(job: &Job) -> String {
    let number = job.number.map_or_else(|| escape(&job.name).into_owned(), |number| number.to_string());
    let node = job.node.as_ref().map(|node| format!(" on {}", escape(node)));
    format!("job {number}{}", node.unwrap_or_default())
}

/// Returns the state in Slurm's words: `PENDING (Resources)`.
pub fn words(job: &Job) -> String {
    let state = job.state.as_deref().unwrap_or("Slurm has not said anything yet");
    let reason = job.reason.as_ref().map(|reason| format!(" ({reason})"));
    let node = job.node.as_ref().map(|node| format!(" on {node}"));
    escape(&format!("{state}{}{}", reason.unwrap_or_default(), node.unwrap_or_default())).into_owned()
}

/// Returns what is known beside the state: why the job waits, for how long Slurm is silent, or what it says about the end.
pub fn said(view: &WorkerView, job: &Job) -> Option<String> {
    match view.state {
        FineState::Queued | FineState::Running | FineState::Suspended if is_silent(job) => {
            Some(format!("not known, {}", silence(job)))
        }
        FineState::Queued => job.reason.as_ref().map(|reason| escape(reason).into_owned()),
        _ => None,
    }
}

fn is_silent(job: &Job) -> bool {
    job.asked_ms.is_some_and(|asked| wall_ms().saturating_sub(asked) >= SILENT_MS)
}

fn silence(job: &Job) -> String {
    let minutes = job.asked_ms.map_or(0, |asked| wall_ms().saturating_sub(asked) / 60_000);
    format!("Slurm has not answered for {minutes} min")
}

/// Returns why a worker that is a job is in its state. `None` if its own record says that, or if it is no job.
pub fn because(view: &WorkerView) -> Option<String> {
    let job = view.job.as_ref()?;
    let slurm = format!("Slurm says {}", words(job));
    let told = if job.state.is_some() { slurm } else { "Slurm has not said anything about it yet".to_owned() };
    let told = if is_silent(job) { format!("{told}; {}", silence(job)) } else { told };
    match view.state {
        FineState::Queued => Some(format!("its job waits in the queue; {told}")),
        FineState::Running | FineState::Suspended => Some(format!("its job works; {told}")),
        FineState::Lost if job.over == Some(Over::Unproven) => {
            Some(format!("it has no exit record, and may still work on a node that Slurm does not reach; {told}"))
        }
        FineState::Lost => Some(format!("its job ended without an exit record; {told}")),
        FineState::Stopped if view.exit.is_none() => Some(format!("stopped before it recorded an end; {told}")),
        FineState::Interrupted => Some(format!("its job was ended by a signal that swarm did not send; {told}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::render::long_state;
    use crate::cli::sample;

    fn view(state: FineState, job: Job) -> WorkerView {
        WorkerView { state, job: Some(job), pid: None, ..sample::process("x") }
    }

    fn job(word: &str, over: Option<Over>) -> Job {
        let (state, reason) = (Some(word.to_owned()), Some("Resources".to_owned()));
        let asked_ms = Some(wall_ms());
        Job { host: "c".into(), name: "x.01".into(), number: Some(7), state, reason, over, asked_ms, ..Job::default() }
    }

    #[test]
    fn a_job_is_described_in_the_words_of_slurm() {
        let waits = view(FineState::Queued, job("PENDING", None));
        assert_eq!(long_state(&waits), "queued: Resources");
        assert_eq!(because(&waits).as_deref(), Some("its job waits in the queue; Slurm says PENDING (Resources)"));
        let lost = because(&view(FineState::Lost, job("NODE_FAIL", Some(Over::Unproven)))).expect("a cause");
        assert!(lost.contains("may still work") && lost.contains("NODE_FAIL"), "{lost}");
        assert_eq!(because(&view(FineState::Exited, job("COMPLETED", None))), None);
        assert_eq!(place(&Job { node: Some("n1".into()), ..job("RUNNING", None) }), "job 7 on n1");
    }

    #[test]
    fn silence_is_no_end_and_is_said_after_ten_minutes() {
        let silent = |ms| view(FineState::Running, Job { asked_ms: Some(wall_ms() - ms), ..job("RUNNING", None) });
        assert_eq!(long_state(&silent(9 * 60_000)), "running");
        assert_eq!(long_state(&silent(11 * 60_000)), "running: not known, Slurm has not answered for 11 min");
    }
}
