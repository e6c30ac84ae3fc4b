//! The receiver's connector as the world treats it: links die at the broker unnoticed, and of what was accepted only a
//! prefix arrives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::FutureExt;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::checks::message_number;
use super::faults::{Fault, Op};
use super::world::{Hands, Pulse, Token, Verdict};
use crate::clock;
use crate::connectors::memory::Queue;
use crate::flow::{
    Closed, DeliveryId, Intake, Link, Outcome, Received, Result, Room, Settled, Settler, Source, SourceContext,
    SourceFactory, StageError,
};

/// After so long without a frame each side takes the other for dead. The horizon is more than this and a settlement's way.
pub(super) const IDLE: Duration = Duration::from_secs(3);

/// A settlement is on its way for no longer.
const TRANSIT: u64 = 2000;

/// Wraps the memory receiver's factory.
pub(super) struct FaultyReceiver {
    pub inner: Arc<dyn SourceFactory>,
    pub hands: Hands,
    /// The source waits for the peer's answer to each settlement, and an answered end is for good.
    pub answers: bool,
    pub _token: Token,
}

impl SourceFactory for FaultyReceiver {
    fn columns(&self) -> SchemaRef {
        self.inner.columns()
    }

    fn source(&self, context: SourceContext) -> Box<dyn Source> {
        let partition = context.partition.index;
        Box::new(FaultySource {
            inner: self.inner.source(context),
            hands: self.hands.clone(),
            partition,
            answers: self.answers,
            _token: self.hands.token(Some(partition)),
        })
    }

    fn answered_end_is_durable(&self) -> bool {
        self.answers
    }
}

struct FaultySource {
    inner: Box<dyn Source>,
    hands: Hands,
    partition: u32,
    answers: bool,
    _token: Token,
}

