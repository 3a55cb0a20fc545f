//! One pod of a revision: its connections, and the time of the last sign that it is alive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use policy::{Time, routing};
use proxy::upstream::Upstream;
use tokio::sync::Notify;

use crate::view::RevisionName;

/// One pod of a revision.
#[derive(Debug)]
pub(crate) struct Instance {
    /// Address of the instance's queue-proxy.
    pub(crate) address: SocketAddr,
    /// Revision to which the instance belongs.
    pub(crate) revision: RevisionName,
    /// Connections to the instance's queue-proxy.
    pub(crate) upstream: Arc<Upstream>,
    /// Time in nanoseconds of the last answer, or of the first request since the instance was idle.
    heard: AtomicU64,
    /// Number of requests at the instance.
    requests: AtomicU32,
    /// Notified when an exchange has failed.
    suspected: Notify,
}

impl Instance {
    /// Returns an instance without requests or answers yet.
    #[must_use]
    pub(crate) fn new(
        address: SocketAddr,
        revision: RevisionName,
        upstream: Arc<Upstream>,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            revision,
            upstream,
            heard: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            suspected: Notify::new(),
        })
    }

    /// Records the start of a request at the instance.
    pub(crate) fn begin(&self, now: Time) {
        if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            self.hear(now);
        }
    }

    /// Records that the instance has answered.
    pub(crate) fn hear(&self, now: Time) {
        self.heard.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Records the end of a request at the instance.
    pub(crate) fn end(&self, now: Time) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.hear(now);
    }

    /// Returns the number of requests at the instance.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Records that an exchange has failed, so that the instance is probed.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Waits until an exchange has failed.
    pub(crate) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Returns whether the instance is silent, by [`routing::is_silent`].
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        let heard = Time(self.heard.load(Ordering::Relaxed));
        routing::is_silent(now, self.requests(), heard)
    }
}
