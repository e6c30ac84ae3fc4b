//! One message: its id, its body and its properties as text, and its identity.
//!
//! The identity's content is what AMQP calls the bare message (properties, application properties, body), which nobody
//! may change between sender and receiver. It is hashed over the decoded values, not over the bytes as they came, and
//! without regard to the order of the application properties: brokers that store messages in a form of their own encode
//! them anew at each delivery, and that must not make a redelivery look like another message.

use std::fmt::Write;

use fe2o3_amqp_types::messaging::{AmqpSequence, AmqpValue, ApplicationProperties, Body, MessageId, Properties};
use fe2o3_amqp_types::primitives::SimpleValue;
use serde_amqp::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::flow::Identity;

/// What a body is to a row.
pub(super) enum Content {
    /// No body, or null.
    Null,
    /// amqp-value with a string.
    Text(String),
    /// One or more data sections, or amqp-value with binary.
    Bytes(Vec<u8>),
    /// Anything else: its type, a reading for people, its encoding.
    Other {
        /// As the specification calls it.
        kind: &'static str,
        /// The body.
        body: Body<Value>,
    },
}

impl Content {
    /// Looks at a body.
    pub fn of(body: Body<Value>) -> Self {
        match body {
            Body::Empty | Body::Value(AmqpValue(Value::Null)) => Self::Null,
            Body::Value(AmqpValue(Value::String(text))) => Self::Text(text),
            Body::Value(AmqpValue(Value::Binary(bytes))) => Self::Bytes(bytes.into_vec()),
            Body::Data(sections) => {
                let mut sections = sections.into_iter();
                let mut bytes = sections.next().map(|data| data.0.into_vec()).unwrap_or_default();
                for more in sections {
                    bytes.extend_from_slice(&more.0);
                }
                Self::Bytes(bytes)
            }
            Body::Value(AmqpValue(ref value)) => Self::Other { kind: kind(value), body },
            Body::Sequence(_) => Self::Other { kind: "amqp-sequence", body },
        }
    }

    /// Bytes of the body, as far as they are known without encoding it again.
    pub fn size(&self) -> usize {
        match self {
            Self::Null => 0,
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Other { body, .. } => serde_amqp::serialized_size(body).unwrap_or(0),
        }
    }
}

