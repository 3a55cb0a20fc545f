//! Draining of the pod, from SIGTERM or a call of `/wait-for-drain` to the end of the quiet period.
//!
//! While draining, probes are answered with 503 and other requests are served as usual. The drain ends when no request
//! except probes has arrived for [`QUIET_PERIOD`]. A drain that was begun by `/wait-for-drain` is cancelled if no SIGTERM
//! follows within [`SIGNAL_GRACE`], since then only the user container restarts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Time without a request after which a drain ends. Fixed by Knative.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_secs(30);
/// Time from `/wait-for-drain` within which a SIGTERM must follow. Fixed by Knative.
pub(crate) const SIGNAL_GRACE: Duration = Duration::from_secs(1);

/// State of draining. See the [module](self).
#[derive(Debug)]
pub(crate) struct Drain {
    draining: AtomicBool,
    quiet_period: Duration,
    state: Mutex<State>,
    /// Number of drains that have ended or were cancelled.
    ended: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    signalled: bool,
    running: bool,
    last_request: Instant,
}

impl Drain {
    /// Creates the state of a pod that is not draining. A drain after a signal ends `quiet_period` after the last request.
    #[must_use]
    pub(crate) fn new(quiet_period: Duration) -> Arc<Self> {
        Arc::new(Self {
            quiet_period,
            draining: AtomicBool::new(false),
            state: Mutex::new(State {
                signalled: false,
                running: false,
                last_request: Instant::now(),
            }),
            ended: watch::Sender::new(0),
        })
    }

    /// Returns whether a drain is in progress or complete, so that probes are answered with 503.
    #[must_use]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Notes the arrival of a request that is not a probe, which restarts the quiet period.
    pub(crate) fn note_request(&self) {
        if self.is_draining() {
            self.lock().last_request = Instant::now();
        }
    }

    /// Drains after a SIGTERM. Returns when the quiet period is over.
    pub(crate) async fn on_signal(self: &Arc<Self>) {
        self.lock().signalled = true;
        self.begin().await;
    }

    /// Drains on behalf of `/wait-for-drain`. Returns when the quiet period is over or the drain is cancelled.
    pub(crate) async fn wait(self: &Arc<Self>) {
        self.begin().await;
    }

    async fn begin(self: &Arc<Self>) {
        let mut ended = self.ended.subscribe();
        {
            let mut state = self.lock();
            if !state.running {
                state.running = true;
                state.last_request = Instant::now();
                self.draining.store(true, Ordering::Relaxed);
                tracing::info!(
                    signalled = state.signalled,
                    quiet_seconds = self.quiet_period.as_secs(),
                    "draining: probes are answered with 503"
                );
                tokio::spawn(Arc::clone(self).run(Instant::now()));
            }
        }
        // The sender lives as long as `self`.
        let _ended = ended.changed().await;
    }

    async fn run(self: Arc<Self>, begin: Instant) {
        let mut at = begin + SIGNAL_GRACE.min(self.quiet_period);
        loop {
            tokio::time::sleep_until(at).await;
            let mut state = self.lock();
            let quiet_until = state.last_request + self.quiet_period;
            if state.signalled && Instant::now() < quiet_until {
                at = quiet_until;
                continue;
            }
            if !state.signalled {
                self.draining.store(false, Ordering::Relaxed);
                tracing::info!("the drain is cancelled: no SIGTERM followed /wait-for-drain");
            }
            state.running = false;
            self.ended.send_modify(|ended| *ended += 1);
            return;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_after_a_signal_ends_after_thirty_quiet_seconds() {
        let drain = Drain::new(QUIET_PERIOD);
        let begin = Instant::now();
        drain.on_signal().await;
        assert_eq!(begin.elapsed().as_secs(), 30);
        assert!(drain.is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_restarts_the_quiet_period() {
        let drain = Drain::new(QUIET_PERIOD);
        let begin = Instant::now();
        let waiting = tokio::spawn({
            let drain = Arc::clone(&drain);
            async move { drain.on_signal().await }
        });
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            drain.note_request();
        }
        waiting.await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 90);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_signal_the_drain_is_cancelled_after_a_second() {
        let drain = Drain::new(QUIET_PERIOD);
        let begin = Instant::now();
        tokio::join!(drain.wait(), drain.wait());
        assert_eq!(begin.elapsed().as_secs(), 1);
        assert!(!drain.is_draining());
        drain.on_signal().await;
        assert!(drain.is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_signal_within_the_grace_waiters_wait_for_the_whole_quiet_period() {
        let drain = Drain::new(QUIET_PERIOD);
        let begin = Instant::now();
        let signal = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drain.on_signal().await;
        };
        tokio::join!(drain.wait(), signal);
        assert_eq!(begin.elapsed().as_secs(), 30);
    }
}
