//! Detection of a hung agent: the time without a heartbeat while a thread is parked at the gate.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::page::Orders;

/// The last heartbeat that a parked thread saw, and the time since.
#[derive(Debug, Default)]
pub struct Silence {
    last: Option<Heartbeat>,
    lasted: Duration,
}

/// State of the agent's page. Any difference counts as a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heartbeat {
    /// Identity of the page: the agent updates the heartbeat in the page that it provided last.
    page: usize,
    heartbeat: u32,
    epoch: u64,
}

impl Silence {
    /// Adds a wait of length `waited` under `orders`. Returns whether the agent that serves them has been silent for `at_most`.
    ///
    /// Silence counts only within one page and only while the agent serves it (`is_served`): the heartbeat of a lost connection
    /// does not advance. Each wait counts for at most `usual`, its normal length: a machine that was suspended for longer has
    /// suspended the agent as well. After `true` the time starts from zero.
    pub fn has_lasted(
        &mut self,
        orders: &Orders,
        is_served: bool,
        waited: Duration,
        usual: Duration,
        at_most: Duration,
    ) -> bool {
        let last = is_served.then(|| Heartbeat {
            page: page_of(orders),
            heartbeat: orders.heartbeat.load(Ordering::Relaxed),
            epoch: orders.gate.epoch(),
        });
        if last.is_none() || last != self.last {
            self.last = last;
            self.lasted = Duration::ZERO;
            return false;
        }
        self.lasted += waited.min(usual);
        let is_over = self.lasted >= at_most;
        if is_over {
            self.lasted = Duration::ZERO;
        }
        is_over
    }
}

/// Returns the identity of a page, which no other page of the process has: its address. Pages are never unmapped.
#[must_use]
pub fn page_of(orders: &Orders) -> usize {
    std::ptr::from_ref(orders).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(50);
    const AT_MOST: Duration = Duration::from_secs(1);

    fn waits(silence: &mut Silence, orders: &Orders, is_served: bool, count: usize) -> bool {
        (0..count).any(|_| silence.has_lasted(orders, is_served, WAIT, WAIT, AT_MOST))
    }

    #[test]
    fn an_agent_without_heartbeats_is_silent_after_the_limit() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        assert!(!waits(&mut silence, &orders, true, 20));
        assert!(waits(&mut silence, &orders, true, 1));
        // It is reported again after the same time.
        assert!(!waits(&mut silence, &orders, true, 19));
        assert!(waits(&mut silence, &orders, true, 1));
    }

    #[test]
    fn a_heartbeat_ends_the_silence() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        for _ in 0..10 {
            assert!(!waits(&mut silence, &orders, true, 20));
            orders.heartbeat.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn silence_is_not_carried_over_from_a_lost_connection() {
        let (mut silence, before, after) = (Silence::default(), Orders::new(), Orders::new());
        assert!(!waits(&mut silence, &before, true, 19));
        assert!(!waits(&mut silence, &before, false, 100));
        assert!(!waits(&mut silence, &after, true, 20));
        assert!(waits(&mut silence, &after, true, 1));
        // Nor from one page to the next, even without a wait in between.
        assert!(!waits(&mut silence, &after, true, 19));
        assert!(!waits(&mut silence, &before, true, 20));
    }

    #[test]
    fn a_suspended_machine_does_not_make_the_agent_silent() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        let hour = Duration::from_secs(3600);
        assert!(!(0..20).any(|_| silence.has_lasted(&orders, true, hour, WAIT, AT_MOST)));
    }
}
