//! One hop between two actors on one arbiter, as the stages of a partition make it: `try_send` into a mailbox without bound.

use std::time::Instant;

use actix::prelude::*;
use tokio::sync::oneshot;

const HOPS: u64 = 4;
const MESSAGES: u64 = 1_000_000;

#[derive(Message)]
#[rtype(result = "()")]
struct Pass(u64);

struct Stage {
    next: Option<Addr<Stage>>,
    done: Option<oneshot::Sender<()>>,
}

impl Actor for Stage {
    type Context = Context<Self>;
}

impl Handler<Pass> for Stage {
    type Result = ();

    fn handle(&mut self, Pass(n): Pass, _: &mut Self::Context) {
        if let Some(next) = &self.next {
            next.try_send(Pass(n)).expect("an open mailbox");
        } else if n + 1 == MESSAGES
            && let Some(done) = self.done.take()
        {
            done.send(()).expect("somebody waits");
        }
    }
}

fn stage(next: Option<Addr<Stage>>, done: Option<oneshot::Sender<()>>) -> Addr<Stage> {
    Stage::create(|ctx| {
        ctx.set_mailbox_capacity(0);
        Stage { next, done }
    })
}

#[allow(clippy::disallowed_methods)]
fn main() {
    System::new().block_on(async {
        let mut nanos = Vec::new();
        for _ in 0..5 {
            let (done, finished) = oneshot::channel();
            let mut first = stage(None, Some(done));
            for _ in 1..HOPS {
                first = stage(Some(first), None);
            }
            let started = Instant::now();
            for n in 0..MESSAGES {
                first.try_send(Pass(n)).expect("an open mailbox");
                if n % 1_000 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            finished.await.expect("the last stage");
            nanos.push(started.elapsed().as_nanos() as f64 / (MESSAGES * HOPS) as f64);
        }
        nanos.sort_by(f64::total_cmp);
        println!("actor hop: {:.0} ns (median of 5 runs of {MESSAGES} messages over {HOPS} hops)", nanos[2]);
    });
}
