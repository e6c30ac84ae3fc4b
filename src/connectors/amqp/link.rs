//! One link: a task that owns the receiver, and the two halves that talk to it.
//!
//! The task waits for messages and for commands at once, builds rows of what arrives, and settles. Rows and credit are
//! shared with the intake under a lock that nobody holds across an await, so a `receive` that is dropped loses nothing.
//! The task ends when both halves are gone (the socket is cut at once), when the link fails, or when it is closed; it
//! never outlives its socket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fe2o3_amqp::Receiver;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::{Delivery as Transferred, DeliveryInfo};
use fe2o3_amqp::link::receiver::TerminalDeliveryState;
use fe2o3_amqp::link::{LinkStateError, RecvError};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp_types::messaging::{Accepted, Body, Modified, Released};
use futures::FutureExt;
use serde_amqp::Value;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::config::Place;
use super::credit::Credit;
use super::reaction::{Failure, explain};
use super::rows::{ROWS, Rows, TooLarge};
use super::wire::Line;
use crate::clock;
use crate::flow::{
    Closed, DeliveryId, Intake, Link, Outcome, Reaction, Received, Result, Room, Settled, Settler, StageError,
};

/// How long an orderly end may take altogether.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// How long the connection may take to say why it ended.
const REASON_LIMIT: Duration = Duration::from_secs(1);
/// Deliveries settled between two looks at what has arrived: dispositions and transfers share the library's channels,
/// and whoever waits for one direction must not stop reading the other.
const SETTLE_AT_ONCE: usize = 1024;
/// Messages taken in one go before commands are looked at again.
const BURST: usize = 256;

/// An attached link and what it stands on.
pub(super) struct Attached {
    pub receiver: Receiver,
    pub session: SessionHandle<()>,
    pub connection: ConnectionHandle<()>,
    pub line: Cutting,
}

/// Cuts the socket when dropped, whatever the library still waits for.
pub(super) struct Cutting(pub Arc<Line>);

impl Drop for Cutting {
    fn drop(&mut self) {
        self.0.cut();
    }
}

enum Command {
    Grant(u32),
    Settle { ids: Vec<DeliveryId>, outcome: Outcome, done: oneshot::Sender<()> },
    Close(oneshot::Sender<Closed>),
}

/// What task and halves share.
struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Notify,
    silent: AtomicBool,
    line: Arc<Line>,
    idle_timeout: Duration,
    place: Place,
}

/// What has arrived, and what may.
pub(super) struct Inbox {
    pub rows: Rows,
    pub credit: Credit,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the link ended; kept, because both halves may ask.
#[derive(Clone)]
struct Ended {
    reaction: Reaction,
    context: String,
}

impl From<Ended> for StageError {
    fn from(Ended { reaction, context }: Ended) -> Self {
        Self { reaction, context, source: None }
    }
}

/// Starts the task of an attached link and returns its halves.
pub(super) fn start(attached: Attached, inbox: Inbox, place: Place, idle_timeout: Duration) -> Link {
    let (commands, inbound) = mpsc::unbounded_channel();
    let (end, ended) = watch::channel(None);
    let shared = Arc::new(Shared {
        inbox: Mutex::new(inbox),
        arrived: Notify::new(),
        silent: AtomicBool::new(false),
        line: attached.line.0.clone(),
        idle_timeout,
        place,
    });
    let half = Half { shared: shared.clone(), commands, ended };
    let task = Task {
        attached,
        shared,
        commands: inbound,
        end,
        next: 0,
        unsettled: Unsettled::default(),
        unreadable: Vec::new(),
    };
    tokio::spawn(task.run());
    Link { intake: Box::new(half.clone()), settler: Box::new(half) }
}

/// Either half.
#[derive(Clone)]
struct Half {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    ended: watch::Receiver<Option<Ended>>,
}

impl Half {
    /// Why the link ended; waits for it, as somebody has noticed that it did.
    async fn reason(&mut self) -> StageError {
        match self.ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone()) {
            Some(ended) => ended.into(),
            None => StageError::away(format!("the link to {} was abandoned", self.shared.place)),
        }
    }
}

#[async_trait]
impl Intake for Half {
    async fn receive(&mut self, room: Room) -> Result<Received> {
        /// While more keeps coming without waiting, a batch grows: what is behind it works per batch.
        const GATHER: usize = 64;
        loop {
            if self.ended.borrow().is_some() || self.ended.has_changed().is_err() {
                return Err(self.reason().await);
            }
            let (grant, mut waiting) = {
                let Inbox { rows, credit } = &mut *self.shared.inbox();
                (credit.top_up(room, rows.len()), rows.len())
            };
            if let Some(more) = grant {
                // A closed channel shows in `ended`.
                let _ = self.commands.send(Command::Grant(more));
            }
            if waiting == 0 {
                tokio::select! {
                    () = self.shared.arrived.notified() => {}
                    _ = self.ended.changed() => {}
                }
                continue;
            }
            for _ in 0..GATHER {
                if waiting >= ROWS.min(room.deliveries) {
                    break;
                }
                tokio::task::yield_now().await;
                let now = self.shared.inbox().rows.len();
                if now == waiting {
                    break;
                }
                waiting = now;
            }
            if let Some(received) = self.shared.inbox().rows.take(room.deliveries) {
                return Ok(received);
            }
        }
    }
}

