//! One pod of a revision: connections to it, and when something was last heard of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use policy::{Time, routing};
use proxy::upstream::Upstream;
use tokio::sync::Notify;

use crate::view::RevisionName;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Instance {
    /// Where its queue-proxy listens.
    pub(crate) address: SocketAddr,
    /// Whose it is.
    pub(crate) revision: RevisionName,
    /// Connections to it.
    pub(crate) upstream: Arc<Upstream>,
    /// When something was last heard of it, or a request went to it while none was there.
    heard: AtomicU64,
    /// Requests there.
    requests: AtomicU32,
    /// An exchange has failed.
    suspected: Notify,
}

impl Instance {
    /// An instance of which nothing is known.
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

    /// A request goes there.
    pub(crate) fn begin(&self, now: Time) {
        if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            self.hear(now);
        }
    }

    /// Something was heard of it.
    pub(crate) fn hear(&self, now: Time) {
        self.heard.fetch_max(now.0, Ordering::Relaxed);
    }

    /// A request has left.
    pub(crate) fn end(&self, now: Time) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.hear(now);
    }

    /// Returns how many requests are there.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// An exchange has failed: it is to be probed.
    pub(crate) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Waits until an exchange has failed.
    pub(crate) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// See [`routing::is_silent`].
    pub(crate) fn is_silent(&self, now: Time) -> bool {
        let heard = Time(self.heard.load(Ordering::Relaxed));
        routing::is_silent(now, self.requests(), heard)
    }
}
