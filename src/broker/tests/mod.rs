//! The broker before a client that was written by others, over real sockets, and before a peer that counts every frame.

mod clients;
mod frames;
mod peer;
mod volume;

use fe2o3_amqp::connection::{ConnectionHandle, OpenError};
use fe2o3_amqp::link::delivery::Delivery;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use fe2o3_amqp_types::messaging::{AmqpValue, Body, Message};
use serde_amqp::Value;
use tokio::net::TcpStream;

use super::{Broker, BrokerConfig, QueueStats};

/// A connection with one session.
struct Client {
    connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
}

async fn open(broker: &Broker, profile: Option<SaslProfile>) -> Result<ConnectionHandle<()>, OpenError> {
    let stream = TcpStream::connect(broker.address()).await.expect("connects");
    stream.set_nodelay(true).expect("nodelay");
    let builder = Connection::builder().container_id("test").scheme("amqp");
    match profile {
        Some(profile) => builder.sasl_profile(profile).open_with_stream(stream).await,
        None => builder.open_with_stream(stream).await,
    }
}

impl Client {
    async fn new(broker: &Broker) -> Self {
        let mut connection = open(broker, Some(SaslProfile::Anonymous)).await.expect("opens");
        let session = Session::begin(&mut connection).await.expect("begins");
        Self { connection, session }
    }

    async fn receiver(&mut self, queue: &str, credit: u32) -> Receiver {
        let mut receiver = Receiver::builder()
            .name(uuid::Uuid::new_v4().to_string())
            .source(queue)
            .credit_mode(CreditMode::Manual)
            .attach(&mut self.session)
            .await
            .expect("attaches");
        if credit > 0 {
            receiver.set_credit(credit).await.expect("credit");
        }
        receiver
    }

    async fn sender(&mut self, queue: &str) -> Sender {
        Sender::attach(&mut self.session, uuid::Uuid::new_v4().to_string(), queue).await.expect("attaches")
    }

    /// Closes; when this returns the broker has heard everything.
    async fn close(mut self) {
        self.session.end().await.expect("ends");
        self.connection.close().await.expect("closes");
    }
}

type Received = Delivery<Body<Value>>;

/// Sends messages whose bodies are the numbers of the range.
async fn fill(broker: &Broker, queue: &str, numbers: std::ops::Range<u32>) {
    let mut client = Client::new(broker).await;
    let mut sender = client.sender(queue).await;
    let mut answers = Vec::new();
    for number in numbers {
        let message = Message::builder().value(number.to_string()).build();
        answers.push(sender.send_batchable(message).await.expect("sends"));
    }
    for answer in answers {
        answer.await.expect("settled").accepted_or("refused").expect("accepted");
    }
    sender.close().await.expect("detaches");
    client.close().await;
}

async fn take(receiver: &mut Receiver, count: usize) -> Vec<Received> {
    let mut deliveries = Vec::new();
    while deliveries.len() < count {
        deliveries.push(receiver.recv::<Body<Value>>().await.expect("receives"));
    }
    deliveries
}

fn number(delivery: &Received) -> u32 {
    match delivery.body() {
        Body::Value(AmqpValue(Value::String(text))) => text.parse().expect("a number"),
        other => panic!("unexpected body {other:?}"),
    }
}

fn numbers(deliveries: &[Received]) -> Vec<u32> {
    deliveries.iter().map(number).collect()
}

/// What the header says: delivery-count, and whether the message was never given out before.
fn attempt(delivery: &Received) -> (u32, bool) {
    let header = delivery.message().header.as_ref().expect("the broker writes a header");
    (header.delivery_count, header.first_acquirer)
}

/// Waits until the numbers of a queue are as they should be; the test's own time limit ends the waiting.
async fn until(broker: &Broker, queue: &str, reached: impl Fn(&QueueStats) -> bool) -> QueueStats {
    loop {
        let stats = broker.queue(queue);
        if reached(&stats) {
            return stats;
        }
        tokio::task::yield_now().await;
    }
}

fn broker() -> Broker {
    Broker::start(BrokerConfig::default()).expect("starts")
}

/// Runs a test with a time limit, so that a lost wake is a failure and not a hang.
macro_rules! within {
    ($body:expr) => {
        tokio::time::timeout(std::time::Duration::from_secs(60), async { $body }).await.expect("ends in time")
    };
}
use within;