#[async_trait]
impl Settler for Half {
    async fn settle(&mut self, deliveries: &[DeliveryId], outcome: Outcome) -> Result<Settled> {
        let (done, settled) = oneshot::channel();
        let command = Command::Settle { ids: deliveries.to_vec(), outcome, done };
        if self.commands.send(command).is_ok() && settled.await.is_ok() {
            return Ok(Settled::Sent);
        }
        Err(self.reason().await)
    }

    fn attached(&self) -> bool {
        if self.ended.borrow().is_some() || self.ended.has_changed().is_err() {
            return false;
        }
        if self.shared.line.silent_for() > self.shared.idle_timeout {
            // For good: a peer that comes back later may have forgotten the link.
            self.shared.silent.store(true, Ordering::Relaxed);
            self.shared.line.cut();
        }
        !self.shared.silent.load(Ordering::Relaxed)
    }

    async fn close(self: Box<Self>) -> Closed {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).is_err() {
            return Closed::Unanswered;
        }
        closed.await.unwrap_or(Closed::Unanswered)
    }
}

/// Deliveries the broker waits for, by number of arrival.
#[derive(Default)]
struct Unsettled {
    first: u64,
    infos: VecDeque<Option<DeliveryInfo>>,
}

impl Unsettled {
    fn push(&mut self, info: DeliveryInfo) {
        self.infos.push_back(Some(info));
    }

    /// `None`: settled already, or never seen.
    fn take(&mut self, id: DeliveryId) -> Option<DeliveryInfo> {
        let at = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        let info = self.infos.get_mut(at)?.take();
        while let Some(None) = self.infos.front() {
            self.infos.pop_front();
            self.first += 1;
        }
        info
    }
}

struct Task {
    attached: Attached,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
    end: watch::Sender<Option<Ended>>,
    next: u64,
    unsettled: Unsettled,
    /// Messages that cannot be decoded: nobody here has their bytes, so the broker keeps them. They stay unsettled while
    /// the link lives, which keeps them from coming again at once, and count as a failed attempt at its end.
    unreadable: Vec<DeliveryInfo>,
}

