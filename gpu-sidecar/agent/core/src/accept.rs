//! Rate limit of the connections accepted from one pod.

/// Maximum number of connections of one pod accepted per second: as many as it may have at once. More wait in the kernel's
/// backlog, so that a pod which connects in a loop costs the other pods nothing.
const CONNECTIONS_PER_SECOND: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;

/// Rate limit of the connections accepted from one pod.
#[derive(Debug, Default)]
pub(crate) struct AcceptLimiter {
    /// Start of the current second, in nanoseconds.
    second: u64,
    /// Number of connections accepted within the current second.
    taken: u32,
    /// Time until which accepting is paused, in nanoseconds.
    paused_until: Option<u64>,
}

impl AcceptLimiter {
    /// Counts an accepted connection. When it is the last one allowed within its second, accepting pauses until the next;
    /// returns whether it does.
    pub(crate) fn count(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.second) >= SECOND_NS {
            (self.second, self.taken) = (now, 0);
        }
        self.taken += 1;
        let is_last = self.taken >= CONNECTIONS_PER_SECOND;
        if is_last {
            self.pause(self.second.saturating_add(SECOND_NS));
        }
        is_last
    }

    /// Pauses accepting until this time.
    pub(crate) const fn pause(&mut self, until: u64) {
        self.paused_until = Some(until);
    }

    /// Returns the time at which accepting resumes, if it is paused.
    pub(crate) const fn resumes_at(&self) -> Option<u64> {
        self.paused_until
    }

    /// Ends a pause which is over. Returns whether it does.
    pub(crate) fn resume(&mut self, now: u64) -> bool {
        self.paused_until.take_if(|until| *until <= now).is_some()
    }
}
