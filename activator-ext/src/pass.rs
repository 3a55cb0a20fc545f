//! The path to Knative's own activator, for requests which this program cannot decide on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use proxy::buffered::Buffered;
use proxy::upstream::{DIAL_ATTEMPTS, Settings, Upstream};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The activator's name in error messages.
pub(crate) const PEER: &str = "Knative's activator";
/// Largest number of idle connections kept to it.
const IDLE_MAX: usize = 100;

/// Pause after a failed look-up of its name.
const LOOK_UP_PAUSE: Duration = Duration::from_secs(1);

/// Connections to Knative's own activator.
#[derive(Debug)]
pub(crate) struct PassThrough {
    /// The activator's address as `host:port`; `None`: there is no such activator.
    target: Option<String>,
    buffered: Arc<Buffered>,
    current: ArcSwapOption<Upstream>,
    /// Set when a connection has failed, so that the name is looked up again.
    is_doubtful: AtomicBool,
    /// Time of the last failed look-up. The lock is held during a look-up, so that all requests share it.
    failed: Mutex<Option<Instant>>,
}

impl PassThrough {
    /// Returns a path to `target`, a `host:port`.
    #[must_use]
    pub(crate) fn new(target: Option<String>, buffered: Arc<Buffered>) -> Self {
        Self {
            target,
            buffered,
            current: ArcSwapOption::empty(),
            is_doubtful: AtomicBool::new(false),
            failed: Mutex::default(),
        }
    }

    /// Returns connections to the activator; `None` if there is none, or if its name was never resolved.
    pub(crate) async fn upstream(&self) -> Option<Arc<Upstream>> {
        let is_doubtful = self.is_doubtful.swap(false, Ordering::Relaxed);
        if let Some(known) = self.current.load_full().filter(|_| !is_doubtful) {
            return Some(known);
        }
        let before = self.current.load_full();
        let mut failed = self.failed.lock().await;
        let current = self.current.load_full();
        if current.as_ref().map(Arc::as_ptr) != before.as_ref().map(Arc::as_ptr) {
            return current;
        }
        // The address used last is the best guess meanwhile.
        if failed.is_some_and(|at| at.elapsed() < LOOK_UP_PAUSE) {
            return current;
        }
        let Some(address) = self.look_up().await else {
            *failed = Some(Instant::now());
            return current;
        };
        if let Some(known) = current
            && known.address() == address
        {
            return Some(known);
        }
        let upstream = Upstream::new(
            Settings {
                address,
                peer: PEER,
                idle_max: IDLE_MAX,
                dial_attempts: DIAL_ATTEMPTS,
                dial_max: None,
                // The activator decides itself which requests may be sent twice.
                resends: false,
                tls: None,
            },
            Arc::clone(&self.buffered),
        );
        self.current.store(Some(Arc::clone(&upstream)));
        Some(upstream)
    }

    /// Records that a connection has failed, so that the name is looked up again.
    pub(crate) fn failed(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        if let Some(upstream) = &*self.current.load() {
            upstream.sweep();
        }
    }

    async fn look_up(&self) -> Option<SocketAddr> {
        let target = self.target.as_deref()?;
        match tokio::net::lookup_host(target).await {
            Ok(mut addresses) => addresses.next(),
            Err(error) => {
                tracing::warn!(%error, target, "cannot resolve the name of Knative's activator");
                None
            }
        }
    }
}
