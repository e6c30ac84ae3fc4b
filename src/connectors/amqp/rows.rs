//! From messages to rows: the columns of what has arrived and was not yet taken.
//!
//! Rows are built where messages arrive and handed over in batches; a batch that is larger than what the taker has room
//! for is cut without copying. A batch closes at [`ROWS`] rows or [`BYTES`] bytes, so that no column outgrows its offsets.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use arrow::array::builder::{
    BinaryBuilder, BooleanBuilder, Int32Builder, MapBuilder, StringBuilder, TimestampMillisecondBuilder,
};
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use fe2o3_amqp_types::messaging::{Body, Header, Message};
use serde_amqp::Value;

use super::config::Format;
use super::content::{self, Content, Identifier};
use super::wire::Peer;
use crate::flow::{Delivery, DeliveryId, Raw, Reason, Received, Rejected, message_columns};

/// Rows of a batch at most.
pub(super) const ROWS: usize = 4096;
/// Bytes after which a batch closes.
const BYTES: usize = 32 << 20;
/// The largest body a column can hold beside the rest of its batch.
const MAX_BODY: usize = i32::MAX as usize - 2 * BYTES;

const ZONE: &str = "UTC";

/// The message columns by format.
pub(super) fn columns(format: Format) -> SchemaRef {
    static TEXT: LazyLock<SchemaRef> = LazyLock::new(|| message_columns(DataType::Utf8));
    static BINARY: LazyLock<SchemaRef> = LazyLock::new(|| message_columns(DataType::Binary));
    match format {
        Format::Text => TEXT.clone(),
        Format::Binary => BINARY.clone(),
    }
}

/// How the peer's message headers are to be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Headers {
    /// `first-acquirer: false` means redelivered. Most brokers leave the field out, which reads as false.
    first_acquirer: bool,
    /// `delivery-count` is never counted.
    no_count: bool,
}

impl Headers {
    /// RabbitMQ before 4.0 says redelivered by `first-acquirer` alone.
    pub fn of(peer: &Peer) -> Self {
        Self { first_acquirer: peer.is_rabbitmq(), no_count: peer.is_old_rabbitmq() }
    }

    fn read(self, header: Option<&Header>) -> (bool, Option<i32>) {
        let Some(header) = header else { return (false, None) };
        let redelivered = header.delivery_count > 0 || self.first_acquirer && !header.first_acquirer;
        let count = (!self.no_count).then(|| i32::try_from(header.delivery_count).unwrap_or(i32::MAX));
        (redelivered, count)
    }
}

enum Values {
    Text(StringBuilder),
    Binary(BinaryBuilder),
}

/// A closed batch, or what is left of one.
struct Sealed {
    columns: RecordBatch,
    deliveries: Vec<Delivery>,
    rejects: Vec<Rejected>,
}

/// What has arrived and was not yet taken.
pub(super) struct Rows {
    format: Format,
    headers: Headers,
    identifier: Identifier,
    text: String,
    id: StringBuilder,
    sent: TimestampMillisecondBuilder,
    received: TimestampMillisecondBuilder,
    values: Values,
    properties: MapBuilder<StringBuilder, StringBuilder>,
    redelivered: BooleanBuilder,
    delivery_count: Int32Builder,
    deliveries: Vec<Delivery>,
    rejects: Vec<Rejected>,
    bytes: usize,
    ready: VecDeque<Sealed>,
    rows: usize,
}

/// A body that no column holds; the message was not taken.
#[derive(Debug)]
pub(super) struct TooLarge(pub usize);

