//! Whether an instance lives.
//!
//! One that has not answered has one probe, held open up to 10 s and repeated 50 ms after a no. One that serves is probed
//! again after any exchange that failed, and while requests are there and nothing was heard of it for 400 ms: a process
//! that stands still accepts connections all the same.

use std::sync::Arc;
use std::time::Duration;

use policy::routing::Shape;
use proxy::clock::Clock;
use tokio::sync::watch;

use crate::function::Function;
use crate::instance::Instance;
use crate::probe;

/// A probe of an instance that does not serve is held open for so long.
const HELD: Duration = Duration::from_secs(10);
/// It is repeated so long after a no.
const PAUSE: Duration = Duration::from_millis(50);
/// Whether an instance is silent is looked at this often …
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// … and then it has so long to answer.
const ALIVE_WITHIN: Duration = Duration::from_millis(300);

/// What watching an instance takes.
#[derive(Debug)]
pub(crate) struct InstanceWatch {
    /// Which.
    pub(crate) instance: Arc<Instance>,
    /// Whose.
    pub(crate) function: Arc<Function>,
    /// How many requests it takes.
    pub(crate) shape: Shape,
    /// Kubernetes takes it for ready, where that counts.
    pub(crate) ready: watch::Receiver<bool>,
    /// The process's clock.
    pub(crate) clock: Clock,
}

/// Takes an instance out of its function when it is dropped, as when its task is aborted.
struct Membership<'a>(&'a Function, policy::routing::InstanceId);

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

impl InstanceWatch {
    /// Probes the instance and puts it into its function, until the task is aborted.
    pub(crate) async fn run(mut self) {
        // The view that knows it has gone: so will this task.
        if self.ready.wait_for(|&is_ready| is_ready).await.is_err() {
            return;
        }
        self.until_it_answers().await;
        let id = self.function.add(&self.instance, self.shape);
        let added = Membership(&self.function, id);
        let mut look = tokio::time::interval(LOOK_PERIOD);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.instance.suspected() => {}
                _tick = look.tick() => {
                    if !self.instance.is_silent(self.clock.now()) {
                        continue;
                    }
                }
            }
            if self.answers_within(ALIVE_WITHIN).await {
                self.instance.hear(self.clock.now());
                added.0.probed(id, true);
                continue;
            }
            added.0.probed(id, false);
            self.until_it_answers().await;
            self.instance.hear(self.clock.now());
            added.0.probed(id, true);
        }
    }

    async fn until_it_answers(&self) {
        while !self.answers_within(HELD).await {
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn answers_within(&self, limit: Duration) -> bool {
        let probed = tokio::time::timeout(limit, probe::is_ready(self.instance.address));
        probed.await.unwrap_or(false)
    }
}
