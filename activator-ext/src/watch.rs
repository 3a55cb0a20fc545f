//! Supervision of an instance.
//!
//! An instance that has not answered has one probe at a time, held open for up to 10 s and repeated 50 ms after a
//! negative answer. An instance that serves is probed after any failed exchange. While requests are at it and it has
//! been silent for 400 ms, its queue-proxy gets a liveness probe: a suspended process still accepts connections, and an
//! application that computes may answer nothing meanwhile.

use std::sync::Arc;
use std::time::Duration;

use policy::routing::Shape;
use proxy::clock::Clock;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::function::Function;
use crate::instance::Instance;
use crate::probe;

/// Longest time for which a readiness probe is held open.
const HELD: Duration = Duration::from_secs(10);
/// Pause after a negative answer to a readiness probe.
const PAUSE: Duration = Duration::from_millis(50);
/// Period at which an instance that serves is checked for silence.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Longest time for the answer to a liveness probe.
const ALIVE_WITHIN: Duration = Duration::from_millis(300);

/// The state of an instance's supervision.
#[derive(Debug)]
pub(crate) struct InstanceWatch {
    /// The instance under supervision.
    pub(crate) instance: Arc<Instance>,
    /// The function of the instance.
    pub(crate) function: Arc<Function>,
    /// The instance's concurrency and stages.
    pub(crate) shape: Shape,
    /// Whether Kubernetes considers the pod ready; always true where that does not count.
    pub(crate) ready: watch::Receiver<bool>,
    /// The clock of the process.
    pub(crate) clock: Clock,
}

/// Removes an instance from its function when dropped, for example when the task is aborted.
struct Membership<'a>(&'a Function, policy::routing::InstanceId);

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

impl InstanceWatch {
    /// Probes the instance and adds it to its function once it is ready, until the task is aborted.
    pub(crate) async fn run(mut self) {
        // The sender is dropped with the view that contains the instance, and with it this task.
        while self.ready.wait_for(|&is_ready| is_ready).await.is_ok() {
            self.probe_until_ready(None).await;
            let id = self.function.add(&self.instance, self.shape);
            let added = Membership(&self.function, id);
            let mut look = tokio::time::interval(LOOK_PERIOD);
            look.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let answers = tokio::select! {
                    changed = self.ready.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        if *self.ready.borrow_and_update() {
                            continue;
                        }
                        // Kubernetes no longer considers the pod ready.
                        break;
                    }
                    () = self.instance.suspected() => self.serves().await,
                    _tick = look.tick() => {
                        if !self.instance.is_silent(self.clock.now()) {
                            continue;
                        }
                        self.is_alive().await
                    }
                };
                if answers {
                    self.instance.hear(self.clock.now());
                    added.0.probed(id, true);
                    // Limits the rate of probes when many exchanges fail.
                    tokio::time::sleep(LOOK_PERIOD).await;
                    continue;
                }
                added.0.probed(id, false);
                self.probe_until_ready(Some(&added)).await;
                self.instance.hear(self.clock.now());
                added.0.probed(id, true);
            }
        }
    }

    /// Probes the instance until it is ready. With `added` each negative answer counts as a missed probe.
    async fn probe_until_ready(&self, added: Option<&Membership<'_>>) {
        while !within(HELD, probe::is_ready(self.instance.address))
            .await
            .unwrap_or(false)
        {
            if let Some(Membership(function, id)) = added {
                function.probed(*id, false);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns whether the instance is ready, or at least alive: an application that computes may answer no probe
    /// meanwhile.
    async fn serves(&self) -> bool {
        match within(ALIVE_WITHIN, probe::is_ready(self.instance.address)).await {
            Some(is_ready) => is_ready,
            None => self.is_alive().await,
        }
    }

    async fn is_alive(&self) -> bool {
        within(ALIVE_WITHIN, probe::is_alive(self.instance.address))
            .await
            .unwrap_or(false)
    }
}

/// Returns the answer to a probe; `None` if there was none within `limit`.
async fn within(limit: Duration, probe: impl Future<Output = bool>) -> Option<bool> {
    tokio::time::timeout(limit, probe).await.ok()
}
