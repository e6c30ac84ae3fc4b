//! The two kinds of link: outgoing to a consumer, incoming from a producer.
//!
//! Invariant of an outgoing link: it takes a message from the queue only while it has credit and its session has a
//! window, and then writes it at once. A message that needs more frames than the window allows stays with its link as
//! `rest`, the only message that may wait there.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::Notify;

use super::message::Message;
use super::queue::{Queue, Return, Waiter};
use super::unsettled::Unsettled;
use super::wire::{self, AMQP, TRANSFER_ROOM, code, put_flag, put_frame, put_list8, put_null, put_uint};

/// Answers wait in the buffer while it holds this much: the socket is the limit then, and messages stay in their queue.
pub(super) const FULL: usize = 256 * 1024;

/// How many messages a link takes before the next link's turn.
const TURN: u32 = 128;

/// Credit that a producer has at most; renewed at half.
const PRODUCER_CREDIT: u32 = 1_000;

/// The largest message that is taken.
pub(super) const MAX_MESSAGE: usize = 128 * 1024 * 1024;

/// What a consumer did with a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accepted,
    Rejected(Option<String>),
    Returned { failed: bool, undeliverable_here: bool },
}

impl Verdict {
    pub(super) const RELEASED: Self = Self::Returned { failed: false, undeliverable_here: false };
}

/// The outgoing half of a session: what its consumers share.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) channel: u16,
    /// The largest frame that the peer takes.
    pub(super) frame_size: usize,
    /// Transfers that the peer still takes.
    pub(super) window: u32,
    pub(super) next_transfer: u32,
    pub(super) next_delivery: u64,
    pub(super) unsettled: Unsettled,
}

impl Outbound {
    fn ready(&self, out: &BytesMut) -> bool {
        self.window > 0 && out.len() < FULL
    }

    fn count_transfer(&mut self) {
        self.window -= 1;
        self.next_transfer = self.next_transfer.wrapping_add(1);
    }

    /// Writes the first frame of a message; what did not fit is returned.
    fn start(&mut self, out: &mut BytesMut, handle: u32, message: &Message, settled: bool) -> Option<Bytes> {
        let delivery = self.next_delivery as u32;
        self.next_delivery += 1;
        self.count_transfer();
        let room = self.frame_size - TRANSFER_ROOM;
        let mut rest = None;
        put_frame(out, AMQP, self.channel, |out| {
            // The header is at most 20 bytes, and never split.
            let more = message.body.len() + 20 > room;
            put_list8(out, code::TRANSFER as u8, 6, |out| {
                put_uint(out, handle);
                put_uint(out, delivery);
                out.put_slice(&[0xa0, 4]);
                out.put_u32(delivery);
                put_uint(out, message.format);
                put_flag(out, settled);
                put_flag(out, more);
            });
            message.put_header(out);
            if more {
                out.put_slice(&message.body[..room - 20]);
                rest = Some(message.body.slice(room - 20..));
            } else {
                out.put_slice(&message.body);
            }
        });
        rest
    }

    /// Writes one more frame of a message; true when it was the last.
    fn go_on(&mut self, out: &mut BytesMut, handle: u32, rest: &mut Bytes) -> bool {
        self.count_transfer();
        let size = rest.len().min(self.frame_size - TRANSFER_ROOM);
        put_frame(out, AMQP, self.channel, |out| {
            put_list8(out, code::TRANSFER as u8, 6, |out| {
                put_uint(out, handle);
                put_null(out);
                put_null(out);
                put_null(out);
                put_null(out);
                put_flag(out, size < rest.len());
            });
            out.put_slice(&rest[..size]);
        });
        rest.advance(size);
        rest.is_empty()
    }
}

