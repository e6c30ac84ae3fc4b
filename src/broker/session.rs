//! A session: links, two windows, and the deliveries that are unsettled on it.
//!
//! Invariants: nothing is sent beyond the window that the peer announced, and the window counts frames only, so a
//! delivery that stays unsettled blocks nothing. Dropping a session, however it ends, returns what its links held.

mod attach;

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use fe2o3_amqp_types::definitions::{AmqpError, Handle, LinkError, Role, SessionError};
use fe2o3_amqp_types::messaging::{DeliveryState, Rejected};
use fe2o3_amqp_types::performatives::{Begin, Disposition, Flow};
use tokio::sync::Notify;

use self::attach::HANDLE_MAX;
use super::fault::{Fault, error};
use super::link::{Arrival, Incoming, MAX_MESSAGE, Outbound, Outgoing, Transfer, Verdict};
use super::message::Message;
use super::store::Store;
use super::wire::{self, AMQP, Malformed, Reader, code, put_flag, put_frame, put_list8, put_performative, put_uint};

/// Transfers that a peer may send ahead; renewed at half.
const WINDOW: u32 = 8192;

const NULL: [u8; 1] = [0x40];

const ACCEPTED: [u8; 4] = [0x00, 0x53, 0x24, 0x45];

#[derive(Debug)]
enum Slot {
    Free,
    Out(Outgoing),
    In(Incoming),
    /// This side has detached; the peer's answer is still to come, and what it sent before is ignored.
    Refused,
}

/// One session of a connection.
#[derive(Debug)]
pub(super) struct Session {
    outbound: Outbound,
    next_incoming: u32,
    window: u32,
    /// Accepted deliveries that the producer has not been told of.
    accepted: Option<(u32, u32)>,
    /// Whose turn it is.
    turn: usize,
    links: Vec<Slot>,
    store: Arc<Store>,
    connection: Arc<Notify>,
}

impl Session {
    pub(super) fn new(channel: u16, begin: &Begin, frame_size: usize, store: Arc<Store>, wake: Arc<Notify>) -> Self {
        Self {
            outbound: Outbound {
                channel,
                frame_size,
                window: begin.incoming_window,
                next_transfer: 0,
                next_delivery: 0,
                unsettled: Default::default(),
            },
            next_incoming: begin.next_outgoing_id,
            window: WINDOW,
            accepted: None,
            turn: 0,
            links: Vec::new(),
            store,
            connection: wake,
        }
    }

    /// The answer to the peer's begin.
    pub(super) fn begin(&self) -> Begin {
        Begin {
            remote_channel: Some(self.outbound.channel),
            next_outgoing_id: self.outbound.next_transfer,
            incoming_window: self.window,
            outgoing_window: u32::MAX >> 1,
            handle_max: Handle(HANDLE_MAX),
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
        }
    }

    /// Takes one performative with what follows it in its frame.
    pub(super) fn on_frame(&mut self, code: u64, body: &[u8], out: &mut BytesMut) -> Result<(), Fault> {
        match code {
            code::TRANSFER => self.on_transfer(body, out),
            code::DISPOSITION => self.on_disposition(body, out),
            code::FLOW => self.on_flow(&wire::read(body)?, out),
            code::ATTACH => self.on_attach(wire::read(body)?, out),
            code::DETACH => self.on_detach(&wire::read(body)?, out),
            _ => Err(Malformed("a performative that is none").into()),
        }
    }

    fn put<T: serde::Serialize>(&self, out: &mut BytesMut, performative: &T) -> Result<(), Malformed> {
        put_performative(out, AMQP, self.outbound.channel, performative)
    }

    // Messages in.

