//! When the journal of a run is written.

use swarm_model::run::plan::Job;

use crate::fixture::Rig;
use crate::run::{HOME, begin, end, job, pass, stages};

#[tokio::test(start_paused = true)]
async fn the_start_of_an_attempt_is_written_with_what_follows_or_soon() {
    for ends_at_once in [true, false] {
        let rig = Rig::start().await;
        begin(&rig, vec![Job { merge: false, branch: None, ..job("a") }]).await;
        let writes = || rig.world.script.calls().iter().filter(|call| call.starts_with("run.append")).count();
        let has_pid = || rig.world.runs.run(HOME).jobs[0].pid.is_some();
        assert_eq!((writes(), has_pid()), (1, false), "only the beginning of the run waits for the disk");
        if ends_at_once {
            end(&rig, "a", 0);
            pass(&rig).await;
            assert_eq!((stages(&rig.world.runs.run(HOME)), writes()), (vec!["done"], 2));
        } else {
            pass(&rig).await;
            assert_eq!((writes(), has_pid()), (2, true));
        }
        rig.check();
    }
}
