//! Whether an instance lives.
//!
//! One that has not answered has one probe, held open up to 10 s and repeated 50 ms after a no. One that serves is probed
//! again after any exchange that failed. While requests are there and nothing was heard of it for 400 ms, its queue-proxy is
//! asked for a sign of life: a process that stands still accepts connections all the same, and an application that computes
//! may answer nothing meanwhile.

use std::sync::Arc;
use std::time::Duration;

use policy::routing::Shape;
use proxy::clock::Clock;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

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
        // Once the view that knows it has gone, so will this task.
        while self.ready.wait_for(|&is_ready| is_ready).await.is_ok() {
            self.until_it_is_ready(None).await;
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
                        // Kubernetes takes it for ready no more.
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
                    // However many exchanges fail, it is not asked without pause.
                    tokio::time::sleep(LOOK_PERIOD).await;
                    continue;
                }
                added.0.probed(id, false);
                self.until_it_is_ready(Some(&added)).await;
                self.instance.hear(self.clock.now());
                added.0.probed(id, true);
            }
        }
    }

    /// Probes it until it is ready. `added`: each no counts as a missed probe.
    async fn until_it_is_ready(&self, added: Option<&Membership<'_>>) {
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

    /// Whether it is ready, or at least there: an application that computes may answer no probe meanwhile.
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

/// Returns the answer; `None`: there was none in time.
async fn within(limit: Duration, probe: impl Future<Output = bool>) -> Option<bool> {
    tokio::time::timeout(limit, probe).await.ok()
}