    fn on_transfer(&mut self, body: &[u8], out: &mut BytesMut) -> Result<(), Fault> {
        let mut reader = Reader::new(body);
        reader.descriptor()?;
        let transfer = Transfer::read(&mut reader.list()?)?;
        if self.window == 0 {
            return Err(Fault::Session(error(SessionError::WindowViolation, "a transfer beyond the incoming window")));
        }
        self.window -= 1;
        self.next_incoming = self.next_incoming.wrapping_add(1);
        let handle = transfer.handle;
        let link = match self.links.get_mut(handle as usize) {
            Some(Slot::In(link)) => link,
            Some(Slot::Refused) => return Ok(()),
            _ => return Err(unattached(handle)),
        };
        match link.transfer(transfer, reader.rest()) {
            Arrival::Partial | Arrival::Whole { settled: true, .. } | Arrival::Unreadable { settled: true, .. } => {
                Ok(())
            }
            Arrival::Whole { delivery, .. } => {
                match &mut self.accepted {
                    Some((_, last)) if last.wrapping_add(1) == delivery => *last = delivery,
                    _ => {
                        self.tell_accepted(out);
                        self.accepted = Some((delivery, delivery));
                    }
                }
                Ok(())
            }
            Arrival::Unreadable { delivery, why, .. } => {
                let state = DeliveryState::Rejected(Rejected { error: Some(error(AmqpError::DecodeError, why)) });
                Ok(self.put(
                    out,
                    &Disposition {
                        role: Role::Receiver,
                        first: delivery,
                        last: None,
                        settled: true,
                        state: Some(state),
                        batchable: false,
                    },
                )?)
            }
            Arrival::NoCredit => {
                Err(Fault::Link(handle, error(LinkError::TransferLimitExceeded, "a transfer without credit")))
            }
            Arrival::TooLarge => Err(Fault::Link(
                handle,
                error(LinkError::MessageSizeExceeded, format!("a message of more than {MAX_MESSAGE} bytes")),
            )),
            Arrival::WithoutId => {
                Err(Fault::Link(handle, error(AmqpError::InvalidField, "a first transfer without delivery-id")))
            }
        }
    }

    fn tell_accepted(&mut self, out: &mut BytesMut) {
        let Some((first, last)) = self.accepted.take() else { return };
        put_frame(out, AMQP, self.outbound.channel, |out| {
            put_list8(out, code::DISPOSITION as u8, 5, |out| {
                put_flag(out, true);
                put_uint(out, first);
                put_uint(out, last);
                put_flag(out, true);
                out.put_slice(&ACCEPTED);
            });
        });
    }

    /// After a batch of input, or when memory became free: store what arrived, say so, and renew credit and window.
    pub(super) fn finish_input(&mut self, out: &mut BytesMut) -> Result<(), Malformed> {
        let mut flows = Vec::new();
        for slot in &mut self.links {
            if let Slot::In(link) = slot {
                link.store();
                if link.top_up(&self.connection) {
                    flows.push((link.handle, link.delivery_count, link.credit));
                }
            }
        }
        self.tell_accepted(out);
        if self.window <= WINDOW / 2 {
            self.window = WINDOW;
            self.put(out, &self.flow())?;
        }
        for (handle, delivery_count, credit) in flows {
            let flow = Flow {
                handle: Some(Handle(handle)),
                delivery_count: Some(delivery_count),
                link_credit: Some(credit),
                ..self.flow()
            };
            self.put(out, &flow)?;
        }
        Ok(())
    }

    // Credit and windows.

    fn flow(&self) -> Flow {
        Flow {
            next_incoming_id: Some(self.next_incoming),
            incoming_window: self.window,
            next_outgoing_id: self.outbound.next_transfer,
            outgoing_window: u32::MAX >> 1,
            handle: None,
            delivery_count: None,
            link_credit: None,
            available: None,
            drain: false,
            echo: false,
            properties: None,
        }
    }

    fn on_flow(&mut self, flow: &Flow, out: &mut BytesMut) -> Result<(), Fault> {
        // What the peer still takes, less what is on the way to it.
        let seen = flow.next_incoming_id.unwrap_or(0);
        let under_way = self.outbound.next_transfer.wrapping_sub(seen);
        self.outbound.window = flow.incoming_window.saturating_sub(under_way);
        let Some(Handle(handle)) = flow.handle else {
            return if flow.echo { Ok(self.put(out, &self.flow())?) } else { Ok(()) };
        };
        let answer = match self.links.get_mut(handle as usize) {
            Some(Slot::Out(link)) => {
                if let Some(credit) = flow.link_credit {
                    let spent = link.delivery_count.wrapping_sub(flow.delivery_count.unwrap_or(0));
                    link.credit = credit.saturating_sub(spent);
                }
                link.drain = flow.drain;
                // The answer to a drain follows when it is done.
                (flow.echo && !flow.drain).then(|| (link.delivery_count, link.credit, Some(link.queue.stats().ready)))
            }
            Some(Slot::In(link)) => flow.echo.then_some((link.delivery_count, link.credit, None)),
            Some(Slot::Refused) => None,
            _ => return Err(unattached(handle)),
        };
        if let Some((delivery_count, credit, available)) = answer {
            let flow = Flow {
                handle: Some(Handle(handle)),
                delivery_count: Some(delivery_count),
                link_credit: Some(credit),
                available: available.map(|ready| u32::try_from(ready).unwrap_or(u32::MAX)),
                ..self.flow()
            };
            self.put(out, &flow)?;
        }
        Ok(())
    }

    // Messages out.

