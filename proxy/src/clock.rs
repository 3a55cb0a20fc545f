//! The process clock, with conversions to policy's integer time.

use policy::Time;
use tokio::time::Instant;

/// Clock that measures nanoseconds since its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Starts a clock at the current instant.
    #[must_use]
    pub fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.time(Instant::now())
    }

    /// Converts an instant to policy's time; instants before the start become zero.
    #[must_use]
    pub fn time(&self, instant: Instant) -> Time {
        // 584 years of nanoseconds fit.
        let nanos = instant.saturating_duration_since(self.epoch).as_nanos();
        Time(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Converts policy's time to an instant.
    #[must_use]
    pub fn instant(&self, time: Time) -> Instant {
        self.epoch + std::time::Duration::from_nanos(time.0)
    }
}