impl Rows {
    /// None yet.
    pub fn new(format: Format, headers: Headers) -> Self {
        Self {
            format,
            headers,
            identifier: Identifier::default(),
            text: String::new(),
            id: StringBuilder::new(),
            sent: TimestampMillisecondBuilder::new().with_timezone(ZONE),
            received: TimestampMillisecondBuilder::new().with_timezone(ZONE),
            values: match format {
                Format::Text => Values::Text(StringBuilder::new()),
                Format::Binary => Values::Binary(BinaryBuilder::new()),
            },
            properties: MapBuilder::new(None, StringBuilder::new(), StringBuilder::new()),
            redelivered: BooleanBuilder::new(),
            delivery_count: Int32Builder::new(),
            deliveries: Vec::new(),
            rejects: Vec::new(),
            bytes: 0,
            ready: VecDeque::new(),
            rows: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// The deliveries that wait, for releasing them.
    pub fn waiting(&self) -> Vec<DeliveryId> {
        let sealed = self.ready.iter().flat_map(|batch| &batch.deliveries);
        sealed.chain(&self.deliveries).map(|delivery| delivery.id).collect()
    }

    /// Adds a message that arrived at `now`; returns what it takes of the byte budget.
    pub fn push(&mut self, id: DeliveryId, message: Message<Body<Value>>, now: i64) -> Result<u32, TooLarge> {
        let Message { header, properties, application_properties: application, body, .. } = message;
        let content = Content::of(body);
        let mut bytes = content.size();
        // Hexadecimal, the longest form a body can take here, doubles it.
        if bytes > MAX_BODY / 2 {
            return Err(TooLarge(bytes));
        }
        let (identity, anonymous) = self.identifier.identify(properties.as_ref(), application.as_ref(), &content);
        let properties = properties.as_ref();
        match properties.and_then(|properties| properties.message_id.as_ref()) {
            Some(id) => {
                self.text.clear();
                content::id_text(id, &mut self.text);
                bytes += self.text.len();
                self.id.append_value(&self.text);
            }
            None => self.id.append_null(),
        }
        self.sent.append_option(properties.and_then(|p| p.creation_time.as_ref()).map(|time| time.milliseconds()));
        self.received.append_value(now);
        let row = u32::try_from(self.deliveries.len()).unwrap_or(u32::MAX);
        if let Some(detail) = self.values.append(content) {
            self.rejects.push(Rejected { row, reason: Reason::BodyType, detail });
        }
        if let Some(application) = &application {
            for (key, value) in application.iter() {
                self.text.clear();
                let some = content::property_text(value, &mut self.text);
                bytes += key.len() + self.text.len();
                self.properties.keys().append_value(key);
                self.properties.values().append_option(some.then_some(&self.text));
            }
        }
        self.properties.append(true).unwrap_or_else(|_| unreachable!("one value was appended per key"));
        let (redelivered, count) = self.headers.read(header.as_ref());
        self.redelivered.append_value(redelivered);
        self.delivery_count.append_option(count);
        let size = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        self.deliveries.push(Delivery { id, identity, bytes: size, anonymous });
        self.bytes += bytes;
        self.rows += 1;
        if self.deliveries.len() >= ROWS || self.bytes >= BYTES {
            self.seal();
        }
        Ok(size)
    }

    /// Takes what waits, at most `max` rows of it, in order. `None`: nothing waits.
    pub fn take(&mut self, max: usize) -> Option<Received> {
        if self.ready.is_empty() {
            self.seal();
        }
        let mut batch = self.ready.pop_front()?;
        if batch.deliveries.len() > max {
            let rest = batch.split_off(max);
            self.ready.push_front(rest);
        }
        self.rows -= batch.deliveries.len();
        let Sealed { columns, deliveries, rejects } = batch;
        Some(Received::Batch { raw: Raw::one_per_delivery(columns), deliveries, rejects })
    }

    fn seal(&mut self) {
        if self.deliveries.is_empty() {
            return;
        }
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.id.finish()),
            Arc::new(self.sent.finish()),
            Arc::new(self.received.finish()),
            self.values.finish(),
            Arc::new(self.properties.finish()),
            Arc::new(self.redelivered.finish()),
            Arc::new(self.delivery_count.finish()),
        ];
        // They stay until they are settled, for the dead letter: a builder's spare room would stay as long.
        columns.iter_mut().for_each(ArrayRef::shrink_to_fit);
        let columns = RecordBatch::try_new(self::columns(self.format), columns)
            .unwrap_or_else(|e| unreachable!("the builders make these columns: {e}"));
        let deliveries = std::mem::take(&mut self.deliveries);
        let rejects = std::mem::take(&mut self.rejects);
        self.bytes = 0;
        self.ready.push_back(Sealed { columns, deliveries, rejects });
    }
}

impl Sealed {
    fn split_off(&mut self, at: usize) -> Self {
        let columns = self.columns.slice(at, self.columns.num_rows() - at);
        self.columns = self.columns.slice(0, at);
        let deliveries = self.deliveries.split_off(at);
        let first = u32::try_from(at).unwrap_or(u32::MAX);
        let mut rejects = self.rejects.split_off(self.rejects.partition_point(|reject| reject.row < first));
        for reject in &mut rejects {
            reject.row -= first;
        }
        Self { columns, deliveries, rejects }
    }
}

