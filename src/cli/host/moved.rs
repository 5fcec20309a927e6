//! Whether a host still has the state directory to which attempts were sent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use swarm_hosts::frames::{Ask, Tell};
use swarm_hosts::{Host, Next, Pipe};
use swarm_model::{Refusal, RefusalKind};
use swarm_store::runs::far::FarCall;
use swarm_sys::paths::Paths;

use crate::reach::sent::sent_to;

/// Time for the host to say which state directory it has.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum number of attempts that are named.
const NAMED_MAX: usize = 5;

/// Returns what is wrong if attempts were sent to another state directory than the one that answers on the host now: it was
/// moved away, or the account or the machine is another one. A host that is not known to have any attempt is not asked.
pub fn moved(paths: &Paths, host: &Host) -> Option<Refusal> {
    let sent = sent_to(paths, &host.name);
    if sent.is_empty() {
        return None;
    }
    let own = state_id_of(host)?;
    let astray: BTreeSet<&str> = sent.iter().filter(|(_, id)| **id != own).map(|(name, _)| name.as_str()).collect();
    if astray.is_empty() {
        return None;
    }
    let mut named: Vec<&str> = astray.iter().copied().take(NAMED_MAX).collect();
    named.extend((astray.len() > NAMED_MAX).then_some("…"));
    let cause = format!(
        "{}: its state directory is not the one that has {} of runs here ({})",
        host.name,
        if astray.len() == 1 { "an attempt" } else { "attempts" },
        named.join(", ")
    );
    let remedy = format!(
        "if it was moved away there, move it back; if it is gone for good, run 'swarm run give-up ID' for workstreams that \
         wait for it, and 'swarm hosts forget {} --force' for what is to be removed there",
        host.name
    );
    Some(Refusal::new(RefusalKind::Invalid, cause).remedy(remedy))
}

/// Returns the id of the state directory on the host. `None` if it does not say.
fn state_id_of(host: &Host) -> Option<String> {
    let mut pipe = Pipe::open(host).ok()?;
    let call = serde_json::to_value(FarCall::Hail {}).ok()?;
    pipe.send(&Ask::Call { id: 1, call, state: host.state.clone() }).ok()?;
    let deadline = Instant::now() + ANSWER_MAX;
    loop {
        match pipe.wait(deadline) {
            Next::Tell(Tell::Answer { host, .. }) => return host,
            Next::Tell(Tell::Refused(_)) | Next::Nothing | Next::Cut => return None,
            Next::Tell(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swarm_store::runs::far::{FarAttempt, FarClone};

    use super::*;
    use crate::reach::owed::{self, Owed};

    /// Takes the place of the far end, with the state directory `$0`.
    const FAR: &str = r#"
echo 'swarm-stdio {"protocol":2,"min":1,"version":"1"}'
while read -r line; do
    case $line in *'"call"'*) printf '{"answer":{"id":1,"answer":"done","host":"%s"}}\n' "$0" ;; esac
done"#;

    fn host(state: &str) -> Host {
        let words = ["sh", "-c", FAR, state].map(|word| format!("{word:?}"));
        let config = toml::from_str(&format!("command = [{}]\n", words.join(", "))).expect("a host");
        swarm_hosts::find("box", &BTreeMap::from([("box".to_owned(), config)])).expect("known")
    }

    #[test]
    fn attempts_that_another_state_directory_has_are_named_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = Paths::new(dir.path());
        assert_eq!(moved(&paths, &host("b1")), None, "nothing was sent there");
        for (job, attempt, id) in [("one", 1, Some("a0")), ("two", 3, Some("b1")), ("three", 1, None)] {
            let clone = FarClone { controller: "c0".into(), repository: "d0".into() };
            let (run, worker, host) = ("r".into(), "w".into(), id.map(str::to_owned));
            let at = FarAttempt { clone, run, job: job.into(), attempt, worker, host };
            owed::record(&paths, job, &Owed::new("box", FarCall::Forget(at))).expect("recorded");
        }
        let told = moved(&paths, &host("b1")).expect("one is elsewhere");
        assert_eq!(told.cause, "box: its state directory is not the one that has an attempt of runs here (one.1)");
        assert!(told.remedy.is_some_and(|text| text.contains("swarm hosts forget box --force")));
        let told = moved(&paths, &host("e2")).expect("both are elsewhere");
        assert!(told.cause.ends_with("has attempts of runs here (one.1, two.3)"), "{}", told.cause);
    }
}
