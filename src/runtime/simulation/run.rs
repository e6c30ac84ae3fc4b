//! One run: a storm of faults, then calm, in which everything must be settled in bounded time, then a drain.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::checks::Sort;
use super::faults::{Fault, Fired};
use super::process::{Ended, Process};
use super::scenario::Scenario;
use super::source::IDLE;
use super::world::{Hands, Pulse, World};
use super::{lose_next_share, operator, panics, share_to_lose};
use crate::checkpoint::Kind;
use crate::clock;
use crate::flow::invariants;
use crate::runtime::End;

/// What a run that held has to say.
pub(super) struct Report {
    pub fired: Fired,
    pub messages: usize,
    pub processes: usize,
    pub virtual_time: Duration,
    pub story: Vec<String>,
    /// How much happened, and a digest of all of it: equal for equal seeds.
    pub digest: (u64, u64),
}

/// What a run that did not hold has to say.
pub(super) struct Failure {
    pub violation: String,
    pub scenario: String,
    pub story: Vec<String>,
}

/// How long calm may last until everything is settled.
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs one seed, on this thread.
pub(super) fn run(seed: u64) -> Result<Report, Box<Failure>> {
    panics::expect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let mut runtime = Some(runtime.expect("a runtime"));
    let system = actix::System::with_tokio_rt(move || runtime.take().expect("asked once"));
    let result = system.block_on(async {
        clock::virtually::start();
        Driver::new(seed).run().await
    });
    drop(system);
    clock::virtually::end();
    result
}

struct Driver {
    world: World,
    scenario: Scenario,
    processes: Vec<Process>,
    last_twin: Option<usize>,
    /// A reset has made what a partition shows disagree with the log, which takes another one.
    resets: u32,
    emptied: bool,
    /// The next share of a branch is to be lost.
    share_armed: bool,
    /// Start the next process of the slot with `--new-store`.
    new_store: Vec<bool>,
}