impl Values {
    /// Appends a body; says why it is rejected, if it is. What is rejected is appended as well as the column can hold
    /// it, for the dead letter.
    fn append(&mut self, content: Content) -> Option<String> {
        let rejected = |kind| {
            Some(format!(
                "the body is an AMQP {kind}; data sections and amqp-value with a string or binary are carried"
            ))
        };
        match (self, content) {
            (Self::Text(column), Content::Null) => column.append_null(),
            (Self::Binary(column), Content::Null) => column.append_null(),
            (Self::Text(column), Content::Text(text)) => column.append_value(text),
            (Self::Binary(column), Content::Text(text)) => column.append_value(text.as_bytes()),
            (Self::Binary(column), Content::Bytes(bytes)) => column.append_value(bytes),
            (Self::Text(column), Content::Bytes(bytes)) => match std::str::from_utf8(&bytes) {
                Ok(text) => column.append_value(text),
                Err(error) => {
                    let mut text = String::new();
                    content::hex(&bytes, &mut text);
                    column.append_value(text);
                    return Some(format!(
                        "the body is not UTF-8 after {} bytes, and 'format' is text; 'value' has its bytes in hexadecimal",
                        error.valid_up_to()
                    ));
                }
            },
            (Self::Text(column), Content::Other { kind, body }) => {
                column.append_value(content::rendered(&body));
                return rejected(kind);
            }
            (Self::Binary(column), Content::Other { kind, body }) => {
                column.append_option(serde_amqp::to_vec(&body).ok());
                return rejected(kind);
            }
        }
        None
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Text(column) => Arc::new(column.finish()),
            Self::Binary(column) => Arc::new(column.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Int32Type, TimestampMillisecondType};
    use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Data, Properties};
    use fe2o3_amqp_types::primitives::SimpleValue;
    use serde_amqp::primitives::{Binary, Timestamp};

    use super::*;

    fn message(body: Body<Value>) -> Message<Body<Value>> {
        Message::builder().body(body).build()
    }

    fn text(text: &str) -> Body<Value> {
        Body::Value(AmqpValue(Value::String(text.into())))
    }

    fn batch(received: Option<Received>) -> (RecordBatch, Vec<Delivery>, Vec<Rejected>) {
        let Some(Received::Batch { raw, deliveries, rejects }) = received else { panic!("a batch") };
        assert_eq!(raw.len(), deliveries.len());
        (raw.columns, deliveries, rejects)
    }

    #[test]
    fn a_message_becomes_a_row() {
        let mut rows = Rows::new(Format::Text, Headers::default());
        let full = Message::builder()
            .header(Header { delivery_count: 2, ..Header::default() })
            .properties(Properties::builder().message_id("m-1".to_owned()).creation_time(Timestamp::from(17)).build())
            .application_properties(
                ApplicationProperties::builder().insert("n", 5).insert("z", SimpleValue::Null).build(),
            )
            .body(Body::Data(vec![Data(Binary::from("a,".as_bytes())), Data(Binary::from("ü".as_bytes()))].into()))
            .build();
        rows.push(DeliveryId(7), full, 99).expect("fits");
        rows.push(DeliveryId(8), message(Body::Empty), 99).expect("fits");
        let (columns, deliveries, rejects) = batch(rows.take(10));
        assert_eq!(columns.schema(), super::columns(Format::Text));
        assert!(rejects.is_empty());
        assert_eq!(columns["id"].as_string::<i32>().value(0), "m-1");
        assert_eq!(columns["sent"].as_primitive::<TimestampMillisecondType>().value(0), 17);
        assert_eq!(columns["received"].as_primitive::<TimestampMillisecondType>().values(), &[99, 99]);
        assert_eq!(columns["value"].as_string::<i32>().value(0), "a,ü");
        let properties = columns["properties"].as_map().value(0);
        assert_eq!(properties.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["n", "z"]);
        assert_eq!(properties.column(1).as_string::<i32>().iter().collect::<Vec<_>>(), [Some("5"), None]);
        assert!(columns["redelivered"].as_boolean().value(0));
        assert_eq!(columns["delivery_count"].as_primitive::<Int32Type>().value(0), 2);
        assert_eq!((deliveries[0].id, deliveries[0].anonymous), (DeliveryId(7), false));
        for name in ["id", "sent", "value", "delivery_count"] {
            assert!(columns[name].is_null(1), "{name} of a message that has none");
        }
        assert!(deliveries[1].anonymous);
    }

