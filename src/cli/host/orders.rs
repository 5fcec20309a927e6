//! Orders that a host did not get: attempts of runs that were stopped or given up while it was out of reach. A verb that
//! reaches the host delivers them first. The work of these attempts comes back with the next run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use swarm_hosts::frames::{Ask, Tell};
use swarm_hosts::{Host, Next, Pipe};
use swarm_store::runs::far::{FarAnswer, FarCall};
use swarm_sys::paths::Paths;

use crate::reach::owed::{self, Owed};

/// Time for the host to carry them out. What it has not answered by then stays owed.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Delivers the orders for a host that answers, over a connection of its own. What fails is tried again at the next contact.
pub fn deliver(host: &Host) {
    let Ok(paths) = Paths::from_env() else { return };
    deliver_of(&paths, host);
}

fn deliver_of(paths: &Paths, host: &Host) {
    let all = owed::of_host(paths, &host.name).into_iter().filter(|(_, owed)| owed.to_stop().is_some());
    let mut all: BTreeMap<u64, (PathBuf, Owed)> = (1..).zip(all).collect();
    if all.is_empty() {
        return;
    }
    let Ok(mut pipe) = Pipe::open(host) else { return };
    for (id, (_, owed)) in &all {
        let call = owed.to_stop().map(|at| serde_json::to_value(FarCall::Stop(at.clone())));
        let Some(Ok(call)) = call else { continue };
        if pipe.send(&Ask::Call { id: *id, call, state: host.state.clone() }).is_err() {
            return;
        }
    }
    let deadline = Instant::now() + ANSWER_MAX;
    while !all.is_empty() {
        match pipe.wait(deadline) {
            Next::Tell(Tell::Answer { id, answer, .. }) => {
                let is_done = matches!(serde_json::from_value(answer), Ok(FarAnswer::Done));
                if let Some((file, owed)) = all.remove(&id).filter(|_| is_done) {
                    owed::stopped(&file, &owed);
                }
            }
            Next::Tell(Tell::Refused(_)) | Next::Nothing | Next::Cut => return,
            Next::Tell(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use swarm_store::runs::far::{FarAttempt, FarClone};

    use super::*;

    /// Takes the place of the far end: notes the calls, and answers with the content of `answer`.
    const FAR: &str = r#"
cd "$0" || exit 9
echo 'swarm-stdio {"protocol":2,"min":1,"version":"1"}'
while read -r line; do
    case $line in *'"call"'*) ;; *) continue ;; esac
    printf '%s\n' "$line" >>calls
    id=${line#*'"id":'}
    read -r answer <answer
    printf '{"answer":{"id":%s,"answer":%s}}\n' "${id%%,*}" "$answer"
done"#;

    fn stop(job: &str, host: &str) -> Owed {
        let clone = FarClone { controller: "c0".into(), repository: "d0".into() };
        let (run, job, worker) = ("r".into(), job.into(), "w".into());
        let at = FarAttempt { clone, run, job, attempt: 1, worker, host: None };
        Owed::new(host, FarCall::Stop(at))
    }

    #[test]
    fn a_verb_delivers_what_the_host_did_not_get_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path().join("state"));
        let words = ["sh", "-c", FAR, &dir.path().display().to_string()].map(|word| format!("{word:?}"));
        let text = format!("command = [{}]\nstate = \"there\"\n", words.join(", "));
        let config = toml::from_str(&text).expect("a host");
        let host = swarm_hosts::find("box", &BTreeMap::from([("box".to_owned(), config)])).expect("known");
        deliver_of(&paths, &host);
        assert!(!dir.path().join("calls").exists(), "nothing is owed, so nobody is asked");
        for (job, of) in [("a", "box"), ("b", "box"), ("c", "other")] {
            owed::record(&paths, job, &stop(job, of)).expect("recorded");
        }
        let forget =
            Owed { call: FarCall::Forget(stop("d", "box").at().expect("an attempt").clone()), ..stop("d", "box") };
        owed::record(&paths, "d", &forget).expect("recorded");
        let answer = |text: &str| fs::write(dir.path().join("answer"), format!("{text}\n")).expect("written");
        let left = |of: &str| owed::of_host(&paths, of).len();
        answer(r#"{"busy":"a lock"}"#);
        deliver_of(&paths, &host);
        assert_eq!((left("box"), left("other")), (3, 1), "it is not done yet");
        answer(r#""done""#);
        deliver_of(&paths, &host);
        assert_eq!((left("box"), left("other")), (1, 1));
        let calls = fs::read_to_string(dir.path().join("calls")).expect("asked");
        assert_eq!(calls.lines().count(), 4);
        assert!(
            calls.lines().all(|line| line.contains(r#"{"stop":"#) && line.contains(r#""state":"there""#)),
            "{calls}"
        );
    }
}
