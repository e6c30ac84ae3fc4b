//! Where heavy work runs: encoding and file writes on a few worker threads, behind a bounded queue, so that an arbiter
//! never stalls its connections; commits, which mostly wait, on the workers' shared tokio runtime.
//!
//! Invariant: handing work over never blocks the caller's thread. A full queue is back-pressure: the caller waits for a
//! place without holding its arbiter up.

use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Sender, bounded};
use futures::future::BoxFuture;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, oneshot};

use super::Placement;

type Job = Box<dyn FnOnce() + Send>;

/// Clones share the workers; they end with the last clone.
#[derive(Clone)]
pub(super) struct Pool(Option<Arc<Workers>>);

struct Workers {
    jobs: Sender<Job>,
    /// One permit per place in the queue, so that sending to it always succeeds.
    places: Semaphore,
    runtime: Option<Runtime>,
}

/// How an operation spends its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// It computes: one worker does nothing else meanwhile.
    Heavy,
    /// It waits.
    Light,
}

impl Pool {
    /// As many workers as the placement has arbiters; none for [`Placement::Current`], where everything runs in place.
    pub fn new(placement: Placement) -> std::io::Result<Self> {
        let Placement::Threads(n) = placement else { return Ok(Self(None)) };
        let n = n.max(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("commits")
            .enable_all()
            .build()?;
        let queue = 2 * n;
        let (jobs, queued) = bounded::<Job>(queue);
        for worker in 0..n {
            let queued = queued.clone();
            let _enter = runtime.enter();
            thread::Builder::new().name(format!("worker-{worker}")).spawn(move || {
                for job in queued {
                    job();
                }
            })?;
        }
        Ok(Self(Some(Arc::new(Workers { jobs, places: Semaphore::new(queue), runtime: Some(runtime) }))))
    }

    /// Runs `work` to its end, wherever its weight belongs. `None`: the pool is gone, or the work panicked there.
    pub async fn run<T: Send + 'static>(&self, weight: Weight, work: BoxFuture<'static, T>) -> Option<T> {
        let Some(workers) = &self.0 else { return Some(work.await) };
        let (done, answer) = oneshot::channel();
        match weight {
            Weight::Light => {
                workers.handle().spawn(async move {
                    let _ = done.send(work.await);
                });
            }
            Weight::Heavy => {
                let place = workers.places.acquire().await.ok()?;
                let handle = workers.handle().clone();
                let job: Job = Box::new(move || {
                    let _ = done.send(handle.block_on(work));
                });
                workers.jobs.try_send(job).ok()?;
                // The place is free again when a worker has taken the job, which is at the latest when it is done.
                let answer = answer.await.ok();
                drop(place);
                return answer;
            }
        }
        answer.await.ok()
    }
}

impl Workers {
    fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("present until dropped").handle()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // The last clone may be dropped on a thread of another runtime, where waiting for this one is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_on_workers_and_a_panic_is_no_answer() {
        let pool = Pool::new(Placement::Threads(2)).expect("threads");
        let here = thread::current().id();
        for weight in [Weight::Heavy, Weight::Light] {
            let there = pool.run(weight, Box::pin(async { thread::current().id() })).await;
            assert!(there.is_some_and(|there| there != here));
            let panicked: Option<()> = pool.run(weight, Box::pin(async { panic!("on purpose") })).await;
            assert_eq!(panicked, None);
            assert_eq!(pool.run(weight, Box::pin(async { 1 })).await, Some(1), "the workers live on");
        }
    }

    #[tokio::test]
    async fn in_place_without_workers() {
        let pool = Pool::new(Placement::Current).expect("nothing to start");
        let here = thread::current().id();
        assert_eq!(pool.run(Weight::Heavy, Box::pin(async { thread::current().id() })).await, Some(here));
    }
}
