//! The process clock, with conversions to policy's integer time.

use policy::Time;
use tokio::time::Instant;

/// Clock that measures nanoseconds since its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    epoch: Instant,
    /// Reading of `CLOCK_MONOTONIC` at the start, in nanoseconds.
    monotonic: u64,
}

impl Clock {
    /// Starts a clock at the current instant.
    #[must_use]
    pub fn start() -> Self {
        let reading = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(reading.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(reading.tv_nsec).unwrap_or(0);
        Self {
            epoch: Instant::now(),
            monotonic: seconds * 1_000_000_000 + nanos,
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

    /// Converts policy's time to nanoseconds of `CLOCK_MONOTONIC`, which all processes of a node share.
    #[must_use]
    pub const fn monotonic(&self, time: Time) -> u64 {
        self.monotonic.saturating_add(time.0)
    }

    /// Converts nanoseconds of `CLOCK_MONOTONIC` to policy's time; what was before the start becomes zero.
    #[must_use]
    pub const fn of_monotonic(&self, nanos: u64) -> Time {
        Time(nanos.saturating_sub(self.monotonic))
    }

    /// Converts policy's time to an instant.
    #[must_use]
    pub fn instant(&self, time: Time) -> Instant {
        self.epoch + std::time::Duration::from_nanos(time.0)
    }
}
