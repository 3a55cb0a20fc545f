//! The wait of a pod's instance for the lease of its GPU, as a part of a request's wait (contracts §7).

use std::time::Duration;

use tokio::time::Instant;

/// Part of a request's wait in which its instance had no lease of its GPU.
#[derive(Debug, Clone, Copy)]
pub struct LeaseWait {
    /// Begin of that part of the wait.
    pub since: Instant,
    /// Its duration, with the load of the model.
    pub duration: Duration,
    /// Load of the model in that time: begin, duration, label `source`.
    pub load: Option<(Instant, Duration, &'static str)>,
}

impl LeaseWait {
    /// Returns the time for the lease alone, and that for the load.
    #[must_use]
    pub fn parts(&self) -> (Duration, Duration) {
        let load = self.load.map_or(Duration::ZERO, |(_, load, _)| load);
        (self.duration.saturating_sub(load), load)
    }
}