#[async_trait]
impl Source for FaultySource {
    async fn connect(&mut self) -> Result<Link> {
        let (hands, partition) = (&self.hands, self.partition);
        match hands.begin(Op::Connect, &format!("partition {partition}")).await {
            Verdict::Hang => std::future::pending().await,
            Verdict::Do => {}
            _ => return Err(failure(hands, "connect")),
        }
        let Link { intake, settler } = self.inner.connect().await?;
        let queue = hands.world.queue();
        let number = queue.links().last().copied().unwrap_or_default();
        let shared = Arc::new(LinkShared {
            hands: hands.clone(),
            partition,
            queue,
            number,
            settler: Mutex::new(settler),
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let mut state = hands.world.state();
        state.links.insert(number, Arc::downgrade(&shared));
        state.note(format!("process {} partition {partition} has link {number}", hands.process));
        drop(state);
        let token = || hands.token(Some(partition));
        let intake = FaultyIntake { inner: intake, link: shared.clone(), _token: token() };
        let settler = FaultySettler { link: shared, answers: self.answers, _token: token() };
        Ok(Link { intake: Box::new(intake), settler: Box::new(settler) })
    }
}

fn failure(hands: &Hands, what: &str) -> StageError {
    match hands.world.chance(50) {
        true => StageError::retry(format!("simulated failure of {what}")),
        false => StageError::away(format!("simulated absence at {what}")),
    }
}

/// What both halves of a link share. When both are gone, the link is.
pub(super) struct LinkShared {
    hands: Hands,
    partition: u32,
    queue: Queue,
    number: u64,
    settler: Mutex<Box<dyn Settler>>,
    state: Mutex<LinkState>,
    changed: Notify,
}

#[derive(Default)]
struct LinkState {
    /// When it died at the broker, and when the process's socket says so.
    dead: Option<(Instant, Instant)>,
    /// Settlements under way, oldest first.
    transit: VecDeque<Vec<DeliveryId>>,
    last_due: Option<Instant>,
    /// Which message each delivery is, and how often it was settled.
    deliveries: BTreeMap<DeliveryId, (usize, u64)>,
}

impl LinkShared {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn process(&self) -> usize {
        self.hands.process
    }

    /// The link dies: of what is under way a prefix arrives, and what is unsettled goes back.
    pub fn die(&self, noticed_within: Duration) {
        if self.sever(noticed_within) {
            self.queue.cut(self.number);
        }
    }

    /// The link dies, and the broker does not notice for some time: what is unsettled is still out on it.
    pub fn die_unnoticed(self: &Arc<Self>, by_the_broker_for: Duration) {
        if self.sever(IDLE) {
            let link = self.clone();
            actix::spawn(async move {
                tokio::time::sleep(by_the_broker_for).await;
                link.queue.cut(link.number);
            });
        }
    }

    /// Nothing passes any more; `false`: it was so before.
    fn sever(&self, noticed_within: Duration) -> bool {
        let world = &self.hands.world;
        let mut state = self.state();
        if state.dead.is_some() {
            return false;
        }
        let now = clock::now();
        let notice = world.millis(0, u64::try_from(noticed_within.as_millis()).unwrap_or(u64::MAX));
        state.dead = Some((now, now + notice));
        let under_way = state.transit.len() as u64;
        let arriving = if world.chance(50) { 0 } else { world.roll(under_way + 1) };
        let arrived: Vec<_> = (0..arriving).filter_map(|_| state.transit.pop_front()).collect();
        let lost = std::mem::take(&mut state.transit);
        drop(state);
        arrived.iter().for_each(|deliveries| self.arrive(deliveries));
        if !lost.is_empty() {
            world.count(Fault::AcceptsLost);
        }
        world.state().links.remove(&self.number);
        world.note(format!("link {} is dead, {} settlements lost", self.number, lost.len()));
        self.changed.notify_waiters();
        true
    }

    /// The broker hears of a settlement.
    fn arrive(&self, deliveries: &[DeliveryId]) {
        let mut settler = self.settler.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = settler.settle(deliveries, Outcome::Accepted).now_or_never();
        assert!(matches!(settled, Some(Ok(_))), "a queue in memory answers at once");
        let state = self.state();
        let numbers: Vec<_> = deliveries.iter().filter_map(|d| state.deliveries.get(d)).map(|(n, _)| *n).collect();
        drop(state);
        self.hands.world.state().evidence.arrived(&numbers);
    }

    /// Returns when the process's socket says that the link is gone.
    async fn noticed(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let dead = self.state().dead;
            match dead {
                Some((_, notice)) => return tokio::time::sleep_until(notice).await,
                None => changed.await,
            }
        }
    }

    /// Returns when nothing is under way; `false`: because the link is dead.
    async fn flushed(&self) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state();
                if state.dead.is_some() || state.transit.is_empty() {
                    return state.dead.is_none();
                }
            }
            changed.await;
        }
    }
}

impl Drop for LinkShared {
    fn drop(&mut self) {
        self.die(Duration::ZERO);
    }
}

struct FaultyIntake {
    inner: Box<dyn Intake>,
    link: Arc<LinkShared>,
    _token: Token,
}

#[async_trait]
impl Intake for FaultyIntake {
    async fn receive(&mut self, room: Room) -> Result<Received> {
        let Self { inner, link, .. } = self;
        let here = format!("link {}", link.number);
        let verdict = tokio::select! {
            biased;
            () = link.noticed() => Verdict::Fail,
            verdict = link.hands.begin(Op::Receive, &here) => verdict,
        };
        match verdict {
            Verdict::Do => {}
            Verdict::Hang => {
                // No frame comes any more, and nothing says so but the silence.
                link.die(IDLE);
                std::future::pending::<()>().await;
            }
            _ => return Err(failure(&link.hands, "receive")),
        }
        let mut received = tokio::select! {
            biased;
            () = link.noticed() => return Err(StageError::away("the link is gone")),
            received = inner.receive(room) => received?,
        };
        if let Received::Batch { raw, deliveries, .. } = &mut received {
            // The same seed is the same run: no dice but the world's.
            for delivery in deliveries.iter_mut().filter(|delivery| delivery.anonymous) {
                delivery.identity.id = link.hands.world.state().rng.random();
            }
            let values = raw.columns["value"].as_string::<i32>();
            let mut state = link.state();
            let numbers: Vec<_> = (0..values.len()).map(|row| message_number(values.value(row))).collect();
            state.deliveries.extend(deliveries.iter().map(|d| d.id).zip(numbers.iter().map(|n| (*n, 0))));
            drop(state);
            let mut world = link.hands.world.state();
            world.note(format!("link {} brings {numbers:?}", link.number));
            let here = (link.hands.process, link.partition, link.number);
            if world.evidence.received(&numbers, here) {
                world.fired.count(Fault::RedeliveredToTheSamePartition);
            }
        }
        // A process that stands still has what came when it goes on; if it never does, the link's end gives it back.
        if link.hands.pulse() != Pulse::Running {
            link.hands.alive().await;
        }
        Ok(received)
    }
}

