//! Hosts that are allocations of Slurm, whose commands are replaced by scripts: a job is a process, a step as well.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::common::{Rig, SOON, Said, proc, run, wait_until};

const SBATCH: &str = r#"
[ "$1" != --version ] || exec echo slurm 22.05
for word; do case $word in --job-name=*) name=${word#*=};; esac; done
[ ! -e $d/refuse ] || { echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1; }
n=$(($(cat $d/last 2>/dev/null || echo 0) + 1)); echo $n > $d/last
cat > $d/$n.sh; echo $name > $d/$n.name
if [ -e $d/full ]; then state $n 'PENDING|Resources|n/a|N/A|N/A'; else $d/bin/begin $n; fi
[ ! -e $d/late ] || { echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1; }
echo $n
"#;
/// Starts a job, whose end becomes its state.
const BEGIN: &str = r#"
n=$1 now=$(date +%s)
state $n "RUNNING|None|n1|$now|$((now + 7200))"
(clean SLURM_JOB_ID=$n SLURMD_NODENAME=n1 sh $d/$n.sh > job-$n.log 2>&1 & echo $! > $d/$n.pid; wait $!
 if [ $? = 0 ]; then word=COMPLETED; else word=FAILED; fi
 [ -e $d/$n.failed ] || state $n "$word|None|n1|$now|$now") < /dev/null > /dev/null 2>&1 &
"#;
const SQUEUE: &str = r#"
[ ! -e $d/down ] || { echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
for file in $d/*.state; do
  n=${file##*/}; n=${n%.state}
  [ ! -e $file ] || echo "$n|$(cat $file)|$(cat $d/$n.name)"
done
"#;
const SCANCEL: &str = r#"
[ ! -e $d/down ] || { echo 'scancel: error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
signal= numbers=
for word; do case $word in
  --signal=*) signal=1;;
  --name=*) for file in $d/*.name; do
    [ "$(cat $file)" != "${word#*=}" ] || { n=${file##*/}; numbers="$numbers ${n%.name}"; }
  done;;
  --*) ;;
  *) numbers=$word;;
esac; done
for n in $numbers; do case $(cat $d/$n.state) in
  RUNNING*) kill -TERM $(cat $d/$n.pid);;
  PENDING*) [ "$signal" ] || state $n 'CANCELLED by 0|None|n/a|N/A|N/A';;
esac; done
"#;
const SRUN: &str = "
while :; do case $1 in -*) shift;; *) break;; esac; done
clean \"$@\"
";
const SINFO: &str = "cat $d/node 2>/dev/null || echo idle\n";

/// A person's rig, on a login node.
pub struct Cluster(pub Rig);

impl Cluster {
    pub fn new() -> Self {
        let rig = Rig::new();
        let dir = rig.path("slurm");
        fs::create_dir_all(dir.join("bin")).expect("made");
        let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").expect("set"));
        // Nothing of the caller's environment arrives on a node.
        let head = format!(
            "#!/bin/sh\nd={}\nstate() {{ echo \"$2\" > $d/$1.new; mv $d/$1.new $d/$1.state; }}\n\
             clean() {{ exec env -i {} HOME={} TMUX_TMPDIR={} PATH={path} LANG=C.UTF-8 \"$@\"; }}\n",
            dir.display(),
            rig.marker(),
            rig.home().display(),
            rig.path("tmux").display(),
        );
        for (name, text) in [
            ("sbatch", SBATCH),
            ("begin", BEGIN),
            ("squeue", SQUEUE),
            ("scancel", SCANCEL),
            ("srun", SRUN),
            ("sinfo", SINFO),
        ] {
            let program = dir.join("bin").join(name);
            fs::write(&program, format!("{head}{text}")).expect("written");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
        }
        // Start files of a login shell may set PATH anew.
        fs::write(rig.home().join(".profile"), format!("export PATH={path}\n")).expect("written");
        let config = rig.home().join(".config/swarm");
        fs::create_dir_all(&config).expect("made");
        let program = env!("CARGO_BIN_EXE_swarm");
        let text = format!(
            "[hosts.cluster]\nengine = 'slurm-pilot'\nswarm = '{program}'\n\
             [hosts.jobs]\nengine = 'slurm'\nswarm = '{program}'\nask = '1s'\narguments = ['--account=a b']\n"
        );
        fs::write(config.join("config.toml"), text).expect("written");
        Self(rig)
    }

    pub fn swarm(&self, words: &[&str]) -> Said {
        let mut command = self.0.command(words);
        let path = format!("{}:{}", self.0.path("slurm/bin").display(), std::env::var("PATH").expect("set"));
        // As in a job of somebody's own.
        command.env("PATH", path).env("SLURM_JOB_ID", "99").env("SBATCH_TIMELIMIT", "1");
        run(command)
    }

    fn on(&self, words: &[&str]) -> Said {
        self.swarm(&[&["--host", "cluster"], words].concat())
    }

    pub fn set(&self, leaf: &str, text: &str) {
        fs::write(self.0.path("slurm").join(leaf), text).expect("written");
    }

    pub fn unset(&self, leaf: &str) {
        fs::remove_file(self.0.path("slurm").join(leaf)).expect("set before");
    }

    fn start(&self, words: &[&str], job: u32) {
        let said = self.swarm(&[&["hosts", "start", "cluster", "--wait"], words].concat());
        assert_eq!(said.ok(), format!("submitted allocation {job} of cluster\ncluster is up\n"));
    }