    /// Writes messages for whoever has credit, in turns, until nobody can take more or the buffer is full.
    pub(super) fn deliver(&mut self, out: &mut BytesMut) -> Result<(), Malformed> {
        let count = self.links.len();
        let mut idle = 0;
        // Also with a full buffer: a link that was woken passes that on.
        while idle < count {
            self.turn = (self.turn + 1) % count;
            let Slot::Out(link) = &mut self.links[self.turn] else {
                idle += 1;
                continue;
            };
            idle = if link.deliver(&mut self.outbound, out) { 0 } else { idle + 1 };
            if link.drained() {
                let (handle, delivery_count) = (link.handle, link.delivery_count);
                let flow = Flow {
                    handle: Some(Handle(handle)),
                    delivery_count: Some(delivery_count),
                    link_credit: Some(0),
                    available: Some(0),
                    drain: true,
                    ..self.flow()
                };
                self.put(out, &flow)?;
            }
        }
        Ok(())
    }

    fn on_disposition(&mut self, body: &[u8], out: &mut BytesMut) -> Result<(), Fault> {
        let mut reader = Reader::new(body);
        reader.descriptor()?;
        let mut fields = reader.list()?;
        let from_receiver = fields.flag()?;
        let first = fields.uint()?.ok_or(Malformed("a disposition without first"))?;
        let last = fields.uint()?.unwrap_or(first);
        let settled = fields.flag()?;
        let state = fields.raw()?;
        if !from_receiver {
            // A producer settles what it was told; nothing is kept of it here.
            return Ok(());
        }
        let verdict = state.map(verdict).transpose()?.flatten();
        if verdict.is_none() && !settled {
            return Ok(());
        }
        if last.wrapping_sub(first) > u32::MAX >> 1 {
            return Ok(());
        }
        let Some(from) = self.delivery(first) else { return Ok(()) };
        let to = self.delivery(last).unwrap_or(self.outbound.next_delivery);
        let mut runs: Vec<(u32, Vec<Message>)> = Vec::new();
        self.outbound.unsettled.remove(from, to, |handle, message| match runs.last_mut() {
            Some((same, messages)) if *same == handle => messages.push(message),
            _ => runs.push((handle, vec![message])),
        });
        for (handle, messages) in runs {
            if let Some(Slot::Out(link)) = self.links.get(handle as usize) {
                link.settle(messages, verdict.as_ref().unwrap_or(&link.default));
            }
        }
        if !settled {
            // The receiver settles second: it waits for this.
            put_frame(out, AMQP, self.outbound.channel, |out| {
                let state = state.filter(|state| state.len() < 128);
                put_list8(out, code::DISPOSITION as u8, 5, |out| {
                    put_flag(out, false);
                    put_uint(out, first);
                    put_uint(out, last);
                    put_flag(out, true);
                    out.put_slice(state.unwrap_or(&NULL));
                });
            });
        }
        Ok(())
    }

    /// The delivery that the peer means by this id, if there has been one.
    fn delivery(&self, id: u32) -> Option<u64> {
        let next = self.outbound.next_delivery;
        let back = (next as u32).wrapping_sub(id);
        if back == 0 || back > u32::MAX >> 1 { None } else { next.checked_sub(u64::from(back)) }
    }
}

fn unattached(handle: u32) -> Fault {
    Fault::Session(error(SessionError::UnattachedHandle, format!("handle {handle} has no link of this kind")))
}

/// What a delivery state says; `None` while it is not terminal.
fn verdict(state: &[u8]) -> Result<Option<Verdict>, Malformed> {
    let mut reader = Reader::new(state);
    Ok(match reader.descriptor()? {
        code::ACCEPTED => Some(Verdict::Accepted),
        code::RELEASED => Some(Verdict::RELEASED),
        code::REJECTED => {
            let Some(error) = reader.list()?.raw()? else { return Ok(Some(Verdict::Rejected(None))) };
            let mut reader = Reader::new(error);
            reader.descriptor()?;
            let mut fields = reader.list()?;
            let condition = fields.text()?.unwrap_or("rejected");
            let reason = match fields.text()? {
                Some(description) => format!("{condition}: {description}"),
                None => condition.to_owned(),
            };
            Some(Verdict::Rejected(Some(reason)))
        }
        code::MODIFIED => {
            let mut fields = reader.list()?;
            Some(Verdict::Returned { failed: fields.flag()?, undeliverable_here: fields.flag()? })
        }
        _ => None,
    })
}

impl Drop for Session {
    fn drop(&mut self) {
        for handle in 0..self.links.len() {
            self.close_link(handle as u32, Slot::Free);
        }
    }
}
