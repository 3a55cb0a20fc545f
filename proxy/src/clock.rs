//! The process clock as policy's integer time.

use policy::Time;
use tokio::time::Instant;

/// Nanoseconds since the process began.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// An instant as policy's time.
    #[must_use]
    pub fn time(&self, instant: Instant) -> Time {
        // 584 years of nanoseconds fit.
        let nanos = instant.saturating_duration_since(self.epoch).as_nanos();
        Time(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Policy's time as an instant.
    #[must_use]
    pub fn instant(&self, time: Time) -> Instant {
        self.epoch + std::time::Duration::from_nanos(time.0)
    }
}