/// A link to a consumer.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) handle: u32,
    pub(super) queue: Arc<Queue>,
    waiter: Arc<Waiter>,
    pub(super) delivery_count: u32,
    pub(super) credit: u32,
    pub(super) drain: bool,
    /// Deliveries are sent settled.
    settled: bool,
    /// What happens to a delivery that is settled, or lost, without an outcome.
    pub(super) default: Verdict,
    rest: Option<Bytes>,
}

impl Outgoing {
    pub(super) fn new(
        handle: u32,
        queue: Arc<Queue>,
        connection: Arc<Notify>,
        settled: bool,
        default: Verdict,
    ) -> Self {
        queue.open_consumer();
        let waiter = Waiter::new(connection);
        Self { handle, queue, waiter, delivery_count: 0, credit: 0, drain: false, settled, default, rest: None }
    }

    /// Writes what credit, window and buffer allow, for one turn. Says whether anything was written.
    pub(super) fn deliver(&mut self, session: &mut Outbound, out: &mut BytesMut) -> bool {
        let mut any = false;
        while let Some(rest) = &mut self.rest
            && session.ready(out)
        {
            any = true;
            if session.go_on(out, self.handle, rest) {
                self.rest = None;
            }
        }
        if self.rest.is_some() || self.credit == 0 || !session.ready(out) {
            self.queue.pass_on(&self.waiter);
            return any;
        }
        if self.waiter.is_waiting() {
            return any;
        }
        let (handle, settled) = (self.handle, self.settled);
        let (mut given, mut cost) = (0, 0);
        let rest = &mut self.rest;
        any |= self.queue.take(&self.waiter, self.credit.min(TURN), |message| {
            let delivery = session.next_delivery;
            *rest = session.start(out, handle, &message, settled);
            given += 1;
            cost += message.cost();
            if !settled {
                session.unsettled.push(delivery, handle, message);
            }
            rest.is_none() && session.ready(out)
        });
        self.credit -= given;
        self.delivery_count = self.delivery_count.wrapping_add(given);
        if settled && given > 0 {
            self.queue.accept(u64::from(given), cost);
        }
        any
    }

    /// A drain is done when no message is left for the credit: the credit is used up.
    pub(super) fn drained(&mut self) -> bool {
        let done = self.drain && self.rest.is_none() && (self.credit == 0 || self.waiter.is_waiting());
        if done {
            self.delivery_count = self.delivery_count.wrapping_add(self.credit);
            self.credit = 0;
            self.drain = false;
        }
        done
    }

    /// Tells the queue what became of deliveries.
    pub(super) fn settle(&self, messages: Vec<Message>, verdict: &Verdict) {
        match verdict {
            Verdict::Accepted => {
                self.queue.accept(messages.len() as u64, messages.iter().map(Message::cost).sum());
            }
            Verdict::Rejected(reason) => self.queue.reject(messages, reason.as_deref()),
            Verdict::Returned { failed, undeliverable_here } => {
                let exclude = undeliverable_here.then_some(self.waiter.consumer);
                self.queue.give_back(messages, Return { failed: *failed, exclude });
            }
        }
    }

    /// The link is gone: what it held goes back, unless the consumer had said what an unanswered delivery means.
    pub(super) fn end(self, unsettled: Vec<Message>) {
        // Closed first, or it might be woken for what it gives back.
        self.queue.close_consumer(&self.waiter);
        if !unsettled.is_empty() {
            self.settle(unsettled, &self.default);
        }
    }
}

/// A message that has arrived in part.
#[derive(Debug)]
struct Assembling {
    delivery: u32,
    format: u32,
    settled: bool,
    sections: BytesMut,
}

/// A link from a producer.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) handle: u32,
    pub(super) queue: Arc<Queue>,
    pub(super) delivery_count: u32,
    pub(super) credit: u32,
    /// The largest message that came, by which the credit is measured.
    largest: u64,
    assembling: Option<Assembling>,
    /// Whole messages that are not in the queue yet.
    arrived: Vec<Message>,
}