    /// Returns state and allocation of the host.
    fn host(&self) -> (String, Value) {
        let list: Value = serde_json::from_str(&self.swarm(&["hosts", "--json"]).out).expect("JSON");
        let host = &list["hosts"][0];
        (host["state"].as_str().expect("a state").to_owned(), host["allocation"].clone())
    }

    /// Ends all processes of the node, as if it had failed.
    pub fn fail_node(&self, job: u32) {
        self.set(&format!("{job}.failed"), "");
        // One that is killed later may have started another one meanwhile.
        wait_until("the node is empty", SOON, || {
            let all = self.0.processes();
            all.iter().copied().for_each(proc::kill);
            all.is_empty()
        });
        self.set(&format!("{job}.state"), "NODE_FAIL|NodeFail|n1|1|2\n");
        self.set("node", "down*\n");
    }
}

#[test]
fn an_allocation_is_a_host_and_the_next_one_is_the_same_after_a_restart() {
    let cluster = Cluster::new();
    cluster.start(&[], 1);
    cluster.on(&["spawn", "--name", "w", "--", "sh", "-c", "env | grep -c ^SLURM_; exit 7"]).ok();
    assert_eq!(cluster.on(&["wait", "w", "--exit-code"]).code, Some(7));
    assert_eq!(cluster.on(&["logs", "w"]).ok(), "0\n");
    let (state, allocation) = cluster.host();
    assert_eq!((state.as_str(), allocation["job"].as_u64()), ("up", Some(1)));
    assert!(allocation["left_s"].as_u64().is_some_and(|left| left > 7000), "{allocation}");
    let again = cluster.swarm(&["hosts", "start", "cluster"]);
    assert!(again.code == Some(1) && again.err.contains("cluster has an allocation: 1 running"), "{again:?}");
    cluster.on(&["spawn", "--name", "long", "--", "sleep", "600"]).ok();
    assert_eq!(cluster.swarm(&["hosts", "stop", "cluster"]).ok(), "ended allocation 1 of cluster\n");
    let gone = cluster.on(&["ls"]);
    assert!(gone.code == Some(255) && gone.err.contains("has ended, as COMPLETED"), "{gone:?}");
    cluster.start(&["-t", "2h", "--", "--account=a b"], 2);
    assert_eq!(cluster.on(&["wait", "w", "--exit-code"]).code, Some(7));
    assert!(cluster.on(&["ls"]).ok().contains("long  stopped"));
    cluster.on(&["spawn", "--name", "next", "--", "true"]).ok();
}

#[test]
fn what_slurm_says_is_passed_on_and_no_answer_is_no_end() {
    let cluster = Cluster::new();
    let said = cluster.on(&["ls"]);
    assert!(said.code == Some(255) && said.err.contains("cluster has no allocation"), "{said:?}");
    cluster.set("refuse", "");
    let said = cluster.swarm(&["hosts", "start", "cluster"]);
    assert!(said.code == Some(1) && said.err.contains("Invalid partition name specified"), "{said:?}");
    cluster.unset("refuse");
    cluster.set("full", "");
    assert_eq!(cluster.swarm(&["hosts", "start", "cluster"]).ok(), "submitted allocation 1 of cluster\n");
    assert_eq!(cluster.host().0, "pending");
    assert!(cluster.on(&["ls"]).err.contains("allocation 1 of cluster is pending (Resources)"));
    assert_eq!(cluster.swarm(&["hosts", "stop", "cluster"]).ok(), "ended allocation 1 of cluster\n");
    cluster.unset("full");
    // The answer comes too late, and the job is there.
    cluster.set("late", "");
    cluster.start(&[], 2);
    cluster.on(&["spawn", "--name", "w", "--", "sleep", "600"]).ok();
    cluster.set("down", "");
    assert!(cluster.on(&["ls"]).err.contains("cannot ask Slurm for the allocations of cluster: slurm_load_jobs error"));
    assert_eq!(cluster.host().0, "away");
    cluster.unset("down");
    assert!(cluster.on(&["ls"]).ok().contains("running"));
}

#[test]
fn a_directory_is_held_until_the_node_of_its_holder_answers() {
    let cluster = Cluster::new();
    cluster.start(&[], 1);
    cluster.on(&["spawn", "--name", "w", "--", "sleep", "600"]).ok();
    cluster.fail_node(1);
    let said = cluster.swarm(&["hosts", "start", "cluster", "--wait"]);
    assert!(said.code == Some(1) && said.err.contains("its node n1 does not answer"), "{said:?}");
    assert!(said.err.contains("hosts start cluster --gone"), "{said:?}");
    cluster.unset("node");
    cluster.start(&[], 3);
    assert!(cluster.on(&["ls"]).ok().contains("w     stopped"));
    cluster.fail_node(3);
    cluster.start(&["--gone"], 4);
}

#[test]
fn the_program_is_installed_before_there_is_an_allocation() {
    let cluster = Cluster::new();
    let home = cluster.0.home();
    fs::write(home.join(".config/swarm/config.toml"), "[hosts.cluster]\nengine = 'slurm-pilot'\n").expect("written");
    let said = cluster.swarm(&["hosts", "install", "cluster"]);
    assert!(said.code == Some(0) && said.out.ends_with("on cluster as ~/.local/bin/swarm\n"), "{said:?}");
    assert!(home.join(".local/bin/swarm").exists());
    cluster.start(&[], 1);
    assert_eq!(cluster.on(&["ls"]).code, Some(0));
}
