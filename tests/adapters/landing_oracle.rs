//! Oracle test: random histories land exactly as `git merge --no-ff` merges them, step by step,
//! even if steps are interrupted and a user commits to the base meanwhile.
//!
//! `SWARM_ORACLE_HISTORIES` and `SWARM_ORACLE_SEED` select the number of histories and the first seed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use swarm_actors::merge::machine::{Effect, Event, Machine};
use swarm_model::Target;
use swarm_model::merge::queue::{Addition, ItemId, State};
use swarm_ports::{Completion, Landings as _};

use swarm_git::fixture::{Fixture, text};
use swarm_git::landing::GitLandings;
use swarm_sys::paths::Paths;

const HISTORIES: u64 = 100;

/// xorshift64*, for repeatable histories.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// Maps each path to its mode and content.
type Files = BTreeMap<String, (&'static str, String)>;

fn base(dice: &mut Dice) -> Files {
    let mut files = Files::new();
    for dir in ["", "a/", "b/", "c/d/"] {
        for number in 0..3 {
            let lines = (0..12).map(|line| format!("{dir}{number} line {line}\n"));
            files.insert(format!("{dir}f{number}"), ("100644", lines.collect()));
        }
    }
    files.insert("binary".into(), ("100644", format!("\0\x01{}", dice.below(9))));
    files.insert("link".into(), ("120000", "f0".into()));
    files.insert("module".into(), ("160000", "1".repeat(40)));
    files.insert("mine".into(), ("100644", "a person's\n".into()));
    files
}

fn change(files: &mut Files, dice: &mut Dice) {
    let paths: Vec<String> = files.keys().filter(|path| *path != "mine").cloned().collect();
    let path = dice.pick(&paths).clone();
    match dice.below(12) {
        0..5 => {
            let (mode, content) = files[&path].clone();
            let changed = match mode {
                "100644" | "100755" if content.contains('\n') => {
                    let at = usize::try_from(dice.below(12)).unwrap();
                    let lines = content.lines().enumerate();
                    let word = dice.below(4);
                    lines
                        .map(
                            |(number, line)| {
                                if number == at { format!("changed {word}\n") } else { format!("{line}\n") }
                            },
                        )
                        .collect()
                }
                "160000" => (1 + dice.below(9)).to_string().repeat(40),
                _ => format!("{content}{}", dice.below(3)),
            };
            files.insert(path, (mode, changed));
        }
        5 => drop(files.remove(&path)),
        6 => {
            let entry = files.remove(&path).unwrap();
            files.insert(format!("{path}-renamed{}", dice.below(2)), entry);
        }
        7 => {
            let moved: Vec<String> = paths.iter().filter(|path| path.starts_with("a/")).cloned().collect();
            for path in moved {
                let entry = files.remove(&path).unwrap();
                files.insert(path.replacen("a/", "moved/", 1), entry);
            }
        }
        8 => {
            let mode = if files[&path].0 == "100644" { "100755" } else { files[&path].0 };
            let content = files[&path].1.clone();
            files.insert(path, (mode, content));
        }
        9 => {
            // A file becomes a directory.
            let entry = files.remove(&path).unwrap();
            files.insert(format!("{path}/inside"), entry);
        }
        _ => {
            let place = dice.pick(&["", "a/", "b/", "new/"]);
            files.insert(format!("{place}n{}", dice.below(4)), ("100644", format!("new {}\n", dice.below(2))));
        }
    }
}

/// Appends one commit in `git fast-import` format, after which the branch contains exactly these files.
fn import(script: &mut String, branch: &str, from: Option<&str>, files: &Files) {
    writeln!(script, "commit refs/heads/{branch}\ncommitter T <t@localhost> 1700000000 +0000\ndata 1\nx").unwrap();
    if let Some(from) = from {
        writeln!(script, "from refs/heads/{from}").unwrap();
    }
    script.push_str("deleteall\n");
    for (path, (mode, content)) in files {
        match *mode {
            "160000" => writeln!(script, "M 160000 {content} {path}").unwrap(),
            _ => writeln!(script, "M {mode} inline {path}\ndata {}\n{content}", content.len()).unwrap(),
        }
    }
    script.push('\n');
}

struct History {
    fix: Fixture,
    landings: GitLandings,
    paths: Paths,
    target: Target,
    dice: Dice,
    queue: Machine,
    /// Base at the time when an item was found to conflict or to contain no change.
    judged: BTreeMap<ItemId, String>,
}

impl History {
    async fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let fix = Fixture::empty();
        let before = base(&mut dice);
        let mut script = String::new();
        import(&mut script, "main", None, &before);
        let branches = 2 + dice.below(7);
        for number in 0..branches {
            let (name, mut files) = (format!("w{number}"), before.clone());
            for commit in 0..=dice.below(3) {
                for _ in 0..=dice.below(3) {
                    change(&mut files, &mut dice);
                }
                import(&mut script, &name, (commit == 0).then_some("main"), &files);
            }
        }
        fs::write(fix.root.join("script"), script).unwrap();
        let import =
            format!("git -C {} fast-import --quiet < {}", fix.repo.display(), fix.root.join("script").display());
        let imported = std::process::Command::new("sh").args(["-c", &import]).status().unwrap();
        assert!(imported.success());
        fix.git(&["reset", "-q", "--hard", "main"]);
        fs::write(fix.repo.join("mine"), "a person's, edited\n").unwrap();
        let paths = Paths::new(fix.root.join("state"));
        fs::create_dir(paths.root()).unwrap();
        let landings = GitLandings::new(paths.clone(), PathBuf::from("/nowhere"));
        let target =
            Target { repository: fix.repo.join(".git").to_str().unwrap().into(), branch: "refs/heads/main".into() };
        let mut history =
            Self { fix, landings, paths, target, dice, queue: Machine::default(), judged: BTreeMap::new() };
        history.queue.on(Event::Pause, 0);
        for number in 0..branches {
            history.add(&format!("w{number}")).await;
        }
        history
    }

    async fn add(&mut self, name: &str) {
        let caller = swarm_model::Caller { cwd: self.fix.repo.to_str().unwrap().into(), ..self.fix.caller.clone() };
        let done = self.landings.complete(Completion::new(name, caller)).await.unwrap();
        assert_eq!((&done.target, &done.waits), (&self.target, &None));
        let addition = Addition { name: name.into(), tip: done.tip, rules: done.rules, ..Addition::default() };
        self.queue.on(Event::Added(vec![addition]), 0);
        self.landings.save(&self.target, &self.queue.kept()).await.unwrap();
    }

    /// Runs the queue to its end, with simulated crashes after some of the steps.
    async fn run(&mut self) {
        let mut effects = self.queue.on(Event::Resume, 0);
        self.landings.save(&self.target, &self.queue.kept()).await.unwrap();
        for _ in 0..5_000 {
            let Some(effect) = effects.iter().find(|effect| !matches!(effect, Effect::Settled(_))).cloned() else {
                let Some(at_ms) = self.queue.next_ms() else { return };
                effects = self.queue.on(Event::Woke, at_ms);
                continue;
            };
            if self.dice.below(16) == 0 {
                self.person();
            }
            let event = self.carry_out(effect).await;
            if self.dice.below(12) == 0 {
                // Crash: the step was performed, but its result was not recorded.
                self.landings = GitLandings::new(self.paths.clone(), PathBuf::from("/nowhere"));
                self.queue = Machine::new(self.landings.load(&self.target).await.unwrap().unwrap());
                effects = self.queue.resume(0);
                continue;
            }
            effects = self.queue.on(event, 0);
            for settled in &effects {
                if let Effect::Settled(id) = settled {
                    self.settled(*id).await;
                }
            }
            self.landings.save(&self.target, &self.queue.kept()).await.unwrap();
        }
        panic!("no end: {:?}", self.queue);
    }

    async fn carry_out(&self, effect: Effect) -> Event {
        let (landings, target) = (&self.landings, &self.target);
        match effect {
            Effect::ReadBase => Event::BaseRead(landings.read_base(target).await),
            Effect::Build { item, onto } => {
                Event::Built(landings.build(target, self.queue.item(item).unwrap(), &onto).await)
            }
            Effect::Land { from, to, of } => {
                Event::Landed(landings.land(target, self.queue.item(of).unwrap(), &from, &to).await)
            }
            effect => panic!("{effect:?}"),
        }
    }

    async fn settled(&mut self, id: ItemId) {
        let item = self.queue.item(id).unwrap().clone();
        self.landings.tidy(&self.target, std::slice::from_ref(&item)).await;
        if !matches!(item.state, State::Landed { .. }) {
            let base = text(&self.fix.git(&["rev-parse", "main"]));
            self.judged.insert(id, base);
        }
    }

    /// Commits something to the base as a user would.
    fn person(&mut self) {
        let name = format!("own{}", self.dice.below(3));
        let path = self.fix.repo.join(&name);
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, format!("{before}more\n")).unwrap();
        self.fix.git(&["add", &name]);
        self.fix.git(&["commit", "-q", "-m", "a person's", "--", &name]);
    }

    /// Returns the tree that `git merge --no-ff` creates in a clean clone, or `None` on conflict.
    fn oracle(&self, onto: &str, tip: &str) -> Option<String> {
        let clone = self.fix.root.join("clone");
        if !clone.exists() {
            let (repo, clone) = (self.fix.repo.to_str().unwrap(), clone.to_str().unwrap());
            self.fix.at(&self.fix.root, &["clone", "-q", "--shared", "--no-checkout", repo, clone]);
        }
        self.fix.at(&clone, &["checkout", "-q", "--force", "--detach", onto]);
        self.fix.at(&clone, &["clean", "-ffdxq"]);
        let (is_clean, _) = self.fix.attempt(&clone, &["merge", "-q", "--no-ff", "-m", "x", tip]);
        let merged = is_clean.then(|| text(&self.fix.at(&clone, &["rev-parse", "HEAD^{tree}"])));
        if !is_clean {
            // git cannot always recover from the state that its failed merge leaves.
            fs::remove_dir_all(&clone).unwrap();
        }
        merged
    }

    fn tree(&self, commit: &str) -> String {
        text(&self.fix.git(&["rev-parse", &format!("{commit}^{{tree}}")]))
    }

    /// Asserts that every step of the base equals the oracle's, and that each item landed exactly once or did not
    /// land for a valid reason.
    fn check(&self, seed: u64) {
        let chain = text(&self.fix.git(&["log", "--first-parent", "--format=%H %P", "main"]));
        let merges: Vec<Vec<&str>> = chain.lines().map(|line| line.split(' ').collect()).collect();
        for item in &self.queue.items {
            let landed: Vec<_> = merges.iter().filter(|merge| merge.get(2) == Some(&item.tip.as_str())).collect();
            match &item.state {
                State::Landed { commit } => {
                    assert_eq!(landed.len(), 1, "seed {seed}: {item:?}");
                    assert_eq!(landed[0][0], commit, "seed {seed}");
                    let expected = self.oracle(landed[0][1], &item.tip);
                    assert_eq!(expected.as_deref(), Some(self.tree(commit).as_str()), "seed {seed}: {item:?}");
                }
                State::Conflict { files } => {
                    assert!(landed.is_empty() && !files.is_empty(), "seed {seed}: {item:?}");
                    assert_eq!(self.oracle(&self.judged[&item.id], &item.tip), None, "seed {seed}: {item:?}");
                }
                State::Noop => {
                    // After a crash between landing and recording it, the work is already on the base.
                    let base = &self.judged[&item.id];
                    assert_eq!(self.oracle(base, &item.tip), Some(self.tree(base)), "seed {seed}: {item:?}");
                }
                // Such histories trigger assertions in the merge code of some git versions.
                State::Waiting { reason, .. } if reason.contains("signal 6") => {
                    let (onto, tip) = (&self.judged[&item.id], &item.tip);
                    let (is_answered, _) = self.fix.attempt(&self.fix.repo, &["merge-tree", "--write-tree", onto, tip]);
                    assert!(!is_answered && landed.is_empty(), "seed {seed}: {item:?}");
                }
                state => panic!("seed {seed}: {state:?}"),
            }
        }
        assert_eq!(text(&self.fix.git(&["status", "--porcelain"])), " M mine", "seed {seed}");
        assert_eq!(fs::read_to_string(self.fix.repo.join("mine")).unwrap(), "a person's, edited\n");
        let litter = fs::read_dir(self.fix.repo.join(".git")).unwrap().flatten();
        let litter: Vec<_> =
            litter.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains("lock")).collect();
        assert!(litter.is_empty(), "seed {seed}: {litter:?}");
    }
}

#[tokio::test]
async fn random_histories_land_like_git_merge() {
    let number = |key: &str, standard| std::env::var(key).ok().map_or(standard, |text| text.parse().unwrap());
    let (first, count) = (number("SWARM_ORACLE_SEED", 1), number("SWARM_ORACLE_HISTORIES", HISTORIES));
    let (mut landed, mut conflicts) = (0, 0);
    for seed in first..first + count {
        let mut history = History::new(seed).await;
        history.run().await;
        history.check(seed);
        landed += history.queue.items.iter().filter(|item| matches!(item.state, State::Landed { .. })).count();
        conflicts += history.queue.items.iter().filter(|item| matches!(item.state, State::Conflict { .. })).count();
    }
    // Histories in which nothing lands, or nothing conflicts, would prove little.
    if count >= HISTORIES {
        assert!(landed > 100 && conflicts > 50, "{landed} landed, {conflicts} conflicts");
    }
}
