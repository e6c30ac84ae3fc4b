//! How links come and go.

use std::sync::Arc;

use bytes::BytesMut;
use fe2o3_amqp_types::definitions::{AmqpError, Error, Handle, Role, SenderSettleMode, SessionError};
use fe2o3_amqp_types::messaging::{DistributionMode, Outcome, Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Detach};

use super::{Session, Slot};
use crate::broker::fault::{Fault, error};
use crate::broker::link::{Incoming, MAX_MESSAGE, Outgoing, Verdict};
use crate::broker::queue::Queue;
use crate::broker::wire::Malformed;

/// The highest handle of a link.
pub(super) const HANDLE_MAX: u32 = 4095;

/// What a slot held before it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Was {
    Free,
    Refused,
    Attached,
}

impl Session {
    pub(super) fn on_attach(&mut self, attach: Attach, out: &mut BytesMut) -> Result<(), Fault> {
        let handle = attach.handle.0;
        if handle > HANDLE_MAX {
            return Err(Fault::Connection(error(
                AmqpError::NotAllowed,
                format!("handle {handle} is beyond handle-max"),
            )));
        }
        let at = handle as usize;
        if at >= self.links.len() {
            self.links.resize_with(at + 1, || Slot::Free);
        }
        if !matches!(self.links[at], Slot::Free) {
            return Err(Fault::Session(error(
                SessionError::HandleInUse,
                format!("handle {handle} has a link already"),
            )));
        }
        let mut answer = Attach {
            role: if attach.role == Role::Sender { Role::Receiver } else { Role::Sender },
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: None,
            max_message_size: Some(MAX_MESSAGE as u64),
            offered_capabilities: None,
            desired_capabilities: None,
            properties: None,
            ..attach.clone()
        };
        let opened = match attach.role {
            Role::Receiver => {
                answer.initial_delivery_count = Some(0);
                answer.max_message_size = None;
                self.consumer(&attach).map(|(slot, source)| (slot, Some(Box::new(source)), attach.target))
            }
            Role::Sender => self.producer(&attach).map(|(slot, target)| {
                answer.rcv_settle_mode = Default::default();
                (slot, attach.source, Some(Box::new(TargetArchetype::Target(target))))
            }),
        };
        match opened {
            Ok((slot, source, target)) => {
                (answer.source, answer.target) = (source, target);
                self.put(out, &answer)?;
                self.links[at] = slot;
                Ok(())
            }
            // The way brokers refuse: attach, without the terminus that they do not have, then detach.
            Err(refusal) => {
                match answer.role {
                    Role::Sender => answer.source = None,
                    Role::Receiver => answer.target = None,
                }
                self.put(out, &answer)?;
                self.links[at] = Slot::Refused;
                Ok(self.put(out, &Detach { handle: Handle(handle), closed: true, error: Some(refusal) })?)
            }
        }
    }

    fn consumer(&self, attach: &Attach) -> Result<(Slot, Source), Error> {
        let source = attach.source.as_deref().ok_or_else(|| error(AmqpError::InvalidField, "the source is missing"))?;
        if source.dynamic {
            return Err(error(AmqpError::NotImplemented, "this broker has no dynamic queues"));
        }
        if source.distribution_mode == Some(DistributionMode::Copy) {
            return Err(error(AmqpError::NotImplemented, "this broker has no browsers"));
        }
        let queue = self.queue(source.address.as_deref())?;
        let default = match &source.default_outcome {
            None | Some(Outcome::Released(_)) => Verdict::RELEASED,
            Some(Outcome::Accepted(_)) => Verdict::Accepted,
            Some(Outcome::Rejected(_)) => Verdict::Rejected(None),
            Some(Outcome::Modified(modified)) => Verdict::Returned {
                failed: modified.delivery_failed.unwrap_or(false),
                undeliverable_here: modified.undeliverable_here.unwrap_or(false),
            },
        };
        let settled = attach.snd_settle_mode == SenderSettleMode::Settled;
        let link = Outgoing::new(attach.handle.0, queue, self.connection.clone(), settled, default);
        // A filter that is not echoed is one that does not apply: this broker has none.
        Ok((Slot::Out(link), Source { filter: None, ..source.clone() }))
    }

    fn producer(&self, attach: &Attach) -> Result<(Slot, Target), Error> {
        let Some(TargetArchetype::Target(target)) = attach.target.as_deref() else {
            return Err(error(AmqpError::InvalidField, "the target is missing"));
        };
        if target.dynamic {
            return Err(error(AmqpError::NotImplemented, "this broker has no dynamic queues"));
        }
        let queue = self.queue(target.address.as_deref())?;
        let link = Incoming::new(attach.handle.0, queue, attach.initial_delivery_count.unwrap_or(0));
        Ok((Slot::In(link), target.clone()))
    }

    fn queue(&self, address: Option<&str>) -> Result<Arc<Queue>, Error> {
        match address {
            None | Some("") => {
                Err(error(AmqpError::NotImplemented, "this broker needs the name of a queue as address"))
            }
            Some(name) => self
                .store
                .open(name)
                .ok_or_else(|| error(AmqpError::NotFound, format!("there is no queue '{name}', and none is created"))),
        }
    }

    pub(super) fn on_detach(&mut self, detach: &Detach, out: &mut BytesMut) -> Result<(), Fault> {
        let handle = detach.handle.0;
        match self.close_link(handle, Slot::Free) {
            // Of nothing too: clients answer a refusal twice, once by themselves and once because it was refused.
            Was::Free | Was::Refused => Ok(()),
            Was::Attached => {
                self.tell_accepted(out);
                Ok(self.put(out, &Detach { handle: Handle(handle), closed: detach.closed, error: None })?)
            }
        }
    }

    /// Takes a link down with an error; the session lives on.
    pub(in crate::broker) fn refuse_link(
        &mut self,
        handle: u32,
        error: Error,
        out: &mut BytesMut,
    ) -> Result<(), Malformed> {
        self.close_link(handle, Slot::Refused);
        self.tell_accepted(out);
        self.put(out, &Detach { handle: Handle(handle), closed: true, error: Some(error) })
    }

    /// Ends what is attached there, if anything, and leaves `then` in its place.
    pub(super) fn close_link(&mut self, handle: u32, then: Slot) -> Was {
        let Some(slot) = self.links.get_mut(handle as usize) else { return Was::Free };
        match std::mem::replace(slot, then) {
            Slot::Out(link) => link.end(self.outbound.unsettled.remove_link(handle)),
            Slot::In(mut link) => link.store(),
            Slot::Refused => return Was::Refused,
            Slot::Free => {
                *slot = Slot::Free;
                return Was::Free;
            }
        }
        Was::Attached
    }
}
