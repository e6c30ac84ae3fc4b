//! A feed fills a queue: a real AMQP client that sends over a socket like any producer.
//!
//! Messages are durable, have a unique id `ID:<run>-<n>` and a creation time, and are sent unsettled, many at a time; a
//! message counts as sent when the broker has accepted it. A feed whose connection breaks ends with an error: it does
//! not know what the broker has of the rest, and makes no duplicates.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryFut;
use fe2o3_amqp::link::{SendError, Sender};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::{Connection, Session};
use fe2o3_amqp_types::messaging::{Data, Header, Message, Outcome, Properties};
use fe2o3_amqp_types::primitives::Timestamp;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::login::Login;
use crate::clock;
use crate::flow::{Result, Secret, StageError};
use crate::payload::{self, BodyFormat, Feed};

/// How many messages may be on the way unanswered.
const IN_FLIGHT: usize = 2_000;

/// How long a feed may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// Who a feed says it is.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

/// Feeds the broker at `address` and logs how it ended.
pub(super) async fn run(feed: Feed, address: SocketAddr, login: &Login, stop: CancellationToken) {
    let credentials = match login {
        Login::Anyone => None,
        Login::User(user, password) => Some(Credentials { user: user.clone(), password: password.clone() }),
    };
    let run = Uuid::new_v4();
    let mut bodies = payload::Generator::new(&feed.payload, run, run.as_u64_pair().0, clock::wall_millis());
    match send(&feed, address, credentials.as_ref(), run, |n| bodies.body(n), stop.clone()).await {
        Ok(sent) => tracing::info!(queue = feed.queue, sent, %run, "the feed has ended"),
        Err(_) if stop.is_cancelled() => (),
        Err(error) => tracing::error!(queue = feed.queue, %run, %error, "the feed has failed"),
    }
}

/// Sends what `feed` says to the broker at `address`, with bodies from `body`, until all are accepted or `stop`.
/// Says how many were accepted.
pub async fn send(
    feed: &Feed,
    address: SocketAddr,
    credentials: Option<&Credentials>,
    run: Uuid,
    body: impl FnMut(u64) -> String,
    stop: CancellationToken,
) -> Result<u64> {
    let failed = |what: &str| StageError::away(format!("the feed of queue '{}' {what}", feed.queue));
    let stream = TcpStream::connect(address).await.map_err(|e| failed("cannot reach the broker").because(e))?;
    stream.set_nodelay(true).map_err(|e| failed("cannot set up its socket").because(e))?;
    let profile = match credentials {
        None => SaslProfile::Anonymous,
        Some(Credentials { user, password }) => {
            SaslProfile::Plain { username: user.clone(), password: password.reveal()?.into_owned() }
        }
    };
    let mut connection = Connection::builder()
        .container_id(format!("distributary-feed-{run}"))
        .scheme("amqp")
        .sasl_profile(profile)
        .open_with_stream(stream)
        .await
        .map_err(|e| failed("cannot open a connection").because(e))?;
    let mut session = Session::begin(&mut connection).await.map_err(|e| failed("cannot begin a session").because(e))?;
    let sender = Sender::attach(&mut session, format!("feed-{run}"), feed.queue.as_str())
        .await
        .map_err(|e| failed("was refused its link").because(e))?;
    let mut sending = Sending { feed, sender, in_flight: VecDeque::new(), accepted: 0, refused: 0 };
    tokio::select! {
        sent = sending.all(run, body, stop) => sent.map_err(|e| failed("was interrupted").because(e))?,
        // The client never says of an answer that it will not come, and a send waits for credit for ever.
        ended = connection.on_close() => {
            let ended = ended.err().map_or_else(|| "the broker closed it".to_owned(), |e| e.to_string());
            return Err(failed("lost its connection").because(ended));
        }
    }
    let Sending { sender, accepted, refused, .. } = sending;
    // What was accepted is accepted: how the end is answered changes nothing.
    let _ = timeout(GOODBYE, async {
        let _ = sender.close().await;
        let _ = session.end().await;
        let _ = connection.close().await;
    })
    .await;
    match refused {
        0 => Ok(accepted),
        _ => Err(failed(&format!("had {refused} messages refused, {accepted} accepted"))),
    }
}

struct Sending<'a> {
    feed: &'a Feed,
    sender: Sender,
    in_flight: VecDeque<DeliveryFut<std::result::Result<Outcome, SendError>>>,
    accepted: u64,
    refused: u64,
}

impl Sending<'_> {
    async fn all(
        &mut self,
        run: Uuid,
        mut body: impl FnMut(u64) -> String,
        stop: CancellationToken,
    ) -> std::result::Result<(), SendError> {
        let started = clock::now();
        let mut told = started;
        let count = self.feed.count.unwrap_or(u64::MAX);
        for n in 0..count {
            if let Some(rate) = self.feed.rate.filter(|rate| *rate > 0.0) {
                let due = started + Duration::from_secs_f64(n as f64 / rate);
                if due > clock::now() {
                    tokio::select! {
                        () = tokio::time::sleep_until(due) => (),
                        () = stop.cancelled() => break,
                    }
                }
            }
            if stop.is_cancelled() {
                break;
            }
            if self.in_flight.len() >= IN_FLIGHT {
                self.answered().await?;
            }
            let sent = self.send(format!("ID:{run}-{n}"), body(n)).await?;
            self.in_flight.push_back(sent);
            if self.feed.log_every.is_some_and(|every| told.elapsed() >= every.0) {
                told = clock::now();
                let seconds = started.elapsed().as_secs_f64();
                tracing::info!(queue = self.feed.queue, sent = n + 1, seconds, "feeding");
            }
        }
        while !self.in_flight.is_empty() {
            self.answered().await?;
        }
        Ok(())
    }

    async fn send(
        &mut self,
        id: String,
        body: String,
    ) -> std::result::Result<DeliveryFut<std::result::Result<Outcome, SendError>>, SendError> {
        let message = Message::builder().header(Header { durable: true, ..Header::default() }).properties(
            Properties::builder().message_id(id).creation_time(Timestamp::from(clock::wall_millis())).build(),
        );
        match self.feed.format {
            BodyFormat::Text => self.sender.send_batchable(message.value(body).build()).await,
            BodyFormat::Binary => {
                self.sender.send_batchable(message.data(Data(body.into_bytes().into())).build()).await
            }
        }
    }

    /// Waits for the answer to the oldest message.
    async fn answered(&mut self) -> std::result::Result<(), SendError> {
        if let Some(oldest) = self.in_flight.pop_front() {
            match oldest.await? {
                Outcome::Accepted(_) => self.accepted += 1,
                _ => self.refused += 1,
            }
        }
        Ok(())
    }
}