    #[test]
    fn what_no_row_can_carry_is_rejected_by_name_and_kept_readable() {
        let bodies = || {
            [
                text("fine"),
                Body::Value(AmqpValue(Value::List(vec![Value::Int(1)]))),
                Body::Data(vec![Data(Binary::from(vec![b'a', 0xff]))].into()),
            ]
        };
        let mut rows = Rows::new(Format::Text, Headers::default());
        for (n, body) in (0..).zip(bodies()) {
            rows.push(DeliveryId(n), message(body), 0).expect("fits");
        }
        let (columns, _, rejects) = batch(rows.take(10));
        assert_eq!(columns["value"].as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["fine", "[1]", "61ff"]);
        assert_eq!(
            rejects.iter().map(|r| (r.row, r.reason)).collect::<Vec<_>>(),
            [(1, Reason::BodyType), (2, Reason::BodyType)]
        );
        assert!(rejects[0].detail.contains("AMQP list") && rejects[1].detail.contains("UTF-8 after 1 "), "{rejects:?}");

        let mut rows = Rows::new(Format::Binary, Headers::default());
        for (n, body) in (0..).zip(bodies()) {
            rows.push(DeliveryId(n), message(body), 0).expect("fits");
        }
        let (columns, _, rejects) = batch(rows.take(10));
        assert_eq!(rejects.len(), 1, "bytes are fine as binary: {rejects:?}");
        let encoded = serde_amqp::to_vec(&AmqpValue(Value::List(vec![Value::Int(1)]))).expect("encodes");
        assert_eq!(columns["value"].as_binary::<i32>().value(1), encoded);
    }

    #[test]
    fn a_batch_larger_than_the_room_is_cut_in_order() {
        let mut rows = Rows::new(Format::Text, Headers::default());
        for n in 0..10 {
            let body = if n == 7 { Body::Value(AmqpValue(Value::Int(7))) } else { text(&n.to_string()) };
            rows.push(DeliveryId(n), message(body), 0).expect("fits");
        }
        let (first, ids, rejects) = batch(rows.take(6));
        assert_eq!((first.num_rows(), ids.len(), rejects.len(), rows.len()), (6, 6, 0, 4));
        assert_eq!(rows.waiting(), [6, 7, 8, 9].map(DeliveryId));
        rows.push(DeliveryId(10), message(text("10")), 0).expect("fits");
        let (second, ids, rejects) = batch(rows.take(6));
        assert_eq!(ids.iter().map(|d| d.id.0).collect::<Vec<_>>(), [6, 7, 8, 9]);
        assert_eq!(second["value"].as_string::<i32>().value(1), "7");
        assert_eq!(rejects[0].row, 1, "counted from the start of the part");
        assert_eq!(batch(rows.take(6)).1[0].id, DeliveryId(10));
        assert!(rows.take(6).is_none() && rows.len() == 0);
    }

    #[test]
    fn a_batch_closes_at_its_limits() {
        let mut rows = Rows::new(Format::Binary, Headers::default());
        for n in 0..=ROWS as u64 {
            rows.push(DeliveryId(n), message(text("x")), 0).expect("fits");
        }
        assert_eq!(batch(rows.take(usize::MAX)).0.num_rows(), ROWS);
        assert_eq!(batch(rows.take(usize::MAX)).0.num_rows(), 1);
    }

    #[test]
    fn headers_are_read_as_each_broker_means_them() {
        let peer =
            |product: &str, version: &str| Peer { product: product.into(), version: version.into(), ..Peer::default() };
        let header = |first_acquirer, delivery_count| Header { first_acquirer, delivery_count, ..Header::default() };
        let old_rabbit = Headers::of(&peer("RabbitMQ", "3.10.8"));
        assert_eq!(old_rabbit.read(Some(&header(true, 0))), (false, None));
        assert_eq!(old_rabbit.read(Some(&header(false, 0))), (true, None));
        let artemis = Headers::of(&peer("apache-activemq-artemis", "2.40.0"));
        assert_eq!(artemis.read(Some(&header(false, 0))), (false, Some(0)), "the field is left out, not false");
        assert_eq!(artemis.read(Some(&header(false, 1))), (true, Some(1)));
        assert_eq!(artemis.read(None), (false, None));
        assert!(Headers::of(&peer("RabbitMQ", "4.1.0")).read(Some(&header(false, 0))).0);
    }
}
