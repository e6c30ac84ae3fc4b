//! The sockets: one task accepts, one task per connection reads and writes.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Terms};
use super::store::Store;
use crate::clock;

/// How much is read at once.
const READ: usize = 64 * 1024;

/// With this much unread by the peer, nothing more is read from it.
const CHOKED: usize = 16 * 1024 * 1024;

/// What the tasks of one broker share.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) terms: Arc<Terms>,
    pub(super) store: Arc<Store>,
    /// Each change cuts all connections that are open at that moment.
    pub(super) kill: watch::Receiver<u64>,
    /// Closes all connections in good order, and ends.
    pub(super) stop: CancellationToken,
}

impl Server {
    /// Accepts connections until it is stopped, and waits for those that are open.
    pub(super) async fn run(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let mut server = self.clone();
                        server.kill.mark_unchanged();
                        connections.spawn(server.serve(stream));
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: give others time to close theirs.
                        tracing::warn!(%error, "the embedded broker cannot accept a connection");
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => (),
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    async fn serve(mut self, mut stream: TcpStream) {
        // Small writes that follow each other would wait for acknowledgements.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let mut connection = Connection::new(self.terms, self.store, clock::now());
        let (mut reader, mut writer) = stream.split();
        let mut input = BytesMut::with_capacity(READ);
        let wake = connection.wake.clone();
        let mut finished = false;
        let timer = tokio::time::sleep_until(connection.deadline());
        tokio::pin!(timer);
        loop {
            connection.deliver(clock::now());
            if connection.is_closed() && connection.out.is_empty() {
                break;
            }
            if connection.is_parting() && connection.out.is_empty() && !finished {
                finished = true;
                let _ = writer.shutdown().await;
            }
            input.reserve(READ);
            let deadline = connection.deadline();
            if timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            tokio::select! {
                _ = self.kill.changed() => return,
                () = self.stop.cancelled(), if !connection.is_parting() => connection.shut_down(clock::now()),
                written = writer.write_buf(&mut connection.out), if !connection.out.is_empty() => match written {
                    Ok(_) => connection.on_written(clock::now()),
                    Err(_) => return,
                },
                read = reader.read_buf(&mut input), if connection.out.len() < CHOKED => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => connection.on_input(&mut input, clock::now()),
                },
                () = wake.notified() => connection.on_wake(clock::now()),
                () = &mut timer => {
                    let now = clock::now();
                    connection.on_time(now);
                    // Deadlines move on with every byte; the timer only when it has fired.
                    timer.as_mut().reset(connection.deadline().max(now + std::time::Duration::from_millis(1)));
                }
            }
        }
        let _ = writer.shutdown().await;
    }
}
