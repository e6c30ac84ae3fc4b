//! Bytes of AMQP 1.0: frames, and the few values that are read and written for every message.
//!
//! Transfers and dispositions pass here by the hundred thousand, so they are read and written by hand; everything rarer
//! (open, begin, attach, flow, …) goes through `fe2o3-amqp-types`. A reader never goes beyond its slice and never
//! panics: what does not parse is [`Malformed`].

use bytes::{BufMut, BytesMut};
use serde::Serialize;

/// Descriptor codes of what is read and written by hand.
pub(super) mod code {
    pub(crate) const OPEN: u64 = 0x10;
    pub(crate) const BEGIN: u64 = 0x11;
    pub(crate) const ATTACH: u64 = 0x12;
    pub(crate) const FLOW: u64 = 0x13;
    pub(crate) const TRANSFER: u64 = 0x14;
    pub(crate) const DISPOSITION: u64 = 0x15;
    pub(crate) const DETACH: u64 = 0x16;
    pub(crate) const END: u64 = 0x17;
    pub(crate) const CLOSE: u64 = 0x18;
    pub(crate) const ACCEPTED: u64 = 0x24;
    pub(crate) const REJECTED: u64 = 0x25;
    pub(crate) const RELEASED: u64 = 0x26;
    pub(crate) const MODIFIED: u64 = 0x27;
    pub(crate) const SASL_INIT: u64 = 0x41;
    pub(crate) const HEADER: u64 = 0x70;
}

/// The type byte of a frame: AMQP, or SASL.
pub(super) const AMQP: u8 = 0;
pub(super) const SASL: u8 = 1;

/// Size, data offset, type and channel.
pub(super) const FRAME_HEADER: usize = 8;

/// Room that a transfer performative and its frame header may need.
pub(super) const TRANSFER_ROOM: usize = 48;

/// Described values within described values: more than this is nobody's message.
const MAX_DEPTH: u8 = 8;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// One frame within the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) channel: u16,
    pub(super) body: &'a [u8],
}

/// The first frame of `input` and its size, or `None` while it has not wholly arrived.
pub(super) fn split_frame(input: &[u8], max: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some(&[a, b, c, d]) = input.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes([a, b, c, d]) as usize;
    if size > max {
        return Err(Malformed("a frame is larger than the max-frame-size of this broker"));
    }
    if size < FRAME_HEADER {
        return Err(Malformed("a frame is shorter than its header"));
    }
    let Some(frame) = input.get(..size) else { return Ok(None) };
    let offset = usize::from(frame[4]) * 4;
    if offset < FRAME_HEADER {
        return Err(Malformed("the data offset of a frame points into its header"));
    }
    let body = frame.get(offset..).ok_or(Malformed("the data offset of a frame points behind it"))?;
    Ok(Some((Frame { kind: frame[5], channel: u16::from_be_bytes([frame[6], frame[7]]), body }, size)))
}

/// Reads values one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed("a value ends too early"))?;
        self.rest = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn size(&mut self, wide: bool) -> Result<usize, Malformed> {
        match wide {
            false => Ok(usize::from(self.byte()?)),
            true => Ok(be_u32(self.take(4)?) as usize),
        }
    }

    /// One whole value as it stands, with its format code.
    pub(super) fn value(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.rest;
        self.skip(0)?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    fn skip(&mut self, depth: u8) -> Result<(), Malformed> {
        let format = self.byte()?;
        let n = match format >> 4 {
            0x0 if format == 0 => {
                if depth == MAX_DEPTH {
                    return Err(Malformed("descriptors are nested too deeply"));
                }
                self.skip(depth + 1)?;
                return self.skip(depth + 1);
            }
            0x4 => 0,
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            0x9 => 16,
            0xa | 0xc | 0xe => self.size(false)?,
            0xb | 0xd | 0xf => self.size(true)?,
            _ => return Err(Malformed("an unknown format code")),
        };
        self.take(n).map(drop)
    }

    /// The descriptor of a described value, as a code.
    pub(super) fn descriptor(&mut self) -> Result<u64, Malformed> {
        if self.byte()? != 0 {
            return Err(Malformed("a described value was expected"));
        }
        match self.byte()? {
            0x44 => Ok(0),
            0x53 => Ok(u64::from(self.byte()?)),
            0x80 => {
                let bytes = self.take(8)?;
                Ok(u64::from(be_u32(&bytes[..4])) << 32 | u64::from(be_u32(&bytes[4..])))
            }
            wide @ (0xa3 | 0xb3) => {
                let size = self.size(wide == 0xb3)?;
                Ok(symbolic(self.take(size)?))
            }
            _ => Err(Malformed("a descriptor is neither a number nor a symbol")),
        }
    }

    /// The fields of a list.
    pub(super) fn list(&mut self) -> Result<Fields<'a>, Malformed> {
        let format = self.byte()?;
        let wide = match format {
            0x45 => return Ok(Fields { reader: Reader::new(&[]), left: 0 }),
            0xc0 => false,
            0xd0 => true,
            _ => return Err(Malformed("a list was expected")),
        };
        let size = self.size(wide)?;
        let mut reader = Reader::new(self.take(size)?);
        let left = reader.size(wide)?;
        Ok(Fields { reader, left })
    }
}