/// A body that is carried nowhere, as a person reads it.
pub(super) fn rendered(body: &Body<Value>) -> String {
    match body {
        Body::Value(AmqpValue(value)) => value.to_string(),
        Body::Sequence(sections) => {
            let mut text = String::new();
            for AmqpSequence(values) in sections {
                let _ = write!(text, "{}", Value::List(values.clone()));
            }
            text
        }
        Body::Data(_) | Body::Empty => String::new(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Described(_) => "described value",
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Ubyte(_) => "ubyte",
        Value::Ushort(_) => "ushort",
        Value::Uint(_) => "uint",
        Value::Ulong(_) => "ulong",
        Value::Byte(_) => "byte",
        Value::Short(_) => "short",
        Value::Int(_) => "int",
        Value::Long(_) => "long",
        Value::Float(_) => "float",
        Value::Double(_) => "double",
        Value::Decimal32(_) => "decimal32",
        Value::Decimal64(_) => "decimal64",
        Value::Decimal128(_) => "decimal128",
        Value::Char(_) => "char",
        Value::Timestamp(_) => "timestamp",
        Value::Uuid(_) => "uuid",
        Value::Binary(_) => "binary",
        Value::String(_) => "string",
        Value::Symbol(_) => "symbol",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Array(_) => "array",
    }
}

/// A message id as text.
pub(super) fn id_text(id: &MessageId, to: &mut String) {
    match id {
        MessageId::String(text) => to.push_str(text),
        MessageId::Ulong(number) => {
            let _ = write!(to, "{number}");
        }
        MessageId::Uuid(id) => {
            let _ = write!(to, "{}", uuid::Uuid::from_bytes(*id.as_inner()).hyphenated());
        }
        MessageId::Binary(bytes) => hex(bytes, to),
    }
}

/// Bytes as lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8], to: &mut String) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    to.reserve(bytes.len() * 2);
    for byte in bytes {
        to.push(DIGITS[usize::from(byte >> 4)]);
        to.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// An application property as text; `false` where it is null.
pub(super) fn property_text(value: &SimpleValue, to: &mut String) -> bool {
    let written = match value {
        SimpleValue::Null => return false,
        SimpleValue::String(text) => to.write_str(text),
        SimpleValue::Symbol(symbol) => to.write_str(symbol.as_str()),
        SimpleValue::Bool(v) => write!(to, "{v}"),
        SimpleValue::Ubyte(v) => write!(to, "{v}"),
        SimpleValue::Ushort(v) => write!(to, "{v}"),
        SimpleValue::Uint(v) => write!(to, "{v}"),
        SimpleValue::Ulong(v) => write!(to, "{v}"),
        SimpleValue::Byte(v) => write!(to, "{v}"),
        SimpleValue::Short(v) => write!(to, "{v}"),
        SimpleValue::Int(v) => write!(to, "{v}"),
        SimpleValue::Long(v) => write!(to, "{v}"),
        SimpleValue::Float(v) => write!(to, "{v}"),
        SimpleValue::Double(v) => write!(to, "{v}"),
        SimpleValue::Char(v) => write!(to, "{v}"),
        SimpleValue::Timestamp(v) => write!(to, "{}", Value::Timestamp(v.clone())),
        SimpleValue::Uuid(v) => write!(to, "{}", uuid::Uuid::from_bytes(*v.as_inner()).hyphenated()),
        SimpleValue::Binary(bytes) => {
            hex(bytes, to);
            Ok(())
        }
        SimpleValue::Decimal32(v) => {
            hex(v.as_inner(), to);
            Ok(())
        }
        SimpleValue::Decimal64(v) => {
            hex(v.as_inner(), to);
            Ok(())
        }
        SimpleValue::Decimal128(v) => {
            hex(v.as_inner(), to);
            Ok(())
        }
        SimpleValue::Described(v) => write!(to, "{}", Value::Described(v.clone())),
    };
    written.is_ok()
}

/// Computes identities; keeps its buffers between messages.
#[derive(Default)]
pub(super) struct Identifier {
    id: Vec<u8>,
    bare: Vec<u8>,
    text: String,
}

impl Identifier {
    /// The identity of a message, and whether it brought no id of its own.
    pub fn identify(
        &mut self,
        properties: Option<&Properties>,
        application: Option<&ApplicationProperties>,
        content: &Content,
    ) -> (Identity, bool) {
        let Some(id) = properties.and_then(|properties| properties.message_id.as_ref()) else {
            return (Identity::random(), true);
        };
        self.id.clear();
        tagged(id, &mut self.id);
        self.bare.clear();
        if let Some(properties) = properties {
            bare_properties(properties, &mut self.bare);
        }
        if let Some(application) = application {
            // A sum of hashes does not know an order.
            let mut sum = 0_u64;
            for (key, value) in application.iter() {
                self.text.clear();
                self.text.push_str(key);
                self.text.push('\0');
                self.text.push(char::from(value.format_code()));
                property_text(value, &mut self.text);
                sum = sum.wrapping_add(xxh3_64(self.text.as_bytes()));
            }
            self.bare.extend(sum.to_be_bytes());
        }
        let (tag, hash) = match content {
            Content::Null => (0, 0),
            Content::Text(text) => (1, xxh3_64(text.as_bytes())),
            Content::Bytes(bytes) => (2, xxh3_64(bytes)),
            Content::Other { body, .. } => (3, serde_amqp::to_vec(body).map_or(0, |encoded| xxh3_64(&encoded))),
        };
        self.bare.push(tag);
        self.bare.extend(u64::to_be_bytes(hash));
        (Identity::of(&self.id, &self.bare), false)
    }
}

/// A message id with its type: the ulong 5 and the string "5" are two.
fn tagged(id: &MessageId, to: &mut Vec<u8>) {
    match id {
        MessageId::String(text) => field(1, text.as_bytes(), to),
        MessageId::Ulong(number) => field(2, &number.to_be_bytes(), to),
        MessageId::Uuid(id) => field(3, id.as_inner(), to),
        MessageId::Binary(bytes) => field(4, bytes, to),
    }
}

fn field(tag: u8, bytes: &[u8], to: &mut Vec<u8>) {
    to.push(tag);
    to.extend((bytes.len() as u64).to_be_bytes());
    to.extend(bytes);
}

/// The properties section without the message id, which has its own hash: each field that is there, by its number.
fn bare_properties(properties: &Properties, to: &mut Vec<u8>) {
    let Properties {
        message_id: _,
        user_id,
        to: address,
        subject,
        reply_to,
        correlation_id,
        content_type,
        content_encoding,
        absolute_expiry_time,
        creation_time,
        group_id,
        group_sequence,
        reply_to_group_id,
    } = properties;
    let mut bytes = |number: u8, value: Option<&[u8]>| {
        if let Some(value) = value {
            field(number, value, to);
        }
    };
    bytes(10, user_id.as_ref().map(|v| v.as_slice()));
    bytes(11, address.as_ref().map(|v| v.as_bytes()));
    bytes(12, subject.as_ref().map(|v| v.as_bytes()));
    bytes(13, reply_to.as_ref().map(|v| v.as_bytes()));
    bytes(14, content_type.as_ref().map(|v| v.as_str().as_bytes()));
    bytes(15, content_encoding.as_ref().map(|v| v.as_str().as_bytes()));
    bytes(16, absolute_expiry_time.as_ref().map(|v| v.milliseconds().to_be_bytes()).as_ref().map(|v| &v[..]));
    bytes(17, creation_time.as_ref().map(|v| v.milliseconds().to_be_bytes()).as_ref().map(|v| &v[..]));
    bytes(18, group_id.as_ref().map(|v| v.as_bytes()));
    bytes(19, group_sequence.as_ref().map(|v| v.to_be_bytes()).as_ref().map(|v| &v[..]));
    bytes(20, reply_to_group_id.as_ref().map(|v| v.as_bytes()));
    if let Some(id) = correlation_id {
        to.push(21);
        tagged(id, to);
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::messaging::Data;
    use serde_amqp::primitives::{Binary, Timestamp, Uuid};

    use super::*;

    fn with_id(id: impl Into<MessageId>) -> Properties {
        Properties::builder().message_id(id).build()
    }

    #[test]
    fn the_same_message_is_the_same_however_its_properties_are_ordered() {
        let mut identifier = Identifier::default();
        let properties = with_id("a".to_owned());
        let application = |pairs: &[(&str, i32)]| {
            let mut builder = ApplicationProperties::builder();
            for (key, value) in pairs {
                builder = builder.insert(*key, *value);
            }
            builder.build()
        };
        let content = Content::Text("x".into());
        let mut of =
            |pairs: &[(&str, i32)]| identifier.identify(Some(&properties), Some(&application(pairs)), &content);
        let first = of(&[("k", 1), ("l", 2)]);
        assert!(!first.1);
        assert_eq!(first, of(&[("l", 2), ("k", 1)]));
        assert_ne!(first, of(&[("k", 2), ("l", 1)]));
    }

    #[test]
    fn type_of_the_id_body_and_every_property_count() {
        let mut identifier = Identifier::default();
        let mut of = |properties: Properties, content| identifier.identify(Some(&properties), None, &content).0;
        let text = || Content::Text("5".into());
        let base = of(with_id("5".to_owned()), text());
        assert_eq!(base, of(with_id("5".to_owned()), text()));
        assert_ne!(base.id, of(with_id(5_u64), text()).id, "a ulong is not a string");
        let binary = of(with_id(Binary::from(b"5".to_vec())), text());
        assert_ne!(base.id, binary.id);
        assert_ne!(base.content, of(with_id("5".to_owned()), Content::Bytes(b"5".to_vec())).content);
        assert_ne!(base.content, of(with_id("5".to_owned()), Content::Null).content);
        let mut seen = vec![base.content];
        let properties = || Properties::builder().message_id("5".to_owned());
        for other in [
            properties().subject("s").build(),
            properties().group_id("s".to_owned()).build(),
            properties().reply_to("s").build(),
            properties().to("s").build(),
            properties().user_id(b"s".to_vec()).build(),
            properties().content_type("s").build(),
            properties().content_encoding("s").build(),
            properties().correlation_id("s".to_owned()).build(),
            properties().creation_time(Timestamp::from(1)).build(),
            properties().absolute_expiry_time(Timestamp::from(1)).build(),
            properties().group_sequence(1).build(),
            properties().reply_to_group_id("s".to_owned()).build(),
        ] {
            let content = of(other, text()).content;
            assert!(!seen.contains(&content));
            seen.push(content);
        }
    }

    #[test]
    fn without_an_id_every_delivery_is_its_own() {
        let mut identifier = Identifier::default();
        let (one, anonymous) = identifier.identify(None, None, &Content::Null);
        assert!(anonymous);
        assert_ne!(one, identifier.identify(Some(&Properties::new()), None, &Content::Null).0);
    }

    #[test]
    fn bodies_fall_into_four_kinds() {
        let data = Body::Data(vec![Data(Binary::from(b"a".to_vec())), Data(Binary::from(b"bc".to_vec()))].into());
        assert!(matches!(Content::of(data), Content::Bytes(bytes) if bytes == b"abc"));
        assert!(matches!(Content::of(Body::Empty), Content::Null));
        assert!(matches!(Content::of(Body::Value(AmqpValue(Value::Null))), Content::Null));
        let list = Body::Value(AmqpValue(Value::List(vec![Value::Int(1), Value::String("x".into())])));
        let Content::Other { kind, body } = Content::of(list) else { panic!("a list is not carried") };
        assert_eq!((kind, rendered(&body).as_str()), ("list", "[1, \"x\"]"));
        let sequence = Body::Sequence(vec![AmqpSequence(vec![Value::Int(1)])].into());
        assert!(matches!(Content::of(sequence), Content::Other { kind: "amqp-sequence", .. }));
    }

    #[test]
    fn ids_and_properties_as_text() {
        let uuid = Uuid::from([0x11; 16]);
        let id = |id: MessageId| {
            let mut text = String::new();
            id_text(&id, &mut text);
            text
        };
        assert_eq!(id(MessageId::Ulong(7)), "7");
        assert_eq!(id(MessageId::Binary(Binary::from(vec![0, 0xab]))), "00ab");
        assert_eq!(id(MessageId::Uuid(uuid.clone())), "11111111-1111-1111-1111-111111111111");
        for (value, text) in [
            (SimpleValue::Bool(true), "true"),
            (SimpleValue::Long(-5), "-5"),
            (SimpleValue::Double(1.5.into()), "1.5"),
            (SimpleValue::Char('ü'), "ü"),
            (SimpleValue::String("text".into()), "text"),
            (SimpleValue::Symbol("symbol".into()), "symbol"),
            (SimpleValue::Binary(Binary::from(vec![0xff])), "ff"),
            (SimpleValue::Timestamp(Timestamp::from(1_717_200_000_000)), "2024-06-01T00:00:00.000Z"),
            (SimpleValue::Uuid(uuid), "11111111-1111-1111-1111-111111111111"),
        ] {
            let mut written = String::new();
            assert!(property_text(&value, &mut written));
            assert_eq!(written, text);
        }
        assert!(!property_text(&SimpleValue::Null, &mut String::new()));
    }
}
