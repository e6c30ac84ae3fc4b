//! A message in the broker: its header, which is the broker's to rewrite, and everything else as the bytes that came.

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{Malformed, Reader, code, put_flag, put_list8, put_null, put_uint};

/// What a message costs in memory beside its bytes, roughly.
const OVERHEAD: u64 = 160;

/// A message that is waiting in a queue or unsettled on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// Its place in the queue; given by the queue, kept over every redelivery.
    pub(super) place: u64,
    /// Unsuccessful attempts, as the header tells the next receiver.
    pub(super) delivery_count: u32,
    /// It has been given to a link before.
    pub(super) acquired: bool,
    /// Links that said *undeliverable here*.
    pub(super) excluded: Vec<u64>,
    pub(super) format: u32,
    durable: bool,
    priority: Option<u8>,
    ttl: Option<u32>,
    /// All sections behind the header.
    pub(super) body: Bytes,
}

impl Message {
    /// Takes the header off the sections of a message that has wholly arrived.
    pub(super) fn parse(sections: Bytes, format: u32) -> Result<Self, Malformed> {
        let mut message = Self {
            place: 0,
            delivery_count: 0,
            acquired: false,
            excluded: Vec::new(),
            format,
            durable: false,
            priority: None,
            ttl: None,
            body: Bytes::new(),
        };
        let mut reader = Reader::new(&sections);
        let mut behind_header = 0;
        if reader.descriptor().map_err(|_| Malformed("a message does not start with a section"))? == code::HEADER {
            let mut fields = reader.list()?;
            message.durable = fields.flag()?;
            message.priority = fields.ubyte()?;
            message.ttl = fields.uint()?;
            fields.raw()?; // first-acquirer: ours to say
            message.delivery_count = fields.uint()?.unwrap_or(0);
            behind_header = sections.len() - reader.rest().len();
        }
        message.body = sections.slice(behind_header..);
        Ok(message)
    }

    /// Writes the header that this attempt of delivering it has.
    pub(super) fn put_header(&self, out: &mut BytesMut) {
        put_list8(out, code::HEADER as u8, 5, |out| {
            put_flag(out, self.durable);
            match self.priority {
                Some(priority) => out.put_slice(&[0x50, priority]),
                None => put_null(out),
            }
            match self.ttl {
                Some(ttl) => put_uint(out, ttl),
                None => put_null(out),
            }
            put_flag(out, !self.acquired);
            put_uint(out, self.delivery_count);
        });
    }

    /// Bytes of memory it is counted with.
    pub(super) fn cost(&self) -> u64 {
        self.body.len() as u64 + OVERHEAD
    }

    /// May it be given to this consumer?
    pub(super) fn may_go_to(&self, consumer: u64) -> bool {
        !self.excluded.contains(&consumer)
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::messaging::Header;

    use super::*;

    const BODY: &[u8] = &[0x00, 0x53, 0x77, 0xa1, 2, b'h', b'i'];

    fn header_of(message: &Message) -> Header {
        let mut out = BytesMut::new();
        message.put_header(&mut out);
        serde_amqp::from_slice(&out).expect("a header")
    }

    #[test]
    fn the_header_is_taken_off_and_written_anew() {
        let header =
            Header { durable: true, priority: 7.into(), ttl: Some(60_000), first_acquirer: false, delivery_count: 3 };
        let mut sections = serde_amqp::to_vec(&header).expect("encodes");
        sections.extend_from_slice(BODY);
        let mut message = Message::parse(sections.into(), 0).expect("parses");
        assert_eq!(message.body, BODY);
        assert_eq!(header_of(&message), Header { first_acquirer: true, ..header.clone() });
        message.acquired = true;
        message.delivery_count += 1;
        assert_eq!(header_of(&message), Header { delivery_count: 4, ..header });
    }

    #[test]
    fn a_message_without_header_gets_the_defaults() {
        let message = Message::parse(Bytes::from_static(BODY), 0).expect("parses");
        assert_eq!(message.body, BODY);
        assert_eq!(header_of(&message), Header { first_acquirer: true, ..Header::default() });
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert!(Message::parse(Bytes::new(), 0).is_err(), "empty");
        assert!(Message::parse(Bytes::from_static(b"hello"), 0).is_err(), "no section");
        assert!(Message::parse(Bytes::from_static(&[0x00, 0x53, 0x70, 0xc0, 9, 1]), 0).is_err(), "header cut off");
    }
}