/// The codes of the symbols that a peer may write in their place. An unknown symbol is a code that nobody has.
fn symbolic(symbol: &[u8]) -> u64 {
    match symbol {
        b"amqp:open:list" => code::OPEN,
        b"amqp:begin:list" => code::BEGIN,
        b"amqp:attach:list" => code::ATTACH,
        b"amqp:flow:list" => code::FLOW,
        b"amqp:transfer:list" => code::TRANSFER,
        b"amqp:disposition:list" => code::DISPOSITION,
        b"amqp:detach:list" => code::DETACH,
        b"amqp:end:list" => code::END,
        b"amqp:close:list" => code::CLOSE,
        b"amqp:accepted:list" => code::ACCEPTED,
        b"amqp:rejected:list" => code::REJECTED,
        b"amqp:released:list" => code::RELEASED,
        b"amqp:modified:list" => code::MODIFIED,
        b"amqp:sasl-init:list" => code::SASL_INIT,
        b"amqp:header:list" => code::HEADER,
        _ => u64::MAX,
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// The fields of a composite; one that is left out at the end is null.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Fields<'a> {
    /// The next field as it stands, `None` if it is null.
    pub(super) fn raw(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let value = self.reader.value()?;
        Ok((value != [0x40]).then_some(value))
    }

    pub(super) fn uint(&mut self) -> Result<Option<u32>, Malformed> {
        Ok(match self.raw()? {
            None => None,
            Some([0x43]) => Some(0),
            Some([0x52, small]) => Some(u32::from(*small)),
            Some([0x70, wide @ ..]) => Some(be_u32(wide)),
            Some(_) => return Err(Malformed("a uint was expected")),
        })
    }

    /// A string or a symbol.
    pub(super) fn text(&mut self) -> Result<Option<&'a str>, Malformed> {
        let text = match self.raw()? {
            None => return Ok(None),
            Some([0xa1 | 0xa3, _, text @ ..]) => text,
            Some([0xb1 | 0xb3, _, _, _, _, text @ ..]) => text,
            Some(_) => return Err(Malformed("a string was expected")),
        };
        std::str::from_utf8(text).map(Some).map_err(|_| Malformed("a string is not UTF-8"))
    }

    pub(super) fn ubyte(&mut self) -> Result<Option<u8>, Malformed> {
        Ok(match self.raw()? {
            None => None,
            Some([0x50, byte]) => Some(*byte),
            Some(_) => return Err(Malformed("a ubyte was expected")),
        })
    }

    /// A boolean; null is false, which is the default of every flag that is read here.
    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.raw()? {
            None | Some([0x42] | [0x56, 0]) => Ok(false),
            Some([0x41] | [0x56, 1]) => Ok(true),
            Some(_) => Err(Malformed("a boolean was expected")),
        }
    }
}