struct FaultySettler {
    link: Arc<LinkShared>,
    answers: bool,
    _token: Token,
}

impl FaultySettler {
    /// Sends a settlement, which is looked at as it leaves. `None`: the answer is awaited.
    fn send(&self, deliveries: &[DeliveryId]) -> Result<Option<Settled>> {
        let link = &self.link;
        let mut state = link.state();
        let mut numbers = Vec::new();
        for delivery in deliveries {
            let (number, times) = state.deliveries.entry(*delivery).or_insert((usize::MAX, 0));
            *times += 1;
            numbers.push((*number, *times));
        }
        {
            let mut world = link.hands.world.state();
            world.note(format!(
                "link {} accepts {:?}",
                link.number,
                numbers.iter().map(|(n, _)| n).collect::<Vec<_>>()
            ));
            let space = &link.hands.world.space;
            let found = world.evidence.scan(space).and_then(|()| world.evidence.accept_sent(&numbers));
            if let Err(broken) = found {
                world.violated(broken);
            }
        }
        match state.dead {
            Some((_, notice)) if clock::now() >= notice => return Err(StageError::away("the link is gone")),
            Some(_) => {}
            None => {
                state.transit.push_back(deliveries.to_vec());
                let most = if link.hands.world.chance(40) { TRANSIT } else { 50 };
                let due = (clock::now() + link.hands.world.millis(0, most)).max(state.last_due.unwrap_or(clock::now()));
                state.last_due = Some(due);
                let link = Arc::downgrade(link);
                actix::spawn(async move {
                    tokio::time::sleep_until(due).await;
                    let Some(link) = link.upgrade() else { return };
                    let first = link.state().transit.pop_front();
                    if let Some(deliveries) = first {
                        link.arrive(&deliveries);
                        link.changed.notify_waiters();
                    }
                });
            }
        }
        Ok((!self.answers).then_some(Settled::Sent))
    }
}

#[async_trait]
impl Settler for FaultySettler {
    async fn settle(&mut self, deliveries: &[DeliveryId], _outcome: Outcome) -> Result<Settled> {
        let link = &self.link;
        match link.hands.begin(Op::Settle, &format!("link {}", link.number)).await {
            Verdict::Do => {}
            Verdict::Hang => std::future::pending().await,
            _ => return Err(failure(&link.hands, "settle")),
        }
        if let Some(settled) = self.send(deliveries)? {
            return Ok(settled);
        }
        if link.flushed().await {
            return Ok(Settled::Received);
        }
        link.noticed().await;
        Err(StageError::away("the link is gone"))
    }

    fn attached(&self) -> bool {
        self.link.state().dead.is_none_or(|(died, _)| clock::now() < died + IDLE)
    }

    async fn close(self: Box<Self>) -> Closed {
        let link = &self.link;
        match link.hands.begin(Op::Close, &format!("link {}", link.number)).await {
            Verdict::Do => {}
            Verdict::Hang => std::future::pending().await,
            _ => return Closed::Unanswered,
        }
        if link.flushed().await && !link.hands.world.chance(20) { Closed::Answered } else { Closed::Unanswered }
    }
}
