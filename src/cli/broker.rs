//! `runtime broker`: the embedded broker alone; and the broker of a topology's own `broker:` section.

use std::net::SocketAddr;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{Exit, fail, start::signalled};
use crate::broker::{self, BrokerConfig};
use crate::embed::block_on;
use crate::topology;

#[derive(Args)]
pub(super) struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:5672", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Messages to send to a queue, as in a topology's `broker.feed`: `{queue: animals, payload: animals_csv, count: 1000}`.
    /// May be given several times.
    #[arg(long, value_name = "FEED", value_parser = feed)]
    feed: Vec<broker::Feed>,
    /// The only user who may connect, with the password in RUNTIME_BROKER_PASSWORD. Without it everybody may.
    #[arg(long)]
    user: Option<String>,
    /// Refuse queues that are not in a feed instead of creating them.
    #[arg(long)]
    no_auto_create: bool,
}

pub(super) const EXAMPLE: &str = "Example:
  runtime broker --feed '{queue: animals, payload: animals_csv, count: 1000}'

A queue is made when it is first used. Everything is in memory, and gone with the process.";

fn feed(text: &str) -> Result<broker::Feed, String> {
    topology::fragment(text)
}

pub(super) fn run(arguments: Arguments) -> Exit {
    let password = std::env::var("RUNTIME_BROKER_PASSWORD").ok().filter(|password| !password.is_empty());
    if arguments.user.is_some() && password.is_none() {
        return fail(Exit::Usage, "--user needs a password: put it into the variable RUNTIME_BROKER_PASSWORD");
    }
    let config = BrokerConfig {
        listen: arguments.listen,
        user: arguments.user,
        password: password.map(crate::flow::Secret::new),
        auto_create: !arguments.no_auto_create,
        feed: arguments.feed,
        ..BrokerConfig::default()
    };
    let served = block_on(async {
        let shutdown = CancellationToken::new();
        let (stop, signalled) = (shutdown.clone(), signalled()?);
        tokio::spawn(async move {
            signalled.await;
            stop.cancel();
        });
        broker::serve(config, shutdown).await
    });
    match served.and_then(|served| served) {
        Ok(()) => Exit::Done,
        Err(error) => fail(Exit::Failed, error),
    }
}