impl Driver {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let scenario = Scenario::draw(&mut rng);
        let slots = if scenario.scaled_out { 2 } else { 1 };
        let appetite = rand::Rng::random_range(&mut rng, 0..25);
        let world = World::new(rand::Rng::random(&mut rng), appetite, slots);
        {
            let mut state = world.state();
            state.evidence.sinks = scenario.sinks.clone();
            state.evidence.append = !scenario.merge;
            state.evidence.reject_anonymous = !scenario.accept_anonymous;
        }
        lose_next_share(false);
        Self {
            world,
            scenario,
            processes: Vec::new(),
            last_twin: None,
            resets: 0,
            emptied: false,
            share_armed: false,
            new_store: vec![false; slots],
        }
    }

    async fn run(mut self) -> Result<Report, Box<Failure>> {
        let held = async {
            self.storm().await?;
            self.calm().await?;
            self.end().await
        }
        .await;
        let processes = self.processes.len();
        let (fired, messages) = {
            let state = self.world.state();
            (state.fired.clone(), state.evidence.messages())
        };
        match held {
            Ok(()) => {
                let (digest, virtual_time) = (self.world.digest(), Duration::from_millis(clock::tick().0));
                let story = self.world.story();
                Ok(Report { fired, messages, processes, virtual_time, story, digest })
            }
            Err(violation) => {
                let mut story = self.world.story();
                for process in self.processes.iter().filter(|process| process.ended().is_none()) {
                    let (number, pulse) = (process.hands.process, process.hands.pulse());
                    story.push(format!("process {number}, {pulse:?}: {:?}", process.reasons()));
                }
                story.push(format!("{:?}", self.world.queue()));
                Err(Box::new(Failure { violation, scenario: format!("{:?}", self.scenario), story }))
            }
        }
    }

    /// Time passes, and what was promised is looked at.
    async fn pass(&mut self, time: Duration) -> Result<(), String> {
        tokio::time::sleep(time).await;
        self.world.check();
        if let Some(panic) = panics::take() {
            self.world.state().violated(format!("a panic that nobody simulated: {panic}"));
        }
        if self.share_armed && !share_to_lose() {
            self.share_armed = false;
            self.world.count(Fault::ShareOfOneBranchDropped);
        }
        let now = clock::now();
        for process in &mut self.processes {
            if let Err(broken) = invariants::within_budget(process.unsettled(), self.scenario.max_unsettled) {
                self.world.state().violated(broken);
            }
            if process.crash_at.is_some_and(|at| at <= now) && process.ended().is_none() {
                process.crash_at = None;
                crash(&self.world, process);
            }
            if process.resume_at.is_some_and(|at| at <= now) && process.ended().is_none() {
                process.resume_at = None;
                self.world.count(Fault::PausedBeyondTheHorizon);
                process.hands.set(Pulse::Running);
            }
        }
        self.world.violation().map_or(Ok(()), Err)
    }

    fn start(&mut self, slot: usize) -> usize {
        let other = !self.processes.is_empty() && self.world.chance(40);
        let before = self.processes.last().map_or(self.scenario.partitions, |process| process.hands.partitions);
        let partitions = if other { u32::try_from(self.world.roll(4)).expect("small") + 1 } else { before };
        if partitions != before {
            self.world.count(Fault::OtherPartitionCount);
        }
        let hands = Hands::new(self.world.clone(), self.processes.len(), partitions);
        let process = Process::start(hands, slot, self.new_store[slot], &self.scenario);
        self.processes.push(process);
        self.processes.len() - 1
    }

    fn up(&self, slot: usize) -> Vec<usize> {
        let up = |(at, process): (usize, &Process)| (process.slot == slot && process.is_up()).then_some(at);
        self.processes.iter().enumerate().filter_map(up).collect()
    }

    /// A slot without a process gets one.
    fn supervise(&mut self) {
        for slot in 0..self.new_store.len() {
            if self.up(slot).is_empty() {
                self.start(slot);
            }
        }
    }

    fn put(&mut self, n: u64) {
        for _ in 0..n {
            let mut state = self.world.state();
            let sort = self.scenario.sort(&mut state.rng);
            let twin = self.last_twin.take().filter(|_| sort == Sort::Twin);
            let number = state.evidence.messages();
            if sort == Sort::Twin && twin.is_none() {
                self.last_twin = Some(number);
            }
            let message = state.evidence.message(sort, twin);
            drop(state);
            self.world.queue().put(message);
        }
    }

    async fn storm(&mut self) -> Result<(), String> {
        let n = self.world.roll(12) + 3;
        self.put(n);
        let steps = self.world.roll(40) + 10;
        for _ in 0..steps {
            let time = self.world.millis(10, if self.scenario.rough { 1500 } else { 3000 });
            self.pass(time).await?;
            self.look_after_parked(false).await?;
            if self.world.chance(80) {
                self.supervise();
            }
            self.event().await?;
        }
        Ok(())
    }

    async fn event(&mut self) -> Result<(), String> {
        let slot = usize::try_from(self.world.roll(self.new_store.len() as u64)).expect("small");
        let up = self.up(slot);
        let what = match self.world.roll(100) {
            process @ 40..78 if !self.scenario.rough && self.world.chance(80) => process % 40,
            what => what,
        };
        match what {
            0..25 => {
                let n = self.world.roll(6) + 1;
                self.put(n);
            }
            25..40 => {
                let links: Vec<_> = self.world.state().links.values().filter_map(std::sync::Weak::upgrade).collect();
                let at = usize::try_from(self.world.roll(links.len() as u64)).expect("small");
                match links.get(at) {
                    Some(link) if self.world.chance(30) => {
                        self.world.count(Fault::BrokerKeepsADeadLink);
                        link.die_unnoticed(self.world.millis(1000, 40_000));
                    }
                    Some(link) => {
                        self.world.count(Fault::LinkDied);
                        link.die(IDLE);
                    }
                    None => {}
                }
            }
            40..50 => up.iter().for_each(|at| crash(&self.world, &self.processes[*at])),
            50..54 => {
                up.iter().for_each(|at| crash(&self.world, &self.processes[*at]));
                self.world.count(Fault::TwoStartedTogether);
                self.start(slot);
                self.start(slot);
            }
            54..58 if !up.is_empty() => {
                self.world.count(Fault::SecondBesideTheFirst);
                self.start(slot);
            }
            58..63 if !up.is_empty() => {
                let process = &mut self.processes[up[0]];
                process.hands.set(Pulse::Paused);
                self.world.note(format!("process {} stands still", process.hands.process));
                let links: Vec<_> = self.world.state().links.values().filter_map(std::sync::Weak::upgrade).collect();
                for link in links.into_iter().filter(|link| link.process() == process.hands.process) {
                    let silence = self.world.millis(1000, 3000);
                    actix::spawn(async move {
                        tokio::time::sleep(silence).await;
                        link.die(IDLE);
                    });
                }
                process.resume_at = Some(clock::now() + self.scenario.horizon + self.world.millis(500, 20_000));
            }
            63..70 if !up.is_empty() => self.drain_and_start(slot, &up).await?,
            70..75 => self.reset(slot).await?,
            75..78 if !self.emptied => self.empty(slot).await?,
            78..85 if self.scenario.branches() && !up.is_empty() => {
                self.share_armed = true;
                lose_next_share(true);
            }
            _ => {}
        }
        Ok(())
    }

    /// Drains a slot, and crashes its next process soon after.
    async fn drain_and_start(&mut self, slot: usize, up: &[usize]) -> Result<(), String> {
        up.iter().for_each(|at| self.processes[*at].drain());
        for _ in 0..60 {
            self.pass(Duration::from_millis(500)).await?;
            if self.up(slot).is_empty() {
                break;
            }
        }
        self.start_and_crash(slot);
        Ok(())
    }

    fn start_and_crash(&mut self, slot: usize) {
        let at = self.start(slot);
        if self.world.chance(70) {
            self.processes[at].crash_at = Some(clock::now() + self.world.millis(0, 3000));
        }
    }

    /// All processes of a slot end, whether they want to or not; what they had under way may still land.
    async fn stop(&mut self, slot: usize) -> Result<(), String> {
        for process in self.processes.iter().filter(|process| process.slot == slot && process.ended().is_none()) {
            crash(&self.world, process);
        }
        let time = self.world.millis(0, 2000);
        self.pass(time).await?;
        while self.processes.iter().any(|process| process.slot == slot && process.ended().is_none()) {
            self.pass(Duration::from_secs(1)).await?;
        }
        Ok(())
    }

    async fn reset(&mut self, slot: usize) -> Result<(), String> {
        self.stop(slot).await?;
        if operator::reset(&self.world, slot, None).await {
            self.resets += 1;
        }
        self.start_and_crash(slot);
        Ok(())
    }

    /// The store of a slot is emptied, and its next process finds the old table.
    async fn empty(&mut self, slot: usize) -> Result<(), String> {
        self.stop(slot).await?;
        self.emptied = true;
        self.world.count(Fault::EmptiedStore);
        let mut state = self.world.state();
        state.stores[slot] = crate::checkpoint::MemoryStore::new();
        state.evidence.forget(self.scenario.merge);
        drop(state);
        self.start(slot);
        Ok(())
    }

    /// What an operator does about parked partitions: start with the flag that the reason names, reset, or just restart.
    async fn look_after_parked(&mut self, calm: bool) -> Result<(), String> {
        for slot in 0..self.new_store.len() {
            let parked = |process: &mut Process| {
                let failed = matches!(process.ended(), Some(Ended::Regularly(End::Failed(_))));
                let due = process.slot == slot && (process.is_up() || failed && !process.looked_after);
                process.looked_after |= failed;
                let (partition, why) = process.parked().into_iter().next().filter(|_| due)?;
                Some((process.hands.process, partition, why))
            };
            let Some((process, partition, why)) = self.processes.iter_mut().rev().find_map(parked) else { continue };
            if why.contains("the checkpoint log expects") && self.resets == 0 && self.is_alone(slot, process) {
                return Err(format!("R5: partition {partition} is inconsistent, and nothing was tampered with: {why}"));
            }
            let flag = why.contains("--new-store");
            if !(calm || flag || self.world.chance(15)) {
                continue;
            }
            self.world.note(format!("the operator looks after partition {partition}: {why}"));
            self.stop(slot).await?;
            if flag {
                if !self.emptied {
                    return Err(format!("R7: another store's epochs, and no store was emptied: {why}"));
                }
                self.new_store[slot] = true;
            }
            if why.contains("the checkpoint log expects") && operator::reset(&self.world, slot, Some(partition)).await {
                self.resets += 1;
            }
            self.start(slot);
            self.new_store[slot] = false;
        }
        Ok(())
    }

    /// Whether a process is the one of its slot that was started last, and no other of the slot lives.
    fn is_alone(&self, slot: usize, process: usize) -> bool {
        let mut others = self.processes.iter().filter(|p| p.slot == slot && p.hands.process != process);
        others.all(|other| other.ended().is_some() && other.hands.process < process)
    }

    /// No more faults: everything gets settled.
    async fn calm(&mut self) -> Result<(), String> {
        self.world.note("calm");
        self.world.state().calm = true;
        self.share_armed = false;
        lose_next_share(false);
        for process in &mut self.processes {
            process.crash_at = None;
            process.resume_at = None;
            process.hands.set(Pulse::Running);
        }
        let deadline = clock::now() + PATIENCE;
        let queue = self.world.queue();
        loop {
            self.look_after_parked(true).await?;
            self.supervise();
            self.pass(Duration::from_millis(500)).await?;
            if queue.waiting() == 0 && queue.unsettled() == 0 {
                return Ok(());
            }
            if clock::now() > deadline {
                return Err(format!("no progress: after {} s of calm there is {queue:?}", PATIENCE.as_secs()));
            }
        }
    }

    /// Everything drains, and then everything is where it belongs.
    async fn end(&mut self) -> Result<(), String> {
        let mut why = Vec::new();
        for _ in 0..5 {
            self.look_after_parked(true).await?;
            self.supervise();
            for _ in 0..60 {
                self.pass(Duration::from_secs(1)).await?;
                if self.processes.iter().all(Process::has_started) {
                    break;
                }
            }
            self.processes.iter().filter(|process| process.ended().is_none()).for_each(|process| process.drain());
            for _ in 0..200 {
                self.pass(Duration::from_millis(500)).await?;
                if self.processes.iter().all(|process| process.ended().is_some()) {
                    break;
                }
            }
            let last: Vec<_> = self.processes.iter().rev().take(self.new_store.len()).map(Process::ended).collect();
            if last.iter().all(|ended| *ended == Some(Ended::Regularly(End::Drained))) {
                // Nothing of the last processes may be left.
                self.pass(Duration::from_secs(11)).await?;
                let state = self.world.state();
                if !state.evidence.all_arrived() {
                    return Err("messages have left the queue of which the broker has no settlement".into());
                }
                return state.evidence.complete().map_err(|broken| broken.to_string());
            }
            why = last;
        }
        Err(format!("no progress: five drains in calm, and the last ended with {why:?}"))
    }
}

fn crash(world: &World, process: &Process) {
    world.count(Fault::Crash);
    let newest = world.state().evidence.newest.clone();
    match newest {
        Some(Kind::Reset { .. }) => world.count(Fault::ResetThenCrash),
        Some(Kind::Drained) => world.count(Fault::DrainedThenCrash),
        _ => {}
    }
    process.crash();
}