/// The fields of a transfer that matter to a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) handle: u32,
    pub(super) delivery: Option<u32>,
    pub(super) format: Option<u32>,
    pub(super) settled: bool,
    pub(super) more: bool,
    pub(super) aborted: bool,
}

impl Transfer {
    pub(super) fn read(fields: &mut wire::Fields<'_>) -> Result<Self, wire::Malformed> {
        let handle = fields.uint()?.ok_or(wire::Malformed("a transfer without handle"))?;
        let delivery = fields.uint()?;
        fields.raw()?; // delivery-tag
        let format = fields.uint()?;
        let settled = fields.flag()?;
        let more = fields.flag()?;
        fields.raw()?; // rcv-settle-mode
        fields.raw()?; // state
        fields.raw()?; // resume
        let aborted = fields.flag()?;
        Ok(Self { handle, delivery, format, settled, more, aborted })
    }
}

/// What a transfer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// More is to come, or it was called off.
    Partial,
    /// A whole message; to be accepted if it is unsettled.
    Whole {
        delivery: u32,
        settled: bool,
    },
    /// Whole, but no message.
    Unreadable {
        delivery: u32,
        settled: bool,
        why: &'static str,
    },
    NoCredit,
    TooLarge,
    WithoutId,
}

impl Incoming {
    pub(super) fn new(handle: u32, queue: Arc<Queue>, delivery_count: u32) -> Self {
        Self { handle, queue, delivery_count, credit: 0, largest: 1, assembling: None, arrived: Vec::new() }
    }

    pub(super) fn transfer(&mut self, transfer: Transfer, payload: &[u8]) -> Arrival {
        if transfer.aborted {
            self.assembling = None;
            return Arrival::Partial;
        }
        let (delivery, format, settled, sections) = match self.assembling.take() {
            Some(mut begun) => {
                if begun.sections.len() + payload.len() > MAX_MESSAGE {
                    return Arrival::TooLarge;
                }
                begun.sections.extend_from_slice(payload);
                begun.settled |= transfer.settled;
                if transfer.more {
                    self.assembling = Some(begun);
                    return Arrival::Partial;
                }
                (begun.delivery, begun.format, begun.settled, begun.sections.freeze())
            }
            None => {
                let Some(delivery) = transfer.delivery else { return Arrival::WithoutId };
                if self.credit == 0 {
                    return Arrival::NoCredit;
                }
                self.credit -= 1;
                self.delivery_count = self.delivery_count.wrapping_add(1);
                let format = transfer.format.unwrap_or(0);
                if transfer.more {
                    let sections = BytesMut::from(payload);
                    self.assembling = Some(Assembling { delivery, format, settled: transfer.settled, sections });
                    return Arrival::Partial;
                }
                // Copied, so that one message does not keep the whole read buffer alive.
                (delivery, format, transfer.settled, Bytes::copy_from_slice(payload))
            }
        };
        match Message::parse(sections, format) {
            Ok(message) => {
                self.largest = self.largest.max(message.cost());
                self.arrived.push(message);
                Arrival::Whole { delivery, settled }
            }
            Err(wire::Malformed(why)) => Arrival::Unreadable { delivery, settled, why },
        }
    }

    /// Puts what has arrived into the queue.
    pub(super) fn store(&mut self) {
        if !self.arrived.is_empty() {
            self.queue.push(&mut self.arrived);
        }
    }

    /// Raises the credit if it is low and memory allows. Says whether the producer is to be told.
    pub(super) fn top_up(&mut self, connection: &Arc<Notify>) -> bool {
        let memory = &self.queue.memory;
        if self.credit > PRODUCER_CREDIT / 2 || !memory.has_room_or_park(connection) {
            return false;
        }
        let fits = (memory.room() / self.largest).clamp(1, u64::from(PRODUCER_CREDIT)) as u32;
        let more = fits / 2 >= self.credit;
        self.credit = self.credit.max(fits);
        more
    }
}
