//! Timer of the service's thread.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Timer which is ready once, in edge-triggered mode, when its time has come. `epoll_pwait` waits for whole milliseconds, and arms a timer of its own each
/// time; this one is exact, and set only where the next wake-up comes earlier than the last one that was set.
#[derive(Debug)]
pub(super) struct Timer {
    descriptor: OwnedFd,
    /// Time at which it is ready, in nanoseconds of `CLOCK_MONOTONIC`; `None`: never.
    set: Option<u64>,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            descriptor: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            set: None,
        })
    }

    pub(super) const fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Has the timer be ready at `at`, in nanoseconds, or before.
    pub(super) fn wake_by(&mut self, at: u64) -> io::Result<()> {
        if self.set.is_some_and(|set| set <= at) {
            return Ok(());
        }
        // Zero would stop it.
        let at = at.max(1);
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at % 1_000_000_000).unwrap_or(0),
        };
        let times = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        let _before = timerfd_settime(&self.descriptor, TimerfdTimerFlags::ABSTIME, &times)?;
        self.set = Some(at);
        Ok(())
    }

    /// Notes that it has become ready.
    pub(super) const fn expire(&mut self) {
        self.set = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::epoll;

    use super::super::now_ns;
    use super::*;

    fn is_ready(epoll: &OwnedFd, at_most: Duration) -> bool {
        let timeout = Timespec::try_from(at_most).unwrap();
        let mut ready = Vec::with_capacity(1);
        let ready_events = rustix::buffer::spare_capacity(&mut ready);
        epoll::wait(epoll, ready_events, Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn a_timer_is_ready_once_at_the_earliest_time_that_was_set() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut timer = Timer::new().unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(1);
        epoll::add(&epoll, timer.descriptor(), data, flags).unwrap();
        assert!(!is_ready(&epoll, Duration::from_millis(20)));
        let begin = Instant::now();
        let now = now_ns();
        timer.wake_by(now + 3_600_000_000_000).unwrap();
        timer.wake_by(now + 20_000_000).unwrap();
        // It is ready before.
        timer.wake_by(now + 60_000_000_000).unwrap();
        assert!(is_ready(&epoll, Duration::from_secs(10)));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        timer.expire();
        assert!(!is_ready(&epoll, Duration::from_millis(20)));
        // A time that has passed.
        timer.wake_by(0).unwrap();
        assert!(is_ready(&epoll, Duration::from_secs(10)));
    }
}