/// Writes one frame whose body `write` adds.
pub(super) fn put_frame(out: &mut BytesMut, kind: u8, channel: u16, write: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32(0);
    out.put_slice(&[2, kind]);
    out.put_u16(channel);
    write(out);
    let size = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

/// Writes a frame with one of the rarer performatives.
pub(super) fn put_performative<T: Serialize>(
    out: &mut BytesMut,
    kind: u8,
    channel: u16,
    performative: &T,
) -> Result<(), Malformed> {
    let body = serde_amqp::to_vec(performative).map_err(|_| Malformed("an answer could not be encoded"))?;
    put_frame(out, kind, channel, |out| out.put_slice(&body));
    Ok(())
}

/// Reads one of the rarer performatives.
pub(super) fn read<'de, T: serde::Deserialize<'de>>(body: &'de [u8]) -> Result<T, Malformed> {
    serde_amqp::from_slice(body).map_err(|_| Malformed("a performative does not parse"))
}

/// Writes a described list of at most 255 bytes.
pub(super) fn put_list8(out: &mut BytesMut, code: u8, count: u8, fields: impl FnOnce(&mut BytesMut)) {
    out.put_slice(&[0x00, 0x53, code, 0xc0, 0]);
    let start = out.len();
    out.put_u8(count);
    fields(out);
    debug_assert!(out.len() - start < 256, "a short list is short");
    out[start - 1] = (out.len() - start) as u8;
}

pub(super) fn put_uint(out: &mut BytesMut, value: u32) {
    match value {
        0 => out.put_u8(0x43),
        1..=255 => out.put_slice(&[0x52, value as u8]),
        _ => {
            out.put_u8(0x70);
            out.put_u32(value);
        }
    }
}

pub(super) fn put_flag(out: &mut BytesMut, value: bool) {
    out.put_u8(if value { 0x41 } else { 0x42 });
}

pub(super) fn put_null(out: &mut BytesMut) {
    out.put_u8(0x40);
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::Handle;
    use fe2o3_amqp_types::performatives::Transfer;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_is_taken_only_when_it_is_whole() {
        let mut out = BytesMut::new();
        put_frame(&mut out, AMQP, 7, |out| out.put_slice(b"body"));
        out.put_slice(b"next");
        for cut in 0..12 {
            assert_eq!(split_frame(&out[..cut], 512), Ok(None), "{cut} bytes");
        }
        let (frame, size) = split_frame(&out, 512).expect("well formed").expect("whole");
        assert_eq!((frame, size), (Frame { kind: AMQP, channel: 7, body: b"body" }, 12));
        assert!(split_frame(&out, 11).is_err(), "larger than allowed");
        assert!(split_frame(&[0, 0, 0, 7, 2, 0, 0, 0], 512).is_err(), "shorter than its header");
        assert!(split_frame(&[0, 0, 0, 8, 3, 0, 0, 0], 512).is_err(), "offset behind the end");
        assert!(split_frame(&[0, 0, 0, 8, 1, 0, 0, 0], 512).is_err(), "offset in the header");
    }

    #[test]
    fn fields_are_read_as_others_write_them() {
        let transfer = Transfer {
            handle: Handle(3),
            delivery_id: Some(70_000),
            delivery_tag: Some(vec![9; 4].into()),
            message_format: Some(0),
            settled: Some(true),
            more: true,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            aborted: false,
            batchable: false,
        };
        let mut bytes = serde_amqp::to_vec(&transfer).expect("encodes");
        bytes.extend_from_slice(b"payload");
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.descriptor(), Ok(code::TRANSFER));
        let mut fields = reader.list().expect("a list");
        assert_eq!(fields.uint(), Ok(Some(3)));
        assert_eq!(fields.uint(), Ok(Some(70_000)));
        assert_eq!(fields.raw(), Ok(Some(&[0xa0, 4, 9, 9, 9, 9][..])));
        assert_eq!(fields.uint(), Ok(Some(0)));
        assert_eq!(fields.flag(), Ok(true));
        assert_eq!(fields.flag(), Ok(true));
        assert_eq!(fields.raw(), Ok(None), "left out");
        assert_eq!(reader.rest(), b"payload");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, size))) = split_frame(&bytes, 512) {
                prop_assert!(size <= bytes.len());
            }
            let mut reader = Reader::new(&bytes);
            if reader.descriptor().is_ok() && let Ok(mut fields) = reader.list() {
                for _ in 0..4 {
                    let _ = (fields.uint(), fields.flag(), fields.ubyte());
                }
            }
            while reader.value().is_ok_and(|value| !value.is_empty()) {}
        }
    }
}