impl Task {
    async fn run(mut self) {
        let error = loop {
            let step = tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    // Both halves are gone: nobody is told, the socket is cut.
                    None => return,
                    Some(Command::Grant(more)) => self.grant(more).await,
                    Some(Command::Settle { ids, outcome, done }) => self.settle(&ids, outcome, done).await,
                    Some(Command::Close(done)) => return self.close(done).await,
                },
                received = self.attached.receiver.recv::<Body<Value>>() => self.arrived(received),
            };
            if let Err(error) = step {
                break error;
            }
        };
        self.fail(error).await;
    }

    async fn grant(&mut self, more: u32) -> Result<(), RecvError> {
        let receiver = &mut self.attached.receiver;
        let credit = receiver.credit().saturating_add(more);
        receiver.set_credit(credit).await.map_err(|e| RecvError::LinkStateError(e.into()))
    }

    /// Takes one message, and all that came with it.
    fn arrived(&mut self, first: Result<Transferred<Body<Value>>, RecvError>) -> Result<(), RecvError> {
        let shared = self.shared.clone();
        let mut inbox = shared.inbox();
        let had = inbox.rows.len();
        let now = clock::wall_millis();
        let mut taken = 0;
        let mut next = Some(first);
        while let Some(received) = next {
            match received {
                Ok(delivery) => self.keep(delivery, &mut inbox, now),
                Err(RecvError::MessageDecode(error)) => {
                    inbox.credit.unreadable();
                    self.set_aside(error.info, &format!("it cannot be decoded: {}", error.source));
                }
                Err(error) => return Err(error),
            }
            taken += 1;
            next = if taken < BURST { self.attached.receiver.recv::<Body<Value>>().now_or_never() } else { None };
        }
        if had == 0 && inbox.rows.len() > 0 {
            self.shared.arrived.notify_one();
        }
        Ok(())
    }

    fn keep(&mut self, delivery: Transferred<Body<Value>>, inbox: &mut Inbox, now: i64) {
        let (info, message) = delivery.into_parts();
        let id = DeliveryId(self.next);
        match inbox.rows.push(id, message, now) {
            Ok(bytes) => {
                inbox.credit.arrived(bytes);
                self.unsettled.push(info);
                self.next += 1;
            }
            Err(TooLarge(bytes)) => {
                inbox.credit.unreadable();
                self.set_aside(info, &format!("its body of {bytes} bytes is larger than a column can hold"));
            }
        }
    }

    fn set_aside(&mut self, info: DeliveryInfo, why: &str) {
        let Place { queue, .. } = &self.shared.place;
        tracing::error!(broker = %self.shared.place, queue, why, "a message cannot be read; it stays with the broker, and counts as a failed delivery when the link ends");
        self.unreadable.push(info);
    }

    async fn settle(
        &mut self,
        ids: &[DeliveryId],
        outcome: Outcome,
        done: oneshot::Sender<()>,
    ) -> Result<(), RecvError> {
        for ids in ids.chunks(SETTLE_AT_ONCE) {
            let infos = ids.iter().filter_map(|&id| self.unsettled.take(id)).collect();
            let state = match outcome {
                // The dead letter has what was rejected; the broker is rid of both.
                Outcome::Accepted | Outcome::Rejected => TerminalDeliveryState::Accepted(Accepted {}),
                Outcome::Released => TerminalDeliveryState::Released(Released {}),
            };
            self.dispose(infos, state).await?;
            if let Some(received) = self.attached.receiver.recv::<Body<Value>>().now_or_never() {
                self.arrived(received)?;
            }
        }
        // Nobody waits any more: a settler that was dropped.
        let _ = done.send(());
        Ok(())
    }

    async fn dispose(&mut self, infos: Vec<DeliveryInfo>, state: TerminalDeliveryState) -> Result<(), RecvError> {
        let disposed = self.attached.receiver.dispose_all(infos, state).await;
        disposed.map_err(|e| RecvError::LinkStateError(e.into()))
    }

    /// The link has failed: finds out why, says so, and hangs up.
    async fn fail(mut self, error: RecvError) {
        let connection = match &error {
            RecvError::LinkStateError(LinkStateError::SessionStopped(_)) => {
                timeout(REASON_LIMIT, self.attached.connection.close()).await.ok().and_then(Result::err)
            }
            _ => None,
        };
        let StageError { reaction, context, source } = explain(Failure::Receive(error, connection), &self.shared.place);
        let context = source.map_or(context.clone(), |source| format!("{context}: {source}"));
        self.end.send_replace(Some(Ended { reaction, context }));
        // What the peer ended on its own side alone is closed in good order; the halves do not wait for it.
        let _ = timeout(REASON_LIMIT, self.attached.connection.close()).await;
    }

    /// Ends the link in good order: what nobody took goes back, settlements go out before the detach, and the answers to
    /// detach and end show that the peer has read them.
    async fn close(mut self, done: oneshot::Sender<Closed>) {
        let context = format!("the link to {} was closed", self.shared.place);
        self.end.send_replace(Some(Ended { reaction: Reaction::Away, context }));
        let answered = timeout(CLOSE_LIMIT, self.hand_back()).await;
        let Self { attached: Attached { receiver, mut session, mut connection, line }, .. } = self;
        // An old RabbitMQ never answers that a link is closed, and a second attach, with which fe2o3-amqp asks again, ends
        // the connection. It answers a detach.
        let old_rabbitmq = line.0.peer().is_old_rabbitmq();
        let end = async {
            let detached = if old_rabbitmq { receiver.detach().await.is_ok() } else { receiver.close().await.is_ok() };
            detached && session.end().await.is_ok()
        };
        let answered = if answered == Ok(true) { timeout(CLOSE_LIMIT, end).await } else { Ok(false) };
        let _ = timeout(REASON_LIMIT, connection.close()).await;
        line.0.cut();
        let _ = timeout(REASON_LIMIT, line.0.closed()).await;
        let _ = done.send(if answered == Ok(true) { Closed::Answered } else { Closed::Unanswered });
    }

    /// Releases what arrived and was not taken, and stops credit. `false`: the link is broken.
    async fn hand_back(&mut self) -> bool {
        while let Some(received) = self.attached.receiver.recv::<Body<Value>>().now_or_never() {
            if self.arrived(received).is_err() {
                return false;
            }
        }
        let waiting = self.shared.inbox().rows.waiting();
        let waiting = waiting.into_iter().filter_map(|id| self.unsettled.take(id)).collect();
        let unreadable = std::mem::take(&mut self.unreadable);
        let failed = Modified { delivery_failed: Some(true), undeliverable_here: None, message_annotations: None };
        // What is still on its way is lost to the library when credit goes, and comes back to the broker by the detach.
        self.dispose(waiting, TerminalDeliveryState::Released(Released {})).await.is_ok()
            && self.dispose(unreadable, TerminalDeliveryState::Modified(failed)).await.is_ok()
            && self.attached.receiver.set_credit(0).await.is_ok()
    }
}
